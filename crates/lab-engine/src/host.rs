//! Watching hosts during a run: this host and its processes from `/proc` and cgroups, another one
//! through a prometheus-node-exporter.
//!
//! One thread samples this host at the plan's interval; a second one asks the exporter, if there is
//! one, so that a slow answer delays no sample. Both only read. What the values mean is in
//! `metrics/host.rs`; what they say of a bottleneck is decided in `analysis/bottleneck.rs`, not here.

mod cgroup;
mod disk;
mod exporter;
mod find;
mod links;
mod machine;
mod network;
mod pace;
mod process;
mod sockets;
mod text;
pub mod thin;
mod threads;
mod values;

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab_model::metrics::host::host;
use lab_model::plan::{NodeUrl, Watch};
use lab_model::results::run::{HostFacts, HostSample, ProcessRole};
use parking_lot::Mutex;

pub use cgroup::own_cpu_limit;
use disk::Disks;
use exporter::{Exporter, Polls};
use links::Links;
use machine::Machine;
use network::Network;
use pace::Cost;
use process::Processes;
use values::Values;

/// Samples that wait for [`Watcher::take`]; the oldest give way. At the shortest interval these are
/// 100 seconds, and about 5 MB.
const WAITING_MAX: usize = 1_024;

/// Shortest and longest time between two samples.
pub const INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Why hosts cannot be watched as the plan wants.
#[derive(Debug, thiserror::Error)]
pub enum HostFault {
    /// Not Linux, or `/proc` is not there.
    #[error("/proc cannot be read ({0}): watching this host needs it")]
    NoProc(String),
    /// The interval is not within [`INTERVAL`].
    #[error("the interval of watching is {0:?}; allowed are 100 ms to 1 s")]
    Interval(Duration),
    /// A process that the plan names is not there.
    #[error("process {0}, which is to be watched, does not exist")]
    NoProcess(u32),
    /// The node-exporter could not be asked.
    #[error("the node-exporter at {url:?} cannot be used: {why}")]
    Exporter {
        /// Its URL.
        url: String,
        /// What is wrong, or what is allowed.
        why: String,
    },
    /// A thread could not be started.
    #[error("the thread that watches the host could not be started: {0}")]
    Thread(std::io::Error),
}

/// Samples that nobody has taken yet.
type Waiting = Mutex<VecDeque<HostSample>>;

/// Watches until it is finished or dropped.
#[derive(Debug)]
pub struct Watcher {
    waiting: Arc<Waiting>,
    /// Closing these ends the threads.
    stop: Vec<SyncSender<()>>,
    own: Option<JoinHandle<HostFacts>>,
    other: Option<JoinHandle<()>>,
    polls: Arc<Mutex<Polls>>,
    exporter_missing: Option<String>,
}

impl Watcher {
    /// Begins to watch. Start it half a second before the load: what it sees until `origin`, the
    /// start of the run, is the baseline that a bottleneck is told from, with `at` below zero.
    ///
    /// # Errors
    /// If the interval is not allowed, `/proc` is missing, a process of the plan does not exist, or
    /// the node-exporter does not answer.
    pub fn start(
        watch: &Watch,
        target: Option<SocketAddr>,
        origin: Instant,
    ) -> Result<Watcher, HostFault> {
        if watch.interval < INTERVAL.0 || watch.interval > INTERVAL.1 {
            return Err(HostFault::Interval(watch.interval));
        }
        std::fs::metadata("/proc/stat").map_err(|fault| HostFault::NoProc(fault.to_string()))?;
        let mut watcher = Watcher {
            waiting: Arc::default(),
            stop: Vec::new(),
            own: None,
            other: None,
            polls: Arc::default(),
            exporter_missing: None,
        };
        let sampler = Sampler::new(watch, target, origin)?;
        if let Some(url) = &watch.node_exporter {
            watcher.ask_exporter(url, origin)?;
        }
        let (waiting, stop) = (Arc::clone(&watcher.waiting), watcher.stopper());
        let interval = watch.interval;
        let thread = thread::Builder::new().name("weir-host".to_owned());
        let own = thread.spawn(move || sampler.run(interval, &waiting, &stop));
        watcher.own = Some(own.map_err(HostFault::Thread)?);
        Ok(watcher)
    }

    /// The samples since the last call, oldest first, of all hosts. At most the last 1,024.
    pub fn take(&mut self) -> Vec<HostSample> {
        self.waiting.lock().drain(..).collect()
    }

    /// Ends watching and tells what the processes came to. Samples that were not taken are lost.
    pub fn finish(mut self) -> HostFacts {
        self.stop.clear();
        let facts = self.own.take().and_then(|thread| thread.join().ok());
        let mut facts = facts.unwrap_or_default();
        // The thread that asks the exporter ends by itself: an answer that hangs is not waited for.
        facts.exporter = self.other.is_some();
        facts.missing.extend(self.exporter_missing.take());
        let polls = self.polls.lock();
        if let Some(fault) = &polls.last_fault {
            let (failed, asked) = (polls.failed, polls.asked);
            let message =
                format!("the node-exporter failed to answer {failed} of {asked} times: {fault}");
            facts.missing.push(message);
        }
        drop(polls);
        facts
    }

