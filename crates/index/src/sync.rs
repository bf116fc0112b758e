//! The path of a sync: every step in order.
//!
//! ```text
//! check contents → identify chain → initialize or prepare →
//!   loop: tip → range::next → fetch, verify, encode → compare parent hash → commit or rewind
//! ```
//!
//! Several threads fetch, verify and encode blocks, each over its own connections. They run ahead
//! of this thread. This thread takes their blocks in the order of the chain and writes them. The
//! stored blocks therefore have no gaps. A sync can be stopped at any instant, and a later one
//! continues at the end of the stored blocks.

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
pub use self::options::{Options, Outcome};

use self::batch::Batch;
use self::fetch::FetchPlan;
use self::fetch_pool::FetchPool;
use self::identify::identify_chain;
use self::initialize::{check_contents, initialize, prepare};
use self::node_pool::NodePool;
use crate::compression::{CompressionError, Compressor};
use crate::contents::StoredRange;
use crate::harmony;
use crate::planner::ancestor::{AncestorSearch, Step};
use crate::planner::range::{self, Next};
use crate::reader::Reader;
use crate::store::{self, Store};

/// The pause before the sync asks for the tip again.
const TIP_INTERVAL: Duration = Duration::from_millis(1000);
/// The pause before the sync fetches again, after a node returned a block whose parent is not the
/// last stored block although the nodes agree with the index.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Syncs an index until it is complete, or until `stop` is set.
///
/// # Errors
/// Fails if the sync cannot continue.
pub fn sync(
    mut store: Box<dyn Store>,
    options: &Options,
    observer: &dyn Observer,
    stop: &AtomicBool,
) -> Result<Outcome, SyncError> {
    let mut batch_max = options.batch_max;
    if options.contents.hmyv2 {
        batch_max = batch_max.min(harmony::BLOCKS_APART_MAX);
        observer.on_event(&Event::Unverified { reason: harmony::UNVERIFIED.to_owned() });
    }
    let nodes = NodePool::new(options, observer, stop);
    let stored_metadata = store.metadata()?;
    if let Some(metadata) = &stored_metadata {
        check_contents(metadata, options)?;
    }
    let known_chain = stored_metadata.as_ref().map(|metadata| &metadata.chain);
    let Some(chain) = identify_chain(&nodes, options.contents, known_chain)? else {
        return Ok(Outcome::Stopped);
    };
    nodes.set_chain(&chain, options.contents);
    let metadata = match stored_metadata {
        Some(metadata) => Some(prepare(&mut *store, metadata, options, &nodes)?),
        None => initialize(&mut *store, chain, options, &nodes)?,
    };
    let Some(metadata) = metadata else { return Ok(Outcome::Stopped) };
    let reader = Reader::new(store::open_to_read(store.location(), options.settings)?)?;
    let Some(reader) = reader else { return Ok(Outcome::Stopped) };
    let dictionaries = store.dictionaries()?;
    let compressors: Result<Vec<Compressor>, CompressionError> =
        (0..options.concurrency.max(1)).map(|_| Compressor::new(&dictionaries)).collect();
    let mut pool = FetchPool::new(compressors?, batch_max);
    let plan = FetchPlan::new(&metadata, options);
    let progress = Progress::new(store.stored_range()?);
    let mut syncer = Syncer { reader, store, nodes, plan, progress };
    loop {
        if syncer.nodes.is_stopped() {
            return Ok(Outcome::Stopped);
        }
        let Some(tip) = syncer.nodes.tip()? else { return Ok(Outcome::Stopped) };
        let stored = syncer.store.stored_range()?;
        syncer.progress.set_target(options.end, tip);
        match range::next(stored, options.start, options.end, tip)? {
            Next::Fetch { from, to } => {
                match syncer.fetch(&mut pool, stored, (from, to), tip.finalized)? {
                    Fetch::Complete => {}
                    Fetch::ParentMismatch => syncer.rewind()?,
                    Fetch::Stopped => return Ok(Outcome::Stopped),
                }
            }
            Next::Wait => {
                syncer.confirm_last_block(stored, tip.finalized)?;
                syncer.report_progress();
                syncer.nodes.pause(TIP_INTERVAL);
            }
            Next::Done => {
                if syncer.confirm_last_block(stored, tip.finalized)? {
                    syncer.progress.done = true;
                    syncer.report_progress();
                    return Ok(Outcome::Complete);
                }
            }
        }
    }
}

