//! Zones that gateways share: what is asked of Redis, and what is made of its answer.
//!
//! The table of a shared zone holds what Redis last said of each key, in this process's clock, so
//! that it is good for two things. A call that Redis would certainly refuse is refused here: others
//! can only have added to a key since. And when Redis is away, a gateway goes on from there by its
//! share ([`crate::policy::limit::look_share`]): a key that was at its limit stays there. A key
//! that was charged by the share is marked: Redis may know less of it. What is known here is told
//! with every question, so that a Redis that has forgotten everything grants no second burst. While
//! all is well it changes nothing: of a key that is not marked so much is told as is left of it at
//! the latest time at which an answer counts. A question may be longer under way than the one
//! before it, and what is left by the time of the asking would charge the key with the difference.
//!
//! A call that counts in zones of this process too is looked at there first, then judged in Redis,
//! then judged and charged here. Should another call have taken the last place here meanwhile, it
//! is refused although Redis has charged it: too little, never too much.

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
    /// When it was asked, by the clock of limits.
    sent: u64,
}

/// One zone of it.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Its place in the configuration.
    pub(crate) zone: usize,
    /// Of the key, the same in every gateway.
    pub(crate) digest: [u8; 16],
    pub(crate) terms: Terms,
    /// What the call counts as.
    pub(crate) cost: u64,
    /// The excess that is known here: at least so much there is in Redis, or should be.
    pub(crate) least: u64,
    limit: usize,
    material: Material,
}

/// What Redis says.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// When, by its own clock, milliseconds.
    pub(crate) now: u64,
    /// The place of the zone that refused.
    pub(crate) refused: Option<usize>,
    /// What it keeps of each zone's key.
    pub(crate) states: SmallVec<[Option<State>; 2]>,
}

impl Question {
    /// Zones that it is about.
    pub(crate) fn zones(&self) -> usize {
        self.asked.len()
    }

    /// Each of them.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Asked> {
        self.asked.iter()
    }
}

impl Limits {
    /// What to ask Redis about a call, or its refusal where that is certain; none if it counts in
    /// no shared zone.
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

    /// What becomes of a call that Redis was asked about, or else of one that it had no word for.
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
            // It was let through by the same terms.
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

    /// Keeps what Redis said of a key.
    fn remember(&self, asked: &Asked, state: State, said_at: u64, sent: u64, now: u64) {
        // As if it had been said when it was asked, and a millisecond before, because the clocks do
        // not tick together: Redis has drained at least as much at any time from now on.
        let ago = said_at.saturating_sub(state.last);
        let state = State { last: sent.saturating_sub(ago + 1), ..state };
        let mut table = self.zones[asked.zone].part(&asked.material);
        let at = table.find(&asked.material);
        // What another call has been let through with by the share meanwhile is told the next time.
        let untold = at.filter(|at| table.is_marked(*at)).map(|at| table.state(at));
        if untold.is_some_and(|own| left(own, asked.terms.rate, sent) > state.excess) {
            return;
        }
        table.keep(&asked.material, at, state, now);
    }
}
