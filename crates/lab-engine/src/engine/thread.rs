//! One engine thread: the loop that waits for sockets and for planned times, whichever comes first.
//!
//! The order of a turn stands in [`EngineThread::turn`] alone: start what is due, count what has
//! waited too long, hand over, wait, serve the sockets. When iterations are due is kept in
//! `thread/pace.rs`; `thread/call.rs` sends and judges calls; `thread/read.rs` reads answers, long
//! ones in pieces; `thread/dial.rs` makes and ends connections.

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

use super::compose::{Asked, Composer, Which};
use super::connection::{Connection, PIECE_BYTES, Peer, Phase};
use super::judge::Ending;
use super::ledger::{Gauges, Ledger};
use super::waits::Waits;
use super::world::{BELL, World};
use super::{EngineFault, Sample, Shared};
use crate::chain::ChainFacts;
use carry::Carriers;
use pace::Stream;

mod call;
mod carry;
pub(crate) mod dial;
pub(crate) mod pace;
mod read;

/// Bounds of how long before a planned send the thread stops to sleep and spins. Waking from a timer
/// takes a few µs on an idle core and some tens in a virtual machine, now and then hundreds, so it is
/// measured all the time; a longer delay is the scheduler's, against which spinning does not help.
const SPIN_MIN: u64 = 5_000;
const SPIN_MAX: u64 = 250_000;
/// The part of it that each punctual waking takes back. Slow: one late waking in a hundred is what
/// makes a p99.
const SPIN_DECAY: u64 = 2_048;
/// What the time to spin is before anything was measured.
const SPIN_FIRST: u64 = 50_000;
/// A shorter wait was none: it is what asking the kernel costs.
const ASKING: u64 = 2_000;
/// Sockets served between two looks at the clock of the plan.
const EVENTS_MAX: usize = 256;

/// Lines of [`Waits`]: those who wait for an answer.
const ANSWER: usize = 0;
/// Those who wait for a connection.
const DIAL: usize = 1;
/// Those who could not connect, in the closed model.
const BACK_OFF: usize = 2;
/// Those who pause between iterations, by scenario from here.
const PAUSE: usize = 3;

/// How long a worker of the closed model waits after it could not connect. Without this it would
/// count millions of refused connections per second and starve what it measures.
const BACK_OFF_WAIT: u64 = 100_000_000;

/// What a thread is made of.
pub(crate) struct Given<'a> {
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

/// The time of a run, and the world whose time it is.
struct Clock<W> {
    world: W,
    /// When it was last read, in nanoseconds since the start of the run.
    now: u64,
}

impl<W: World> Clock<W> {
    fn read(&mut self) -> u64 {
        self.now = self.world.now();
        self.now
    }
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Nothing: free, in a pause, or not at work now.
    Nothing,
    /// Waits for its connection, to send a call.
    Dialing,
    /// Waits for the answer to a call, or for the socket to take the rest of it.
    Awaiting,
}

/// The request that a worker is at.
#[derive(Clone, Copy, Debug)]
struct Request {
    which: Which,
    stage: u16,
    asked: Asked,
    /// Calls in it.
    calls: usize,
}

/// Runs one iteration at a time on a connection of its own.
struct Worker<S> {
    doing: Doing,
    connection: Option<Connection<S>>,
    /// Counts its connections, so that events of former ones are told apart.
    generation: u32,
    /// The address that was tried first for the connection that is being made.
    first: usize,
    /// Addresses tried in vain for it.
    tried: usize,
    /// Its place among the workers of its scenario on all threads, from 0.
    seat: usize,
    request: Request,
    /// When the iteration was due.
    due: u64,
    /// From when the call's latency counts.
    call_due: u64,
    /// From when it could be sent.
    ready: u64,
    /// When it was sent; when connecting began, if it was not.
    sent: u64,
    /// Methods of the calls of a batch.
    methods: Vec<u16>,
    sample: Option<Vec<u8>>,
}

