//! Samples the target's connections, from the kernel's socket table. Counts inbound connections
//! that wait until the target accepts them, reads a request or responds. Counts outbound
//! connections on which the target waits for an upstream server.
//!
//! An inbound connection on which the target owes a response stands for a call in the target. An
//! outbound connection that awaits a response stands for a call that waits for an upstream server.
//! By Little's law, the number of waiting calls divided by the number of calls in the target is the
//! share of time that the target waits for upstream servers. Both numbers are too low if a
//! connection carries several calls at once (HTTP/2). A connection is unclear if its times do not
//! show which side must act next.
//!
//! `host.rs` explains `host!`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lab_model::metrics::host::host;
use lab_model::results::run::{ProcessRole, UpstreamFacts};

use super::pace::Pace;
use super::process::Processes;
use super::sockets::{Socket, State};
use super::values::{Values, float, share};
use super::{find, sockets, text};

/// Shortest interval between two readings of all sockets.
const INTERVAL_MIN: Duration = Duration::from_millis(250);
/// Reading all sockets uses at most 1/`CPU_DIVISOR` of a core.
const CPU_DIVISOR: u32 = 300;
/// Shortest interval between two searches for processes of the target.
const SEARCH_INTERVAL_MIN: Duration = Duration::from_secs(5);
/// Maximum number of upstream servers of the target that are reported.
const UPSTREAMS_MAX: usize = 16;

/// State of the target's connections.
#[derive(Debug)]
pub(super) struct TargetSockets {
    target: SocketAddr,
    /// True if the target runs on this host.
    local: bool,
    /// Decides when all sockets are read.
    pace: Pace,
    /// Decides when the next search for processes of the target is due.
    search_pace: Pace,
    /// First and last port of the ephemeral range.
    ports: (u16, u16),
    /// Upstream servers of the target by address.
    upstreams: BTreeMap<SocketAddr, Upstream>,
    /// Number of readings of the target's outbound connections.
    readings: f64,
    /// True if the kernel reports when sockets last sent and received.
    has_times: bool,
    /// True if sockets can be read.
    pub(super) readable: bool,
}

/// A server to which the target has connections.
#[derive(Debug, Default)]
struct Upstream {
    /// Name of the server's process; `None` if the process is unknown or on another host.
    process: Option<String>,
    /// Number of connections that await a response, summed over readings.
    waiting: f64,
}

impl TargetSockets {
    pub(super) fn new(target: SocketAddr, local: bool) -> TargetSockets {
        TargetSockets {
            target: SocketAddr::new(target.ip().to_canonical(), target.port()),
            local,
            pace: Pace::new(INTERVAL_MIN, CPU_DIVISOR),
            search_pace: Pace::new(SEARCH_INTERVAL_MIN, CPU_DIVISOR),
            ports: read_port_range(),
            upstreams: BTreeMap::new(),
            readings: 0.0,
            has_times: false,
            readable: true,
        }
    }

    /// If a reading is due, reads all sockets, adds their values, and searches for processes of the
    /// target.
    pub(super) fn sample(&mut self, now: Instant, processes: &mut Processes, values: &mut Values) {
        if !self.pace.is_due(now) {
            return;
        }
        let started = Instant::now();
        let Ok(sockets) = sockets::read_all() else {
            self.readable = false;
            self.pace.record(started, Instant::now());
            return;
        };
        let mut search_duration = Duration::ZERO;
        self.add_ports(&sockets, values);
        self.add_round_trips(&sockets, values);
        if self.local {
            let search_started = Instant::now();
            self.search(now, &sockets, processes);
            search_duration = search_started.elapsed();
            self.add_inbound(&sockets, values);
            let own_inodes = find::read_socket_inodes(std::process::id());
            self.add_other_clients(&sockets, &own_inodes, values);
            self.add_outbound(&sockets, processes, values);
        }
        // The search has its own interval, so its duration does not count as cost of this reading.
        self.pace.record(started + search_duration, Instant::now());
    }

