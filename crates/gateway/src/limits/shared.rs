//! Zones that gateways share: the request to Redis, and the use of the response.
//!
//! The table of a shared zone stores the last known Redis state of each key, by this process's
//! clock. The table has two uses. First, a call that Redis would certainly reject is rejected here,
//! because other gateways can only have added to the key since then. Second, when Redis is
//! unreachable, a gateway continues from the stored state with its local share of the rate
//! ([`crate::policy::limit::assess_share`]). So a key that was at its limit stays at its limit. A
//! key charged by the local share is marked as unreported, because Redis may not know the charge.
//!
//! Every request to Redis reports the local excess, so a Redis that has lost its data grants no
//! second burst. In normal operation the report changes nothing. For an unmarked key the reported
//! excess is the one that is left when the Redis timeout ends. With the excess at sending time, a
//! delayed request would charge the key for what Redis has drained in the meantime.
//!
//! A call that also counts in zones of this process is checked there first, then judged in Redis,
//! then judged and charged here. If another call has used up the local limit meanwhile, the call is
//! rejected although Redis has charged it. So a shared zone may count too much, but never too
//! little.

use smallvec::SmallVec;

use super::{ChainLimits, Charge, JudgeMode, LimitedCall, Limits, RateLimit};
use crate::limits::table::HashedKey;
use crate::metrics::label::{LimitJudge, LimitOutcome};
use crate::metrics::thread::Counters;
use crate::policy::limit::{
    Assessment, KeyState, LimitDecision, LimitTerms, assess, judge, remaining_excess,
};

#[cfg(test)]
mod tests;

/// A call to be judged in Redis.
#[derive(Debug)]
pub(crate) struct SharedLimitQuery {
    /// The zones in which the call counts.
    pub(crate) zones: SmallVec<[SharedZoneQuery; 2]>,
    /// Sending time, by the clock of limits.
    sent: u64,
}

/// A zone in which a call counts.
#[derive(Debug)]
pub(crate) struct SharedZoneQuery {
    /// The zone's index in the configuration.
    pub(crate) zone: usize,
    /// Digest of the key, the same in every gateway.
    pub(crate) digest: [u8; 16],
    pub(crate) terms: LimitTerms,
    /// Number of units that the call counts.
    pub(crate) cost: u64,
    /// The excess known here. Redis raises its own state to at least this excess.
    pub(crate) known_excess: u64,
    /// Index of the limit among the chain's shared limits.
    limit: usize,
    hashed_key: HashedKey,
}

/// The decision of Redis about a call.
#[derive(Debug)]
pub(crate) struct RedisDecision {
    /// Time by the clock of Redis, in milliseconds.
    pub(crate) now: u64,
    /// Index of the zone that rejected the call.
    pub(crate) refused: Option<usize>,
    /// Stored state of each zone's key.
    pub(crate) states: SmallVec<[Option<KeyState>; 2]>,
}

impl Limits {
    /// Builds the request to Redis about a call. Returns a rejection instead if a local limit or
    /// the stored state of Redis already rejects the call. Returns `None` if the call counts in no
    /// shared zone.
    pub(super) fn query_redis(
        &self,
        chain: &ChainLimits,
        caller: &LimitedCall<'_>,
        now: u64,
        counters: &Counters,
    ) -> Option<Charge> {
        let selected_limits = self.select_limits(&chain.shared, caller);
        if selected_limits.is_empty() {
            return None;
        }
        if let LimitDecision::Refused { limit_index } =
            self.judge(&chain.local, caller, now, counters, JudgeMode::Check)
        {
            return Some(Charge::Refuse(self.build_failure(
                &chain.local[limit_index],
                caller,
                now,
                1,
            )));
        }
        let mut zones = SmallVec::new();
        for selected in selected_limits {
            let limit = &chain.shared[selected.limit];
            let zone = &self.zones[limit.zone];
            let cost = zone.cost(caller);
            let mut table = zone.lock_shard(&selected.hashed_key);
            let slot = table.find(&selected.hashed_key);
            let (state, unreported) = match slot {
                Some(slot) => (Some(table.state(slot)), table.is_unreported(slot)),
                None => (None, false),
            };
            let LimitTerms { rate, burst, .. } = selected.terms;
            let assessed = assess(state.filter(|_| !unreported), rate, now, cost);
            if assessed.excess > burst {
                if let Some(slot) = slot {
                    table.touch(slot, now);
                }
                drop(table);
                counters.shared_limits.calls[LimitJudge::Memory].add(1);
                counters.record_limit_outcome(limit.zone, LimitOutcome::Rejected);
                return Some(Charge::Refuse(self.build_failure(limit, caller, now, 1)));
            }
            let received_by =
                if unreported { now } else { now + self.redis_timeout.as_millis() as u64 };
            zones.push(SharedZoneQuery {
                zone: limit.zone,
                digest: zone.compute_digest(caller),
                terms: selected.terms,
                cost,
                known_excess: state.map_or(0, |state| remaining_excess(state, rate, received_by)),
                limit: selected.limit,
                hashed_key: selected.hashed_key,
            });
        }
        Some(Charge::AskRedis(Box::new(SharedLimitQuery { zones, sent: now })))
    }

