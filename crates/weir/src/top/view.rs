//! Computes a *view*: the values that `weir top` shows for one interval. The rates are the growth
//! of counters between two statuses. `draw.rs` formats the values.

use super::status::{Chain, Cordon, Fault, Group, Process, Status, Upstream};

/// The values of one interval. A rate is `None` if there is no earlier value of its counter. After
/// a restart of the gateway there is none, because the counters start again at 0.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) version: String,
    /// The process of the gateway, which changes at a restart.
    pub(super) process: Process,
    pub(super) uptime_seconds: f64,
    /// Number of the configuration in use. The first configuration of a process has the number 1.
    pub(super) config_generation: u64,
    pub(super) calls_rate: Option<f64>,
    /// Calls per second that an upstream answered with a JSON-RPC error.
    pub(super) errors_rate: Option<f64>,
    /// Calls per second that no upstream answered.
    pub(super) failed_rate: Option<f64>,
    /// HTTP requests per second that the gateway refused as a whole.
    pub(super) refused_rate: Option<f64>,
    pub(super) retries_rate: Option<f64>,
    /// Cache hits divided by cacheable calls in the interval, or since the start if the interval
    /// had no cacheable call. `None` if the cache is off or there was no cacheable call at all.
    pub(super) hit_share: Option<f64>,
    pub(super) connections: u64,
    /// Number of attempts in flight at upstreams.
    pub(super) in_flight: u64,
    /// Number of calls that a request limit delays now.
    pub(super) waiting: u64,
    pub(super) memory_bytes: u64,
    pub(super) memory_bytes_max: u64,
    pub(super) chains: Vec<ChainView>,
}

/// The values of a chain.
#[derive(Debug, Clone)]
pub(super) struct ChainView {
    pub(super) name: String,
    pub(super) head: Option<u64>,
    pub(super) head_age_seconds: Option<f64>,
    pub(super) upstreams: Vec<UpstreamView>,
    pub(super) groups: Vec<GroupView>,
}

/// The values of an upstream. An attempt is one call of the gateway to the upstream.
#[derive(Debug, Clone)]
pub(super) struct UpstreamView {
    pub(super) name: String,
    pub(super) state: String,
    /// Time until the next probe of an ejected upstream, or the end of a pause. `None` in other
    /// states.
    pub(super) state_ends_seconds: Option<f64>,
    /// `None` while the upstream responds to polls and is in service.
    pub(super) fault: Option<Fault>,
    /// `None` if the upstream is in rotation.
    pub(super) cordon: Option<Cordon>,
    pub(super) attempts_rate: Option<f64>,
    /// Failed and rate-limited attempts per second.
    pub(super) failed_rate: Option<f64>,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) in_flight: u64,
    pub(super) head: Option<u64>,
    /// Blocks behind the head that the gateway serves; `None` if unknown.
    pub(super) lag: Option<u64>,
}

/// The values of a group: upstreams that serve the same methods of a chain.
#[derive(Debug, Clone)]
pub(super) struct GroupView {
    pub(super) group: Group,
    pub(super) shed_rate: Option<f64>,
}

/// Computes rates of counters from their values in two statuses.
struct Rates<'s> {
    /// The earlier status; `None` if there is none of the same process.
    previous: Option<&'s Status>,
    /// Time between the two statuses.
    seconds: f64,
}

impl Rates<'_> {
    /// Returns the growth per second of a counter. `read` gets the counter's value from the
    /// previous status.
    fn rate(&self, current: u64, read: impl Fn(&Status) -> Option<u64>) -> Option<f64> {
        let growth = current.checked_sub(read(self.previous?)?)?;
        Some(growth as f64 / self.seconds)
    }
}

