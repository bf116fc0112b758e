//! The present state of a chain: its id, the headers of its newest blocks, and its view. The view
//! is an immutable snapshot of the chain's heads (`policy/heads/view.rs`). The served head is the
//! block that clients get as `latest`. The served chain is the chain of blocks that ends with the
//! served head.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use wire::method::{MethodTable, methods_of};

use crate::config;
use crate::policy::block_headers::RecentHeaders;
use crate::policy::heads::{ChainView, Head};

/// The present state of a chain.
pub(crate) struct ChainState {
    pub(crate) name: Arc<str>,
    /// Identifies the chain in cache keys. The key is usually the chain's name. If a reload gives a
    /// previous chain's name to another chain, a unique number is appended to the key.
    pub(crate) key: Arc<str>,
    /// The methods of the chain's family, such as Ethereum or Bitcoin.
    pub(crate) family: &'static MethodTable,
    /// The current view.
    pub(crate) view: ArcSwap<ChainView>,
    /// Parsed headers of the newest blocks. Locked while a response is compared with these headers.
    pub(crate) headers: RwLock<RecentHeaders>,
    /// Notified of each new view.
    view_changed: watch::Sender<()>,
    /// Notified of each new view, too. A [`Notify`] wakes its waiters in order, so simulations are
    /// reproducible.
    pub(crate) view_published: Notify,
    /// The latest news of the head; `None` before the first news.
    head_news: Mutex<Option<HeadNews>>,
    /// Notified of news of the head.
    pub(crate) news_reported: Notify,
    /// The chain id that an upstream has reported, plus one. The value is 1 if the upstreams report
    /// no chain id, and 0 before the first report.
    id_plus_one: AtomicU64,
    /// Number of reorgs of the served chain.
    pub(crate) reorgs: AtomicU64,
    /// Number of blocks that the deepest reorg dropped.
    pub(crate) reorg_depth_max: AtomicU64,
    /// When the served head last changed, in milliseconds since the process started.
    head_since_ms: AtomicU64,
    /// The head that the gateway last lost; `None` if it has never lost a head.
    last_head: Mutex<Option<LastHead>>,
}

/// A head that is no longer served, because no upstream confirms it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastHead {
    pub(crate) head: Head,
    /// When the gateway stopped serving the head, as time since the process started.
    pub(crate) lost_at: Duration,
}

/// News of the head: a response has shown a block above the served head. Such a response is held until
/// the served head has reached the block, or until `until`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadNews {
    /// Height of the block.
    pub(crate) height: u64,
    /// When the gateway no longer holds the response.
    pub(crate) until: Instant,
}

/// The chain id that the upstreams have reported.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReportedId {
    /// No upstream has reported yet.
    Pending,
    /// The upstreams report no chain id.
    Absent,
    /// An upstream has reported this id.
    Id(u64),
}

impl std::fmt::Debug for ChainState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainState").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ChainState {
    pub(super) fn new(chain: &config::chain::Chain, key: Arc<str>) -> ChainState {
        ChainState {
            name: Arc::clone(&chain.name),
            key,
            family: methods_of(chain.family),
            view: ArcSwap::default(),
            headers: RwLock::default(),
            view_changed: watch::Sender::new(()),
            view_published: Notify::new(),
            head_news: Mutex::default(),
            news_reported: Notify::new(),
            id_plus_one: AtomicU64::new(0),
            reorgs: AtomicU64::new(0),
            reorg_depth_max: AtomicU64::new(0),
            head_since_ms: AtomicU64::new(0),
            last_head: Mutex::new(None),
        }
    }

    /// Replaces the view and notifies its readers.
    pub(crate) fn publish(&self, view: ChainView, now: Duration) {
        let previous_head = self.view.load().head;
        if view.head != previous_head {
            self.head_since_ms.store(now.as_millis() as u64, Ordering::Relaxed);
        }
        if let (Some(head), None) = (previous_head, view.head) {
            *self.last_head.lock() = Some(LastHead { head, lost_at: now });
        }
        self.view.store(Arc::new(view));
        self.view_changed.send_replace(());
        self.view_published.notify_waiters();
    }

    /// Notifies waiters that the upstreams are no longer polled, so no new view is published.
    pub(crate) fn end(&self) {
        self.view_changed.send_replace(());
    }

    /// Returns a receiver that is notified of each new view.
    pub(crate) fn view_changes(&self) -> watch::Receiver<()> {
        self.view_changed.subscribe()
    }

    /// Reports news of the head, so that the upstreams are polled at once. The greatest height counts
    /// until the last response that is held.
    pub(crate) fn report_news(&self, news: HeadNews) {
        let mut current = self.head_news.lock();
        let height = current
            .filter(|current| current.until > Instant::now())
            .map_or(news.height, |current| current.height.max(news.height));
        *current = Some(HeadNews { height, ..news });
        drop(current);
        self.news_reported.notify_waiters();
    }

    /// Returns the latest news of the head; `None` before the first news.
    pub(crate) fn head_news(&self) -> Option<HeadNews> {
        *self.head_news.lock()
    }

    /// Sets the chain id that an upstream has reported; `None` if the upstream has no chain id.
    pub(crate) fn set_id(&self, id: Option<u64>) {
        match id {
            Some(id) => self.id_plus_one.store(id.saturating_add(1), Ordering::Release),
            None => {
                // The exchange fails if another upstream has reported an id. That id stays, so the
                // result is ignored.
                let _ =
                    self.id_plus_one.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Returns the chain id that the upstreams have reported.
    pub(crate) fn reported_id(&self) -> ReportedId {
        match self.id_plus_one.load(Ordering::Acquire) {
            0 => ReportedId::Pending,
            1 => ReportedId::Absent,
            id_plus_one => ReportedId::Id(id_plus_one - 1),
        }
    }

    /// Returns a number that differs between chains with different ids; `None` before the first
    /// report.
    pub(crate) fn id_key(&self) -> Option<u64> {
        Some(self.id_plus_one.load(Ordering::Acquire)).filter(|id_key| *id_key != 0)
    }

    /// Returns the head that the gateway last lost; `None` if it has never lost a head.
    pub(crate) fn last_head(&self) -> Option<LastHead> {
        *self.last_head.lock()
    }

    /// Returns when the served head last changed, as time since the process started.
    pub(crate) fn head_since(&self) -> Duration {
        Duration::from_millis(self.head_since_ms.load(Ordering::Relaxed))
    }
}
