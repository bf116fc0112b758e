//! The index as a tier of the gateway's cache. The *index* is a database of a chain's past. Reader
//! threads look up responses in it. The *follower*, one more thread, syncs the index from the
//! upstreams.
//!
//! The gateway depends only on the trait [`Index`], and the `index` crate does not depend on the
//! gateway. This module connects the two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gateway::config::Config;
use gateway::config::index::VerifyLevel;
use gateway::index::{Index, IndexQuery, IndexResult};
use index::contents::Contents;
use index::error::ReadError;
use index::nodes::Endpoint;
use index::planner::range::SyncEnd;
use index::reader::Reader;
use index::search::SearchLimits;
use index::serve::{self, Lookup, QueryContext, Snapshot};
use index::store::{self, Location, Settings, StoreError};
use index::sync::{Event, Observer, Options, Progress, SyncError};
use tokio::sync::oneshot;
use wire::family::Family;

use self::queue::{Job, Queue};

mod queue;

/// Maximum number of queued lookups that share one read transaction. Sharing saves time, because a
/// transaction costs as much as a small lookup. The number is limited, because a long transaction
/// prevents the writer from truncating its log.
const LOOKUPS_PER_SNAPSHOT_MAX: usize = 64;
/// Maximum number of bytes of logs in one response. It equals the gateway's limit for an upstream
/// response.
const LOGS_BYTES_MAX: u64 = 64 << 20;
/// Timeout of one lookup.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of one database query of the sync.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(15);
/// Delay before a reader reopens an index that could not be read.
const REOPEN_DELAY: Duration = Duration::from_secs(1);
/// Delay before a sync that failed restarts.
const RESTART_DELAY: Duration = Duration::from_secs(5);
/// Delay before a sync restarts when another process holds the write lock. The delay is short,
/// because that process may be about to end.
const LOCKED_RESTART_DELAY: Duration = Duration::from_secs(1);
/// Maximum time for which the gateway's shutdown waits for the sync thread.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the sync thread checks the stop flag while it waits to restart the sync.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The gateway's handle of the reader threads.
pub(super) struct Readers {
    /// Name of the chain in the gateway's configuration.
    chain: String,
    /// Chain id of the index plus one; 0 before a reader has opened the index.
    chain_id_plus_one: Arc<AtomicU64>,
    /// True if the chain mismatch has been logged.
    mismatch_logged: AtomicBool,
    queue: Arc<Queue>,
}

impl Index for Readers {
    fn chain(&self) -> &str {
        &self.chain
    }

    fn serves_chain(&self, upstream_id: u64) -> bool {
        let chain_id_plus_one = self.chain_id_plus_one.load(Ordering::Acquire);
        let Some(index_id) = chain_id_plus_one.checked_sub(1) else { return false };
        let is_same_chain = index_id == upstream_id;
        if !is_same_chain && !self.mismatch_logged.swap(true, Ordering::Relaxed) {
            let chain = &self.chain;
            tracing::error!(
                "the index is of chain {index_id}, the upstreams of `{chain}` of chain \
                 {upstream_id}; the index is not used"
            );
        }
        is_same_chain
    }

    fn serves(&self, method: &str) -> bool {
        serve::methods().any(|name| name == method)
    }

