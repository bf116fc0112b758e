//! Goal: a client that polls a filter receives every block and every log of the served chain once,
//! however rarely it polls and whatever happens to the nodes; filters are bounded in number and
//! age. Method: as for subscriptions, over HTTP.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::chain::{BLOCK_TIME, Geth, logs_of, moving_world, number, served, truth};
use crate::support::scene::{Scene, Served, SimNode, ask, entry, error, polled_once, result};
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

/// A filter and all of its results.
struct Asked {
    id: String,
    told: Vec<Value>,
}

impl Asked {
    fn new(client: &mut Client, method: &str, params: &Value) -> Asked {
        let id = result(&ask(client, method, &params.to_string()));
        Asked { id: serde_json::from_str(&id).unwrap(), told: Vec::new() }
    }

    fn ask(&mut self, client: &mut Client) -> usize {
        let raw = result(&ask(client, "eth_getFilterChanges", &self.params()));
        let told: Vec<Value> = serde_json::from_str(&raw).unwrap();
        let count = told.len();
        self.told.extend(told);
        count
    }

    fn params(&self) -> String {
        json!([self.id]).to_string()
    }
}

#[test]
fn rare_polls_miss_nothing() {
    let world = moving_world(true);
    let scene = Scene::set();
    let nodes = ["one", "two", "three"].map(|name| scene.node(name, &world));
    let served = served(&nodes.each_ref().map(|node| node.entry("")), "");
    let head = served.count("/chains/0/head/number");
    let some = truth(&nodes[0], &json!({}), head.saturating_sub(20), head);
    let filters = [json!({}), json!({"address": some[0]["address"]})];
    let mut client = served.client();
    // Two filters of each kind: one polled continuously and one polled once, at the end.
    let mut blocks = [(); 2].map(|()| Asked::new(&mut client, "eth_newBlockFilter", &json!([])));
    let mut logs: Vec<[Asked; 2]> = filters
        .iter()
        .map(|filter| [(); 2].map(|()| Asked::new(&mut client, "eth_newFilter", &json!([filter]))))
        .collect();
    let began = served.count("/chains/0/head/number");
    let mut look = |blocks: &mut [Asked; 2], logs: &mut [[Asked; 2]]| {
        blocks[0].ask(&mut client);
        logs.iter_mut().for_each(|pair| _ = pair[0].ask(&mut client));
    };
    for node in &nodes {
        node.down();
        for _ in 0..4 {
            pause(BLOCK_TIME * 2); // Sleeps: the chain moves on meanwhile.
            look(&mut blocks, &mut logs);
        }
        node.up();
        pause(BLOCK_TIME * 8); // Sleeps: the chain moves on meanwhile.
        look(&mut blocks, &mut logs);
    }
    nodes.iter().for_each(|node| node.node.freeze());
    let last = nodes.iter().map(|node| node.node.settings().frozen_at.unwrap()).max().unwrap();
    nodes.iter().for_each(|node| node.set(|settings| settings.frozen_at = Some(last)));
    served.wait_for_head(Some(last));
    assert!(served.status("/chains/0/reorgs").as_u64() > Some(0), "no reorg has been seen");
    let mut client = served.client();
    for asked in blocks.iter_mut().chain(logs.iter_mut().flatten()) {
        while asked.ask(&mut client) > 0 {}
    }

    for asked in &blocks {
        let right: Vec<String> = (began + 1..=last)
            .map(|number| world.hash_at(last, number).unwrap().to_string())
            .collect();
        // Those that were dropped again were told as well.
        let told: Vec<&str> = asked.told.iter().map(|hash| hash.as_str().unwrap()).collect();
        let kept: Vec<&str> =
            told.iter().copied().filter(|hash| right.iter().any(|own| own == hash)).collect();
        assert_eq!(kept, right.iter().map(String::as_str).collect::<Vec<_>>());
    }
    assert!(blocks[0].told.len() > blocks[1].told.len(), "no dropped block: nothing is tested");
    for (filter, pair) in filters.iter().zip(&logs) {
        let right = truth(&nodes[0], filter, began + 1, last);
        assert!(!right.is_empty(), "{filter} selects nothing: nothing is tested");
        for asked in pair {
            let mut kept = logs_of(&asked.told);
            kept.retain(|log| number(&log["blockNumber"]) > began);
            assert!(kept == right.iter().collect::<Vec<_>>(), "{filter}");
        }
    }
    let removed = |asked: &Asked| asked.told.iter().any(|log| log["removed"] == true);
    assert!(removed(&logs[0][0]), "no log was removed: nothing is tested");
    assert!(!removed(&logs[0][1]), "who has not heard of a block need not hear that it is gone");
}

