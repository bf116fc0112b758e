//! One engine thread: a loop over socket events and planned send times.
//!
//! Only [`EngineThread::run_once`] defines the order of the steps: start scheduled iterations,
//! expire deadlines, hand over the interval, wait, handle socket events. `thread/pace.rs` schedules
//! iterations, `thread/call.rs` sends calls and classifies responses, `thread/read.rs` reads
//! responses, `thread/dial.rs` opens and closes connections, `thread/h2_pool.rs` shares those of
//! HTTP/2, and `thread/websocket_calls.rs` sends and receives the messages of WebSockets.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender};

use lab_model::plan::{Plan, Reuse};
use lab_model::record::{Class, Interval};
use rustix::event::epoll;
use rustix::thread::set_current_timer_slack;

use super::classify::CallOutcome;
use super::compose::{Composer, RequestKey, RequestKind};
use super::connection::{Connection, PIECE_BYTES, Peer, Phase};
use super::deadlines::Deadlines;
use super::thread_recorder::{Gauges, ThreadRecorder};
use super::transactions::TransactionQueue;
use super::world::{WAKEUP, World};
use super::{EngineFault, Sample, Shared};
use crate::chain::ChainFacts;
use call::SampleSender;
use h2_pool::H2Pool;
use pace::ScenarioState;
use websocket_calls::WebSocketCalls;

mod call;
pub(crate) mod dial;
mod h2_pool;
pub(crate) mod pace;
mod read;
mod websocket_calls;

/// Bounds of the spin time, in nanoseconds. Before a planned send, the thread sleeps until only the
/// spin time is left. Then it spins. Waking from a timer takes a few µs on an idle core and tens of
/// µs in a virtual machine, so the thread measures the delay continuously. Spinning does not help
/// against longer delays, which the scheduler causes.
const SPIN_MIN: u64 = 5_000;
const SPIN_MAX: u64 = 250_000;
/// Divisor of the spin time: each punctual wake-up reduces the spin time by this fraction. The
/// fraction is small, because one late wake-up in a hundred determines the p99.
const SPIN_DECAY: u64 = 2_048;
/// Spin time before the first measurement, in nanoseconds.
const SPIN_FIRST: u64 = 50_000;
/// Minimum wait that counts as idle time, in nanoseconds. A system call alone takes this long.
const WAIT_MIN: u64 = 2_000;
/// Maximum number of events that one turn of the loop handles.
const EVENTS_MAX: usize = 256;

/// Queues of [`Deadlines`]: workers that wait for a response.
const RESPONSE_QUEUE: usize = 0;
/// Workers that wait for a connection.
const DIAL_QUEUE: usize = 1;
/// Workers of the closed model that could not connect.
const BACK_OFF_QUEUE: usize = 2;
/// First of the queues, one per scenario, of workers that pause between iterations.
const FIRST_PAUSE_QUEUE: usize = 3;

/// Pause of a closed-model worker after a failed connect, in nanoseconds. Without it a worker would
/// count millions of refused connections per second and starve the target.
const BACK_OFF_WAIT: u64 = 100_000_000;

/// Arguments of [`EngineThread::new`].
pub(crate) struct ThreadArgs<'a> {
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) chain: &'a Arc<ChainFacts>,
    pub(crate) addresses: &'a [SocketAddr],
    pub(crate) peer: &'a Arc<Peer>,
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) index: usize,
    pub(crate) threads: usize,
    pub(crate) filled: SyncSender<Interval>,
    pub(crate) spare: Receiver<Interval>,
    pub(crate) samples: SyncSender<Sample>,
}

/// The clock of a run, with the [`World`] that it reads.
struct Clock<W> {
    world: W,
    /// The last reading, in nanoseconds since the start of the run.
    now: u64,
}

impl<W: World> Clock<W> {
    fn read(&mut self) -> u64 {
        self.now = self.world.now();
        self.now
    }
}

/// State of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerState {
    /// No call in flight: the worker is free, paused, or above the scenario's number of active
    /// workers.
    Idle,
    /// Waits for its connection before it sends a call.
    Dialing,
    /// Waits for the response, or for the socket to take the rest of the request.
    AwaitingResponse,
}

