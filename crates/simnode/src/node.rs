//! A node: a view of the chain with limits, latency and faults. A view is the part of the chain
//! that the node has. The head of a view is its newest block.
//!
//! [`Node::serve`] processes every request. It decodes the request, and may draw a fault at random.
//! For each call, it waits for the rate limit, a worker and the latency, and then computes the
//! reply. Finally it applies the fault to the body. `serve.rs` owns the sockets. `rpc.rs` computes
//! the replies.

mod rng;
pub mod settings;
mod token_bucket;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until};
use wire::call::{Body, Call, Limits, Rejection};

use self::rng::NodeRng;
use self::settings::{ErrorKind, Fault, RateLimitAction, Settings, SettingsError};
use self::token_bucket::TokenBucket;
use crate::replay::Recording;
use crate::rpc::{self, RawReply, Reply, RpcError, View, wording};
use crate::seed::mix;
use crate::world::World;

/// Maximum number of bytes of one response, as in geth (`rpc.batchResponseMaxSize` of 25 MB).
pub const RESPONSE_BYTES_MAX: usize = 25_000_000;

/// The source of a node's replies.
pub enum Source {
    /// The simulated chain.
    World(Arc<World>),
    /// Recorded pairs of requests and responses.
    Recording(Arc<Recording>),
}

/// The outcome of one request: the server sends bytes, or ends the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A complete response.
    Whole {
        /// The HTTP status.
        status: u16,
        /// The content type.
        content_type: &'static str,
        /// The seconds of `Retry-After`; `None` if the response has no such header.
        retry_after_s: Option<u64>,
        /// The body.
        body: Bytes,
    },
    /// The first half of this body. Then the connection is closed.
    Truncated(Bytes),
    /// This body at a limited speed.
    Slow {
        /// The body.
        body: Bytes,
        /// The speed.
        bytes_per_second: u32,
    },
    /// No response: the connection is closed.
    Close,
    /// No response: the connection is reset.
    Reset,
}

/// A node. Share it in an [`Arc`].
pub struct Node {
    name: String,
    source: Source,
    /// A change replaces the settings as a whole. A request uses the same settings from its start
    /// to its end.
    settings: RwLock<Arc<Settings>>,
    /// The lock is held only for a few arithmetic operations.
    state: Mutex<NodeState>,
    /// `None` if the number of workers is unlimited.
    workers: RwLock<Option<Arc<WorkerPool>>>,
    requests: AtomicU64,
    calls: AtomicU64,
    faults: AtomicU64,
}

/// The random numbers, token buckets and fault counts of a node.
struct NodeState {
    rng: NodeRng,
    /// The token buckets by the name of their rate limit: a method or `*`.
    buckets: HashMap<String, TokenBucket>,
    /// Number of times that each fault rule has applied, by the rule's index.
    fault_counts: Vec<u64>,
}

/// The workers of a node. Each worker is a slot, which processes one call at a time.
struct WorkerPool {
    slots: Semaphore,
    /// Number of calls that wait for a slot.
    waiting: AtomicU32,
    /// The scheduled times at which the free slots became free, earliest first. A timer fires up to
    /// a millisecond after its scheduled time. The work of a waiting call therefore starts at its
    /// slot's scheduled time. So late timers do not reduce the capacity.
    free_since: Mutex<VecDeque<Instant>>,
}

impl WorkerPool {
    fn new(slots: u32) -> Self {
        Self {
            slots: Semaphore::new(slots as usize),
            waiting: AtomicU32::new(0),
            free_since: Mutex::default(),
        }
    }

    /// Starts to work on a call that arrived at `arrived`. The work takes the time `service`.
    fn start<'a>(
        &'a self,
        permit: SemaphorePermit<'a>,
        arrived: Instant,
        service: Duration,
    ) -> Slot<'a> {
        let free_since = self.free_since.lock().pop_front().unwrap_or(arrived);
        Slot { workers: self, end: free_since.max(arrived) + service, _permit: permit }
    }
}

