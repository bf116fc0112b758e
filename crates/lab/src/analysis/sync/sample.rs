//! The data of one sync run: samples of the node's state, and what its log reports about its peers.

use lab_model::results::study::Accesses;
use serde::{Deserialize, Serialize};

/// The state of a node at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since 1970.
    pub at: f64,
    /// Block height.
    pub height: u64,
    /// Size of the page cache in bytes.
    pub used: Option<u64>,
    /// Accesses to the page cache since the previous sample.
    pub accesses: Option<Accesses>,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Disk space in bytes.
    pub disk: Option<u64>,
    /// Connected peers.
    pub peers: Option<u64>,
    /// CPU seconds of its processes since their start.
    pub cpu: Option<f64>,
}

/// A height that a peer announced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Announced {
    /// Seconds since 1970.
    pub at: f64,
    /// The height.
    pub height: u64,
}

/// A block that a peer did not deliver in time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeout {
    /// Seconds since 1970.
    pub at: f64,
    /// Number of the peer in the log.
    pub peer: u64,
}

/// One run of one variant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SyncRun {
    /// Source of the run: a file, or a number such as `run 2`.
    pub label: String,
    /// Start of the run, in seconds since 1970: the start of the process if it is known, else the
    /// time of the first sample.
    pub origin: f64,
    /// Samples with rising times and heights that never fall; never empty.
    pub samples: Vec<Sample>,
    /// Heights that peers announced, in ascending order. The highest one approximates the chain
    /// tip; lower heights come from peers that lag.
    pub announced: Vec<Announced>,
    /// Blocks that peers did not deliver in time.
    pub timeouts: Vec<Timeout>,
    /// Remarks on how the file was read.
    pub notes: Vec<String>,
}
