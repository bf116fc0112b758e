//! When quotas are written and told: each second while something is used, and at the end.
//!
//! A process that ends without notice loses the units of its last second. A file that cannot be
//! written is told in the log, once, and in the metrics; calls go on being counted in memory.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::cache::redis::quotas::Exchange;
use crate::config::quota::file;
use crate::config::quota::file::QuotaUsage;
use crate::policy::quota::Month;
use crate::quota::{Ledger, unix_seconds};
use crate::state::snapshot::Snapshot;

/// How often.
const INTERVAL: Duration = Duration::from_secs(1);
/// For so long after it was last heard, Redis is not taken to be away.
const HEARD_LATELY: Duration = Duration::from_secs(3);
/// Keys told at a time.
const TOLD_AT_ONCE: usize = 64;

/// Keeps the quotas of one configuration; ends when it is dropped.
pub(crate) struct Keeper {
    task: Rc<Task>,
    running: AbortHandle,
}

struct Task {
    snapshot: Arc<Snapshot>,
    ledger: Arc<Ledger>,
    file: PathBuf,
    exchange: Option<Exchange>,
}

impl Keeper {
    /// Begins; none without quotas.
    pub(crate) fn start(snapshot: &Arc<Snapshot>) -> Option<Keeper> {
        let quota = snapshot.config.quota.as_ref()?;
        let ledger = Arc::clone(&snapshot.quotas.as_ref()?.ledger);
        let redis = snapshot.config.redis.as_ref().filter(|_| quota.shared);
        let exchange = redis.map(Exchange::new);
        if exchange.is_none() {
            ledger.unreachable.store(false, Ordering::Relaxed);
        }
        let file = quota.file.clone();
        let task = Rc::new(Task { snapshot: Arc::clone(snapshot), ledger, file, exchange });
        let running = tokio::task::spawn_local(Rc::clone(&task).run()).abort_handle();
        Some(Keeper { task, running })
    }

    /// Writes and tells what is left, in bounded time.
    pub(crate) async fn finish(self) {
        self.running.abort();
        if self.task.exchange.is_some() {
            // What takes longer is told by the file, after the next start.
            let _ = tokio::time::timeout(INTERVAL, self.task.tell(false)).await;
        }
        self.task.write();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Task {
    async fn run(self: Rc<Self>) {
        let mut heard: Option<Instant> = None;
        let mut faulty = false;
        loop {
            if self.exchange.is_some() {
                if self.tell(heard.is_none()).await {
                    heard = Some(Instant::now());
                }
                let unreachable = heard.is_none_or(|heard| heard.elapsed() > HEARD_LATELY);
                if self.ledger.unreachable.swap(unreachable, Ordering::Relaxed) != unreachable
                    && heard.is_some()
                {
                    tracing::warn!(unreachable, "other gateways' use of quotas");
                }
            }
            if self.ledger.changed.swap(false, Ordering::Relaxed) {
                let task = (Arc::clone(&self.ledger), self.file.clone());
                let written = tokio::task::spawn_blocking(move || write(&task.0, &task.1)).await;
                let well = written.unwrap_or(false);
                if !well && !faulty {
                    tracing::error!(file = %self.file.display(), "quotas cannot be written");
                }
                faulty = !well;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Tells other gateways of what was used here, and hears of theirs; whether Redis answered.
    async fn tell(&self, all: bool) -> bool {
        let Some(exchange) = &self.exchange else { return true };
        let now = self.snapshot.now();
        if !exchange.is_up(now).await {
            return false;
        }
        let entries = self
            .ledger
            .each()
            .into_iter()
            .filter(|(_, entry)| entry.touched.swap(false, Ordering::Relaxed) || all);
        let tells = entries.map(|(name, entry)| async move {
            let told = entry.account.lock().report();
            match exchange.tell(&name, told, now).await {
                Some(used) => {
                    entry.account.lock().confirm(told, used);
                    true
                }
                None => {
                    entry.touched.store(true, Ordering::Relaxed);
                    false
                }
            }
        });
        let answers = futures_util::stream::iter(tells).buffer_unordered(TOLD_AT_ONCE);
        answers.fold(true, |all, one| async move { all && one }).await
    }

    fn write(&self) {
        write(&self.ledger, &self.file);
    }
}

/// Writes the book; whether that went well. What the file knows beyond it is taken over first: at a
/// hand-over there are two writers.
pub(crate) fn write(ledger: &Ledger, file: &std::path::Path) -> bool {
    if let Ok(kept) = file::read(file) {
        ledger.take(&kept);
    }
    let month = Month::of(unix_seconds());
    let used = ledger.each().into_iter().map(|(name, entry)| {
        let used = entry.account.lock().used(month);
        (name, used)
    });
    let kept = QuotaUsage { month, keys: used.filter(|(_, used)| *used > 0).collect() };
    let written = file::write(file, &kept);
    if let Err(error) = &written {
        ledger.write_failures.fetch_add(1, Ordering::Relaxed);
        ledger.changed.store(true, Ordering::Relaxed);
        tracing::debug!(%error, "quotas are not written");
    }
    written.is_ok()
}
