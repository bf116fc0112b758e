//! Looks for the transactions that a run sent in new blocks. A separate thread polls the target for
//! blocks over its own connection. The polls do not count as load.
//!
//! A transaction is *included* when a poll first finds it in a block. Its inclusion time counts
//! from the scheduled start of the iteration that sent it. The time therefore contains every delay
//! that the target caused before the send. It may also be too long by up to one interval between
//! polls. A transaction still counts as included if the chain later replaces its block (a reorg).

mod follow;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{JoinHandle, park_timeout};
use std::time::{Duration, Instant};

use lab_engine::engine::transactions::{TransactionLog, TransactionState};
use lab_model::plan::Plan;
use lab_model::plan::transactions::Hash;
use lab_model::record::to_nanos;

use self::follow::{Block, ChainFollower};
use crate::target::{Client, Reply};

#[cfg(test)]
mod tests;

/// Interval at which the wait after the load checks if the stop was requested.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Timeout of a call. It is short because a poll that hangs delays the end of the run.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// The results of a run's polls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inclusions {
    /// Number of sent transactions that were found in a block.
    pub(crate) included: u64,
    /// Number of pending transactions: sent, not refused, and in no block.
    pub(crate) pending: u64,
    /// Inclusion times that [`InclusionWatcher::take_times`] has not returned, in nanoseconds.
    pub(crate) times: Vec<u64>,
    /// Time from the end of the load to the end of the polls.
    pub(crate) waited: Duration,
    /// Number of blocks that were read.
    pub(crate) blocks: u64,
    /// Number of polls that failed.
    pub(crate) polls_failed: u64,
}

/// The thread that polls new blocks. Dropping it ends the polls.
pub(crate) struct InclusionWatcher {
    /// True if the polls must end.
    stop: Arc<AtomicBool>,
    /// True once the load has ended. The polls then end as soon as no transaction is pending.
    load_ended: Arc<AtomicBool>,
    /// Inclusion times in nanoseconds, at most one per transaction of the run.
    times: Receiver<u64>,
    /// `None` once [`InclusionWatcher::finish`] has taken it.
    thread: Option<JoinHandle<Inclusions>>,
    /// Longest wait for pending transactions after the load.
    max_wait: Duration,
}

impl InclusionWatcher {
    /// Reads the newest block, and starts to poll the blocks after it. `log` has the hashes and
    /// states of the plan's transactions. `origin` is the start of the load.
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
        let fetch_stop = Arc::clone(&stop);
        let mut fetch = move |number: Option<u64>| match fetch_stop.load(Ordering::Acquire) {
            false => fetch_block(&client, number),
            true => Err("the polls have ended".to_owned()),
        };
        let newest = fetch(None)?.ok_or("there is no newest block")?;
        let follower = ChainFollower::new(newest.number, newest.hash);
        // Each transaction is included at most once, so the channel is never full.
        let (times_sender, times) = sync_channel(log.hashes().len().max(1));
        let mut poller = Poller {
            included: IncludedTransactions::new(Arc::clone(log)),
            follower,
            times: times_sender,
            inclusions: Inclusions::default(),
            origin,
        };
        let interval = plan.inclusion.interval;
        let (thread_stop, thread_load_ended) = (Arc::clone(&stop), Arc::clone(&load_ended));
        let builder = std::thread::Builder::new().name("inclusion".to_owned());
        let thread = builder
            .spawn(move || {
                while !thread_stop.load(Ordering::Acquire) {
                    let started = Instant::now();
                    // The flag is read before the poll. If the load ends during the poll, another
                    // poll finds the transactions that were sent meanwhile.
                    let load_has_ended = thread_load_ended.load(Ordering::Acquire);
                    poller.poll(&mut fetch);
                    if load_has_ended && poller.included.count_pending() == 0 {
                        break;
                    }
                    park_timeout(interval.saturating_sub(started.elapsed()));
                }
                Inclusions { pending: poller.included.count_pending(), ..poller.inclusions }
            })
            .map_err(|error| format!("its thread cannot be started: {error}"))?;
        let max_wait = plan.inclusion.wait;
        Ok(InclusionWatcher { stop, load_ended, times, thread: Some(thread), max_wait })
    }

    /// Returns the inclusion times since the last call, in nanoseconds.
    pub(crate) fn take_times(&self) -> impl Iterator<Item = u64> {
        self.times.try_iter()
    }

    /// Waits until no transaction is pending, the plan's longest wait is over, or `is_stopped`
    /// returns true. Then ends the polls and returns their results.
    pub(crate) fn finish(mut self, is_stopped: &dyn Fn() -> bool) -> Inclusions {
        let started = Instant::now();
        self.load_ended.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Inclusions::default() };
        while !thread.is_finished() && started.elapsed() < self.max_wait && !is_stopped() {
            park_timeout(STOP_POLL_INTERVAL.min(self.max_wait.saturating_sub(started.elapsed())));
        }
        self.stop.store(true, Ordering::Release);
        thread.thread().unpark();
        let waited = started.elapsed();
        // The thread ends after its current poll. It checks the data that it reads, so it does not
        // panic.
        let inclusions = thread.join().unwrap_or_default();
        Inclusions { times: self.times.try_iter().collect(), waited, ..inclusions }
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
    included: IncludedTransactions,
    follower: ChainFollower,
    /// Sends the inclusion time of each included transaction, in nanoseconds.
    times: SyncSender<u64>,
    /// The counts of blocks, transactions and failed polls so far. The other fields are set when
    /// the polls end.
    inclusions: Inclusions,
    /// Start of the load.
    origin: Instant,
}

