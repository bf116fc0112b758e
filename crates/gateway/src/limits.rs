//! The zones of request limits: the key of a call, and the stored state of each key.
//!
//! All threads share a zone. A zone is split into parts. Each part has its own lock, which is held
//! for some tens of nanoseconds and never across a wait. A call takes the locks of all its zones,
//! in the order of the zones, so that it is charged atomically and without deadlock.
//! `policy/limit.rs` has the arithmetic, `limits/zone.rs` and `limits/table.rs` the memory,
//! `limits/clients.rs` the connections, and `limits/shared.rs` the zones that gateways share.
//! `path.rs` decides when a call is judged.

use std::net::IpAddr;
use std::sync::Arc;
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
    Assessment, Judgement, Terms, assess_share, fits, judge, retry_share_ms,
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
    /// The grant of its API key or token.
    pub(crate) grant: Option<&'a Grant>,
    /// The result of [`Limits::prefetch_key`] for its request.
    pub(crate) prefetched: Option<PrefetchedKey>,
}

/// Decision about a call.
#[derive(Debug)]
pub(crate) enum Charge {
    Pass,
    Wait(Duration),
    Refuse(Failure),
    /// Redis decides: call [`Limits::settle`] with its verdict.
    AskRedis(Box<SharedLimitQuery>),
}

/// All zones and limits.
#[derive(Debug)]
pub(crate) struct Limits {
    zones: Vec<Zone>,
    /// By chain, in the order of the configuration.
    chains: Vec<ChainLimits>,
    /// Limits that count requests with failed authentication.
    failures: Vec<RateLimit>,
    /// True if any limit delays calls.
    pub(crate) delays: bool,
    /// Longest wait for Redis.
    redis_timeout: Duration,
}

/// The limits of one chain.
#[derive(Debug, Default)]
struct ChainLimits {
    rates: Vec<RateLimit>,
    /// Rate limits with shared zones.
    shared: Vec<RateLimit>,
    /// The other rate limits, if there are shared ones.
    own: Vec<RateLimit>,
    /// Rate limits in dry run.
    dry_rates: Vec<RateLimit>,
    in_flight: Vec<ConcurrencyLimit>,
    dry_in_flight: Vec<ConcurrencyLimit>,
}

#[derive(Debug, Clone)]
struct RateLimit {
    zone: usize,
    methods: Vec<Box<str>>,
    terms: Terms,
    status: u16,
}

#[derive(Debug, Clone)]
struct ConcurrencyLimit {
    zone: usize,
    methods: Vec<Box<str>>,
    max: u64,
    status: u16,
}

/// A limit that applies to a call.
struct ChosenLimit {
    /// Index of the limit.
    limit: usize,
    /// The call's key in its zone.
    hashed_key: HashedKey,
    /// The terms of the caller's key if it has its own, or else those of the limit.
    terms: Terms,
}

/// Mode of a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JudgeMode {
    /// A call that passes is charged.
    Charge,
    /// Nothing is charged, and only a rejection is counted.
    Check,
    /// Like `Charge`, but the outcome is counted as a dry run.
    DryRun,
}

impl Limits {
    /// Builds the limits of a configuration. Unchanged zones of the former configuration keep their
    /// state. Returns `None` if the configuration has no limits.
    pub(crate) fn after(before: Option<(&Limits, &Config)>, config: &Config) -> Option<Limits> {
        if config.limits.is_empty() {
            return None;
        }
        let headers = key_headers(config);
        let state = |zone: &config::limits::Zone| {
            let (limits, before) = before?;
            // A zone keeps its state only if nothing but its rate and cost has changed.
            let same = |own: &config::limits::Zone| {
                let (rate, cost) = (zone.rate, zone.cost);
                own.rate.is_some() == rate.is_some()
                    && config::limits::Zone { rate, cost, ..own.clone() } == *zone
            };
            let at = before.zones.iter().position(same)?;
            Some(Arc::clone(&limits.zones[at].state))
        };
        let redis = config.redis.as_ref();
        let gateways = redis.map_or(1, |redis| redis.gateways);
        let redis_timeout = redis.map_or(Duration::ZERO, |redis| redis.timeout);
        let zones = config.zones.iter();
        let zones = zones.map(|zone| Zone::new(zone, gateways, &headers, state(zone))).collect();
        let mut chains: Vec<ChainLimits> = Vec::new();
        chains.resize_with(config.chains.len(), ChainLimits::default);
        let mut delays = false;
        let mut failures = Vec::new();
        for limit in &config.limits {
            if let (true, LimitKind::Rate(terms)) = (limit.failures, limit.kind) {
                let (zone, methods, status) = (limit.zone, Vec::new(), limit.status);
                // A rejection has no delay.
                let terms = Terms { delay: None, ..terms };
                failures.push(RateLimit { zone, methods, terms, status });
                continue;
            }
            let methods = &limit.methods;
            let (zone, status) = (limit.zone, limit.status);
            let own = chains.iter_mut().enumerate();
            for (_, chain) in own.filter(|(at, _)| limit.chain.is_none_or(|own| own == *at)) {
                match limit.kind {
                    LimitKind::Rate(terms) => {
                        delays |= !limit.dry_run && terms.delay.is_some_and(|d| d < terms.burst);
                        let of =
                            if limit.dry_run { &mut chain.dry_rates } else { &mut chain.rates };
                        of.push(RateLimit { zone, methods: methods.clone(), terms, status });
                    }
                    LimitKind::Concurrent(max) => {
                        let of = if limit.dry_run {
                            &mut chain.dry_in_flight
                        } else {
                            &mut chain.in_flight
                        };
                        of.push(ConcurrencyLimit { zone, methods: methods.clone(), max, status });
                    }
                }
            }
        }
        for chain in &mut chains {
            let is_shared = |limit: &&RateLimit| config.zones[limit.zone].shared;
            if chain.rates.iter().any(|limit| is_shared(&limit)) {
                let (shared, own) = chain.rates.iter().partition::<Vec<_>, _>(is_shared);
                chain.shared = shared.into_iter().cloned().collect();
                chain.own = own.into_iter().cloned().collect();
            }
        }
        Some(Limits { zones, chains, failures, delays, redis_timeout })
    }

