//! Looks for the sent transactions in new blocks, on a thread and a connection of its own. Its
//! polls do not count as load.
//!
//! A transaction is included when a poll first sees it in a block. Its inclusion time counts from
//! the scheduled start of the iteration that sent it, so it contains every delay of the target
//! that held the send up, and the rest of one interval between two polls. A block that a reorg
//! removes later stays counted.

mod follow;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{JoinHandle, park_timeout};
use std::time::{Duration, Instant};

use lab_engine::engine::transactions::{State, TransactionLog};
use lab_model::plan::Plan;
use lab_model::plan::transactions::Hash;
use lab_model::record::nanos;

use self::follow::{Block, ChainFollower};
use crate::target::{Client, Reply};

#[cfg(test)]
mod tests;

/// Interval at which the wait after the load checks if the stop was requested.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Timeout of a call. A poll must not hold the end of the run up for long.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// What the polls of a run saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inclusions {
    /// Sent transactions in a block.
    pub(crate) included: u64,
    /// Transactions that were sent, not refused, and in no block.
    pub(crate) pending: u64,
    /// Inclusion times that were not taken before, in nanoseconds.
    pub(crate) times: Vec<u64>,
    /// Time from the end of the load to the end of the polls.
    pub(crate) waited: Duration,
    /// Blocks that were read.
    pub(crate) blocks: u64,
    /// Polls that failed.
    pub(crate) polls_failed: u64,
}

/// The thread that polls new blocks. Dropping it ends the polls.
pub(crate) struct InclusionWatcher {
    /// True if the polls must end.
    stop: Arc<AtomicBool>,
    /// True once the load has ended. The polls then end with the last pending transaction.
    load_ended: Arc<AtomicBool>,
    /// Inclusion times in nanoseconds, one per transaction of the run at most.
    times: Receiver<u64>,
    thread: Option<JoinHandle<Inclusions>>,
    wait: Duration,
}

impl InclusionWatcher {
    /// Reads the newest block, and starts to poll the ones after it. Times count from `origin`.
    ///
    /// # Errors
    /// Describes why the target's blocks cannot be read.
    pub(crate) fn start(
        plan: &Plan,
        log: &Arc<TransactionLog>,
        origin: Instant,
    ) -> Result<InclusionWatcher, String> {
        let client = Client::with_timeout(&plan.target, &plan.connections.tls, POLL_TIMEOUT)
            .map_err(|fault| fault.reason.to_string())?;
        let (stop, load_ended) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let stopped = Arc::clone(&stop);
        let mut fetch = move |number: Option<u64>| match stopped.load(Ordering::Acquire) {
            false => fetch_block(&client, number),
            true => Err("the polls have ended".to_owned()),
        };
        let newest = fetch(None)?.ok_or("there is no newest block")?;
        let follower = ChainFollower::new(newest.number, newest.hash);
        // Each transaction is included once, so the poller never waits for room.
        let (times_in, times) = sync_channel(log.hashes().len().max(1));
        let mut poller = Poller {
            included: Included::new(Arc::clone(log)),
            follower,
            times: times_in,
            seen: Inclusions::default(),
            origin,
        };
        let interval = plan.inclusion.interval;
        let (stop_seen, end_seen) = (Arc::clone(&stop), Arc::clone(&load_ended));
        let builder = std::thread::Builder::new().name("inclusion".to_owned());
        let thread = builder
            .spawn(move || {
                while !stop_seen.load(Ordering::Acquire) {
                    let started = Instant::now();
                    // Read before the poll: a transaction that is sent after it is still waited for.
                    let has_ended = end_seen.load(Ordering::Acquire);
                    poller.poll(&mut fetch);
                    if has_ended && poller.included.pending() == 0 {
                        break;
                    }
                    park_timeout(interval.saturating_sub(started.elapsed()));
                }
                Inclusions { pending: poller.included.pending(), ..poller.seen }
            })
            .map_err(|error| format!("its thread cannot be started: {error}"))?;
        let wait = plan.inclusion.wait;
        Ok(InclusionWatcher { stop, load_ended, times, thread: Some(thread), wait })
    }

    /// Returns the inclusion times since the last call, in nanoseconds.
    pub(crate) fn take_times(&self) -> impl Iterator<Item = u64> {
        self.times.try_iter()
    }

