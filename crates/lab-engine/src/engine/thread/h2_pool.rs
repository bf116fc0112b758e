//! The HTTP/2 connections of one thread. Workers (k6: VUs) share the connections, and each worker
//! uses one stream at a time.
//!
//! Each connection has an additional entry in the list of workers, with an id above the ids of the
//! real workers. So connects and TLS handshakes use the same code as for HTTP/1.1. An exchange is a
//! request with its response, on one stream. A connection is dirty if it has data to send or to
//! read. To drive a connection is to read and write on it and to handle its responses.

use std::sync::Arc;
use std::task::Waker;

use http::Request;
use lab_model::plan::{HttpVersion, Plan, Reuse};
use lab_model::record::Class;
use parking_lot::Mutex;

use super::{EngineThread, RESPONSE_QUEUE, WorkerState};
use crate::engine::EngineFault;
use crate::engine::http2::{self, DriveResult, Exchange, Progress, Session, WorkerWaker};
use crate::engine::world::{Socket, World};

/// Maximum number of times that a request is sent again because the server has not processed it. A
/// server that restarts may send GOAWAY on a few connections in a row.
const RETRIES_MAX: u32 = 4;

/// Connection pool of one thread.
pub(super) struct H2Pool<S> {
    /// Id of the first connection: the number of real workers.
    first_id: u32,
    /// The index is the id of the connection minus `first_id`.
    connections: Vec<PooledConnection<S>>,
    /// Ids without a connection.
    free_ids: Vec<u32>,
    /// Id of the connection that gets new streams; `None` if the next call opens a connection.
    current: Option<u32>,
    /// For each worker: the id of its connection, and its exchange in flight. `None` if it has no
    /// exchange in flight.
    exchanges: Vec<Option<(u32, Exchange)>>,
    /// For each worker: the waker that adds the worker to `woken`.
    wakers: Vec<Waker>,
    /// Workers whose exchange can advance.
    woken: Arc<Mutex<Vec<u32>>>,
    /// Ids of the dirty connections.
    dirty: Vec<u32>,
    /// The dirty connections that the current call of [`EngineThread::drive_dirty`] must still
    /// drive.
    driving: Vec<u32>,
    /// URI and header fields of every request.
    head: Request<()>,
    /// Maximum number of exchanges on a connection.
    uses_max: u32,
}

/// A connection of the pool, or an unused id.
struct PooledConnection<S> {
    /// `None` until the connection is open.
    session: Option<Session<S>>,
    /// Workers that wait until the connection is open.
    waiting: Vec<u32>,
    /// Number of open streams.
    streams: u32,
    /// Number of exchanges so far, including the exchanges that wait for the connection.
    uses: u32,
}

/// Returns the number of connection ids that this many workers need. A worker may need two at once:
/// with one connection per exchange, it can start an exchange before its previous connection is
/// freed.
pub(super) const fn pooled_max(workers: usize) -> usize {
    2 * workers + 1
}

impl<S> Default for PooledConnection<S> {
    fn default() -> PooledConnection<S> {
        PooledConnection { session: None, waiting: Vec::new(), streams: 0, uses: 0 }
    }
}

impl<S: Socket> H2Pool<S> {
    /// Creates an empty pool, or returns `None` if the plan does not use HTTP/2.
    pub(super) fn new(plan: &Plan, workers: usize) -> Result<Option<H2Pool<S>>, EngineFault> {
        if plan.connections.http != HttpVersion::Http2 || plan.target.is_websocket() {
            return Ok(None);
        }
        let woken = Arc::default();
        let first_id = workers as u32;
        let connection_count = pooled_max(workers) as u32;
        Ok(Some(H2Pool {
            first_id,
            connections: (0..connection_count).map(|_| PooledConnection::default()).collect(),
            free_ids: (first_id..first_id + connection_count).rev().collect(),
            current: None,
            exchanges: (0..workers).map(|_| None).collect(),
            wakers: (0..first_id).map(|worker_id| WorkerWaker::waker(worker_id, &woken)).collect(),
            woken,
            dirty: Vec::new(),
            driving: Vec::new(),
            head: http2::build_head(&plan.target)?,
            uses_max: match plan.connections.reuse {
                Reuse::Always => u32::MAX,
                Reuse::Never => 1,
                Reuse::Requests(requests_max) => requests_max.max(1),
            },
        }))
    }

    /// Returns the connection with this id.
    fn connection(&mut self, pooled_id: u32) -> &mut PooledConnection<S> {
        &mut self.connections[(pooled_id - self.first_id) as usize]
    }

    /// Counts one more exchange on the current connection and returns the connection's id. Returns
    /// `None` if the connection cannot take another exchange.
    fn reserve_current(&mut self) -> Option<u32> {
        let (current, uses_max) = (self.current?, self.uses_max);
        let connection = self.connection(current);
        let is_usable = connection.session.as_mut().is_none_or(Session::is_usable);
        if is_usable && connection.uses < uses_max {
            connection.uses += 1;
            return Some(current);
        }
        self.current = None;
        None
    }
}

