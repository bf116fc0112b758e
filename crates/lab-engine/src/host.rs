//! Samples hosts during a run. This host is the host of the load generator. The values of this host
//! and its processes come from `/proc` and cgroups. The values of another host come from a
//! prometheus-node-exporter.
//!
//! One thread samples this host at the plan's interval. A second thread scrapes the exporter, so
//! that a slow response delays no sample of this host. `crates/lab-model/src/metrics/host.rs` lists
//! all metrics, and `host!("NAME")` looks up a metric in this list. A `*` in a name stands for a
//! process, device or thread. `crates/lab/src/analysis/bottleneck.rs` interprets the values.

mod cgroup;
mod disk;
pub mod downsample;
mod exporter;
mod find;
mod machine;
mod network;
mod pace;
mod process;
mod sockets;
mod target_sockets;
mod text;
mod threads;
mod values;

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab_model::metrics::host::host;
use lab_model::plan::{NodeUrl, Watch};
use lab_model::results::run::{HostFacts, HostSample, ProcessRole};
use parking_lot::Mutex;

pub use cgroup::{own_cpu_cgroups, own_cpu_limit};
use disk::Disks;
use exporter::{Exporter, ScrapeCounts, ScrapeFault};
use machine::Machine;
use network::Network;
use pace::Cost;
use process::{PROCESSES_MAX, Processes};
use target_sockets::TargetSockets;
use values::Values;

/// Maximum number of samples that wait for [`Watcher::take`]. Above this number, the oldest samples
/// are dropped. At the shortest interval, this many samples cover 100 seconds and take about 5 MB.
const WAITING_MAX: usize = 1_024;

/// Allowed intervals between two samples.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(1);

/// The reason why a host cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum HostFault {
    /// `/proc` is missing, as on systems other than Linux.
    #[error("cannot watch this host: /proc cannot be read: {0}")]
    NoProc(String),
    /// The interval is outside of the allowed range.
    #[error("the interval of watching is {0:?}; allowed: 100 ms to 1 s")]
    Interval(Duration),
    /// A process of the plan does not exist.
    #[error("cannot watch process {0}: it does not exist")]
    NoProcess(u32),
    /// The plan names too many processes.
    #[error("cannot watch process {0}: {PROCESSES_MAX} processes are watched already")]
    TooManyProcesses(u32),
    /// The first scrape of the node-exporter failed.
    #[error("cannot use the node-exporter at {url}: {reason}")]
    Exporter {
        /// URL of the exporter, masked.
        url: String,
        /// The error.
        reason: String,
    },
    /// A thread could not be started.
    #[error("cannot start the thread that watches the host: {0}")]
    Thread(std::io::Error),
}

/// Samples that wait for [`Watcher::take`].
type Waiting = Mutex<VecDeque<HostSample>>;

/// Watches hosts until it is finished or dropped.
#[derive(Debug)]
pub struct Watcher {
    /// Samples that [`Watcher::take`] has not returned yet.
    waiting: Arc<Waiting>,
    /// One channel per thread. Closing the channels stops the threads.
    stop: Vec<SyncSender<()>>,
    /// Thread that samples this host.
    sampler: Option<JoinHandle<HostFacts>>,
    /// Thread that scrapes the node-exporter; `None` without an exporter.
    scraper: Option<JoinHandle<()>>,
    /// Counts of the scraping thread.
    scrapes: Arc<Mutex<ScrapeCounts>>,
    /// Message about values that the exporter does not report, for [`HostFacts::missing`].
    exporter_missing: Option<String>,
}

