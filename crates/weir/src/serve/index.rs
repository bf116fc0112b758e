//! The index as a tier of the gateway's cache: threads that read it, and
//! one that syncs it.
//!
//! The gateway knows only that somebody may have answers; the index knows nothing of gateways. Here
//! they meet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gateway::config::Config;
use gateway::config::index::Verify;
use gateway::index::{Found, Index, Question};
use index::contents::Contents;
use index::error::ReadError;
use index::nodes::Endpoint;
use index::planner::range::End;
use index::reader::Reader;
use index::search::SearchLimits;
use index::serve::{Lookup, METHODS, QueryContext, Snapshot};
use index::store::{self, Location, Settings, StoreError};
use index::sync::{Event, Observer, Options, Progress, SyncError};
use tokio::sync::oneshot;
use wire::family::Family;

use self::queue::{Job, Queue};

mod queue;

/// Questions that are answered from one state of the index, if so many wait: to begin and to end a
/// transaction costs as much as a small answer, and a writer's log cannot be emptied meanwhile.
const TOGETHER_MAX: usize = 64;
/// Bytes of the logs of one answer: as many as the gateway takes from a node.
const LOGS_BYTES_MAX: u64 = 64 << 20;
/// How long one question of a call may take, and a server over one step of following the chain.
const READ_PATIENCE: Duration = Duration::from_secs(5);
const FOLLOW_PATIENCE: Duration = Duration::from_secs(15);
/// Wait before an index that could not be read is opened anew.
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Wait before a sync that ended in an error is begun anew.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// And one whose writer was another process, which may be about to end.
const TAKEN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long the end of the gateway waits for who syncs.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How long a waiting thread sleeps before it looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Who reads the index, in the gateway's terms.
pub(super) struct Readers {
    chain: String,
    /// Id of the chain that the index is of and one more, as who opened it last saw.
    id: Arc<AtomicU64>,
    /// That the index is of another chain was told.
    told: AtomicBool,
    queue: Arc<Queue>,
}

impl Index for Readers {
    fn chain(&self) -> &str {
        &self.chain
    }

    fn is_of(&self, id: u64) -> bool {
        let Some(own) = self.id.load(Ordering::Acquire).checked_sub(1) else { return false };
        let same = own == id;
        if !same && !self.told.swap(true, Ordering::Relaxed) {
            let chain = &self.chain;
            tracing::error!(
                "the index is of chain {own}, the nodes of `{chain}` of chain {id}; it is not asked"
            );
        }
        same
    }

    fn serves(&self, method: &str) -> bool {
        METHODS.contains(&method)
    }

