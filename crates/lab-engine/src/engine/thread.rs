//! One engine thread: a loop over socket events and planned send times. A worker runs one iteration
//! at a time, and an iteration sends one or more requests. In an open scenario, iterations start on
//! schedule. In a closed scenario, a worker starts its next iteration when its last one ends.
//!
//! [`EngineThread::run_once`] defines the order of the actions: start scheduled iterations, fail
//! requests whose deadline has passed, hand over the counts of a second, wait, handle socket
//! events. The files of `thread/`:
//!
//! - `pace.rs` starts and ends iterations.
//! - `call.rs` sends calls and classifies responses.
//! - `read.rs` reads responses.
//! - `dial.rs` opens and closes connections.
//! - `lateness.rs` measures how late the thread itself was.
//! - `h2_pool.rs` shares HTTP/2 connections among workers.
//! - `websocket_calls.rs` sends and receives WebSocket messages.
//!
//! Times of type `u64` are nanoseconds since the start of the run.

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
use super::compose::{Composer, Request, RequestKey, RequestKind};
use super::connection::{Connection, PIECE_BYTES, Peer, Phase};
use super::deadlines::Deadlines;
use super::thread_recorder::{Gauges, ThreadRecorder};
use super::time::nanos;
use super::transactions::TransactionQueue;
use super::world::{WAKEUP, World};
use super::{EngineFault, Sample, Shared};
use crate::chain::ChainFacts;
use call::SampleSender;
use h2_pool::H2Pool;
use lateness::Lateness;
use pace::ScenarioState;
use websocket_calls::WebSocketCalls;

mod call;
pub(crate) mod dial;
mod h2_pool;
mod lateness;
mod pace;
mod read;
mod websocket_calls;

/// Minimum spin time. The thread sleeps until shortly before a planned send. Then it spins, which
/// means that the loop polls without sleeping. A timer wakes the thread a few µs late on an idle
/// core, and tens of µs late in a virtual machine. The thread measures this delay and adjusts the
/// spin time to it.
const SPIN_MIN_NS: u64 = 5_000;
/// Maximum spin time. The scheduler causes longer delays, and spinning does not prevent those.
const SPIN_MAX_NS: u64 = 250_000;
/// Each punctual wake-up reduces the spin time by 1/`SPIN_DECAY_DIVISOR`. The decay is slow,
/// because one late wake-up in a hundred determines the p99.
const SPIN_DECAY_DIVISOR: u64 = 2_048;
/// Spin time before the first measurement.
const SPIN_INITIAL_NS: u64 = 50_000;
/// Minimum wait that counts as idle time. A shorter wait is only the time of the system call.
const IDLE_MIN_NS: u64 = 2_000;
/// Maximum number of events that one pass of the loop handles.
pub(super) const EVENTS_MAX: usize = 256;

// Indexes of the queues of [`Deadlines`].

/// Queue of workers that wait for a response.
const RESPONSE_QUEUE: usize = 0;
/// Queue of workers that wait for a connection.
const DIAL_QUEUE: usize = 1;
/// Queue of workers of closed scenarios that could not connect.
const BACK_OFF_QUEUE: usize = 2;
/// Queue of the first scenario's workers that pause between iterations. Each further scenario has
/// its own queue after this one, in the order of the plan.
const FIRST_PAUSE_QUEUE: usize = 3;

/// Pause of a closed scenario's worker after a failed connect. Without the pause, a worker would
/// count millions of refused connections per second and starve the target.
const BACK_OFF_NS: u64 = 100_000_000;

/// Arguments of [`EngineThread::new`].
pub(crate) struct ThreadArgs<'a> {
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) chain: &'a Arc<ChainFacts>,
    /// Addresses of the target.
    pub(crate) addresses: &'a [SocketAddr],
    /// TLS settings for connections to the target.
    pub(crate) peer: &'a Arc<Peer>,
    pub(crate) shared: &'a Arc<Shared>,
    /// Index of the thread, from 0.
    pub(crate) index: usize,
    /// Number of engine threads of the run.
    pub(crate) threads: usize,
    /// The thread sends its counts of each second here.
    pub(crate) filled: SyncSender<Interval>,
    /// The thread gets emptied intervals back from here.
    pub(crate) spare: Receiver<Interval>,
    /// Takes the sampled calls for the comparison with the reference node.
    pub(crate) samples: SyncSender<Sample>,
}