    /// If a search is due, watches all processes that listen at the target's address.
    fn search(&mut self, now: Instant, sockets: &[Socket], processes: &mut Processes) {
        if !self.search_pace.is_due(now) {
            return;
        }
        let started = Instant::now();
        for pid in find::find_holders(&find::find_listeners(sockets, self.target)) {
            processes.add(pid, ProcessRole::Target);
        }
        self.search_pace.record(started, Instant::now());
    }

    /// Adds the number of ephemeral local ports that connections to the target use.
    fn add_ports(&self, sockets: &[Socket], values: &mut Values) {
        let (first, last) = self.ports;
        let uses_port = |socket: &&Socket| {
            socket.remote == self.target && (first..=last).contains(&socket.local.port())
        };
        let used = count(sockets.iter().filter(uses_port));
        values.add(host!("ports_used"), used);
        let available = f64::from(last.saturating_sub(first)) + 1.0;
        values.add(host!("ports_share"), share(used, available));
    }

    /// Adds the mean round-trip time of this host's connections to the target. A queue on the way to
    /// the target makes it longer.
    fn add_round_trips(&self, sockets: &[Socket], values: &mut Values) {
        let used = sockets.iter().filter(|socket| {
            socket.remote == self.target && socket.state == State::Established && socket.is_in_use()
        });
        let times: Vec<f64> = used
            .filter_map(|socket| socket.round_trip)
            .map(|time| time.as_secs_f64() * 1e3)
            .collect();
        if !times.is_empty() {
            values
                .add(host!("target.round_trip_ms"), times.iter().sum::<f64>() / times.len() as f64);
        }
    }

    /// Adds the number of connections of other clients to the target that are in use. `own_inodes` are
    /// the inodes of this process's sockets. A target in this process has both ends of each
    /// connection, so it has no other clients.
    fn add_other_clients(
        &self,
        sockets: &[Socket],
        own_inodes: &BTreeSet<u64>,
        values: &mut Values,
    ) {
        let is_own = |socket: &&Socket| own_inodes.contains(&socket.inode);
        let own: BTreeSet<SocketAddr> =
            sockets.iter().filter(is_own).map(|socket| socket.local).collect();
        let others = sockets.iter().filter(|socket| {
            socket.local == self.target
                && socket.state == State::Established
                && socket.is_in_use()
                && !own.contains(&socket.remote)
        });
        values.add(host!("target.connections_other"), count(others));
    }

    /// Adds the values of the connections from clients to the target.
    fn add_inbound(&mut self, sockets: &[Socket], values: &mut Values) {
        let listeners = sockets.iter().filter(|socket| find::is_listener(socket, self.target));
        let (mut accept_queue, mut backlog) = (0.0, 0.0);
        for listener in listeners {
            accept_queue += f64::from(listener.unread);
            backlog += f64::from(listener.backlog);
        }
        values.add(host!("target.accept_queue"), accept_queue);
        if backlog > 0.0 {
            values.add(host!("target.accept_queue_max"), backlog);
        }
        let connections = || {
            let is_open = |socket: &&Socket| socket.state == State::Established;
            sockets.iter().filter(is_open).filter(|socket| socket.local == self.target)
        };
        values.add(host!("target.connections_in"), count(connections()));
        // A connection that was not accepted yet belongs to no process and has no inode.
        let accepted = || connections().filter(|socket| socket.inode != 0);
        values.add(host!("target.unread_in"), count(accepted().filter(|socket| socket.unread > 0)));
        let unacknowledged = accepted().filter(|socket| socket.unacknowledged > 0);
        values.add(host!("target.unacknowledged_in"), count(unacknowledged));
        self.has_times |= connections().any(|socket| socket.idle.is_some());
        if self.has_times {
            let waiting = accepted().filter(|socket| socket.owes_response());
            values.add(host!("target.waiting_in"), count(waiting));
            let unclear = accepted().filter(|socket| socket.is_unclear());
            values.add(host!("target.unclear_in"), count(unclear));
        }
    }

