//! The threads that fetch, and the order in which what they bring is taken.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::fetch::{FetchError, Fetched, Plan, fetch};
use super::nodes::{Choice, Nodes, wait};
use super::{COMMIT_AFTER, COMMIT_BLOCKS, Note, Options, SyncError, Watch};
use crate::nodes::Line;
use crate::pack::Packer;
use crate::rules::pace::Pace;
use crate::store::NewBlock;

/// Blocks by which the first thread may be ahead of what is written.
const AHEAD_BLOCKS: u64 = 16 * COMMIT_BLOCKS as u64;
/// Bytes of rows that may wait to be written.
const AHEAD_BYTES: usize = 128 << 20;
/// How often somebody who waits for others looks whether all is to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is kept from one range to the next: connections, packers, and what nodes have taught us
/// about their limits.
pub(super) struct Pool {
    workers: Vec<Worker>,
    pace: Mutex<Pace>,
}

struct Worker {
    lines: Vec<Line>,
    packer: Packer,
    /// Where its search for a node begins.
    turn: usize,
}

struct Shared<'a> {
    state: Mutex<State>,
    changed: Condvar,
    nodes: &'a Nodes,
    plan: &'a Plan,
    pace: &'a Mutex<Pace>,
    watch: &'a dyn Watch,
    stop: &'a AtomicBool,
    finalized: u64,
}

struct State {
    /// The next block that nobody fetches yet.
    unclaimed: u64,
    to: u64,
    /// The next block that is taken.
    expected: u64,
    /// By first block.
    ready: BTreeMap<u64, Vec<NewBlock>>,
    ready_bytes: usize,
    ended: bool,
    failed: Option<SyncError>,
}

impl Pool {
    pub(super) fn new(packers: Vec<Packer>, options: &Options) -> Pool {
        let workers = packers.into_iter().enumerate().map(|(turn, packer)| Worker {
            lines: Vec::new(),
            packer,
            turn,
        });
        Pool { workers: workers.collect(), pace: Mutex::new(Pace::new(options.batch_max)) }
    }

    /// Fetches blocks and gives them to `take` in order, and none when nothing came for a while.
    /// Ends early if `take` says false, or if it is told to stop.
    #[allow(clippy::too_many_arguments)] // Called once; a struct for it would say the same again.
    pub(super) fn run(
        &mut self,
        nodes: &Nodes,
        plan: &Plan,
        (from, to): (u64, u64),
        finalized: u64,
        watch: &dyn Watch,
        stop: &AtomicBool,
        mut take: impl FnMut(Option<NewBlock>) -> Result<bool, SyncError>,
    ) -> Result<(), SyncError> {
        let state = State {
            unclaimed: from,
            to,
            expected: from,
            ready: BTreeMap::new(),
            ready_bytes: 0,
            ended: false,
            failed: None,
        };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            nodes,
            plan,
            pace: &self.pace,
            watch,
            stop,
            finalized,
        };
        let threads = usize::try_from(to - from + 1).unwrap_or(usize::MAX).min(self.workers.len());
        std::thread::scope(|scope| {
            // Ends the threads however this ends.
            let _ends = Ends(&shared);
            for worker in &mut self.workers[..threads] {
                let shared = &shared;
                scope.spawn(move || worker.work(shared));
            }
            loop {
                let Some(blocks) = shared.next()? else { return Ok(()) };
                if blocks.is_empty() && !take(None)? {
                    return Ok(());
                }
                for block in blocks {
                    if !take(Some(block))? {
                        return Ok(());
                    }
                }
            }
        })
    }
}

struct Ends<'a>(&'a Shared<'a>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Shared<'_> {
    /// The next blocks in order: none at all when it is over, an empty list when nothing came for a
    /// while.
    fn next(&self) -> Result<Option<Vec<NewBlock>>, SyncError> {
        let mut state = self.state.lock();
        let mut waited = Duration::ZERO;
        loop {
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            let expected = state.expected;
            if expected > state.to || self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if let Some(blocks) = state.ready.remove(&expected) {
                state.expected += blocks.len() as u64;
                let bytes: usize = blocks.iter().map(NewBlock::packed_bytes).sum();
                state.ready_bytes = state.ready_bytes.saturating_sub(bytes);
                self.changed.notify_all();
                return Ok(Some(blocks));
            }
            if waited >= COMMIT_AFTER {
                return Ok(Some(Vec::new()));
            }
            self.changed.wait_for(&mut state, LOOK_EVERY);
            waited += LOOK_EVERY;
        }
    }

