//! Redis fails in five ways, one after the other, while clients send calls and the chain
//! reorganises. An oracle, which knows the simulated chain, checks every response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use simnode::oracle::{Exchange, ObservedReply, Oracle, OracleOptions, Verdict};
use simnode::schedule::{ReorgEvery, WorldOptions};
use simnode::world::World;
use tokio::time::Instant;
use wire::response::{Outcome, parse_response};

use super::{metric, redis_table};
use crate::sim::calls::random_call;
use crate::support::harness::{NodeRuntime, TestGateway, body};
use crate::support::redis_server::{DelayProxy, Redis};
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

/// Maximum time that a call may wait for Redis.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Allowed noise of the p99 latency. Other tests run at the same time.
const NOISE: Duration = Duration::from_millis(30);
/// Length of each failure of Redis.
const FAILURE: Duration = Duration::from_millis(600);
/// Pause after each failure.
const RECOVERY: Duration = Duration::from_millis(300);
/// Number of clients of each gateway.
const CLIENTS: u64 = 2;
/// Codes of the gateway's own errors. The nodes of this test never send them.
const OWN_ERRORS: [i64; 3] = [-32603, -32002, -32005];

/// The results of one client.
#[derive(Default)]
struct ClientResult {
    latencies: Vec<Duration>,
    /// Number of responses that the oracle found correct.
    correct: usize,
    findings: Vec<String>,
}

/// Sends random calls to one gateway until `stop` is set, and checks each response.
fn load(
    address: &str,
    world: &Arc<World>,
    oracle: &Oracle,
    client: u64,
    stop: &AtomicBool,
) -> ClientResult {
    let mut rng = SmallRng::seed_from_u64(client);
    let mut connection = Client::connect(address);
    let mut result = ClientResult::default();
    while !stop.load(Ordering::Relaxed) {
        let call = random_call(world, &mut rng);
        let sent = Instant::now();
        let answer = connection.call("/", &body(call.method, &call.params));
        let received = Instant::now();
        result.latencies.push(received - sent);
        let parsed = parse_response(&answer.body, 128).unwrap();
        let (reply, is_own_error) = match parsed.outcome {
            Outcome::Result(result) => (ObservedReply::Result(result), false),
            Outcome::Error { code, .. } => {
                (ObservedReply::Error { code }, OWN_ERRORS.contains(&code))
            }
        };
        let params = Some(call.params.as_bytes());
        let method = call.method;
        let exchange = Exchange { method, params, reply, sent, received, client };
        match oracle.judge(&exchange) {
            Verdict::Right => result.correct += 1,
            Verdict::Unjudged(_) if !is_own_error && answer.status == 200 => {}
            verdict => {
                let cache = answer.header("x-weir-cache");
                result.findings.push(format!(
                    "{verdict:?}: {method} {} {cache:?} {}",
                    call.params,
                    answer.text().chars().take(300).collect::<String>()
                ));
            }
        }
        pause(Duration::from_millis(2)); // Sleeps: the rate of a client.
    }
    result
}

/// Returns the 99th percentile of all latencies.
fn p99(results: &[ClientResult]) -> Duration {
    let mut latencies: Vec<Duration> =
        results.iter().flat_map(|result| result.latencies.clone()).collect();
    latencies.sort();
    latencies[latencies.len() * 99 / 100]
}

