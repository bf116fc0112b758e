//! The result of a study of syncs: `study.json`.
//!
//! In a sync, a node downloads the chain. A run is one sync, and a variant is a set of runs under
//! the same conditions. The samples of a run have the node's block height over time. The tip is the
//! newest block of the chain. A bin is a range of block heights, and all bins have the same width.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Basis, ComparisonVerdict};
use crate::named::named;

/// Version of this format.
pub const SCHEMA: &str = "weir.study/1";

/// The result of a study.
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
    /// Source of the runs' samples.
    pub source: Source,
    /// Order and arrangement of the runs, in words.
    pub design: Option<String>,
    /// How times of two variants are compared.
    pub align: Align,
    /// Number of blocks in a bin.
    pub bin: u64,
    /// Time between two blocks of the chain, in seconds. It decides when a run is at the tip, unless
    /// the log has the age of each block.
    pub block_time: f64,
    /// Where the block time is from.
    pub block_time_source: BlockTimeSource,
    /// True if stalls were subtracted from the times.
    pub stalls_subtracted: bool,
    /// True if the study ended early.
    pub partial: bool,
    /// Heights at which times are compared, ascending. The highest one that every run reached
    /// decides the verdict.
    pub heights: Vec<u64>,
    /// The variants. The first one is the baseline.
    pub variants: Vec<VariantRow>,
    /// Comparisons of the first variant with each of the other variants.
    pub against: Vec<VariantComparison>,
    /// The conclusions. The first one is the verdict.
    pub conclusions: Vec<Conclusion>,
    /// Doubts about the data.
    pub warnings: Vec<String>,
}

// `named!` gives each variant its name in JSON, and a label for reports if the label differs.
named! {
    /// Source of samples.
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
    /// Where the block time of a chain is from.
    pub enum BlockTimeSource {
        /// The user or the study file.
        Given = "given",
        /// The steady growth at the end of a run.
        Measured = "measured",
        /// The usual block time of such nodes or files, because no run shows it.
        Assumed = "assumed",
    }
}

named! {
    /// How times of two runs are compared.
    pub enum Align {
        /// By wall clock, for runs that take place at the same time.
        Clock = "clock",
        /// By the time since the start of each run.
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
    /// For each bin: the median rate over the runs, in blocks per second.
    pub rates: Vec<Option<f64>>,
    /// For each bin: the median hit ratio of the page cache over the runs.
    pub hit_ratios: Vec<Option<f64>>,
    /// For each bin: the median number of page accesses per block over the runs.
    pub pages_per_block: Vec<Option<f64>>,
    /// For each bin: the median number of cache misses per block over the runs.
    pub misses_per_block: Vec<Option<f64>>,
}

/// One run of a variant. A value is None if the samples do not contain it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRow {
    /// Label of the run: a file, or a number such as `run 2`.
    pub label: String,
    /// Time of its first sample, RFC 3339.
    pub first: String,
    /// Time of its last sample, RFC 3339.
    pub last: String,
    /// Seconds from the start of the run to its last sample.
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
    /// When the run reached the tip. None if it did not reach the tip.
    pub tip: Option<Tip>,
    /// When the page cache of the node was full, before the run reached the tip. None if the cache
    /// was still growing, or was emptied repeatedly.
    pub cache_full: Option<CacheFull>,
    /// Largest size of the page cache, in bytes.
    pub used_max: Option<u64>,
    /// Counts of accesses to the page cache before the run reached the tip.
    pub accesses: Option<Accesses>,
    /// Share of the accesses that were hits.
    pub hit_ratio: Option<f64>,
    /// Largest memory use, in bytes.
    pub memory_max: Option<u64>,
    /// Largest disk use, in bytes.
    pub disk_max: Option<u64>,
    /// CPU seconds used.
    pub cpu: Option<f64>,
    /// Times that the run took to reach the heights of the study.
    pub times: Vec<TimeTo>,
    /// Periods in which the height did not grow.
    pub stalls: Vec<Stall>,
    /// Number of further stalls, which `stalls` does not list.
    pub stalls_more: usize,
    /// Number of blocks that peers did not deliver in time.
    pub timeouts: usize,
    /// Values by height, until the run reached the tip.
    pub bins: Vec<Bin>,
    /// The samples of the run, downsampled: seconds since its start, and height.
    pub points: Vec<(f64, u64)>,
    /// Notes on how the samples were read.
    pub notes: Vec<String>,
}