impl View {
    /// Returns the view of a status. `previous` is an earlier status.
    pub(super) fn new(status: &Status, previous: Option<&Status>) -> View {
        let is_comparable = |previous: &&Status| {
            previous.process == status.process && previous.uptime_seconds < status.uptime_seconds
        };
        let previous = previous.filter(is_comparable);
        let seconds =
            previous.map_or(1.0, |previous| status.uptime_seconds - previous.uptime_seconds);
        let rates = Rates { previous, seconds };
        let refused = |status: &Status| {
            status.totals.refused.iter().map(|refused| refused.requests).sum::<u64>()
        };
        let totals = &status.totals;
        View {
            version: status.version.clone(),
            process: status.process.clone(),
            uptime_seconds: status.uptime_seconds,
            config_generation: status.config.generation,
            calls_rate: rates.rate(totals.calls, |status| Some(status.totals.calls)),
            errors_rate: rates.rate(totals.errors, |status| Some(status.totals.errors)),
            failed_rate: rates.rate(totals.failed, |status| Some(status.totals.failed)),
            refused_rate: rates.rate(refused(status), |status| Some(refused(status))),
            retries_rate: rates.rate(totals.retries, |status| Some(status.totals.retries)),
            hit_share: hit_share(status, previous),
            connections: totals.connections_open,
            in_flight: totals.in_flight,
            waiting: totals.waiting,
            memory_bytes: status.memory.purposes.iter().map(|purpose| purpose.bytes).sum(),
            memory_bytes_max: status.memory.bytes_max,
            chains: status.chains.iter().map(|chain| ChainView::new(chain, &rates)).collect(),
        }
    }
}

fn hit_share(status: &Status, previous: Option<&Status>) -> Option<f64> {
    if !status.cache.enabled {
        return None;
    }
    let counts = |status: &Status| {
        let cache = &status.cache;
        (cache.hits, cache.hits + cache.misses + cache.coalesced)
    };
    let (hits, cacheable) = counts(status);
    let (old_hits, old_cacheable) = previous.map_or((0, 0), counts);
    let share = |hits: u64, cacheable: u64| (cacheable > 0).then(|| hits as f64 / cacheable as f64);
    share(hits.saturating_sub(old_hits), cacheable.saturating_sub(old_cacheable))
        .or_else(|| share(hits, cacheable))
}

impl ChainView {
    fn new(chain: &Chain, rates: &Rates<'_>) -> ChainView {
        ChainView {
            name: chain.name.clone(),
            head: chain.head.as_ref().map(|head| head.number),
            head_age_seconds: chain.head_age_seconds,
            upstreams: (chain.upstreams.iter())
                .map(|upstream| UpstreamView::new(chain, upstream, rates))
                .collect(),
            groups: chain.groups.iter().map(|group| GroupView::new(chain, group, rates)).collect(),
        }
    }
}

impl UpstreamView {
    fn new(chain: &Chain, upstream: &Upstream, rates: &Rates<'_>) -> UpstreamView {
        let failures = |upstream: &Upstream| upstream.failed + upstream.rate_limited;
        let find_counter = |status: &Status, read: &dyn Fn(&Upstream) -> u64| {
            let old_chain = status.chains.iter().find(|old| old.name == chain.name)?;
            old_chain.upstreams.iter().find(|old| old.name == upstream.name).map(read)
        };
        let attempts_rate =
            rates.rate(upstream.attempts, |status| find_counter(status, &|old| old.attempts));
        UpstreamView {
            name: upstream.name.clone(),
            state: upstream.state.clone(),
            state_ends_seconds: upstream.state_ends_seconds,
            fault: upstream.fault.clone(),
            cordon: upstream.cordon.clone(),
            attempts_rate,
            failed_rate: rates.rate(failures(upstream), |status| find_counter(status, &failures)),
            p50_ms: upstream.latency_p50_ms,
            p99_ms: upstream.latency_p99_ms,
            in_flight: upstream.in_flight,
            head: upstream.head,
            lag: upstream.lag,
        }
    }
}

impl GroupView {
    fn new(chain: &Chain, group: &Group, rates: &Rates<'_>) -> GroupView {
        let find_shed = |status: &Status| {
            let old_chain = status.chains.iter().find(|old| old.name == chain.name)?;
            old_chain.groups.iter().find(|old| old.name == group.name).map(|old| old.shed)
        };
        GroupView { group: group.clone(), shed_rate: rates.rate(group.shed, find_shed) }
    }
}
