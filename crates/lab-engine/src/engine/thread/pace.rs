//! Starts and ends the iterations of one thread.
//!
//! A worker (k6: VU) runs one iteration at a time. In an open scenario, the schedule sets the start
//! of each iteration, and a free worker runs it. In a closed scenario, each active worker starts
//! its next iteration when the previous one ends. Times of type `u64` are nanoseconds since the
//! start of the run.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use lab_model::plan::{Model, Scenario};

use super::{BACK_OFF_QUEUE, EngineThread, FIRST_PAUSE_QUEUE, WorkerState};
use crate::engine::time::nanos;
use crate::engine::transactions::TransactionQueue;
use crate::engine::world::World;
use crate::schedule::{Arrival, Arrivals, Change, Changes, StageClock, share};

/// Maximum number of iterations that a scenario starts before the thread serves sockets again. With
/// this limit, a thread that is behind schedule delays responses by at most a few hundred
/// microseconds.
const STARTS_MAX: usize = 32;

/// One scenario on this thread.
pub(super) struct ScenarioState {
    executor: Executor,
    /// Ids of the scenario's workers on this thread.
    workers: Range<usize>,
    /// True if workers pause between iterations.
    has_pause: bool,
    /// Number of workers that run an iteration.
    busy_workers: usize,
    /// Planned end.
    end: u64,
    /// The scenario's transactions; `None` if it sends other calls.
    transactions: Option<TransactionQueue>,
    /// End of the grace period. The iterations that still run at this time are interrupted.
    interrupt_at: u64,
    /// True once the iterations were interrupted.
    interrupted: bool,
}

/// Decides when the iterations of a scenario start (k6: executor).
enum Executor {
    /// Iterations start at scheduled times.
    Open {
        /// The scheduled iterations after `next`.
        arrivals: Arrivals,
        /// The next scheduled iteration; `None` after the last one.
        next: Option<Arrival>,
        /// Iterations that are due and wait for a free worker.
        queue: VecDeque<Arrival>,
        /// Maximum number of queued iterations.
        queue_max: usize,
        /// Free workers: id, and time when the worker became free. The worker that was freed last
        /// is used first, which keeps the number of connections low.
        free_workers: Vec<(u32, u64)>,
    },
    /// Each active worker starts an iteration as soon as its previous one has ended.
    Closed {
        /// The changes after `next`.
        changes: Changes,
        /// The next change of the number of active workers. `None` after the last change, which
        /// sets the number to 0 at the end of the scenario.
        next: Option<Change>,
        /// Number of active workers over all threads.
        active: usize,
        /// Maximum number of iterations of the scenario over all threads; `None` if unlimited.
        iterations_max: Option<u64>,
        /// Number of iterations that this thread started.
        started: u64,
        /// Index of this thread.
        thread: u64,
        /// Number of threads that run this scenario.
        threads: u64,
        /// Finds the stage in which an iteration starts.
        stages: StageClock,
        /// Workers that can start an iteration: id, and time when the worker became ready.
        ready: VecDeque<(u32, u64)>,
        /// True once the thread starts no further iterations.
        exhausted: bool,
    },
}

/// Returns the number of threads that may run the scenario. Only the first thread runs a scenario
/// with transactions, so that the order of the transactions depends on the responses alone.
pub(super) fn assigned_threads(scenario: &Scenario, threads: usize) -> usize {
    if scenario.transactions.is_some() { 1 } else { threads }
}

/// Returns the number of threads that run the scenario: at most one per worker.
fn count_threads_used(scenario: &Scenario, threads: usize) -> usize {
    threads.min(scenario.workers_max.max(1))
}

/// Returns the indexes of this thread's workers among all workers of the scenario. With n threads,
/// each thread has every n-th worker.
pub(super) fn worker_indexes(
    scenario: &Scenario,
    thread: usize,
    threads: usize,
) -> impl Iterator<Item = usize> + use<> {
    let end = if thread < threads { scenario.workers_max } else { 0 };
    (thread..end).step_by(threads)
}

impl ScenarioState {
    pub(super) fn new(
        scenario: &Scenario,
        thread: usize,
        threads: usize,
        workers: Range<usize>,
        transactions: Option<TransactionQueue>,
    ) -> ScenarioState {
        let end = nanos(scenario.start + scenario.duration());
        ScenarioState {
            executor: match scenario.model {
                Model::Open => open_executor(scenario, thread, threads, workers.clone()),
                Model::Closed => closed_executor(scenario, thread, threads),
            },
            workers,
            has_pause: !scenario.pause.is_zero(),
            busy_workers: 0,
            end,
            transactions,
            interrupt_at: end.saturating_add(nanos(scenario.grace)),
            interrupted: false,
        }
    }

