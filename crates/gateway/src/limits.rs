//! Request limits, as in nginx. This file selects the limits of a call and decides whether the call
//! passes. It charges the call to the limits' zones.
//!
//! A *zone* is a table of keys, such as client addresses. It stores the *excess* of each key: the
//! number of calls by which the key is ahead of the allowed rate, in thousandths of a call. To
//! *charge* a call means to add it to the excess of its key. A *limit* names a zone and applies to
//! each key of the zone.
//!
//! All threads share a zone. A zone is split into shards, each with a lock that a thread holds for
//! some tens of nanoseconds. A call takes the locks of all its zones before it is charged to any of
//! them. The fixed order of the zones prevents deadlocks.
//!
//! `policy/limit.rs` does the arithmetic. `limits/zone.rs` and `limits/table.rs` store the keys.
//! `limits/clients.rs` limits connections, and `limits/shared.rs` handles zones that several
//! gateways share.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use wire::method::Method;

use crate::access::caller::HeaderValue;
use crate::call::failure::{Failure, FailureKind};
use crate::config;
use crate::config::Config;
use crate::config::limits::LimitKind;
use crate::metrics::label::LimitOutcome;
use crate::metrics::thread::Counters;
use crate::policy::access::Grant;
use crate::policy::limit::{
    ChargedState, LimitDecision, LimitTerms, assess_share, decide, find_retry_ms, matches_method,
};

pub(crate) mod clients;
pub(crate) mod shared;
mod table;
mod zone;

use shared::SharedLimitQuery;
pub(crate) use table::ZONE_BYTES_PER_KEY;
use table::{HashedKey, Table};
use zone::Zone;
pub(crate) use zone::{ZoneFill, key_headers};

/// A call's key in a zone, computed before the call was parsed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrefetchedKey {
    /// Index of the zone.
    zone: usize,
    hashed_key: HashedKey,
}

/// The properties of a call that limits depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitedCall<'a> {
    /// Address of the client.
    pub(crate) client: IpAddr,
    /// Index of the chain.
    pub(crate) chain: usize,
    pub(crate) chain_name: &'a str,
    /// Name of the method; empty if the call could not be parsed.
    pub(crate) name: &'a str,
    /// The method's entry in the method table; `None` for unknown methods.
    pub(crate) method: Option<&'static Method>,
    /// Values of the headers that are part of keys, in the order of the list that [`key_headers`]
    /// returns.
    pub(crate) headers: &'a [HeaderValue],
    /// The grant of the caller, which holds the rights of its API key or token; `None` without a
    /// key or token.
    pub(crate) grant: Option<&'a Grant>,
    /// The result of [`Limits::prefetch_key`] for the request of the call.
    pub(crate) prefetched: Option<PrefetchedKey>,
}

/// The result of charging a call.
#[derive(Debug)]
pub(crate) enum Charge {
    /// The call passes at once.
    Pass,
    /// The call passes after this wait.
    Wait(Duration),
    /// The call is rejected.
    Refuse(Failure),
    /// The caller must send this query to Redis, and call [`Limits::apply_decision`] with the
    /// decision.
    AskRedis(Box<SharedLimitQuery>),
}

/// All zones and limits.
#[derive(Debug)]
pub(crate) struct Limits {
    zones: Vec<Zone>,
    /// The limits of each chain, in the order of the configuration.
    chains: Vec<ChainLimits>,
    /// Limits that count requests with failed authentication.
    auth_failure_limits: Vec<RateLimit>,
    /// True if any limit can delay calls.
    pub(crate) delays: bool,
    /// Longest wait of a call for Redis; zero without Redis.
    redis_timeout: Duration,
}

/// The limits of one chain. A limit in dry run rejects no call, but its outcomes are counted.
#[derive(Debug, Default)]
struct ChainLimits {
    /// All rate limits that are not in dry run.
    rates: Vec<RateLimit>,
    /// The limits in `rates` whose zones several gateways share.
    shared: Vec<RateLimit>,
    /// The limits in `rates` whose zones belong to this gateway alone.
    local: Vec<RateLimit>,
    /// Rate limits in dry run.
    dry_rates: Vec<RateLimit>,
    /// Concurrency limits that are not in dry run.
    in_flight: Vec<ConcurrencyLimit>,
    /// Concurrency limits in dry run.
    dry_in_flight: Vec<ConcurrencyLimit>,
}

