//! Whether, where and when a failed call is tried again.
//!
//! Decides from what came back, what may have been sent, and the method table; charges a budget so
//! that retries cannot multiply an overload. It picks no upstream (`choose`) and waits for nothing:
//! the pause is part of the decision.

use std::time::Duration;

use wire::method::Repeat;

use crate::policy::classify::{Fault, Verdict};

#[cfg(test)]
mod tests;

/// Retries as a share of calls: the default of Finagle's `RetryBudget` and of linkerd.
pub const BUDGET_SHARE: f64 = 0.2;

/// Retries per second allowed whatever the share: the same default.
pub const BUDGET_RATE_MIN: u32 = 10;

/// For how long a call's deposit may be spent: the default `ttl` of Finagle's `RetryBudget`.
const BUDGET_TTL: Duration = Duration::from_secs(10);

/// Parts of that time, as in Finagle's windowed adder.
const BUDGET_PARTS: usize = 10;

/// First pause, before the second retry. The first retry goes to another upstream at once, and so
/// does every retry after an attempt that says nothing about other upstreams.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Longest pause: beyond it the caller's deadline is better spent on an answer.
const PAUSE_MAX: Duration = Duration::from_millis(320);

/// What had been sent of a call when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Nothing: the upstream cannot have seen it.
    No,
    /// Some or all of it, without a sign that the upstream read it.
    Maybe,
    /// The upstream began to reply.
    Yes,
}

/// One attempt that did not end in an answer.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// What its reply meant.
    pub verdict: Verdict,
    /// What had been sent.
    pub sent: Sent,
    /// The connection had been used before and was idle.
    pub reused: bool,
    /// The upstream gave a JSON-RPC error that can be handed to the client if nobody does better.
    pub has_reply: bool,
}

/// What is left to try with.
#[derive(Debug, Clone, Copy)]
pub struct Left {
    /// Attempts made so far, this one included, those on a fresh connection not.
    pub attempts: u32,
    /// Attempts allowed: the group's `retries_max` and one.
    pub attempts_max: u32,
    /// Whether a fresh connection was tried already for this call.
    pub fresh_tried: bool,
    /// Time until the client's deadline.
    pub time: Duration,
    /// Whether there is a usable upstream not tried yet.
    pub other_upstream: bool,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Hand the reply at hand to the client.
    Return,
    /// Try another upstream after the pause.
    Another {
        /// May be zero.
        pause: Duration,
    },
    /// Try the same upstream on a fresh connection: the idle one was closed under the call.
    SameFresh,
    /// Answer with an error of our own, naming the last fault.
    GiveUp,
}

/// Decides about a failed attempt. A retry is charged to the budget; one on a fresh connection, or
/// after an attempt that was never sent, is not, since no upstream took the first.
///
/// What may be sent again ([`Repeat`] of the method table; an unknown method counts as
/// [`Repeat::Never`]): anything if nothing was sent; after that only reads, and signed
/// transactions, which the chain takes once and whose second acceptance is understood
/// ([`Verdict::AlreadyKnown`]).
pub fn decide(
    attempt: &Attempt,
    repeat: Repeat,
    left: &Left,
    budget: &mut RetryBudget,
    now: Duration,
    random: u64,
) -> Decision {
    let give_up = if attempt.has_reply { Decision::Return } else { Decision::GiveUp };
    let repeatable = attempt.sent == Sent::No || repeat != Repeat::Never;
    let fault = match attempt.verdict {
        verdict if verdict.is_answer() => return Decision::Return,
        Verdict::UpstreamFault(fault) => Some(fault),
        _ => None,
    };
    if !repeatable || left.time.is_zero() {
        return give_up;
    }
    let closed_idle = fault == Some(Fault::Closed) && attempt.reused && attempt.sent != Sent::Yes;
    if closed_idle && !left.fresh_tried {
        return Decision::SameFresh;
    }
    if left.attempts >= left.attempts_max || !left.other_upstream {
        return give_up;
    }
    // A call that reached no upstream has cost none anything: a repeat is its first try. Were it
    // charged, a second without any upstream would use up the repeats of the next ten.
    let free = attempt.sent == Sent::No;
    // An upstream that limits our rate, or takes no connection, says nothing about the load of
    // others.
    let alone = free || matches!(attempt.verdict, Verdict::RateLimited { .. });
    let pause = if alone { Duration::ZERO } else { pause(left.attempts, random) };
    if pause >= left.time || !(free || budget.withdraw(now)) {
        return give_up;
    }
    Decision::Another { pause }
}

/// None before the first retry; then doubling, with half of it random.
fn pause(attempts: u32, random: u64) -> Duration {
    if attempts <= 1 {
        return Duration::ZERO;
    }
    let doubled = PAUSE_MIN * 2_u32.saturating_pow(attempts.saturating_sub(2).min(16));
    let whole = doubled.min(PAUSE_MAX);
    whole / 2 + (whole / 2).mul_f64((random & 0xffff_ffff) as f64 / 4_294_967_296.0)
}

/// A bound on retries: a share of recent calls, and a small rate on top. One per core.
///
/// As Finagle's `RetryBudget` over its `LeakyTokenBucket`: each call puts in a token, each retry
/// takes 1/share tokens, tokens vanish after ten seconds.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    parts: [(u64, f64); BUDGET_PARTS],
    price: f64,
    reserve: f64,
}

impl RetryBudget {
    /// `share_max` of calls and `rate_min` retries per second; see [`BUDGET_SHARE`],
    /// [`BUDGET_RATE_MIN`]. A share of 0 leaves the rate alone.
    pub fn new(share_max: f64, rate_min: u32) -> Self {
        // Finagle's floor of the share; it only keeps the price finite.
        let price = 1.0 / share_max.max(0.001);
        Self {
            parts: [(0, 0.0); BUDGET_PARTS],
            price,
            reserve: f64::from(rate_min) * BUDGET_TTL.as_secs_f64() * price,
        }
    }

    /// A call arrived.
    pub fn deposit(&mut self, now: Duration) {
        *self.part(now) += 1.0;
    }

    /// Whether one retry may be made; if so it is paid.
    pub fn withdraw(&mut self, now: Duration) -> bool {
        let allowed = self.balance(now) >= self.price;
        if allowed {
            *self.part(now) -= self.price;
        }
        allowed
    }

    /// Retries that could be made now.
    pub fn available(&self, now: Duration) -> u64 {
        (self.balance(now) / self.price).max(0.0) as u64
    }

    fn balance(&self, now: Duration) -> f64 {
        let oldest = (turn(now) + 1).saturating_sub(BUDGET_PARTS as u64);
        let live = self.parts.iter().filter(|part| part.0 >= oldest);
        self.reserve + live.map(|part| part.1).sum::<f64>()
    }

    fn part(&mut self, now: Duration) -> &mut f64 {
        let turn = turn(now);
        let part = &mut self.parts[(turn % BUDGET_PARTS as u64) as usize];
        if part.0 != turn {
            *part = (turn, 0.0);
        }
        &mut part.1
    }
}

fn turn(now: Duration) -> u64 {
    let part = BUDGET_TTL.as_millis() as u64 / BUDGET_PARTS as u64;
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX) / part
}