/// A busy slot. Dropping it frees the slot.
struct Slot<'a> {
    workers: &'a WorkerPool,
    /// Scheduled end of the work.
    end: Instant,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        // If the client has disconnected, the work ends before its scheduled end. The permit is
        // dropped after this function.
        self.workers.free_since.lock().push_back(self.end.min(Instant::now()));
    }
}

/// The counters of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Number of requests. The body of a request is a call or a batch.
    pub requests: u64,
    /// Number of calls. A batch has one or more calls.
    pub calls: u64,
    /// Number of requests with a fault.
    pub faults: u64,
}

/// The reason why a node rejects a call before it computes a reply.
enum AdmissionError {
    /// The call gets this error.
    Error(RpcError),
    /// The whole request gets status 429, with these seconds of `Retry-After`.
    TooManyRequests(u64),
}

impl Node {
    /// Creates a node of a world. Its random numbers depend on the world's seed and the node's
    /// name.
    #[must_use]
    pub fn new(name: &str, world: Arc<World>) -> Arc<Self> {
        let seed = world.options().seed;
        Self::build(name, Source::World(world), seed)
    }

    /// Creates a node that replays a recording.
    #[must_use]
    pub fn replaying(name: &str, recording: Arc<Recording>) -> Arc<Self> {
        // A recording has no seed.
        let seed = 0;
        Self::build(name, Source::Recording(recording), seed)
    }

    /// Creates a node whose random numbers depend on its name and the seed.
    fn build(name: &str, source: Source, seed: u64) -> Arc<Self> {
        let seed = name.bytes().fold(mix(seed), |state, byte| mix(state ^ u64::from(byte)));
        let rng = NodeRng::new(seed);
        Arc::new(Self {
            name: name.to_owned(),
            source,
            settings: RwLock::default(),
            state: Mutex::new(NodeState { rng, buckets: HashMap::new(), fault_counts: Vec::new() }),
            workers: RwLock::new(None),
            requests: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        })
    }

    /// Returns the node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the chain of the node, or `None` if the node replays a recording.
    #[must_use]
    pub fn world(&self) -> Option<&Arc<World>> {
        match &self.source {
            Source::World(world) => Some(world),
            Source::Recording(_) => None,
        }
    }

    /// Returns the current settings.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }

