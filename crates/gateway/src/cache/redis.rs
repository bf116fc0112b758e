//! The tier of the cache in Redis: shared by gateways, and still there after a restart.
//!
//! ```text
//! resolve ── recall ─► name ─► line (MGET) ─► value ─► policy/portable (adopt) ─► memory, response
//!         └─ keep ───► policy/portable (proof) ─► unproved … next poll ─► value ─► line (SET)
//! ```
//! One [`Tier`] per serving thread, with its own connections, so that nothing is handed between
//! threads. All lookups of one turn of the event loop go out as one MGET (in a cluster as GETs in
//! one write per upstream). Nothing that Redis says is believed: a value carries its key material
//! and the block hash that it depends on, and `policy/portable.rs` judges it by the view of this
//! process. `cache/redis/news.rs` speaks with the other gateways from the watch thread. Request
//! limits that gateways share are judged in Redis too, and quotas told, apart from all this:
//! `cache/redis/zones.rs`, `cache/redis/quotas.rs`.

use crate::upstream::thread::UpstreamContext;
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
use crate::call::cache_status;
use crate::call::request::UpstreamRequest;
use crate::call::response::{Payload, UpstreamResponse};
use crate::config;
use crate::metrics::counters::RedisCounters;
use crate::metrics::label::{RedisLookup, RedisStore};
use crate::metrics::thread::Counters;
use crate::policy::cacheable::{CacheRule, ResponseFacts, ValidityTag};
use crate::policy::heads::{ChainView, Hash};
use crate::policy::portable::{Proof, ShareableTag, adopt, proof, shareable_tag};
use crate::upstream::chain::ChainState;
use crate::upstream::topology::{NO_NODE, Topology};

#[cfg(test)]
mod fuzz;
mod line;
mod message;
pub(crate) mod news;
pub(crate) mod quotas;
mod script;
mod value;
pub(crate) mod zones;

use line::{Line, Role};
use value::Value;

/// Keys of one MGET: enough for a batch, few enough that one reply does not hold up the next.
const KEYS_MAX: usize = 64;
/// Stores under way per thread; what is beyond is not stored. Redis takes some hundred thousand a
/// second, so this is reached only while it hangs.
const STORES_MAX: usize = 256;
/// A store that takes longer has failed; no call waits for it.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Answers of one thread that wait for their upstream's next poll, and their bytes.
const UNPROVED_MAX: usize = 4096;
const UNPROVED_BYTES_MAX: usize = 16 << 20;
/// An answer that was not proved by then never is: its upstream is out, or rarely polled.
const UNPROVED_AGE_MAX: Duration = Duration::from_secs(60);
/// How often breakers and unproved answers are looked at.
const TEND_INTERVAL: Duration = Duration::from_millis(20);
/// Messages to other gateways that wait to be sent; what is beyond is lost, as any message may be.
const OUTBOX_MAX: usize = 64;

/// What all threads know of the tier; it goes on through reloads.
#[derive(Default)]
pub(crate) struct Common {
    /// Told when there is something to send, or to look at.
    look: Notify,
    /// Locked for the time of a push.
    outbox: Mutex<VecDeque<Outgoing>>,
    /// By key of the chain; one per chain that the tier was ever used for.
    marks: Mutex<HashMap<Arc<str>, Arc<ChainMark>>>,
    pub(crate) messages_sent: AtomicU64,
    pub(crate) messages_heard: AtomicU64,
}

/// What the tier knows of a chain; it goes on through reloads.
#[derive(Debug, Default)]
struct ChainMark {
    /// A random number that is part of every key; zero until it is known. Replacing it voids all
    /// entries of the chain at once.
    generation: AtomicU64,
    /// The generation is to be replaced.
    voided: AtomicBool,
}

/// A message to other gateways.
#[derive(Debug)]
struct Outgoing {
    chain: Arc<str>,
    news: message::News,
}

impl Common {
    /// What the tier knows of a chain.
    fn mark(&self, chain: &ChainState) -> Arc<ChainMark> {
        Arc::clone(self.marks.lock().entry(Arc::clone(&chain.key)).or_default())
    }

    /// Voids everything that is stored for a chain. Until there is a new generation, the tier is
    /// not used for the chain.
    pub(crate) fn void(&self, chain: &ChainState) {
        let mark = self.mark(chain);
        mark.voided.store(true, Ordering::Release);
        mark.generation.store(0, Ordering::Release);
        self.look.notify_one();
    }

    /// Tells other gateways that blocks above `fork` were dropped.
    pub(crate) fn tell_reorg(&self, chain: &Arc<str>, fork: u64) {
        self.tell(chain, message::News::Reorg { fork });
    }

