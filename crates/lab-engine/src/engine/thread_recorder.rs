//! Counters of one thread, which it hands over once per second.
//!
//! No hand-over but the last one blocks. If the receiver is late, the interval becomes longer, and
//! no count is lost.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::Duration;

use lab_model::record::{Interval, Slot, nanos};
use rustix::time::{ClockId, clock_gettime};

use super::classify::CallOutcome;
use super::compose::RequestKind;

/// Length of an interval, in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Gauges of a thread at the end of an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// Calls in flight.
    pub(crate) in_flight: u64,
    /// Workers in an iteration.
    pub(crate) workers_busy: u64,
    /// Queued iterations.
    pub(crate) waiting: u64,
}

/// Records the current interval of a thread.
pub(crate) struct ThreadRecorder {
    /// The current interval.
    pub(crate) interval: Interval,
    stages: usize,
    methods: usize,
    filled: SyncSender<Interval>,
    spare: Receiver<Interval>,
    /// An empty interval that is ready for use.
    next: Option<Interval>,
    /// End of the current interval, in nanoseconds since the start of the run.
    pub(crate) until: u64,
    /// Idle time in the current interval, in nanoseconds.
    pub(crate) idle: u64,
    /// `None` in a simulated run.
    cost: Option<ThreadCost>,
}

impl ThreadRecorder {
    /// Creates an empty recorder.
    pub(crate) fn new(
        thread: usize,
        stages: usize,
        methods: usize,
        filled: SyncSender<Interval>,
        spare: Receiver<Interval>,
    ) -> ThreadRecorder {
        ThreadRecorder {
            interval: Interval::new(thread, stages, methods),
            stages,
            methods,
            filled,
            spare,
            next: None,
            until: SECOND,
            idle: 0,
            cost: None,
        }
    }

    /// Starts to measure the CPU time of the calling thread.
    pub(crate) fn begin(&mut self) {
        self.cost = Some(ThreadCost::of_this_thread());
    }

    /// Counts a call. `latency` and `service` are in nanoseconds.
    pub(crate) fn call(
        &mut self,
        stage: u16,
        method: u16,
        outcome: CallOutcome,
        latency: u64,
        service: u64,
    ) {
        self.interval.record(Slot { stage, method, class: outcome.class }, latency, service);
        self.interval.nulls[usize::from(method)] += u64::from(outcome.null);
        if let Some(code) = outcome.code {
            self.interval.record_code(method, code);
        }
    }

    /// Marks a counted call as ended after its scenario if `after_scenario` is true, and otherwise
    /// as ended after its stage.
    pub(crate) fn ended_late(&mut self, slot: Slot, after_scenario: bool) {
        let interval = &mut self.interval;
        let counts =
            if after_scenario { &mut interval.ended_after_end } else { &mut interval.carried };
        *counts.entry(slot).or_default() += 1;
    }

    /// Counts the status of a response, and the Retry-After of a 429.
    pub(crate) fn response(&mut self, status: u16, retry_after: Option<Duration>) {
        *self.interval.statuses.entry(status).or_default() += 1;
        if let Some(delay) = retry_after.filter(|_| status == 429) {
            self.interval.retry_after.saturating_record(nanos(delay));
        }
    }

    /// Counts the bytes of a response. The calls of a batch get equal shares.
    pub(crate) fn bytes(&mut self, kind: RequestKind, methods: &[u16], count: usize) {
        match kind.method() {
            Some(method) => self.interval.record_bytes(method, count as u64),
            None => {
                let each = (count / methods.len().max(1)) as u64;
                methods.iter().for_each(|method| self.interval.record_bytes(*method, each));
            }
        }
    }

    /// Hands over the interval at the end of each second.
    pub(crate) fn tick(&mut self, now: u64, gauges: Gauges) {
        if now >= self.until {
            let end = now - now % SECOND;
            self.until = end + SECOND;
            self.close(end, gauges);
            let empty = self.take_empty();
            let filled = std::mem::replace(&mut self.interval, empty);
            self.interval.from = filled.to;
            match self.filled.try_send(filled) {
                Ok(()) => {}
                // The receiver is late. The interval continues until the next hand-over.
                Err(TrySendError::Full(unsent) | TrySendError::Disconnected(unsent)) => {
                    self.next = Some(std::mem::replace(&mut self.interval, unsent));
                }
            }
        }
    }

    /// Returns an empty interval, reused if possible.
    fn take_empty(&mut self) -> Interval {
        let thread = self.interval.thread;
        let reused = self.next.take().or_else(|| self.spare.try_recv().ok());
        reused.unwrap_or_else(|| Interval::new(thread, self.stages, self.methods))
    }

    /// Hands over the last interval. Blocks until there is room; a closed channel is ignored.
    pub(crate) fn finish(mut self, now: u64, gauges: Gauges) {
        self.close(now, gauges);
        let _ignored = self.filled.send(self.interval);
    }

    fn close(&mut self, end: u64, gauges: Gauges) {
        self.interval.to = Duration::from_nanos(end);
        self.interval.in_flight = gauges.in_flight;
        self.interval.workers_busy = gauges.workers_busy;
        self.interval.waiting = gauges.waiting;
        self.interval.idle += Duration::from_nanos(std::mem::take(&mut self.idle));
        if let Some(cost) = &mut self.cost {
            let (cpu, run_delay) = cost.since_last();
            self.interval.cpu += cpu;
            self.interval.run_delay += run_delay;
        }
    }
}

/// CPU time and run delay of this thread, as the kernel reports them.
struct ThreadCost {
    schedstat: Option<File>,
    cpu: Duration,
    run_delay: Duration,
}

impl ThreadCost {
    fn of_this_thread() -> ThreadCost {
        let mut cost = ThreadCost {
            // Without CONFIG_SCHED_INFO the file does not exist, and the run delay stays 0.
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            cpu: Duration::ZERO,
            run_delay: Duration::ZERO,
        };
        cost.since_last();
        cost
    }

    /// Returns the CPU time and the run delay since the last call.
    fn since_last(&mut self) -> (Duration, Duration) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_nsec).unwrap_or_default(),
        );
        let run_delay = self.read_run_delay().unwrap_or(self.run_delay);
        let increase = (cpu.saturating_sub(self.cpu), run_delay.saturating_sub(self.run_delay));
        (self.cpu, self.run_delay) = (cpu, run_delay);
        increase
    }

    /// Reads the second number of the file: nanoseconds on a run queue (kernel documentation,
    /// `scheduler/sched-stats`).
    fn read_run_delay(&self) -> Option<Duration> {
        let mut text = [0; 96];
        let count = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..count]).ok()?;
        Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
    }
}
