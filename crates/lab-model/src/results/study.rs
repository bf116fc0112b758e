//! The result of a study of syncs: `study.json`. A sync is the download of the chain by a node, and
//! a variant is a set of such runs under the same conditions. A bin is a range of block heights.
//! The tip is the newest block of the chain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Basis, ComparisonVerdict};
use crate::named::named;

/// Version of this format.
pub const SCHEMA: &str = "weir.study/1";

/// The result of a study. A course is the growth of a node's height over time during one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StudyResult {
    /// [`SCHEMA`].
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// Version of the program.
    pub weir: String,
    /// Name of the study.
    pub name: String,
    /// The question of the study, if it has one.
    pub question: Option<String>,
    /// Source of its courses.
    pub source: Source,
    /// Order of its runs, in words.
    pub design: Option<String>,
    /// How times of two variants are compared.
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
    /// The variants. The first one is the baseline.
    pub variants: Vec<VariantRow>,
    /// Every other variant against the first.
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
        /// Files of different formats.
        Mixed = "mixed",
        /// Running nodes.
        Nodes = "nodes",
        /// Variants that the study ran itself.
        Runs = "runs",
    }
}

named! {
    /// How times of two courses are compared.
    pub enum Align {
        /// By wall clock, for runs that run side by side.
        Clock = "clock",
        /// By the time since the start of each course.
        Start = "start",
    }
}

/// One variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VariantRow {
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

/// One run of a variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRow {
    /// Source of the run.
    pub label: String,
    /// Time of its first sample, RFC 3339.
    pub first: String,
    /// Time of its last sample, RFC 3339.
    pub last: String,
    /// Seconds from its start to its last sample.
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
    /// When the run reached the tip. Cache values and values by height end at the tip.
    pub tip: Option<Tip>,
    /// When its cache was full.
    pub cache_full: Option<CacheFull>,
    /// Largest size of its cache, in bytes.
    pub used_max: Option<u64>,
    /// All accesses to its cache.
    pub accesses: Option<Accesses>,
    /// Share of the accesses that were hits.
    pub hit_ratio: Option<f64>,
    /// Largest memory use, in bytes.
    pub memory_max: Option<u64>,
    /// Largest disk use, in bytes.
    pub disk_max: Option<u64>,
    /// CPU seconds used.
    pub cpu: Option<f64>,
    /// Times until the run reached the heights of the study.
    pub times: Vec<TimeTo>,
    /// Periods in which the height did not grow.
    pub stalls: Vec<Stall>,
    /// Number of stalls that are not listed.
    pub stalls_more: usize,
    /// Number of blocks that peers did not deliver in time.
    pub timeouts: usize,
    /// Values by height.
    pub bins: Vec<Bin>,
    /// The course, downsampled: seconds since its start, height.
    pub points: Vec<(f64, u64)>,
    /// Notes on how the run was read.
    pub notes: Vec<String>,
}

/// When a run reached a height.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeTo {
    /// The height.
    pub height: u64,
    /// Seconds from the start to the first sample at or above the height. None if the height was
    /// not reached, or if the first sample was above it.
    pub elapsed: Option<f64>,
    /// Seconds of stalls before this time.
    pub stalled: f64,
    /// True if the run was at the tip before this height. The time then shows how fast blocks are
    /// made.
    pub above_tip: bool,
}

/// Accesses to a page cache during one interval, or over many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Accesses {
    /// Pages that were in the cache.
    pub hit: u64,
    /// Pages that had to be read.
    pub miss: u64,
    /// Dirty pages that were written to make room.
    pub spill: u64,
}

impl Accesses {
    /// Returns the sums of two counts.
    #[must_use]
    pub fn plus(self, more: Accesses) -> Accesses {
        Accesses {
            hit: self.hit.saturating_add(more.hit),
            miss: self.miss.saturating_add(more.miss),
            spill: self.spill.saturating_add(more.spill),
        }
    }

    /// Returns the number of pages: hits and misses.
    pub fn pages(self) -> u64 {
        self.hit.saturating_add(self.miss)
    }

    /// Returns the share of hits in all accesses, or `None` if there are no accesses.
    pub fn hit_ratio(self) -> Option<f64> {
        (self.pages() > 0).then(|| self.hit as f64 / self.pages() as f64)
    }
}

/// When a cache was full.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheFull {
    /// Seconds since the start of the course.
    pub elapsed: f64,
    /// Height at this time.
    pub height: u64,
    /// Largest size in the run, in bytes.
    pub ceiling: u64,
}

/// The values of a course between two heights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bin {
    /// Lowest height of the bin.
    pub from: u64,
    /// Lowest height of the next bin.
    pub to: u64,
    /// Number of samples in the bin.
    pub samples: usize,
    /// Blocks from the first to the last sample.
    pub blocks: u64,
    /// Seconds from the first to the last sample.
    pub seconds: f64,
    /// Blocks per second; none for fewer than two samples.
    pub rate: Option<f64>,
    /// Share of the accesses in the bin that were hits.
    pub hit_ratio: Option<f64>,
    /// Page accesses per block, over intervals within the bin that added blocks. Intervals without
    /// blocks are not counted.
    pub pages_per_block: Option<f64>,
    /// Pages read per block, of the same intervals.
    pub misses_per_block: Option<f64>,
}

/// A change of the faster variant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RateCross {
    /// Height at which the change is.
    pub height: u64,
    /// True if the first variant is the faster one from there on.
    pub to_first: bool,
}

