//! Asks upstreams until one answers: choose, send, and what follows from what came back.
//!
//! One attempt is `send.rs`, several at a time are `race.rs`; the decisions are `policy/choose.rs`,
//! `policy/retry.rs`. What an upstream did to a call is told to its health here and nowhere else.

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
use crate::policy::health::HealthState;
use crate::policy::retry;
use crate::policy::retry::{Decision, Remaining};
use crate::upstream::race::race;
use crate::upstream::send::{Attempt, attempt};
use crate::upstream::thread::UpstreamContext;
use crate::upstream::{broadcast, doubt, overload};

/// How often a call that no upstream can take yet looks again.
const NODE_WAIT_STEP: Duration = Duration::from_millis(20);
/// How long it looks: a few polls, after which a lost head is noticed.
const NODE_WAIT_MAX: Duration = Duration::from_secs(3);

/// Longest rest of all upstreams that a call waits for.
const REST_WAIT_MAX: Duration = Duration::from_millis(100);

/// How long another upstream has to say whether a doubted response is whole: at least this, and so
/// many times as long as the first upstream took. A stalled upstream must not hold up a response at
/// hand.
const SECOND_OPINION_MIN: Duration = Duration::from_millis(500);
const SECOND_OPINION_TIMES: u32 = 4;

/// Asks upstreams until one answers or nothing is left to try.
pub(crate) async fn fetch(cx: &Rc<UpstreamContext>, ask: &UpstreamRequest<'_>) -> UpstreamResponse {
    cx.budget.borrow_mut().deposit(cx.now());
    cx.second_opinions.borrow_mut().deposit(cx.now());
    let group = &cx.topology.config.groups[ask.group];
    let mut course = Course::default();
    let mut fresh_on = None;
    let mut best: Option<Attempt> = None;
    loop {
        let upstream = match fresh_on.take() {
            Some(upstream) => upstream,
            None => match course.choose(cx, ask, patience(&best)).await {
                Ok(upstream) => {
                    course.attempts += 1;
                    course.tried.push(upstream);
                    upstream
                }
                Err(failure) => {
                    return best.map_or_else(
                        || UpstreamResponse::failed(failure),
                        |best| course.given_up(cx, ask, best),
                    );
                }
            },
        };
        let began = cx.now();
        let patience = course.second_opinion.unwrap_or(group.attempt_deadline);
        let deadline = ask.deadline.min(cx.recent() + patience);
        let fresh = course.fresh_tried;
        let mut attempt = attempt_or_race(cx, ask, upstream, deadline, fresh, &mut course).await;
        let is_elsewhere = {
            let view = cx.topology.chains[ask.chain].view.load();
            attempt.judgement = judge(ask, &attempt, &view);
            is_elsewhere(cx, &attempt, &view)
        };
        if is_elsewhere {
            attempt.verdict = Verdict::UpstreamFault(Fault::NotSynced);
        } else {
            course.doubt(cx, ask, &mut attempt, cx.now().saturating_sub(began));
        }
        course.note(cx, ask, &attempt);
        if let Some(beside) = course.beside.take() {
            best = Some(better(best, beside));
        }
        match course.decide(cx, ask, &attempt) {
            Decision::Return => {
                return course.returned(cx, ask, better(best, attempt)).await;
            }
            Decision::GiveUp => return course.given_up(cx, ask, better(best, attempt)),
            Decision::SameFresh => {
                course.fresh_tried = true;
                fresh_on = Some(attempt.upstream);
            }
            Decision::Another { pause } => {
                let counters = &cx.counters;
                let second = course.second_opinion.is_some();
                if second { &counters.second_opinions } else { &counters.retries }.add(1);
                if !pause.is_zero() {
                    let _lent = overload::lend(cx, ask);
                    tokio::time::sleep(pause).await;
                    cx.tick();
                }
            }
        }
        best = Some(better(best, attempt));
    }
}