/// The clock of a run, with the [`World`], which provides the time and the sockets.
struct Clock<W> {
    world: W,
    /// The last reading. It can be older than the actual time.
    now: u64,
}

impl<W: World> Clock<W> {
    /// Reads the clock and stores the time in `now`.
    fn read(&mut self) -> u64 {
        self.now = self.world.now();
        self.now
    }
}

/// State of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerState {
    /// Has no call in flight. The worker is free, or it pauses, or it is not active, because its
    /// scenario currently uses fewer workers.
    Idle,
    /// Waits for its connection before it sends a call.
    Dialing,
    /// Waits for the response, or for the socket to take the rest of the request.
    AwaitingResponse,
}

/// A worker (k6: VU), which runs one iteration at a time. Over HTTP/1.1 and WebSockets it has its
/// own connection. Each pooled HTTP/2 connection has an entry of this type too (`h2_pool.rs`).
struct Worker<S> {
    state: WorkerState,
    /// The worker's own connection; `None` if it has none. The entry of a pooled HTTP/2 connection
    /// has the connection only until it is open.
    connection: Option<Connection<S>>,
    /// Number of connections that the worker has opened. The token of a socket event contains this
    /// number, so that events of an earlier connection are recognized and ignored.
    generation: u32,
    /// Index of the address that the current connect tried first.
    first_address: usize,
    /// Number of addresses that the current connect tried without success.
    addresses_failed: usize,
    /// Index among the scenario's workers over all threads, from 0.
    worker_index: usize,
    request: Request,
    /// Scheduled start of the iteration.
    scheduled_at: u64,
    /// Scheduled time of the call, from which its latency counts.
    call_scheduled_at: u64,
    /// Earliest time at which the worker could have sent the call. The scheduling delay counts from
    /// here.
    ready_at: u64,
    /// Time when the call was sent. While the worker connects, the time when the connect began.
    sent_at: u64,
    /// Number of times that the request was sent again, because the server had not processed it.
    retries: u32,
    /// How much later the call was sent, or its connection opened, because of this thread.
    late_ns: u64,
    /// The turn in which the worker last could read or write: the turn's look at the sockets.
    advanced_in_turn: u64,
    /// Methods of the calls in a batch.
    methods: Vec<u16>,
    /// Body of the request if the call is sampled for the comparison with the reference node.
    sample: Option<Vec<u8>>,
}