    /// Decides about a call by the decision of Redis, or by this gateway's local share if there is
    /// none.
    pub(crate) fn settle(
        &self,
        query: &SharedLimitQuery,
        decision: Option<&RedisDecision>,
        caller: &LimitedCall<'_>,
        now: u64,
        counters: &Counters,
    ) -> Charge {
        let chain = &self.chains[caller.chain];
        let Some(decision) = decision else {
            counters.shared_limits.calls[LimitJudge::Share].add(1);
            return self.charge_locally(chain, &chain.rates, caller, now, counters);
        };
        counters.shared_limits.calls[LimitJudge::Redis].add(1);
        for (zone, state) in query.zones.iter().zip(&decision.states) {
            if let Some(state) = state {
                self.store_redis_state(zone, *state, decision.now, query.sent, now);
            }
        }
        if let Some(zone) = decision.refused.and_then(|index| query.zones.get(index)) {
            counters.record_limit_outcome(zone.zone, LimitOutcome::Rejected);
            let limit: &RateLimit = &chain.shared[zone.limit];
            return Charge::Refuse(self.build_failure(limit, caller, now, 1));
        }
        let assessed: SmallVec<[(Assessment, LimitTerms); 2]> = query
            .zones
            .iter()
            .zip(&decision.states)
            .filter_map(|(zone, state)| {
                let state = (*state)?;
                Some((Assessment { excess: state.excess, state }, zone.terms))
            })
            .collect();
        let redis_delay = match judge(&assessed) {
            LimitDecision::Delayed { ms, limit_index } => Some((ms, limit_index)),
            // The call passed under the same terms.
            LimitDecision::Passed | LimitDecision::Refused { .. } => None,
        };
        let local_charge = self.charge_locally(chain, &chain.local, caller, now, counters);
        let local_delay_ms = match &local_charge {
            Charge::Wait(wait) => wait.as_millis() as u64,
            Charge::Pass => 0,
            Charge::Refuse(_) | Charge::AskRedis(_) => return local_charge,
        };
        let longer_delay = redis_delay.filter(|(ms, _)| *ms > local_delay_ms);
        for (index, zone) in query.zones.iter().enumerate() {
            let delayed = longer_delay.is_some_and(|(_, limit_index)| limit_index == index);
            let outcome = if delayed { LimitOutcome::Delayed } else { LimitOutcome::Passed };
            counters.record_limit_outcome(zone.zone, outcome);
        }
        longer_delay
            .map_or(local_charge, |(ms, _)| Charge::Wait(std::time::Duration::from_millis(ms)))
    }

    /// Stores the state that Redis returned for a key.
    fn store_redis_state(
        &self,
        zone: &SharedZoneQuery,
        state: KeyState,
        redis_now: u64,
        sent: u64,
        now: u64,
    ) {
        // The state is dated to the sending time, minus a millisecond because clock ticks differ.
        // So Redis has always drained at least as much as this copy of the state.
        let age = redis_now.saturating_sub(state.last);
        let state = KeyState { last: sent.saturating_sub(age + 1), ..state };
        let mut table = self.zones[zone.zone].lock_shard(&zone.hashed_key);
        let slot = table.find(&zone.hashed_key);
        // Another call may have charged the key by the local share meanwhile. The state with that
        // charge stays, and the next request reports it.
        let unreported =
            slot.filter(|slot| table.is_unreported(*slot)).map(|slot| table.state(slot));
        if unreported.is_some_and(|unreported| {
            remaining_excess(unreported, zone.terms.rate, sent) > state.excess
        }) {
            return;
        }
        table.store(&zone.hashed_key, slot, state, now);
    }
}
