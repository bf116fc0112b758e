//! Setups of Redis other than one plain server.

use std::time::{Duration, Instant};

use super::{is_shared, metric, share, sharing, tier};
use crate::support::authority::{Authority, Files, Kind};
use crate::support::redis_server::Redis;
use crate::support::scene::{READ, Scene, Served, account, ask, mark, polled_often, result};
use test_support::wait::{pause, wait_until};

const STORED: &str = r#"weir_redis_stores_total{outcome="ok"}"#;

#[test]
fn a_cluster_is_a_tier() {
    let Some(nodes) = Redis::cluster() else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let url = Redis::cluster_url(&nodes);
    let (first, second) = (sharing(&node, &tier(&url, "")), sharing(&node, &tier(&url, "")));
    for number in 0..20 {
        share(&first, &second, &node, READ, &account(number, "0x64"));
    }
    let held = nodes.each_ref().map(|node| node.answers().len());
    assert!(held.iter().all(|held| *held > 0), "each node holds entries: {held:?}");
}

#[test]
fn a_server_behind_sentinels_is_a_tier() {
    let Some(redis) = Redis::start(&[]) else { return };
    let Some(sentinel) = Redis::sentinel(&redis) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let url = format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=main", sentinel.port);
    let (first, second) = (sharing(&node, &tier(&url, "")), sharing(&node, &tier(&url, "")));
    share(&first, &second, &node, READ, &account(1, "0x64"));
    assert!(!redis.answers().is_empty());
}

#[test]
fn replicas_are_read_and_the_primary_while_no_replica_responds() {
    let Some(primary) = Redis::start(&[]) else { return };
    let primary_port = primary.port.to_string();
    let Some(replica) = Redis::start(&["--replicaof", "127.0.0.1", &primary_port]) else { return };
    let linked = || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
    wait_until("the replica follows", linked);
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let plain = tier(&primary.url(), "");
    let (first, second) =
        (sharing(&node, &plain), sharing(&node, &format!("{plain}read_replicas = true")));
    share(&first, &second, &node, READ, &account(1, "0x64"));
    let reads = || {
        let stats = replica.cli(&["INFO", "commandstats"]);
        stats.lines().any(|line| line.starts_with("cmdstat_mget:"))
    };
    assert!(reads(), "the gateway reads from the replica");
    replica.signal("-STOP");
    let mut client = second.client();
    let mut number = 100;
    wait_until("the gateway reads from the primary", || {
        number += 1;
        is_shared(&first, &mut client, number)
    });
    replica.signal("-CONT");
}

#[test]
fn a_replica_that_sentinels_promote_is_used_in_place_of_a_dead_primary() {
    let Some(mut primary) = Redis::start(&[]) else { return };
    let primary_port = primary.port.to_string();
    let Some(replica) = Redis::start(&["--replicaof", "127.0.0.1", &primary_port]) else { return };
    let linked = || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
    wait_until("the replica follows", linked);
    let Some(sentinel) = Redis::sentinel(&primary) else { return };
    let replica_is_known = || sentinel.cli(&["SENTINEL", "REPLICAS", "main"]).contains("port");
    wait_until("the sentinel knows the replica", replica_is_known);
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let url = format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=main", sentinel.port);
    let (first, second) = (sharing(&node, &tier(&url, "")), sharing(&node, &tier(&url, "")));
    share(&first, &second, &node, READ, &account(1, "0x64"));
    primary.kill();
    let promoted = || replica.cli(&["ROLE"]).starts_with("master");
    wait_until("the replica is promoted", promoted);
    let mut client = second.client();
    let mut number = 100;
    wait_until("answers are shared through it", || {
        number += 1;
        let before = metric(&first, STORED);
        let params = account(number, "0x64");
        ask(&mut first.client(), READ, &params);
        // While the circuit breaker is open, the gateway stores nothing.
        let stored = || metric(&first, STORED) > before;
        let deadline = Instant::now() + Duration::from_millis(300);
        while !stored() && Instant::now() < deadline {
            pause(Duration::from_millis(10)); // Sleeps: interval of the check.
        }
        let answer = ask(&mut client, READ, &params);
        assert_eq!(result(&answer), node.result(READ, &params));
        mark(&answer) == "hit"
    });
    assert!(!replica.answers().is_empty());
}

