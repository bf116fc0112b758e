//! The attempts of one call so far: what their responses have shown, and their outcomes in the
//! health of upstreams.
//!
//! Only this file updates the health of upstreams with the outcomes of calls. `fetch.rs` decides
//! about further attempts, and `race.rs` makes several at a time.
//!
//! A response that may be incomplete is doubtful (`policy/complete.rs`). A *second opinion* is an
//! attempt at another upstream that checks a doubtful response. The *served chain* ends with the
//! block that clients get as `latest`. A *view* is a snapshot of the chain's heads.

use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use wire::block::read_response_blocks;
use wire::json::walk;
use wire::method::Validity;
use wire::node_error::ErrorKind;

use crate::call::{CacheDecision, Payload, UpstreamRequest};
use crate::config::group::Group;
use crate::policy::absence::Absence;
use crate::policy::cacheable::{CacheRule, RejectReason};
use crate::policy::choose::hash64;
use crate::policy::classify::{Fault, HealthImpact, Verdict, read_error};
use crate::policy::complete::{Doubt, DoubtedResponse, DoubtedResponses, YOUNG_BLOCKS};
use crate::policy::heads::ChainView;
use crate::upstream::choose::Chooser;
use crate::upstream::doubt;
use crate::upstream::rank::pick_better;
use crate::upstream::send::Attempt;
use crate::upstream::thread::Upstreams;

/// Shortest timeout of a second opinion. The value is small, because a stalled upstream must not
/// delay a response that is already available.
const SECOND_OPINION_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// The timeout of a second opinion is this factor times the duration of the attempt that returned
/// the first doubtful response.
const SECOND_OPINION_TIMEOUT_FACTOR: u32 = 4;

