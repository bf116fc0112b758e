//! Sends the calls of one thread to one upstream as one JSON-RPC batch. This saves requests to
//! upstreams that have only an HTTP address.
//!
//! The first call of a batch waits for other calls. The batch is sent once it is full or the wait
//! is over. Each call gets its own response, has its own deadline, and is classified as if it had
//! been sent alone. If the upstream rejects the batch or omits the response to a call, the call is
//! sent again alone. Only read calls are batched, because they may be repeated.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};
use wire::call::{call_bytes, write_call};
use wire::json::walk;
use wire::method::Repeat;
use wire::node_error::{self, MESSAGE_BYTES_MAX, MethodKind, NodeError};
use wire::quantity::Decimal;
use wire::response::{
    Outcome, Response, ResponseError, Responses, parse_responses, write_error_raw,
};

use crate::call::UpstreamRequest;
use crate::call::failure::{FailureKind, Sent};
use crate::config::upstream::Upstream;
use crate::metrics::counters::UpstreamCounters;
use crate::policy::batch::BatchLimit;
use crate::policy::classify::{CallOutcome, Verdict, classify};
use crate::upstream::exchange::{Body, DEPTH_MAX, ExchangeError, HttpResponse};
use crate::upstream::http::HttpClient;
use crate::upstream::multiplexed_pool::LARGE_WEIGHT;
use crate::upstream::resources::ThreadResources;

/// A batch is full once its encoded calls have this many bytes. Upstreams accept much larger
/// requests, and most batches are smaller.
const BYTES_MAX: usize = 256 * 1024;
/// geth's error code for a call whose response exceeds the limit of the batch response (`rpc`
/// package, `errcodeResponseTooLarge`).
const RESPONSE_TOO_LARGE: i64 = -32003;

/// Batches the calls of one thread to one upstream.
pub(crate) struct Batcher {
    thread: Rc<ThreadResources>,
    http: Rc<HttpClient>,
    /// Time that the first call of a batch waits for other calls.
    wait: Duration,
    /// The maximum number of calls per batch. It falls after the upstream has rejected a batch.
    calls_max: RefCell<BatchLimit>,
    /// The batch that collects calls; `None` if no call waits for a batch to be sent.
    current: RefCell<Option<Rc<Batch>>>,
    /// This thread's counters of the upstream.
    counts: Arc<UpstreamCounters>,
}

/// Calls that are sent together.
struct Batch {
    calls: RefCell<Calls>,
    /// Notified when the batch is full.
    full: Notify,
}

/// The calls of a batch.
struct Calls {
    /// The calls as JSON, separated by commas.
    encoded: Vec<u8>,
    pending: Vec<PendingCall>,
    /// The latest deadline of the calls.
    deadline: Instant,
    /// The largest `response_bytes_max` among the groups of the calls.
    response_bytes_max: usize,
}

/// A call of a batch that waits for its outcome.
struct PendingCall {
    id: Decimal,
    outcome: oneshot::Sender<BatchedOutcome>,
}

/// The outcome for one call of a batch.
enum BatchedOutcome {
    /// The response, as if the call had been sent alone.
    Response(HttpResponse),
    Failed(ExchangeError),
    /// The call has no response and must be sent alone.
    SendAlone,
}

impl Body for Calls {
    fn bytes(&self) -> usize {
        // The calls stand between two brackets.
        self.encoded.len() + 2
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        out.extend_from_slice(&self.encoded);
        out.push(b']');
    }
}

impl Batcher {
    /// Returns a batcher for an upstream; `None` if batches are off. `http` sends the batches.
    pub(crate) fn new(
        thread: &Rc<ThreadResources>,
        upstream: &Upstream,
        http: &Rc<HttpClient>,
        counts: &Arc<UpstreamCounters>,
    ) -> Option<Rc<Batcher>> {
        (upstream.batch_calls_max > 1).then(|| {
            Rc::new(Batcher {
                thread: Rc::clone(thread),
                http: Rc::clone(http),
                wait: upstream.batch_wait,
                calls_max: RefCell::new(BatchLimit::new(upstream.batch_calls_max)),
                current: RefCell::default(),
                counts: Arc::clone(counts),
            })
        })
    }

