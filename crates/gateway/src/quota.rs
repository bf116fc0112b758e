//! What keys have used of their monthly quotas: one book for all threads, configurations and,
//! through Redis, gateways.
//!
//! The arithmetic is `policy/quota.rs`, the file's format `config/quota/file.rs`.
//! `runtime/quota.rs` writes the file, `cache/redis/quotas.rs` exchanges sums with other gateways.
//! A call is charged once it is authorized (`path.rs`).

use crate::config::quota::file::Kept;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use wire::method::Method;

use crate::call::failure::{Failure, Kind};
use crate::config::Config;
use crate::config::limits::Cost;
use crate::policy::access::Grant;
use crate::policy::quota::{Account, Month, Standing};

#[cfg(test)]
mod tests;

/// The quotas of a configuration.
#[derive(Debug)]
pub(crate) struct Quotas {
    /// By [`Grant::index`]; none for keys without a quota.
    keys: Vec<Option<Held>>,
    cost: Cost,
    /// Of how many gateways it is one; none where quotas are its own.
    gateways: Option<u64>,
    pub(crate) book: Arc<Book>,
}

/// A key's quota.
#[derive(Debug)]
struct Held {
    units: u64,
    entry: Arc<Entry>,
}

/// All accounts, of former keys too: one that comes back has used what it has used.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Locked to make and to list entries, which is rare.
    entries: Mutex<BTreeMap<Arc<str>, Arc<Entry>>>,
    /// Whether other gateways cannot be heard.
    pub(crate) away: AtomicBool,
    /// Whether anything was used since the file was written.
    pub(crate) changed: AtomicBool,
    pub(crate) refused: AtomicU64,
    pub(crate) write_failures: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Locked for the time of some additions.
    pub(crate) account: Mutex<Account>,
    /// Whether it was charged, or asked, since others were told.
    pub(crate) touched: AtomicBool,
}

impl Quotas {
    /// The quotas of a configuration, with the book of the one before; none if it has none.
    pub(crate) fn after(before: Option<&Quotas>, config: &Config) -> Option<Quotas> {
        let quota = config.quota.as_ref()?;
        let book = before.map_or_else(Arc::default, |before| Arc::clone(&before.book));
        book.take(&quota.kept);
        let gateways = config.redis.as_ref().filter(|_| quota.shared).map(|redis| redis.gateways);
        if before.is_none() {
            // Until the others were heard.
            book.away.store(gateways.is_some(), Ordering::Relaxed);
        }
        let held =
            |grant: &Grant| Some(Held { units: grant.quota?, entry: book.entry(&grant.name) });
        let keys = config.access.keys.iter().map(|key| held(&key.grant)).collect();
        Some(Quotas { keys, cost: quota.cost, gateways, book })
    }

    /// Charges a call to the quota of its key, if that has one.
    ///
    /// # Errors
    /// Ours, if it is used up.
    pub(crate) fn charge(
        &self,
        grant: &Grant,
        method: Option<&Method>,
        second: u64,
    ) -> Result<(), Failure> {
        let Some(Some(held)) = self.keys.get(grant.index) else { return Ok(()) };
        let cost = match self.cost {
            Cost::Call => 1,
            Cost::Weight => method.map_or(1, |method| u64::from(method.weight)).max(1),
        };
        let standing = match self.gateways {
            Some(gateways) if self.book.away.load(Ordering::Relaxed) => Standing::Share(gateways),
            _ => Standing::Whole,
        };
        let month = Month::of(second);
        let entry = &held.entry;
        entry.touched.store(true, Ordering::Relaxed);
        if entry.account.lock().charge(month, cost, held.units, standing) {
            self.book.changed.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.book.refused.fetch_add(1, Ordering::Relaxed);
        let retry_after = Duration::from_secs(month.end().saturating_sub(second));
        Err(Failure { retry_after: Some(retry_after), ..Failure::ours(Kind::OverQuota) })
    }

    /// Units used and allowed in the month, by [`Grant::index`]; `None` for a key without a quota.
    pub(crate) fn standings(&self, second: u64) -> Vec<Option<(u64, u64)>> {
        let month = Month::of(second);
        let standing = |held: &Held| (held.entry.account.lock().used(month), held.units);
        self.keys.iter().map(|held| held.as_ref().map(standing)).collect()
    }

    /// Whether it judges by its part of what was left, because it cannot hear the others.
    pub(crate) fn is_alone(&self) -> bool {
        self.gateways.is_some() && self.book.away.load(Ordering::Relaxed)
    }
}

impl Book {
    fn entry(&self, name: &Arc<str>) -> Arc<Entry> {
        Arc::clone(self.entries.lock().entry(Arc::clone(name)).or_default())
    }

    /// Takes in what a file says; where more is known already, that stays.
    pub(crate) fn take(&self, kept: &Kept) {
        for (name, used) in &kept.keys {
            let entry = self.entry(name);
            entry.account.lock().raise(kept.month, *used);
        }
    }

    pub(crate) fn each(&self) -> Vec<(Arc<str>, Arc<Entry>)> {
        let entries = self.entries.lock();
        entries.iter().map(|(name, entry)| (Arc::clone(name), Arc::clone(entry))).collect()
    }
}

/// The wall clock: what months go by.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