impl ChainLimits {
    /// Adds a limit to the list of its kind. [`Limits::new`] fills `shared` and `local`.
    fn add(&mut self, index: usize, limit: &config::limits::Limit) {
        let (rates, in_flight) = match limit.dry_run {
            true => (&mut self.dry_rates, &mut self.dry_in_flight),
            false => (&mut self.rates, &mut self.in_flight),
        };
        match limit.kind {
            LimitKind::Rate(terms) => rates.push(ZoneLimit::new(index, limit, terms)),
            LimitKind::Concurrent(max) => in_flight.push(ZoneLimit::new(index, limit, max)),
        }
    }
}

/// A limit for each key of a zone.
#[derive(Debug, Clone)]
struct ZoneLimit<T> {
    /// Index of the limit in `Config::limits`.
    index: usize,
    /// Index of the zone.
    zone: usize,
    /// Patterns of the limited methods; empty matches every method.
    methods: Vec<Box<str>>,
    /// HTTP status of a rejected call.
    status: u16,
    /// The bound for each key of the zone.
    bound: T,
}

/// A limit of the rate of calls. Its bound is the rate and the burst.
type RateLimit = ZoneLimit<LimitTerms>;

/// A limit of the number of calls in flight. Its bound is the maximum.
type ConcurrencyLimit = ZoneLimit<u64>;

impl<T> ZoneLimit<T> {
    fn new(index: usize, limit: &config::limits::Limit, bound: T) -> ZoneLimit<T> {
        let (zone, methods, status) = (limit.zone, limit.methods.clone(), limit.status);
        ZoneLimit { index, zone, methods, status, bound }
    }
}

/// A limit that applies to a call, with the call's key.
struct SelectedLimit {
    /// Index of the limit in the list given to [`Limits::select_limits`].
    limit: usize,
    /// The call's key in the limit's zone.
    hashed_key: HashedKey,
    /// The rate and burst that apply. If the caller's API key has its own values, they replace the
    /// limit's values.
    terms: LimitTerms,
}

/// A limit that applies to a call, for explanations.
#[derive(Debug, Clone, Copy)]
pub struct AppliedLimit {
    /// Index in `Config::limits`.
    pub index: usize,
    /// The bound that applies to the call. If the caller's API key has its own rate or burst, they
    /// replace the limit's.
    pub kind: LimitKind,
    /// Number of calls as which the call counts.
    pub cost: u64,
}

/// What [`Limits::judge`] does besides deciding about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JudgeMode {
    /// Charges a call that passes, and counts the outcome.
    Charge,
    /// Charges no call, and counts only a rejection.
    Check,
    /// Charges a call that passes, and counts the outcome as a dry run.
    DryRun,
}

