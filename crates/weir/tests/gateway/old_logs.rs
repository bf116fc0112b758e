//! Goal: an empty response about logs of old blocks is compared with the other upstreams, but not
//! with one after the other, so a slow range takes twice the time of one upstream at most. Method:
//! the gateway and three simulated nodes, in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use gateway::runtime::simulated::Simulation;
use serde_json::json;
use simnode::node::Node;
use simnode::node::settings::{Latency, Settings};
use tokio::runtime::{Builder, LocalOptions};
use tokio::time::{Instant, sleep};

use crate::absence::{call, config, connector, world};
use crate::sim::connection::Connection;

const LOGS_TIME: Duration = Duration::from_millis(200);

/// An address without logs.
const UNUSED: &str = "0x00000000000000000000000000000000000000ff";

/// Sends one `eth_getLogs` call about old blocks, of one address or of all. `change` changes the settings of the node with
/// this index. Returns the number of logs and the duration.
fn ask(address: Option<&str>, change: impl Fn(usize, &mut Settings)) -> (usize, Duration) {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true);
    builder.build_local(LocalOptions::default()).unwrap().block_on(async {
        let world = world();
        let nodes = ["a", "b", "c"].map(|name| Node::new(name, Arc::clone(&world)));
        for (index, node) in nodes.iter().enumerate() {
            let slow = Latency::Constant { ms: LOGS_TIME.as_millis() as f64 };
            let set = node.set(|settings| {
                settings.method_latency.insert("eth_getLogs".to_owned(), slow);
                change(index, settings);
            });
            set.unwrap();
        }
        let connectors = nodes.iter().map(connector).collect();
        let gateway = Simulation::start(config(nodes.len(), ""), connectors, 7);
        sleep(Duration::from_secs(3)).await; // Sleeps: virtual time until the first heads.
        let mut client = Connection::new(gateway.connect(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        // Other calls show that the upstreams have not stalled.
        let mut other_client = Connection::new(gateway.connect(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let traffic = tokio::task::spawn_local(async move {
            for account in 0_u64.. {
                let params = json!([format!("{account:#042x}"), "0x10"]);
                call(&mut other_client, "eth_getBalance", &params).await;
                sleep(Duration::from_millis(10)).await; // Sleeps: virtual time.
            }
        });
        let began = Instant::now();
        let mut filter = json!([{"fromBlock": "0x10", "toBlock": "0x80"}]);
        if let Some(address) = address {
            filter[0]["address"] = json!(address);
        }
        let response = call(&mut client, "eth_getLogs", &filter).await;
        let logs = response["result"].as_array().unwrap_or_else(|| panic!("{response}"));
        traffic.abort();
        (logs.len(), began.elapsed())
    })
}

#[test]
fn a_range_without_logs_is_compared_with_all_upstreams_at_a_time() {
    let (logs, duration) = ask(Some(UNUSED), |_, _| {});
    assert_eq!(logs, 0);
    assert!(duration < LOGS_TIME * 2 + Duration::from_millis(50), "{duration:?}");
}

#[test]
fn one_upstream_that_is_not_pruned_is_enough() {
    for complete in 0..3 {
        let (logs, duration) = ask(None, |index, settings| {
            if index != complete {
                settings.keeping.logs_blocks = Some(64);
            }
        });
        assert!(logs > 0, "node {complete} has logs");
        assert!(duration < LOGS_TIME * 2 + Duration::from_millis(50), "{duration:?}");
    }
}

#[test]
fn a_stalled_upstream_delays_a_range_without_logs_for_a_bounded_time() {
    let (logs, duration) = ask(Some(UNUSED), |index, settings| {
        if index > 0 {
            let stalled = Latency::Constant { ms: 60_000.0 };
            settings.method_latency.insert("eth_getLogs".to_owned(), stalled);
        }
    });
    assert_eq!(logs, 0);
    assert!(duration <= LOGS_TIME * 8, "{duration:?}");
}
