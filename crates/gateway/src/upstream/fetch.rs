//! Calls upstreams until one responds: chooses an upstream, makes an attempt, and decides about
//! retries.
//!
//! `choose.rs` chooses an upstream. `send.rs` makes one attempt, and `race.rs` makes several at a
//! time. `policy/retry.rs` has the decisions. Only this file reports outcomes of calls to the
//! health of upstreams.

use std::rc::Rc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;
use wire::method::Repeat;

use crate::call::failure::{Failure, Kind};
use crate::call::request::UpstreamRequest;
use crate::call::response::{Judgement, Payload, UpstreamResponse};
use crate::policy::cacheable::{Admission, CacheRule, RejectReason};
use crate::policy::classify::{Blame, Fault, Verdict};
use crate::policy::complete::{Doubt, Opinion, Opinions, Trust};
use crate::policy::heads::ChainView;
use crate::policy::retry;
use crate::policy::retry::{Decision, Remaining};
use crate::upstream::choose::{Patience, choose_candidate, choose_or_wait, supports};
use crate::upstream::race::race;
use crate::upstream::send::{Attempt, run_attempt};
use crate::upstream::thread::UpstreamContext;
use crate::upstream::{broadcast, doubt, overload};

/// Shortest timeout of a second opinion: an attempt that checks a doubtful response at another
/// upstream. The timeout is short, because a stalled upstream must not delay an available response.
const SECOND_OPINION_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// Timeout of a second opinion, as a multiple of the duration of the first attempt.
const SECOND_OPINION_TIMEOUT_FACTOR: u32 = 4;

/// Calls upstreams until one responds or none is left to try.
pub(crate) async fn fetch(
    cx: &Rc<UpstreamContext>,
    request: &UpstreamRequest<'_>,
) -> UpstreamResponse {
    cx.retry_budget.borrow_mut().deposit(cx.now());
    cx.second_opinions.borrow_mut().deposit(cx.now());
    let group = &cx.topology.config.groups[request.group];
    let mut attempts = Attempts::default();
    let mut fresh_on = None;
    let mut best: Option<Attempt> = None;
    loop {
        let upstream = match fresh_on.take() {
            Some(upstream) => upstream,
            None => match attempts.choose(cx, request, patience(&best)).await {
                Ok(upstream) => {
                    attempts.count += 1;
                    attempts.tried.push(upstream);
                    upstream
                }
                Err(failure) => {
                    return best.map_or_else(
                        || UpstreamResponse::from_failure(failure),
                        |best| attempts.respond(cx, request, best),
                    );
                }
            },
        };
        let began = cx.now();
        let timeout = attempts.second_opinion_timeout.unwrap_or(group.attempt_deadline);
        let deadline = request.deadline.min(cx.recent() + timeout);
        // Once a reused connection was found closed, all further attempts count as `fresh` too.
        let fresh = attempts.fresh_tried;
        let mut attempt =
            attempt_or_race(cx, request, upstream, deadline, fresh, &mut attempts).await;
        let out_of_sync = {
            let view = cx.topology.chains[request.chain].view.load();
            attempt.judgement = judge(request, &attempt, &view);
            is_out_of_sync(cx, &attempt, &view)
        };
        if out_of_sync {
            attempt.verdict = Verdict::UpstreamFault(Fault::NotSynced);
        } else {
            attempts.check_completeness(cx, request, &mut attempt, cx.now().saturating_sub(began));
        }
        attempts.record(cx, request, &attempt);
        if let Some(best_failed) = attempts.best_failed.take() {
            best = Some(pick_better(best, best_failed));
        }
        match attempts.decide(cx, request, &attempt) {
            Decision::Return => {
                return attempts.finish(cx, request, pick_better(best, attempt)).await;
            }
            Decision::GiveUp => return attempts.respond(cx, request, pick_better(best, attempt)),
            Decision::SameFresh => {
                attempts.fresh_tried = true;
                fresh_on = Some(attempt.upstream);
            }
            Decision::Another { pause } => {
                let counters = &cx.counters;
                let is_second_opinion = attempts.second_opinion_timeout.is_some();
                if is_second_opinion { &counters.second_opinions } else { &counters.retries }
                    .add(1);
                if !pause.is_zero() {
                    let _lent = overload::lend(cx, request);
                    tokio::time::sleep(pause).await;
                    cx.tick();
                }
            }
        }
        best = Some(pick_better(best, attempt));
    }
}

