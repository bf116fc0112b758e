//! Opens and closes the connections of one thread. Over HTTP/1.1 and WebSockets, each worker (k6:
//! VU) has its own connection. Over HTTP/2, workers share pooled connections (`h2_pool.rs`). A
//! draining connection no longer belongs to a worker. The thread keeps it open for a moment, so
//! that the server can close it first.

use lab_model::record::Class;
use rustix::io::Errno;

use super::{DIAL_QUEUE, EngineThread, WorkerState};
use crate::engine::connection::{Connection, Phase};
use crate::engine::world::{Socket as _, World};

/// Maximum time that the thread waits for the server to close a connection first. The side that
/// closes first keeps the connection in TIME_WAIT. If the load generator always closed first, it
/// would run out of local ports.
pub(super) const DRAIN_WAIT_NS: u64 = 20_000_000;
/// Maximum number of draining connections of a thread. Beyond this number the thread closes the
/// oldest one at once.
pub(crate) const DRAINING_MAX: usize = 4096;

impl<W: World> EngineThread<W> {
    /// Starts to open a connection for a worker. The worker's call is sent once the connection is
    /// open.
    pub(super) fn dial(&mut self, worker_id: u32) {
        let now = self.clock.now;
        let worker = &mut self.workers[worker_id as usize];
        (worker.first_address, worker.addresses_failed) = (self.preferred_address, 0);
        worker.sent_at = now;
        worker.state = WorkerState::Dialing;
        self.deadlines.set(DIAL_QUEUE, worker_id, now);
        self.dial_next(worker_id);
    }

