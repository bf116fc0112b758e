//! Builds a run from samples. The builder checks the order of the samples and limits their number.

use lab_model::results::study::Accesses;

use crate::analysis::calendar::rfc3339;
use crate::analysis::sync::{Announced, Sample, SyncRun, Timeout};
use crate::wording::number::{count, plural};

/// Memory limits of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimits {
    /// Maximum number of stored samples. When it is reached, neighbouring samples are merged in
    /// pairs. Must be at least two.
    pub(crate) samples: usize,
    /// Maximum number of stored timeouts: blocks that a peer did not deliver in time.
    pub(crate) timeouts: usize,
    /// Maximum number of stored heights that peers announced.
    pub(crate) announced: usize,
}

impl RunLimits {
    /// 100,000 samples cover 28 hours with one sample per second.
    pub(crate) const DEFAULT: RunLimits =
        RunLimits { samples: 100_000, timeouts: 10_000, announced: 10_000 };
}

/// The height may always fall by this number of blocks from one sample to the next. A reorg causes
/// such a fall, and so does a load balancer in front of several nodes.
const REORG_MAX: u64 = 64;
/// The height may fall by this number of blocks if that is less than half of it. A geth that crashed
/// goes on at the last state on its disk, and it keeps the states of 128 blocks in memory
/// (`TriesInMemory` in core/blockchain.go of go-ethereum v1.16.9).
const CRASH_MAX: u64 = 256;

/// Returns true if a fall of the height is a reorg or a rewind after a crash, and not the begin of
/// another sync. A rewind takes back at most half of the blocks since the first sample.
fn is_rewind(first_height: u64, height: u64, fall: u64) -> bool {
    let progress = height.saturating_sub(first_height);
    fall <= REORG_MAX || fall <= progress / 2 || (fall <= CRASH_MAX && fall < height / 2)
}

/// Builds a run.
#[derive(Debug)]
pub(crate) struct RunBuilder {
    limits: RunLimits,
    samples: Vec<Sample>,
    /// Number of original samples that are merged into one stored sample. It doubles each time that
    /// the number of stored samples reaches the limit.
    stride: usize,
    /// `None` if all samples are stored.
    pending: Option<PendingSample>,
    /// The last original sample.
    last_sample: Option<Sample>,
    /// The last cumulative counters. `None` before the first counters.
    counters: Option<Accesses>,
    /// Number of samples whose height was below that of the sample before.
    falls: u64,
    /// The largest number of blocks by which the height fell.
    largest_fall: u64,
    /// Height of the last original sample, before it was raised to the highest height so far.
    raw_height: u64,
    /// Number of restarts of the cumulative counters.
    restarts: u64,
    /// Heights that peers announced, each higher than the one before.
    announced: Vec<Announced>,
    timeouts: Vec<Timeout>,
    /// Number of timeouts beyond the limit.
    timeouts_omitted: u64,
    /// As in [`SyncRun`].
    tip_age: Option<f64>,
    notes: Vec<String>,
}

/// A sample that is not stored yet.
#[derive(Clone, Copy, Debug)]
struct PendingSample {
    sample: Sample,
    /// Number of original samples that are merged into `sample`.
    merged_count: usize,
}

impl RunBuilder {
    pub(crate) fn new() -> RunBuilder {
        RunBuilder::with_limits(RunLimits::DEFAULT)
    }

    /// Creates a builder with other memory limits than the default.
    pub(crate) fn with_limits(limits: RunLimits) -> RunBuilder {
        RunBuilder {
            limits,
            samples: Vec::new(),
            stride: 1,
            pending: None,
            last_sample: None,
            counters: None,
            falls: 0,
            largest_fall: 0,
            raw_height: 0,
            restarts: 0,
            announced: Vec::new(),
            timeouts: Vec::new(),
            timeouts_omitted: 0,
            tip_age: None,
            notes: Vec::new(),
        }
    }

    /// Adds a sample. If its height is below the previous height because of a reorg or a rewind, it
    /// gets the previous height. Two samples of the same instant are merged.
    ///
    /// # Errors
    /// Fails if the sample is older than the last one, or if another sync begins with it.
    pub(crate) fn push(&mut self, mut sample: Sample) -> Result<(), String> {
        if !sample.at.is_finite() {
            return Err("its time is not a number".to_owned());
        }
        if let Some(last_sample) = self.last_sample {
            if sample.at < last_sample.at {
                return Err(format!(
                    "time goes back from {} to {}; samples must be in order",
                    rfc3339(last_sample.at),
                    rfc3339(sample.at)
                ));
            }
            let fall = last_sample.height.saturating_sub(sample.height);
            let first_height = self.samples.first().map_or(0, |first| first.height);
            if !is_rewind(first_height, last_sample.height, fall) {
                return Err(format!(
                    "the height falls from {} to {}, which is more than a reorg or a rewind after a crash: \
                     another sync begins here, so split the file",
                    count(last_sample.height),
                    count(sample.height)
                ));
            }
            self.falls += u64::from(sample.height < self.raw_height);
            self.largest_fall = self.largest_fall.max(fall);
            self.raw_height = sample.height;
            sample.height = sample.height.max(last_sample.height);
        } else {
            self.raw_height = sample.height;
        }
        self.last_sample = Some(sample);
        self.store(sample);
        Ok(())
    }

