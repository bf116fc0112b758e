//! Reads the state of the gateway into a [`Status`]. Each function reads one part of the status.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use super::{
    ChainStatus, ConfigStatus, CordonStatus, FaultStatus, GatewaysStatus, GroupStatus,
    HeadStallStatus, HeadStatus, HealthStatus, HistoryStatus, IndexStatus, KeyStatus,
    LastHeadStatus, MemoryCache, MemoryPurpose, MemoryStatus, MethodStatus, ProcessStatus,
    QuotaStatus, RedisStatus, Refused, RefusedMethodStatus, Rejected, ReloadStatus, Status, Totals,
    UpstreamStatus, ZoneStatus,
};
use crate::access::refusals::RefusedMethod;
use crate::cache::redis::heartbeat::shares_counters;
use crate::call::CacheStatus;
use crate::config;
use crate::config::group::{Balance, HashKey};
use crate::io::memory::Budget;
use crate::limits::{Limits, ZONE_BYTES_PER_KEY};
use crate::metrics::counters::{KeyCounters, MethodCounters};
use crate::metrics::instrument::Histogram;
use crate::metrics::label::{AttemptOutcome, IndexLookup, LimitOutcome, RedisLookup};
use crate::metrics::thread::{ChainLabel, Counters};
use crate::policy::health;
use crate::policy::history::UpstreamHistory;
use crate::policy::memory::Purpose;
use crate::process::{ReloadOutcome, ReloadRecord, Reloads};
use crate::state::snapshot::Snapshot;
use crate::upstream::chain::ChainState;
use wire::method::History;

/// Maximum number of methods per chain in the status. The status lists the methods with the most
/// calls, and `/metrics` lists all methods.
const METHODS_MAX: usize = 20;

impl Status {
    /// Reads the current state.
    pub(crate) fn of(snapshot: &Snapshot) -> Status {
        Status::with(snapshot, &Counters::sum(&snapshot.counters))
    }

    /// Reads the current state. `counters` are the sums over all threads.
    pub(crate) fn with(snapshot: &Snapshot, counters: &Counters) -> Status {
        let chains = 0..snapshot.chains.len();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: round_seconds(snapshot.now()),
            process: read_process(snapshot.process.control_socket.get().map(String::as_str)),
            config: read_config(snapshot.process.reloads()),
            chains: chains.map(|index| read_chain(snapshot, counters, index)).collect(),
            cache: read_memory_cache(snapshot, counters),
            redis: read_redis(snapshot, counters),
            gateways: read_gateways(snapshot),
            index: read_index(snapshot, counters),
            memory: MemoryStatus::of(&snapshot.process.memory),
            zones: read_zones(snapshot, counters),
            keys: read_keys(snapshot, counters),
            refused_methods: read_refused_methods(snapshot),
            totals: read_totals(snapshot, counters),
        }
    }

    /// Returns the reasons why the upstreams make the gateway not ready: chains without a head, and
    /// chains without a usable upstream.
    pub(crate) fn unready_reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for chain in &self.chains {
            let is_usable = |upstream: &UpstreamStatus| {
                upstream.cordon.is_none()
                    && matches!(upstream.state, HealthStatus::Healthy | HealthStatus::Lagging)
            };
            let name = &chain.name;
            if !chain.upstreams.iter().any(is_usable) {
                let states = list_state_counts(&chain.upstreams);
                reasons.push(format!("chain {name}: no usable upstream ({states})"));
            }
            if chain.head.is_none() || !chain.upstreams.iter().any(is_usable) {
                reasons.extend(chain.upstreams.iter().filter_map(|upstream| {
                    let FaultStatus { reason, since_seconds } = upstream.fault.as_ref()?;
                    let next_try = upstream
                        .state_ends_seconds
                        .map_or_else(String::new, |ends| format!(", next try in {ends:.0} s"));
                    let upstream = &upstream.name;
                    Some(format!(
                        "chain {name}: upstream {upstream}: {reason} (for {since_seconds:.0} s\
                         {next_try})"
                    ))
                }));
            }
            match &chain.last_head {
                _ if chain.head.is_some() => {}
                Some(LastHeadStatus { number, seconds_ago, .. }) => reasons.push(format!(
                    "chain {name}: no upstream confirms a head; the last was block {number}, \
                     {seconds_ago:.0} s ago"
                )),
                None => reasons.push(format!("chain {name}: no upstream has reported a head yet")),
            }
        }
        reasons
    }
}

