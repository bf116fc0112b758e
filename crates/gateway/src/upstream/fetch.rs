//! Calls upstreams until one responds: chooses an upstream, makes an attempt, and decides about
//! retries.
//!
//! `choose.rs` chooses an upstream. `send.rs` makes one attempt, and `race.rs` makes several at a
//! time. `policy/retry.rs` decides about retries. Only this file updates the health of upstreams
//! with the outcomes of calls.
//!
//! A response that may be incomplete is doubtful (`policy/complete.rs`). A *second opinion* is an
//! attempt at another upstream that checks a doubtful response. The *served chain* ends with the
//! block that clients get as `latest`. A *view* is a snapshot of the chain's heads. A group is
//! *saturated* if its upstreams are overloaded, and *crowded* while calls wait for permits to its
//! upstreams (`overload.rs`). `cx.now()` and `cx.instant()` return the time of the last
//! `cx.tick()`.

use std::rc::Rc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;
use wire::block::read_response_blocks;
use wire::json::walk;
use wire::method::{Repeat, Validity};

use crate::call::failure::{Failure, FailureKind};
use crate::call::{CacheDecision, Payload, UpstreamRequest, UpstreamResponse};
use crate::config::group::Group;
use crate::policy::absence::Absence;
use crate::policy::cacheable::{CacheRule, RejectReason};
use crate::policy::choose::hash64;
use crate::policy::classify::{Fault, HealthImpact, Verdict};
use crate::policy::complete::{Doubt, DoubtedResponse, DoubtedResponses, Trust, YOUNG_BLOCKS};
use crate::policy::heads::ChainView;
use crate::policy::retry::{self, Decision, Remaining};
use crate::upstream::choose::{Chooser, UpstreamWait};
use crate::upstream::race::race;
use crate::upstream::rank::pick_better;
use crate::upstream::send::{Attempt, run_attempt};
use crate::upstream::thread::UpstreamContext;
use crate::upstream::{broadcast, doubt, overload};

/// Shortest timeout of a second opinion. The value is small, because a stalled upstream must not
/// delay a response that is already available.
const SECOND_OPINION_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// The timeout of a second opinion is this factor times the duration of the attempt that returned
/// the first doubtful response.
const SECOND_OPINION_TIMEOUT_FACTOR: u32 = 4;

/// Calls upstreams until an upstream responds or all allowed attempts have failed.
pub(crate) async fn fetch(
    cx: &Rc<UpstreamContext>,
    request: &UpstreamRequest<'_>,
) -> UpstreamResponse {
    // Each call adds to the budgets for retries and second opinions.
    cx.retry_budget.borrow_mut().deposit(cx.now());
    cx.second_opinions.borrow_mut().deposit(cx.now());
    let group = &cx.topology.config.groups[request.group];
    let mut attempts = Attempts::new(cx, request);
    // The upstream that is called again on a new connection.
    let mut reconnect_to = None;
    let mut best_attempt: Option<Attempt> = None;
    loop {
        let upstream = match reconnect_to.take() {
            Some(upstream) => upstream,
            None => match attempts.choose(select_wait(&best_attempt)).await {
                Ok(upstream) => {
                    attempts.attempt_count += 1;
                    attempts.tried.push(upstream);
                    upstream
                }
                Err(failure) => {
                    return best_attempt.map_or_else(
                        || UpstreamResponse::from_failure(failure),
                        |attempt| attempts.respond(attempt),
                    );
                }
            },
        };
        let began = cx.now();
        let timeout = attempts.second_opinion_timeout.unwrap_or(group.attempt_deadline);
        let deadline = request.deadline.min(cx.instant() + timeout);
        let mut attempt = attempts.attempt_or_race(upstream, deadline).await;
        attempts.assess(&mut attempt, cx.now().saturating_sub(began));
        attempts.record(&attempt);
        if let Some(best_failed) = attempts.best_failed.take() {
            best_attempt = Some(attempts.pick(best_attempt, best_failed));
        }
        let decision = attempts.decide(&attempt);
        match decision {
            Decision::Return if attempts.is_agreed_error(&attempt) => {
                return attempts.finish(attempt).await;
            }
            Decision::Return => return attempts.finish(attempts.pick(best_attempt, attempt)).await,
            Decision::GiveUp => return attempts.respond(attempts.pick(best_attempt, attempt)),
            Decision::Reconnect => {
                attempts.reconnected = true;
                reconnect_to = Some(attempt.upstream);
            }
            Decision::Another { .. } if attempts.may_ask_at_once(&attempt) => {
                let best = attempts.ask_at_once(attempts.pick(best_attempt, attempt)).await;
                return attempts.finish(best).await;
            }
            Decision::Another { pause } | Decision::Again { pause } => {
                let counters = &cx.counters;
                let is_second_opinion = attempts.second_opinion_timeout.is_some();
                let counter =
                    if is_second_opinion { &counters.second_opinions } else { &counters.retries };
                counter.add(1);
                if !pause.is_zero() {
                    let _lent_permit = overload::lend(cx, request);
                    tokio::time::sleep(pause).await;
                    cx.tick();
                }
                if matches!(decision, Decision::Again { .. }) {
                    attempts.repeats += 1;
                    attempts.tried.clear();
                }
            }
        }
        best_attempt = Some(attempts.pick(best_attempt, attempt));
    }
}

