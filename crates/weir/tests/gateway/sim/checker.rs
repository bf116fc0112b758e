//! Checks every response of the gateway with the oracle of `simnode`. Counts the oracle's verdicts,
//! and reports each violation as a *finding*: a text with all details that are needed to find its
//! cause. A head is the newest block that a node or the gateway reports.

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
use super::connection::HttpResponse;
use super::failures::{CATCH_UP, Cluster};
use super::shown_blocks::ShownBlocks;

/// The JSON-RPC code of the gateway's own errors: no node was available, or none responded.
const OWN_ERROR: i64 = -32603;
/// The deadline of calls in the gateway's configuration.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(8);
/// Age of a block from which its logs and receipts must be complete. A healthy node sees a block at
/// most 600 ms late (one block and 100 ms), and needs at most a second to index it.
const INDEXED_AFTER: Duration = Duration::from_millis(1_700);
/// Maximum number of findings that are printed, because one bug can cause thousands.
const FINDINGS_MAX: usize = 5;
/// Maximum length of a response in a finding, in bytes.
const SHOWN_BYTES_MAX: usize = 600;
/// A finding lists the nodes' failures from this time before the call until its response.
const LOOK_BACK: Duration = Duration::from_secs(4);
/// Maximum nesting depth of responses.
const DEPTH_MAX: usize = 128;

/// A request that a client has sent, with one call or a batch of calls.
pub(crate) struct SentRequest {
    pub(crate) client: u64,
    /// The calls, each with its id as raw JSON.
    pub(crate) calls: Vec<(String, Call)>,
    /// True if the body is a JSON array.
    pub(crate) batch: bool,
    pub(crate) sent_at: Instant,
}

impl SentRequest {
    /// Returns the start of the time in which failures of nodes may still affect the response,
    /// because the gateway catches up only after [`CATCH_UP`].
    fn catch_up_start(&self) -> Instant {
        self.sent_at.checked_sub(CATCH_UP).unwrap_or(self.sent_at)
    }
}

/// Checks responses against the chain.
pub(crate) struct Checker {
    pub(crate) world: Arc<World>,
    oracle: Oracle,
    /// The command that repeats this run.
    rerun_command: String,
    pub(crate) adversary: RefCell<Adversary>,
    pub(crate) tally: RefCell<Tally>,
    shown_blocks: RefCell<ShownBlocks>,
    /// A hash of all responses and their times, to compare runs.
    fingerprint: Cell<u64>,
}

