//! The Redis tier of the cache. Gateways share this tier, and it survives their restarts.
//!
//! ```text
//! resolve ── lookup ─► name ─► client (MGET) ─► value ─► policy/shareable (adopt) ─► memory
//!         └─ store ─► policy/shareable (find_proof) ─► unproven … next poll ─► value ─► client (SET)
//! ```
//! Each serving thread has its own [`RedisTier`] and connections, so threads exchange nothing. The
//! tier sends all lookups of one event-loop iteration as one MGET. In a cluster it sends them as
//! GETs, in one write per node.
//!
//! The gateway does not trust stored values. Each value contains the key material of its call: the
//! bytes whose digest is part of the Redis key. A lookup compares these bytes with the key material
//! of its own call. A value also contains the hash of the block that it depends on.
//! `policy/shareable.rs` checks that hash against this process's *view*, which is a snapshot of the
//! chain's newest blocks. A response is stored once it is *proven*: either the response itself
//! shows that it is about the block, or the next poll shows that the response's upstream is still
//! on the served chain.
//!
//! A *generation* is a random number in every Redis key of a chain. A new generation invalidates
//! all entries of the chain.
//!
//! `cache/redis/invalidation_bus.rs` exchanges messages with other gateways. It runs on the watch
//! thread, which also polls the upstreams. Shared request limits (`cache/redis/zones.rs`), quotas
//! (`cache/redis/quotas.rs`) and the number of gateways (`cache/redis/heartbeat.rs`) use Redis
//! independently of the cache.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::cache::memory::{Cache, Entry};
use crate::call::{CacheStatus, CacheTier, Payload, UpstreamRequest, UpstreamResponse};
use crate::config;
use crate::metrics::counters::RedisCounters;
use crate::metrics::label::{RedisLookup, RedisStore};
use crate::metrics::thread::Counters;
use crate::policy::branch::Hash;
use crate::policy::cacheable::{CacheRule, ResponseFacts, ValidityTag};
use crate::policy::heads::ChainView;
use crate::policy::shareable::{Proof, ShareableTag, adopt, find_proof, to_shareable};
use crate::upstream::chain::ChainState;
use crate::upstream::thread::Upstreams;
use crate::upstream::topology::{NO_UPSTREAM, Topology};

mod client;
#[cfg(test)]
mod fuzz;
pub(crate) mod heartbeat;
pub(crate) mod invalidation_bus;
mod message;
pub(crate) mod quotas;
mod script;
mod value;
pub(crate) mod zones;

pub use client::check_redis;
use client::{RedisClient, Role};
use value::Value;

/// Maximum number of keys of an MGET. The lookups of most event-loop iterations fit into one MGET.
/// The reply to a longer MGET would delay the replies to later commands.
const MGET_KEYS_MAX: usize = 64;
/// Maximum number of SETs in flight per thread. Further responses are not stored. Redis executes
/// some hundred thousand SETs per second, so only a hung Redis reaches this limit.
const SETS_IN_FLIGHT_MAX: usize = 256;
/// Timeout of a SET. No call waits for a SET.
const SET_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of unproven responses of one thread. Each waits for its upstream's next poll.
const UNPROVEN_MAX: usize = 4096;
/// Maximum bytes of the unproven responses of one thread.
const UNPROVEN_BYTES_MAX: usize = 16 << 20;
/// An unproven response is dropped after this time. Its upstream is down or rarely polled.
const UNPROVEN_AGE_MAX: Duration = Duration::from_secs(60);
/// Interval at which circuit breakers and unproven responses are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of queued messages to other gateways. Further messages are lost. If a message is
/// lost, the other gateways detect the reorg or the new generation at their next poll.
const OUTBOX_MAX: usize = 64;

/// State of the tier that all threads share and that survives reloads.
#[derive(Default)]
pub(crate) struct SharedState {
    /// Wakes the invalidation bus when a message is queued, or when a generation must be exchanged
    /// with Redis.
    wakeup: Notify,
    /// The messages to send. Locked only for a push or a pop.
    outbox: Mutex<VecDeque<OutgoingMessage>>,
    /// Generations by chain key, for each chain that has used the tier.
    generations: Mutex<HashMap<Arc<str>, Arc<ChainGeneration>>>,
    /// Number of messages sent to other gateways.
    pub(crate) messages_sent: AtomicU64,
    /// Number of messages received from other gateways.
    pub(crate) messages_received: AtomicU64,
}

