//! Analysis of sync speed: block heights over time.
//!
//! A [`SyncRun`] is one run of one variant. It has samples of the height, and counters of the page
//! cache if they are known (`sync/sample.rs`). `sync/run.rs` analyses one run alone, `sync/lead.rs`
//! compares two runs, `sync/bins.rs` computes rates by height, `sync/pauses.rs` finds stalls and
//! the chain tip, and `sync/judge.rs` compares variants over their repeats. `wording/conclude.rs`
//! writes the sentences, and `study.rs` reads the files.
//!
//! The tests check the rules against the hand-computed numbers of a published run of two nodes
//! (`testdata/pocketnet`).

pub mod bins;
pub mod judge;
pub mod lead;
pub mod pauses;
pub mod run;
mod sample;

#[cfg(test)]
mod tests;

pub use sample::{Announced, Sample, SyncRun, Timeout};

/// The runs of one variant of a study.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VariantRuns {
    /// Its name.
    pub name: String,
    /// Its runs, in order.
    pub runs: Vec<SyncRun>,
}
