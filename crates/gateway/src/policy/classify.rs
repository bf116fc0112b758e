//! Classifies the outcome of a call to an upstream. The *verdict* has three main cases: the client
//! gets the response, the upstream failed, or the upstream limits the gateway's rate. A *fault* is
//! the way in which an upstream failed a call.
//!
//! The HTTP status is not enough, and upstreams use code -32000 for any error. So error texts are
//! matched as well; `crates/gateway/policy/errors.toml` lists the texts of real node software and
//! providers. `retry`, `health` and `cacheable` act on the verdict.

use std::sync::OnceLock;
use std::time::Duration;

use memchr::memmem::Finder;
use serde::Deserialize;
use wire::method::Repeat;

use crate::policy::closed_set::closed_set;

#[cfg(test)]
mod tests;

/// Maximum number of bytes of an error message that are searched. The known texts are at the start,
/// and nethermind and ganache append whole stack traces.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Outcome of a call to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome<'a> {
    /// No response, because the connection failed or the deadline expired.
    Broken(Fault),
    /// An HTTP response without a JSON-RPC response to this call, for example an HTML page, a
    /// response with another id, or a truncated response.
    Http {
        /// HTTP status.
        status: u16,
        /// The `Retry-After` header, if present.
        retry_after: Option<Duration>,
    },
    /// A JSON-RPC result.
    Result,
    /// A JSON-RPC error.
    Error {
        /// HTTP status of the response.
        status: u16,
        /// The `Retry-After` header, if present.
        retry_after: Option<Duration>,
        /// JSON-RPC error code.
        code: i64,
        /// JSON-RPC error message.
        message: &'a str,
        /// True if the member `data` of the error is a hex string, such as the bytes of a revert.
        has_hex_data: bool,
        /// The kind of the method, which restricts some rules.
        method: MethodKind,
    },
}

/// The kinds of methods to which rules of `errors.toml` can be restricted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MethodKind {
    /// The method sends a signed transaction (`wire::method::Repeat::Broadcast`).
    Broadcast,
    /// The method executes mined transactions again, so an invalid transaction means that the
    /// upstream has the wrong state.
    Replay,
    /// Any other method.
    Other,
}

impl MethodKind {
    /// Returns the kind of the method with this name.
    pub fn new(name: &str, repeat: Repeat) -> MethodKind {
        const REPLAYS: [&str; 6] = [
            "debug_traceTransaction",
            "debug_traceBlock",
            "trace_transaction",
            "trace_block",
            "trace_replay",
            "trace_get",
        ];
        if repeat == Repeat::Broadcast {
            MethodKind::Broadcast
        } else if REPLAYS.iter().any(|prefix| name.starts_with(prefix)) {
            MethodKind::Replay
        } else {
            MethodKind::Other
        }
    }
}

/// Meaning of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The response goes to the client unchanged. It is a result, an error caused by the caller, or
    /// an error that every upstream would return.
    Response,
    /// The error goes to the client. It is the same for ever at the same block, so it may be cached
    /// for a fixed block.
    DeterministicError,
    /// No rule matches the error. One more upstream is asked, and of two such errors the client gets
    /// the first. The error says nothing about the health of the upstream.
    UnknownError,
    /// The upstream failed, and another upstream may do better. The client gets this response only
    /// if no other upstream does better.
    UpstreamFault(Fault),
    /// The upstream reports its rate limit. This is not a failure.
    RateLimited {
        /// The requested pause, if any.
        retry_after: Option<Duration>,
    },
    /// This upstream does not support the method. Another upstream may support it.
    Unsupported,
    /// The upstream's pool already has the transaction. The client gets a success with the
    /// transaction's hash.
    AlreadyKnown,
    /// The nonce of the transaction is already used. If the same transaction used it, the call is a
    /// success; only a lookup of the transaction's hash can show this. If the gateway has not sent
    /// the transaction before, the error goes to the client.
    NonceTooLow,
}

impl Verdict {
    /// Returns true if the response goes to the client, so that no other upstream is called.
    pub fn is_response(self) -> bool {
        match self {
            Self::Response | Self::DeterministicError | Self::AlreadyKnown | Self::NonceTooLow => {
                true
            }
            Self::UnknownError
            | Self::UpstreamFault(_)
            | Self::RateLimited { .. }
            | Self::Unsupported => false,
        }
    }
}