    /// Returns the counters of the node.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            requests: self.requests.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            faults: self.faults.load(Ordering::Relaxed),
        }
    }

    /// Changes the settings. Requests in flight keep the previous settings. Token buckets, the
    /// queue and the counts of fault rules are reset.
    ///
    /// # Errors
    /// Returns the first invalid setting, and changes nothing.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<(), SettingsError> {
        let mut current = self.settings.write();
        let mut settings = Settings::clone(&current);
        change(&mut settings);
        settings.validate()?;
        let workers = settings.capacity.map(|capacity| Arc::new(WorkerPool::new(capacity.slots)));
        *self.workers.write() = workers;
        let mut state = self.state.lock();
        state.buckets.clear();
        state.fault_counts = vec![0; settings.faults.len()];
        *current = Arc::new(settings);
        Ok(())
    }

    /// Freezes the node's view of the chain at its current head.
    pub fn freeze(&self) {
        let Some(view) = self.view(Instant::now()) else { return };
        self.set(|settings| settings.frozen_at = Some(view.head))
            .expect("a head of the world is always valid");
    }

    /// Lets a frozen node catch up.
    pub fn thaw(&self) {
        self.set(|settings| settings.frozen_at = None).expect("settings without a head are valid");
    }

    /// Returns the node's view at an instant, or `None` if the node replays a recording.
    #[must_use]
    pub fn view(&self, now: Instant) -> Option<View> {
        self.world().map(|world| view_of(world, &self.settings.read(), now))
    }

    /// Serves one request body, and waits as long as the settings require. Never returns if a fault
    /// or a rate limit suppresses the response.
    pub async fn serve(&self, body: &[u8]) -> Delivery {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let settings = self.settings();
        let decoded = match wire::call::decode(body, &LIMITS) {
            Ok(decoded) => decoded,
            Err(rejection) => return json_delivery(rejection_json(&rejection)),
        };
        let fault = self.draw_fault(&settings, &decoded);
        match fault {
            Some(Fault::Close) => return Delivery::Close,
            Some(Fault::Reset) => return Delivery::Reset,
            Some(Fault::Hang) => std::future::pending().await,
            _ => {}
        }
        let mut out = Vec::new();
        let outcome = match &decoded {
            Body::Single(call) => self.respond_to_call(&settings, fault, call, &mut out).await,
            Body::Batch(calls) => self.respond_to_batch(&settings, fault, calls, &mut out).await,
        };
        match outcome {
            Ok(()) => apply_body_fault(fault, out.into()),
            Err(retry_after_s) => too_many_requests(retry_after_s),
        }
    }

    /// Responds to the calls of a batch one after the other, as geth does. Returns the seconds of
    /// `Retry-After` if the whole batch gets status 429.
    async fn respond_to_batch(
        &self,
        settings: &Settings,
        fault: Option<Fault>,
        calls: &[Result<Call<'_>, Rejection<'_>>],
        out: &mut Vec<u8>,
    ) -> Result<(), u64> {
        out.push(b'[');
        if settings.keeping.batch_calls_max.is_some_and(|calls_max| calls.len() > calls_max) {
            // geth `rpc/handler.go`: `respondWithBatchTooLarge` responds to the first call alone.
            let first_id = calls.iter().flatten().find_map(|call| call.id).unwrap_or(b"null");
            let error = RpcError::new(-32600, "batch too large").to_json();
            wire::response::write_error_raw(out, first_id, &error);
            out.push(b']');
            return Ok(());
        }
        for (index, call) in calls.iter().enumerate() {
            let previous_end = out.len();
            // The output starts with `[`. A longer output has at least one response.
            let needs_comma = previous_end > 1;
            if needs_comma {
                out.push(b',');
            }
            let start = out.len();
            // With this fault, the second call of a batch gets the id of the first.
            let repeats_id = fault == Some(Fault::DuplicateId) && index == 1;
            let served_call = match (repeats_id, &calls[0]) {
                (true, Ok(first)) => call.clone().map(|call| Call { id: first.id, ..call }),
                _ => call.clone(),
            };
            self.respond_to_call(settings, fault, &served_call, out).await?;
            if out.len() == start {
                // A notification has no response.
                out.truncate(previous_end);
            }
            if out.len() > RESPONSE_BYTES_MAX {
                let id = call.as_ref().ok().and_then(|call| call.id).unwrap_or(b"null");
                out.truncate(previous_end);
                if needs_comma {
                    out.push(b',');
                }
                // geth `rpc/errors.go`: errcodeResponseTooLarge.
                let error = RpcError::new(-32003, "response too large").to_json();
                wire::response::write_error_raw(out, id, &error);
                break;
            }
        }
        // The response to a batch of notifications is empty (geth: status 200, no body).
        if out.len() == 1 {
            out.clear();
        } else {
            out.push(b']');
        }
        Ok(())
    }

    /// Appends the response to one call. Appends nothing for a notification. Returns the seconds of
    /// `Retry-After` if the whole request gets status 429.
    async fn respond_to_call(
        &self,
        settings: &Settings,
        fault: Option<Fault>,
        call: &Result<Call<'_>, Rejection<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), u64> {
        let call = match call {
            Ok(call) => call,
            Err(rejection) => {
                out.extend_from_slice(&rejection_json(rejection));
                return Ok(());
            }
        };
        self.calls.fetch_add(1, Ordering::Relaxed);
        let reply = match self.admit(settings, &call.method).await {
            Ok(()) => self.compute_reply(settings, fault, call),
            Err(AdmissionError::Error(error)) => RawReply::from(&error),
            Err(AdmissionError::TooManyRequests(retry_after_s)) => return Err(retry_after_s),
        };
        let Some(id) = call.id else { return Ok(()) };
        let id = if fault == Some(Fault::WrongId) { &b"987654321"[..] } else { id };
        let start = out.len();
        out.reserve(reply.len() + id.len() + ENVELOPE_BYTES);
        match (&reply, fault) {
            (RawReply::Result(result), Some(Fault::ResultAndError)) => {
                // In JSON-RPC 1.0, a null result beside an error is valid. So this fault needs a
                // result other than null.
                let result = if **result == *b"null" { b"false" } else { &**result };
                wire::response::write_result(out, id, result);
                out.pop();
                out.extend_from_slice(b",\"error\":{\"code\":-32000,\"message\":\"both\"}}");
            }
            (_, Some(Fault::NeitherResultNorError)) => {
                out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
                out.extend_from_slice(id);
                out.push(b'}');
            }
            (RawReply::Result(result), _) => wire::response::write_result(out, id, result),
            (RawReply::Error(error), _) => wire::response::write_error_raw(out, id, error),
        }
        // The output of a batch starts with `[`, so `start` is 0 only for a single call. This fault
        // writes the id of a single response twice.
        if fault == Some(Fault::DuplicateId) && start == 0 {
            out.pop();
            out.extend_from_slice(b",\"id\":");
            out.extend_from_slice(id);
            out.push(b'}');
        }
        Ok(())
    }

    /// Computes the reply to a call, without waiting.
    fn compute_reply(
        &self,
        settings: &Settings,
        fault: Option<Fault>,
        call: &Call<'_>,
    ) -> RawReply {
        let client = settings.keeping.client;
        if let Some(Fault::Error { error }) = fault {
            return RawReply::from(&match error {
                ErrorKind::LimitExceeded => client.limit_exceeded(),
                ErrorKind::HeaderNotFound => client.header_not_found(),
                ErrorKind::MissingTrieNode => client.state_missing(0, Default::default()),
                ErrorKind::ExecutionTimeout => client.execution_timeout(),
            });
        }
        let method = call.method.as_ref();
        if !settings.unsupported.is_empty() && settings.unsupported.contains(method) {
            return RawReply::from(&client.unsupported(method));
        }
        match &self.source {
            Source::Recording(recording) => recording
                .find(method, call.params.raw())
                .unwrap_or_else(|| RawReply::from(&wording::not_recorded(method))),
            Source::World(world) => {
                let mut view = view_of(world, settings, Instant::now());
                self.route_to_second_backend(settings, method, &mut view);
                match rpc::respond(world, &view, method, call.params.raw()) {
                    Reply::Result(result) => RawReply::Result(result),
                    Reply::Error(error) => RawReply::from(&error),
                }
            }
        }
    }

    /// Imitates a second, lagging backend behind the same address: lowers the head of the view for
    /// a share of the calls.
    fn route_to_second_backend(&self, settings: &Settings, method: &str, view: &mut View) {
        let Some(backend) = settings.inside else { return };
        let reads_logs =
            ["Logs", "Receipt", "Receipts"].iter().any(|suffix| method.ends_with(suffix));
        if (reads_logs || backend.all_methods) && self.state.lock().rng.chance(backend.share) {
            view.head = view.head.saturating_sub(backend.behind_blocks);
            view.indexed = view.indexed.min(view.head);
            view.clamps_logs_to_head = true;
        }
    }

    /// Draws the fault of a request, if there is one.
    fn draw_fault(&self, settings: &Settings, body: &Body<'_>) -> Option<Fault> {
        if settings.faults.is_empty() {
            return None;
        }
        let has_method = |method: &str| match body {
            Body::Single(call) => call.as_ref().is_ok_and(|call| call.method == method),
            Body::Batch(calls) => calls.iter().flatten().any(|call| call.method == method),
        };
        let mut state = self.state.lock();
        for (index, rule) in settings.faults.iter().enumerate() {
            // If the settings were changed meanwhile, the rule may have no count.
            let count = state.fault_counts.get(index).copied().unwrap_or_default();
            let is_used_up = rule.times.is_some_and(|times| count >= times);
            let concerns_request = rule.method.as_deref().is_none_or(has_method);
            if is_used_up || !concerns_request || !state.rng.chance(rule.share) {
                continue;
            }
            if let Some(count) = state.fault_counts.get_mut(index) {
                *count += 1;
            }
            self.faults.fetch_add(1, Ordering::Relaxed);
            return Some(rule.fault);
        }
        None
    }

    /// Waits for the rate limit, a worker and the latency of a method.
    async fn admit(&self, settings: &Settings, method: &str) -> Result<(), AdmissionError> {
        // Without limits and latencies, no call waits.
        if settings.is_plain() {
            return Ok(());
        }
        self.await_rate_limit(settings, method).await?;
        self.occupy_worker(settings).await?;
        let distribution = settings.method_latency.get(method).unwrap_or(&settings.latency);
        let latency = self.state.lock().rng.draw_latency(*distribution);
        if !latency.is_zero() {
            sleep(latency).await;
        }
        Ok(())
    }

    /// Takes a token of the method's rate limit. If there is no token, the action of the limit
    /// decides: the call waits, fails or never returns.
    async fn await_rate_limit(
        &self,
        settings: &Settings,
        method: &str,
    ) -> Result<(), AdmissionError> {
        let method_rate = settings.rates.get_key_value(method);
        let Some((name, rate)) = method_rate.or_else(|| settings.rates.get_key_value("*")) else {
            return Ok(());
        };
        let now = Instant::now();
        // With `Queue`, a call reserves the next token and waits, so `has_token` is always true.
        let (has_token, wait) = {
            let mut state = self.state.lock();
            let full_bucket = TokenBucket::full(rate, now);
            let bucket = state.buckets.entry(name.clone()).or_insert(full_bucket);
            match rate.over {
                RateLimitAction::Queue => (true, bucket.reserve(rate, now)),
                _ => (bucket.try_take(rate, now), Duration::ZERO),
            }
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
        if has_token {
            return Ok(());
        }
        match rate.over {
            RateLimitAction::Queue => Ok(()),
            RateLimitAction::Error { code } => {
                Err(AdmissionError::Error(RpcError::new(code, "rate limit exceeded")))
            }
            RateLimitAction::TooManyRequests { retry_after_s } => {
                Err(AdmissionError::TooManyRequests(retry_after_s))
            }
            RateLimitAction::Hang => std::future::pending().await,
        }
    }

    /// Waits until a worker has processed the call. Fails if the queue is full.
    async fn occupy_worker(&self, settings: &Settings) -> Result<(), AdmissionError> {
        let Some(capacity) = settings.capacity else { return Ok(()) };
        let Some(workers) = self.workers.read().clone() else { return Ok(()) };
        let arrived = Instant::now();
        let permit = match workers.slots.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                let entry = QueueEntry::enter(&workers.waiting, capacity.queue_max)
                    .ok_or_else(|| AdmissionError::Error(overload_error()))?;
                let permit = workers.slots.acquire().await;
                drop(entry);
                permit.expect("the semaphore is never closed")
            }
        };
        let slot = workers.start(permit, arrived, capacity.service);
        sleep_until(slot.end).await;
        Ok(())
    }
}

