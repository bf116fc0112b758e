//! The thread of one target: identifies the target, then sends its calls in turn.

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

/// The id of the calls for the head.
const HEAD_ID: u64 = 1;
/// The head is called in every turn whose number is a multiple of this.
const HEAD_TURNS: u64 = 2;

/// The thread of one target.
pub(super) struct Caller {
    pub(super) index: usize,
    pub(super) target: ProbeTarget,
    /// Its attempts to identify the target wait for turns.
    pub(super) client: Client,
    pub(super) turns: Arc<Turns>,
    pub(super) state: Arc<Mutex<ProbeState>>,
    pub(super) stop: Arc<Stop>,
    pub(super) origin: Instant,
}

/// The calls of a target that is identified.
struct Calls {
    methods: Vec<Box<str>>,
    single: SingleCalls,
    /// The method that returns the head, if the family is known.
    head_method: Option<&'static str>,
}

impl Caller {
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

    /// Identifies the target and prepares its calls. Tries again until it succeeds; returns `None`
    /// if the stop is requested.
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
            // A name that cannot be resolved takes no turn of its own.
            self.turns.wait();
        }
    }

    fn prepare(&self) -> Result<Calls, String> {
        let mut plan = self.target.plan.clone();
        if self.target.default_calls {
            // The values that the plan's own calls need are not read.
            default_calls::set(&mut plan, Family::Ethereum);
        }
        let probed = target::probe_with(&self.client, &plan);
        let probed = probed.map_err(|fault| fault.reason.to_string())?;
        let family: Option<Family> = probed.facts.family.parse().ok();
        if self.target.default_calls {
            let family = family.ok_or("its family is unknown; set it with --family")?;
            default_calls::set(&mut plan, family);
        }
        let single = SingleCalls::new(&plan, &Arc::new(probed.chain));
        let single = single.map_err(|fault| fault.to_string())?;
        self.state.lock().targets[self.index].facts = Some(probed.facts);
        let head_method = family.map(target::head_method);
        Ok(Calls { methods: plan.methods, single, head_method })
    }

    fn call_head(&self, method: &str, turn: Turn) {
        let mut body = Vec::new();
        let id = HEAD_ID.to_string();
        wire::call::write_call(&mut body, id.as_bytes(), method, Some(&b"[]"[..]));
        let result = self.client.send(&body);
        let class = |status, body: &[u8]| classify(status, body, HEAD_ID);
        self.record(method, turn, &result, class, head_in);
    }

    fn call(&self, calls: &mut Calls, turn: Turn) {
        let (method, body) = calls.single.next_call();
        let method = &calls.methods[method];
        let result = self.client.send(body);
        let class = |status, body: &[u8]| calls.single.classify(status, body);
        self.record(method, turn, &result, class, |_| None);
        calls.single.advance();
    }

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
                let head = (class == Class::Ok).then(|| head_of(body)).flatten();
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

/// Returns the number in the result of a response.
fn head_in(body: &[u8]) -> Option<u64> {
    match parse_response(body, DEPTH_CEILING).ok()?.outcome {
        Outcome::Result(raw) => target::number(&serde_json::from_slice(raw).ok()?),
        Outcome::Error { .. } => None,
    }
}

/// Explains why the response to a call is a failure.
fn explain(class: Class, status: u16, body: &[u8]) -> String {
    match class {
        Class::RpcError => match parse_response(body, DEPTH_CEILING).map(|found| found.outcome) {
            Ok(Outcome::Error { code, message, .. }) => {
                format!("JSON-RPC error {code} ({})", message.escape_debug())
            }
            _ => "JSON-RPC error".to_owned(),
        },
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
