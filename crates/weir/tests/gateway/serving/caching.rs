//! Which responses the gateway caches, and for how long.

use simnode::node::settings::{ErrorKind, Fault, FaultRule};

use crate::support::harness::{
    FINALIZED_BLOCK, GET_BALANCE, NEWEST_BLOCK, NodeRuntime, SimNode, TestGateway, ask,
    balance_params, cache_status, chain_polled_often, chain_polled_once, error, result,
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
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let text = chain_polled_once("[cache]\nlogs_chunk_blocks = 100");
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let mut client = gateway.client();
    // The gateway caches final logs in chunks of 100 blocks. Each range has its first block, its
    // last block, and the expected number of calls to the node for blocks that are not cached.
    let ranges = [
        (100, 499, 4),
        (100, 499, 0),
        (200, 599, 1),
        (250, 599, 1), // 250..=299 is no whole chunk
        (300, 399, 0),
        (950, NEWEST_BLOCK, 1),
        (900, NEWEST_BLOCK, 2), // 900..=936 is final, 937..=1000 is not
        (900, NEWEST_BLOCK, 0),
        (900, FINALIZED_BLOCK, 0),
    ];
    for (from, to, expected_calls) in ranges {
        let params = logs_between(from, to);
        let before = node.calls();
        let answer = ask(&mut client, "eth_getLogs", &params);
        assert_eq!(node.calls() - before, expected_calls, "{from}..={to}");
        assert_eq!(
            cache_status(&answer),
            if expected_calls == 0 { "hit" } else { "miss" },
            "{from}..={to}"
        );
        let expected = node.call("eth_getLogs", &params);
        assert!(expected.matches("logIndex").count() > 100, "a range without logs proves nothing");
        assert_eq!(result(&answer), expected, "{from}..={to}");
    }
}

#[test]
fn a_failed_part_fails_the_range_with_the_nodes_error() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set(|settings| settings.keeping.history_blocks = Some(500));
    let text = chain_polled_once("[cache]\nlogs_chunk_blocks = 100");
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let mut client = gateway.client();
    let params = logs_between(400, 799);
    let direct = ask(&mut Client::connect(&node.address.to_string()), "eth_getLogs", &params);
    let (_, code, message) = error(&direct);
    for _ in 0..2 {
        let answer = ask(&mut client, "eth_getLogs", &params);
        assert_eq!(error(&answer), (200, code, message.clone()));
    }
    node.set(|settings| settings.keeping.history_blocks = None);
    let whole = ask(&mut client, "eth_getLogs", &params);
    assert_eq!(result(&whole), node.call("eth_getLogs", &params));
}

/// Starts a node that is frozen at a block.
fn frozen_node(runtime: &NodeRuntime, at: u64) -> SimNode {
    let [node] = runtime.nodes(["node"]);
    node.set(|settings| settings.frozen_at = Some(at));
    node
}

#[test]
fn balances_at_latest_change_with_the_head() {
    let runtime = NodeRuntime::start();
    let node = frozen_node(&runtime, 900);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_often(""));
    let mut client = gateway.client();
    // Find an account whose balance changes in blocks 901 and 902.
    let accounts = node.node.world().unwrap().addresses().accounts;
    let params_of =
        |account: usize, block: &str| format!(r#"["{:#x}","{block}"]"#, accounts[account]);
    let balance =
        |account, block: u64| node.call(GET_BALANCE, &params_of(account, &format!("0x{block:x}")));
    let mut changing = (0..accounts.len()).filter(|&account| {
        node.set(|settings| settings.frozen_at = None);
        let balances = [900, 901, 902].map(|block| balance(account, block));
        node.set(|settings| settings.frozen_at = Some(900));
        balances[0] != balances[1] && balances[1] != balances[2]
    });
    let account = changing.next().expect("some account moves in each of three blocks");
    gateway.wait_for_head(Some(900));
    for head in [900, 901, 902] {
        node.set(|settings| settings.frozen_at = Some(head));
        gateway.wait_for_head(Some(head));
        let expected_balance = balance(account, head);
        for expected_status in ["miss", "hit", "hit"] {
            let answer = ask(&mut client, GET_BALANCE, &params_of(account, "latest"));
            assert_eq!(
                (result(&answer), cache_status(&answer)),
                (expected_balance.clone(), expected_status),
                "head {head}"
            );
        }
        // A call with the block's number instead of `latest` hits the same cache entry.
        let answer = ask(&mut client, GET_BALANCE, &params_of(account, &format!("0x{head:x}")));
        assert_eq!((result(&answer), cache_status(&answer)), (expected_balance, "hit"));
    }
}