// `closed_set!` gives each variant the name that metrics and status pages use.
closed_set! {
    /// The way in which an upstream failed a call. The names appear in logs, metric labels and
    /// spans.
    #[derive(Hash)]
    pub enum Fault {
        /// No connection could be made.
        Connect = "connect",
        /// The connection closed or broke before the whole response.
        Closed = "closed",
        /// No whole response within the attempt's deadline.
        Timeout = "timeout",
        /// The response is no JSON-RPC response to the call.
        Malformed = "malformed",
        /// An HTTP status of a server failure.
        Http = "http",
        /// The upstream reports an internal error.
        Internal = "internal",
        /// The upstream lacks the requested state or history.
        MissingState = "missing_state",
        /// The upstream lacks the requested block.
        NotSynced = "not_synced",
        /// The call exceeds a size or time limit of the upstream.
        Limit = "limit",
        /// The upstream denies access.
        Refused = "refused",
    }
}

/// Impact of a fault on the health of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthImpact {
    /// The fault always counts.
    Always,
    /// The fault counts only if another upstream then succeeds. Some calls fail on every upstream,
    /// and a client that repeats such a call must not be able to eject all upstreams.
    IfOtherSucceeds,
    /// The fault does not count, because upstreams differ in their data and limits.
    None,
}

impl Fault {
    /// Returns the impact on the health of the upstream.
    pub fn health_impact(self) -> HealthImpact {
        match self {
            Self::Connect | Self::Closed | Self::Timeout | Self::Malformed | Self::Http => {
                HealthImpact::Always
            }
            Self::Internal | Self::Refused => HealthImpact::IfOtherSucceeds,
            Self::MissingState | Self::NotSynced | Self::Limit => HealthImpact::None,
        }
    }
}

/// Classifies the outcome of a call.
pub fn classify(outcome: &CallOutcome<'_>) -> Verdict {
    match *outcome {
        CallOutcome::Result => Verdict::Response,
        CallOutcome::Broken(fault) => Verdict::UpstreamFault(fault),
        CallOutcome::Http { status, retry_after } => classify_http(status, retry_after),
        CallOutcome::Error { status: 429, retry_after, .. }
        | CallOutcome::Error {
            // Several providers use -32029. Alchemy sends 429 with HTTP status 200.
            code: -32029 | 429,
            retry_after,
            ..
        } => Verdict::RateLimited { retry_after },
        // Geth uses code 3 for a revert, and `data` holds its bytes. Providers also use code 3 for
        // other errors, without data.
        CallOutcome::Error { code: 3, has_hex_data: true, .. } => Verdict::DeterministicError,
        CallOutcome::Error { status, retry_after, code, message, method, .. } => {
            let matching_rule = find_rule(code, message, method);
            match matching_rule.map_or_else(|| classify_code(status, code), |rule| rule.verdict) {
                Verdict::RateLimited { .. } => Verdict::RateLimited { retry_after },
                verdict => verdict,
            }
        }
    }
}

fn classify_http(status: u16, retry_after: Option<Duration>) -> Verdict {
    match status {
        429 => Verdict::RateLimited { retry_after },
        503 if retry_after.is_some() => Verdict::RateLimited { retry_after },
        401..=403 => Verdict::UpstreamFault(Fault::Refused),
        413 => Verdict::UpstreamFault(Fault::Limit),
        // A success or redirect without a JSON-RPC response: an HTML page with status 200, or a
        // login form.
        100..=399 => Verdict::UpstreamFault(Fault::Malformed),
        _ => Verdict::UpstreamFault(Fault::Http),
    }
}

