//! What an error of a node means. Nodes and providers use the same code for different errors, so the
//! texts decide: `crates/wire/errors.toml` lists those of real node software and providers.

use std::sync::OnceLock;

use memchr::memmem::Finder;
use serde::Deserialize;

use crate::method::Repeat;

mod numbers;

#[cfg(test)]
mod tests;

pub use numbers::{read_batch_limit, read_range_limits, read_wait, suggests_range};

/// Maximum number of bytes of an error message that are searched. The known texts are at the start,
/// and nethermind and ganache append whole stack traces.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// A JSON-RPC error that a node returned for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeError<'a> {
    /// The HTTP status of the response; 200 for other transports.
    pub status: u16,
    /// The error code.
    pub code: i64,
    /// The error message.
    pub message: &'a str,
    /// True if the member `data` of the error is a hex string, such as the bytes of a revert.
    pub has_hex_data: bool,
    /// The kind of the method, which restricts some rules.
    pub method: MethodKind,
}

/// The kinds of methods to which rules of `errors.toml` can be restricted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MethodKind {
    /// The method sends a signed transaction ([`Repeat::Broadcast`]).
    Broadcast,
    /// The method executes mined transactions again, so an invalid transaction means that the
    /// node has the wrong state.
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

/// What an error means. The first lines of `errors.toml` describe the kinds that its rules have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The execution always fails at that block.
    Reverted,
    /// The execution fails, but the failure may depend on the node's limits or version.
    Execution,
    /// The call is wrong, on every node.
    Caller,
    /// The call is probably wrong, on every node.
    LikelyCaller,
    /// The fee of a sent transaction is too low, on every node.
    Underpriced,
    /// The fee of a sent transaction is too low for this node.
    FeeTooLow,
    /// A sent transaction is in the pool already.
    AlreadyKnown,
    /// A sent transaction, or another one with its nonce, is in a block already.
    NonceTooLow,
    /// The call asks for more blocks than the node allows.
    RangeTooLarge,
    /// The call has more results than the node allows.
    TooManyResults,
    /// The response or the request has more bytes than the node allows.
    ResponseTooLarge,
    /// The batch has more calls than the node allows.
    BatchTooLarge,
    /// The call takes longer than the node allows.
    TooSlow,
    /// A limit that the node does not name (EIP-1474, "limit exceeded").
    LimitExceeded,
    /// The node got too many calls, for some seconds.
    Rate,
    /// The calls of the day are used up.
    DayUsedUp,
    /// The calls of the month are used up.
    MonthUsedUp,
    /// The node lacks that state or history.
    HistoryMissing,
    /// The node lacks that block.
    BlockUnknown,
    /// The node does not serve the method.
    MethodNotServed,
    /// The node denies access, for example to this key.
    AccessDenied,
    /// The node failed; another node may succeed.
    Internal,
    /// Nothing is known about the error.
    Unknown,
}

impl ErrorKind {
    /// Returns true if the node may serve a smaller call: fewer blocks, or fewer calls in a batch.
    pub fn is_size(self) -> bool {
        matches!(
            self,
            Self::RangeTooLarge
                | Self::TooManyResults
                | Self::ResponseTooLarge
                | Self::BatchTooLarge
                | Self::TooSlow
                | Self::LimitExceeded
        )
    }
}

/// Returns what an error means.
pub fn classify(error: &NodeError<'_>) -> ErrorKind {
    match *error {
        // Several providers use -32029. Alchemy sends 429 with HTTP status 200.
        NodeError { status: 429, .. } | NodeError { code: -32029 | 429, .. } => {
            match find_kind(error, Turn::First) {
                Some(kind @ (ErrorKind::DayUsedUp | ErrorKind::MonthUsedUp)) => kind,
                _ => ErrorKind::Rate,
            }
        }
        // Geth uses code 3 for a revert, and `data` holds its bytes. Providers also use code 3 for
        // other errors, without data, and zkSync for what its pool refuses.
        NodeError { code: 3, has_hex_data: true, method, .. }
            if method != MethodKind::Broadcast =>
        {
            ErrorKind::Reverted
        }
        _ => find_kind(error, Turn::First).unwrap_or_else(|| classify_unknown_text(error)),
    }
}

/// Returns the kind of an error whose text no rule knows that applies first.
fn classify_unknown_text(error: &NodeError<'_>) -> ErrorKind {
    let by_code = classify_code(error);
    let by_words = || find_kind(error, Turn::Last);
    match by_code {
        ErrorKind::Unknown | ErrorKind::LikelyCaller => by_words().unwrap_or(by_code),
        ErrorKind::LimitExceeded => by_words().filter(|kind| kind.is_size()).unwrap_or(by_code),
        _ => by_code,
    }
}