struct Syncer<'a> {
    /// Reads the logs of blocks to rewind. The reader must be closed before the writer, because the
    /// last connection to a SQLite file copies the write-ahead log into the file.
    reader: Reader,
    store: Box<dyn Store>,
    nodes: NodePool<'a>,
    plan: FetchPlan,
    progress: Progress,
}

/// How the fetch of a range ended.
enum Fetch {
    Complete,
    /// The parent of a block is not the previous block.
    ParentMismatch,
    Stopped,
}

impl Syncer<'_> {
    /// Fetches blocks, and commits them in batches as they come.
    fn fetch(
        &mut self,
        pool: &mut FetchPool,
        stored: Option<StoredRange>,
        range: (u64, u64),
        finalized: u64,
    ) -> Result<Fetch, SyncError> {
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
            false => Fetch::ParentMismatch,
            true if nodes.is_stopped() => Fetch::Stopped,
            true => Fetch::Complete,
        })
    }

    /// Records the finalized block if the nodes still have the last stored block. If the nodes have
    /// another block with that number, rewinds the index and returns false.
    fn confirm_last_block(
        &mut self,
        stored: Option<StoredRange>,
        finalized: u64,
    ) -> Result<bool, SyncError> {
        let Some(stored) = stored else { return Ok(true) };
        match self.nodes.block_hash(stored.last)? {
            Some(hash) if hash == stored.last_hash => self.store.finalize(finalized)?,
            Some(_) => {
                self.rewind()?;
                return Ok(false);
            }
            // A node without the block neither confirms nor contradicts it.
            None => {}
        }
        Ok(true)
    }

    /// Deletes the blocks that a reorg has dropped from the chain.
    fn rewind(&mut self) -> Result<(), SyncError> {
        let Some(stored) = self.store.stored_range()? else { return Ok(()) };
        let mut search = AncestorSearch::new(stored.first, stored.last + 1);
        let common = loop {
            match search.next() {
                Step::Compare(number) => {
                    let stored_block = self.store.block_hash_and_timestamp(number)?;
                    let Some(node_hash) = self.nodes.block_hash(number)? else { return Ok(()) };
                    search.record(number, stored_block.is_some_and(|(hash, _)| hash == node_hash));
                }
                Step::Found(number) => break Some(number),
                Step::NoCommonBlock => break None,
            }
        };
        let Some(common) = common.filter(|common| *common >= stored.finalized) else {
            return Err(SyncError::Mismatch(format!(
                "the nodes' blocks differ from those of the index below block {}, which were final: \
                 a node is on another chain or returns false blocks; the index is unchanged",
                stored.finalized + 1
            )));
        };
        if common == stored.last {
            // The nodes agree with the index, so the node that returned the block is at fault.
            self.nodes.pause(RETRY_PAUSE);
            return Ok(());
        }
        // The event is sent before the transaction, so an observer sees the state before or after
        // the transaction.
        let blocks = stored.last - common;
        self.nodes.observer.on_event(&Event::Rewinding { blocks, to: common });
        let keys = self.reader.posting_keys_above(common)?;
        self.store.rewind(common, &keys)?;
        self.progress.record_rewind(blocks, common);
        self.report_progress();
        Ok(())
    }

    fn report_progress(&mut self) {
        self.progress.measure(&mut *self.store);
        self.nodes.observer.on_progress(&self.progress);
    }
}
