//! The oracle: decides which responses were right.
//!
//! A world is the whole simulated chain with all its branches. A view is the part of the world that
//! a node has: all blocks up to a head, which is the newest block of the view.
//!
//! A response is **right** if it equals, byte for byte, the reply of an honest view at some instant
//! of a window. The window begins `staleness` before the call is sent. It ends when the response
//! arrives. The head of the best honest node is `behind_blocks` below the world's head. A view is
//! honest if its head is at most `lag_blocks_max` below the head of this node. [`OracleOptions`]
//! has these three limits. A node that is frozen, lies or lags further has no honest view of the
//! head. Nevertheless, most of its replies about old blocks are right.
//!
//! A gateway may resolve a tag before it reads the block: for example, it may replace `latest` by
//! the head's number. Then the response is right under two conditions. First, the number was the
//! head of an honest view within the window. Second, an honest view at or above this head has the
//! same reply for this number (`oracle/tags.rs`). After a reorg between the two steps, the gateway
//! returns the new block with this number, although that block was never a head.
//!
//! Every other response has one failure:
//!
//! - **stale**: a view below the window has this reply;
//! - **mixed**: its parts come from branches that no view has together;
//! - **backward**: the reply is right, but the client had received a higher head before it sent the
//!   call;
//! - **failed**: an error, although every honest view has a result;
//! - **wrong**: any other response.
//!
//! The new branch of a reorg is always longer than the old one, so a reorg never lowers the number
//! of the head. Therefore a lower head is always a failure.
//!
//! The oracle computes replies with `rpc.rs`, as nodes do. The tests of `block.rs` recompute every
//! hash.

mod evidence;
mod tags;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::keccak256;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::rpc::{self, Reply, View};
use crate::world::World;

/// Number of views below the window that the oracle tries, in order to distinguish a stale response
/// from a wrong one.
pub const STALE_SEARCH_BLOCKS_MAX: u64 = 512;
/// Number of such views for a call with a tag such as `latest`. It is lower than
/// [`STALE_SEARCH_BLOCKS_MAX`], because each view takes more time.
pub const STALE_TAG_BLOCKS_MAX: u64 = 24;
/// Maximum number of clients whose heads are stored. A full table is cleared. After that the oracle
/// may miss a head that moved backward, but it never reports a false failure.
pub const CLIENTS_MAX: usize = 100_000;
/// Maximum number of heads of one client that are stored with their times. One head stands for all
/// older ones.
const HEADS_MAX: usize = 64;

/// The limits of an honest view.
#[derive(Clone, Copy, Debug)]
pub struct OracleOptions {
    /// Maximum age of a view when the call is sent: the gateway's polling interval plus the time
    /// that a block takes to reach the nodes.
    pub staleness: Duration,
    /// Additional age of a finalized or safe block. Gateways poll these blocks less often, because
    /// they advance only once in several minutes on real chains.
    pub finality_staleness: Duration,
    /// Maximum number of blocks by which an honest node's head is below the best honest node's
    /// head.
    pub lag_blocks_max: u64,
    /// Number of blocks between the head of the best honest node and the world's head.
    pub behind_blocks: u64,
}

/// One second of staleness, four additional seconds for a finalized or safe block, two blocks of
/// lag, and a best honest node at the world's head.
impl Default for OracleOptions {
    fn default() -> Self {
        Self {
            staleness: Duration::from_secs(1),
            finality_staleness: Duration::from_secs(4),
            lag_blocks_max: 2,
            behind_blocks: 0,
        }
    }
}

/// A call and its reply.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// The method.
    pub method: &'a str,
    /// The raw `params` member, if there is one.
    pub params: Option<&'a [u8]>,
    /// The reply.
    pub reply: ObservedReply<'a>,
    /// The instant before the call was sent.
    pub sent: Instant,
    /// The instant after the response arrived.
    pub received: Instant,
    /// Identifies the client. The head numbers that a client receives must not decrease.
    pub client: u64,
}

