//! The worker threads that fetch blocks. Each worker claims the next blocks that no other worker
//! has claimed, so blocks arrive in any order. The sync takes them from the pool in the order of
//! the chain.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::batch::{COMMIT_BLOCKS, COMMIT_INTERVAL};
use super::error::SyncError;
use super::fetch::{FetchError, FetchPlan, FetchedBlocks, fetch};
use super::node_pool::{NodeChoice, NodePool};
use super::observer::Event;
use crate::compression::Compressor;
use crate::nodes::Client;
use crate::planner::batch_size::BatchSize;
use crate::store::NewBlock;

#[cfg(test)]
mod tests;

/// Maximum number of blocks by which a claimed block is ahead of the next block to be taken.
const AHEAD_BLOCKS_MAX: u64 = 16 * COMMIT_BLOCKS as u64;
/// Workers pause while this number of bytes of compressed rows waits to be written.
const AHEAD_BYTES_MAX: usize = 128 << 20;
/// Interval at which a waiting thread checks if the sync was stopped. Stopping a sync notifies no
/// thread.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The workers and the batch size that nodes accept. Both are reused for further ranges of blocks.
pub(super) struct FetchPool {
    workers: Vec<Worker>,
    batch_size: Mutex<BatchSize>,
}

/// The state of one worker thread.
struct Worker {
    /// A client for each node, by the index of the node; empty before the first attempt.
    clients: Vec<Client>,
    compressor: Compressor,
    /// The index of the node that is tried first in the next attempt.
    next_node: usize,
}

/// The fetch of one range, shared by the workers and the thread that takes the blocks.
struct Run<'a> {
    state: Mutex<RunState>,
    /// Notified when blocks are added or taken, and when the workers must end.
    changed: Condvar,
    nodes: &'a NodePool<'a>,
    plan: &'a FetchPlan,
    batch_size: &'a Mutex<BatchSize>,
    /// The last finalized block of the chain.
    finalized: u64,
}

/// The state of a run.
struct RunState {
    /// The first block that no worker has claimed.
    first_unclaimed: u64,
    /// The last block of the range.
    last: u64,
    /// The next block to be taken.
    next: u64,
    /// Lists of fetched blocks that were not taken yet, by the number of their first block.
    fetched: BTreeMap<u64, Vec<NewBlock>>,
    /// Bytes of the compressed rows of the blocks in `fetched`.
    fetched_bytes: usize,
    /// True if the workers must end.
    is_ended: bool,
    /// The error of a worker, and the first block that it could not fetch. Workers that fetch lower
    /// blocks continue, and replace the error if they fail too. So the error always names the lowest
    /// block that fails.
    failure: Option<(u64, SyncError)>,
}

impl FetchPool {
    /// Creates a pool with a worker for each compressor. Each run starts a thread for each worker.
    pub(super) fn new(compressors: Vec<Compressor>, batch_max: u64) -> FetchPool {
        // Each worker starts with another node.
        let new_worker =
            |(next_node, compressor)| Worker { clients: Vec::new(), compressor, next_node };
        let workers = compressors.into_iter().enumerate().map(new_worker).collect();
        FetchPool { workers, batch_size: Mutex::new(BatchSize::new(batch_max)) }
    }