/// Counts of all calls and their verdicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) verdicts: BTreeMap<&'static str, u64>,
    /// Errors that are tolerated because no node was healthy, by code.
    pub(crate) tolerated_errors: BTreeMap<i64, u64>,
    /// Old heads that are tolerated because all nodes were silent shortly before.
    pub(crate) tolerated_old_heads: u64,
    /// False responses that are tolerated because the gateway could not detect them.
    pub(crate) tolerated_false_responses: u64,
    /// Responses that are tolerated although they lack logs or receipts, because the blocks were
    /// very new.
    pub(crate) tolerated_incomplete_responses: u64,
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
            shown_blocks: RefCell::default(),
            fingerprint: Cell::new(0),
        }
    }

    /// Returns the hash of all responses and their times.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint.get()
    }

    /// Checks the response to a request. `result` is an error if the connection ended before the
    /// response.
    pub(crate) fn judge(
        &self,
        cluster: &Cluster,
        request: &SentRequest,
        result: std::io::Result<HttpResponse>,
    ) {
        let received = Instant::now();
        self.update_fingerprint(received, result.as_ref().map_or(&[], |response| &response.body));
        let took = received - request.sent_at;
        let mut tally = self.tally.borrow_mut();
        tally.calls += request.calls.len() as u64;
        tally.longest = tally.longest.max(took);
        drop(tally);
        let response = match result {
            Ok(response) => response,
            Err(error) => {
                return self.record_finding(cluster, request, &format!("no answer: {error}"), b"");
            }
        };
        let text = match std::str::from_utf8(&response.body) {
            Ok(text) => text,
            Err(error) => {
                return self.record_finding(cluster, request, &error.to_string(), &response.body);
            }
        };
        let items = if request.batch {
            match serde_json::from_str::<Vec<&RawValue>>(text) {
                Ok(items) => items.into_iter().map(RawValue::get).collect(),
                Err(error) => {
                    let description = error.to_string();
                    return self.record_finding(cluster, request, &description, &response.body);
                }
            }
        } else {
            vec![text]
        };
        if items.len() != request.calls.len() {
            let description = format!("{} answers to {} calls", items.len(), request.calls.len());
            return self.record_finding(cluster, request, &description, &response.body);
        }
        for ((id, call), item) in request.calls.iter().zip(items) {
            self.judge_item(cluster, request, &response, (id, call), item.as_bytes());
        }
    }

    /// Checks the response to one call.
    fn judge_item(
        &self,
        cluster: &Cluster,
        request: &SentRequest,
        response: &HttpResponse,
        (id, call): (&str, &Call),
        item: &[u8],
    ) {
        let parsed = match parse_response(item, DEPTH_MAX) {
            Ok(parsed) if parsed.id == id.as_bytes() => parsed,
            Ok(_) => {
                return self.record_finding(cluster, request, "an answer with another id", item);
            }
            Err(error) => return self.record_finding(cluster, request, &error.to_string(), item),
        };
        let received = Instant::now();
        let corrupted;
        let reply = match parsed.outcome {
            Outcome::Error { code, .. } => ObservedReply::Error { code },
            Outcome::Result(result) => {
                let mut adversary = self.adversary.borrow_mut();
                corrupted = adversary.corrupt(request.client, call, result, received);
                ObservedReply::Result(corrupted.as_deref().unwrap_or(result))
            }
        };
        let verdict = self.oracle.judge(&Exchange {
            method: call.method,
            params: Some(call.params.as_bytes()),
            reply,
            sent: request.sent_at,
            received,
            client: request.client,
        });
        if let ObservedReply::Result(result) = reply {
            self.check_shown_blocks(cluster, request, call, result, &verdict);
        }
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
            // The oracle does not know this error. A node sent it, not the gateway.
            Verdict::Unjudged(_) if !matches!(reply, ObservedReply::Error { code: OWN_ERROR }) => {}
            Verdict::Failed { .. } | Verdict::Unjudged(_)
                if cluster.all_unhealthy(earliest_start(request, response), received) =>
            {
                if let ObservedReply::Error { code } = reply {
                    *self.tally.borrow_mut().tolerated_errors.entry(code).or_default() += 1;
                }
            }
            Verdict::Wrong(_) if self.is_undetectable_lie(cluster, request, received, call) => {
                self.tally.borrow_mut().tolerated_false_responses += 1;
            }
            Verdict::Wrong(_) | Verdict::Stale { .. }
                if self.lacks_only_new_blocks(
                    earliest_start(request, response),
                    received,
                    cluster,
                    call,
                    &reply,
                ) =>
            {
                self.tally.borrow_mut().tolerated_incomplete_responses += 1;
            }
            Verdict::Stale { .. } | Verdict::Backward { .. }
                if cluster.all_silent(request.catch_up_start(), received) =>
            {
                self.tally.borrow_mut().tolerated_old_heads += 1;
            }
            _ => {
                let HttpResponse { status, cache, node, .. } = response;
                let description = format!(
                    "{verdict:?}\n  call {} {}\n  status {status}, cache {cache}, node {node}",
                    call.method, call.params
                );
                let shown = judged_bytes(&reply, item);
                self.record_finding(cluster, request, &description, shown);
            }
        }
    }

    /// Records a finding if the client was shown a block above the head of this response. While all
    /// nodes are silent, the gateway serves no head.
    fn check_shown_blocks(
        &self,
        cluster: &Cluster,
        request: &SentRequest,
        call: &Call,
        result: &[u8],
        verdict: &Verdict,
    ) {
        let (client, received) = (request.client, Instant::now());
        let times = (request.sent_at, received);
        let shown = self.shown_blocks.borrow_mut().check(client, call, result, times);
        // Other verdicts have their own findings.
        if let (Some(block), Verdict::Right) = (shown, verdict)
            && !cluster.all_silent(request.catch_up_start(), received)
        {
            let description = format!("the client was shown block {block} before this head");
            self.record_finding(cluster, request, &description, result);
        }
    }

    /// Returns true if the gateway could not detect that a node's response was false. This is so if
    /// a node reported a false head, and either the call is about blocks above the gateway's head,
    /// or no other node reported a head.
    fn is_undetectable_lie(
        &self,
        cluster: &Cluster,
        request: &SentRequest,
        received: Instant,
        call: &Call,
    ) -> bool {
        let before = request.catch_up_start();
        let gateway_head_min = self.world.height_at(before);
        let is_above_head =
            call.params.split('"').filter_map(|text| text.strip_prefix("0x")).any(|digits| {
                u64::from_str_radix(digits, 16).is_ok_and(|number| number > gateway_head_min)
            });
        cluster.any_lying(before, received)
            && (is_above_head || cluster.all_silent(before, received))
    }

    /// Returns true if a response is right except that it lacks logs or receipts of blocks younger
    /// than [`INDEXED_AFTER`]. If no node was healthy shortly before the call, the blocks may have
    /// any age.
    fn lacks_only_new_blocks(
        &self,
        call_start: Instant,
        received: Instant,
        cluster: &Cluster,
        call: &Call,
        reply: &ObservedReply<'_>,
    ) -> bool {
        let ObservedReply::Result(returned) = *reply else { return false };
        if !["Logs", "Receipts", "Receipt"].iter().any(|suffix| call.method.ends_with(suffix)) {
            return false;
        }
        let returned: Value =
            serde_json::from_slice(returned).expect("the response was parsed before");
        let indexed_at = call_start.checked_sub(INDEXED_AFTER).unwrap_or(call_start);
        let (lowest, newest) = (self.world.height_at(indexed_at), self.world.height_at(received));
        // If all nodes were unhealthy, a recovered node may still be ejected. Until the gateway
        // readmits it, the gateway may use a node that lacks data of any block.
        let readmitted_after = call_start.checked_sub(CATCH_UP).unwrap_or(call_start);
        let indexed_head =
            if cluster.all_unhealthy(readmitted_after, received) { 0 } else { lowest };
        let is_new = |item: &Value| {
            let number = item["blockNumber"].as_str().and_then(|text| text.strip_prefix("0x"));
            let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            // Compares hashes, because a reorg creates new blocks with old numbers.
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
            // The gateway forwards block ranges that end above its head. Some nodes return the
            // logs up to their own head instead of an error.
            let view = View { clamps_logs_to_head: true, ..View::honest(head) };
            let expected = rpc::respond(&self.world, &view, call.method, params);
            let Reply::Result(expected) = expected else { return false };
            let expected =
                items(serde_json::from_slice(&expected).expect("the simulated node returns JSON"));
            returned.iter().all(|item| expected.contains(item))
                && expected.iter().all(|item| is_new(item) || returned.contains(item))
        })
    }

    /// Counts a violation and, for the first [`FINDINGS_MAX`], stores its description.
    fn record_finding(
        &self,
        cluster: &Cluster,
        request: &SentRequest,
        description: &str,
        response: &[u8],
    ) {
        let mut tally = self.tally.borrow_mut();
        tally.findings_count += 1;
        if tally.findings.len() >= FINDINGS_MAX {
            return;
        }
        let (origin, now) = (self.world.origin(), Instant::now());
        let shown_from = request.sent_at.checked_sub(LOOK_BACK).unwrap_or(origin).max(origin);
        let shown = String::from_utf8_lossy(&response[..response.len().min(SHOWN_BYTES_MAX)]);
        let mut text = format!(
            "{description}\n  client {}, {} calls, sent at {:?}, answered at {:?}\n  answer {shown}\n",
            request.client,
            request.calls.len(),
            request.sent_at.saturating_duration_since(origin),
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

    /// Adds a response to the fingerprint. It is an FNV-1a hash, because hashes of the standard
    /// library may differ between processes.
    fn update_fingerprint(&self, received: Instant, bytes: &[u8]) {
        let mut hash = Fnv(self.fingerprint.get());
        hash.write(
            &received.saturating_duration_since(self.world.origin()).as_nanos().to_le_bytes(),
        );
        hash.write(bytes);
        self.fingerprint.set(hash.finish());
    }
}

/// Returns the earliest time at which the gateway may have started the call. If the gateway
/// coalesced the call with an equal one, it may have started before this client sent its request.
fn earliest_start(request: &SentRequest, response: &HttpResponse) -> Instant {
    let is_coalesced = response.cache.contains("coalesced");
    let started_before = if is_coalesced { CALL_DEADLINE } else { Duration::ZERO };
    request.sent_at.checked_sub(started_before).unwrap_or(request.sent_at)
}

/// Returns the bytes that the oracle judged: the result after a possible corruption, or the whole
/// error response.
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
        write!(f, ", excused {:?}", self.tolerated_errors)?;
        write!(f, ", catching up {}", self.tolerated_old_heads)?;
        write!(f, ", lies passed {}", self.tolerated_false_responses)?;
        write!(f, ", lacking of young blocks {}", self.tolerated_incomplete_responses)
    }
}
