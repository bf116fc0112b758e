//! The access log: a background thread writes one line for each request or call.
//! `config/access_log/format.rs` defines the variables of a line. The modules in reading order:
//!
//! | module | what |
//! |---|---|
//! | `record` | the facts about a request, and their format as a line |
//! | `pending` | a record until the response is written |
//! | `write` | the queues, the writer thread and the file |

pub(crate) mod pending;
pub(crate) mod record;
pub(crate) mod write;
