//! What watching costs, and how it is kept cheap: readings whose cost grows with the number of
//! threads or sockets are made less often the longer they take.

use std::time::{Duration, Instant};

use super::text;

/// CPU that the watching thread used, by its own `schedstat`: on a busy host the time that passes
/// during a sample is mostly that of others.
#[derive(Debug, Default)]
pub(super) struct Cost {
    first: Option<(Instant, f64)>,
    last: Option<(Instant, f64)>,
}

impl Cost {
    /// Reads what the calling thread has used by now.
    pub(super) fn read(&mut self, now: Instant) {
        let text = text::read("/proc/thread-self/schedstat");
        let ran = text.and_then(|text| text.split_whitespace().next()?.parse().ok());
        if let Some(nanos) = ran {
            self.add(now, nanos);
        }
    }

    fn add(&mut self, now: Instant, nanos: f64) {
        self.first.get_or_insert((now, nanos));
        self.last = Some((now, nanos));
    }

    /// Share of one core; none before two samples.
    pub(super) fn share(&self) -> Option<f64> {
        let (first, last) = (self.first?, self.last?);
        let time = last.0.saturating_duration_since(first.0).as_secs_f64();
        (time > 0.05).then(|| (last.1 - first.1) / 1e9 / time)
    }
}

/// When a reading is due again: not before its least interval, and not before so long that it takes
/// more than its share of a core.
#[derive(Debug)]
pub(super) struct Pace {
    least: Duration,
    /// The reading waits this many times as long as it took.
    stretch: u32,
    next: Option<Instant>,
    /// Time of the last readings: the least of them is what one costs, the others had to share
    /// their core.
    lately: [Duration; 4],
}

impl Pace {
    /// For a reading at most every `least`, which may take one part in `stretch` of a core.
    pub(super) fn new(least: Duration, stretch: u32) -> Pace {
        Pace { least, stretch, next: None, lately: [Duration::MAX; 4] }
    }

    /// Whether it is time.
    pub(super) fn due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Tells of a reading that began and ended at these times. It waits no longer than a minute.
    pub(super) fn took(&mut self, from: Instant, to: Instant) {
        self.lately.rotate_left(1);
        self.lately[3] = to.saturating_duration_since(from);
        let cost = self.lately.iter().min().copied().unwrap_or_default();
        let wait = cost.saturating_mul(self.stretch).max(self.least);
        self.next = Some(from + wait.min(Duration::from_secs(60)));
    }
}

#[cfg(test)]
mod tests;
