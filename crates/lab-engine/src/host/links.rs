//! The target's connections: who has yet to be accepted, read or answered, and on whom the target
//! itself waits. Seen from outside, by the kernel's view of its sockets.
//!
//! At any moment the calls inside the target are the connections on which it owes an answer; of
//! these, those that wait for a server behind it show as connections of its own on which it has
//! asked and not been answered. The ratio of the two is, by Little's law, the share of its time that
//! it spends waiting upstream. With several calls on one connection (HTTP/2) both are undercounted.

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

/// Least time between two readings of all sockets.
const LEAST: Duration = Duration::from_millis(250);
/// One part in this many of a core may go into reading sockets.
const PART: u32 = 300;
/// Least time between two searches for processes of the target, which begin and end.
const SEARCH_LEAST: Duration = Duration::from_secs(5);
/// Servers behind the target that are told apart.
const UPSTREAMS_MAX: usize = 16;

/// What is known of the target's connections.
#[derive(Debug)]
pub(super) struct Links {
    target: SocketAddr,
    /// Whether its processes are on this host.
    local: bool,
    pace: Pace,
    search: Pace,
    /// First and last port that this host uses for connections of its own.
    ports: (u16, u16),
    upstreams: BTreeMap<SocketAddr, Upstream>,
    readings: f64,
    /// Whether the kernel tells when sockets sent and received.
    quiet: bool,
    /// Whether sockets could be read at all.
    pub(super) readable: bool,
}

#[derive(Debug, Default)]
struct Upstream {
    process: Option<String>,
    waiting: f64,
}

impl Links {
    pub(super) fn new(target: SocketAddr, local: bool) -> Links {
        Links {
            target: SocketAddr::new(target.ip().to_canonical(), target.port()),
            local,
            pace: Pace::new(LEAST, PART),
            search: Pace::new(SEARCH_LEAST, PART),
            ports: ports(),
            upstreams: BTreeMap::new(),
            readings: 0.0,
            quiet: false,
            readable: true,
        }
    }

    /// Reads all sockets if it is time, and adds what they tell; finds the target's processes.
    pub(super) fn sample(&mut self, now: Instant, processes: &mut Processes, values: &mut Values) {
        if !self.pace.due(now) {
            return;
        }
        let begun = Instant::now();
        let Ok(sockets) = sockets::all() else {
            self.readable = false;
            self.pace.took(begun, Instant::now());
            return;
        };
        if self.local {
            let searching = Instant::now();
            self.search(now, &sockets, processes);
            let searched = searching.elapsed();
            self.read(&sockets, processes, values);
            // The search has a pace of its own.
            self.pace.took(begun + searched, Instant::now());
        } else {
            self.ports_used(&sockets, values);
            self.pace.took(begun, Instant::now());
        }
    }

    fn search(&mut self, now: Instant, sockets: &[Socket], processes: &mut Processes) {
        if !self.search.due(now) {
            return;
        }
        let begun = Instant::now();
        for pid in find::holders(&find::listening(sockets, self.target)) {
            processes.add(pid, ProcessRole::Target);
        }
        self.search.took(begun, Instant::now());
    }

    fn read(&mut self, sockets: &[Socket], processes: &mut Processes, values: &mut Values) {
        self.ports_used(sockets, values);
        self.inward(sockets, values);
        self.outward(sockets, processes, values);
    }

    /// Ports that connections from here to the target take; each can be used once for it.
    fn ports_used(&self, sockets: &[Socket], values: &mut Values) {
        let (first, last) = self.ports;
        let used = |socket: &&Socket| {
            socket.remote == self.target && (first..=last).contains(&socket.local.port())
        };
        let used = count(sockets.iter().filter(used));
        values.put(host!("ports_used"), used);
        let all = f64::from(last.saturating_sub(first)) + 1.0;
        values.put(host!("ports_share"), share(used, all));
    }