/// Judges whether a response may be cached; the judgement travels with the response. `None` if the
/// attempt failed or the method is never cached.
fn judge(ask: &UpstreamRequest<'_>, attempt: &Attempt, view: &ChainView) -> Option<Judgement> {
    let deterministic = match attempt.verdict {
        Verdict::Response => false,
        Verdict::DeterministicError => true,
        _ => return None,
    };
    if ask.caching.rule == CacheRule::Never {
        return None;
    }
    Some(Judgement::of(ask, attempt.payload.as_ref()?, deterministic, view))
}

/// Returns true if an upstream answered about a block that the served chain does not have, or found
/// nothing and is not at the served head. Such an upstream is on another branch or behind, so
/// another one is asked: a client that has seen a block finds its transactions.
fn is_elsewhere(cx: &UpstreamContext, attempt: &Attempt, view: &ChainView) -> bool {
    match &attempt.judgement {
        _ if attempt.verdict != Verdict::Response => false,
        Some(Judgement { admit: Admission::No(RejectReason::Null), .. }) => {
            let seen = cx.topology.upstreams[attempt.upstream].seen(view);
            seen.is_none_or(|seen| seen.lag > 0 || !seen.consistent)
        }
        Some(Judgement { admit: Admission::No(why), .. }) => why.is_wrong(),
        Some(_) | None => false,
    }
}

/// What one call has been through.
#[derive(Default)]
pub(super) struct Course {
    pub(super) tried: SmallVec<[usize; 2]>,
    /// Faults that speak against an upstream only if another one does better.
    held: Vec<(usize, Fault)>,
    attempts: u32,
    fresh_tried: bool,
    /// Of several attempts at a time, the best of those that failed before the last one ended.
    pub(super) beside: Option<Attempt>,
    /// Upstreams asked at the same time whose responses were not waited for.
    pub(super) cancelled: SmallVec<[usize; 2]>,
    /// The responses that may lack something.
    opinions: Opinions,
    /// How long the next upstream has to say whether it has more; none while no response is
    /// doubted.
    second_opinion: Option<Duration>,
}

impl Course {
    /// Looks whether a response may lack logs or receipts. Then other upstreams are asked first.
    fn doubt(
        &mut self,
        cx: &UpstreamContext,
        ask: &UpstreamRequest<'_>,
        attempt: &mut Attempt,
        took: Duration,
    ) {
        attempt.opinion = doubt::opinion(cx, ask, attempt).or_else(|| {
            // Nothing else speaks against it, but another upstream has shown more.
            let Some(Payload::Result(result)) = &attempt.payload else { return None };
            let has_less = self.opinions.has_more_than(result);
            has_less.then(|| Opinion::new(Doubt::Unproven, result))
        });
        let Some(opinion) = attempt.opinion else { return };
        self.opinions.add(opinion);
        let cancelled = std::mem::take(&mut self.cancelled);
        self.tried.retain(|upstream| !cancelled.contains(upstream));
        if self.second_opinion.is_none() {
            self.second_opinion = Some((took * SECOND_OPINION_TIMES).max(SECOND_OPINION_MIN));
        }
        attempt.verdict = Verdict::UpstreamFault(Fault::NotSynced);
    }

    /// The next upstream; only a healthy one where there is a response that may be whole.
    async fn choose(
        &self,
        cx: &Rc<UpstreamContext>,
        ask: &UpstreamRequest<'_>,
        patience: Patience,
    ) -> Result<usize, Failure> {
        if self.second_opinion.is_some() {
            return choose_candidate(cx, ask, &self.tried)
                .ok_or_else(|| Failure::ours(Kind::NoUpstream));
        }
        choose_or_wait(cx, ask, &self.tried, patience).await
    }

    /// Whether no more upstreams can be asked, so that nobody is left who may have more.
    fn all_asked(&self, cx: &UpstreamContext, ask: &UpstreamRequest<'_>) -> bool {
        let attempts_max = cx.topology.config.groups[ask.group].retries_max + 1;
        self.attempts >= attempts_max.max(2) || choose_candidate(cx, ask, &self.tried).is_none()
    }