    /// Returns true if time, and not only the end of calls, decides when iterations start.
    pub(super) fn is_paced(&self) -> bool {
        self.has_pause || matches!(self.executor, Executor::Open { .. })
    }

    /// Returns the number of queued iterations.
    pub(super) fn queued(&self) -> u64 {
        match &self.executor {
            Executor::Open { queue, .. } => queue.len() as u64,
            Executor::Closed { .. } => 0,
        }
    }

    /// Returns the planned end.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the time at which to interrupt the scenario, or `None` once it is over.
    pub(super) fn interrupt_at(&self) -> Option<u64> {
        (!self.is_over()).then_some(self.interrupt_at)
    }

    /// Returns true if the scenario has a call to send now. A scenario with transactions has no
    /// call to send while every sender account waits for a response, and after all transactions
    /// were sent.
    fn can_send(&self) -> bool {
        self.transactions.as_ref().is_none_or(|queue| queue.ready_since().is_some())
    }

    /// Returns true if no iteration runs and no further one will start, or if the scenario was
    /// interrupted.
    fn is_over(&self) -> bool {
        let all_sent = self.transactions.as_ref().is_some_and(|queue| queue.unsent() == 0);
        let starts_ended = match &self.executor {
            _ if all_sent => self.queued() == 0,
            Executor::Open { next, queue, .. } => next.is_none() && queue.is_empty(),
            Executor::Closed { next, exhausted, .. } => next.is_none() || *exhausted,
        };
        self.interrupted || (starts_ended && self.busy_workers == 0)
    }
}

/// Creates the executor of an open scenario on this thread.
fn open_executor(
    scenario: &Scenario,
    thread: usize,
    threads: usize,
    workers: Range<usize>,
) -> Executor {
    let threads_used = count_threads_used(scenario, threads);
    let mut arrivals =
        (thread < threads_used).then(|| Arrivals::new(scenario, thread, threads_used));
    let next = arrivals.as_mut().and_then(Iterator::next);
    Executor::Open {
        // A thread that does not run the scenario has no `next`, so these arrivals are not used.
        arrivals: arrivals.unwrap_or_else(|| Arrivals::new(scenario, 0, 1)),
        next,
        queue: VecDeque::new(),
        queue_max: share(scenario.queue_max, thread, threads_used),
        free_workers: workers.rev().map(|worker_id| (worker_id as u32, 0)).collect(),
    }
}

/// Creates the executor of a closed scenario on this thread.
fn closed_executor(scenario: &Scenario, thread: usize, threads: usize) -> Executor {
    let mut changes = Changes::new(scenario);
    let next = changes.next();
    Executor::Closed {
        changes,
        next,
        active: 0,
        iterations_max: scenario.iterations_max,
        started: 0,
        thread: thread as u64,
        threads: count_threads_used(scenario, threads) as u64,
        stages: StageClock::new(scenario),
        ready: VecDeque::new(),
        // A thread without workers of the scenario starts no iteration.
        exhausted: thread >= threads,
    }
}

/// The next iteration to start.
enum Start {
    /// No iteration can start now.
    Nothing,
    /// A free worker starts a scheduled iteration.
    Open {
        worker_id: u32,
        /// The time when the worker became free.
        freed_at: u64,
        arrival: Arrival,
        /// True if the iteration was queued.
        was_queued: bool,
    },
    /// A worker starts its next iteration.
    Closed {
        worker_id: u32,
        /// The time when the worker became ready.
        ready_at: u64,
    },
}

impl<W: World> EngineThread<W> {
    /// Starts all scheduled iterations for which a worker is free.
    pub(super) fn start_due(&mut self) {
        for scenario_index in 0..self.scenarios.len() {
            self.apply_worker_changes(scenario_index);
            self.end_pauses(scenario_index);
            self.drop_late(scenario_index);
            for _ in 0..STARTS_MAX {
                match self.next_start(scenario_index) {
                    Start::Nothing => break,
                    Start::Open { worker_id, freed_at, arrival, was_queued } => {
                        let after_end =
                            was_queued && self.clock.now >= self.scenarios[scenario_index].end;
                        self.start_iteration(
                            scenario_index,
                            worker_id,
                            arrival,
                            freed_at.max(arrival.at),
                            after_end,
                        );
                    }
                    Start::Closed { worker_id, ready_at } => {
                        self.start_closed_iteration(scenario_index, worker_id, ready_at)
                    }
                }
            }
        }
    }

