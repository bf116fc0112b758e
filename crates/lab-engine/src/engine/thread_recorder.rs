//! Counts the calls of one engine thread, and hands the counts to the recorder of the run once per
//! second. An [`Interval`] has the counts of about one second.
//!
//! Only the last hand-over blocks. If the receiver is late at an earlier hand-over, the current
//! interval continues, so no count is lost. Times of type `u64` are nanoseconds since the start of
//! the run.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::Duration;

use lab_model::record::{GAP_MIN_NS, Interval, Slot, to_nanos};
use rustix::time::{ClockId, clock_gettime};
use wire::method::{Method, ResultForm, find_in_any_family};

use super::classify::CallOutcome;
use super::compose::RequestKind;
use super::time::nanos;

/// Length of an interval, in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Gauges of a thread at the end of an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// Number of calls in flight.
    pub(crate) in_flight: u64,
    /// Number of workers that run an iteration.
    pub(crate) workers_busy: u64,
    /// Number of queued iterations.
    pub(crate) queued: u64,
}

/// Records the current interval of a thread.
pub(crate) struct ThreadRecorder {
    /// The current interval.
    pub(crate) interval: Interval,
    /// Number of stages of the plan.
    stages: usize,
    /// For each method of the plan: its row in a method table, which has the form of its results.
    rows: Vec<Option<&'static Method>>,
    /// Takes the completed intervals.
    filled: SyncSender<Interval>,
    /// Returns emptied intervals for reuse.
    spare: Receiver<Interval>,
    /// An empty interval that is left over from the last hand-over, because that hand-over failed.
    reserve: Option<Interval>,
    /// Planned end of the current interval.
    pub(crate) interval_end: u64,
    /// Idle time of the thread in the current interval.
    pub(crate) idle_ns: u64,
    /// `None` in a simulated run, which does not measure CPU time.
    cost: Option<ThreadCost>,
}

impl ThreadRecorder {
    /// Creates an empty recorder.
    pub(crate) fn new(
        thread: usize,
        stages: usize,
        methods: &[Box<str>],
        filled: SyncSender<Interval>,
        spare: Receiver<Interval>,
    ) -> ThreadRecorder {
        ThreadRecorder {
            interval: Interval::new(thread, stages, methods.len()),
            stages,
            rows: methods.iter().map(|name| find_in_any_family(name)).collect(),
            filled,
            spare,
            reserve: None,
            interval_end: SECOND,
            idle_ns: 0,
            cost: None,
        }
    }

    /// Starts to measure the CPU time of the calling thread.
    pub(crate) fn start_cost_clock(&mut self) {
        self.cost = Some(ThreadCost::of_this_thread());
    }

    /// Counts a call. The latency counts from the scheduled time of the call, and the service time
    /// from its send.
    pub(crate) fn record_call(
        &mut self,
        stage: u16,
        method: u16,
        outcome: CallOutcome,
        latency_ns: u64,
        service_ns: u64,
    ) {
        let slot = Slot { stage, method, class: outcome.class };
        self.interval.record(slot, latency_ns, service_ns);
        if let Some(form) = outcome.form {
            let method = usize::from(method);
            self.interval.nulls[method] += u64::from(form == ResultForm::Null);
            let is_wrong = self.rows[method].is_some_and(|row| !row.allows(form));
            self.interval.wrong_types[method] += u64::from(is_wrong);
        }
        if let Some(code) = outcome.code {
            self.interval.record_code(method, code);
        }
    }

    /// Counts a call that the generator itself delayed by `late_ns`. The call must have been
    /// recorded with this latency. A short delay does not count.
    pub(crate) fn record_delay(&mut self, slot: Slot, latency_ns: u64, late_ns: u64) {
        if late_ns >= GAP_MIN_NS {
            let least_ns = latency_ns.saturating_sub(late_ns);
            self.interval.record_delayed(slot, latency_ns, least_ns);
        }
    }

    /// Returns the time for which this thread was runnable but had no core, since its start. Returns
    /// 0 if the kernel does not report it.
    pub(crate) fn run_delay_ns(&self) -> u64 {
        self.cost.as_ref().and_then(ThreadCost::read_run_delay).map_or(0, nanos)
    }

