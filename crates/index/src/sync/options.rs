//! The options and the outcome of a sync.

use std::sync::Arc;
use std::time::Duration;

use crate::contents::Contents;
use crate::nodes::Endpoint;
use crate::planner::range::End;
use crate::store::Settings;
use crate::verify::Level;

/// What to sync, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The nodes to fetch from; at least one.
    pub nodes: Vec<Arc<Endpoint>>,
    /// The first block of a new index.
    pub start: Option<u64>,
    /// The end.
    pub end: End,
    /// The parts of each block to store.
    pub contents: Contents,
    /// How strictly responses are verified. Harmony's blocks cannot be verified.
    pub verify: Level,
    /// Exchanges in flight at once.
    pub concurrency: usize,
    /// Maximum number of blocks that one message requests.
    pub batch_max: u64,
    /// The settings of the connection that writes.
    pub settings: Settings,
    /// How long all nodes may fail before the sync gives up; `None` for ever.
    pub patience: Option<Duration>,
}

/// How a sync ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The sync is complete.
    Complete,
    /// The caller stopped it. All fetched blocks are written.
    Stopped,
}
