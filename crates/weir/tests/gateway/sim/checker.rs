//! Checks every response of the gateway. Counts the verdicts, and describes each violation with all
//! details that are needed to find its cause.

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
use super::failures::{CATCH_UP, Cluster};

/// The code of the gateway's own errors: no node was available, or none responded.
const OWN_ERROR: i64 = -32603;
/// The deadline of calls in the gateway's configuration.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(8);
/// Age of a block from which its logs and receipts must be complete. A healthy node may see a block
/// one block and 100 ms late, and needs at most a second to index it.
const INDEXED_AFTER: Duration = Duration::from_millis(1_700);
/// Maximum number of findings that are printed; one bug can cause thousands.
const FINDINGS_MAX: usize = 5;
/// Maximum length of a response in a finding.
const SHOWN_BYTES_MAX: usize = 600;
/// Time before a call from which a finding lists the nodes' failures.
const LOOK_BACK: Duration = Duration::from_secs(4);
/// Maximum nesting depth of responses.
const DEPTH_MAX: usize = 128;

/// A request that a client has sent: one call or a batch.
pub(crate) struct Sent {
    pub(crate) client: u64,
    /// The calls with their raw ids.
    pub(crate) calls: Vec<(String, Call)>,
    pub(crate) batch: bool,
    pub(crate) at: Instant,
}

/// Checks responses against the chain.
pub(crate) struct Checker {
    pub(crate) world: Arc<World>,
    oracle: Oracle,
    /// The command that repeats this run.
    rerun_command: String,
    pub(crate) adversary: RefCell<Adversary>,
    pub(crate) tally: RefCell<Tally>,
    /// A hash of all responses and their times, to compare runs.
    fingerprint: Cell<u64>,
}

/// Counts of all calls and their verdicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) verdicts: BTreeMap<&'static str, u64>,
    /// Tolerated errors by code: no node was healthy.
    pub(crate) excused: BTreeMap<i64, u64>,
    /// Tolerated old heads: all nodes were silent shortly before.
    pub(crate) catching_up: u64,
    /// Tolerated false responses about blocks above the served head.
    pub(crate) lies_passed: u64,
    /// Tolerated responses without the logs or receipts of very new blocks.
    pub(crate) lacking_new: u64,
    /// Requests whose client disconnected before the response.
    pub(crate) disconnected: u64,
    /// The longest latency of a response.
    pub(crate) longest: Duration,
    pub(crate) findings_count: u64,
    pub(crate) findings: Vec<String>,
}

impl Checker {
    pub(crate) fn new(
        world: &Arc<World>,
        options: OracleOptions,
        rerun_command: String,
    ) -> Checker {
        Checker {
            oracle: Oracle::new(Arc::clone(world), options),
            world: Arc::clone(world),
            rerun_command,
            adversary: RefCell::default(),
            tally: RefCell::default(),
            fingerprint: Cell::new(0),
        }
    }