    /// Stores a sample with the correct order and height, or merges it with neighbouring samples.
    fn store(&mut self, sample: Sample) {
        let is_same_instant = |previous: &Sample| previous.at >= sample.at;
        self.pending = match self.pending.take() {
            Some(PendingSample { sample: previous, merged_count }) => Some(PendingSample {
                sample: merge_samples(previous, sample),
                merged_count: merged_count + 1,
            }),
            None if self.samples.last().is_some_and(is_same_instant) => {
                self.samples.pop().map(|previous| PendingSample {
                    sample: merge_samples(previous, sample),
                    merged_count: self.stride,
                })
            }
            None => Some(PendingSample { sample, merged_count: 1 }),
        };
        // The first sample is never merged, because all times are relative to its time.
        if self.samples.is_empty()
            || self.pending.is_some_and(|pending| pending.merged_count >= self.stride)
        {
            self.samples.extend(self.pending.take().map(|pending| pending.sample));
        }
        if self.samples.len() >= self.limits.samples {
            let (first_sample, others) = self.samples.split_at(1);
            let pairs = others.chunks(2).map(|pair| match pair {
                [a, b] => merge_samples(*a, *b),
                _ => pair[0],
            });
            self.samples = first_sample.iter().copied().chain(pairs).collect();
            self.stride *= 2;
        }
    }

    /// Converts cumulative counters to the accesses since the previous sample. A counter below its
    /// previous value means that the process was restarted and all counters began at zero.
    pub(crate) fn since_last(&mut self, counters: Accesses) -> Accesses {
        let previous = self.counters.replace(counters).unwrap_or_default();
        let is_restarted = counters.hit < previous.hit
            || counters.miss < previous.miss
            || counters.spill < previous.spill;
        if is_restarted {
            self.restarts += 1;
            return counters;
        }
        Accesses {
            hit: counters.hit - previous.hit,
            miss: counters.miss - previous.miss,
            spill: counters.spill - previous.spill,
        }
    }

    /// Adds a height that a peer announced. Ignores the height if a peer announced the same or a
    /// greater height before, or if the limit of announced heights is reached.
    pub(crate) fn announce(&mut self, at: f64, height: u64) {
        let last_announced = self.announced.last().map_or(0, |announced| announced.height);
        if height > last_announced && self.announced.len() < self.limits.announced {
            self.announced.push(Announced { at, height });
        }
    }

    /// Adds the timeout of a block that a peer did not deliver. Beyond the limit, only counts it.
    pub(crate) fn timeout(&mut self, timeout: Timeout) {
        match self.timeouts.len() < self.limits.timeouts {
            true => self.timeouts.push(timeout),
            false => self.timeouts_omitted += 1,
        }
    }

    /// Sets the age below which a block shows that the node is at the chain tip, in seconds.
    pub(crate) fn set_tip_age(&mut self, seconds: f64) {
        self.tip_age = Some(seconds);
    }

    /// Adds a note for the report.
    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Returns the run, or `None` if it has no sample.
    pub(crate) fn finish(mut self, label: &str) -> Option<SyncRun> {
        self.samples.extend(self.pending.take().map(|pending| pending.sample));
        let first = self.samples.first()?;
        let mut notes = self.notes;
        if self.stride > 1 {
            notes.push(format!("each {} samples were merged to limit memory", self.stride));
        }
        if self.falls > 0 {
            let cause = match self.largest_fall <= REORG_MAX {
                true => "reorgs",
                false => "a crash, or a long reorg",
            };
            notes.push(format!(
                "its height fell {}, by up to {} ({cause}); the time until it grew again counts",
                plural(self.falls, "time"),
                plural(self.largest_fall, "block"),
            ));
        }
        if self.restarts > 0 {
            notes.push(format!("its counters restarted {} times", count(self.restarts)));
        }
        if self.timeouts_omitted > 0 {
            let omitted = count(self.timeouts_omitted);
            notes.push(format!("{omitted} more blocks that peers did not deliver"));
        }
        Some(SyncRun {
            label: label.to_owned(),
            origin: first.at,
            samples: self.samples,
            announced: self.announced,
            timeouts: self.timeouts,
            tip_age: self.tip_age,
            notes,
        })
    }
}

/// Merges two samples. The result is the later sample with the accesses of both.
fn merge_samples(earlier: Sample, later: Sample) -> Sample {
    let accesses = match (earlier.accesses, later.accesses) {
        (Some(earlier), Some(later)) => Some(earlier.plus(later)),
        (earlier, later) => earlier.or(later),
    };
    Sample { accesses, ..later }
}
