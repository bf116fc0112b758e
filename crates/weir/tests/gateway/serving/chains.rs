//! Several chains and namespaces through one gateway, and nodes that are on another chain.

use std::sync::Arc;

use serde_json::Value;
use simnode::schedule::WorldOptions;
use simnode::world::World;

use crate::support::scene::{
    READ, Scene, Served, SimNode, account, ask, body, by, entry, error, mark, polled_once, result,
    still_world, wait_for_quiet,
};
use test_support::raw::Client;
use test_support::wait::wait_until;

/// Path of the Harmony chain.
const HARMONY: &str = "/api/v1/hmy/v2";
const HARMONY_ID: u64 = 1_666_600_000;

fn world(seed: u64, chain_id: u64) -> Arc<World> {
    still_world(WorldOptions { seed, chain_id, ..WorldOptions::default() })
}

/// Two chains behind one gateway: Ethereum at `/eth`, Harmony at the path [`HARMONY`].
struct TwoChains {
    eth: SimNode,
    harmony: SimNode,
    served: Served,
    _scene: Scene,
}

impl TwoChains {
    fn set() -> TwoChains {
        let scene = Scene::set();
        let eth = scene.node("eth-node", &world(1, 424_242));
        let harmony = scene.node("harmony-node", &world(2, HARMONY_ID));
        let served = Served::start(&format!(
            "[chain.eth]\npoll_interval = \"1h\"\n\
             [chain.harmony]\nfamily = \"harmony\"\nid = {HARMONY_ID}\n\
             paths = [\"{HARMONY}\"]\npoll_interval = \"1h\"\n{}{}",
            eth.entry("chain = \"eth\""),
            harmony.entry("chain = \"harmony\"")
        ));
        for chain in 0..2 {
            wait_until("both heads are seen", || {
                !served.status(&format!("/chains/{chain}/head")).is_null()
            });
        }
        wait_for_quiet(&[&eth, &harmony]);
        TwoChains { eth, harmony, served, _scene: scene }
    }
}

#[test]
fn namespaces_keep_their_forms_and_are_never_mixed() {
    let chains = TwoChains::set();
    let mut client = chains.served.client();
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
    // Two rounds, so that a cached response of one namespace could be returned in another.
    for round in ["first", "second"] {
        for (method, params) in calls {
            let ours = client.call(HARMONY, &body(method, params));
            let theirs = chains.harmony.result(method, params);
            assert_eq!(result(&ours), theirs, "{method} {round}");
            assert!(round == "first" || mark(&ours) == "hit", "{method}: {}", mark(&ours));
        }
        for (method, params) in calls.iter().filter(|(method, _)| method.starts_with("eth_")) {
            let ours = client.call("/eth", &body(method, params));
            assert_eq!(result(&ours), chains.eth.result(method, params), "{method} {round}");
        }
    }
    // The expected forms, independent of the simulated node.
    let number = |method| result(&chains.served.client().call(HARMONY, &body(method, "[]")));
    assert_eq!(number("eth_blockNumber"), "\"0x3e8\"");
    assert_eq!(number("hmy_blockNumber"), "\"0x3e8\"");
    assert_eq!(number("hmyv2_blockNumber"), "1000");
    assert_eq!(number("hmyv2_chainId"), HARMONY_ID.to_string());
    assert_ne!(number("eth_chainId"), chains.eth.result("eth_chainId", "[]"));
}

#[test]
fn node_metadata_is_not_mistaken_for_code() {
    let chains = TwoChains::set();
    let mut client = chains.served.client();
    for _ in 0..2 {
        let metadata = result(&client.call(HARMONY, &body("hmyv2_getNodeMetadata", "[]")));
        assert!(metadata.contains("is-leader"), "{metadata}");
        let params = account(1, "latest");
        let code = result(&client.call(HARMONY, &body("hmyv2_getCode", &params)));
        assert_eq!(code, chains.harmony.result("hmyv2_getCode", &params));
    }
}

#[test]
fn ids_of_every_form_come_back_in_order() {
    let chains = TwoChains::set();
    let mut client = chains.served.client();
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
    let chains = TwoChains::set();
    let before = (chains.eth.calls(), chains.harmony.calls());
    for path in ["/", "/ethereum", "/eth/x", "/api/v1/hmy", "/ETH"] {
        let answer = chains.served.client().call(path, &body("eth_chainId", "[]"));
        let parsed: Value = serde_json::from_str(answer.text()).unwrap();
        assert_eq!(
            (answer.status, &parsed["error"]["code"]),
            (404, &Value::from(-32600)),
            "{path}"
        );
    }
    assert_eq!((chains.eth.calls(), chains.harmony.calls()), before);
}

/// Requests different balances and returns which nodes responded.
fn answerers(client: &mut Client, calls: u64) -> Vec<String> {
    let one = |number| {
        let answer = ask(client, READ, &account(number, "0x10"));
        result(&answer);
        by(&answer).to_owned()
    };
    (0..calls).map(one).collect()
}

#[test]
fn a_node_of_another_chain_gets_no_calls() {
    let scene = Scene::set();
    let (ours, theirs) = (world(1, 5), world(2, 6));
    let (native, stranger) = (scene.node("native", &ours), scene.node("stranger", &theirs));
    let served = Served::start(&format!(
        "{}[call]\nbalance = \"weighted\"\n{}{}",
        polled_once("id = 5"),
        // The foreign node is first, so it would get calls if the gateway did not check its chain.
        entry("stranger", &stranger.url(), ""),
        native.entry("")
    ));
    served.wait_for_candidates(&["native"]);
    wait_until("the gateway detects the foreign chain", || {
        served.upstream(0, "state") == "foreign"
    });
    wait_for_quiet(&[&native, &stranger]);
    let calls_before = stranger.calls();
    let mut client = served.client();
    assert!(answerers(&mut client, 20).iter().all(|name| name == "native"));
    // The foreign node gets no calls even when the other node is down.
    native.down();
    let answer = ask(&mut client, READ, &account(99, "0x10"));
    assert_eq!(error(&answer), (502, -32603, "no upstream could be reached".to_owned()));
    assert_eq!(stranger.calls(), calls_before);
}