/// Lists the number of upstreams in each state: "2 ejected, 1 cordoned".
fn list_state_counts(upstreams: &[UpstreamStatus]) -> String {
    let state_of = |upstream: &UpstreamStatus| match upstream.cordon {
        Some(_) => "cordoned",
        None => upstream.state.as_str(),
    };
    let states = HealthStatus::ALL.map(HealthStatus::as_str).into_iter().chain(["cordoned"]);
    let counts = states.filter_map(|state| {
        let count = upstreams.iter().filter(|upstream| state_of(upstream) == state).count();
        (count > 0).then(|| format!("{count} {state}"))
    });
    counts.collect::<Vec<_>>().join(", ")
}

fn read_zones(snapshot: &Snapshot, counters: &Counters) -> Vec<ZoneStatus> {
    let fills = snapshot.limits.as_ref().map(Limits::fills).unwrap_or_default();
    let zones = snapshot.config.zones.iter().zip(fills).zip(counters.zones.iter());
    zones
        .map(|((zone, fill), (_, zone_counters))| {
            let count = |outcome: LimitOutcome| zone_counters.calls[outcome].get();
            let fallback_threads = &counters.shared_limits.fallback_threads;
            ZoneStatus {
                name: zone.name.to_string(),
                keys: fill.keys,
                keys_max: (zone.bytes / ZONE_BYTES_PER_KEY) as u64,
                evicted: fill.evicted,
                shared: zone.shared,
                fallback_threads: zone.shared.then(|| fallback_threads.get()),
                passed: count(LimitOutcome::Passed),
                delayed: count(LimitOutcome::Delayed),
                rejected: count(LimitOutcome::Rejected),
                delayed_dry_run: count(LimitOutcome::DelayedDryRun),
                rejected_dry_run: count(LimitOutcome::RejectedDryRun),
            }
        })
        .collect()
}

fn read_process(control_socket: Option<&str>) -> ProcessStatus {
    let id = std::process::id();
    ProcessStatus {
        id,
        start_ticks: crate::admin::process::start_ticks(id),
        control_socket: control_socket.map(str::to_owned),
    }
}

fn read_config(reloads: Reloads) -> ConfigStatus {
    let reload = |record: ReloadRecord| {
        let since = record.ended_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (applied, changes, why) = match record.outcome {
            ReloadOutcome::Applied { changes } => (true, changes, None),
            ReloadOutcome::Refused { reason } => (false, Vec::new(), Some(reason)),
        };
        ReloadStatus { unix_seconds: round_seconds(since), applied, changes, why }
    };
    ConfigStatus {
        generation: reloads.generation(),
        reloads_applied: reloads.applied,
        reloads_refused: reloads.refused,
        last_reload: reloads.last.map(reload),
        upgrades_failed: reloads.upgrades_failed,
        upgrade_fault: reloads.upgrade_fault,
    }
}

/// Converts a duration to seconds, rounded to milliseconds to keep the JSON readable.
fn round_seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

/// Returns a quantile in milliseconds, rounded to microseconds; `None` if nothing was measured.
fn round_quantile_ms(latency: &Histogram, quantile: f64) -> Option<f64> {
    latency.quantile_ms(quantile).map(|ms| (ms * 1000.0).round() / 1000.0)
}

fn read_chain(snapshot: &Snapshot, counters: &Counters, index: usize) -> ChainStatus {
    let (config, chain) = (&snapshot.config.chains[index], &*snapshot.chains[index]);
    let view = chain.view.load();
    let now = snapshot.now();
    let upstreams: Vec<UpstreamStatus> = config
        .upstreams
        .iter()
        .map(|&upstream| read_upstream(snapshot, counters, upstream))
        .collect();
    ChainStatus {
        name: chain.name.to_string(),
        family: chain.family.family.as_str(),
        head: view.head.map(|head| HeadStatus {
            number: head.number,
            hash: alloy_primitives::hex::encode_prefixed(head.hash),
        }),
        head_age_seconds: view.head.map(|_| round_seconds(now.saturating_sub(chain.head_since()))),
        head_stall: view.stall.map(|stall| HeadStallStatus {
            upstream: find_name(snapshot, config, stall.upstream),
            number: stall.number,
            reason: stall.reason.describe().to_owned(),
        }),
        last_head: chain.last_head().filter(|_| view.head.is_none()).map(|last_head| {
            LastHeadStatus {
                number: last_head.head.number,
                hash: alloy_primitives::hex::encode_prefixed(last_head.head.hash),
                seconds_ago: round_seconds(now.saturating_sub(last_head.lost_at)),
            }
        }),
        finalized: view.finalized,
        reorgs: chain.reorgs.load(Relaxed),
        reorg_depth_max: chain.reorg_depth_max.load(Relaxed),
        generation: view.generation,
        groups: config
            .groups
            .iter()
            .map(|&group| read_group(snapshot, counters, group, &upstreams))
            .collect(),
        upstreams,
        methods: read_methods(chain, &counters.methods[index]),
    }
}

