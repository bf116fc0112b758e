//! Decisions as pure functions and small state machines: what is known goes in, what to do comes
//! out. No clock, socket, thread, randomness or file; `now` and seeds are arguments.

pub mod compare;

pub mod sameness;

pub mod scaling;

pub mod bottleneck;

pub mod search;

pub mod statistics;

pub mod thresholds;

pub mod rows;

pub mod knee;

pub mod findings;

pub mod self_check;

pub mod validity;

pub mod verdict;

pub mod equal;

pub mod calendar;

pub mod sync;

#[cfg(test)]
pub(crate) mod samples;

pub mod schedule;
