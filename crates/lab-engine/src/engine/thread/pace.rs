//! When iterations begin and end on one thread: the scenarios' schedules, free workers and what
//! waits for them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lab_model::plan::{Late, Model, Scenario};

use super::{BACK_OFF, Doing, EngineThread, PAUSE};
use crate::engine::world::World;
use crate::schedule::{Arrival, Arrivals, Change, Changes, StageClock, share};

/// Iterations begun before sockets are looked at again, so that catching up delays no answer for
/// longer than some hundred microseconds.
const STARTS_MAX: usize = 32;

/// One scenario's part on this thread.
pub(super) struct Stream {
    pace: Pace,
    /// Its workers.
    workers: Range<usize>,
    pauses: bool,
    /// Workers in an iteration.
    busy: usize,
    /// Its planned end.
    end: u64,
    /// When what is still under way is cut.
    cut_at: u64,
    cut: bool,
}

enum Pace {
    Open {
        arrivals: Arrivals,
        next: Option<Arrival>,
        waiting: VecDeque<Arrival>,
        /// Iterations that may wait.
        waiting_max: usize,
        /// Free workers and since when; the last to be freed is the first to be used, so that no
        /// more connections are opened than are needed.
        free: Vec<(u32, u64)>,
    },
    Closed {
        changes: Changes,
        next: Option<Change>,
        /// Workers at work over all threads.
        active: usize,
        /// How many iterations the scenario may begin on all threads, if that is limited.
        iterations_max: Option<u64>,
        /// Iterations begun by this thread.
        begun: u64,
        thread: u64,
        /// Threads that take part.
        threads: u64,
        stages: StageClock,
        /// Workers that begin now, and since when they could.
        ready: VecDeque<(u32, u64)>,
        /// Whether a limit of iterations was reached.
        spent: bool,
    },
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// Threads that take part in a scenario: an open one needs a worker on each of them.
fn taking_part(scenario: &Scenario, threads: usize) -> usize {
    threads.min(scenario.workers_max.max(1))
}

/// Places of this thread's workers among all workers of a scenario.
pub(super) fn seats(
    scenario: &Scenario,
    thread: usize,
    threads: usize,
) -> impl Iterator<Item = usize> + use<> {
    (thread..scenario.workers_max).step_by(threads)
}

impl Stream {
    pub(super) fn new(
        scenario: &Scenario,
        thread: usize,
        threads: usize,
        workers: Range<usize>,
    ) -> Stream {
        let end = nanos(scenario.start + scenario.duration());
        Stream {
            pace: match scenario.model {
                Model::Open { late } => open(scenario, late, thread, threads, workers.clone()),
                Model::Closed => closed(scenario, thread, threads),
            },
            workers,
            pauses: !scenario.pause.is_zero(),
            busy: 0,
            end,
            cut_at: end.saturating_add(nanos(scenario.grace)),
            cut: false,
        }
    }

    /// Iterations that wait for a worker.
    pub(super) fn waiting(&self) -> u64 {
        match &self.pace {
            Pace::Open { waiting, .. } => waiting.len() as u64,
            Pace::Closed { .. } => 0,
        }
    }

    /// Its planned end.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// When it has to be cut, unless it is over.
    pub(super) fn cut_at(&self) -> Option<u64> {
        (!self.over()).then_some(self.cut_at)
    }