    fn tell(&self, chain: &Arc<str>, news: message::News) {
        let mut outbox = self.outbox.lock();
        // Full means that Redis is away: others will see it by themselves.
        if outbox.len() < OUTBOX_MAX {
            outbox.push_back(Outgoing { chain: Arc::clone(chain), news });
        }
        self.look.notify_one();
    }
}

/// One thread's part of the tier.
pub(crate) struct Tier {
    topology: Arc<Topology>,
    cache: Option<Arc<Cache>>,
    /// By chain.
    marks: Vec<Arc<ChainMark>>,
    counters: Arc<Counters>,
    config: config::redis::Redis,
    /// Replicas first where they are read from; the primary last.
    lines: Vec<Rc<Line>>,
    wanted: RefCell<Vec<Wanted>>,
    unproved: RefCell<VecDeque<Unproved>>,
    unproved_bytes: Cell<usize>,
    stores: Cell<usize>,
}

/// A lookup of the present turn.
struct Wanted {
    name: String,
    tell: oneshot::Sender<Option<Bytes>>,
}

/// An answer whose upstream has not been polled since.
struct Unproved {
    /// When it came, as the rules count time.
    came: Duration,
    upstream: usize,
    stored: Stored,
}

/// An answer to store.
struct Stored {
    chain: usize,
    key: Box<[u8]>,
    bytes: Bytes,
    is_error: bool,
    kept: ValidityTag,
    age_max: Option<Duration>,
}

/// A key in Redis, and the key material that a value under it must carry.
struct Name {
    generation: u64,
    name: String,
    material: Vec<u8>,
}

impl Tier {
    /// The tier of one thread, on its runtime; it connects by itself and goes on trying.
    pub(crate) fn start(
        common: &Common,
        topology: &Arc<Topology>,
        cache: Option<&Arc<Cache>>,
        counters: &Arc<Counters>,
    ) -> Option<Rc<Tier>> {
        let config = topology.config.redis.clone().filter(|redis| redis.responses)?;
        let replicas = config.read_replicas.then_some(Role::Replicas);
        let roles = replicas.into_iter().chain([Role::Primary]);
        let tier = Rc::new(Tier {
            lines: roles.map(|role| Rc::new(Line::new(&config, role))).collect(),
            marks: topology.chains.iter().map(|chain| common.mark(chain)).collect(),
            topology: Arc::clone(topology),
            cache: cache.cloned(),
            counters: Arc::clone(counters),
            config,
            wanted: RefCell::default(),
            unproved: RefCell::default(),
            unproved_bytes: Cell::new(0),
            stores: Cell::new(0),
        });
        tokio::task::spawn_local(Tier::tend(Rc::downgrade(&tier)));
        Some(tier)
    }

    fn counts(&self) -> &RedisCounters {
        &self.counters.redis
    }

    /// The answer to a call from Redis, if it has one that holds here; kept in memory then.
    pub(crate) async fn recall(
        self: &Rc<Self>,
        cx: &UpstreamContext,
        ask: &UpstreamRequest<'_>,
        key: &[u8],
    ) -> Option<UpstreamResponse> {
        let cache = self.cache.as_ref()?;
        let chain = &self.topology.chains[ask.chain];
        let rule = ask.caching.rule;
        let head = match rule {
            CacheRule::Never | CacheRule::Logs => return None,
            CacheRule::AtHead => Some(chain.view.load().head?.hash),
            _ => None,
        };
        let name = self.name(ask.chain, key, head)?;
        let found = self.find(name.name).await?;
        cx.tick();
        let value = value::decode(&found, self.config.entry_bytes_max).ok();
        let Some(value) = value.filter(|value| value.material == name.material) else {
            self.counts().lookups[RedisLookup::Refused].add(1);
            return None;
        };
        // Judged by the view that is served now, not by the one of the call's start.
        let view = chain.view.load();
        let same = self.generation(ask.chain) == Some(name.generation);
        let kept = adopt(&value.bond, rule, &view).filter(|_| same);
        let age = Duration::from_millis(unix_ms().saturating_sub(value.written_ms));
        let until = |kept: &ValidityTag| match cache.age_max(value.is_error, kept) {
            Some(age_max) => age_max.checked_sub(age).map(|left| Some(cx.now() + left)),
            None => Some(None),
        };
        let Some((kept, until)) = kept.and_then(|kept| Some((kept, until(&kept)?))) else {
            self.counts().lookups[RedisLookup::Stale].add(1);
            return None;
        };
        self.counts().lookups[RedisLookup::Hit].add(1);
        let bytes = Bytes::from(value.body.into_owned());
        let (is_error, doubted_since, upstream) = (value.is_error, None, NO_NODE);
        let entry = Entry { bytes: bytes.clone(), is_error, upstream, kept, until, doubted_since };
        cache.put(key, entry);
        let payload = if value.is_error { Payload::Error(bytes) } else { Payload::Result(bytes) };
        Some(UpstreamResponse {
            tier: Some(cache_status::Tier::Redis),
            ..UpstreamResponse::of(payload)
        })
    }

