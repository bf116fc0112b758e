//! Studies of load runs: `weir study load`. Several variants of a target take turns under the same
//! load plans. The study reports which variants differ, in which metrics, and by how much.
//!
//! `load/file.rs` reads the study file, and `load/runner.rs` runs the rounds. A *round* is one run
//! of each variant under each plan. A study may have *cases* in place of plans; a case is a plan
//! with values for the servers' settings. `load/servers.rs` starts the servers of the variants.
//! `load/store.rs` saves finished runs, so an interrupted study can continue. `load/counts.rs` and
//! `load/access_log.rs` count requests and resources. [`analyse()`] turns the runs into the result.

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
