//! Decisions as pure functions and small state machines: what is known goes in, what to do comes
//! out. No clock, socket, thread, randomness or file; `now` and seeds are arguments.

pub mod bottleneck;
pub mod calendar;
pub mod compare;
pub mod equal;
pub mod findings;
pub mod knee;
pub mod sameness;
pub mod scaling;
pub mod search;
pub mod statistics;
pub mod sync;
pub mod thresholds;
pub mod validity;
pub mod verdict;