/// Returns the name of the upstream with this index in the chain's views.
fn find_name(snapshot: &Snapshot, chain: &config::chain::Chain, view_index: usize) -> String {
    let mut upstreams = chain.upstreams.iter().map(|&upstream| &snapshot.upstreams[upstream]);
    let upstream = upstreams.find(|upstream| upstream.view_index == view_index);
    upstream.map(|upstream| upstream.config.name.to_string()).unwrap_or_default()
}

fn read_upstream(snapshot: &Snapshot, counters: &Counters, index: usize) -> UpstreamStatus {
    let (upstream, counters) = (&snapshot.upstreams[index], &counters.upstreams[index]);
    let now = snapshot.now();
    let view = snapshot.chains[upstream.config.chain].view.load();
    let upstream_view = upstream.in_view(&view).unwrap_or_default();
    let (state, ends_at) = if upstream.serves_other_chain.load(Relaxed) {
        (HealthStatus::Foreign, None)
    } else {
        read_state(snapshot.upstream_state(index, &view))
    };
    UpstreamStatus {
        index,
        name: upstream.config.name.to_string(),
        address: upstream.config.url.default_name(),
        state,
        cordon: upstream.cordon(now).map(|cordon| CordonStatus {
            reason: cordon.reason,
            ends_seconds: round_seconds(cordon.until.saturating_sub(now)),
        }),
        fault: upstream.fault().map(|fault| FaultStatus {
            reason: fault.reason,
            since_seconds: round_seconds(now.saturating_sub(fault.since)),
        }),
        state_ends_seconds: ends_at.map(|ends_at| round_seconds(ends_at.saturating_sub(now))),
        head: upstream_view.head,
        lag: upstream_view.head.map(|_| upstream_view.lag),
        at_head: upstream_view.at_head,
        consistent: upstream_view.consistent,
        weight: upstream.config.weight,
        backup: upstream.config.backup,
        history: read_history(&upstream.history),
        log_range_blocks_max: upstream.log_range.get(now),
        in_flight: counters.in_flight.get(),
        attempts: counters.attempts.total(),
        failed: counters.attempts[AttemptOutcome::Failed].get(),
        rate_limited: counters.attempts[AttemptOutcome::RateLimited].get(),
        connections_opened: counters.connections_opened.get(),
        transports: list_transports(&upstream.config),
        multiplexed_calls: counters.multiplexed_calls.get(),
        batches: counters.batches.get(),
        batched_calls: counters.batched_calls.get(),
        multiplexed_connections: counters.multiplexed_open.get(),
        multiplexed_connections_lost: counters.multiplexed_lost.get(),
        ejections: upstream.ejections.load(Relaxed),
        readmissions: upstream.readmissions.load(Relaxed),
        latency_p50_ms: round_quantile_ms(&counters.latency, 0.5),
        latency_p99_ms: round_quantile_ms(&counters.latency, 0.99),
    }
}

fn read_history(history: &UpstreamHistory) -> Vec<HistoryStatus> {
    let limits = History::ALL.into_iter().filter_map(|data| {
        let blocks = history.missing_depth(data)?;
        Some(HistoryStatus { data: data.as_str(), blocks })
    });
    limits.collect()
}

/// Returns the transports of an upstream. The cheapest comes first.
fn list_transports(upstream: &config::upstream::Upstream) -> Vec<&'static str> {
    let over_http = upstream.http().map(|(url, _)| match upstream.http2 {
        true => "http2",
        false => url.transport().name(),
    });
    let multiplexed = upstream.multiplexed().map(|(url, _)| url.transport().name());
    [multiplexed, over_http].into_iter().flatten().collect()
}

/// Converts a state to its variant in the status. Also returns the time at which a pause or an
/// ejection ends; `None` for other states.
fn read_state(state: health::HealthState) -> (HealthStatus, Option<Duration>) {
    match state {
        health::HealthState::Healthy => (HealthStatus::Healthy, None),
        health::HealthState::Lagging => (HealthStatus::Lagging, None),
        health::HealthState::Probing => (HealthStatus::Probing, None),
        health::HealthState::Paused { until } => (HealthStatus::Paused, Some(until)),
        health::HealthState::Ejected { until } => (HealthStatus::Ejected, Some(until)),
    }
}

