//! Request limits: selects the limits of a call, judges the call, and charges it to their zones.
//!
//! A *zone* is a table of keys, such as client addresses, with the *excess* of each key: how far
//! its calls are ahead of the allowed rate. A *limit* names a zone and applies to each key of the
//! zone, as in nginx. All threads share a zone. A zone is split into shards, each with a lock that
//! is held for some tens of nanoseconds. A call takes the locks of all its zones, in the order of
//! the zones, so that it is charged atomically and without deadlock.
//!
//! `policy/limit.rs` has the arithmetic, `limits/zone.rs` and `limits/table.rs` the memory,
//! `limits/clients.rs` the connections, and `limits/shared.rs` the zones that gateways share.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use wire::method::Method;

use crate::access::caller::HeaderValue;
use crate::call::failure::{Failure, Kind};
use crate::config;
use crate::config::Config;
use crate::config::limits::LimitKind;
use crate::metrics::label::LimitOutcome;
use crate::metrics::thread::Counters;
use crate::policy::access::Grant;
use crate::policy::limit::{
    Assessment, LimitDecision, LimitTerms, assess_share, find_retry_ms, judge, matches_method,
};

pub(crate) mod clients;
pub(crate) mod shared;
mod table;
mod zone;

use shared::SharedLimitQuery;
pub(crate) use table::KEY_BYTES;
use table::{HashedKey, Table};
use zone::Zone;
pub(crate) use zone::{ZoneFill, key_headers};

/// A zone key that was computed before the call was parsed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrefetchedKey {
    zone: usize,
    hashed_key: HashedKey,
}

/// The caller and the method of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitedCall<'a> {
    pub(crate) client: IpAddr,
    /// Index of the chain.
    pub(crate) chain: usize,
    pub(crate) chain_name: &'a str,
    /// Empty if the body could not be parsed.
    pub(crate) name: &'a str,
    /// The method's row, if a table knows it.
    pub(crate) method: Option<&'static Method>,
    /// Values of the headers that keys are made of, by index in [`key_headers`].
    pub(crate) headers: &'a [HeaderValue],
    /// The grant of the caller's API key or token.
    pub(crate) grant: Option<&'a Grant>,
    /// The result of [`Limits::prefetch_key`] for the request of the call.
    pub(crate) prefetched: Option<PrefetchedKey>,
}

/// The result of charging a call.
#[derive(Debug)]
pub(crate) enum Charge {
    Pass,
    Wait(Duration),
    Refuse(Failure),
    /// Redis decides. The caller must then call [`Limits::settle`] with the decision of Redis.
    AskRedis(Box<SharedLimitQuery>),
}

/// All zones and limits.
#[derive(Debug)]
pub(crate) struct Limits {
    zones: Vec<Zone>,
    /// The limits of each chain, in the order of the configuration.
    chains: Vec<ChainLimits>,
    /// Limits that count requests with failed authentication.
    failures: Vec<RateLimit>,
    /// True if any limit delays calls.
    pub(crate) delays: bool,
    redis_timeout: Duration,
}

/// The limits of one chain.
#[derive(Debug, Default)]
struct ChainLimits {
    /// All rate limits that are not in dry run.
    rates: Vec<RateLimit>,
    /// The rate limits with shared zones.
    shared: Vec<RateLimit>,
    /// The rate limits with local zones.
    local: Vec<RateLimit>,
    /// Rate limits in dry run, which reject no call.
    dry_rates: Vec<RateLimit>,
    in_flight: Vec<ConcurrencyLimit>,
    /// Concurrency limits in dry run.
    dry_in_flight: Vec<ConcurrencyLimit>,
}

/// A limit of the calls in a zone.
#[derive(Debug, Clone)]
struct ZoneLimit<T> {
    /// Index of the zone.
    zone: usize,
    /// Patterns of the limited methods; empty matches every method.
    methods: Vec<Box<str>>,
    /// HTTP status of a rejected call.
    status: u16,
    bound: T,
}

type RateLimit = ZoneLimit<LimitTerms>;

/// The bound is the maximum number of calls in flight.
type ConcurrencyLimit = ZoneLimit<u64>;

impl<T> ZoneLimit<T> {
    fn new(limit: &config::limits::Limit, bound: T) -> ZoneLimit<T> {
        let (zone, methods, status) = (limit.zone, limit.methods.clone(), limit.status);
        ZoneLimit { zone, methods, status, bound }
    }
}

/// A limit that applies to a call, with the call's key.
struct SelectedLimit {
    /// Index of the limit.
    limit: usize,
    /// The call's key in its zone.
    hashed_key: HashedKey,
    /// The rate and burst of the caller's API key if it has any, or else those of the limit.
    terms: LimitTerms,
}