    fn over(&self) -> bool {
        let begins_none = match &self.pace {
            Pace::Open { next, waiting, .. } => next.is_none() && waiting.is_empty(),
            Pace::Closed { next, spent, .. } => next.is_none() || *spent,
        };
        self.cut || (begins_none && self.busy == 0)
    }
}

fn open(
    scenario: &Scenario,
    late: Late,
    thread: usize,
    threads: usize,
    workers: Range<usize>,
) -> Pace {
    let parts = taking_part(scenario, threads);
    let mut arrivals = (thread < parts).then(|| Arrivals::new(scenario, thread, parts));
    let next = arrivals.as_mut().and_then(Iterator::next);
    Pace::Open {
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

fn closed(scenario: &Scenario, thread: usize, threads: usize) -> Pace {
    let mut changes = Changes::new(scenario);
    let next = changes.next();
    Pace::Closed {
        changes,
        next,
        active: 0,
        iterations_max: scenario.iterations_max,
        begun: 0,
        thread: thread as u64,
        threads: taking_part(scenario, threads) as u64,
        stages: StageClock::new(scenario),
        ready: VecDeque::new(),
        spent: false,
    }
}

/// What can begin next.
enum Start {
    Nothing,
    /// A free worker takes an iteration.
    Open {
        worker: u32,
        freed: u64,
        arrival: Arrival,
        /// It had to wait for the worker.
        waited: bool,
    },
    /// A worker begins its next iteration.
    Closed {
        worker: u32,
        since: u64,
    },
}

impl<W: World> EngineThread<W> {
    /// Starts what is due by now, as far as there are workers for it.
    pub(super) fn start_due(&mut self) {
        for index in 0..self.streams.len() {
            self.change_level(index);
            self.end_pauses(index);
            for _ in 0..STARTS_MAX {
                match self.next_start(index) {
                    Start::Nothing => break,
                    Start::Open { worker, freed, arrival, waited } => {
                        let late = waited && self.clock.now >= self.streams[index].end;
                        self.begin(index, worker, arrival, freed.max(arrival.at), late);
                    }
                    Start::Closed { worker, since } => self.begin_closed(index, worker, since),
                }
            }
        }
    }

    fn next_start(&mut self, index: usize) -> Start {
        let now = self.clock.now;
        let iterations = &mut self.ledger.interval.iterations;
        match &mut self.streams[index].pace {
            Pace::Closed { ready, .. } => match ready.pop_front() {
                Some((worker, since)) => Start::Closed { worker, since },
                None => Start::Nothing,
            },
            Pace::Open { arrivals, next, waiting, waiting_max, free } => {
                while let Some(arrival) = next.filter(|arrival| arrival.at <= now) {
                    // Where nothing waits, a worker that came free later is of no use.
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
        let Pace::Closed { active, iterations_max, begun, thread, threads, stages, spent, .. } =
            &mut self.streams[index].pace
        else {
            return;
        };
        if own.seat >= *active || *spent {
            return self.close(worker);
        }
        let number = match &self.shared.left[index] {
            None => *begun * *threads + *thread + 1,
            Some(left) => match take_one(left) {
                Some(left) => iterations_max.unwrap_or(left).saturating_sub(left) + 1,
                None => {
                    *spent = true;
                    return self.close(worker);
                }
            },
        };
        *begun += 1;
        let arrival = Arrival { at: since, stage: stages.at(since), number };
        self.ledger.interval.iterations[usize::from(arrival.stage)].due += 1;
        self.begin(index, worker, arrival, since, false);
    }

    fn begin(&mut self, index: usize, worker: u32, arrival: Arrival, ready: u64, late: bool) {
        self.streams[index].busy += 1;
        self.gauges.workers_busy += 1;
        let counts = &mut self.ledger.interval.iterations[usize::from(arrival.stage)];
        counts.begun += 1;
        counts.late += u64::from(late);
        let own = &mut self.workers[worker as usize];
        own.request.which.iteration = arrival.number;
        own.request.which.step = 0;
        own.request.stage = arrival.stage;
        (own.due, own.call_due, own.ready) = (arrival.at, arrival.at, ready);
        self.call(worker);
    }

    /// The worker's iteration has ended.
    pub(super) fn release(&mut self, worker: u32, at: u64, unconnected: bool) {
        let scenario = usize::from(self.workers[worker as usize].request.which.scenario);
        let stream = &mut self.streams[scenario];
        stream.busy -= 1;
        self.gauges.workers_busy -= 1;
        match &mut stream.pace {
            Pace::Open { free, .. } => free.push((worker, at)),
            Pace::Closed { .. } if unconnected => {
                self.waits.enter(BACK_OFF, worker, self.clock.now)
            }
            Pace::Closed { .. } if stream.pauses => self.waits.enter(PAUSE + scenario, worker, at),
            Pace::Closed { ready, .. } => ready.push_back((worker, at)),
        }
    }

    /// Lets workers come and go as the plan says.
    fn change_level(&mut self, index: usize) {
        let now = self.clock.now;
        while let Pace::Closed { changes, next, active, .. } = &mut self.streams[index].pace
            && let Some(change) = next.filter(|change| change.at <= now)
        {
            *next = changes.next();
            let before = std::mem::replace(active, change.workers);
            let Range { start, end } = self.streams[index].workers;
            for worker in start..end {
                let seat = self.workers[worker].seat;
                if seat >= before && seat < change.workers {
                    self.join(index, worker as u32, change.at);
                }
            }
        }
    }

    /// A worker comes to work, unless it never left.
    fn join(&mut self, index: usize, worker: u32, at: u64) {
        let idle = self.workers[worker as usize].doing == Doing::Nothing;
        let Pace::Closed { ready, .. } = &mut self.streams[index].pace else { return };
        let queued = ready.iter().any(|&(other, _)| other == worker);
        if idle && !queued && !self.waits.waits(worker) {
            ready.push_back((worker, at));
        }
    }

    fn end_pauses(&mut self, index: usize) {
        let now = self.clock.now;
        while let Some((worker, until)) = self.waits.due(PAUSE + index, now) {
            if let Pace::Closed { ready, .. } = &mut self.streams[index].pace {
                ready.push_back((worker, until));
            }
        }
        while let Some((worker, until)) = self.waits.due(BACK_OFF, now) {
            let scenario = usize::from(self.workers[worker as usize].request.which.scenario);
            if let Pace::Closed { ready, .. } = &mut self.streams[scenario].pace {
                ready.push_back((worker, until));
            }
        }
    }

    /// When the next send is planned for which there is a worker.
    pub(super) fn next_planned(&self) -> u64 {
        let of = |(index, stream): (usize, &Stream)| {
            let own = match &stream.pace {
                Pace::Open { waiting, free, .. } if !waiting.is_empty() && !free.is_empty() => {
                    Some(0)
                }
                // Nobody is free to send: the end of a call will wake the thread.
                Pace::Open { free, .. } if free.is_empty() => None,
                Pace::Open { next, .. } => next.map(|arrival| arrival.at),
                Pace::Closed { ready, .. } if !ready.is_empty() => Some(0),
                Pace::Closed { next, .. } => next.map(|change| change.at),
            };
            let pause = self.waits.until(PAUSE + index);
            own.into_iter().chain(pause).min()
        };
        let planned = self.streams.iter().enumerate().filter_map(of).min();
        planned.into_iter().chain(self.waits.until(BACK_OFF)).min().unwrap_or(u64::MAX)
    }

    /// Cuts what goes on past its scenario's grace.
    pub(super) fn end_scenarios(&mut self) {
        for index in 0..self.streams.len() {
            if self.streams[index].cut_at().is_some_and(|at| at <= self.clock.now) {
                self.cut(index);
            }
        }
    }

    /// Cuts everything.
    pub(super) fn cut_all(&mut self) {
        for index in 0..self.streams.len() {
            self.cut(index);
        }
    }

    fn cut(&mut self, index: usize) {
        if let Pace::Open { waiting, next, .. } = &mut self.streams[index].pace {
            for arrival in waiting.drain(..) {
                self.ledger.interval.iterations[usize::from(arrival.stage)].dropped += 1;
            }
            *next = None;
        }
        self.streams[index].cut = true;
        for worker in self.streams[index].workers.clone() {
            let own = &mut self.workers[worker];
            if own.doing != Doing::Nothing {
                let stage = usize::from(own.request.stage);
                self.ledger.interval.iterations[stage].cut += 1;
                if own.doing == Doing::Awaiting {
                    self.gauges.in_flight -= own.request.calls as u64;
                }
                self.gauges.workers_busy -= 1;
                own.doing = Doing::Nothing;
            }
            own.connection = None;
            self.waits.leave(worker as u32);
            self.abandon(worker as u32);
        }
        self.streams[index].busy = 0;
    }

    /// Whether nothing will happen any more.
    pub(super) fn over(&self) -> bool {
        self.streams.iter().all(Stream::over)
    }
}

/// Takes one of what is left, if anything is: how many there were.
fn take_one(left: &AtomicU64) -> Option<u64> {
    let less = |left: u64| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()
}