impl Poller {
    /// Reads the blocks since the last poll. Looks up the transactions of a block as soon as the
    /// block is fetched. To limit memory, it then drops the list of transactions. `fetch` is as in
    /// [`ChainFollower::follow`].
    fn poll(&mut self, fetch: &mut dyn FnMut(Option<u64>) -> Result<Option<Block>, String>) {
        let Poller { included, follower, times, inclusions, origin } = self;
        let start_number = follower.start_number();
        // The time at which the fetch of the newest block returned. It applies to all blocks of the
        // poll: the older blocks existed by then, although they are fetched later.
        let mut polled_at = None;
        let mut fetch_and_look_up = |number: Option<u64>| {
            let mut block = fetch(number)?;
            let polled_at = *polled_at.get_or_insert_with(Instant::now);
            let polled_ns = to_nanos(polled_at.saturating_duration_since(*origin));
            if let Some(block) = &mut block {
                let transactions = std::mem::take(&mut block.transactions);
                let is_new = block.number > start_number;
                for hash in transactions.iter().filter(|_| is_new) {
                    if let Some(scheduled_ns) = included.add(hash) {
                        inclusions.included += 1;
                        // Sending fails only if the watcher was dropped.
                        let _ignored = times.send(polled_ns.saturating_sub(scheduled_ns));
                    }
                }
            }
            Ok(block)
        };
        match follower.follow(&mut fetch_and_look_up) {
            Ok(blocks) => inclusions.blocks += blocks,
            Err(_) => inclusions.polls_failed += 1,
        }
    }
}

/// Marks the transactions of a run that were found in a block.
struct IncludedTransactions {
    log: Arc<TransactionLog>,
    /// Index of each transaction in the log, by the hash of the transaction.
    indexes: HashMap<Hash, usize>,
    /// True for each included transaction, by its index in the log.
    is_included: Vec<bool>,
}

impl IncludedTransactions {
    fn new(log: Arc<TransactionLog>) -> IncludedTransactions {
        let hashes = log.hashes().iter().enumerate();
        let indexes: HashMap<_, _> = hashes.map(|(index, hash)| (*hash, index)).collect();
        IncludedTransactions { is_included: vec![false; log.hashes().len()], indexes, log }
    }

    /// Marks a transaction as included. Returns the scheduled time of its send, in nanoseconds.
    /// Returns `None` if the run has not sent this transaction, or if it was included before.
    fn add(&mut self, hash: &Hash) -> Option<u64> {
        let index = *self.indexes.get(hash)?;
        let (state, scheduled_ns) = self.log.state(index);
        if state == TransactionState::Unsent
            || std::mem::replace(&mut self.is_included[index], true)
        {
            return None;
        }
        Some(scheduled_ns)
    }

    /// Counts the transactions that were sent, not refused, and not included.
    fn count_pending(&self) -> u64 {
        let is_pending = |index: &usize| {
            let (state, _) = self.log.state(*index);
            matches!(state, TransactionState::Sent | TransactionState::Accepted)
                && !self.is_included[*index]
        };
        (0..self.is_included.len()).filter(is_pending).count() as u64
    }
}

/// Fetches the block with a number, or the newest block if `number` is `None`. Returns `None` if
/// the block does not exist.
fn fetch_block(client: &Client, number: Option<u64>) -> Result<Option<Block>, String> {
    let tag = number.map_or_else(|| "latest".to_owned(), |number| format!("{number:#x}"));
    match client.call("eth_getBlockByNumber", &format!(r#"["{tag}",false]"#)) {
        Ok(Reply::Result(value)) if value.is_null() => Ok(None),
        Ok(Reply::Result(value)) => Block::read(&value).map(Some),
        Ok(Reply::Error { code, message }) => Err(format!("error {code} ({message})")),
        Err(fault) => Err(fault.reason.to_string()),
    }
}