/// The state of one engine thread.
pub(crate) struct EngineThread<W: World> {
    shared: Arc<Shared>,
    clock: Clock<W>,
    /// Spin time before a planned send.
    spin_ns: u64,
    /// Addresses of the target.
    addresses: Vec<SocketAddr>,
    /// Index of the address that the next connect tries first.
    preferred_address: usize,
    peer: Arc<Peer>,
    reuse: Reuse,
    /// Maximum number of bytes of a response body.
    response_bytes_max: usize,
    scenarios: Vec<ScenarioState>,
    /// End of each stage of the plan.
    stage_ends: Vec<u64>,
    /// The index is the worker id. The entries after the workers' entries belong to pooled HTTP/2
    /// connections.
    workers: Vec<Worker<W::Socket>>,
    deadlines: Deadlines,
    composer: Composer,
    recorder: ThreadRecorder,
    samples: SampleSender,
    /// Buffer for reading from sockets.
    input: Vec<u8>,
    /// Outcomes of the current request's calls.
    outcomes: Vec<CallOutcome>,
    /// Draining connections, which the server is about to close. Each has the time at which it
    /// began to drain.
    draining: VecDeque<(u64, Connection<W::Socket>)>,
    /// Workers whose connection has more to read. An entry has the id of the worker and the
    /// generation of the connection.
    read_queue: VecDeque<(u32, u32)>,
    /// The HTTP/2 connections; `None` for HTTP/1.1 and WebSockets.
    pool: Option<H2Pool<W::Socket>>,
    /// The shared state of all WebSockets; `None` for HTTP.
    websocket: Option<WebSocketCalls>,
    lateness: Lateness,
    /// The current values. The recorder stores them at the end of each interval.
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
        // The timeout of each queue of [`Deadlines`], in the order of constants such as
        // `RESPONSE_QUEUE`. The timeout of a queue of pauses is the length of the pause.
        let mut timeouts =
            vec![nanos(plan.target.timeout), nanos(plan.target.connect_timeout), BACK_OFF_NS];
        for (index, scenario) in plan.scenarios.iter().enumerate() {
            let first_id = workers.len();
            let threads = pace::assigned_threads(scenario, args.threads);
            workers.extend(
                pace::worker_indexes(scenario, args.index, threads)
                    .map(|worker_index| Worker::new(index, worker_index)),
            );
            timeouts.push(nanos(scenario.pause));
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
            // Each HTTP/2 connection needs an entry too. Its scenario and index are not used.
            let pooled_count = h2_pool::pooled_max(workers.len());
            workers.extend((0..pooled_count).map(|_| Worker::new(0, 0)));
        }
        let (stages, methods) = (plan.stages().count(), &plan.methods);
        let mut composer = Composer::new(plan, args.chain)?;
        composer.log_transactions(args.shared.transactions.as_ref());
        Ok(EngineThread {
            shared: Arc::clone(args.shared),
            clock: Clock { world, now: 0 },
            spin_ns: SPIN_INITIAL_NS,
            addresses: args.addresses.to_vec(),
            preferred_address: 0,
            peer: Arc::clone(args.peer),
            reuse: plan.connections.reuse,
            response_bytes_max: plan.target.response_bytes_max,
            scenarios,
            stage_ends: plan.spans().map(|(_, _, span)| nanos(span.to)).collect(),
            deadlines: Deadlines::new(workers.len(), &timeouts),
            workers,
            composer,
            recorder: ThreadRecorder::new(args.index, stages, methods, args.filled, args.spare),
            samples: SampleSender { queue: args.samples, shared: Arc::clone(args.shared) },
            input: vec![0; PIECE_BYTES],
            outcomes: Vec::new(),
            draining: VecDeque::new(),
            read_queue: VecDeque::new(),
            pool,
            websocket: WebSocketCalls::new(&plan.target)?,
            lateness: Lateness::default(),
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
        self.recorder.start_cost_clock();
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
        // A thread that starts late has its first gap.
        self.clock.read();
        Ok(())
    }

    /// Runs one pass of the loop. Returns false once the run is over.
    pub(crate) fn run_once(&mut self, events: &mut Vec<epoll::Event>) -> Result<bool, EngineFault> {
        if self.shared.stop.load(Ordering::Acquire) {
            self.interrupt_all();
            return Ok(false);
        }
        self.start_due();
        self.fail_expired();
        self.interrupt_overdue();
        self.close_drained();
        // Reads and writes on the HTTP/2 connections that have data to send or to read.
        self.drive_dirty();
        let gauges = self.update_gauges();
        self.recorder.hand_over_if_due(self.clock.now, gauges);
        if self.is_over() {
            return Ok(false);
        }
        self.wait(events)?;
        for event in events.drain(..) {
            self.handle_event(event);
            // Handling an event takes time. Iterations that became due start before the next event.
            self.start_due();
            self.drive_dirty();
        }
        self.read_pending();
        Ok(true)
    }

    /// Counts the queued iterations and returns all gauges.
    fn update_gauges(&mut self) -> Gauges {
        self.gauges.queued = self.scenarios.iter().map(ScenarioState::queued).sum();
        self.end_burst();
        self.gauges
    }

    /// Sleeps until the next socket event or until shortly before the next planned time. Returns at
    /// once if the thread has work or must spin.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), EngineFault> {
        let has_work = !self.read_queue.is_empty() || self.has_dirty();
        let wake_at = match has_work {
            true => 0,
            false => self.next_planned().saturating_sub(self.spin_ns).min(self.next_deadline()),
        };
        // The time since the last clock reading was work, not idle time.
        let wait_started = self.clock.read();
        let late_ns = self.sleep(events, wait_started, wake_at)?;
        self.end_turn(wait_started, late_ns, events.len());
        // A wake-up time in the past without work means that the thread spins.
        if events.is_empty() && wake_at <= wait_started && !has_work {
            self.clock.world.yield_now();
        }
        let now = self.clock.read();
        // A spin without events counts as idle time even if it is short.
        if now - wait_started > IDLE_MIN_NS || (events.is_empty() && !has_work) {
            self.recorder.idle_ns += now - wait_started;
        }
        if events.is_empty() && wake_at > wait_started && now >= wake_at {
            self.adjust_spin(now - wake_at);
        }
        Ok(())
    }

