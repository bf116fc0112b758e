//! The truth about answers: which were right at which instant.
//!
//! **Right** is an answer that equals, byte for byte, what some honest view would have answered at
//! some instant between the sending of the call, less the allowed staleness, and the arrival of the
//! answer. An honest view is the world's chain at a head that stands at most `lag_blocks_max` below
//! the best honest node's; the best one stands `behind_blocks` below the world's head. A node that
//! is frozen, lies or lags further has no honest view of the head, though much of what it says
//! about old blocks is right all the same.
//!
//! A tag may be resolved before the block is read: a gateway that puts the head's number in place of
//! `latest` for the whole call is right if that number was some honest view's head within the
//! window, and an honest view at or above it says the same of this number (`oracle/tags.rs`). After a
//! reorg in between, that is a block that was never a head itself, but is on the chain.
//!
//! Everything else is a failure of one kind: **stale** (an older view would have said it),
//! **mixed** (its parts come from branches that no view holds together), **backward** (right by
//! itself, but lower than a head that the same client had seen before it asked), **failed** (an
//! error where a result was due: not untrue, so the caller decides) or **wrong**.
//!
//! In this world a reorg's new branch is always longer, so a real reorg never lowers the head's
//! number and no fall of it is excused.
//!
//! The oracle answers calls through `rpc.rs`, like a node; that blocks are what they should be is
//! shown by the tests of `block.rs`, which recompute every hash.

mod evidence;
mod tags;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::keccak256;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::rpc::{self, Reply, Sight};
use crate::world::World;

/// How far below the window a view is looked for, to tell stale from wrong.
pub const STALE_SEARCH_BLOCKS_MAX: u64 = 512;
/// The same for a tag that was resolved apart from the reading, where each step costs more.
pub const STALE_TAG_BLOCKS_MAX: u64 = 24;
/// The most clients whose heads are remembered; above it the table starts anew, which can only
/// excuse, never accuse.
pub const CLIENTS_MAX: usize = 100_000;
/// How many heads of one client are remembered with their time; older ones are folded into one.
const HEADS_MAX: usize = 64;

/// What counts as right.
#[derive(Clone, Copy, Debug)]
pub struct OracleOptions {
    /// How old a view may be when the call is sent: the gateway's interval of asking for heads plus
    /// the time that a block takes to reach the nodes.
    pub staleness: Duration,
    /// How much older than that a finalized or safe block may be: gateways ask for it less often,
    /// since it moves once in minutes on real chains.
    pub finality_staleness: Duration,
    /// How many blocks an honest node may stand behind the best one.
    pub lag_blocks_max: u64,
    /// How many blocks the best honest node stands behind the world.
    pub behind_blocks: u64,
}

/// A second of staleness, four more of a finalized block's, two blocks of lag, and a node at the
/// world's head.
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

/// A call and what came back.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// The method.
    pub method: &'a str,
    /// The raw `params` member, if there was one.
    pub params: Option<&'a [u8]>,
    /// What came back.
    pub answer: Answered<'a>,
    /// When the call was sent.
    pub sent: Instant,
    /// When the answer had arrived.
    pub received: Instant,
    /// Who asked; heads must not fall for one client.
    pub client: u64,
}

/// An answer as the client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered<'a> {
    /// The raw `result` member.
    Result(&'a [u8]),
    /// The `error` member's code; the message differs between clients' software.
    Error {
        /// The code.
        code: i64,
    },
}

/// What the oracle says of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An honest view says the same.
    Right,
    /// Only a view from below the window says the same.
    Stale {
        /// How many blocks below.
        by: u64,
    },
    /// A head lower than one that the client had seen before.
    Backward {
        /// What it had seen.
        from: u64,
        /// What it was given.
        to: u64,
    },
    /// Parts from branches that no view holds together.
    Mixed(String),
    /// No view says the same.
    Wrong(String),
    /// An error where every honest view has a result; where one has an error too, of another code,
    /// it is unjudged, since nodes word errors as they like.
    Failed {
        /// Its code.
        code: i64,
    },
    /// The world does not determine the answer.
    Unjudged(&'static str),
}

/// The judge of all answers that come from one world. Share it in an [`Arc`].
pub struct Oracle {
    world: Arc<World>,
    options: OracleOptions,
    /// Held for a lookup and a few comparisons.
    clients: Mutex<HashMap<u64, Seen, RandomState>>,
}

/// The heads that one client has seen.
#[derive(Default)]
struct Seen {
    /// The highest head of all that were folded, and when the last of them arrived.
    settled: Option<(Instant, u64)>,
    /// Later ones, by arrival, rising.
    heads: VecDeque<(Instant, u64)>,
}

impl Oracle {
    /// An oracle of a world.
    #[must_use]
    pub fn new(world: Arc<World>, options: OracleOptions) -> Self {
        Self { world, options, clients: Mutex::default() }
    }