/// Decides whether a response may be cached. `UpstreamResponse` carries the decision. Returns
/// `None` if the attempt failed or the method is never cached.
fn judge(request: &UpstreamRequest<'_>, attempt: &Attempt, view: &ChainView) -> Option<Judgement> {
    let deterministic = match attempt.verdict {
        Verdict::Response => false,
        Verdict::DeterministicError => true,
        _ => return None,
    };
    if request.caching.rule == CacheRule::Never {
        return None;
    }
    Some(Judgement::new(request, attempt.payload.as_ref()?, deterministic, view))
}

/// Returns true if the response is about a block that the served chain does not have. Also returns
/// true if the response is null and the upstream is not at the served head. Such an upstream is on
/// another branch or behind, so another upstream is called. Otherwise a client that has received a
/// block might not find its transactions.
fn is_out_of_sync(cx: &UpstreamContext, attempt: &Attempt, view: &ChainView) -> bool {
    match &attempt.judgement {
        _ if attempt.verdict != Verdict::Response => false,
        Some(Judgement { admit: Admission::No(RejectReason::Null), .. }) => {
            let upstream_view = cx.topology.upstreams[attempt.upstream].in_view(view);
            upstream_view.is_none_or(|view| view.lag > 0 || !view.consistent)
        }
        Some(Judgement { admit: Admission::No(reason), .. }) => reason.is_wrong(),
        Some(_) | None => false,
    }
}

/// The attempts of one call so far.
#[derive(Default)]
pub(super) struct Attempts {
    /// Upstreams that were called.
    pub(super) tried: SmallVec<[usize; 2]>,
    /// Faults that count against an upstream only if another one responds.
    deferred_faults: Vec<(usize, Fault)>,
    /// Number of attempts, without repeated attempts on a new connection.
    count: u32,
    /// True if the call was repeated on a new connection.
    fresh_tried: bool,
    /// The best of the failed attempts of a race.
    pub(super) best_failed: Option<Attempt>,
    /// Upstreams of a race whose attempts were cancelled.
    pub(super) cancelled: SmallVec<[usize; 2]>,
    /// Summaries of the responses that may be incomplete.
    opinions: Opinions,
    /// Timeout of each attempt that checks a doubtful response; `None` while no response is
    /// doubtful.
    second_opinion_timeout: Option<Duration>,
}

impl Attempts {
    /// Checks whether a response may be incomplete. If so, the verdict changes so that other
    /// upstreams are called too.
    fn check_completeness(
        &mut self,
        cx: &UpstreamContext,
        request: &UpstreamRequest<'_>,
        attempt: &mut Attempt,
        elapsed: Duration,
    ) {
        attempt.opinion = doubt::judge_completeness(cx, request, attempt).or_else(|| {
            // The response is doubtful if another upstream has returned more.
            let Some(Payload::Result(result)) = &attempt.payload else { return None };
            let has_less = self.opinions.has_more_than(result);
            has_less.then(|| Opinion::new(Doubt::Unproven, result))
        });
        let Some(opinion) = attempt.opinion else { return };
        self.opinions.add(opinion);
        // An upstream whose attempt was cancelled in a race has not responded, so it may be called
        // again.
        let cancelled = std::mem::take(&mut self.cancelled);
        self.tried.retain(|upstream| !cancelled.contains(upstream));
        if self.second_opinion_timeout.is_none() {
            self.second_opinion_timeout =
                Some((elapsed * SECOND_OPINION_TIMEOUT_FACTOR).max(SECOND_OPINION_TIMEOUT_MIN));
        }
        attempt.verdict = Verdict::UpstreamFault(Fault::NotSynced);
    }

    /// Chooses the next upstream. If a doubtful response is available, only a healthy upstream is
    /// chosen.
    async fn choose(
        &self,
        cx: &Rc<UpstreamContext>,
        request: &UpstreamRequest<'_>,
        patience: Patience,
    ) -> Result<usize, Failure> {
        if self.second_opinion_timeout.is_some() {
            return choose_candidate(cx, request, &self.tried)
                .ok_or_else(|| Failure::ours(Kind::NoUpstream));
        }
        choose_or_wait(cx, request, &self.tried, patience).await
    }

    /// Returns true if no further upstream may be called for a more complete response.
    fn no_upstream_left(&self, cx: &UpstreamContext, request: &UpstreamRequest<'_>) -> bool {
        let attempts_max = cx.topology.config.groups[request.group].retries_max + 1;
        // One attempt never counts as all, even if retries are off.
        self.count >= attempts_max.max(2) || choose_candidate(cx, request, &self.tried).is_none()
    }