/// The entry of a waiting call in the queue. Dropping the entry frees it, also if the client
/// disconnects.
struct QueueEntry<'a>(&'a AtomicU32);

impl<'a> QueueEntry<'a> {
    /// Enters the queue. Returns `None` if the queue is full.
    fn enter(waiting: &'a AtomicU32, queue_max: u32) -> Option<Self> {
        if waiting.fetch_add(1, Ordering::Relaxed) >= queue_max {
            waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(waiting))
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The limits of a request: 5 MiB per body and 1,000 calls per batch, as in geth's `rpc` package.
/// All other limits are the decoder's own.
pub(crate) const LIMITS: Limits = Limits::DEFAULT;
/// Bytes to reserve for the JSON-RPC envelope around an id and a result.
const ENVELOPE_BYTES: usize = 40;

/// Returns the view of a node with these settings at an instant.
fn view_of(world: &World, settings: &Settings, now: Instant) -> View {
    let block_cutoff = now.checked_sub(settings.delay).unwrap_or(world.origin());
    let newest_head = world.height_at(block_cutoff).saturating_sub(settings.lag_blocks);
    let newest_head = world.block_at_or_below(newest_head);
    let head = settings.frozen_at.map_or(newest_head, |frozen| frozen.min(newest_head));
    let indexed = match settings.index_delay {
        Duration::ZERO => head,
        delay => {
            let index_cutoff = block_cutoff.checked_sub(delay).unwrap_or(world.origin());
            world.height_at(index_cutoff).saturating_sub(settings.lag_blocks).min(head)
        }
    };
    let (ahead_blocks, retention) = (settings.ahead_blocks, settings.keeping);
    View { head, ahead_blocks, indexed, clamps_logs_to_head: false, retention }
}

fn overload_error() -> RpcError {
    RpcError::new(wording::LIMIT_EXCEEDED, "server is overloaded, queue is full")
}

/// Returns the response to an invalid call, with geth's messages (`rpc/errors.go`).
fn rejection_json(rejection: &Rejection<'_>) -> Vec<u8> {
    let message = match rejection.code.0 {
        -32700 => "parse error",
        _ => "invalid request",
    };
    let mut out = Vec::new();
    let error = RpcError::new(rejection.code.0.into(), message).to_json();
    wire::response::write_error_raw(&mut out, rejection.id.unwrap_or(b"null"), &error);
    out
}

fn json_delivery(body: impl Into<Bytes>) -> Delivery {
    whole_delivery(200, "application/json", None, body.into())
}

fn whole_delivery(
    status: u16,
    content_type: &'static str,
    retry_after_s: Option<u64>,
    body: Bytes,
) -> Delivery {
    Delivery::Whole { status, content_type, retry_after_s, body }
}

fn too_many_requests(retry_after_s: u64) -> Delivery {
    whole_delivery(
        429,
        "text/plain",
        Some(retry_after_s),
        Bytes::from_static(b"Too Many Requests\n"),
    )
}

/// Applies a fault that concerns the whole body.
fn apply_body_fault(fault: Option<Fault>, body: Bytes) -> Delivery {
    const PAGE: &str = "<!DOCTYPE html><html><head><title>Bad gateway</title></head>\
        <body><h1>We are sorry</h1><p>Please try again later.</p></body></html>\n";
    match fault {
        Some(Fault::Truncate) => Delivery::Truncated(body),
        Some(Fault::Html) => {
            whole_delivery(200, "text/html", None, Bytes::from_static(PAGE.as_bytes()))
        }
        Some(Fault::NotJson) => {
            json_delivery(Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"resu"))
        }
        Some(Fault::TooManyRequests { retry_after_s }) => too_many_requests(retry_after_s),
        Some(Fault::Unavailable) => whole_delivery(503, "text/plain", None, Bytes::new()),
        Some(Fault::SlowBody { bytes_per_second }) => Delivery::Slow { body, bytes_per_second },
        _ => json_delivery(body),
    }
}

#[cfg(test)]
mod tests;