    /// Ends the call with the best attempt.
    fn given_up(
        &self,
        cx: &UpstreamContext,
        ask: &UpstreamRequest<'_>,
        best: Attempt,
    ) -> UpstreamResponse {
        let doubted = best.opinion.is_some();
        let upstream = Some(best.upstream);
        let payload = best.payload.unwrap_or(Payload::Failed(best.failure));
        let trust =
            if doubted { self.opinions.trust(self.all_asked(cx, ask)) } else { Trust::Whole };
        UpstreamResponse {
            upstream,
            trust,
            judgement: best.judgement,
            ..UpstreamResponse::of(payload)
        }
    }

    async fn returned(
        &self,
        cx: &Rc<UpstreamContext>,
        ask: &UpstreamRequest<'_>,
        attempt: Attempt,
    ) -> UpstreamResponse {
        // Only a repeat of ours can have been preceded by our own sending; a client that sends the
        // same transaction twice gets the upstream's error, as it would from the upstream.
        let repeated = self.tried.len() > 1 || self.fresh_tried;
        let repeated = repeated && repeat(ask) == Repeat::Broadcast;
        let known = match attempt.verdict {
            Verdict::AlreadyKnown if repeated => broadcast::hash(ask),
            Verdict::NonceTooLow if repeated => Box::pin(broadcast::find(cx, ask)).await,
            _ => None,
        };
        let fetched = self.given_up(cx, ask, attempt);
        match known {
            Some(hash) => {
                UpstreamResponse { payload: Payload::Result(hash), judgement: None, ..fetched }
            }
            None => fetched,
        }
    }

    /// Tells the upstreams' health what came of an attempt.
    pub(super) fn note(
        &mut self,
        cx: &UpstreamContext,
        ask: &UpstreamRequest<'_>,
        attempt: &Attempt,
    ) {
        let topology = &cx.topology;
        let random = cx.random();
        let failed = |upstream: usize, fault: Fault| {
            cx.balancers[ask.group]
                .borrow_mut()
                .failed(&topology.config.groups[ask.group], upstream);
            topology.health(upstream, |health, now| health.call_failed(now, fault, random));
            // The balancer now passes the upstream by, so that calls alone would tell late.
            topology.upstreams[upstream].suspected.notify_one();
        };
        match attempt.verdict {
            // The time that it had was our own choice.
            Verdict::UpstreamFault(Fault::Timeout) if self.second_opinion.is_some() => {}
            Verdict::UpstreamFault(fault) => match fault.blame() {
                // A connection that was closed while idle says nothing; the fresh one will.
                Blame::Always if attempt.stale_connection => {
                    cx.upstreams[attempt.upstream].pool.clear();
                }
                Blame::Always => failed(attempt.upstream, fault),
                Blame::IfOtherDoesBetter => self.held.push((attempt.upstream, fault)),
                Blame::None => {}
            },
            Verdict::RateLimited { retry_after } => {
                topology
                    .health(attempt.upstream, |health, now| health.rate_limited(now, retry_after));
            }
            Verdict::Unsupported => {
                let age = topology.config.health.unsupported_age_max;
                let now = cx.now();
                let mut unsupported = topology.upstreams[attempt.upstream].unsupported.lock();
                unsupported.learn(now, &ask.name, now + age);
            }
            Verdict::Response
            | Verdict::DeterministicError
            | Verdict::AlreadyKnown
            | Verdict::NonceTooLow => {
                topology.upstreams[attempt.upstream].health.lock().call_ok(cx.now());
                for (upstream, fault) in self.held.drain(..) {
                    failed(upstream, fault);
                }
            }
        }
    }

