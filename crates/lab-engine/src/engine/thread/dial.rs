//! Opening and closing the connections of one thread.

use lab_model::record::Class;
use rustix::io::Errno;

use super::{DIAL, EngineThread, WorkerState};
use crate::engine::connection::{Connection, Phase};
use crate::engine::world::World;

/// Maximum time until the server closes a connection after it announced the close, in nanoseconds.
/// The side that closes first keeps the port in TIME_WAIT, and the load generator has fewer ports
/// than the server.
pub(super) const DRAIN_WAIT: u64 = 20_000_000;
/// Maximum number of draining connections. Beyond it the oldest is closed at once.
pub(crate) const DRAINING_MAX: usize = 4096;

impl<W: World> EngineThread<W> {
    /// Starts to connect. The call is sent once the connection is open.
    pub(super) fn dial(&mut self, worker: u32) {
        let now = self.clock.now;
        let at = &mut self.workers[worker as usize];
        (at.first, at.tried) = (self.address, 0);
        at.sent = now;
        at.state = WorkerState::Dialing;
        self.deadlines.set(DIAL, worker, now);
        self.dial_next(worker);
    }

    /// Tries the remaining addresses in order.
    fn dial_next(&mut self, worker: u32) {
        let traffic = &mut self.recorder.interval.traffic;
        while self.workers[worker as usize].tried < self.addresses.len() {
            let at = &mut self.workers[worker as usize];
            let place = (at.first + at.tried) % self.addresses.len();
            match self.clock.world.connect(self.addresses[place]) {
                Ok(socket) => {
                    at.generation = at.generation.wrapping_add(1);
                    let token = u64::from(at.generation) << 32 | u64::from(worker);
                    if self.clock.world.watch(&socket, token).is_ok() {
                        at.connection = Some(Connection::new(socket, self.clock.now));
                        return;
                    }
                    break;
                }
                Err(error) => {
                    if error.raw_os_error() == Some(Errno::ADDRNOTAVAIL.raw_os_error()) {
                        traffic.ports_exhausted += 1;
                        break;
                    }
                    at.tried += 1;
                }
            }
        }
        traffic.connections_failed += 1;
        self.deadlines.remove(worker);
        let now = self.clock.read();
        self.fail(worker, Class::Connect, now);
    }

    /// Makes the next address the first to try, after this one timed out.
    pub(super) fn skip_address(&mut self, worker: u32) {
        let at = &self.workers[worker as usize];
        // Another worker may already have skipped this address.
        if at.first == self.address {
            self.address = (at.first + at.tried + 1) % self.addresses.len();
        }
    }

    /// Handles the result of a TCP connect.
    pub(super) fn connected(&mut self, worker: u32) {
        let now = self.clock.read();
        let at = &mut self.workers[worker as usize];
        let Some(connection) = &mut at.connection else { return };
        if connection.connect_fault().is_some() {
            at.connection = None;
            at.tried += 1;
            return self.dial_next(worker);
        }
        self.address = (at.first + at.tried) % self.addresses.len();
        self.recorder.interval.connect_time.saturating_record(now - connection.began);
        match connection.established(&self.peer, now) {
            Ok(()) if connection.phase == Phase::Open => self.opened(worker),
            Ok(()) => self.continue_handshake(worker),
            Err(_) => self.handshake_failed(worker),
        }
    }

    /// Continues the TLS handshake.
    pub(super) fn continue_handshake(&mut self, worker: u32) {
        let at = &mut self.workers[worker as usize];
        let Some(connection) = &mut at.connection else { return };
        if connection.handshake(&mut self.recorder.interval.traffic).is_err() {
            return self.handshake_failed(worker);
        }
        if connection.phase != Phase::Open {
            return;
        }
        if self.pool.is_some() && !connection.agreed_on_http2() {
            return self.handshake_failed(worker);
        }
        let (began, resumed) = (connection.connected, connection.resumed());
        let took = self.clock.read() - began;
        let interval = &mut self.recorder.interval;
        if resumed == Some(true) {
            interval.traffic.handshakes_resumed += 1;
            interval.handshake_resumed_time.saturating_record(took);
        } else {
            interval.traffic.handshakes_full += 1;
            interval.handshake_full_time.saturating_record(took);
        }
        self.opened(worker);
        // The server may have sent data already, and no further event reports it.
        if self.workers[worker as usize].connection.is_some() {
            self.receive(worker, false);
        }
    }

    fn handshake_failed(&mut self, worker: u32) {
        self.deadlines.remove(worker);
        self.recorder.interval.traffic.connections_failed += 1;
        self.close(worker);
        let now = self.clock.read();
        self.fail(worker, Class::Tls, now);
    }

    fn opened(&mut self, worker: u32) {
        self.deadlines.remove(worker);
        self.recorder.interval.traffic.connections += 1;
        if self.is_pooled(worker) {
            self.pooled_opened(worker);
        } else {
            self.transmit(worker);
        }
    }

    /// Closes a worker's connection now.
    pub(super) fn close(&mut self, worker: u32) {
        self.abandon(worker);
        if let Some(mut connection) = self.workers[worker as usize].connection.take() {
            connection.close_notify(&mut self.recorder.interval.traffic);
        }
    }

    /// Detaches a worker's connection and gives the server time to close it first.
    pub(super) fn drain(&mut self, worker: u32) {
        let Some(mut connection) = self.workers[worker as usize].connection.take() else { return };
        connection.close_notify(&mut self.recorder.interval.traffic);
        // Its events have no receiver any more.
        if self.clock.world.unwatch(connection.socket()).is_ok() {
            if self.draining.len() >= DRAINING_MAX {
                self.draining.pop_front();
            }
            self.draining.push_back((self.clock.now, connection));
        }
    }

    /// Closes the connections whose drain time is over.
    pub(super) fn close_drained(&mut self) {
        let long_ago =
            |&(since, _): &(u64, Connection<W::Socket>)| since + DRAIN_WAIT <= self.clock.now;
        while self.draining.front().is_some_and(long_ago) {
            self.draining.pop_front();
        }
    }
}
