//! A node: a view on the world with a temper. It turns a request's body into what goes over the
//! connection; sockets are `serve.rs`, the answers themselves `rpc.rs`.
//!
//! [`Node::serve`] is the path of every request: decode, choose a fault, wait as the settings say,
//! answer each call, wrap the answers, spoil them.

mod dice;
mod load;
pub mod settings;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until};
use wire::call::{Body, Call, Id, Limits, Refusal};

use self::dice::Dice;
use self::load::Bucket;
use self::settings::{ErrorKind, Fault, Over, Settings, SettingsFault};
use crate::replay::Recording;
use crate::rpc::{self, Reply, RpcError, Sight, wording};
use crate::seed::mix;
use crate::world::World;

/// The most bytes that one answer may hold, as in geth (`rpc.batchResponseMaxSize` of 25 MB).
pub const ANSWER_BYTES_MAX: usize = 25_000_000;

/// Where a node's answers come from.
pub enum Source {
    /// The simulated chain.
    World(Arc<World>),
    /// Recorded pairs of requests and answers.
    Recording(Arc<Recording>),
}

/// What goes over the connection for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// A whole answer.
    Whole {
        /// The HTTP status.
        status: u16,
        /// The content type.
        content_type: &'static str,
        /// The seconds of `Retry-After`.
        retry_after_s: Option<u64>,
        /// The body.
        body: Bytes,
    },
    /// Half of this body, then the end of the connection.
    Truncated(Bytes),
    /// This body, slowly.
    Slow {
        /// The body.
        body: Bytes,
        /// Its speed.
        bytes_per_second: u32,
    },
    /// The connection is closed.
    Close,
    /// The connection is reset.
    Reset,
}

/// A node. Share it in an [`Arc`].
pub struct Node {
    name: String,
    source: Source,
    /// Replaced whole; a request sees one from start to end.
    settings: RwLock<Arc<Settings>>,
    /// Chance and buckets: small, held for a few arithmetic operations.
    temper: Mutex<Temper>,
    workers: RwLock<Option<Arc<Workers>>>,
    requests: AtomicU64,
    calls: AtomicU64,
    faults: AtomicU64,
}

struct Temper {
    dice: Dice,
    buckets: HashMap<String, Bucket>,
    /// How often each fault rule has struck.
    struck: Vec<u64>,
}

struct Workers {
    slots: Semaphore,
    waiting: AtomicU32,
    /// When the free slots were due to become free, the first of them first. Timers fire late by up
    /// to a millisecond or more; who waited begins when the slot was due, so that what is late once
    /// is not taken from the capacity.
    free: Mutex<VecDeque<Instant>>,
}

impl Workers {
    fn new(slots: u32) -> Self {
        Self {
            slots: Semaphore::new(slots as usize),
            waiting: AtomicU32::new(0),
            free: Mutex::default(),
        }
    }

    /// Begins to work on a call that arrived then.
    fn begin<'a>(
        &'a self,
        permit: SemaphorePermit<'a>,
        arrived: Instant,
        service: Duration,
    ) -> Slot<'a> {
        let due = self.free.lock().pop_front().unwrap_or(arrived);
        Slot { workers: self, end: due.max(arrived) + service, _permit: permit }
    }
}

/// A slot at work, free when dropped.
struct Slot<'a> {
    workers: &'a Workers,
    /// When the work is done.
    end: Instant,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        // Earlier if whoever asked has left. The permit goes after this.
        self.workers.free.lock().push_back(self.end.min(Instant::now()));
    }
}

/// How much a node has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Requests, each with one body.
    pub requests: u64,
    /// Calls, of which a batch holds many.
    pub calls: u64,
    /// Faults that struck.
    pub faults: u64,
}

/// Why a call is not answered with its reply.
enum Refused {
    Error(RpcError),
    TooManyRequests(u64),
}

