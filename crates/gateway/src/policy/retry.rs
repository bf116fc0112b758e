//! Decides whether, where and when a failed call is retried.
//!
//! The decision depends on the response, on how much of the call was sent, and on the method's
//! entry in the method table. A budget prevents retries from making an overload worse. The decision
//! includes a pause, for which the caller waits. `choose` picks the other upstream.

use std::time::Duration;

use wire::method::Repeat;

use crate::policy::absence::Absence;
use crate::policy::classify::{Fault, Verdict};
use crate::policy::health::random_part;
use crate::policy::sliding_window::SlidingWindow;

#[cfg(test)]
mod tests;

/// Time for which a token of the retry budget can be used: the default `ttl` of Finagle's
/// `RetryBudget`.
const BUDGET_TTL: Duration = Duration::from_secs(10);

/// Upper bound of the pause before the second retry. The bound doubles with each further retry. The
/// first retry starts at once, at another upstream. A later retry also starts at once if the failed
/// attempt says nothing about the load of other upstreams.
const SECOND_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Pause before the same upstreams are called again for a block or transaction that the served chain
/// has. Most backends of one address are less than this time apart.
const ABSENCE_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause. A longer pause would leave too little time for a response.
const PAUSE_MAX: Duration = Duration::from_millis(320);

/// How much of a call had been sent when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// No byte was sent, so the upstream cannot have received the call.
    No,
    /// Some or all bytes were sent, without a sign that the upstream read them.
    Maybe,
    /// The whole call was sent: the upstream began to respond.
    Yes,
}

/// A failed attempt.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// Classification of the attempt's outcome.
    pub verdict: Verdict,
    /// How much of the call had been sent.
    pub sent: Sent,
    /// True if the connection had been used before and was idle.
    pub on_reused_connection: bool,
    /// True if the upstream returned a JSON-RPC error. The client gets this error if no upstream
    /// does better.
    pub has_reply: bool,
    /// What the served chain says, if the upstream does not have the block or transaction.
    pub absence: Option<Absence>,
}

/// The attempts, time and upstreams that remain for a call.
#[derive(Debug, Clone, Copy)]
pub struct Remaining {
    /// Number of attempts so far, including the failed one. A repetition on a new connection does
    /// not count.
    pub attempts_made: u32,
    /// Number of allowed attempts: the group's `retries_max` plus one.
    pub attempts_max: u32,
    /// True if a new connection was already tried for this call.
    pub reconnected: bool,
    /// Number of repetitions at upstreams that were tried before ([`Decision::Again`]).
    pub repeats: u32,
    /// Time until the client's deadline.
    pub time_left: Duration,
    /// True if there is a usable upstream that was not tried yet.
    pub other_upstream: bool,
}

/// Decision after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Return the available response to the client.
    Return,
    /// Try another upstream after the pause.
    Another {
        /// Time to wait before the retry; zero for a retry at once.
        pause: Duration,
    },
    /// Try any upstream after the pause, also one that was tried before, because the served chain
    /// has what no upstream has returned.
    Again {
        /// Time to wait.
        pause: Duration,
    },
    /// Try the same upstream on a new connection, because the upstream closed the idle connection
    /// that the attempt used.
    Reconnect,
    /// Return an error of the gateway that names the last fault.
    GiveUp,
}