    fn start_query(&self, query: IndexQuery, sender: oneshot::Sender<IndexResult>) {
        self.queue.put(Job { query, sender });
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The thread that syncs the index. Dropping this value stops the thread.
pub(super) struct Follower {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// Disconnects when the thread ends.
    ended: Receiver<()>,
}

impl Follower {
    /// Requests a stop without waiting for it.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

impl Drop for Follower {
    /// Stops the thread and waits for the write in progress. The wait is limited to
    /// [`SHUTDOWN_TIMEOUT`], because the thread may be waiting for a node that does not respond.
    /// The next sync fetches interrupted blocks again.
    fn drop(&mut self) {
        self.stop();
        // The channel carries no message; it disconnects when the thread ends.
        let _ended = self.ended.recv_timeout(SHUTDOWN_TIMEOUT);
    }
}

/// Starts the readers and, if configured, the sync. Returns `None` without a configured index.
pub(super) fn start(config: &Config) -> Result<Option<(Arc<Readers>, Option<Follower>)>> {
    let Some(index_config) = &config.index else { return Ok(None) };
    let location = match Location::new(&index_config.db) {
        Ok(location) => location.with_password_of_environment(),
        Err(why) => bail!("index.db: {why}"),
    };
    let defaults =
        Settings { page_cache_bytes: index_config.page_cache as u64, ..Settings::default() };
    let settings =
        Settings { mmap_bytes: index_config.mmap as u64, query_timeout: READ_TIMEOUT, ..defaults };
    let queue = Arc::new(Queue::default());
    let chain_id_plus_one = Arc::new(AtomicU64::new(0));
    let context = Arc::new(ReaderContext {
        queue: Arc::clone(&queue),
        chain_id_plus_one: Arc::clone(&chain_id_plus_one),
        location: location.clone(),
        settings,
        logs_max: index_config.logs_max,
    });
    let mut index_exists = true;
    for number in 0..index_config.readers {
        let opened = match index_config.follow {
            false => context.open_at_start().context("index")?,
            // An error is ignored here: the sync thread may have to create the index first. The
            // reader thread opens the index again, and logs errors.
            true if index_exists => context.open().ok().flatten(),
            true => None,
        };
        index_exists &= opened.is_some();
        // The reader registers before the gateway accepts the first call.
        if opened.is_some() {
            queue.add_reader();
        }
        let context = Arc::clone(&context);
        let work = move || context.serve_until_closed(opened);
        std::thread::Builder::new().name(format!("weir-index-{number}")).spawn(work)?;
    }
    let chain = config.chains[index_config.chain].name.to_string();
    let settings = Settings { query_timeout: FOLLOW_TIMEOUT, ..defaults };
    let follower =
        index_config.follow.then(|| start_follower(config, &location, settings)).transpose()?;
    let mismatch_logged = AtomicBool::new(false);
    let readers = Readers { chain, chain_id_plus_one, mismatch_logged, queue };
    Ok(Some((Arc::new(readers), follower)))
}

/// State that the reader threads share.
struct ReaderContext {
    queue: Arc<Queue>,
    /// The same value as in [`Readers`].
    chain_id_plus_one: Arc<AtomicU64>,
    location: Location,
    settings: Settings,
    /// Maximum number of logs in one response.
    logs_max: u64,
}

impl ReaderContext {
    /// Opens the index at startup, and fails if it is broken. An unreachable database server is
    /// only logged, because it may come up later.
    fn open_at_start(&self) -> Result<Option<Reader>> {
        match self.open() {
            Err(ReadError::Store(error @ StoreError::Unreachable { .. })) => {
                tracing::error!(%error, "the index cannot be read; calls go to the upstreams");
                Ok(None)
            }
            opened => Ok(opened?),
        }
    }

    fn open(&self) -> Result<Option<Reader>, ReadError> {
        let opened = Reader::open(&self.location, self.settings)?;
        if let Some(reader) = &opened {
            let chain_id = reader.metadata().chain.id.parse().unwrap_or(0_u64);
            self.chain_id_plus_one.store(chain_id.saturating_add(1), Ordering::Release);
        }
        Ok(opened)
    }

    /// Serves lookups until the queue closes. Opens the index if `opened` is `None`, and reopens it
    /// after an error.
    fn serve_until_closed(&self, mut opened: Option<Reader>) {
        let mut errors = ErrorLog::default();
        loop {
            if let Some(mut reader) = opened.take() {
                let outcome = self.serve_until_error(&mut reader);
                self.queue.remove_reader();
                match outcome {
                    Ok(()) => return,
                    Err(error) => errors.log(&error),
                }
            }
            if self.queue.wait_closed(REOPEN_DELAY) {
                return;
            }
            match self.open() {
                Ok(Some(reader)) => {
                    errors.log_recovery();
                    self.queue.add_reader();
                    opened = Some(reader);
                }
                // The sync thread has not created the index yet.
                Ok(None) | Err(ReadError::Store(StoreError::Missing(_))) => {}
                Err(error) => errors.log(&error),
            }
        }
    }

    /// Serves lookups with this reader until the queue closes or a lookup fails.
    fn serve_until_error(&self, reader: &mut Reader) -> Result<(), ReadError> {
        while let Some(job) = self.queue.next() {
            let mut snapshot = reader.snapshot()?;
            self.serve_job(&mut snapshot, job)?;
            for _ in 1..LOOKUPS_PER_SNAPSHOT_MAX {
                let Some(job) = self.queue.try_next() else { break };
                self.serve_job(&mut snapshot, job)?;
            }
        }
        Ok(())
    }

    fn serve_job(&self, snapshot: &mut Snapshot<'_>, job: Job) -> Result<(), ReadError> {
        let Job { query, sender } = job;
        if sender.is_closed() {
            return Ok(());
        }
        let result = look_up(snapshot, &query, self.logs_max)?;
        // The send fails only if the caller no longer waits.
        let _sent = sender.send(result);
        Ok(())
    }
}

/// Error log of one reader thread. It logs each class of error once, even if the thread retries
/// often.
#[derive(Default)]
struct ErrorLog {
    /// True if the log says that the database server is unreachable.
    unreachable_logged: bool,
    /// True if an error of another class has been logged. It stays true after the index is opened
    /// again. Otherwise damaged data would cause a log line for each lookup.
    other_error_logged: bool,
}

impl ErrorLog {
    fn log(&mut self, error: &ReadError) {
        let is_unreachable = matches!(error, ReadError::Store(StoreError::Unreachable { .. }));
        let logged = match is_unreachable {
            true => &mut self.unreachable_logged,
            false => &mut self.other_error_logged,
        };
        if !std::mem::replace(logged, true) {
            tracing::error!(%error, "the index cannot be read; calls go to the upstreams");
        }
    }

    fn log_recovery(&mut self) {
        if std::mem::take(&mut self.unreachable_logged) {
            tracing::info!("the index can be read again");
        }
    }
}

/// Looks up a query in the index. `logs_max` is the maximum number of logs in the result.
fn look_up(
    snapshot: &mut Snapshot<'_>,
    query: &IndexQuery,
    logs_max: u64,
) -> Result<IndexResult, ReadError> {
    let context = QueryContext {
        finalized: query.settled(),
        is_canonical: &|number, hash| query.is_canonical(number, hash),
        limits: SearchLimits {
            logs: logs_max,
            bytes: LOGS_BYTES_MAX,
            deadline: Some(Instant::now() + READ_TIMEOUT),
        },
    };
    Ok(match snapshot.lookup(&query.method, &query.params, &context)? {
        Lookup::Full(result) => IndexResult::Complete(result.into()),
        Lookup::Partial { from, to, elements } => {
            let array = [b"[", elements.as_slice(), b"]"].concat();
            IndexResult::Partial { from, to, items: array.into() }
        }
        Lookup::Miss => IndexResult::NotStored,
    })
}

/// Starts the thread that syncs the index from the upstreams of its chain.
fn start_follower(config: &Config, location: &Location, settings: Settings) -> Result<Follower> {
    let index_config = config.index.as_ref().context("there is no index")?;
    let nodes: Vec<Arc<Endpoint>> = config
        .upstreams
        .iter()
        .filter(|upstream| upstream.chain == index_config.chain)
        .map(|upstream| Ok(Arc::new(to_endpoint(upstream)?)))
        .collect::<Result<_>>()?;
    let is_harmony = config.chains[index_config.chain].family == Family::Harmony;
    // Harmony computes block hashes differently from Ethereum, and the index cannot compute them.
    let verify = if is_harmony { "off" } else { VerifyLevel::name_of(index_config.verify) };
    let options = Options {
        nodes,
        start: None,
        end: SyncEnd::Follow,
        contents: Contents { transactions: true, receipts: true, logs: true, hmyv2: is_harmony },
        verify: verify.parse().map_err(anyhow::Error::msg).context("index.verify")?,
        concurrency: FOLLOW_CONCURRENCY,
        batch_max: FOLLOW_BATCH_MAX,
        settings,
        // The sync waits without limit for nodes that do not respond.
        patience: None,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (stop_flag, location) = (Arc::clone(&stop), location.clone());
    let (ended_sender, ended) = sync_channel(0);
    let work = move || {
        // The end of the thread drops the sender, which disconnects the channel.
        let _ended_sender: SyncSender<()> = ended_sender;
        sync_until_stopped(&location, &options, &stop_flag);
    };
    let thread = std::thread::Builder::new().name("weir-index-sync".to_owned()).spawn(work)?;
    Ok(Follower { stop, thread, ended })
}

/// Syncs the index until `stop` is set. Restarts the sync after it ends.
fn sync_until_stopped(location: &Location, options: &Options, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let delay = match sync_once(location, options, stop) {
            Ok(()) => RESTART_DELAY,
            // During an upgrade, the old process still holds the lock.
            Err(SyncError::Store(StoreError::Locked(_))) => LOCKED_RESTART_DELAY,
            Err(error) => {
                tracing::error!(%error, "the sync of the index failed");
                RESTART_DELAY
            }
        };
        let checks = delay.as_millis() / STOP_CHECK_INTERVAL.as_millis();
        for _ in 0..checks {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            std::thread::park_timeout(STOP_CHECK_INTERVAL);
        }
    }
}

/// Opens the index, and syncs it until the sync stops or fails. For an existing index, the stored
/// `contents` replace the `contents` in `options`.
fn sync_once(location: &Location, options: &Options, stop: &AtomicBool) -> Result<(), SyncError> {
    let store = store::open(location, options.settings)?;
    let contents = store.metadata()?.map_or(options.contents, |metadata| metadata.contents);
    let options = Options { contents, ..options.clone() };
    index::sync::sync(store, &options, &EventLog, stop).map(|_outcome| ())
}

/// Number of concurrent requests of the sync to upstreams. It is low, so that the sync does not
/// delay clients' calls.
const FOLLOW_CONCURRENCY: usize = 4;
/// Maximum number of blocks in one batch request of the sync.
const FOLLOW_BATCH_MAX: u64 = 50;

/// Converts an upstream of the gateway to an endpoint of the index.
fn to_endpoint(upstream: &gateway::config::upstream::Upstream) -> Result<Endpoint> {
    let mut endpoint = Endpoint::from(upstream.url.clone());
    if let Some(pem) = upstream.tls.as_ref().and_then(|tls| tls.ca_pem()) {
        endpoint = endpoint.with_roots(pem).map_err(anyhow::Error::msg).context("tls_ca")?;
    }
    for (name, value) in &upstream.headers {
        endpoint = endpoint.with_header(name.clone(), value.clone());
    }
    Ok(endpoint)
}

/// Logs the events of a sync.
struct EventLog;

impl Observer for EventLog {
    fn on_progress(&self, progress: &Progress) {
        tracing::debug!(height = progress.height, target = progress.target, "index");
    }

    fn on_event(&self, event: &Event) {
        tracing::info!("index: {event}");
    }
}
