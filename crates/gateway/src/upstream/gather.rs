//! Calls that one thread has for one upstream at a moment, sent as one JSON-RPC batch: for
//! upstreams that are reached over HTTP alone, where each request costs its own.
//!
//! The first call waits a little for others; the batch leaves once it is full or the time is over.
//! Each call gets its own part of the answer, under its own deadline, and is judged as if it had
//! come alone. Where a batch was refused as a whole, or a call has no answer in it, the call is
//! sent once more by itself: only reads are gathered, which may be repeated.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};
use wire::call::{call_bytes, write_call};
use wire::json::walk;
use wire::method::Repeat;
use wire::quantity::Decimal;
use wire::response::{
    Outcome, Response, ResponseError, Responses, parse_responses, write_error_raw,
};

use crate::call::failure::{Kind, Origin, Sent};
use crate::call::request::UpstreamRequest;
use crate::config::upstream::Upstream;
use crate::policy::batch::BatchLimit;
use crate::policy::classify::{CallOutcome, Verdict, classify};
use crate::upstream::http1::HttpAnswer;
use crate::upstream::multiplex::LARGE_WEIGHT;
use crate::upstream::post::{Body, Broken, post};
use crate::upstream::send::DEPTH_MAX;
use crate::upstream::thread::UpstreamContext;

/// Bytes of calls after which a batch is full: far below what any upstream takes in one request,
/// and more than calls that may be gathered have together, but for odd ones.
const BYTES_MAX: usize = 256 * 1024;
/// geth's code for a call whose answer has no room any more in that of its batch (`rpc` package,
/// `errcodeResponseTooLarge`).
const RESPONSE_TOO_LARGE: i64 = -32003;

/// What is gathered for one upstream by one thread.
pub(crate) struct Gather {
    wait: Duration,
    bound: RefCell<BatchLimit>,
    open: RefCell<Option<Rc<Batch>>>,
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("bound", &self.bound).finish_non_exhaustive()
    }
}

/// Calls that leave together.
struct Batch {
    calls: RefCell<Calls>,
    full: Notify,
}

struct Calls {
    /// The calls, separated by commas.
    listed: Vec<u8>,
    waiting: Vec<Waiting>,
    /// The latest of theirs.
    deadline: Instant,
    response_bytes_max: usize,
}

struct Waiting {
    id: Decimal,
    part: oneshot::Sender<Part>,
}

/// What a call gets.
enum Part {
    /// The answer as it would be if the call had come alone.
    Answered(HttpAnswer),
    Broken(Broken),
    /// Nothing: it is to be sent by itself.
    Alone,
}

impl Body for Calls {
    fn bytes(&self) -> usize {
        self.listed.len() + 2
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        out.extend_from_slice(&self.listed);
        out.push(b']');
    }
}

impl Gather {
    /// One thread's batches for an upstream; none where they are off.
    pub(crate) fn new(upstream: &Upstream) -> Option<Rc<Gather>> {
        (upstream.batch_calls_max > 1).then(|| {
            Rc::new(Gather {
                wait: upstream.batch_wait,
                bound: RefCell::new(BatchLimit::new(upstream.batch_calls_max)),
                open: RefCell::default(),
            })
        })
    }

    /// Sends a call with others; none if it is to go by itself.
    pub(crate) async fn ask(
        self: &Rc<Gather>,
        cx: &Rc<UpstreamContext>,
        upstream: usize,
        ask: &UpstreamRequest<'_>,
        deadline: Instant,
    ) -> Option<Result<(Decimal, HttpAnswer), Broken>> {
        // A slow call would hold up the others, and one that writes may not be repeated.
        let may = |method: &wire::method::Method| {
            method.repeat == Repeat::Safe && method.weight < LARGE_WEIGHT
        };
        if !ask.method.is_some_and(may) {
            return None;
        }
        let bound = self.bound.borrow_mut().get(cx.now());
        let id = Decimal::new(cx.next_id());
        let bytes = call_bytes(id.as_bytes(), &ask.name, ask.params.as_deref());
        if bound < 2 || bytes > BYTES_MAX / 2 {
            return None;
        }
        let batch = self.batch(cx, upstream, deadline);
        let part = batch.add(cx, &id, ask, deadline);
        if batch.is_full(bound) {
            self.open.take();
            batch.full.notify_one();
        }
        match timeout_at(deadline, part).await {
            Ok(Ok(Part::Answered(answer))) => Some(Ok((id, answer))),
            Ok(Ok(Part::Broken(mut broken))) => {
                // After a reload the upstream may have another number than for who sent the batch.
                broken.failure.origin = Origin::Upstream(upstream);
                Some(Err(broken))
            }
            // Who was to send it has ended with its thread.
            Ok(Ok(Part::Alone) | Err(_)) => None,
            Err(_) => Some(Err(Broken::new(upstream, Kind::Deadline, Sent::Maybe))),
        }
    }