/// Returns the kind of an error by its HTTP status and code.
fn classify_code(error: &NodeError<'_>) -> ErrorKind {
    let NodeError { status, code, method, .. } = *error;
    match code {
        // -32601: JSON-RPC 2.0 section 5.1. -32004: EIP-1474, method not supported. -32604: besu,
        // method not enabled.
        -32601 | -32004 | -32604 => ErrorKind::MethodNotServed,
        -32603 => ErrorKind::Internal,
        // -32001: EIP-1474, resource not found; EIP-1898 uses this code for an unknown block. Besu
        // uses -39001 for an unknown block.
        -32001 | -39001 => ErrorKind::BlockUnknown,
        // -32002: EIP-1474, resource unavailable; nethermind uses it for missing state. 4444:
        // history deleted after EIP-4444 (execution-apis#636).
        -32002 | 4444 => ErrorKind::HistoryMissing,
        // EIP-1474, limit exceeded. Infura uses it for rates. Errors about sizes have known texts.
        -32005 => ErrorKind::LimitExceeded,
        // Nethermind (`ErrorCodes.cs`): Timeout and ModuleTimeout. Geth: response too large.
        -32016 | -32017 => ErrorKind::TooSlow,
        // Besu: unauthorized.
        -40100 => ErrorKind::AccessDenied,
        // execution-apis, eth_simulateV1: the call or the simulated block is invalid.
        -38026..=-38010 => ErrorKind::Caller,
        _ if matches!(status, 401..=403) => ErrorKind::AccessDenied,
        _ if status == 413 => ErrorKind::ResponseTooLarge,
        // Nodes send the errors of callers with status 200 or 400.
        _ if !matches!(status, 100..=400) => ErrorKind::Internal,
        // JSON-RPC 2.0, section 5.1: parse error, invalid request, invalid params. Providers use
        // these codes for their own limits too.
        -32700 | -32600 | -32602 => ErrorKind::LikelyCaller,
        3 if error.has_hex_data => ErrorKind::Reverted,
        // What a pool refuses for a reason without a rule, another pool will probably refuse too.
        _ if method == MethodKind::Broadcast => ErrorKind::LikelyCaller,
        _ => ErrorKind::Unknown,
    }
}

/// When a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Before code and HTTP status are considered.
    First,
    /// If neither the other rules nor code and status say anything. Such rules have general words.
    Last,
}

/// A compiled rule of `errors.toml`. Its kind applies to errors that meet all conditions.
struct Rule {
    kind: ErrorKind,
    turn: Turn,
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

/// Returns the kind of the first rule that matches an error, among the rules of this turn.
fn find_kind(error: &NodeError<'_>, turn: Turn) -> Option<ErrorKind> {
    find_rule(error, turn).map(|rule| rule.kind)
}

fn find_rule(error: &NodeError<'_>, turn: Turn) -> Option<&'static Rule> {
    let bytes = error.message.as_bytes();
    let message = bytes[..bytes.len().min(MESSAGE_BYTES_MAX)].to_ascii_lowercase();
    load_rules().iter().find(|rule| {
        let contains = |text: &Finder<'_>| text.find(&message).is_some();
        rule.turn == turn
            && rule.only.is_none_or(|only| only == error.method)
            && (rule.codes.is_empty() || rule.codes.contains(&error.code))
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
    kind: ErrorKind,
    #[serde(default)]
    text: Vec<String>,
    #[serde(default)]
    any: Vec<String>,
    #[serde(default)]
    codes: Vec<i64>,
    unless: Option<String>,
    only: Option<MethodKind>,
    #[serde(default)]
    last: bool,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the tests"))]
    example: String,
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the tests"))]
    source: String,
}

const ERRORS: &str = include_str!("../errors.toml");

/// Returns the rules of `errors.toml`, compiled once.
fn load_rules() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| {
        let file: RulesFile =
            toml::from_str(ERRORS).expect("the file is compiled in and read in a test");
        let finder = |text: &str| Finder::new(&text.to_ascii_lowercase()).into_owned();
        let compile = |rule: RuleEntry| Rule {
            kind: rule.kind,
            turn: if rule.last { Turn::Last } else { Turn::First },
            codes: rule.codes,
            only: rule.only,
            texts: rule.text.iter().map(|text| finder(text)).collect(),
            alternatives: rule.any.iter().map(|text| finder(text)).collect(),
            unless: rule.unless.as_deref().map(finder),
        };
        file.rule.into_iter().map(compile).collect()
    })
}