impl Limits {
    /// Builds the limits of a configuration. A zone of the previous configuration keeps its state
    /// if it is unchanged, except for its rate or cost. `gateways` is the number of gateways that
    /// share zones. Returns `None` if the configuration has no limits.
    pub(crate) fn new(
        previous: Option<(&Limits, &Config)>,
        config: &Config,
        gateways: &Arc<AtomicU64>,
    ) -> Option<Limits> {
        if config.limits.is_empty() {
            return None;
        }
        let headers = key_headers(config);
        let find_old_state = |zone: &config::limits::Zone| {
            let (previous_limits, previous_config) = previous?;
            // A zone with a rate and a zone that counts calls in flight store different states.
            let keeps_state = |old_zone: &config::limits::Zone| {
                let (rate, cost) = (zone.rate, zone.cost);
                old_zone.rate.is_some() == rate.is_some()
                    && config::limits::Zone { rate, cost, ..old_zone.clone() } == *zone
            };
            let old_index = previous_config.zones.iter().position(keeps_state)?;
            Some(Arc::clone(&previous_limits.zones[old_index].state))
        };
        let redis = config.redis.as_ref();
        let redis_timeout = redis.map_or(Duration::ZERO, |redis| redis.timeout);
        let zones = config.zones.iter();
        let zones =
            zones.map(|zone| Zone::new(zone, gateways, &headers, find_old_state(zone))).collect();
        let mut chains: Vec<ChainLimits> = Vec::new();
        chains.resize_with(config.chains.len(), ChainLimits::default);
        let mut auth_failure_limits = Vec::new();
        for (limit_index, limit) in config.limits.iter().enumerate() {
            if limit.failures
                && let LimitKind::Rate(terms) = limit.kind
            {
                // A limit of failed authentications rejects requests, but delays none.
                let terms = LimitTerms { delay: None, ..terms };
                let limit = ZoneLimit::new(limit_index, limit, terms);
                auth_failure_limits.push(ZoneLimit { methods: Vec::new(), ..limit });
                continue;
            }
            for (index, chain) in chains.iter_mut().enumerate() {
                if limit.chain.is_none_or(|limited_chain| limited_chain == index) {
                    chain.add(limit_index, limit);
                }
            }
        }
        for chain in &mut chains {
            let is_shared = |limit: &RateLimit| config.zones[limit.zone].shared;
            (chain.shared, chain.local) = chain.rates.iter().cloned().partition(is_shared);
        }
        let can_delay = |limit: &RateLimit| {
            let LimitTerms { burst, delay, .. } = limit.bound;
            delay.is_some_and(|delay| delay < burst)
        };
        let delays = chains.iter().flat_map(|chain| &chain.rates).any(can_delay);
        Some(Limits { zones, chains, auth_failure_limits, delays, redis_timeout })
    }

    /// Returns the fill level of each zone.
    pub(crate) fn fills(&self) -> Vec<ZoneFill> {
        self.zones.iter().map(Zone::fill).collect()
    }

    /// Computes a request's key before the request's calls are parsed, and prefetches the key's
    /// table entry into the CPU cache. In a zone with many keys, the cache miss would dominate the
    /// cost of a limit. Returns `None` if the chain has no rate limit, or if the first limit's key
    /// depends on the call. Also returns `None` if the request has no key in that limit's zone.
    pub(crate) fn prefetch_key(&self, call: &LimitedCall<'_>) -> Option<PrefetchedKey> {
        let zone = self.chains[call.chain].rates.first()?.zone;
        let hashed_key = self.zones[zone].prefetch(call)?;
        Some(PrefetchedKey { zone, hashed_key })
    }

    /// Checks a call against its rate limits. If the call passes, charges it to the limits' zones.
    /// `now_ms` can be the time of any clock that all threads share.
    pub(crate) fn charge(
        &self,
        call: &LimitedCall<'_>,
        now_ms: u64,
        counters: &Counters,
    ) -> Charge {
        let chain = &self.chains[call.chain];
        if !chain.shared.is_empty()
            && let Some(charge) = self.query_redis(chain, call, now_ms, counters)
        {
            return charge;
        }
        self.charge_locally(chain, &chain.rates, call, now_ms, counters)
    }

    /// Checks a call against `limits` and charges the call, without Redis. If the call passes, also
    /// checks and charges it under the chain's limits in dry run.
    fn charge_locally(
        &self,
        chain: &ChainLimits,
        limits: &[RateLimit],
        call: &LimitedCall<'_>,
        now_ms: u64,
        counters: &Counters,
    ) -> Charge {
        let charge = match self.judge(limits, call, now_ms, counters, JudgeMode::Charge) {
            LimitDecision::Passed => Charge::Pass,
            LimitDecision::Delayed { ms, .. } => Charge::Wait(Duration::from_millis(ms)),
            LimitDecision::Refused { limit_index } => {
                let limit = &limits[limit_index];
                let gateways = self.zones[limit.zone].gateways();
                return Charge::Refuse(self.build_failure(limit, call, now_ms, gateways));
            }
        };
        if !chain.dry_rates.is_empty() {
            self.judge(&chain.dry_rates, call, now_ms, counters, JudgeMode::DryRun);
        }
        charge
    }

