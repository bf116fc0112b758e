//! The monthly quotas of API keys and the usage of these quotas. Both are counted in units. A call
//! costs one unit, or the weight of its method. The *ledger* records the usage of each key. All
//! threads share the ledger, and it survives reloads. Gateways can share their usage through Redis.
//!
//! `path.rs` charges a call after its authorization. `policy/quota.rs` does the arithmetic, and
//! `config/quota/file.rs` defines the file format. `runtime/quota.rs` writes the file, and
//! `cache/redis/quotas.rs` exchanges usage with other gateways.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use wire::method::Method;

use crate::call::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::config::limits::CallCost;
use crate::config::quota::file::QuotaUsage;
use crate::policy::access::Grant;
use crate::policy::quota::{Account, Allowance, Month};

#[cfg(test)]
mod tests;

/// The quotas of a configuration.
#[derive(Debug)]
pub(crate) struct Quotas {
    /// The quota of each key, by [`Grant::index`]; `None` for keys without a quota.
    keys: Vec<Option<KeyQuota>>,
    /// Whether a call costs one unit, or the weight of its method.
    cost: CallCost,
    /// Number of gateways that share the quotas; `None` if gateways do not share them.
    gateways: Option<Arc<AtomicU64>>,
    pub(crate) ledger: Arc<Ledger>,
}

/// A key's quota.
#[derive(Debug)]
struct KeyQuota {
    /// Number of units that the key may use in a month.
    units: u64,
    /// The key's entry in the ledger.
    entry: Arc<LedgerEntry>,
}

/// The usage of a key's quota in a month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyUsage {
    /// Units used in the month.
    pub(crate) used: u64,
    /// Units that the key may use in the month.
    pub(crate) units: u64,
}

/// The usage of all keys. It includes removed keys, so a key that is added again keeps its usage.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The entries, by the name of the key. Locked only to add or list entries, which is rare.
    entries: Mutex<BTreeMap<Arc<str>, Arc<LedgerEntry>>>,
    /// True while this gateway cannot reach Redis, and so cannot exchange usage with other
    /// gateways.
    pub(crate) unreachable: AtomicBool,
    /// True if the usage has changed since the file was written.
    pub(crate) changed: AtomicBool,
    /// Number of calls refused because a quota was used up.
    pub(crate) refused: AtomicU64,
    /// Number of failed writes of the file.
    pub(crate) write_failures: AtomicU64,
}

/// The usage of one key.
#[derive(Debug, Default)]
pub(crate) struct LedgerEntry {
    /// Locked only for a few additions.
    pub(crate) account: Mutex<Account>,
    /// True if a call was charged, or refused, since the last report to other gateways.
    pub(crate) used_since_report: AtomicBool,
}

impl Quotas {
    /// Builds the quotas of a configuration with the ledger of the previous configuration.
    /// `gateways` is the number of gateways that share quotas. Returns `None` if no key has a
    /// quota.
    pub(crate) fn new(
        previous: Option<&Quotas>,
        config: &Config,
        gateways: &Arc<AtomicU64>,
    ) -> Option<Quotas> {
        let quota = config.quota.as_ref()?;
        let ledger = previous.map_or_else(Arc::default, |previous| Arc::clone(&previous.ledger));
        ledger.raise_to(&quota.usage);
        let is_shared = config.redis.is_some() && quota.shared;
        let gateways = is_shared.then(|| Arc::clone(gateways));
        if previous.is_none() {
            // The other gateways count as unreachable until the first report.
            ledger.unreachable.store(gateways.is_some(), Ordering::Relaxed);
        }
        let quota_of = |grant: &Grant| {
            Some(KeyQuota { units: grant.quota?, entry: ledger.entry(&grant.name) })
        };
        let keys = config.access.keys.iter().map(|key| quota_of(&key.grant)).collect();
        Some(Quotas { keys, cost: quota.cost, gateways, ledger })
    }

    /// Charges a call to the quota of its key, if the key has a quota. `unix_seconds` is the
    /// current time.
    ///
    /// # Errors
    ///
    /// A failure if the quota is used up.
    pub(crate) fn charge(
        &self,
        grant: &Grant,
        method: Option<&Method>,
        unix_seconds: u64,
    ) -> Result<(), Failure> {
        let Some(Some(key)) = self.keys.get(grant.index) else { return Ok(()) };
        let cost = match self.cost {
            CallCost::Call => 1,
            CallCost::Weight => method.map_or(1, |method| u64::from(method.weight)).max(1),
        };
        let allowance = match &self.gateways {
            Some(gateways) if self.ledger.unreachable.load(Ordering::Relaxed) => {
                Allowance::Share(gateways.load(Ordering::Relaxed))
            }
            _ => Allowance::Whole,
        };
        let month = Month::containing(unix_seconds);
        let entry = &key.entry;
        entry.used_since_report.store(true, Ordering::Relaxed);
        if entry.account.lock().charge(month, cost, key.units, allowance) {
            self.ledger.changed.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.ledger.refused.fetch_add(1, Ordering::Relaxed);
        let retry_after = Duration::from_secs(month.end().saturating_sub(unix_seconds));
        Err(Failure { retry_after: Some(retry_after), ..Failure::ours(FailureKind::OverQuota) })
    }

    /// Returns the units used and allowed in the month of `unix_seconds`, by [`Grant::index`].
    /// `None` marks a key without a quota.
    pub(crate) fn usage(&self, unix_seconds: u64) -> Vec<Option<KeyUsage>> {
        let month = Month::containing(unix_seconds);
        let usage_of = |key: &KeyQuota| KeyUsage {
            used: key.entry.account.lock().used(month),
            units: key.units,
        };
        self.keys.iter().map(|key| key.as_ref().map(usage_of)).collect()
    }

    /// Returns true if this gateway applies only its share of each quota, because it cannot reach
    /// the other gateways.
    pub(crate) fn is_local_only(&self) -> bool {
        self.gateways.is_some() && self.ledger.unreachable.load(Ordering::Relaxed)
    }
}

impl Ledger {
    /// Returns the entry of the key with this name. Adds a missing entry.
    fn entry(&self, name: &Arc<str>) -> Arc<LedgerEntry> {
        Arc::clone(self.entries.lock().entry(Arc::clone(name)).or_default())
    }

    /// Raises the usage of each key to the usage that a file records. A higher usage in the ledger
    /// does not change.
    pub(crate) fn raise_to(&self, usage: &QuotaUsage) {
        for (name, used) in &usage.keys {
            let entry = self.entry(name);
            entry.account.lock().raise(usage.month, *used);
        }
    }

    /// Returns all entries with the names of their keys.
    pub(crate) fn entries(&self) -> Vec<(Arc<str>, Arc<LedgerEntry>)> {
        let entries = self.entries.lock();
        entries.iter().map(|(name, entry)| (Arc::clone(name), Arc::clone(entry))).collect()
    }
}