impl<W: World> EngineThread<W> {
    /// Returns true if the id belongs to a pooled connection.
    pub(super) fn is_pooled(&self, id: u32) -> bool {
        self.pool.as_ref().is_some_and(|pool| id >= pool.first_id)
    }

    /// Sends a worker's call on a shared connection, or queues it until one is open.
    pub(super) fn send_pooled(&mut self, worker_id: u32) {
        let worker = &mut self.workers[worker_id as usize];
        worker.state = WorkerState::Dialing;
        worker.sent_at = self.clock.now;
        let Some(pool) = &mut self.pool else { return };
        if let Some(pooled_id) = pool.reserve_current() {
            if pool.connection(pooled_id).session.is_some() {
                self.open_stream(worker_id, pooled_id);
            } else {
                pool.connection(pooled_id).waiting.push(worker_id);
            }
        } else if let Some(pooled_id) = pool.free_ids.pop() {
            pool.current = Some(pooled_id);
            let connection = pool.connection(pooled_id);
            connection.uses = 1;
            connection.waiting.push(worker_id);
            self.dial(pooled_id);
        } else {
            // With `pooled_max` ids this cannot happen. A failed call is better than a call that
            // never ends.
            let now = self.clock.now;
            self.fail_request(worker_id, Class::Connect, now);
        }
    }

    /// Starts HTTP/2 on a connected socket and sends the waiting calls.
    pub(super) fn on_pooled_opened(&mut self, pooled_id: u32) {
        self.workers[pooled_id as usize].state = WorkerState::Idle;
        let connection = self.workers[pooled_id as usize].connection.take();
        let Some(pool) = &mut self.pool else { return };
        let session = connection.and_then(|connection| Session::handshake(connection).ok());
        if session.is_none() {
            self.recorder.interval.traffic.connections_failed += 1;
            let now = self.clock.read();
            return self.on_pooled_connect_failed(pooled_id, Class::Connect, now);
        }
        pool.connection(pooled_id).session = session;
        pool.dirty.push(pooled_id);
        for worker_id in std::mem::take(&mut pool.connection(pooled_id).waiting) {
            // A worker that was interrupted meanwhile no longer waits.
            if self.workers[worker_id as usize].state == WorkerState::Dialing {
                self.open_stream(worker_id, pooled_id);
            }
        }
    }

    /// Fails all calls that waited for a connection that could not be opened.
    pub(super) fn on_pooled_connect_failed(&mut self, pooled_id: u32, class: Class, ended_at: u64) {
        self.workers[pooled_id as usize].state = WorkerState::Idle;
        let Some(pool) = &mut self.pool else { return };
        let waiting = std::mem::take(&mut pool.connection(pooled_id).waiting);
        self.release_pooled(pooled_id);
        for worker_id in waiting {
            if self.workers[worker_id as usize].state == WorkerState::Dialing {
                self.fail_request(worker_id, class, ended_at);
            }
        }
    }

    /// Drops a pooled connection and frees its id.
    fn release_pooled(&mut self, pooled_id: u32) {
        let Some(pool) = &mut self.pool else { return };
        *pool.connection(pooled_id) = PooledConnection::default();
        pool.free_ids.push(pooled_id);
        if pool.current == Some(pooled_id) {
            pool.current = None;
        }
        // The token of an event has the generation (number) of its connection. With a new
        // generation, events of the dropped connection are ignored.
        let worker = &mut self.workers[pooled_id as usize];
        worker.generation = worker.generation.wrapping_add(1);
    }

    /// Opens a stream for the worker's call.
    fn open_stream(&mut self, worker_id: u32, pooled_id: u32) {
        let worker = &mut self.workers[worker_id as usize];
        worker.compose(&mut self.composer);
        worker.sent_at = self.clock.read();
        worker.state = WorkerState::AwaitingResponse;
        self.gauges.in_flight += worker.request.calls as u64;
        self.deadlines.set(RESPONSE_QUEUE, worker_id, worker.sent_at);
        let Some(pool) = &mut self.pool else { return };
        let head = pool.head.clone();
        let connection = pool.connection(pooled_id);
        connection.streams += 1;
        let exchange = connection
            .session
            .as_mut()
            .map(|session| session.send_request(&head, self.composer.request_body()));
        pool.dirty.push(pooled_id);
        match exchange {
            Some(Ok(mut exchange)) => {
                // This poll registers the waker. No response can have arrived yet.
                let waker = &pool.wakers[worker_id as usize];
                if worker.sample.is_some() {
                    exchange.store_body();
                }
                let _nothing = exchange.advance(waker, self.response_bytes_max);
                pool.exchanges[worker_id as usize] = Some((pooled_id, exchange));
            }
            // The connection takes no further requests, so nothing was sent.
            _ => {
                self.on_stream_closed(pooled_id);
                self.retry(worker_id);
            }
        }
    }