    /// Sends a call in a batch. Returns `None` if the caller must send it alone. A response of more
    /// than `response_bytes_max` bytes is an error.
    pub(crate) async fn send(
        self: &Rc<Batcher>,
        request: &UpstreamRequest<'_>,
        deadline: Instant,
        response_bytes_max: usize,
    ) -> Option<Result<(Decimal, HttpResponse), ExchangeError>> {
        // Methods of a high weight (relative cost) have large responses, which would delay the
        // other calls of the batch. A write must not be repeated.
        if request.repeat() != Repeat::Safe || request.weight() >= LARGE_WEIGHT {
            return None;
        }
        let calls_max = self.calls_max.borrow_mut().get(self.thread.clock.now());
        let id = Decimal::new(self.thread.next_id());
        let bytes = call_bytes(id.as_bytes(), &request.method_name, request.params.as_deref());
        // A call of more than half of `BYTES_MAX` is sent alone.
        if calls_max < 2 || bytes > BYTES_MAX / 2 {
            return None;
        }
        let batch = self.get_or_start_batch(deadline);
        let outcome = batch.add(&id, request, deadline, response_bytes_max);
        if batch.is_full(calls_max) {
            self.current.take();
            batch.full.notify_one();
        }
        match timeout_at(deadline, outcome).await {
            Ok(Ok(BatchedOutcome::Response(response))) => Some(Ok((id, response))),
            Ok(Ok(BatchedOutcome::Failed(error))) => Some(Err(error)),
            // The inner `Err` means that the batch's task has ended, because the thread stops.
            Ok(Ok(BatchedOutcome::SendAlone) | Err(_)) => None,
            Err(_) => Some(Err(ExchangeError::new(FailureKind::Deadline, Sent::Maybe))),
        }
    }

    /// Returns the batch that collects calls. Starts the task of a new batch.
    fn get_or_start_batch(self: &Rc<Batcher>, deadline: Instant) -> Rc<Batch> {
        let mut current = self.current.borrow_mut();
        let start_batch = || {
            let calls =
                Calls { encoded: Vec::new(), pending: Vec::new(), deadline, response_bytes_max: 0 };
            let batch = Rc::new(Batch { calls: RefCell::new(calls), full: Notify::new() });
            tokio::task::spawn_local(Rc::clone(self).collect_and_send(Rc::clone(&batch)));
            batch
        };
        Rc::clone(current.get_or_insert_with(start_batch))
    }

    /// Waits until the batch is full or the wait is over, sends its calls, and completes each call.
    async fn collect_and_send(self: Rc<Batcher>, batch: Rc<Batch>) {
        if self.wait.is_zero() {
            // The tasks that are runnable now run first and add their calls.
            tokio::task::yield_now().await;
        } else {
            tokio::select! {
                biased;
                () = batch.full.notified() => {}
                () = tokio::time::sleep(self.wait) => {}
            }
        }
        self.thread.clock.tick();
        self.current.borrow_mut().take_if(|current| Rc::ptr_eq(current, &batch));
        let calls = batch.take();
        // A batch of one call has no advantage, and a batch without waiting callers has no use.
        if calls.pending.len() < 2 || calls.pending.iter().all(|call| call.outcome.is_closed()) {
            return calls.complete(|_| BatchedOutcome::SendAlone);
        }
        self.counts.batches.add(1);
        self.counts.batched_calls.add(calls.pending.len() as u64);
        let bytes_max = calls.response_bytes_max;
        let post_batch =
            |new_connection| self.http.post(&calls, calls.deadline, new_connection, bytes_max);
        let posted = match post_batch(false).await {
            // The batch is sent again as a whole, because each call alone would need a new
            // connection.
            Err(error) if error.stale_connection => post_batch(true).await,
            posted => posted,
        };
        self.thread.clock.tick();
        match posted {
            Ok(response) => self.complete_from(calls, &response),
            // The response of each call alone may be within the limit.
            Err(error) if error.kind == FailureKind::TooLarge => self.send_each_alone(calls, None),
            // Some upstreams close the connection of a batch that is too large for them.
            Err(error) if error.kind == FailureKind::Closed => self.send_each_alone(calls, None),
            Err(error) => calls.complete(|_| BatchedOutcome::Failed(error)),
        }
    }

