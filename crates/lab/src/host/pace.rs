//! What watching costs, and how it is kept cheap: readings whose cost grows with the number of
//! threads or sockets are made less often the longer they take.

use std::time::{Duration, Instant};

/// Time that samples took.
#[derive(Debug, Default)]
pub(super) struct Cost {
    first: Option<Instant>,
    last: Option<Instant>,
    spent: Duration,
}

impl Cost {
    /// Counts one sample.
    pub(super) fn add(&mut self, from: Instant, to: Instant) {
        self.spent += to.saturating_duration_since(from);
        self.first.get_or_insert(from);
        self.last = Some(to);
    }

    /// Share of one core; none before two samples.
    pub(super) fn share(&self) -> Option<f64> {
        let time = self.last?.saturating_duration_since(self.first?).as_secs_f64();
        (time > 0.05).then(|| self.spent.as_secs_f64() / time)
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
}

impl Pace {
    /// For a reading at most every `least`, which may take one part in `stretch` of a core.
    pub(super) fn new(least: Duration, stretch: u32) -> Pace {
        Pace { least, stretch, next: None }
    }

    /// Whether it is time.
    pub(super) fn due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Tells of a reading that began and ended at these times. One that took longer than usual,
    /// because the thread had no core, waits no longer than a minute.
    pub(super) fn took(&mut self, from: Instant, to: Instant) {
        let wait = to.saturating_duration_since(from).saturating_mul(self.stretch);
        self.next = Some(from + wait.max(self.least).min(Duration::from_secs(60)));
    }
}

#[cfg(test)]
mod tests;
