//! The thread of one target. It first identifies the target: it reads the target's chain family
//! and version. Then it sends one call per turn. Calls of the plan alternate with calls that read
//! the target's head (the number of its newest block).

use std::sync::Arc;
use std::time::Instant;

use lab_engine::engine::single::{SingleCalls, classify};
use lab_model::record::Class;
use parking_lot::Mutex;
use wire::family::Family;
use wire::json::DEPTH_CEILING;
use wire::response::{Outcome, parse_response};

use super::turns::{Turn, Turns};
use super::{ProbeTarget, default_calls};
use crate::analysis::probe::{FinishedCall, ProbeState};
use crate::run::Stop;
use crate::target::{self, Client, Reason};

/// JSON-RPC id of the calls that read the head.
const HEAD_CALL_ID: u64 = 1;
/// The head is read in each turn whose number is a multiple of this number.
const HEAD_TURNS: u64 = 2;

/// The thread of one target.
pub(super) struct Caller {
    /// Index of the target in `state`.
    pub(super) index: usize,
    pub(super) target: ProbeTarget,
    /// The client waits for a turn before each request that identifies the target.
    pub(super) client: Client,
    pub(super) turns: Arc<Turns>,
    pub(super) state: Arc<Mutex<ProbeState>>,
    pub(super) stop: Arc<Stop>,
    /// Start of the probe, which is also the time of turn 0.
    pub(super) origin: Instant,
}

/// The calls to a target that was identified.
struct Calls {
    methods: Vec<Box<str>>,
    plan_calls: SingleCalls,
    /// The method that returns the head. `None` if the target's family is unknown.
    head_method: Option<&'static str>,
}

impl Caller {
    /// Sends calls until the stop is requested.
    pub(super) fn run(self) {
        let Some(mut calls) = self.identify() else { return };
        loop {
            let turn = self.turns.wait();
            if self.stop.is_requested() {
                return;
            }
            self.state.lock().targets[self.index].calls_skipped += turn.skipped;
            match calls.head_method.filter(|_| turn.number.is_multiple_of(HEAD_TURNS)) {
                Some(method) => self.call_head(method, turn),
                None => self.call(&mut calls, turn),
            }
        }
    }

    /// Identifies the target and prepares its calls, in as many attempts as needed. Returns `None`
    /// if the stop is requested before an attempt succeeds.
    fn identify(&self) -> Option<Calls> {
        loop {
            if self.stop.is_requested() {
                return None;
            }
            match self.prepare() {
                Ok(calls) => return Some(calls),
                Err(reason) => {
                    let now = self.origin.elapsed();
                    self.state.lock().fail_to_identify(self.index, &reason, now);
                }
            }
            // An attempt may fail before its first request, for example if the name cannot be
            // resolved. The wait limits the rate of such attempts too.
            self.turns.wait();
        }
    }

    /// Makes one attempt to identify the target and prepare its calls. The error is the reason for
    /// the failure.
    fn prepare(&self) -> Result<Calls, String> {
        let mut plan = self.target.plan.clone();
        if self.target.default_calls {
            // The family is not known yet, so the default calls of any family serve. They use no
            // chain data, so no chain data is fetched.
            default_calls::set(&mut plan, Family::Ethereum);
        }
        let probed = target::probe_with(&self.client, &plan);
        let probed = probed.map_err(|fault| fault.reason.to_string())?;
        let family: Option<Family> = probed.facts.family.parse().ok();
        if self.target.default_calls {
            let family = family.ok_or("its family is unknown; set it with --family")?;
            default_calls::set(&mut plan, family);
        }
        let plan = probed.reduced_plan.unwrap_or(plan);
        let plan_calls = SingleCalls::new(&plan, &Arc::new(probed.chain));
        let plan_calls = plan_calls.map_err(|fault| fault.to_string())?;
        self.state.lock().identify(self.index, probed.facts, probed.warnings);
        let head_method = family.map(target::head_method);
        Ok(Calls { methods: plan.methods, plan_calls, head_method })
    }

    /// Reads the head and records the call.
    fn call_head(&self, method: &str, turn: Turn) {
        let mut body = Vec::new();
        let id = HEAD_CALL_ID.to_string();
        wire::call::write_call(&mut body, id.as_bytes(), method, Some(&b"[]"[..]));
        let result = self.client.send(&body);
        let class = |status, body: &[u8]| classify(status, body, HEAD_CALL_ID);
        self.record(method, turn, &result, class, parse_head);
    }

    /// Sends the next call of the plan and records the call.
    fn call(&self, calls: &mut Calls, turn: Turn) {
        let (method_index, body) = calls.plan_calls.next_call();
        let method = &calls.methods[method_index];
        let result = self.client.send(body);
        let class = |status, body: &[u8]| calls.plan_calls.classify(status, body);
        self.record(method, turn, &result, class, |_| None);
        calls.plan_calls.advance();
    }

    /// Records a finished call. `class_of` returns the class of a response from its HTTP status and
    /// body. `head_of` returns the head from the body of a successful response.
    fn record(
        &self,
        method: &str,
        turn: Turn,
        result: &Result<(u16, Vec<u8>), ureq::Error>,
        class_of: impl Fn(u16, &[u8]) -> Class,
        head_of: impl Fn(&[u8]) -> Option<u64>,
    ) {
        let latency = turn.at.elapsed();
        let (class, head, reason) = match result {
            Ok((status, body)) => {
                let class = class_of(*status, body);
                let head = if class == Class::Ok { head_of(body) } else { None };
                (class, head, explain(class, *status, body))
            }
            Err(error) => {
                let reason = self.client.reason(error);
                (classify_error(error, &reason), None, reason.to_string())
            }
        };
        let reason = format!("{method}: {reason}");
        let turn = turn.number;
        let call = FinishedCall { method, class, latency, turn, head, reason: &reason };
        self.state.lock().record(self.index, &call, self.origin.elapsed());
    }
}

/// Returns the block number in the result of a response. `None` if the response is an error or
/// cannot be parsed, or if its result is no number.
fn parse_head(body: &[u8]) -> Option<u64> {
    match parse_response(body, DEPTH_CEILING).ok()?.outcome {
        Outcome::Result(raw) => target::number(&serde_json::from_slice(raw).ok()?),
        Outcome::Error { .. } => None,
    }
}

/// Explains why the response to a call is a failure.
fn explain(class: Class, status: u16, body: &[u8]) -> String {
    match class {
        Class::RpcError => {
            match parse_response(body, DEPTH_CEILING).map(|response| response.outcome) {
                Ok(Outcome::Error { code, message, .. }) => {
                    format!("JSON-RPC error {code} ({})", message.escape_debug())
                }
                _ => "JSON-RPC error".to_owned(),
            }
        }
        Class::Malformed => format!("the response with HTTP status {status} is not JSON-RPC"),
        Class::WrongId => "the response has the id of another call".to_owned(),
        _ => format!("HTTP status {status}"),
    }
}

/// Returns the class of an error of the client.
fn classify_error(error: &ureq::Error, reason: &Reason) -> Class {
    match reason {
        Reason::Resolve { .. }
        | Reason::Refused { .. }
        | Reason::Unreachable { .. }
        | Reason::ConnectTimeout { .. } => Class::Connect,
        Reason::Silent { .. } => Class::Timeout,
        Reason::Tls { .. } => Class::Tls,
        Reason::NoWebSocket { .. } => Class::Upgrade,
        _ if matches!(error, ureq::Error::Io(_)) => Class::Reset,
        _ => Class::Malformed,
    }
}