    /// Completes each call from the HTTP response to the batch.
    fn complete_from(&self, calls: Calls, http: &HttpResponse) {
        let HttpResponse { status, retry_after, body, .. } = http;
        let response_with = |body: Bytes| HttpResponse {
            status: *status,
            retry_after: *retry_after,
            body,
            reusable: true,
        };
        let parsed = parse_responses(body, DEPTH_MAX, calls.pending.len());
        match parsed.as_ref().map(|responses| (responses, find_batch_error(responses))) {
            Ok((_, Some(BatchError { raw, code, message }))) => {
                let (status, method) = (*status, MethodKind::Other);
                let error = NodeError { status, code, message, has_hex_data: false, method };
                let outcome = CallOutcome::Error { error, retry_after: *retry_after };
                let is_rate_limited = matches!(classify(&outcome), Verdict::RateLimited { .. });
                if !is_rate_limited || mentions_batch(message.as_bytes()) {
                    return self.send_each_alone(calls, node_error::read_batch_limit(message));
                }
                // The upstream limits the rate of calls, so each call gets the error as its
                // response.
                calls.complete(|id| {
                    let mut error_body = Vec::new();
                    write_error_raw(&mut error_body, id.as_bytes(), raw);
                    BatchedOutcome::Response(response_with(error_body.into()))
                });
            }
            Ok((Responses::Batch(responses), None)) => {
                let mut responses_by_id = ResponsesById::new(body, responses);
                calls.complete(|id| {
                    responses_by_id.take(id).map_or(BatchedOutcome::SendAlone, |response_body| {
                        BatchedOutcome::Response(response_with(response_body))
                    })
                });
            }
            // The body is no JSON-RPC response to the batch, so the status decides. With these
            // statuses an upstream rejects batches, or responds to a batch with something else.
            _ if matches!(status, 200..=299 | 400 | 403 | 405 | 411..=417 | 422 | 500)
                || mentions_batch(body) =>
            {
                self.send_each_alone(calls, None)
            }
            _ => calls.complete(|_| BatchedOutcome::Response(response_with(body.clone()))),
        }
    }

    /// Reduces the size of batches and sends the calls alone, because the upstream rejected the
    /// batch. `stated` is the limit that its error states.
    fn send_each_alone(&self, calls: Calls, stated: Option<usize>) {
        let now = self.thread.clock.now();
        self.calls_max.borrow_mut().record_rejection(now, calls.pending.len(), stated);
        calls.complete(|_| BatchedOutcome::SendAlone);
    }
}

impl Batch {
    /// Adds a call. Returns the receiver of its outcome.
    fn add(
        &self,
        id: &Decimal,
        request: &UpstreamRequest<'_>,
        deadline: Instant,
        response_bytes_max: usize,
    ) -> oneshot::Receiver<BatchedOutcome> {
        let mut calls = self.calls.borrow_mut();
        if !calls.encoded.is_empty() {
            calls.encoded.push(b',');
        }
        write_call(
            &mut calls.encoded,
            id.as_bytes(),
            &request.method_name,
            request.params.as_deref(),
        );
        let (sender, receiver) = oneshot::channel();
        calls.pending.push(PendingCall { id: *id, outcome: sender });
        calls.deadline = calls.deadline.max(deadline);
        calls.response_bytes_max = calls.response_bytes_max.max(response_bytes_max);
        receiver
    }

