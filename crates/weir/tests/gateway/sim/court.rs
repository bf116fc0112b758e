//! Judges every answer that a client got and keeps the account of it: how many of which verdict,
//! and what must not have been, with everything needed to look into it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use simnode::oracle::{Exchange, ObservedReply, Oracle, OracleOptions, Verdict};
use simnode::rpc::{self, Reply, View};
use simnode::world::World;
use tokio::time::Instant;
use wire::response::{Outcome, parse_response};

use super::adversary::Adversary;
use super::calls::Call;
use super::connection::Answer;
use super::trouble::{CATCH_UP, Cluster};

/// The code of the gateway's own errors: no node was available, or none responded.
const OWN_ERROR: i64 = -32603;
/// The deadline of calls in the gateway's configuration.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(8);
/// A sound node may see a block one block and 100 ms late; after a second more, what is in it is
/// due.
const INDEXED_AFTER: Duration = Duration::from_millis(1_700);
/// Most findings that are printed in full; one bug can cause thousands.
const FINDINGS_MAX: usize = 5;
/// Bytes of an answer that a finding shows.
const SHOWN_BYTES_MAX: usize = 600;
/// How long before a call the account of what went wrong begins.
const LOOK_BACK: Duration = Duration::from_secs(4);
/// Deepest nesting of responses.
const DEPTH_MAX: usize = 128;

/// A request: one call, or a batch of them.
pub(crate) struct Sent {
    pub(crate) client: u64,
    /// The calls with their raw ids.
    pub(crate) calls: Vec<(String, Call)>,
    pub(crate) batch: bool,
    pub(crate) at: Instant,
}

/// Checks responses against the chain.
pub(crate) struct Court {
    pub(crate) world: Arc<World>,
    oracle: Oracle,
    /// How to run this again.
    again: String,
    pub(crate) adversary: RefCell<Adversary>,
    pub(crate) account: RefCell<Account>,
    /// Of everything that was answered and when, to compare runs.
    fingerprint: Cell<u64>,
}

/// What came of all calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) calls: u64,
    pub(crate) verdicts: BTreeMap<&'static str, u64>,
    /// Errors where a result was due, by code, at times at which no node was sound.
    pub(crate) excused: BTreeMap<i64, u64>,
    /// Old heads just after a time at which all nodes were silent.
    pub(crate) catching_up: u64,
    /// Lies about blocks above the served head, passed on as they came.
    pub(crate) lies_passed: u64,
    /// Responses that lack logs or receipts of blocks so young that no node need have had them.
    pub(crate) lacking_young: u64,
    /// Requests whose client disconnected before the response.
    pub(crate) left: u64,
    /// The longest that an answer took.
    pub(crate) longest: Duration,
    pub(crate) findings_count: u64,
    pub(crate) findings: Vec<String>,
}

impl Court {
    pub(crate) fn new(world: &Arc<World>, options: OracleOptions, again: String) -> Court {
        Court {
            oracle: Oracle::new(Arc::clone(world), options),
            world: Arc::clone(world),
            again,
            adversary: RefCell::default(),
            account: RefCell::default(),
            fingerprint: Cell::new(0),
        }
    }

