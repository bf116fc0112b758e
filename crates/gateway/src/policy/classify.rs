//! What an upstream's reply means: an answer, the upstream's own fault, or a wish for rest.
//!
//! HTTP status is not enough and code -32000 stands for anything, so the texts of real clients and
//! providers are matched; they are data, `crates/gateway/policy/errors.toml`. What to do about a
//! verdict is decided in `retry`, `health` and `cacheable`.

use std::sync::OnceLock;
use std::time::Duration;

use memchr::memmem::Finder;
use serde::Deserialize;

#[cfg(test)]
mod tests;

/// Bytes of a message that are looked at. The texts stand at the start; nethermind and ganache
/// append whole stack traces.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// What a call to an upstream came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard<'a> {
    /// No reply: the connection or the deadline failed.
    Broken(Fault),
    /// An HTTP reply without a JSON-RPC answer to this call in it: HTML, another id, cut short.
    Http {
        /// HTTP status.
        status: u16,
        /// The reply's `Retry-After`, if it had one.
        retry_after: Option<Duration>,
    },
    /// A JSON-RPC result.
    Result,
    /// A JSON-RPC error.
    Error {
        /// HTTP status that came with it.
        status: u16,
        /// The reply's `Retry-After`, if it had one.
        retry_after: Option<Duration>,
        /// Code of the error.
        code: i64,
        /// Message of the error.
        message: &'a str,
        /// The method sends a signed transaction (`wire::method::Repeat::Broadcast`).
        broadcast: bool,
    },
}

/// What it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// For the client as it is: a result, or an error that is the caller's or the same everywhere.
    Answer,
    /// For the client; and the same at that block for ever: may be kept with a fixed block.
    DeterministicError,
    /// The upstream's fault: another may do better. If none does, the client gets what the upstream
    /// said.
    UpstreamFault(Fault),
    /// The upstream wants rest; this is no ill health.
    RateLimited {
        /// For how long, if it said so.
        retry_after: Option<Duration>,
    },
    /// This upstream does not know the method: another may.
    Unsupported,
    /// The sent transaction is in the pool already: success with its hash.
    AlreadyKnown,
    /// The sent transaction's nonce is used: success if that transaction is this one, which only a
    /// look-up of its hash can tell. For a send never sent before, an answer for the client.
    NonceTooLow,
}

impl Verdict {
    /// Whether the upstream has answered the call, so that no other one is to be asked.
    pub fn is_answer(self) -> bool {
        match self {
            Self::Answer | Self::DeterministicError | Self::AlreadyKnown | Self::NonceTooLow => {
                true
            }
            Self::UpstreamFault(_) | Self::RateLimited { .. } | Self::Unsupported => false,
        }
    }
}

/// How an upstream failed a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// No connection could be made.
    Connect,
    /// The connection ended or broke before the whole reply.
    Closed,
    /// No whole reply within the attempt's deadline.
    Timeout,
    /// The reply is no JSON-RPC answer to the call.
    Malformed,
    /// An HTTP status that tells of a broken server.
    Http,
    /// It says itself that it failed.
    Internal,
    /// It has not the state or history asked for.
    MissingState,
    /// It has not the block asked for.
    NotSynced,
    /// The call is too large or too long for it.
    Limit,
    /// It does not let us in.
    Refused,
}

/// Whether a fault speaks against the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// It does.
    Always,
    /// Only if another upstream then did better: a call can be such that every upstream fails it,
    /// and a client that repeats it must not be able to take them all out.
    IfOtherDoesBetter,
    /// It does not: upstreams differ in what they hold and allow.
    None,
}

impl Fault {
    /// Whether it speaks against the upstream.
    pub fn blame(self) -> Blame {
        match self {
            Self::Connect | Self::Closed | Self::Timeout | Self::Malformed | Self::Http => {
                Blame::Always
            }
            Self::Internal | Self::Refused => Blame::IfOtherDoesBetter,
            Self::MissingState | Self::NotSynced | Self::Limit => Blame::None,
        }
    }

    /// A word for logs and metric labels.
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

/// What a call to an upstream came to, judged.
pub fn classify(heard: &Heard<'_>) -> Verdict {
    match *heard {
        Heard::Result => Verdict::Answer,
        Heard::Broken(fault) => Verdict::UpstreamFault(fault),
        Heard::Http { status, retry_after } => classify_http(status, retry_after),
        Heard::Error { status: 429, retry_after, .. }
        | Heard::Error {
            // -32029: several providers; 429: Alchemy inside HTTP 200.
            code: -32029 | 429,
            retry_after,
            ..
        } => Verdict::RateLimited { retry_after },
        // Code 3 is geth's for a revert, with the reason as data.
        Heard::Error { code: 3, .. } => Verdict::DeterministicError,
        Heard::Error { retry_after, code, message, broadcast, .. } => {
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
        // A success or redirect that is no answer: an HTML page with status 200, a login form.
        100..=399 => Verdict::UpstreamFault(Fault::Malformed),
        _ => Verdict::UpstreamFault(Fault::Http),
    }
}

/// What a code means when no text is known.
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
        // -32000 without a known text is most often the caller's fault, and the client must see it.
        _ => Meaning::Answer,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Meaning {
    Answer,
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
            Self::Answer => Verdict::Answer,
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
    rule: Vec<WrittenRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
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
        let compile = |rule: WrittenRule| Rule {
            meaning: rule.verdict,
            codes: rule.codes,
            broadcast_only: rule.only == Some(Only::Broadcast),
            words: rule.text.iter().map(|word| finder(word)).collect(),
            unless: rule.unless.as_deref().map(finder),
        };
        Rules { rules: file.rule.into_iter().map(compile).collect() }
    })
}
