//! Goal: the status has the values of the configuration, the snapshots and the counters of all
//! threads, and contains no secret. The tests of `/metrics` and of the status page use
//! [`populated`] too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::{HealthStatus, Status};
use crate::call::CacheStatus;
use crate::config::Config;
use crate::config::listen_tls::CertificateExpiry;
use crate::metrics::label::{
    AttemptOutcome, Label, LimitJudge, LimitOutcome, RedisLookup, RedisStore,
};
use crate::policy::heads::{ChainView, Head, Stall, StallReason, UpstreamView};
use crate::process::ReloadOutcome;
use crate::state::snapshot::Snapshot;
use wire::method::History;

const CONFIG: &str = r#"
[server]
threads = 2

[chain.main]
family = "ethereum"
default = true

[chain.side]
family = "bitcoin"
paths = ["/side"]

[[upstream]]
name = "first"
url = "https://user:sekrit1@first.example:8545/v3/sekrit20123456789012345678901234567890?key=sekrit3"
chain = "main"
headers = { x-api-key = "sekrit4" }

[[upstream]]
name = "second"
url = "http://127.0.0.1:8546"
ws_url = "ws://127.0.0.1:8547"
chain = "main"
weight = 3

[[upstream]]
name = "third"
url = "http://127.0.0.1:8332"
chain = "side"

[cache]
bytes_max = "1MiB"

[[key]]
name = "alice"
secret = "sekrit5-0123456789abcdef"
quota = 1000

[quota]
file = "no-such-folder/quotas.json"
shared = true

[[rule]]
name = "closed"
keys = ["alice"]
deny = 403

[redis]
url = "redis://user:sekrit5@127.0.0.1:1"
gateways = 2

[tracing]
endpoint = "http://user:sekrit5@127.0.0.1:1"

[index]
db = "index.db"
chain = "main"

[zone.clients]
key = ["client"]
rate = "10r/s"
bytes = "64KiB"
shared = true

[[limit]]
zone = "clients"
"#;

/// Returns a snapshot of two chains and three upstreams before their first poll.
pub(crate) fn fresh() -> Arc<Snapshot> {
    let mut config = Config::from_text("test.toml", CONFIG, std::path::Path::new(""), &|_| None)
        .unwrap_or_else(|faults| panic!("{faults}"));
    config.certificate_expiries.push(CertificateExpiry {
        chain_file: "certificates/own.pem".to_owned(),
        expires: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
    });
    Snapshot::new(config, Vec::new())
}

/// An empty index.
struct NoIndex;

impl crate::cache::index::Index for NoIndex {
    fn chain(&self) -> &str {
        "none"
    }

    fn serves_chain(&self, _: u64) -> bool {
        true
    }

    fn serves(&self, _method: &str) -> bool {
        false
    }

    fn start_query(
        &self,
        _: crate::cache::index::IndexQuery,
        _: tokio::sync::oneshot::Sender<crate::cache::index::IndexResult>,
    ) {
    }
}

