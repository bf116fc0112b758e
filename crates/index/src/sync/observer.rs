//! The events and the progress that a sync reports. A response form is one way in which nodes write
//! an object, such as a block with the hashes of its transactions.

use std::fmt;

use crate::contents::StoredRange;
use crate::planner::range::{SyncEnd, Tip};
use crate::store::{NewBlock, PageCache, Store};

/// Observes a sync.
pub trait Observer: Sync {
    /// Called after each commit, and about once a second while no blocks arrive.
    fn on_progress(&self, progress: &Progress);
    /// Called for each event, from any thread.
    fn on_event(&self, event: &Event);
}

/// An event that is reported to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new index was initialized.
    Initialized {
        /// The chain id.
        chain: String,
        /// Response forms that the node writes differently from the index. Nodes must serve calls
        /// for these forms.
        differing_forms: Vec<String>,
        /// Response forms that could not be compared. Nodes must serve calls for these forms.
        untested_forms: Vec<String>,
    },
    /// Blocks of this chain cannot be verified.
    Unverified {
        /// The reason.
        reason: String,
    },
    /// Blocks that a reorg dropped from the chain are about to be deleted.
    Rewinding {
        /// The number of blocks.
        blocks: u64,
        /// The last block that stays.
        to: u64,
    },
    /// The sync stops calling a node.
    NodeRemoved {
        /// The node.
        node: String,
        /// The reason.
        reason: String,
    },
    /// The sync pauses calls to a node that fails.
    NodePaused {
        /// The node.
        node: String,
        /// Its last error.
        reason: String,
    },
    /// Requests ask for fewer blocks from now on.
    BatchReduced {
        /// The number of blocks per request.
        blocks: u64,
        /// The node's error.
        reason: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Initialized { chain, differing_forms, untested_forms } => {
                write!(f, "created an index of chain {chain}")?;
                if !differing_forms.is_empty() {
                    let forms = differing_forms.join(", ");
                    write!(
                        f,
                        "; nodes serve these response forms, which the index cannot reproduce: \
                         {forms}"
                    )?;
                }
                if !untested_forms.is_empty() {
                    let forms = untested_forms.join(", ");
                    write!(
                        f,
                        "; nodes serve these response forms until a later sync can compare them: \
                         {forms}"
                    )?;
                }
                Ok(())
            }
            Event::Unverified { reason } => f.write_str(reason),
            Event::Rewinding { blocks, to } => {
                write!(f, "reorg: dropping {blocks} blocks, back to block {to}")
            }
            Event::NodeRemoved { node, reason } => write!(f, "{node} was removed: {reason}"),
            Event::NodePaused { node, reason } => write!(f, "{node}: {reason}"),
            Event::BatchReduced { blocks, reason } => {
                write!(f, "requesting at most {blocks} blocks per message: {reason}")
            }
        }
    }
}

/// The progress of a sync. All counts start at zero when the sync starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The first block of the index; `None` while the index is empty.
    pub first: Option<u64>,
    /// The last block of the index; `None` while the index is empty.
    pub height: Option<u64>,
    /// The last block to sync. It may rise while the sync runs.
    pub target: u64,
    /// The newest block of the chain.
    pub head: u64,
    /// Number of blocks written.
    pub blocks: u64,
    /// Number of transactions written.
    pub transactions: u64,
    /// Number of logs written.
    pub logs: u64,
    /// Bytes of the nodes' responses about these blocks.
    pub response_bytes: u64,
    /// Number of blocks deleted by rewinds.
    pub rewound: u64,
    /// The page cache of the connection that writes; `None` for an index on a server.
    pub page_cache: Option<PageCache>,
    /// Bytes of the index on disk: the file, or the server's tables.
    pub disk_bytes: u64,
    /// True if the sync is complete.
    pub done: bool,
}

impl Progress {
    /// Creates the progress at the start of a sync.
    pub(super) fn new(stored: Option<StoredRange>) -> Progress {
        let (first, height) = (stored.map(|range| range.first), stored.map(|range| range.last));
        Progress { first, height, ..Progress::default() }
    }

    /// Records a new tip of the chain.
    pub(super) fn set_target(&mut self, end: SyncEnd, tip: Tip) {
        self.head = tip.head;
        self.target = end.target(tip);
    }

    /// Records written blocks.
    pub(super) fn add_blocks(&mut self, blocks: &[NewBlock], store: &mut dyn Store) {
        for block in blocks {
            self.blocks += 1;
            self.transactions += block.transactions.len() as u64;
            self.logs += block.log_count;
            self.response_bytes += block.response_bytes;
        }
        self.first = self.first.or(blocks.first().map(|block| block.header.number));
        self.height = blocks.last().map(|block| block.header.number).or(self.height);
        self.measure(store);
    }

    /// Records deleted blocks.
    pub(super) fn record_rewind(&mut self, blocks: u64, to: u64) {
        self.rewound += blocks;
        self.height = Some(to);
    }

    /// Reads the size and the page cache of the index.
    pub(super) fn measure(&mut self, store: &mut dyn Store) {
        self.page_cache = store.page_cache();
        // After an error the last known size stays. The next progress report measures again.
        self.disk_bytes = store.disk_bytes().unwrap_or(self.disk_bytes);
    }
}
