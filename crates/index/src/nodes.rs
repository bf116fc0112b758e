//! Asking nodes: calls in, raw results out.
//!
//! Blocking, one exchange at a time on a line: the syncing threads have a line each, so that as many
//! exchanges are under way as there are threads.

mod http;
mod ipc;
mod socket;
mod url;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use wire::answer::{self, Answers, Outcome};

pub use self::url::{NodeUrl, Transport};

#[cfg(test)]
mod tests;

/// Nested arrays and objects in an answer.
const DEPTH_MAX: usize = 64;
/// Bytes of one message from a node: a batch of blocks with their receipts, a few of which may be
/// large; the sizes of batches are adjusted long before.
const ANSWER_BYTES_MAX: u64 = 512 << 20;
/// How long a node may take for a message.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an unexpected text that are shown.
const SHOWN_BYTES: usize = 120;

/// A call: a method and its parameters as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The method.
    pub method: &'static str,
    /// The array of parameters.
    pub params: String,
}

impl Call {
    /// A call with these parameters.
    pub fn new(method: &'static str, params: impl Into<String>) -> Call {
        Call { method, params: params.into() }
    }
}

/// What a node said against a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error {code}: {message}")]
pub struct Refusal {
    /// Its code.
    pub code: i64,
    /// Its message, shortened.
    pub message: String,
}

/// Why nothing came of an exchange.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// No connection, or a broken one, or no answer in time.
    #[error("{0}")]
    Transport(String),
    /// An HTTP status that is not 200.
    #[error("HTTP status {status}{}", shown(text))]
    Status {
        /// Which.
        status: u16,
        /// What was asked for in Retry-After.
        retry_after: Option<Duration>,
        /// The beginning of what came with it.
        text: String,
    },
    /// The node refused the batch as a whole.
    #[error("{0}")]
    Refused(Refusal),
    /// What came is no answer to what was asked.
    #[error("no answer: {0}")]
    Odd(String),
}

impl AskError {
    /// How long the node wants to be left alone, if it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            AskError::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the same may go well the next moment: nothing was said against it.
    pub fn may_pass(&self) -> bool {
        match self {
            AskError::Transport(_) | AskError::Odd(_) => true,
            AskError::Status { status, retry_after, .. } => *status >= 500 && retry_after.is_none(),
            AskError::Refused(_) => false,
        }
    }
}

fn shown(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// What came back for some calls.
#[derive(Debug)]
pub struct Replies {
    body: Vec<u8>,
    /// In the order of the calls.
    results: Vec<Result<Range<usize>, Refusal>>,
}

impl Replies {
    /// Bytes of the message.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// The raw result of a call.
    ///
    /// # Errors
    /// What the node said against the call.
    pub fn result(&self, at: usize) -> Result<&[u8], &Refusal> {
        match &self.results[at] {
            Ok(range) => Ok(&self.body[range.clone()]),
            Err(refusal) => Err(refusal),
        }
    }
}

/// One exchange at a time with a node, over a connection that is made when needed.
pub struct Line {
    node: Arc<NodeUrl>,
    connection: Option<Connection>,
}

enum Connection {
    Http(http::Http),
    Socket(Box<socket::Socket>),
    Ipc(ipc::Ipc),
}

impl Line {
    /// A line that is not connected yet.
    pub fn new(node: Arc<NodeUrl>) -> Line {
        Line { node, connection: None }
    }

    /// The node.
    pub fn node(&self) -> &Arc<NodeUrl> {
        &self.node
    }

    /// Asks calls in one message: a single one alone, several as a batch.
    ///
    /// # Errors
    /// Why nothing came of it; calls that were refused one by one are in the replies.
    pub fn ask(&mut self, calls: &[Call]) -> Result<Replies, AskError> {
        let mut message = Vec::with_capacity(96 * calls.len() + 2);
        if calls.len() != 1 {
            message.push(b'[');
        }
        for (id, call) in calls.iter().enumerate() {
            if id > 0 {
                message.push(b',');
            }
            let id = id.to_string();
            let params = Some(call.params.as_bytes());
            answer::write_call_raw(&mut message, id.as_bytes(), call.method, params);
        }
        if calls.len() != 1 {
            message.push(b']');
        }
        let body = self.exchange(&message)?;
        read(body, calls.len())
    }

    fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, AskError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => match self.node.transport() {
                Transport::Http => Connection::Http(http::Http::new(&self.node)),
                Transport::WebSocket => {
                    Connection::Socket(Box::new(socket::Socket::connect(&self.node)?))
                }
                Transport::Ipc => Connection::Ipc(ipc::Ipc::connect(self.node.socket_path())?),
            },
        };
        let body = match &mut connection {
            Connection::Http(http) => http.exchange(message),
            Connection::Socket(socket) => socket.exchange(message),
            Connection::Ipc(ipc) => ipc.exchange(message),
        };
        // What failed in the middle may have an answer under way that belongs to nothing.
        let whole = matches!(body, Ok(_) | Err(AskError::Status { .. }));
        if whole || matches!(connection, Connection::Http(_)) {
            self.connection = Some(connection);
        }
        body
    }
}

/// Sorts the answers of a message by the calls that they answer.
fn read(body: Vec<u8>, calls: usize) -> Result<Replies, AskError> {
    let odd = |fault: answer::AnswerFault| AskError::Odd(fault.to_string());
    let mut results: Vec<Option<Result<Range<usize>, Refusal>>> = vec![None; calls];
    let answers = answer::read_answers(&body, DEPTH_MAX, calls).map_err(odd)?;
    let mut take = |answer: answer::Answer<'_>| -> Result<(), AskError> {
        let id = wire::quantity::parse_decimal(answer.id).and_then(|id| usize::try_from(id).ok());
        let slot = id.and_then(|id| results.get_mut(id));
        let result = match answer.outcome {
            Outcome::Result(raw) => {
                let start = raw.as_ptr().addr() - body.as_ptr().addr();
                Ok(start..start + raw.len())
            }
            Outcome::Error { code, message, .. } => {
                Err(Refusal { code, message: shorten(&message) })
            }
        };
        match (slot, result) {
            (Some(slot @ None), result) => *slot = Some(result),
            (_, Err(refusal)) => return Err(AskError::Refused(refusal)),
            (_, Ok(_)) => {
                return Err(AskError::Odd("an answer to a call that was not made".to_owned()));
            }
        }
        Ok(())
    };
    match answers {
        Answers::One(answer) => {
            if let (2.., Outcome::Error { code, message, .. }) = (calls, &answer.outcome) {
                let refusal = Refusal { code: *code, message: shorten(message) };
                return Err(AskError::Refused(refusal));
            }
            take(answer)?;
        }
        Answers::Batch(answers) => {
            for answer in answers {
                take(answer.map_err(odd)?)?;
            }
        }
    }
    let results: Option<Vec<_>> = results.into_iter().collect();
    let results = results.ok_or_else(|| AskError::Odd("fewer answers than calls".to_owned()))?;
    Ok(Replies { body, results })
}

/// The beginning of a text from outside, without what would disturb a terminal.
fn shorten(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(SHOWN_BYTES).map(clean).collect();
    if text.chars().nth(SHOWN_BYTES).is_some() {
        short.push_str("...");
    }
    short
}