/// Mode of a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JudgeMode {
    /// A call that passes is charged.
    Charge,
    /// Nothing is charged, and only a rejection is counted.
    Check,
    /// A call that passes is charged, and the outcome is counted as a dry run.
    DryRun,
}

impl Limits {
    /// Builds the limits of a configuration. A zone of the previous configuration keeps its state
    /// if only its rate or cost has changed. `gateways` is the number of gateways that share zones.
    /// Returns `None` if the configuration has no limits.
    pub(crate) fn new(
        previous: Option<(&Limits, &Config)>,
        config: &Config,
        gateways: &Arc<AtomicU64>,
    ) -> Option<Limits> {
        if config.limits.is_empty() {
            return None;
        }
        let headers = key_headers(config);
        let state = |zone: &config::limits::Zone| {
            let (previous_limits, previous_config) = previous?;
            // A zone with a rate stores another state than a zone that counts calls in flight.
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
        let zones = zones.map(|zone| Zone::new(zone, gateways, &headers, state(zone))).collect();
        let mut chains: Vec<ChainLimits> = Vec::new();
        chains.resize_with(config.chains.len(), ChainLimits::default);
        let mut delays = false;
        let mut failures = Vec::new();
        for limit in &config.limits {
            if let (true, LimitKind::Rate(terms)) = (limit.failures, limit.kind) {
                // A limit of failed authentications only rejects; it delays nothing.
                let limit = ZoneLimit::new(limit, LimitTerms { delay: None, ..terms });
                failures.push(ZoneLimit { methods: Vec::new(), ..limit });
                continue;
            }
            let limited_chains = chains
                .iter_mut()
                .enumerate()
                .filter(|(index, _)| limit.chain.is_none_or(|chain| chain == *index));
            for (_, chain) in limited_chains {
                match (limit.kind, limit.dry_run) {
                    (LimitKind::Rate(terms), true) => {
                        chain.dry_rates.push(ZoneLimit::new(limit, terms));
                    }
                    (LimitKind::Rate(terms), false) => {
                        delays |= terms.delay.is_some_and(|delay| delay < terms.burst);
                        chain.rates.push(ZoneLimit::new(limit, terms));
                    }
                    (LimitKind::Concurrent(max), true) => {
                        chain.dry_in_flight.push(ZoneLimit::new(limit, max));
                    }
                    (LimitKind::Concurrent(max), false) => {
                        chain.in_flight.push(ZoneLimit::new(limit, max));
                    }
                }
            }
        }
        for chain in &mut chains {
            let is_shared = |limit: &RateLimit| config.zones[limit.zone].shared;
            (chain.shared, chain.local) = chain.rates.iter().cloned().partition(is_shared);
        }
        Some(Limits { zones, chains, failures, delays, redis_timeout })
    }

    /// Returns the fill level of each zone.
    pub(crate) fn fills(&self) -> Vec<ZoneFill> {
        self.zones.iter().map(Zone::fill).collect()
    }

    /// Prefetches the memory of a request's key while its body is read. In a zone with many keys
    /// this cache miss dominates the cost. The caller is already known, even though the call may
    /// not be.
    pub(crate) fn prefetch_key(&self, caller: &LimitedCall<'_>) -> Option<PrefetchedKey> {
        let zone = self.chains[caller.chain].rates.first()?.zone;
        let hashed_key = self.zones[zone].prefetch(caller)?;
        Some(PrefetchedKey { zone, hashed_key })
    }

    /// Checks a call against its rate limits and charges it to their zones, unless it is rejected.
    /// `now` is in milliseconds of any clock that all threads share.
    pub(crate) fn charge(&self, caller: &LimitedCall<'_>, now: u64, counters: &Counters) -> Charge {
        let chain = &self.chains[caller.chain];
        if !chain.shared.is_empty()
            && let Some(charge) = self.query_redis(chain, caller, now, counters)
        {
            return charge;
        }
        self.charge_locally(chain, &chain.rates, caller, now, counters)
    }

    /// Checks a call against these limits of a chain and charges it, without Redis. Then does the
    /// same for the limits in dry run.
    fn charge_locally(
        &self,
        chain: &ChainLimits,
        limits: &[RateLimit],
        caller: &LimitedCall<'_>,
        now: u64,
        counters: &Counters,
    ) -> Charge {
        let charge = match self.judge(limits, caller, now, counters, JudgeMode::Charge) {
            LimitDecision::Passed => Charge::Pass,
            LimitDecision::Delayed { ms, .. } => Charge::Wait(Duration::from_millis(ms)),
            LimitDecision::Refused { limit_index } => {
                let limit = &limits[limit_index];
                let gateways = self.zones[limit.zone].gateways();
                return Charge::Refuse(self.build_failure(limit, caller, now, gateways));
            }
        };
        if !chain.dry_rates.is_empty() {
            self.judge(&chain.dry_rates, caller, now, counters, JudgeMode::DryRun);
        }
        charge
    }

    /// Checks that a client does not have too many failed authentications.
    ///
    /// # Errors
    ///
    /// A failure with the time after which to retry, if the client has too many failed
    /// authentications.
    pub(crate) fn check_failures(
        &self,
        client: IpAddr,
        now: u64,
        counters: &Counters,
    ) -> Result<(), Failure> {
        if self.failures.is_empty() {
            return Ok(());
        }
        let caller = unknown_caller(client);
        match self.judge(&self.failures, &caller, now, counters, JudgeMode::Check) {
            LimitDecision::Refused { limit_index } => {
                Err(self.build_failure(&self.failures[limit_index], &caller, now, 1))
            }
            LimitDecision::Passed | LimitDecision::Delayed { .. } => Ok(()),
        }
    }

    /// Counts a failed authentication of a client.
    pub(crate) fn record_failure(&self, client: IpAddr, now: u64, counters: &Counters) {
        self.judge(&self.failures, &unknown_caller(client), now, counters, JudgeMode::Charge);
    }

    /// Checks a call against these limits and charges it if the mode allows. `limit_index` of a
    /// rejection is an index in `limits`.
    fn judge(
        &self,
        limits: &[RateLimit],
        caller: &LimitedCall<'_>,
        now: u64,
        counters: &Counters,
        mode: JudgeMode,
    ) -> LimitDecision {
        let selected = self.select_limits(limits, caller);
        let mut tables = self.lock_tables(limits, &selected);
        let mut slots: SmallVec<[Option<usize>; 4]> = SmallVec::new();
        let mut assessed: SmallVec<[(Assessment, LimitTerms); 4]> = SmallVec::new();
        for (selection, table) in selected.iter().zip(&tables) {
            let zone = &self.zones[limits[selection.limit].zone];
            let slot = table.find(&selection.hashed_key);
            let state = slot.map(|slot| table.state(slot));
            let (cost, terms) = (zone.cost(caller), selection.terms);
            assessed.push((assess_share(state, terms.rate, now, cost, zone.gateways()), terms));
            slots.push(slot);
        }
        let decision = judge(&assessed);
        let refused = matches!(decision, LimitDecision::Refused { .. });
        for (index, table) in tables.iter_mut().enumerate() {
            let selection = &selected[index];
            match (refused, slots[index]) {
                (false, _) if mode == JudgeMode::Check => {}
                (false, slot) => {
                    let (assessment, _) = &assessed[index];
                    let slot = table.store(&selection.hashed_key, slot, assessment.state, now);
                    if self.zones[limits[selection.limit].zone].shared {
                        table.mark_unreported(slot);
                    }
                }
                (true, Some(slot)) => table.touch(slot, now),
                (true, None) => {}
            }
        }
        drop(tables);
        if mode == JudgeMode::Check && !refused {
            return decision;
        }
        let in_dry_run = mode == JudgeMode::DryRun;
        let deciding = match decision {
            LimitDecision::Passed => None,
            LimitDecision::Delayed { limit_index, .. } if in_dry_run => {
                Some((limit_index, LimitOutcome::DelayedDryRun))
            }
            LimitDecision::Delayed { limit_index, .. } => {
                Some((limit_index, LimitOutcome::Delayed))
            }
            LimitDecision::Refused { limit_index } if in_dry_run => {
                Some((limit_index, LimitOutcome::RejectedDryRun))
            }
            LimitDecision::Refused { limit_index } => Some((limit_index, LimitOutcome::Rejected)),
        };
        for (index, selection) in selected.iter().enumerate() {
            let zone = limits[selection.limit].zone;
            match deciding {
                Some((limit_index, outcome)) if limit_index == index => {
                    counters.record_limit_outcome(zone, outcome);
                }
                _ if refused => {}
                _ => counters.record_limit_outcome(zone, LimitOutcome::Passed),
            }
        }
        match decision {
            LimitDecision::Refused { limit_index } => {
                LimitDecision::Refused { limit_index: selected[limit_index].limit }
            }
            passed => passed,
        }
    }

    /// Locks the tables of the selected limits, in the order of their zones.
    fn lock_tables(
        &self,
        limits: &[RateLimit],
        selected: &[SelectedLimit],
    ) -> SmallVec<[MutexGuard<'_, Table>; 4]> {
        let zone = |index: usize| limits[selected[index].limit].zone;
        // One limit is by far the most frequent case.
        if let [only] = selected {
            return SmallVec::from_iter([self.zones[zone(0)].lock_shard(&only.hashed_key)]);
        }
        let mut order: SmallVec<[usize; 4]> = (0..selected.len()).collect();
        order.sort_unstable_by_key(|index| zone(*index));
        let mut tables: SmallVec<[Option<MutexGuard<'_, Table>>; 4]> = SmallVec::new();
        tables.resize_with(selected.len(), || None);
        for index in order {
            tables[index] = Some(self.zones[zone(index)].lock_shard(&selected[index].hashed_key));
        }
        tables.into_iter().flatten().collect()
    }

    /// Returns the limits that apply to a call, with the call's key in the zone of each limit. Only
    /// the first matching limit of each zone applies. A limit is omitted if the call has no key in
    /// its zone.
    fn select_limits(
        &self,
        limits: &[RateLimit],
        caller: &LimitedCall<'_>,
    ) -> SmallVec<[SelectedLimit; 4]> {
        let mut selected: SmallVec<[SelectedLimit; 4]> = SmallVec::new();
        let mut zones: SmallVec<[usize; 8]> = SmallVec::new();
        for (index, limit) in limits.iter().enumerate() {
            if matches_method(&limit.methods, caller.name) && !zones.contains(&limit.zone) {
                zones.push(limit.zone);
                let terms = self.select_terms(limit, caller);
                let hashed_key = match caller.prefetched {
                    Some(prefetched) if prefetched.zone == limit.zone => {
                        Some(prefetched.hashed_key)
                    }
                    _ => self.zones[limit.zone].hash_key(caller),
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

    /// Returns the terms of a limit for a caller. In a zone that counts by API key, the terms of
    /// the caller's key take precedence.
    fn select_terms(&self, limit: &RateLimit, caller: &LimitedCall<'_>) -> LimitTerms {
        match caller.grant {
            Some(grant) if self.zones[limit.zone].keyed_by_api_key => LimitTerms {
                rate: grant.rate.unwrap_or(limit.bound.rate),
                burst: grant.burst.unwrap_or(limit.bound.burst),
                delay: limit.bound.delay,
            },
            _ => limit.bound,
        }
    }

    /// Returns the failure for a call that exceeds a rate which `gateways` gateways share.
    fn build_failure(
        &self,
        limit: &RateLimit,
        caller: &LimitedCall<'_>,
        now: u64,
        gateways: u64,
    ) -> Failure {
        let zone = &self.zones[limit.zone];
        let state = zone.hash_key(caller).and_then(|hashed_key| {
            let table = zone.lock_shard(&hashed_key);
            table.find(&hashed_key).map(|slot| table.state(slot))
        });
        let terms = self.select_terms(limit, caller);
        let wait = find_retry_ms(state, terms, now, zone.cost(caller), gateways);
        let retry_after = wait.map(Duration::from_millis);
        Failure { retry_after, ..Failure::ours(Kind::OverRate { status: limit.status }) }
    }

    /// Counts a call as in flight in the zones of its concurrency limits. Returns `None` if it has
    /// no concurrency limit.
    ///
    /// # Errors
    ///
    /// A failure of origin gateway if the key has as many calls in flight in a zone as allowed.
    pub(crate) fn enter(
        &self,
        caller: &LimitedCall<'_>,
        counters: &Counters,
    ) -> Result<Option<Box<InFlightGuard<'_>>>, Failure> {
        let chain = &self.chains[caller.chain];
        if chain.in_flight.is_empty() && chain.dry_in_flight.is_empty() {
            return Ok(None);
        }
        let mut guard = Box::new(InFlightGuard { limits: self, counted: SmallVec::new() });
        let mut zones: SmallVec<[usize; 8]> = SmallVec::new();
        for (dry_run, limits) in [(false, &chain.in_flight), (true, &chain.dry_in_flight)] {
            for limit in limits {
                if !matches_method(&limit.methods, caller.name) || zones.contains(&limit.zone) {
                    continue;
                }
                zones.push(limit.zone);
                let zone = &self.zones[limit.zone];
                let Some(hashed_key) = zone.hash_key(caller) else { continue };
                let admitted = zone.lock_shard(&hashed_key).enter(&hashed_key, limit.bound);
                let outcome = match (admitted, dry_run) {
                    (true, _) => LimitOutcome::Passed,
                    (false, false) => LimitOutcome::Rejected,
                    (false, true) => LimitOutcome::RejectedDryRun,
                };
                counters.record_limit_outcome(limit.zone, outcome);
                if admitted {
                    guard.counted.push((limit.zone, hashed_key));
                } else if !dry_run {
                    return Err(Failure::ours(Kind::OverConcurrency { status: limit.status }));
                }
            }
        }
        Ok(Some(guard))
    }
}

/// A call that counts as in flight until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard<'a> {
    limits: &'a Limits,
    /// The zones and keys under which the call counts.
    counted: SmallVec<[(usize, HashedKey); 2]>,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        for (zone, hashed_key) in &self.counted {
            self.limits.zones[*zone].lock_shard(hashed_key).leave(hashed_key);
        }
    }
}

/// Returns a caller with only an address.
fn unknown_caller(client: IpAddr) -> LimitedCall<'static> {
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