#[test]
fn whatever_happens_to_redis_answers_stay_right_and_in_time() {
    let Some(mut primary) = Redis::start(&[]) else { return };
    let proxy = DelayProxy::in_front_of(primary.port);
    let replication_proxy = DelayProxy::in_front_of(primary.port);
    let replication_port = replication_proxy.port.to_string();
    let Some(replica) = Redis::start(&["--replicaof", "127.0.0.1", &replication_port]) else {
        return;
    };
    let linked = || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
    wait_until("the replica follows", linked);

    let world = WorldOptions {
        block_time: Duration::from_millis(250),
        finality_depth: 12,
        reorg_every: Some(ReorgEvery { blocks: 4, depth_max: 3 }),
        ..WorldOptions::default()
    };
    let world = Arc::new(World::new(world).unwrap());
    let runtime = NodeRuntime::start();
    let node = runtime.node("node", &world);
    let upstream = node.to_toml("");
    let start_gateway = |redis: &str| {
        let chain = "[chain.sim]\npoll_interval = \"50ms\"\nblock_time = \"250ms\"\n";
        TestGateway::start(&format!("{chain}{redis}{upstream}"))
    };
    let timeout = format!("timeout = \"{}ms\"", TIMEOUT.as_millis());
    let proxy_url = format!("redis://127.0.0.1:{}", proxy.port);
    let gateways = [
        start_gateway(""),
        start_gateway(&redis_table(&proxy_url, &timeout)),
        start_gateway(&redis_table(&primary.url(), &format!("{timeout}\nread_replicas = true"))),
    ];
    let hits =
        |gateway: &TestGateway| metric(gateway, r#"weir_redis_lookups_total{outcome="hit"}"#);
    let hits_of_both = || [hits(&gateways[1]), hits(&gateways[2])];
    let oracle = Oracle::new(Arc::clone(&world), OracleOptions::default());
    let stop = AtomicBool::new(false);
    for gateway in &gateways {
        wait_until("a head is served", || !gateway.status("/chains/0/head").is_null());
    }
    let (mut without_redis, mut with_redis) = (Vec::new(), Vec::new());
    std::thread::scope(|threads| {
        let (oracle, world, stop) = (&oracle, &world, &stop);
        let mut clients = Vec::new();
        for (gateway_index, gateway) in gateways.iter().enumerate() {
            for number in 0..CLIENTS {
                let client = gateway_index as u64 * CLIENTS + number;
                let run = move || load(&gateway.address, world, oracle, client, stop);
                clients.push((gateway_index, threads.spawn(run)));
            }
        }
        wait_until("both gateways use the tier", || hits_of_both().iter().all(|hits| *hits > 0.0));
        // Redis is slow.
        proxy.set_delay_ms(40);
        pause(FAILURE); // Sleeps: how long Redis is slow.
        proxy.set_delay_ms(0);
        pause(RECOVERY); // Sleeps: how long Redis is healthy.
        // Redis hangs.
        primary.signal("-STOP");
        pause(FAILURE); // Sleeps: how long Redis hangs.
        primary.signal("-CONT");
        pause(RECOVERY); // Sleeps: how long Redis is healthy.
        // The replica is behind.
        replication_proxy.set_held(true);
        pause(FAILURE); // Sleeps: how long the replica is behind.
        replication_proxy.set_held(false);
        pause(RECOVERY); // Sleeps: how long Redis is healthy.
        // The replica hangs.
        replica.signal("-STOP");
        pause(FAILURE); // Sleeps: how long the replica hangs.
        replica.signal("-CONT");
        primary.cli(&["FLUSHALL"]);
        pause(RECOVERY); // Sleeps: how long Redis is healthy.
        // Redis ends and restarts empty.
        primary.kill();
        pause(FAILURE); // Sleeps: how long Redis is down.
        primary.start_again();
        let before = hits_of_both();
        wait_until("both gateways use Redis again", || {
            hits_of_both().iter().zip(&before).all(|(now, before)| now > before)
        });
        stop.store(true, Ordering::Relaxed);
        for (gateway_index, client) in clients {
            let result = client.join().unwrap();
            if gateway_index == 0 { without_redis.push(result) } else { with_redis.push(result) }
        }
    });
    for result in without_redis.iter().chain(&with_redis) {
        assert!(
            result.findings.is_empty(),
            "{} answers are not right: {}",
            result.findings.len(),
            { result.findings.iter().take(5).cloned().collect::<Vec<_>>().join("\n") }
        );
    }
    let judged: usize = with_redis.iter().map(|result| result.correct).sum();
    let (without, with) = (p99(&without_redis), p99(&with_redis));
    for gateway in &gateways[1..] {
        assert!(metric(gateway, "weir_redis_breakers_opened_total") >= 1.0, "a breaker opened");
    }
    println!("{judged} answers right, p99 {without:?} without the tier and {with:?} with it");
    assert!(judged > 500, "only {judged} answers were judged");
    assert!(with <= without + TIMEOUT + NOISE, "p99 {without:?} became {with:?}");
}
