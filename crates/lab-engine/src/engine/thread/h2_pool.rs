//! The HTTP/2 connections of one thread. Workers share them, one stream per worker at a time.
//!
//! Each connection has an index after those of the real workers. So the code for connects and TLS
//! handshakes is the same as for HTTP/1.1.

use std::sync::Arc;
use std::task::Waker;

use http::Request;
use lab_model::plan::{HttpVersion, Plan, Reuse};
use lab_model::record::Class;
use parking_lot::Mutex;

use super::{EngineThread, RESPONSE, WorkerState};
use crate::engine::EngineFault;
use crate::engine::http2::{self, DriveResult, Exchange, Progress, Session, WorkerWaker};
use crate::engine::world::{Socket, World};

/// Connection pool of one thread.
pub(super) struct H2Pool<S> {
    /// Worker index of the first connection.
    first: u32,
    all: Vec<PooledConnection<S>>,
    /// Unused indexes.
    free: Vec<u32>,
    /// The connection that gets new streams.
    current: Option<u32>,
    /// By worker: its exchange and the index of the connection.
    exchanges: Vec<Option<(u32, Exchange)>>,
    wakers: Vec<Waker>,
    woken: Arc<Mutex<Vec<u32>>>,
    /// Connections with data to send or to read.
    dirty: Vec<u32>,
    /// The dirty connections that are being driven now.
    driven: Vec<u32>,
    head: Request<()>,
    uses_max: u32,
}

struct PooledConnection<S> {
    session: Option<Session<S>>,
    /// Workers that wait for the connection.
    waiting: Vec<u32>,
    /// Open streams.
    streams: u32,
    /// Exchanges so far, including those that wait for the connection.
    uses: u32,
}

/// Returns the number of connection indexes that this many workers need. With one connection per
/// exchange, a worker may begin the next exchange before its previous connection is freed.
pub(super) const fn pooled_max(workers: usize) -> usize {
    2 * workers + 1
}

impl<S> Default for PooledConnection<S> {
    fn default() -> PooledConnection<S> {
        PooledConnection { session: None, waiting: Vec::new(), streams: 0, uses: 0 }
    }
}

