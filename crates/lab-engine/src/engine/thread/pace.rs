//! Scheduling of one thread: when iterations start and end, free workers, and queued iterations.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lab_model::plan::{Late, Model, Scenario};

use super::{BACK_OFF, EngineThread, PAUSE, WorkerState};
use crate::engine::world::World;
use crate::schedule::{Arrival, Arrivals, Change, Changes, StageClock, share};

/// Maximum number of iterations that start before sockets are served again. If the thread is behind
/// schedule, a response is delayed by at most a few hundred microseconds.
const STARTS_MAX: usize = 32;

/// One scenario on this thread.
pub(super) struct ScenarioState {
    executor: Executor,
    /// Indexes of its workers.
    workers: Range<usize>,
    pauses: bool,
    /// Number of workers in an iteration.
    busy: usize,
    /// Planned end.
    end: u64,
    /// The time at which iterations still in flight are interrupted.
    interrupt_at: u64,
    interrupted: bool,
}

enum Executor {
    Open {
        arrivals: Arrivals,
        next: Option<Arrival>,
        waiting: VecDeque<Arrival>,
        /// Maximum number of queued iterations.
        waiting_max: usize,
        /// Free workers, each with the time when it became free. The last freed worker is used
        /// first, which keeps the number of connections low.
        free: Vec<(u32, u64)>,
    },
    Closed {
        changes: Changes,
        next: Option<Change>,
        /// Active workers over all threads.
        active: usize,
        /// Maximum number of iterations of the scenario over all threads, if limited.
        iterations_max: Option<u64>,
        /// Iterations that this thread started.
        begun: u64,
        thread: u64,
        /// Number of threads that run this scenario.
        threads: u64,
        stages: StageClock,
        /// Workers that start an iteration now, each with the time when it became ready.
        ready: VecDeque<(u32, u64)>,
        /// True once the limit of iterations is reached.
        spent: bool,
    },
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// Returns the number of threads that run the scenario. Each needs at least one worker.
fn threads_used(scenario: &Scenario, threads: usize) -> usize {
    threads.min(scenario.workers_max.max(1))
}

/// Returns the indexes of this thread's workers among all workers of the scenario.
pub(super) fn worker_indexes(
    scenario: &Scenario,
    thread: usize,
    threads: usize,
) -> impl Iterator<Item = usize> + use<> {
    (thread..scenario.workers_max).step_by(threads)
}

impl ScenarioState {
    pub(super) fn new(
        scenario: &Scenario,
        thread: usize,
        threads: usize,
        workers: Range<usize>,
    ) -> ScenarioState {
        let end = nanos(scenario.start + scenario.duration());
        ScenarioState {
            executor: match scenario.model {
                Model::Open { late } => open(scenario, late, thread, threads, workers.clone()),
                Model::Closed => closed(scenario, thread, threads),
            },
            workers,
            pauses: !scenario.pause.is_zero(),
            busy: 0,
            end,
            interrupt_at: end.saturating_add(nanos(scenario.grace)),
            interrupted: false,
        }
    }

    /// Returns the number of queued iterations.
    pub(super) fn waiting(&self) -> u64 {
        match &self.executor {
            Executor::Open { waiting, .. } => waiting.len() as u64,
            Executor::Closed { .. } => 0,
        }
    }

    /// Returns the planned end.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the time at which to interrupt the scenario, or `None` once it is over.
    pub(super) fn interrupt_at(&self) -> Option<u64> {
        (!self.over()).then_some(self.interrupt_at)
    }

    fn over(&self) -> bool {
        let begins_none = match &self.executor {
            Executor::Open { next, waiting, .. } => next.is_none() && waiting.is_empty(),
            Executor::Closed { next, spent, .. } => next.is_none() || *spent,
        };
        self.interrupted || (begins_none && self.busy == 0)
    }
}

fn open(
    scenario: &Scenario,
    late: Late,
    thread: usize,
    threads: usize,
    workers: Range<usize>,
) -> Executor {
    let parts = threads_used(scenario, threads);
    let mut arrivals = (thread < parts).then(|| Arrivals::new(scenario, thread, parts));
    let next = arrivals.as_mut().and_then(Iterator::next);
    Executor::Open {
        arrivals: arrivals.unwrap_or_else(|| Arrivals::new(scenario, 0, 1)),
        next,
        waiting: VecDeque::new(),
        waiting_max: match late {
            Late::Queue { max } => share(max, thread, parts),
            Late::Drop => 0,
        },
        free: workers.rev().map(|worker| (worker as u32, 0)).collect(),
    }
}

fn closed(scenario: &Scenario, thread: usize, threads: usize) -> Executor {
    let mut changes = Changes::new(scenario);
    let next = changes.next();
    Executor::Closed {
        changes,
        next,
        active: 0,
        iterations_max: scenario.iterations_max,
        begun: 0,
        thread: thread as u64,
        threads: threads_used(scenario, threads) as u64,
        stages: StageClock::new(scenario),
        ready: VecDeque::new(),
        spent: false,
    }
}

/// The next iteration to start.
enum Start {
    Nothing,
    /// A free worker takes a scheduled iteration.
    Open {
        worker: u32,
        freed: u64,
        arrival: Arrival,
        /// True if the iteration was queued.
        waited: bool,
    },
    /// A worker starts its next iteration.
    Closed {
        worker: u32,
        since: u64,
    },
}

impl<W: World> EngineThread<W> {
    /// Starts all scheduled iterations for which a worker is free.
    pub(super) fn start_due(&mut self) {
        for index in 0..self.scenarios.len() {
            self.change_level(index);
            self.end_pauses(index);
            for _ in 0..STARTS_MAX {
                match self.next_start(index) {
                    Start::Nothing => break,
                    Start::Open { worker, freed, arrival, waited } => {
                        let late = waited && self.clock.now >= self.scenarios[index].end;
                        self.begin(index, worker, arrival, freed.max(arrival.at), late);
                    }
                    Start::Closed { worker, since } => self.begin_closed(index, worker, since),
                }
            }
        }
    }