impl Watcher {
    /// Starts to watch. `origin` is the start of the run, and should be half a second in the
    /// future. Samples that are taken before `origin` have a negative time. They are the baseline
    /// for finding a bottleneck.
    ///
    /// # Errors
    /// Fails if the interval is out of range, `/proc` is missing, or a process of the plan does not
    /// exist or is one too many. Also fails if the node-exporter does not respond, or if a thread cannot be started.
    pub fn start(
        watch: &Watch,
        target: Option<SocketAddr>,
        origin: Instant,
    ) -> Result<Watcher, HostFault> {
        if !INTERVALS.contains(&watch.interval) {
            return Err(HostFault::Interval(watch.interval));
        }
        std::fs::metadata("/proc/stat").map_err(|fault| HostFault::NoProc(fault.to_string()))?;
        let mut watcher = Watcher {
            waiting: Arc::default(),
            stop: Vec::new(),
            sampler: None,
            scraper: None,
            scrapes: Arc::default(),
            exporter_missing: None,
        };
        let sampler = Sampler::new(watch, target, origin)?;
        if let Some(url) = &watch.node_exporter {
            watcher.start_exporter(url, origin)?;
        }
        let (waiting, stop) = (Arc::clone(&watcher.waiting), watcher.add_stop_channel());
        let interval = watch.interval;
        let thread = thread::Builder::new().name("weir-host".to_owned());
        let handle = thread.spawn(move || sampler.run(interval, &waiting, &stop));
        watcher.sampler = Some(handle.map_err(HostFault::Thread)?);
        Ok(watcher)
    }

    /// Returns the samples of all hosts since the last call, oldest first. Returns at most
    /// [`WAITING_MAX`] samples.
    pub fn take(&mut self) -> Vec<HostSample> {
        self.waiting.lock().drain(..).collect()
    }

    /// Stops watching and returns the facts about the processes. Discards the samples that were not
    /// taken.
    pub fn finish(mut self) -> HostFacts {
        self.stop.clear();
        let facts = self.sampler.take().and_then(|thread| thread.join().ok());
        let mut facts = facts.unwrap_or_default();
        // The scraping thread ends by itself. It is not joined, because that could take as long as
        // a slow response.
        facts.exporter = self.scraper.is_some();
        facts.missing.extend(self.exporter_missing.take());
        let scrapes = self.scrapes.lock();
        if let Some(fault) = &scrapes.last_fault {
            let (failed, total) = (scrapes.failed, scrapes.total);
            let message =
                format!("{failed} of {total} scrapes of the node-exporter failed: {fault}");
            facts.missing.push(message);
        }
        drop(scrapes);
        facts
    }

    /// Starts to scrape the exporter. Waits for the first response, so that a wrong URL is reported
    /// before the load starts.
    fn start_exporter(&mut self, url: &NodeUrl, origin: Instant) -> Result<(), HostFault> {
        let fault = |error: ScrapeFault| HostFault::Exporter {
            url: url.to_string(),
            reason: error.to_string(),
        };
        let exporter = Exporter::new(url).map_err(fault)?;
        let scrape = exporter.scrape().map_err(fault)?;
        if !scrape.has_pressure() {
            let message = "the node-exporter reports no pressure (its host has no pressure stall \
                           information, or the collector is off): waiting for CPU, disk and \
                           memory cannot be detected";
            self.exporter_missing = Some(message.to_owned());
        }
        let first_scrape = (Instant::now(), scrape);
        let (waiting, stop) = (Arc::clone(&self.waiting), self.add_stop_channel());
        let scrapes = Arc::clone(&self.scrapes);
        let thread = thread::Builder::new().name("weir-exporter".to_owned());
        let run = move || exporter.run(origin, first_scrape, &waiting, &stop, &scrapes);
        self.scraper = Some(thread.spawn(run).map_err(HostFault::Thread)?);
        Ok(())
    }

    /// Creates the channel that stops a thread when [`Watcher`] closes the sender.
    fn add_stop_channel(&mut self) -> Receiver<()> {
        let (sender, receiver) = sync_channel(1);
        self.stop.push(sender);
        receiver
    }
}

/// Appends a sample, and drops the oldest one if there is no room.
fn push(waiting: &Waiting, sample: HostSample) {
    let mut waiting = waiting.lock();
    if waiting.len() == WAITING_MAX {
        waiting.pop_front();
    }
    waiting.push_back(sample);
}

/// Returns the seconds since the start of the run, which are negative before it.
fn seconds_since(origin: Instant, now: Instant) -> f64 {
    // One of the two durations is zero.
    let elapsed = now.saturating_duration_since(origin).as_secs_f64();
    elapsed - origin.saturating_duration_since(now).as_secs_f64()
}

