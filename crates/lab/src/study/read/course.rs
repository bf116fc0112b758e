//! A course as it grows: what order its samples must have, and how much is kept.

use lab_model::results::study::Accesses;

use crate::analysis::calendar::rfc3339;
use crate::analysis::sync::{Announced, Course, Sample, Timeout};
use crate::wording::number::count;

/// How much is kept of a course.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// Samples, at least two; with more, neighbours are joined.
    pub(crate) samples: usize,
    /// Lines about blocks that were not delivered.
    pub(crate) timeouts: usize,
    /// Rises of what peers announce.
    pub(crate) announced: usize,
}

impl Kept {
    /// Samples of 28 hours with one a second.
    pub(crate) const USUAL: Kept = Kept { samples: 100_000, timeouts: 10_000, announced: 10_000 };
}

/// A height may fall by so many blocks: a reorg, or a balancer in front of several nodes. More means
/// that something else is sampled from there on.
const FALL_MAX: u64 = 64;

/// Puts samples together to a course.
#[derive(Debug)]
pub(crate) struct Builder {
    kept: Kept,
    samples: Vec<Sample>,
    /// How many samples one that is kept stands for.
    stride: usize,
    /// What is not kept yet, and how many samples it stands for.
    open: Option<(Sample, usize)>,
    last: Option<Sample>,
    counters: Option<Accesses>,
    falls: u64,
    restarts: u64,
    announced: Vec<Announced>,
    timeouts: Vec<Timeout>,
    timeouts_more: u64,
    notes: Vec<String>,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder::keeping(Kept::USUAL)
    }

    /// One that keeps at most so much.
    pub(crate) fn keeping(kept: Kept) -> Builder {
        Builder {
            kept,
            samples: Vec::new(),
            stride: 1,
            open: None,
            last: None,
            counters: None,
            falls: 0,
            restarts: 0,
            announced: Vec::new(),
            timeouts: Vec::new(),
            timeouts_more: 0,
            notes: Vec::new(),
        }
    }

    /// Takes a sample. A height that falls by a reorg's depth is held; two samples of one instant
    /// are one.
    ///
    /// # Errors
    /// If its time is before the last one's, or its height far below.
    pub(crate) fn push(&mut self, mut sample: Sample) -> Result<(), String> {
        if !sample.at.is_finite() {
            return Err("its time is no number".to_owned());
        }
        if let Some(last) = self.last {
            if sample.at < last.at {
                return Err(format!(
                    "time goes back from {} to {}; samples must be in order",
                    rfc3339(last.at),
                    rfc3339(sample.at)
                ));
            }
            let fall = last.height.saturating_sub(sample.height);
            if fall > FALL_MAX {
                return Err(format!(
                    "the height falls from {} to {}; a reorg may take {FALL_MAX} blocks, more means that \
                     this is another sync: cut the file there",
                    count(last.height),
                    count(sample.height)
                ));
            }
            self.falls += u64::from(fall > 0);
            sample.height = sample.height.max(last.height);
        }
        self.last = Some(sample);
        self.keep(sample);
        Ok(())
    }

    fn keep(&mut self, sample: Sample) {
        let same_instant = |before: &Sample| before.at >= sample.at;
        self.open = match self.open.take() {
            Some((before, joined)) => Some((join(before, sample), joined + 1)),
            None if self.samples.last().is_some_and(same_instant) => {
                self.samples.pop().map(|before| (join(before, sample), self.stride))
            }
            None => Some((sample, 1)),
        };
        // The first one stays as it is: what is counted from it would move.
        if self.samples.is_empty() || self.open.is_some_and(|(_, joined)| joined >= self.stride) {
            self.samples.extend(self.open.take().map(|(sample, _)| sample));
        }
        if self.samples.len() >= self.kept.samples {
            let (first, rest) = self.samples.split_at(1);
            let pairs = rest.chunks(2).map(|pair| match pair {
                [a, b] => join(*a, *b),
                _ => pair[0],
            });
            self.samples = first.iter().copied().chain(pairs).collect();
            self.stride *= 2;
        }
    }

    /// What a cache did since the sample before, from counters that only grow; they begin anew when
    /// a process does.
    pub(crate) fn since_last(&mut self, counters: Accesses) -> Accesses {
        let before = self.counters.replace(counters).unwrap_or_default();
        let fell = counters.hit < before.hit
            || counters.miss < before.miss
            || counters.spill < before.spill;
        if fell {
            self.restarts += 1;
            return counters;
        }
        Accesses {
            hit: counters.hit - before.hit,
            miss: counters.miss - before.miss,
            spill: counters.spill - before.spill,
        }
    }

    /// Takes a height that a peer announced.
    pub(crate) fn announce(&mut self, at: f64, height: u64) {
        let known = self.announced.last().map_or(0, |last| last.height);
        if height > known && self.announced.len() < self.kept.announced {
            self.announced.push(Announced { at, height });
        }
    }

    /// Takes a block that was not delivered.
    pub(crate) fn timeout(&mut self, timeout: Timeout) {
        match self.timeouts.len() < self.kept.timeouts {
            true => self.timeouts.push(timeout),
            false => self.timeouts_more += 1,
        }
    }

    /// Takes something worth telling.
    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// The course; none without a sample.
    pub(crate) fn finish(mut self, label: &str) -> Option<Course> {
        self.samples.extend(self.open.take().map(|(sample, _)| sample));
        let first = self.samples.first()?;
        let mut notes = self.notes;
        if self.stride > 1 {
            notes.push(format!("{} samples each were joined to one, to bound memory", self.stride));
        }
        if self.falls > 0 {
            notes.push(format!(
                "its height fell {} times by up to {FALL_MAX} blocks (reorgs); it was held there",
                count(self.falls)
            ));
        }
        if self.restarts > 0 {
            notes.push(format!("its counters began anew {} times", count(self.restarts)));
        }
        if self.timeouts_more > 0 {
            let more = count(self.timeouts_more);
            notes.push(format!("{more} further lines about blocks that were not delivered"));
        }
        Some(Course {
            label: label.to_owned(),
            origin: first.at,
            samples: self.samples,
            announced: self.announced,
            timeouts: self.timeouts,
            notes,
        })
    }
}

/// The later sample, with what the cache did in both.
fn join(before: Sample, after: Sample) -> Sample {
    let accesses = match (before.accesses, after.accesses) {
        (Some(before), Some(after)) => Some(before.plus(after)),
        (before, after) => before.or(after),
    };
    Sample { accesses, ..after }
}