/// The generation of a chain's entries in Redis. A reload keeps it.
#[derive(Debug, Default)]
struct ChainGeneration {
    /// A random number that is part of every Redis key of the chain; 0 while unknown. A new number
    /// invalidates all entries of the chain at once.
    number: AtomicU64,
    /// True if this gateway must store a new number in Redis.
    invalidated: AtomicBool,
}

/// A message to other gateways.
#[derive(Debug)]
struct OutgoingMessage {
    /// Name of the chain.
    chain: Arc<str>,
    subject: message::Subject,
}

impl SharedState {
    /// Returns the generation of a chain.
    fn generation_of(&self, chain: &ChainState) -> Arc<ChainGeneration> {
        Arc::clone(self.generations.lock().entry(Arc::clone(&chain.key)).or_default())
    }

    /// Invalidates all entries of a chain. The tier is not used for the chain until the chain has a
    /// new generation.
    pub(crate) fn invalidate(&self, chain: &ChainState) {
        let generation = self.generation_of(chain);
        generation.invalidated.store(true, Ordering::Release);
        generation.number.store(0, Ordering::Release);
        self.wakeup.notify_one();
    }

    /// Queues the message that a reorg has dropped the blocks above `fork`.
    pub(crate) fn queue_reorg_message(&self, chain: &Arc<str>, fork: u64) {
        self.queue_message(chain, message::Subject::Reorg { fork });
    }

    fn queue_message(&self, chain: &Arc<str>, subject: message::Subject) {
        let mut outbox = self.outbox.lock();
        // A full queue means that Redis is down. Other gateways detect the reorg or the new
        // generation by polling.
        if outbox.len() < OUTBOX_MAX {
            outbox.push_back(OutgoingMessage { chain: Arc::clone(chain), subject });
        }
        self.wakeup.notify_one();
    }
}

/// The Redis tier of one thread.
pub(crate) struct RedisTier {
    topology: Arc<Topology>,
    /// The memory tier, which also stores the responses that Redis returns; `None` if it is off.
    cache: Option<Arc<Cache>>,
    /// Generations by chain index.
    generations: Vec<Arc<ChainGeneration>>,
    counters: Arc<Counters>,
    config: config::redis::Redis,
    /// The last client is for the primary. If lookups go to replicas, the first client is for the
    /// replicas.
    clients: Vec<Rc<RedisClient>>,
    /// Lookups of the current event-loop iteration.
    pending: RefCell<Vec<PendingLookup>>,
    /// Responses that wait for proof. The proof is a later poll that shows their upstream on the
    /// served chain.
    unproven: RefCell<Vec<UnprovenResponse>>,
    /// Total bytes of the unproven responses.
    unproven_bytes: Cell<usize>,
    /// Number of SETs in flight.
    sets_in_flight: Cell<usize>,
}

/// A lookup of the current event-loop iteration.
struct PendingLookup {
    /// The key in Redis.
    name: String,
    /// Receives the value; `None` if Redis has no value.
    sender: oneshot::Sender<Option<Bytes>>,
}

/// A response that waits for the next poll of its upstream.
struct UnprovenResponse {
    /// When the response arrived, by the clock of `Topology::now`.
    arrived_at: Duration,
    /// Index of the upstream that sent the response.
    upstream: usize,
    request: StoreRequest,
}

/// A response to store.
struct StoreRequest {
    /// Index of the chain.
    chain: usize,
    /// The call's key.
    key: Box<[u8]>,
    /// The raw result or error object.
    bytes: Bytes,
    /// True if `bytes` is an error object.
    is_error: bool,
    /// The condition under which the response is valid.
    validity: ValidityTag,
    /// Maximum age of the response; `None` if the age is not limited.
    age_max: Option<Duration>,
}

/// The Redis key of a call.
struct RedisKey {
    /// The chain's generation, which is part of the name.
    generation: u64,
    /// The key in Redis.
    name: String,
    /// The bytes whose digest is part of the name. The stored value must contain the same bytes.
    material: Vec<u8>,
}

