//! Sends a demo's calls at a fixed rate and measures them: planned times do not wait for answers,
//! and latency is counted from the planned time. Which calls is `calls.rs`, one exchange
//! `client.rs`, whether a result is true `judge.rs`.
//!
//! Clients are plain threads: a sleeping thread wakes within about 0.1 ms of its time, an event
//! loop's timer within 1 ms, which is more than a cache hit takes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use parking_lot::{Mutex, MutexGuard};
use simnode::world::World;
use tokio::time::Instant;
use wire::response::{Outcome, parse_response};

use super::calls::{Asked, Kind, draw};
use super::client::Client;
use super::judge::{Bench, Evidence};

/// Calls per second through the gateway: moderate, so that two cores do for everything.
pub(super) const RATE: u32 = 1_500;
/// Kept connections to the gateway, each with one call at a time. Enough for the rate while calls
/// take 30 ms; a call that takes longer holds only its own connection.
const CONNECTIONS: usize = 48;
/// Calls per second straight to a node, for comparison: few, so that they do not load it.
const DIRECT_RATE: u32 = 50;
/// Kept connections straight to the node.
const DIRECT_CONNECTIONS: usize = 4;
/// Nesting of an answer; blocks with transactions have a handful of levels.
pub(super) const ANSWER_DEPTH_MAX: usize = 32;
/// Failures that are shown; all are counted.
const SHOWN_MAX: usize = 5;
/// Longest latency that is told apart: beyond every deadline.
const LATENCY_MAX: Duration = Duration::from_secs(120);

/// Latencies, in microseconds.
pub(super) type Latencies = Histogram<u64>;

/// What was measured.
pub(super) struct Measured {
    /// Through the gateway, by [`Kind`].
    pub(super) gateway: [Latencies; 2],
    /// Straight to a node, by [`Kind`].
    pub(super) direct: [Latencies; 2],
    /// Through the gateway since it was last taken.
    pub(super) recent: Latencies,
    /// How late calls were sent by clients that had nothing else to do.
    pub(super) late: Latencies,
    /// Calls through the gateway that got no result.
    pub(super) errors: u64,
    /// Calls straight to a node that got no result.
    pub(super) direct_errors: u64,
    /// The first errors, in words.
    pub(super) shown: Vec<String>,
}

/// The clients at work.
pub(super) struct Traffic {
    shared: Arc<Shared>,
    /// When the first call is planned.
    pub(super) start: Instant,
}

/// Whom the calls are for.
#[derive(Clone, Copy)]
pub(super) struct Targets {
    pub(super) gateway: SocketAddr,
    pub(super) direct: SocketAddr,
}

struct Shared {
    world: Arc<World>,
    start: Instant,
    end: Instant,
    stop: AtomicBool,
    running: AtomicUsize,
    lanes: [Lane; 2],
    measured: Mutex<Measured>,
}

/// Calls to one target in their planned order.
struct Lane {
    target: SocketAddr,
    /// Names the stream of draws.
    stream: u64,
    rate: u32,
    next: AtomicU64,
    /// Calls that have a result or an error, or wait for it.
    sent: AtomicU64,
}

const GATEWAY: usize = 0;
const DIRECT: usize = 1;

impl Traffic {
    /// Starts the clients.
    pub(super) fn start(
        world: Arc<World>,
        targets: Targets,
        duration: Duration,
        bench: &Bench,
    ) -> Result<Traffic> {
        let start = Instant::now();
        let lane = |target, stream, rate| {
            let (next, sent) = (AtomicU64::new(0), AtomicU64::new(0));
            Lane { target, stream: stream as u64, rate, next, sent }
        };
        let shared = Arc::new(Shared {
            world,
            start,
            end: start + duration,
            stop: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            lanes: [
                lane(targets.gateway, GATEWAY, RATE),
                lane(targets.direct, DIRECT, DIRECT_RATE),
            ],
            measured: Mutex::new(Measured::new()?),
        });
        let gateway = (0..CONNECTIONS).map(|_| (GATEWAY, Some(bench.clone())));
        let direct = (0..DIRECT_CONNECTIONS).map(|_| (DIRECT, None));
        for (number, (lane, bench)) in gateway.chain(direct).enumerate() {
            let shared = Arc::clone(&shared);
            shared.running.fetch_add(1, Ordering::Relaxed);
            let work = move || {
                shared.run(lane, number as u64, bench);
                shared.running.fetch_sub(1, Ordering::Release);
            };
            std::thread::Builder::new().name(format!("demo-{number}")).spawn(work)?;
        }
        Ok(Traffic { shared, start })
    }

    /// Plans no further calls; those under way go on.
    pub(super) fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Whether every client has ended.
    pub(super) fn is_over(&self) -> bool {
        self.shared.running.load(Ordering::Acquire) == 0
    }

