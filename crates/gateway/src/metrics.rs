//! What the gateway counts.
//!
//! One declaration of a counter in `metrics/counters.rs` gives its storage in every thread, its sum
//! over all threads, its samples in `/metrics` and its row in `docs/metrics.md`. In reading order:
//! `counters` (the declarations), `label` (the values of their labels), `instrument` (counters,
//! gauges and histograms), `thread` (the counters of one thread, and their sum), `export` (samples
//! and descriptions). Values that nobody counts, such as the height of a chain, are exported by
//! `admin/metrics.rs`.

pub(crate) mod counters;
pub(crate) mod export;
pub(crate) mod instrument;
pub(crate) mod label;
pub(crate) mod thread;