/// The current request of a worker.
#[derive(Clone, Copy, Debug)]
struct Request {
    key: RequestKey,
    stage: u16,
    kind: RequestKind,
    /// Number of calls, at least 1.
    calls: usize,
}

/// A worker (k6: VU). It runs one iteration at a time on its own connection.
struct Worker<S> {
    state: WorkerState,
    connection: Option<Connection<S>>,
    /// Number of connections that the worker has opened. An event with an older generation is
    /// stale.
    generation: u32,
    /// Index of the address that this connect tried first.
    first_address: usize,
    /// Number of addresses that this connect tried without success.
    tried: usize,
    /// Index among the scenario's workers over all threads, from 0.
    worker_index: usize,
    request: Request,
    /// Scheduled time of the iteration.
    scheduled: u64,
    /// Start of the call's latency.
    call_scheduled: u64,
    /// Time from which the call could have been sent. The scheduling delay starts here.
    ready: u64,
    /// When the call was sent, or when connecting began if it was not.
    sent: u64,
    /// Methods of the calls in a batch.
    methods: Vec<u16>,
    /// Body of the request, if the call is sampled for the comparison.
    sample: Option<Vec<u8>>,
}

/// The state of one engine thread.
pub(crate) struct EngineThread<W: World> {
    shared: Arc<Shared>,
    clock: Clock<W>,
    /// Spin time before a planned send, in nanoseconds.
    spin: u64,
    addresses: Vec<SocketAddr>,
    /// Index of the address to try first.
    address: usize,
    peer: Arc<Peer>,
    reuse: Reuse,
    response_bytes_max: usize,
    scenarios: Vec<ScenarioState>,
    /// End of each stage of the plan.
    stage_ends: Vec<u64>,
    workers: Vec<Worker<W::Socket>>,
    deadlines: Deadlines,
    composer: Composer,
    recorder: ThreadRecorder,
    samples: SampleSender,
    /// Buffer for reading from sockets.
    input: Vec<u8>,
    /// Outcomes of the current request's calls.
    outcomes: Vec<CallOutcome>,
    /// Connections that the server is about to close, each with the time when the wait began.
    draining: VecDeque<(u64, Connection<W::Socket>)>,
    /// Ids of workers whose connection has more to read, each with the connection's generation.
    unread: VecDeque<(u32, u32)>,
    /// The HTTP/2 connections; `None` for HTTP/1.1 and WebSockets.
    pool: Option<H2Pool<W::Socket>>,
    /// What all WebSockets share; `None` for HTTP.
    websocket: Option<WebSocketCalls>,
    gauges: Gauges,
}

impl<W: World> EngineThread<W> {
    /// Creates the thread's state; [`EngineThread::run`] runs it.
    ///
    /// # Errors
    /// Fails if the plan draws a value that the chain lacks, or if a header cannot be sent.
    pub(crate) fn new(args: ThreadArgs<'_>, world: W) -> Result<EngineThread<W>, EngineFault> {
        let plan = args.plan;
        let mut scenarios = Vec::new();
        let mut workers = Vec::new();
        let mut timeouts = vec![
            pace::nanos(plan.target.timeout),
            pace::nanos(plan.target.connect_timeout),
            BACK_OFF_WAIT,
        ];
        for (index, scenario) in plan.scenarios.iter().enumerate() {
            let first_id = workers.len();
            let threads = pace::threads_of(scenario, args.threads);
            workers.extend(
                pace::worker_indexes(scenario, args.index, threads)
                    .map(|worker_index| Worker::new(index, worker_index)),
            );
            timeouts.push(pace::nanos(scenario.pause));
            let log = args.shared.transactions.as_ref();
            let transactions = plan.mixes[scenario.mix].transactions().zip(log);
            scenarios.push(ScenarioState::new(
                scenario,
                args.index,
                threads,
                first_id..workers.len(),
                transactions.map(|(list, log)| TransactionQueue::new(list, log)),
            ));
        }
        let pool = H2Pool::new(plan, workers.len())?;
        if pool.is_some() {
            let pooled_count = h2_pool::pooled_max(workers.len());
            workers.extend((0..pooled_count).map(|_| Worker::new(0, 0)));
        }
        let (stages, methods) = (plan.stages().count(), plan.methods.len());
        let mut composer = Composer::new(plan, args.chain)?;
        composer.log_transactions(args.shared.transactions.as_ref());
        Ok(EngineThread {
            shared: Arc::clone(args.shared),
            clock: Clock { world, now: 0 },
            spin: SPIN_FIRST,
            addresses: args.addresses.to_vec(),
            address: 0,
            peer: Arc::clone(args.peer),
            reuse: plan.connections.reuse,
            response_bytes_max: plan.target.response_bytes_max,
            scenarios,
            stage_ends: plan.spans().map(|(_, _, span)| pace::nanos(span.to)).collect(),
            deadlines: Deadlines::new(workers.len(), &timeouts),
            workers,
            composer,
            recorder: ThreadRecorder::new(args.index, stages, methods, args.filled, args.spare),
            samples: SampleSender { queue: args.samples, shared: Arc::clone(args.shared) },
            input: vec![0; PIECE_BYTES],
            outcomes: Vec::new(),
            draining: VecDeque::new(),
            unread: VecDeque::new(),
            pool,
            websocket: WebSocketCalls::new(&plan.target)?,
            gauges: Gauges::default(),
        })
    }