    /// Starts a connect to the next address that the worker has not tried since
    /// [`EngineThread::dial`]. Fails the call if no address is left, if no local port is free, or
    /// if the socket cannot be watched.
    fn dial_next(&mut self, worker_id: u32) {
        let traffic = &mut self.recorder.interval.traffic;
        while self.workers[worker_id as usize].addresses_failed < self.addresses.len() {
            let worker = &mut self.workers[worker_id as usize];
            let index = (worker.first_address + worker.addresses_failed) % self.addresses.len();
            match self.clock.world.connect(self.addresses[index]) {
                Ok(socket) => {
                    worker.generation = worker.generation.wrapping_add(1);
                    // `handle_event` splits the token again. The generation is the number of the
                    // connection, counted per worker.
                    let token = u64::from(worker.generation) << 32 | u64::from(worker_id);
                    if self.clock.world.watch(&socket, token).is_ok() {
                        worker.connection = Some(Connection::new(socket, self.clock.now));
                        return;
                    }
                    break;
                }
                Err(error) => {
                    if error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error()) {
                        traffic.ports_exhausted += 1;
                        break;
                    }
                    worker.addresses_failed += 1;
                }
            }
        }
        traffic.connections_failed += 1;
        self.deadlines.remove(worker_id);
        let now = self.clock.read();
        self.fail_request(worker_id, Class::Connect, now);
    }

    /// Makes later connects start with the next address. The caller calls this function after the
    /// worker's connect to the current address timed out.
    pub(super) fn skip_address(&mut self, worker_id: u32) {
        let worker = &self.workers[worker_id as usize];
        // Another worker may have skipped this address already.
        if worker.first_address == self.preferred_address {
            self.preferred_address =
                (worker.first_address + worker.addresses_failed + 1) % self.addresses.len();
        }
    }

    /// Handles the end of a TCP connect: starts TLS, sends the call, or tries the next address.
    pub(super) fn on_connected(&mut self, worker_id: u32) {
        let now = self.clock.read();
        let worker = &mut self.workers[worker_id as usize];
        let Some(connection) = &mut worker.connection else { return };
        if connection.socket().connect_fault().is_some() {
            worker.connection = None;
            worker.addresses_failed += 1;
            return self.dial_next(worker_id);
        }
        self.preferred_address =
            (worker.first_address + worker.addresses_failed) % self.addresses.len();
        self.recorder.interval.connect_time.saturating_record(now - connection.connect_started);
        match connection.start_tls(&self.peer, now) {
            Ok(()) if connection.phase == Phase::Open => self.on_opened(worker_id),
            Ok(()) => self.continue_handshake(worker_id),
            Err(_) => self.on_handshake_failed(worker_id),
        }
    }

    /// Continues the TLS handshake. Sends the call once the handshake is complete.
    pub(super) fn continue_handshake(&mut self, worker_id: u32) {
        let worker = &mut self.workers[worker_id as usize];
        let Some(connection) = &mut worker.connection else { return };
        if connection.handshake(&mut self.recorder.interval.traffic).is_err() {
            return self.on_handshake_failed(worker_id);
        }
        if connection.phase != Phase::Open {
            return;
        }
        if self.pool.is_some() && !connection.agreed_on_http2() {
            return self.on_handshake_failed(worker_id);
        }
        let (handshake_started, resumed) = (connection.connected, connection.resumed());
        let elapsed_ns = self.clock.read() - handshake_started;
        let interval = &mut self.recorder.interval;
        if resumed == Some(true) {
            interval.traffic.handshakes_resumed += 1;
            interval.handshake_resumed_time.saturating_record(elapsed_ns);
        } else {
            interval.traffic.handshakes_full += 1;
            interval.handshake_full_time.saturating_record(elapsed_ns);
        }
        self.on_opened(worker_id);
        // The handshake may have read data of the server from the socket already. No further event
        // reports this data.
        if self.workers[worker_id as usize].connection.is_some() {
            self.receive(worker_id, false);
        }
    }

    /// Fails the call of a worker whose TLS handshake failed.
    fn on_handshake_failed(&mut self, worker_id: u32) {
        self.deadlines.remove(worker_id);
        self.recorder.interval.traffic.connections_failed += 1;
        self.close_connection(worker_id);
        let now = self.clock.read();
        self.fail_request(worker_id, Class::Tls, now);
    }

    /// Uses a connection after the TCP connect and the TLS handshake: opens the WebSocket, starts
    /// HTTP/2, or sends the call.
    fn on_opened(&mut self, worker_id: u32) {
        if self.websocket.is_some() {
            return self.start_upgrade(worker_id);
        }
        self.deadlines.remove(worker_id);
        self.recorder.interval.traffic.connections += 1;
        if self.is_pooled(worker_id) {
            self.on_pooled_opened(worker_id);
        } else {
            self.transmit(worker_id);
        }
    }

    /// Closes a worker's connection at once.
    pub(super) fn close_connection(&mut self, worker_id: u32) {
        self.cancel_exchange(worker_id);
        self.send_close(worker_id);
        if let Some(mut connection) = self.workers[worker_id as usize].connection.take() {
            connection.close_notify(&mut self.recorder.interval.traffic);
        }
    }

    /// Takes a connection from its worker and gives the server time to close it first.
    pub(super) fn drain_connection(&mut self, worker_id: u32) {
        self.send_close(worker_id);
        let Some(mut connection) = self.workers[worker_id as usize].connection.take() else {
            return;
        };
        connection.close_notify(&mut self.recorder.interval.traffic);
        // The connection no longer belongs to a worker, so its events must stop.
        if self.clock.world.unwatch(connection.socket()).is_ok() {
            if self.draining.len() >= DRAINING_MAX {
                self.draining.pop_front();
            }
            self.draining.push_back((self.clock.now, connection));
        }
    }

    /// Closes the draining connections that have waited for [`DRAIN_WAIT_NS`].
    pub(super) fn close_drained(&mut self) {
        let is_over =
            |&(since, _): &(u64, Connection<W::Socket>)| since + DRAIN_WAIT_NS <= self.clock.now;
        while self.draining.front().is_some_and(is_over) {
            self.draining.pop_front();
        }
    }
}