/// A reply as the client received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedReply<'a> {
    /// The raw `result` member.
    Result(&'a [u8]),
    /// An error. Its message differs between node clients.
    Error {
        /// The code.
        code: i64,
    },
}

/// The verdict on an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An honest view has the observed reply.
    Right,
    /// Only a view below the window has the observed reply.
    Stale {
        /// Number of blocks by which the head of this view is below the window; at least 1.
        blocks: u64,
    },
    /// The head in the reply is lower than a head that the client had received before.
    Backward {
        /// Number of the earlier head.
        from: u64,
        /// Number of the lower head.
        to: u64,
    },
    /// The parts come from branches that no view has together.
    Mixed(String),
    /// No view has the observed reply.
    Wrong(String),
    /// The reply is an error, but every honest view has a result. If an honest view has an error
    /// with another code, the verdict is `Unjudged`, because nodes choose their own codes.
    Failed {
        /// The error code.
        code: i64,
    },
    /// The world does not determine the reply.
    Unjudged(&'static str),
}

/// The oracle of one world. Share it in an [`Arc`].
pub struct Oracle {
    world: Arc<World>,
    options: OracleOptions,
    /// The lock is held for a lookup and a few comparisons.
    clients: Mutex<HashMap<u64, ClientHeads, RandomState>>,
}

/// The heads that one client has received.
#[derive(Default)]
struct ClientHeads {
    /// Arrival and number of the last head that was removed from `heads`. It stands for all removed
    /// heads. `None` if no head was removed.
    merged: Option<(Instant, u64)>,
    /// The later heads, each with its arrival. Both the arrivals and the numbers rise.
    heads: VecDeque<(Instant, u64)>,
}

impl Oracle {
    /// Creates the oracle of a world.
    #[must_use]
    pub fn new(world: Arc<World>, options: OracleOptions) -> Self {
        Self { world, options, clients: Mutex::default() }
    }

    /// Judges one exchange. Exchanges may be judged in any order. But the head of an exchange is
    /// compared only with the heads of exchanges that were judged earlier.
    #[must_use]
    pub fn judge(&self, exchange: &Exchange<'_>) -> Verdict {
        match exchange.method {
            "web3_clientVersion" => return Verdict::Unjudged("each node has its own software"),
            "eth_sendRawTransaction" => return judge_sent_transaction(exchange),
            _ => {}
        }
        let (oldest, newest) = self.window(exchange);
        let mut expects_error = false;
        for head in (oldest..=newest).rev() {
            let reply = self.honest_reply(exchange, head);
            expects_error |= matches!(reply, Reply::Error(_));
            if matches_reply(&reply, &exchange.reply) {
                return self.judge_head(exchange, head);
            }
        }
        if let Some(tag_head) = self.find_tag_head(exchange, oldest, newest) {
            return self.judge_head(exchange, tag_head);
        }
        match exchange.reply {
            ObservedReply::Error { .. } if expects_error => {
                Verdict::Unjudged("an honest view has an error too, of another code")
            }
            ObservedReply::Error { code } => Verdict::Failed { code },
            ObservedReply::Result(result) => {
                self.classify_failure(exchange, result, (oldest, newest), expects_error)
            }
        }
    }

    /// Returns the lowest and the highest head with an honest view for an exchange.
    #[must_use]
    pub fn window(&self, exchange: &Exchange<'_>) -> (u64, u64) {
        let oldest = self.oldest_honest_head(exchange, self.options.staleness);
        (oldest, self.world.height_at(exchange.received))
    }

    /// Returns the lowest head of an honest view that is at most `staleness` old when the call is
    /// sent.
    fn oldest_honest_head(&self, exchange: &Exchange<'_>, staleness: Duration) -> u64 {
        let start = exchange.sent.checked_sub(staleness).unwrap_or(exchange.sent);
        let best_head = self.world.height_at(start).saturating_sub(self.options.behind_blocks);
        best_head.saturating_sub(self.options.lag_blocks_max)
    }

