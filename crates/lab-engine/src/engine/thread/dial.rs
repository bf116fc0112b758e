//! Making and ending connections, for one thread.

use lab_model::record::Class;
use rustix::io::Errno;

use super::{DIAL, Doing, EngineThread};
use crate::engine::connection::{Connection, Phase};
use crate::engine::world::World;

/// How long a connection is kept that the server is about to close: whoever closes first is left
/// with a port in TIME_WAIT, and the generator has fewer of those than the server.
pub(super) const LEAVING_WAIT: u64 = 20_000_000;
/// Connections kept so; with more of them the oldest is closed at once.
pub(crate) const LEAVING_MAX: usize = 4096;

impl<W: World> EngineThread<W> {
    /// Begins to connect; the call is sent when that has come to an end.
    pub(super) fn dial(&mut self, worker: u32) {
        let now = self.clock.now;
        let at = &mut self.workers[worker as usize];
        (at.first, at.tried) = (self.address, 0);
        at.sent = now;
        at.doing = Doing::Dialing;
        self.waits.enter(DIAL, worker, now);
        self.dial_next(worker);
    }

    /// Tries the next address, up to the last.
    fn dial_next(&mut self, worker: u32) {
        let traffic = &mut self.ledger.interval.traffic;
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
        self.waits.leave(worker);
        let now = self.clock.read();
        self.fail(worker, Class::Connect, now);
    }

    /// An address that says nothing is not the first to be tried any more.
    pub(super) fn pass_over(&mut self, worker: u32) {
        let at = &self.workers[worker as usize];
        // Others may have waited for the same.
        if at.first == self.address {
            self.address = (at.first + at.tried + 1) % self.addresses.len();
        }
    }

    /// TCP says that it is connected, or that it cannot.
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
        self.ledger.interval.connect_time.saturating_record(now - connection.began);
        match connection.established(&self.peer, now) {
            Ok(()) if connection.phase == Phase::Open => self.opened(worker),
            Ok(()) => self.shake(worker),
            Err(_) => self.shaken_off(worker),
        }
    }

    /// Goes on with the TLS handshake.
    pub(super) fn shake(&mut self, worker: u32) {
        let at = &mut self.workers[worker as usize];
        let Some(connection) = &mut at.connection else { return };
        if connection.handshake(&mut self.ledger.interval.traffic).is_err() {
            return self.shaken_off(worker);
        }
        if connection.phase != Phase::Open {
            return;
        }
        if self.carriers.is_some() && !connection.agreed_on_http2() {
            return self.shaken_off(worker);
        }
        let (began, resumed) = (connection.connected, connection.resumed());
        let took = self.clock.read() - began;
        let interval = &mut self.ledger.interval;
        if resumed == Some(true) {
            interval.traffic.handshakes_resumed += 1;
            interval.handshake_resumed_time.saturating_record(took);
        } else {
            interval.traffic.handshakes_full += 1;
            interval.handshake_full_time.saturating_record(took);
        }
        self.opened(worker);
        // What the server has sent already will not be told of again.
        if self.workers[worker as usize].connection.is_some() {
            self.receive(worker, false);
        }
    }

    fn shaken_off(&mut self, worker: u32) {
        self.waits.leave(worker);
        self.ledger.interval.traffic.connections_failed += 1;
        self.close(worker);
        let now = self.clock.read();
        self.fail(worker, Class::Tls, now);
    }

    fn opened(&mut self, worker: u32) {
        self.waits.leave(worker);
        self.ledger.interval.traffic.connections += 1;
        if self.is_carrier(worker) {
            self.carrier_opened(worker);
        } else {
            self.transmit(worker);
        }
    }

    /// Ends a worker's connection now.
    pub(super) fn close(&mut self, worker: u32) {
        self.abandon(worker);
        if let Some(mut connection) = self.workers[worker as usize].connection.take() {
            connection.farewell(&mut self.ledger.interval.traffic);
        }
    }

    /// Ends a worker's connection, and leaves it to the server to close first.
    pub(super) fn leave(&mut self, worker: u32) {
        let Some(mut connection) = self.workers[worker as usize].connection.take() else { return };
        connection.farewell(&mut self.ledger.interval.traffic);
        // Its events would be void.
        if self.clock.world.unwatch(connection.socket()).is_ok() {
            if self.leaving.len() >= LEAVING_MAX {
                self.leaving.pop_front();
            }
            self.leaving.push_back((self.clock.now, connection));
        }
    }

    /// Closes the connections that were left long enough ago.
    pub(super) fn close_leaving(&mut self) {
        let long_ago =
            |&(since, _): &(u64, Connection<W::Socket>)| since + LEAVING_WAIT <= self.clock.now;
        while self.leaving.front().is_some_and(long_ago) {
            self.leaving.pop_front();
        }
    }
}
