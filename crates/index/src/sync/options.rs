//! The options and the outcome of a sync.

use std::sync::Arc;
use std::time::Duration;

use crate::contents::Contents;
use crate::nodes::Endpoint;
use crate::planner::range::SyncEnd;
use crate::store::Settings;
use crate::verify::Level;

/// The options of a sync.
#[derive(Debug, Clone)]
pub struct Options {
    /// The nodes to fetch blocks from; at least one node.
    pub nodes: Vec<Arc<Endpoint>>,
    /// The first block of a new index; `None` for block 0. For an existing index, the sync fails if
    /// the start does not fit the stored blocks.
    pub start: Option<u64>,
    /// The block at which the sync ends.
    pub end: SyncEnd,
    /// The parts of each block to store.
    pub contents: Contents,
    /// Level of verification. Harmony's blocks cannot be verified.
    pub verify: Level,
    /// Number of worker threads, which is the maximum number of exchanges in flight.
    pub concurrency: usize,
    /// Maximum number of blocks that one request asks for.
    pub batch_max: u64,
    /// The settings of the connection that writes.
    pub settings: Settings,
    /// The sync fails if all nodes are paused and no call has succeeded for this time; `None` for
    /// no limit.
    pub patience: Option<Duration>,
}

/// The end of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncOutcome {
    /// The sync is complete.
    Complete,
    /// The caller stopped the sync. All blocks that the sync received in order are written.
    Stopped,
}