    /// Returns true if no further call should be added.
    fn is_full(&self, calls_max: usize) -> bool {
        let calls = self.calls.borrow();
        calls.pending.len() >= calls_max || calls.encoded.len() >= BYTES_MAX
    }

    /// Takes the calls out of the batch. No call may be added afterwards.
    fn take(&self) -> Calls {
        let mut calls = self.calls.borrow_mut();
        Calls {
            encoded: std::mem::take(&mut calls.encoded),
            pending: std::mem::take(&mut calls.pending),
            ..*calls
        }
    }
}

impl Calls {
    /// Completes each call with the outcome that `outcome_of` returns for its id.
    fn complete(self, mut outcome_of: impl FnMut(&Decimal) -> BatchedOutcome) {
        for call in self.pending {
            // Sending fails if the caller has dropped the call.
            let _sent = call.outcome.send(outcome_of(&call.id));
        }
    }
}

/// An error that rejects a whole batch.
struct BatchError<'a> {
    /// The error object as JSON.
    raw: &'a [u8],
    code: i64,
    message: &'a str,
}

/// Returns the error that rejects a whole batch; `None` if the batch was not rejected. Most
/// upstreams send the error response as an object. geth sends an array with only this response,
/// which has the id of the first call (`rpc` package, `respondWithBatchTooLarge`).
fn find_batch_error<'a>(responses: &'a Responses<'a>) -> Option<BatchError<'a>> {
    let response = match responses {
        Responses::Single(response) => response,
        Responses::Batch(responses) => match responses.as_slice() {
            [Ok(response)] => response,
            _ => return None,
        },
    };
    match &response.outcome {
        Outcome::Error { raw, code, message, .. } => Some(BatchError { raw, code: *code, message }),
        Outcome::Result(_) => None,
    }
}

/// Returns true if an error text is about the batch itself, for example about its size.
fn mentions_batch(text: &[u8]) -> bool {
    let start = &text[..text.len().min(MESSAGE_BYTES_MAX)];
    start.windows(5).any(|word| word.eq_ignore_ascii_case(b"batch"))
}

/// The responses of a batch, sorted by their raw ids.
struct ResponsesById<'a>(Vec<ResponseEntry<'a>>);

/// A response of a batch under its raw id.
struct ResponseEntry<'a> {
    id: &'a [u8],
    /// The response as JSON. `None` if the response was taken, or if the call must be sent alone.
    /// The call must be sent alone if the id is a duplicate, or if its response was too large for
    /// the upstream.
    body: Option<Bytes>,
}

impl<'a> ResponsesById<'a> {
    /// Sorts the parsed responses of a batch; `body` is the raw batch.
    fn new(body: &Bytes, responses: &[Result<Response<'a>, ResponseError>]) -> ResponsesById<'a> {
        let mut entries: Vec<ResponseEntry<'_>> = Vec::with_capacity(responses.len());
        for (raw, response) in walk::elements(body).zip(responses) {
            let Ok(response) = response else { continue };
            let is_too_large =
                matches!(&response.outcome, Outcome::Error { code: RESPONSE_TOO_LARGE, .. });
            let body = (!is_too_large).then(|| body.slice_ref(raw));
            entries.push(ResponseEntry { id: response.id, body });
        }
        entries.sort_by_key(|entry| entry.id);
        for index in 1..entries.len() {
            if entries[index - 1].id == entries[index].id {
                entries[index - 1].body = None;
                entries[index].body = None;
            }
        }
        ResponsesById(entries)
    }

    /// Takes the response to the call with this id; `None` if the call must be sent alone.
    fn take(&mut self, id: &Decimal) -> Option<Bytes> {
        let index = self.0.binary_search_by_key(&id.as_bytes(), |entry| entry.id).ok()?;
        self.0[index].body.take()
    }
}
