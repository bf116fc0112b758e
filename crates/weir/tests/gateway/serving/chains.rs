//! Several chains and method namespaces behind one gateway, and nodes that are on another chain
//! than configured.

use std::sync::Arc;

use serde_json::Value;
use simnode::schedule::WorldOptions;
use simnode::world::World;

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, body, cache_status,
    chain_polled_once, error, result, static_world, upstream_of, upstream_toml, wait_until_idle,
};
use test_support::raw::Client;
use test_support::wait::wait_until;

/// URL path of the Harmony chain.
const HARMONY: &str = "/api/v1/hmy/v2";
const HARMONY_ID: u64 = 1_666_600_000;

fn world(seed: u64, chain_id: u64) -> Arc<World> {
    static_world(WorldOptions { seed, chain_id, ..WorldOptions::default() })
}

/// Two chains behind one gateway: Ethereum at `/eth`, Harmony at the path [`HARMONY`].
struct TwoChains {
    eth: SimNode,
    harmony: SimNode,
    gateway: TestGateway,
    _runtime: NodeRuntime,
}

impl TwoChains {
    fn start() -> TwoChains {
        let runtime = NodeRuntime::start();
        let eth = runtime.node("eth-node", &world(1, 424_242));
        let harmony = runtime.node("harmony-node", &world(2, HARMONY_ID));
        let gateway = TestGateway::start(&format!(
            "[chain.eth]\npoll_interval = \"1h\"\n\
             [chain.harmony]\nfamily = \"harmony\"\nid = {HARMONY_ID}\n\
             paths = [\"{HARMONY}\"]\npoll_interval = \"1h\"\n{}{}",
            eth.to_toml("chain = \"eth\""),
            harmony.to_toml("chain = \"harmony\"")
        ));
        for chain in 0..2 {
            wait_until("both heads are seen", || {
                !gateway.status(&format!("/chains/{chain}/head")).is_null()
            });
        }
        wait_until_idle(&[&eth, &harmony]);
        TwoChains { eth, harmony, gateway, _runtime: runtime }
    }
}

