//! The load engine: sends the calls of a plan on schedule and counts the results.
//!
//! A plan (`lab_model::plan`) has scenarios, which start iterations. A worker runs one iteration at
//! a time. A scenario consists of stages. In an open scenario, each stage sets the rate of
//! iterations. In a closed scenario, each stage sets the number of workers. An iteration sends one
//! request for each step of a mix, in order. A mix is a list of steps, and a step says which calls
//! its request may have. If the plan names a reference node, the engine samples some of the calls
//! at random. The crate `lab` sends these calls to the reference node too, and compares the
//! responses.
//!
//! Each thread runs one loop (`crates/lab-engine/src/engine/thread.rs`). The engine classifies each
//! response; the crate `lab` derives the verdict. Each thread hands over its counts once per
//! second, as an [`Interval`]. The caller returns the interval for reuse, so a long run needs no
//! more memory than a short one.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab_model::plan::{Model, Plan, Scenario};
use lab_model::record::Interval;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::chain::ChainFacts;
pub use compose::AGENT as USER_AGENT;
use connection::Peer;
use thread::EngineThread;
use transactions::TransactionLog;
use world::{System, Wakeup};

pub mod blocking;
mod body;
mod classify;
mod compose;
mod connection;
mod deadlines;
mod http2;
mod reader;
mod rng;
#[cfg(any(test, feature = "sim"))]
pub mod simulated;
pub mod single;
pub mod subscriptions;
mod thread;
mod thread_recorder;
mod time;
mod tls;
pub mod transactions;
mod websocket;
mod world;

#[cfg(test)]
mod tests;

/// Number of intervals that circulate between one thread and the caller of [`Engine::next`]. The
/// engine allocates and reuses them, so memory does not grow if the caller is late.
const INTERVALS_MAX: usize = 4;
/// Maximum number of [`Sample`]s that wait for the comparison with the reference node. While the
/// queue is full, the engine skips further samples.
const SAMPLES_MAX: usize = 64;
/// Number of open files that the process needs, in addition to one file for each worker and one for
/// each connection of a subscription.
const OTHER_FILES: u64 = 256;

