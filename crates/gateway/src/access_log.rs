//! The access log: one line for each request or call, written by a thread of its own.
//!
//! In reading order: `format` (the variables of a line), `record` (the facts about a request, and its
//! line), `pending` (a record until the response is written), `write` (queues, the thread and the
//! file), `read` (lines back into facts, for `weir logs`).

pub mod format;
pub(crate) mod pending;
pub mod read;
pub(crate) mod record;
pub(crate) mod write;