/// When a run reached a height.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeTo {
    /// The height.
    pub height: u64,
    /// Seconds from the start of the run to its first sample at or above the height. None if the
    /// run did not reach the height, or already began at or above it.
    pub elapsed: Option<f64>,
    /// Seconds of stalls before the run reached the height.
    pub stalled: f64,
    /// True if the run reached the tip below this height. Then the time depends on how fast the
    /// chain makes blocks, not on the speed of the sync.
    pub above_tip: bool,
}

/// Counts of accesses to a node's page cache during one or more intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Accesses {
    /// Accesses to pages that were in the cache.
    pub hit: u64,
    /// Accesses to pages that were not in the cache and had to be read.
    pub miss: u64,
    /// Dirty pages that were written to disk to make room in the cache.
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

    /// Returns the number of accesses: hits plus misses.
    pub fn pages(self) -> u64 {
        self.hit.saturating_add(self.miss)
    }

    /// Returns the share of hits in all accesses, or `None` if there are no accesses.
    pub fn hit_ratio(self) -> Option<f64> {
        (self.pages() > 0).then(|| self.hit as f64 / self.pages() as f64)
    }
}

/// When a node's page cache was full.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheFull {
    /// Seconds since the start of the run.
    pub elapsed: f64,
    /// Height at this time.
    pub height: u64,
    /// Largest size of the cache before the run reached the tip, in bytes.
    pub ceiling: u64,
}

/// The values of a run within one bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bin {
    /// Lowest height of the bin.
    pub from: u64,
    /// Lowest height of the next bin.
    pub to: u64,
    /// Number of samples in the bin.
    pub samples: usize,
    /// Blocks between the first and the last sample in the bin.
    pub blocks: u64,
    /// Seconds between the first and the last sample in the bin.
    pub seconds: f64,
    /// Blocks per second. None if the bin has fewer than two samples.
    pub rate: Option<f64>,
    /// Share of the page accesses in the bin that were hits.
    pub hit_ratio: Option<f64>,
    /// Page accesses per block. Intervals between samples without a new block are not counted.
    pub pages_per_block: Option<f64>,
    /// Cache misses per block. Intervals between samples without a new block are not counted.
    pub misses_per_block: Option<f64>,
}

/// A height at which the other variant becomes the faster one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RateCross {
    /// Height at which the faster variant changes.
    pub height: u64,
    /// True if the first variant is the faster one from this height on.
    pub to_first: bool,
}

/// A stall: a period in which the height does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stall {
    /// Start of the stall, in seconds since the start of the run.
    pub from: f64,
    /// Length in seconds.
    pub seconds: f64,
    /// Height during the stall.
    pub height: u64,
    /// Number of blocks that peers did not deliver in time during the stall, or within one sample
    /// period before or after it.
    pub timeouts: usize,
    /// True if the run ended during the stall.
    pub open: bool,
}

/// When a run reached the tip.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tip {
    /// Seconds since the start of the run.
    pub elapsed: f64,
    /// Height at this time.
    pub height: u64,
}

/// A comparison of the first variant with another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VariantComparison {
    /// The first variant's name.
    pub first: String,
    /// The other variant's name.
    pub other: String,
    /// Comparisons of the first runs of both variants, of their second runs, and so on.
    pub pairs: Vec<PairRow>,
    /// When both variants reached the tip. None if a run of either variant did not reach it.
    pub tip: Option<TipLead>,
    /// For each height of the study: the times that the variants took to reach it, over all runs.
    pub times: Vec<TimeRow>,
    /// For each bin: true if the first variant is faster, and false if the other one is. None if
    /// the rates are equal or unknown, or if several runs of both do not show which one is faster.
    pub faster: Vec<Option<bool>>,
    /// Heights at which the faster variant changes.
    pub rate_crosses: Vec<RateCross>,
}