impl RedisTier {
    /// Starts the tier of one thread on the thread's runtime. The tier connects in the background,
    /// and retries until it succeeds. Returns `None` if Redis is not configured as a cache.
    pub(crate) fn start(
        shared: &SharedState,
        topology: &Arc<Topology>,
        cache: Option<&Arc<Cache>>,
        counters: &Arc<Counters>,
    ) -> Option<Rc<RedisTier>> {
        let config = topology.config.redis.clone().filter(|redis| redis.responses)?;
        let replicas = config.read_replicas.then_some(Role::Replicas);
        let roles = replicas.into_iter().chain([Role::Primary]);
        let tier = Rc::new(RedisTier {
            clients: roles
                .map(|role| Rc::new(RedisClient::new(&config, role, &topology.process)))
                .collect(),
            generations: topology.chains.iter().map(|chain| shared.generation_of(chain)).collect(),
            topology: Arc::clone(topology),
            cache: cache.cloned(),
            counters: Arc::clone(counters),
            config,
            pending: RefCell::default(),
            unproven: RefCell::default(),
            unproven_bytes: Cell::new(0),
            sets_in_flight: Cell::new(0),
        });
        tokio::task::spawn_local(RedisTier::run_checks(Rc::downgrade(&tier)));
        Some(tier)
    }

    fn counts(&self) -> &RedisCounters {
        &self.counters.redis
    }

    /// Looks up a call in Redis, and stores a valid response in memory too. Returns `None` if Redis
    /// has no valid response, is not available, or does not respond in time.
    pub(crate) async fn lookup(
        self: &Rc<Self>,
        upstreams: &Upstreams,
        request: &UpstreamRequest<'_>,
        key: &[u8],
    ) -> Option<UpstreamResponse> {
        let cache = self.cache.as_ref()?;
        let chain = &self.topology.chains[request.chain];
        let rule = request.caching.rule;
        // The Redis key of a response that depends on the newest block contains that block's hash.
        let head = match rule {
            CacheRule::Never | CacheRule::Logs => return None,
            CacheRule::AtHead => Some(chain.view.load().head?.hash),
            _ => None,
        };
        let redis_key = self.build_redis_key(request.chain, key, head)?;
        let stored_bytes = self.get(redis_key.name).await?;
        upstreams.tick();
        let value = value::decode(&stored_bytes, self.config.entry_bytes_max).ok();
        let Some(value) = value.filter(|value| value.material == redis_key.material) else {
            self.counts().lookups[RedisLookup::Refused].add(1);
            return None;
        };
        // The view may have changed while Redis responded, so it is loaded again.
        let view = chain.view.load();
        let is_same_generation = self.generation(request.chain) == Some(redis_key.generation);
        let validity = adopt(&value.validity, rule, &view).filter(|_| is_same_generation);
        let age = Duration::from_millis(unix_ms().saturating_sub(value.written_ms));
        // `None` if the value is invalid, or if its age is not limited.
        let age_max = validity.and_then(|validity| cache.age_max(value.is_error, &validity));
        let is_expired = age_max.is_some_and(|age_max| age > age_max);
        let Some(validity) = validity.filter(|_| !is_expired) else {
            self.counts().lookups[RedisLookup::Stale].add(1);
            return None;
        };
        let expires_at = age_max.map(|age_max| upstreams.now() + age_max.saturating_sub(age));
        self.counts().lookups[RedisLookup::Hit].add(1);
        let bytes = Bytes::from(value.body.into_owned());
        let (is_error, doubted_since, upstream) = (value.is_error, None, NO_UPSTREAM);
        let entry =
            Entry { bytes: bytes.clone(), is_error, upstream, validity, expires_at, doubted_since };
        cache.put(key, entry);
        let payload = if value.is_error { Payload::Error(bytes) } else { Payload::Result(bytes) };
        let (cache_status, tier) = (CacheStatus::Hit, Some(CacheTier::Redis));
        Some(UpstreamResponse { cache_status, tier, ..UpstreamResponse::local(payload) })
    }

    /// Stores a cacheable response at once if it is proven. Otherwise stores it once a later poll
    /// of its upstream has proven it.
    pub(crate) fn store_when_proven(
        self: &Rc<Self>,
        request: &UpstreamRequest<'_>,
        key: &[u8],
        response: &UpstreamResponse,
        validity: ValidityTag,
        facts: &ResponseFacts,
        view: &ChainView,
    ) {
        let (Payload::Result(bytes) | Payload::Error(bytes)) = &response.payload else { return };
        let (Some(cache), Some(upstream)) = (&self.cache, response.upstream) else { return };
        // `Proof::None` means that the response must not be stored at all.
        let proof = find_proof(request.caching.rule, &validity, facts, view);
        if proof == Proof::None || bytes.len() > self.config.entry_bytes_max {
            return;
        }
        let is_error = matches!(response.payload, Payload::Error(_));
        let age_max = cache.age_max(is_error, &validity);
        let (bytes, key) = (Bytes::copy_from_slice(bytes), key.into());
        let request =
            StoreRequest { chain: request.chain, key, bytes, is_error, validity, age_max };
        if proof == Proof::Given {
            self.store(&request, view);
            return;
        }
        let mut unproven = self.unproven.borrow_mut();
        let unproven_bytes = self.unproven_bytes.get() + request.bytes();
        if unproven.len() >= UNPROVEN_MAX || unproven_bytes > UNPROVEN_BYTES_MAX {
            self.counts().stores[RedisStore::Dropped].add(1);
            return;
        }
        self.unproven_bytes.set(unproven_bytes);
        // The thread's cached time would be too early. A poll that started before the response
        // arrived would then count as proof.
        unproven.push(UnprovenResponse { arrived_at: self.topology.now(), upstream, request });
    }

