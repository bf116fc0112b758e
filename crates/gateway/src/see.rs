//! Letting operators see: counters, status, metrics and a page, served on the admin address.
//!
//! In reading order: `counters` (what each thread counts), `tally` (all threads added up),
//! `status` (the state in one value), `metrics` (the same as OpenMetrics text), `history` (the
//! last two minutes), `page` (status and history as HTML), `process` (which process this is), `admin` (the listener), `access_log` (a line for each request). Nothing here
//! is on the way of a call but the counters, and nothing here changes what the gateway does.

pub mod access_log;
pub(crate) mod admin;
pub(crate) mod counters;
pub(crate) mod history;
pub mod metrics;
pub(crate) mod page;
pub mod process;
pub mod status;
pub(crate) mod tally;

#[cfg(test)]
mod tests;