/// Decides whether a response may be cached. Returns `None` if the attempt failed or the method is
/// never cached.
fn decide_caching(
    request: &UpstreamRequest<'_>,
    attempt: &Attempt,
    view: &ChainView,
) -> Option<Box<CacheDecision>> {
    let is_deterministic_error = match attempt.verdict {
        Verdict::Response => false,
        Verdict::DeterministicError => true,
        _ => return None,
    };
    if request.caching.rule == CacheRule::Never {
        return None;
    }
    let payload = attempt.payload.as_ref()?;
    Some(Box::new(CacheDecision::new(request, payload, is_deterministic_error, view)))
}

/// Returns true if the response is about a block that the served chain does not have. Also returns
/// true for a null response of an upstream that is not at the served head. Such an upstream lags or
/// is on another branch, so another upstream is called. Without this check, a client that has
/// received a block might not find the transactions of the block.
fn is_out_of_sync(cx: &UpstreamContext, attempt: &Attempt, view: &ChainView) -> bool {
    if attempt.verdict != Verdict::Response {
        return false;
    }
    match attempt.cache_decision.as_ref().map(|decision| decision.admission) {
        Some(Err(RejectReason::Null)) => {
            let upstream_view = cx.topology.upstreams[attempt.upstream].in_view(view);
            upstream_view.is_none_or(|view| view.lag > 0 || !view.consistent)
        }
        Some(Err(reason)) => reason.is_wrong(),
        Some(Ok(_)) | None => false,
    }
}

/// The attempts of one call so far.
pub(super) struct Attempts<'a> {
    pub(super) cx: &'a Rc<UpstreamContext>,
    pub(super) request: &'a UpstreamRequest<'a>,
    /// Indices of the upstreams that were called.
    pub(super) tried: SmallVec<[usize; 2]>,
    /// Faults that count against their upstreams only if another upstream responds.
    deferred_faults: Vec<DeferredFault>,
    /// Number of attempts. Repetitions on a new connection and the further attempts of a race do
    /// not count.
    pub(super) attempt_count: u32,
    /// Number of repetitions at upstreams that were tried before.
    repeats: u32,
    /// What the served chain says about the latest attempt, if its upstream does not have the block
    /// or transaction.
    absence: Option<Absence>,
    /// True if an upstream has responded with blocks of another branch, or lacks blocks of a range of
    /// logs. The served chain may be about to move to another branch.
    is_reorg: bool,
    /// True if an upstream lacks blocks of a range of logs that ends above the served head.
    is_beyond_head: bool,
    /// Upstreams that have returned `null` for a transaction.
    without_transaction: SmallVec<[usize; 2]>,
    /// True if the call was repeated on a new connection. All later attempts except hedges then use
    /// new connections too.
    pub(super) reconnected: bool,
    /// The best of the failed attempts of the current race; `None` if no attempt has failed.
    pub(super) best_failed: Option<Attempt>,
    /// Indices of the upstreams whose attempts were cancelled at the end of a race.
    pub(super) cancelled: SmallVec<[usize; 2]>,
    /// Summaries of the responses that may be incomplete.
    doubted_responses: DoubtedResponses,
    /// Digests of the errors that no rule knows.
    unknown_errors: SmallVec<[u64; 2]>,
    /// Timeout of each second opinion; `None` while no response is doubtful.
    pub(super) second_opinion_timeout: Option<Duration>,
}

/// A fault that counts against its upstream only if another upstream responds to the call.
struct DeferredFault {
    /// Index of the upstream in the configuration.
    upstream: usize,
    fault: Fault,
}