    fn ask(&self, question: Question, answer: oneshot::Sender<Found>) {
        self.queue.put(Job { question, answer });
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The thread that syncs, until it is dropped.
pub(super) struct Follower {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// Closed when it has ended.
    ended: Receiver<()>,
}

impl Follower {
    /// Tells it to end, and does not wait for that.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

impl Drop for Follower {
    /// Waits for the end of what is under way, but not for a node that is silent: whatever is cut off
    /// is fetched again.
    fn drop(&mut self) {
        self.stop();
        // Nothing is ever sent: the thread's end closes it.
        let _ended = self.ended.recv_timeout(END_PATIENCE);
    }
}

/// Starts what the configuration asks for; none without an index.
pub(super) fn start(config: &Config) -> Result<Option<(Arc<Readers>, Option<Follower>)>> {
    let Some(own) = &config.index else { return Ok(None) };
    let location = match Location::new(&own.db) {
        Ok(location) => location.with_password_of_environment(),
        Err(why) => bail!("index.db: {why}"),
    };
    let usual = Settings { page_cache: own.page_cache as u64, ..Settings::default() };
    let settings = Settings { mmap: own.mmap as u64, query_timeout: READ_PATIENCE, ..usual };
    let queue = Arc::new(Queue::default());
    let id = Arc::new(AtomicU64::new(0));
    let reading = Arc::new(Source {
        queue: Arc::clone(&queue),
        id: Arc::clone(&id),
        location: location.clone(),
        settings,
        logs_max: own.logs_max,
    });
    let mut there = true;
    for at in 0..own.readers {
        let first = match own.follow {
            false => reading.first().context("index")?,
            true => there.then(|| reading.if_there()).flatten(),
        };
        there &= first.is_some();
        // It is ready before the first call comes.
        if first.is_some() {
            queue.join();
        }
        let reading = Arc::clone(&reading);
        let read = move || reading.read(first);
        std::thread::Builder::new().name(format!("weir-index-{at}")).spawn(read)?;
    }
    let chain = config.chains[own.chain].name.to_string();
    let settings = Settings { query_timeout: FOLLOW_PATIENCE, ..usual };
    let follower = own.follow.then(|| follow(config, &location, settings)).transpose()?;
    let readers = Readers { chain, id, told: AtomicBool::new(false), queue };
    Ok(Some((Arc::new(readers), follower)))
}

/// What the threads that read have in common.
struct Source {
    queue: Arc<Queue>,
    id: Arc<AtomicU64>,
    location: Location,
    settings: Settings,
    logs_max: u64,
}

impl Source {
    /// Opens the index at the start. What is wrong with it is told now, not with the first call; a
    /// server that is not there now may come.
    fn first(&self) -> Result<Option<Reader>> {
        match self.open() {
            Err(ReadError::Store(error @ StoreError::Unreachable { .. })) => {
                tracing::error!(%error, "the index cannot be read; calls go to the nodes");
                Ok(None)
            }
            opened => Ok(opened?),
        }
    }

    fn open(&self) -> Result<Option<Reader>, ReadError> {
        let opened = Reader::open(&self.location, self.settings)?;
        if let Some(reader) = &opened {
            let id = reader.metadata().chain.id.parse().unwrap_or(0_u64);
            self.id.store(id.saturating_add(1), Ordering::Release);
        }
        Ok(opened)
    }

    /// Opens the index at the start if it is there: who follows may have to make it first. What is
    /// wrong is told by who tries again.
    fn if_there(&self) -> Option<Reader> {
        self.open().ok().flatten()
    }

    /// Answers questions until nobody can ask any more, with this reader as long as it is good.
    fn read(&self, first: Option<Reader>) {
        let mut opened = first;
        let mut troubles = Troubles::default();
        loop {
            if let Some(mut reader) = opened.take() {
                let ended = self.answer(&mut reader);
                self.queue.leave();
                match ended {
                    Ok(()) => return,
                    Err(error) => troubles.tell(&error),
                }
            }
            if self.queue.closes_within(OPEN_AGAIN_AFTER) {
                return;
            }
            match self.open() {
                Ok(Some(reader)) => {
                    troubles.over();
                    self.queue.join();
                    opened = Some(reader);
                }
                // While it is being made by who syncs it, there is nothing to be read.
                Ok(None) | Err(ReadError::Store(StoreError::Missing(_))) => {}
                Err(error) => troubles.tell(&error),
            }
        }
    }

    /// Answers questions until nobody can ask any more, or one cannot be answered.
    fn answer(&self, reader: &mut Reader) -> Result<(), ReadError> {
        while let Some(job) = self.queue.next() {
            let mut snapshot = reader.snapshot()?;
            self.one(&mut snapshot, job)?;
            for _ in 1..TOGETHER_MAX {
                let Some(job) = self.queue.waiting() else { break };
                self.one(&mut snapshot, job)?;
            }
        }
        Ok(())
    }

    fn one(&self, snapshot: &mut Snapshot<'_>, job: Job) -> Result<(), ReadError> {
        let Job { question, answer } = job;
        if answer.is_closed() {
            return Ok(());
        }
        let found = look_up(snapshot, &question, self.logs_max)?;
        // Who asked may have left.
        let _heard = answer.send(found);
        Ok(())
    }
}

/// What a thread has told: each thing once, however often it tries.
#[derive(Default)]
struct Troubles {
    /// The server is away.
    away: bool,
    /// Something else was wrong at some time.
    other: bool,
}

impl Troubles {
    fn tell(&mut self, error: &ReadError) {
        let away = matches!(error, ReadError::Store(StoreError::Unreachable { .. }));
        let told = if away { &mut self.away } else { &mut self.other };
        if !std::mem::replace(told, true) {
            tracing::error!(%error, "the index cannot be read; calls go to the nodes");
        }
    }

    fn over(&mut self) {
        if std::mem::take(&mut self.away) {
            tracing::info!("the index can be read again");
        }
    }
}

fn look_up(
    snapshot: &mut Snapshot<'_>,
    question: &Question,
    logs_max: u64,
) -> Result<Found, ReadError> {
    let context = QueryContext {
        finalized: question.finalized(),
        is_canonical: &|number, hash| question.is_canonical(number, hash),
        limits: SearchLimits {
            logs: logs_max,
            bytes: LOGS_BYTES_MAX,
            deadline: Some(Instant::now() + READ_PATIENCE),
        },
    };
    Ok(match snapshot.lookup(&question.method, &question.params, &context)? {
        Lookup::Full(result) => Found::Whole(result.into()),
        Lookup::Partial { from, to, elements } => {
            let array = [b"[", elements.as_slice(), b"]"].concat();
            Found::Part { from, to, listed: array.into() }
        }
        Lookup::Miss => Found::Nothing,
    })
}

/// Syncs the index from the nodes of its chain, for as long as the gateway serves.
fn follow(config: &Config, location: &Location, settings: Settings) -> Result<Follower> {
    let own = config.index.as_ref().context("there is no index")?;
    let own_upstreams = config.upstreams.iter().filter(|upstream| upstream.chain == own.chain);
    let nodes: Vec<Arc<Endpoint>> =
        own_upstreams.map(|upstream| Ok(Arc::new(endpoint(upstream)?))).collect::<Result<_>>()?;
    let harmony = config.chains[own.chain].family == Family::Harmony;
    // Harmony hashes its blocks in a way of its own, which nothing here can follow.
    let verify = if harmony { "off" } else { Verify::word(own.verify) };
    let options = Options {
        nodes,
        start: None,
        end: End::Follow,
        contents: Contents { blocks: true, receipts: true, logs: true, hmyv2: harmony },
        verify: verify.parse().context("index.verify")?,
        concurrency: FOLLOW_CONCURRENCY,
        batch_max: FOLLOW_BATCH_MAX,
        settings,
        patience: None,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (told, location) = (Arc::clone(&stop), location.clone());
    let (running, ended) = sync_channel(0);
    let run = move || {
        let _running: SyncSender<()> = running;
        while !told.load(Ordering::Relaxed) {
            let ended =
                store::open(&location, settings).map_err(SyncError::from).and_then(|store| {
                    // An existing index keeps its contents.
                    let metadata = store.metadata()?;
                    let contents = metadata.map_or(options.contents, |known| known.contents);
                    let options = Options { contents, ..options.clone() };
                    index::sync::sync(store, &options, &Log, &told)
                });
            let again_after = match ended {
                Ok(_) => AGAIN_AFTER,
                // A process whose place we take still has it.
                Err(SyncError::Store(StoreError::Locked(_))) => TAKEN_AGAIN_AFTER,
                Err(error) => {
                    tracing::error!(%error, "the index does not follow");
                    AGAIN_AFTER
                }
            };
            let waits = again_after.as_millis() / LOOK_EVERY.as_millis();
            for _ in 0..waits {
                if told.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::park_timeout(LOOK_EVERY);
            }
        }
    };
    let thread = std::thread::Builder::new().name("weir-index-sync".to_owned()).spawn(run)?;
    Ok(Follower { stop, thread, ended })
}

/// Requests to nodes under way at a time while the gateway follows: clients' calls go first.
const FOLLOW_CONCURRENCY: usize = 4;
/// Blocks in one request while the gateway follows.
const FOLLOW_BATCH_MAX: u64 = 50;

/// The endpoint at which the index calls an upstream.
fn endpoint(upstream: &gateway::config::upstream::Upstream) -> Result<Endpoint> {
    let mut endpoint = Endpoint::from(upstream.url.clone());
    if let Some(pem) = upstream.tls.as_ref().and_then(|tls| tls.ca_pem()) {
        endpoint = endpoint.with_roots(pem).map_err(anyhow::Error::msg).context("tls_ca")?;
    }
    for (name, value) in &upstream.headers {
        if let Ok(value) = value.to_str() {
            endpoint = endpoint.with_header(name.as_str(), value);
        }
    }
    Ok(endpoint)
}

/// Logs the events of a sync.
struct Log;

impl Observer for Log {
    fn on_progress(&self, progress: &Progress) {
        tracing::debug!(height = progress.height, target = progress.target, "index");
    }

    fn on_event(&self, event: &Event) {
        tracing::info!("index: {event}");
    }
}
