//! What a thread counts and hands over once per second.
//!
//! Handing over never waits: if the recorder has fallen behind, the interval goes on and becomes
//! longer, and nothing is lost.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::Duration;

use lab_model::record::{Interval, Slot, nanos};
use rustix::time::{ClockId, clock_gettime};

use super::compose::Asked;
use super::judge::Ending;

/// Nanoseconds from one hand-over to the next.
const SECOND: u64 = 1_000_000_000;

/// Gauges of a thread at the moment of handing over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// Calls under way.
    pub(crate) in_flight: u64,
    /// Workers in an iteration.
    pub(crate) workers_busy: u64,
    /// Iterations that wait for a worker.
    pub(crate) waiting: u64,
}

/// The open interval of a thread.
pub(crate) struct Ledger {
    /// What is being counted into.
    pub(crate) interval: Interval,
    stages: usize,
    methods: usize,
    filled: SyncSender<Interval>,
    spare: Receiver<Interval>,
    /// An empty interval that could not be used yet.
    next: Option<Interval>,
    /// When the open interval ends.
    pub(crate) until: u64,
    /// Nanoseconds without anything to do in the open interval.
    pub(crate) idle: u64,
    /// None in a made-up world.
    effort: Option<Effort>,
}

impl Ledger {
    /// An empty ledger of a thread.
    pub(crate) fn new(
        thread: usize,
        stages: usize,
        methods: usize,
        filled: SyncSender<Interval>,
        spare: Receiver<Interval>,
    ) -> Ledger {
        Ledger {
            interval: Interval::new(thread, stages, methods),
            stages,
            methods,
            filled,
            spare,
            next: None,
            until: SECOND,
            idle: 0,
            effort: None,
        }
    }

    /// To be called on the thread itself, whose cost is counted from here.
    pub(crate) fn begin(&mut self) {
        self.effort = Some(Effort::of_this_thread());
    }

    /// Counts a call. `latency` and `service` are nanoseconds.
    pub(crate) fn call(
        &mut self,
        stage: u16,
        method: u16,
        end: Ending,
        latency: u64,
        service: u64,
    ) {
        self.interval.record(Slot { stage, method, class: end.class }, latency, service);
        self.interval.nulls[usize::from(method)] += u64::from(end.null);
        if let Some(code) = end.code {
            self.interval.record_code(method, code);
        }
    }

    /// Counts a call that is counted already as one that ended after its scenario, or only after its
    /// stage.
    pub(crate) fn late(&mut self, slot: Slot, after_scenario: bool) {
        let interval = &mut self.interval;
        let late = if after_scenario { &mut interval.late } else { &mut interval.carried };
        *late.entry(slot).or_default() += 1;
    }

    /// Counts the status of an answer.
    pub(crate) fn answer(&mut self, status: u16, retry_after: Option<Duration>) {
        *self.interval.statuses.entry(status).or_default() += 1;
        if let Some(wait) = retry_after.filter(|_| status == 429) {
            self.interval.retry_after.saturating_record(nanos(wait));
        }
    }

    /// Counts the bytes of an answer; those of a batch are shared alike among its calls.
    pub(crate) fn bytes(&mut self, asked: Asked, methods: &[u16], count: usize) {
        match asked {
            Asked::Single { method, .. } | Asked::Recorded { method, .. } => {
                self.interval.record_bytes(method, count as u64);
            }
            Asked::Batch { .. } => {
                let each = (count / methods.len().max(1)) as u64;
                methods.iter().for_each(|method| self.interval.record_bytes(*method, each));
            }
        }
    }

    /// Hands over at the end of a second.
    pub(crate) fn tick(&mut self, now: u64, gauges: Gauges) {
        if now >= self.until {
            let end = now - now % SECOND;
            self.until = end + SECOND;
            self.close(end, gauges);
            let fresh = self.fresh();
            let filled = std::mem::replace(&mut self.interval, fresh);
            self.interval.from = filled.to;
            match self.filled.try_send(filled) {
                Ok(()) => {}
                // The next hand-over takes these with it.
                Err(TrySendError::Full(kept) | TrySendError::Disconnected(kept)) => {
                    self.next = Some(std::mem::replace(&mut self.interval, kept));
                }
            }
        }
    }

    fn fresh(&mut self) -> Interval {
        let thread = self.interval.thread;
        let used = self.next.take().or_else(|| self.spare.try_recv().ok());
        used.unwrap_or_else(|| Interval::new(thread, self.stages, self.methods))
    }

    /// Hands over what is left, and waits for room to do so. Nobody may be there to take it.
    pub(crate) fn finish(mut self, now: u64, gauges: Gauges) {
        self.close(now, gauges);
        let _nobody = self.filled.send(self.interval);
    }

    fn close(&mut self, end: u64, gauges: Gauges) {
        self.interval.to = Duration::from_nanos(end);
        self.interval.in_flight = gauges.in_flight;
        self.interval.workers_busy = gauges.workers_busy;
        self.interval.waiting = gauges.waiting;
        self.interval.idle += Duration::from_nanos(std::mem::take(&mut self.idle));
        if let Some(effort) = &mut self.effort {
            let (cpu, run_delay) = effort.since_last();
            self.interval.cpu += cpu;
            self.interval.run_delay += run_delay;
        }
    }
}

/// What the kernel says that this thread has cost.
struct Effort {
    schedstat: Option<File>,
    cpu: Duration,
    run_delay: Duration,
}

impl Effort {
    fn of_this_thread() -> Effort {
        let mut effort = Effort {
            // A kernel without CONFIG_SCHED_INFO has no such file; the run delay stays 0 then.
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            cpu: Duration::ZERO,
            run_delay: Duration::ZERO,
        };
        effort.since_last();
        effort
    }

    fn since_last(&mut self) -> (Duration, Duration) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::new(
            u64::try_from(time.tv_sec).unwrap_or_default(),
            u32::try_from(time.tv_nsec).unwrap_or_default(),
        );
        let run_delay = self.read_run_delay().unwrap_or(self.run_delay);
        let spent = (cpu.saturating_sub(self.cpu), run_delay.saturating_sub(self.run_delay));
        (self.cpu, self.run_delay) = (cpu, run_delay);
        spent
    }

    /// The second number of the file: nanoseconds of waiting on a run queue
    /// (kernel documentation, `scheduler/sched-stats`).
    fn read_run_delay(&self) -> Option<Duration> {
        let mut text = [0; 96];
        let count = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..count]).ok()?;
        Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
    }
}
