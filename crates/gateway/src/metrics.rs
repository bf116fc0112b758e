//! Counters, gauges and histograms of the gateway.
//!
//! One declaration of a counter in `metrics/counters.rs` gives its storage in every thread, its sum
//! over all threads, its samples in `/metrics` and its row in `docs/metrics.md`. In reading order:
//! `counters` (the declarations), `label` (the values of their labels), `instrument` (counters,
//! gauges and histograms), `thread` (the counters of one thread, and their sum), `export` (samples
//! and descriptions). `admin/metrics.rs` exports values that are not counted, such as the height of
//! a chain.

pub(crate) mod counters;
pub(crate) mod export;
pub(crate) mod instrument;
pub(crate) mod label;
pub(crate) mod thread;
