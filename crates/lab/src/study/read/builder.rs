//! Builds a run from samples. The builder checks the order of the samples and limits their number.

use lab_model::results::study::Accesses;

use crate::analysis::calendar::rfc3339;
use crate::analysis::sync::{Announced, Sample, SyncRun, Timeout};
use crate::wording::number::count;

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

/// Maximum number of blocks by which the height may fall from one sample to the next. A reorg
/// causes a small fall, and so does a load balancer in front of several nodes. A larger fall means
/// that another sync has begun.
const FALL_MAX: u64 = 64;

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
    /// Number of samples whose height was below the previous height.
    falls: u64,
    /// Number of restarts of the cumulative counters.
    restarts: u64,
    /// Heights that peers announced, each higher than the one before.
    announced: Vec<Announced>,
    timeouts: Vec<Timeout>,
    /// Number of timeouts beyond the limit.
    timeouts_omitted: u64,
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
            restarts: 0,
            announced: Vec::new(),
            timeouts: Vec::new(),
            timeouts_omitted: 0,
            notes: Vec::new(),
        }
    }

    /// Adds a sample. If its height is at most [`FALL_MAX`] blocks below the previous height, it
    /// gets the previous height. Two samples of the same instant are merged.
    ///
    /// # Errors
    /// Fails if the sample is older than the last one, or if its height is far below the last
    /// height.
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
            if fall > FALL_MAX {
                return Err(format!(
                    "the height falls from {} to {}, which is more than a reorg of {FALL_MAX} blocks: \
                     another sync begins here, so split the file",
                    count(last_sample.height),
                    count(sample.height)
                ));
            }
            self.falls += u64::from(fall > 0);
            sample.height = sample.height.max(last_sample.height);
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
            notes.push(format!(
                "its height fell {} times by up to {FALL_MAX} blocks (reorgs), which was ignored",
                count(self.falls)
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