    /// Runs the plan to its end.
    ///
    /// # Errors
    /// Fails if the system's wait for events fails.
    pub(crate) fn run(mut self) -> Result<(), EngineFault> {
        // If this fails, timers are up to 50 µs late and the thread spins longer.
        let _ignored = set_current_timer_slack(NonZeroU64::new(1));
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.await_origin(&mut events)?;
        self.recorder.begin();
        while self.run_once(&mut events)? {}
        self.end();
        Ok(())
    }

    /// Closes the WebSockets and hands over the last interval.
    pub(crate) fn end(mut self) {
        self.close_websockets();
        self.recorder.finish(self.clock.now, self.gauges);
    }

    /// Sleeps until the run starts or is stopped.
    fn await_origin(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), EngineFault> {
        while !self.shared.stop.load(Ordering::Acquire) {
            let timeout = self.clock.world.until_start();
            if timeout == 0 {
                break;
            }
            self.clock.world.wait(events, timeout)?;
            events.clear();
        }
        self.clock.read();
        Ok(())
    }

    /// Runs one turn of the loop. Returns false once the run is over.
    pub(crate) fn run_once(&mut self, events: &mut Vec<epoll::Event>) -> Result<bool, EngineFault> {
        if self.shared.stop.load(Ordering::Acquire) {
            self.interrupt_all();
            return Ok(false);
        }
        self.start_due();
        self.expire();
        self.interrupt_overdue();
        self.close_drained();
        self.drive_dirty();
        let gauges = self.gauges();
        self.recorder.tick(self.clock.now, gauges);
        if self.is_over() {
            return Ok(false);
        }
        self.wait(events)?;
        for event in events.drain(..) {
            self.handle_event(event);
            // Handling takes time, so iterations due meanwhile start before the next event.
            self.start_due();
            self.drive_dirty();
        }
        self.read_pending();
        Ok(true)
    }

    fn gauges(&mut self) -> Gauges {
        self.gauges.waiting = self.scenarios.iter().map(ScenarioState::queued).sum();
        self.gauges
    }