    /// Turns the best attempt into the response of the call.
    fn respond(
        &self,
        cx: &UpstreamContext,
        request: &UpstreamRequest<'_>,
        best: Attempt,
    ) -> UpstreamResponse {
        let doubted = best.opinion.is_some();
        let upstream = Some(best.upstream);
        let payload = best.payload.unwrap_or(Payload::Failed(best.failure));
        let trust = if doubted {
            self.opinions.trust(self.no_upstream_left(cx, request))
        } else {
            Trust::Undoubted
        };
        UpstreamResponse {
            upstream,
            trust,
            judgement: best.judgement,
            ..UpstreamResponse::local(payload)
        }
    }

    /// Turns a final attempt into the response of the call. If the gateway itself has sent the
    /// transaction before, an error that the transaction is known becomes its hash.
    async fn finish(
        &self,
        cx: &Rc<UpstreamContext>,
        request: &UpstreamRequest<'_>,
        attempt: Attempt,
    ) -> UpstreamResponse {
        // The gateway itself can have sent the transaction before only if this is a retry. A client
        // that sends a transaction twice gets the upstream's error.
        let repeated = self.tried.len() > 1 || self.fresh_tried;
        let repeated = repeated && repeat_safety(request) == Repeat::Broadcast;
        let known_hash = match attempt.verdict {
            Verdict::AlreadyKnown if repeated => broadcast::expected_result(request),
            Verdict::NonceTooLow if repeated => {
                Box::pin(broadcast::find_known_transaction(cx, request)).await
            }
            _ => None,
        };
        let response = self.respond(cx, request, attempt);
        match known_hash {
            Some(hash) => {
                UpstreamResponse { payload: Payload::Result(hash), judgement: None, ..response }
            }
            None => response,
        }
    }

    /// Reports the outcome of an attempt to the health of upstreams.
    pub(super) fn record(
        &mut self,
        cx: &UpstreamContext,
        request: &UpstreamRequest<'_>,
        attempt: &Attempt,
    ) {
        let topology = &cx.topology;
        let random = cx.random();
        let record_failure = |upstream: usize, fault: Fault| {
            cx.balancers[request.group]
                .borrow_mut()
                .record_failure(&topology.config.groups[request.group], upstream);
            topology.update_health(upstream, |health, now| health.call_failed(now, fault, random));
            // The upstream is polled at once: the balancer now avoids it, so calls alone would
            // detect an outage late.
            topology.upstreams[upstream].poll_now.notify_one();
        };
        match attempt.verdict {
            // The gateway itself chose the short timeout.
            Verdict::UpstreamFault(Fault::Timeout) if self.second_opinion_timeout.is_some() => {}
            Verdict::UpstreamFault(fault) => match fault.blame() {
                // A connection that was closed while idle is no failure. The attempt on a new
                // connection decides.
                Blame::Always if attempt.stale_connection => {
                    cx.upstreams[attempt.upstream].pool.clear();
                }
                Blame::Always => record_failure(attempt.upstream, fault),
                Blame::IfOtherDoesBetter => self.deferred_faults.push((attempt.upstream, fault)),
                Blame::None => {}
            },
            Verdict::RateLimited { retry_after } => {
                topology.update_health(attempt.upstream, |health, now| {
                    health.rate_limited(now, retry_after)
                });
            }
            Verdict::Unsupported => {
                let age = topology.config.health.unsupported_age_max;
                let now = cx.now();
                let mut unsupported = topology.upstreams[attempt.upstream].unsupported.lock();
                unsupported.learn(now, &request.name, now + age);
            }
            Verdict::Response
            | Verdict::DeterministicError
            | Verdict::AlreadyKnown
            | Verdict::NonceTooLow => {
                topology.upstreams[attempt.upstream].health.lock().call_ok(cx.now());
                for (upstream, fault) in self.deferred_faults.drain(..) {
                    record_failure(upstream, fault);
                }
            }
        }
    }

