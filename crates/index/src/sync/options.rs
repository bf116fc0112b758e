//! The options and the outcome of a sync.

use std::sync::Arc;
use std::time::Duration;

use crate::contents::Contents;
use crate::nodes::Endpoint;
use crate::planner::range::End;
use crate::store::Settings;
use crate::verify::Level;

/// The options of a sync.
#[derive(Debug, Clone)]
pub struct Options {
    /// The nodes to fetch blocks from; at least one node.
    pub nodes: Vec<Arc<Endpoint>>,
    /// The first block of a new index.
    pub start: Option<u64>,
    /// The block at which the sync ends.
    pub end: End,
    /// The parts of each block to store.
    pub contents: Contents,
    /// Level of verification. Harmony's blocks cannot be verified.
    pub verify: Level,
    /// Number of exchanges in flight at the same time.
    pub concurrency: usize,
    /// Maximum number of blocks that one request asks for.
    pub batch_max: u64,
    /// The settings of the connection that writes.
    pub settings: Settings,
    /// Time after which the sync gives up if all nodes fail; `None`: it never gives up.
    pub patience: Option<Duration>,
}

/// The end of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The sync is complete.
    Complete,
    /// The caller stopped the sync. All blocks that the sync received in order are written.
    Stopped,
}
