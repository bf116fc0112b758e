//! The load engine: sends what a plan asks for when it asks for it, and counts what comes back.
//!
//! One thread per core, each with one loop (`crates/lab-engine/src/engine/thread.rs`); schedule, stop rule
//! and the use of connections are values given to it. It judges single answers and no run: that is
//! `run.rs` and the rules. Every thread hands over an [`Interval`] per second and gets it back empty,
//! so that a long run needs no more memory than a short one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab_model::plan::{Model, Plan};
use lab_model::record::Interval;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::chain::ChainFacts;
use simulated::{Network, Stepped};
use thread::EngineThread;
use world::System;

mod body;
mod compose;
mod connection;
mod dice;
mod http2;
mod judge;
mod ledger;
mod reader;
pub mod simulated;
mod thread;
mod tls;
mod waits;
mod world;

#[cfg(test)]
mod tests;

/// Intervals of one thread that may lie between it and the recorder. As many lie ready at the start
/// and are used in turn, so that none is made, and memory does not grow, when the recorder is late.
const INTERVALS_MAX: usize = 4;
/// Samples that may lie between the engine and the comparison; more are skipped.
const SAMPLES_MAX: usize = 64;
/// Files that the process needs beside one per worker.
const FILES_BESIDE: u64 = 256;

