//! Finds out what is to be told of a chain's blocks: one task per chain and kind, on the thread of who
//! asked first, for all threads.
//!
//! With every change of the served chain it works out what has happened since (`rules/trail.rs`) and
//! fetches the blocks or their logs by hash. What cannot be fetched is asked for again until it is
//! there, or until the chain has dropped it; nothing behind it is told before.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use wire::block::{hash_of_value, header_of};
use wire::json::walk;
use wire::logs::{LogKeys, removed};

use super::relay::{self, Order};
use super::stream::{Logs, Standing, Stream, Turn};
use crate::front::answer::Payload;
use crate::path::{self, Inquiry};
use crate::rules::heads::Head;
use crate::rules::trail::{Apart, Change, Trail};
use crate::shared::ChainShared;
use crate::thread::Thread;

/// Blocks that are remembered: reorgs as deep are told. As many as the chain's view remembers.
const TRAIL_BLOCKS: usize = 256;
/// Blocks that are fetched at a time.
const FETCHES: usize = 8;
/// First and longest wait before something is asked for again.
const AGAIN_MIN: Duration = Duration::from_millis(10);
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// How often a node may say that a block has no logs although its header says that it has some, before
/// it is believed: not every chain fills its bloom filters as Ethereum does.
const EMPTY_MAX: u32 = 5;
/// Blocks whose logs are kept, to be told again should the block be dropped: what two epochs hold.
const KEPT_BLOCKS: usize = 64;
/// Bytes of these logs.
const KEPT_BYTES: usize = 64 << 20;

/// Where a stream comes from.
#[derive(Debug)]
pub(super) enum Origin {
    Heads,
    Logs,
    /// A node is asked for it.
    Node(Order),
}

/// Starts what finds out the stream's turns, from this moment on.
pub(super) fn start(
    thread: &Rc<Thread>,
    chain: &Arc<ChainShared>,
    stream: &Arc<Stream>,
    origin: Origin,
) {
    let source =
        Source { thread: Rc::clone(thread), chain: Arc::clone(chain), stream: Arc::clone(stream) };
    let trail = || Trail::at(&chain.view.load(), TRAIL_BLOCKS);
    match origin {
        Origin::Heads => {
            stream.stand(Standing::Open);
            tokio::task::spawn_local(source.follow(trail(), Heads));
        }
        Origin::Logs => {
            stream.stand(Standing::Open);
            tokio::task::spawn_local(source.follow(trail(), Kept::default()));
        }
        Origin::Node(order) => {
            tokio::task::spawn_local(relay::run(source, order));
        }
    }
}

/// What all sources have.
pub(super) struct Source {
    pub(super) thread: Rc<Thread>,
    pub(super) chain: Arc<ChainShared>,
    pub(super) stream: Arc<Stream>,
}

/// Makes turns of changes.
trait Teller {
    /// The turn, if there is anything to tell.
    ///
    /// # Errors
    /// [`NotYet`] if it could not be found out.
    async fn turn(&self, source: &Source, change: Change) -> Result<Option<Turn>, NotYet>;
}

/// Nobody could say it now.
struct NotYet;

impl Source {
    /// The chain's index in the configuration that holds now; none if it is served no more.
    pub(super) fn chain_index(&self) -> Option<usize> {
        let worker = self.thread.worker();
        worker.shared.chains.iter().position(|own| Arc::ptr_eq(own, &self.chain))
    }

    /// Tells what happens to the chain until nobody wants to hear it.
    async fn follow(self, mut trail: Option<Trail>, teller: impl Teller) {
        let mut turned = self.chain.turned();
        let mut again = AGAIN_MIN;
        while !self.stream.end_if_left() {
            turned.borrow_and_update();
            if self.chain_index().is_none() {
                self.stream.tell(Turn::Broken);
                self.stream.end();
                return;
            }
            let pause = match self.advance(&mut trail, &teller).await {
                Ok(()) => {
                    again = AGAIN_MIN;
                    None
                }
                Err(NotYet) => {
                    let pause = again;
                    again = (again * 2).min(AGAIN_MAX);
                    Some(pause)
                }
            };
            let wait = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = turned.changed() => if changed.is_err() { return },
                () = self.stream.left() => {}
                () = wait => {}
            }
        }
    }

    /// Tells what has happened since the end of the trail.
    async fn advance(&self, trail: &mut Option<Trail>, teller: &impl Teller) -> Result<(), NotYet> {
        let view = self.chain.view.load_full();
        let Some(known) = trail else {
            *trail = Trail::at(&view, TRAIL_BLOCKS);
            return Ok(());
        };
        known.learn(&view);
        let changes = match known.changes(&view) {
            Ok(changes) => changes,
            Err(Apart) => {
                tracing::warn!(chain = &*self.chain.name, "subscribers have missed blocks");
                self.stream.tell(Turn::Broken);
                *trail = Trail::at(&view, TRAIL_BLOCKS);
                return Ok(());
            }
        };
        drop(view);
        let turns =
            changes.into_iter().map(async |change| (change, teller.turn(self, change).await));
        let mut turns = std::pin::pin!(futures_util::stream::iter(turns).buffered(FETCHES));
        while let Some((change, turn)) = turns.next().await {
            let turn = turn?;
            known.follow(change);
            if let Some(turn) = turn {
                self.stream.tell(turn);
            }
        }
        Ok(())
    }

    /// What the chain's nodes say of a block.
    async fn ask(
        &self,
        method: &'static str,
        params: String,
        head: Head,
        fresh: bool,
    ) -> Option<Bytes> {
        let chain = self.chain_index()?;
        let inquiry =
            Inquiry { chain, method, params: params.as_bytes(), height: head.number, fresh };
        match path::inquire(&self.thread.worker(), &inquiry).await {
            Payload::Result(result) if &*result != b"null" => Some(result),
            Payload::Result(_) | Payload::Error(_) | Payload::Failed(_) => None,
        }
    }

    async fn block(&self, head: Head) -> Option<Bytes> {
        let params = format!("[\"{}\",false]", hex(&head.hash));
        let block = self.ask("eth_getBlockByHash", params, head, false).await?;
        let hash = walk::member(&block, "hash").and_then(hash_of_value);
        (hash == Some(head.hash)).then_some(block)
    }
}