impl Node {
    /// A node on a world. Its chance follows from the world's seed and its name.
    #[must_use]
    pub fn new(name: &str, world: Arc<World>) -> Arc<Self> {
        let seed = world.options().seed;
        Self::build(name, Source::World(world), seed)
    }

    /// A node that replays what was recorded.
    #[must_use]
    pub fn replaying(name: &str, recording: Arc<Recording>) -> Arc<Self> {
        Self::build(name, Source::Recording(recording), 0)
    }

    fn build(name: &str, source: Source, seed: u64) -> Arc<Self> {
        let seed = name.bytes().fold(mix(seed), |state, byte| mix(state ^ u64::from(byte)));
        let dice = Dice::new(seed);
        Arc::new(Self {
            name: name.to_owned(),
            source,
            settings: RwLock::default(),
            temper: Mutex::new(Temper { dice, buckets: HashMap::new(), struck: Vec::new() }),
            workers: RwLock::new(None),
            requests: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        })
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The world that the node looks at, if it is not a replaying one.
    #[must_use]
    pub fn world(&self) -> Option<&Arc<World>> {
        match &self.source {
            Source::World(world) => Some(world),
            Source::Recording(_) => None,
        }
    }

    /// The settings as they are.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }

    /// How much the node has done.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally {
            requests: self.requests.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            faults: self.faults.load(Ordering::Relaxed),
        }
    }

    /// Changes the settings. Requests on their way keep the former ones; token buckets, the queue
    /// and the counts of fault rules start anew.
    ///
    /// # Errors
    /// The first setting that cannot be; nothing is changed then.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<(), SettingsFault> {
        let mut current = self.settings.write();
        let mut settings = Settings::clone(&current);
        change(&mut settings);
        settings.check()?;
        let workers = settings.capacity.map(|capacity| Arc::new(Workers::new(capacity.slots)));
        *self.workers.write() = workers;
        let mut temper = self.temper.lock();
        temper.buckets.clear();
        temper.struck = vec![0; settings.faults.len()];
        *current = Arc::new(settings);
        Ok(())
    }

    /// Stops the node's view of the chain where it is now.
    pub fn freeze(&self) {
        let Some(sight) = self.sight(Instant::now()) else { return };
        self.set(|settings| settings.frozen_at = Some(sight.head))
            .expect("a head of the world is always possible");
    }

    /// Lets a frozen node catch up.
    pub fn thaw(&self) {
        self.set(|settings| settings.frozen_at = None).expect("no head is always possible");
    }

    /// What the node sees at an instant; nothing if it replays.
    #[must_use]
    pub fn sight(&self, now: Instant) -> Option<Sight> {
        self.world().map(|world| sight_of(world, &self.settings.read(), now))
    }

    /// Serves one request: from a body to what goes over the connection. Waits as the settings
    /// say; with a hanging fault or rate it never returns.
    pub async fn serve(&self, body: &[u8]) -> Served {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let settings = self.settings();
        let decoded = match wire::call::decode(body, &LIMITS) {
            Ok(decoded) => decoded,
            Err(refusal) => return json(refusal_json(&refusal)),
        };
        let fault = self.strike(&settings, &decoded);
        match fault {
            Some(Fault::Close) => return Served::Close,
            Some(Fault::Reset) => return Served::Reset,
            Some(Fault::Hang) => std::future::pending().await,
            _ => {}
        }
        let mut out = Vec::new();
        let answered = match &decoded {
            Body::Single(call) => self.answer_one(&settings, fault, call, &mut out).await,
            Body::Batch(calls) => self.answer_batch(&settings, fault, calls, &mut out).await,
        };
        match answered {
            Ok(()) => spoil(fault, out.into()),
            Err(retry_after_s) => too_many_requests(retry_after_s),
        }
    }

    /// Answers a batch in order, one call after the other as geth does.
    async fn answer_batch(
        &self,
        settings: &Settings,
        fault: Option<Fault>,
        calls: &[Result<Call<'_>, Refusal<'_>>],
        out: &mut Vec<u8>,
    ) -> Result<(), u64> {
        out.push(b'[');
        for (at, call) in calls.iter().enumerate() {
            let before = out.len();
            if before > 1 {
                out.push(b',');
            }
            let start = out.len();
            let repeats_id = fault == Some(Fault::DuplicateId) && at == 1;
            let own = match (repeats_id, &calls[0]) {
                (true, Ok(first)) => call.clone().map(|call| Call { id: first.id, ..call }),
                _ => call.clone(),
            };
            self.answer_one(settings, fault, &own, out).await?;
            if out.len() == start {
                out.truncate(before); // a notification
            }
            if out.len() > ANSWER_BYTES_MAX {
                let id = call.as_ref().ok().and_then(|call| call.id.raw()).unwrap_or(b"null");
                out.truncate(before);
                if before > 1 {
                    out.push(b',');
                }
                // geth `rpc/errors.go`: errcodeResponseTooLarge.
                let error = RpcError::new(-32003, "response too large").to_json();
                wire::answer::write_error_raw(out, id, &error);
                break;
            }
        }
        // A batch of notifications alone has an empty answer (geth: status 200, no body).
        if out.len() == 1 {
            out.clear();
        } else {
            out.push(b']');
        }
        Ok(())
    }

    /// Answers one call into `out`; nothing for a notification.
    async fn answer_one(
        &self,
        settings: &Settings,
        fault: Option<Fault>,
        call: &Result<Call<'_>, Refusal<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(), u64> {
        let call = match call {
            Ok(call) => call,
            Err(refusal) => {
                out.extend_from_slice(&refusal_json(refusal));
                return Ok(());
            }
        };
        self.calls.fetch_add(1, Ordering::Relaxed);
        let said = match self.admit(settings, &call.method).await {
            Ok(()) => self.say(settings, fault, call),
            Err(Refused::Error(error)) => Said::error(&error),
            Err(Refused::TooManyRequests(retry_after_s)) => return Err(retry_after_s),
        };
        let Id::Raw(id) = call.id else { return Ok(()) };
        let id = if fault == Some(Fault::WrongId) { &b"987654321"[..] } else { id };
        let start = out.len();
        out.reserve(said.bytes().len() + id.len() + ENVELOPE_BYTES);
        match (&said, fault) {
            (Said::Result(result), Some(Fault::ResultAndError)) => {
                // A null beside an error would be a plain error in the form of JSON-RPC 1.0.
                let result = if **result == *b"null" { b"false" } else { &**result };
                wire::answer::write_result(out, id, result);
                out.pop();
                out.extend_from_slice(b",\"error\":{\"code\":-32000,\"message\":\"both\"}}");
            }
            (_, Some(Fault::NeitherResultNorError)) => {
                out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
                out.extend_from_slice(id);
                out.push(b'}');
            }
            (Said::Result(result), _) => wire::answer::write_result(out, id, result),
            (Said::Error(error), _) => wire::answer::write_error_raw(out, id, error),
        }
        if fault == Some(Fault::DuplicateId) && start == 0 {
            out.pop();
            out.extend_from_slice(b",\"id\":");
            out.extend_from_slice(id);
            out.push(b'}');
        }
        Ok(())
    }

    /// What the node says to a call, without any waiting.
    fn say(&self, settings: &Settings, fault: Option<Fault>, call: &Call<'_>) -> Said {
        let client = settings.keeping.client;
        if let Some(Fault::Error { error }) = fault {
            return Said::error(&match error {
                ErrorKind::LimitExceeded => client.limit_exceeded(),
                ErrorKind::HeaderNotFound => client.header_not_found(),
                ErrorKind::MissingTrieNode => client.state_missing(0, Default::default()),
                ErrorKind::ExecutionTimeout => client.execution_timeout(),
            });
        }
        let method = call.method.as_ref();
        if !settings.unsupported.is_empty() && settings.unsupported.contains(method) {
            return Said::error(&client.unsupported(method));
        }
        match &self.source {
            Source::Recording(recording) => recording
                .find(method, call.params.raw())
                .unwrap_or_else(|| Said::error(&client.unsupported(method))),
            Source::World(world) => {
                let mut sight = sight_of(world, settings, Instant::now());
                self.go_inside(settings, method, &mut sight);
                match rpc::answer(world, &sight, method, call.params.raw()) {
                    Reply::Result(result) => Said::Result(result),
                    Reply::Error(error) => Said::error(&error),
                }
            }
        }
    }

    /// A call for logs or receipts may reach the other node behind the address.
    fn go_inside(&self, settings: &Settings, method: &str, sight: &mut Sight) {
        let Some(inside) = settings.inside else { return };
        let concerned = ["Logs", "Receipt", "Receipts"].iter().any(|end| method.ends_with(end));
        if concerned && self.temper.lock().dice.strikes(inside.share) {
            sight.head = sight.head.saturating_sub(inside.behind_blocks);
            sight.indexed = sight.indexed.min(sight.head);
            sight.clamps = true;
        }
    }

    /// The fault that strikes a request, if any.
    fn strike(&self, settings: &Settings, body: &Body<'_>) -> Option<Fault> {
        if settings.faults.is_empty() {
            return None;
        }
        let holds = |method: &str| match body {
            Body::Single(call) => call.as_ref().is_ok_and(|call| call.method == method),
            Body::Batch(calls) => calls.iter().flatten().any(|call| call.method == method),
        };
        let mut temper = self.temper.lock();
        for (at, rule) in settings.faults.iter().enumerate() {
            let struck = temper.struck.get(at).copied().unwrap_or_default();
            if rule.times.is_some_and(|times| struck >= times)
                || !rule.method.as_deref().is_none_or(holds)
                || !temper.dice.strikes(rule.share)
            {
                continue;
            }
            if let Some(struck) = temper.struck.get_mut(at) {
                *struck += 1;
            }
            self.faults.fetch_add(1, Ordering::Relaxed);
            return Some(rule.fault);
        }
        None
    }

    /// Waits as long as the settings make a call of this method wait.
    async fn admit(&self, settings: &Settings, method: &str) -> Result<(), Refused> {
        if settings.is_plain() {
            return Ok(());
        }
        self.take_turn(settings, method).await?;
        self.work(settings).await?;
        let latency = settings.method_latency.get(method).unwrap_or(&settings.latency);
        let time = self.temper.lock().dice.time(*latency);
        if !time.is_zero() {
            sleep(time).await;
        }
        Ok(())
    }

    async fn take_turn(&self, settings: &Settings, method: &str) -> Result<(), Refused> {
        let own = settings.rates.get_key_value(method);
        let Some((name, rate)) = own.or_else(|| settings.rates.get_key_value("*")) else {
            return Ok(());
        };
        let now = Instant::now();
        let (taken, wait) = {
            let mut temper = self.temper.lock();
            let full = Bucket::full(rate, now);
            let bucket = temper.buckets.entry(name.clone()).or_insert(full);
            match rate.over {
                Over::Queue => (true, bucket.reserve(rate, now)),
                _ => (bucket.take(rate, now), Duration::ZERO),
            }
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
        match rate.over {
            _ if taken => Ok(()),
            Over::Queue => Ok(()),
            Over::Error { code } => Err(Refused::Error(RpcError::new(code, "rate limit exceeded"))),
            Over::TooManyRequests { retry_after_s } => Err(Refused::TooManyRequests(retry_after_s)),
            Over::Hang => std::future::pending().await,
        }
    }

    async fn work(&self, settings: &Settings) -> Result<(), Refused> {
        let Some(capacity) = settings.capacity else { return Ok(()) };
        let Some(workers) = self.workers.read().clone() else { return Ok(()) };
        let arrived = Instant::now();
        let permit = match workers.slots.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                let place = Waiting::enter(&workers.waiting, capacity.queue_max)
                    .ok_or_else(|| Refused::Error(overloaded()))?;
                let permit = workers.slots.acquire().await;
                drop(place);
                permit.expect("the semaphore is never closed")
            }
        };
        let slot = workers.begin(permit, arrived, capacity.service);
        sleep_until(slot.end).await;
        Ok(())
    }
}

