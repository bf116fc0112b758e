//! Zones that gateways share: the request to Redis, and how its response is used.
//!
//! The table of a shared zone stores the last state of each key in Redis, by this process's clock.
//! It has two uses. A call that Redis would certainly reject is rejected here, because others can
//! only have added to a key since. And when Redis is unreachable, a gateway continues from there
//! with its share ([`crate::policy::limit::charge_share`]): a key that was at its limit stays
//! there. A key charged by the share is marked, because Redis may know less of it. Every request
//! reports the local state, so that a Redis that has lost its data grants no second burst. In
//! normal operation this changes nothing: for an unmarked key the report is what is left of it at
//! the latest time at which a response counts. Requests may overtake each other, and a report of
//! the state at sending time would charge the key for the difference.
//!
//! A call that also counts in zones of this process is checked there first, then judged in Redis,
//! then judged and charged here. If another call has used the local limit up meanwhile, the call is
//! rejected although Redis has charged it: this counts too much, never too little.

use smallvec::SmallVec;

use super::{Act, ChainLimits, Charge, Counted, Limits, RateLimit};
use crate::limits::table::Material;
use crate::metrics::label::{LimitJudge, LimitOutcome};
use crate::metrics::thread::Counters;
use crate::policy::limit::{Judgement, Looked, State, Terms, judge, left, look};

#[cfg(test)]
mod tests;

/// A call to be judged in Redis.
#[derive(Debug)]
pub(crate) struct Question {
    asked: SmallVec<[Asked; 2]>,
    /// Sending time, by the clock of limits.
    sent: u64,
}

/// One zone of the request.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Its index in the configuration.
    pub(crate) zone: usize,
    /// Digest of the key, the same in every gateway.
    pub(crate) digest: [u8; 16],
    pub(crate) terms: Terms,
    /// How much the call counts.
    pub(crate) cost: u64,
    /// The excess known here: Redis has at least this much, or should have.
    pub(crate) least: u64,
    limit: usize,
    material: Material,
}

/// Response of Redis.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Its own clock, milliseconds.
    pub(crate) now: u64,
    /// Index of the zone that rejected the call.
    pub(crate) refused: Option<usize>,
    /// Stored state of each zone's key.
    pub(crate) states: SmallVec<[Option<State>; 2]>,
}

impl Question {
    /// Returns the number of zones.
    pub(crate) fn zones(&self) -> usize {
        self.asked.len()
    }

    /// Iterates over the zones.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Asked> {
        self.asked.iter()
    }
}

impl Limits {
    /// Builds the request to Redis about a call, or a rejection if that is certain; `None` if the
    /// call counts in no shared zone.
    pub(super) fn question(
        &self,
        chain: &ChainLimits,
        caller: &Counted<'_>,
        now: u64,
        counters: &Counters,
    ) -> Option<Charge> {
        let chosen = self.chosen(&chain.shared, caller);
        if chosen.is_empty() {
            return None;
        }
        if let Judgement::Refused { at } = self.judge(&chain.own, caller, now, counters, Act::Look)
        {
            return Some(Charge::Refuse(self.over_rate(&chain.own[at], caller, now, 1)));
        }
        let mut asked = SmallVec::new();
        for own in chosen {
            let limit = &chain.shared[own.limit];
            let zone = &self.zones[limit.zone];
            let cost = zone.cost(caller);
            let mut table = zone.part(&own.material);
            let at = table.find(&own.material);
            let (state, marked) = match at {
                Some(at) => (Some(table.state(at)), table.is_marked(at)),
                None => (None, false),
            };
            let Terms { rate, burst, .. } = own.terms;
            let looked = look(state.filter(|_| !marked), rate, now, cost);
            if looked.excess > burst {
                if let Some(at) = at {
                    table.touch(at, now);
                }
                drop(table);
                counters.shared_limits.calls[LimitJudge::Memory].add(1);
                counters.zone(limit.zone, LimitOutcome::Rejected);
                return Some(Charge::Refuse(self.over_rate(limit, caller, now, 1)));
            }
            let told_at = if marked { now } else { now + self.redis_timeout.as_millis() as u64 };
            asked.push(Asked {
                zone: limit.zone,
                digest: zone.digest(caller),
                terms: own.terms,
                cost,
                least: state.map_or(0, |state| left(state, rate, told_at)),
                limit: own.limit,
                material: own.material,
            });
        }
        Some(Charge::Ask(Box::new(Question { asked, sent: now })))
    }

    /// Decides about a call by the verdict of Redis, or by the share if there is none.
    pub(crate) fn settle(
        &self,
        question: &Question,
        verdict: Option<&Verdict>,
        caller: &Counted<'_>,
        now: u64,
        counters: &Counters,
    ) -> Charge {
        let chain = &self.chains[caller.chain];
        let Some(verdict) = verdict else {
            counters.shared_limits.calls[LimitJudge::Share].add(1);
            return self.charge_here(chain, &chain.rates, caller, now, counters);
        };
        counters.shared_limits.calls[LimitJudge::Redis].add(1);
        for (asked, state) in question.asked.iter().zip(&verdict.states) {
            if let Some(state) = state {
                self.remember(asked, *state, verdict.now, question.sent, now);
            }
        }
        if let Some(asked) = verdict.refused.and_then(|at| question.asked.get(at)) {
            counters.zone(asked.zone, LimitOutcome::Rejected);
            let limit: &RateLimit = &chain.shared[asked.limit];
            return Charge::Refuse(self.over_rate(limit, caller, now, 1));
        }
        let looked: SmallVec<[(Looked, Terms); 2]> = question
            .asked
            .iter()
            .zip(&verdict.states)
            .filter_map(|(asked, state)| {
                let state = (*state)?;
                Some((Looked { excess: state.excess, state }, asked.terms))
            })
            .collect();
        let there = match judge(&looked) {
            Judgement::Delayed { ms, at } => Some((ms, at)),
            // The call passed under the same terms.
            Judgement::Passed | Judgement::Refused { .. } => None,
        };
        let here = self.charge_here(chain, &chain.own, caller, now, counters);
        let here_ms = match &here {
            Charge::Wait(wait) => wait.as_millis() as u64,
            Charge::Pass => 0,
            Charge::Refuse(_) | Charge::Ask(_) => return here,
        };
        let longer = there.filter(|(ms, _)| *ms > here_ms);
        for (place, asked) in question.asked.iter().enumerate() {
            let delayed = longer.is_some_and(|(_, at)| at == place);
            let outcome = if delayed { LimitOutcome::Delayed } else { LimitOutcome::Passed };
            counters.zone(asked.zone, outcome);
        }
        longer.map_or(here, |(ms, _)| Charge::Wait(std::time::Duration::from_millis(ms)))
    }

    /// Stores the state of a key in Redis.
    fn remember(&self, asked: &Asked, state: State, said_at: u64, sent: u64, now: u64) {
        // The state is dated to the sending time, minus a millisecond because clock ticks differ:
        // Redis has drained at least as much at any time from now on.
        let ago = said_at.saturating_sub(state.last);
        let state = State { last: sent.saturating_sub(ago + 1), ..state };
        let mut table = self.zones[asked.zone].part(&asked.material);
        let at = table.find(&asked.material);
        // The next request reports what another call charged by the share meanwhile.
        let untold = at.filter(|at| table.is_marked(*at)).map(|at| table.state(at));
        if untold.is_some_and(|own| left(own, asked.terms.rate, sent) > state.excess) {
            return;
        }
        table.keep(&asked.material, at, state, now);
    }
}