    /// Checks whether a client has too many failed authentications.
    ///
    /// # Errors
    /// A failure with the time after which to retry, if the client has too many failed
    /// authentications.
    pub(crate) fn check_failures(
        &self,
        client: IpAddr,
        now_ms: u64,
        counters: &Counters,
    ) -> Result<(), Failure> {
        if self.auth_failure_limits.is_empty() {
            return Ok(());
        }
        let call = call_of_client(client);
        match self.judge(&self.auth_failure_limits, &call, now_ms, counters, JudgeMode::Check) {
            LimitDecision::Refused { limit_index } => {
                Err(self.build_failure(&self.auth_failure_limits[limit_index], &call, now_ms, 1))
            }
            LimitDecision::Passed | LimitDecision::Delayed { .. } => Ok(()),
        }
    }

    /// Counts a failed authentication of a client.
    pub(crate) fn record_failure(&self, client: IpAddr, now_ms: u64, counters: &Counters) {
        self.judge(
            &self.auth_failure_limits,
            &call_of_client(client),
            now_ms,
            counters,
            JudgeMode::Charge,
        );
    }

    /// Checks a call against these limits, and charges the call if it passes and `mode` permits it.
    /// In the returned rejection, `limit_index` is an index in `limits`.
    fn judge(
        &self,
        limits: &[RateLimit],
        call: &LimitedCall<'_>,
        now_ms: u64,
        counters: &Counters,
        mode: JudgeMode,
    ) -> LimitDecision {
        let selected = self.select_limits(limits, call);
        let mut tables = self.lock_tables(limits, &selected);
        // For each selected limit, the slot of the key in its table; `None` for a new key.
        let mut slots: SmallVec<[Option<usize>; 4]> = SmallVec::new();
        // For each selected limit, the state that the key gets if the call is charged, and the
        // limit's rate and burst (*terms*).
        let mut assessed: SmallVec<[(ChargedState, LimitTerms); 4]> = SmallVec::new();
        for (selection, table) in selected.iter().zip(&tables) {
            let zone = &self.zones[limits[selection.limit].zone];
            let slot = table.find(&selection.hashed_key);
            let state = slot.map(|slot| table.state(slot));
            let (cost, terms) = (zone.cost(call), selection.terms);
            assessed.push((assess_share(state, terms.rate, now_ms, cost, zone.gateways()), terms));
            slots.push(slot);
        }
        let decision = decide(&assessed);
        match decision {
            LimitDecision::Refused { .. } => {
                for (table, slot) in tables.iter_mut().zip(&slots) {
                    if let Some(slot) = slot {
                        table.touch(*slot, now_ms);
                    }
                }
            }
            LimitDecision::Passed | LimitDecision::Delayed { .. } if mode == JudgeMode::Check => {
                return decision;
            }
            LimitDecision::Passed | LimitDecision::Delayed { .. } => {
                for (index, table) in tables.iter_mut().enumerate() {
                    let selection = &selected[index];
                    let (ChargedState { state, .. }, _) = assessed[index];
                    let slot = table.store(&selection.hashed_key, slots[index], state, now_ms);
                    if self.zones[limits[selection.limit].zone].shared {
                        table.mark_unreported(slot);
                    }
                }
            }
        }
        drop(tables);
        count_outcomes(limits, &selected, decision, mode, counters);
        // `decide` returns an index in `selected`. The caller needs the index in `limits`.
        match decision {
            LimitDecision::Refused { limit_index } => {
                LimitDecision::Refused { limit_index: selected[limit_index].limit }
            }
            LimitDecision::Passed | LimitDecision::Delayed { .. } => decision,
        }
    }