    /// Drops the queued iterations once their scenario has ended. They would be sent after the end of
    /// the plan and keep the target under load. Transactions are sent in any case.
    fn drop_late(&mut self, scenario_index: usize) {
        let state = &mut self.scenarios[scenario_index];
        if self.clock.now < state.end || state.transactions.is_some() {
            return;
        }
        if let Executor::Open { queue, .. } = &mut state.executor {
            for arrival in queue.drain(..) {
                self.recorder.interval.iterations[usize::from(arrival.stage)].dropped += 1;
            }
        }
    }

    /// Chooses the next iteration to start, and counts scheduled and dropped iterations.
    fn next_start(&mut self, scenario_index: usize) -> Start {
        let now = self.clock.now;
        let iterations = &mut self.recorder.interval.iterations;
        let state = &mut self.scenarios[scenario_index];
        let can_send = state.can_send();
        let sender_ready_at = state.transactions.as_ref().and_then(TransactionQueue::ready_since);
        let unsent = state.transactions.as_ref().map(TransactionQueue::unsent);
        match &mut state.executor {
            // A sender account has at most one transaction in flight. While all accounts wait for a
            // response, the ready workers wait too. Once all transactions are sent, the ready
            // workers no longer wait: `start_closed_iteration` closes their connections.
            Executor::Closed { .. } if !can_send && unsent != Some(0) => Start::Nothing,
            Executor::Closed { ready, .. } => match ready.pop_front() {
                Some((worker_id, ready_at)) => Start::Closed { worker_id, ready_at },
                None => Start::Nothing,
            },
            Executor::Open { arrivals, next, queue, queue_max, free_workers } => {
                while let Some(arrival) = next.filter(|arrival| arrival.at <= now) {
                    if unsent.is_some_and(|unsent| unsent <= queue.len()) {
                        // The queued iterations will send all remaining transactions.
                        *next = arrivals.next();
                        continue;
                    }
                    // Without a queue, an iteration starts only if a worker and a sender account
                    // were ready at its scheduled time.
                    let can_start = |(_, freed_at): &(u32, u64)| {
                        *queue_max > 0
                            || (*freed_at).max(sender_ready_at.unwrap_or(0)) <= arrival.at
                    };
                    if queue.is_empty()
                        && can_send
                        && let Some(position) = free_workers.iter().rposition(can_start)
                    {
                        let (worker_id, freed_at) = free_workers.remove(position);
                        *next = arrivals.next();
                        iterations[usize::from(arrival.stage)].scheduled += 1;
                        return Start::Open { worker_id, freed_at, arrival, was_queued: false };
                    }
                    // The free worker could not start this arrival, because an earlier iteration is
                    // queued. That iteration starts below, and the next call of this function
                    // handles the arrival.
                    if *queue_max > 0 && !free_workers.is_empty() && can_send {
                        break;
                    }
                    *next = arrivals.next();
                    let counts = &mut iterations[usize::from(arrival.stage)];
                    counts.scheduled += 1;
                    if queue.len() < *queue_max {
                        queue.push_back(arrival);
                    } else {
                        counts.dropped += 1;
                    }
                }
                if queue.is_empty() || free_workers.is_empty() || !can_send {
                    return Start::Nothing;
                }
                match (queue.pop_front(), free_workers.pop()) {
                    (Some(arrival), Some((worker_id, freed_at))) => {
                        Start::Open { worker_id, freed_at, arrival, was_queued: true }
                    }
                    _ => Start::Nothing,
                }
            }
        }
    }

    /// Starts the next iteration of a closed scenario. If the worker is no longer active, or no
    /// iteration remains, closes the worker's connection instead.
    fn start_closed_iteration(&mut self, scenario_index: usize, worker_id: u32, ready_at: u64) {
        let worker = &mut self.workers[worker_id as usize];
        let state = &mut self.scenarios[scenario_index];
        let all_sent = state.transactions.as_ref().is_some_and(|queue| queue.unsent() == 0);
        // The latency excludes the wait for the response to the sender's previous transaction.
        let sender_ready_at = state.transactions.as_ref().and_then(TransactionQueue::ready_since);
        let ready_at = ready_at.max(sender_ready_at.unwrap_or(0));
        let Executor::Closed {
            active,
            iterations_max,
            started,
            thread,
            threads,
            stages,
            exhausted,
            ..
        } = &mut state.executor
        else {
            return;
        };
        if worker.worker_index >= *active || *exhausted || all_sent {
            return self.close_connection(worker_id);
        }
        // This is the number of the iteration. Without a limit, the threads take turns: with n
        // threads, each thread has every n-th number. With a limit, the number follows from the
        // shared counter of remaining iterations.
        let number = match &self.shared.remaining[scenario_index] {
            None => *started * *threads + *thread + 1,
            Some(remaining) => match decrement(remaining) {
                Some(remaining_before) => {
                    let limit = iterations_max.unwrap_or(remaining_before);
                    limit.saturating_sub(remaining_before) + 1
                }
                None => {
                    *exhausted = true;
                    return self.close_connection(worker_id);
                }
            },
        };
        *started += 1;
        let arrival = Arrival { at: ready_at, stage: stages.stage_at(ready_at), number };
        self.recorder.interval.iterations[usize::from(arrival.stage)].scheduled += 1;
        // Only queued iterations start after the scenario's end. A closed scenario has no queue.
        let after_end = false;
        self.start_iteration(scenario_index, worker_id, arrival, ready_at, after_end);
    }

