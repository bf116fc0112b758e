//! Which responses are cached, and for how long.

use simnode::node::settings::{ErrorKind, Fault, FaultRule};

use crate::support::scene::{
    FINAL, HEAD, READ, Scene, Served, SimNode, account, ask, error, mark, polled_often,
    polled_once, result,
};
use test_support::raw::Client;

/// A call that the simulated node reverts.
const REVERTS: &str = r#"{"to":"0x0000000000000000000000000000000000000001","data":"0xdeadbeef"}"#;

/// Returns the parameters of eth_getLogs for a range of blocks.
fn logs_between(from: u64, to: u64) -> String {
    format!(r#"[{{"fromBlock":"0x{from:x}","toBlock":"0x{to:x}"}}]"#)
}

#[test]
fn log_ranges_share_chunks_and_equal_the_nodes_own() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = Served::before(&[&node], &polled_once("[cache]\nlogs_chunk_blocks = 100"));
    let mut client = served.client();
    // First block, last block, and the number of calls to the node for chunks that are not cached.
    let ranges = [
        (100, 499, 4),
        (100, 499, 0),
        (200, 599, 1),
        (250, 599, 1), // 250..=299 is no whole chunk
        (300, 399, 0),
        (950, HEAD, 1),
        (900, HEAD, 2), // 900..=936 is final, 937..=1000 is not
        (900, HEAD, 0),
        (900, FINAL, 0),
    ];
    for (from, to, expected_calls) in ranges {
        let params = logs_between(from, to);
        let before = node.calls();
        let answer = ask(&mut client, "eth_getLogs", &params);
        assert_eq!(node.calls() - before, expected_calls, "{from}..={to}");
        assert_eq!(
            mark(&answer),
            if expected_calls == 0 { "hit" } else { "miss" },
            "{from}..={to}"
        );
        let theirs = node.result("eth_getLogs", &params);
        assert!(theirs.matches("logIndex").count() > 100, "a range without logs proves nothing");
        assert_eq!(result(&answer), theirs, "{from}..={to}");
    }
}

#[test]
fn a_failed_part_fails_the_range_with_the_nodes_error() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    node.set(|settings| settings.keeping.history_blocks = Some(500));
    let served = Served::before(&[&node], &polled_once("[cache]\nlogs_chunk_blocks = 100"));
    let mut client = served.client();
    let params = logs_between(400, 799);
    let theirs = Client::connect(&node.address.to_string())
        .call("/", &crate::support::scene::body("eth_getLogs", &params));
    let (_, code, message) = error(&theirs);
    for _ in 0..2 {
        let ours = ask(&mut client, "eth_getLogs", &params);
        assert_eq!(error(&ours), (200, code, message.clone()));
    }
    node.set(|settings| settings.keeping.history_blocks = None);
    let whole = ask(&mut client, "eth_getLogs", &params);
    assert_eq!(result(&whole), node.result("eth_getLogs", &params));
}

/// Starts a node that is frozen at a block.
fn frozen_node(scene: &Scene, at: u64) -> SimNode {
    let [node] = scene.nodes(["node"]);
    node.set(|settings| settings.frozen_at = Some(at));
    node
}