    /// Decides whether to return an attempt's response or to make another attempt.
    fn decide(
        &self,
        cx: &UpstreamContext,
        request: &UpstreamRequest<'_>,
        attempt: &Attempt,
    ) -> Decision {
        if attempt.verdict.is_response() {
            // A final response needs no retry decision.
            return Decision::Return;
        }
        // Retries of timeouts would overload saturated upstreams further.
        if attempt.verdict == Verdict::UpstreamFault(Fault::Timeout)
            && overload::is_saturated(cx, request)
        {
            return Decision::GiveUp;
        }
        if self.second_opinion_timeout.is_some()
            && (self.opinions.is_sufficient() || overload::is_crowded(cx, request))
        {
            return Decision::Return;
        }
        let group = &cx.topology.config.groups[request.group];
        let tried = retry::Attempt {
            verdict: attempt.verdict,
            sent: attempt.failure.sent,
            reused: attempt.stale_connection,
            has_reply: attempt.payload.is_some(),
        };
        let remaining = Remaining {
            attempts: self.count,
            attempts_max: group.retries_max + 1,
            fresh_tried: self.fresh_tried,
            time: request.deadline.saturating_duration_since(cx.recent()),
            other_upstream: group.upstreams.iter().any(|upstream| {
                // A method that one upstream does not support is retried only at upstreams that may
                // support it.
                let supports = || supports(cx, request, *upstream);
                !self.tried.contains(upstream)
                    && cx.topology.upstreams[*upstream].is_in_rotation(cx.now())
                    && (attempt.verdict != Verdict::Unsupported || supports())
            }),
        };
        let is_second_opinion = self.second_opinion_timeout.is_some();
        let budget = if is_second_opinion { &cx.second_opinions } else { &cx.retry_budget };
        let mut budget = budget.borrow_mut();
        let now = cx.now();
        retry::decide(&tried, repeat_safety(request), &remaining, &mut budget, now, cx.random())
    }
}

/// Returns whether the call may be sent more than once.
pub(super) fn repeat_safety(request: &UpstreamRequest<'_>) -> Repeat {
    request.method.map_or(Repeat::Never, |method| method.repeat)
}

/// Returns the cost weight of the call's method.
pub(super) fn weight(request: &UpstreamRequest<'_>) -> u32 {
    request.method.map_or(1, |method| method.weight)
}

/// Returns how long a call may wait, by the best attempt so far.
fn patience(best: &Option<Attempt>) -> Patience {
    match best.as_ref().map(|best| &best.payload) {
        None | Some(None) => Patience::Long,
        Some(Some(Payload::Result(_))) => Patience::None,
        Some(Some(Payload::Error(_) | Payload::Failed(_))) => Patience::Brief,
    }
}

/// Returns the attempt whose payload is more useful to the client. If both are equally useful,
/// returns the first.
pub(super) fn pick_better(best: Option<Attempt>, attempt: Attempt) -> Attempt {
    match best {
        Some(best) if rank(&best) >= rank(&attempt) => best,
        _ => attempt,
    }
}

/// Ranks an attempt by how useful its payload is to the client. The order from least to most
/// useful: no payload, a rate limit, an internal or unsupported-method error, another error of an
/// upstream out of sync, a result of an upstream out of sync, and a final response. Among doubtful
/// results, a result with more items ranks higher.
fn rank(attempt: &Attempt) -> (u8, usize) {
    let items = attempt.opinion.map_or(0, |opinion| opinion.items);
    let rank = match attempt.verdict {
        _ if attempt.payload.is_none() => 0,
        Verdict::RateLimited { .. } => 1,
        Verdict::Unsupported | Verdict::UpstreamFault(Fault::Internal | Fault::Refused) => 2,
        Verdict::UpstreamFault(_) if !matches!(attempt.payload, Some(Payload::Result(_))) => 3,
        Verdict::UpstreamFault(_) => 4,
        Verdict::Response
        | Verdict::DeterministicError
        | Verdict::AlreadyKnown
        | Verdict::NonceTooLow => 5,
    };
    (rank, items)
}

/// Makes one attempt. If it is slow, the call may be repeated and the group has another upstream,
/// races further attempts (`race.rs`).
async fn attempt_or_race(
    cx: &Rc<UpstreamContext>,
    request: &UpstreamRequest<'_>,
    upstream: usize,
    deadline: Instant,
    fresh: bool,
    attempts: &mut Attempts,
) -> Attempt {
    let group = &cx.topology.config.groups[request.group];
    if group.upstreams.len() == 1 {
        return run_attempt(cx, upstream, request, deadline, fresh).await;
    }
    let began = cx.now();
    let hedge = &cx.hedges[request.group];
    let other_upstream = group.upstreams.len() > attempts.tried.len();
    let delay =
        hedge.borrow_mut().record_call(repeat_safety(request), weight(request), other_upstream);
    let (attempt, latency) = if other_upstream {
        let delay = delay.unwrap_or_else(|| hedge.borrow_mut().patience(weight(request)));
        // Boxed, so that the future of a call without a race stays small.
        Box::pin(race(cx, request, upstream, deadline, fresh, delay, attempts)).await
    } else {
        let attempt = run_attempt(cx, upstream, request, deadline, fresh).await;
        (attempt, cx.now().saturating_sub(began))
    };
    if attempt.verdict == Verdict::Response {
        hedge.borrow_mut().observe(cx.now(), weight(request), latency);
    }
    attempt
}