    fn next_start(&mut self, index: usize) -> Start {
        let now = self.clock.now;
        let iterations = &mut self.recorder.interval.iterations;
        match &mut self.scenarios[index].executor {
            Executor::Closed { ready, .. } => match ready.pop_front() {
                Some((worker, since)) => Start::Closed { worker, since },
                None => Start::Nothing,
            },
            Executor::Open { arrivals, next, waiting, waiting_max, free } => {
                while let Some(arrival) = next.filter(|arrival| arrival.at <= now) {
                    // Without a queue, a worker that became free after the scheduled time cannot
                    // take it.
                    let fit = |(_, freed): &(u32, u64)| *waiting_max > 0 || *freed <= arrival.at;
                    if waiting.is_empty()
                        && let Some(place) = free.iter().rposition(fit)
                    {
                        let (worker, freed) = free.remove(place);
                        *next = arrivals.next();
                        iterations[usize::from(arrival.stage)].due += 1;
                        return Start::Open { worker, freed, arrival, waited: false };
                    }
                    if *waiting_max > 0 && !free.is_empty() {
                        break;
                    }
                    *next = arrivals.next();
                    let counts = &mut iterations[usize::from(arrival.stage)];
                    counts.due += 1;
                    if waiting.len() < *waiting_max {
                        waiting.push_back(arrival);
                    } else {
                        counts.dropped += 1;
                    }
                }
                if waiting.is_empty() || free.is_empty() {
                    return Start::Nothing;
                }
                match (waiting.pop_front(), free.pop()) {
                    (Some(arrival), Some((worker, freed))) => {
                        Start::Open { worker, freed, arrival, waited: true }
                    }
                    _ => Start::Nothing,
                }
            }
        }
    }

    fn begin_closed(&mut self, index: usize, worker: u32, since: u64) {
        let own = &mut self.workers[worker as usize];
        let Executor::Closed {
            active, iterations_max, begun, thread, threads, stages, spent, ..
        } = &mut self.scenarios[index].executor
        else {
            return;
        };
        if own.worker_index >= *active || *spent {
            return self.close(worker);
        }
        let number = match &self.shared.left[index] {
            None => *begun * *threads + *thread + 1,
            Some(left) => match decrement(left) {
                Some(left) => iterations_max.unwrap_or(left).saturating_sub(left) + 1,
                None => {
                    *spent = true;
                    return self.close(worker);
                }
            },
        };
        *begun += 1;
        let arrival = Arrival { at: since, stage: stages.at(since), number };
        self.recorder.interval.iterations[usize::from(arrival.stage)].due += 1;
        self.begin(index, worker, arrival, since, false);
    }

    fn begin(&mut self, index: usize, worker: u32, arrival: Arrival, ready: u64, late: bool) {
        self.scenarios[index].busy += 1;
        self.gauges.workers_busy += 1;
        let counts = &mut self.recorder.interval.iterations[usize::from(arrival.stage)];
        counts.begun += 1;
        counts.late += u64::from(late);
        let own = &mut self.workers[worker as usize];
        own.request.key.iteration = arrival.number;
        own.request.key.step = 0;
        own.request.stage = arrival.stage;
        (own.due, own.call_due, own.ready) = (arrival.at, arrival.at, ready);
        self.call(worker);
    }

    /// Frees a worker at the end of its iteration.
    pub(super) fn release(&mut self, worker: u32, at: u64, unconnected: bool) {
        let scenario = usize::from(self.workers[worker as usize].request.key.scenario);
        let state = &mut self.scenarios[scenario];
        state.busy -= 1;
        self.gauges.workers_busy -= 1;
        match &mut state.executor {
            Executor::Open { free, .. } => free.push((worker, at)),
            Executor::Closed { .. } if unconnected => {
                self.deadlines.set(BACK_OFF, worker, self.clock.now)
            }
            Executor::Closed { .. } if state.pauses => {
                self.deadlines.set(PAUSE + scenario, worker, at)
            }
            Executor::Closed { ready, .. } => ready.push_back((worker, at)),
        }
    }

