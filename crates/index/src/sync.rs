//! The path of a sync: every step in order.
//!
//! ```text
//! tip → rules::range → fetch → verify → cut → link (forward or rewind) → store
//! ```
//!
//! Some threads fetch, verify and pack, each over a line of its own and each some blocks ahead; this
//! thread takes what they bring in the order of the chain and writes it. What is written is always a
//! beginning of the chain without holes, so a sync can be ended at any instant and goes on from
//! there.

mod fetch;
mod found;
mod nodes;
mod pool;
mod progress;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use self::fetch::Plan;
pub use self::progress::{Note, Progress, Watch};
use crate::harmony;
use crate::nodes::NodeUrl;
use crate::pack::{PackError, Packer};
use crate::reader::{ReadError, Reader};
use crate::rules::ancestor::{Ancestor, Found};
use crate::rules::range::{self, End, Next, RangeFault};
use crate::store::{Facts, Held, NewBlock, Settings, Store, StoreError, What};
use crate::verify::Level;

/// Blocks that are written in one transaction at most: the lists of logs are as long.
const COMMIT_BLOCKS: usize = 256;
/// Bytes of packed rows that are written in one transaction at most.
const COMMIT_BYTES: usize = 32 << 20;
/// Longest time that something fetched waits to be written.
const COMMIT_AFTER: Duration = Duration::from_secs(1);
/// Wait before the tip is asked for again.
const TIP_EVERY: Duration = Duration::from_millis(1000);
/// Wait before the nodes are asked again for what did not follow though they agree with us.
const TURN_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What is to be synced, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who is asked; at least one.
    pub nodes: Vec<Arc<NodeUrl>>,
    /// The first block of a new file.
    pub start: Option<u64>,
    /// The last one.
    pub end: End,
    /// What of the blocks; of a new file.
    pub what: What,
    /// How closely what comes is looked at; nothing is where Harmony's blocks are kept.
    pub verify: Level,
    /// Exchanges under way at a time.
    pub concurrency: usize,
    /// Blocks asked for in one message at most.
    pub batch_max: u64,
    /// Of the connection that writes.
    pub settings: Settings,
    /// How long all nodes may fail before it is given up; none to never.
    pub patience: Option<Duration>,
}

/// How a sync ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All is there.
    Done,
    /// It was told to stop; what was fetched is written.
    Stopped,
}

/// Why a sync could not go on. What was written before is safe.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The file.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is in the file.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Start and end do not fit the file.
    #[error(transparent)]
    Range(#[from] RangeFault),
    /// Packing.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The nodes.
    #[error("{0}")]
    Nodes(String),
    /// The file is of another chain, or the nodes are.
    #[error("{0}")]
    OtherChain(String),
}

/// Syncs until all is there, or until `stop` is set.
///
/// # Errors
/// Why it could not go on.
pub fn sync(
    mut store: Store,
    options: &Options,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Ended, SyncError> {
    let mut own = options.clone();
    if options.what.hmyv2 {
        own.batch_max = options.batch_max.min(harmony::APART_MAX);
        watch.note(&Note::Unverified { why: harmony::UNVERIFIED.to_owned() });
    }
    let options = &own;
    let nodes = nodes::Nodes::new(options);
    let facts = found::facts(&mut store, options, &nodes, watch, stop)?;
    let Some(facts) = facts else { return Ok(Ended::Stopped) };
    let reader = Reader::over(Store::open_to_read(store.location(), options.settings)?)?;
    let Some(reader) = reader else { return Ok(Ended::Stopped) };
    let plan = Plan::new(&facts, options);
    let dictionaries = store.dictionaries()?;
    let mut sync =
        Sync { store, reader, options, nodes, plan, watch, stop, progress: Progress::default() };
    sync.progress.begin(sync.store.held()?);
    let packers: Result<Vec<Packer>, PackError> =
        (0..options.concurrency.max(1)).map(|_| Packer::new(&dictionaries)).collect();
    sync.run(&mut pool::Pool::new(packers?, options))
}

struct Sync<'a> {
    /// Reads what was written, to rewind. It goes before the writer, which as the last connection
    /// moves what is in the log into the file.
    reader: Reader,
    store: Store,
    options: &'a Options,
    nodes: nodes::Nodes,
    plan: Plan,
    watch: &'a dyn Watch,
    stop: &'a AtomicBool,
    progress: Progress,
}

/// How a range that was fetched ended.
enum Range {
    Whole,
    /// The first of these blocks does not follow the last one written.
    Dropped,
    Stopped,
}

