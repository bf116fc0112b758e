//! The macros `print!` and `println!` of this crate. Those of the standard library panic if the
//! reader of standard output has closed it, as in `weir load … | head -1`. These ignore that, so
//! the command ends with its own exit code.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

macro_rules! print {
    ($($argument:tt)*) => { $crate::print::print(format_args!($($argument)*)) };
}

macro_rules! println {
    ($($argument:tt)*) => { print!("{}\n", format_args!($($argument)*)) };
}

/// True after a failed write, for example to a full disk.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Prints to standard output. After a failed write, prints the error once to standard error.
pub(crate) fn print(text: Arguments<'_>) {
    let Err(error) = io::stdout().write_fmt(text) else { return };
    if error.kind() != ErrorKind::BrokenPipe && !HAS_FAILED.swap(true, Ordering::Relaxed) {
        eprintln!("weir: cannot write to standard output: {error}");
    }
}

/// Returns true if a write to standard output has failed.
pub(crate) fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed)
}
