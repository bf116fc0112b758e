//! Sends a demo's calls at a fixed rate (open loop) and measures latency from the scheduled time.
//! `calls.rs` generates the calls, and `judge.rs` verifies results.
//!
//! Clients are plain threads. A sleeping thread wakes at most about 0.1 ms late. The timer of an
//! event loop may fire 1 ms late, which is longer than a cache hit takes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use parking_lot::{Mutex, MutexGuard};
use simnode::world::World;
use tokio::time::Instant;
use ureq::Agent;
use wire::response::{Outcome, parse_response};

use super::calls::{Call, CallKind, generate};
use super::judge::{Evidence, JudgeSender, RESPONSE_DEPTH_MAX};

/// Calls per second through the gateway. Two cores are enough for the whole demo at this rate.
pub(super) const RATE: u32 = 1_500;
/// Number of persistent connections to the gateway, each with one call at a time. They sustain
/// [`RATE`] if calls take up to 30 ms.
const CONNECTIONS: usize = 48;
/// Calls per second sent directly to a node, for comparison. The rate is low, so that the calls do
/// not load the node.
const DIRECT_RATE: u32 = 50;
/// Persistent connections to that node.
const DIRECT_CONNECTIONS: usize = 4;
/// Maximum number of errors that are reported with their text. All errors are counted.
const ERROR_SAMPLES_MAX: usize = 5;
/// Timeout of a call. The gateway's default deadline of 30 s ends first.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Maximum size of a response body in bytes. All responses of the demo are smaller.
const BODY_BYTES_MAX: u64 = 16 << 20;
/// Upper bound of the histograms: longer than every deadline.
const LATENCY_MAX: Duration = Duration::from_secs(120);

/// Histogram of latencies in microseconds.
pub(super) type Latencies = Histogram<u64>;

/// The measurements of a run.
pub(super) struct Measurements {
    /// Latency through the gateway, by [`CallKind`].
    pub(super) gateway: [Latencies; 2],
    /// Latency of direct calls to a node, by [`CallKind`].
    pub(super) direct: [Latencies; 2],
    /// Latency through the gateway since the last sample.
    pub(super) recent: Latencies,
    /// Scheduling delay: time from the scheduled time of a call until an idle client sent it.
    pub(super) scheduling_delay: Latencies,
    /// Number of calls through the gateway that returned no result.
    pub(super) errors: u64,
    /// Number of direct calls to a node that returned no result.
    pub(super) direct_errors: u64,
    /// Descriptions of the first errors.
    pub(super) error_samples: Vec<String>,
}

/// The running clients.
pub(super) struct Traffic {
    state: Arc<TrafficState>,
    /// Scheduled time of the first call.
    pub(super) start: Instant,
}

/// The servers that get the calls.
#[derive(Clone, Copy)]
pub(super) struct Targets {
    pub(super) gateway: SocketAddr,
    pub(super) direct: SocketAddr,
}

/// The state that all clients share.
struct TrafficState {
    world: Arc<World>,
    start: Instant,
    end: Instant,
    stop: AtomicBool,
    /// Number of running clients.
    running: AtomicUsize,
    streams: [CallStream; 2],
    measurements: Mutex<Measurements>,
}

/// Calls to one target in their scheduled order.
struct CallStream {
    target: SocketAddr,
    /// Id of the random stream that generates the calls.
    stream: u64,
    /// Scheduled calls per second.
    rate: u32,
    /// Index of the next call that a client takes.
    next_index: AtomicU64,
    /// Number of calls sent so far, including those in flight.
    sent: AtomicU64,
}

/// Index of the calls through the gateway in [`TrafficState::streams`]. It is also the id of their
/// random stream.
const GATEWAY: usize = 0;
/// Index of the direct calls to a node, and the id of their random stream.
const DIRECT: usize = 1;

impl Traffic {
    /// Starts the clients.
    pub(super) fn start(
        world: Arc<World>,
        targets: Targets,
        duration: Duration,
        judge: &JudgeSender,
    ) -> Result<Traffic> {
        let start = Instant::now();
        let call_stream = |target, stream, rate| {
            let (next_index, sent) = (AtomicU64::new(0), AtomicU64::new(0));
            CallStream { target, stream: stream as u64, rate, next_index, sent }
        };
        let state = Arc::new(TrafficState {
            world,
            start,
            end: start + duration,
            stop: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            streams: [
                call_stream(targets.gateway, GATEWAY, RATE),
                call_stream(targets.direct, DIRECT, DIRECT_RATE),
            ],
            measurements: Mutex::new(Measurements::new()?),
        });
        let gateway = (0..CONNECTIONS).map(|_| (GATEWAY, Some(judge.clone())));
        let direct = (0..DIRECT_CONNECTIONS).map(|_| (DIRECT, None));
        for (number, (stream_index, judge)) in gateway.chain(direct).enumerate() {
            let state = Arc::clone(&state);
            state.running.fetch_add(1, Ordering::Relaxed);
            let work = move || {
                state.run_client(stream_index, number as u64, judge);
                state.running.fetch_sub(1, Ordering::Release);
            };
            std::thread::Builder::new().name(format!("demo-{number}")).spawn(work)?;
        }
        Ok(Traffic { state, start })
    }

    /// Stops scheduling calls. Calls in flight continue.
    pub(super) fn stop(&self) {
        self.state.stop.store(true, Ordering::Release);
    }

    /// Returns true if every client has ended.
    pub(super) fn is_over(&self) -> bool {
        self.state.running.load(Ordering::Acquire) == 0
    }

    /// Returns the number of calls sent to the gateway so far.
    pub(super) fn sent(&self) -> u64 {
        self.state.streams[GATEWAY].sent.load(Ordering::Relaxed)
    }