    /// Stores an answer that was admitted to the cache, now or once it is proved.
    pub(crate) fn keep(
        self: &Rc<Self>,
        ask: &UpstreamRequest<'_>,
        key: &[u8],
        fetched: &UpstreamResponse,
        kept: ValidityTag,
        facts: &ResponseFacts,
        view: &ChainView,
    ) {
        let (Payload::Result(bytes) | Payload::Error(bytes)) = &fetched.payload else { return };
        let (Some(cache), Some(upstream)) = (&self.cache, fetched.upstream) else { return };
        let proof = proof(ask.caching.rule, &kept, facts, view);
        if proof == Proof::None || bytes.len() > self.config.entry_bytes_max {
            return;
        }
        let is_error = matches!(fetched.payload, Payload::Error(_));
        let age_max = cache.age_max(is_error, &kept);
        let (bytes, key) = (Bytes::copy_from_slice(bytes), key.into());
        let stored = Stored { chain: ask.chain, key, bytes, is_error, kept, age_max };
        if proof == Proof::Given {
            self.store(&stored, view);
            return;
        }
        let size = stored.size();
        let mut unproved = self.unproved.borrow_mut();
        let bytes = self.unproved_bytes.get() + size;
        if unproved.len() >= UNPROVED_MAX || bytes > UNPROVED_BYTES_MAX {
            self.counts().stores[RedisStore::Dropped].add(1);
            return;
        }
        self.unproved_bytes.set(bytes);
        // The clock, not the last tick: a poll that began before the answer came proves nothing.
        unproved.push_back(Unproved { came: self.topology.now(), upstream, stored });
    }

    /// Stores what the polls since then have proved.
    fn prove(self: &Rc<Self>) {
        let now = self.topology.now();
        let mut proved = Vec::new();
        self.unproved.borrow_mut().retain_mut(|waiting| {
            let polled = self.topology.upstreams[waiting.upstream].confirmed() > waiting.came;
            if !polled && now < waiting.came + UNPROVED_AGE_MAX {
                return true;
            }
            self.unproved_bytes.set(self.unproved_bytes.get() - waiting.stored.size());
            if polled {
                proved.push(waiting.stored.take());
            } else {
                self.counts().stores[RedisStore::Dropped].add(1);
            }
            false
        });
        for stored in proved {
            let view = self.topology.chains[stored.chain].view.load();
            self.store(&stored, &view);
        }
    }

    /// Sends an answer to Redis, if it still holds. Nobody waits for it.
    fn store(self: &Rc<Self>, stored: &Stored, view: &ChainView) {
        let Some(bond) = shareable_tag(&stored.kept, view) else { return };
        let head = match bond {
            ShareableTag::Head { hash, .. } => Some(hash),
            _ => None,
        };
        let Some(name) = self.name(stored.chain, &stored.key, head) else { return };
        let primary = self.lines.last().expect("the primary is always there");
        if !primary.is_closed() || self.stores.get() >= STORES_MAX {
            self.counts().stores[RedisStore::Dropped].add(1);
            return;
        }
        let ttl = stored.age_max.map_or(self.config.ttl_max, |age| age.min(self.config.ttl_max));
        if ttl < Duration::from_millis(1) {
            return;
        }
        let value = Value {
            material: &name.material,
            body: (&stored.bytes[..]).into(),
            is_error: stored.is_error,
            bond,
            written_ms: unix_ms(),
        };
        let value = value.encode(self.config.compress_bytes_min);
        self.stores.set(self.stores.get() + 1);
        let (tier, primary) = (Rc::clone(self), Rc::clone(primary));
        tokio::task::spawn_local(async move {
            let sent = primary.set(name.name, value, ttl);
            let sent = tokio::time::timeout(STORE_TIMEOUT, sent).await;
            tier.stores.set(tier.stores.get() - 1);
            let counts = tier.counts();
            match sent {
                Ok(Ok(())) => counts.stores[RedisStore::Ok].add(1),
                Ok(Err(_)) | Err(_) => counts.stores[RedisStore::Failed].add(1),
            }
        });
    }