    /// Starts an iteration. `ready_at` is the earliest time at which the iteration could have
    /// started. `after_end` is true if a queued iteration starts after the scenario's planned end.
    fn start_iteration(
        &mut self,
        scenario_index: usize,
        worker_id: u32,
        arrival: Arrival,
        mut ready_at: u64,
        after_end: bool,
    ) {
        let mut number = arrival.number;
        if let Some(queue) = &mut self.scenarios[scenario_index].transactions {
            ready_at = ready_at.max(queue.ready_since().unwrap_or(0));
            let Some(transaction) = queue.take(arrival.at) else { return };
            number = u64::from(transaction) + 1;
        }
        self.scenarios[scenario_index].busy_workers += 1;
        self.gauges.workers_busy += 1;
        let counts = &mut self.recorder.interval.iterations[usize::from(arrival.stage)];
        counts.started += 1;
        counts.started_after_end += u64::from(after_end);
        let worker = &mut self.workers[worker_id as usize];
        worker.request.key.iteration = number;
        worker.request.key.step = 0;
        worker.request.stage = arrival.stage;
        worker.scheduled_at = arrival.at;
        worker.call_scheduled_at = arrival.at;
        worker.ready_at = ready_at;
        self.start_call(worker_id);
    }

    /// Frees a worker at the end of its iteration. `unconnected` is true if no connection could be
    /// opened, so that the last request was not sent.
    pub(super) fn release(&mut self, worker_id: u32, ended_at: u64, unconnected: bool) {
        let key = self.workers[worker_id as usize].request.key;
        let scenario_index = usize::from(key.scenario);
        let state = &mut self.scenarios[scenario_index];
        if let Some(queue) = &mut state.transactions {
            match unconnected {
                true => queue.put_back(key.transaction(), ended_at),
                false => queue.release_sender(key.transaction(), ended_at),
            }
        }
        state.busy_workers -= 1;
        self.gauges.workers_busy -= 1;
        match &mut state.executor {
            Executor::Open { free_workers, .. } => free_workers.push((worker_id, ended_at)),
            Executor::Closed { .. } if unconnected => {
                self.deadlines.set(BACK_OFF_QUEUE, worker_id, self.clock.now)
            }
            Executor::Closed { .. } if state.has_pause => {
                self.deadlines.set(FIRST_PAUSE_QUEUE + scenario_index, worker_id, ended_at)
            }
            Executor::Closed { ready, .. } => ready.push_back((worker_id, ended_at)),
        }
    }

    /// Applies the planned changes of the number of active workers up to now, and activates the
    /// added workers.
    fn apply_worker_changes(&mut self, scenario_index: usize) {
        let now = self.clock.now;
        while let Executor::Closed { changes, next, active, .. } =
            &mut self.scenarios[scenario_index].executor
            && let Some(change) = next.filter(|change| change.at <= now)
        {
            *next = changes.next();
            let active_before = std::mem::replace(active, change.workers);
            let Range { start, end } = self.scenarios[scenario_index].workers;
            for worker_id in start..end {
                let worker_index = self.workers[worker_id].worker_index;
                if worker_index >= active_before && worker_index < change.workers {
                    self.activate(scenario_index, worker_id as u32, change.at);
                }
            }
        }
    }

    /// Makes an added worker ready for an iteration. A worker can be added again while it still
    /// runs an iteration, pauses, backs off or is ready. Then the function does nothing.
    fn activate(&mut self, scenario_index: usize, worker_id: u32, now: u64) {
        let is_idle = self.workers[worker_id as usize].state == WorkerState::Idle;
        let Executor::Closed { ready, .. } = &mut self.scenarios[scenario_index].executor else {
            return;
        };
        let is_ready = ready.iter().any(|&(other, _)| other == worker_id);
        if is_idle && !is_ready && !self.deadlines.is_set(worker_id) {
            ready.push_back((worker_id, now));
        }
    }

