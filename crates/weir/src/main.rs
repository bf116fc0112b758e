//! The program `weir`: sets the allocator and runs the command line of the library.

use std::process::ExitCode;

/// The gateway allocates and frees small buffers for every call. mimalloc is faster at this than
/// the allocator of the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's option `purge_delay` (`mi_option_e` in `mimalloc.h`). The bindings do not name it.
const PURGE_DELAY: i32 = 15;
/// Time in milliseconds after which mimalloc returns free memory to the system. With the default of
/// mimalloc 3, which is 1 s, the process takes twice the memory that large responses need. Without a
/// delay a call to an upstream costs 4 % more CPU time, with 1 ms about 1 %.
const PURGE_DELAY_MS: i64 = 1;

#[allow(unsafe_code)] // The option has no safe wrapper.
fn return_free_memory_soon() {
    // SAFETY: the function takes plain numbers, and may be called at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS) }
}

fn main() -> ExitCode {
    return_free_memory_soon();
    weir::run()
}