    /// What is stored under a key; none too if Redis is left alone, slow or away.
    async fn find(self: &Rc<Self>, name: String) -> Option<Bytes> {
        let Some(line) = self.lines.iter().position(|line| line.is_closed()) else {
            self.counts().lookups[RedisLookup::Skipped].add(1);
            return None;
        };
        let (tell, told) = oneshot::channel();
        let first = {
            let mut wanted = self.wanted.borrow_mut();
            wanted.push(Wanted { name, tell });
            wanted.len() == 1
        };
        if first {
            // Behind whatever else is ready in this turn, so that its lookups go out together.
            let tier = Rc::clone(self);
            tokio::task::spawn_local(async move { tier.send_wanted(line) });
        }
        // Told within the timeout in any case, by the task that sends it.
        told.await.ok()?
    }

    fn send_wanted(self: &Rc<Self>, line: usize) {
        let mut wanted = self.wanted.take();
        while !wanted.is_empty() {
            let rest = wanted.split_off(wanted.len().min(KEYS_MAX));
            let (tier, some) = (Rc::clone(self), std::mem::replace(&mut wanted, rest));
            tokio::task::spawn_local(async move { tier.ask(line, some).await });
        }
    }

    async fn ask(&self, line: usize, wanted: Vec<Wanted>) {
        let line = &self.lines[line];
        let (names, tells): (Vec<_>, Vec<_>) =
            wanted.into_iter().map(|wanted| (wanted.name, wanted.tell)).unzip();
        let counts = self.counts();
        let began = self.topology.now();
        let asked = tokio::time::timeout(self.config.timeout, line.get(names)).await;
        let now = self.topology.now();
        counts.latency.observe(now.saturating_sub(began));
        let keys = tells.len() as u64;
        match asked {
            Ok(Ok(values)) => {
                line.succeeded();
                counts.lookups[RedisLookup::Miss]
                    .add(values.iter().filter(|value| value.is_none()).count() as u64);
                for (tell, value) in tells.into_iter().zip(values) {
                    // Who does not wait any more has no use for it.
                    let _ = tell.send(value);
                }
                return;
            }
            Ok(Err(_)) => counts.lookups[RedisLookup::Error].add(keys),
            Err(_) => counts.lookups[RedisLookup::Timeout].add(keys),
        }
        if line.failed(now) {
            counts.breakers_opened.add(1);
        }
    }

    /// Probes what is left alone and stores what was proved, until a reload has replaced the tier.
    async fn tend(tier: Weak<Tier>) {
        while let Some(own) = tier.upgrade() {
            own.look();
            drop(own);
            tokio::time::sleep(TEND_INTERVAL).await;
        }
    }

    fn look(self: &Rc<Self>) {
        for line in &self.lines {
            if line.probe_due(self.topology.now()) {
                let (tier, line) = (Rc::clone(self), Rc::clone(line));
                tokio::task::spawn_local(async move {
                    let well = line.probe().await;
                    line.probed(well, tier.topology.now());
                });
            }
        }
        let open = self.lines.iter().filter(|line| !line.is_closed()).count();
        self.counts().breakers_open.set(open as u64);
        if !self.unproved.borrow().is_empty() {
            self.prove();
        }
        self.counts().unproved.set(self.unproved.borrow().len() as u64);
    }

    fn generation(&self, chain: usize) -> Option<u64> {
        let generation = self.marks[chain].generation.load(Ordering::Acquire);
        (generation != 0).then_some(generation)
    }

    /// The key in Redis; none while the chain's generation or its id is unknown.
    fn name(&self, chain: usize, key: &[u8], head: Option<Hash>) -> Option<Name> {
        let generation = self.generation(chain)?;
        let chain = &self.topology.chains[chain];
        let id = chain.id_known()?;
        // Two chains of one name are told apart by their ids, and heads by their hashes.
        let mut material = Vec::with_capacity(key.len() + 40);
        material.extend_from_slice(key);
        material.extend_from_slice(&id.to_le_bytes());
        material.extend_from_slice(head.as_ref().map_or(&[][..], |hash| &hash[..]));
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &material);
        let digest = u128::from_be_bytes(digest.as_ref()[..16].try_into().expect("it has 32"));
        let (prefix, chain) = (&self.config.prefix, &chain.name);
        let name = format!("{prefix}:{chain}:{generation:016x}:{digest:032x}");
        Some(Name { generation, name, material })
    }
}

impl Stored {
    fn size(&self) -> usize {
        self.key.len() + self.bytes.len()
    }

    fn take(&mut self) -> Stored {
        let (key, bytes) = (std::mem::take(&mut self.key), std::mem::take(&mut self.bytes));
        Stored { key, bytes, ..*self }
    }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
