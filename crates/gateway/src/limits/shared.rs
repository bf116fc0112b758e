//! Zones that gateways share: the request to Redis, and the use of the response.
//!
//! For each key, the table of a shared zone stores a copy of the last state that Redis reported. A
//! state is the excess of the key (`limits.rs`) and the time of its last charge. The times are
//! converted to this process's clock. The copy has two uses:
//!
//! - The gateway rejects a call itself if the copy shows that Redis would reject the call. Since
//!   Redis reported the state, other gateways can only have added charges to the key.
//! - While Redis is unreachable, the gateway continues from the copy. It applies its local share:
//!   the rate divided by the number of gateways ([`crate::policy::limit::assess_share`]). So a key
//!   that was at its limit stays at its limit. When the gateway charges a key without Redis, it
//!   marks the key as *unreported*, because Redis may not know the charge.
//!
//! Every request to Redis reports the excess of the copy, so a Redis that has lost its data grants
//! no second burst. In normal operation the report changes nothing. While a request is on its way,
//! the excess in Redis falls at the allowed rate. A delayed request must not raise the excess in
//! Redis again. So the gateway reports the excess that will remain when the Redis timeout ends. For
//! an unreported key, it reports the excess at the time of sending.
//!
//! A call can also count in *local* zones, which belong to this gateway alone. The gateway checks
//! the local zones first, then asks Redis, and then charges the local zones. If another call has
//! used up the local limit meanwhile, the call is rejected although Redis has charged it. So a
//! shared zone may count a call that was rejected, but it never misses a call that passed.

use std::time::Duration;

use smallvec::SmallVec;

use super::{ChainLimits, Charge, JudgeMode, LimitedCall, Limits, RateLimit};
use crate::limits::table::HashedKey;
use crate::metrics::label::{LimitJudge, LimitOutcome};
use crate::metrics::thread::Counters;
use crate::policy::limit::{
    ChargedState, KeyState, LimitDecision, LimitTerms, assess, decide, remaining_excess,
};

#[cfg(test)]
mod tests;

/// A call about which Redis must decide.
#[derive(Debug)]
pub(crate) struct SharedLimitQuery {
    /// The shared zones in which the call counts.
    pub(crate) zones: SmallVec<[SharedZoneQuery; 2]>,
    /// Sending time in ms, by the clock that limits use.
    sent_ms: u64,
}

/// A shared zone in which a call counts.
#[derive(Debug)]
pub(crate) struct SharedZoneQuery {
    /// The zone's index in the configuration.
    pub(crate) zone: usize,
    /// Digest of the key, the same in every gateway.
    pub(crate) digest: [u8; 16],
    /// The rate and burst of the limit.
    pub(crate) terms: LimitTerms,
    /// Number of calls that the call counts as.
    pub(crate) cost: u64,
    /// The excess in this gateway's copy, in thousandths of a call. Redis raises the excess of its
    /// own state to at least this value.
    pub(crate) known_excess: u64,
    /// Index of the limit in `ChainLimits::shared`.
    limit: usize,
    hashed_key: HashedKey,
}

/// The decision of Redis about a call.
#[derive(Debug)]
pub(crate) struct RedisDecision {
    /// Time by the clock of Redis, in milliseconds.
    pub(crate) redis_now_ms: u64,
    /// Index in [`SharedLimitQuery::zones`] of the zone that rejected the call; `None` if the call
    /// passes.
    pub(crate) refused: Option<usize>,
    /// State of the key in each zone, in the order of [`SharedLimitQuery::zones`]; `None` if Redis
    /// has no state of the key.
    pub(crate) states: SmallVec<[Option<KeyState>; 2]>,
}

impl Limits {
    /// Builds the request to Redis about a call. Returns a rejection instead if a local limit
    /// rejects the call, or if this gateway's copy of the state shows that Redis would reject the
    /// call. Returns `None` if the call counts in no shared zone.
    pub(super) fn query_redis(
        &self,
        chain: &ChainLimits,
        call: &LimitedCall<'_>,
        now_ms: u64,
        counters: &Counters,
    ) -> Option<Charge> {
        let selected_limits = self.select_limits(&chain.shared, call);
        if selected_limits.is_empty() {
            return None;
        }
        if let LimitDecision::Refused { limit_index } =
            self.judge(&chain.local, call, now_ms, counters, JudgeMode::Check)
        {
            let limit = &chain.local[limit_index];
            return Some(Charge::Refuse(self.build_failure(limit, call, now_ms, 1)));
        }
        let mut zones = SmallVec::new();
        for selected in selected_limits {
            let limit = &chain.shared[selected.limit];
            let zone = &self.zones[limit.zone];
            let cost = zone.cost(call);
            let mut table = zone.lock_shard(&selected.hashed_key);
            let slot = table.find(&selected.hashed_key);
            let (state, unreported) = match slot {
                Some(slot) => (Some(table.state(slot)), table.is_unreported(slot)),
                None => (None, false),
            };
            let LimitTerms { rate, burst, .. } = selected.terms;
            // An unreported state has charges that Redis may not know. So such a state does not
            // prove that Redis would reject the call.
            let assessed = assess(state.filter(|_| !unreported), rate, now_ms, cost);
            if assessed.excess > burst {
                if let Some(slot) = slot {
                    table.touch(slot, now_ms);
                }
                drop(table);
                counters.shared_limits.calls[LimitJudge::Memory].add(1);
                counters.record_limit_outcome(limit.zone, LimitOutcome::Rejected);
                return Some(Charge::Refuse(self.build_failure(limit, call, now_ms, 1)));
            }
            // The time for which the excess is reported: the end of the Redis timeout, or now for
            // an unreported state.
            let received_by_ms =
                if unreported { now_ms } else { now_ms + self.redis_timeout.as_millis() as u64 };
            let known_excess =
                state.map_or(0, |state| remaining_excess(state, rate, received_by_ms));
            zones.push(SharedZoneQuery {
                zone: limit.zone,
                digest: zone.compute_digest(call),
                terms: selected.terms,
                cost,
                known_excess,
                limit: selected.limit,
                hashed_key: selected.hashed_key,
            });
        }
        Some(Charge::AskRedis(Box::new(SharedLimitQuery { zones, sent_ms: now_ms })))
    }

