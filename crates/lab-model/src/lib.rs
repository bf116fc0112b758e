//! Data types of the lab: plans, the registry of metrics, counters, and the published results.
//! Nothing here opens a socket or reads a clock.
//!
//! Reading order: `plan` (the input), `record` (the counters), `metrics` (the registry), `results`
//! (the output of a run, a search, a comparison and a study).
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod named;

pub mod metrics;
pub mod number;
pub mod plan;
pub mod record;
pub mod results;

#[cfg(any(test, feature = "samples"))]
pub mod samples;
