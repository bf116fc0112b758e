//! Writes the usage of quotas to a file, and shares the usage with other gateways through Redis.
//! Both happen once a second while the usage changes, and when the gateway stops.
//!
//! A process that is killed loses the usage of its last second. If the file cannot be written, the
//! error is logged once, and the metrics count each failure. The gateway still counts usage in
//! memory.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::cache::redis::quotas::QuotaClient;
use crate::config::quota::file;
use crate::config::quota::file::QuotaUsage;
use crate::io::clock::unix_seconds;
use crate::policy::quota::Month;
use crate::quota::Ledger;
use crate::state::snapshot::Snapshot;

/// Interval of writes to the file and exchanges with Redis.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a response after which Redis counts as unreachable.
const REDIS_SILENCE_MAX: Duration = Duration::from_secs(3);
/// Maximum number of keys whose usage is exchanged at the same time.
const EXCHANGES_MAX: usize = 64;

/// Handle of the task that writes and shares the usage under one configuration. Dropping the handle
/// ends the task.
pub(crate) struct QuotaSync {
    task: Rc<SyncTask>,
    abort_handle: AbortHandle,
}

/// The state of the task.
struct SyncTask {
    snapshot: Arc<Snapshot>,
    ledger: Arc<Ledger>,
    /// The quota file.
    file: PathBuf,
    /// The Redis client; `None` if gateways do not share the quotas.
    client: Option<QuotaClient>,
}

impl QuotaSync {
    /// Starts the task. Returns `None` if no key has a quota.
    pub(crate) fn start(snapshot: &Arc<Snapshot>) -> Option<QuotaSync> {
        let quota = snapshot.config.quota.as_ref()?;
        let ledger = Arc::clone(&snapshot.quotas.as_ref()?.ledger);
        let redis = snapshot.config.redis.as_ref().filter(|_| quota.shared);
        let client = redis.map(|redis| QuotaClient::new(redis, &snapshot.process));
        if client.is_none() {
            ledger.unreachable.store(false, Ordering::Relaxed);
        }
        let file = quota.file.clone();
        let task = Rc::new(SyncTask { snapshot: Arc::clone(snapshot), ledger, file, client });
        let abort_handle = tokio::task::spawn_local(Rc::clone(&task).run()).abort_handle();
        Some(QuotaSync { task, abort_handle })
    }

    /// Ends the task. Writes and shares the remaining changes, within a timeout.
    pub(crate) async fn finish(self) {
        self.abort_handle.abort();
        if self.task.client.is_some() {
            // If the exchange times out, the changes are still written to the file, and the gateway
            // shares them after its next start.
            let include_unchanged = false;
            let exchange = self.task.sync(include_unchanged);
            let _ = tokio::time::timeout(WRITE_INTERVAL, exchange).await;
        }
        self.task.write();
    }
}

impl Drop for QuotaSync {
    fn drop(&mut self) {
        self.abort_handle.abort();
    }
}

impl SyncTask {
    /// Exchanges and writes the usage at each interval, until the task is aborted.
    async fn run(self: Rc<Self>) {
        let mut last_response: Option<Instant> = None;
        let mut has_failed = false;
        loop {
            if self.client.is_some() {
                // Until one exchange has succeeded, each exchange covers all keys.
                if self.sync(last_response.is_none()).await {
                    last_response = Some(Instant::now());
                }
                let unreachable = last_response
                    .is_none_or(|last_response| last_response.elapsed() > REDIS_SILENCE_MAX);
                if self.ledger.unreachable.swap(unreachable, Ordering::Relaxed) != unreachable
                    && last_response.is_some()
                {
                    tracing::warn!(
                        unreachable,
                        "reachability of Redis for shared quotas has changed"
                    );
                }
            }
            if self.ledger.changed.swap(false, Ordering::Relaxed) {
                let (ledger, file) = (Arc::clone(&self.ledger), self.file.clone());
                let written = tokio::task::spawn_blocking(move || write_ledger(&ledger, &file));
                let is_written = written.await.unwrap_or(false);
                if !is_written && !has_failed {
                    tracing::error!(file = %self.file.display(), "quotas cannot be written");
                }
                has_failed = !is_written;
            }
            tokio::time::sleep(WRITE_INTERVAL).await;
        }
    }

    /// Exchanges the usage of keys with other gateways. Covers the keys that were used since their
    /// last report, or all keys if `include_unchanged` is true. Returns true if Redis responded to
    /// each exchange, or if gateways do not share the quotas.
    async fn sync(&self, include_unchanged: bool) -> bool {
        let Some(client) = &self.client else { return true };
        let now = self.snapshot.now();
        if !client.check_available(now).await {
            return false;
        }
        let entries = self.ledger.entries().into_iter().filter(|(_, entry)| {
            entry.used_since_report.swap(false, Ordering::Relaxed) || include_unchanged
        });
        let exchanges = entries.map(|(name, entry)| async move {
            let report = entry.account.lock().build_report();
            match client.report_usage(&name, report, now).await {
                Some(used) => {
                    entry.account.lock().confirm_report(report, used);
                    true
                }
                None => {
                    entry.used_since_report.store(true, Ordering::Relaxed);
                    false
                }
            }
        });
        let outcomes = futures_util::stream::iter(exchanges).buffer_unordered(EXCHANGES_MAX);
        outcomes
            .fold(true, |all_succeeded, succeeded| async move { all_succeeded && succeeded })
            .await
    }

    fn write(&self) {
        write_ledger(&self.ledger, &self.file);
    }
}

/// Merges the file into the ledger and writes the ledger. Returns true on success. The merge is
/// needed because two processes write the file during a hand-over.
pub(crate) fn write_ledger(ledger: &Ledger, file: &std::path::Path) -> bool {
    if let Ok(file_usage) = file::read(file) {
        ledger.raise_to(&file_usage);
    }
    let month = Month::containing(unix_seconds());
    let used = ledger.entries().into_iter().map(|(name, entry)| {
        let used = entry.account.lock().used(month);
        (name, used)
    });
    let usage = QuotaUsage { month, keys: used.filter(|(_, used)| *used > 0).collect() };
    let written = file::write(file, &usage);
    if let Err(error) = &written {
        ledger.write_failures.fetch_add(1, Ordering::Relaxed);
        ledger.changed.store(true, Ordering::Relaxed);
        tracing::debug!(%error, "quotas cannot be written");
    }
    written.is_ok()
}
