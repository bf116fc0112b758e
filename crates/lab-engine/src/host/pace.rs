//! Measures and limits the cost of watching. The cost of some readings grows with the number of
//! threads or sockets. The longer such a reading takes, the less often it is made.

use std::time::{Duration, Instant};

use super::text;

/// CPU time of the watching thread from its own `schedstat`. Wall time would include other
/// processes on a busy host.
#[derive(Debug, Default)]
pub(super) struct Cost {
    /// Time of the first reading, and its CPU nanoseconds.
    first_reading: Option<(Instant, f64)>,
    /// Time of the last reading, and its CPU nanoseconds.
    last_reading: Option<(Instant, f64)>,
}

impl Cost {
    /// Records the CPU time that the calling thread has used until now.
    pub(super) fn record(&mut self, now: Instant) {
        let text = text::read("/proc/thread-self/schedstat");
        let cpu_time = text.and_then(|text| text.split_whitespace().next()?.parse().ok());
        if let Some(nanos) = cpu_time {
            self.add(now, nanos);
        }
    }

    fn add(&mut self, now: Instant, nanos: f64) {
        self.first_reading.get_or_insert((now, nanos));
        self.last_reading = Some((now, nanos));
    }

    /// Returns the used share of one core, or `None` within 50 ms of the first reading.
    pub(super) fn share(&self) -> Option<f64> {
        let ((first_time, first_nanos), (last_time, last_nanos)) =
            (self.first_reading?, self.last_reading?);
        let elapsed = last_time.saturating_duration_since(first_time).as_secs_f64();
        (elapsed > 0.05).then(|| (last_nanos - first_nanos) / 1e9 / elapsed)
    }
}

/// Decides when a reading is due: after its shortest interval, and within its CPU limit.
#[derive(Debug)]
pub(super) struct Pace {
    interval_min: Duration,
    /// Minimum interval as a multiple of a reading's duration.
    cpu_divisor: u32,
    next: Option<Instant>,
    /// Durations of the last readings. The shortest one is the real cost; the others include
    /// preemption.
    durations: [Duration; 4],
}

impl Pace {
    /// Creates a pace of at most one reading per `interval_min`, which uses at most
    /// 1/`cpu_divisor` of a core.
    pub(super) fn new(interval_min: Duration, cpu_divisor: u32) -> Pace {
        Pace { interval_min, cpu_divisor, next: None, durations: [Duration::MAX; 4] }
    }

    /// Returns true if a reading is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Records a reading. The next one follows within a minute.
    pub(super) fn record(&mut self, from: Instant, to: Instant) {
        self.durations.rotate_left(1);
        self.durations[3] = to.saturating_duration_since(from);
        let cost = self.durations.iter().min().copied().unwrap_or_default();
        let interval = cost.saturating_mul(self.cpu_divisor).max(self.interval_min);
        self.next = Some(from + interval.min(Duration::from_secs(60)));
    }
}

#[cfg(test)]
mod tests;
