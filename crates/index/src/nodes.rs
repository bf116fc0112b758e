//! Sends calls to nodes over HTTP, WebSocket or a Unix socket, and returns raw results.
//!
//! An exchange is one request with one or more calls, and its response. A client blocks its thread
//! during an exchange. Each worker thread of a sync has its own clients, so the number of threads
//! limits the exchanges in flight.

mod batch_limit;
mod endpoint;
mod http;
mod ipc;
mod websocket;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use settings::url::Transport;
use wire::call;
use wire::response::{self, Outcome};

pub use self::endpoint::{Endpoint, Header, parse_header};

#[cfg(test)]
mod tests;

/// Maximum nesting of arrays and objects in a response.
const DEPTH_MAX: usize = 64;
/// Maximum number of bytes of one response, such as the response to a batch of blocks with
/// receipts. A sync reduces its batch size long before a response gets this large.
const MESSAGE_BYTES_MAX: u64 = 512 << 20;
/// Timeout of one exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout to connect to a node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of characters of a node's text in an error message.
const EXCERPT_CHARS: usize = 300;

/// A call: a method and its parameters as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The method.
    pub method: &'static str,
    /// The array of parameters.
    pub params: String,
}

impl Call {
    /// Creates a call of this method with these parameters.
    pub fn new(method: &'static str, params: impl Into<String>) -> Call {
        Call { method, params: params.into() }
    }
}

/// A JSON-RPC error that a node returned for a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error {code}: {message}")]
pub struct RpcError {
    /// The error code.
    pub code: i64,
    /// The error message, shortened.
    pub message: String,
}

impl RpcError {
    fn new(code: i64, message: &str) -> RpcError {
        RpcError { code, message: excerpt(message) }
    }
}

/// The reason why an exchange failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection failed, or the node did not respond in time.
    #[error("{0}")]
    Transport(String),
    /// The node responded with an HTTP status other than 200.
    #[error("HTTP status {status}{}", with_colon(text))]
    Status {
        /// The status.
        status: u16,
        /// The delay in the header Retry-After; `None` if the header is missing or invalid.
        retry_after: Option<Duration>,
        /// The beginning of the body.
        text: String,
    },
    /// The node rejected the batch as a whole.
    #[error("{0}")]
    Rejected(RpcError),
    /// The response does not match the calls.
    #[error("invalid response: {0}")]
    Malformed(String),
}

impl CallError {
    /// Returns the pause that the node requested, or `None` if it requested no pause.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            CallError::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Returns true if an immediate retry may succeed: the node neither rejected the calls nor
    /// requested a pause.
    pub fn is_transient(&self) -> bool {
        match self {
            CallError::Transport(_) | CallError::Malformed(_) => true,
            CallError::Status { status, retry_after, .. } => {
                *status >= 500 && retry_after.is_none()
            }
            CallError::Rejected(_) => false,
        }
    }
}

/// Puts a colon before a text that is not empty.
fn with_colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// The responses to the calls of one exchange.
#[derive(Debug)]
pub struct Responses {
    body: Vec<u8>,
    /// The byte ranges of the raw results in the body, in the order of the calls.
    results: Vec<Result<Range<usize>, RpcError>>,
}

impl Responses {
    /// Returns the number of bytes of the response.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Returns the error of all calls, if all have the same one.
    fn shared_error(&self) -> Option<&RpcError> {
        let first = self.results.first()?.as_ref().err()?;
        self.results.iter().all(|result| result.as_ref().err() == Some(first)).then_some(first)
    }

    /// Appends the responses to the calls of another exchange.
    fn append(&mut self, other: Responses) {
        let offset = self.body.len();
        let shift = |range: Range<usize>| range.start + offset..range.end + offset;
        self.results.extend(other.results.into_iter().map(|result| result.map(shift)));
        self.body.extend_from_slice(&other.body);
    }

    /// Returns the raw result of the call with this index.
    ///
    /// # Errors
    /// Returns the error that the node returned for the call.
    pub fn result(&self, call: usize) -> Result<&[u8], &RpcError> {
        match &self.results[call] {
            Ok(range) => Ok(&self.body[range.clone()]),
            Err(error) => Err(error),
        }
    }
}

/// A client of one node. It connects with its first exchange.
pub struct Client {
    node: Arc<Endpoint>,
    /// The connection; `None` before the first exchange, and after a failure.
    connection: Option<Connection>,
}

/// A connection to a node, by transport.
enum Connection {
    Http(http::HttpConnection),
    WebSocket(Box<websocket::WebSocketConnection>),
    Ipc(ipc::IpcConnection),
}

impl Client {
    /// Creates a client that is not connected yet.
    pub fn new(node: Arc<Endpoint>) -> Client {
        Client { node, connection: None }
    }

