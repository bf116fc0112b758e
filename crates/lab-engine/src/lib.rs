//! Makes load and watches hosts. It judges nothing: what the numbers mean is the lab's matter.
//!
//! Reading order: `schedule` (when what is due), `engine` (one loop per thread: connections, requests,
//! responses), `recorder` (what the threads saw, by second), `aggregate` (counts as rows of a result),
//! `host` (samples of hosts meanwhile).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod aggregate;
pub mod chain;
pub mod engine;
pub mod host;
pub mod recorder;
pub mod schedule;
