//! One attempt of one call at one upstream.
//!
//! It leases a connection, sends the call under a private id, reads the whole answer, checks that
//! it is one, and says what it means (`policy/classify.rs`). Whether another attempt follows is
//! `fetch.rs`.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use wire::call::{call_bytes, write_call};
use wire::method::Repeat;
use wire::quantity::Decimal;
use wire::response::{Outcome, Response, parse_response};

use crate::call::failure::{Failure, Kind, Sent};
use crate::call::request::UpstreamRequest;
use crate::call::response::{Judgement, Payload};
use crate::metrics::label::AttemptOutcome;
use crate::policy::classify::{Blame, CallOutcome, Fault, Verdict, classify};
use crate::policy::complete::Opinion;
use crate::upstream::http1::HttpAnswer;
use crate::upstream::multiplex::{Multiplex, NoTrunk};
use crate::upstream::overload;
use crate::upstream::post::{Body, Broken, post};
use crate::upstream::thread::UpstreamContext;
use crate::upstream::trunk::{Lost, Trunk};

/// Nesting allowed in answers: traces of deep call stacks go to 1024 calls, each a few levels, but
/// the wire crate bounds it to its own ceiling.
pub(crate) const DEPTH_MAX: usize = wire::json::DEPTH_CEILING;

/// A failed attempt feels as long as this many of the upstream's usual ones.
const FAILED_FEELS_TIMES: u32 = 4;

/// What came of an attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) upstream: usize,
    pub(crate) verdict: Verdict,
    /// What the upstream said, where it said anything that a client can be given.
    pub(crate) payload: Option<Payload>,
    /// What to tell the client if nobody does better and there is no payload.
    pub(crate) failure: Failure,
    /// Whether it failed on a connection that had carried calls before and then closed silently.
    pub(crate) stale_connection: bool,
    /// What speaks against the response, if anything does.
    pub(crate) opinion: Option<Opinion>,
    /// Whether the response may be cached, once that is judged.
    pub(crate) judgement: Option<Judgement>,
}

impl Attempt {
    /// An attempt that came to no payload.
    fn failed(upstream: usize, verdict: Verdict, failure: Failure) -> Attempt {
        let (payload, stale_connection, opinion, judgement) = (None, false, None, None);
        Attempt { upstream, verdict, payload, failure, stale_connection, opinion, judgement }
    }
}

/// Runs one attempt to its end, at the latest at `deadline`. Dropping it closes its connection.
pub(crate) async fn attempt(
    cx: &Rc<UpstreamContext>,
    upstream: usize,
    ask: &UpstreamRequest<'_>,
    deadline: Instant,
    fresh: bool,
) -> Attempt {
    cx.entered(upstream);
    let epoch = overload::epoch(cx, ask);
    let began = cx.now();
    let mut leaving = Leaving { cx, upstream, began, felt: None };
    let exchanged = exchange(cx, upstream, ask, deadline, fresh).await;
    cx.tick();
    let attempt = match exchanged {
        Ok((id, answer)) => {
            cx.upstreams[upstream].answered(cx.now());
            read(upstream, ask, &id, answer)
        }
        Err(broken) => failed(upstream, broken),
    };
    let outcome = match attempt.verdict {
        Verdict::UpstreamFault(_) => AttemptOutcome::Failed,
        Verdict::RateLimited { .. } => AttemptOutcome::RateLimited,
        _ => AttemptOutcome::Ok,
    };
    let took = cx.now().saturating_sub(began);
    cx.counters.upstreams[upstream].attempted(outcome, took);
    if attempt.verdict.is_response() {
        overload::answered(cx, ask, epoch, took);
    }
    leaving.felt = Some(match attempt.verdict {
        // An upstream that fails fast must not look quick, nor be shut out for longer than its
        // health says: as if it had become several times slower.
        Verdict::UpstreamFault(fault)
            if fault.blame() == Blame::Always && !attempt.stale_connection =>
        {
            // No longer than an attempt can take, or a row of failures would multiply without end.
            let usual = cx.upstreams[upstream].latency.get().estimate();
            let felt = usual.saturating_mul(FAILED_FEELS_TIMES).saturating_add(took);
            felt.min((deadline + took).saturating_duration_since(cx.recent()))
        }
        // Other faults say nothing of its speed.
        Verdict::UpstreamFault(_) => Duration::ZERO,
        _ => took,
    });
    attempt
}