    fn inward(&mut self, sockets: &[Socket], values: &mut Values) {
        let listeners = sockets.iter().filter(|socket| find::is_listener(socket, self.target));
        let (mut waiting, mut backlog) = (0.0, 0.0);
        for listener in listeners {
            waiting += f64::from(listener.unread);
            backlog += f64::from(listener.backlog);
        }
        values.put(host!("target.accept_queue"), waiting);
        if backlog > 0.0 {
            values.put(host!("target.accept_queue_max"), backlog);
        }
        let inside = || {
            let open = |socket: &&Socket| socket.state == State::Established;
            sockets.iter().filter(open).filter(|socket| socket.local == self.target)
        };
        values.put(host!("target.connections_in"), count(inside()));
        // One that is not accepted belongs to no process and has no inode.
        let accepted = || inside().filter(|socket| socket.inode != 0);
        values.put(host!("target.unread_in"), count(accepted().filter(|socket| socket.unread > 0)));
        self.quiet |= inside().any(|socket| socket.quiet.is_some());
        if self.quiet {
            values
                .put(host!("target.waiting_in"), count(accepted().filter(|socket| socket.owes())));
            values.put(
                host!("target.unclear_in"),
                count(accepted().filter(|socket| socket.unclear())),
            );
        }
    }

    fn outward(&mut self, sockets: &[Socket], processes: &mut Processes, values: &mut Values) {
        let pids: Vec<u32> = processes.pids(ProcessRole::Target).collect();
        let held: BTreeSet<u64> = pids.into_iter().flat_map(find::held).collect();
        if held.is_empty() {
            return;
        }
        let listens = |socket: &&Socket| socket.state == State::Listen;
        let served: BTreeSet<u16> =
            sockets.iter().filter(listens).map(|socket| socket.local.port()).collect();
        // Connections that others made to it have the port of a listener on its side.
        let outward = |socket: &&Socket| {
            socket.state == State::Established
                && held.contains(&socket.inode)
                && !served.contains(&socket.local.port())
                && socket.remote != self.target
        };
        let links: Vec<&Socket> = sockets.iter().filter(outward).collect();
        values.put(host!("target.connections_out"), count(links.iter().copied()));
        if self.quiet {
            let asking = || links.iter().copied().filter(|socket| socket.asks());
            values.put(host!("target.waiting_out"), count(asking()));
            let unclear = links.iter().copied().filter(|socket| socket.unclear());
            values.put(host!("target.unclear_out"), count(unclear));
            let longest = asking().filter_map(|socket| socket.quiet).map(|quiet| quiet.sent).max();
            let longest = longest.unwrap_or_default().as_secs_f64() * 1_000.0;
            values.put(host!("target.waiting_out_max_ms"), longest);
        }
        self.readings += 1.0;
        for link in links {
            self.upstream(link, sockets, processes);
        }
    }

    fn upstream(&mut self, link: &Socket, sockets: &[Socket], processes: &mut Processes) {
        let full = self.upstreams.len() >= UPSTREAMS_MAX;
        if full && !self.upstreams.contains_key(&link.remote) {
            return;
        }
        let upstream = self.upstreams.entry(link.remote).or_insert_with(|| {
            let holders = find::holders(&find::listening(sockets, link.remote));
            for &pid in &holders {
                processes.add(pid, ProcessRole::Upstream);
            }
            let process = holders.iter().find_map(|pid| processes.name(*pid)).map(str::to_owned);
            Upstream { process, waiting: 0.0 }
        });
        upstream.waiting += f64::from(u8::from(link.asks()));
    }

    /// The servers behind the target, that on which it waited most first.
    pub(super) fn facts(&self) -> Vec<UpstreamFacts> {
        let facts = |(address, upstream): (&SocketAddr, &Upstream)| UpstreamFacts {
            address: address.to_string(),
            process: upstream.process.clone(),
            waiting: share(upstream.waiting, self.readings).unwrap_or(0.0),
        };
        let mut facts: Vec<UpstreamFacts> = self.upstreams.iter().map(facts).collect();
        facts.sort_by(|one, other| other.waiting.total_cmp(&one.waiting));
        facts
    }
}

fn count<'a>(sockets: impl Iterator<Item = &'a Socket>) -> f64 {
    float(sockets.count() as u64)
}

/// The kernel's default where the file cannot be read.
fn ports() -> (u16, u16) {
    let range = || {
        let text = text::read("/proc/sys/net/ipv4/ip_local_port_range")?;
        let mut words = text.split_whitespace().map(str::parse);
        Some((words.next()?.ok()?, words.next()?.ok()?))
    };
    range().unwrap_or((32_768, 60_999))
}

#[cfg(test)]
mod tests;