    /// Waits until no transaction is pending, at most for the plan's wait and until the run is
    /// stopped. Returns what was seen.
    pub(crate) fn finish(mut self, is_stopped: &dyn Fn() -> bool) -> Inclusions {
        let started = Instant::now();
        self.load_ended.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Inclusions::default() };
        while !thread.is_finished() && started.elapsed() < self.wait && !is_stopped() {
            park_timeout(STOP_POLL_INTERVAL.min(self.wait.saturating_sub(started.elapsed())));
        }
        self.stop.store(true, Ordering::Release);
        thread.thread().unpark();
        let waited = started.elapsed();
        // The thread ends after its current poll. It does not panic: what it reads is checked.
        let seen = thread.join().unwrap_or_default();
        Inclusions { times: self.times.try_iter().collect(), waited, ..seen }
    }
}

impl Drop for InclusionWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

/// The state of the polls.
struct Poller {
    included: Included,
    follower: ChainFollower,
    times: SyncSender<u64>,
    seen: Inclusions,
    origin: Instant,
}

impl Poller {
    /// Reads the blocks since the last poll. The transactions of a block are looked up at once, so
    /// that long blocks need no memory.
    fn poll(&mut self, fetch: &mut dyn FnMut(Option<u64>) -> Result<Option<Block>, String>) {
        let Poller { included, follower, times, seen, origin } = self;
        let start = follower.start();
        // The time at which the newest block is known. The blocks before it are read later.
        let mut known_at = None;
        let mut fetch_and_look_up = |number: Option<u64>| {
            let mut block = fetch(number)?;
            let at = *known_at.get_or_insert_with(Instant::now);
            let at = nanos(at.saturating_duration_since(*origin));
            if let Some(block) = &mut block {
                let transactions = std::mem::take(&mut block.transactions);
                let is_new = block.number > start;
                for hash in transactions.iter().filter(|_| is_new) {
                    if let Some(scheduled) = included.add(hash) {
                        seen.included += 1;
                        // The receiver lives as long as the run.
                        let _ignored = times.send(at.saturating_sub(scheduled));
                    }
                }
            }
            Ok(block)
        };
        match follower.follow(&mut fetch_and_look_up) {
            Ok(blocks) => seen.blocks += blocks,
            Err(_) => seen.polls_failed += 1,
        }
    }
}

/// The transactions of a run that were seen in a block.
struct Included {
    log: Arc<TransactionLog>,
    indexes: HashMap<Hash, usize>,
    is_included: Vec<bool>,
}

impl Included {
    fn new(log: Arc<TransactionLog>) -> Included {
        let hashes = log.hashes().iter().enumerate();
        let indexes: HashMap<_, _> = hashes.map(|(index, hash)| (*hash, index)).collect();
        Included { is_included: vec![false; log.hashes().len()], indexes, log }
    }

    /// Marks a transaction as included. Returns the scheduled time of its send, or `None` if it is
    /// not one that the run has sent, or was included before.
    fn add(&mut self, hash: &Hash) -> Option<u64> {
        let index = *self.indexes.get(hash)?;
        let (state, scheduled) = self.log.state(index);
        if state == State::Unsent || std::mem::replace(&mut self.is_included[index], true) {
            return None;
        }
        Some(scheduled)
    }

    /// Counts the transactions that were sent, not refused, and not included.
    fn pending(&self) -> u64 {
        let is_pending = |index: &usize| {
            let (state, _) = self.log.state(*index);
            matches!(state, State::Sent | State::Accepted) && !self.is_included[*index]
        };
        (0..self.is_included.len()).filter(is_pending).count() as u64
    }
}

/// Fetches the block with this number, or the newest one. Returns `None` if there is none.
fn fetch_block(client: &Client, number: Option<u64>) -> Result<Option<Block>, String> {
    let tag = number.map_or_else(|| "latest".to_owned(), |number| format!("{number:#x}"));
    match client.call("eth_getBlockByNumber", &format!(r#"["{tag}",false]"#)) {
        Ok(Reply::Result(value)) if value.is_null() => Ok(None),
        Ok(Reply::Result(value)) => Block::read(&value).map(Some),
        Ok(Reply::Error { code, message }) => Err(format!("error {code} ({message})")),
        Err(fault) => Err(fault.reason.to_string()),
    }
}
