//! The access log: one line for each request or call, written by a thread of its own.
//!
//! In reading order: `format` (the variables of a line), `record` (the facts about a request, and its
//! line), `pending` (a record until the response is written), `write` (queues, the thread and the
//! file).

pub mod format;
#[cfg(test)]
mod fuzz;
pub(crate) mod pending;
pub(crate) mod record;
pub(crate) mod write;
