//! Whether a call passes, waits or is refused under request limits: nginx's `limit_req`, exactly.
//!
//! The arithmetic was read in nginx 1.22, `src/http/modules/ngx_http_limit_req_module.c`
//! (`ngx_http_limit_req_lookup`, `ngx_http_limit_req_account`): integer thousandths of a call and a
//! clock in milliseconds. [`look`] is all of it for one key of one zone, in integers without a
//! table, a loop or a clock, so that a script elsewhere can repeat it line by line; [`judge`] puts
//! several zones together. Where states are kept is `limits.rs`; which limits apply to a call is
//! decided there too.

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
    let more = cost.saturating_sub(1).saturating_mul(CALL);
    let Some(State { excess, last }) = state else {
        return Looked { excess: more, state: State { excess: more, last: now } };
    };
    // Two's complement, as nginx subtracts.
    let ms = match now.wrapping_sub(last).cast_signed() {
        ms if ms < -CLOCK_BACK_MS_MAX => 1,
        ms if ms < 0 => 0,
        ms => ms.cast_unsigned(),
    };
    let drained = rate.0.saturating_mul(ms) / 1000;
    let excess = (excess + CALL).saturating_sub(drained).saturating_add(more);
    Looked { excess, state: State { excess, last: if ms == 0 { last } else { now } } }
}

/// Judges a call by all limits that apply to it: refused by the first whose burst it is over, else
/// delayed by the longest of the waits.
///
/// `each` has what [`look`] gave, with the terms, in the order of the limits. The caller keeps every
/// [`Looked::state`] unless the call is refused.
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
    let Terms { rate, burst, .. } = terms;
    if look(None, rate, now, cost).excess > burst {
        return None;
    }
    let looked = look(state, rate, now, cost);
    let Some(state) = state.filter(|_| looked.excess > burst) else { return Some(0) };
    // What drains is counted whole from the last charge on.
    let due = (state.excess + cost.saturating_mul(CALL)).saturating_sub(burst);
    let ms = due.saturating_mul(1000).div_ceil(rate.0);
    Some(ms.saturating_sub(now.saturating_sub(state.last)).max(1))
}

/// Whether a method is named by one of these patterns: exact names, or prefixes that end in `*`;
/// without any, every method is.
pub fn fits(patterns: &[Box<str>], name: &str) -> bool {
    patterns.is_empty()
        || patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => **pattern == *name,
        })
}
