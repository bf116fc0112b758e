//! The memory tier of the cache: responses by call key, limited in bytes.
//!
//! Each entry stores its full key, so a hash collision never mixes two calls. `policy/cacheable.rs`
//! decides which responses to store. On each hit, it also decides whether the entry is still valid
//! in the current *view*, which is a snapshot of the chain's newest blocks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quick_cache::sync::{Cache as Entries, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::call::Payload;
use crate::config;
use crate::policy::cacheable::{Binding, ValidityTag};

/// Memory of an entry in addition to its key and response, for map slots and allocations. It was
/// measured as the growth of the process with a million small entries.
const ENTRY_OVERHEAD_BYTES: u64 = 200;
/// Assumed bytes of an entry, for the initial size of the map. The map grows if entries are
/// smaller.
const ENTRY_BYTES_TYPICAL: usize = 2048;

/// A cached response.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The raw result or error object.
    pub(crate) bytes: Bytes,
    /// True if `bytes` is an error object.
    pub(crate) is_error: bool,
    /// `UpstreamState::cache_number` of the upstream that sent the response. Reloads do not change
    /// it.
    pub(crate) upstream: u16,
    /// The condition under which the entry is valid.
    pub(crate) validity: ValidityTag,
    /// When the entry expires even if the chain does not change; `None` if it does not expire.
    pub(crate) expires_at: Option<Duration>,
    /// Time when the gateway first received this response, if the response may be incomplete (it
    /// may for example lack logs). Such an entry expires early. `None` for a response that counts
    /// as complete.
    pub(crate) doubted_since: Option<Duration>,
}

impl Entry {
    /// Returns the payload of the response.
    pub(crate) fn payload(self) -> Payload {
        if self.is_error { Payload::Error(self.bytes) } else { Payload::Result(self.bytes) }
    }
}

/// Weighs an entry by its bytes.
#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<Box<[u8]>, Entry> for ByBytes {
    fn weight(&self, key: &Box<[u8]>, entry: &Entry) -> u64 {
        (key.len() + entry.bytes.len()) as u64 + ENTRY_OVERHEAD_BYTES
    }
}

type Table = Entries<Box<[u8]>, Entry, ByBytes, Hasher, Lifecycle>;
type Hasher = foldhash::fast::RandomState;
type Lifecycle = DefaultLifecycle<Box<[u8]>, Entry>;

/// The entries, shared by all threads and sharded internally. A reload changes the settings and
/// keeps the entries.
pub(crate) struct Cache {
    entries: Arc<Table>,
    config: config::cache::Cache,
}

impl Cache {
    pub(crate) fn new(config: &config::cache::Cache) -> Cache {
        let options = OptionsBuilder::new()
            .weight_capacity(config.bytes_max as u64)
            .estimated_items_capacity((config.bytes_max / ENTRY_BYTES_TYPICAL).max(64))
            .build()
            .expect("both capacities are given");
        let lifecycle = DefaultLifecycle::default();
        let entries = Entries::with_options(options, ByBytes, Hasher::default(), lifecycle);
        Cache { entries: Arc::new(entries), config: config.clone() }
    }

    /// Returns the same entries with other settings. A smaller capacity evicts entries.
    pub(crate) fn with_settings(&self, config: &config::cache::Cache) -> Cache {
        if self.entries.capacity() != config.bytes_max as u64 {
            self.entries.set_capacity(config.bytes_max as u64);
        }
        Cache { entries: Arc::clone(&self.entries), config: config.clone() }
    }

    /// Returns the entry of this key. The caller checks whether the entry is valid.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Entry> {
        self.entries.get(key)
    }

    /// Stores a response. Returns false if the key and the response together are too large. The
    /// cache copies the bytes, because a slice would keep the whole upstream response in memory.
    pub(crate) fn put(&self, key: &[u8], entry: Entry) -> bool {
        if key.len() + entry.bytes.len() > self.config.entry_bytes_max {
            return false;
        }
        let entry = Entry { bytes: Bytes::copy_from_slice(&entry.bytes), ..entry };
        self.entries.insert(key.into(), entry);
        true
    }

    /// Returns the maximum age of a response; `None` if the age is not limited.
    pub(crate) fn age_max(&self, is_error: bool, validity: &ValidityTag) -> Option<Duration> {
        match validity.binding {
            _ if is_error => Some(self.config.error_age_max),
            _ if validity.is_null => Some(self.config.null_age_max),
            Binding::Head { .. } => Some(self.config.head_age_max),
            // A response about a block stays valid while the block is on the chain.
            Binding::Block { .. } | Binding::Free => None,
        }
    }

    /// Removes an entry that is not valid any more.
    pub(crate) fn remove(&self, key: &[u8]) {
        self.entries.remove(key);
    }

    /// Removes all entries.
    pub(crate) fn clear(&self) {
        self.entries.clear();
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of bytes of all entries, including the overhead of each entry.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.weight()
    }
}
