//! Generates load and samples the hosts under load. The crate `lab` interprets the numbers.
//!
//! The modules in reading order:
//!
//! - `chain` holds facts about the chain. The engine draws the parameters of calls from them.
//! - `schedule` computes the start times of iterations.
//! - `engine` sends calls and classifies responses. Each engine thread runs one loop.
//! - `recorder` adds up the counts of all engine threads, second by second.
//! - `aggregate` turns counts into rows of a result. A row has the rates and latencies of a method
//!   or a stage.
//! - `host` samples processes, sockets, disks and networks.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod aggregate;
pub mod chain;
pub mod engine;
pub mod host;
pub mod recorder;
pub mod schedule;
