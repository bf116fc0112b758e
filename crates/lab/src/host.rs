//! Watching hosts during a run: this host and its processes from `/proc` and cgroups, another one
//! through a prometheus-node-exporter.
//!
//! One thread samples this host at the plan's interval; a second one asks the exporter, if there is
//! one, so that a slow answer delays no sample. Both only read. What the values mean is in
//! `host/names.rs`; what they say of a bottleneck is decided in `rules/bottleneck.rs`, not here.

mod disk;
mod machine;
mod network;
mod pace;
mod text;
pub mod thin;
mod values;

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::plan::Watch;
use crate::result::{HostFacts, HostSample};

use disk::Disks;
use machine::Machine;
use network::Network;
use pace::Cost;
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
    /// A thread could not be started.
    #[error("the thread that watches the host could not be started: {0}")]
    Thread(std::io::Error),
}

/// Watches until it is finished or dropped.
#[derive(Debug)]
pub struct Watcher {
    waiting: Arc<Mutex<VecDeque<HostSample>>>,
    stop: Vec<SyncSender<()>>,
    own: Option<JoinHandle<HostFacts>>,
}

impl Watcher {
    /// Begins to watch. Start it some samples before the load: what it sees until `origin`, the
    /// start of the run, is the baseline that a bottleneck is told from, with `at` below zero.
    ///
    /// # Errors
    /// If the interval is not allowed or `/proc` is missing.
    pub fn start(
        watch: &Watch,
        target: Option<SocketAddr>,
        origin: Instant,
    ) -> Result<Watcher, HostFault> {
        if watch.interval < INTERVAL.0 || watch.interval > INTERVAL.1 {
            return Err(HostFault::Interval(watch.interval));
        }
        std::fs::metadata("/proc/stat").map_err(|fault| HostFault::NoProc(fault.to_string()))?;
        let waiting = Arc::new(Mutex::new(VecDeque::new()));
        let mut watcher = Watcher { waiting, stop: Vec::new(), own: None };
        let sampler = Sampler::new(watch, target, origin);
        let stop = watcher.stopper();
        let waiting = Arc::clone(&watcher.waiting);
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

    /// Ends watching and tells what the processes came to.
    pub fn finish(mut self) -> HostFacts {
        self.stop.clear();
        let facts = self.own.take().and_then(|thread| thread.join().ok());
        facts.unwrap_or_default()
    }

    /// The end of a channel whose closing ends a thread.
    fn stopper(&mut self) -> Receiver<()> {
        let (sender, receiver) = sync_channel(1);
        self.stop.push(sender);
        receiver
    }
}

fn push(waiting: &Mutex<VecDeque<HostSample>>, sample: HostSample) {
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
fn is_local(address: SocketAddr) -> bool {
    address.ip().is_loopback() || UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// Everything that is read of this host, in order.
#[derive(Debug)]
struct Sampler {
    origin: Instant,
    machine: Machine,
    disks: Disks,
    network: Network,
    cost: Cost,
    facts: HostFacts,
}

impl Sampler {
    fn new(_watch: &Watch, target: Option<SocketAddr>, origin: Instant) -> Sampler {
        let machine = Machine::new();
        let mut facts = HostFacts { cores: machine::cores(), ..HostFacts::default() };
        facts.target_local = target.is_some_and(is_local);
        if !machine.pressure {
            let message = "/proc/pressure cannot be read: this kernel has no pressure stall \
                           information, so that waiting for CPU, disk and memory is not seen";
            facts.missing.push(message.to_owned());
        }
        let (disks, network, cost) = (Disks::default(), Network::default(), Cost::default());
        Sampler { origin, machine, disks, network, cost, facts }
    }

    fn run(
        mut self,
        interval: Duration,
        waiting: &Mutex<VecDeque<HostSample>>,
        stop: &Receiver<()>,
    ) -> HostFacts {
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
        push(waiting, self.sample());
        self.finish()
    }

    fn sample(&mut self) -> HostSample {
        let now = Instant::now();
        let mut values = Values::default();
        self.machine.sample(now, &mut values);
        self.disks.sample(now, &mut values);
        self.network.sample(now, &mut values);
        self.cost.add(now, Instant::now());
        values.put_some("watch_cost", self.cost.share());
        values.sample(since(self.origin, now), "generator")
    }

    fn finish(mut self) -> HostFacts {
        self.facts.cost = self.cost.share().unwrap_or(0.0);
        self.facts
    }
}

#[cfg(test)]
mod tests;