/// A place in the queue, left when dropped, so that a caller who gives up frees it.
struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn enter(waiting: &'a AtomicU32, queue_max: u32) -> Option<Self> {
        if waiting.fetch_add(1, Ordering::Relaxed) >= queue_max {
            waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(waiting))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a node says to one call.
pub(crate) enum Said {
    /// The `result` member.
    Result(Bytes),
    /// The `error` member.
    Error(Bytes),
}

impl Said {
    fn error(error: &RpcError) -> Self {
        Self::Error(error.to_json().into())
    }

    fn bytes(&self) -> &Bytes {
        match self {
            Self::Result(bytes) | Self::Error(bytes) => bytes,
        }
    }
}

/// geth's limits (`rpc` package: 5 MiB body, 1,000 calls in a batch), and the decoder's own.
pub(crate) const LIMITS: Limits = Limits::USUAL;
/// What an envelope adds to an id and a result.
const ENVELOPE_BYTES: usize = 40;

fn sight_of(world: &World, settings: &Settings, now: Instant) -> Sight {
    let seen = now.checked_sub(settings.delay).unwrap_or(world.origin());
    let newest = world.height_at(seen).saturating_sub(settings.lag_blocks);
    let head = settings.frozen_at.map_or(newest, |frozen| frozen.min(newest));
    let indexed = match settings.index_delay {
        Duration::ZERO => head,
        delay => {
            let then = seen.checked_sub(delay).unwrap_or(world.origin());
            world.height_at(then).saturating_sub(settings.lag_blocks).min(head)
        }
    };
    let (ahead, keeping) = (settings.ahead_blocks, settings.keeping);
    Sight { head, ahead, indexed, clamps: false, keeping }
}

fn overloaded() -> RpcError {
    RpcError::new(wording::LIMIT, "server is overloaded, queue is full")
}

/// A refusal in geth's words (`rpc/errors.go`).
fn refusal_json(refusal: &Refusal<'_>) -> Vec<u8> {
    let message = match refusal.code.0 {
        -32700 => "parse error",
        _ => "invalid request",
    };
    let mut out = Vec::new();
    let error = RpcError::new(refusal.code.0.into(), message).to_json();
    wire::answer::write_error_raw(&mut out, refusal.id.unwrap_or(b"null"), &error);
    out
}

fn json(body: impl Into<Bytes>) -> Served {
    whole(200, "application/json", None, body.into())
}

fn whole(
    status: u16,
    content_type: &'static str,
    retry_after_s: Option<u64>,
    body: Bytes,
) -> Served {
    Served::Whole { status, content_type, retry_after_s, body }
}

fn too_many_requests(retry_after_s: u64) -> Served {
    whole(429, "text/plain", Some(retry_after_s), Bytes::from_static(b"Too Many Requests\n"))
}

/// Applies the faults that strike the whole body.
fn spoil(fault: Option<Fault>, body: Bytes) -> Served {
    const PAGE: &str = "<!DOCTYPE html><html><head><title>Bad gateway</title></head>\
        <body><h1>We are sorry</h1><p>Please try again later.</p></body></html>\n";
    match fault {
        Some(Fault::Truncate) => Served::Truncated(body),
        Some(Fault::Html) => whole(200, "text/html", None, Bytes::from_static(PAGE.as_bytes())),
        Some(Fault::NotJson) => json(Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"resu")),
        Some(Fault::TooManyRequests { retry_after_s }) => too_many_requests(retry_after_s),
        Some(Fault::Unavailable) => whole(503, "text/plain", None, Bytes::new()),
        Some(Fault::SlowBody { bytes_per_second }) => Served::Slow { body, bytes_per_second },
        _ => json(body),
    }
}

#[cfg(test)]
mod tests;