/// Returns the verdict on an error whose text is unknown, by its HTTP status and code.
fn classify_code(status: u16, code: i64) -> Verdict {
    let fault = match code {
        // -32601: JSON-RPC 2.0 section 5.1. -32004: EIP-1474, method not supported. -32604: besu,
        // method not enabled.
        -32601 | -32004 | -32604 => return Verdict::Unsupported,
        -32603 => Fault::Internal,
        // -32001: EIP-1474, resource not found; EIP-1898 uses this code for an unknown block. Besu
        // uses -39001 for an unknown block.
        -32001 | -39001 => Fault::NotSynced,
        // -32002: EIP-1474, resource unavailable; nethermind uses it for missing state. 4444:
        // history deleted after EIP-4444 (execution-apis#636).
        -32002 | 4444 => Fault::MissingState,
        // EIP-1474, limit exceeded. Infura uses it for rates. Errors about sizes have known texts,
        // so rules of `errors.toml` match them first.
        -32005 => return Verdict::RateLimited { retry_after: None },
        // Nethermind (`ErrorCodes.cs`): Timeout and ModuleTimeout. Geth: response too large.
        -32016 | -32017 => Fault::Limit,
        // Besu: unauthorized.
        -40100 => Fault::Refused,
        // execution-apis, eth_simulateV1: the call or the simulated block is invalid.
        -38026..=-38010 => return Verdict::Response,
        _ if matches!(status, 401..=403) => Fault::Refused,
        _ if status == 413 => Fault::Limit,
        // Nodes send the errors of callers with status 200 or 400.
        _ if !matches!(status, 100..=400) => Fault::Internal,
        _ => return Verdict::UnknownError,
    };
    Verdict::UpstreamFault(fault)
}

/// Returns the verdict with this name in `errors.toml`. All other names are names of faults.
fn parse_verdict(name: &str) -> Verdict {
    match name {
        "response" => Verdict::Response,
        "revert" => Verdict::DeterministicError,
        "rate-limited" => Verdict::RateLimited { retry_after: None },
        "unsupported" => Verdict::Unsupported,
        "already-known" => Verdict::AlreadyKnown,
        "nonce-too-low" => Verdict::NonceTooLow,
        _ => {
            let is_named = |fault: &Fault| fault.as_str().replace('_', "-") == name;
            let fault = Fault::ALL.into_iter().find(is_named);
            Verdict::UpstreamFault(fault.expect("a test reads all names in the file"))
        }
    }
}

/// A compiled rule of `errors.toml`. Its verdict applies to errors that meet all conditions.
struct Rule {
    verdict: Verdict,
    /// JSON-RPC error codes; empty for any code.
    codes: Vec<i64>,
    /// The kind of methods to which the rule applies; `None` for any method.
    only: Option<MethodKind>,
    /// Texts in lower case. The message must contain all of them.
    texts: Vec<Finder<'static>>,
    /// Texts in lower case. The message must contain one of them; empty for no condition.
    alternatives: Vec<Finder<'static>>,
    /// A text that the message must not contain; `None` if there is no such text.
    unless: Option<Finder<'static>>,
}

/// Returns the first rule that matches an error.
fn find_rule(code: i64, message: &str, method: MethodKind) -> Option<&'static Rule> {
    let bytes = message.as_bytes();
    let message = bytes[..bytes.len().min(MESSAGE_BYTES_MAX)].to_ascii_lowercase();
    load_rules().iter().find(|rule| {
        let contains = |text: &Finder<'_>| text.find(&message).is_some();
        rule.only.is_none_or(|only| only == method)
            && (rule.codes.is_empty() || rule.codes.contains(&code))
            && rule.texts.iter().all(contains)
            && (rule.alternatives.is_empty() || rule.alternatives.iter().any(contains))
            && rule.unless.as_ref().is_none_or(|text| text.find(&message).is_none())
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    rule: Vec<RuleEntry>,
}

/// A rule as written in `errors.toml`, whose first lines describe the keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    verdict: String,
    #[serde(default)]
    text: Vec<String>,
    #[serde(default)]
    any: Vec<String>,
    #[serde(default)]
    codes: Vec<i64>,
    unless: Option<String>,
    only: Option<MethodKind>,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the tests"))]
    example: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the tests"))]
    source: String,
}

const ERRORS: &str = include_str!("../../policy/errors.toml");

/// Returns the rules of `errors.toml`, compiled once.
fn load_rules() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| {
        let file: RulesFile =
            toml::from_str(ERRORS).expect("the file is compiled in and read in a test");
        let finder = |text: &str| Finder::new(&text.to_ascii_lowercase()).into_owned();
        let compile = |rule: RuleEntry| Rule {
            verdict: parse_verdict(&rule.verdict),
            codes: rule.codes,
            only: rule.only,
            texts: rule.text.iter().map(|text| finder(text)).collect(),
            alternatives: rule.any.iter().map(|text| finder(text)).collect(),
            unless: rule.unless.as_deref().map(finder),
        };
        file.rule.into_iter().map(compile).collect()
    })
}