/// The attempts of one call so far.
pub(super) struct Attempts<'a> {
    pub(super) upstreams: &'a Upstreams,
    pub(super) request: &'a UpstreamRequest<'a>,
    /// Indices of the upstreams that were called.
    pub(super) tried: SmallVec<[usize; 2]>,
    /// Faults that count against their upstreams only if another upstream responds.
    deferred_faults: Vec<DeferredFault>,
    /// Number of attempts. Repetitions on a new connection and the further attempts of a race do
    /// not count.
    pub(super) attempt_count: u32,
    /// Number of repetitions at upstreams that were tried before.
    pub(super) repeats: u32,
    /// Number of attempts that an upstream refused because it lacks data of an old block, or because
    /// the range of blocks was too long for it.
    pub(super) free_refusals: u32,
    /// What the served chain says about the latest response, if its upstream does not have the
    /// block or transaction. A failed attempt after it changes nothing.
    pub(super) absence: Option<Absence>,
    /// True if an upstream has responded with blocks of another branch, or lacks blocks of a range
    /// of logs. The served chain may be about to move to another branch.
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
    pub(super) doubted_responses: DoubtedResponses,
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
    pub(super) fn new(upstreams: &'a Upstreams, request: &'a UpstreamRequest<'a>) -> Attempts<'a> {
        Attempts {
            upstreams,
            request,
            tried: SmallVec::new(),
            deferred_faults: Vec::new(),
            attempt_count: 0,
            repeats: 0,
            free_refusals: 0,
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
        Chooser { upstreams: self.upstreams, request: self.request, tried: &self.tried }
    }

    /// Decides whether the response may be cached. If another upstream may have a better response,
    /// changes the verdict to a fault. `elapsed` is the duration of the attempt.
    pub(super) fn assess(&mut self, attempt: &mut Attempt, elapsed: Duration) {
        let (upstreams, request) = (self.upstreams, self.request);
        let lacks_block = attempt.verdict == Verdict::UpstreamFault(Fault::NotSynced);
        if attempt.verdict.is_response() || lacks_block {
            self.absence = doubt::find_absence(upstreams, request, attempt);
        }
        let is_known = matches!(self.absence, Some(Absence::Known { .. }));
        let out_of_sync = {
            let view = upstreams.topology.chains[request.chain].view.load();
            attempt.cache_decision = decide_caching(request, attempt, &view);
            !is_known && is_out_of_sync(upstreams, attempt, &view)
        };
        let admission = attempt.cache_decision.as_ref().map(|decision| decision.admission);
        if admission == Some(Err(RejectReason::NotCanonical)) {
            self.is_reorg = true;
            upstreams.topology.upstreams[attempt.upstream].poll_now.notify_one();
        }
        if doubt::lacks_blocks_of_range(request, attempt) {
            match doubt::ends_above_head(upstreams, request) {
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
            doubt::check_completeness(self.upstreams, self.request, attempt, self.absence);
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
    pub(super) fn expected(&self) -> Option<Absence> {
        self.absence.or(self.is_reorg.then_some(Absence::Known { is_recent: true }))
    }

    /// As [`pick_better`]. But if the range of a call for logs ends above the head, the error about
    /// that is better than logs up to the head that lack some.
    pub(super) fn pick(&self, best: Option<Attempt>, attempt: Attempt) -> Attempt {
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

    /// Returns the configuration of the call's group.
    pub(super) fn group(&self) -> &'a Group {
        &self.upstreams.topology.config.groups[self.request.group]
    }

    /// Records that upstreams returned `null` for a transaction that this response of another
    /// upstream has. If the transaction is old, they lack the index of transactions, and the
    /// balancer avoids them for this method for a while.
    fn record_wrong_nulls(&self, attempt: &Attempt) {
        let (upstreams, request) = (self.upstreams, self.request);
        let (Some(method), Some(Payload::Result(result))) = (request.method_row, &attempt.payload)
        else {
            return;
        };
        let head = upstreams.topology.chains[request.chain].view.load().head;
        let block = read_response_blocks(method.response_block, result);
        let is_old = head
            .zip(block)
            .is_some_and(|(head, (first, _))| first.number + YOUNG_BLOCKS <= head.number);
        if is_old {
            let others =
                self.without_transaction.iter().filter(|other| **other != attempt.upstream);
            others.for_each(|upstream| self.avoid_for_method(*upstream, None));
        }
    }

    /// Makes the balancer avoid an upstream for the call's method for a while. `error` is the raw error
    /// by which the upstream has said that it does not support the method.
    fn avoid_for_method(&self, upstream: usize, error: Option<Bytes>) {
        let (topology, now) = (&self.upstreams.topology, self.upstreams.now());
        let expires_at = now + topology.config.health.unsupported_age_max;
        let mut avoided_methods = topology.upstreams[upstream].avoided_methods.lock();
        avoided_methods.add(now, &self.request.method_name, expires_at, error);
    }

    /// Records whether the upstream has the data of an old block, and whether it allows the range of
    /// logs. Returns true if the upstream refused the call for one of the two reasons, so that the
    /// balancer will not choose it for such calls.
    fn record_coverage(&self, attempt: &Attempt) -> bool {
        let (topology, request) = (&self.upstreams.topology, self.request);
        let state = &topology.upstreams[attempt.upstream];
        let view = topology.chains[request.chain].view.load();
        match (attempt.verdict, &attempt.payload) {
            (Verdict::UpstreamFault(Fault::MissingState), _) => {
                let Some((data, depth)) = request.history(&view) else { return false };
                if state.history.record_missing(data, depth) {
                    state.history_refused.notify_one();
                }
                true
            }
            (Verdict::UpstreamFault(Fault::Limit), Some(Payload::Error(error))) => {
                let Some(blocks) = request.log_range() else { return false };
                let Some((ErrorKind::RangeTooLarge, message)) = read_error(error) else {
                    return false;
                };
                state.log_range.record_refusal(self.upstreams.now(), blocks, &message)
            }
            (Verdict::Response | Verdict::DeterministicError, payload) => {
                let is_null =
                    matches!(payload, Some(Payload::Result(result)) if &**result == b"null");
                if let Some((data, depth)) = request.history(&view).filter(|_| !is_null) {
                    state.history.record_present(data, depth);
                }
                false
            }
            _ => false,
        }
    }

    /// Records the outcome of an attempt in the health of its upstream.
    pub(super) fn record(&mut self, attempt: &Attempt) {
        let is_explained = self.record_coverage(attempt);
        let lacks_data = attempt.verdict == Verdict::UpstreamFault(Fault::MissingState);
        self.free_refusals += u32::from(is_explained || lacks_data);
        let (upstreams, request, group) = (self.upstreams, self.request, self.group());
        let topology = &upstreams.topology;
        if shows_support(attempt) {
            let mut methods = topology.upstreams[attempt.upstream].avoided_methods.lock();
            methods.record_support(&request.method_name);
            if attempt.verdict.is_response() {
                methods.record_response(&request.method_name);
            }
        }
        let random = upstreams.random();
        let record_failure = |upstream: usize, fault: Fault| {
            upstreams.balancers[request.group].borrow_mut().record_failure(group, upstream);
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
            // The upstream serves other calls of the method.
            Verdict::UpstreamFault(_) if is_explained => {}
            Verdict::UpstreamFault(fault) => match fault.health_impact() {
                // An upstream may close an idle connection. The repetition on a new connection
                // shows whether the upstream has failed.
                HealthImpact::Always if attempt.stale_connection => {
                    upstreams.local[attempt.upstream].http.close_idle();
                }
                HealthImpact::Always => record_failure(attempt.upstream, fault),
                HealthImpact::IfOtherSucceeds | HealthImpact::OnlyMethod => {
                    self.deferred_faults.push(DeferredFault { upstream: attempt.upstream, fault })
                }
                HealthImpact::None => {}
            },
            Verdict::RateLimited { retry_after } => {
                topology.update_health(attempt.upstream, |health, now| {
                    health.record_rate_limit(now, retry_after)
                });
            }
            Verdict::Unsupported => {
                let error = match &attempt.payload {
                    Some(Payload::Error(error)) => Some(error.clone()),
                    _ => None,
                };
                self.avoid_for_method(attempt.upstream, error);
            }
            Verdict::UnknownError => self.unknown_errors.extend(digest_error(attempt)),
            Verdict::Response
            | Verdict::DeterministicError
            | Verdict::AlreadyKnown
            | Verdict::NonceTooLow => {
                let responder = &topology.upstreams[attempt.upstream];
                responder.health.lock().record_success(upstreams.now());
                if !self.without_transaction.is_empty() {
                    self.record_wrong_nulls(attempt);
                }
                for DeferredFault { upstream, fault } in self.deferred_faults.drain(..) {
                    if fault.health_impact() == HealthImpact::OnlyMethod {
                        let mut methods = topology.upstreams[upstream].avoided_methods.lock();
                        methods.record_refusal(upstreams.now(), &request.method_name);
                    } else {
                        record_failure(upstream, fault);
                    }
                }
            }
        }
    }

    /// Returns true if two upstreams have returned this error, which no rule knows. They do not
    /// know better, so the caller gets the error.
    pub(super) fn is_agreed_error(&self, attempt: &Attempt) -> bool {
        let digest = digest_error(attempt).filter(|_| attempt.verdict == Verdict::UnknownError);
        digest.is_some_and(|digest| {
            self.unknown_errors.iter().filter(|other| **other == digest).count() > 1
        })
    }
}

/// Returns true if the upstream's response shows that it supports the method: a result, or an error
/// about what was called.
fn shows_support(attempt: &Attempt) -> bool {
    let is_about_call = match attempt.verdict {
        Verdict::UnknownError => true,
        Verdict::UpstreamFault(fault) => {
            matches!(fault, Fault::MissingState | Fault::NotSynced | Fault::Limit)
        }
        verdict => verdict.is_response(),
    };
    is_about_call && attempt.payload.is_some()
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
fn is_out_of_sync(upstreams: &Upstreams, attempt: &Attempt, view: &ChainView) -> bool {
    if attempt.verdict != Verdict::Response {
        return false;
    }
    match attempt.cache_decision.as_ref().map(|decision| decision.admission) {
        Some(Err(RejectReason::Null)) => {
            let upstream_view = upstreams.topology.upstreams[attempt.upstream].in_view(view);
            upstream_view.is_none_or(|view| view.lag > 0 || !view.consistent)
        }
        Some(Err(reason)) => reason.is_wrong(),
        Some(Ok(_)) | None => false,
    }
}

/// Returns a digest of the code and message of an error; `None` if the attempt has no error.
fn digest_error(attempt: &Attempt) -> Option<u64> {
    let Some(Payload::Error(error)) = &attempt.payload else { return None };
    let [code, message] =
        walk::fields_of(error, ["code", "message"]).map(Option::unwrap_or_default);
    Some(hash64(code) ^ hash64(message).rotate_left(1))
}
