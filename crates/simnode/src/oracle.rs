//! The oracle: decides which responses were right.
//!
//! A response is **right** if it equals, byte for byte, the reply of an honest view at some instant
//! of a window. The window begins at the sending of the call less the allowed staleness. It ends at
//! the arrival of the response. An honest view is the chain at a head at most `lag_blocks_max`
//! below that of the best honest node, which is `behind_blocks` below the world's head. A node that
//! is frozen, lies or lags further has no honest view of the head. Most of its replies about old
//! blocks are right nevertheless.
//!
//! A gateway may resolve a tag before it reads the block: it may replace `latest` by the head's
//! number. Then the response is right under two conditions. The number was the head of an honest
//! view within the window. An honest view at or above it has the same reply for this number
//! (`oracle/tags.rs`). If a reorg happened in between, the block is on the chain but was never a
//! head.
//!
//! Every other response has one failure: **stale** (an older view has this reply), **mixed** (its
//! parts come from branches that no view has together), **backward** (right, but lower than a head
//! that the same client had received before it sent the call), **failed** (an error where a result
//! was due) or
//! **wrong**.
//!
//! In this world a new branch is always longer, so a reorg never lowers the number of the head. A
//! lower head is always a failure.
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

/// Number of views below the window that are tried, to distinguish stale from wrong.
pub const STALE_SEARCH_BLOCKS_MAX: u64 = 512;
/// The same number for a tag that was resolved before the read. It is lower, because each view
/// costs more.
pub const STALE_TAG_BLOCKS_MAX: u64 = 24;
/// Maximum number of clients whose heads are stored. Above it the table is cleared. Then a lower
/// head of a client may be missed, but no false one is reported.
pub const CLIENTS_MAX: usize = 100_000;
/// Maximum number of heads of one client with their time. Older ones are merged into one.
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
    /// Maximum number of blocks between an honest node and the best one.
    pub lag_blocks_max: u64,
    /// Blocks between the best honest node and the world.
    pub behind_blocks: u64,
}

/// One second of staleness, four more seconds for a finalized block, two blocks of lag, and a best
/// node at the world's head.
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
    /// The client. The head number that it receives must not decrease.
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
    /// An honest view has the same reply.
    Right,
    /// Only a view below the window has the same reply.
    Stale {
        /// Blocks below the window.
        by: u64,
    },
    /// The head is lower than one that the client had received before.
    Backward {
        /// The earlier head.
        from: u64,
        /// The lower head.
        to: u64,
    },
    /// The parts come from branches that no view has together.
    Mixed(String),
    /// No view has the same reply.
    Wrong(String),
    /// The reply is an error, but every honest view has a result. If a view has an error with
    /// another code, the verdict is `Unjudged`, because nodes choose their own codes.
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
    /// The highest merged head, and the arrival of the last merged head.
    settled: Option<(Instant, u64)>,
    /// The later heads, rising by arrival and by number.
    heads: VecDeque<(Instant, u64)>,
}

impl Oracle {
    /// Creates the oracle of a world.
    #[must_use]
    pub fn new(world: Arc<World>, options: OracleOptions) -> Self {
        Self { world, options, clients: Mutex::default() }
    }

    /// Judges one exchange. Exchanges may be judged in any order. The heads of a client are
    /// compared only with those of exchanges that were judged before.
    #[must_use]
    pub fn judge(&self, exchange: &Exchange<'_>) -> Verdict {
        match exchange.method {
            "web3_clientVersion" => return Verdict::Unjudged("each node has its own software"),
            "eth_sendRawTransaction" => return judge_sending(exchange),
            _ => {}
        }
        let (oldest, newest) = self.window(exchange);
        let mut due_error = false;
        for head in (oldest..=newest).rev() {
            let reply = self.reply(exchange, head);
            due_error |= matches!(reply, Reply::Error(_));
            if agrees(&reply, &exchange.reply) {
                return self.judge_head(exchange, head);
            }
        }
        if let Some(named) = self.resolved(exchange, oldest, newest) {
            return self.judge_head(exchange, named);
        }
        match exchange.reply {
            ObservedReply::Error { .. } if due_error => {
                Verdict::Unjudged("an honest view has an error too, of another code")
            }
            ObservedReply::Error { code } => Verdict::Failed { code },
            ObservedReply::Result(result) => {
                self.classify_failure(exchange, result, (oldest, newest), due_error)
            }
        }
    }

    /// Returns the lowest and the highest head with an honest view for an exchange.
    #[must_use]
    pub fn window(&self, exchange: &Exchange<'_>) -> (u64, u64) {
        let oldest = self.oldest(exchange, self.options.staleness);
        (oldest, self.world.height_at(exchange.received))
    }

    /// Returns the lowest honest head for an age of the view when the call is sent.
    fn oldest(&self, exchange: &Exchange<'_>, staleness: Duration) -> u64 {
        let from = exchange.sent.checked_sub(staleness).unwrap_or(exchange.sent);
        let best = self.world.height_at(from).saturating_sub(self.options.behind_blocks);
        best.saturating_sub(self.options.lag_blocks_max)
    }

    fn reply(&self, exchange: &Exchange<'_>, head: u64) -> Reply {
        rpc::respond(&self.world, &View::honest(head), exchange.method, exchange.params)
    }

