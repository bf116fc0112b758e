//! The data of one sync run: samples of the node's state, and what the node's log reports about its
//! peers. In a sync run, a node downloads its chain and processes the blocks. Peers are the other
//! nodes that send the blocks.

use lab_model::results::study::Accesses;
use serde::{Deserialize, Serialize};

/// The state of a node at one instant. A value is `None` if the source of the samples, such as a
/// log, does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time of the sample, in seconds since 1970.
    pub at: f64,
    /// Block height: the number of the newest block that the node has processed.
    pub height: u64,
    /// Size of the used part of the node's page cache, in bytes.
    pub used: Option<u64>,
    /// Numbers of accesses to the page cache since the previous sample.
    pub accesses: Option<Accesses>,
    /// Memory that the node uses, in bytes.
    pub memory: Option<u64>,
    /// Disk space that the node's data use, in bytes.
    pub disk: Option<u64>,
    /// Number of connected peers.
    pub peers: Option<u64>,
    /// CPU time of the node's processes since their start, in seconds.
    pub cpu: Option<f64>,
    /// Age of the newest block when the node processed it, by the block's own timestamp, in seconds.
    pub age: Option<f64>,
}

/// A height that a peer announced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Announced {
    /// Time of the announcement, in seconds since 1970.
    pub at: f64,
    /// Block height.
    pub height: u64,
}

/// A block that a peer did not deliver in time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeout {
    /// Time of the log line, in seconds since 1970.
    pub at: f64,
    /// Number by which the log names the peer.
    pub peer: u64,
}

/// One sync run of one variant. A variant is one of the compared nodes or settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SyncRun {
    /// Name of the run: the file from which it was read, or a number such as `run 2`.
    pub label: String,
    /// Start of the run, in seconds since 1970: the start of the process if it is known, else the
    /// time of the first sample.
    pub origin: f64,
    /// The samples, at least one. Their times rise, and their heights never fall.
    pub samples: Vec<Sample>,
    /// Heights that peers announced, in the order of time. Each height is above all earlier ones;
    /// lower heights come from peers that lag and are left out. The last height approximates the
    /// height of the chain.
    pub announced: Vec<Announced>,
    /// Blocks that peers did not deliver in time.
    pub timeouts: Vec<Timeout>,
    /// A block that is younger than this many seconds shows that the node is at the chain tip. `None`
    /// if the samples have no ages.
    pub tip_age: Option<f64>,
    /// Remarks on how the file was read.
    pub notes: Vec<String>,
}
