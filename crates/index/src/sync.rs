//! A sync copies blocks from nodes into an index. This file has all its steps in order:
//!
//! ```text
//! check contents → identify chain → initialize or prepare →
//!   loop: tip → decide_next_step → fetch, verify, encode → compare parent hash → commit or rewind
//! ```
//!
//! Several worker threads fetch, verify and encode blocks, each over its own connections. The
//! thread that calls [`sync()`] takes these blocks in the order of the chain and writes them. So
//! the stored blocks have no gaps. A sync can be stopped at any instant. A later sync continues
//! after the last stored block.
//!
//! The tip is the end of the chain as a node reports it. A rewind deletes the stored blocks that a
//! reorg has dropped.

mod batch;
mod calls;
mod chain_identity;
mod error;
mod fetch;
mod fetch_pool;
mod form_trial;
mod identify;
mod initialize;
mod node_pool;
mod observer;
mod options;
mod samples;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use self::error::SyncError;
pub use self::observer::{Event, Observer, Progress};
pub use self::options::{Options, SyncOutcome};

use self::batch::Batch;
use self::fetch::FetchPlan;
use self::fetch_pool::FetchPool;
use self::identify::identify_chain;
use self::initialize::{check_contents, initialize, prepare};
use self::node_pool::NodePool;
use crate::compression::{CompressionError, Compressor};
use crate::contents::StoredRange;
use crate::harmony;
use crate::planner::ancestor::{AncestorSearch, SearchStep};
use crate::planner::range::{NextStep, decide_next_step};
use crate::reader::Reader;
use crate::store::{self, Store};

/// The pause before the sync requests the tip again, if no block is left to fetch.
const TIP_INTERVAL: Duration = Duration::from_millis(1000);
/// The pause before the sync fetches again after a node has returned a block with a wrong parent.
/// The pause applies only if the nodes agree with the last stored block.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Syncs an index until it has reached the requested end, or until `stop` is true.
///
/// # Errors
/// Fails if the sync cannot continue.
pub fn sync(
    mut store: Box<dyn Store>,
    options: &Options,
    observer: &dyn Observer,
    stop: &AtomicBool,
) -> Result<SyncOutcome, SyncError> {
    let mut batch_max = options.batch_max;
    if options.contents.hmyv2 {
        // The index also holds blocks as Harmony's `hmyv2_` methods return them. Harmony's nodes
        // reject ranges that are longer than this limit.
        batch_max = batch_max.min(harmony::BLOCKS_APART_MAX);
        observer.on_event(&Event::Unverified { reason: harmony::UNVERIFIED_REASON.to_owned() });
    }
    let nodes = NodePool::new(options, observer, stop);
    let stored_metadata = store.metadata()?;
    if let Some(metadata) = &stored_metadata {
        check_contents(metadata, options)?;
    }
    let known_chain = stored_metadata.as_ref().map(|metadata| &metadata.chain);
    let Some(chain) = identify_chain(&nodes, options.contents, known_chain)? else {
        return Ok(SyncOutcome::Stopped);
    };
    nodes.set_chain(&chain, options.contents);
    let metadata = match stored_metadata {
        Some(metadata) => Some(prepare(&mut *store, metadata, options, &nodes)?),
        None => initialize(&mut *store, chain, options, &nodes)?,
    };
    // Initializing returns no metadata if the sync was stopped.
    let Some(metadata) = metadata else { return Ok(SyncOutcome::Stopped) };
    let reader = Reader::new(store::open_to_read(store.location(), options.settings)?)?;
    let Some(reader) = reader else { return Ok(SyncOutcome::Stopped) };
    let dictionaries = store.dictionaries()?;
    let compressors: Result<Vec<Compressor>, CompressionError> =
        (0..options.concurrency.max(1)).map(|_| Compressor::new(&dictionaries)).collect();
    let mut pool = FetchPool::new(compressors?, batch_max);
    let plan = FetchPlan::new(&metadata, options);
    let progress = Progress::new(store.stored_range()?);
    let mut syncer = Syncer { reader, store, nodes, plan, progress };
    loop {
        if syncer.nodes.is_stopped() {
            return Ok(SyncOutcome::Stopped);
        }
        let Some(tip) = syncer.nodes.tip()? else { return Ok(SyncOutcome::Stopped) };
        let stored = syncer.store.stored_range()?;
        syncer.progress.set_target(options.end, tip);
        match decide_next_step(stored, options.start, options.end, tip)? {
            NextStep::Fetch { from, to } => {
                match syncer.fetch(&mut pool, stored, (from, to), tip.finalized)? {
                    FetchEnd::Complete => {}
                    FetchEnd::ParentMismatch => syncer.rewind(tip.finalized)?,
                    FetchEnd::Stopped => return Ok(SyncOutcome::Stopped),
                }
            }
            NextStep::Wait => {
                syncer.confirm_last_block(stored, tip.finalized)?;
                syncer.report_progress();
                syncer.nodes.pause(TIP_INTERVAL);
            }
            NextStep::Done => {
                if syncer.confirm_last_block(stored, tip.finalized)? {
                    syncer.progress.done = true;
                    syncer.report_progress();
                    return Ok(SyncOutcome::Complete);
                }
            }
        }
    }
}