impl Sync<'_> {
    fn run(&mut self, pool: &mut pool::Pool) -> Result<Ended, SyncError> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Ended::Stopped);
            }
            let tip = self.nodes.tip(self.watch, self.stop)?;
            let Some(tip) = tip else { return Ok(Ended::Stopped) };
            let held = self.store.held()?;
            self.progress.aim(self.options.end, tip);
            match range::next(held, self.options.start, self.options.end, tip)? {
                Next::Fetch { from, to } => {
                    match self.fetch(pool, held, (from, to), tip.finalized)? {
                        Range::Whole => {}
                        Range::Dropped => self.rewind()?,
                        Range::Stopped => return Ok(Ended::Stopped),
                    }
                }
                Next::Wait => {
                    self.confirm(held, tip.finalized)?;
                    self.tell();
                    nodes::wait(TIP_EVERY, self.stop);
                }
                Next::Done => {
                    if !self.confirm(held, tip.finalized)? {
                        continue;
                    }
                    self.progress.done = true;
                    self.tell();
                    return Ok(Ended::Done);
                }
            }
        }
    }

    /// Fetches blocks and writes them as they come.
    fn fetch(
        &mut self,
        pool: &mut pool::Pool,
        held: Option<Held>,
        (from, to): (u64, u64),
        finalized: u64,
    ) -> Result<Range, SyncError> {
        let mut last = held.map(|held| held.last_hash);
        let mut batch = Batch::default();
        let (nodes, plan, stop) = (&self.nodes, &self.plan, self.stop);
        let (store, progress, watch) = (&mut self.store, &mut self.progress, self.watch);
        let mut commit = |batch: &mut Batch| -> Result<(), SyncError> {
            store.append(&batch.blocks, finalized)?;
            progress.wrote(&batch.blocks, store);
            watch.progress(progress);
            batch.clear();
            Ok(())
        };
        let mut ended = Range::Whole;
        pool.run(nodes, plan, (from, to), finalized, watch, stop, |came| {
            let Some(block) = came else {
                // Nothing came for a while: what there is need not wait.
                if batch.is_due() {
                    commit(&mut batch)?;
                }
                return Ok(true);
            };
            if last.is_some_and(|last| block.parent != last) {
                ended = Range::Dropped;
                return Ok(false);
            }
            last = Some(block.hash);
            batch.push(block);
            if batch.is_full() || batch.is_due() {
                commit(&mut batch)?;
            }
            Ok(true)
        })?;
        if !batch.blocks.is_empty() {
            commit(&mut batch)?;
        }
        let stopped = stop.load(Ordering::Relaxed) && matches!(ended, Range::Whole);
        Ok(if stopped { Range::Stopped } else { ended })
    }

    /// Notes what is final if the nodes have our last block still, and goes back if they have another
    /// one in its place, which is told by false.
    fn confirm(&mut self, held: Option<Held>, finalized: u64) -> Result<bool, SyncError> {
        let Some(held) = held else { return Ok(true) };
        match self.nodes.hash_of(held.last, self.watch, self.stop)? {
            Some(hash) if hash == held.last_hash => self.store.finalize(finalized)?,
            Some(_) => {
                self.rewind()?;
                return Ok(false);
            }
            // Who was asked does not have it, which says nothing.
            None => {}
        }
        Ok(true)
    }

    /// Goes back to the last block that is still on the chain.
    fn rewind(&mut self) -> Result<(), SyncError> {
        let Some(held) = self.store.held()? else { return Ok(()) };
        let mut asked = BTreeMap::new();
        let mut search = Ancestor::new(held.first, held.last + 1);
        let common = loop {
            match search.next() {
                Found::Ask(number) => {
                    let ours = self.store.block(number)?.map(|row| row.hash);
                    let Some(theirs) = self.nodes.hash_of(number, self.watch, self.stop)? else {
                        return Ok(());
                    };
                    asked.insert(number, theirs);
                    search.told(number, ours == Some(theirs));
                }
                Found::At(number) => break Some(number),
                Found::Nothing => break None,
            }
        };
        let common = common.filter(|common| *common >= held.finalized);
        let Some(common) = common else {
            return Err(SyncError::OtherChain(format!(
                "the nodes have other blocks than the index below block {}, which was final: a \
                 node on another chain, or one that lies; the index is left as it is",
                held.finalized + 1
            )));
        };
        if common == held.last {
            // What came did not follow, but the nodes agree with us by now: it was theirs to turn.
            nodes::wait(TURN_AGAIN_AFTER, self.stop);
            return Ok(());
        }
        // Told before it is done: whoever hears it and looks finds the one or the other, never a part.
        self.watch.note(&Note::Rewinding { blocks: held.last - common, to: common });
        let keys = self.reader.keys_above(common)?;
        self.store.rewind(common, &keys)?;
        self.progress.rewound(held.last - common, common);
        self.tell();
        Ok(())
    }

    fn tell(&mut self) {
        self.progress.look(&mut self.store);
        self.watch.progress(&self.progress);
    }
}

/// Blocks that wait to be written together.
#[derive(Default)]
struct Batch {
    blocks: Vec<NewBlock>,
    bytes: usize,
    since: Option<Instant>,
}

impl Batch {
    fn push(&mut self, block: NewBlock) {
        self.bytes += block.packed_bytes();
        self.blocks.push(block);
        self.since.get_or_insert_with(Instant::now);
    }

    fn is_full(&self) -> bool {
        self.blocks.len() >= COMMIT_BLOCKS || self.bytes >= COMMIT_BYTES
    }

    fn is_due(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= COMMIT_AFTER)
    }

    fn clear(&mut self) {
        *self = Batch::default();
    }
}

/// What the file is about, if it may be worked on with these options.
pub(crate) fn fits(facts: &Facts, options: &Options) -> Result<(), String> {
    if facts.what != options.what {
        return Err(format!(
            "the index has {} of its blocks, and {} were asked for: that is fixed when a file is made",
            facts.what, options.what
        ));
    }
    Ok(())
}