    /// Fetches a range and passes its blocks to `take_block` in order. Passes `None` if no block
    /// has arrived for [`COMMIT_INTERVAL`], so the caller can commit the blocks that it has. Ends
    /// early if `take_block` returns false, or if the sync is stopped.
    ///
    /// # Errors
    /// Fails if no node can be called, a block cannot be compressed, or `take_block` fails.
    pub(super) fn run(
        &mut self,
        nodes: &NodePool<'_>,
        plan: &FetchPlan,
        (from, to): (u64, u64),
        finalized: u64,
        mut take_block: impl FnMut(Option<NewBlock>) -> Result<bool, SyncError>,
    ) -> Result<(), SyncError> {
        let state = RunState {
            first_unclaimed: from,
            last: to,
            next: from,
            fetched: BTreeMap::new(),
            fetched_bytes: 0,
            is_ended: false,
            failure: None,
        };
        let run = Run {
            state: Mutex::new(state),
            changed: Condvar::new(),
            nodes,
            plan,
            batch_size: &self.batch_size,
            finalized,
        };
        let blocks = usize::try_from(to - from + 1).unwrap_or(usize::MAX);
        let worker_count = blocks.min(self.workers.len());
        std::thread::scope(|scope| {
            // The guard ends the workers even if this function returns early or panics.
            let _guard = EndGuard(&run);
            for worker in &mut self.workers[..worker_count] {
                let run = &run;
                scope.spawn(move || worker.work(run));
            }
            while let Some(blocks) = run.take_next()? {
                if blocks.is_empty() && !take_block(None)? {
                    return Ok(());
                }
                for block in blocks {
                    if !take_block(Some(block))? {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }
}

/// Ends the workers of a run when it is dropped.
struct EndGuard<'a>(&'a Run<'a>);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_ended = true;
        self.0.changed.notify_all();
    }
}

impl Run<'_> {
    /// Waits for the next blocks in order and returns them. Returns an empty list if no block has
    /// arrived for [`COMMIT_INTERVAL`]. Returns `None` after the last block, or if the sync is
    /// stopped.
    ///
    /// # Errors
    /// Returns the error of a worker, once all lower blocks have been taken.
    fn take_next(&self) -> Result<Option<Vec<NewBlock>>, SyncError> {
        let mut state = self.state.lock();
        let mut waited = Duration::ZERO;
        loop {
            let next = state.next;
            if let Some((_, error)) = state.failure.take_if(|(from, _)| *from == next) {
                return Err(error);
            }
            if next > state.last || self.nodes.is_stopped() {
                return Ok(None);
            }
            if let Some(blocks) = state.fetched.remove(&next) {
                state.next += blocks.len() as u64;
                let bytes: usize = blocks.iter().map(NewBlock::compressed_bytes).sum();
                state.fetched_bytes = state.fetched_bytes.saturating_sub(bytes);
                self.changed.notify_all();
                return Ok(Some(blocks));
            }
            if waited >= COMMIT_INTERVAL {
                return Ok(Some(Vec::new()));
            }
            self.changed.wait_for(&mut state, CHECK_INTERVAL);
            waited += CHECK_INTERVAL;
        }
    }

    /// Returns true if the worker that fetches the blocks from `from` on must end.
    fn is_over(&self, state: &RunState, from: u64) -> bool {
        let is_above_failure = state.failure.as_ref().is_some_and(|(failed, _)| *failed < from);
        state.is_ended || is_above_failure || self.nodes.is_stopped()
    }

    /// Claims a range of blocks for a worker, as many as one request may ask for. Waits while too
    /// many blocks wait to be taken. Returns `None` if no blocks are left or the run is over.
    fn claim(&self) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        loop {
            let from = state.first_unclaimed;
            if self.is_over(&state, from) || from > state.last {
                return None;
            }
            let is_within_limits =
                from < state.next + AHEAD_BLOCKS_MAX && state.fetched_bytes < AHEAD_BYTES_MAX;
            // The block that the sync takes next is claimed even beyond the limits. Otherwise the
            // run could stop.
            if is_within_limits || from == state.next {
                let blocks = self.batch_size.lock().blocks();
                let to = (from + blocks - 1).min(state.last);
                state.first_unclaimed = to + 1;
                return Some((from, to));
            }
            self.changed.wait_for(&mut state, CHECK_INTERVAL);
        }
    }

    /// Adds the blocks that a worker has fetched; `from` is the number of the first block.
    fn add_fetched(&self, from: u64, blocks: Vec<NewBlock>) {
        let mut state = self.state.lock();
        state.fetched_bytes += blocks.iter().map(NewBlock::compressed_bytes).sum::<usize>();
        state.fetched.insert(from, blocks);
        self.changed.notify_all();
    }

    /// Records the error of a worker that cannot fetch the blocks from `from` on. The run ends when
    /// it reaches them.
    fn fail(&self, from: u64, error: SyncError) {
        let mut state = self.state.lock();
        if state.failure.as_ref().is_none_or(|(failed, _)| from < *failed) {
            state.failure = Some((from, error));
        }
        self.changed.notify_all();
    }
}

impl Worker {
    /// Claims and fetches blocks until the run is over.
    fn work(&mut self, run: &Run<'_>) {
        while let Some((mut from, to)) = run.claim() {
            while from <= to {
                // The batch size may have shrunk since the claim.
                let last = (from + run.batch_size.lock().blocks() - 1).min(to);
                match self.try_fetch(run, (from, last)) {
                    Ok(Some(blocks)) => {
                        run.add_fetched(from, blocks);
                        from = last + 1;
                    }
                    // The next attempt requests fewer blocks, or calls another node.
                    Ok(None) => {}
                    Err(error) => return run.fail(from, error),
                }
                if run.is_over(&run.state.lock(), from) {
                    return;
                }
            }
        }
    }

