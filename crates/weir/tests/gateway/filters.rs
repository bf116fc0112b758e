//! Goal: a client that polls a filter receives every block and every log of the chain once, even if
//! it polls rarely and nodes fail. Filters are bounded in number and age. Method: as in the module
//! `subscriptions`, but over HTTP.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::growing_chain::{
    BLOCK_TIME, Geth, growing_world, logs_of_node, parse_quantity, remaining_logs, start_gateway,
};
use crate::support::harness::{
    NodeRuntime, SimNode, TestGateway, ask, chain_polled_once, error, result, upstream_toml,
};
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

/// A filter and all results of its polls.
struct PolledFilter {
    id: String,
    results: Vec<Value>,
}

impl PolledFilter {
    fn new(client: &mut Client, method: &str, params: &Value) -> PolledFilter {
        let id = result(&ask(client, method, &params.to_string()));
        PolledFilter { id: serde_json::from_str(&id).unwrap(), results: Vec::new() }
    }

    /// Polls the filter and returns the number of new results.
    fn poll(&mut self, client: &mut Client) -> usize {
        let raw = result(&ask(client, "eth_getFilterChanges", &self.params()));
        let results: Vec<Value> = serde_json::from_str(&raw).unwrap();
        let count = results.len();
        self.results.extend(results);
        count
    }

    fn params(&self) -> String {
        json!([self.id]).to_string()
    }
}

#[test]
fn rare_polls_miss_nothing() {
    let world = growing_world(true);
    let runtime = NodeRuntime::start();
    let nodes = ["one", "two", "three"].map(|name| runtime.node(name, &world));
    let gateway = start_gateway(&nodes.each_ref().map(|node| node.to_toml("")), "");
    let head = gateway.status_u64("/chains/0/head/number");
    let some = logs_of_node(&nodes[0], &json!({}), head.saturating_sub(20), head);
    let filters = [json!({}), json!({"address": some[0]["address"]})];
    let mut client = gateway.client();
    // There are two filters of each kind. The test polls the first one continuously, and the second
    // one only at the end.
    let mut blocks =
        [(); 2].map(|()| PolledFilter::new(&mut client, "eth_newBlockFilter", &json!([])));
    let mut logs: Vec<[PolledFilter; 2]> = filters
        .iter()
        .map(|filter| {
            [(); 2].map(|()| PolledFilter::new(&mut client, "eth_newFilter", &json!([filter])))
        })
        .collect();
    let head_at_start = gateway.status_u64("/chains/0/head/number");
    let mut poll_first_of_each = |blocks: &mut [PolledFilter; 2],
                                  logs: &mut [[PolledFilter; 2]]| {
        blocks[0].poll(&mut client);
        logs.iter_mut().for_each(|pair| _ = pair[0].poll(&mut client));
    };
    for node in &nodes {
        node.stop_listening();
        for _ in 0..4 {
            pause(BLOCK_TIME * 2); // Sleeps: the chain moves on meanwhile.
            poll_first_of_each(&mut blocks, &mut logs);
        }
        node.listen_again();
        pause(BLOCK_TIME * 8); // Sleeps: the chain moves on meanwhile.
        poll_first_of_each(&mut blocks, &mut logs);
    }
    nodes.iter().for_each(|node| node.node.freeze());
    let last = nodes.iter().map(|node| node.node.settings().frozen_at.unwrap()).max().unwrap();
    nodes.iter().for_each(|node| node.set(|settings| settings.frozen_at = Some(last)));
    gateway.wait_for_head(Some(last));
    assert!(gateway.status("/chains/0/reorgs").as_u64() > Some(0), "no reorg has been seen");
    let mut client = gateway.client();
    for polled in blocks.iter_mut().chain(logs.iter_mut().flatten()) {
        while polled.poll(&mut client) > 0 {}
    }

    for polled in &blocks {
        let expected: Vec<String> = (head_at_start + 1..=last)
            .map(|number| world.hash_at(last, number).unwrap().to_string())
            .collect();
        // The results also have blocks that a reorg dropped later.
        let hashes: Vec<&str> = polled.results.iter().map(|hash| hash.as_str().unwrap()).collect();
        let kept: Vec<&str> = hashes
            .iter()
            .copied()
            .filter(|hash| expected.iter().any(|known| known == hash))
            .collect();
        assert_eq!(kept, expected.iter().map(String::as_str).collect::<Vec<_>>());
    }
    assert!(
        blocks[0].results.len() > blocks[1].results.len(),
        "no dropped block: nothing is tested"
    );
    for (filter, pair) in filters.iter().zip(&logs) {
        let expected = logs_of_node(&nodes[0], filter, head_at_start + 1, last);
        assert!(!expected.is_empty(), "{filter} selects nothing: nothing is tested");
        for polled in pair {
            let mut kept = remaining_logs(&polled.results);
            kept.retain(|log| parse_quantity(&log["blockNumber"]) > head_at_start);
            assert!(kept == expected.iter().collect::<Vec<_>>(), "{filter}");
        }
    }
    let removed = |polled: &PolledFilter| polled.results.iter().any(|log| log["removed"] == true);
    assert!(removed(&logs[0][0]), "no log was removed: nothing is tested");
    assert!(!removed(&logs[0][1]), "a client got the removal of a log that it never got");
}