/// The loop and all it needs.
pub(crate) struct EngineThread<W: World> {
    shared: Arc<Shared>,
    clock: Clock<W>,
    /// How long before a planned send the thread stops to sleep.
    spin: u64,
    addresses: Vec<SocketAddr>,
    /// The address to be tried first.
    address: usize,
    peer: Arc<Peer>,
    reuse: Reuse,
    response_bytes_max: usize,
    streams: Vec<Stream>,
    /// When each stage of the plan ends.
    stage_ends: Vec<u64>,
    workers: Vec<Worker<W::Socket>>,
    waits: Waits,
    composer: Composer,
    ledger: Ledger,
    samples: SyncSender<Sample>,
    input: Vec<u8>,
    /// Endings of the calls of the request at hand.
    endings: Vec<Ending>,
    /// Connections that the server is about to close, and since when.
    leaving: VecDeque<(u64, Connection<W::Socket>)>,
    /// Workers whose connections have more to read, each with the generation of its connection.
    unread: VecDeque<(u32, u32)>,
    /// The shared connections of HTTP/2.
    carriers: Option<Carriers<W::Socket>>,
    gauges: Gauges,
}

impl<W: World> EngineThread<W> {
    /// Makes everything ready for [`EngineThread::run`].
    ///
    /// # Errors
    /// If the plan draws what the chain does not have, or a header cannot be sent.
    pub(crate) fn new(given: Given<'_>, world: W) -> Result<EngineThread<W>, EngineFault> {
        let plan = given.plan;
        let mut streams = Vec::new();
        let mut workers = Vec::new();
        let mut waits = vec![
            pace::nanos(plan.target.timeout),
            pace::nanos(plan.target.connect_timeout),
            BACK_OFF_WAIT,
        ];
        for (index, scenario) in plan.scenarios.iter().enumerate() {
            let first = workers.len();
            workers.extend(
                pace::seats(scenario, given.index, given.threads)
                    .map(|seat| Worker::new(index, seat)),
            );
            waits.push(pace::nanos(scenario.pause));
            streams.push(Stream::new(scenario, given.index, given.threads, first..workers.len()));
        }
        let carriers = Carriers::new(plan, workers.len())?;
        if carriers.is_some() {
            let places = 0..carry::carriers_max(workers.len());
            workers.extend(places.map(|_| Worker::new(0, 0)));
        }
        let (stages, methods) = (plan.stages().count(), plan.methods.len());
        Ok(EngineThread {
            shared: Arc::clone(given.shared),
            clock: Clock { world, now: 0 },
            spin: SPIN_FIRST,
            addresses: given.addresses.to_vec(),
            address: 0,
            peer: Arc::clone(given.peer),
            reuse: plan.connections.reuse,
            response_bytes_max: plan.target.response_bytes_max,
            streams,
            stage_ends: plan.spans().map(|(_, _, span)| pace::nanos(span.to)).collect(),
            waits: Waits::new(workers.len(), &waits),
            workers,
            composer: Composer::new(plan, given.chain)?,
            ledger: Ledger::new(given.index, stages, methods, given.filled, given.spare),
            samples: given.samples,
            input: vec![0; PIECE_BYTES],
            endings: Vec::new(),
            leaving: VecDeque::new(),
            unread: VecDeque::new(),
            carriers,
            gauges: Gauges::default(),
        })
    }

    /// Runs the plan to its end.
    ///
    /// # Errors
    /// If the system refuses to wait.
    pub(crate) fn run(mut self) -> Result<(), EngineFault> {
        // Without it the kernel may be 50 µs late; the thread then spins less punctually, no more.
        let _less_punctual = set_current_timer_slack(NonZeroU64::new(1));
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.await_origin(&mut events)?;
        self.ledger.begin();
        while self.turn(&mut events)? {}
        self.end();
        Ok(())
    }

    /// Hands over what was counted last.
    pub(crate) fn end(self) {
        self.ledger.finish(self.clock.now, self.gauges);
    }

    /// Sleeps until the run begins, or is ended before that.
    fn await_origin(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), EngineFault> {
        while !self.shared.stop.load(Ordering::Acquire) {
            let left = self.clock.world.until_start();
            if left == 0 {
                break;
            }
            self.clock.world.wait(events, left)?;
            events.clear();
        }
        self.clock.read();
        Ok(())
    }

    /// One turn of the loop; false once the run is over.
    pub(crate) fn turn(&mut self, events: &mut Vec<epoll::Event>) -> Result<bool, EngineFault> {
        if self.shared.stop.load(Ordering::Acquire) {
            self.cut_all();
            return Ok(false);
        }
        self.start_due();
        self.expire();
        self.end_scenarios();
        self.close_leaving();
        self.drive_dirty();
        let gauges = self.gauges();
        self.ledger.tick(self.clock.now, gauges);
        if self.over() {
            return Ok(false);
        }
        self.wait(events)?;
        for event in events.drain(..) {
            self.serve(event);
            self.start_due();
            self.drive_dirty();
        }
        self.read_on();
        Ok(true)
    }