/// An attempt under way. One that is dropped, because another upstream was quicker, has taken at
/// least as long as it lasted; an upstream that is always outrun must not go on looking quick.
struct Leaving<'a> {
    cx: &'a UpstreamContext,
    upstream: usize,
    began: Duration,
    /// How long it felt, once it is over.
    felt: Option<Duration>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let felt = self.felt.unwrap_or_else(|| {
            self.cx.tick();
            self.cx.now().saturating_sub(self.began)
        });
        if !felt.is_zero() {
            self.cx.upstreams[self.upstream].felt(self.cx.now(), felt);
        }
        self.cx.left(self.upstream);
    }
}

/// Over a connection that carries many calls, or over HTTP.
async fn exchange(
    cx: &Rc<UpstreamContext>,
    upstream: usize,
    ask: &UpstreamRequest<'_>,
    deadline: Instant,
    fresh: bool,
) -> Result<(Decimal, HttpAnswer), Broken> {
    let Some(multiplex) = &cx.upstreams[upstream].multiplex else {
        return exchange_http(cx, upstream, ask, deadline, fresh).await;
    };
    let over_http = cx.topology.upstreams[upstream].config.http().is_some();
    if !multiplex.takes(ask) {
        if over_http {
            return Box::pin(exchange_http(cx, upstream, ask, deadline, fresh)).await;
        }
        return Err(Broken::new(upstream, Kind::CallTooLarge, Sent::No));
    }
    let trunk = match multiplex.trunk(ask, cx.recent()) {
        // After a loss the other way is surer than one that was made before it.
        Some(_) if fresh && over_http => None,
        None if !over_http => match Box::pin(multiplex.wait(ask, deadline)).await {
            Ok(trunk) => Some(trunk),
            Err(NoTrunk) => {
                return Err(Broken::new(upstream, Kind::Connect, Sent::No));
            }
        },
        found => found,
    };
    let exchanged = match trunk {
        Some(trunk) => over_trunk(cx, upstream, ask, deadline, multiplex, &trunk).await,
        None => None,
    };
    match exchanged {
        Some(exchanged) => exchanged,
        // Nothing was sent.
        None if over_http => Box::pin(exchange_http(cx, upstream, ask, deadline, false)).await,
        None => Err(Broken::new(upstream, Kind::Connect, Sent::No)),
    }
}

/// Over a trunk; none if nothing was sent.
async fn over_trunk(
    cx: &UpstreamContext,
    upstream: usize,
    ask: &UpstreamRequest<'_>,
    deadline: Instant,
    multiplex: &Rc<Multiplex>,
    trunk: &Rc<Trunk>,
) -> Option<Result<(Decimal, HttpAnswer), Broken>> {
    let _leaving = multiplex.leaving();
    let call = trunk.call(&ask.name, ask.params.as_deref(), cx.recent(), deadline)?;
    cx.counters.upstreams[upstream].multiplexed_calls.add(1);
    match call.await {
        Ok((id, body)) => {
            multiplex.answered(ask, body.len());
            let bytes_max = cx.topology.config.groups[ask.group].response_bytes_max;
            if body.len() > bytes_max {
                return Some(Err(Broken::new(upstream, Kind::TooLarge, Sent::Yes)));
            }
            let answer = HttpAnswer { status: 200, retry_after: None, body, reusable: true };
            Some(Ok((id, answer)))
        }
        Err(lost) if lost.sent == Sent::No && lost.kind == Kind::Closed => None,
        Err(Lost { kind, sent, stale: stale_connection }) => Some(Err(Broken {
            failure: Failure::of_upstream(upstream, kind, sent),
            stale_connection,
        })),
    }
}

