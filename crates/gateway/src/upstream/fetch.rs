//! Calls upstreams until one responds: chooses an upstream, makes an attempt, and decides about
//! retries.
//!
//! `choose.rs` chooses an upstream. `send.rs` makes one attempt, and `race.rs` makes several at a
//! time. `attempts.rs` records their outcomes. `policy/retry.rs` decides about retries.
//!
//! A response that may be incomplete is doubtful (`policy/complete.rs`). A *second opinion* is an
//! attempt at another upstream that checks a doubtful response. The *served chain* ends with the
//! block that clients get as `latest`. A *view* is a snapshot of the chain's heads. A group is
//! *saturated* if its upstreams are overloaded, and *crowded* while calls wait for permits to its
//! upstreams (`overload.rs`). `upstreams.now()` and `upstreams.instant()` return the time of the
//! last `upstreams.tick()`.

use bytes::Bytes;
use tokio::time::Instant;
use wire::method::Repeat;

use crate::call::failure::{Failure, FailureKind};
use crate::call::{Payload, UpstreamRequest, UpstreamResponse};
use crate::policy::absence::Absence;
use crate::policy::classify::{Fault, Verdict};
use crate::policy::complete::{Doubt, Trust};
use crate::policy::retry::{self, Decision, Remaining};
use crate::upstream::attempts::Attempts;
use crate::upstream::choose::UpstreamWait;
use crate::upstream::race::race;
use crate::upstream::send::{Attempt, run_attempt};
use crate::upstream::thread::Upstreams;
use crate::upstream::{broadcast, doubt};

