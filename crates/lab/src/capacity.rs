//! The capacity search: a run for each probe, until the boundary is found.
//!
//! `analysis/search.rs` decides which probe is next and what it shows; `run.rs` makes the run. The loop
//! is in `capacity/course.rs`, the shape of the result in `results/capacity.rs`.

mod answer;
mod course;
mod probes;
mod text;

pub use course::{CapacityFault, Keep, Sight, search};
pub use probes::{Cost, cost};
pub use text::{probe_head, probe_line};

#[cfg(test)]
mod tests;