    /// Adds the values of the target's connections to upstream servers.
    fn add_outbound(&mut self, sockets: &[Socket], processes: &mut Processes, values: &mut Values) {
        let pids: Vec<u32> = processes.pids(ProcessRole::Target).collect();
        let inodes: BTreeSet<u64> = pids.into_iter().flat_map(find::read_socket_inodes).collect();
        if inodes.is_empty() {
            return;
        }
        let is_listening = |socket: &&Socket| socket.state == State::Listen;
        let listening_ports: BTreeSet<u16> =
            sockets.iter().filter(is_listening).map(|socket| socket.local.port()).collect();
        // An inbound connection has the local port of a listener, and an outbound one does not.
        let is_outbound = |socket: &&Socket| {
            socket.state == State::Established
                && inodes.contains(&socket.inode)
                && !listening_ports.contains(&socket.local.port())
                && socket.remote != self.target
        };
        let connections: Vec<&Socket> = sockets.iter().filter(is_outbound).collect();
        values.add(host!("target.connections_out"), count(connections.iter().copied()));
        if self.has_times {
            let waiting = || connections.iter().copied().filter(|socket| socket.awaits_response());
            values.add(host!("target.waiting_out"), count(waiting()));
            let unclear = connections.iter().copied().filter(|socket| socket.is_unclear());
            values.add(host!("target.unclear_out"), count(unclear));
            let waits = waiting().filter_map(|socket| socket.idle).map(|idle| idle.sent);
            let longest_ms = waits.max().unwrap_or_default().as_secs_f64() * 1_000.0;
            values.add(host!("target.waiting_out_max_ms"), longest_ms);
        }
        self.readings += 1.0;
        for connection in connections {
            self.count_upstream(connection, sockets, processes);
        }
    }

    /// Counts a connection to an upstream server if the connection awaits a response.
    fn count_upstream(
        &mut self,
        connection: &Socket,
        sockets: &[Socket],
        processes: &mut Processes,
    ) {
        let is_full = self.upstreams.len() >= UPSTREAMS_MAX;
        if is_full && !self.upstreams.contains_key(&connection.remote) {
            return;
        }
        let upstream = self.upstreams.entry(connection.remote).or_insert_with(|| {
            let holders = find::find_holders(&find::find_listeners(sockets, connection.remote));
            for &pid in &holders {
                processes.add(pid, ProcessRole::Upstream);
            }
            let process = holders.iter().find_map(|pid| processes.name(*pid)).map(str::to_owned);
            Upstream { process, waiting: 0.0 }
        });
        upstream.waiting += f64::from(u8::from(connection.awaits_response()));
    }

    /// Returns the upstream servers. The server for which the target waits most is first.
    pub(super) fn facts(&self) -> Vec<UpstreamFacts> {
        let upstream_facts = |(address, upstream): (&SocketAddr, &Upstream)| UpstreamFacts {
            address: address.to_string(),
            process: upstream.process.clone(),
            waiting: share(upstream.waiting, self.readings).unwrap_or(0.0),
        };
        let mut facts: Vec<UpstreamFacts> = self.upstreams.iter().map(upstream_facts).collect();
        facts.sort_by(|first, second| second.waiting.total_cmp(&first.waiting));
        facts
    }
}

fn count<'a>(sockets: impl Iterator<Item = &'a Socket>) -> f64 {
    float(sockets.count() as u64)
}

/// Returns the ephemeral port range, or the kernel's default if it cannot be read.
fn read_port_range() -> (u16, u16) {
    let range = || {
        let text = text::read("/proc/sys/net/ipv4/ip_local_port_range")?;
        let mut words = text.split_whitespace().map(str::parse);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    };
    range().unwrap_or((32_768, 60_999))
}

#[cfg(test)]
mod tests;