    /// Locks the tables of the selected limits, in the order of their zones. Returns the tables in
    /// the order of `selected`.
    fn lock_tables(
        &self,
        limits: &[RateLimit],
        selected: &[SelectedLimit],
    ) -> SmallVec<[MutexGuard<'_, Table>; 4]> {
        let zone_of = |index: usize| limits[selected[index].limit].zone;
        // Fast path: most calls have one limit.
        if let [only] = selected {
            return SmallVec::from_iter([self.zones[zone_of(0)].lock_shard(&only.hashed_key)]);
        }
        let mut order: SmallVec<[usize; 4]> = (0..selected.len()).collect();
        order.sort_unstable_by_key(|index| zone_of(*index));
        let mut tables: SmallVec<[Option<MutexGuard<'_, Table>>; 4]> = SmallVec::new();
        tables.resize_with(selected.len(), || None);
        for index in order {
            let hashed_key = &selected[index].hashed_key;
            tables[index] = Some(self.zones[zone_of(index)].lock_shard(hashed_key));
        }
        tables.into_iter().flatten().collect()
    }

    /// Returns the limits that apply to a call, with the call's key in the zone of each limit. If
    /// several limits of one zone match, only the first applies. A limit is omitted if the call has
    /// no key in the limit's zone.
    fn select_limits(
        &self,
        limits: &[RateLimit],
        call: &LimitedCall<'_>,
    ) -> SmallVec<[SelectedLimit; 4]> {
        let mut selected: SmallVec<[SelectedLimit; 4]> = SmallVec::new();
        let mut used_zones: SmallVec<[usize; 8]> = SmallVec::new();
        for (index, limit) in limits.iter().enumerate() {
            if matches_method(&limit.methods, call.name) && !used_zones.contains(&limit.zone) {
                used_zones.push(limit.zone);
                let terms = self.select_terms(limit, call);
                let hashed_key = match call.prefetched {
                    Some(prefetched) if prefetched.zone == limit.zone => {
                        Some(prefetched.hashed_key)
                    }
                    _ => self.zones[limit.zone].hash_key(call),
                };
                selected.extend(hashed_key.map(|hashed_key| SelectedLimit {
                    limit: index,
                    hashed_key,
                    terms,
                }));
            }
        }
        selected
    }

    /// Returns the concurrency limits that apply to a call, with the call's key in the zone of each
    /// limit, and true for a limit in dry run. If several limits of one zone match, only the first
    /// applies. A limit is omitted if the call has no key in the limit's zone.
    fn select_in_flight<'a>(
        &'a self,
        call: &'a LimitedCall<'_>,
    ) -> impl Iterator<Item = (&'a ConcurrencyLimit, HashedKey, bool)> {
        let chain = &self.chains[call.chain];
        let limits = chain.in_flight.iter().map(|limit| (limit, false));
        let limits = limits.chain(chain.dry_in_flight.iter().map(|limit| (limit, true)));
        let mut used_zones: SmallVec<[usize; 8]> = SmallVec::new();
        limits.filter_map(move |(limit, is_dry_run)| {
            if !matches_method(&limit.methods, call.name) || used_zones.contains(&limit.zone) {
                return None;
            }
            used_zones.push(limit.zone);
            Some((limit, self.zones[limit.zone].hash_key(call)?, is_dry_run))
        })
    }

    /// Returns the limits that apply to a call, in the order of the configuration.
    pub(crate) fn list_applied(&self, call: &LimitedCall<'_>) -> Vec<AppliedLimit> {
        let chain = &self.chains[call.chain];
        let rates = [&chain.rates, &chain.dry_rates].into_iter().flat_map(|limits| {
            self.select_limits(limits, call).into_iter().map(|selection| {
                let limit = &limits[selection.limit];
                let kind = LimitKind::Rate(selection.terms);
                AppliedLimit { index: limit.index, kind, cost: self.zones[limit.zone].cost(call) }
            })
        });
        let in_flight = self.select_in_flight(call).map(|(limit, ..)| AppliedLimit {
            index: limit.index,
            kind: LimitKind::Concurrent(limit.bound),
            cost: 1,
        });
        let mut applied: Vec<AppliedLimit> = rates.chain(in_flight).collect();
        applied.sort_unstable_by_key(|limit| limit.index);
        applied
    }

    /// Returns the rate and burst of a limit for a call. In a zone that counts by API key, the rate
    /// and burst of the caller's key take precedence.
    fn select_terms(&self, limit: &RateLimit, call: &LimitedCall<'_>) -> LimitTerms {
        match call.grant {
            Some(grant) if self.zones[limit.zone].keyed_by_api_key => LimitTerms {
                rate: grant.rate.unwrap_or(limit.bound.rate),
                burst: grant.burst.unwrap_or(limit.bound.burst),
                delay: limit.bound.delay,
            },
            _ => limit.bound,
        }
    }

