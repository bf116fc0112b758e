//! A zone is a table of counters by key, like nginx's `limit_req_zone`. This file builds the keys
//! of calls, and splits a zone into shards. `limits/table.rs` stores the keys of one shard.

use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use wire::method::equivalent_log_method;

use super::LimitedCall;
use super::table::{HashedKey, KEY_BYTES_INLINE, Table, ZONE_BYTES_PER_KEY};
use crate::config;
use crate::config::Config;
use crate::config::limits::{CallCost, KeyPart};

/// Longest key in bytes. A call with a longer key is not limited, as in nginx
/// (`ngx_http_limit_req_handler`).
const KEY_BYTES_MAX: usize = 65_535;
/// Number of shards of a zone. With several shards, threads seldom contend for a lock.
const SHARDS: usize = 16;
/// Minimum number of keys per shard; a smaller zone has one shard. Each shard evicts only its own
/// keys, so a small shard could be full while others have room.
const SHARD_KEYS_MIN: usize = 1024;

/// A zone, as one configuration defines it.
#[derive(Debug)]
pub(super) struct Zone {
    /// The components of the zone's keys.
    key: Vec<KeyComponent>,
    /// Whether a call counts as one, or as the weight of its method.
    cost: CallCost,
    /// True if the caller's API key is a component of the zone's key.
    pub(super) keyed_by_api_key: bool,
    /// True if all calls of a request have the same key in the zone.
    same_key_for_request: bool,
    /// True if gateways share the zone through Redis.
    pub(super) shared: bool,
    /// Number of gateways that share the zone; `None` if it is not shared.
    gateways: Option<Arc<AtomicU64>>,
    /// The keys of the zone. A new configuration can take over this state.
    pub(super) state: Arc<ZoneState>,
}

/// State of a zone. A reload keeps the state if only the zone's rate or cost changes.
#[derive(Debug)]
pub(super) struct ZoneState {
    /// Hashes keys to slots. The random seed prevents clients from choosing colliding keys.
    slot_hasher: foldhash::fast::RandomState,
    /// Two keyed 64-bit hashes (SipHash of the standard library). Together they are the digest of a
    /// long key.
    digest_hashers: [std::hash::RandomState; 2],
    /// One table, or [`SHARDS`] tables if the zone is large.
    shards: Box<[Shard]>,
}

/// A table with its lock. The alignment gives each shard its own cache lines, so threads in
/// different shards do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<Table>);

/// A component of a key.
#[derive(Debug, Clone, Copy)]
enum KeyComponent {
    /// The client's address.
    Client,
    /// The client's IPv4 address, or the /64 prefix of its IPv6 address.
    ClientNet,
    /// The name of the caller's API key.
    ApiKey,
    /// A header, by its index in [`key_headers`].
    Header(usize),
    Method,
    Chain,
}

/// Fill level of a zone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ZoneFill {
    /// Number of stored keys.
    pub(crate) keys: u64,
    /// Number of keys evicted since the start.
    pub(crate) evicted: u64,
}

impl Zone {
    /// Creates a zone. `headers` is the list that [`key_headers`] returns. `state` is the state
    /// that the zone takes over from the previous configuration; `None` creates an empty table.
    pub(super) fn new(
        zone: &config::limits::Zone,
        gateways: &Arc<AtomicU64>,
        headers: &[http::HeaderName],
        state: Option<Arc<ZoneState>>,
    ) -> Zone {
        let header_index =
            |name: &http::HeaderName| headers.iter().position(|header| header == name);
        let to_component = |part: &KeyPart| match part {
            KeyPart::Client => KeyComponent::Client,
            KeyPart::ClientNet => KeyComponent::ClientNet,
            KeyPart::Key => KeyComponent::ApiKey,
            KeyPart::Header(name) => {
                let index = header_index(name);
                KeyComponent::Header(index.expect("`headers` holds the headers of all zones"))
            }
            KeyPart::Method => KeyComponent::Method,
            KeyPart::Chain => KeyComponent::Chain,
        };
        Zone {
            key: zone.key.iter().map(to_component).collect(),
            cost: zone.cost,
            keyed_by_api_key: zone.key.contains(&KeyPart::Key),
            same_key_for_request: !zone
                .key
                .iter()
                .any(|part| matches!(part, KeyPart::Method | KeyPart::Chain)),
            shared: zone.shared,
            gateways: zone.shared.then(|| Arc::clone(gateways)),
            state: state.unwrap_or_else(|| Arc::new(ZoneState::new(zone.bytes))),
        }
    }

    /// Returns the number of gateways that share the zone; 1 if the zone is not shared. While Redis
    /// is down, the zone's rate is divided by this number.
    pub(super) fn gateways(&self) -> u64 {
        self.gateways.as_ref().map_or(1, |gateways| gateways.load(Ordering::Relaxed))
    }

