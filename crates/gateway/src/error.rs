//! The gateway's one error type for calls that get no answer of a node, and the one for start-up.
//!
//! Decisions read the fields, never the text. `front/answer.rs` alone turns a [`Failure`] into
//! what a client sees.

use std::fmt;
use std::time::Duration;

pub(crate) use crate::rules::retry::Sent;
use crate::subscribe::Unable;

/// Who is at fault. A client's own faults are refusals and never come this far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Us,
    /// The node with this index into the configuration's list.
    Node(usize),
}

/// What went wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No node of the group can be used now.
    NoNode,
    /// The call's deadline passed.
    Deadline,
    /// Connecting failed: refused, unreachable, TLS, or no connection was free in time.
    Connect,
    /// The connection ended before the answer was complete.
    Closed,
    /// The node's answer is not a JSON-RPC answer to the call that was asked.
    Malformed,
    /// The node's answer is over the allowed size.
    TooLarge,
    /// The call is longer than what the node takes.
    CallTooLarge,
    /// Every node that was asked is rate limiting us.
    RateLimited,
    /// A node refused with an HTTP status.
    Status(u16),
    /// All answers of the batch together are over the allowed size.
    BatchTooLarge,
    /// The gateway is stopping.
    Stopping,
    /// The budget of memory has no room for the response.
    Memory,
    /// The method is not served, or not to this caller.
    MethodOff,
    /// It asks to be told of something from now on, which is not possible.
    Unable(Unable),
    /// The caller's key does not lead to the chain that a rule sent the call to.
    Forbidden,
    /// A rule sent the call to a path that leads to no chain.
    NoChain,
    /// The rule at this place of the configuration refuses the call.
    Rule(u16),
    /// The client is over the rate of a limit, which answers with this HTTP status.
    OverRate { status: u16 },
    /// The caller's key has used up what it may in this month.
    OverQuota,
    /// The client has as many calls in flight as a limit allows, which answers with this status.
    OverConcurrency { status: u16 },
    /// The nodes have no room for the call; it is answered with this status.
    Overloaded { status: u16 },
}

/// A call that has no answer of a node to give.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) origin: Origin,
    pub(crate) sent: Sent,
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    /// A failure before anything was sent to a node, which is our own.
    pub(crate) fn ours(kind: Kind) -> Failure {
        Failure { kind, origin: Origin::Us, sent: Sent::No, retry_after: None }
    }

    /// A failure of the node with this index.
    pub(crate) fn of_node(node: usize, kind: Kind, sent: Sent) -> Failure {
        Failure { kind, origin: Origin::Node(node), sent, retry_after: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:?}, sent: {:?})", self.kind, self.origin, self.sent)
    }
}

impl std::error::Error for Failure {}

/// Why the gateway cannot start or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The configured address.
        address: std::net::SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file of the access log cannot be written.
    #[error("cannot open the access log: {source}")]
    AccessLog {
        /// What the system says.
        source: std::io::Error,
    },
    /// What keys use of their quotas cannot be kept.
    #[error("cannot write the file of quotas, {}", file.display())]
    Quotas {
        /// The configured file.
        file: std::path::PathBuf,
    },
    /// A thread or its event loop cannot be started.
    #[error("cannot start a serving thread: {source}")]
    Thread {
        /// What the system says.
        source: std::io::Error,
    },
}
