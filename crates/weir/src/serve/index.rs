//! The index as a tier of the gateway's cache: threads that read it, and one that syncs it.
//!
//! The gateway knows only that somebody may have answers; the index knows nothing of gateways. Here
//! they meet.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use gateway::config::Config;
use gateway::config::url::Transport;
use gateway::index::{Found, Index, Question};
use index::nodes::{self, NodeUrl};
use index::reader::{ReadError, Reader};
use index::rules::range::End;
use index::search::Bounds;
use index::serve::{self, METHODS, Scope};
use index::store::{Settings, Store, StoreError, What};
use index::sync::{Note, Options, Progress, SyncError, Watch};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use wire::method::FamilyName;

/// Questions that may wait for a reader; more are left to the nodes.
const WAITING_MAX: usize = 1024;
/// Bytes of the logs of one answer: as many as the gateway takes from a node.
const LOGS_BYTES_MAX: u64 = 64 << 20;
/// Wait before a sync that ended in an error is begun anew.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long a waiting thread sleeps before it looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

type Job = (Question, oneshot::Sender<Found>);

/// Who reads the file, in the gateway's terms.
pub(super) struct Readers {
    chain: String,
    jobs: SyncSender<Job>,
}

impl Index for Readers {
    fn chain(&self) -> &str {
        &self.chain
    }

    fn serves(&self, method: &str) -> bool {
        METHODS.contains(&method)
    }

    fn ask(&self, question: Question, answer: oneshot::Sender<Found>) {
        match self.jobs.try_send((question, answer)) {
            // The sender is dropped, which says that there is nothing.
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

/// The thread that syncs, until it is dropped.
pub(super) struct Follower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has told what went wrong itself.
            let _ended = thread.join();
        }
    }
}

/// Starts what the configuration asks for; none without an index.
pub(super) fn start(config: &Config) -> Result<Option<(Arc<Readers>, Option<Follower>)>> {
    let Some(own) = &config.index else { return Ok(None) };
    let settings = Settings { page_cache: own.page_cache as u64, mmap: 0 };
    if !own.follow {
        // What is wrong with the file is told now, not with the first call.
        Store::open_to_read(&own.db, settings).context("index")?;
    }
    let (jobs, queue) = sync_channel(WAITING_MAX);
    let queue = Arc::new(Mutex::new(queue));
    for at in 0..own.readers {
        let (queue, path, logs) = (Arc::clone(&queue), own.db.clone(), own.logs_max);
        let read = move || read(&queue, &path, settings, logs);
        std::thread::Builder::new().name(format!("weir-index-{at}")).spawn(read)?;
    }
    let chain = config.chains[own.chain].name.to_string();
    let follower = own.follow.then(|| follow(config, settings)).transpose()?;
    Ok(Some((Arc::new(Readers { chain, jobs }), follower)))
}

/// Answers questions until nobody can ask any more.
fn read(queue: &Mutex<Receiver<Job>>, path: &Path, settings: Settings, logs_max: u64) {
    let mut reader: Option<Reader> = None;
    let mut told = false;
    loop {
        let next = queue.lock().recv();
        let Ok((question, answer)) = next else { return };
        if answer.is_closed() {
            continue;
        }
        if reader.is_none() {
            // While it is being made by who syncs it, there is nothing to be read.
            reader = Reader::open(path, settings).ok().flatten();
        }
        let found = match reader.as_mut().map(|reader| look(reader, &question, logs_max)) {
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::error!(%error, "the index cannot be read; calls go to the nodes");
                }
                reader = None;
                continue;
            }
            None => Found::Nothing,
        };
        // Who asked may have left.
        let _sent = answer.send(found);
    }
}

fn look(reader: &mut Reader, question: &Question, logs_max: u64) -> Result<Found, ReadError> {
    let scope = Scope {
        finalized: question.finalized(),
        canonical: &|number, hash| question.is_canonical(number, hash),
        bounds: Bounds { logs: logs_max, bytes: LOGS_BYTES_MAX },
    };
    Ok(match reader.answer(&question.method, &question.params, &scope)? {
        serve::Found::Whole(result) => Found::Whole(result.into()),
        serve::Found::Part { from, to, listed } => {
            let array = [b"[", listed.as_slice(), b"]"].concat();
            Found::Part { from, to, listed: array.into() }
        }
        serve::Found::Nothing => Found::Nothing,
    })
}

/// Syncs the file from the nodes of its chain, for as long as the gateway serves.
fn follow(config: &Config, settings: Settings) -> Result<Follower> {
    let own = config.index.as_ref().context("there is no index")?;
    let own_nodes = config.nodes.iter().filter(|node| node.chain == own.chain);
    let nodes: Vec<Arc<NodeUrl>> = own_nodes.map(|node| Arc::new(address(node))).collect();
    let harmony = config.chains[own.chain].family == FamilyName::Harmony;
    // Harmony hashes its blocks in a way of its own, which nothing here can follow.
    let verify = if harmony { "off" } else { own.verify };
    let options = Options {
        nodes,
        start: None,
        end: End::Follow,
        what: What { blocks: true, receipts: true, logs: true, hmyv2: harmony },
        verify: verify.parse().context("index.verify")?,
        concurrency: FOLLOW_CONCURRENCY,
        batch_max: FOLLOW_BATCH_MAX,
        settings,
        patience: None,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (told, path) = (Arc::clone(&stop), own.db.clone());
    let run = move || {
        while !told.load(Ordering::Relaxed) {
            let ended = Store::open(&path, settings).map_err(SyncError::from).and_then(|store| {
                // A file goes on with what it was made for.
                let what = store.facts()?.map_or(options.what, |facts| facts.what);
                let options = Options { what, ..options.clone() };
                index::sync::sync(store, &options, &Log, &told)
            });
            match ended {
                Ok(_) => {}
                // A process whose place we take still has it.
                Err(SyncError::Store(StoreError::Taken(_))) => {}
                Err(error) => tracing::error!(%error, "the index does not follow"),
            }
            let waits = AGAIN_AFTER.as_millis() / LOOK_EVERY.as_millis();
            for _ in 0..waits {
                if told.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::park_timeout(LOOK_EVERY);
            }
        }
    };
    let thread = std::thread::Builder::new().name("weir-index-sync".to_owned()).spawn(run)?;
    Ok(Follower { stop, thread: Some(thread) })
}

/// Requests to nodes under way at a time while the gateway follows: clients' calls go first.
const FOLLOW_CONCURRENCY: usize = 4;
/// Blocks in one request while the gateway follows.
const FOLLOW_BATCH_MAX: u64 = 50;

/// Where a node is, for the index: the address that takes many calls at a time if it has one.
fn address(node: &gateway::config::Node) -> NodeUrl {
    let url = &node.url;
    let transport = match url.transport() {
        Transport::Http => nodes::Transport::Http,
        Transport::WebSocket => nodes::Transport::WebSocket,
        Transport::Ipc => nodes::Transport::Ipc,
    };
    let mut address = NodeUrl::of_parts(transport, url.tls(), url.host(), url.port(), url.target());
    if let Some(value) = url.authorization().and_then(|value| value.to_str().ok()) {
        address = address.with_header("authorization", value);
    }
    for (name, value) in &node.headers {
        if let Ok(value) = value.to_str() {
            address = address.with_header(name.as_str(), value);
        }
    }
    address
}

/// What a sync tells goes to the log.
struct Log;

impl Watch for Log {
    fn progress(&self, progress: &Progress) {
        tracing::debug!(height = progress.height, target = progress.target, "index");
    }

    fn note(&self, note: &Note) {
        tracing::info!("index: {note}");
    }
}
