//! Generates load and samples the hosts under load. The crate `lab` interprets the numbers.
//!
//! The modules in reading order:
//!
//! - `chain` holds facts about the chain, from which parameters of calls are drawn.
//! - `schedule` computes the start times of iterations.
//! - `engine` sends calls and classifies responses, with one loop per thread.
//! - `recorder` merges the counts of all threads into seconds.
//! - `aggregate` turns counts into rows of a result.
//! - `host` samples processes, sockets, disks and networks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod aggregate;
pub mod chain;
pub mod engine;
pub mod host;
pub mod recorder;
pub mod schedule;