/// Returns the snapshot of [`fresh`] with heads, an ejected upstream, an upstream of another chain,
/// and a value in every counter of both threads.
pub(crate) fn populated() -> Arc<Snapshot> {
    let snapshot = fresh();
    let mut view = ChainView::default();
    view.head = Some(Head { number: 22_431_084, hash: [0xab; 32] });
    view.finalized = Some(22_431_000);
    view.stall = Some(Stall { upstream: 0, number: 22_431_099, reason: StallReason::Unconfirmed });
    view.generation = 4;
    let [instance_id, other_id] =
        [0, 1].map(|upstream: usize| snapshot.upstreams[upstream].instance_id);
    let head = Some(22_431_084);
    let upstream_view = UpstreamView {
        instance_id,
        head,
        lag: 0,
        live: true,
        consistent: true,
        syncing: false,
        at_head: true,
    };
    let behind = UpstreamView {
        instance_id: other_id,
        head: Some(22_431_080),
        lag: 4,
        at_head: false,
        ..upstream_view
    };
    view.upstreams = vec![upstream_view, behind];
    snapshot.chains[0].publish(view, Duration::from_millis(1));
    snapshot.chains[0].reorgs.store(2, Ordering::Relaxed);
    snapshot.chains[0].reorg_depth_max.store(3, Ordering::Relaxed);
    // The third consecutive failed poll ejects the upstream.
    for _ in 0..3 {
        let now = snapshot.now();
        snapshot.upstreams[1].health.lock().record_failed_poll(now, 0);
    }
    let _set = snapshot.index.set(Arc::new(NoIndex));
    snapshot.process.record_reload(ReloadOutcome::Refused { reason: "test.toml: no".to_owned() });
    snapshot.upstreams[1].ejections.store(1, Ordering::Relaxed);
    snapshot.upstreams[1].history.record_missing(History::State, 128);
    snapshot.upstreams[1].log_range.record_refusal(
        snapshot.now(),
        5000,
        "exceed maximum block range: 1000",
    );
    snapshot.upstreams[1].readmissions.store(5, Ordering::Relaxed);
    snapshot.upstreams[2].serves_other_chain.store(true, Ordering::Relaxed);
    let (call, _) = snapshot.chains[0].family.find("eth_call").unwrap();
    for thread in &snapshot.counters {
        thread.keys[0].calls.add(2);
        thread.rules[0].calls.add(1);
        // The last counters are those of all methods that are not in the method table.
        let unknown = thread.methods[0].len() - 1;
        let hit = CacheStatus::Hit;
        for status in [hit, hit, hit, CacheStatus::Miss, CacheStatus::Coalesced] {
            thread.methods[0][call].record_call(status, Duration::from_micros(300));
        }
        thread.methods[0][unknown].record_call(CacheStatus::Bypass, Duration::from_millis(40));
        thread.methods[0][unknown].errors.add(1);
        thread.methods[0][unknown].failed.add(2);
        for outcome in <LimitOutcome as Label>::ALL {
            thread.record_limit_outcome(0, *outcome);
        }
        thread.calls_waiting.set(3);
        let upstream = &thread.upstreams[0];
        upstream.record_attempt(AttemptOutcome::RateLimited, Duration::from_millis(5));
        upstream.record_attempt(AttemptOutcome::Failed, Duration::from_millis(5));
        upstream.in_flight.set(7);
        upstream.connections_opened.add(1);
        thread.record_connection_opened();
        thread.record_connection_opened();
        thread.record_connection_closed();
        thread.record_refusal(413);
        let redis = &thread.redis;
        redis.lookups[RedisLookup::Hit].add(2);
        redis.lookups[RedisLookup::Stale].add(2);
        redis.stores[RedisStore::Ok].add(2);
        redis.breakers_opened.add(2);
        redis.breakers_open.add(2);
        redis.latency.observe(Duration::from_micros(200));
        thread.shared_limits.calls[LimitJudge::Redis].add(4);
        thread.shared_limits.latency.observe(Duration::from_micros(200));
        for count in [&thread.requests, &thread.batches, &thread.retries, &thread.hedges] {
            count.add(3);
        }
    }
    snapshot
}

#[test]
fn numbers_add_up_over_threads() {
    let status = Status::of(&populated());
    let main = &status.chains[0];
    let methods: Vec<_> = main.methods.iter().map(|method| (&*method.name, method.calls)).collect();
    assert_eq!(methods, [("eth_call", 10), ("other", 2)]);
    let call = &main.methods[0];
    assert_eq!((call.hit, call.miss, call.coalesced, call.bypass), (6, 2, 2, 0));
    let other = &main.methods[1];
    assert_eq!((other.errors, other.failed), (2, 4));
    assert!((25.6..=51.2).contains(&other.latency_p50_ms.unwrap()));
    let upstream = &main.upstreams[0];
    assert_eq!(
        (upstream.attempts, upstream.failed, upstream.rate_limited, upstream.in_flight),
        (4, 2, 2, 14)
    );
    let totals = &status.totals;
    assert_eq!((totals.connections_open, totals.connections_accepted), (2, 4));
    assert_eq!((totals.calls, totals.requests, totals.batches), (12, 6, 6));
    assert_eq!((totals.in_flight, totals.errors, totals.failed), (14, 2, 4));
    let refused = totals.refused.iter().find(|refused| refused.status == 413).unwrap();
    assert_eq!(refused.requests, 2);
    let by_zone = totals.rejected.iter().find(|rejected| rejected.zone.is_some()).unwrap();
    assert_eq!(
        (by_zone.reason, by_zone.zone.as_deref(), by_zone.calls),
        ("limit", Some("clients"), 2)
    );
    assert_eq!(status.cache.hit_ratio, Some(0.6));
}