impl<S: Socket> H2Pool<S> {
    /// Returns `None` unless the plan uses HTTP/2.
    pub(super) fn new(plan: &Plan, workers: usize) -> Result<Option<H2Pool<S>>, EngineFault> {
        if plan.connections.http != HttpVersion::Http2 {
            return Ok(None);
        }
        let woken = Arc::default();
        let first = workers as u32;
        let places = pooled_max(workers) as u32;
        Ok(Some(H2Pool {
            first,
            all: (0..places).map(|_| PooledConnection::default()).collect(),
            free: (first..first + places).rev().collect(),
            current: None,
            exchanges: (0..workers).map(|_| None).collect(),
            wakers: (0..first).map(|worker| WorkerWaker::waker(worker, &woken)).collect(),
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

    fn of(&mut self, pooled: u32) -> &mut PooledConnection<S> {
        &mut self.all[(pooled - self.first) as usize]
    }

    /// Returns the current connection if it can take one more exchange, and reserves it.
    fn pick(&mut self) -> Option<u32> {
        let (current, uses_max) = (self.current?, self.uses_max);
        let pooled = self.of(current);
        let usable = pooled.session.as_mut().is_none_or(Session::usable);
        if usable && pooled.uses < uses_max {
            pooled.uses += 1;
            return Some(current);
        }
        self.current = None;
        None
    }
}

impl<W: World> EngineThread<W> {
    /// Returns true if the index belongs to a pooled connection.
    pub(super) fn is_pooled(&self, place: u32) -> bool {
        self.pool.as_ref().is_some_and(|pool| place >= pool.first)
    }

    /// Sends a worker's call on a shared connection, or queues it until one is open.
    pub(super) fn send_pooled(&mut self, worker: u32) {
        let at = &mut self.workers[worker as usize];
        at.state = WorkerState::Dialing;
        at.sent = self.clock.now;
        let Some(pool) = &mut self.pool else { return };
        if let Some(pooled) = pool.pick() {
            if pool.of(pooled).session.is_some() {
                self.stream(worker, pooled);
            } else {
                pool.of(pooled).waiting.push(worker);
            }
        } else if let Some(pooled) = pool.free.pop() {
            pool.current = Some(pooled);
            let fresh = pool.of(pooled);
            fresh.uses = 1;
            fresh.waiting.push(worker);
            self.dial(pooled);
        } else {
            // [`pooled_max`] makes this unreachable. Failing the call is better than a call that
            // never ends.
            let now = self.clock.now;
            self.fail(worker, Class::Connect, now);
        }
    }

    /// Starts HTTP/2 on a connected socket and sends the waiting calls.
    pub(super) fn pooled_opened(&mut self, pooled: u32) {
        self.workers[pooled as usize].state = WorkerState::Idle;
        let connection = self.workers[pooled as usize].connection.take();
        let Some(pool) = &mut self.pool else { return };
        let session = connection.and_then(|connection| Session::handshake(connection).ok());
        if session.is_none() {
            self.recorder.interval.traffic.connections_failed += 1;
            let now = self.clock.read();
            return self.pooled_failed(pooled, Class::Connect, now);
        }
        pool.of(pooled).session = session;
        pool.dirty.push(pooled);
        for worker in std::mem::take(&mut pool.of(pooled).waiting) {
            // An interrupted worker does not wait any more.
            if self.workers[worker as usize].state == WorkerState::Dialing {
                self.stream(worker, pooled);
            }
        }
    }

    /// Fails all calls that waited for a connection that could not be opened.
    pub(super) fn pooled_failed(&mut self, pooled: u32, class: Class, at: u64) {
        self.workers[pooled as usize].state = WorkerState::Idle;
        let Some(pool) = &mut self.pool else { return };
        let waiting = std::mem::take(&mut pool.of(pooled).waiting);
        self.free_pooled(pooled);
        for worker in waiting {
            if self.workers[worker as usize].state == WorkerState::Dialing {
                self.fail(worker, class, at);
            }
        }
    }

    fn free_pooled(&mut self, pooled: u32) {
        let Some(pool) = &mut self.pool else { return };
        *pool.of(pooled) = PooledConnection::default();
        pool.free.push(pooled);
        if pool.current == Some(pooled) {
            pool.current = None;
        }
        // Invalidates events of the closed connection.
        let place = &mut self.workers[pooled as usize];
        place.generation = place.generation.wrapping_add(1);
    }

    /// Opens a stream for the worker's call.
    fn stream(&mut self, worker: u32, pooled: u32) {
        let at = &mut self.workers[worker as usize];
        let composed = self.composer.compose(at.request.key, &mut at.methods);
        (at.request.kind, at.request.calls) = (composed.kind, composed.calls);
        at.sample = composed.sampled.then(|| self.composer.request_body().to_vec());
        at.sent = self.clock.read();
        at.state = WorkerState::AwaitingResponse;
        self.gauges.in_flight += at.request.calls as u64;
        self.deadlines.set(RESPONSE, worker, at.sent);
        let Some(pool) = &mut self.pool else { return };
        let head = pool.head.clone();
        let place = pool.of(pooled);
        place.streams += 1;
        let asked = place
            .session
            .as_mut()
            .map(|session| session.send_request(&head, self.composer.request_body()));
        pool.dirty.push(pooled);
        match asked {
            Some(Ok(mut exchange)) => {
                // This poll registers the waker. No response can have arrived yet.
                let waker = &pool.wakers[worker as usize];
                if at.sample.is_some() {
                    exchange.keep();
                }
                let _nothing = exchange.advance(waker, self.response_bytes_max);
                pool.exchanges[worker as usize] = Some((pooled, exchange));
            }
            _ => {
                self.left_stream(pooled);
                let now = self.clock.now;
                self.fail(worker, Class::Reset, now);
            }
        }
    }

    /// Counts a stream of the connection as closed.
    fn left_stream(&mut self, pooled: u32) {
        let Some(pool) = &mut self.pool else { return };
        pool.of(pooled).streams -= 1;
        // The connection must still send remaining frames, such as RST_STREAM.
        pool.dirty.push(pooled);
    }

    /// Cancels the worker's exchange, if it has one.
    pub(super) fn abandon(&mut self, worker: u32) {
        let Some(pool) = &mut self.pool else { return };
        let exchange = pool.exchanges.get_mut(worker as usize).and_then(Option::take);
        if let Some((pooled, _)) = exchange {
            self.left_stream(pooled);
        }
    }

    /// Returns true if a connection has data to send or to read.
    pub(super) fn has_dirty(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| !pool.dirty.is_empty())
    }

    /// Drives all dirty connections once, each up to its read limit.
    pub(super) fn drive_dirty(&mut self) {
        let Some(pool) = &mut self.pool else { return };
        // A connection that becomes dirty meanwhile is driven in the next turn.
        std::mem::swap(&mut pool.dirty, &mut pool.driven);
        while let Some(pooled) = self.pool.as_mut().and_then(|all| all.driven.pop()) {
            self.drive(pooled);
        }
    }

    /// Reads and writes on a connection and handles the responses.
    pub(super) fn drive(&mut self, pooled: u32) {
        let Some(pool) = &mut self.pool else { return };
        pool.dirty.retain(|&other| other != pooled);
        let uses_max = pool.uses_max;
        let Some(session) = &mut pool.of(pooled).session else { return };
        let driven = session.drive(&mut self.recorder.interval.traffic);
        self.advance_woken();
        let Some(pool) = &mut self.pool else { return };
        if driven == DriveResult::More {
            pool.dirty.push(pooled);
            self.clock.read();
        }
        let Some(pool) = &mut self.pool else { return };
        if driven == DriveResult::Ended {
            self.pooled_closed(pooled);
        } else if pool.of(pooled).streams == 0 && pool.of(pooled).uses >= uses_max {
            self.free_pooled(pooled);
        }
    }

    /// Advances the exchanges whose waker fired.
    fn advance_woken(&mut self) {
        loop {
            let Some(pool) = &mut self.pool else { return };
            let mut woken = std::mem::take(&mut *pool.woken.lock());
            if woken.is_empty() {
                return;
            }
            for worker in woken.drain(..) {
                self.advance(worker);
            }
        }
    }

    fn advance(&mut self, worker: u32) {
        let Some(pool) = &mut self.pool else { return };
        let waker = &pool.wakers[worker as usize];
        let Some((_, exchange)) = &mut pool.exchanges[worker as usize] else { return };
        let progress = exchange.advance(waker, self.response_bytes_max);
        let class = match progress {
            Progress::More => return,
            Progress::Broken => Some(Class::Reset),
            Progress::TooLong => Some(Class::Malformed),
            Progress::Whole { .. } => None,
        };
        let now = self.clock.read();
        let ended = pool.exchanges[worker as usize].take();
        let Some((pooled, exchange)) = ended else { return };
        self.left_stream(pooled);
        match (progress, class) {
            (_, Some(class)) => self.fail(worker, class, now),
            (Progress::Whole { status, retry_after }, None) => {
                self.judge(worker, status, exchange.received(), now);
                self.recorder.answer(status, retry_after);
                self.finish(worker, now);
            }
            _ => {}
        }
    }

    /// Fails all exchanges of a connection that the server closed.
    fn pooled_closed(&mut self, pooled: u32) {
        self.recorder.interval.traffic.closed_by_server += 1;
        let Some(pool) = &mut self.pool else { return };
        let on = |(worker, exchange): (usize, &Option<(u32, Exchange)>)| {
            exchange.as_ref().is_some_and(|(on, _)| *on == pooled).then_some(worker as u32)
        };
        let left: Vec<u32> = pool.exchanges.iter().enumerate().filter_map(on).collect();
        if pool.current == Some(pooled) {
            pool.current = None;
        }
        for worker in left {
            self.abandon(worker);
            let now = self.clock.read();
            self.fail(worker, Class::Reset, now);
        }
        self.free_pooled(pooled);
    }
}
