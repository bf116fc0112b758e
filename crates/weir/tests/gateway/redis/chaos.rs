//! Everything that may happen to Redis, one after the other, under load and reorgs; every answer is
//! judged by the oracle.

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

use super::{metric, tier};
use crate::sim::calls::draw;
use crate::support::redis_server::{Proxy, Redis};
use crate::support::scene::{Scene, Served, body};
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

/// What a call may wait for Redis.
const TIMEOUT: Duration = Duration::from_millis(20);
/// What the machine may add to a percentile by itself: other tests run beside this one.
const NOISE: Duration = Duration::from_millis(30);
/// How long each trouble lasts, and the calm after it.
const TROUBLE: Duration = Duration::from_millis(600);
const CALM: Duration = Duration::from_millis(300);
const CLIENTS: u64 = 2;
/// The gateway's own errors begin here; nodes have none of these codes.
const OWN_ERRORS: [i64; 3] = [-32603, -32002, -32005];

/// What one client saw.
#[derive(Default)]
struct Seen {
    took: Vec<Duration>,
    right: usize,
    findings: Vec<String>,
}

/// Asks one gateway at random until told to stop, and judges each answer.
fn load(
    address: &str,
    world: &Arc<World>,
    oracle: &Oracle,
    client: u64,
    stop: &AtomicBool,
) -> Seen {
    let mut rng = SmallRng::seed_from_u64(client);
    let mut connection = Client::connect(address);
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let call = draw(world, &mut rng);
        let sent = Instant::now();
        let answer = connection.call("/", &body(call.method, &call.params));
        let received = Instant::now();
        seen.took.push(received - sent);
        let said = parse_response(&answer.body, 128).unwrap();
        let (answered, own) = match said.outcome {
            Outcome::Result(result) => (ObservedReply::Result(result), false),
            Outcome::Error { code, .. } => {
                (ObservedReply::Error { code }, OWN_ERRORS.contains(&code))
            }
        };
        let params = Some(call.params.as_bytes());
        let method = call.method;
        let exchange = Exchange { method, params, reply: answered, sent, received, client };
        match oracle.judge(&exchange) {
            Verdict::Right => seen.right += 1,
            Verdict::Unjudged(_) if !own && answer.status == 200 => {}
            verdict => {
                let cache = answer.header("x-weir-cache");
                seen.findings.push(format!(
                    "{verdict:?}: {method} {} {cache:?} {}",
                    call.params,
                    answer.text().chars().take(300).collect::<String>()
                ));
            }
        }
        pause(Duration::from_millis(2)); // Sleeps: the rate of a client.
    }
    seen
}

fn p99(seen: &[Seen]) -> Duration {
    let mut took: Vec<Duration> = seen.iter().flat_map(|seen| seen.took.clone()).collect();
    took.sort();
    took[took.len() * 99 / 100]
}

#[test]
fn whatever_happens_to_redis_answers_stay_right_and_in_time() {
    let Some(mut primary) = Redis::start(&[]) else { return };
    let front = Proxy::before(primary.port);
    let link = Proxy::before(primary.port);
    let link_port = link.port.to_string();
    let Some(replica) = Redis::start(&["--replicaof", "127.0.0.1", &link_port]) else { return };
    let linked = || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
    wait_until("the replica follows", linked);

    let world = WorldOptions {
        block_time: Duration::from_millis(250),
        finality_depth: 12,
        reorg_every: Some(ReorgEvery { blocks: 4, depth_max: 3 }),
        ..WorldOptions::default()
    };
    let world = Arc::new(World::new(world).unwrap());
    let scene = Scene::set();
    let node = scene.node("node", &world);
    let entry = node.entry("");
    let gateway = |redis: &str| {
        let chain = "[chain.sim]\npoll_interval = \"50ms\"\nblock_time = \"250ms\"\n";
        Served::start(&format!("{chain}{redis}{entry}"))
    };
    let timeout = format!("timeout = \"{}ms\"", TIMEOUT.as_millis());
    let through = format!("redis://127.0.0.1:{}", front.port);
    let gateways = [
        gateway(""),
        gateway(&tier(&through, &timeout)),
        gateway(&tier(&primary.url(), &format!("{timeout}\nread_replicas = true"))),
    ];
    let hits = |served: &Served| metric(served, r#"weir_redis_lookups_total{outcome="hit"}"#);
    let hits_of_both = || [hits(&gateways[1]), hits(&gateways[2])];
    let oracle = Oracle::new(Arc::clone(&world), OracleOptions::default());
    let stop = AtomicBool::new(false);
    for served in &gateways {
        wait_until("a head is served", || !served.status("/chains/0/head").is_null());
    }
    let (mut plain, mut tiered) = (Vec::new(), Vec::new());
    std::thread::scope(|threads| {
        let (oracle, world, stop) = (&oracle, &world, &stop);
        let mut clients = Vec::new();
        for (at, served) in gateways.iter().enumerate() {
            for number in 0..CLIENTS {
                let client = at as u64 * CLIENTS + number;
                let run = move || load(&served.address, world, oracle, client, stop);
                clients.push((at, threads.spawn(run)));
            }
        }
        wait_until("both gateways use the tier", || hits_of_both().iter().all(|hits| *hits > 0.0));
        // Slow.
        front.delay(40);
        pause(TROUBLE); // Sleeps: how long Redis is slow.
        front.delay(0);
        pause(CALM); // Sleeps: how long it is sound.
        // Paused.
        primary.signal("-STOP");
        pause(TROUBLE); // Sleeps: how long it is paused.
        primary.signal("-CONT");
        pause(CALM); // Sleeps: how long it is sound.
        // A replica that is behind.
        link.hold(true);
        pause(TROUBLE); // Sleeps: how long the replica is behind.
        link.hold(false);
        pause(CALM); // Sleeps: how long it is sound.
        // A replica that hangs.
        replica.signal("-STOP");
        pause(TROUBLE); // Sleeps: how long the replica hangs.
        replica.signal("-CONT");
        primary.cli(&["FLUSHALL"]);
        pause(CALM); // Sleeps: how long it is sound.
        // Gone, and back empty.
        primary.kill();
        pause(TROUBLE); // Sleeps: how long it is gone.
        primary.start_again();
        let before = hits_of_both();
        wait_until("both gateways use it again", || {
            hits_of_both().iter().zip(&before).all(|(now, before)| now > before)
        });
        stop.store(true, Ordering::Relaxed);
        for (at, client) in clients {
            let seen = client.join().unwrap();
            if at == 0 { plain.push(seen) } else { tiered.push(seen) }
        }
    });
    for seen in plain.iter().chain(&tiered) {
        assert!(seen.findings.is_empty(), "{} answers are not right: {}", seen.findings.len(), {
            seen.findings.iter().take(5).cloned().collect::<Vec<_>>().join("\n")
        });
    }
    let judged: usize = tiered.iter().map(|seen| seen.right).sum();
    let (without, with) = (p99(&plain), p99(&tiered));
    for served in &gateways[1..] {
        assert!(metric(served, "weir_redis_breakers_opened_total") >= 1.0, "a breaker opened");
    }
    println!("{judged} answers right, p99 {without:?} without the tier and {with:?} with it");
    assert!(judged > 500, "only {judged} answers were judged");
    assert!(with <= without + TIMEOUT + NOISE, "p99 {without:?} became {with:?}");
}