    /// Applies the decision of Redis to a call. If `decision` is `None`, Redis did not decide, and
    /// this gateway decides by its local share.
    pub(crate) fn apply_decision(
        &self,
        query: &SharedLimitQuery,
        decision: Option<&RedisDecision>,
        call: &LimitedCall<'_>,
        now_ms: u64,
        counters: &Counters,
    ) -> Charge {
        let chain = &self.chains[call.chain];
        let Some(decision) = decision else {
            counters.shared_limits.calls[LimitJudge::Share].add(1);
            return self.charge_locally(chain, &chain.rates, call, now_ms, counters);
        };
        counters.shared_limits.calls[LimitJudge::Redis].add(1);
        for (zone, state) in query.zones.iter().zip(&decision.states) {
            if let Some(state) = state {
                self.store_redis_state(zone, *state, decision.redis_now_ms, query.sent_ms, now_ms);
            }
        }
        if let Some(zone) = decision.refused.and_then(|index| query.zones.get(index)) {
            counters.record_limit_outcome(zone.zone, LimitOutcome::Rejected);
            let limit: &RateLimit = &chain.shared[zone.limit];
            return Charge::Refuse(self.build_failure(limit, call, now_ms, 1));
        }
        let assessed: SmallVec<[(ChargedState, LimitTerms); 2]> = query
            .zones
            .iter()
            .zip(&decision.states)
            .filter_map(|(zone, state)| {
                let state = (*state)?;
                Some((ChargedState { excess: state.excess, state }, zone.terms))
            })
            .collect();
        let local_charge = self.charge_locally(chain, &chain.local, call, now_ms, counters);
        let local_delay_ms = match &local_charge {
            Charge::Wait(wait) => wait.as_millis() as u64,
            Charge::Pass => 0,
            Charge::Refuse(_) | Charge::AskRedis(_) => return local_charge,
        };
        // The longest delay applies. `delaying_zone` is the index of the shared zone that causes
        // the delay; `None` if no shared zone causes it.
        let (delaying_zone, charge) = match decide(&assessed) {
            LimitDecision::Delayed { ms, limit_index } if ms > local_delay_ms => {
                (Some(limit_index), Charge::Wait(Duration::from_millis(ms)))
            }
            // Redis has let the call pass under the same terms, so `Refused` cannot occur.
            LimitDecision::Passed
            | LimitDecision::Delayed { .. }
            | LimitDecision::Refused { .. } => (None, local_charge),
        };
        for (index, zone) in query.zones.iter().enumerate() {
            let is_delayed = delaying_zone == Some(index);
            let outcome = if is_delayed { LimitOutcome::Delayed } else { LimitOutcome::Passed };
            counters.record_limit_outcome(zone.zone, outcome);
        }
        charge
    }

    /// Stores a copy of the state that Redis returned for a key.
    fn store_redis_state(
        &self,
        zone: &SharedZoneQuery,
        state: KeyState,
        redis_now_ms: u64,
        sent_ms: u64,
        now_ms: u64,
    ) {
        // The copy must never show a larger excess than Redis. The excess falls after a charge, so
        // the time of the charge must not be too late. Redis decided after the sending time, so the
        // age of the charge is subtracted from the sending time. One further millisecond is
        // subtracted because the two clocks tick at different instants.
        let age_ms = redis_now_ms.saturating_sub(state.charged_at_ms);
        let state = KeyState { charged_at_ms: sent_ms.saturating_sub(age_ms + 1), ..state };
        let mut table = self.zones[zone.zone].lock_shard(&zone.hashed_key);
        let slot = table.find(&zone.hashed_key);
        // While this request was in flight, another call may have charged the key by the local
        // share. If the state with that charge has a larger excess than Redis, the state stays, and
        // the next request reports it.
        let unreported_state =
            slot.filter(|slot| table.is_unreported(*slot)).map(|slot| table.state(slot));
        let is_ahead_of_redis = unreported_state.is_some_and(|unreported_state| {
            remaining_excess(unreported_state, zone.terms.rate, sent_ms) > state.excess
        });
        if is_ahead_of_redis {
            return;
        }
        table.store(&zone.hashed_key, slot, state, now_ms);
    }
}