    /// Locks the measurements. Clients block while the guard is held.
    pub(super) fn measurements(&self) -> MutexGuard<'_, Measurements> {
        self.state.measurements.lock()
    }
}

impl TrafficState {
    /// Runs one client: takes the next call, waits for its scheduled time, and sends it.
    #[allow(clippy::disallowed_methods)] // The client sleeps on its own thread.
    fn run_client(&self, stream_index: usize, client: u64, judge: Option<JudgeSender>) {
        let CallStream { target, stream, rate, next_index, sent } = &self.streams[stream_index];
        let url = format!("http://{target}/");
        // Each client has an agent of its own, and so one persistent connection. An agent never
        // retries, so that every failure counts.
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(TIMEOUT))
            .build()
            .new_agent();
        let post = |request: &str| {
            let request_head = agent.post(&url).header("content-type", "application/json");
            let mut response = request_head.send(request)?;
            let body = response.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_vec()?;
            Ok((response.status().as_u16(), body))
        };
        loop {
            let index = next_index.fetch_add(1, Ordering::Relaxed);
            let offset = Duration::from_secs(1).mul_f64(index as f64 / f64::from(*rate));
            let scheduled = self.start + offset;
            if scheduled >= self.end || self.stop.load(Ordering::Acquire) {
                return;
            }
            let call = generate(&self.world, self.world.height_at(Instant::now()), *stream, index);
            // `None` means that the client is late.
            let idle_time = scheduled.checked_duration_since(Instant::now());
            if let Some(wait) = idle_time {
                std::thread::sleep(wait);
                if self.stop.load(Ordering::Acquire) {
                    return;
                }
            }
            sent.fetch_add(1, Ordering::Relaxed);
            let due_call = DueCall { index, scheduled, was_idle: idle_time.is_some(), client };
            self.send(&post, stream_index, call, &due_call, judge.as_ref());
        }
    }

    /// Sends one call, records its latency and passes the response to the judge. `post` sends a body
    /// and returns the status and body of the response.
    fn send(
        &self,
        post: &impl Fn(&str) -> Result<(u16, Vec<u8>), ureq::Error>,
        stream_index: usize,
        call: Call,
        due_call: &DueCall,
        judge: Option<&JudgeSender>,
    ) {
        let Call { kind, method, params } = call;
        let id = due_call.index;
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let sent = Instant::now();
        let response = post(&request);
        let received = Instant::now();
        let body = response.map_err(|error| error.to_string()).and_then(|(status, body)| {
            let body_text = || String::from_utf8_lossy(&body).into_owned();
            match parse_response(&body, RESPONSE_DEPTH_MAX) {
                Ok(parsed) if status == 200 && parsed.id == id.to_string().as_bytes() => {
                    match parsed.outcome {
                        Outcome::Result(_) => Ok(body),
                        Outcome::Error { .. } => Err(body_text()),
                    }
                }
                _ => Err(format!("status {status}: {}", body_text())),
            }
        });
        let mut measurements = self.measurements.lock();
        if due_call.was_idle {
            record(&mut measurements.scheduling_delay, sent - due_call.scheduled);
        }
        let latency = received - due_call.scheduled;
        match stream_index {
            GATEWAY => {
                record(&mut measurements.gateway[kind.index()], latency);
                record(&mut measurements.recent, latency);
            }
            _ => record(&mut measurements.direct[kind.index()], latency),
        }
        match (body, judge) {
            (Ok(body), Some(judge)) => {
                // A busy machine may delay the gateway's polls by as much as it delays an idle
                // client. So an earlier `sent` extends the allowed staleness by this delay.
                let delay = Duration::from_micros(measurements.scheduling_delay.max());
                drop(measurements);
                let sent = sent.checked_sub(delay).unwrap_or(sent);
                let client = due_call.client;
                judge.submit(Evidence { method, params, body, sent, received, client });
            }
            // Only responses of the gateway are judged.
            (Ok(_), None) => {}
            (Err(error), _) => {
                let seconds = (received - self.start).as_secs_f64();
                let text = format!("{seconds:.1} s: {method} {params}: {error}");
                measurements.record_error(stream_index, text);
            }
        }
    }
}

/// A call that is due, and the client that sends it.
struct DueCall {
    /// Index of the call in its stream.
    index: u64,
    scheduled: Instant,
    /// True if the client was idle until the scheduled time.
    was_idle: bool,
    /// Number of the client.
    client: u64,
}

impl Measurements {
    fn new() -> Result<Measurements> {
        // The histograms have three significant digits.
        let new_histogram = || Latencies::new_with_max(LATENCY_MAX.as_micros() as u64, 3);
        Ok(Measurements {
            gateway: [new_histogram()?, new_histogram()?],
            direct: [new_histogram()?, new_histogram()?],
            recent: new_histogram()?,
            scheduling_delay: new_histogram()?,
            errors: 0,
            direct_errors: 0,
            error_samples: Vec::new(),
        })
    }

    /// Returns the number of calls through the gateway that have ended.
    pub(super) fn requests(&self) -> u64 {
        CallKind::ALL.iter().map(|kind| self.gateway[kind.index()].len()).sum()
    }

    fn record_error(&mut self, stream_index: usize, text: String) {
        if stream_index == DIRECT {
            self.direct_errors += 1;
            return;
        }
        self.errors += 1;
        if self.error_samples.len() < ERROR_SAMPLES_MAX {
            self.error_samples.push(text);
        }
    }
}

fn record(latencies: &mut Latencies, latency: Duration) {
    latencies.saturating_record(latency.as_micros() as u64);
}

/// Returns a quantile in milliseconds, or `None` if the histogram is empty.
pub(super) fn quantile_ms(latencies: &Latencies, quantile: f64) -> Option<f64> {
    (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile) as f64 / 1000.0)
}
