//! Data types of the lab: plans, the registry of metrics, counters, and the published results. The
//! crate opens no socket and reads no clock.
//!
//! The modules in reading order:
//!
//! - `plan` has the input of a run, and reads it.
//! - `record` has the counters of a run.
//! - `metrics` has the registry of metrics.
//! - `results` has the output of runs, capacity searches, comparisons and studies.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod named;

pub mod metrics;
pub mod number;
pub mod plan;
pub mod record;
pub mod results;

#[cfg(any(test, feature = "samples"))]
pub mod samples;
