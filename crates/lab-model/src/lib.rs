//! What the lab says and keeps: plans, the registry of metrics, what is counted, and the published
//! shapes of results. Nothing here opens a socket or reads a clock.
//!
//! Reading order: `plan` (what is asked), `record` (what is counted), `metrics` (what numbers there
//! are), `results` (what a run, a search, a comparison and a study end with).
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod named;

pub mod metrics;
pub mod plan;
pub mod record;
pub mod results;

#[cfg(any(test, feature = "samples"))]
pub mod samples;