#[test]
fn namespaces_keep_their_forms_and_are_never_mixed() {
    let chains = TwoChains::start();
    let mut client = chains.gateway.client();
    let account = r#"["0x0000000000000000000000000000000000000001","latest"]"#;
    let calls = [
        ("eth_blockNumber", "[]"),
        ("hmy_blockNumber", "[]"),
        ("hmyv2_blockNumber", "[]"),
        ("eth_chainId", "[]"),
        ("hmy_chainId", "[]"),
        ("hmyv2_chainId", "[]"),
        ("eth_gasPrice", "[]"),
        ("hmy_gasPrice", "[]"),
        ("hmyv2_gasPrice", "[]"),
        ("eth_getBlockByNumber", r#"["0x64",false]"#),
        ("hmy_getBlockByNumber", r#"["0x64",false]"#),
        ("hmyv2_getBlockByNumber", r#"[100,{"fullTx":false}]"#),
        ("eth_getBalance", account),
        ("hmy_getBalance", account),
        ("hmyv2_getBalance", r#"["0x0000000000000000000000000000000000000001"]"#),
    ];
    // In the second round, the responses come from the cache. A cached response of one namespace
    // must not be returned in another.
    for round in ["first", "second"] {
        for (method, params) in calls {
            let answer = client.call(HARMONY, &body(method, params));
            let expected = chains.harmony.call(method, params);
            assert_eq!(result(&answer), expected, "{method} {round}");
            let status = cache_status(&answer);
            assert!(round == "first" || status == "hit", "{method}: {status}");
        }
        for (method, params) in calls.iter().filter(|(method, _)| method.starts_with("eth_")) {
            let answer = client.call("/eth", &body(method, params));
            assert_eq!(result(&answer), chains.eth.call(method, params), "{method} {round}");
        }
    }
    // These expected results do not depend on the simulated node.
    let number = |method| result(&chains.gateway.client().call(HARMONY, &body(method, "[]")));
    assert_eq!(number("eth_blockNumber"), "\"0x3e8\"");
    assert_eq!(number("hmy_blockNumber"), "\"0x3e8\"");
    assert_eq!(number("hmyv2_blockNumber"), "1000");
    assert_eq!(number("hmyv2_chainId"), HARMONY_ID.to_string());
    assert_ne!(number("eth_chainId"), chains.eth.call("eth_chainId", "[]"));
}

#[test]
fn node_metadata_is_not_mistaken_for_code() {
    let chains = TwoChains::start();
    let mut client = chains.gateway.client();
    for _ in 0..2 {
        let metadata = result(&client.call(HARMONY, &body("hmyv2_getNodeMetadata", "[]")));
        assert!(metadata.contains("is-leader"), "{metadata}");
        let params = balance_params(1, "latest");
        let code = result(&client.call(HARMONY, &body("hmyv2_getCode", &params)));
        assert_eq!(code, chains.harmony.call("hmyv2_getCode", &params));
    }
}

#[test]
fn ids_of_every_form_come_back_in_order() {
    let chains = TwoChains::start();
    let mut client = chains.gateway.client();
    let ids = ["\"text\"", "null", "\"\\u00e9\\\"\"", "-1.50", "18446744073709551616", "7"];
    let methods = ["eth_blockNumber", "hmy_blockNumber", "hmyv2_blockNumber"];
    let calls: Vec<(&str, &str)> = ids.into_iter().zip(methods.into_iter().cycle()).collect();
    let call = |(id, method): &(&str, &str)| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[]}}"#)
    };
    let expected = |(id, method): &(&str, &str)| {
        let result = if method.starts_with("hmyv2") { "1000" } else { "\"0x3e8\"" };
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
    };
    for id_and_method in &calls {
        let answer = client.call(HARMONY, call(id_and_method).as_bytes());
        assert_eq!(answer.text(), expected(id_and_method));
    }
    let batch: Vec<String> = calls.iter().map(call).collect();
    let answers: Vec<String> = calls.iter().map(expected).collect();
    let answer = client.call(HARMONY, format!("[{}]", batch.join(",")).as_bytes());
    assert_eq!(answer.text(), format!("[{}]", answers.join(",")));
    let malformed = client.call(HARMONY, b"{\"jsonrpc\":");
    let malformed: Value = serde_json::from_str(malformed.text()).unwrap();
    assert_eq!(malformed["error"]["code"], -32700);
}

#[test]
fn a_path_without_a_chain_is_rejected() {
    let chains = TwoChains::start();
    let before = (chains.eth.calls(), chains.harmony.calls());
    for path in ["/", "/ethereum", "/eth/x", "/api/v1/hmy", "/ETH"] {
        let answer = chains.gateway.client().call(path, &body("eth_chainId", "[]"));
        let parsed: Value = serde_json::from_str(answer.text()).unwrap();
        assert_eq!(
            (answer.status, &parsed["error"]["code"]),
            (404, &Value::from(-32600)),
            "{path}"
        );
    }
    assert_eq!((chains.eth.calls(), chains.harmony.calls()), before);
}

/// Reads the balances of different accounts. Returns the name of the node that responded to each
/// call.
fn responding_nodes(client: &mut Client, calls: u64) -> Vec<String> {
    let node_of = |account| {
        let answer = ask(client, GET_BALANCE, &balance_params(account, "0x10"));
        result(&answer);
        upstream_of(&answer).to_owned()
    };
    (0..calls).map(node_of).collect()
}

#[test]
fn a_node_of_another_chain_gets_no_calls() {
    let runtime = NodeRuntime::start();
    let native = runtime.node("native", &world(1, 5));
    let stranger = runtime.node("stranger", &world(2, 6));
    let gateway = TestGateway::start(&format!(
        "{}[call]\nbalance = \"weighted\"\n{}{}",
        chain_polled_once("id = 5"),
        // The foreign node is first in the configuration. So it would get calls if the gateway did
        // not check its chain.
        upstream_toml("stranger", &stranger.url(), ""),
        native.to_toml("")
    ));
    gateway.wait_for_candidates(&["native"]);
    wait_until("the gateway detects the foreign chain", || {
        gateway.upstream(0, "state") == "foreign"
    });
    wait_until_idle(&[&native, &stranger]);
    let calls_before = stranger.calls();
    let mut client = gateway.client();
    assert!(responding_nodes(&mut client, 20).iter().all(|name| name == "native"));
    // Even if the other node is down, the foreign node gets no calls.
    native.stop_listening();
    let answer = ask(&mut client, GET_BALANCE, &balance_params(99, "0x10"));
    assert_eq!(error(&answer), (502, -32603, "no upstream could be reached".to_owned()));
    assert_eq!(stranger.calls(), calls_before);
}