    /// Tries once to fetch blocks from one node. Returns `None` if another attempt is needed.
    fn try_fetch(
        &mut self,
        run: &Run<'_>,
        (from, to): (u64, u64),
    ) -> Result<Option<Vec<NewBlock>>, SyncError> {
        let node = match run.nodes.choose_node(self.next_node)? {
            NodeChoice::Node(node) => node,
            NodeChoice::Wait(pause) => {
                run.nodes.pause(pause.min(CHECK_INTERVAL));
                return Ok(None);
            }
        };
        if self.clients.is_empty() {
            self.clients = run.nodes.new_clients();
        }
        let client = &mut self.clients[node];
        if !run.nodes.is_on_chain(node, client) {
            self.next_node = node + 1;
            return Ok(None);
        }
        let started = Instant::now();
        match fetch(client, &mut self.compressor, run.plan, (from, to)) {
            Ok(FetchedBlocks { blocks, bytes, duration }) => {
                run.nodes.record_fetch(node, (from, to));
                run.batch_size.lock().record_success(blocks.len() as u64, bytes, duration);
                Ok(Some(blocks))
            }
            Err(error) => {
                self.handle_failure(run, (node, started), (from, to), error)?;
                Ok(None)
            }
        }
    }

    /// Handles a failed attempt. If the node rejected a request for several blocks as too large,
    /// reduces the batch size. Otherwise pauses or removes the node, and selects another node for
    /// the next attempt. `node` is the index of the node, and `started` the start of the attempt.
    ///
    /// # Errors
    /// Fails if the blocks cannot be compressed, or if the only node has a block that cannot be
    /// verified or skips a height.
    fn handle_failure(
        &mut self,
        run: &Run<'_>,
        (node, started): (usize, Instant),
        (from, to): (u64, u64),
        error: FetchError,
    ) -> Result<(), SyncError> {
        let (block, reason) = (error.block(), error.to_string());
        match error {
            FetchError::TooLarge { rejection, .. } if to > from => {
                let mut batch_size = run.batch_size.lock();
                let previous_blocks = batch_size.blocks();
                batch_size.record_rejection(to - from + 1, &rejection);
                let blocks = batch_size.blocks();
                if blocks < previous_blocks {
                    run.nodes.observer.on_event(&Event::BatchReduced { blocks, reason });
                }
                return Ok(());
            }
            FetchError::Compression(error) => return Err(error.into()),
            // Without another node, no repetition can prove the block or find it.
            FetchError::Unverifiable { .. } | FetchError::SkippedHeight { .. }
                if run.nodes.len() == 1 =>
            {
                return Err(SyncError::Mismatch(reason));
            }
            // No reorg can explain a contradiction at or below the finalized block, so the node is
            // wrong.
            FetchError::Contradiction { number, .. } if number <= run.finalized => {
                run.nodes.remove(node, &reason);
            }
            FetchError::Call(error) => {
                run.nodes.record_failure(node, (None, &reason), started, error.retry_after())
            }
            _ => run.nodes.record_failure(node, (block, &reason), started, None),
        }
        self.next_node = node + 1;
        Ok(())
    }
}