fn read_group(
    snapshot: &Snapshot,
    counters: &Counters,
    index: usize,
    upstreams: &[UpstreamStatus],
) -> GroupStatus {
    let (config, counters) = (&snapshot.config.groups[index], &counters.groups[index]);
    let candidates = snapshot.groups[index].candidates.load();
    let name = |index_in_group: &u16| {
        let upstream = config.upstreams[usize::from(*index_in_group)];
        snapshot.config.upstreams[upstream].name.to_string()
    };
    GroupStatus {
        name: config.name.to_string(),
        balance: match &config.balance {
            Balance::LeastLoaded => "least_loaded".to_owned(),
            Balance::Weighted => "weighted".to_owned(),
            Balance::Hash { key, .. } => match key {
                HashKey::Call => "hash of the call".to_owned(),
                HashKey::Client => "hash of the client".to_owned(),
                HashKey::Header(name) => format!("hash of header {name}"),
            },
        },
        candidates: candidates.group_indices.iter().map(name).collect(),
        upstreams_healthy: upstreams
            .iter()
            .filter(|upstream| config.upstreams.contains(&upstream.index))
            .filter(|upstream| upstream.state == HealthStatus::Healthy && upstream.cordon.is_none())
            .count() as u64,
        in_flight_limit: snapshot.groups[index]
            .concurrency_limit
            .as_ref()
            .map(|limit| limit.calls_max()),
        in_flight: counters.in_flight.get(),
        queued: counters.queued.get(),
        shed: counters.shed.iter().map(|(_, reasons)| reasons.total()).sum(),
    }
}

/// Returns the methods with the most calls, in descending order.
fn read_methods(chain: &ChainState, counters: &[MethodCounters]) -> Vec<MethodStatus> {
    let label = ChainLabel { name: Arc::clone(&chain.name), family: chain.family.family };
    let mut called: Vec<_> =
        label.methods().zip(counters).filter(|(_, counts)| counts.calls() > 0).collect();
    called.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.calls()));
    called.truncate(METHODS_MAX);
    let status = |(name, counts): (&str, &MethodCounters)| MethodStatus {
        name: name.to_owned(),
        calls: counts.calls(),
        hit: counts.answered[CacheStatus::Hit].get(),
        miss: counts.answered[CacheStatus::Miss].get(),
        coalesced: counts.answered[CacheStatus::Coalesced].get(),
        bypass: counts.answered[CacheStatus::Bypass].get(),
        errors: counts.errors.get(),
        failed: counts.failed.get(),
        latency_p50_ms: round_quantile_ms(&counts.latency, 0.5),
        latency_p99_ms: round_quantile_ms(&counts.latency, 0.99),
    };
    called.into_iter().map(status).collect()
}

fn read_memory_cache(snapshot: &Snapshot, counters: &Counters) -> MemoryCache {
    // `CacheStatus::ALL` lists the statuses in this order.
    let [hits, misses, coalesced, bypasses] =
        CacheStatus::ALL.map(|status| counters.count_calls_with(status));
    let cacheable = hits + misses + coalesced;
    MemoryCache {
        enabled: snapshot.cache.is_some(),
        entries: snapshot.cache.as_ref().map_or(0, |cache| cache.len() as u64),
        bytes: snapshot.cache.as_ref().map_or(0, |cache| cache.bytes()),
        bytes_max: snapshot.config.cache.bytes_max as u64,
        hits,
        misses,
        coalesced,
        bypasses,
        hit_ratio: (cacheable > 0).then(|| hits as f64 / cacheable as f64),
    }
}

fn read_redis(snapshot: &Snapshot, counters: &Counters) -> Option<RedisStatus> {
    let tier = snapshot.redis.as_ref()?;
    let redis_counters = &counters.redis;
    let lookups = |outcomes: &[RedisLookup]| {
        outcomes.iter().map(|&outcome| redis_counters.lookups[outcome].get()).sum()
    };
    Some(RedisStatus {
        url: snapshot.config.redis.as_ref()?.url.to_string(),
        breakers_open: redis_counters.breakers_open.get(),
        hits: lookups(&[RedisLookup::Hit]),
        misses: lookups(&[RedisLookup::Miss, RedisLookup::Stale, RedisLookup::Refused]),
        failed: lookups(&[RedisLookup::Error, RedisLookup::Timeout, RedisLookup::Skipped]),
        messages_sent: tier.messages_sent.load(Relaxed),
        messages_received: tier.messages_received.load(Relaxed),
    })
}

fn read_gateways(snapshot: &Snapshot) -> Option<GatewaysStatus> {
    shares_counters(&snapshot.config).then(|| {
        let (count, source) = snapshot.gateways.current();
        GatewaysStatus { count, source: source.as_str() }
    })
}

