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

const HARMONY: &str = "/api/v1/hmy/v2";
const HARMONY_ID: u64 = 1_666_600_000;

fn world(seed: u64, chain_id: u64) -> Arc<World> {
    still_world(WorldOptions { seed, chain_id, ..WorldOptions::default() })
}

/// Two chains behind one gateway: Ethereum at `/eth`, Harmony at its own proxy's path.
struct Two {
    eth: SimNode,
    harmony: SimNode,
    served: Served,
    _scene: Scene,
}

impl Two {
    fn set() -> Two {
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
        Two { eth, harmony, served, _scene: scene }
    }
}

#[test]
fn namespaces_keep_their_forms_and_are_never_mixed() {
    let two = Two::set();
    let mut client = two.served.client();
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
    // Twice, so that what one namespace has left in the cache could be given to another.
    for round in ["first", "second"] {
        for (method, params) in calls {
            let ours = client.call(HARMONY, &body(method, params));
            let theirs = two.harmony.result(method, params);
            assert_eq!(result(&ours), theirs, "{method} {round}");
            assert!(round == "first" || mark(&ours) == "hit", "{method}: {}", mark(&ours));
        }
        for (method, params) in calls.iter().filter(|(method, _)| method.starts_with("eth_")) {
            let ours = client.call("/eth", &body(method, params));
            assert_eq!(result(&ours), two.eth.result(method, params), "{method} {round}");
        }
    }
    // What the forms are, apart from what the simulated node makes of them.
    let number = |method| result(&two.served.client().call(HARMONY, &body(method, "[]")));
    assert_eq!(number("eth_blockNumber"), "\"0x3e8\"");
    assert_eq!(number("hmy_blockNumber"), "\"0x3e8\"");
    assert_eq!(number("hmyv2_blockNumber"), "1000");
    assert_eq!(number("hmyv2_chainId"), HARMONY_ID.to_string());
    assert_ne!(number("eth_chainId"), two.eth.result("eth_chainId", "[]"));
}

#[test]
fn metadata_is_not_given_for_code() {
    let two = Two::set();
    let mut client = two.served.client();
    for _ in 0..2 {
        let metadata = result(&client.call(HARMONY, &body("hmyv2_getNodeMetadata", "[]")));
        assert!(metadata.contains("is-leader"), "{metadata}");
        let params = account(1, "latest");
        let code = result(&client.call(HARMONY, &body("hmyv2_getCode", &params)));
        assert_eq!(code, two.harmony.result("hmyv2_getCode", &params));
    }
}

#[test]
fn ids_of_every_form_come_back_in_order() {
    let two = Two::set();
    let mut client = two.served.client();
    let ids = ["\"text\"", "null", "\"\\u00e9\\\"\"", "-1.50", "18446744073709551616", "7"];
    let methods = ["eth_blockNumber", "hmy_blockNumber", "hmyv2_blockNumber"];
    let calls: Vec<(&str, &str)> = ids.into_iter().zip(methods.into_iter().cycle()).collect();
    let call = |(id, method): &(&str, &str)| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[]}}"#)
    };
    let due = |(id, method): &(&str, &str)| {
        let result = if method.starts_with("hmyv2") { "1000" } else { "\"0x3e8\"" };
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
    };
    for one in &calls {
        assert_eq!(client.call(HARMONY, call(one).as_bytes()).text(), due(one));
    }
    let batch: Vec<String> = calls.iter().map(call).collect();
    let answers: Vec<String> = calls.iter().map(due).collect();
    let answer = client.call(HARMONY, format!("[{}]", batch.join(",")).as_bytes());
    assert_eq!(answer.text(), format!("[{}]", answers.join(",")));
    let malformed = client.call(HARMONY, b"{\"jsonrpc\":");
    let malformed: Value = serde_json::from_str(malformed.text()).unwrap();
    assert_eq!(malformed["error"]["code"], -32700);
}

#[test]
fn a_path_of_no_chain_is_refused() {
    let two = Two::set();
    let before = (two.eth.calls(), two.harmony.calls());
    for path in ["/", "/ethereum", "/eth/x", "/api/v1/hmy", "/ETH"] {
        let answer = two.served.client().call(path, &body("eth_chainId", "[]"));
        let parsed: Value = serde_json::from_str(answer.text()).unwrap();
        assert_eq!(
            (answer.status, &parsed["error"]["code"]),
            (404, &Value::from(-32600)),
            "{path}"
        );
    }
    assert_eq!((two.eth.calls(), two.harmony.calls()), before);
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
        // First, so that whatever is not looked at would be asked.
        entry("stranger", &stranger.url(), ""),
        native.entry("")
    ));
    served.wait_for_candidates(&["native"]);
    wait_until("the stranger is known", || served.upstream(0, "state") == "foreign");
    wait_for_quiet(&[&native, &stranger]);
    let asked = stranger.calls();
    let mut client = served.client();
    assert!(answerers(&mut client, 20).iter().all(|name| name == "native"));
    // It is not even the last resort.
    native.down();
    let answer = ask(&mut client, READ, &account(99, "0x10"));
    assert_eq!(error(&answer), (502, -32603, "no upstream could be reached".to_owned()));
    assert_eq!(stranger.calls(), asked);
}
