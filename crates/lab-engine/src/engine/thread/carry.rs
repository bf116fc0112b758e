//! HTTP/2 on one thread: workers share connections, each with one stream at a time.
//!
//! A connection is made by a place of its own among the workers, behind the real ones, so that
//! dialing and handshakes are those of HTTP/1.1.

use std::sync::Arc;
use std::task::Waker;

use http::Request;
use lab_model::plan::{HttpVersion, Plan, Reuse};
use lab_model::record::Class;
use parking_lot::Mutex;

use super::{ANSWER, Doing, EngineThread};
use crate::engine::EngineFault;
use crate::engine::http2::{self, Driven, Exchange, Progress, Session, Woken};
use crate::engine::world::{Socket, World};

/// The HTTP/2 connections of a thread.
pub(super) struct Carriers<S> {
    /// The first carrier's place among the workers.
    first: u32,
    all: Vec<Carrier<S>>,
    /// Places that are not in use.
    free: Vec<u32>,
    /// The one on which exchanges begin.
    current: Option<u32>,
    /// By worker: its exchange and the carrier that it is on.
    exchanges: Vec<Option<(u32, Exchange)>>,
    wakers: Vec<Waker>,
    woken: Arc<Mutex<Vec<u32>>>,
    /// Carriers with something to send.
    dirty: Vec<u32>,
    /// Those of them that have their turn now.
    driven: Vec<u32>,
    head: Request<()>,
    uses_max: u32,
}

struct Carrier<S> {
    session: Option<Session<S>>,
    /// Workers that wait for the connection.
    waiting: Vec<u32>,
    /// Exchanges under way.
    streams: u32,
    /// Exchanges that have begun or wait to.
    uses: u32,
}

/// Places for the connections of so many workers: where each exchange has a connection of its own,
/// a worker may be at the next one before the last is given back.
pub(super) const fn carriers_max(workers: usize) -> usize {
    2 * workers + 1
}

impl<S> Default for Carrier<S> {
    fn default() -> Carrier<S> {
        Carrier { session: None, waiting: Vec::new(), streams: 0, uses: 0 }
    }
}

impl<S: Socket> Carriers<S> {
    /// For a thread with so many workers; none unless the plan speaks HTTP/2.
    pub(super) fn new(plan: &Plan, workers: usize) -> Result<Option<Carriers<S>>, EngineFault> {
        if plan.connections.http != HttpVersion::Http2 {
            return Ok(None);
        }
        let woken = Arc::default();
        let first = workers as u32;
        let places = carriers_max(workers) as u32;
        Ok(Some(Carriers {
            first,
            all: (0..places).map(|_| Carrier::default()).collect(),
            free: (first..first + places).rev().collect(),
            current: None,
            exchanges: (0..workers).map(|_| None).collect(),
            wakers: (0..first).map(|worker| Woken::waker(worker, &woken)).collect(),
            woken,
            dirty: Vec::new(),
            driven: Vec::new(),
            head: http2::head(&plan.target)?,
            uses_max: match plan.connections.reuse {
                Reuse::Always => u32::MAX,
                Reuse::Never => 1,
                Reuse::Requests(most) => most.max(1),
            },
        }))
    }

    fn of(&mut self, carrier: u32) -> &mut Carrier<S> {
        &mut self.all[(carrier - self.first) as usize]
    }

    /// The carrier for one more exchange, if there is one; takes part of its uses.
    fn pick(&mut self) -> Option<u32> {
        let (current, uses_max) = (self.current?, self.uses_max);
        let carrier = self.of(current);
        let usable = carrier.session.as_mut().is_none_or(Session::usable);
        if usable && carrier.uses < uses_max {
            carrier.uses += 1;
            return Some(current);
        }
        self.current = None;
        None
    }
}

impl<W: World> EngineThread<W> {
    /// Whether a place among the workers is a connection's.
    pub(super) fn is_carrier(&self, place: u32) -> bool {
        self.carriers.as_ref().is_some_and(|carriers| place >= carriers.first)
    }

