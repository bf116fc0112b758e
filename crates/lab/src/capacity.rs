//! The capacity search: makes one run per probe until the boundary is found.
//!
//! `analysis/search.rs` chooses the next probe and summarizes all of them; `run.rs` makes the runs.
//! `capacity/search.rs` is the loop, and `results/capacity.rs` of lab-model defines the result.

mod answer;
mod probes;
mod search;
mod text;

pub use probes::{Cost, cost};
pub use search::{CapacityFault, Event, SaveRun, search};
pub use text::{probe_head, probe_line};

#[cfg(test)]
mod tests;