impl<'a> Attempts<'a> {
    fn new(cx: &'a Rc<UpstreamContext>, request: &'a UpstreamRequest<'a>) -> Attempts<'a> {
        Attempts {
            cx,
            request,
            tried: SmallVec::new(),
            deferred_faults: Vec::new(),
            attempt_count: 0,
            repeats: 0,
            absence: None,
            is_reorg: false,
            is_beyond_head: false,
            without_transaction: SmallVec::new(),
            reconnected: false,
            best_failed: None,
            cancelled: SmallVec::new(),
            doubted_responses: DoubtedResponses::default(),
            unknown_errors: SmallVec::new(),
            second_opinion_timeout: None,
        }
    }

    /// Returns the chooser of the next upstream.
    pub(super) fn chooser(&self) -> Chooser<'_> {
        Chooser { cx: self.cx, request: self.request, tried: &self.tried }
    }

    /// Decides whether the response may be cached. If another upstream may have a better response,
    /// changes the verdict to a fault. `elapsed` is the duration of the attempt.
    pub(super) fn assess(&mut self, attempt: &mut Attempt, elapsed: Duration) {
        let (cx, request) = (self.cx, self.request);
        self.absence = doubt::find_absence(cx, request, attempt);
        let is_known = matches!(self.absence, Some(Absence::Known { .. }));
        let out_of_sync = {
            let view = cx.topology.chains[request.chain].view.load();
            attempt.cache_decision = decide_caching(request, attempt, &view);
            !is_known && is_out_of_sync(cx, attempt, &view)
        };
        let admission = attempt.cache_decision.as_ref().map(|decision| decision.admission);
        if admission == Some(Err(RejectReason::NotCanonical)) {
            self.is_reorg = true;
            cx.topology.upstreams[attempt.upstream].poll_now.notify_one();
        }
        if doubt::lacks_blocks_of_range(request, attempt) {
            match doubt::ends_above_head(cx, request) {
                true => self.is_beyond_head = true,
                false => self.is_reorg = true,
            }
        }
        if out_of_sync {
            attempt.verdict = Verdict::UpstreamFault(Fault::NotSynced);
        } else {
            self.check_completeness(attempt, elapsed);
        }
    }