/// A pair of runs of the two variants. At each time, the run with the greater height leads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairRow {
    /// Label of the first variant's run.
    pub first: String,
    /// Label of the other variant's run.
    pub other: String,
    /// Largest lead of the first run in blocks, and largest lead of the other run. None for a run
    /// that never leads.
    pub blocks: (Option<BlockLead>, Option<BlockLead>),
    /// Largest lead of the first run in seconds, and largest lead of the other run. Only the edges
    /// of bins and the last height are considered. None for a run that never leads.
    pub seconds: (Option<TimeLead>, Option<TimeLead>),
    /// Changes of the leader.
    pub crosses: Vec<Cross>,
    /// Lead of the other run in seconds, by height. The heights are the edges of bins, the study's
    /// heights, the last height, and more heights between them.
    pub by_height: Vec<TimeLead>,
    /// Lead of the first run in blocks over time, downsampled: seconds since the start of the first
    /// run, and blocks.
    pub by_time: Vec<(f64, f64)>,
}

/// Lead of the first run in blocks, at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockLead {
    /// Seconds since the start of the first run.
    pub elapsed: f64,
    /// Unix time in seconds, by the clock of the first run.
    pub at: f64,
    /// Blocks by which the first run is ahead. Negative if the other run is ahead.
    pub blocks: f64,
}

/// Lead of the other run in seconds, at one height.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeLead {
    /// The height.
    pub height: f64,
    /// Seconds by which the other run reached the height earlier. Negative if the first run was
    /// earlier.
    pub seconds: f64,
}

/// A change of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cross {
    /// Seconds since the start of the first run.
    pub elapsed: f64,
    /// Unix time in seconds, by the clock of the first run.
    pub at: f64,
    /// Height of the first run at this time.
    pub height: u64,
    /// True if the first run leads from this time on.
    pub to_first: bool,
}

/// When two variants reached the tip. The time of a variant is the median over its runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TipLead {
    /// Seconds from the start to the tip, for the first variant.
    pub first: f64,
    /// Seconds from the start to the tip, for the other variant.
    pub other: f64,
    /// Seconds by which the first variant was earlier. Negative if the other one was earlier.
    pub seconds: f64,
}

/// Times that two variants took to reach a height.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeRow {
    /// The height.
    pub height: u64,
    /// True if a run reached the tip below this height. Then the times do not compare the speed of
    /// the variants.
    pub above_tip: bool,
    /// The times. None if a variant did not reach the height.
    pub comparison: Option<TimeComparison>,
}

/// Comparison of the times that two variants took to reach a height.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeComparison {
    /// Median time of the first variant's runs, in seconds.
    pub a: f64,
    /// Median time of the other variant's runs, in seconds.
    pub b: f64,
    /// Number of the first variant's runs that reached the height.
    pub a_count: usize,
    /// Number of the other variant's runs that reached the height.
    pub b_count: usize,
    /// Seconds between the fastest and the slowest run of the first variant. None if a single run
    /// reached the height.
    pub a_spread: Option<f64>,
    /// Seconds between the fastest and the slowest run of the other variant. None if a single run
    /// reached the height.
    pub b_spread: Option<f64>,
    /// For each pair of runs: the other run's seconds minus the first run's seconds. Empty if runs
    /// are not paired.
    pub pairs: Vec<f64>,
    /// Relative change from the first variant's time to the other's.
    pub change: f64,
    /// 95 % confidence interval of the change. None if there are too few runs.
    pub interval: Option<(f64, f64)>,
    /// p-value: the probability of such a difference if the variants are equal. None if there are
    /// too few runs.
    pub p: Option<f64>,
    /// Floor: the smallest change that matters. It is at least the resolution of the samples.
    pub floor: f64,
    /// The data on which the verdict is based.
    pub basis: Basis,
    /// The verdict. Better means that the other variant is faster.
    pub verdict: ComparisonVerdict,
}

named! {
    /// The topic of a sentence.
    pub enum About {
        /// Which variant is faster.
        Verdict = "verdict",
        /// How much the runs of one variant differ.
        Repeats = "repeats",
        /// Where one run overtakes the other.
        Heights = "heights",
        /// Where one variant's rate overtakes the other's.
        Rates = "rates",
        /// What the counters show about the cause.
        Cause = "cause",
        /// Whether the variants do the same work per block.
        Work = "work",
        /// Whether runs reached the tip of the chain, or stopped below it.
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
    /// The variant that the sentence compares with the first one. It may be missing if the study
    /// has only one such variant.
    pub variant: Option<String>,
    /// The verdict, if the sentence says which variant is faster. None for other sentences.
    pub word: Option<ComparisonVerdict>,
    /// The sentence.
    pub text: String,
}
