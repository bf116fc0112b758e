//! Whether a call passes, waits or is refused under request limits: nginx's `limit_req`, exactly.
//!
//! The arithmetic was read in nginx 1.22, `src/http/modules/ngx_http_limit_req_module.c`
//! (`ngx_http_limit_req_lookup`, `ngx_http_limit_req_account`): integer thousandths of a call and a
//! clock in milliseconds. [`look`] is all of it for one key of one zone, in integers without a
//! table, a loop or a clock, so that a script in Redis repeats it line by line
//! (`cache/redis/zones.lua`); [`judge`] puts several zones together. Where states are kept is
//! `limits.rs`; which limits apply to a call is decided there too.

use wire::effect::starts_with_ignoring_case;
use wire::method::equivalent_log_method;

#[cfg(test)]
mod tests;

/// Thousandths of one call: the unit of every excess.
pub const CALL: u64 = 1000;

/// A clock that went back by more than this, milliseconds, is taken as one that was set anew.
const CLOCK_BACK_MS_MAX: i64 = 60_000;

/// How fast the excess of a key drains: thousandths of a call per second; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// So many calls in each second.
    pub fn per_second(calls: u64) -> Rate {
        Rate(calls.saturating_mul(CALL).max(1))
    }

    /// So many calls in each minute. As in nginx the division drops what is left over: 1 per minute
    /// is 16 thousandths per second.
    pub fn per_minute(calls: u64) -> Rate {
        Rate((calls.saturating_mul(CALL) / 60).max(1))
    }

    /// In thousandths of a call per second.
    pub fn thousandths(self) -> u64 {
        self.0
    }

    /// What drains in so many milliseconds, thousandths of a call.
    fn drained(self, ms: u64) -> u64 {
        self.0.saturating_mul(ms) / 1000
    }
}

/// What is kept of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// By how much the key is ahead of its rate, thousandths of a call.
    pub excess: u64,
    /// When that was so, milliseconds.
    pub last: u64,
}

/// How one limit treats the keys of its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The zone's rate.
    pub rate: Rate,
    /// Excess up to which calls are let through, thousandths of a call.
    pub burst: u64,
    /// Excess from which on they wait, thousandths of a call; none with `nodelay`.
    pub delay: Option<u64>,
}

/// One key of one zone, looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looked {
    /// Its excess with this call in it.
    pub excess: u64,
    /// What is kept if the call goes through; a refusal leaves the state as it is.
    pub state: State,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It goes on at once.
    Passed,
    /// It goes on after a wait, and is charged now.
    Delayed {
        /// The wait, milliseconds; at least 1.
        ms: u64,
        /// Which of the limits asked for it, by its place.
        at: usize,
    },
    /// It is refused, and nothing is charged.
    Refused {
        /// Which of the limits refused it, by its place.
        at: usize,
    },
}

/// Looks at a key (none for one that is not kept) with a call that counts as `cost` calls, at least
/// 1.
///
/// The first of them is counted as nginx counts a request; the others as further requests within
/// the same millisecond.
pub fn look(state: Option<State>, rate: Rate, now: u64, cost: u64) -> Looked {
    look_share(state, rate, now, cost, 1)
}

/// The same for one of so many gateways that may not ask the others: each call counts as if every
/// one of them had let one through, so that all together keep the rate and the burst.
pub fn look_share(state: Option<State>, rate: Rate, now: u64, cost: u64, gateways: u64) -> Looked {
    let call = CALL.saturating_mul(gateways);
    let more = cost.saturating_sub(1).saturating_mul(call);
    let Some(State { excess, last }) = state else {
        return Looked { excess: more, state: State { excess: more, last: now } };
    };
    let ms = elapsed(last, now);
    let excess = excess.saturating_add(call).saturating_sub(rate.drained(ms)).saturating_add(more);
    Looked { excess, state: State { excess, last: if ms == 0 { last } else { now } } }
}

/// Milliseconds between two readings of a clock that may have been set back.
fn elapsed(last: u64, now: u64) -> u64 {
    // Two's complement, as nginx subtracts.
    match now.wrapping_sub(last).cast_signed() {
        ms if ms < -CLOCK_BACK_MS_MAX => 1,
        ms if ms < 0 => 0,
        ms => ms.cast_unsigned(),
    }
}

/// The excess that is left now, without a further call.
pub fn left(state: State, rate: Rate, now: u64) -> u64 {
    state.excess.saturating_sub(rate.drained(elapsed(state.last, now)))
}

/// The state of a key that has at least this excess now: what a gateway has let through while it
/// could not ask, told to those who did not hear of it.
pub fn raised(state: Option<State>, rate: Rate, now: u64, excess_min: u64) -> Option<State> {
    let left = state.map_or(0, |state| left(state, rate, now));
    if excess_min > left { Some(State { excess: excess_min, last: now }) } else { state }
}

/// Judges a call by all limits that apply to it: refused by the first whose burst it is over, else
/// delayed by the longest of the waits.
///
/// `each` has what [`look`] gave, with the terms, in the order of the limits. The caller keeps
/// every [`Looked::state`] unless the call is refused.
pub fn judge(each: &[(Looked, Terms)]) -> Judgement {
    if let Some(at) = each.iter().position(|(looked, terms)| looked.excess > terms.burst) {
        return Judgement::Refused { at };
    }
    let mut longest = (0, 0);
    // nginx begins with the last one and names an earlier one only if it is longer.
    for (at, (looked, terms)) in each.iter().enumerate().rev() {
        let ms = wait_ms(looked.excess, *terms);
        if ms > longest.0 {
            longest = (ms, at);
        }
    }
    match longest {
        (0, _) => Judgement::Passed,
        (ms, at) => Judgement::Delayed { ms, at },
    }
}

/// How long a call with this excess waits, milliseconds.
fn wait_ms(excess: u64, terms: Terms) -> u64 {
    match terms.delay {
        Some(delay) if excess > delay => (excess - delay).saturating_mul(1000) / terms.rate.0,
        _ => 0,
    }
}

/// After how many milliseconds a call of this cost will be within the burst, if none comes between:
/// 0 if it is so now, none if it never will be.
pub fn retry_ms(state: Option<State>, terms: Terms, now: u64, cost: u64) -> Option<u64> {
    retry_share_ms(state, terms, now, cost, 1)
}

/// The same for one of so many gateways; see [`look_share`].
pub fn retry_share_ms(
    state: Option<State>,
    terms: Terms,
    now: u64,
    cost: u64,
    gateways: u64,
) -> Option<u64> {
    let Terms { rate, burst, .. } = terms;
    if look_share(None, rate, now, cost, gateways).excess > burst {
        return None;
    }
    let looked = look_share(state, rate, now, cost, gateways);
    let Some(state) = state.filter(|_| looked.excess > burst) else { return Some(0) };
    // What drains is counted whole from the last charge on.
    let calls = cost.saturating_mul(CALL).saturating_mul(gateways);
    let due = state.excess.saturating_add(calls).saturating_sub(burst);
    let ms = due.saturating_mul(1000).div_ceil(rate.0);
    Some(ms.saturating_sub(now.saturating_sub(state.last)).max(1))
}

/// Whether a method, or the one whose results it returns, is named by one of these patterns: exact
/// names, or prefixes that end in `*`; without any, every method is. The case of letters makes no
/// difference.
pub fn fits(patterns: &[Box<str>], name: &str) -> bool {
    let named = |name: &str| {
        patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => starts_with_ignoring_case(name, prefix),
            None => pattern.eq_ignore_ascii_case(name),
        })
    };
    patterns.is_empty() || named(name) || equivalent_log_method(name).is_some_and(named)
}