    /// Sends a worker's call on a shared connection, or lets it wait for one.
    pub(super) fn carry(&mut self, worker: u32) {
        let at = &mut self.workers[worker as usize];
        at.doing = Doing::Dialing;
        at.sent = self.clock.now;
        let Some(carriers) = &mut self.carriers else { return };
        if let Some(carrier) = carriers.pick() {
            if carriers.of(carrier).session.is_some() {
                self.stream(worker, carrier);
            } else {
                carriers.of(carrier).waiting.push(worker);
            }
        } else if let Some(carrier) = carriers.free.pop() {
            carriers.current = Some(carrier);
            let fresh = carriers.of(carrier);
            fresh.uses = 1;
            fresh.waiting.push(worker);
            self.dial(carrier);
        } else {
            // Cannot be, by the number of places; if it were, the call would wait for nobody.
            let now = self.clock.now;
            self.fail(worker, Class::Connect, now);
        }
    }

    /// The carrier's connection is there.
    pub(super) fn carrier_opened(&mut self, carrier: u32) {
        self.workers[carrier as usize].doing = Doing::Nothing;
        let connection = self.workers[carrier as usize].connection.take();
        let Some(carriers) = &mut self.carriers else { return };
        let session = connection.and_then(|connection| Session::greet(connection).ok());
        if session.is_none() {
            self.ledger.interval.traffic.connections_failed += 1;
            let now = self.clock.read();
            return self.carrier_failed(carrier, Class::Connect, now);
        }
        carriers.of(carrier).session = session;
        carriers.dirty.push(carrier);
        for worker in std::mem::take(&mut carriers.of(carrier).waiting) {
            // One that was cut meanwhile waits for nothing any more.
            if self.workers[worker as usize].doing == Doing::Dialing {
                self.stream(worker, carrier);
            }
        }
    }

    /// The carrier could not be connected: those who waited for it have failed.
    pub(super) fn carrier_failed(&mut self, carrier: u32, class: Class, at: u64) {
        self.workers[carrier as usize].doing = Doing::Nothing;
        let Some(carriers) = &mut self.carriers else { return };
        let waiting = std::mem::take(&mut carriers.of(carrier).waiting);
        self.free_carrier(carrier);
        for worker in waiting {
            if self.workers[worker as usize].doing == Doing::Dialing {
                self.fail(worker, class, at);
            }
        }
    }

    fn free_carrier(&mut self, carrier: u32) {
        let Some(carriers) = &mut self.carriers else { return };
        *carriers.of(carrier) = Carrier::default();
        carriers.free.push(carrier);
        if carriers.current == Some(carrier) {
            carriers.current = None;
        }
        // Events of the former connection are void.
        let place = &mut self.workers[carrier as usize];
        place.generation = place.generation.wrapping_add(1);
    }

    /// Begins the worker's exchange.
    fn stream(&mut self, worker: u32, carrier: u32) {
        let at = &mut self.workers[worker as usize];
        let composed = self.composer.compose(at.request.which, &mut at.methods);
        (at.request.asked, at.request.calls) = (composed.asked, composed.calls);
        at.sample = composed.sampled.then(|| self.composer.request_body().to_vec());
        at.sent = self.clock.read();
        at.doing = Doing::Awaiting;
        self.gauges.in_flight += at.request.calls as u64;
        self.waits.enter(ANSWER, worker, at.sent);
        let Some(carriers) = &mut self.carriers else { return };
        let head = carriers.head.clone();
        let place = carriers.of(carrier);
        place.streams += 1;
        let asked =
            place.session.as_mut().map(|session| session.ask(&head, self.composer.request_body()));
        carriers.dirty.push(carrier);
        match asked {
            Some(Ok(mut exchange)) => {
                // Registers the waker; nothing can have come yet.
                let waker = &carriers.wakers[worker as usize];
                if at.sample.is_some() {
                    exchange.keep();
                }
                let _nothing = exchange.advance(waker, self.response_bytes_max);
                carriers.exchanges[worker as usize] = Some((carrier, exchange));
            }
            _ => {
                self.left_stream(carrier);
                let now = self.clock.now;
                self.fail(worker, Class::Reset, now);
            }
        }
    }

    /// An exchange on the carrier has ended.
    fn left_stream(&mut self, carrier: u32) {
        let Some(carriers) = &mut self.carriers else { return };
        carriers.of(carrier).streams -= 1;
        // Kept until what is left to be sent, such as the reset of a stream, has been sent.
        carriers.dirty.push(carrier);
    }

