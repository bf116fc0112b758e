//! Gateways count each other by heartbeats in Redis. While Redis is down, each gateway lets its
//! share of a rate pass: the rate divided by the count. Each gateway runs in its own process.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::redis_server::Redis;
use test_support::raw;
use test_support::running::{Running, Weir};
use test_support::wait::{pause, wait_until};

/// The rate of the zone, in calls per second.
const RATE: f64 = 100.0;
/// Pause of a client between two calls, so that it sends several times the rate.
const PAUSE: Duration = Duration::from_millis(2);
/// Time for which the others still count a killed gateway.
const LIFETIME: Duration = Duration::from_secs(5);

/// Starts a gateway that shares a zone through Redis.
fn start_gateway(node: &Running, redis: &Redis) -> Running {
    let text = format!(
        "[server]\nthreads = 1\ndrain_linger = \"0s\"\n[chain.sim]\npoll_interval = \"1h\"\n\
         [[upstream]]\nurl = \"{}\"\n\
         [redis]\nurl = \"{}\"\nresponses = false\ntimeout = \"500ms\"\nbackoff = \"100ms\"\n\
         [zone.all]\nkey = [\"chain\"]\nrate = \"{RATE}r/s\"\nshared = true\n\
         [[limit]]\nzone = \"all\"\nburst = 20\nnodelay = true\n",
        node.url(),
        redis.url()
    );
    Weir::serve().admin().config(&text).start()
}

/// Requests a path from the admin address and returns the response's text.
fn get_admin(gateway: &Running, path: &str) -> String {
    let admin = gateway.admin.as_ref().unwrap();
    let mut client = raw::Client::connect(admin);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\n\r\n").as_bytes());
    client.read_response().unwrap().text().to_owned()
}

/// Returns the number of gateways that a gateway reports, and its source, such as `3 counted`.
fn gateway_count(gateway: &Running) -> String {
    let status: Value = serde_json::from_str(&get_admin(gateway, "/status")).unwrap();
    let gateways = &status["gateways"];
    format!("{} {}", gateways["count"], gateways["source"].as_str().unwrap())
}

/// Waits until each gateway reports this count and source. Returns how long that took.
fn wait_for(gateways: &[&Running], expected: &str) -> Duration {
    let began = Instant::now();
    wait_until(&format!("each gateway reports {expected}"), || {
        gateways.iter().all(|gateway| gateway_count(gateway) == expected)
    });
    began.elapsed()
}

/// Sends calls above the rate for some seconds. Returns how many calls passed per second.
fn passed_per_second(gateway: &Running, seconds: u64) -> f64 {
    let mut client = raw::Client::connect(&gateway.address);
    let call = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
    let mut passed_until = |end: Instant| {
        let mut passed = 0;
        while Instant::now() < end {
            passed += u32::from(client.call("/", call).status == 200);
            pause(PAUSE); // Sleeps: the planned rate.
        }
        passed
    };
    passed_until(Instant::now() + Duration::from_secs(1)); // Uses up the burst.
    let began = Instant::now();
    let passed = passed_until(began + Duration::from_secs(seconds));
    f64::from(passed) / began.elapsed().as_secs_f64()
}

/// Asserts that a gateway without Redis lets its share of the rate pass.
fn assert_share(gateway: &Running, gateways: f64) {
    let (passed, share) = (passed_per_second(gateway, 2), RATE / gateways);
    assert!((share * 0.8..share * 1.15).contains(&passed), "{passed} of {share} per second");
}

#[test]
fn gateways_count_each_other_and_shares_follow_the_count() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let node = Weir::node().start();
    let start = || start_gateway(&node, &redis);
    let first = start();
    // Redis answers at the start, so the first gateway counts itself at once. Redis has just
    // started, so the count can only rise for some seconds.
    wait_until("the first gateway counts itself", || gateway_count(&first).starts_with("1 "));
    let (second, third) = (start(), start());
    wait_for(&[&first, &second, &third], "3 counted");
    // A gateway that starts later counts at once, and the others notice it at their next heartbeat.
    let mut fourth = start();
    let joined = wait_for(&[&first, &second, &third, &fourth], "4 counted");
    assert!(joined < LIFETIME, "{joined:?}");
    fourth.signal("-TERM");
    assert!(fourth.wait_for_exit().success(), "{}", fourth.log());
    let left = wait_for(&[&first, &second, &third], "3 counted");
    assert!(left < LIFETIME - Duration::from_secs(2), "a stopped gateway still counts: {left:?}");

    redis.kill();
    wait_for(&[&first, &second, &third], "3 last_counted");
    assert!(get_admin(&first, "/metrics").contains("\nweir_redis_gateways_current 0\n"));
    assert_share(&first, 3.0);
    // The restarted Redis is empty. Until it has received every gateway's heartbeat again, the
    // gateways keep the last count.
    redis.start_again();
    wait_until("the gateways are counted again", || {
        let counts = [&first, &second, &third].map(gateway_count);
        assert!(counts.iter().all(|count| count.starts_with("3 ")), "{counts:?}");
        counts.iter().all(|count| count == "3 counted")
    });
    third.signal("-KILL");
    let forgotten = wait_for(&[&first, &second], "2 counted");
    assert!(forgotten > LIFETIME - Duration::from_secs(2), "{forgotten:?}");

    redis.kill();
    wait_for(&[&first, &second], "2 last_counted");
    assert_share(&second, 2.0);
    let late = start_gateway(&node, &redis);
    assert_eq!(gateway_count(&late), "10 assumed");
    assert_share(&late, 10.0);
    redis.start_again();
    wait_for(&[&first, &second, &late], "3 counted");
    let metrics = get_admin(&late, "/metrics");
    assert!(metrics.contains("\nweir_redis_gateways 3\n"), "{metrics}");
    assert!(metrics.contains("\nweir_redis_gateways_current 1\n"), "{metrics}");
}