    /// Returns the reply of the honest view of a head.
    fn honest_reply(&self, exchange: &Exchange<'_>, head: u64) -> Reply {
        rpc::respond(&self.world, &View::honest(head), exchange.method, exchange.params)
    }

    /// Returns the highest head at which a gateway may have resolved the tags of the call. A head
    /// qualifies if, with the tags resolved at this head, an honest view at or above it has the
    /// observed reply. Returns `None` if no honest head qualifies, or if the call has no tag.
    fn find_tag_head(&self, exchange: &Exchange<'_>, oldest: u64, newest: u64) -> Option<u64> {
        let tagged_call = tags::TaggedCall::read(exchange.method, exchange.params)?;
        let staleness = self.options.staleness + self.options.finality_staleness;
        let oldest_for_finality = self.oldest_honest_head(exchange, staleness).min(oldest);
        let heads_of = |tag: tags::Tag| match tag {
            tags::Tag::Latest => oldest..=newest,
            tags::Tag::Safe | tags::Tag::Finalized => oldest_for_finality..=newest,
        };
        // Returns the lowest head whose view has the tag's block, if the tag was resolved at
        // `head`. A safe or finalized block counts as part of every view.
        let lowest_view = |tag: tags::Tag, head: u64| match tag {
            tags::Tag::Latest => head,
            tags::Tag::Safe | tags::Tag::Finalized => oldest,
        };
        for first_head in heads_of(tagged_call.first_tag()).rev() {
            // The two tags of one call may be resolved at two instants.
            let second_heads = tagged_call.second_tag().map_or(first_head..=first_head, heads_of);
            for second_head in second_heads.rev() {
                let params = tagged_call.resolve(&self.world, first_head, second_head);
                let lowest_for_second =
                    tagged_call.second_tag().map_or(oldest, |tag| lowest_view(tag, second_head));
                let lowest =
                    lowest_view(tagged_call.first_tag(), first_head).max(lowest_for_second);
                let has_match = (lowest..=newest).any(|head| {
                    let view = View::honest(head);
                    let reply = rpc::respond(&self.world, &view, exchange.method, Some(&params));
                    matches_reply(&reply, &exchange.reply)
                });
                if has_match {
                    return Some(first_head.max(second_head));
                }
            }
        }
        None
    }

    /// Judges a reply that matches the view of `head`. The verdict is `Backward` if the client has
    /// received a higher head before, and `Right` otherwise.
    fn judge_head(&self, exchange: &Exchange<'_>, head: u64) -> Verdict {
        if !contains_head_number(exchange) {
            return Verdict::Right;
        }
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&exchange.client) {
            clients.clear();
        }
        let client_heads = clients.entry(exchange.client).or_default();
        let earlier_head = client_heads.highest_before(exchange.sent);
        client_heads.add(exchange.received, head);
        match earlier_head {
            Some(earlier_head) if earlier_head > head => {
                Verdict::Backward { from: earlier_head, to: head }
            }
            _ => Verdict::Right,
        }
    }

    /// Determines the kind of failure of a result that no honest view has.
    fn classify_failure(
        &self,
        exchange: &Exchange<'_>,
        result: &[u8],
        (oldest, newest): (u64, u64),
        expects_error: bool,
    ) -> Verdict {
        let lowest = oldest.saturating_sub(STALE_SEARCH_BLOCKS_MAX);
        for head in (lowest..oldest).rev() {
            if matches_reply(&self.honest_reply(exchange, head), &exchange.reply) {
                return Verdict::Stale { blocks: oldest - head };
            }
        }
        let lowest = oldest.saturating_sub(STALE_TAG_BLOCKS_MAX);
        if let Some(tag_head) = self.find_tag_head(exchange, lowest, newest) {
            // Of two tags, only one may be stale. `tag_head`, the higher head, may then be in the
            // window, so the result is at least 1.
            return Verdict::Stale { blocks: oldest.saturating_sub(tag_head).max(1) };
        }
        if exchange.method.ends_with("_getTransactionByHash")
            && evidence::hash_argument(exchange.params)
                .is_some_and(|hash| self.world.pool_get(&hash).is_some())
        {
            return Verdict::Unjudged("the pool is not part of the chain");
        }
        if let Some(verdict) = evidence::examine(&self.world, result) {
            return verdict;
        }
        if expects_error {
            return Verdict::Wrong("a result where an honest view has an error".to_owned());
        }
        Verdict::Wrong(format!("differs from every view with head {oldest} to {newest}"))
    }
}