    fn gauges(&mut self) -> Gauges {
        self.gauges.waiting = self.streams.iter().map(Stream::waiting).sum();
        self.gauges
    }

    /// Sleeps until a socket has something or a time has come, and spins where sleeping would be
    /// late.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), EngineFault> {
        let at_once = !self.unread.is_empty() || self.has_dirty();
        let until = match at_once {
            true => 0,
            false => self.next_planned().saturating_sub(self.spin).min(self.next_other()),
        };
        // What was done since the clock was read last is work.
        let before = self.clock.read();
        self.clock.world.wait(events, until.saturating_sub(before))?;
        if events.is_empty() && until <= before && !at_once {
            self.clock.world.yield_now();
        }
        let now = self.clock.read();
        if now - before > ASKING || (events.is_empty() && !at_once) {
            self.ledger.idle += now - before;
        }
        if events.is_empty() && until > before {
            self.slept_past(now.saturating_sub(until));
        }
        Ok(())
    }

    /// Learns from a timer that was so late: at once if it was later than known, slowly back.
    fn slept_past(&mut self, late: u64) {
        let wanted = (late + late / 4).clamp(SPIN_MIN, SPIN_MAX);
        self.spin = wanted.max(self.spin - self.spin / SPIN_DECAY).max(SPIN_MIN);
    }

    /// When something other than a planned send has to be done.
    fn next_other(&self) -> u64 {
        let waits = [ANSWER, DIAL].into_iter().filter_map(|line| self.waits.until(line));
        let ends = self.streams.iter().filter_map(Stream::cut_at);
        let leaving = self.leaving.front().map(|(since, _)| since + dial::LEAVING_WAIT);
        waits.chain(ends).chain(leaving).fold(self.ledger.until, u64::min)
    }

    /// What a socket has to say.
    fn serve(&mut self, event: epoll::Event) {
        let (flags, token) = (event.flags, event.data.u64());
        if token == BELL {
            return self.clock.world.rung();
        }
        let (worker, generation) = (token as u32, (token >> 32) as u32);
        let at = &mut self.workers[worker as usize];
        if at.generation != generation {
            return;
        }
        let Some(connection) = &mut at.connection else {
            if self.is_carrier(worker) {
                self.drive(worker);
            }
            return;
        };
        match connection.phase {
            Phase::Connecting => self.connected(worker),
            Phase::Handshaking => self.shake(worker),
            Phase::Open => {
                let ending = flags.intersects(
                    epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR,
                );
                if flags.contains(epoll::EventFlags::OUT) {
                    // A fault here comes back as the end of the connection when it is read.
                    let _seen_on_reading = connection.flush(&mut self.ledger.interval.traffic);
                }
                if ending || flags.contains(epoll::EventFlags::IN) {
                    self.receive(worker, ending);
                }
            }
        }
    }

    /// Counts calls and connections that have taken too long, at their deadlines.
    fn expire(&mut self) {
        while let Some((worker, until)) = self.waits.due(ANSWER, self.clock.now) {
            self.close(worker);
            self.fail(worker, Class::Timeout, until);
        }
        while let Some((worker, until)) = self.waits.due(DIAL, self.clock.now) {
            let phase = self.workers[worker as usize].connection.as_ref().map(|one| one.phase);
            let class = if phase == Some(Phase::Handshaking) { Class::Tls } else { Class::Connect };
            if phase == Some(Phase::Connecting) {
                self.pass_over(worker);
            }
            self.ledger.interval.traffic.connections_failed += 1;
            self.close(worker);
            self.fail(worker, class, until);
        }
    }
}

impl<S> Worker<S> {
    fn new(scenario: usize, seat: usize) -> Worker<S> {
        Worker {
            doing: Doing::Nothing,
            connection: None,
            generation: 0,
            first: 0,
            tried: 0,
            seat,
            request: Request {
                which: Which { scenario: scenario as u16, ..Which::default() },
                stage: 0,
                asked: Asked::Single { method: 0, id: 0 },
                calls: 1,
            },
            due: 0,
            call_due: 0,
            ready: 0,
            sent: 0,
            methods: Vec::new(),
            sample: None,
        }
    }
}