#[test]
fn filters_outlive_nodes_and_are_bounded() {
    let runtime = NodeRuntime::start();
    let nodes: [SimNode; 2] = runtime.nodes(["one", "two"]);
    let more = "[downstream]\nfilters_per_client_max = 3\nfilter_timeout = \"500ms\"\n";
    let text = format!("{more}{}", chain_polled_once(""));
    let gateway = TestGateway::in_front_of(&nodes.each_ref(), &text);
    let mut client = gateway.client();
    let filter = json!([{"fromBlock": "0x380", "toBlock": "latest"}]);
    let mut log_filters: Vec<PolledFilter> =
        (0..3).map(|_| PolledFilter::new(&mut client, "eth_newFilter", &filter)).collect();
    let full = error(&ask(&mut client, "eth_newBlockFilter", "[]"));
    assert_eq!((full.1, &*full.2), (-32005, "too many filters for this client"));
    for node in &nodes {
        node.stop_listening();
        assert_eq!(log_filters[0].poll(&mut client), 0, "after the death of {}", node.name);
        node.listen_again();
        gateway.wait_for_candidates(&["one", "two"]);
    }
    let all = result(&ask(&mut client, "eth_getFilterLogs", &log_filters[0].params()));
    assert_eq!(all, result(&ask(&mut client, "eth_getLogs", &filter.to_string())));
    assert!(all.len() > 1000, "no logs: nothing is tested");
    assert_eq!(result(&ask(&mut client, "eth_uninstallFilter", &log_filters[1].params())), "true");
    // The gateway forwards a call with an unknown filter id, because a node may have issued the id.
    let is_unknown = |client: &mut Client, polled: &PolledFilter| {
        let answer = ask(client, "eth_getFilterChanges", &polled.params());
        answer.header("x-weir-upstream").is_some()
    };
    assert!(is_unknown(&mut client, &log_filters[1]));
    let mut blocks = PolledFilter::new(&mut client, "eth_newBlockFilter", &json!([]));
    assert_eq!(blocks.poll(&mut client), 0);
    let none = error(&ask(&mut client, "eth_getFilterLogs", &blocks.params()));
    assert_eq!((none.1, &*none.2), (-32000, "filter not found"));
    for params in ["[]", "[7]", "[{\"address\":\"0x1\"}]"] {
        let refused = error(&ask(&mut client, "eth_newFilter", params));
        assert_eq!(refused.1, -32602, "{params}");
    }
    // The gateway removes a filter that the client does not poll. The client may then create
    // another.
    pause(Duration::from_millis(600)); // Sleeps: longer than `filter_timeout`.
    assert!(is_unknown(&mut client, &log_filters[2]) && is_unknown(&mut client, &log_filters[0]));
    PolledFilter::new(&mut client, "eth_newBlockFilter", &json!([]));
}

#[test]
fn filters_return_the_same_as_geth() {
    let Some(geth) = Geth::start() else { return };
    let url = format!("ws://{}", geth.address);
    let gateway = start_gateway(&[upstream_toml("geth", &url, "")], "");
    let mut clients = [&geth.address, &gateway.address].map(|address| Client::connect(address));
    let kinds = [("eth_newBlockFilter", json!([])), ("eth_newFilter", json!([{}]))];
    let mut filters_by_client: Vec<Vec<PolledFilter>> = clients
        .iter_mut()
        .map(|client| {
            kinds.iter().map(|(method, params)| PolledFilter::new(client, method, params)).collect()
        })
        .collect();
    let head = || parse_quantity(&geth.call("eth_blockNumber", &json!([])));
    for _ in 0..3 {
        let before = head();
        geth.emit_log();
        wait_until("there are two more blocks", || head() > before + 1);
    }
    let last = head();
    wait_until("the gateway has them", || gateway.status_u64("/chains/0/head/number") >= last);
    for (client, filters) in clients.iter_mut().zip(&mut filters_by_client) {
        filters.iter_mut().for_each(|polled| _ = polled.poll(client));
    }
    for (position, (method, _)) in kinds.iter().enumerate() {
        let (geth_results, gateway_results) =
            (&filters_by_client[0][position].results, &filters_by_client[1][position].results);
        let common_count =
            geth_results.iter().filter(|value| gateway_results.contains(value)).count();
        assert!(
            common_count >= 2,
            "{method}: geth told {geth_results:#?}, the gateway {gateway_results:#?}"
        );
        let longest = geth_results.len().max(gateway_results.len());
        assert!(
            common_count + 2 >= longest,
            "{method}: geth told {geth_results:#?}, the gateway {gateway_results:#?}"
        );
    }
}