/// The reason why the engine could not start or did not finish.
#[derive(Debug, thiserror::Error)]
pub enum EngineFault {
    /// The target's host name has no address.
    #[error("the host name of the target has no address")]
    NoAddress,
    /// A mix needs values that the chain lacks, or a step of the mix has nothing to send.
    #[error("mix {mix:?} needs {missing}, but there are none")]
    MissingValues {
        /// Name of the mix.
        mix: String,
        /// The missing values, such as `block hashes`.
        missing: &'static str,
    },
    /// A caller sends single calls, but a mix replays recorded batches.
    #[error("mix {mix:?} replays recorded batches, but only single calls can be sent here")]
    RecordedBatch {
        /// Name of the mix.
        mix: String,
    },
    /// A caller repeats the calls of a mix, but the mix has transactions, which cannot be repeated.
    #[error("mix {mix:?} has transactions, which can be sent only once each, by `weir load`")]
    Transactions {
        /// Name of the mix.
        mix: String,
    },
    /// A header cannot be sent, or the engine sets it itself.
    #[error(
        "header {name:?} cannot be sent: its name or value is malformed, or the engine sets it itself"
    )]
    Header {
        /// Name of the header.
        name: String,
    },
    /// The plan needs more open files than the process may have.
    #[error(
        "{needed} open files are needed for the plan's workers and subscriptions, {allowed} are allowed; run \
         fewer of them, or allow more first: ulimit -n {needed}"
    )]
    Files {
        /// Open files that the run needs.
        needed: u64,
        /// The hard limit of the process.
        allowed: u64,
    },
    /// A cipher suite is unknown or does not fit the TLS version.
    #[error("cipher suite {name:?} is not one of {allowed}")]
    Cipher {
        /// Name in the plan.
        name: String,
        /// The allowed names.
        allowed: String,
    },
    /// The file of trust anchors cannot be used.
    #[error("cannot use the trust anchors in {path}: {reason}")]
    Anchors {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// A certificate cannot be issued for the target's host.
    #[error("{host:?} is not a valid name in a certificate")]
    ServerName {
        /// Host in the plan.
        host: String,
    },
    /// The TLS settings contradict each other.
    #[error("tls settings: {0}")]
    Tls(#[from] rustls::Error),
    /// The system lacks epoll or eventfd, with which the loop waits.
    #[error("cannot wait for sockets (linux 5.11 or newer is needed): {0}")]
    Wait(#[source] io::Error),
    /// A thread could not be started.
    #[error("cannot start an engine thread: {0}")]
    Start(#[source] io::Error),
    /// A thread panicked.
    #[error("engine thread {thread} panicked")]
    Panicked {
        /// Index of the thread.
        thread: usize,
    },
    /// The thread of the subscriptions panicked.
    #[error("the thread of the subscriptions panicked")]
    SubscriptionsPanicked,
}

/// The next event of the engine.
#[derive(Debug)]
pub enum EngineEvent {
    /// Counts of one thread over a second. Return it with [`Engine::give_back`].
    Interval(Interval),
    /// No interval arrived in time.
    Nothing,
    /// All threads have ended, and all intervals were delivered.
    Ended,
}

/// A call and its response, sampled at random for the comparison with a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When the response arrived, since the start of the run.
    pub at: Duration,
    /// Index of the stage among all stages of the plan.
    pub stage: u16,
    /// Index into the plan's methods.
    pub method: u16,
    /// Body of the request.
    pub request: Vec<u8>,
    /// Body of the response: a JSON-RPC result or error with the right id.
    pub response: Vec<u8>,
}

/// State that all threads share.
pub(crate) struct Shared {
    /// True if the run must stop.
    stop: AtomicBool,
    /// For each scenario: the number of iterations that may still start. `None` for an open
    /// scenario and for a closed one without a limit.
    remaining: Vec<Option<AtomicU64>>,
    /// Number of samples that were skipped because the queue was full.
    skipped: AtomicU64,
    /// For each HTTP status of a failed or rejected request: the beginning of the body of the first
    /// response.
    error_bodies: Mutex<BTreeMap<u16, Vec<u8>>>,
    /// States of the plan's transactions; `None` if the plan has no transactions.
    transactions: Option<Arc<TransactionLog>>,
}

/// The threads of a run. Dropping the engine stops them.
pub struct Engine {
    shared: Arc<Shared>,
    /// For each thread: the handle that interrupts the thread's wait.
    wakeups: Vec<Wakeup>,
    /// Receives the intervals that the threads hand over.
    filled: Receiver<Interval>,
    /// For each thread: the channel that returns emptied intervals to the thread.
    spare: Vec<SyncSender<Interval>>,
    samples: Receiver<Sample>,
    threads: Vec<JoinHandle<Result<(), EngineFault>>>,
    /// Advances the thread of a simulated run by one pass of its loop; returns false if the thread
    /// had ended before. `None` in a run on the real network, and after the end of a simulated run.
    step: Option<Box<dyn FnMut() -> bool>>,
}

impl Engine {
    /// Starts all threads of a plan. `origin` is the start of the run, and may be in the future.
    /// The engine connects to the first address of `addrs` that accepts a connection.
    ///
    /// # Errors
    /// Fails if the plan needs something that the engine, the chain's facts or the system lack.
    pub fn start(
        plan: Arc<Plan>,
        chain: Arc<ChainFacts>,
        addrs: Vec<SocketAddr>,
        origin: Instant,
    ) -> Result<Engine, EngineFault> {
        if addrs.is_empty() {
            return Err(EngineFault::NoAddress);
        }
        allow_files(&plan)?;
        let peer = Arc::new(build_peer(&plan)?);
        let threads = plan.threads.max(1);
        let (mut engine, filled_sender, samples_sender) = Engine::new(&plan, threads);
        let shared = Arc::clone(&engine.shared);
        for index in 0..threads {
            let wakeup = Wakeup::new()?;
            let args = thread::ThreadArgs {
                plan: &plan,
                chain: &chain,
                addresses: &addrs,
                peer: &peer,
                shared: &shared,
                index,
                threads,
                filled: filled_sender.clone(),
                spare: engine.add_spare_channel(&plan, index),
                samples: samples_sender.clone(),
            };
            let thread = EngineThread::new(args, System::new(origin, wakeup.clone())?)?;
            engine.wakeups.push(wakeup);
            let builder = std::thread::Builder::new().name(format!("load-{index}"));
            let handle = builder.spawn(move || thread.run()).map_err(EngineFault::Start)?;
            engine.threads.push(handle);
        }
        Ok(engine)
    }

    /// Creates an engine without threads. Also returns the channels to which its threads send their
    /// intervals and samples.
    fn new(plan: &Plan, threads: usize) -> (Engine, SyncSender<Interval>, SyncSender<Sample>) {
        let (filled_sender, filled) = sync_channel(threads * INTERVALS_MAX);
        let (samples_sender, samples) = sync_channel(SAMPLES_MAX);
        let shared = Shared {
            stop: AtomicBool::new(false),
            remaining: iteration_limits(plan),
            skipped: AtomicU64::new(0),
            error_bodies: Mutex::default(),
            transactions: plan.transactions().map(TransactionLog::new),
        };
        let engine = Engine {
            shared: Arc::new(shared),
            wakeups: Vec::new(),
            filled,
            spare: Vec::new(),
            samples,
            threads: Vec::new(),
            step: None,
        };
        (engine, filled_sender, samples_sender)
    }

    /// Creates the channel through which the thread with this index gets emptied intervals. Fills
    /// the channel with new intervals, and returns its receiving end.
    fn add_spare_channel(&mut self, plan: &Plan, index: usize) -> Receiver<Interval> {
        let (spare_sender, spare) = sync_channel(INTERVALS_MAX);
        for _ in 0..INTERVALS_MAX {
            let empty = Interval::new(index, plan.stages().count(), plan.methods.len());
            // The channel has room and is open.
            let _ignored = spare_sender.try_send(empty);
        }
        self.spare.push(spare_sender);
        spare
    }

    /// Waits up to `timeout` for the next interval. Each thread sends an interval per second, and a
    /// shorter one at its end.
    pub fn next(&mut self, timeout: Duration) -> EngineEvent {
        while let Some(step) = &mut self.step {
            match self.filled.try_recv() {
                Ok(interval) => return EngineEvent::Interval(interval),
                // The run is over. Dropping the thread closes its channel.
                Err(_) if !step() => self.step = None,
                Err(_) => {}
            }
        }
        match self.filled.recv_timeout(timeout) {
            Ok(interval) => EngineEvent::Interval(interval),
            Err(RecvTimeoutError::Timeout) => EngineEvent::Nothing,
            Err(RecvTimeoutError::Disconnected) => EngineEvent::Ended,
        }
    }

    /// Returns an interval to its thread for reuse.
    pub fn give_back(&self, mut interval: Interval) {
        if let Some(spare) = self.spare.get(interval.thread) {
            interval.reset();
            // The send fails if the thread has ended or its channel is full.
            let _ignored = spare.try_send(interval);
        }
    }

    /// Stops the run early and interrupts the calls in flight.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wakeups.iter().for_each(Wakeup::wake);
    }

    /// Returns the receiver of sampled calls. The plan sets the share of calls that the engine
    /// samples. The engine skips samples while [`SAMPLES_MAX`] of them are unread.
    pub fn samples(&self) -> &Receiver<Sample> {
        &self.samples
    }

    /// Returns the current states of the plan's transactions, or `None` if the plan has no
    /// transactions.
    pub fn transactions(&self) -> Option<&Arc<TransactionLog>> {
        self.shared.transactions.as_ref()
    }

    /// Returns the beginning of the first body for each HTTP status of failed or rejected requests.
    pub fn error_bodies(&self) -> BTreeMap<u16, Vec<u8>> {
        self.shared.error_bodies.lock().clone()
    }

    /// Returns the number of samples that were skipped because the queue was full.
    pub fn samples_skipped(&self) -> u64 {
        self.shared.skipped.load(Ordering::Relaxed)
    }

    /// Waits for the end of all threads. Discards the intervals that were not read.
    ///
    /// # Errors
    /// Fails if a thread ended with an error.
    pub fn finish(mut self) -> Result<(), EngineFault> {
        let threads = std::mem::take(&mut self.threads);
        if threads.iter().any(|thread| !thread.is_finished()) {
            // A thread may block until the channel has room, so its intervals must be read.
            while !matches!(self.next(Duration::from_secs(1)), EngineEvent::Ended) {}
        }
        for (index, thread) in threads.into_iter().enumerate() {
            thread.join().map_err(|_| EngineFault::Panicked { thread: index })??;
        }
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the maximum number of iterations of each closed scenario, or `None` without a limit. An
/// open scenario has the value `None` too, because its schedule limits the iterations.
fn iteration_limits(plan: &Plan) -> Vec<Option<AtomicU64>> {
    let limit = |scenario: &Scenario| {
        let is_closed = matches!(scenario.model, Model::Closed);
        scenario.iterations_max.filter(|_| is_closed).map(AtomicU64::new)
    };
    plan.scenarios.iter().map(limit).collect()
}

/// Returns the number of open files that a plan needs.
pub fn files_needed(plan: &Plan) -> u64 {
    let workers: usize = plan.scenarios.iter().map(|scenario| scenario.workers_max).sum();
    let subscribers: usize = plan.subscriptions.iter().map(|group| group.connections).sum();
    (workers + subscribers) as u64 + OTHER_FILES
}

/// Returns the TLS settings for connections to the plan's target.
fn build_peer(plan: &Plan) -> Result<Peer, EngineFault> {
    tls::build_peer(&plan.target, &plan.connections.tls, plan.connections.http)
}

/// If the plan may need more open files than the process's soft limit, raises the soft limit to the
/// hard limit. Without a hard limit, raises the soft limit to the needed number. Fails if the hard
/// limit is too low, or if the soft limit cannot be raised.
fn allow_files(plan: &Plan) -> Result<(), EngineFault> {
    let needed = files_needed(plan);
    let mut limit = getrlimit(Resource::Nofile);
    // A draining connection waits for the server to close it, and is an open file too.
    let desired = needed + (plan.threads.max(1) * thread::dial::DRAINING_MAX) as u64;
    if limit.current.is_none_or(|current| current >= desired) {
        return Ok(());
    }
    if let Some(allowed) = limit.maximum.filter(|&maximum| maximum < needed) {
        return Err(EngineFault::Files { needed, allowed });
    }
    limit.current = limit.maximum.or(Some(desired));
    let fault = |_| EngineFault::Files { needed, allowed: limit.current.unwrap_or_default() };
    setrlimit(Resource::Nofile, limit).map_err(fault)
}
