//! Finds out what is to be told of a chain's blocks: one task per chain and kind, on the thread of
//! who asked first, for all threads.
//!
//! With every change of the served chain it works out what has happened since (`policy/trail.rs`)
//! and fetches the blocks or their logs by hash (`blocks.rs`). What cannot be fetched is asked for
//! again until it is there, or until the chain has dropped it; nothing behind it is told before.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use wire::block::header_from_block;

use super::blocks::{FETCHES, NotYet};
use super::relay::Order;
use super::stream::{Standing, Stream, Turn};
use super::{Subscriptions, blocks, relay};
use crate::policy::trail::{ChainCursor, Change, NoCommonBlock};
use crate::state::context::ThreadContext;
use crate::upstream::chain::ChainState;

/// Blocks that are remembered: reorgs as deep are told. As many as the chain's view remembers.
const TRAIL_BLOCKS: usize = 256;
/// First and longest wait before something is asked for again.
const AGAIN_MIN: Duration = Duration::from_millis(10);
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// Where a stream comes from.
#[derive(Debug)]
pub(super) enum Origin {
    Heads,
    Logs,
    /// An upstream is asked for it.
    Upstream(Order),
}

/// Starts what finds out the stream's turns, from this moment on.
pub(super) fn start(
    subscriptions: &Rc<Subscriptions>,
    chain: &Arc<ChainState>,
    stream: &Arc<Stream>,
    origin: Origin,
) {
    let source = Source {
        subscriptions: Rc::clone(subscriptions),
        chain: Arc::clone(chain),
        stream: Arc::clone(stream),
    };
    let tells = match origin {
        Origin::Heads => Tells::Headers,
        Origin::Logs => Tells::Logs,
        Origin::Upstream(order) => {
            tokio::task::spawn_local(relay::run(source, order));
            return;
        }
    };
    let cursor = ChainCursor::at(&chain.view.load(), TRAIL_BLOCKS);
    stream.stand(Standing::Open);
    tokio::task::spawn_local(source.follow(cursor, tells));
}

/// What is told of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tells {
    Headers,
    Logs,
}

/// What all sources have.
pub(super) struct Source {
    pub(super) subscriptions: Rc<Subscriptions>,
    pub(super) chain: Arc<ChainState>,
    pub(super) stream: Arc<Stream>,
}

impl Source {
    /// The chain's index in the configuration that holds now; none if it is served no more.
    pub(super) fn chain_index(&self) -> Option<usize> {
        self.subscriptions.thread.context().snapshot.place_of(&self.chain)
    }

    /// Tells what happens to the chain until nobody wants to hear it.
    async fn follow(self, mut cursor: Option<ChainCursor>, tells: Tells) {
        let mut turned = self.chain.turned();
        let mut again = AGAIN_MIN;
        while !self.stream.end_if_left() {
            turned.borrow_and_update();
            let cx = self.subscriptions.thread.context();
            let Some(chain) = cx.snapshot.place_of(&self.chain) else {
                self.stream.tell(Turn::Broken);
                self.stream.end();
                return;
            };
            let pause = match self.advance(&cx, chain, &mut cursor, tells).await {
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
            drop(cx);
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

    /// Tells what has happened since the end of the trail, of the chain at this place of the
    /// context's configuration.
    async fn advance(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        cursor: &mut Option<ChainCursor>,
        tells: Tells,
    ) -> Result<(), NotYet> {
        let view = self.chain.view.load_full();
        let Some(known) = cursor else {
            *cursor = ChainCursor::at(&view, TRAIL_BLOCKS);
            return Ok(());
        };
        known.extend_down(&view);
        let changes = match known.changes(&view) {
            Ok(changes) => changes,
            Err(NoCommonBlock) => {
                tracing::warn!(chain = &*self.chain.name, "subscribers have missed blocks");
                self.stream.tell(Turn::Broken);
                *cursor = ChainCursor::at(&view, TRAIL_BLOCKS);
                return Ok(());
            }
        };
        drop(view);
        let turns = changes.into_iter().map(async |change| {
            let turn = self.turn(cx, chain, change, tells).await;
            (change, turn)
        });
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

    /// What there is to be told of a change, if anything.
    async fn turn(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        change: Change,
        tells: Tells,
    ) -> Result<Option<Turn>, NotYet> {
        match (tells, change) {
            (Tells::Headers, Change::Added(head)) => {
                let block = blocks::block(cx, chain, head).await?;
                Ok(Some(Turn::All(header_from_block(&block).into())))
            }
            // That a block was dropped is told by the one in its place.
            (Tells::Headers, Change::Dropped(_)) => Ok(None),
            (Tells::Logs, _) => {
                let logs =
                    self.subscriptions.feeds.of(&self.chain).blocks.logs(cx, chain, change).await?;
                Ok((!logs.is_empty()).then_some(Turn::Logs(logs)))
            }
        }
    }
}