    /// Checks whether a response may be incomplete. If so, changes the verdict to a fault, so that
    /// another upstream is called. `elapsed` is the duration of the attempt.
    fn check_completeness(&mut self, attempt: &mut Attempt, elapsed: Duration) {
        let doubted_response =
            doubt::check_completeness(self.cx, self.request, attempt, self.absence);
        let needs_another = |response: &DoubtedResponse| response.doubt != Doubt::Unrepeated;
        attempt.doubted_response = doubted_response.filter(needs_another).or_else(|| {
            // The response is doubtful if another upstream has returned more items.
            let Some(Payload::Result(result)) = &attempt.payload else { return None };
            let has_less = self.doubted_responses.has_more_than(result);
            has_less.then(|| DoubtedResponse::new(Doubt::Unproven, result))
        });
        let Some(doubted_response) = attempt.doubted_response else {
            attempt.doubted_response = doubted_response;
            if let Some(unrepeated) = doubted_response {
                self.doubted_responses.add(unrepeated);
            }
            return;
        };
        if self.absence.is_some() {
            if let Some(decision) = &mut attempt.cache_decision {
                decision.admission = Err(RejectReason::Null);
            }
            if self.request.method_row.is_some_and(|row| row.validity == Validity::Transaction) {
                self.without_transaction.push(attempt.upstream);
            }
        }
        self.doubted_responses.add(doubted_response);
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

    /// Returns what an upstream may have a moment later. In a reorg, that is any response.
    fn expected(&self) -> Option<Absence> {
        self.absence.or(self.is_reorg.then_some(Absence::Known { is_recent: true }))
    }

    /// As [`pick_better`]. But if the range of a call for logs ends above the head, the error about
    /// that is better than logs up to the head that lack some.
    fn pick(&self, best: Option<Attempt>, attempt: Attempt) -> Attempt {
        let is_contradicted = |attempt: &Attempt| {
            attempt.doubted_response.is_some_and(|response| response.doubt >= Doubt::Young)
        };
        match best {
            Some(best)
                if self.is_beyond_head && is_contradicted(&best) != is_contradicted(&attempt) =>
            {
                if is_contradicted(&best) {
                    attempt
                } else {
                    best
                }
            }
            best => pick_better(best, attempt),
        }
    }

    /// Chooses the next upstream. If a doubtful response is available, chooses only a healthy
    /// upstream and does not wait, unless the served chain has what upstreams lack.
    async fn choose(&self, allowed_wait: UpstreamWait) -> Result<usize, Failure> {
        let chooser = self.chooser();
        let is_expected = self.expected().is_some_and(|absence| absence.repeats_max() > 0);
        if self.repeats == 0
            && is_expected
            && let Ok(upstream) = chooser.choose_or_wait(UpstreamWait::IfNearHead).await
        {
            return Ok(upstream);
        }
        if self.repeats > 0 || is_expected {
            // One of the backends behind an upstream may have the block although the latest poll
            // reached a backend that lags.
            return chooser.choose_regardless_of_head();
        }
        if self.second_opinion_timeout.is_some() {
            return match chooser.choose_second_opinion() {
                Some(upstream) => Ok(upstream),
                // An upstream on another branch may have the logs of a block below the fork.
                None if self.doubted_responses.is_contradicted() => {
                    chooser.choose_regardless_of_head()
                }
                None => Err(Failure::ours(FailureKind::NoUpstream)),
            };
        }
        chooser.choose_or_wait(allowed_wait).await
    }

    /// Returns true if the doubt is about old blocks only. Such a doubt may concern every range of
    /// old blocks without logs, so it must not delay a slow call by one upstream after the other.
    fn may_ask_at_once(&self, attempt: &Attempt) -> bool {
        let doubt = attempt.doubted_response.map(|response| response.doubt);
        self.absence.is_none() && matches!(doubt, Some(Doubt::UnknownHeader | Doubt::Unproven))
    }

    /// Returns true if no further upstream may be called for a more complete response.
    fn has_no_upstream_left(&self) -> bool {
        let attempts_max = self.group().retries_max + 1;
        // With retries off, only one attempt is made. A single attempt does not prove that no
        // upstream has a more complete response.
        self.attempt_count >= attempts_max.max(2) || self.chooser().choose_healthy().is_none()
    }

    /// Returns the configuration of the call's group.
    pub(super) fn group(&self) -> &'a Group {
        &self.cx.topology.config.groups[self.request.group]
    }

    /// Turns the best attempt into the response of the call.
    fn respond(&self, best: Attempt) -> UpstreamResponse {
        let trust = match best.doubted_response {
            Some(_) => self.doubted_responses.trust(self.has_no_upstream_left()),
            None => Trust::Undoubted,
        };
        if best.payload.as_ref().is_some_and(|payload| doubt::is_null_head(self.request, payload)) {
            return UpstreamResponse::from_failure(Failure::ours(FailureKind::NoUpstream));
        }
        UpstreamResponse {
            upstream: Some(best.upstream),
            trust,
            cache_decision: best.cache_decision,
            ..UpstreamResponse::local(best.payload.unwrap_or(Payload::Failed(best.failure)))
        }
    }

    /// Turns the final attempt into the response of the call. An error may say that the transaction
    /// is already known. If an earlier attempt has sent the transaction, the response is the
    /// transaction's hash instead of the error.
    async fn finish(&self, attempt: Attempt) -> UpstreamResponse {
        let (cx, request) = (self.cx, self.request);
        // If this is no retry, the gateway has not sent the transaction before. A client that sends
        // a transaction twice gets the upstream's error.
        let is_retry = self.tried.len() > 1 || self.reconnected;
        let is_repeated_transaction = is_retry && request.repeat() == Repeat::Broadcast;
        let upstream = attempt.upstream;
        let known_hash = match attempt.verdict {
            Verdict::AlreadyKnown if is_repeated_transaction => {
                broadcast::compute_expected_result(request)
            }
            Verdict::NonceTooLow if is_repeated_transaction => {
                Box::pin(broadcast::find_known_transaction(cx, request, upstream)).await
            }
            _ => None,
        };
        let mut response = self.respond(attempt);
        if let Some(hash) = known_hash {
            response.payload = Payload::Result(hash);
            response.cache_decision = None;
        }
        response
    }