/// Why the engine cannot run, or did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum EngineFault {
    /// The target's name stands for no address.
    #[error("the target has no address, at least one is needed")]
    NoAddress,
    /// A mix asks for what the chain does not have or the plan does not list.
    #[error("mix {mix:?} draws from {what}, of which there are none")]
    Nothing {
        /// Name of the mix.
        mix: String,
        /// What is missing.
        what: &'static str,
    },
    /// A header that cannot be sent, or that the engine sets by itself.
    #[error(
        "header {name:?} cannot be sent: its name or value is malformed, or the engine sets it itself"
    )]
    Header {
        /// Its name.
        name: String,
    },
    /// More workers than the process may have open files.
    #[error(
        "{needed} open files are needed for the plan's workers, {allowed} are allowed; run fewer workers \
         (a study's load_percent or workers), or allow more first: ulimit -n {needed}"
    )]
    Files {
        /// One per worker and some more.
        needed: u64,
        /// The hard limit of the process.
        allowed: u64,
    },
    /// A cipher suite that does not exist or does not fit the TLS version.
    #[error("cipher suite {name:?} is not one of {allowed}")]
    Cipher {
        /// As written in the plan.
        name: String,
        /// The names that are allowed.
        allowed: String,
    },
    /// The file of trust anchors cannot be used.
    #[error("trust anchors in {path}: {why}")]
    Anchors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The target's name cannot stand in a certificate.
    #[error("{host:?} is neither a host name nor an address that a certificate can be for")]
    ServerName {
        /// As written in the plan.
        host: String,
    },
    /// The TLS settings contradict each other.
    #[error("tls settings: {0}")]
    Tls(#[from] rustls::Error),
    /// The system refuses what the loop waits with.
    #[error("cannot wait for sockets (linux 5.11 or newer is needed): {0}")]
    Wait(#[source] io::Error),
    /// A thread could not be started.
    #[error("cannot start an engine thread: {0}")]
    Start(#[source] io::Error),
    /// A thread ended by a fault in the engine itself.
    #[error("engine thread {thread} ended by a fault of the engine")]
    Panicked {
        /// Which.
        thread: usize,
    },
}

/// What comes next from the engine.
#[derive(Debug)]
pub enum Next {
    /// What one thread saw within a second; give it back.
    Interval(Interval),
    /// Nothing within the time waited.
    Nothing,
    /// All threads have ended, and everything that they saw was handed out.
    Ended,
}

/// A call and its answer, picked by chance for comparison with a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When the answer had come, since the start of the run.
    pub at: Duration,
    /// Index over all stages of the plan.
    pub stage: u16,
    /// Index into the plan's methods.
    pub method: u16,
    /// Body of the request.
    pub request: Vec<u8>,
    /// Body of the answer: a JSON-RPC result or error with the right id.
    pub answer: Vec<u8>,
}

/// What all threads share.
pub(crate) struct Shared {
    /// Whether the run is to end now.
    stop: AtomicBool,
    /// Iterations that may still begin, by scenario; for closed ones with a limit.
    left: Vec<Option<AtomicU64>>,
    /// Samples for comparison that nobody took in time.
    skipped: AtomicU64,
}

/// A run's threads. Dropping it ends them.
pub struct Engine {
    shared: Arc<Shared>,
    /// By thread: what wakes it.
    bells: Vec<Arc<OwnedFd>>,
    filled: Receiver<Interval>,
    /// By thread: where emptied intervals go.
    spare: Vec<SyncSender<Interval>>,
    samples: Receiver<Sample>,
    threads: Vec<JoinHandle<Result<(), EngineFault>>>,
    /// In a made-up world: the one thread, whose turns [`Engine::next`] makes.
    stepped: Option<Stepped>,
}

impl Engine {
    /// Starts all threads of a plan. Times count from `origin`, which may lie ahead; `addrs` are the
    /// target's addresses, of which the first that can be connected to is used.
    ///
    /// # Errors
    /// If the plan asks for what the engine, the chain's facts or the system do not have.
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
        let peer = Arc::new(tls::peer(&plan)?);
        let threads = plan.threads.max(1);
        let (mut engine, filled_in, samples_in) = Engine::new(&plan, threads);
        let shared = Arc::clone(&engine.shared);
        for index in 0..threads {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|errno| EngineFault::Wait(errno.into()))?;
            let bell = Arc::new(bell);
            let given = thread::Given {
                plan: &plan,
                chain: &chain,
                addresses: &addrs,
                peer: &peer,
                shared: &shared,
                index,
                threads,
                filled: filled_in.clone(),
                spare: engine.spare(&plan, index),
                samples: samples_in.clone(),
            };
            let thread = EngineThread::new(given, System::new(origin, &bell)?)?;
            engine.bells.push(bell);
            let named = std::thread::Builder::new().name(format!("load-{index}"));
            let started = named.spawn(move || thread.run()).map_err(EngineFault::Start)?;
            engine.threads.push(started);
        }
        Ok(engine)
    }

    /// The same in a made-up world, on one thread and in virtual time: each call of [`Engine::next`]
    /// makes the turns up to the next interval.
    ///
    /// # Errors
    /// If the plan asks for what the engine or the chain's facts do not have.
    pub fn simulated(
        plan: Arc<Plan>,
        chain: &Arc<ChainFacts>,
        network: &Network,
    ) -> Result<Engine, EngineFault> {
        let (mut engine, filled, samples) = Engine::new(&plan, 1);
        let given = thread::Given {
            plan: &plan,
            chain,
            addresses: &[SocketAddr::from(([127, 0, 0, 1], 1))],
            peer: &Arc::new(tls::peer(&plan)?),
            shared: &Arc::clone(&engine.shared),
            index: 0,
            threads: 1,
            filled,
            spare: engine.spare(&plan, 0),
            samples,
        };
        engine.stepped = Some(Stepped::new(EngineThread::new(given, network.clone())?));
        Ok(engine)
    }

    /// Without threads yet.
    fn new(plan: &Plan, threads: usize) -> (Engine, SyncSender<Interval>, SyncSender<Sample>) {
        let (filled_in, filled) = sync_channel(threads * INTERVALS_MAX);
        let (samples_in, samples) = sync_channel(SAMPLES_MAX);
        let shared =
            Shared { stop: AtomicBool::new(false), left: left(plan), skipped: AtomicU64::new(0) };
        let engine = Engine {
            shared: Arc::new(shared),
            bells: Vec::new(),
            filled,
            spare: Vec::new(),
            samples,
            threads: Vec::new(),
            stepped: None,
        };
        (engine, filled_in, samples_in)
    }

    /// Where a thread gets emptied intervals.
    fn spare(&mut self, plan: &Plan, index: usize) -> Receiver<Interval> {
        let (spare_in, spare) = sync_channel(INTERVALS_MAX);
        for _ in 0..INTERVALS_MAX {
            let empty = Interval::new(index, plan.stages().count(), plan.methods.len());
            // There is room, and the other end is here.
            let _kept = spare_in.try_send(empty);
        }
        self.spare.push(spare_in);
        spare
    }

    /// Waits up to `wait` for the next interval. One comes from each thread per second, and a last
    /// shorter one at its end.
    pub fn next(&mut self, wait: Duration) -> Next {
        while let Some(stepped) = &mut self.stepped {
            match self.filled.try_recv() {
                Ok(interval) => return Next::Interval(interval),
                // Dropped at its end, it lets go of the channel.
                Err(_) if !stepped.step() => self.stepped = None,
                Err(_) => {}
            }
        }
        match self.filled.recv_timeout(wait) {
            Ok(interval) => Next::Interval(interval),
            Err(RecvTimeoutError::Timeout) => Next::Nothing,
            Err(RecvTimeoutError::Disconnected) => Next::Ended,
        }
    }

    /// Takes an interval back for further use.
    pub fn give_back(&self, mut interval: Interval) {
        if let Some(spare) = self.spare.get(interval.thread) {
            interval.reset();
            // A thread that has ended, or has enough of them, needs it no more.
            let _kept = spare.try_send(interval);
        }
    }

    /// Ends the run early; calls under way are cut.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        for bell in &self.bells {
            // A full counter has been rung already.
            let _rung = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Calls picked by the plan's reference share. Whoever does not read them loses only them.
    pub fn samples(&self) -> &Receiver<Sample> {
        &self.samples
    }

    /// How many samples so far were not handed over, because too many waited.
    pub fn samples_skipped(&self) -> u64 {
        self.shared.skipped.load(Ordering::Relaxed)
    }

    /// Waits for the end of all threads; what was not taken by [`Engine::next`] is lost.
    ///
    /// # Errors
    /// If a thread did not run to its end.
    pub fn finish(mut self) -> Result<(), EngineFault> {
        let threads = std::mem::take(&mut self.threads);
        if threads.iter().any(|thread| !thread.is_finished()) {
            // Whoever waits for room to hand over has to be let go.
            while !matches!(self.next(Duration::from_secs(1)), Next::Ended) {}
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

/// Iterations that closed scenarios may begin; open ones are limited by their schedule.
fn left(plan: &Plan) -> Vec<Option<AtomicU64>> {
    let scenarios = plan.scenarios.iter();
    let limit = |closed: bool, max: Option<u64>| max.filter(|_| closed).map(AtomicU64::new);
    scenarios.map(|one| limit(matches!(one.model, Model::Closed), one.iterations_max)).collect()
}

/// Raises the limit of open files to what the plan needs.
fn allow_files(plan: &Plan) -> Result<(), EngineFault> {
    let workers: usize = plan.scenarios.iter().map(|scenario| scenario.workers_max).sum();
    let needed = workers as u64 + FILES_BESIDE;
    let mut limit = getrlimit(Resource::Nofile);
    // Connections that are left to the server to close are open too for a while.
    let wanted = needed + (plan.threads.max(1) * thread::dial::LEAVING_MAX) as u64;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if let Some(allowed) = limit.maximum.filter(|&maximum| maximum < needed) {
        return Err(EngineFault::Files { needed, allowed });
    }
    limit.current = limit.maximum.or(Some(wanted));
    let refused = |_| EngineFault::Files { needed, allowed: limit.current.unwrap_or_default() };
    setrlimit(Resource::Nofile, limit).map_err(refused)
}
