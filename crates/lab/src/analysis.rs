//! Decisions as pure functions and small state machines. They use no clock, socket, thread,
//! randomness or file; times and seeds are arguments.

pub mod assessment;
pub mod bottleneck;
pub mod calendar;
pub mod comparability;
pub mod compare;
pub mod failure_period;
pub mod findings;
pub mod habits;
pub mod json_compare;
pub mod probe;
pub mod rounds;
pub mod scaling;
pub mod search;
pub mod statistics;
pub mod sync;
pub mod thresholds;
pub mod validity;
pub mod verdict;