/// Returns true if an address belongs to this host: a loopback address, or another address to which
/// a socket can be bound.
pub fn is_local(address: SocketAddr) -> bool {
    address.ip().is_loopback() || UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// Samples all values of this host.
#[derive(Debug)]
struct Sampler {
    origin: Instant,
    /// True once the run has started.
    run_started: bool,
    machine: Machine,
    disks: Disks,
    network: Network,
    processes: Processes,
    /// `None` if the target has no address.
    target_sockets: Option<TargetSockets>,
    /// CPU time that the sampling itself uses.
    cost: Cost,
    /// True if the target runs on this host.
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
            // `add` also returns false for a process that is watched already. If `add` has failed,
            // only such a process has a name.
            if !processes.add(pid, ProcessRole::Watched) && processes.name(pid).is_none() {
                return Err(match processes.is_full() {
                    true => HostFault::TooManyProcesses(pid),
                    false => HostFault::NoProcess(pid),
                });
            }
        }
        Ok(Sampler {
            origin,
            run_started: false,
            machine: Machine::new(),
            disks: Disks::default(),
            network: Network::default(),
            processes,
            target_sockets: target.map(|target| TargetSockets::new(target, target_local)),
            cost: Cost::default(),
            target_local,
        })
    }

    /// Samples at the interval until `stop` is closed.
    fn run(mut self, interval: Duration, waiting: &Waiting, stop: &Receiver<()>) -> HostFacts {
        // The first sample has no rates. The rates of the second sample are changes since the first
        // one.
        self.sample();
        let mut next_sample = Instant::now();
        loop {
            next_sample += interval;
            let now = Instant::now();
            if next_sample < now {
                // The sampler is late by a whole interval and skips the missed samples.
                next_sample = now + interval;
            }
            match stop.recv_timeout(next_sample - now) {
                Err(RecvTimeoutError::Timeout) => push(waiting, self.sample()),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // This last reading completes the totals of the processes.
        self.sample();
        self.finish()
    }

    /// Reads all values of this host.
    fn sample(&mut self) -> HostSample {
        let now = Instant::now();
        let mut values = Values::default();
        self.machine.sample(now, &mut values);
        self.disks.sample(now, &mut values);
        self.network.sample(now, &mut values);
        self.processes.sample(now, &mut values);
        if let Some(target_sockets) = &mut self.target_sockets {
            target_sockets.sample(now, &mut self.processes, &mut values);
        }
        if !self.run_started && now >= self.origin {
            self.run_started = true;
            self.processes.start_run();
        }
        self.cost.record(now);
        values.add(host!("watch_cost"), self.cost.share());
        let host_name = "generator";
        values.sample(seconds_since(self.origin, now), host_name)
    }

    /// Returns the facts about the processes, and messages about missing values.
    fn finish(self) -> HostFacts {
        let processes = self.processes.facts();
        let target_found = processes.iter().any(|process| process.role == ProcessRole::Target);
        let mut missing = Vec::new();
        if !self.machine.pressure {
            missing.push(
                "/proc/pressure cannot be read, because this kernel has no pressure stall \
                 information: waiting for CPU, disk and memory cannot be detected",
            );
        }
        if self.target_local && !target_found {
            missing.push(
                "the target's address is on this host, but no process that listens there can be \
                 seen: it belongs to another user, or is in a container (name it with --pid, or run \
                 as root)",
            );
        }
        if self.target_sockets.as_ref().is_some_and(|target_sockets| !target_sockets.readable) {
            missing.push("the sockets of this host cannot be read");
        }
        HostFacts {
            target_local: self.target_local,
            // `Watcher::finish` sets this value.
            exporter: false,
            cores: machine::count_cores(),
            target_cores: self.processes.target_cores(),
            upstreams: self.target_sockets.as_ref().map(TargetSockets::facts).unwrap_or_default(),
            processes,
            missing: missing.into_iter().map(str::to_owned).collect(),
            cost: self.cost.share().unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests;
