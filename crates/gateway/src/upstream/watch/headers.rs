//! Fetches the headers between an upstream's new head and its *branch*, the blocks that are known
//! from this upstream. Several headers are fetched at once from a slow upstream. Otherwise the head
//! would rise faster than the headers arrive, if their latency is longer than the block time.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;
use wire::family::Family;

use crate::policy::heads::{HeadPoll, HeaderRequest};
use crate::upstream::watch::WatchedChain;
use crate::upstream::watch::poller::Poller;

/// Maximum number of headers that one poll fetches. The limit keeps a long branch from delaying the
/// next poll.
const HEADERS_PER_POLL_MAX: usize = 64;
/// Maximum number of headers fetched at once. Each takes a connection over HTTP/1.1. The gateway
/// follows a chain if the latency of a header is below this number of block times.
const HEADERS_IN_FLIGHT_MAX: usize = 16;
/// Headers are fetched one by one, over one connection, if their latency is shorter. Few chains have
/// a shorter block time.
const LATENCY_SLOW: Duration = Duration::from_millis(100);

impl WatchedChain {
    /// Fetches the headers that the tracker requests after a poll. Stops at the first failure: the
    /// next poll requests what is still missing.
    pub(super) async fn fetch_headers(
        &self,
        poller: &Poller,
        family: Family,
        requests: Vec<HeaderRequest>,
    ) {
        let upstream = poller.view_index;
        let mut requests = VecDeque::from(requests);
        let mut in_flight = FuturesUnordered::new();
        let mut sent = 0;
        let began = Instant::now();
        let poll_interval = self.topology().config.chains[self.chain_index.get()].poll_interval;
        loop {
            // Many fast headers are slow too: they must arrive before the next poll.
            let is_slow =
                poller.latency.get() >= LATENCY_SLOW || began.elapsed() >= poll_interval / 2;
            let in_flight_max = if is_slow { HEADERS_IN_FLIGHT_MAX } else { 1 };
            while sent < HEADERS_PER_POLL_MAX
                && in_flight.len() < in_flight_max
                && let Some(HeaderRequest { number, .. }) = requests.pop_front()
            {
                sent += 1;
                let query =
                    async move { (number, poller.query_header(family, Some(number)).await) };
                in_flight.push(query);
            }
            let Some((number, Ok(header))) = in_flight.next().await else { return };
            let now = self.topology().now();
            let step = match header {
                Some(HeadPoll { hash, parent, .. }) => {
                    self.tracker.borrow_mut().record_header(upstream, now, number, hash, parent)
                }
                None => self.tracker.borrow_mut().record_no_header(upstream, now, number),
            };
            let further = self.apply(step).into_iter();
            requests.extend(further.filter(|request| request.upstream == upstream));
        }
    }
}