    /// Counts a call that ended after its stage. `slot` is the call's stage, method and class.
    /// `after_scenario` is true if the call also ended after its scenario.
    pub(crate) fn record_late_end(&mut self, slot: Slot, after_scenario: bool) {
        let interval = &mut self.interval;
        let late_calls =
            if after_scenario { &mut interval.ended_after_end } else { &mut interval.carried };
        *late_calls.entry(slot).or_default() += 1;
    }

    /// Counts the status of a response, and the Retry-After of a 429.
    pub(crate) fn record_response(&mut self, status: u16, retry_after: Option<Duration>) {
        *self.interval.statuses.entry(status).or_default() += 1;
        if let Some(delay) = retry_after.filter(|_| status == 429) {
            self.interval.retry_after.saturating_record(to_nanos(delay));
        }
    }

    /// Counts the bytes of a response. The calls of a batch get equal shares. `methods` has the
    /// methods of these calls.
    pub(crate) fn record_bytes(&mut self, kind: RequestKind, methods: &[u16], count: usize) {
        match kind.method() {
            Some(method) => self.interval.record_bytes(method, count as u64),
            None => {
                let bytes_per_call = (count / methods.len().max(1)) as u64;
                methods
                    .iter()
                    .for_each(|method| self.interval.record_bytes(*method, bytes_per_call));
            }
        }
    }

    /// Hands over the current interval if its second has ended.
    pub(crate) fn hand_over_if_due(&mut self, now: u64, gauges: Gauges) {
        if now >= self.interval_end {
            // The interval ends at the last whole second before `now`.
            let end = now - now % SECOND;
            self.interval_end = end + SECOND;
            self.complete_interval(end, gauges);
            let empty = self.take_empty();
            let filled = std::mem::replace(&mut self.interval, empty);
            self.interval.from = filled.to;
            match self.filled.try_send(filled) {
                Ok(()) => {}
                // The receiver is late. The interval continues until the end of the next second.
                Err(TrySendError::Full(unsent) | TrySendError::Disconnected(unsent)) => {
                    self.reserve = Some(std::mem::replace(&mut self.interval, unsent));
                }
            }
        }
    }

    /// Returns an empty interval, reused if possible.
    fn take_empty(&mut self) -> Interval {
        let thread = self.interval.thread;
        let reused = self.reserve.take().or_else(|| self.spare.try_recv().ok());
        reused.unwrap_or_else(|| Interval::new(thread, self.stages, self.rows.len()))
    }

    /// Hands over the last interval. Blocks until the channel has room.
    pub(crate) fn finish(mut self, now: u64, gauges: Gauges) {
        self.complete_interval(now, gauges);
        // The send fails if the receiver was dropped. Nobody needs the interval then.
        let _ignored = self.filled.send(self.interval);
    }

    /// Sets the end, the gauges, the idle time and the CPU time of the current interval.
    fn complete_interval(&mut self, end: u64, gauges: Gauges) {
        self.interval.to = Duration::from_nanos(end);
        self.interval.in_flight = gauges.in_flight;
        self.interval.workers_busy = gauges.workers_busy;
        self.interval.waiting = gauges.queued;
        self.interval.idle += Duration::from_nanos(std::mem::take(&mut self.idle_ns));
        if let Some(cost) = &mut self.cost {
            let (cpu, run_delay) = cost.since_last();
            self.interval.cpu += cpu;
            self.interval.run_delay += run_delay;
        }
    }
}

/// CPU time and run delay of this thread, as the kernel reports them. The run delay is the time for
/// which the thread was runnable, but no core was free.
struct ThreadCost {
    /// The thread's `schedstat` file; `None` if the kernel has none.
    schedstat: Option<File>,
    /// CPU time at the last reading.
    cpu: Duration,
    /// Run delay at the last reading.
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

    /// Returns the CPU time and the run delay since the last call of this function.
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

    /// Reads the thread's run delay: the second number of the file, in nanoseconds (kernel
    /// documentation, `scheduler/sched-stats`). Returns `None` if the kernel has no such file, or
    /// if the file cannot be read.
    fn read_run_delay(&self) -> Option<Duration> {
        let mut text = [0; 96];
        let count = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..count]).ok()?;
        Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
    }
}
