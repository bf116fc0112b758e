//! Studies of load runs: `weir study load`. Several variants of a target take turns under the same
//! plans. The study reports which variants differ, in which metrics, and by how much.
//!
//! `load/file.rs` reads the study file. `load/runner.rs` runs the rounds, with `load/servers.rs`
//! for the servers of the variants and `load/store.rs` for the finished runs on disk, from which an
//! interrupted study continues. `load/counts.rs` counts what the servers did, with
//! `load/access_log.rs` for their access logs. [`analyse()`] turns the runs into the published result.

mod access_log;
mod analyse;
mod counts;
mod cpu_limit;
pub mod file;
mod machine;
mod placeholders;
pub mod runner;
mod servers;
pub mod store;

#[cfg(test)]
pub(crate) mod tests;

pub use analyse::{FinishedRun, analyse};