    /// Sends calls in one request, or in several one after the other if the node accepts fewer calls
    /// in a batch.
    ///
    /// # Errors
    /// Fails if an exchange failed. The responses contain the errors of single calls.
    pub fn call(&mut self, calls: &[Call]) -> Result<Responses, CallError> {
        let batch_limit = self.node.batch_limit.clone();
        if calls.len() <= batch_limit.calls_max() {
            let result = self.call_together(calls);
            let rejection = match &result {
                // Some nodes reject a batch by an error for each call.
                Ok(responses) => responses.shared_error().cloned().map(CallError::Rejected),
                Err(error) => Some(error.clone()),
            };
            let is_too_large = calls.len() > 1
                && rejection.is_some_and(|error| batch_limit.record_rejection(calls.len(), &error));
            if !is_too_large {
                if result.is_ok() {
                    batch_limit.record_accepted(calls.len());
                }
                return result;
            }
        }
        let mut all = Responses { body: Vec::new(), results: Vec::new() };
        let mut remaining = calls;
        while !remaining.is_empty() {
            let count = remaining.len().min(batch_limit.calls_max());
            let (chunk, rest) = remaining.split_at(count);
            all.append(self.call(chunk)?);
            remaining = rest;
        }
        Ok(all)
    }

    /// Sends calls in one request. A single call is sent as an object, several calls as a batch.
    fn call_together(&mut self, calls: &[Call]) -> Result<Responses, CallError> {
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
            call::write_call(&mut message, id.as_bytes(), call.method, params);
        }
        if calls.len() != 1 {
            message.push(b']');
        }
        let body = self.exchange(&message)?;
        read_responses(body, calls.len())
    }

    /// Sends a request and returns the body of the response.
    fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, CallError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let body = match &mut connection {
            Connection::Http(http) => http.exchange(message),
            Connection::WebSocket(socket) => socket.exchange(message),
            Connection::Ipc(ipc) => ipc.exchange(message),
        };
        let body = body.map_err(|error| match error {
            CallError::Status { status, retry_after, text } => {
                CallError::Status { status, retry_after, text: self.node.mask(&text) }
            }
            other => other,
        });
        // After a failed exchange, the late response may still arrive on a WebSocket or Unix
        // socket. The next exchange would read that response, so it opens a new connection.
        let is_complete = matches!(body, Ok(_) | Err(CallError::Status { .. }));
        if is_complete || matches!(connection, Connection::Http(_)) {
            self.connection = Some(connection);
        }
        body
    }

    fn connect(&self) -> Result<Connection, CallError> {
        let node = &*self.node;
        Ok(match node.transport() {
            Transport::Http => Connection::Http(http::HttpConnection::new(node)),
            Transport::WebSocket => {
                let socket = websocket::WebSocketConnection::connect(node)?;
                Connection::WebSocket(Box::new(socket))
            }
            Transport::Ipc => Connection::Ipc(ipc::IpcConnection::connect(node.socket_path())?),
        })
    }
}

/// Assigns the responses in a body to the calls. The id of a call is its index.
fn read_responses(body: Vec<u8>, call_count: usize) -> Result<Responses, CallError> {
    let to_malformed = |error: response::ResponseError| CallError::Malformed(error.to_string());
    // The results by call; `None` until the response to the call is found.
    let mut results: Vec<Option<Result<Range<usize>, RpcError>>> = vec![None; call_count];
    let parsed = response::parse_responses(&body, DEPTH_MAX, call_count).map_err(to_malformed)?;
    let mut assign = |response: response::Response<'_>| -> Result<(), CallError> {
        let id = wire::quantity::parse_decimal(response.id).and_then(|id| usize::try_from(id).ok());
        let slot = id.and_then(|id| results.get_mut(id));
        let result = match response.outcome {
            Outcome::Result(raw) => {
                let start = raw.as_ptr().addr() - body.as_ptr().addr();
                Ok(start..start + raw.len())
            }
            Outcome::Error { code, message, .. } => Err(RpcError::new(code, &message)),
        };
        match (slot, result) {
            (Some(slot @ None), result) => *slot = Some(result),
            // An error without the id of a call rejects the whole request.
            (_, Err(error)) => return Err(CallError::Rejected(error)),
            (_, Ok(_)) => {
                let message = "a response with an unknown id";
                return Err(CallError::Malformed(message.to_owned()));
            }
        }
        Ok(())
    };
    match parsed {
        response::Responses::Single(response) => {
            // One error in response to a batch rejects the whole batch.
            if call_count > 1
                && let Outcome::Error { code, message, .. } = &response.outcome
            {
                return Err(CallError::Rejected(RpcError::new(*code, message)));
            }
            assign(response)?;
        }
        response::Responses::Batch(responses) => {
            for response in responses {
                assign(response.map_err(to_malformed)?)?;
            }
        }
    }
    let results: Option<Vec<_>> = results.into_iter().collect();
    let results =
        results.ok_or_else(|| CallError::Malformed("fewer responses than calls".to_owned()))?;
    Ok(Responses { body, results })
}

/// Returns the beginning of a text from a node. Control characters would disturb a terminal, so
/// they are replaced by spaces.
fn excerpt(text: &str) -> String {
    let replace_control = |character: char| if character.is_control() { ' ' } else { character };
    let mut beginning: String = text.chars().take(EXCERPT_CHARS).map(replace_control).collect();
    if text.chars().nth(EXCERPT_CHARS).is_some() {
        beginning.push_str("...");
    }
    beginning
}
