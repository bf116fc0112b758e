//! Measures and limits the cost of watching. The cost of some readings grows with the number of
//! threads or sockets. The longer such a reading takes, the less often it is made.

use std::time::{Duration, Instant};

use super::text;

/// CPU time of the watching thread from its own `schedstat`. Wall time would include other
/// processes on a busy host.
#[derive(Debug, Default)]
pub(super) struct Cost {
    first: Option<(Instant, f64)>,
    last: Option<(Instant, f64)>,
}

impl Cost {
    /// Reads the CPU time that the calling thread has used.
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

    /// Returns the share of one core, or `None` before two samples.
    pub(super) fn share(&self) -> Option<f64> {
        let (first, last) = (self.first?, self.last?);
        let time = last.0.saturating_duration_since(first.0).as_secs_f64();
        (time > 0.05).then(|| (last.1 - first.1) / 1e9 / time)
    }
}

/// Decides when a reading is due: after its shortest interval, and within its CPU limit.
#[derive(Debug)]
pub(super) struct Pace {
    least: Duration,
    /// Pause after a reading, as a multiple of its duration.
    stretch: u32,
    next: Option<Instant>,
    /// Durations of the last readings. The shortest one is the real cost; the others include
    /// preemption.
    lately: [Duration; 4],
}

impl Pace {
    /// Creates a pace of at most one reading per `least`, using at most 1/`stretch` of a core.
    pub(super) fn new(least: Duration, stretch: u32) -> Pace {
        Pace { least, stretch, next: None, lately: [Duration::MAX; 4] }
    }

    /// Returns true if a reading is due.
    pub(super) fn due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Records a reading. The next one follows within a minute.
    pub(super) fn record(&mut self, from: Instant, to: Instant) {
        self.lately.rotate_left(1);
        self.lately[3] = to.saturating_duration_since(from);
        let cost = self.lately.iter().min().copied().unwrap_or_default();
        let wait = cost.saturating_mul(self.stretch).max(self.least);
        self.next = Some(from + wait.min(Duration::from_secs(60)));
    }
}

#[cfg(test)]
mod tests;
