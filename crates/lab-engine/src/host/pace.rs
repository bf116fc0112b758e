//! Measures and limits the CPU time that it takes to watch a host. The cost of some readings grows
//! with the number of threads or sockets. The longer such a reading takes, the less often it is
//! repeated.

use std::time::{Duration, Instant};

use super::text;

/// CPU time of the watching thread, from the thread's `schedstat`. On a busy host, wall time would
/// include the time of other processes.
#[derive(Debug, Default)]
pub(super) struct Cost {
    /// Time of the first reading, and the CPU nanoseconds that the thread had used by then.
    first_reading: Option<(Instant, f64)>,
    /// Time of the last reading, and the CPU nanoseconds that the thread had used by then.
    last_reading: Option<(Instant, f64)>,
}

impl Cost {
    /// Records the CPU time that the calling thread has used until now.
    pub(super) fn record(&mut self, now: Instant) {
        let text = text::read("/proc/thread-self/schedstat");
        let cpu_time = text.and_then(|text| text.split_whitespace().next()?.parse().ok());
        if let Some(cpu_ns) = cpu_time {
            self.add(now, cpu_ns);
        }
    }

    fn add(&mut self, now: Instant, cpu_ns: f64) {
        self.first_reading.get_or_insert((now, cpu_ns));
        self.last_reading = Some((now, cpu_ns));
    }

    /// Returns the used share of one core. Returns `None` if the readings cover less than 50 ms.
    pub(super) fn share(&self) -> Option<f64> {
        let (first_time, first_cpu_ns) = self.first_reading?;
        let (last_time, last_cpu_ns) = self.last_reading?;
        let elapsed_seconds = last_time.saturating_duration_since(first_time).as_secs_f64();
        (elapsed_seconds > 0.05).then(|| (last_cpu_ns - first_cpu_ns) / 1e9 / elapsed_seconds)
    }
}

/// Decides when a reading is due. Readings have a minimum interval, and together use a limited
/// share of CPU time.
#[derive(Debug)]
pub(super) struct Pace {
    interval_min: Duration,
    /// The interval is at least this multiple of a reading's duration.
    cpu_divisor: u32,
    /// Time of the next reading; `None` before the first one.
    next: Option<Instant>,
    /// Durations of the last four readings. The shortest duration counts as the cost, because
    /// longer ones may include time in which the thread was preempted.
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

    /// Records a reading from `from` to `to`, and plans the next one at most a minute after `from`.
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