    /// Locks the shard that stores a key.
    pub(super) fn lock_shard(&self, hashed_key: &HashedKey) -> MutexGuard<'_, Table> {
        // The lowest bit of a hash is always 1, and the upper bits select the slot within the
        // shard. So the bits just above the lowest bit select the shard.
        let shards = &self.state.shards;
        shards[(hashed_key.hash >> 1) as usize % shards.len()].0.lock()
    }

    /// Returns the key of a request before its calls are known, and prefetches the key's slot into
    /// the CPU cache. Returns `None` if the key depends on the calls, or if the calls are not
    /// limited.
    pub(super) fn prefetch(&self, call: &LimitedCall<'_>) -> Option<HashedKey> {
        if !self.same_key_for_request {
            return None;
        }
        let hashed_key = self.hash_key(call)?;
        self.lock_shard(&hashed_key).prefetch(&hashed_key);
        Some(hashed_key)
    }

    /// Returns the cost of a call: the number of calls that it counts as.
    pub(super) fn cost(&self, call: &LimitedCall<'_>) -> u64 {
        match self.cost {
            CallCost::Call => 1,
            CallCost::Weight => call.method.map_or(1, |method| u64::from(method.weight)).max(1),
        }
    }

    /// Returns the fill level of the zone, over all shards.
    pub(super) fn fill(&self) -> ZoneFill {
        self.state.shards.iter().fold(ZoneFill::default(), |sum, shard| {
            let table = shard.0.lock();
            ZoneFill { keys: sum.keys + table.len as u64, evicted: sum.evicted + table.evicted }
        })
    }

    /// Returns the bytes of the call's key. Returns `None` if the key is empty or too long; such a
    /// call is not limited.
    fn write_key(&self, call: &LimitedCall<'_>) -> Option<SmallVec<[u8; 128]>> {
        let mut bytes: SmallVec<[u8; 128]> = SmallVec::new();
        match *self.key.as_slice() {
            [component] => component.write(call, &mut bytes),
            ref components => {
                let mut is_empty = true;
                for component in components {
                    // The length of a component precedes it, so that different lists of components
                    // never have the same bytes.
                    let start = bytes.len();
                    bytes.extend_from_slice(&[0; 4]);
                    component.write(call, &mut bytes);
                    let length = (bytes.len() - start - 4) as u32;
                    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
                    is_empty &= length == 0;
                }
                if is_empty {
                    return None;
                }
            }
        }
        (!bytes.is_empty() && bytes.len() <= KEY_BYTES_MAX).then_some(bytes)
    }

    /// Returns a digest of the call's key that is the same in every gateway.
    pub(super) fn compute_digest(&self, call: &LimitedCall<'_>) -> [u8; 16] {
        let bytes = self.write_key(call).unwrap_or_default();
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes);
        digest.as_ref()[..16].try_into().expect("a SHA-256 digest has 32 bytes")
    }

    /// Returns the call's key with its hash. A digest replaces a long key. Returns `None` if the
    /// call is not limited.
    pub(super) fn hash_key(&self, call: &LimitedCall<'_>) -> Option<HashedKey> {
        let bytes = self.write_key(call)?;
        // The last byte is the length of the key, or 255 if a digest replaces the key.
        let mut key = [0; KEY_BYTES_INLINE + 1];
        if bytes.len() <= KEY_BYTES_INLINE {
            key[..bytes.len()].copy_from_slice(&bytes);
            key[KEY_BYTES_INLINE] = bytes.len() as u8;
        } else {
            for (half, seed) in key.chunks_exact_mut(8).zip(&self.state.digest_hashers) {
                let mut hasher = seed.build_hasher();
                hasher.write(&bytes);
                half.copy_from_slice(&hasher.finish().to_le_bytes());
            }
            key[KEY_BYTES_INLINE] = u8::MAX;
        }
        let mut words = [0; 3];
        for (word, bytes) in words.iter_mut().zip(key.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
        }
        Some(HashedKey { hash: self.state.slot_hasher.hash_one(words) | 1, key: words })
    }
}

impl ZoneState {
    fn new(bytes: usize) -> ZoneState {
        let keys = bytes / ZONE_BYTES_PER_KEY;
        let shards = if keys / SHARDS < SHARD_KEYS_MIN { 1 } else { SHARDS };
        ZoneState {
            slot_hasher: foldhash::fast::RandomState::default(),
            digest_hashers: [std::hash::RandomState::new(), std::hash::RandomState::new()],
            shards: (0..shards).map(|_| Shard(Mutex::new(Table::new(keys / shards)))).collect(),
        }
    }
}

impl KeyComponent {
    /// Appends the value of the component for a call. Appends nothing if the call has no value.
    fn write(self, call: &LimitedCall<'_>, out: &mut SmallVec<[u8; 128]>) {
        match (self, call.client) {
            (KeyComponent::Client | KeyComponent::ClientNet, IpAddr::V4(address)) => {
                out.extend_from_slice(&address.octets());
            }
            (KeyComponent::Client, IpAddr::V6(address)) => out.extend_from_slice(&address.octets()),
            (KeyComponent::ClientNet, IpAddr::V6(address)) => {
                out.extend_from_slice(&address.octets()[..8])
            }
            (KeyComponent::ApiKey, _) => {
                let name = call.grant.map_or("", |grant| &*grant.name);
                out.extend_from_slice(name.as_bytes());
            }
            (KeyComponent::Header(index), _) => {
                let value = call.headers.get(index).and_then(Option::as_deref);
                out.extend_from_slice(value.unwrap_or(b""));
            }
            (KeyComponent::Method, _) => {
                let name = equivalent_log_method(call.name).unwrap_or(call.name);
                out.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
            }
            (KeyComponent::Chain, _) => out.extend_from_slice(call.chain_name.as_bytes()),
        }
    }
}

/// Returns the lower-case names of the headers that are part of zone keys, without duplicates.
pub(crate) fn key_headers(config: &Config) -> Vec<http::HeaderName> {
    let mut names: Vec<http::HeaderName> = Vec::new();
    for part in config.zones.iter().flat_map(|zone| &zone.key) {
        if let KeyPart::Header(name) = part
            && !names.contains(name)
        {
            names.push(name.clone());
        }
    }
    names
}
