//! The access log: one line for each request or call, written by a thread of its own.
//!
//! In reading order: `record` (the facts about a request, and its line), `pending` (a record until
//! the response is written), `write` (queues, the thread and the file). The variables of a line are
//! in `config/access_log/format.rs`.

pub(crate) mod pending;
pub(crate) mod record;
pub(crate) mod write;
