//! The exit codes that several commands share. A command documents its codes in its help.

/// A faulty configuration or faulty arguments. clap uses the same code.
pub(crate) const EXIT_FAULTY: u8 = 2;
/// The verdict FAIL.
pub(crate) const EXIT_FAILED: u8 = 3;
/// The verdict INVALID.
pub(crate) const EXIT_INVALID: u8 = 4;
/// The verdict CLIENT-LIMITED.
pub(crate) const EXIT_CLIENT_LIMITED: u8 = 5;
/// Stopped by Ctrl-C or another signal.
pub(crate) const EXIT_INTERRUPTED: u8 = 6;
/// The result contradicts its own evidence.
pub(crate) const EXIT_SELF_CHECK: u8 = 7;