fn read_index(snapshot: &Snapshot, counters: &Counters) -> Option<IndexStatus> {
    let index = snapshot.config.index.as_ref()?;
    let lookups = |outcome: IndexLookup| counters.index.lookups[outcome].get();
    Some(IndexStatus {
        db: index.db.to_string(),
        chain: snapshot.config.chains[index.chain].name.to_string(),
        hits: lookups(IndexLookup::Hit),
        parts: lookups(IndexLookup::Part),
        misses: lookups(IndexLookup::Miss),
        failed: lookups(IndexLookup::Failed),
    })
}

fn read_keys(snapshot: &Snapshot, counters: &Counters) -> Vec<KeyStatus> {
    let quotas = snapshot.quotas.as_ref();
    // `counters.keys` lists the API keys first, in the order of `usages`, and then the issuers of
    // tokens. Issuers have no quota.
    let mut usages = quotas
        .map(|quotas| quotas.usage(crate::io::clock::unix_seconds()))
        .unwrap_or_default()
        .into_iter();
    let status = |([name], key_counters): (&[Arc<str>; 1], &Arc<KeyCounters>)| {
        let usage = usages.next().flatten();
        let quota = usage.map(|usage| QuotaStatus { used: usage.used, units: usage.units });
        KeyStatus { name: name.to_string(), calls: key_counters.calls.get(), quota }
    };
    counters.keys.iter().map(status).collect()
}

fn read_refused_methods(snapshot: &Snapshot) -> Vec<RefusedMethodStatus> {
    let refused = snapshot.process.refusals.by_calls().into_iter();
    let to_status = |RefusedMethod { method, refused_by, calls }| RefusedMethodStatus {
        method: method.into(),
        refused_by,
        calls,
    };
    refused.map(to_status).collect()
}

/// Returns the rejected calls by reason.
fn read_rejected_calls(snapshot: &Snapshot, counters: &Counters) -> Vec<Rejected> {
    // Each tuple holds the reason, the zone and the number of calls.
    let by_zone = counters.zones.iter().map(|([name], zone)| {
        ("limit", Some(name.to_string()), zone.calls[LimitOutcome::Rejected].get())
    });
    let quota = snapshot.quotas.as_ref().map_or(0, |quotas| quotas.ledger.refused.load(Relaxed));
    let shed = counters.groups.iter().flat_map(|(_, group)| group.shed.iter());
    let others = [
        ("quota", None, quota),
        ("overload", None, shed.map(|(_, reasons)| reasons.total()).sum()),
        ("malformed", None, counters.calls_refused.get()),
    ];
    let denied = counters.denied.iter().map(|(denial, count)| (denial.as_str(), None, count.get()));
    let rejections = by_zone.chain(others).chain(denied);
    rejections.map(|(reason, zone, calls)| Rejected { reason, zone, calls }).collect()
}

fn read_totals(snapshot: &Snapshot, counters: &Counters) -> Totals {
    let refused = counters.requests_refused.iter();
    Totals {
        connections_open: counters.connections_open.get(),
        connections_accepted: counters.connections_accepted.get(),
        connections_refused: counters.connections_refused.get(),
        requests: counters.requests.get(),
        batches: counters.batches.get(),
        calls: counters.all_methods().map(MethodCounters::calls).sum(),
        calls_refused: counters.calls_refused.get(),
        notifications: counters.notifications.get(),
        refused: refused
            .map(|(status, count)| Refused { status: status.number(), requests: count.get() })
            .collect(),
        rejected: read_rejected_calls(snapshot, counters),
        errors: counters.all_methods().map(|method| method.errors.get()).sum(),
        failed: counters.all_methods().map(|method| method.failed.get()).sum(),
        retries: counters.retries.get(),
        hedges: counters.hedges.get(),
        hedges_won: counters.hedges_won.get(),
        in_flight: counters.upstreams.iter().map(|(_, upstream)| upstream.in_flight.get()).sum(),
        coalesced_calls: counters.calls_in_flight.get(),
        waiting: counters.calls_waiting.get(),
    }
}

impl MemoryStatus {
    fn of(budget: &Budget) -> MemoryStatus {
        let bytes_held = budget.bytes_held();
        let read_purpose = |purpose: Purpose| MemoryPurpose {
            name: purpose.as_str(),
            bytes: bytes_held[purpose.index()] as u64,
            refused: budget.refused(purpose),
        };
        MemoryStatus {
            bytes_max: budget.max() as u64,
            purposes: Purpose::ALL.map(read_purpose),
            connections_closed: budget.closed(),
        }
    }
}