    /// Sends a request again that the server has not processed. Fails the request if it was sent too
    /// often.
    fn retry(&mut self, worker_id: u32) {
        let worker = &mut self.workers[worker_id as usize];
        if worker.retries >= RETRIES_MAX {
            let now = self.clock.now;
            return self.fail_request(worker_id, Class::Reset, now);
        }
        worker.retries += 1;
        self.recorder.interval.traffic.retried += 1;
        self.gauges.in_flight -= worker.request.calls as u64;
        self.deadlines.remove(worker_id);
        self.send_pooled(worker_id);
    }

    /// Decrements the connection's number of open streams.
    fn on_stream_closed(&mut self, pooled_id: u32) {
        let Some(pool) = &mut self.pool else { return };
        pool.connection(pooled_id).streams -= 1;
        // The connection must still send remaining frames, such as RST_STREAM.
        pool.dirty.push(pooled_id);
    }

    /// Cancels the worker's exchange, if it has one.
    pub(super) fn cancel_exchange(&mut self, worker_id: u32) {
        let Some(pool) = &mut self.pool else { return };
        let exchange = pool.exchanges.get_mut(worker_id as usize).and_then(Option::take);
        if let Some((pooled_id, _)) = exchange {
            self.on_stream_closed(pooled_id);
        }
    }

    /// Returns true if a connection has data to send or to read.
    pub(super) fn has_dirty(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| !pool.dirty.is_empty())
    }

    /// Drives all dirty connections once, each up to its read limit.
    pub(super) fn drive_dirty(&mut self) {
        let Some(pool) = &mut self.pool else { return };
        // The next call of this function drives the connections that become dirty meanwhile.
        std::mem::swap(&mut pool.dirty, &mut pool.driving);
        while let Some(pooled_id) = self.pool.as_mut().and_then(|pool| pool.driving.pop()) {
            self.drive(pooled_id);
        }
    }

    /// Reads and writes on a connection and handles the responses.
    pub(super) fn drive(&mut self, pooled_id: u32) {
        let Some(pool) = &mut self.pool else { return };
        pool.dirty.retain(|&other| other != pooled_id);
        let uses_max = pool.uses_max;
        let Some(session) = &mut pool.connection(pooled_id).session else { return };
        let result = session.drive(&mut self.recorder.interval.traffic);
        self.advance_woken();
        let Some(pool) = &mut self.pool else { return };
        if result == DriveResult::More {
            pool.dirty.push(pooled_id);
            self.clock.read();
        }
        let Some(pool) = &mut self.pool else { return };
        if result == DriveResult::Ended {
            self.on_pooled_closed(pooled_id);
        } else if pool.connection(pooled_id).streams == 0
            && pool.connection(pooled_id).uses >= uses_max
        {
            self.release_pooled(pooled_id);
        }
    }

    /// Advances the exchanges whose waker was called.
    fn advance_woken(&mut self) {
        loop {
            let Some(pool) = &mut self.pool else { return };
            let mut woken = std::mem::take(&mut *pool.woken.lock());
            if woken.is_empty() {
                return;
            }
            for worker_id in woken.drain(..) {
                self.advance(worker_id);
            }
        }
    }

    /// Reads the available part of a worker's response, and finishes the request at its end.
    fn advance(&mut self, worker_id: u32) {
        let Some(pool) = &mut self.pool else { return };
        let waker = &pool.wakers[worker_id as usize];
        let Some((_, exchange)) = &mut pool.exchanges[worker_id as usize] else { return };
        let progress = exchange.advance(waker, self.response_bytes_max);
        if progress == Progress::Incomplete {
            self.workers[worker_id as usize].advanced_in_turn = self.lateness.polled_at;
            return;
        }
        let now = self.clock.read();
        let exchange = pool.exchanges[worker_id as usize].take();
        let Some((pooled_id, exchange)) = exchange else { return };
        self.on_stream_closed(pooled_id);
        match progress {
            Progress::Incomplete => {}
            Progress::Unprocessed => self.retry(worker_id),
            Progress::Broken => self.fail_request(worker_id, Class::Reset, now),
            Progress::TooLong => self.fail_request(worker_id, Class::Malformed, now),
            Progress::Complete { status, retry_after } => {
                self.classify_response(worker_id, status, exchange.received(), now);
                self.recorder.record_response(status, retry_after);
                self.finish_request(worker_id, now);
            }
        }
    }

    /// Fails all exchanges of a connection that the server closed.
    fn on_pooled_closed(&mut self, pooled_id: u32) {
        self.recorder.interval.traffic.closed_by_server += 1;
        let Some(pool) = &mut self.pool else { return };
        let worker_on_connection = |(worker_id, exchange): (usize, &Option<(u32, Exchange)>)| {
            let used_id = exchange.as_ref().map(|(id, _)| *id);
            (used_id == Some(pooled_id)).then_some(worker_id as u32)
        };
        let workers: Vec<u32> =
            pool.exchanges.iter().enumerate().filter_map(worker_on_connection).collect();
        if pool.current == Some(pooled_id) {
            pool.current = None;
        }
        for worker_id in workers {
            self.cancel_exchange(worker_id);
            let now = self.clock.read();
            self.fail_request(worker_id, Class::Reset, now);
        }
        self.release_pooled(pooled_id);
    }
}