    /// The batch that is being gathered; a new one leaves by itself.
    fn batch(
        self: &Rc<Gather>,
        cx: &Rc<UpstreamContext>,
        upstream: usize,
        deadline: Instant,
    ) -> Rc<Batch> {
        let mut open = self.open.borrow_mut();
        let new = || {
            let calls =
                Calls { listed: Vec::new(), waiting: Vec::new(), deadline, response_bytes_max: 0 };
            let batch = Rc::new(Batch { calls: RefCell::new(calls), full: Notify::new() });
            let run = Rc::clone(self).run(Rc::clone(cx), upstream, Rc::clone(&batch));
            tokio::task::spawn_local(run);
            batch
        };
        Rc::clone(open.get_or_insert_with(new))
    }

    /// Waits for calls, sends them, and gives each its part.
    async fn run(self: Rc<Gather>, cx: Rc<UpstreamContext>, upstream: usize, batch: Rc<Batch>) {
        if self.wait.is_zero() {
            // All that can come in this turn of the event loop.
            tokio::task::yield_now().await;
        } else {
            tokio::select! {
                biased;
                () = batch.full.notified() => {}
                () = tokio::time::sleep(self.wait) => {}
            }
        }
        cx.tick();
        self.open.borrow_mut().take_if(|open| Rc::ptr_eq(open, &batch));
        let calls = batch.take();
        // Nobody waits any more, or there is nobody to share with.
        if calls.waiting.len() < 2 || calls.waiting.iter().all(|call| call.part.is_closed()) {
            return calls.give(|_| Part::Alone);
        }
        cx.counters.upstreams[upstream].batches.add(1);
        cx.counters.upstreams[upstream].batched_calls.add(calls.waiting.len() as u64);
        let post =
            |fresh| post(&cx, upstream, &calls, calls.deadline, fresh, calls.response_bytes_max);
        let posted = match post(false).await {
            // Once for all of them: each by itself would want a new connection.
            Err(broken) if broken.stale_connection => post(true).await,
            posted => posted,
        };
        cx.tick();
        match posted {
            Ok(answer) => self.answered(&cx, calls, &answer),
            // Alone each may have room.
            Err(broken) if broken.failure.kind == Kind::TooLarge => self.refused(&cx, calls),
            Err(broken) => calls.give(|_| Part::Broken(broken.clone())),
        }
    }

    fn answered(&self, cx: &UpstreamContext, calls: Calls, http: &HttpAnswer) {
        let HttpAnswer { status, retry_after, body, .. } = http;
        let whole = |body: Bytes| HttpAnswer {
            status: *status,
            retry_after: *retry_after,
            body,
            reusable: true,
        };
        let read = parse_responses(body, DEPTH_MAX, calls.waiting.len());
        match read.as_ref().map(|answers| (answers, error_of_all(answers))) {
            Ok((_, Some((raw, code, message)))) => {
                let (status, retry_after) = (*status, *retry_after);
                let outcome =
                    CallOutcome::Error { status, retry_after, code, message, broadcast: false };
                if !matches!(classify(&outcome), Verdict::RateLimited { .. }) {
                    return self.refused(cx, calls);
                }
                calls.give(|id| {
                    let mut own = Vec::new();
                    write_error_raw(&mut own, id.as_bytes(), raw);
                    Part::Answered(whole(own.into()))
                });
            }
            Ok((Responses::Batch(answers), None)) => {
                let mut parts = parts(body, answers);
                calls.give(|id| {
                    parts.take(id).map_or(Part::Alone, |own| Part::Answered(whole(own)))
                });
            }
            // Without an answer in it the status says what there is to know; most that mean "not
            // so" are about the request as it is.
            _ if matches!(status, 400 | 405 | 411..=417 | 422) => self.refused(cx, calls),
            _ => calls.give(|_| Part::Answered(whole(body.clone()))),
        }
    }