    /// Activates workers as the plan's level changes.
    fn change_level(&mut self, index: usize) {
        let now = self.clock.now;
        while let Executor::Closed { changes, next, active, .. } =
            &mut self.scenarios[index].executor
            && let Some(change) = next.filter(|change| change.at <= now)
        {
            *next = changes.next();
            let before = std::mem::replace(active, change.workers);
            let Range { start, end } = self.scenarios[index].workers;
            for worker in start..end {
                let worker_index = self.workers[worker].worker_index;
                if worker_index >= before && worker_index < change.workers {
                    self.activate(index, worker as u32, change.at);
                }
            }
        }
    }

    /// Queues a worker's first iteration, unless the worker is still active.
    fn activate(&mut self, index: usize, worker: u32, at: u64) {
        let idle = self.workers[worker as usize].state == WorkerState::Idle;
        let Executor::Closed { ready, .. } = &mut self.scenarios[index].executor else { return };
        let queued = ready.iter().any(|&(other, _)| other == worker);
        if idle && !queued && !self.deadlines.is_set(worker) {
            ready.push_back((worker, at));
        }
    }

    fn end_pauses(&mut self, index: usize) {
        let now = self.clock.now;
        while let Some((worker, until)) = self.deadlines.due(PAUSE + index, now) {
            if let Executor::Closed { ready, .. } = &mut self.scenarios[index].executor {
                ready.push_back((worker, until));
            }
        }
        while let Some((worker, until)) = self.deadlines.due(BACK_OFF, now) {
            let scenario = usize::from(self.workers[worker as usize].request.key.scenario);
            if let Executor::Closed { ready, .. } = &mut self.scenarios[scenario].executor {
                ready.push_back((worker, until));
            }
        }
    }

    /// Returns the time of the earliest planned send for which a worker is free.
    pub(super) fn next_planned(&self) -> u64 {
        let of = |(index, state): (usize, &ScenarioState)| {
            let own = match &state.executor {
                Executor::Open { waiting, free, .. } if !waiting.is_empty() && !free.is_empty() => {
                    Some(0)
                }
                // No worker is free. The end of a call wakes the thread.
                Executor::Open { free, .. } if free.is_empty() => None,
                Executor::Open { next, .. } => next.map(|arrival| arrival.at),
                Executor::Closed { ready, .. } if !ready.is_empty() => Some(0),
                Executor::Closed { next, .. } => next.map(|change| change.at),
            };
            let pause = self.deadlines.until(PAUSE + index);
            own.into_iter().chain(pause).min()
        };
        let planned = self.scenarios.iter().enumerate().filter_map(of).min();
        planned.into_iter().chain(self.deadlines.until(BACK_OFF)).min().unwrap_or(u64::MAX)
    }

    /// Interrupts the iterations of scenarios whose grace period is over.
    pub(super) fn interrupt_overdue(&mut self) {
        for index in 0..self.scenarios.len() {
            if self.scenarios[index].interrupt_at().is_some_and(|at| at <= self.clock.now) {
                self.interrupt(index);
            }
        }
    }

    /// Interrupts all iterations.
    pub(super) fn interrupt_all(&mut self) {
        for index in 0..self.scenarios.len() {
            self.interrupt(index);
        }
    }

    fn interrupt(&mut self, index: usize) {
        if let Executor::Open { waiting, next, .. } = &mut self.scenarios[index].executor {
            for arrival in waiting.drain(..) {
                self.recorder.interval.iterations[usize::from(arrival.stage)].dropped += 1;
            }
            *next = None;
        }
        self.scenarios[index].interrupted = true;
        for worker in self.scenarios[index].workers.clone() {
            let own = &mut self.workers[worker];
            if own.state != WorkerState::Idle {
                let stage = usize::from(own.request.stage);
                self.recorder.interval.iterations[stage].cut += 1;
                if own.state == WorkerState::AwaitingResponse {
                    self.gauges.in_flight -= own.request.calls as u64;
                }
                self.gauges.workers_busy -= 1;
                own.state = WorkerState::Idle;
            }
            own.connection = None;
            self.deadlines.remove(worker as u32);
            self.abandon(worker as u32);
        }
        self.scenarios[index].busy = 0;
    }

    /// Returns true once every scenario is over.
    pub(super) fn over(&self) -> bool {
        self.scenarios.iter().all(ScenarioState::over)
    }
}

/// Decrements the counter unless it is 0. Returns the value before.
fn decrement(left: &AtomicU64) -> Option<u64> {
    let less = |left: u64| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()
}
