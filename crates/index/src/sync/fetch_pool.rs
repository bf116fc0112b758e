//! The threads that fetch blocks. The sync receives the blocks in the order of the chain.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::batch::{COMMIT_BLOCKS, COMMIT_INTERVAL};
use super::error::SyncError;
use super::fetch::{FetchError, FetchPlan, FetchedBlocks, fetch};
use super::node_pool::{Choice, NodePool};
use super::observer::Event;
use crate::compression::Compressor;
use crate::nodes::Client;
use crate::planner::batch_size::BatchSize;
use crate::store::NewBlock;

/// Maximum distance of a claimed block from the next block to be written.
const AHEAD_BLOCKS_MAX: u64 = 16 * COMMIT_BLOCKS as u64;
/// Maximum number of bytes of compressed rows that wait to be written.
const AHEAD_BYTES_MAX: usize = 128 << 20;
/// Interval at which a waiting thread checks if the run is over.
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
    /// The index of the node that is tried first in the next attempt.
    next_node: usize,
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
    /// The last block of the range.
    to: u64,
    /// The next block to be written.
    expected: u64,
    /// Lists of fetched blocks by the number of their first block.
    ready: BTreeMap<u64, Vec<NewBlock>>,
    /// Bytes of the compressed rows of these blocks.
    ready_bytes: usize,
    /// True if the threads must end.
    is_ended: bool,
    failure: Option<SyncError>,
}

impl FetchPool {
    /// Creates a pool with a worker for each compressor. Each run starts a thread for each worker.
    pub(super) fn new(compressors: Vec<Compressor>, batch_max: u64) -> FetchPool {
        let worker =
            |(next_node, compressor)| Worker { clients: Vec::new(), compressor, next_node };
        let workers = compressors.into_iter().enumerate().map(worker).collect();
        FetchPool { workers, batch_size: Mutex::new(BatchSize::new(batch_max)) }
    }

    /// Fetches a range and passes its blocks to `take_block` in order. Passes `None` when no block
    /// arrived for a while. Ends early if `take_block` returns false, or if the sync is stopped.
    ///
    /// # Errors
    /// Fails if the nodes or `take_block` fail.
    pub(super) fn run(
        &mut self,
        nodes: &NodePool<'_>,
        plan: &FetchPlan,
        (from, to): (u64, u64),
        finalized: u64,
        mut take_block: impl FnMut(Option<NewBlock>) -> Result<bool, SyncError>,
    ) -> Result<(), SyncError> {
        let state = RunState {
            unclaimed: from,
            to,
            expected: from,
            ready: BTreeMap::new(),
            ready_bytes: 0,
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
        let threads = usize::try_from(to - from + 1).unwrap_or(usize::MAX).min(self.workers.len());
        std::thread::scope(|scope| {
            // The guard ends the threads even if this function returns early or panics.
            let _guard = EndGuard(&run);
            for worker in &mut self.workers[..threads] {
                let run = &run;
                scope.spawn(move || worker.work(run));
            }
            while let Some(blocks) = run.next()? {
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

struct EndGuard<'a>(&'a Run<'a>);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_ended = true;
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
            if let Some(error) = state.failure.take() {
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
            if waited >= COMMIT_INTERVAL {
                return Ok(Some(Vec::new()));
            }
            self.changed.wait_for(&mut state, CHECK_INTERVAL);
            waited += CHECK_INTERVAL;
        }
    }

    fn is_over(&self, state: &RunState) -> bool {
        state.is_ended || state.failure.is_some() || self.nodes.is_stopped()
    }

    /// Claims blocks to fetch. Returns `None` if no blocks are left or the run is over.
    fn claim(&self) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        loop {
            if self.is_over(&state) || state.unclaimed > state.to {
                return None;
            }
            let from = state.unclaimed;
            let is_within_limits =
                from < state.expected + AHEAD_BLOCKS_MAX && state.ready_bytes < AHEAD_BYTES_MAX;
            if is_within_limits || from == state.expected {
                let blocks = self.batch_size.lock().blocks();
                let to = (from + blocks - 1).min(state.to);
                state.unclaimed = to + 1;
                return Some((from, to));
            }
            self.changed.wait_for(&mut state, CHECK_INTERVAL);
        }
    }

    fn add_ready(&self, from: u64, blocks: Vec<NewBlock>) {
        let mut state = self.state.lock();
        state.ready_bytes += blocks.iter().map(NewBlock::compressed_bytes).sum::<usize>();
        state.ready.insert(from, blocks);
        self.changed.notify_all();
    }

    fn fail(&self, error: SyncError) {
        self.state.lock().failure.get_or_insert(error);
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
                        run.add_ready(from, blocks);
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
        let node = match run.nodes.choose(self.next_node)? {
            Choice::Node(node) => node,
            Choice::Wait(pause) => {
                run.nodes.pause(pause.min(CHECK_INTERVAL));
                return Ok(None);
            }
        };
        if self.clients.is_empty() {
            self.clients = run.nodes.clients();
        }
        let client = &mut self.clients[node];
        if !run.nodes.is_on_chain(node, client) {
            self.next_node = node + 1;
            return Ok(None);
        }
        let started = Instant::now();
        match fetch(client, &mut self.compressor, run.plan, (from, to)) {
            Ok(FetchedBlocks { blocks, bytes, duration }) => {
                run.nodes.record_success(node);
                run.batch_size.lock().record_success(blocks.len() as u64, bytes, duration);
                Ok(Some(blocks))
            }
            Err(error) => {
                self.handle_failure(run, (node, started), (from, to), error)?;
                Ok(None)
            }
        }
    }

    /// Handles a failed attempt. Reduces the batch size if the request was too large. Otherwise
    /// pauses or removes the node, and selects another node for the next attempt.
    ///
    /// # Errors
    /// Fails if the blocks cannot be compressed.
    fn handle_failure(
        &mut self,
        run: &Run<'_>,
        (node, started): (usize, Instant),
        (from, to): (u64, u64),
        error: FetchError,
    ) -> Result<(), SyncError> {
        let reason = error.to_string();
        match error {
            FetchError::TooLarge { rejection, .. } if to > from => {
                let mut size = run.batch_size.lock();
                let previous_size = size.blocks();
                size.record_rejection(to - from + 1, rejection);
                let blocks = size.blocks();
                if blocks < previous_size {
                    run.nodes.observer.on_event(&Event::BatchReduced { blocks, reason });
                }
                return Ok(());
            }
            FetchError::Compression(error) => return Err(error.into()),
            FetchError::Contradiction { number, .. } if number <= run.finalized => {
                run.nodes.remove(node, &reason);
            }
            FetchError::Call(error) => {
                run.nodes.record_failure(node, &reason, started, error.retry_after())
            }
            _ => run.nodes.record_failure(node, &reason, started, None),
        }
        self.next_node = node + 1;
        Ok(())
    }
}
