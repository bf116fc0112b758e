//! The lab: load, objectives, capacity, first bottleneck, told honestly. It meets what it measures
//! at sockets and imports neither the gateway nor the index.
//!
//! Reading order: `plan` (what is asked), `run` (the steps of a run, in order), `rules` (decisions),
//! `record` (what is counted), `host` (what is watched meanwhile), `result` (what a run ends with).
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod named;

pub mod metrics;

pub mod plan;

pub mod run;

pub mod recorder;

pub mod target;

mod fingerprint;

mod reference;

pub mod chain;

pub mod analysis;

pub mod record;

pub mod results;

pub mod live;

pub mod export;

mod wording;

pub mod report;

pub mod capacity;

pub mod compare;

pub mod foreign;

pub mod study;

pub mod host;

pub mod engine;