    fn decide(
        &self,
        cx: &UpstreamContext,
        ask: &UpstreamRequest<'_>,
        attempt: &Attempt,
    ) -> Decision {
        if attempt.verdict.is_response() {
            // What is left to try with need not be worked out.
            return Decision::Return;
        }
        // An upstream that is late for want of room would only get more to do.
        if attempt.verdict == Verdict::UpstreamFault(Fault::Timeout)
            && overload::is_saturated(cx, ask)
        {
            return Decision::GiveUp;
        }
        if self.second_opinion.is_some()
            && (self.opinions.suffice() || overload::is_crowded(cx, ask))
        {
            return Decision::Return;
        }
        let group = &cx.topology.config.groups[ask.group];
        let tried = retry::Attempt {
            verdict: attempt.verdict,
            sent: attempt.failure.sent,
            reused: attempt.stale_connection,
            has_reply: attempt.payload.is_some(),
        };
        let left = Remaining {
            attempts: self.attempts,
            attempts_max: group.retries_max + 1,
            fresh_tried: self.fresh_tried,
            time: ask.deadline.saturating_duration_since(cx.recent()),
            other_upstream: group.upstreams.iter().any(|upstream| {
                // Asking on for a method makes sense only where it may be known.
                let knows = || knows(cx, ask, *upstream);
                !self.tried.contains(upstream)
                    && (attempt.verdict != Verdict::Unsupported || knows())
            }),
        };
        let second = self.second_opinion.is_some();
        let budget = if second { &cx.second_opinions } else { &cx.budget };
        let mut budget = budget.borrow_mut();
        let now = cx.now();
        retry::decide(&tried, repeat(ask), &left, &mut budget, now, cx.random())
    }
}

pub(super) fn repeat(ask: &UpstreamRequest<'_>) -> Repeat {
    ask.method.map_or(Repeat::Never, |method| method.repeat)
}

pub(super) fn weight(ask: &UpstreamRequest<'_>) -> u32 {
    ask.method.map_or(1, |method| method.weight)
}

/// How long a call is ready to wait for an upstream to reach its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// An upstream may be long behind: there is nothing else to give.
    Long,
    /// An upstream that follows the chain will be there with its next block. For one that has
    /// fallen behind an error in hand need not wait.
    Brief,
    /// There is a result, if not of the served branch.
    None,
}

fn patience(best: &Option<Attempt>) -> Patience {
    match best.as_ref().map(|best| &best.payload) {
        None | Some(None) => Patience::Long,
        Some(Some(Payload::Result(_))) => Patience::None,
        Some(Some(Payload::Error(_) | Payload::Failed(_))) => Patience::Brief,
    }
}

/// The attempt whose reply tells the client more, and of equals the first.
pub(super) fn better(best: Option<Attempt>, attempt: Attempt) -> Attempt {
    match best {
        Some(best) if worth(&best) >= worth(&attempt) => best,
        _ => attempt,
    }
}

