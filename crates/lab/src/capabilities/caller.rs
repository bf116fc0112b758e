//! Sends calls to one address within a budget, and classifies their errors.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use lab_model::plan::{Target, Tls};
use serde_json::Value;
use wire::json::DEPTH_CEILING;
use wire::method::Repeat;
use wire::node_error::{ErrorKind, MethodKind, NodeError, classify};
use wire::response::{Outcome, Responses, parse_response, parse_responses};

use crate::target::client::describe_tls_failure;
use crate::target::{Client, Reason};

/// The requests and calls that may be sent to a node, over all its addresses.
pub(super) struct Budget {
    requests_max: u32,
    calls_max: u32,
    requests: Cell<u32>,
    calls: Cell<u32>,
    /// Time after which no request is sent.
    deadline: Instant,
}

impl Budget {
    pub(super) fn new(requests_max: u32, calls_max: u32, deadline: Instant) -> Budget {
        Budget { requests_max, calls_max, requests: Cell::new(0), calls: Cell::new(0), deadline }
    }

    /// Counts a request with this number of calls, if it may be sent.
    fn take(&self, calls: u32) -> Result<(), CallFault> {
        let (requests, calls) = (self.requests.get() + 1, self.calls.get() + calls);
        if requests > self.requests_max || calls > self.calls_max {
            return Err(CallFault::no_response("not asked: the number of calls is limited"));
        }
        if Instant::now() >= self.deadline {
            return Err(CallFault::no_response("not asked: the node responds too slowly"));
        }
        self.requests.set(requests);
        self.calls.set(calls);
        Ok(())
    }

    /// Returns the numbers of requests and calls that were sent.
    pub(super) fn sent(&self) -> (u32, u32) {
        (self.requests.get(), self.calls.get())
    }
}

/// The reason why a call has no result. Texts contain no secret of the address.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CallFault {
    /// The node returned an error.
    Error {
        /// The meaning of the error.
        kind: ErrorKind,
        /// The code; 0 if the response is not JSON-RPC.
        code: i64,
        /// The words of the node.
        message: String,
    },
    /// The node sent no response to the call.
    NoResponse(String),
}

impl CallFault {
    pub(super) fn no_response(reason: &str) -> CallFault {
        CallFault::NoResponse(reason.to_owned())
    }

    /// Returns true if any other call would fail for the same reason.
    pub(super) fn is_of_the_node(&self) -> bool {
        match self {
            CallFault::NoResponse(_) => true,
            CallFault::Error { kind, code, .. } => {
                // Code 0 marks an HTTP error without JSON-RPC.
                *code == 0 || matches!(kind, ErrorKind::AccessDenied | ErrorKind::Rate)
            }
        }
    }

    /// Describes a node of which no call succeeds, and what to do.
    pub(super) fn describe_unusable(&self) -> String {
        match self {
            CallFault::Error { kind: ErrorKind::AccessDenied, message, .. } => {
                format!(
                    "it refuses the key or token: {message}; check the key in the URL or headers"
                )
            }
            CallFault::Error { kind: ErrorKind::Rate, message, .. } => {
                format!(
                    "it refuses a single call as one too many: {message}; wait, or raise its limit"
                )
            }
            CallFault::Error { message, .. } => format!("{message}; check the path of the URL"),
            CallFault::NoResponse(reason) if reason.contains("set tls_ca") => reason.clone(),
            CallFault::NoResponse(reason) => {
                format!("{reason}; check that the node runs and that the URL is right")
            }
        }
    }
}

impl fmt::Display for CallFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallFault::Error { message, .. } => formatter.write_str(message),
            CallFault::NoResponse(reason) => formatter.write_str(reason),
        }
    }
}

/// Sends calls to one address.
pub(super) struct Caller<'a> {
    client: Client,
    budget: &'a Budget,
}

