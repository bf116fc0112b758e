//! Request limits: decides whether a call passes, waits or is rejected, as nginx's `limit_req`
//! does.
//!
//! A *zone* counts the calls of each *key*, for example of each client address. The state of a key
//! is its *excess*: the number of calls by which it is ahead of the zone's rate. The excess drains
//! at that rate. A call that passes is *charged*: it raises the excess.
//!
//! The arithmetic is that of nginx 1.22, `src/http/modules/ngx_http_limit_req_module.c`
//! (`ngx_http_limit_req_lookup`, `ngx_http_limit_req_account`): integer thousandths of a call and a
//! clock in milliseconds. [`assess`] has all the arithmetic for one key of one zone. It uses only
//! integers and neither tables, loops nor clocks, so that a script in Redis can repeat it line by
//! line (`cache/redis/zones.lua`). [`decide`] combines several zones. `limits.rs` stores the states
//! and selects the limits of a call.
//!
//! All times are milliseconds of one clock.

use wire::effect::starts_with_ignoring_case;
use wire::method::equivalent_log_method;

#[cfg(test)]
mod tests;

/// Thousandths of one call: the unit of every excess.
pub const CALL: u64 = 1000;

/// Milliseconds by which a clock may go back, as in nginx. A larger step back means that somebody
/// has set the clock.
const CLOCK_BACK_MS_MAX: i64 = 60_000;

/// Rate at which the excess of a key drains: thousandths of a call per second; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// Returns a rate of this many calls per second.
    pub fn per_second(calls: u64) -> Rate {
        Rate(calls.saturating_mul(CALL).max(1))
    }

    /// Returns a rate of this many calls per minute. As in nginx, the division drops the remainder:
    /// 1 per minute is 16 thousandths per second.
    pub fn per_minute(calls: u64) -> Rate {
        Rate((calls.saturating_mul(CALL) / 60).max(1))
    }

    /// Returns the rate in thousandths of a call per second.
    pub fn thousandths(self) -> u64 {
        self.0
    }

    /// Returns the excess that drains in this many milliseconds, in thousandths of a call.
    fn drain(self, ms: u64) -> u64 {
        self.0.saturating_mul(ms) / 1000
    }
}

/// Stored state of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyState {
    /// The key's excess at the time of the last charge, in thousandths of a call.
    pub excess: u64,
    /// Time of the last charge, in milliseconds.
    pub charged_at_ms: u64,
}

/// Rate and bounds that one limit applies to the keys of its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitTerms {
    /// The zone's rate.
    pub rate: Rate,
    /// Largest excess with which a call passes, in thousandths of a call.
    pub burst: u64,
    /// Excess above which calls wait, in thousandths of a call. `None` if no call waits, as with
    /// nginx's `nodelay`.
    pub delay: Option<u64>,
}

/// The effect that charging a call has on one key of one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChargedState {
    /// The excess including this call, in thousandths of a call.
    pub excess: u64,
    /// State to store if the call passes. A rejection leaves the state unchanged.
    pub state: KeyState,
}

/// Decision about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitDecision {
    /// The call passes at once.
    Passed,
    /// The call passes after a wait, and is charged now.
    Delayed {
        /// The wait in milliseconds; at least 1.
        ms: u64,
        /// Index of the limit with this wait, in the list given to [`decide`].
        limit_index: usize,
    },
    /// The call is rejected, and nothing is charged.
    Refused {
        /// Index of the limit that rejected the call, in the list given to [`decide`].
        limit_index: usize,
    },
}

/// Computes the effect of a call on its key. The call counts as `cost` calls; `cost` is at least 1.
/// `state` is the key's stored state; `None` for a new key.
///
/// The first of the `cost` calls counts like a request in nginx, and the others like further
/// requests within the same millisecond.
pub fn assess(state: Option<KeyState>, rate: Rate, now_ms: u64, cost: u64) -> ChargedState {
    assess_share(state, rate, now_ms, cost, 1)
}

/// Computes [`assess`] for one of `gateways` gateways that cannot reach each other. Each call is
/// charged as if every gateway had accepted one. So all gateways together keep the rate and the
/// burst.
pub fn assess_share(
    state: Option<KeyState>,
    rate: Rate,
    now_ms: u64,
    cost: u64,
    gateways: u64,
) -> ChargedState {
    let charge_per_call = CALL.saturating_mul(gateways);
    let further_calls = cost.saturating_sub(1).saturating_mul(charge_per_call);
    let Some(KeyState { excess, charged_at_ms }) = state else {
        // As in nginx, the first call of a new key adds no excess.
        return ChargedState {
            excess: further_calls,
            state: KeyState { excess: further_calls, charged_at_ms: now_ms },
        };
    };
    let ms = elapsed_ms(charged_at_ms, now_ms);
    let excess = excess
        .saturating_add(charge_per_call)
        .saturating_sub(rate.drain(ms))
        .saturating_add(further_calls);
    ChargedState {
        excess,
        state: KeyState { excess, charged_at_ms: if ms == 0 { charged_at_ms } else { now_ms } },
    }
}

