//! Goal: each setting has its documented effect. Method: requests to `Node::serve` in virtual time,
//! so that waits are measured exactly and no test sleeps.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::settings::{
    Capacity, ErrorKind, Fault, FaultRule, Latency, Rate, RateLimitAction, Settings, SettingsError,
};
use super::{Delivery, Node};
use crate::schedule::WorldOptions;
use crate::world::World;

fn node() -> Arc<Node> {
    let options = WorldOptions { height_start: 20, ..WorldOptions::default() };
    Node::new("a", Arc::new(World::new(options).unwrap()))
}

async fn send(node: &Node, body: &str) -> String {
    match node.serve(body.as_bytes()).await {
        Delivery::Whole { status: 200, body, .. } => String::from_utf8(body.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn ask(node: &Node, method: &str) -> Value {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": [] });
    serde_json::from_str(&send(node, &call.to_string()).await).unwrap()
}

/// Returns how long `work` takes.
async fn milliseconds(work: impl Future) -> u128 {
    let start = Instant::now();
    work.await;
    // Tokio rounds its timers up to the next millisecond.
    (Instant::now() - start).as_millis()
}

#[tokio::test(start_paused = true)]
async fn envelopes_are_as_geth_writes_them() {
    let node = node();
    let call = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"eth_chainId"}}"#);
    for id in ["1", "-0.50e3", "\"a\\u0062\"", "null", "123456789012345678901234567890"] {
        let response = send(&node, &call(id)).await;
        assert_eq!(response, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0x67932"}}"#));
    }
    let notification = r#"{"jsonrpc":"2.0","method":"eth_chainId"}"#;
    assert_eq!(send(&node, notification).await, "");
    let batch = format!("[{},1,{notification},{}]", call("7"), call("7"));
    assert_eq!(
        send(&node, &batch).await,
        r#"[{"jsonrpc":"2.0","id":7,"result":"0x67932"},{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request"}},{"jsonrpc":"2.0","id":7,"result":"0x67932"}]"#
    );
    assert_eq!(send(&node, &format!("[{notification}]")).await, "");
    let refused = send(&node, "{").await;
    assert!(refused.contains("-32700"), "{refused}");
    // The decoder accepts at most 1,000 calls per batch.
    let many = format!("[{}]", vec![call("1"); 1_001].join(","));
    let refused = send(&node, &many).await;
    assert!(refused.contains("-32600") && refused.len() < 200, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn views_differ_by_lag_delay_freeze_and_lie() {
    let node = node();
    let head = async || ask(&node, "eth_blockNumber").await["result"].clone();
    tokio::time::advance(Duration::from_secs(10)).await;
    // The chain starts at head 20 and has one block per second, so the head is 30 (0x1e).
    assert_eq!(head().await, "0x1e");
    node.set(|settings| settings.lag_blocks = 4).unwrap();
    assert_eq!(head().await, "0x1a");
    node.set(|settings| {
        *settings = Settings { delay: Duration::from_millis(1_500), ..Settings::default() };
    })
    .unwrap();
    assert_eq!(head().await, "0x1c");
    node.set(|settings| *settings = Settings::default()).unwrap();
    node.freeze();
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(head().await, "0x1e");
    node.thaw();
    assert_eq!(head().await, "0x28");
    node.set(|settings| settings.ahead_blocks = 16).unwrap();
    assert_eq!(head().await, "0x38");
}

#[tokio::test(start_paused = true)]
async fn latency_is_waited_for_by_method() {
    let node = node();
    node.set(|settings| {
        settings.latency = Latency::Constant { ms: 10.0 };
        let slow = Latency::Constant { ms: 70.0 };
        settings.method_latency.insert("eth_gasPrice".to_owned(), slow);
    })
    .unwrap();
    assert_eq!(milliseconds(ask(&node, "eth_chainId")).await, 10);
    assert_eq!(milliseconds(ask(&node, "eth_gasPrice")).await, 70);
}

#[tokio::test(start_paused = true)]
async fn workers_make_a_queue_and_refuse_above_it() {
    let node = node();
    let service = Duration::from_millis(100);
    node.set(|settings| {
        settings.capacity = Some(Capacity { slots: 2, service, queue_max: 2 });
    })
    .unwrap();
    let tasks: Vec<_> = (0..5)
        .map(|_| {
            let node = Arc::clone(&node);
            tokio::spawn(async move {
                let start = Instant::now();
                let response = ask(&node, "eth_chainId").await;
                (response["error"]["code"].clone(), (Instant::now() - start).as_millis())
            })
        })
        .collect();
    let mut observed = Vec::new();
    for task in tasks {
        observed.push(task.await.unwrap());
    }
    let null = Value::Null;
    assert_eq!(
        observed,
        [
            (null.clone(), 100),
            (null.clone(), 100),
            (null.clone(), 200),
            (null, 200),
            (json!(-32005), 0)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_rate_queues_refuses_or_hangs() {
    let node = node();
    let set_rate = |over: RateLimitAction| {
        let rate = Rate { per_second: 10.0, burst: 2.0, over };
        node.set(|settings| {
            settings.rates.insert("eth_chainId".to_owned(), rate);
        })
        .unwrap();
    };
    set_rate(RateLimitAction::Queue);
    let mut waits = Vec::new();
    for _ in 0..4 {
        waits.push(milliseconds(ask(&node, "eth_chainId")).await);
    }
    assert_eq!(waits, [0, 0, 100, 100]);
    assert_eq!(milliseconds(ask(&node, "net_version")).await, 0, "another method is free");

    set_rate(RateLimitAction::Error { code: -32005 });
    let mut codes = Vec::new();
    for _ in 0..3 {
        codes.push(ask(&node, "eth_chainId").await["error"]["code"].clone());
    }
    assert_eq!(codes, [Value::Null, Value::Null, json!(-32005)]);
    tokio::time::advance(Duration::from_millis(100)).await;
    assert!(ask(&node, "eth_chainId").await["result"].is_string(), "refilled");

    set_rate(RateLimitAction::TooManyRequests { retry_after_s: 7 });
    let call = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;
    node.serve(call).await;
    node.serve(call).await;
    let refused = node.serve(call).await;
    let Delivery::Whole { status, retry_after_s, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((status, retry_after_s), (429, Some(7)));

    set_rate(RateLimitAction::Hang);
    node.serve(call).await;
    node.serve(call).await;
    let hung = timeout(Duration::from_secs(3_600), node.serve(call)).await;
    assert!(hung.is_err(), "{hung:?}");
}

#[tokio::test(start_paused = true)]
async fn every_fault_has_its_documented_effect() {
    let node = node();
    let call = r#"{"jsonrpc":"2.0","id":5,"method":"eth_chainId"}"#;
    let spoilt = async |fault: Fault| {
        node.set(|settings| settings.faults = vec![FaultRule::always(fault)]).unwrap();
        node.serve(call.as_bytes()).await
    };
    let body_of = |delivery: Delivery| match delivery {
        Delivery::Whole { status: 200, body, .. } => String::from_utf8(body.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(spoilt(Fault::Close).await, Delivery::Close);
    assert_eq!(spoilt(Fault::Reset).await, Delivery::Reset);
    assert!(matches!(spoilt(Fault::Truncate).await, Delivery::Truncated(_)));
    let slow = spoilt(Fault::SlowBody { bytes_per_second: 9 }).await;
    assert!(matches!(slow, Delivery::Slow { bytes_per_second: 9, .. }));
    assert!(body_of(spoilt(Fault::Html).await).starts_with("<!DOCTYPE html>"));
    assert!(body_of(spoilt(Fault::WrongId).await).contains("\"id\":987654321,"));
    assert_eq!(body_of(spoilt(Fault::DuplicateId).await).matches("\"id\":5").count(), 2);
    let both = body_of(spoilt(Fault::ResultAndError).await);
    assert!(both.contains("\"result\"") && both.contains("\"error\""));
    let neither = body_of(spoilt(Fault::NeitherResultNorError).await);
    assert_eq!(neither, r#"{"jsonrpc":"2.0","id":5}"#);
    serde_json::from_str::<Value>(&body_of(spoilt(Fault::NotJson).await)).unwrap_err();
    let busy = spoilt(Fault::TooManyRequests { retry_after_s: 3 }).await;
    assert!(matches!(busy, Delivery::Whole { status: 429, retry_after_s: Some(3), .. }));
    let unavailable = spoilt(Fault::Unavailable).await;
    assert!(matches!(unavailable, Delivery::Whole { status: 503, .. }));
    let error = body_of(spoilt(Fault::Error { error: ErrorKind::HeaderNotFound }).await);
    assert!(error.contains("\"message\":\"header not found\""), "{error}");
    let hung = timeout(Duration::from_secs(60), spoilt(Fault::Hang)).await;
    assert!(hung.is_err());
    assert_eq!(node.counters().faults, 14);
}

#[tokio::test(start_paused = true)]
async fn a_fault_rule_applies_by_method_times_and_share() {
    let node = node();
    let method = Some("eth_chainId".to_owned());
    let rule = FaultRule { method, times: Some(2), ..FaultRule::always(Fault::NotJson) };
    node.set(|settings| settings.faults = vec![rule]).unwrap();
    assert!(ask(&node, "net_version").await["result"].is_string());
    let call = r#"[{"jsonrpc":"2.0","id":5,"method":"eth_chainId"}]"#;
    let mut spoilt = 0;
    for _ in 0..5 {
        spoilt += u32::from(serde_json::from_str::<Value>(&send(&node, call).await).is_err());
    }
    assert_eq!(spoilt, 2);
    let rule = FaultRule { share: 0.25, ..FaultRule::always(Fault::NotJson) };
    node.set(|settings| settings.faults = vec![rule]).unwrap();
    let mut spoilt = 0;
    for _ in 0..1_000 {
        spoilt += u32::from(serde_json::from_str::<Value>(&send(&node, call).await).is_err());
    }
    assert!((200..300).contains(&spoilt), "{spoilt} of 1000");
}

#[tokio::test(start_paused = true)]
async fn a_method_may_be_missing() {
    let node = node();
    node.set(|settings| {
        settings.unsupported.insert("eth_chainId".to_owned());
    })
    .unwrap();
    assert_eq!(ask(&node, "eth_chainId").await["error"]["code"], -32601);
}

#[tokio::test(start_paused = true)]
async fn impossible_settings_are_refused_and_nothing_changes() {
    let node = node();
    let refused = node.set(|settings| {
        settings.lag_blocks = 9;
        let rule = FaultRule { share: 1.5, ..FaultRule::always(Fault::Close) };
        settings.faults = vec![rule];
    });
    assert_eq!(refused, Err(SettingsError::Share(1.5)));
    assert_eq!(*node.settings(), Settings::default());
    let refused = node.set(|settings| {
        settings.latency = Latency::Uniform { low_ms: 2.0, high_ms: 1.0 };
    });
    assert!(matches!(refused, Err(SettingsError::Latency(_))));
    let service = Duration::ZERO;
    let refused =
        node.set(|settings| settings.capacity = Some(Capacity { slots: 0, service, queue_max: 1 }));
    assert_eq!(refused, Err(SettingsError::Slots));
}

/// In virtual time, as in real time, a timer fires up to a millisecond late. The delays of many
/// timers must not add up.
#[tokio::test(start_paused = true)]
async fn late_timers_do_not_reduce_the_capacity() {
    let node = node();
    let service = Duration::from_micros(2_300);
    node.set(|settings| settings.capacity = Some(Capacity { slots: 1, service, queue_max: 1_000 }))
        .unwrap();
    let start = Instant::now();
    let calls = (0..1_000).map(|_| {
        let node = Arc::clone(&node);
        tokio::spawn(async move { ask(&node, "eth_chainId").await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let elapsed = (Instant::now() - start).as_secs_f64();
    assert!((2.299..2.303).contains(&elapsed), "{elapsed}");
}

#[test]
fn settings_round_trip_as_json() {
    let mut settings = Settings { delay: Duration::from_micros(1_500), ..Settings::default() };
    settings.faults.push(FaultRule::always(Fault::Error { error: ErrorKind::MissingTrieNode }));
    settings.latency = Latency::Lognormal { median_ms: 3.0, sigma: 0.5 };
    settings.capacity =
        Some(Capacity { slots: 1, service: Duration::from_millis(5), queue_max: 10 });
    let text = serde_json::to_string(&settings).unwrap();
    assert!(text.contains("\"delay_ms\":1.5"), "{text}");
    assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    serde_json::from_str::<Settings>("{\"lagg\":1}").unwrap_err();
}

/// Every fault and setting in docs/simulated-node.md is accepted, and the page has every kind of
/// fault.
#[test]
fn the_page_of_faults_names_every_kind() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/simulated-node.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    for text in page.split('`').skip(1).step_by(2).filter(|text| text.starts_with('{')) {
        let value: Value = serde_json::from_str(text).unwrap();
        if let Some(kind) = value["kind"].as_str() {
            serde_json::from_value::<Fault>(value.clone()).unwrap_or_else(|_| panic!("{text}"));
            kinds.insert(kind.to_owned());
        } else if value.get("blocks").is_none() {
            serde_json::from_value::<Settings>(value).unwrap_or_else(|_| panic!("{text}"));
        }
    }
    // The error for an unknown kind lists all kinds in backticks, after the unknown one.
    let unknown = serde_json::from_value::<Fault>(json!({ "kind": "no such" })).unwrap_err();
    let unknown = unknown.to_string();
    let all_kinds = unknown.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert_eq!(kinds, all_kinds);
}
