//! The source of a stream. `chain_events.rs` and `relay.rs` produce its events.

use std::rc::Rc;
use std::sync::Arc;

use super::feeds::Feed;
use super::stream::Stream;
use crate::state::context::CurrentContext;
use crate::upstream::chain::ChainState;

/// Produces the events of one stream.
pub(super) struct Source {
    /// The current context of the thread that runs the source.
    pub(super) context: Rc<CurrentContext>,
    pub(super) chain: Arc<ChainState>,
    /// The chain's feed.
    pub(super) feed: Arc<Feed>,
    /// The stream that receives the events.
    pub(super) stream: Arc<Stream>,
}

impl Source {
    /// Returns the chain's index in the current configuration; `None` if a reload has removed the
    /// chain.
    pub(super) fn chain_index(&self) -> Option<usize> {
        self.context.get().snapshot.chain_index(&self.chain)
    }
}