/// Returns the milliseconds between two readings of a clock that may have been set back. As in
/// nginx, a small step back counts as 0 ms and a large one as 1 ms.
fn elapsed_ms(last: u64, now_ms: u64) -> u64 {
    // The difference is signed (two's complement), as in nginx.
    match now_ms.wrapping_sub(last).cast_signed() {
        ms if ms < -CLOCK_BACK_MS_MAX => 1,
        ms if ms < 0 => 0,
        ms => ms.cast_unsigned(),
    }
}

/// Returns the excess of a key at time `now_ms`.
pub fn remaining_excess(state: KeyState, rate: Rate, now_ms: u64) -> u64 {
    state.excess.saturating_sub(rate.drain(elapsed_ms(state.charged_at_ms, now_ms)))
}

/// Returns the state of a key, with its excess raised to at least `excess_min`. A gateway that was
/// cut off from the others reports `excess_min` once it can reach them again.
pub fn raise_excess(
    state: Option<KeyState>,
    rate: Rate,
    now_ms: u64,
    excess_min: u64,
) -> Option<KeyState> {
    let remaining = state.map_or(0, |state| remaining_excess(state, rate, now_ms));
    if excess_min > remaining {
        Some(KeyState { excess: excess_min, charged_at_ms: now_ms })
    } else {
        state
    }
}

/// Decides about a call by all limits that apply to it. The first limit whose burst is exceeded
/// rejects the call. Otherwise the longest wait delays it.
///
/// `limits` holds the result of [`assess`] and the terms of each limit, in the order of the limits.
/// If the call is not rejected, the caller stores every [`ChargedState::state`].
pub fn decide(limits: &[(ChargedState, LimitTerms)]) -> LimitDecision {
    if let Some(limit_index) =
        limits.iter().position(|(assessed, terms)| assessed.excess > terms.burst)
    {
        return LimitDecision::Refused { limit_index };
    }
    let (mut longest_ms, mut longest_index) = (0, 0);
    // As in nginx, the search starts with the last limit, and an earlier limit counts only if its
    // wait is longer.
    for (limit_index, (assessed, terms)) in limits.iter().enumerate().rev() {
        let ms = wait_ms(assessed.excess, *terms);
        if ms > longest_ms {
            (longest_ms, longest_index) = (ms, limit_index);
        }
    }
    match longest_ms {
        0 => LimitDecision::Passed,
        ms => LimitDecision::Delayed { ms, limit_index: longest_index },
    }
}

/// Returns how long a call with this excess waits, in milliseconds; 0 for no wait.
fn wait_ms(excess: u64, terms: LimitTerms) -> u64 {
    match terms.delay {
        Some(delay) if excess > delay => (excess - delay).saturating_mul(1000) / terms.rate.0,
        _ => 0,
    }
}

/// Returns the milliseconds until a call of this cost is within the burst, if no other call
/// arrives. Returns 0 if the call is within the burst now, and `None` if the call can never be
/// within the burst. `gateways` has the same meaning as in [`assess_share`].
pub fn find_retry_ms(
    state: Option<KeyState>,
    terms: LimitTerms,
    now_ms: u64,
    cost: u64,
    gateways: u64,
) -> Option<u64> {
    let LimitTerms { rate, burst, .. } = terms;
    if assess_share(None, rate, now_ms, cost, gateways).excess > burst {
        return None;
    }
    if assess_share(state, rate, now_ms, cost, gateways).excess <= burst {
        return Some(0);
    }
    // A new key is within the burst, by the first check.
    let Some(state) = state else { return Some(0) };
    // The wait is computed from the last charge, so that the drained excess is rounded only once.
    let charge = cost.saturating_mul(CALL).saturating_mul(gateways);
    let overrun = state.excess.saturating_add(charge).saturating_sub(burst);
    let ms = overrun.saturating_mul(1000).div_ceil(rate.0);
    Some(ms.saturating_sub(now_ms.saturating_sub(state.charged_at_ms)).max(1))
}

/// Returns true if a pattern matches a method, or a method of another name that returns the same
/// logs (`wire::method::equivalent_log_method`). Patterns are exact names, or prefixes that end in
/// `*`. Letter case does not matter. An empty list matches every method.
pub fn matches_method(patterns: &[Box<str>], name: &str) -> bool {
    let matches = |name: &str| {
        patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => starts_with_ignoring_case(name, prefix),
            None => pattern.eq_ignore_ascii_case(name),
        })
    };
    patterns.is_empty() || matches(name) || equivalent_log_method(name).is_some_and(matches)
}