#[test]
fn the_status_has_the_state_of_chains_and_upstreams() {
    let status = Status::of(&populated());
    let main = &status.chains[0];
    let head = main.head.as_ref().unwrap();
    assert_eq!((head.number, &*head.hash), (22_431_084, &*format!("0x{}", "ab".repeat(32))));
    assert_eq!((main.finalized, main.reorgs, main.reorg_depth_max), (Some(22_431_000), 2, 3));
    assert!(main.head_age_seconds.is_some());
    let states: Vec<_> = status
        .chains
        .iter()
        .flat_map(|chain| &chain.upstreams)
        .map(|upstream| upstream.state)
        .collect();
    assert_eq!(states, [HealthStatus::Healthy, HealthStatus::Ejected, HealthStatus::Foreign]);
    let ejected = &main.upstreams[1];
    assert!(ejected.state_ends_seconds.unwrap() > 0.0);
    assert_eq!(
        (ejected.lag, ejected.weight, ejected.ejections, ejected.readmissions),
        (Some(4), 3, 1, 5)
    );
    assert_eq!(main.upstreams[0].address, "first.example:8545");
    assert_eq!(status.chains[1].upstreams[0].head, None);
    let groups: Vec<_> = main.groups.iter().map(|group| &*group.balance).collect();
    assert_eq!(groups, ["least_loaded"]);
}

#[test]
fn a_healthy_upstream_behind_the_others_is_called_lagging() {
    let snapshot = fresh();
    let mut view = ChainView::default();
    let upstream_view = |upstream: usize, lag: u64| {
        let instance_id = snapshot.upstreams[upstream].instance_id;
        UpstreamView {
            instance_id,
            head: Some(9),
            lag,
            live: true,
            consistent: true,
            syncing: false,
            at_head: lag == 0,
        }
    };
    let states = || {
        let status = Status::of(&snapshot);
        [0, 1].map(|upstream: usize| status.chains[0].upstreams[upstream].state)
    };
    view.head = Some(Head { number: 9, hash: [1; 32] });
    view.upstreams = vec![upstream_view(0, 0), upstream_view(1, 40)];
    snapshot.chains[0].publish(view.clone(), Duration::ZERO);
    assert_eq!(states(), [HealthStatus::Healthy, HealthStatus::Lagging]);
    // An upstream without a head is not selected either.
    view.upstreams[1] = UpstreamView { head: None, lag: 0, at_head: false, ..upstream_view(1, 0) };
    snapshot.chains[0].publish(view, Duration::ZERO);
    assert_eq!(states(), [HealthStatus::Healthy, HealthStatus::Lagging]);
    snapshot.renew_candidates(0);
    assert_eq!(snapshot.groups[0].candidates.load().group_indices, [0]);
    let status = Status::of(&snapshot);
    assert_eq!(
        status.chains[1].upstreams[0].state,
        HealthStatus::Healthy,
        "an upstream without a poll counts as healthy"
    );
}

#[test]
fn readiness_names_what_is_missing() {
    let reasons = Status::of(&fresh()).unready_reasons();
    assert_eq!(
        reasons,
        [
            "chain main: no upstream has reported a head yet",
            "chain side: no upstream has reported a head yet"
        ]
    );
    let snapshot = populated();
    let side_reasons = [
        "chain side: no usable upstream (1 foreign)",
        "chain side: no upstream has reported a head yet",
    ];
    assert_eq!(Status::of(&snapshot).unready_reasons(), side_reasons);
    // The chain `main` loses all its upstreams.
    snapshot.chains[0].publish(ChainView::default(), snapshot.now());
    let now = snapshot.now();
    for _ in 0..3 {
        snapshot.upstreams[0].health.lock().record_failed_poll(now, 0);
    }
    let unauthorized = "it requires another key or token (HTTP status 401)";
    snapshot.upstreams[0].record_fault(unauthorized.to_owned(), now);
    let status = Status::of(&snapshot);
    let last_head = status.chains[0].last_head.as_ref().unwrap();
    assert_eq!((last_head.number, &last_head.hash[..4]), (22_431_084, "0xab"));
    assert_eq!(
        status.unready_reasons()[..3],
        [
            "chain main: no usable upstream (2 ejected)",
            "chain main: upstream first: it requires another key or token (HTTP status 401) (for 0 \
             s, next try in 1 s)",
            "chain main: no upstream confirms a head; the last was block 22431084, 0 s ago"
        ]
    );
}

#[test]
fn json_holds_no_secret_and_no_parts_of_urls() {
    let json = serde_json::to_string(&Status::of(&populated())).unwrap();
    assert!(json.contains("first.example:8545"), "the address is in the status");
    assert!(!json.contains("sekrit"), "the status holds a secret: {json}");
}
