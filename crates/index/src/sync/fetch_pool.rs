//! The threads that fetch blocks. The sync receives the blocks in the order of the chain.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::batch::{COMMIT_AFTER, COMMIT_BLOCKS};
use super::error::SyncError;
use super::fetch::{FetchError, FetchPlan, Fetched, fetch};
use super::node_pool::{Choice, NodePool};
use super::observer::Event;
use crate::compression::Compressor;
use crate::nodes::Client;
use crate::planner::batch_size::BatchSize;
use crate::store::NewBlock;

/// Maximum number of blocks by which a thread may be ahead of the next block to be written.
const AHEAD_BLOCKS_MAX: u64 = 16 * COMMIT_BLOCKS as u64;
/// Maximum number of bytes of compressed rows that wait to be written.
const AHEAD_BYTES_MAX: usize = 128 << 20;
/// How often a waiting thread checks whether the run is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The state that is reused from range to range: clients, compressors, and the batch size that
/// nodes accept.
pub(super) struct FetchPool {
    workers: Vec<Worker>,
    batch_size: Mutex<BatchSize>,
}

struct Worker {
    clients: Vec<Client>,
    compressor: Compressor,
    /// The index of the node where the next search for a node starts.
    turn: usize,
}

/// The fetch of one range.
struct Run<'a> {
    state: Mutex<RunState>,
    changed: Condvar,
    nodes: &'a NodePool<'a>,
    plan: &'a FetchPlan,
    batch_size: &'a Mutex<BatchSize>,
    finalized: u64,
}

struct RunState {
    /// The first block that no thread has claimed.
    unclaimed: u64,
    to: u64,
    /// The next block to be written.
    expected: u64,
    /// Fetched blocks by the number of the first.
    ready: BTreeMap<u64, Vec<NewBlock>>,
    ready_bytes: usize,
    ended: bool,
    failed: Option<SyncError>,
}

impl FetchPool {
    /// Creates a pool with a thread for each compressor.
    pub(super) fn new(compressors: Vec<Compressor>, batch_max: u64) -> FetchPool {
        let worker = |(turn, compressor)| Worker { clients: Vec::new(), compressor, turn };
        let workers = compressors.into_iter().enumerate().map(worker).collect();
        FetchPool { workers, batch_size: Mutex::new(BatchSize::new(batch_max)) }
    }

