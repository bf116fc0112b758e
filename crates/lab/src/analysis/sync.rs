//! Analysis of sync speed: block heights over time.
//!
//! A sync study compares variants of a node, for example with different settings. A [`SyncRun`] is
//! one run of one variant, in which the node synchronizes with its chain. It has samples of the
//! node's block height, and of its page cache if the cache is known (`sync/sample.rs`).
//!
//! - `sync/run.rs` analyses one run.
//! - `sync/lead.rs` compares two runs.
//! - `sync/bins.rs` computes rates by height.
//! - `sync/tip.rs` finds the chain tip: the point from which a node only waits for new blocks.
//! - `sync/pauses.rs` finds stalls.
//! - `sync/judge.rs` compares variants over all their runs.
//!
//! `study.rs` reads the files, and `wording/conclude.rs` writes the sentences. The tests check the
//! rules against hand-computed numbers of a published run of two nodes (`testdata/pocketnet`).

pub mod bins;
pub mod judge;
pub mod lead;
pub mod pauses;
pub mod run;
mod sample;
pub mod tip;

#[cfg(test)]
mod tests;

pub use sample::{Announced, Sample, SyncRun, Timeout};

/// The runs of one variant of a study.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VariantRuns {
    /// Name of the variant.
    pub name: String,
    /// The runs, by their number.
    pub runs: Vec<SyncRun>,
}
