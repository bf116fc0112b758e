//! Early polls after news of the head: a call's response has shown a block above the served head, so
//! the upstream may have a newer block than its last poll has found (`resolve/causal.rs`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::upstream::chain::{ChainState, HeadNews};
use crate::upstream::watch::{NOTIFIED_POLL_INTERVAL_MIN, WatchedChain};

/// The news of the head, as one poller receives them.
pub(super) struct News {
    chain: Arc<ChainState>,
    /// Height of the upstream's head at its last poll that has found a new head.
    polled_height: u64,
    /// Shortest interval between two polls because of news. It doubles with each poll that finds
    /// no new head, so false news cause few polls.
    interval_min: Duration,
}

impl News {
    pub(super) fn new(watched: &WatchedChain) -> News {
        let chain = Arc::clone(&watched.state);
        News { chain, polled_height: 0, interval_min: NOTIFIED_POLL_INTERVAL_MIN }
    }

    /// Records that a poll has found a new head.
    pub(super) fn record_new_head(&mut self, height: u64) {
        self.polled_height = height;
        self.interval_min = NOTIFIED_POLL_INTERVAL_MIN;
    }

    /// Waits while no held response shows a block above the upstream's head.
    pub(super) async fn wait(&self) {
        loop {
            // Created before the check, so that no news are missed.
            let reported = self.chain.news_reported.notified();
            let is_ahead =
                |news: HeadNews| news.height > self.polled_height && Instant::now() < news.until;
            if self.chain.head_news().is_some_and(is_ahead) {
                return;
            }
            reported.await;
        }
    }

    /// Returns the interval between the last poll and a poll because of news. `poll_interval` is
    /// the longest interval.
    pub(super) fn next_interval(&mut self, poll_interval: Duration) -> Duration {
        let interval = self.interval_min.min(poll_interval);
        self.interval_min = (self.interval_min * 2).min(poll_interval);
        interval
    }
}
