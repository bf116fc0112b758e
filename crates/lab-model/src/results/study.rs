//! The result of a study of syncs: `study.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Basis, Word};
use crate::named::named;

/// Version of this format.
pub const SCHEMA: &str = "weir.study/1";

/// A study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StudyResult {
    /// [`SCHEMA`].
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// Version of the program.
    pub weir: String,
    /// Its name.
    pub name: String,
    /// The question of the study, if it has one.
    pub question: Option<String>,
    /// Source of its courses.
    pub source: Source,
    /// Order of its runs, in words.
    pub design: Option<String>,
    /// How times of two arms are compared.
    pub align: Align,
    /// Blocks in a bin.
    pub bin: u64,
    /// Block time of the chain in seconds, which decides when a run is at the tip.
    pub block_time: f64,
    /// True if stalls were subtracted from the times.
    pub stalls_subtracted: bool,
    /// True if the study ended early.
    pub partial: bool,
    /// Heights at which times are compared, ascending. The last one decides the verdict.
    pub heights: Vec<u64>,
    /// The arms. The first one is the baseline.
    pub arms: Vec<ArmRow>,
    /// Every other arm against the first.
    pub against: Vec<Against>,
    /// The conclusions. The first one is the verdict.
    pub conclusions: Vec<Conclusion>,
    /// Doubts about the data.
    pub warnings: Vec<String>,
}

named! {
    /// Source of courses.
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
    /// How times of two courses are compared.
    pub enum Align {
        /// By the clock, for runs side by side.
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
    /// Runs that were left out, each with the reason.
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
    /// Source of the run.
    pub label: String,
    /// Its first sample, RFC 3339.
    pub first: String,
    /// Its last sample, RFC 3339.
    pub last: String,
    /// Seconds from its beginning to its last sample.
    pub elapsed: f64,
    /// Number of samples.
    pub samples: usize,
    /// Median seconds between samples.
    pub period: f64,
    /// Height of its first sample.
    pub height_first: u64,
    /// Height of its last sample.
    pub height: u64,
    /// The highest height that peers announced.
    pub announced: Option<u64>,
    /// When it reached the tip. Cache values and values by height end there.
    pub tip: Option<Tip>,
    /// When its cache was full.
    pub cache_full: Option<CacheFull>,
    /// Largest size of its cache, in bytes.
    pub used_max: Option<u64>,
    /// All accesses to its cache.
    pub accesses: Option<Accesses>,
    /// Hits of all accesses.
    pub hit_ratio: Option<f64>,
    /// Largest memory use, in bytes.
    pub memory_max: Option<u64>,
    /// Largest disk use, in bytes.
    pub disk_max: Option<u64>,
    /// CPU seconds used.
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
    /// Its course, downsampled: seconds since its beginning, height.
    pub points: Vec<(f64, u64)>,
    /// Notes on how it was read.
    pub notes: Vec<String>,
}

/// When a run reached a height.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeTo {
    /// The height.
    pub height: u64,
    /// Seconds from its beginning to the first sample at or above the height. None if it was not
    /// reached, or if the first sample was above it.
    pub elapsed: Option<f64>,
    /// Seconds of stalls before it.
    pub stalled: f64,
    /// True if the run was at the tip before this height. The time then shows how fast blocks are
    /// made.
    pub above_tip: bool,
}

/// Accesses to a page cache during one interval, or over many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Accesses {
    /// Pages that were in it.
    pub hit: u64,
    /// Pages that had to be read.
    pub miss: u64,
    /// Dirty pages that were written to make room.
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

    /// Hits / accesses; none without accesses.
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
    /// Size in bytes, the largest of the run.
    pub ceiling: u64,
}

/// The values of a course between two heights.
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
    /// Page accesses per block, over intervals within the bin that added blocks. Intervals without
    /// blocks are not counted.
    pub pages_per_block: Option<f64>,
    /// Pages read per block, of the same intervals.
    pub misses_per_block: Option<f64>,
}

/// A change of the faster arm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RateCross {
    /// From this height on.
    pub height: u64,
    /// True if the first arm is the faster one from there on.
    pub to_first: bool,
}

/// A stall: a time without growth.
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

/// When a course reached the tip.
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
    /// True for each bin in which the first arm is faster by medians; none if they are equal.
    pub faster: Vec<Option<bool>>,
    /// Where that changes.
    pub rate_crosses: Vec<RateCross>,
}

/// A pair of runs of the two arms.
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
    /// True if the height was above the tip for a run, so that the time does not compare the arms.
    pub above_tip: bool,
    /// The times; none if an arm did not reach the height.
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
    /// Seconds of each pair of runs, other minus first. Empty for unpaired runs.
    pub pairs: Vec<f64>,
    /// Relative change from the first to the other.
    pub change: f64,
    /// 95 % interval of the change.
    pub interval: Option<(f64, f64)>,
    /// Probability of such a difference between equal arms.
    pub p: Option<f64>,
    /// Smallest relevant change, or the resolution of the samples if that is larger.
    pub floor: f64,
    /// The statistical basis.
    pub basis: Basis,
    /// The verdict. Better means that the other arm is faster.
    pub verdict: Word,
}

named! {
    /// The topic of a sentence.
    pub enum About {
        /// Which arm is faster.
        Verdict = "verdict",
        /// How much repeats of one arm differ.
        Repeats = "repeats",
        /// Where one course overtakes the other.
        Heights = "heights",
        /// Where one rate overtakes the other.
        Rates = "rates",
        /// What the counters show about the cause.
        Cause = "cause",
        /// Whether the arms do the same work per block.
        Work = "work",
        /// The tip of the chain, or a stop below it.
        Tip = "tip",
        /// Stalls.
        Stalls = "stalls",
    }
}

/// A sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conclusion {
    /// Its topic.
    pub about: About,
    /// The arm, if there are several others.
    pub arm: Option<String>,
    /// Better, worse or same for a conclusion about the arms, `cannot-tell` if there is none, and
    /// none for a sentence about the data.
    pub word: Option<Word>,
    /// The sentence.
    pub text: String,
}