    /// Returns the hash of all responses and their times.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint.get()
    }

    /// Checks the response to a request. An error means that the connection ended instead.
    pub(crate) fn judge(&self, cluster: &Cluster, sent: &Sent, response: std::io::Result<Answer>) {
        let received = Instant::now();
        self.update_fingerprint(received, response.as_ref().map_or(&[], |answer| &answer.body));
        let took = received - sent.at;
        let mut tally = self.tally.borrow_mut();
        tally.calls += sent.calls.len() as u64;
        tally.longest = tally.longest.max(took);
        drop(tally);
        let answer = match response {
            Ok(answer) => answer,
            Err(error) => {
                return self.record_finding(cluster, sent, &format!("no answer: {error}"), b"");
            }
        };
        let text = match std::str::from_utf8(&answer.body) {
            Ok(text) => text,
            Err(error) => {
                return self.record_finding(cluster, sent, &error.to_string(), &answer.body);
            }
        };
        let items = if sent.batch {
            match serde_json::from_str::<Vec<&RawValue>>(text) {
                Ok(items) => items.into_iter().map(RawValue::get).collect(),
                Err(fault) => {
                    return self.record_finding(cluster, sent, &fault.to_string(), &answer.body);
                }
            }
        } else {
            vec![text]
        };
        if items.len() != sent.calls.len() {
            let description = format!("{} answers to {} calls", items.len(), sent.calls.len());
            return self.record_finding(cluster, sent, &description, &answer.body);
        }
        for ((id, call), item) in sent.calls.iter().zip(items) {
            self.judge_item(cluster, sent, &answer, (id, call), item.as_bytes());
        }
    }

    /// Checks the response to one call.
    fn judge_item(
        &self,
        cluster: &Cluster,
        sent: &Sent,
        answer: &Answer,
        (id, call): (&str, &Call),
        item: &[u8],
    ) {
        let parsed = match parse_response(item, DEPTH_MAX) {
            Ok(parsed) if parsed.id == id.as_bytes() => parsed,
            Ok(_) => return self.record_finding(cluster, sent, "an answer with another id", item),
            Err(fault) => return self.record_finding(cluster, sent, &fault.to_string(), item),
        };
        let received = Instant::now();
        let corrupted;
        let reply = match parsed.outcome {
            Outcome::Error { code, .. } => ObservedReply::Error { code },
            Outcome::Result(result) => {
                let mut adversary = self.adversary.borrow_mut();
                corrupted = adversary.corrupt(sent.client, call, result, received);
                ObservedReply::Result(corrupted.as_deref().unwrap_or(result))
            }
        };
        let verdict = self.oracle.judge(&Exchange {
            method: call.method,
            params: Some(call.params.as_bytes()),
            reply,
            sent: sent.at,
            received,
            client: sent.client,
        });
        let verdict_name = match &verdict {
            Verdict::Right => "right",
            Verdict::Stale { .. } => "stale",
            Verdict::Backward { .. } => "backward",
            Verdict::Mixed(_) => "mixed",
            Verdict::Wrong(_) => "wrong",
            Verdict::Failed { .. } => "failed",
            Verdict::Unjudged(_) => "unjudged",
        };
        *self.tally.borrow_mut().verdicts.entry(verdict_name).or_default() += 1;
        match verdict {
            Verdict::Right => {}
            // The oracle does not know this error; a node, not the gateway, sent it.
            Verdict::Unjudged(_) if !matches!(reply, ObservedReply::Error { code: OWN_ERROR }) => {}
            Verdict::Failed { .. } | Verdict::Unjudged(_)
                if cluster.all_unhealthy(earliest_start(sent, answer), received) =>
            {
                if let ObservedReply::Error { code } = reply {
                    *self.tally.borrow_mut().excused.entry(code).or_default() += 1;
                }
            }
            Verdict::Wrong(_) if self.is_undetectable_lie(cluster, sent, received, call) => {
                self.tally.borrow_mut().lies_passed += 1;
            }
            Verdict::Wrong(_) | Verdict::Stale { .. }
                if self.lacks_only_new_blocks(
                    earliest_start(sent, answer),
                    received,
                    cluster,
                    call,
                    &reply,
                ) =>
            {
                self.tally.borrow_mut().lacking_new += 1;
            }
            Verdict::Stale { .. } | Verdict::Backward { .. }
                if cluster
                    .all_silent(sent.at.checked_sub(CATCH_UP).unwrap_or(sent.at), received) =>
            {
                self.tally.borrow_mut().catching_up += 1;
            }
            _ => {
                let Answer { status, cache, node, .. } = answer;
                let description = format!(
                    "{verdict:?}\n  call {} {}\n  status {status}, cache {cache}, node {node}",
                    call.method, call.params
                );
                let shown = judged_bytes(&reply, item);
                self.record_finding(cluster, sent, &description, shown);
            }
        }
    }

    /// Returns true if the gateway could not detect a false response. A node lied, and either the
    /// call is about blocks above the served head, or no other node reported a head.
    fn is_undetectable_lie(
        &self,
        cluster: &Cluster,
        sent: &Sent,
        received: Instant,
        call: &Call,
    ) -> bool {
        let before = sent.at.checked_sub(CATCH_UP).unwrap_or(sent.at);
        let served_at_least = self.world.height_at(before);
        let is_above_head =
            call.params.split('"').filter_map(|text| text.strip_prefix("0x")).any(|digits| {
                u64::from_str_radix(digits, 16).is_ok_and(|number| number > served_at_least)
            });
        cluster.any_lying(before, received)
            && (is_above_head || cluster.all_silent(before, received))
    }

    /// Returns true if a response is right except that it lacks logs or receipts of blocks younger
    /// than [`INDEXED_AFTER`]. If no node was healthy just before, blocks may have any age.
    fn lacks_only_new_blocks(
        &self,
        call_start: Instant,
        received: Instant,
        cluster: &Cluster,
        call: &Call,
        reply: &ObservedReply<'_>,
    ) -> bool {
        let ObservedReply::Result(returned) = *reply else { return false };
        if !["Logs", "Receipts", "Receipt"].iter().any(|end| call.method.ends_with(end)) {
            return false;
        }
        let returned: Value =
            serde_json::from_slice(returned).expect("the response was parsed before");
        let then = call_start.checked_sub(INDEXED_AFTER).unwrap_or(call_start);
        let (lowest, newest) = (self.world.height_at(then), self.world.height_at(received));
        // A node that was ejected gets no calls until it is readmitted.
        let readmitted_after = call_start.checked_sub(CATCH_UP).unwrap_or(call_start);
        let indexed_head =
            if cluster.all_unhealthy(readmitted_after, received) { 0 } else { lowest };
        let is_new = |item: &Value| {
            let number = item["blockNumber"].as_str().and_then(|text| text.strip_prefix("0x"));
            let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            // A reorg creates new blocks at old heights.
            let indexed_hash = number.and_then(|number| self.world.hash_at(indexed_head, number));
            indexed_hash.is_none_or(|hash| item["blockHash"] != hash.to_string())
        };
        let items = |value: Value| match value {
            Value::Array(items) => items,
            Value::Null => Vec::new(),
            item => vec![item],
        };
        let returned = items(returned);
        let params = Some(call.params.as_bytes());
        (lowest..=newest).any(|head| {
            // The gateway forwards ranges above its head, and some nodes end them at their own.
            let view = View { clamps_logs_to_head: true, ..View::honest(head) };
            let expected = rpc::respond(&self.world, &view, call.method, params);
            let Reply::Result(expected) = expected else { return false };
            let expected =
                items(serde_json::from_slice(&expected).expect("the simulated node returns JSON"));
            returned.iter().all(|item| expected.contains(item))
                && expected.iter().all(|item| is_new(item) || returned.contains(item))
        })
    }

    /// Records a violation.
    fn record_finding(&self, cluster: &Cluster, sent: &Sent, description: &str, answer: &[u8]) {
        let mut tally = self.tally.borrow_mut();
        tally.findings_count += 1;
        if tally.findings.len() >= FINDINGS_MAX {
            return;
        }
        let (origin, now) = (self.world.origin(), Instant::now());
        let shown_from = sent.at.checked_sub(LOOK_BACK).unwrap_or(origin).max(origin);
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(SHOWN_BYTES_MAX)]);
        let mut text = format!(
            "{description}\n  client {}, {} calls, sent at {:?}, answered at {:?}\n  answer {shown}\n",
            sent.client,
            sent.calls.len(),
            sent.at.saturating_duration_since(origin),
            now.saturating_duration_since(origin),
        );
        let heads = (self.world.height_at(shown_from), self.world.height_at(now));
        let _ = writeln!(text, "  heads {:#x} to {:#x} of the world, nodes:", heads.0, heads.1);
        text.push_str(&cluster.describe_phases(shown_from, now, origin));
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
        let _ = writeln!(text, "  again: {}", self.rerun_command);
        tally.findings.push(text);
    }

    /// Adds a response to the fingerprint: an FNV-1a hash, which is equal in every process.
    fn update_fingerprint(&self, received: Instant, bytes: &[u8]) {
        let mut hash = Fnv(self.fingerprint.get());
        hash.write(
            &received.saturating_duration_since(self.world.origin()).as_nanos().to_le_bytes(),
        );
        hash.write(bytes);
        self.fingerprint.set(hash.finish());
    }
}

/// Returns the earliest start of a call. A coalesced call may have started before this client's
/// request.
fn earliest_start(sent: &Sent, answer: &Answer) -> Instant {
    let is_coalesced = answer.cache.contains("coalesced");
    let started_before = if is_coalesced { CALL_DEADLINE } else { Duration::ZERO };
    sent.at.checked_sub(started_before).unwrap_or(sent.at)
}

/// Returns the bytes that were judged: the result, perhaps corrupted, or the whole error response.
fn judged_bytes<'a>(reply: &ObservedReply<'a>, item: &'a [u8]) -> &'a [u8] {
    match reply {
        ObservedReply::Result(result) => result,
        ObservedReply::Error { .. } => item,
    }
}

/// The state of an FNV-1a hash.
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

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "calls {}, left {}, longest {:?}", self.calls, self.disconnected, self.longest)?;
        for (verdict, count) in &self.verdicts {
            write!(f, ", {verdict} {count}")?;
        }
        write!(f, ", excused {:?}, catching up {}", self.excused, self.catching_up)?;
        write!(f, ", lies passed {}", self.lies_passed)?;
        write!(f, ", lacking of young blocks {}", self.lacking_new)
    }
}