    /// Fetches a range and passes its blocks to `take` in order. Passes `None` when no block
    /// arrived for a while. Ends early if `take` returns false, or if the sync is stopped.
    ///
    /// # Errors
    /// If the nodes or `take` fail.
    pub(super) fn run(
        &mut self,
        nodes: &NodePool<'_>,
        plan: &FetchPlan,
        (from, to): (u64, u64),
        finalized: u64,
        mut take: impl FnMut(Option<NewBlock>) -> Result<bool, SyncError>,
    ) -> Result<(), SyncError> {
        let state = RunState {
            unclaimed: from,
            to,
            expected: from,
            ready: BTreeMap::new(),
            ready_bytes: 0,
            ended: false,
            failed: None,
        };
        let run = Run {
            state: Mutex::new(state),
            changed: Condvar::new(),
            nodes,
            plan,
            batch_size: &self.batch_size,
            finalized,
        };
        let threads = usize::try_from(to - from + 1).unwrap_or(usize::MAX).min(self.workers.len());
        std::thread::scope(|scope| {
            // The guard ends the threads even if this function returns early or panics.
            let _guard = EndGuard(&run);
            for worker in &mut self.workers[..threads] {
                let run = &run;
                scope.spawn(move || worker.work(run));
            }
            while let Some(blocks) = run.next()? {
                if blocks.is_empty() && !take(None)? {
                    return Ok(());
                }
                for block in blocks {
                    if !take(Some(block))? {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }
}

struct EndGuard<'a>(&'a Run<'a>);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Run<'_> {
    /// Returns the next blocks in order. Returns an empty list if no block arrived for a while, and
    /// `None` at the end.
    fn next(&self) -> Result<Option<Vec<NewBlock>>, SyncError> {
        let mut state = self.state.lock();
        let mut waited = Duration::ZERO;
        loop {
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            let expected = state.expected;
            if expected > state.to || self.nodes.is_stopped() {
                return Ok(None);
            }
            if let Some(blocks) = state.ready.remove(&expected) {
                state.expected += blocks.len() as u64;
                let bytes: usize = blocks.iter().map(NewBlock::compressed_bytes).sum();
                state.ready_bytes = state.ready_bytes.saturating_sub(bytes);
                self.changed.notify_all();
                return Ok(Some(blocks));
            }
            if waited >= COMMIT_AFTER {
                return Ok(Some(Vec::new()));
            }
            self.changed.wait_for(&mut state, CHECK_INTERVAL);
            waited += CHECK_INTERVAL;
        }
    }

    fn is_over(&self, state: &RunState) -> bool {
        state.ended || state.failed.is_some() || self.nodes.is_stopped()
    }

    /// Claims blocks to fetch; `None` when there are no more.
    fn claim(&self) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        loop {
            if self.is_over(&state) || state.unclaimed > state.to {
                return None;
            }
            let from = state.unclaimed;
            let near =
                from < state.expected + AHEAD_BLOCKS_MAX && state.ready_bytes < AHEAD_BYTES_MAX;
            if near || from == state.expected {
                let blocks = self.batch_size.lock().blocks();
                let to = (from + blocks - 1).min(state.to);
                state.unclaimed = to + 1;
                return Some((from, to));
            }
            self.changed.wait_for(&mut state, CHECK_INTERVAL);
        }
    }

    fn put(&self, from: u64, blocks: Vec<NewBlock>) {
        let mut state = self.state.lock();
        state.ready_bytes += blocks.iter().map(NewBlock::compressed_bytes).sum::<usize>();
        state.ready.insert(from, blocks);
        self.changed.notify_all();
    }

    fn fail(&self, error: SyncError) {
        self.state.lock().failed.get_or_insert(error);
        self.changed.notify_all();
    }
}

impl Worker {
    fn work(&mut self, run: &Run<'_>) {
        while let Some((mut from, to)) = run.claim() {
            while from <= to {
                let last = (from + run.batch_size.lock().blocks() - 1).min(to);
                match self.attempt(run, (from, last)) {
                    Ok(Some(blocks)) => {
                        run.put(from, blocks);
                        from = last + 1;
                    }
                    // The next attempt requests fewer blocks, or calls another node.
                    Ok(None) => {}
                    Err(error) => return run.fail(error),
                }
                if run.is_over(&run.state.lock()) {
                    return;
                }
            }
        }
    }

    /// Tries once to fetch blocks from one node. Returns `None` if another attempt is needed.
    fn attempt(
        &mut self,
        run: &Run<'_>,
        (from, to): (u64, u64),
    ) -> Result<Option<Vec<NewBlock>>, SyncError> {
        let at = match run.nodes.choose(self.turn)? {
            Choice::Node(at) => at,
            Choice::Wait(pause) => {
                run.nodes.pause(pause.min(CHECK_INTERVAL));
                return Ok(None);
            }
        };
        if self.clients.is_empty() {
            self.clients = run.nodes.clients();
        }
        let client = &mut self.clients[at];
        if !run.nodes.is_on_chain(at, client) {
            self.turn = at + 1;
            return Ok(None);
        }
        let started = Instant::now();
        match fetch(client, &mut self.compressor, run.plan, (from, to)) {
            Ok(Fetched { blocks, bytes, took }) => {
                run.nodes.succeeded(at);
                run.batch_size.lock().succeeded(blocks.len() as u64, bytes, took);
                Ok(Some(blocks))
            }
            Err(error) => {
                self.failed(run, (at, started), (from, to), error)?;
                Ok(None)
            }
        }
    }

    /// Applies a failure to the node and to the next attempt.
    fn failed(
        &mut self,
        run: &Run<'_>,
        (at, started): (usize, Instant),
        (from, to): (u64, u64),
        error: FetchError,
    ) -> Result<(), SyncError> {
        let why = error.to_string();
        match error {
            FetchError::TooLarge { limit, .. } if to > from => {
                let mut size = run.batch_size.lock();
                let before = size.blocks();
                size.too_large(to - from + 1, limit);
                let blocks = size.blocks();
                if blocks < before {
                    run.nodes.observer().on_event(&Event::BatchReduced { blocks, why });
                }
                return Ok(());
            }
            FetchError::Compression(error) => return Err(error.into()),
            FetchError::Contradiction { number, .. } if number <= run.finalized => {
                run.nodes.remove(at, &why);
            }
            FetchError::Call(error) => run.nodes.failed(at, &why, started, error.retry_after()),
            _ => run.nodes.failed(at, &why, started, None),
        }
        self.turn = at + 1;
        Ok(())
    }
}
