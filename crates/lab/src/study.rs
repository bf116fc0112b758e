//! Studies: runs arranged to answer one question. Here: which of several arms syncs faster, and why.
//!
//! Order of a study: courses are read (`study/read.rs`: logs, tables, samples), polled
//! (`study/poll.rs`: running nodes) or made (`study/runner.rs`, by a file of `study/file.rs`);
//! [`analyse()`] turns them into a [`StudyResult`], in which nothing is decided that is not in
//! `rules/sync.rs`; reports are `report/study.rs`.

mod analyse;
mod fault;
pub mod file;
pub mod poll;
pub mod read;
pub mod runner;

#[cfg(test)]
pub(crate) mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use analyse::{Options, analyse};
pub use fault::StudyFault;

use crate::rules::sync::bins::{Bin, RateCross};
use crate::rules::sync::conclude::Conclusion;
use crate::rules::sync::course::CacheFull;
use crate::rules::sync::judge::Judged;
use crate::rules::sync::lead::{BlockLead, Cross, TimeLead, TipLead};
use crate::rules::sync::pauses::{Stall, Tip};
use crate::rules::sync::{Accesses, Align};

/// Version of the shape below.
pub const SCHEMA: &str = "weir.study/1";

/// One study, told whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StudyResult {
    /// [`SCHEMA`].
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// Version of the program.
    pub weir: String,
    /// Its name.
    pub name: String,
    /// What it is to answer, if somebody said so.
    pub question: Option<String>,
    /// Where its courses are from.
    pub source: Source,
    /// How its runs were arranged, in words.
    pub design: Option<String>,
    /// How instants of arms are held against each other.
    pub align: Align,
    /// Blocks in a bin.
    pub bin: u64,
    /// Seconds in which a block of the chain is made; decides what counts as the tip.
    pub block_time: f64,
    /// Whether stalls were taken off the times.
    pub stalls_subtracted: bool,
    /// The study ended before its plan.
    pub partial: bool,
    /// Heights to which times are compared, ascending; the last is the one that is judged.
    pub heights: Vec<u64>,
    /// The first is what the others are compared with.
    pub arms: Vec<ArmRow>,
    /// Every further arm against the first.
    pub against: Vec<Against>,
    /// What follows, in sentences; the first is the verdict.
    pub conclusions: Vec<Conclusion>,
    /// Doubts about the data.
    pub warnings: Vec<String>,
}

/// Where courses are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Logs of nodes.
    Logs,
    /// Tables.
    Tables,
    /// Files of samples.
    Samples,
    /// Running nodes.
    Nodes,
    /// Arms that the study ran itself.
    Runs,
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArmRow {
    /// Its name.
    pub name: String,
    /// Its runs that were used, in order.
    pub runs: Vec<RunRow>,
    /// Runs that were not, each with why.
    pub left_out: Vec<String>,
    /// Median over runs of each bin's rate, in blocks per second.
    pub rates: Vec<Option<f64>>,
    /// Median over runs of each bin's hit ratio.
    pub hit_ratios: Vec<Option<f64>>,
    /// Median over runs of each bin's page accesses per block.
    pub pages_per_block: Vec<Option<f64>>,
    /// Median over runs of each bin's pages read per block.
    pub misses_per_block: Vec<Option<f64>>,
}

/// One run of an arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRow {
    /// Where it is from.
    pub label: String,
    /// Its first sample, RFC 3339.
    pub first: String,
    /// Its last sample, RFC 3339.
    pub last: String,
    /// Seconds from its beginning to its last sample.
    pub elapsed: f64,
    /// How many samples.
    pub samples: usize,
    /// Seconds between them, as a median.
    pub period: f64,
    /// Height of its first sample.
    pub height_first: u64,
    /// Height of its last sample.
    pub height: u64,
    /// The highest height that peers announced.
    pub announced: Option<u64>,
    /// Where it had nothing left to sync. What follows on the cache and by height ends there.
    pub tip: Option<Tip>,
    /// When its cache was full.
    pub cache_full: Option<CacheFull>,
    /// The most that its cache used, in bytes.
    pub used_max: Option<u64>,
    /// All accesses to its cache.
    pub accesses: Option<Accesses>,
    /// Hits of all accesses.
    pub hit_ratio: Option<f64>,
    /// The most memory that it took, in bytes.
    pub memory_max: Option<u64>,
    /// The most disk that it took, in bytes.
    pub disk_max: Option<u64>,
    /// CPU seconds that it took.
    pub cpu: Option<f64>,
    /// Times to the study's heights.
    pub times: Vec<TimeTo>,
    /// Times without growth.
    pub stalls: Vec<Stall>,
    /// Stalls that are not listed.
    pub stalls_more: usize,
    /// Blocks that peers did not deliver in time.
    pub timeouts: usize,
    /// Rates by height.
    pub bins: Vec<Bin>,
    /// Its course, thinned: seconds since its beginning, height.
    pub points: Vec<(f64, u64)>,
    /// What is worth telling of how it was read.
    pub notes: Vec<String>,
}

/// When a run reached a height.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeTo {
    /// The height.
    pub height: u64,
    /// Seconds from its beginning to the first sample at or above it; none if it was not reached,
    /// or was there from the first sample on.
    pub elapsed: Option<f64>,
    /// Seconds of stalls before.
    pub stalled: f64,
    /// The run was at the tip before it reached this height, which therefore did not exist when it
    /// could have been reached: the time says how fast blocks are made.
    pub above_tip: bool,
}

/// An arm against the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Against {
    /// The first arm's name.
    pub first: String,
    /// The other arm's name.
    pub other: String,
    /// Runs of both side by side, in order.
    pub pairs: Vec<PairRow>,
    /// When both came to the tip; none unless every run of both did.
    pub tip: Option<TipLead>,
    /// Times to heights over all runs.
    pub times: Vec<TimeRow>,
    /// Which arm is the faster one in each bin (true: the first), by medians; none if they are even.
    pub faster: Vec<Option<bool>>,
    /// Where that changes.
    pub rate_crosses: Vec<RateCross>,
}

/// A run of the first arm and one of the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairRow {
    /// The first arm's run.
    pub first: String,
    /// The other's.
    pub other: String,
    /// The largest lead of the first in blocks, and that of the other.
    pub blocks: (Option<BlockLead>, Option<BlockLead>),
    /// The largest lead of the first in seconds at the edges of bins and at the last height, and
    /// that of the other.
    pub seconds: (Option<TimeLead>, Option<TimeLead>),
    /// Changes of the leader.
    pub crosses: Vec<Cross>,
    /// The other's lead in seconds at the edges of bins, the study's heights, the last height, and
    /// between them.
    pub by_height: Vec<TimeLead>,
    /// The first's lead in blocks over time, thinned: seconds since its beginning, blocks.
    pub by_time: Vec<(f64, f64)>,
}

/// Times of both arms to a height.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeRow {
    /// The height.
    pub height: u64,
    /// Whether it lay above the tip for a run: then the time says nothing of the arms.
    pub above_tip: bool,
    /// What was found; none if an arm did not reach it.
    pub judged: Option<Judged>,
}