    /// Records that upstreams returned `null` for a transaction that this response of another
    /// upstream has. If the transaction is old, they lack the index of transactions, and the
    /// balancer avoids them for this method for a while.
    fn record_wrong_nulls(&self, attempt: &Attempt) {
        let (cx, request) = (self.cx, self.request);
        let (Some(method), Some(Payload::Result(result))) = (request.method_row, &attempt.payload)
        else {
            return;
        };
        let head = cx.topology.chains[request.chain].view.load().head;
        let block = read_response_blocks(method.response_block, result);
        let is_old = head
            .zip(block)
            .is_some_and(|(head, (first, _))| first.number + YOUNG_BLOCKS <= head.number);
        if is_old {
            let others =
                self.without_transaction.iter().filter(|other| **other != attempt.upstream);
            others.for_each(|upstream| self.avoid_for_method(*upstream));
        }
    }

    /// Makes the balancer avoid an upstream for the call's method for a while.
    fn avoid_for_method(&self, upstream: usize) {
        let (topology, now) = (&self.cx.topology, self.cx.now());
        let expires_at = now + topology.config.health.unsupported_age_max;
        let mut unsupported = topology.upstreams[upstream].unsupported.lock();
        unsupported.add(now, &self.request.method_name, expires_at);
    }

    /// Records the outcome of an attempt in the health of its upstream.
    pub(super) fn record(&mut self, attempt: &Attempt) {
        let (cx, request, group) = (self.cx, self.request, self.group());
        let topology = &cx.topology;
        let random = cx.random();
        let record_failure = |upstream: usize, fault: Fault| {
            cx.balancers[request.group].borrow_mut().record_failure(group, upstream);
            topology
                .update_health(upstream, |health, now| health.record_failure(now, fault, random));
            // The balancer now avoids this upstream, so calls alone would detect an outage late. An
            // immediate poll detects the outage early.
            topology.upstreams[upstream].poll_now.notify_one();
        };
        match attempt.verdict {
            // The gateway chose the short timeout of a second opinion, so this is no fault of the
            // upstream.
            Verdict::UpstreamFault(Fault::Timeout) if self.second_opinion_timeout.is_some() => {}
            Verdict::UpstreamFault(fault) => match fault.health_impact() {
                // An upstream may close an idle connection. The repetition on a new connection
                // shows whether the upstream has failed.
                HealthImpact::Always if attempt.stale_connection => {
                    cx.upstreams[attempt.upstream].pool.close_idle();
                }
                HealthImpact::Always => record_failure(attempt.upstream, fault),
                HealthImpact::IfOtherSucceeds => {
                    self.deferred_faults.push(DeferredFault { upstream: attempt.upstream, fault })
                }
                HealthImpact::None => {}
            },
            Verdict::RateLimited { retry_after } => {
                topology.update_health(attempt.upstream, |health, now| {
                    health.record_rate_limit(now, retry_after)
                });
            }
            Verdict::Unsupported => self.avoid_for_method(attempt.upstream),
            Verdict::UnknownError => self.unknown_errors.extend(digest_error(attempt)),
            Verdict::Response
            | Verdict::DeterministicError
            | Verdict::AlreadyKnown
            | Verdict::NonceTooLow => {
                topology.upstreams[attempt.upstream].health.lock().record_success(cx.now());
                if !self.without_transaction.is_empty() {
                    self.record_wrong_nulls(attempt);
                }
                for DeferredFault { upstream, fault } in self.deferred_faults.drain(..) {
                    record_failure(upstream, fault);
                }
            }
        }
    }

    /// Returns true if two upstreams have returned this error, which no rule knows. They do not know
    /// better, so the caller gets the error.
    fn is_agreed_error(&self, attempt: &Attempt) -> bool {
        let digest = digest_error(attempt).filter(|_| attempt.verdict == Verdict::UnknownError);
        digest.is_some_and(|digest| {
            self.unknown_errors.iter().filter(|other| **other == digest).count() > 1
        })
    }