    /// Gives up a worker's exchange, if it has one.
    pub(super) fn abandon(&mut self, worker: u32) {
        let Some(carriers) = &mut self.carriers else { return };
        let exchange = carriers.exchanges.get_mut(worker as usize).and_then(Option::take);
        if let Some((carrier, _)) = exchange {
            self.left_stream(carrier);
        }
    }

    /// Whether a carrier has something to send, or more to read.
    pub(super) fn has_dirty(&self) -> bool {
        self.carriers.as_ref().is_some_and(|carriers| !carriers.dirty.is_empty())
    }

    /// Sends and reads on all carriers with something to send or to read, a piece of each.
    pub(super) fn drive_dirty(&mut self) {
        let Some(carriers) = &mut self.carriers else { return };
        // One that becomes so meanwhile has to wait for its turn.
        std::mem::swap(&mut carriers.dirty, &mut carriers.driven);
        while let Some(carrier) = self.carriers.as_mut().and_then(|all| all.driven.pop()) {
            self.drive(carrier);
        }
    }

    /// Moves a carrier's bytes and takes the answers that have come.
    pub(super) fn drive(&mut self, carrier: u32) {
        let Some(carriers) = &mut self.carriers else { return };
        carriers.dirty.retain(|&other| other != carrier);
        let uses_max = carriers.uses_max;
        let Some(session) = &mut carriers.of(carrier).session else { return };
        let driven = session.drive(&mut self.ledger.interval.traffic);
        self.hear();
        let Some(carriers) = &mut self.carriers else { return };
        if driven == Driven::More {
            carriers.dirty.push(carrier);
            self.clock.read();
        }
        let Some(carriers) = &mut self.carriers else { return };
        if driven == Driven::Ended {
            self.carrier_ended(carrier);
        } else if carriers.of(carrier).streams == 0 && carriers.of(carrier).uses >= uses_max {
            self.free_carrier(carrier);
        }
    }

    /// Advances the exchanges that were woken.
    fn hear(&mut self) {
        loop {
            let Some(carriers) = &mut self.carriers else { return };
            let mut woken = std::mem::take(&mut *carriers.woken.lock());
            if woken.is_empty() {
                return;
            }
            for worker in woken.drain(..) {
                self.advance(worker);
            }
        }
    }

    fn advance(&mut self, worker: u32) {
        let Some(carriers) = &mut self.carriers else { return };
        let waker = &carriers.wakers[worker as usize];
        let Some((_, exchange)) = &mut carriers.exchanges[worker as usize] else { return };
        let progress = exchange.advance(waker, self.response_bytes_max);
        let class = match progress {
            Progress::More => return,
            Progress::Broken => Some(Class::Reset),
            Progress::TooLong => Some(Class::Malformed),
            Progress::Whole { .. } => None,
        };
        let now = self.clock.read();
        let ended = carriers.exchanges[worker as usize].take();
        let Some((carrier, exchange)) = ended else { return };
        self.left_stream(carrier);
        match (progress, class) {
            (_, Some(class)) => self.fail(worker, class, now),
            (Progress::Whole { status, retry_after }, None) => {
                self.judge(worker, status, exchange.came(), now);
                self.ledger.answer(status, retry_after);
                self.finish(worker, now);
            }
            _ => {}
        }
    }

    /// The server has closed the carrier's connection.
    fn carrier_ended(&mut self, carrier: u32) {
        self.ledger.interval.traffic.closed_by_server += 1;
        let Some(carriers) = &mut self.carriers else { return };
        let on = |(worker, exchange): (usize, &Option<(u32, Exchange)>)| {
            exchange.as_ref().is_some_and(|(on, _)| *on == carrier).then_some(worker as u32)
        };
        let left: Vec<u32> = carriers.exchanges.iter().enumerate().filter_map(on).collect();
        if carriers.current == Some(carrier) {
            carriers.current = None;
        }
        for worker in left {
            self.abandon(worker);
            let now = self.clock.read();
            self.fail(worker, Class::Reset, now);
        }
        self.free_carrier(carrier);
    }
}
