//! Produces a chain's block and log events: one task per chain and kind, on the thread of the first
//! subscriber, for all threads.
//!
//! Whenever the served chain changes, the task computes the changes (`policy/trail.rs`) and fetches
//! the blocks or their logs by hash (`blocks.rs`). It retries a failed fetch until it succeeds or
//! the chain drops the block; later events wait.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use wire::block::header_from_block;

use super::blocks::{FETCHES, NotYet};
use super::relay::Order;
use super::stream::{Standing, Stream, Turn};
use super::{Subscriptions, blocks, relay};
use crate::policy::trail::{Apart, Change, Trail};
use crate::state::context::ThreadContext;
use crate::upstream::chain::ChainState;

/// Number of blocks in the cursor, the maximum depth of a reorg that it can follow; the chain's
/// view remembers as many.
const TRAIL_BLOCKS: usize = 256;
/// First and longest pause before a fetch is retried.
const AGAIN_MIN: Duration = Duration::from_millis(10);
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// The origin of a stream.
#[derive(Debug)]
pub(super) enum Origin {
    Heads,
    Logs,
    /// Relayed from an upstream.
    Upstream(Order),
}

/// Starts the source of a stream, at the current head.
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
    let trail = Trail::at(&chain.view.load(), TRAIL_BLOCKS);
    stream.stand(Standing::Open);
    tokio::task::spawn_local(source.follow(trail, tells));
}

/// What the stream sends per block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tells {
    Headers,
    Logs,
}

/// The common part of all sources.
pub(super) struct Source {
    pub(super) subscriptions: Rc<Subscriptions>,
    pub(super) chain: Arc<ChainState>,
    pub(super) stream: Arc<Stream>,
}

impl Source {
    /// Returns the chain's index in the current configuration, or `None` if it was removed.
    pub(super) fn chain_index(&self) -> Option<usize> {
        self.subscriptions.thread.context().snapshot.place_of(&self.chain)
    }

    /// Sends events until the stream has no followers.
    async fn follow(self, mut trail: Option<Trail>, tells: Tells) {
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
            let pause = match self.advance(&cx, chain, &mut trail, tells).await {
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

    /// Sends the events since the cursor's position, for the chain with this index.
    async fn advance(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        trail: &mut Option<Trail>,
        tells: Tells,
    ) -> Result<(), NotYet> {
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

    /// Returns the event of a change, if there is one.
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
            // Header subscriptions do not announce dropped blocks; the replacing header implies
            // them.
            (Tells::Headers, Change::Dropped(_)) => Ok(None),
            (Tells::Logs, _) => {
                let logs =
                    self.subscriptions.feeds.of(&self.chain).blocks.logs(cx, chain, change).await?;
                Ok((!logs.is_empty()).then_some(Turn::Logs(logs)))
            }
        }
    }
}