fn hex(hash: &[u8; 32]) -> alloy_primitives::B256 {
    alloy_primitives::B256::new(*hash)
}

/// Tells the header of each new block.
struct Heads;

impl Teller for Heads {
    async fn turn(&self, source: &Source, change: Change) -> Result<Option<Turn>, NotYet> {
        // That a block was dropped is told by the one in its place.
        let Change::Added(head) = change else { return Ok(None) };
        let block = source.block(head).await.ok_or(NotYet)?;
        Ok(Some(Turn::All(header_of(&block).into())))
    }
}

/// Tells the logs of each new block, and those of dropped ones once more as removed.
#[derive(Default)]
struct Kept {
    /// The newest last.
    blocks: RefCell<VecDeque<([u8; 32], Arc<Logs>)>>,
    bytes: Cell<usize>,
    /// Blocks without logs that should have some, and how often that was heard; those that are asked
    /// for at a time.
    doubted: RefCell<VecDeque<([u8; 32], u32)>>,
}

impl Teller for Kept {
    async fn turn(&self, source: &Source, change: Change) -> Result<Option<Turn>, NotYet> {
        let logs = match change {
            Change::Added(head) => match self.kept(head.hash) {
                Some(logs) => logs,
                None => {
                    let logs = Arc::new(self.fetch(source, head).await?);
                    self.keep(head.hash, &logs);
                    logs
                }
            },
            Change::Dropped(head) => {
                let logs = match self.kept(head.hash) {
                    Some(logs) => logs,
                    // From before anybody wanted to know; nodes may have forgotten the block.
                    None => Arc::new(self.fetch(source, head).await.unwrap_or_default()),
                };
                let marked = logs.iter().map(|(keys, raw)| (keys.clone(), removed(raw).into()));
                Arc::new(marked.collect())
            }
        };
        Ok((!logs.is_empty()).then_some(Turn::Logs(logs)))
    }
}

impl Kept {
    async fn fetch(&self, source: &Source, head: Head) -> Result<Logs, NotYet> {
        let heard = self.doubts_of(head.hash);
        let params = format!("[{{\"blockHash\":\"{}\"}}]", hex(&head.hash));
        let raw = source.ask("eth_getLogs", params, head, heard > 0).await.ok_or(NotYet)?;
        let read = |log: &[u8]| {
            let keys = LogKeys::read(log).filter(|keys| keys.block_hash == head.hash)?;
            Some((keys, raw.slice_ref(log)))
        };
        let logs: Option<Logs> = walk::elements(&raw).map(read).collect();
        let logs = logs.filter(|_| raw.first() == Some(&b'[')).ok_or(NotYet)?;
        // A node that has not indexed its newest block yet says that it has no logs.
        if logs.is_empty() && heard < EMPTY_MAX {
            let block = source.block(head).await.ok_or(NotYet)?;
            if has_bloom(&block) {
                self.doubt(head.hash, heard + 1);
                return Err(NotYet);
            }
        }
        Ok(logs)
    }

    fn doubts_of(&self, hash: [u8; 32]) -> u32 {
        let doubted = self.doubted.borrow();
        doubted.iter().find(|(own, _)| *own == hash).map_or(0, |(_, heard)| *heard)
    }

    fn doubt(&self, hash: [u8; 32], heard: u32) {
        let mut doubted = self.doubted.borrow_mut();
        doubted.retain(|(own, _)| *own != hash);
        doubted.push_back((hash, heard));
        if doubted.len() > FETCHES {
            doubted.pop_front();
        }
    }

    fn keep(&self, hash: [u8; 32], logs: &Arc<Logs>) {
        let mut blocks = self.blocks.borrow_mut();
        self.bytes.set(self.bytes.get() + bytes_of(logs));
        blocks.push_back((hash, Arc::clone(logs)));
        while blocks.len() > KEPT_BLOCKS || self.bytes.get() > KEPT_BYTES {
            let Some((_, oldest)) = blocks.pop_front() else { return };
            self.bytes.set(self.bytes.get() - bytes_of(&oldest));
        }
    }

    fn kept(&self, hash: [u8; 32]) -> Option<Arc<Logs>> {
        let blocks = self.blocks.borrow();
        blocks.iter().rfind(|(own, _)| *own == hash).map(|(_, logs)| Arc::clone(logs))
    }
}

fn bytes_of(logs: &Logs) -> usize {
    logs.iter().map(|(_, raw)| raw.len()).sum()
}

/// Whether a block says of itself that it has logs.
fn has_bloom(block: &[u8]) -> bool {
    let bloom = walk::member(block, "logsBloom").unwrap_or_default();
    bloom.iter().any(|byte| !matches!(byte, b'"' | b'0' | b'x'))
}