#[test]
fn a_server_behind_tls_is_a_tier_if_its_certificate_is_trusted() {
    let (trusted, other) = (Authority::new("own"), Authority::new("other"));
    let mut files = Files::new();
    files.certificate("redis", &trusted, Kind::Ecdsa, &["127.0.0.1"]);
    let ca = files.write("ca.pem", trusted.pem().as_bytes());
    let untrusted_ca = files.write("other.pem", other.pem().as_bytes());
    let path = |name: &str| files.folder().join(name).to_str().unwrap().to_owned();
    let (certificate, key, ca) = (path("redis.pem"), path("redis.key"), ca.to_str().unwrap());
    let options = [
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        ca,
        "--tls-auth-clients",
        "no",
    ];
    let Some(redis) = Redis::start_tls(&options, &["--tls", "--cacert", ca]) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let tier = |ca: &str| {
        tier(&format!("rediss://127.0.0.1:{}", redis.port), &format!("tls_ca = \"{ca}\""))
    };
    let (first, second) = (sharing(&node, &tier(ca)), sharing(&node, &tier(ca)));
    share(&first, &second, &node, READ, &account(1, "0x64"));
    assert!(!redis.answers().is_empty());
    // A gateway that does not trust the certificate stores nothing, and still serves clients.
    let held_before = redis.answers().len();
    let third = Served::before(&[&node], &polled_often(&tier(untrusted_ca.to_str().unwrap())));
    wait_until("the circuit breaker is open", || metric(&third, "weir_redis_breakers_open") > 0.0);
    let answer = ask(&mut third.client(), READ, &account(2, "0x64"));
    assert_eq!(result(&answer), node.result(READ, &account(2, "0x64")));
    assert_eq!((redis.answers().len(), metric(&third, STORED)), (held_before, 0.0));
}

#[test]
fn a_user_with_the_documented_rights_is_enough() {
    // The page documents the rights as a command.
    let rights = include_str!("../../../../../docs/operating.md");
    let (_, rights) = rights.split_once("ACL SETUSER weir ").expect("the docs name the rights");
    let (rights, _) = rights.split_once('\n').unwrap();
    let rights = rights.replace("PASSWORD", "secret");
    let user: Vec<&str> = ["--user", "weir"].into_iter().chain(rights.split(' ')).collect();
    let closed = ["--user", "default", "on", ">other", "~*", "&*", "+@all"];
    let access = ["--no-auth-warning", "-a", "other"];
    let Some(redis) = Redis::start_closed(&[&user[..], &closed].concat(), &access) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let url = format!("redis://weir:secret@127.0.0.1:{}", redis.port);
    let (first, second) = (sharing(&node, &tier(&url, "")), sharing(&node, &tier(&url, "")));
    share(&first, &second, &node, READ, &account(1, "0x64"));
    assert_eq!(metric(&first, r#"weir_redis_lookups_total{outcome="error"}"#), 0.0);
    let denied = redis.cli(&["ACL", "LOG"]);
    assert_eq!(denied, "", "Redis denied a command");
    // A wrong password does not affect clients, and no page shows it.
    let wrong = format!("redis://weir:wr0ng-one@127.0.0.1:{}", redis.port);
    let third = Served::before(&[&node], &polled_often(&tier(&wrong, "")));
    wait_until("the circuit breaker is open", || metric(&third, "weir_redis_breakers_open") > 0.0);
    let answer = ask(&mut third.client(), READ, &account(2, "0x64"));
    assert_eq!(result(&answer), node.result(READ, &account(2, "0x64")));
    for path in ["/metrics", "/status"] {
        assert!(!third.look(path).text().contains("wr0ng-one"), "{path}");
    }
}