    /// Stores the unproven responses that a poll has proven meanwhile, and drops the responses that
    /// waited too long.
    fn store_proven(self: &Rc<Self>) {
        let now = self.topology.now();
        let is_proven = |response: &UnprovenResponse| {
            self.topology.upstreams[response.upstream].confirmed_at() > response.arrived_at
        };
        let proven_or_expired: Vec<UnprovenResponse> = self
            .unproven
            .borrow_mut()
            .extract_if(.., |response| {
                is_proven(response) || now >= response.arrived_at + UNPROVEN_AGE_MAX
            })
            .collect();
        for response in proven_or_expired {
            let request = &response.request;
            self.unproven_bytes.set(self.unproven_bytes.get() - request.bytes());
            if is_proven(&response) {
                let view = self.topology.chains[request.chain].view.load();
                self.store(request, &view);
            } else {
                self.counts().stores[RedisStore::Dropped].add(1);
            }
        }
    }

    /// Sends a response to Redis in the background, if the response is still valid. Drops the
    /// response if Redis is not available, or if too many SETs are in flight.
    fn store(self: &Rc<Self>, request: &StoreRequest, view: &ChainView) {
        let Some(validity) = to_shareable(&request.validity, view) else { return };
        let head = match validity {
            ShareableTag::Head { hash, .. } => Some(hash),
            _ => None,
        };
        let Some(redis_key) = self.build_redis_key(request.chain, &request.key, head) else {
            return;
        };
        let primary = self.clients.last().expect("the primary is always there");
        if !primary.is_available() || self.sets_in_flight.get() >= SETS_IN_FLIGHT_MAX {
            self.counts().stores[RedisStore::Dropped].add(1);
            return;
        }
        let ttl = request.age_max.map_or(self.config.ttl_max, |age| age.min(self.config.ttl_max));
        if ttl < Duration::from_millis(1) {
            return;
        }
        let value = Value {
            material: &redis_key.material,
            body: (&request.bytes[..]).into(),
            is_error: request.is_error,
            validity,
            written_ms: unix_ms(),
        };
        let value = value.encode(self.config.compress_bytes_min);
        self.sets_in_flight.set(self.sets_in_flight.get() + 1);
        let (tier, primary) = (Rc::clone(self), Rc::clone(primary));
        tokio::task::spawn_local(async move {
            let stored = primary.set(redis_key.name, value, ttl);
            let stored = tokio::time::timeout(SET_TIMEOUT, stored).await;
            tier.sets_in_flight.set(tier.sets_in_flight.get() - 1);
            let counts = tier.counts();
            match stored {
                Ok(Ok(())) => counts.stores[RedisStore::Ok].add(1),
                Ok(Err(_)) | Err(_) => counts.stores[RedisStore::Failed].add(1),
            }
        });
    }

    /// Returns the value of a key. Returns `None` if Redis has no value, is slow or down, or if the
    /// breaker is open.
    async fn get(self: &Rc<Self>, name: String) -> Option<Bytes> {
        let client_index = self.clients.iter().position(|client| client.is_available());
        let Some(client_index) = client_index else {
            self.counts().lookups[RedisLookup::Skipped].add(1);
            return None;
        };
        let (sender, receiver) = oneshot::channel();
        let is_first = {
            let mut pending = self.pending.borrow_mut();
            pending.push(PendingLookup { name, sender });
            pending.len() == 1
        };
        if is_first {
            // The new task runs after all tasks that are runnable now, and sends the lookups of all
            // these tasks together.
            let tier = Rc::clone(self);
            tokio::task::spawn_local(async move { tier.send_pending(client_index) });
        }
        // The sending task responds within the timeout, or drops the sender.
        receiver.await.ok().flatten()
    }