/// The state of a running sync.
struct Syncer<'a> {
    // Fields are dropped in this order. The reader must be closed before the store, because the
    // last connection to a SQLite file copies the write-ahead log into the file.
    /// Reads the logs of blocks that a rewind deletes.
    reader: Reader,
    /// The connection that writes.
    store: Box<dyn Store>,
    nodes: NodePool<'a>,
    plan: FetchPlan,
    progress: Progress,
}

/// The reason why the fetch of a range ended.
enum FetchEnd {
    /// All blocks of the range are written.
    Complete,
    /// The parent of a block is not the previous block. The blocks before the mismatch are written.
    ParentMismatch,
    /// The caller stopped the sync.
    Stopped,
}

impl Syncer<'_> {
    /// Fetches a range of blocks, and commits the blocks in batches while others are fetched.
    /// `finalized` is the last finalized block.
    fn fetch(
        &mut self,
        pool: &mut FetchPool,
        stored: Option<StoredRange>,
        range: (u64, u64),
        finalized: u64,
    ) -> Result<FetchEnd, SyncError> {
        let mut last_hash = stored.map(|range| range.last_hash);
        let mut batch = Batch::default();
        let Syncer { store, nodes, plan, progress, .. } = self;
        let mut commit = |batch: Batch| -> Result<(), SyncError> {
            store.append(&batch.blocks, finalized)?;
            progress.add_blocks(&batch.blocks, &mut **store);
            nodes.observer.on_progress(progress);
            Ok(())
        };
        let mut parent_matches = true;
        pool.run(nodes, plan, range, finalized, |block| {
            // `None` means that no block has arrived for a while.
            if let Some(block) = block {
                parent_matches = last_hash.is_none_or(|hash| block.header.parent_hash == hash);
                if !parent_matches {
                    return Ok(false);
                }
                last_hash = Some(block.header.hash);
                batch.push(block);
            }
            if batch.is_full() || batch.is_due() {
                commit(std::mem::take(&mut batch))?;
            }
            Ok(true)
        })?;
        if !batch.blocks.is_empty() {
            commit(batch)?;
        }
        Ok(match parent_matches {
            false => FetchEnd::ParentMismatch,
            true if nodes.is_stopped() => FetchEnd::Stopped,
            true => FetchEnd::Complete,
        })
    }

    /// Records the finalized block if the nodes still have the last stored block. If they have
    /// another block with its number, rewinds the index and returns false. Returns true in all
    /// other cases, also if the index is empty or the nodes lack the block.
    fn confirm_last_block(
        &mut self,
        stored: Option<StoredRange>,
        finalized: u64,
    ) -> Result<bool, SyncError> {
        let Some(stored) = stored else { return Ok(true) };
        match self.nodes.block_hash(stored.last)? {
            Some(hash) if hash == stored.last_hash => self.store.finalize(finalized)?,
            Some(_) => {
                self.rewind(finalized)?;
                return Ok(false);
            }
            // The node lacks the block, so it neither confirms nor contradicts the index.
            None => {}
        }
        Ok(true)
    }

    /// Deletes the stored blocks that a reorg has dropped from the chain. Deletes nothing if the
    /// nodes lack a block that must be compared, or agree with the last stored block. `finalized` is
    /// the last finalized block. It may be below the recorded one: after a restart, geth reports
    /// finality too early (ethereum/go-ethereum#35418) and corrects it later.
    fn rewind(&mut self, finalized: u64) -> Result<(), SyncError> {
        let Some(stored) = self.store.stored_range()? else { return Ok(()) };
        let mut search = AncestorSearch::new(stored.first, stored.last + 1);
        let last_common = loop {
            match search.next_step() {
                SearchStep::Compare(number) => {
                    let stored_block = self.store.block_hash_and_timestamp(number)?;
                    let Some(node_hash) = self.nodes.block_hash(number)? else { return Ok(()) };
                    search.record(number, stored_block.is_some_and(|(hash, _)| hash == node_hash));
                }
                SearchStep::Found(number) => break Some(number),
                SearchStep::NoCommonBlock => break None,
            }
        };
        let finalized = stored.finalized.min(finalized);
        let Some(last_common) = last_common.filter(|number| *number >= finalized) else {
            return Err(SyncError::Mismatch(format!(
                "the nodes' blocks differ from those of the index below block {}, which are final: \
                 a node is on another chain, returns false blocks, or reports blocks as final too \
                 early, as geth does after a restart; the index is unchanged, and a sync goes on \
                 once `finalized` of the nodes is below the first differing block",
                finalized + 1
            )));
        };
        if last_common == stored.last {
            // The nodes agree with the index, so the node that returned the other block is wrong.
            self.nodes.pause(RETRY_PAUSE);
            return Ok(());
        }
        // The event comes before the transaction. An observer that reads the index may still see
        // the blocks that are deleted next.
        let blocks = stored.last - last_common;
        self.nodes.observer.on_event(&Event::Rewinding { blocks, to: last_common });
        let keys = self.reader.posting_keys_above(last_common)?;
        self.store.rewind(last_common, &keys)?;
        self.progress.record_rewind(blocks, last_common);
        self.report_progress();
        Ok(())
    }

    /// Measures the index and reports the progress to the observer.
    fn report_progress(&mut self) {
        self.progress.measure(&mut *self.store);
        self.nodes.observer.on_progress(&self.progress);
    }
}
