//! Setups of Redis other than one plain server: a cluster, sentinels, replicas, TLS, and a user
//! with limited rights.

use std::time::{Duration, Instant};

use super::{assert_shared, is_shared, metric, redis_table, start_with_redis};
use crate::support::authority::{Authority, ConfigFiles, KeyType};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, ask, balance_params, cache_status, chain_polled_often,
    result,
};
use crate::support::redis_server::Redis;
use test_support::wait::{pause, wait_until};

const STORED: &str = r#"weir_redis_stores_total{outcome="ok"}"#;

#[test]
fn a_cluster_is_a_tier() {
    let Some(nodes) = Redis::cluster() else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let url = Redis::cluster_url(&nodes);
    let table = redis_table(&url, "");
    let (first, second) = (start_with_redis(&node, &table), start_with_redis(&node, &table));
    for number in 0..20 {
        assert_shared(&first, &second, &node, GET_BALANCE, &balance_params(number, "0x64"));
    }
    let held = nodes.each_ref().map(|redis| redis.response_keys().len());
    assert!(held.iter().all(|held| *held > 0), "each node holds entries: {held:?}");
}

#[test]
fn a_server_behind_sentinels_is_a_tier() {
    let Some(redis) = Redis::start(&[]) else { return };
    let Some(sentinel) = Redis::sentinel(&redis) else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let url = format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=main", sentinel.port);
    let table = redis_table(&url, "");
    let (first, second) = (start_with_redis(&node, &table), start_with_redis(&node, &table));
    assert_shared(&first, &second, &node, GET_BALANCE, &balance_params(1, "0x64"));
    assert!(!redis.response_keys().is_empty());
}

#[test]
fn replicas_are_read_and_the_primary_while_no_replica_responds() {
    let Some(primary) = Redis::start(&[]) else { return };
    let primary_port = primary.port.to_string();
    let Some(replica) = Redis::start(&["--replicaof", "127.0.0.1", &primary_port]) else { return };
    let linked = || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
    wait_until("the replica follows", linked);
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let plain = redis_table(&primary.url(), "");
    let with_replicas = format!("{plain}read_replicas = true");
    let (first, second) =
        (start_with_redis(&node, &plain), start_with_redis(&node, &with_replicas));
    assert_shared(&first, &second, &node, GET_BALANCE, &balance_params(1, "0x64"));
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
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let url = format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=main", sentinel.port);
    let table = redis_table(&url, "");
    let (first, second) = (start_with_redis(&node, &table), start_with_redis(&node, &table));
    assert_shared(&first, &second, &node, GET_BALANCE, &balance_params(1, "0x64"));
    primary.kill();
    let promoted = || replica.cli(&["ROLE"]).starts_with("master");
    wait_until("the replica is promoted", promoted);
    let mut client = second.client();
    let mut number = 100;
    wait_until("answers are shared through it", || {
        number += 1;
        let before = metric(&first, STORED);
        let params = balance_params(number, "0x64");
        ask(&mut first.client(), GET_BALANCE, &params);
        // While the circuit breaker is open, the gateway stores nothing.
        let stored = || metric(&first, STORED) > before;
        let deadline = Instant::now() + Duration::from_millis(300);
        while !stored() && Instant::now() < deadline {
            pause(Duration::from_millis(10)); // Sleeps: interval of the check.
        }
        let answer = ask(&mut client, GET_BALANCE, &params);
        assert_eq!(result(&answer), node.call(GET_BALANCE, &params));
        cache_status(&answer) == "hit"
    });
    assert!(!replica.response_keys().is_empty());
}

#[test]
fn a_server_behind_tls_is_a_tier_if_its_certificate_is_trusted() {
    let (trusted, other) = (Authority::new("own"), Authority::new("other"));
    let mut files = ConfigFiles::new();
    files.write_certificate("redis", &trusted, KeyType::Ecdsa, &["127.0.0.1"]);
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
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let table = |ca: &str| {
        redis_table(&format!("rediss://127.0.0.1:{}", redis.port), &format!("tls_ca = \"{ca}\""))
    };
    let (first, second) =
        (start_with_redis(&node, &table(ca)), start_with_redis(&node, &table(ca)));
    assert_shared(&first, &second, &node, GET_BALANCE, &balance_params(1, "0x64"));
    assert!(!redis.response_keys().is_empty());
    // A gateway that does not trust the certificate stores nothing, and still serves clients.
    let held_before = redis.response_keys().len();
    let untrusting = table(untrusted_ca.to_str().unwrap());
    let third = TestGateway::in_front_of(&[&node], &chain_polled_often(&untrusting));
    wait_until("the circuit breaker is open", || metric(&third, "weir_redis_breakers_open") > 0.0);
    let answer = ask(&mut third.client(), GET_BALANCE, &balance_params(2, "0x64"));
    assert_eq!(result(&answer), node.call(GET_BALANCE, &balance_params(2, "0x64")));
    let stored = metric(&third, STORED);
    assert_eq!((redis.response_keys().len(), stored), (held_before, 0.0));
}

#[test]
fn a_user_with_the_documented_rights_is_enough() {
    // The documentation has the rights in a command.
    let rights = include_str!("../../../../../docs/operating.md");
    let (_, rights) = rights.split_once("ACL SETUSER weir ").expect("the docs name the rights");
    let (rights, _) = rights.split_once('\n').unwrap();
    let rights = rights.replace("PASSWORD", "secret");
    let user: Vec<&str> = ["--user", "weir"].into_iter().chain(rights.split(' ')).collect();
    let closed = ["--user", "default", "on", ">other", "~*", "&*", "+@all"];
    let access = ["--no-auth-warning", "-a", "other"];
    let arguments = [&user[..], &closed].concat();
    let Some(redis) = Redis::start_with_password(&arguments, &access) else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let url = format!("redis://weir:secret@127.0.0.1:{}", redis.port);
    let table = redis_table(&url, "");
    let (first, second) = (start_with_redis(&node, &table), start_with_redis(&node, &table));
    assert_shared(&first, &second, &node, GET_BALANCE, &balance_params(1, "0x64"));
    assert_eq!(metric(&first, r#"weir_redis_lookups_total{outcome="error"}"#), 0.0);
    let denied = redis.cli(&["ACL", "LOG"]);
    assert_eq!(denied, "", "Redis denied a command");
    // A wrong password does not affect clients, and no page shows it.
    let wrong = format!("redis://weir:wr0ng-one@127.0.0.1:{}", redis.port);
    let third = TestGateway::in_front_of(&[&node], &chain_polled_often(&redis_table(&wrong, "")));
    wait_until("the circuit breaker is open", || metric(&third, "weir_redis_breakers_open") > 0.0);
    let answer = ask(&mut third.client(), GET_BALANCE, &balance_params(2, "0x64"));
    assert_eq!(result(&answer), node.call(GET_BALANCE, &balance_params(2, "0x64")));
    for path in ["/metrics", "/status"] {
        assert!(!third.get_admin(path).text().contains("wr0ng-one"), "{path}");
    }
}