    /// Adjusts the spin time to a timer that fired `delay_ns` late. The spin time rises at once and
    /// falls slowly.
    fn adjust_spin(&mut self, delay_ns: u64) {
        // A margin of a quarter covers delays that are slightly longer than this one.
        let needed_ns = (delay_ns + delay_ns / 4).clamp(SPIN_MIN_NS, SPIN_MAX_NS);
        let decayed_ns = self.spin_ns - self.spin_ns / SPIN_DECAY_DIVISOR;
        self.spin_ns = needed_ns.max(decayed_ns).max(SPIN_MIN_NS);
    }

    /// Returns the earliest time at which the thread must act for another reason than a planned
    /// send: a timeout, an interrupt, the end of a drain, or the end of the interval.
    fn next_deadline(&self) -> u64 {
        let timeouts = [RESPONSE_QUEUE, DIAL_QUEUE]
            .into_iter()
            .filter_map(|queue| self.deadlines.earliest(queue));
        let interrupts = self.scenarios.iter().filter_map(ScenarioState::interrupt_at);
        let drain_end = self.draining.front().map(|(since, _)| since + dial::DRAIN_WAIT_NS);
        timeouts.chain(interrupts).chain(drain_end).fold(self.recorder.interval_end, u64::min)
    }

    /// Handles one socket event.
    fn handle_event(&mut self, event: epoll::Event) {
        let (flags, token) = (event.flags, event.data.u64());
        if token == WAKEUP {
            return self.clock.world.clear_wakeup();
        }
        // `dial_next` builds the token from the worker's id and the generation.
        let (worker_id, generation) = (token as u32, (token >> 32) as u32);
        let worker = &mut self.workers[worker_id as usize];
        if worker.generation != generation {
            return;
        }
        let Some(connection) = &mut worker.connection else {
            // The entry of an open HTTP/2 connection has no socket, because the pool has it.
            if self.is_pooled(worker_id) {
                self.drive(worker_id);
            }
            return;
        };
        if connection.phase != Phase::Open {
            worker.late_ns += self.lateness.of_event(self.clock.now);
        }
        match connection.phase {
            Phase::Connecting => self.on_connected(worker_id),
            Phase::Handshaking => self.continue_handshake(worker_id),
            Phase::Upgrading | Phase::Open => {
                let server_closed = flags.intersects(
                    epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR,
                );
                if flags.contains(epoll::EventFlags::OUT) {
                    worker.advanced_in_turn = self.lateness.polled_at;
                    // After a write error, the next read reports the end of the connection.
                    let _ignored = connection.flush(&mut self.recorder.interval.traffic);
                    self.send_pong(worker_id);
                }
                if server_closed || flags.contains(epoll::EventFlags::IN) {
                    self.receive(worker_id, server_closed);
                }
            }
        }
    }

    /// Fails the requests and connects whose deadline has passed. A response that arrived before
    /// its deadline, but while the thread was stopped, is read first: only deadlines before the last
    /// look at the sockets count.
    fn fail_expired(&mut self) {
        let polled_at = self.lateness.polled_at;
        while let Some((worker_id, expired_at)) =
            self.deadlines.take_expired(RESPONSE_QUEUE, polled_at)
        {
            self.close_connection(worker_id);
            self.fail_request(worker_id, Class::Timeout, expired_at);
        }
        while let Some((worker_id, expired_at)) = self.deadlines.take_expired(DIAL_QUEUE, polled_at)
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
            self.close_connection(worker_id);
            self.fail_request(worker_id, class, expired_at);
        }
    }
}

impl<S> Worker<S> {
    /// Builds the worker's request. The composer holds the bytes until it builds the next request.
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
            addresses_failed: 0,
            worker_index,
            request: Request {
                key: RequestKey { scenario: scenario as u16, ..RequestKey::default() },
                stage: 0,
                kind: RequestKind::Single { method: 0, id: 0 },
                calls: 1,
            },
            scheduled_at: 0,
            call_scheduled_at: 0,
            ready_at: 0,
            sent_at: 0,
            retries: 0,
            late_ns: 0,
            advanced_in_turn: 0,
            methods: Vec::new(),
            sample: None,
        }
    }
}