/// In a batch with others where that is on, or by itself.
async fn exchange_http(
    cx: &Rc<UpstreamContext>,
    upstream: usize,
    ask: &UpstreamRequest<'_>,
    deadline: Instant,
    fresh: bool,
) -> Result<(Decimal, HttpAnswer), Broken> {
    if let Some(gather) = cx.upstreams[upstream].gather.as_ref().filter(|_| !fresh) {
        // Apart, so that calls by themselves need no room for it.
        let gathered = Box::pin(gather.ask(cx, upstream, ask, deadline)).await;
        if let Some(gathered) = gathered {
            return gathered;
        }
    }
    let call = Call { id: Decimal::new(cx.next_id()), ask };
    let bytes_max = cx.topology.config.groups[ask.group].response_bytes_max;
    let answer = post(cx, upstream, &call, deadline, fresh, bytes_max).await?;
    Ok((call.id, answer))
}

/// One call.
struct Call<'a> {
    id: Decimal,
    ask: &'a UpstreamRequest<'a>,
}

impl Body for Call<'_> {
    fn bytes(&self) -> usize {
        call_bytes(self.id.as_bytes(), &self.ask.name, self.ask.params.as_deref())
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_call(out, self.id.as_bytes(), &self.ask.name, self.ask.params.as_deref());
    }
}

fn failed(upstream: usize, broken: Broken) -> Attempt {
    let Broken { failure, stale_connection } = broken;
    let fault = match failure.kind {
        Kind::Connect => Fault::Connect,
        Kind::Deadline => Fault::Timeout,
        Kind::Malformed => Fault::Malformed,
        Kind::TooLarge | Kind::CallTooLarge | Kind::Memory => Fault::Limit,
        _ => Fault::Closed,
    };
    let verdict = classify(&CallOutcome::Broken(fault));
    Attempt { stale_connection, ..Attempt::failed(upstream, verdict, failure) }
}

/// Reads the JSON-RPC answer out of an HTTP answer and says what it means.
fn read(upstream: usize, ask: &UpstreamRequest<'_>, id: &Decimal, http: HttpAnswer) -> Attempt {
    let HttpAnswer { status, retry_after, body, .. } = http;
    let answer = parse_response(&body, DEPTH_MAX).ok();
    let answer = answer.filter(|answer| is_ours(answer, id.as_bytes()));
    let Some(answer) = answer else {
        let verdict = classify(&CallOutcome::Http { status, retry_after });
        let kind = match status {
            200 => Kind::Malformed,
            429 => Kind::RateLimited,
            _ => Kind::Status(status),
        };
        let failure = Failure { retry_after, ..Failure::of_upstream(upstream, kind, Sent::Yes) };
        return Attempt::failed(upstream, verdict, failure);
    };
    let (heard, payload) = match &answer.outcome {
        Outcome::Result(result) => (CallOutcome::Result, Payload::Result(body.slice_ref(result))),
        Outcome::Error { raw, code, message, .. } => {
            let broadcast = ask.method.is_some_and(|m| m.repeat == Repeat::Broadcast);
            let heard = CallOutcome::Error { status, retry_after, code: *code, message, broadcast };
            (heard, Payload::Error(body.slice_ref(raw)))
        }
    };
    let verdict = classify(&heard);
    let kind = if matches!(verdict, Verdict::RateLimited { .. }) {
        Kind::RateLimited
    } else {
        Kind::Status(status)
    };
    let failure = Failure { retry_after, ..Failure::of_upstream(upstream, kind, Sent::Yes) };
    Attempt { payload: Some(payload), ..Attempt::failed(upstream, verdict, failure) }
}

/// Whether an answer is the one to the call with this id. An error that an upstream gives before it
/// has read the id bears `null` (JSON-RPC 2.0, section 5).
pub(crate) fn is_ours(answer: &Response<'_>, expected: &[u8]) -> bool {
    answer.id == expected
        || (answer.id == b"null" && matches!(answer.outcome, Outcome::Error { .. }))
}