impl ClientHeads {
    /// Returns the highest head that the client had received by an instant. Returns `None` if the
    /// client had received no head.
    fn highest_before(&self, instant: Instant) -> Option<u64> {
        let merged = self.merged.filter(|(received, _)| *received <= instant);
        let last = self.heads.iter().rev().find(|(received, _)| *received <= instant);
        last.or(merged.as_ref()).map(|(_, head)| *head)
    }

    /// Stores a head if all heads that arrived earlier are lower, and removes later heads that are
    /// not higher. So the list rises both by arrival and by number.
    fn add(&mut self, received: Instant, head: u64) {
        let index = self.heads.partition_point(|(earlier, _)| *earlier <= received);
        let earlier_head = index.checked_sub(1).map(|previous| self.heads[previous].1);
        let earlier_head = earlier_head.or(self.merged.map(|(_, head)| head));
        if earlier_head.is_some_and(|earlier_head| earlier_head >= head) {
            return;
        }
        self.heads.insert(index, (received, head));
        while self.heads.get(index + 1).is_some_and(|(_, later_head)| *later_head <= head) {
            self.heads.remove(index + 1);
        }
        if self.heads.len() > HEADS_MAX {
            self.merged = self.heads.pop_front();
        }
    }
}

/// Returns true if an observed reply equals a computed one. Errors are compared by code.
fn matches_reply(reply: &Reply, observed: &ObservedReply<'_>) -> bool {
    match (reply, observed) {
        (Reply::Result(expected), ObservedReply::Result(actual)) => expected == actual,
        (Reply::Error(expected), ObservedReply::Error { code }) => expected.code == *code,
        _ => false,
    }
}

/// Returns true if the result contains the head's number.
fn contains_head_number(exchange: &Exchange<'_>) -> bool {
    if !matches!(exchange.reply, ObservedReply::Result(_)) {
        return false;
    }
    match exchange.method.split_once('_') {
        Some((_, "blockNumber" | "latestHeader")) => true,
        Some((_, "getBlockByNumber")) => evidence::requests_latest(exchange.params),
        _ => false,
    }
}

/// Judges the reply to a sent transaction. The right result is the hash of the transaction. A
/// server error is not judged, because the transaction may be in the pool already.
fn judge_sent_transaction(exchange: &Exchange<'_>) -> Verdict {
    let result = match exchange.reply {
        ObservedReply::Error { code: rpc::wording::SERVER_ERROR } => {
            return Verdict::Unjudged("the pool is not part of the chain");
        }
        ObservedReply::Error { code } => return Verdict::Failed { code },
        ObservedReply::Result(result) => result,
    };
    let Some(raw) = evidence::bytes_argument(exchange.params) else {
        return Verdict::Wrong("a hash for bytes that are not a transaction".to_owned());
    };
    let expected = format!("\"{:#x}\"", keccak256(raw));
    if expected.as_bytes() == result {
        return Verdict::Right;
    }
    Verdict::Wrong(format!("the transaction's hash is {expected}"))
}

#[cfg(test)]
mod tests;
