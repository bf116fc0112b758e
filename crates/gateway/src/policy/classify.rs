//! Classifies the response of an upstream: a response for the client, a fault, or a rate limit.
//!
//! The HTTP status is not enough, and upstreams use code -32000 for any error. So the error texts
//! of real clients and providers are matched; `crates/gateway/policy/errors.toml` lists them.
//! `retry`, `health` and `cacheable` act on the verdict.

use std::sync::OnceLock;
use std::time::Duration;

use memchr::memmem::Finder;
use serde::Deserialize;

#[cfg(test)]
mod tests;

/// Maximum number of bytes of a message that are searched. The known texts are at the start;
/// nethermind and ganache append whole stack traces.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Outcome of a call to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome<'a> {
    /// No response: the connection failed or the deadline expired.
    Broken(Fault),
    /// An HTTP response without a JSON-RPC response to this call: HTML, another id, or truncated.
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
        /// True if the method sends a signed transaction (`wire::method::Repeat::Broadcast`).
        broadcast: bool,
    },
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
    /// The upstream failed, and another upstream may do better. If none does, the client gets this
    /// response.
    UpstreamFault(Fault),
    /// The upstream reports its rate limit. This is not a failure.
    RateLimited {
        /// The requested pause, if any.
        retry_after: Option<Duration>,
    },
    /// This upstream does not support the method. Another may.
    Unsupported,
    /// The transaction is in the pool already: success with its hash.
    AlreadyKnown,
    /// The nonce of the transaction is used. This is a success if the same transaction used it,
    /// which only a lookup of the hash can show. If the gateway has not sent the transaction
    /// before, the error goes to the client.
    NonceTooLow,
}

impl Verdict {
    /// Returns true if the response goes to the client, so that no other upstream is asked.
    pub fn is_response(self) -> bool {
        match self {
            Self::Response | Self::DeterministicError | Self::AlreadyKnown | Self::NonceTooLow => {
                true
            }
            Self::UpstreamFault(_) | Self::RateLimited { .. } | Self::Unsupported => false,
        }
    }
}

/// Failure of a call at an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// No connection could be made.
    Connect,
    /// The connection closed or broke before the whole response.
    Closed,
    /// No whole response within the attempt's deadline.
    Timeout,
    /// The response is no JSON-RPC response to the call.
    Malformed,
    /// An HTTP status of a server failure.
    Http,
    /// The upstream reports an internal error.
    Internal,
    /// The upstream lacks the requested state or history.
    MissingState,
    /// The upstream lacks the requested block.
    NotSynced,
    /// The call exceeds a size or time limit of the upstream.
    Limit,
    /// The upstream denies access.
    Refused,
}

/// Effect of a fault on the health of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The fault always counts.
    Always,
    /// The fault counts only if another upstream then did better. Some calls fail on every
    /// upstream, and a client that repeats one must not be able to eject them all.
    IfOtherDoesBetter,
    /// The fault does not count, because upstreams differ in their data and limits.
    None,
}

impl Fault {
    /// Returns whether the fault counts against the upstream.
    pub fn blame(self) -> Blame {
        match self {
            Self::Connect | Self::Closed | Self::Timeout | Self::Malformed | Self::Http => {
                Blame::Always
            }
            Self::Internal | Self::Refused => Blame::IfOtherDoesBetter,
            Self::MissingState | Self::NotSynced | Self::Limit => Blame::None,
        }
    }

