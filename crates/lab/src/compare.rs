//! Compares the results of runs: `weir compare A B`.
//!
//! Variants are results of `weir load` or of other tools (`import.rs`). `analysis/comparability.rs`
//! decides if they may be compared, and `analysis/compare.rs` classifies the differences.

mod find;
mod judge;
mod mix;

pub use find::{merge_runs, variants_at};
pub use judge::{Options, compare};

#[cfg(test)]
pub(crate) mod tests;