    /// The first answer is waited for, so that a wrong URL is known before the load begins.
    fn ask_exporter(&mut self, url: &NodeUrl, origin: Instant) -> Result<(), HostFault> {
        let refused = |why: exporter::Fault| HostFault::Exporter {
            url: url.to_string(),
            why: why.to_string(),
        };
        let exporter = Exporter::at(url).map_err(refused)?;
        let first = exporter.ask().map_err(refused)?;
        if !first.has_pressure() {
            let message = "the node-exporter tells nothing of pressure (its host has no pressure \
                           stall information, or the collector is off): waiting for CPU, disk and \
                           memory is not seen";
            self.exporter_missing = Some(message.to_owned());
        }
        let first = (Instant::now(), first);
        let (waiting, stop) = (Arc::clone(&self.waiting), self.stopper());
        let polls = Arc::clone(&self.polls);
        let thread = thread::Builder::new().name("weir-exporter".to_owned());
        let run = move || exporter.run(origin, first, &waiting, &stop, &polls);
        self.other = Some(thread.spawn(run).map_err(HostFault::Thread)?);
        Ok(())
    }

    /// The end of a channel whose closing ends a thread.
    fn stopper(&mut self) -> Receiver<()> {
        let (sender, receiver) = sync_channel(1);
        self.stop.push(sender);
        receiver
    }
}

fn push(waiting: &Waiting, sample: HostSample) {
    let mut waiting = waiting.lock();
    if waiting.len() == WAITING_MAX {
        waiting.pop_front();
    }
    waiting.push_back(sample);
}

/// Seconds from the start of the run; negative before it.
fn since(origin: Instant, now: Instant) -> f64 {
    let later = now.saturating_duration_since(origin).as_secs_f64();
    later - origin.saturating_duration_since(now).as_secs_f64()
}

/// Whether an address is one of this host's: a socket can be bound to it.
pub fn is_local(address: SocketAddr) -> bool {
    address.ip().is_loopback() || UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// Everything that is read of this host, in order.
#[derive(Debug)]
struct Sampler {
    origin: Instant,
    /// Whether the run has begun.
    begun: bool,
    machine: Machine,
    disks: Disks,
    network: Network,
    processes: Processes,
    links: Option<Links>,
    cost: Cost,
    target_local: bool,
}

impl Sampler {
    fn new(
        watch: &Watch,
        target: Option<SocketAddr>,
        origin: Instant,
    ) -> Result<Sampler, HostFault> {
        let target_local = target.is_some_and(is_local);
        let mut processes = Processes::new();
        processes.add(std::process::id(), ProcessRole::Generator);
        for &pid in &watch.pids {
            if !processes.add(pid, ProcessRole::Watched) && processes.name(pid).is_none() {
                return Err(HostFault::NoProcess(pid));
            }
        }
        Ok(Sampler {
            origin,
            begun: false,
            machine: Machine::new(),
            disks: Disks::default(),
            network: Network::default(),
            processes,
            links: target.map(|target| Links::new(target, target_local)),
            cost: Cost::default(),
            target_local,
        })
    }

    fn run(mut self, interval: Duration, waiting: &Waiting, stop: &Receiver<()>) -> HostFacts {
        // The first reading makes rates of the second one.
        self.sample();
        let mut due = Instant::now();
        loop {
            due += interval;
            let now = Instant::now();
            if due < now {
                // Too late by a whole interval: samples that were missed are not made up for.
                due = now + interval;
            }
            match stop.recv_timeout(due - now) {
                Err(RecvTimeoutError::Timeout) => push(waiting, self.sample()),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.sample();
        self.finish()
    }

    fn sample(&mut self) -> HostSample {
        let now = Instant::now();
        let mut values = Values::default();
        self.machine.sample(now, &mut values);
        self.disks.sample(now, &mut values);
        self.network.sample(now, &mut values);
        self.processes.sample(now, &mut values);
        if let Some(links) = &mut self.links {
            links.sample(now, &mut self.processes, &mut values);
        }
        if !self.begun && now >= self.origin {
            self.begun = true;
            self.processes.begin();
        }
        self.cost.read(now);
        values.put(host!("watch_cost"), self.cost.share());
        values.sample(since(self.origin, now), "generator")
    }

    fn finish(self) -> HostFacts {
        let processes = self.processes.facts();
        let found = processes.iter().any(|process| process.role == ProcessRole::Target);
        let mut missing = Vec::new();
        if !self.machine.pressure {
            missing.push(
                "/proc/pressure cannot be read: this kernel has no pressure stall information, so \
                 that waiting for CPU, disk and memory is not seen",
            );
        }
        if self.target_local && !found {
            missing.push(
                "the target's address is one of this host's, but no process that listens there can \
                 be seen: it belongs to another user, or is in a container (name it with --pid, or \
                 run as root)",
            );
        }
        if self.links.as_ref().is_some_and(|links| !links.readable) {
            missing.push("the sockets of this host cannot be read");
        }
        HostFacts {
            target_local: self.target_local,
            exporter: false,
            cores: machine::cores(),
            target_cores: self.processes.target_cores(),
            upstreams: self.links.as_ref().map(Links::facts).unwrap_or_default(),
            processes,
            missing: missing.into_iter().map(str::to_owned).collect(),
            cost: self.cost.share().unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests;
