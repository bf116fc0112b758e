//! The access log: one line for each request or call, written by a thread of its own.
//!
//! In reading order: `format` (what a line holds), `record` (what is known of a request), `write`
//! (queues, the thread and the file), `read` (lines back into facts, for `weir logs`).

pub mod format;
pub mod read;
pub(crate) mod record;
pub(crate) mod write;