#[test]
fn filters_outlive_nodes_and_are_bounded() {
    let scene = Scene::set();
    let nodes: [SimNode; 2] = scene.nodes(["one", "two"]);
    let more = "[downstream]\nfilters_per_client_max = 3\nfilter_timeout = \"500ms\"\n";
    let served = Served::before(&nodes.each_ref(), &format!("{more}{}", polled_once("")));
    let mut client = served.client();
    let filter = json!([{"fromBlock": "0x380", "toBlock": "latest"}]);
    let mut own: Vec<Asked> =
        (0..3).map(|_| Asked::new(&mut client, "eth_newFilter", &filter)).collect();
    let full = error(&ask(&mut client, "eth_newBlockFilter", "[]"));
    assert_eq!((full.1, &*full.2), (-32005, "too many filters for this client"));
    for node in &nodes {
        node.down();
        assert_eq!(own[0].ask(&mut client), 0, "after the death of {}", node.name);
        node.up();
        served.wait_for_candidates(&["one", "two"]);
    }
    let all = result(&ask(&mut client, "eth_getFilterLogs", &own[0].params()));
    assert_eq!(all, result(&ask(&mut client, "eth_getLogs", &filter.to_string())));
    assert!(all.len() > 1000, "no logs: nothing is tested");
    assert_eq!(result(&ask(&mut client, "eth_uninstallFilter", &own[1].params())), "true");
    // What the gateway does not know may be a node's own.
    let gone = |client: &mut Client, asked: &Asked| {
        let answer = ask(client, "eth_getFilterChanges", &asked.params());
        answer.header("x-weir-upstream").is_some()
    };
    assert!(gone(&mut client, &own[1]));
    let mut blocks = Asked::new(&mut client, "eth_newBlockFilter", &json!([]));
    assert_eq!(blocks.ask(&mut client), 0);
    let none = error(&ask(&mut client, "eth_getFilterLogs", &blocks.params()));
    assert_eq!((none.1, &*none.2), (-32000, "filter not found"));
    for params in ["[]", "[7]", "[{\"address\":\"0x1\"}]"] {
        let refused = error(&ask(&mut client, "eth_newFilter", params));
        assert_eq!(refused.1, -32602, "{params}");
    }
    // Who does not ask is forgotten, and makes room.
    pause(Duration::from_millis(600)); // Sleeps: the age at which an unused filter is forgotten.
    assert!(gone(&mut client, &own[2]) && gone(&mut client, &own[0]));
    Asked::new(&mut client, "eth_newBlockFilter", &json!([]));
}

#[test]
fn filters_return_the_same_as_geth() {
    let Some(geth) = Geth::start() else { return };
    let url = format!("ws://{}", geth.address);
    let served = served(&[entry("geth", &url, "")], "");
    let mut clients = [&geth.address, &served.address].map(|address| Client::connect(address));
    let kinds = [("eth_newBlockFilter", json!([])), ("eth_newFilter", json!([{}]))];
    let mut asked: Vec<Vec<Asked>> = clients
        .iter_mut()
        .map(|client| {
            kinds.iter().map(|(method, params)| Asked::new(client, method, params)).collect()
        })
        .collect();
    let head = || number(&geth.call("eth_blockNumber", &json!([])));
    for _ in 0..3 {
        let before = head();
        geth.deploy();
        wait_until("there are two more blocks", || head() > before + 1);
    }
    let last = head();
    wait_until("the gateway has them", || served.count("/chains/0/head/number") >= last);
    for (client, own) in clients.iter_mut().zip(&mut asked) {
        own.iter_mut().for_each(|asked| _ = asked.ask(client));
    }
    for (place, (method, _)) in kinds.iter().enumerate() {
        let (theirs, ours) = (&asked[0][place].told, &asked[1][place].told);
        let both = theirs.iter().filter(|value| ours.contains(value)).count();
        assert!(both >= 2, "{method}: geth told {theirs:#?}, the gateway {ours:#?}");
        let most = theirs.len().max(ours.len());
        assert!(both + 2 >= most, "{method}: geth told {theirs:#?}, the gateway {ours:#?}");
    }
}