    /// Ends the pauses and back-offs that are over, and makes their workers ready.
    fn end_pauses(&mut self, scenario_index: usize) {
        let now = self.clock.now;
        for queue in [FIRST_PAUSE_QUEUE + scenario_index, BACK_OFF_QUEUE] {
            while let Some((worker_id, pause_end)) = self.deadlines.take_expired(queue, now) {
                // The back-off queue has workers of all scenarios.
                let scenario = usize::from(self.workers[worker_id as usize].request.key.scenario);
                if let Executor::Closed { ready, .. } = &mut self.scenarios[scenario].executor {
                    ready.push_back((worker_id, pause_end));
                }
            }
        }
    }

    /// Returns the earliest time at which the thread must start an iteration, end a pause, or
    /// change the number of active workers. Returns 0 if an iteration can start now, and `u64::MAX`
    /// if nothing is planned.
    pub(super) fn next_planned(&self) -> u64 {
        let next_of_scenario = |(scenario_index, state): (usize, &ScenarioState)| {
            let start = match &state.executor {
                // The thread wakes anyway when a call ends.
                Executor::Open { .. } if !state.can_send() => None,
                Executor::Open { queue, free_workers, .. }
                    if !queue.is_empty() && !free_workers.is_empty() =>
                {
                    Some(0)
                }
                // No worker is free. The thread wakes anyway when a call ends.
                Executor::Open { free_workers, .. } if free_workers.is_empty() => None,
                Executor::Open { next, .. } => next.map(|arrival| arrival.at),
                Executor::Closed { ready, .. } if !ready.is_empty() && state.can_send() => Some(0),
                Executor::Closed { next, .. } => next.map(|change| change.at),
            };
            let pause = self.deadlines.earliest(FIRST_PAUSE_QUEUE + scenario_index);
            start.into_iter().chain(pause).min()
        };
        let planned = self.scenarios.iter().enumerate().filter_map(next_of_scenario).min();
        planned.into_iter().chain(self.deadlines.earliest(BACK_OFF_QUEUE)).min().unwrap_or(u64::MAX)
    }

    /// Interrupts the iterations of scenarios whose grace period is over.
    pub(super) fn interrupt_overdue(&mut self) {
        for scenario_index in 0..self.scenarios.len() {
            if self.scenarios[scenario_index].interrupt_at().is_some_and(|at| at <= self.clock.now)
            {
                self.interrupt(scenario_index);
            }
        }
    }

    /// Interrupts all iterations.
    pub(super) fn interrupt_all(&mut self) {
        for scenario_index in 0..self.scenarios.len() {
            self.interrupt(scenario_index);
        }
    }

    /// Interrupts all iterations of a scenario, drops its queued iterations, and closes its
    /// connections.
    fn interrupt(&mut self, scenario_index: usize) {
        if let Executor::Open { queue, next, .. } = &mut self.scenarios[scenario_index].executor {
            for arrival in queue.drain(..) {
                self.recorder.interval.iterations[usize::from(arrival.stage)].dropped += 1;
            }
            *next = None;
        }
        self.scenarios[scenario_index].interrupted = true;
        for worker_id in self.scenarios[scenario_index].workers.clone() {
            let worker = &mut self.workers[worker_id];
            if worker.state != WorkerState::Idle {
                let stage = usize::from(worker.request.stage);
                self.recorder.interval.iterations[stage].interrupted += 1;
                if worker.state == WorkerState::AwaitingResponse {
                    self.gauges.in_flight -= worker.request.calls as u64;
                } else if let Some(queue) = &self.scenarios[scenario_index].transactions {
                    // The transaction was taken from the queue, but not sent.
                    queue.cancel(worker.request.key.transaction());
                }
                self.gauges.workers_busy -= 1;
                worker.state = WorkerState::Idle;
            }
            worker.connection = None;
            self.deadlines.remove(worker_id as u32);
            self.cancel_exchange(worker_id as u32);
        }
        self.scenarios[scenario_index].busy_workers = 0;
    }

    /// Returns true once every scenario is over.
    pub(super) fn is_over(&self) -> bool {
        self.scenarios.iter().all(ScenarioState::is_over)
    }
}

/// Decrements the counter and returns its previous value. Returns `None` if the counter is 0.
fn decrement(remaining: &AtomicU64) -> Option<u64> {
    let subtract_one = |remaining: u64| remaining.checked_sub(1);
    remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract_one).ok()
}
