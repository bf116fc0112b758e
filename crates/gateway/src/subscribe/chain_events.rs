//! Produces the block and log events of a chain. Each chain has one task per kind of event. The
//! task runs on the first subscriber's thread and serves the subscribers of all threads.
//!
//! The *served chain* is the branch of blocks that ends at the *served head*, the newest block that
//! clients can read. The chain's view (`policy/heads/view.rs`) is an immutable snapshot of the
//! newest blocks of the served chain. Each change publishes a new view.
//!
//! The task has a *cursor*: the newest blocks that it has already reported
//! (`policy/chain_cursor.rs`). Whenever the served chain changes, the task compares the view with
//! the cursor and finds the added and dropped blocks. It fetches the blocks or their logs by hash
//! (`subscribe/blocks.rs`). A failed fetch is retried until it succeeds or the chain drops the
//! block. Later events wait until then.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use wire::block::header_from_block;

use super::blocks;
use super::blocks::{BLOCK_FETCHES_MAX, Received, Unavailable};
use super::source::Source;
use super::stream::{Event, OpenState};
use crate::policy::chain_cursor::{ChainCursor, Change, NoCommonBlock};
use crate::state::context::ThreadContext;

/// Number of blocks in the cursor, as many as in the chain's view. The cursor cannot follow a
/// deeper reorg.
const CURSOR_BLOCKS: usize = 256;
/// First pause before a fetch is retried. Each further pause is twice as long.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause before a fetch is retried.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The content of the events that a source produces for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventContent {
    Headers,
    Logs,
}

/// Starts to report the changes of the chain after the current head.
pub(super) fn start(source: Source, content: EventContent) {
    let cursor = ChainCursor::at_head(&source.chain.view.load(), CURSOR_BLOCKS);
    source.stream.set_open_state(OpenState::Open);
    tokio::task::spawn_local(source.follow(cursor, content));
}

impl Source {
    /// Follows the served chain and sends events until the stream has no followers.
    async fn follow(self, mut cursor: Option<ChainCursor>, content: EventContent) {
        let mut view_changes = self.chain.view_changes();
        let mut received = Vec::new();
        let mut retry_pause = RETRY_PAUSE_MIN;
        while !self.stream.end_if_unfollowed() {
            view_changes.borrow_and_update();
            let cx = self.context.get();
            let Some(chain) = cx.snapshot.chain_index(&self.chain) else {
                self.stream.send(Event::Broken);
                self.stream.end();
                return;
            };
            let advanced = self.advance(&cx, chain, &mut cursor, &mut received, content).await;
            let has_succeeded = advanced.is_ok();
            let next_request = match content {
                EventContent::Headers => None,
                EventContent::Logs => self.send_late_logs(&cx, chain, &mut received).await,
            };
            drop(cx);
            tokio::select! {
                changed = view_changes.changed() => if changed.is_err() { return },
                () = self.stream.wait_until_unfollowed() => {}
                () = tokio::time::sleep(retry_pause), if !has_succeeded => {}
                () = tokio::time::sleep(next_request.unwrap_or_default()), if next_request.is_some() => {}
            }
            retry_pause = if has_succeeded {
                RETRY_PAUSE_MIN
            } else {
                (retry_pause * 2).min(RETRY_PAUSE_MAX)
            };
        }
    }

    /// Requests logs again that may have been incomplete, and sends those that came late. Returns the
    /// time until the next request; `None` if no block needs one.
    async fn send_late_logs(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        received: &mut Vec<Received>,
    ) -> Option<Duration> {
        let next_request = self.feed.blocks.request_again(cx, chain).await;
        let late = self.feed.blocks.take_late(received);
        if !late.is_empty() {
            self.stream.send(Event::Logs(Arc::new(late)));
        }
        next_request
    }

    /// Moves the cursor to the served head, and sends an event for each change on the way. `chain`
    /// is the index of the chain. `received` lists the logs that may get more. Fails if a block or
    /// its logs are not available yet. The cursor then stays before the change to this block.
    async fn advance(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        cursor: &mut Option<ChainCursor>,
        received: &mut Vec<Received>,
        content: EventContent,
    ) -> Result<(), Unavailable> {
        let view = self.chain.view.load_full();
        let Some(current) = cursor else {
            *cursor = ChainCursor::at_head(&view, CURSOR_BLOCKS);
            return Ok(());
        };
        current.extend_down(&view);
        let changes = match current.find_changes(&view) {
            Ok(changes) => changes,
            Err(NoCommonBlock) => {
                tracing::warn!(chain = &*self.chain.name, "subscribers have missed blocks");
                self.stream.send(Event::Broken);
                *cursor = ChainCursor::at_head(&view, CURSOR_BLOCKS);
                return Ok(());
            }
        };
        drop(view);
        let events = changes.into_iter().map(async |change| {
            let event = self.build_event(cx, chain, change, content).await;
            (change, event)
        });
        let mut events =
            std::pin::pin!(futures_util::stream::iter(events).buffered(BLOCK_FETCHES_MAX));
        while let Some((change, event)) = events.next().await {
            let event = event?;
            current.follow(change);
            let count = match &event {
                Some(Event::Logs(logs)) => logs.len(),
                _ => 0,
            };
            if content == EventContent::Logs {
                self.feed.blocks.track(received, change, count);
            }
            if let Some(event) = event {
                self.stream.send(event);
            }
        }
        Ok(())
    }

    /// Returns the event of a change; `None` if subscribers are not notified of the change.
    async fn build_event(
        &self,
        cx: &Rc<ThreadContext>,
        chain: usize,
        change: Change,
        content: EventContent,
    ) -> Result<Option<Event>, Unavailable> {
        match (content, change) {
            (EventContent::Headers, Change::Added(head)) => {
                let block = blocks::fetch_block(cx, chain, head).await?;
                Ok(Some(Event::All(header_from_block(&block).into())))
            }
            // A header subscription does not report dropped blocks. The parent hash in the next
            // header shows the reorg.
            (EventContent::Headers, Change::Dropped(_)) => Ok(None),
            (EventContent::Logs, _) => {
                let logs = self.feed.blocks.logs_of(cx, chain, change).await?;
                Ok((!logs.is_empty()).then_some(Event::Logs(logs)))
            }
        }
    }
}
