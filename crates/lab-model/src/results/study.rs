//! The result of a study of syncs: `study.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Basis, Word};
use crate::named::named;

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
    /// True if stalls were taken off the times.
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

named! {
    /// Where courses are from.
    pub enum Source {
        /// Logs of nodes.
        Logs = "logs",
        /// Tables.
        Tables = "tables",
        /// Files of samples.
        Samples = "samples",
        /// Running nodes.
        Nodes = "nodes",
        /// Arms that the study ran itself.
        Runs = "runs",
    }
}

named! {
    /// How instants of two courses are held against each other.
    pub enum Align {
        /// By the clock: they ran side by side.
        Clock = "clock",
        /// By the time since each began.
        Start = "start",
    }
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

/// Accesses to a page cache during one interval, or over many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Accesses {
    /// Pages that were in it.
    pub hit: u64,
    /// Pages that had to be read.
    pub miss: u64,
    /// Changed pages that had to be written for want of room.
    pub spill: u64,
}

impl Accesses {
    /// Both together.
    #[must_use]
    pub fn plus(self, more: Accesses) -> Accesses {
        Accesses {
            hit: self.hit.saturating_add(more.hit),
            miss: self.miss.saturating_add(more.miss),
            spill: self.spill.saturating_add(more.spill),
        }
    }

    /// Hits and misses.
    pub fn pages(self) -> u64 {
        self.hit.saturating_add(self.miss)
    }

    /// Hits of all; none without accesses.
    pub fn hit_ratio(self) -> Option<f64> {
        (self.pages() > 0).then(|| self.hit as f64 / self.pages() as f64)
    }
}

/// When a cache was full.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheFull {
    /// Seconds since the course began.
    pub elapsed: f64,
    /// The height then.
    pub height: u64,
    /// Bytes: the most that it ever uses.
    pub ceiling: u64,
}

/// What a course did between two heights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bin {
    /// Its lowest height.
    pub from: u64,
    /// The lowest height of the next.
    pub to: u64,
    /// Samples in it.
    pub samples: usize,
    /// Blocks from the first to the last of them.
    pub blocks: u64,
    /// Seconds from the first to the last of them.
    pub seconds: f64,
    /// Blocks per second; none for fewer than two samples.
    pub rate: Option<f64>,
    /// Hits of all accesses of its samples.
    pub hit_ratio: Option<f64>,
    /// Page accesses per block, of intervals that lie within it and brought blocks: what is done
    /// while nothing moves is not work for a block.
    pub pages_per_block: Option<f64>,
    /// Pages read per block, of the same intervals.
    pub misses_per_block: Option<f64>,
}

/// Where the faster arm changes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RateCross {
    /// From this height on.
    pub height: u64,
    /// True if the first arm is the faster one from there on.
    pub to_first: bool,
}

/// A time without growth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stall {
    /// Seconds since the course began.
    pub from: f64,
    /// Seconds that it lasts.
    pub seconds: f64,
    /// The height at which it stands.
    pub height: u64,
    /// Lines about blocks that peers did not deliver, from one period before it to one after it.
    pub timeouts: usize,
    /// True if the course ends in it.
    pub open: bool,
}

/// Where a course has nothing left to sync.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tip {
    /// Seconds since the course began.
    pub elapsed: f64,
    /// The height then.
    pub height: u64,
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

/// The lead of the first course at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockLead {
    /// Seconds since the first course began.
    pub elapsed: f64,
    /// Seconds since 1970, by the first course's clock.
    pub at: f64,
    /// Blocks by which the first is ahead; negative if the second is.
    pub blocks: f64,
}

/// The lead of the second course at one height.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeLead {
    /// The height.
    pub height: f64,
    /// Seconds by which the second was there earlier; negative if the first was.
    pub seconds: f64,
}

/// A change of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cross {
    /// Seconds since the first course began.
    pub elapsed: f64,
    /// Seconds since 1970, by the first course's clock.
    pub at: f64,
    /// The first course's height then.
    pub height: u64,
    /// True if the first course leads from there on.
    pub to_first: bool,
}

/// When two arms came to the tip, each the median of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TipLead {
    /// Seconds of the first arm, since it began.
    pub first: f64,
    /// Seconds of the other.
    pub other: f64,
    /// Seconds by which the first was there earlier; negative if the other was.
    pub seconds: f64,
}

/// Times of both arms to a height.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeRow {
    /// The height.
    pub height: u64,
    /// True if it lay above the tip for a run: then the time says nothing of the arms.
    pub above_tip: bool,
    /// What was found; none if an arm did not reach it.
    pub judged: Option<Judged>,
}

/// Times of two arms to one height.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Judged {
    /// Median seconds of the first arm.
    pub a: f64,
    /// Median seconds of the other.
    pub b: f64,
    /// Runs of the first arm that reached it.
    pub a_count: usize,
    /// Runs of the other.
    pub b_count: usize,
    /// Seconds between the fastest and the slowest run of the first arm; none for a single run.
    pub a_spread: Option<f64>,
    /// The same of the other.
    pub b_spread: Option<f64>,
    /// Seconds, other minus first, of each pair of runs; empty if runs are no pairs.
    pub pairs: Vec<f64>,
    /// Relative change from the first to the other.
    pub change: f64,
    /// 95 % interval of the change.
    pub interval: Option<(f64, f64)>,
    /// Chance of such a difference between equal arms.
    pub p: Option<f64>,
    /// A smaller change does not matter, or is smaller than what samples can show.
    pub floor: f64,
    /// What it rests on.
    pub basis: Basis,
    /// In a word; better means that the other arm is sooner there.
    pub verdict: Word,
}

named! {
    /// What a sentence is about.
    pub enum About {
        /// Which arm is sooner there.
        Verdict = "verdict",
        /// What repeats of one arm differ by.
        Repeats = "repeats",
        /// Where one height overtakes the other.
        Heights = "heights",
        /// Where one rate overtakes the other.
        Rates = "rates",
        /// What counters say of the cause.
        Cause = "cause",
        /// True if the arms do the same work for a block.
        Work = "work",
        /// The tip of the chain, or a halt below it.
        Tip = "tip",
        /// Times without growth.
        Stalls = "stalls",
    }
}

/// A sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conclusion {
    /// What it is about.
    pub about: About,
    /// The arm it is about, where there are several against the first.
    pub arm: Option<String>,
    /// Better, worse and same tell something of the arms; `cannot-tell` says that nothing can be
    /// told; none where it is about the data.
    pub word: Option<Word>,
    /// The sentence.
    pub text: String,
}
