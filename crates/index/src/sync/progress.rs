//! How far a sync is.

use crate::rules::range::{End, Tip};
use crate::store::{Held, NewBlock, PageCache, Store};

/// Who is told how a sync goes on.
pub trait Watch: Sync {
    /// After each transaction, and about once a second while there is none.
    fn progress(&self, progress: &Progress);
    /// Something that the user wants to know; from any thread.
    fn note(&self, note: &Note);
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A new file: what the chain is, and in what its answers are not made of the same pieces.
    Founded {
        /// The chain's id.
        chain: String,
        /// Forms that are left to nodes.
        unlike: Vec<String>,
        /// Forms that are left to nodes until a block shows them.
        untried: Vec<String>,
    },
    /// Nothing of what comes can be verified.
    Unverified {
        /// Why.
        why: String,
    },
    /// Blocks that a reorg has dropped from the chain are about to be dropped.
    Rewinding {
        /// How many.
        blocks: u64,
        /// The last one kept.
        to: u64,
    },
    /// A node is not asked any more.
    Left {
        /// Which.
        node: String,
        /// What it said.
        why: String,
    },
    /// A node is left alone for a while.
    Failed {
        /// Which.
        node: String,
        /// Why.
        why: String,
    },
    /// Fewer blocks are asked for at once.
    Slower {
        /// How many.
        blocks: u64,
        /// What the node said.
        why: String,
    },
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Note::Founded { chain, unlike, untried } => {
                write!(f, "a new file for chain {chain}")?;
                if !unlike.is_empty() {
                    let unlike = unlike.join(", ");
                    write!(
                        f,
                        "; the node writes these in another way than the rest, so they are left to \
                         nodes: {unlike}"
                    )?;
                }
                if !untried.is_empty() {
                    let untried = untried.join(", ");
                    write!(
                        f,
                        "; no block that was looked at has anything to try these with, so they are \
                         left to nodes until a later start finds one: {untried}"
                    )?;
                }
                Ok(())
            }
            Note::Unverified { why } => f.write_str(why),
            Note::Rewinding { blocks, to } => {
                write!(f, "a reorg: {blocks} blocks are dropped, back to block {to}")
            }
            Note::Left { node, why } => write!(f, "{node} is not asked any more: {why}"),
            Note::Failed { node, why } => write!(f, "{node}: {why}"),
            Note::Slower { blocks, why } => {
                write!(f, "asking for at most {blocks} blocks at once: {why}")
            }
        }
    }
}

/// How far it is; totals are of this run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The first block of the file.
    pub first: Option<u64>,
    /// The last block of the file.
    pub height: Option<u64>,
    /// The block that it goes to, as known now.
    pub target: u64,
    /// The newest block of the chain.
    pub head: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Transactions written.
    pub transactions: u64,
    /// Logs written.
    pub logs: u64,
    /// Bytes of what nodes said of these.
    pub said_bytes: u64,
    /// Blocks dropped.
    pub rewound: u64,
    /// Of the connection that writes; none where a server has its own.
    pub page_cache: Option<PageCache>,
    /// Bytes of the file, or of the server's tables.
    pub disk_bytes: u64,
    /// Whether all is there.
    pub done: bool,
}

impl Progress {
    pub(super) fn begin(&mut self, held: Option<Held>) {
        self.first = held.map(|held| held.first);
        self.height = held.map(|held| held.last);
    }

    pub(super) fn aim(&mut self, end: End, tip: Tip) {
        self.head = tip.head;
        self.target = match end {
            End::At(number) => number,
            End::Finalized => tip.finalized,
            End::Follow => tip.head,
        };
    }

    pub(super) fn wrote(&mut self, blocks: &[NewBlock], store: &mut Store) {
        for block in blocks {
            self.blocks += 1;
            self.transactions += block.count;
            self.logs += block.logs;
            self.said_bytes += block.said;
        }
        self.first = self.first.or(blocks.first().map(|block| block.number));
        self.height = blocks.last().map(|block| block.number).or(self.height);
        self.look(store);
    }

    pub(super) fn rewound(&mut self, blocks: u64, to: u64) {
        self.rewound += blocks;
        self.height = Some(to);
    }

    pub(super) fn look(&mut self, store: &mut Store) {
        self.page_cache = store.page_cache();
        // What cannot be told now is told with the next step.
        self.disk_bytes = store.disk_bytes().unwrap_or(self.disk_bytes);
    }
}