/// Decides about a failed attempt. A retry is charged to the budget. A retry is free if no upstream
/// has processed the failed attempt (a retry on a new connection, or after an attempt that was never
/// sent), or if the upstream lacks the requested state.
///
/// If nothing was sent, any call may be retried. Otherwise only reads and signed transactions may
/// be retried ([`Repeat`] in the method table). A signed transaction may be sent again because the
/// chain accepts it only once; [`Verdict::AlreadyKnown`] is the outcome of the repetition. An
/// unknown method counts as [`Repeat::Never`]. `random` holds random bits for the pause.
pub fn decide(
    attempt: &Attempt,
    repeat: Repeat,
    remaining: &Remaining,
    budget: &mut RetryBudget,
    now: Duration,
    random: u64,
) -> Decision {
    let give_up = if attempt.has_reply { Decision::Return } else { Decision::GiveUp };
    let is_repeatable = attempt.sent == Sent::No || repeat != Repeat::Never;
    let fault = match attempt.verdict {
        verdict if verdict.is_response() => return Decision::Return,
        Verdict::UpstreamFault(fault) => Some(fault),
        _ => None,
    };
    if !is_repeatable || remaining.time_left.is_zero() {
        return give_up;
    }
    let was_closed_idle =
        fault == Some(Fault::Closed) && attempt.on_reused_connection && attempt.sent != Sent::Yes;
    if was_closed_idle && !remaining.reconnected {
        return Decision::Reconnect;
    }
    if remaining.attempts_made >= remaining.attempts_max || !remaining.other_upstream {
        // With retries off, no call is repeated.
        let may_repeat = remaining.attempts_max > 1
            && remaining.repeats < attempt.absence.map_or(0, Absence::repeats_max)
            && ABSENCE_PAUSE < remaining.time_left
            && budget.withdraw(now);
        return if may_repeat { Decision::Again { pause: ABSENCE_PAUSE } } else { give_up };
    }
    // A call that was not sent costs upstreams nothing, so its retry is free. If such retries were
    // charged, one second without any upstream would use up the retries of the next ten seconds. A
    // call about state that the upstream lacks costs nearly nothing, and calls about old blocks may
    // fail at most upstreams.
    let is_free = attempt.sent == Sent::No || fault == Some(Fault::MissingState);
    // A rate limit or a refused connection says nothing about the load of other upstreams.
    let is_immediate = is_free || matches!(attempt.verdict, Verdict::RateLimited { .. });
    let pause = if is_immediate {
        Duration::ZERO
    } else {
        compute_backoff(remaining.attempts_made, random)
    };
    if pause >= remaining.time_left || !(is_free || budget.withdraw(now)) {
        return give_up;
    }
    Decision::Another { pause }
}

/// Returns the pause before the next retry. There is no pause before the first retry. After that
/// the pause doubles with each retry, and half of it is random.
fn compute_backoff(attempts: u32, random: u64) -> Duration {
    if attempts <= 1 {
        return Duration::ZERO;
    }
    let doubled = SECOND_RETRY_PAUSE * 2_u32.saturating_pow(attempts.saturating_sub(2).min(16));
    let pause = doubled.min(PAUSE_MAX);
    pause / 2 + random_part(pause / 2, random)
}

/// A retry budget. It bounds retries to a share of recent calls plus a small rate. Each thread has
/// its own budget.
///
/// The budget follows Finagle's `RetryBudget` over its `LeakyTokenBucket`. Each call deposits one
/// token. A retry takes 1 / `share_max` tokens. Tokens expire after ten seconds.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    /// Number of deposited tokens minus spent tokens, in the buckets of the last ten seconds.
    tokens: SlidingWindow<f64>,
    /// Number of tokens that a retry costs.
    price: f64,
    /// Number of tokens that are always available.
    reserve: f64,
}

impl RetryBudget {
    /// Creates a budget of `share_max` retries per call, plus `rate_min` retries per second. If
    /// `share_max` is 0, practically only `rate_min` applies.
    pub fn new(share_max: f64, rate_min: u32) -> Self {
        // The minimum keeps the price finite. Finagle uses the same value.
        let price = 1.0 / share_max.max(0.001);
        Self {
            tokens: SlidingWindow::default(),
            price,
            reserve: f64::from(rate_min) * BUDGET_TTL.as_secs_f64() * price,
        }
    }

    /// Records a call.
    pub fn deposit(&mut self, now: Duration) {
        *self.tokens.current(now, BUDGET_TTL) += 1.0;
    }

    /// Returns true, and charges the budget, if one retry may be made.
    pub fn withdraw(&mut self, now: Duration) -> bool {
        let allowed = self.balance(now) >= self.price;
        if allowed {
            *self.tokens.current(now, BUDGET_TTL) -= self.price;
        }
        allowed
    }

    /// Returns the number of available tokens.
    fn balance(&self, now: Duration) -> f64 {
        self.reserve + self.tokens.values(now, BUDGET_TTL).sum::<f64>()
    }
}