/// How much a reply tells about the call: an upstream that limits our rate has not looked at it,
/// one that failed or does not know the method has not answered it, one without the block may be
/// right that there is none, and one on another branch has at least found something. Of doubted
/// logs the more are worth more.
fn worth(attempt: &Attempt) -> (u8, usize) {
    let items = attempt.opinion.map_or(0, |opinion| opinion.items);
    let worth = match attempt.verdict {
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
    (worth, items)
}

/// One attempt, with others beside it where it is slow and the call may be repeated (`race.rs`).
async fn attempt_or_race(
    cx: &Rc<UpstreamContext>,
    ask: &UpstreamRequest<'_>,
    upstream: usize,
    deadline: Instant,
    fresh: bool,
    course: &mut Course,
) -> Attempt {
    let began = cx.now();
    let group = &cx.topology.config.groups[ask.group];
    let hedge = &cx.hedges[ask.group];
    let other_upstream = group.upstreams.len() > course.tried.len();
    let delay = hedge.borrow_mut().delay(repeat(ask), weight(ask), other_upstream);
    let (attempt, latency) = if other_upstream {
        let delay = delay.unwrap_or_else(|| hedge.borrow_mut().patience(weight(ask)));
        // Apart, so that a call that is not raced does not carry room for two attempts.
        Box::pin(race(cx, ask, upstream, deadline, fresh, delay, course)).await
    } else {
        let attempt = attempt(cx, upstream, ask, deadline, fresh).await;
        (attempt, cx.now().saturating_sub(began))
    };
    if attempt.verdict == Verdict::Response {
        hedge.borrow_mut().observe(cx.now(), weight(ask), latency);
    }
    attempt
}

/// Why no upstream was chosen.
pub(super) enum NotNow {
    /// Upstreams could be called, but none has reached the block asked for.
    Behind,
    /// All have asked for a rest until then.
    Resting(Duration),
    /// All were tried.
    Exhausted,
}

impl NotNow {
    fn failure(self, cx: &UpstreamContext) -> Failure {
        match self {
            NotNow::Resting(until) => {
                let retry_after = Some(until.saturating_sub(cx.now()));
                Failure { retry_after, ..Failure::ours(Kind::RateLimited) }
            }
            NotNow::Behind | NotNow::Exhausted => Failure::ours(Kind::NoUpstream),
        }
    }
}

/// Chooses an upstream, waiting a little for one to reach the block asked for, or for a short rest
/// to end.
async fn choose_or_wait(
    cx: &Rc<UpstreamContext>,
    ask: &UpstreamRequest<'_>,
    tried: &[usize],
    patience: Patience,
) -> Result<usize, Failure> {
    match choose(cx, ask, tried) {
        Ok(upstream) => Ok(upstream),
        Err(NotNow::Behind) if is_worth_waiting(cx, ask, tried, patience) => {
            Box::pin(wait_for_upstream(cx, ask, tried, patience)).await
        }
        Err(NotNow::Resting(until)) if ends_soon(cx, ask, until) => {
            Box::pin(wait_for_upstream(cx, ask, tried, patience)).await
        }
        Err(not_now) => Err(not_now.failure(cx)),
    }
}

/// Whether a rest ends before a client would rather be told to come back.
fn ends_soon(cx: &UpstreamContext, ask: &UpstreamRequest<'_>, until: Duration) -> bool {
    let left = until.saturating_sub(cx.now());
    left <= REST_WAIT_MAX && cx.recent() + left < ask.deadline
}

fn is_worth_waiting(
    cx: &UpstreamContext,
    ask: &UpstreamRequest<'_>,
    tried: &[usize],
    patience: Patience,
) -> bool {
    // On whichever branch: of two branches one will soon be left.
    let follows = |upstream: &usize| {
        let view = cx.topology.chains[ask.chain].view.load();
        let lag_max = cx.topology.config.chains[ask.chain].lag_max;
        let seen = cx.topology.upstreams[*upstream].seen(&view);
        seen.is_some_and(|seen| seen.live && seen.lag <= lag_max)
    };
    match patience {
        Patience::Long => true,
        Patience::None => false,
        Patience::Brief => {
            let upstreams = cx.topology.config.groups[ask.group].upstreams.iter();
            upstreams.filter(|upstream| !tried.contains(upstream)).any(follows)
        }
    }
}

async fn wait_for_upstream(
    cx: &Rc<UpstreamContext>,
    ask: &UpstreamRequest<'_>,
    tried: &[usize],
    patience: Patience,
) -> Result<usize, Failure> {
    let give_up = ask.deadline.min(cx.recent() + NODE_WAIT_MAX);
    let _lent = overload::lend(cx, ask);
    loop {
        tokio::time::sleep(NODE_WAIT_STEP).await;
        cx.tick();
        match choose(cx, ask, tried) {
            Ok(upstream) => return Ok(upstream),
            Err(NotNow::Behind)
                if cx.recent() < give_up && is_worth_waiting(cx, ask, tried, patience) => {}
            Err(NotNow::Resting(until)) if cx.recent() < give_up && ends_soon(cx, ask, until) => {}
            Err(not_now) => return Err(not_now.failure(cx)),
        }
    }
}

/// Whether an upstream has not said that it does not know the method.
fn knows(cx: &UpstreamContext, ask: &UpstreamRequest<'_>, upstream: usize) -> bool {
    !cx.topology.upstreams[upstream].unsupported.lock().contains(cx.now(), &ask.name)
}

/// A healthy upstream that was not tried and fits the call.
fn choose_candidate(
    cx: &UpstreamContext,
    ask: &UpstreamRequest<'_>,
    tried: &[usize],
) -> Option<usize> {
    let group = &cx.topology.config.groups[ask.group];
    let view = cx.topology.chains[ask.chain].view.load();
    let candidates = cx.topology.groups[ask.group].candidates.load();
    let fits = |upstream: usize| {
        !tried.contains(&upstream) && reached(cx, ask, &view, upstream) && knows(cx, ask, upstream)
    };
    let mut balancer = cx.balancers[ask.group].borrow_mut();
    let crowded = overload::is_crowded(cx, ask);
    balancer.pick(cx, group, &candidates.places, ask.balance_key, crowded, fits)
}

/// Whether an upstream has the block that the call needs.
fn reached(
    cx: &UpstreamContext,
    ask: &UpstreamRequest<'_>,
    view: &ChainView,
    upstream: usize,
) -> bool {
    let min_head = ask.caching.min_head;
    let seen = cx.topology.upstreams[upstream].seen(view);
    min_head == 0
        || seen.is_some_and(|n| n.consistent && n.head.is_some_and(|head| head >= min_head))
}

/// An upstream of the group's candidates that fits the call; failing that any that can be called
/// and fits; failing that any that was not tried and has the block.
pub(super) fn choose(
    cx: &UpstreamContext,
    ask: &UpstreamRequest<'_>,
    tried: &[usize],
) -> Result<usize, NotNow> {
    let topology = &cx.topology;
    let group = &topology.config.groups[ask.group];
    let view = topology.chains[ask.chain].view.load();
    let candidates = topology.groups[ask.group].candidates.load();
    if let Some(until) = candidates.rest
        && until > cx.now()
    {
        return Err(NotNow::Resting(until));
    }
    let reached = |upstream: usize| reached(cx, ask, &view, upstream);
    let knows = |upstream: usize| knows(cx, ask, upstream);
    let fits = |upstream: usize| !tried.contains(&upstream) && reached(upstream) && knows(upstream);
    if ask.method.is_some_and(|method| method.sticky) && tried.is_empty() {
        let at = ask.balance_key as usize % candidates.places.len().max(1);
        let sticky = candidates.places.get(at).map(|place| group.upstreams[usize::from(*place)]);
        if let Some(upstream) = sticky {
            return Ok(upstream);
        }
    }
    let mut balancer = cx.balancers[ask.group].borrow_mut();
    let (places, crowded) = (&candidates.places, overload::is_crowded(cx, ask));
    if let Some(upstream) = balancer.pick(cx, group, places, ask.balance_key, crowded, fits) {
        return Ok(upstream);
    }
    let native = |upstream: &usize| {
        !topology.upstreams[*upstream].foreign.load(std::sync::atomic::Ordering::Relaxed)
    };
    let mut left =
        group.upstreams.iter().copied().filter(native).filter(|upstream| !tried.contains(upstream));
    let callable = |upstream: &usize| {
        let state = topology.upstream_state(*upstream, &view);
        matches!(state, HealthState::Healthy | HealthState::Lagging | HealthState::Probing)
    };
    let spare =
        left.clone().find(|upstream| reached(*upstream) && knows(*upstream) && callable(upstream));
    let last = || left.clone().find(|upstream| reached(*upstream));
    match spare.or_else(last) {
        Some(upstream) => Ok(upstream),
        None if left.next().is_some() => Err(NotNow::Behind),
        None => Err(NotNow::Exhausted),
    }
}