    /// Sleeps until the next socket event or planned time. Spins instead if sleeping would be late.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), EngineFault> {
        let has_work = !self.unread.is_empty() || self.has_dirty();
        let until = match has_work {
            true => 0,
            false => self.next_planned().saturating_sub(self.spin).min(self.next_other()),
        };
        // The time since the last clock reading was work, not idle time.
        let wait_started = self.clock.read();
        self.clock.world.wait(events, until.saturating_sub(wait_started))?;
        if events.is_empty() && until <= wait_started && !has_work {
            self.clock.world.yield_now();
        }
        let now = self.clock.read();
        // A spin without events is idle time, however short it is.
        if now - wait_started > WAIT_MIN || (events.is_empty() && !has_work) {
            self.recorder.idle += now - wait_started;
        }
        if events.is_empty() && until > wait_started {
            self.adjust_spin(now.saturating_sub(until));
        }
        Ok(())
    }

    /// Adjusts the spin time to a timer that fired `delay` nanoseconds late. The spin time rises
    /// at once and falls slowly.
    fn adjust_spin(&mut self, delay: u64) {
        let needed = (delay + delay / 4).clamp(SPIN_MIN, SPIN_MAX);
        self.spin = needed.max(self.spin - self.spin / SPIN_DECAY).max(SPIN_MIN);
    }

    /// Returns the earliest time of a planned action other than a send.
    fn next_other(&self) -> u64 {
        let deadlines = [RESPONSE_QUEUE, DIAL_QUEUE]
            .into_iter()
            .filter_map(|queue| self.deadlines.until(queue));
        let ends = self.scenarios.iter().filter_map(ScenarioState::interrupt_at);
        let draining = self.draining.front().map(|(since, _)| since + dial::DRAIN_WAIT);
        deadlines.chain(ends).chain(draining).fold(self.recorder.until, u64::min)
    }

    /// Handles one socket event.
    fn handle_event(&mut self, event: epoll::Event) {
        let (flags, token) = (event.flags, event.data.u64());
        if token == WAKEUP {
            return self.clock.world.clear_wakeup();
        }
        let (worker_id, generation) = (token as u32, (token >> 32) as u32);
        let worker = &mut self.workers[worker_id as usize];
        if worker.generation != generation {
            return;
        }
        let Some(connection) = &mut worker.connection else {
            if self.is_pooled(worker_id) {
                self.drive(worker_id);
            }
            return;
        };
        match connection.phase {
            Phase::Connecting => self.connected(worker_id),
            Phase::Handshaking => self.continue_handshake(worker_id),
            Phase::Upgrading | Phase::Open => {
                let ending = flags.intersects(
                    epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR,
                );
                if flags.contains(epoll::EventFlags::OUT) {
                    // After a write error, the next read reports the end of the connection.
                    let _ignored = connection.flush(&mut self.recorder.interval.traffic);
                    self.send_pong(worker_id);
                }
                if ending || flags.contains(epoll::EventFlags::IN) {
                    self.receive(worker_id, ending);
                }
            }
        }
    }

    /// Fails the calls and connects whose deadline has passed.
    fn expire(&mut self) {
        while let Some((worker_id, until)) =
            self.deadlines.take_expired(RESPONSE_QUEUE, self.clock.now)
        {
            self.close(worker_id);
            self.fail(worker_id, Class::Timeout, until);
        }
        while let Some((worker_id, until)) = self.deadlines.take_expired(DIAL_QUEUE, self.clock.now)
        {
            let connection = self.workers[worker_id as usize].connection.as_ref();
            let phase = connection.map(|connection| connection.phase);
            let class = match phase {
                Some(Phase::Handshaking) => Class::Tls,
                Some(Phase::Upgrading) => Class::Timeout,
                _ => Class::Connect,
            };
            if phase == Some(Phase::Connecting) {
                self.skip_address(worker_id);
            }
            self.recorder.interval.traffic.connections_failed += 1;
            self.close(worker_id);
            self.fail(worker_id, class, until);
        }
    }
}

impl<S> Worker<S> {
    /// Builds the worker's request. The composer holds its bytes until the next request.
    fn compose(&mut self, composer: &mut Composer) {
        let composed = composer.compose(self.request.key, &mut self.methods);
        (self.request.kind, self.request.calls) = (composed.kind, composed.calls);
        self.sample = composed.sampled.then(|| composer.request_body().to_vec());
    }

    fn new(scenario: usize, worker_index: usize) -> Worker<S> {
        Worker {
            state: WorkerState::Idle,
            connection: None,
            generation: 0,
            first_address: 0,
            tried: 0,
            worker_index,
            request: Request {
                key: RequestKey { scenario: scenario as u16, ..RequestKey::default() },
                stage: 0,
                kind: RequestKind::Single { method: 0, id: 0 },
                calls: 1,
            },
            scheduled: 0,
            call_scheduled: 0,
            ready: 0,
            sent: 0,
            methods: Vec::new(),
            sample: None,
        }
    }
}