/// A call with a transaction index that the block does not have. So the result is null.
const MISSING_TRANSACTION: (&str, &str) =
    ("eth_getTransactionByBlockNumberAndIndex", r#"["0x64","0xffff"]"#);

#[test]
fn a_null_about_a_block_is_not_cached() {
    let runtime = NodeRuntime::start();
    let node = frozen_node(&runtime, 900);
    let text = chain_polled_once("[cache]\nnull_age_max = \"1m\"");
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let mut client = gateway.client();
    for _ in 0..2 {
        let answer = ask(&mut client, MISSING_TRANSACTION.0, MISSING_TRANSACTION.1);
        assert_eq!((result(&answer).as_str(), cache_status(&answer)), ("null", "miss"));
    }
}

#[test]
fn results_that_may_appear_at_any_moment_are_not_cached() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let text = chain_polled_once("[cache]\nnull_age_max = \"1m\"");
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let mut client = gateway.client();
    let unknown = format!("\"0x{:064x}\"", 5);
    for (method, params) in [
        ("eth_getTransactionReceipt", format!("[{unknown}]")),
        ("eth_getTransactionByHash", format!("[{unknown}]")),
        ("eth_getBlockByHash", format!("[{unknown},false]")),
    ] {
        for _ in 0..2 {
            let answer = ask(&mut client, method, &params);
            let found = (result(&answer), cache_status(&answer));
            assert_eq!(found, ("null".to_owned(), "miss"), "{method}");
        }
    }
}

#[test]
fn reverts_are_the_only_cached_errors() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let mut client = gateway.client();
    let mut cache_statuses = |method: &str, params: &str, code: i64| {
        [0, 1].map(|_| {
            let answer = ask(&mut client, method, params);
            let (status, actual_code, _) = error(&answer);
            assert_eq!((status, actual_code), (200, code), "{method} {params}");
            cache_status(&answer).to_owned()
        })
    };
    for block in ["\"0x64\"", "\"latest\""] {
        assert_eq!(cache_statuses("eth_call", &format!("[{REVERTS},{block}]"), 3), ["miss", "hit"]);
    }
    // Errors for invalid parameters, and for a method that the node does not support.
    assert_eq!(cache_statuses(GET_BALANCE, r#"["0x12","0x64"]"#, -32602), ["miss", "miss"]);
    let proof = format!(r#"["0x{:040x}",[],"0x64"]"#, 1);
    assert_eq!(cache_statuses("eth_getProof", &proof, -32601), ["miss", "miss"]);
    for kind in [ErrorKind::HeaderNotFound, ErrorKind::MissingTrieNode, ErrorKind::ExecutionTimeout]
    {
        node.set_fault(FaultRule {
            method: Some("eth_call".to_owned()),
            ..FaultRule::always(Fault::Error { error: kind })
        });
        let to = format!(r#"[{{"to":"0x{:040x}"}},"0x64"]"#, kind as u8);
        assert_eq!(cache_statuses("eth_call", &to, -32000), ["miss", "miss"], "{kind:?}");
    }
}

#[test]
fn a_response_that_is_too_large_is_forwarded_and_not_cached() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let text = chain_polled_once("[cache]\nentry_bytes_max = \"1KiB\"");
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let mut client = gateway.client();
    let block = r#"["0x64",true]"#;
    let expected = node.call("eth_getBlockByNumber", block);
    assert!(expected.len() > 1024, "{}", expected.len());
    for _ in 0..2 {
        let answer = ask(&mut client, "eth_getBlockByNumber", block);
        assert_eq!((result(&answer), cache_status(&answer)), (expected.clone(), "miss"));
    }
    assert_eq!(gateway.status_u64("/cache/entries"), 0);
    for expected_status in ["miss", "hit"] {
        let answer = ask(&mut client, GET_BALANCE, &balance_params(1, "0x64"));
        assert_eq!(cache_status(&answer), expected_status);
    }
}

#[test]
fn the_cache_stays_within_its_size_limit() {
    const BYTES_MAX: u64 = 1 << 20;
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let text = chain_polled_once("[cache]\nbytes_max = \"1MiB\"");
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let mut client = gateway.client();
    let call = |number| {
        let method = "eth_getBlockByNumber";
        format!(r#"{{"id":{number},"method":"{method}","params":["0x{number:x}",true]}}"#)
    };
    let (mut bytes, mut number) = (0, 0);
    while bytes < 10 * BYTES_MAX {
        let calls: Vec<String> =
            (1..=100).map(|step| call(number % FINALIZED_BLOCK + step)).collect();
        // Every second round requests the blocks without full transactions.
        let round = number / FINALIZED_BLOCK;
        let batch =
            format!("[{}]", calls.join(",")).replace("true", ["true", "false"][round as usize % 2]);
        bytes += client.call("/", batch.as_bytes()).body.len() as u64;
        number += 100;
        let cached_bytes = gateway.status_u64("/cache/bytes");
        assert!(cached_bytes <= BYTES_MAX, "{cached_bytes} after {number} calls");
    }
    let cached_bytes = gateway.status_u64("/cache/bytes");
    assert!(cached_bytes > BYTES_MAX / 2, "only {cached_bytes} bytes are used");
    assert_eq!(gateway.status_u64("/cache/bytes_max"), BYTES_MAX);
    // The remaining entries are still correct.
    for number in [1, FINALIZED_BLOCK / 2, FINALIZED_BLOCK] {
        let params = format!(r#"["0x{number:x}",true]"#);
        let answer = ask(&mut client, "eth_getBlockByNumber", &params);
        assert_eq!(result(&answer), node.call("eth_getBlockByNumber", &params));
    }
}