/// A stall: a period in which the height does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stall {
    /// Seconds since the start of the course.
    pub from: f64,
    /// Length in seconds.
    pub seconds: f64,
    /// Height during the stall.
    pub height: u64,
    /// Lines about blocks that peers did not deliver, from one period before it to one after it.
    pub timeouts: usize,
    /// True if the course ends in the stall.
    pub open: bool,
}

/// When a course reached the tip.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tip {
    /// Seconds since the start of the course.
    pub elapsed: f64,
    /// Height at this time.
    pub height: u64,
}

/// A variant against the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Against {
    /// The first variant's name.
    pub first: String,
    /// The other variant's name.
    pub other: String,
    /// Runs of both side by side, in order.
    pub pairs: Vec<PairRow>,
    /// When both came to the tip; none unless every run of both did.
    pub tip: Option<TipLead>,
    /// Times to heights over all runs.
    pub times: Vec<TimeRow>,
    /// True for each bin in which the first variant is faster by medians; none if they are equal.
    pub faster: Vec<Option<bool>>,
    /// Changes of the faster side by height.
    pub rate_crosses: Vec<RateCross>,
}

/// A pair of runs of the two variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairRow {
    /// The first variant's run.
    pub first: String,
    /// The other run.
    pub other: String,
    /// Largest lead of the first run in blocks, and largest lead of the other run.
    pub blocks: (Option<BlockLead>, Option<BlockLead>),
    /// Largest lead of the first run in seconds, and largest lead of the other run, at the edges of
    /// bins and at the last height.
    pub seconds: (Option<TimeLead>, Option<TimeLead>),
    /// Changes of the leader.
    pub crosses: Vec<Cross>,
    /// Lead of the other run in seconds: at the edges of bins, the study's heights and the last
    /// height, and between them.
    pub by_height: Vec<TimeLead>,
    /// Lead of the first run in blocks over time, downsampled: seconds since its start, blocks.
    pub by_time: Vec<(f64, f64)>,
}

/// Lead of the first course at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockLead {
    /// Seconds since the start of the first course.
    pub elapsed: f64,
    /// Unix time in seconds, by the clock of the first course.
    pub at: f64,
    /// Blocks by which the first course is ahead; negative if the second course is ahead.
    pub blocks: f64,
}

/// Lead of the second course at one height.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeLead {
    /// The height.
    pub height: f64,
    /// Seconds by which the second course reached the height earlier; negative if the first did.
    pub seconds: f64,
}

/// A change of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cross {
    /// Seconds since the start of the first course.
    pub elapsed: f64,
    /// Unix time in seconds, by the clock of the first course.
    pub at: f64,
    /// Height of the first course at this time.
    pub height: u64,
    /// True if the first course leads from this time on.
    pub to_first: bool,
}

/// When two variants came to the tip, each the median of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TipLead {
    /// Seconds of the first variant, since it began.
    pub first: f64,
    /// Seconds of the other.
    pub other: f64,
    /// Seconds by which the first was earlier; negative if the other was earlier.
    pub seconds: f64,
}

/// Times of both variants to a height.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeRow {
    /// The height.
    pub height: u64,
    /// True if the height was above the tip for a run, so that the time does not compare the
    /// variants.
    pub above_tip: bool,
    /// The times; none if a variant did not reach the height.
    pub comparison: Option<TimeComparison>,
}

/// Times of two variants to one height.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeComparison {
    /// Median seconds of the first variant.
    pub a: f64,
    /// Median seconds of the other.
    pub b: f64,
    /// Runs of the first variant that reached it.
    pub a_count: usize,
    /// Runs of the other variant that reached it.
    pub b_count: usize,
    /// Seconds between the fastest and the slowest run of the first variant; none for a single run.
    pub a_spread: Option<f64>,
    /// Seconds between the fastest and the slowest run of the other variant; none for a single run.
    pub b_spread: Option<f64>,
    /// Seconds of each pair of runs, other minus first. Empty for unpaired runs.
    pub pairs: Vec<f64>,
    /// Relative change from the first to the other.
    pub change: f64,
    /// 95 % interval of the change.
    pub interval: Option<(f64, f64)>,
    /// Probability of such a difference between equal variants.
    pub p: Option<f64>,
    /// Smallest relevant change, or the resolution of the samples if that is larger.
    pub floor: f64,
    /// The statistical basis.
    pub basis: Basis,
    /// The verdict. Better means that the other variant is faster.
    pub verdict: ComparisonVerdict,
}

named! {
    /// The topic of a sentence.
    pub enum About {
        /// Which variant is faster.
        Verdict = "verdict",
        /// How much repeats of one variant differ.
        Repeats = "repeats",
        /// Where one course overtakes the other.
        Heights = "heights",
        /// Where one rate overtakes the other.
        Rates = "rates",
        /// What the counters show about the cause.
        Cause = "cause",
        /// Whether the variants do the same work per block.
        Work = "work",
        /// The tip of the chain, or a stop below it.
        Tip = "tip",
        /// Stalls.
        Stalls = "stalls",
    }
}

/// A conclusion, as a sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conclusion {
    /// Topic of the sentence.
    pub about: About,
    /// The variant, if there are several others.
    pub variant: Option<String>,
    /// Better, worse or same for a conclusion about the variants, `cannot-tell` if there is none,
    /// and none for a sentence about the data.
    pub word: Option<ComparisonVerdict>,
    /// The sentence.
    pub text: String,
}