    fn is_over(&self, state: &State) -> bool {
        state.ended || state.failed.is_some() || self.stop.load(Ordering::Relaxed)
    }

    /// Some blocks to fetch; none when there are no more.
    fn claim(&self) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        loop {
            if self.is_over(&state) || state.unclaimed > state.to {
                return None;
            }
            let from = state.unclaimed;
            let near = from < state.expected + AHEAD_BLOCKS && state.ready_bytes < AHEAD_BYTES;
            if near || from == state.expected {
                // At the end, the rest is shared out: no thread is to have all of it.
                let blocks = self.pace.lock().blocks();
                let to = (from + blocks - 1).min(state.to);
                state.unclaimed = to + 1;
                return Some((from, to));
            }
            self.changed.wait_for(&mut state, LOOK_EVERY);
        }
    }

    fn put(&self, from: u64, blocks: Vec<NewBlock>) {
        let mut state = self.state.lock();
        state.ready_bytes += blocks.iter().map(NewBlock::packed_bytes).sum::<usize>();
        state.ready.insert(from, blocks);
        self.changed.notify_all();
    }

    fn fail(&self, error: SyncError) {
        self.state.lock().failed.get_or_insert(error);
        self.changed.notify_all();
    }
}

impl Worker {
    fn work(&mut self, shared: &Shared<'_>) {
        while let Some((mut from, to)) = shared.claim() {
            while from <= to {
                let some = (from + shared.pace.lock().blocks() - 1).min(to);
                match self.get(shared, (from, some)) {
                    Ok(Some(blocks)) => {
                        shared.put(from, blocks);
                        from = some + 1;
                    }
                    // Fewer at once, or another node.
                    Ok(None) => {}
                    Err(error) => return shared.fail(error),
                }
                if shared.is_over(&shared.state.lock()) {
                    return;
                }
            }
        }
    }

    /// One try of one node; none if it is to be tried again.
    fn get(
        &mut self,
        shared: &Shared<'_>,
        (from, to): (u64, u64),
    ) -> Result<Option<Vec<NewBlock>>, SyncError> {
        let at = match shared.nodes.choose(self.turn)? {
            Choice::Node(at) => at,
            Choice::Wait(pause) => {
                wait(pause.min(LOOK_EVERY), shared.stop);
                return Ok(None);
            }
        };
        if self.lines.is_empty() {
            self.lines = shared.nodes.lines();
        }
        if !shared.nodes.belongs(at, &mut self.lines[at], shared.watch) {
            self.turn = at + 1;
            return Ok(None);
        }
        let begun = Instant::now();
        let error = match fetch(&mut self.lines[at], &mut self.packer, shared.plan, (from, to)) {
            Ok(Fetched { blocks, bytes, took }) => {
                shared.nodes.went_well(at);
                shared.pace.lock().went_well(blocks.len() as u64, bytes, took);
                return Ok(Some(blocks));
            }
            Err(error) => error,
        };
        self.judge(shared, (at, begun), (from, to), error)?;
        Ok(None)
    }

    /// What a failure means for the node and for the next try.
    fn judge(
        &mut self,
        shared: &Shared<'_>,
        (at, begun): (usize, Instant),
        (from, to): (u64, u64),
        error: FetchError,
    ) -> Result<(), SyncError> {
        let why = error.to_string();
        let (nodes, watch) = (shared.nodes, shared.watch);
        match error {
            FetchError::TooMuch { named, .. } if to > from => {
                let mut pace = shared.pace.lock();
                let before = pace.blocks();
                pace.too_much(to - from + 1, named);
                if pace.blocks() < before {
                    watch.note(&Note::Slower { blocks: pace.blocks(), why });
                }
            }
            FetchError::Contradicts { number, .. } if number <= shared.finalized => {
                nodes.leave(at, &why, watch);
                self.turn = at + 1;
            }
            FetchError::Ask(error) => {
                nodes.failed(at, &why, (begun, error.retry_after()), watch);
                self.turn = at + 1;
            }
            FetchError::Pack(error) => return Err(error.into()),
            _ => {
                nodes.failed(at, &why, (begun, None), watch);
                self.turn = at + 1;
            }
        }
        Ok(())
    }
}