    /// Decides whether to return an attempt's response or to make another attempt.
    fn decide(&self, attempt: &Attempt) -> Decision {
        let (cx, request, group) = (self.cx, self.request, self.group());
        if attempt.verdict.is_response() {
            // A final response needs no retry decision.
            return Decision::Return;
        }
        if self.is_agreed_error(attempt) {
            return Decision::Return;
        }
        // A retry after a timeout would add load to saturated upstreams.
        if attempt.verdict == Verdict::UpstreamFault(Fault::Timeout)
            && overload::is_saturated(cx, request)
        {
            return Decision::GiveUp;
        }
        let absence = self.expected();
        let repeats_max = absence.map_or(0, Absence::repeats_max);
        // No further second opinion is sought if none is needed, or if it would add load while
        // calls wait for permits.
        if self.second_opinion_timeout.is_some()
            && (self.doubted_responses.is_sufficient()
                || (repeats_max == 0 && overload::is_crowded(cx, request)))
        {
            return Decision::Return;
        }
        let failed_attempt = retry::Attempt {
            verdict: attempt.verdict,
            sent: attempt.failure.sent,
            on_reused_connection: attempt.stale_connection,
            has_reply: attempt.payload.is_some(),
            absence,
        };
        let is_second_opinion = self.second_opinion_timeout.is_some();
        // Only a healthy upstream is a better choice than a repetition.
        let other_upstream = if repeats_max > 0 {
            self.chooser().choose_healthy().is_some()
        } else {
            self.has_other_upstream(attempt)
        };
        let remaining = Remaining {
            attempts_made: self.attempt_count,
            attempts_max: group.retries_max + 1,
            reconnected: self.reconnected,
            repeats: self.repeats,
            time_left: request.deadline.saturating_duration_since(cx.instant()),
            other_upstream,
        };
        // An absence says nothing about the load of upstreams.
        let budget = if is_second_opinion || repeats_max > 0 {
            &cx.second_opinions
        } else {
            &cx.retry_budget
        };
        let mut budget = budget.borrow_mut();
        let (repeat, now) = (request.repeat(), cx.now());
        retry::decide(&failed_attempt, repeat, &remaining, &mut budget, now, cx.random())
    }

    /// Returns true if an upstream that was not tried may be called after this attempt.
    fn has_other_upstream(&self, attempt: &Attempt) -> bool {
        let cx = self.cx;
        self.group().upstreams.iter().any(|upstream| {
            // A method that one upstream does not support is retried only at upstreams that may
            // support the method.
            !self.tried.contains(upstream)
                && cx.topology.upstreams[*upstream].is_in_rotation(cx.now())
                && (attempt.verdict != Verdict::Unsupported || self.chooser().supports(*upstream))
        })
    }

    /// Makes one attempt. If the attempt is slow and the group has another upstream, further
    /// attempts may start and race with it (`race.rs`).
    async fn attempt_or_race(&mut self, upstream: usize, deadline: Instant) -> Attempt {
        let (cx, request, group) = (self.cx, self.request, self.group());
        let new_connection = self.reconnected;
        if group.upstreams.len() == 1 {
            return run_attempt(cx, upstream, request, deadline, new_connection).await;
        }
        let began = cx.now();
        let (hedge, weight) = (&cx.hedges[request.group], request.weight());
        let has_other_upstream = group.upstreams.len() > self.tried.len();
        let hedge_delay =
            hedge.borrow_mut().record_call(request.repeat(), weight, has_other_upstream);
        let (attempt, latency) = if has_other_upstream {
            // A call that is not hedged starts further attempts only once the call suspects the
            // upstream. The time until then is the call's *patience*.
            let race_delay = hedge_delay.unwrap_or_else(|| hedge.borrow_mut().patience(weight));
            // Boxed, so that the future of a call without a race stays small.
            Box::pin(race(self, upstream, deadline, race_delay)).await
        } else {
            let attempt = run_attempt(cx, upstream, request, deadline, new_connection).await;
            (attempt, cx.now().saturating_sub(began))
        };
        if attempt.verdict == Verdict::Response {
            hedge.borrow_mut().observe(cx.now(), weight, latency);
        }
        attempt
    }
}

/// Returns a digest of the code and message of an error; `None` if the attempt has no error.
fn digest_error(attempt: &Attempt) -> Option<u64> {
    let Some(Payload::Error(error)) = &attempt.payload else { return None };
    let [code, message] =
        walk::fields_of(error, ["code", "message"]).map(Option::unwrap_or_default);
    Some(hash64(code) ^ hash64(message).rotate_left(1))
}

/// Returns how long a call may wait for an upstream, by the payload of its best attempt so far.
fn select_wait(best_attempt: &Option<Attempt>) -> UpstreamWait {
    match best_attempt.as_ref().and_then(|attempt| attempt.payload.as_ref()) {
        None => UpstreamWait::Long,
        Some(Payload::Result(_)) => UpstreamWait::None,
        Some(Payload::Error(_) | Payload::Failed(_)) => UpstreamWait::IfNearHead,
    }
}