    /// Sends all pending lookups with the client at this index.
    fn send_pending(self: &Rc<Self>, client_index: usize) {
        let mut pending = self.pending.take();
        while !pending.is_empty() {
            let remaining = pending.split_off(pending.len().min(MGET_KEYS_MAX));
            let (tier, lookups) = (Rc::clone(self), std::mem::replace(&mut pending, remaining));
            tokio::task::spawn_local(async move { tier.fetch(client_index, lookups).await });
        }
    }

    /// Sends the lookups as one command and distributes the values of the reply.
    async fn fetch(&self, client_index: usize, lookups: Vec<PendingLookup>) {
        let client = &self.clients[client_index];
        let (names, senders): (Vec<_>, Vec<_>) =
            lookups.into_iter().map(|lookup| (lookup.name, lookup.sender)).unzip();
        let counts = self.counts();
        let started = self.topology.now();
        let response = tokio::time::timeout(self.config.timeout, client.get(names)).await;
        let now = self.topology.now();
        counts.latency.observe(now.saturating_sub(started));
        let key_count = senders.len() as u64;
        match response {
            Ok(Ok(values)) => {
                client.record_success();
                let misses = values.iter().filter(|value| value.is_none()).count();
                counts.lookups[RedisLookup::Miss].add(misses as u64);
                for (sender, value) in senders.into_iter().zip(values) {
                    // Sending fails if the call was cancelled. A cancelled call needs no value.
                    let _ = sender.send(value);
                }
                return;
            }
            Ok(Err(_)) => counts.lookups[RedisLookup::Error].add(key_count),
            Err(_) => counts.lookups[RedisLookup::Timeout].add(key_count),
        }
        if client.record_failure(now) {
            counts.breakers_opened.add(1);
        }
    }

    /// Runs [`RedisTier::check`] at intervals until a reload replaces the tier.
    async fn run_checks(tier: Weak<RedisTier>) {
        while let Some(tier) = tier.upgrade() {
            tier.check();
            drop(tier);
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Probes clients whose breaker is open, stores responses that are now proven, and updates the
    /// gauges.
    fn check(self: &Rc<Self>) {
        for client in &self.clients {
            if client.begin_due_probe(self.topology.now()) {
                let (tier, client) = (Rc::clone(self), Rc::clone(client));
                tokio::task::spawn_local(async move {
                    let healthy = client.probe().await;
                    client.record_probe(healthy, tier.topology.now());
                });
            }
        }
        let open_breakers = self.clients.iter().filter(|client| !client.is_available()).count();
        self.counts().breakers_open.set(open_breakers as u64);
        if !self.unproven.borrow().is_empty() {
            self.store_proven();
        }
        self.counts().unproved.set(self.unproven.borrow().len() as u64);
    }

    /// Returns the generation of a chain; `None` while the generation is unknown.
    fn generation(&self, chain: usize) -> Option<u64> {
        let generation = self.generations[chain].number.load(Ordering::Acquire);
        (generation != 0).then_some(generation)
    }

    /// Returns the Redis key of a call; `None` while the chain's generation or id is unknown.
    /// `head` is the hash of the newest block if the response depends on that block.
    fn build_redis_key(&self, chain: usize, key: &[u8], head: Option<Hash>) -> Option<RedisKey> {
        let generation = self.generation(chain)?;
        let chain = &self.topology.chains[chain];
        let id = chain.id_key()?;
        // Two gateways may give the same name to chains with different ids, so the id is part of
        // the material.
        let mut material = Vec::with_capacity(key.len() + 40);
        material.extend_from_slice(key);
        material.extend_from_slice(&id.to_le_bytes());
        material.extend_from_slice(head.as_ref().map_or(&[][..], |hash| &hash[..]));
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &material);
        let digest = u128::from_be_bytes(
            digest.as_ref()[..16].try_into().expect("a SHA-256 digest has 32 bytes"),
        );
        let (prefix, chain) = (&self.config.prefix, &chain.name);
        let name = format!("{prefix}:{chain}:{generation:016x}:{digest:032x}");
        Some(RedisKey { generation, name, material })
    }
}

impl StoreRequest {
    /// Returns the bytes of the key and the response.
    fn bytes(&self) -> usize {
        self.key.len() + self.bytes.len()
    }
}

/// Returns the milliseconds since the Unix epoch.
fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