    /// Returns how full each zone is.
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
            && let Some(charge) = self.query(chain, caller, now, counters)
        {
            return charge;
        }
        self.charge_here(chain, &chain.rates, caller, now, counters)
    }

    /// Checks a call against these limits of a chain and charges it, without Redis. Then does the
    /// same for the limits in dry run.
    fn charge_here(
        &self,
        chain: &ChainLimits,
        limits: &[RateLimit],
        caller: &LimitedCall<'_>,
        now: u64,
        counters: &Counters,
    ) -> Charge {
        let charge = match self.judge(limits, caller, now, counters, JudgeMode::Charge) {
            Judgement::Passed => Charge::Pass,
            Judgement::Delayed { ms, .. } => Charge::Wait(Duration::from_millis(ms)),
            Judgement::Refused { at } => {
                let limit = &limits[at];
                let gateways = self.zones[limit.zone].gateways;
                return Charge::Refuse(self.over_rate(limit, caller, now, gateways));
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
            Judgement::Refused { at } => Err(self.over_rate(&self.failures[at], &caller, now, 1)),
            Judgement::Passed | Judgement::Delayed { .. } => Ok(()),
        }
    }

    /// Counts a failed authentication of a client.
    pub(crate) fn failed(&self, client: IpAddr, now: u64, counters: &Counters) {
        if !self.failures.is_empty() {
            self.judge(&self.failures, &unknown_caller(client), now, counters, JudgeMode::Charge);
        }
    }

    /// Checks a call against these limits. `at` of the result is an index in `limits`.
    fn judge(
        &self,
        limits: &[RateLimit],
        caller: &LimitedCall<'_>,
        now: u64,
        counters: &Counters,
        mode: JudgeMode,
    ) -> Judgement {
        let chosen = self.chosen(limits, caller);
        let mut tables = self.lock(limits, &chosen);
        let mut found: SmallVec<[Option<usize>; 4]> = SmallVec::new();
        let mut assessed: SmallVec<[(Assessment, Terms); 4]> = SmallVec::new();
        for (own, table) in chosen.iter().zip(&tables) {
            let zone = &self.zones[limits[own.limit].zone];
            let at = table.find(&own.hashed_key);
            let state = at.map(|at| table.state(at));
            let cost = zone.cost(caller);
            assessed
                .push((assess_share(state, own.terms.rate, now, cost, zone.gateways), own.terms));
            found.push(at);
        }
        let judgement = judge(&assessed);
        let refused = matches!(judgement, Judgement::Refused { .. });
        for (index, table) in tables.iter_mut().enumerate() {
            let own = &chosen[index];
            match (refused, found[index]) {
                (false, _) if mode == JudgeMode::Check => {}
                (false, at) => {
                    let at = table.store(&own.hashed_key, at, assessed[index].0.state, now);
                    if self.zones[limits[own.limit].zone].shared {
                        table.mark(at);
                    }
                }
                (true, Some(at)) => table.touch(at, now),
                (true, None) => {}
            }
        }
        drop(tables);
        if mode == JudgeMode::Check && !refused {
            return judgement;
        }
        let zone = |index: usize| limits[chosen[index].limit].zone;
        let count = |index: usize, outcome: LimitOutcome| counters.zone(zone(index), outcome);
        let (acted, outcome) = match (judgement, mode) {
            (Judgement::Passed, _) => (usize::MAX, LimitOutcome::Passed),
            (Judgement::Delayed { at, .. }, JudgeMode::DryRun) => (at, LimitOutcome::DelayedDryRun),
            (Judgement::Delayed { at, .. }, _) => (at, LimitOutcome::Delayed),
            (Judgement::Refused { at }, JudgeMode::DryRun) => (at, LimitOutcome::RejectedDryRun),
            (Judgement::Refused { at }, _) => (at, LimitOutcome::Rejected),
        };
        for index in 0..chosen.len() {
            if index == acted {
                count(index, outcome);
            } else if !refused {
                count(index, LimitOutcome::Passed);
            }
        }
        match judgement {
            Judgement::Refused { at } => Judgement::Refused { at: chosen[at].limit },
            other => other,
        }
    }

    /// Locks the tables of the chosen limits, in the order of their zones.
    fn lock(
        &self,
        limits: &[RateLimit],
        chosen: &[ChosenLimit],
    ) -> SmallVec<[MutexGuard<'_, Table>; 4]> {
        let zone = |at: usize| limits[chosen[at].limit].zone;
        // One limit is by far the most frequent case.
        if let [own] = chosen {
            return SmallVec::from_iter([self.zones[zone(0)].part(&own.hashed_key)]);
        }
        let mut order: SmallVec<[usize; 4]> = (0..chosen.len()).collect();
        order.sort_unstable_by_key(|at| zone(*at));
        let mut tables: SmallVec<[Option<MutexGuard<'_, Table>>; 4]> = SmallVec::new();
        tables.resize_with(chosen.len(), || None);
        for at in order {
            tables[at] = Some(self.zones[zone(at)].part(&chosen[at].hashed_key));
        }
        tables.into_iter().flatten().collect()
    }

    /// Returns the limits that apply to a call, with the call's key in the zone of each limit. Only
    /// the first matching limit of each zone applies. A limit is omitted if the call has no key in
    /// its zone.
    fn chosen(&self, limits: &[RateLimit], caller: &LimitedCall<'_>) -> SmallVec<[ChosenLimit; 4]> {
        let mut chosen: SmallVec<[ChosenLimit; 4]> = SmallVec::new();
        let mut zones: SmallVec<[usize; 8]> = SmallVec::new();
        for (at, limit) in limits.iter().enumerate() {
            if fits(&limit.methods, caller.name) && !zones.contains(&limit.zone) {
                zones.push(limit.zone);
                let terms = self.terms(limit, caller);
                let hashed_key = match caller.prefetched {
                    Some(prefetched) if prefetched.zone == limit.zone => {
                        Some(prefetched.hashed_key)
                    }
                    _ => self.zones[limit.zone].hashed_key(caller),
                };
                chosen.extend(hashed_key.map(|hashed_key| ChosenLimit {
                    limit: at,
                    hashed_key,
                    terms,
                }));
            }
        }
        chosen
    }

    /// Returns the terms of a limit for a caller. In a zone that counts by API key, the terms of
    /// the caller's key take precedence.
    fn terms(&self, limit: &RateLimit, caller: &LimitedCall<'_>) -> Terms {
        match caller.grant {
            Some(grant) if self.zones[limit.zone].by_key => Terms {
                rate: grant.rate.unwrap_or(limit.terms.rate),
                burst: grant.burst.unwrap_or(limit.terms.burst),
                delay: limit.terms.delay,
            },
            _ => limit.terms,
        }
    }

    /// Returns the failure for a call that exceeds a rate which `gateways` gateways share.
    fn over_rate(
        &self,
        limit: &RateLimit,
        caller: &LimitedCall<'_>,
        now: u64,
        gateways: u64,
    ) -> Failure {
        let zone = &self.zones[limit.zone];
        let state = zone.hashed_key(caller).and_then(|hashed_key| {
            let table = zone.part(&hashed_key);
            table.find(&hashed_key).map(|at| table.state(at))
        });
        let terms = self.terms(limit, caller);
        let wait = retry_share_ms(state, terms, now, zone.cost(caller), gateways);
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
        let mut entered = Box::new(InFlightGuard { limits: self, counted: SmallVec::new() });
        let mut zones: SmallVec<[usize; 8]> = SmallVec::new();
        for (dry_run, limits) in [(false, &chain.in_flight), (true, &chain.dry_in_flight)] {
            for limit in limits {
                if !fits(&limit.methods, caller.name) || zones.contains(&limit.zone) {
                    continue;
                }
                zones.push(limit.zone);
                let zone = &self.zones[limit.zone];
                let Some(hashed_key) = zone.hashed_key(caller) else { continue };
                let free = zone.part(&hashed_key).enter(&hashed_key, limit.max);
                let outcome = match (free, dry_run) {
                    (true, _) => LimitOutcome::Passed,
                    (false, false) => LimitOutcome::Rejected,
                    (false, true) => LimitOutcome::RejectedDryRun,
                };
                counters.zone(limit.zone, outcome);
                if free {
                    entered.counted.push((limit.zone, hashed_key));
                } else if !dry_run {
                    return Err(Failure::ours(Kind::OverConcurrency { status: limit.status }));
                }
            }
        }
        Ok(Some(entered))
    }
}

/// A call that counts as in flight until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard<'a> {
    limits: &'a Limits,
    counted: SmallVec<[(usize, HashedKey); 2]>,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        for (zone, hashed_key) in &self.counted {
            self.limits.zones[*zone].part(hashed_key).leave(hashed_key);
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
