//! How fast things sync: what may be said of courses of heights over time.
//!
//! A [`Course`] is one run of one arm: samples of its height, with counters of a page cache where
//! they are known (`sync/sample.rs`). Parts: `sync/course.rs` (a course alone), `sync/lead.rs` (one against another),
//! `sync/bins.rs` (rates by height), `sync/pauses.rs` (stalls and the tip), `sync/judge.rs` (arms
//! over their repeats) and `wording/conclude.rs` (the sentences). Reading files is `study.rs`.
//!
//! Every rule is stated where it stands; the numbers of a published run of two nodes, found by
//! hand, are its test (`testdata/pocketnet`).

pub mod bins;
pub mod course;
pub mod judge;
pub mod lead;
pub mod pauses;
mod sample;

#[cfg(test)]
mod tests;

pub use sample::{Announced, Course, Sample, Timeout};

/// An arm: runs of one setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArmCourses {
    /// Its name.
    pub name: String,
    /// Its runs, in order.
    pub runs: Vec<Course>,
}
