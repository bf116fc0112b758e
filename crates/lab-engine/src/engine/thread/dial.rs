//! Opens and closes the connections of one thread.

use lab_model::record::Class;
use rustix::io::Errno;

use super::{DIAL_QUEUE, EngineThread, WorkerState};
use crate::engine::connection::{Connection, Phase};
use crate::engine::world::{Socket as _, World};

/// Maximum time until the server closes a connection after it announced the close, in nanoseconds.
/// The side that closes first keeps the port in TIME_WAIT, and the load generator has fewer ports
/// than the server.
pub(super) const DRAIN_WAIT: u64 = 20_000_000;
/// Maximum number of draining connections. Beyond it the oldest is closed at once.
pub(crate) const DRAINING_MAX: usize = 4096;

impl<W: World> EngineThread<W> {
    /// Starts to connect. The call is sent once the connection is open.
    pub(super) fn dial(&mut self, worker_id: u32) {
        let now = self.clock.now;
        let worker = &mut self.workers[worker_id as usize];
        (worker.first_address, worker.tried) = (self.address, 0);
        worker.sent = now;
        worker.state = WorkerState::Dialing;
        self.deadlines.set(DIAL_QUEUE, worker_id, now);
        self.dial_next(worker_id);
    }

    /// Tries the remaining addresses in order.
    fn dial_next(&mut self, worker_id: u32) {
        let traffic = &mut self.recorder.interval.traffic;
        while self.workers[worker_id as usize].tried < self.addresses.len() {
            let worker = &mut self.workers[worker_id as usize];
            let index = (worker.first_address + worker.tried) % self.addresses.len();
            match self.clock.world.connect(self.addresses[index]) {
                Ok(socket) => {
                    worker.generation = worker.generation.wrapping_add(1);
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
                    worker.tried += 1;
                }
            }
        }
        traffic.connections_failed += 1;
        self.deadlines.remove(worker_id);
        let now = self.clock.read();
        self.fail(worker_id, Class::Connect, now);
    }

    /// Makes the next address the first to try, after this one timed out.
    pub(super) fn skip_address(&mut self, worker_id: u32) {
        let worker = &self.workers[worker_id as usize];
        // Another worker may already have skipped this address.
        if worker.first_address == self.address {
            self.address = (worker.first_address + worker.tried + 1) % self.addresses.len();
        }
    }

    /// Handles the result of a TCP connect.
    pub(super) fn connected(&mut self, worker_id: u32) {
        let now = self.clock.read();
        let worker = &mut self.workers[worker_id as usize];
        let Some(connection) = &mut worker.connection else { return };
        if connection.socket().connect_fault().is_some() {
            worker.connection = None;
            worker.tried += 1;
            return self.dial_next(worker_id);
        }
        self.address = (worker.first_address + worker.tried) % self.addresses.len();
        self.recorder.interval.connect_time.saturating_record(now - connection.connect_started);
        match connection.start_tls(&self.peer, now) {
            Ok(()) if connection.phase == Phase::Open => self.opened(worker_id),
            Ok(()) => self.continue_handshake(worker_id),
            Err(_) => self.handshake_failed(worker_id),
        }
    }

    /// Continues the TLS handshake.
    pub(super) fn continue_handshake(&mut self, worker_id: u32) {
        let worker = &mut self.workers[worker_id as usize];
        let Some(connection) = &mut worker.connection else { return };
        if connection.handshake(&mut self.recorder.interval.traffic).is_err() {
            return self.handshake_failed(worker_id);
        }
        if connection.phase != Phase::Open {
            return;
        }
        if self.pool.is_some() && !connection.agreed_on_http2() {
            return self.handshake_failed(worker_id);
        }
        let (handshake_started, resumed) = (connection.connected, connection.resumed());
        let elapsed = self.clock.read() - handshake_started;
        let interval = &mut self.recorder.interval;
        if resumed == Some(true) {
            interval.traffic.handshakes_resumed += 1;
            interval.handshake_resumed_time.saturating_record(elapsed);
        } else {
            interval.traffic.handshakes_full += 1;
            interval.handshake_full_time.saturating_record(elapsed);
        }
        self.opened(worker_id);
        // The server may have sent data already, and no further event reports it.
        if self.workers[worker_id as usize].connection.is_some() {
            self.receive(worker_id, false);
        }
    }

    fn handshake_failed(&mut self, worker_id: u32) {
        self.deadlines.remove(worker_id);
        self.recorder.interval.traffic.connections_failed += 1;
        self.close(worker_id);
        let now = self.clock.read();
        self.fail(worker_id, Class::Tls, now);
    }

    fn opened(&mut self, worker_id: u32) {
        if self.websocket.is_some() {
            return self.start_upgrade(worker_id);
        }
        self.deadlines.remove(worker_id);
        self.recorder.interval.traffic.connections += 1;
        if self.is_pooled(worker_id) {
            self.pooled_opened(worker_id);
        } else {
            self.transmit(worker_id);
        }
    }

    /// Closes a worker's connection now.
    pub(super) fn close(&mut self, worker_id: u32) {
        self.abandon(worker_id);
        self.send_close(worker_id);
        if let Some(mut connection) = self.workers[worker_id as usize].connection.take() {
            connection.close_notify(&mut self.recorder.interval.traffic);
        }
    }

    /// Detaches a worker's connection and gives the server time to close it first.
    pub(super) fn drain(&mut self, worker_id: u32) {
        self.send_close(worker_id);
        let Some(mut connection) = self.workers[worker_id as usize].connection.take() else {
            return;
        };
        connection.close_notify(&mut self.recorder.interval.traffic);
        // Its events no longer belong to a worker.
        if self.clock.world.unwatch(connection.socket()).is_ok() {
            if self.draining.len() >= DRAINING_MAX {
                self.draining.pop_front();
            }
            self.draining.push_back((self.clock.now, connection));
        }
    }

    /// Closes the connections whose drain time is over.
    pub(super) fn close_drained(&mut self) {
        let is_over =
            |&(since, _): &(u64, Connection<W::Socket>)| since + DRAIN_WAIT <= self.clock.now;
        while self.draining.front().is_some_and(is_over) {
            self.draining.pop_front();
        }
    }
}
