//! The present state of a chain: its view, the headers of its newest blocks, its id.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::RwLock;
use tokio::sync::watch;
use wire::method::{MethodTable, methods_of};

use crate::config;
use crate::policy::contents::Headers;
use crate::policy::heads::ChainView;

/// One chain's present state.
pub(crate) struct ChainState {
    pub(crate) name: Arc<str>,
    /// What stands for it in the keys of the cache: its name, or, should a name be given to another
    /// chain while this process runs, something that no chain before it had.
    pub(crate) key: Arc<str>,
    pub(crate) family: &'static MethodTable,
    pub(crate) view: ArcSwap<ChainView>,
    /// What the headers of its newest blocks say. Locked while one response is compared with them.
    pub(crate) headers: RwLock<Headers>,
    /// Told of each new view.
    turned: watch::Sender<()>,
    /// The chain id that its upstreams have shown, and one; zero while none was asked.
    id: AtomicU64,
    pub(crate) reorgs: AtomicU64,
    pub(crate) reorg_depth_max: AtomicU64,
    /// When the served head last changed, milliseconds since the start.
    head_since_ms: AtomicU64,
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
            turned: watch::Sender::new(()),
            id: AtomicU64::new(0),
            reorgs: AtomicU64::new(0),
            reorg_depth_max: AtomicU64::new(0),
            head_since_ms: AtomicU64::new(0),
        }
    }

    /// Replaces the view.
    pub(crate) fn publish(&self, view: ChainView, now: Duration) {
        if view.head != self.view.load().head {
            self.head_since_ms.store(now.as_millis() as u64, Ordering::Relaxed);
        }
        self.view.store(Arc::new(view));
        self.turned.send_replace(());
    }

    /// No upstream is followed any more: who waits for a new view may look whether one will come.
    pub(crate) fn end(&self) {
        self.turned.send_replace(());
    }

    /// Hears of each new view from here on.
    pub(crate) fn turned(&self) -> watch::Receiver<()> {
        self.turned.subscribe()
    }

    /// Notes the chain id that an upstream has shown; none where its upstreams have no such thing.
    pub(crate) fn identify(&self, id: Option<u64>) {
        match id {
            Some(id) => self.id.store(id.saturating_add(1), Ordering::Release),
            None => {
                // What another upstream has shown stays; so the outcome does not matter.
                let _ = self.id.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// The chain id that an upstream has shown, or none where upstreams have no such thing; nothing
    /// before a upstream was asked.
    pub(crate) fn id_shown(&self) -> Option<Option<u64>> {
        self.id_known().map(|known| known.checked_sub(1).filter(|id| *id > 0))
    }

    /// A number that differs between chains of different ids; none before an upstream was asked.
    pub(crate) fn id_known(&self) -> Option<u64> {
        Some(self.id.load(Ordering::Acquire)).filter(|id| *id != 0)
    }

    /// When the served head last changed.
    pub(crate) fn head_since(&self) -> Duration {
        Duration::from_millis(self.head_since_ms.load(Ordering::Relaxed))
    }
}
