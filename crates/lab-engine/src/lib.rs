//! Generates load and samples hosts. It does not judge; the lab interprets the numbers.
//!
//! Reading order: `schedule` (start times of iterations), `engine` (one loop per thread:
//! connections, requests, responses), `recorder` (the threads' counts by second), `aggregate`
//! (counts as rows of a result), `host` (samples of hosts).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod aggregate;
pub mod chain;
pub mod engine;
pub mod host;
pub mod recorder;
pub mod schedule;