impl<'a> Caller<'a> {
    /// Creates a caller that connects with its first call. Fails if the CA file cannot be used.
    pub(super) fn new(
        target: &Target,
        tls: &Tls,
        timeout: Duration,
        budget: &'a Budget,
    ) -> Result<Caller<'a>, String> {
        let client = Client::with_timeout(target, tls, timeout);
        Ok(Caller { client: client.map_err(|fault| fault.reason.to_string())?, budget })
    }

    /// Calls a method. `params` is JSON text.
    pub(super) fn call(&self, method: &str, params: &str) -> Result<Value, CallFault> {
        let mut body = Vec::new();
        wire::call::write_call(&mut body, b"1", method, Some(params.as_bytes()));
        let (status, response) = self.send(&body, 1)?;
        match parse_response(&response, DEPTH_CEILING).map(|response| response.outcome) {
            Ok(Outcome::Result(raw)) => Ok(serde_json::from_slice(raw).unwrap_or_default()),
            Ok(Outcome::Error { code, message, .. }) => {
                Err(self.describe_error(method, status, code, &message, &response))
            }
            Err(fault) => Err(self.describe_body(method, status, &fault.to_string(), &response)),
        }
    }

    /// Calls a method without parameters `count` times in one batch. Fails if a call fails.
    pub(super) fn call_batch(&self, method: &str, count: u32) -> Result<(), CallFault> {
        let mut body = vec![b'['];
        for id in 1..=count {
            if id > 1 {
                body.push(b',');
            }
            wire::call::write_call(&mut body, id.to_string().as_bytes(), method, Some(b"[]"));
        }
        body.push(b']');
        let (status, response) = self.send(&body, count)?;
        let parsed = parse_responses(&response, DEPTH_CEILING, count as usize);
        let responses = match parsed {
            Ok(Responses::Batch(responses)) => responses,
            Ok(Responses::Single(response)) => vec![Ok(response)],
            Err(fault) => {
                return Err(self.describe_body(method, status, &fault.to_string(), &response));
            }
        };
        let mut results = 0;
        for parsed in &responses {
            match parsed.as_ref().map(|response| &response.outcome) {
                Ok(Outcome::Result(_)) => results += 1,
                Ok(Outcome::Error { code, message, raw, .. }) => {
                    return Err(self.describe_error(method, status, *code, message, raw));
                }
                Err(fault) => {
                    let fault = fault.to_string();
                    return Err(self.describe_body(method, status, &fault, &response));
                }
            }
        }
        match results == count {
            true => Ok(()),
            false => Err(CallFault::NoResponse(format!("{results} responses to {count} calls"))),
        }
    }

    /// Sends a request with this number of calls. Returns the status and the body of the response.
    fn send(&self, body: &[u8], calls: u32) -> Result<(u16, Vec<u8>), CallFault> {
        self.budget.take(calls)?;
        self.client.send(body).map_err(|error| {
            let reason = match describe_tls_failure(&error) {
                Some(error) if error.starts_with("the server's certificate") => Reason::Tls {
                    error: format!("{error}; set tls_ca to the file of its authority"),
                },
                Some(error) => Reason::Tls { error },
                None => self.client.reason(&error),
            };
            CallFault::NoResponse(reason.to_string())
        })
    }

    /// Classifies a JSON-RPC error. `body` contains the error.
    fn describe_error(
        &self,
        method: &str,
        status: u16,
        code: i64,
        message: &str,
        body: &[u8],
    ) -> CallFault {
        let kind = match status {
            401 => ErrorKind::AccessDenied,
            _ => classify_message(method, status, code, message),
        };
        let mut message = self.client.message_of(body);
        if status != 200 {
            message = format!("HTTP status {status}: {message}");
        }
        CallFault::Error { kind, code, message }
    }

    /// Classifies a body that is not JSON-RPC because of this fault.
    fn describe_body(&self, method: &str, status: u16, fault: &str, body: &[u8]) -> CallFault {
        let message = self.client.message_of(body);
        if (200..300).contains(&status) {
            let reason = format!("the response is not JSON-RPC ({fault}): {message}");
            return CallFault::NoResponse(reason);
        }
        let kind = classify_message(method, status, 0, &message);
        CallFault::Error { kind, code: 0, message: format!("HTTP status {status}: {message}") }
    }
}

/// Returns the meaning of an error of a read.
fn classify_message(method: &str, status: u16, code: i64, message: &str) -> ErrorKind {
    let method = MethodKind::new(method, Repeat::Safe);
    classify(&NodeError { status, code, message, has_hex_data: false, method })
}