#[test]
fn balances_at_latest_change_with_the_head() {
    let scene = Scene::set();
    let node = frozen_node(&scene, 900);
    let served = Served::before(&[&node], &polled_often(""));
    let mut client = served.client();
    // Find an account whose balance changes in blocks 901 and 902.
    let accounts = node.node.world().unwrap().addresses().accounts;
    let params_of =
        |account: usize, block: &str| format!(r#"["{:#x}","{block}"]"#, accounts[account]);
    let balance =
        |account, block: u64| node.result(READ, &params_of(account, &format!("0x{block:x}")));
    let mut changing = (0..accounts.len()).filter(|&account| {
        node.set(|settings| settings.frozen_at = None);
        let balances = [900, 901, 902].map(|block| balance(account, block));
        node.set(|settings| settings.frozen_at = Some(900));
        balances[0] != balances[1] && balances[1] != balances[2]
    });
    let account = changing.next().expect("some account moves in each of three blocks");
    served.wait_for_head(Some(900));
    for head in [900, 901, 902] {
        node.set(|settings| settings.frozen_at = Some(head));
        served.wait_for_head(Some(head));
        let expected_balance = balance(account, head);
        for expected_status in ["miss", "hit", "hit"] {
            let answer = ask(&mut client, READ, &params_of(account, "latest"));
            assert_eq!(
                (result(&answer), mark(&answer)),
                (expected_balance.clone(), expected_status),
                "head {head}"
            );
        }
        // A call with the block's number hits the same entry.
        let answer = ask(&mut client, READ, &params_of(account, &format!("0x{head:x}")));
        assert_eq!((result(&answer), mark(&answer)), (expected_balance, "hit"));
    }
}

/// A call for a transaction index that the block does not have, so the result is null.
const MISSING_TRANSACTION: (&str, &str) =
    ("eth_getTransactionByBlockNumberAndIndex", r#"["0x64","0xffff"]"#);

#[test]
fn a_null_is_cached_until_the_next_head_at_most() {
    let scene = Scene::set();
    let node = frozen_node(&scene, 900);
    let served = Served::before(&[&node], &polled_often("[cache]\nnull_age_max = \"1m\""));
    let mut client = served.client();
    for head in [900, 901] {
        node.set(|settings| settings.frozen_at = Some(head));
        served.wait_for_head(Some(head));
        for expected_status in ["miss", "hit"] {
            let answer = ask(&mut client, MISSING_TRANSACTION.0, MISSING_TRANSACTION.1);
            assert_eq!(
                (result(&answer).as_str(), mark(&answer)),
                ("null", expected_status),
                "head {head}"
            );
        }
    }
}

#[test]
fn a_null_expires_even_without_a_new_head() {
    let scene = Scene::set();
    let node = frozen_node(&scene, 900);
    let served = Served::before(&[&node], &polled_once("[cache]\nnull_age_max = \"0ms\""));
    let mut client = served.client();
    for _ in 0..2 {
        assert_eq!(mark(&ask(&mut client, MISSING_TRANSACTION.0, MISSING_TRANSACTION.1)), "miss");
    }
}

#[test]
fn results_that_may_appear_at_any_moment_are_not_cached() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = Served::before(&[&node], &polled_once("[cache]\nnull_age_max = \"1m\""));
    let mut client = served.client();
    let unknown = format!("\"0x{:064x}\"", 5);
    for (method, params) in [
        ("eth_getTransactionReceipt", format!("[{unknown}]")),
        ("eth_getTransactionByHash", format!("[{unknown}]")),
        ("eth_getBlockByHash", format!("[{unknown},false]")),
    ] {
        for _ in 0..2 {
            let answer = ask(&mut client, method, &params);
            assert_eq!((result(&answer).as_str(), mark(&answer)), ("null", "miss"), "{method}");
        }
    }
}

#[test]
fn reverts_are_the_only_cached_errors() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = Served::before(&[&node], &polled_once(""));
    let mut client = served.client();
    let mut cache_statuses = |method: &str, params: &str, code: i64| {
        [0, 1].map(|_| {
            let answer = ask(&mut client, method, params);
            let (status, actual_code, _) = error(&answer);
            assert_eq!((status, actual_code), (200, code), "{method} {params}");
            mark(&answer).to_owned()
        })
    };
    for block in ["\"0x64\"", "\"latest\""] {
        assert_eq!(cache_statuses("eth_call", &format!("[{REVERTS},{block}]"), 3), ["miss", "hit"]);
    }
    // Invalid parameters, and a method that the node does not support.
    assert_eq!(cache_statuses(READ, r#"["0x12","0x64"]"#, -32602), ["miss", "miss"]);
    let proof = format!(r#"["0x{:040x}",[],"0x64"]"#, 1);
    assert_eq!(cache_statuses("eth_getProof", &proof, -32601), ["miss", "miss"]);
    for kind in [ErrorKind::HeaderNotFound, ErrorKind::MissingTrieNode, ErrorKind::ExecutionTimeout]
    {
        node.fail(FaultRule {
            method: Some("eth_call".to_owned()),
            ..FaultRule::always(Fault::Error { error: kind })
        });
        let to = format!(r#"[{{"to":"0x{:040x}"}},"0x64"]"#, kind as u8);
        assert_eq!(cache_statuses("eth_call", &to, -32000), ["miss", "miss"], "{kind:?}");
    }
}

#[test]
fn a_response_that_is_too_large_is_forwarded_and_not_cached() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = Served::before(&[&node], &polled_once("[cache]\nentry_bytes_max = \"1KiB\""));
    let mut client = served.client();
    let block = r#"["0x64",true]"#;
    let theirs = node.result("eth_getBlockByNumber", block);
    assert!(theirs.len() > 1024, "{}", theirs.len());
    for _ in 0..2 {
        let answer = ask(&mut client, "eth_getBlockByNumber", block);
        assert_eq!((result(&answer), mark(&answer)), (theirs.clone(), "miss"));
    }
    assert_eq!(served.count("/cache/entries"), 0);
    for expected_status in ["miss", "hit"] {
        assert_eq!(mark(&ask(&mut client, READ, &account(1, "0x64"))), expected_status);
    }
}

#[test]
fn the_cache_stays_within_its_size_limit() {
    const BYTES_MAX: u64 = 1 << 20;
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = Served::before(&[&node], &polled_once("[cache]\nbytes_max = \"1MiB\""));
    let mut client = served.client();
    let call = |number| {
        let method = "eth_getBlockByNumber";
        format!(r#"{{"id":{number},"method":"{method}","params":["0x{number:x}",true]}}"#)
    };
    let (mut bytes, mut number) = (0, 0);
    while bytes < 10 * BYTES_MAX {
        let calls: Vec<String> = (1..=100).map(|step| call(number % FINAL + step)).collect();
        // Every second round requests the blocks without full transactions.
        let round = number / FINAL;
        let batch =
            format!("[{}]", calls.join(",")).replace("true", ["true", "false"][round as usize % 2]);
        bytes += client.call("/", batch.as_bytes()).body.len() as u64;
        number += 100;
        let cached_bytes = served.count("/cache/bytes");
        assert!(cached_bytes <= BYTES_MAX, "{cached_bytes} after {number} calls");
    }
    let cached_bytes = served.count("/cache/bytes");
    assert!(cached_bytes > BYTES_MAX / 2, "only {cached_bytes} bytes are used");
    assert_eq!(served.count("/cache/bytes_max"), BYTES_MAX);
    // The remaining entries are still correct.
    for number in [1, FINAL / 2, FINAL] {
        let params = format!(r#"["0x{number:x}",true]"#);
        let answer = ask(&mut client, "eth_getBlockByNumber", &params);
        assert_eq!(result(&answer), node.result("eth_getBlockByNumber", &params));
    }
}