/// Calls upstreams until an upstream responds or all allowed attempts have failed.
pub(crate) async fn fetch(
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
) -> UpstreamResponse {
    // Each call adds to the budgets for retries and second opinions.
    upstreams.retry_budget.borrow_mut().deposit(upstreams.now());
    upstreams.second_opinions.borrow_mut().deposit(upstreams.now());
    let group = &upstreams.topology.config.groups[request.group];
    let mut attempts = Attempts::new(upstreams, request);
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
                    return match best_attempt {
                        Some(attempt) => attempts.respond(attempt),
                        None => attempts.respond_without_call(failure),
                    };
                }
            },
        };
        let began = upstreams.now();
        let timeout = attempts.second_opinion_timeout.unwrap_or(group.attempt_deadline);
        let deadline = request.deadline.min(upstreams.instant() + timeout);
        let mut attempt = attempts.attempt_or_race(upstream, deadline).await;
        attempts.assess(&mut attempt, upstreams.now().saturating_sub(began));
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
                let counters = &upstreams.counters;
                let is_second_opinion = attempts.second_opinion_timeout.is_some();
                let counter =
                    if is_second_opinion { &counters.second_opinions } else { &counters.retries };
                counter.add(1);
                if !pause.is_zero() {
                    let _lent_permit = upstreams.permits.lend(request);
                    tokio::time::sleep(pause).await;
                    upstreams.tick();
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

impl Attempts<'_> {
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

    /// Returns the response to a call that no upstream got: the upstreams' own error if none of them
    /// supports the method, otherwise the failure.
    fn respond_without_call(&self, failure: Failure) -> UpstreamResponse {
        match self.chooser().find_unsupported_error() {
            Some((upstream, error)) => UpstreamResponse {
                upstream: Some(upstream),
                ..UpstreamResponse::local(Payload::Error(error))
            },
            None => UpstreamResponse::from_failure(failure),
        }
    }

    /// Turns the final attempt into the response of the call. An error may say that the transaction
    /// is already known. If an earlier attempt has sent the transaction, the response is the
    /// transaction's hash instead of the error.
    async fn finish(&self, attempt: Attempt) -> UpstreamResponse {
        let (upstreams, request) = (self.upstreams, self.request);
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
                Box::pin(find_known_transaction(upstreams, request, upstream)).await
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

    /// Decides whether to return an attempt's response or to make another attempt.
    fn decide(&self, attempt: &Attempt) -> Decision {
        let (upstreams, request, group) = (self.upstreams, self.request, self.group());
        if attempt.verdict.is_response() {
            // A final response needs no retry decision.
            return Decision::Return;
        }
        if self.is_agreed_error(attempt) {
            return Decision::Return;
        }
        // A retry after a timeout would add load to saturated upstreams.
        if attempt.verdict == Verdict::UpstreamFault(Fault::Timeout)
            && upstreams.permits.is_saturated(request)
        {
            return Decision::GiveUp;
        }
        let absence = self.expected();
        let repeats_max = absence.map_or(0, Absence::repeats_max);
        // No further second opinion is sought if none is needed, or if it would add load while
        // calls wait for permits.
        if self.second_opinion_timeout.is_some()
            && (self.doubted_responses.is_sufficient()
                || (repeats_max == 0 && upstreams.permits.is_crowded(request)))
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
            // An upstream that lacks old data, or refuses a long range, does no work for the call. But
            // with retries off, only one attempt is made.
            attempts_made: self.attempt_count.saturating_sub(self.free_refusals).max(1),
            attempts_max: group.retries_max + 1,
            reconnected: self.reconnected,
            repeats: self.repeats,
            time_left: request.deadline.saturating_duration_since(upstreams.instant()),
            other_upstream,
        };
        // An absence says nothing about the load of upstreams.
        let budget = if is_second_opinion || repeats_max > 0 {
            &upstreams.second_opinions
        } else {
            &upstreams.retry_budget
        };
        let mut budget = budget.borrow_mut();
        let (repeat, now) = (request.repeat(), upstreams.now());
        retry::decide(&failed_attempt, repeat, &remaining, &mut budget, now, upstreams.random())
    }

    /// Returns true if an upstream that was not tried may be called after this attempt.
    fn has_other_upstream(&self, attempt: &Attempt) -> bool {
        let upstreams = self.upstreams;
        let view = upstreams.topology.chains[self.request.chain].view.load();
        self.group().upstreams.iter().any(|upstream| {
            // A method that one upstream does not support is retried only at upstreams that may
            // support the method. A call about old data or a long range is retried only at upstreams
            // that may have the data and allow the range.
            let may_do_better = match attempt.verdict {
                Verdict::Unsupported => self.chooser().supports(*upstream),
                Verdict::UpstreamFault(Fault::MissingState | Fault::Limit) => {
                    self.chooser().can_cover(&view, *upstream)
                }
                _ => true,
            };
            !self.tried.contains(upstream)
                && upstreams.topology.upstreams[*upstream].is_in_rotation(upstreams.now())
                && may_do_better
        })
    }

    /// Makes one attempt. If the attempt is slow and the group has another upstream, further
    /// attempts may start and race with it (`race.rs`).
    async fn attempt_or_race(&mut self, upstream: usize, deadline: Instant) -> Attempt {
        let (upstreams, request, group) = (self.upstreams, self.request, self.group());
        let new_connection = self.reconnected;
        if group.upstreams.len() == 1 {
            return run_attempt(upstreams, upstream, request, deadline, new_connection).await;
        }
        let began = upstreams.now();
        let (hedge, weight) = (&upstreams.hedges[request.group], request.weight());
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
            let attempt = run_attempt(upstreams, upstream, request, deadline, new_connection).await;
            (attempt, upstreams.now().saturating_sub(began))
        };
        if attempt.verdict == Verdict::Response {
            hedge.borrow_mut().observe(upstreams.now(), weight, latency);
        }
        attempt
    }
}

/// Looks up the transaction of `request`, first at `upstream`, which says that the nonce is used,
/// and then at any upstream. Returns its hash, like [`broadcast::compute_expected_result`], if an
/// upstream has the transaction, else `None`.
async fn find_known_transaction(
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
    upstream: usize,
) -> Option<Bytes> {
    let hash = broadcast::compute_expected_result(request)?;
    let methods = upstreams.topology.chains[request.chain].family;
    let lookup = broadcast::build_lookup(request, &hash, methods)?;
    let attempt = run_attempt(upstreams, upstream, &lookup, request.deadline, false).await;
    let known = attempt.payload.as_ref().is_some_and(broadcast::has_transaction)
        || broadcast::has_transaction(&fetch(upstreams, &lookup).await.payload);
    known.then_some(hash)
}

/// Returns how long a call may wait for an upstream, by the payload of its best attempt so far.
fn select_wait(best_attempt: &Option<Attempt>) -> UpstreamWait {
    match best_attempt.as_ref().and_then(|attempt| attempt.payload.as_ref()) {
        None => UpstreamWait::Long,
        Some(Payload::Result(_)) => UpstreamWait::None,
        Some(Payload::Error(_) | Payload::Failed(_)) => UpstreamWait::IfNearHead,
    }
}