    /// Calls sent to the gateway so far.
    pub(super) fn sent(&self) -> u64 {
        self.shared.lanes[GATEWAY].sent.load(Ordering::Relaxed)
    }

    /// What was measured so far. Clients wait while it is held.
    pub(super) fn measured(&self) -> MutexGuard<'_, Measured> {
        self.shared.measured()
    }
}

impl Shared {
    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.measured.lock()
    }

    /// One client: takes the next planned call, waits for its time, makes it.
    #[allow(clippy::disallowed_methods)] // It sleeps on a thread of its own, where nothing else is.
    fn run(&self, lane: usize, client: u64, bench: Option<Bench>) {
        let Lane { target, stream, rate, next, sent } = &self.lanes[lane];
        let mut line = Client::new(*target);
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let offset = Duration::from_secs(1).mul_f64(index as f64 / f64::from(*rate));
            let planned = self.start + offset;
            if planned >= self.end || self.stop.load(Ordering::Acquire) {
                return;
            }
            let asked = draw(&self.world, self.world.height_at(Instant::now()), *stream, index);
            let idle = planned.checked_duration_since(Instant::now());
            if let Some(wait) = idle {
                std::thread::sleep(wait);
                if self.stop.load(Ordering::Acquire) {
                    return;
                }
            }
            sent.fetch_add(1, Ordering::Relaxed);
            let moment = Moment { index, planned, idle: idle.is_some(), client };
            self.make(&mut line, lane, asked, &moment, bench.as_ref());
        }
    }

    fn make(
        &self,
        line: &mut Client,
        lane: usize,
        asked: Asked,
        moment: &Moment,
        bench: Option<&Bench>,
    ) {
        let Asked { kind, method, params } = asked;
        let id = moment.index;
        let call =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let sent = Instant::now();
        let answered = line.post(&call);
        let received = Instant::now();
        let body = answered.map_err(|error| format!("{error:#}")).and_then(|response| {
            let text = || String::from_utf8_lossy(&response.body).into_owned();
            match parse_response(&response.body, ANSWER_DEPTH_MAX) {
                Ok(read) if response.status == 200 && read.id == id.to_string().as_bytes() => {
                    match read.outcome {
                        Outcome::Result(_) => Ok(response.body),
                        Outcome::Error { .. } => Err(text()),
                    }
                }
                _ => Err(format!("status {}: {}", response.status, text())),
            }
        });
        let mut measured = self.measured();
        if moment.idle {
            record(&mut measured.late, sent - moment.planned);
        }
        let latency = received - moment.planned;
        match lane {
            GATEWAY => {
                record(&mut measured.gateway[kind.index()], latency);
                record(&mut measured.recent, latency);
            }
            _ => record(&mut measured.direct[kind.index()], latency),
        }
        match (body, bench) {
            (Ok(body), Some(bench)) => {
                // What held up a client that had nothing else to do held up the gateway's polls too.
                let held_up = Duration::from_micros(measured.late.max());
                drop(measured);
                let sent = sent.checked_sub(held_up).unwrap_or(sent);
                let client = moment.client;
                bench.bring(Evidence { method, params, body, sent, received, client });
            }
            (Ok(_), None) => {}
            (Err(fault), _) => {
                let at = (received - self.start).as_secs_f64();
                measured.failed(lane, format!("{at:.1} s: {method} {params}: {fault}"));
            }
        }
    }
}

/// One planned call.
struct Moment {
    index: u64,
    planned: Instant,
    /// Whether the client had to wait for its time.
    idle: bool,
    client: u64,
}

impl Measured {
    fn new() -> Result<Measured> {
        let latencies = || Latencies::new_with_max(LATENCY_MAX.as_micros() as u64, 3);
        Ok(Measured {
            gateway: [latencies()?, latencies()?],
            direct: [latencies()?, latencies()?],
            recent: latencies()?,
            late: latencies()?,
            errors: 0,
            direct_errors: 0,
            shown: Vec::new(),
        })
    }

    /// Calls through the gateway that have ended.
    pub(super) fn requests(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.gateway[kind.index()].len()).sum()
    }

    fn failed(&mut self, lane: usize, words: String) {
        if lane == DIRECT {
            self.direct_errors += 1;
            return;
        }
        self.errors += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(words);
        }
    }
}

fn record(latencies: &mut Latencies, latency: Duration) {
    latencies.saturating_record(latency.as_micros() as u64);
}

/// A quantile in milliseconds; nothing where nothing was measured.
pub(super) fn quantile_ms(latencies: &Latencies, share: f64) -> Option<f64> {
    (!latencies.is_empty()).then(|| latencies.value_at_quantile(share) as f64 / 1000.0)
}
