//! The memory tier: answers by call key, bounded in bytes.
//!
//! The whole key is kept and compared, so that two calls never share an entry by a hash alone.
//! What may be stored and whether an entry still holds is decided in `policy/cacheable.rs`: an
//! entry is never trusted for being there, each hit is judged by the chain's present view.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quick_cache::sync::{Cache as Entries, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::call::response::Payload;
use crate::config;
use crate::policy::cacheable::{Binding, ValidityTag};

/// What the map, its slots and the allocations cost for each entry besides its bytes; measured
/// as the growth of the process over a million small entries.
const ENTRY_OVERHEAD_BYTES: u64 = 200;
/// Bytes of a typical entry, to size the map at the start; it grows when entries are smaller.
const ENTRY_BYTES_TYPICAL: usize = 2048;

/// One kept answer.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The raw result or error object.
    pub(crate) bytes: Bytes,
    /// Whether it is an error object.
    pub(crate) is_error: bool,
    /// The upstream that sent it, by the number that it keeps through reloads
    /// (`UpstreamState::number`).
    pub(crate) upstream: u16,
    /// What it stays true with.
    pub(crate) kept: ValidityTag,
    /// When it is dropped whatever the chain says.
    pub(crate) until: Option<Duration>,
    /// Since when the same response was given, if it may lack something: then it is kept briefly.
    pub(crate) doubted_since: Option<Duration>,
}

impl Entry {
    /// The payload to answer with.
    pub(crate) fn payload(self) -> Payload {
        if self.is_error { Payload::Error(self.bytes) } else { Payload::Result(self.bytes) }
    }
}

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

/// The entries, shared by all threads; sharded inside. A reload changes the settings and keeps the
/// entries.
pub(crate) struct Cache {
    entries: Arc<Table>,
    entry_bytes_max: usize,
    head_age_max: Duration,
    null_age_max: Duration,
    error_age_max: Duration,
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
        Cache::with(Arc::new(entries), config)
    }

    /// The same entries under other settings; what is over a smaller size is dropped.
    pub(crate) fn under(&self, config: &config::cache::Cache) -> Cache {
        if self.entries.capacity() != config.bytes_max as u64 {
            self.entries.set_capacity(config.bytes_max as u64);
        }
        Cache::with(Arc::clone(&self.entries), config)
    }

    fn with(entries: Arc<Table>, config: &config::cache::Cache) -> Cache {
        Cache {
            entries,
            entry_bytes_max: config.entry_bytes_max,
            head_age_max: config.head_age_max,
            null_age_max: config.null_age_max,
            error_age_max: config.error_age_max,
        }
    }

    /// The entry of this key, unjudged.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Entry> {
        self.entries.get(key)
    }

    /// Keeps an answer unless it is too large. The bytes are copied, so that an entry does not keep
    /// the whole of the upstream's answer alive.
    pub(crate) fn put(&self, key: &[u8], entry: Entry) -> bool {
        if key.len() + entry.bytes.len() > self.entry_bytes_max {
            return false;
        }
        let entry = Entry { bytes: Bytes::copy_from_slice(&entry.bytes), ..entry };
        self.entries.insert(key.into(), entry);
        true
    }

    /// How old an answer may become whatever the chain says.
    pub(crate) fn age_max(&self, is_error: bool, kept: &ValidityTag) -> Option<Duration> {
        match kept.binding {
            _ if is_error => Some(self.error_age_max),
            _ if kept.null => Some(self.null_age_max),
            Binding::Head { .. } => Some(self.head_age_max),
            Binding::Block { .. } | Binding::Free => None,
        }
    }

    /// Drops an entry that does not hold any more.
    pub(crate) fn drop_stale(&self, key: &[u8]) {
        self.entries.remove(key);
    }

    /// Drops everything.
    pub(crate) fn clear(&self) {
        self.entries.clear();
    }

    /// Entries held now.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes held now, with the overhead of each entry.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.weight()
    }
}