    /// A number that differs if any answer, or its time, did.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint.get()
    }

    /// Judges what came for a request; an error is a connection that ended instead.
    pub(crate) fn judge(&self, cluster: &Cluster, sent: &Sent, came: std::io::Result<Answer>) {
        let received = Instant::now();
        self.note(received, came.as_ref().map_or(&[], |answer| &answer.body));
        let took = received - sent.at;
        let mut account = self.account.borrow_mut();
        account.calls += sent.calls.len() as u64;
        account.longest = account.longest.max(took);
        drop(account);
        let answer = match came {
            Ok(answer) => answer,
            Err(error) => return self.find(cluster, sent, &format!("no answer: {error}"), b""),
        };
        let text = match std::str::from_utf8(&answer.body) {
            Ok(text) => text,
            Err(error) => return self.find(cluster, sent, &error.to_string(), &answer.body),
        };
        let items = if sent.batch {
            match serde_json::from_str::<Vec<&RawValue>>(text) {
                Ok(items) => items.into_iter().map(RawValue::get).collect(),
                Err(fault) => return self.find(cluster, sent, &fault.to_string(), &answer.body),
            }
        } else {
            vec![text]
        };
        if items.len() != sent.calls.len() {
            let what = format!("{} answers to {} calls", items.len(), sent.calls.len());
            return self.find(cluster, sent, &what, &answer.body);
        }
        for ((id, call), item) in sent.calls.iter().zip(items) {
            self.judge_item(cluster, sent, &answer, (id, call), item.as_bytes());
        }
    }

    fn judge_item(
        &self,
        cluster: &Cluster,
        sent: &Sent,
        answer: &Answer,
        (id, call): (&str, &Call),
        item: &[u8],
    ) {
        let said = match parse_response(item, DEPTH_MAX) {
            Ok(said) if said.id == id.as_bytes() => said,
            Ok(_) => return self.find(cluster, sent, "an answer with another id", item),
            Err(fault) => return self.find(cluster, sent, &fault.to_string(), item),
        };
        let received = Instant::now();
        let spoilt;
        let answered = match said.outcome {
            Outcome::Error { code, .. } => ObservedReply::Error { code },
            Outcome::Result(result) => {
                let mut adversary = self.adversary.borrow_mut();
                spoilt = adversary.pass(sent.client, call, result, received);
                ObservedReply::Result(spoilt.as_deref().unwrap_or(result))
            }
        };
        let verdict = self.oracle.judge(&Exchange {
            method: call.method,
            params: Some(call.params.as_bytes()),
            reply: answered,
            sent: sent.at,
            received,
            client: sent.client,
        });
        let word = match &verdict {
            Verdict::Right => "right",
            Verdict::Stale { .. } => "stale",
            Verdict::Backward { .. } => "backward",
            Verdict::Mixed(_) => "mixed",
            Verdict::Wrong(_) => "wrong",
            Verdict::Failed { .. } => "failed",
            Verdict::Unjudged(_) => "unjudged",
        };
        *self.account.borrow_mut().verdicts.entry(word).or_default() += 1;
        match verdict {
            Verdict::Right => {}
            // A node in trouble may word its error as an honest one words another.
            Verdict::Unjudged(_)
                if !matches!(answered, ObservedReply::Error { code: OWN_ERROR }) => {}
            Verdict::Failed { .. } | Verdict::Unjudged(_)
                if cluster.all_unsound(begun_at(sent, answer), received) =>
            {
                if let ObservedReply::Error { code } = answered {
                    *self.account.borrow_mut().excused.entry(code).or_default() += 1;
                }
            }
            Verdict::Wrong(_) if self.cannot_be_known(cluster, sent, received, call) => {
                self.account.borrow_mut().lies_passed += 1;
            }
            Verdict::Wrong(_) | Verdict::Stale { .. }
                if self.lacks_young(begun_at(sent, answer), received, cluster, call, &answered) =>
            {
                self.account.borrow_mut().lacking_young += 1;
            }
            Verdict::Stale { .. } | Verdict::Backward { .. }
                if cluster
                    .none_heard(sent.at.checked_sub(CATCH_UP).unwrap_or(sent.at), received) =>
            {
                self.account.borrow_mut().catching_up += 1;
            }
            _ => {
                let Answer { status, cache, node, .. } = answer;
                let what = format!(
                    "{verdict:?}\n  call {} {}\n  status {status}, cache {cache}, node {node}",
                    call.method, call.params
                );
                let shown = spoilt_or(&answered, item);
                self.find(cluster, sent, &what, shown);
            }
        }
    }

    /// Whether a lie could not be told from the truth: a node lies about blocks above the served
    /// head, of which the gateway has no word but the node's, and it has only begun to lie or
    /// nothing else is known.
    fn cannot_be_known(
        &self,
        cluster: &Cluster,
        sent: &Sent,
        received: Instant,
        call: &Call,
    ) -> bool {
        let before = sent.at.checked_sub(CATCH_UP).unwrap_or(sent.at);
        let served_at_least = self.world.height_at(before);
        let above =
            call.params.split('"').filter_map(|text| text.strip_prefix("0x")).any(|digits| {
                u64::from_str_radix(digits, 16).is_ok_and(|number| number > served_at_least)
            });
        cluster.any_lying(before, received) && (above || cluster.none_heard(before, received))
    }

    /// Whether a response is right but for logs or receipts of blocks that are younger than
    /// [`INDEXED_AFTER`], or of any blocks if no node was sound just before.
    fn lacks_young(
        &self,
        begun: Instant,
        received: Instant,
        cluster: &Cluster,
        call: &Call,
        answered: &ObservedReply<'_>,
    ) -> bool {
        let ObservedReply::Result(given) = *answered else { return false };
        if !["Logs", "Receipts", "Receipt"].iter().any(|end| call.method.ends_with(end)) {
            return false;
        }
        let given: Value = serde_json::from_slice(given).expect("it was read before");
        let then = begun.checked_sub(INDEXED_AFTER).unwrap_or(begun);
        let (lowest, newest) = (self.world.height_at(then), self.world.height_at(received));
        // A node that was taken out is not asked before it is back in use.
        let since = begun.checked_sub(CATCH_UP).unwrap_or(begun);
        let old = if cluster.all_unsound(since, received) { 0 } else { lowest };
        let is_young = |item: &Value| {
            let number = item["blockNumber"].as_str().and_then(|text| text.strip_prefix("0x"));
            let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            // A reorg makes young blocks of old heights.
            let then = number.and_then(|number| self.world.hash_at(old, number));
            then.is_none_or(|hash| item["blockHash"] != hash.to_string())
        };
        let items = |value: Value| match value {
            Value::Array(items) => items,
            Value::Null => Vec::new(),
            item => vec![item],
        };
        let given = items(given);
        let params = Some(call.params.as_bytes());
        (lowest..=newest).any(|head| {
            // A range above the served head is for the node to judge, and some end it at theirs.
            let view = View { clamps: true, ..View::honest(head) };
            let due = rpc::respond(&self.world, &view, call.method, params);
            let Reply::Result(due) = due else { return false };
            let due = items(serde_json::from_slice(&due).expect("a node says JSON"));
            given.iter().all(|item| due.contains(item))
                && due.iter().all(|item| is_young(item) || given.contains(item))
        })
    }

    /// Keeps something that must not have been.
    fn find(&self, cluster: &Cluster, sent: &Sent, what: &str, answer: &[u8]) {
        let mut account = self.account.borrow_mut();
        account.findings_count += 1;
        if account.findings.len() >= FINDINGS_MAX {
            return;
        }
        let (origin, now) = (self.world.origin(), Instant::now());
        let since = sent.at.checked_sub(LOOK_BACK).unwrap_or(origin).max(origin);
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(SHOWN_BYTES_MAX)]);
        let mut text = format!(
            "{what}\n  client {}, {} calls, sent at {:?}, answered at {:?}\n  answer {shown}\n",
            sent.client,
            sent.calls.len(),
            sent.at.saturating_duration_since(origin),
            now.saturating_duration_since(origin),
        );
        let heads = (self.world.height_at(since), self.world.height_at(now));
        let _ = writeln!(text, "  heads {:#x} to {:#x} of the world, nodes:", heads.0, heads.1);
        text.push_str(&cluster.told(since, now, origin));
        let reorgs = self.world.schedule().reorgs().iter();
        for reorg in reorgs.filter(|reorg| (heads.0..=heads.1).contains(&reorg.at_height)) {
            let _ = writeln!(
                text,
                "    after head {:#x} a reorg of the {} blocks above {:#x}",
                reorg.at_height,
                reorg.depth,
                reorg.at_height - reorg.depth
            );
        }
        let _ = writeln!(text, "  again: {}", self.again);
        account.findings.push(text);
    }

    /// Fowler, Noll and Vo's hash (FNV-1a), because it must be the same in every process.
    fn note(&self, at: Instant, bytes: &[u8]) {
        let mut hash = Fnv(self.fingerprint.get());
        hash.write(&at.saturating_duration_since(self.world.origin()).as_nanos().to_le_bytes());
        hash.write(bytes);
        self.fingerprint.set(hash.finish());
    }
}

/// When a call began that others have joined: perhaps before the one that is judged was sent.
fn begun_at(sent: &Sent, answer: &Answer) -> Instant {
    let joined = answer.cache.contains("coalesced");
    let before = if joined { CALL_DEADLINE } else { Duration::ZERO };
    sent.at.checked_sub(before).unwrap_or(sent.at)
}

/// What the client was given: the bytes that were judged if they are a result.
fn spoilt_or<'a>(answered: &ObservedReply<'a>, item: &'a [u8]) -> &'a [u8] {
    match answered {
        ObservedReply::Result(result) => result,
        ObservedReply::Error { .. } => item,
    }
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "calls {}, left {}, longest {:?}", self.calls, self.left, self.longest)?;
        for (verdict, count) in &self.verdicts {
            write!(f, ", {verdict} {count}")?;
        }
        write!(f, ", excused {:?}, catching up {}", self.excused, self.catching_up)?;
        write!(f, ", lies passed {}", self.lies_passed)?;
        write!(f, ", lacking of young blocks {}", self.lacking_young)
    }
}