    /// Returns the name for logs, metric labels and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Malformed => "malformed",
            Self::Http => "http",
            Self::Internal => "internal",
            Self::MissingState => "missing_state",
            Self::NotSynced => "not_synced",
            Self::Limit => "limit",
            Self::Refused => "refused",
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
            // -32029: several providers; 429: Alchemy inside HTTP 200.
            code: -32029 | 429,
            retry_after,
            ..
        } => Verdict::RateLimited { retry_after },
        // Code 3 is geth's for a revert, with the reason as data.
        CallOutcome::Error { code: 3, .. } => Verdict::DeterministicError,
        CallOutcome::Error { retry_after, code, message, broadcast, .. } => {
            let by_text = rules().find(code, message, broadcast);
            let meaning = by_text.map_or_else(|| meaning_of(code), |rule| rule.meaning);
            meaning.verdict(retry_after)
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

/// Returns the meaning of a code whose text is unknown.
fn meaning_of(code: i64) -> Meaning {
    match code {
        // JSON-RPC 2.0 section 5.1; EIP-1474 method not supported; besu method not enabled.
        -32601 | -32004 | -32604 => Meaning::Unsupported,
        -32603 => Meaning::Internal,
        // EIP-1474 resource not found: EIP-1898 makes it the code of an unknown block. Besu -39001.
        -32001 | -39001 => Meaning::NotSynced,
        // EIP-1474 resource unavailable (nethermind: no state); EIP-4444 as execution-apis#636.
        -32002 | 4444 => Meaning::MissingState,
        // EIP-1474 limit exceeded: Infura's for rates; sizes have texts above.
        -32005 => Meaning::RateLimited,
        // Nethermind ErrorCodes.cs Timeout, ModuleTimeout; geth's response too large.
        -32016 | -32017 => Meaning::Limit,
        // Besu unauthorized.
        -40100 => Meaning::Refused,
        // -32000 with an unknown text is most often the caller's fault, so the client gets the
        // error.
        _ => Meaning::Response,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Meaning {
    Response,
    Revert,
    Internal,
    MissingState,
    NotSynced,
    Limit,
    Refused,
    RateLimited,
    Unsupported,
    AlreadyKnown,
    NonceTooLow,
}

impl Meaning {
    fn verdict(self, retry_after: Option<Duration>) -> Verdict {
        match self {
            Self::Response => Verdict::Response,
            Self::Revert => Verdict::DeterministicError,
            Self::Internal => Verdict::UpstreamFault(Fault::Internal),
            Self::MissingState => Verdict::UpstreamFault(Fault::MissingState),
            Self::NotSynced => Verdict::UpstreamFault(Fault::NotSynced),
            Self::Limit => Verdict::UpstreamFault(Fault::Limit),
            Self::Refused => Verdict::UpstreamFault(Fault::Refused),
            Self::RateLimited => Verdict::RateLimited { retry_after },
            Self::Unsupported => Verdict::Unsupported,
            Self::AlreadyKnown => Verdict::AlreadyKnown,
            Self::NonceTooLow => Verdict::NonceTooLow,
        }
    }
}

struct Rules {
    rules: Vec<Rule>,
}

struct Rule {
    meaning: Meaning,
    codes: Vec<i64>,
    broadcast_only: bool,
    words: Vec<Finder<'static>>,
    unless: Option<Finder<'static>>,
}

impl Rules {
    fn find(&self, code: i64, message: &str, broadcast: bool) -> Option<&Rule> {
        let bytes = message.as_bytes();
        let message = bytes[..bytes.len().min(MESSAGE_BYTES_MAX)].to_ascii_lowercase();
        self.rules.iter().find(|rule| {
            (!rule.broadcast_only || broadcast)
                && (rule.codes.is_empty() || rule.codes.contains(&code))
                && rule.words.iter().all(|word| word.find(&message).is_some())
                && rule.unless.as_ref().is_none_or(|word| word.find(&message).is_none())
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    rule: Vec<RuleEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    verdict: Meaning,
    text: Vec<String>,
    #[serde(default)]
    codes: Vec<i64>,
    unless: Option<String>,
    only: Option<Only>,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the tests"))]
    example: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the tests"))]
    source: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Only {
    Broadcast,
}

fn finder(word: &str) -> Finder<'static> {
    Finder::new(&word.to_ascii_lowercase()).into_owned()
}

const ERRORS: &str = include_str!("../../policy/errors.toml");

fn rules() -> &'static Rules {
    static RULES: OnceLock<Rules> = OnceLock::new();
    RULES.get_or_init(|| {
        let file: RulesFile =
            toml::from_str(ERRORS).expect("the file is compiled in and read in a test");
        let compile = |rule: RuleEntry| Rule {
            meaning: rule.verdict,
            codes: rule.codes,
            broadcast_only: rule.only == Some(Only::Broadcast),
            words: rule.text.iter().map(|word| finder(word)).collect(),
            unless: rule.unless.as_deref().map(finder),
        };
        Rules { rules: file.rule.into_iter().map(compile).collect() }
    })
}