    /// Returns the highest head at which a tag may have been resolved, or `None` if the reply is
    /// not right. To be right, the reply must match the call with its tags resolved at honest
    /// heads, in an honest view at or above them.
    fn resolved(&self, exchange: &Exchange<'_>, oldest: u64, newest: u64) -> Option<u64> {
        let tagged = tags::TaggedCall::read(exchange.method, exchange.params)?;
        let staleness = self.options.staleness + self.options.finality_staleness;
        let final_oldest = self.oldest(exchange, staleness).min(oldest);
        let heads = |tag: tags::Tag| match tag {
            tags::Tag::Latest => oldest..=newest,
            tags::Tag::Safe | tags::Tag::Finalized => final_oldest..=newest,
        };
        for named in heads(tagged.first()).rev() {
            // The two tags of one call may be resolved at two instants.
            let others = tagged.second().map_or(named..=named, heads);
            for other in others.rev() {
                let params = tagged.at(&self.world, named, other);
                // A finalized block is in every view. A head is in no view below it.
                let lowest = |tag, head| if tag == tags::Tag::Latest { head } else { oldest };
                let second = tagged.second().map_or(oldest, |tag| lowest(tag, other));
                let views = lowest(tagged.first(), named).max(second)..=newest;
                let agreed = views.into_iter().any(|view| {
                    let view = View::honest(view);
                    let reply = rpc::respond(&self.world, &view, exchange.method, Some(&params));
                    agrees(&reply, &exchange.reply)
                });
                if agreed {
                    return Some(named.max(other));
                }
            }
        }
        None
    }

    /// Judges a reply that matches the view of `head`. It is right unless the client has received a
    /// higher head before.
    fn judge_head(&self, exchange: &Exchange<'_>, head: u64) -> Verdict {
        if !names_the_head(exchange) {
            return Verdict::Right;
        }
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&exchange.client) {
            clients.clear();
        }
        let seen = clients.entry(exchange.client).or_default();
        let before = seen.highest_before(exchange.sent);
        seen.add(exchange.received, head);
        match before {
            Some(from) if from > head => Verdict::Backward { from, to: head },
            _ => Verdict::Right,
        }
    }

    /// Determines the failure of a result that no honest view has.
    fn classify_failure(
        &self,
        exchange: &Exchange<'_>,
        result: &[u8],
        (oldest, newest): (u64, u64),
        due_error: bool,
    ) -> Verdict {
        let lowest = oldest.saturating_sub(STALE_SEARCH_BLOCKS_MAX);
        for head in (lowest..oldest).rev() {
            if agrees(&self.reply(exchange, head), &exchange.reply) {
                return Verdict::Stale { by: oldest - head };
            }
        }
        let lowest = oldest.saturating_sub(STALE_TAG_BLOCKS_MAX);
        if let Some(named) = self.resolved(exchange, lowest, newest) {
            // If there are two tags, only one may be stale.
            return Verdict::Stale { by: oldest.saturating_sub(named).max(1) };
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
        if due_error {
            return Verdict::Wrong("a result where an honest view has an error".to_owned());
        }
        Verdict::Wrong(format!("differs from every view with head {oldest} to {newest}"))
    }
}

impl ClientHeads {
    fn highest_before(&self, instant: Instant) -> Option<u64> {
        let settled = self.settled.filter(|(at, _)| *at <= instant);
        let known = self.heads.iter().rev().find(|(at, _)| *at <= instant);
        known.or(settled.as_ref()).map(|(_, head)| *head)
    }

    /// Stores a head, unless an earlier one is at least as high. So the list rises both by arrival
    /// and by number.
    fn add(&mut self, received: Instant, head: u64) {
        let at = self.heads.partition_point(|(at, _)| *at <= received);
        let below = at.checked_sub(1).map(|before| self.heads[before].1);
        if below.or(self.settled.map(|(_, head)| head)).is_some_and(|below| below >= head) {
            return;
        }
        self.heads.insert(at, (received, head));
        while self.heads.get(at + 1).is_some_and(|(_, later)| *later <= head) {
            self.heads.remove(at + 1);
        }
        if self.heads.len() > HEADS_MAX {
            self.settled = self.heads.pop_front();
        }
    }
}

fn agrees(reply: &Reply, observed: &ObservedReply<'_>) -> bool {
    match (reply, observed) {
        (Reply::Result(due), ObservedReply::Result(actual)) => due == actual,
        (Reply::Error(due), ObservedReply::Error { code }) => due.code == *code,
        _ => false,
    }
}

/// Returns true if the result contains the head's number.
fn names_the_head(exchange: &Exchange<'_>) -> bool {
    if !matches!(exchange.reply, ObservedReply::Result(_)) {
        return false;
    }
    match exchange.method.split_once('_') {
        Some((_, "blockNumber" | "latestHeader")) => true,
        Some((_, "getBlockByNumber")) => evidence::requests_latest(exchange.params),
        _ => false,
    }
}

/// Judges the reply to a sent transaction: its hash, or an error that it is known already.
fn judge_sending(exchange: &Exchange<'_>) -> Verdict {
    let result = match exchange.reply {
        ObservedReply::Error { code: rpc::wording::SERVER } => {
            return Verdict::Unjudged("the pool is not part of the chain");
        }
        ObservedReply::Error { code } => return Verdict::Failed { code },
        ObservedReply::Result(result) => result,
    };
    let Some(raw) = evidence::bytes_argument(exchange.params) else {
        return Verdict::Wrong("a hash for bytes that are not a transaction".to_owned());
    };
    let due = format!("\"{:#x}\"", keccak256(raw));
    if due.as_bytes() == result {
        return Verdict::Right;
    }
    Verdict::Wrong(format!("the transaction's hash is {due}"))
}

#[cfg(test)]
mod tests;