    /// The upstream does not take such a batch.
    fn refused(&self, cx: &UpstreamContext, calls: Calls) {
        self.bound.borrow_mut().refused(cx.now(), calls.waiting.len());
        calls.give(|_| Part::Alone);
    }
}

impl Batch {
    fn add(
        &self,
        cx: &UpstreamContext,
        id: &Decimal,
        ask: &UpstreamRequest<'_>,
        deadline: Instant,
    ) -> oneshot::Receiver<Part> {
        let mut calls = self.calls.borrow_mut();
        if !calls.listed.is_empty() {
            calls.listed.push(b',');
        }
        write_call(&mut calls.listed, id.as_bytes(), &ask.name, ask.params.as_deref());
        let (sender, receiver) = oneshot::channel();
        calls.waiting.push(Waiting { id: *id, part: sender });
        calls.deadline = calls.deadline.max(deadline);
        let bytes_max = cx.topology.config.groups[ask.group].response_bytes_max;
        calls.response_bytes_max = calls.response_bytes_max.max(bytes_max);
        receiver
    }

    fn is_full(&self, bound: usize) -> bool {
        let calls = self.calls.borrow();
        calls.waiting.len() >= bound || calls.listed.len() >= BYTES_MAX
    }

    /// What was gathered; nothing is added after that.
    fn take(&self) -> Calls {
        let mut calls = self.calls.borrow_mut();
        Calls {
            listed: std::mem::take(&mut calls.listed),
            waiting: std::mem::take(&mut calls.waiting),
            ..*calls
        }
    }
}

impl Calls {
    fn give(self, mut part: impl FnMut(&Decimal) -> Part) {
        for call in self.waiting {
            let own = part(&call.id);
            // It may have left.
            let _given = call.part.send(own);
        }
    }
}

/// The one error that answers a whole batch, with its code and message: as an object, or, as geth
/// does it (`rpc` package, `respondWithBatchTooLarge`), alone in an array under the first call's
/// id.
fn error_of_all<'a>(answers: &'a Responses<'a>) -> Option<(&'a [u8], i64, &'a str)> {
    let answer = match answers {
        Responses::Single(answer) => answer,
        Responses::Batch(answers) => match answers.as_slice() {
            [Ok(answer)] => answer,
            _ => return None,
        },
    };
    match &answer.outcome {
        Outcome::Error { raw, code, message, .. } => Some((raw, *code, message)),
        Outcome::Result(_) => None,
    }
}

/// The parts of a batch's answer by their raw ids.
struct Parts<'a> {
    /// Sorted; none where an id came twice, which nobody can be told apart by.
    parts: Vec<(&'a [u8], Option<Bytes>)>,
}

fn parts<'a>(body: &'a Bytes, answers: &[Result<Response<'a>, ResponseError>]) -> Parts<'a> {
    let raw = walk::elements(body);
    let mut parts: Vec<(&[u8], Option<Bytes>)> = Vec::with_capacity(answers.len());
    for (raw, answer) in raw.zip(answers) {
        let Ok(answer) = answer else { continue };
        let no_room = matches!(&answer.outcome, Outcome::Error { code: RESPONSE_TOO_LARGE, .. });
        parts.push((answer.id, (!no_room).then(|| body.slice_ref(raw))));
    }
    parts.sort_by_key(|(id, _)| *id);
    for at in 1..parts.len() {
        if parts[at - 1].0 == parts[at].0 {
            parts[at - 1].1 = None;
            parts[at].1 = None;
        }
    }
    Parts { parts }
}

impl Parts<'_> {
    fn take(&mut self, id: &Decimal) -> Option<Bytes> {
        let found = self.parts.binary_search_by_key(&id.as_bytes(), |(id, _)| *id).ok()?;
        self.parts[found].1.take()
    }
}