    /// Returns the failure for a call that exceeds a rate limit. `gateways` is the number of
    /// gateways among which the rate is divided; 1 stands for the whole rate.
    fn build_failure(
        &self,
        limit: &RateLimit,
        call: &LimitedCall<'_>,
        now_ms: u64,
        gateways: u64,
    ) -> Failure {
        let zone = &self.zones[limit.zone];
        let state = zone.hash_key(call).and_then(|hashed_key| {
            let table = zone.lock_shard(&hashed_key);
            table.find(&hashed_key).map(|slot| table.state(slot))
        });
        let terms = self.select_terms(limit, call);
        let retry_ms = find_retry_ms(state, terms, now_ms, zone.cost(call), gateways);
        let retry_after = retry_ms.map(Duration::from_millis);
        Failure { retry_after, ..Failure::ours(FailureKind::OverRate { status: limit.status }) }
    }

    /// Counts a call as in flight in the zones of its concurrency limits. Returns `None` if the
    /// chain has no concurrency limit.
    ///
    /// # Errors
    ///
    /// A failure if the call's key already has the maximum number of calls in flight in a zone, or
    /// if the zone has no room for a new key.
    pub(crate) fn count_in_flight(
        &self,
        call: &LimitedCall<'_>,
        counters: &Counters,
    ) -> Result<Option<Box<InFlightGuard<'_>>>, Failure> {
        let chain = &self.chains[call.chain];
        if chain.in_flight.is_empty() && chain.dry_in_flight.is_empty() {
            return Ok(None);
        }
        let mut guard = Box::new(InFlightGuard { limits: self, counted: SmallVec::new() });
        for (limit, hashed_key, is_dry_run) in self.select_in_flight(call) {
            let mut table = self.zones[limit.zone].lock_shard(&hashed_key);
            let is_admitted = table.add_in_flight(&hashed_key, limit.bound);
            drop(table);
            let outcome = match (is_admitted, is_dry_run) {
                (true, _) => LimitOutcome::Passed,
                (false, false) => LimitOutcome::Rejected,
                (false, true) => LimitOutcome::RejectedDryRun,
            };
            counters.record_limit_outcome(limit.zone, outcome);
            if is_admitted {
                guard.counted.push((limit.zone, hashed_key));
            } else if !is_dry_run {
                return Err(Failure::ours(FailureKind::OverConcurrency { status: limit.status }));
            }
        }
        Ok(Some(guard))
    }
}

/// Counts a call as in flight until the guard is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard<'a> {
    limits: &'a Limits,
    /// The zones and keys under which the call counts.
    counted: SmallVec<[(usize, HashedKey); 2]>,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        for (zone, hashed_key) in &self.counted {
            self.limits.zones[*zone].lock_shard(hashed_key).remove_in_flight(hashed_key);
        }
    }
}

/// Counts the outcome of a call in the zones of the limits in `selected`. `decision` is the result
/// of [`decide`] for these limits.
fn count_outcomes(
    limits: &[RateLimit],
    selected: &[SelectedLimit],
    decision: LimitDecision,
    mode: JudgeMode,
    counters: &Counters,
) {
    let (delayed, rejected) = match mode {
        JudgeMode::Charge | JudgeMode::Check => (LimitOutcome::Delayed, LimitOutcome::Rejected),
        JudgeMode::DryRun => (LimitOutcome::DelayedDryRun, LimitOutcome::RejectedDryRun),
    };
    for (index, selection) in selected.iter().enumerate() {
        let outcome = match decision {
            LimitDecision::Refused { limit_index } if limit_index == index => rejected,
            // A rejected call is counted only in the zone that rejects it.
            LimitDecision::Refused { .. } => continue,
            LimitDecision::Delayed { limit_index, .. } if limit_index == index => delayed,
            LimitDecision::Passed | LimitDecision::Delayed { .. } => LimitOutcome::Passed,
        };
        counters.record_limit_outcome(limits[selection.limit].zone, outcome);
    }
}

/// Returns a call with only the client's address. A limit of failed authentications needs no other
/// property.
fn call_of_client(client: IpAddr) -> LimitedCall<'static> {
    LimitedCall {
        client,
        chain: 0,
        chain_name: "",
        name: "",
        method: None,
        headers: &[],
        grant: None,
        prefetched: None,
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
