//! What a course is made of.

use lab_model::results::study::Accesses;
use serde::{Deserialize, Serialize};

/// One look at an arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since 1970.
    pub at: f64,
    /// Blocks that it has.
    pub height: u64,
    /// Bytes that its page cache uses.
    pub used: Option<u64>,
    /// What its page cache did since the sample before.
    pub accesses: Option<Accesses>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes on disk.
    pub disk: Option<u64>,
    /// Nodes that it is connected to.
    pub peers: Option<u64>,
    /// CPU seconds of its processes since they began.
    pub cpu: Option<f64>,
}

/// A height that another node claimed to have.
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
    /// Which peer, by the log's number.
    pub peer: u64,
}

/// One run of one arm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// Where it is from: a file, or `run 2`.
    pub label: String,
    /// When it began, in seconds since 1970: the start of its process if that is known, else its
    /// first sample.
    pub origin: f64,
    /// Times rise, heights do not fall; never empty.
    pub samples: Vec<Sample>,
    /// Heights that peers announced, where they rose; the highest is a view of the tip, while lower
    /// ones are of peers that are behind.
    pub announced: Vec<Announced>,
    /// Blocks that peers did not deliver.
    pub timeouts: Vec<Timeout>,
    /// What is worth telling of how it was read.
    pub notes: Vec<String>,
}