    /// Judges one exchange. Exchanges may come in any order, but heads of one client are compared
    /// only with those judged before.
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
            if agrees(&reply, &exchange.answer) {
                return self.judge_head(exchange, head);
            }
        }
        if let Some(named) = self.resolved(exchange, oldest, newest) {
            return self.judge_head(exchange, named);
        }
        match exchange.answer {
            Answered::Error { .. } if due_error => {
                Verdict::Unjudged("an honest view has an error too, of another code")
            }
            Answered::Error { code } => Verdict::Failed { code },
            Answered::Result(result) => self.accuse(exchange, result, (oldest, newest), due_error),
        }
    }

    /// The lowest and the highest head whose view is honest for an exchange.
    #[must_use]
    pub fn window(&self, exchange: &Exchange<'_>) -> (u64, u64) {
        let oldest = self.oldest(exchange, self.options.staleness);
        (oldest, self.world.height_at(exchange.received))
    }

    /// The lowest honest head if what was learnt may be so old when the call is sent.
    fn oldest(&self, exchange: &Exchange<'_>, staleness: Duration) -> u64 {
        let from = exchange.sent.checked_sub(staleness).unwrap_or(exchange.sent);
        let best = self.world.height_at(from).saturating_sub(self.options.behind_blocks);
        best.saturating_sub(self.options.lag_blocks_max)
    }

    fn reply(&self, exchange: &Exchange<'_>, head: u64) -> Reply {
        rpc::answer(&self.world, &Sight::honest(head), exchange.method, exchange.params)
    }

    /// The head whose number stands for the call's newest tag, if the answer is right for the call
    /// with its tags resolved at honest heads and read from an honest view at or above them.
    fn resolved(&self, exchange: &Exchange<'_>, oldest: u64, newest: u64) -> Option<u64> {
        let tagged = tags::Tagged::read(exchange.method, exchange.params)?;
        let staleness = self.options.staleness + self.options.finality_staleness;
        let final_oldest = self.oldest(exchange, staleness).min(oldest);
        let heads = |tag: tags::Tag| match tag {
            tags::Tag::Latest => oldest..=newest,
            tags::Tag::Safe | tags::Tag::Finalized => final_oldest..=newest,
        };
        for named in heads(tagged.first()).rev() {
            // Two tags of one call may be resolved by what was learnt at two instants.
            let others = tagged.second().map_or(named..=named, heads);
            for other in others.rev() {
                let params = tagged.at(&self.world, named, other);
                // A final block is in every view, a head only in its own and later ones.
                let lowest = |tag, head| if tag == tags::Tag::Latest { head } else { oldest };
                let second = tagged.second().map_or(oldest, |tag| lowest(tag, other));
                let views = lowest(tagged.first(), named).max(second)..=newest;
                let agreed = views.into_iter().any(|view| {
                    let sight = Sight::honest(view);
                    let reply = rpc::answer(&self.world, &sight, exchange.method, Some(&params));
                    agrees(&reply, &exchange.answer)
                });
                if agreed {
                    return Some(named.max(other));
                }
            }
        }
        None
    }

    /// Judges an answer that the view of `head` gives: right, unless it lowers the client's head.
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

    /// Says what is untrue about a result that no honest view gives.
    fn accuse(
        &self,
        exchange: &Exchange<'_>,
        result: &[u8],
        (oldest, newest): (u64, u64),
        due_error: bool,
    ) -> Verdict {
        let lowest = oldest.saturating_sub(STALE_SEARCH_BLOCKS_MAX);
        for head in (lowest..oldest).rev() {
            if agrees(&self.reply(exchange, head), &exchange.answer) {
                return Verdict::Stale { by: oldest - head };
            }
        }
        let lowest = oldest.saturating_sub(STALE_TAG_BLOCKS_MAX);
        if let Some(named) = self.resolved(exchange, lowest, newest) {
            // Of two tags only one may be old.
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

impl Seen {
    fn highest_before(&self, instant: Instant) -> Option<u64> {
        let settled = self.settled.filter(|(at, _)| *at <= instant);
        let known = self.heads.iter().rev().find(|(at, _)| *at <= instant);
        known.or(settled.as_ref()).map(|(_, head)| *head)
    }

    /// Remembers a head. Only heads above all earlier arrivals are kept, so the list rises in both.
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

fn agrees(reply: &Reply, answer: &Answered<'_>) -> bool {
    match (reply, answer) {
        (Reply::Result(due), Answered::Result(given)) => due == given,
        (Reply::Error(due), Answered::Error { code }) => due.code == *code,
        _ => false,
    }
}

/// Whether the result tells the head's number.
fn names_the_head(exchange: &Exchange<'_>) -> bool {
    if !matches!(exchange.answer, Answered::Result(_)) {
        return false;
    }
    match exchange.method.split_once('_') {
        Some((_, "blockNumber" | "latestHeader")) => true,
        Some((_, "getBlockByNumber")) => evidence::asks_latest(exchange.params),
        _ => false,
    }
}

/// A sent transaction is answered with its hash, or as already known.
fn judge_sending(exchange: &Exchange<'_>) -> Verdict {
    let result = match exchange.answer {
        Answered::Error { code: rpc::wording::SERVER } => {
            return Verdict::Unjudged("the pool is not part of the chain");
        }
        Answered::Error { code } => return Verdict::Failed { code },
        Answered::Result(result) => result,
    };
    let Some(raw) = evidence::bytes_argument(exchange.params) else {
        return Verdict::Wrong("a hash for what is no transaction".to_owned());
    };
    let due = format!("\"{:#x}\"", keccak256(raw));
    if due.as_bytes() == result {
        return Verdict::Right;
    }
    Verdict::Wrong(format!("the transaction's hash is {due}"))
}

#[cfg(test)]
mod tests;
