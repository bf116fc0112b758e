//! Counters, gauges and histograms of the gateway.
//!
//! `metrics/counters.rs` declares each counter once. The declaration generates the counter's
//! storage in every thread, its sum over all threads, its samples in `/metrics` and its row in
//! `docs/metrics.md`. `admin/metrics.rs` exports values that are not counted, such as the height of
//! a chain. The modules in reading order:
//!
//! | module | what |
//! |---|---|
//! | `counters` | the declarations of all counters |
//! | `label` | the values of their labels |
//! | `instrument` | the types: counter, gauge, histogram |
//! | `thread` | the counters of one thread, and the sum over all threads |
//! | `export` | the samples and descriptions |

pub(crate) mod counters;
pub(crate) mod export;
pub(crate) mod instrument;
pub(crate) mod label;
pub(crate) mod thread;
