//! Goal: the oracle accepts the replies of honest nodes and detects every planted fault. Method:
//! the oracle judges replies at chosen instants of the simulated chain. The replies come from
//! chosen views (a view is the chain up to one head), and some are altered.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Exchange, ObservedReply, Oracle, OracleOptions, Verdict};
use crate::rpc::{self, Reply, View};
use crate::schedule::{Reorg, WorldOptions};
use crate::world::World;

/// Time between two blocks, as in the default options.
const BLOCK: Duration = Duration::from_secs(1);

struct Fixture {
    world: Arc<World>,
    oracle: Oracle,
}

impl Fixture {
    fn new() -> Self {
        let reorgs = vec![Reorg { at_height: 30, depth: 3 }];
        let options =
            WorldOptions { height_start: 20, finality_depth: 8, reorgs, ..WorldOptions::default() };
        let world = Arc::new(World::starting(options, Instant::now()).unwrap());
        let options = OracleOptions {
            staleness: BLOCK / 2,
            finality_staleness: Duration::ZERO,
            lag_blocks_max: 1,
            behind_blocks: 0,
        };
        Self { oracle: Oracle::new(Arc::clone(&world), options), world }
    }

    /// Returns the result of an honest node with this head.
    fn honest_result(&self, head: u64, method: &str, params: &Value) -> Vec<u8> {
        let params = params.to_string();
        let view = View::honest(head);
        match rpc::respond(&self.world, &view, method, Some(params.as_bytes())) {
            Reply::Result(result) => result.to_vec(),
            Reply::Error(error) => panic!("{error:?}"),
        }
    }

    /// Judges a result that arrives at once, while `head` is the height of the newest block.
    fn judge(&self, head: u64, method: &str, params: &Value, result: &[u8]) -> Verdict {
        let client = 0;
        self.judge_reply(head, method, params, ObservedReply::Result(result), client)
    }

    /// Judges a reply that `client` receives while `head` is the height of the newest block.
    fn judge_reply(
        &self,
        head: u64,
        method: &str,
        params: &Value,
        reply: ObservedReply<'_>,
        client: u64,
    ) -> Verdict {
        let params = params.to_string();
        let sent = self.world.instant_of(head) + BLOCK * 3 / 4;
        let params = Some(params.as_bytes());
        self.oracle.judge(&Exchange { method, params, reply, sent, received: sent, client })
    }
}

/// Returns calls of every kind. They read the chain at or near head 40.
fn calls(fixture: &Fixture) -> Vec<(&'static str, Value)> {
    let account = fixture.world.addresses().accounts[1].to_string();
    let block = fixture.world.block_at(40, 38).unwrap();
    let hash = block.hash.to_string();
    let transaction = block.transactions[0].hash().to_string();
    vec![
        ("eth_blockNumber", json!([])),
        ("eth_getBlockByNumber", json!(["latest", true])),
        ("eth_getBlockByNumber", json!(["finalized", false])),
        ("eth_getBlockByHash", json!([hash, false])),
        ("eth_getTransactionByHash", json!([transaction])),
        ("eth_getTransactionReceipt", json!([transaction])),
        ("eth_getBlockReceipts", json!(["0x26"])),
        ("eth_getBalance", json!([account, "latest"])),
        ("eth_getTransactionCount", json!([account, "0x26"])),
        ("eth_call", json!([{ "to": account, "data": "0x01" }, "latest"])),
        ("eth_getLogs", json!([{ "fromBlock": "0x1a", "toBlock": "0x26" }])),
        ("eth_gasPrice", json!([])),
        ("eth_feeHistory", json!(["0x3", "latest", [50]])),
        ("hmyv2_getBlockByNumber", json!([38, { "fullTx": true }])),
        ("hmyv2_latestHeader", json!([])),
    ]
}

#[test]
fn replies_of_honest_nodes_are_right() {
    let fixture = Fixture::new();
    for (method, params) in calls(&fixture) {
        for head in [40, 39] {
            let result = fixture.honest_result(head, method, &params);
            // Each reply has its own client, because the heads of one client must not fall.
            let reply = ObservedReply::Result(&result);
            let verdict = fixture.judge_reply(40, method, &params, reply, head);
            assert_eq!(verdict, Verdict::Right, "{method} {params} at {head}");
        }
    }
}

#[test]
fn any_changed_byte_is_caught() {
    let fixture = Fixture::new();
    for (method, params) in calls(&fixture) {
        let result = fixture.honest_result(40, method, &params);
        for index in [result.len() / 3, result.len() / 2, result.len() - 2] {
            let mut spoilt = result.clone();
            spoilt[index] = b'!';
            let verdict = fixture.judge(40, method, &params, &spoilt);
            assert_ne!(verdict, Verdict::Right, "{method} {params} byte {index}");
        }
        let verdict = fixture.judge(40, method, &params, b"null");
        assert_ne!(verdict, Verdict::Right, "{method} {params} null");
    }
}

#[test]
fn a_tag_may_be_resolved_before_the_block_is_read() {
    let fixture = Fixture::new();
    // The reorg at height 30 replaces three blocks. Head 31 is the first on the new branch.
    let judge = |method: &str, tagged: Value, numbered: Value| {
        let reply = fixture.honest_result(31, method, &numbered);
        // Before the reorg, a gateway resolved `latest` to height 30 (0x1e). After the reorg, it
        // read block 30 of the new branch. No single view has that block as its newest.
        fixture.judge(31, method, &tagged, &reply)
    };
    let block = judge("eth_getBlockByNumber", json!(["latest", false]), json!(["0x1e", false]));
    assert_eq!(block, Verdict::Right);
    let account = fixture.world.addresses().accounts[0].to_string();
    let call = json!([{ "to": account, "data": "0x01" }]);
    let call_at_30 = json!([{ "to": account, "data": "0x01" }, "0x1e"]);
    assert_eq!(judge("eth_call", call.clone(), call_at_30), Verdict::Right);
    let logs = json!([{ "fromBlock": "finalized", "toBlock": "latest" }]);
    // From the finalized block of head 30 (0x16) to the newest block of head 31 (0x1f).
    let range = json!([{ "fromBlock": "0x16", "toBlock": "0x1f" }]);
    assert_eq!(judge("eth_getLogs", logs.clone(), range), Verdict::Right);
    // 0x12 is finalized at head 26, but not at an honest head.
    let old_range = json!([{ "fromBlock": "0x12", "toBlock": "0x1f" }]);
    assert_eq!(judge("eth_getLogs", logs, old_range), Verdict::Stale { blocks: 1 });
    // 0x19 is block 25, 5 blocks below the lowest head of the window.
    let old_call = json!([{ "to": account, "data": "0x01" }, "0x19"]);
    assert_eq!(judge("eth_call", call, old_call), Verdict::Stale { blocks: 5 });
}

#[test]
fn an_old_head_is_stale() {
    let fixture = Fixture::new();
    for (method, params) in
        [("eth_blockNumber", json!([])), ("eth_getBlockByNumber", json!(["latest", false]))]
    {
        let old_result = fixture.honest_result(36, method, &params);
        // At head 40, the lowest head of the window is 39.
        assert_eq!(fixture.judge(40, method, &params, &old_result), Verdict::Stale { blocks: 3 });
    }
    let account = json!([fixture.world.addresses().accounts[0].to_string(), "latest"]);
    let old_result = fixture.honest_result(35, "eth_getBalance", &account);
    let verdict = fixture.judge(40, "eth_getBalance", &account, &old_result);
    assert!(matches!(verdict, Verdict::Stale { .. }), "{verdict:?}");
}

#[test]
fn the_staleness_is_a_time() {
    let fixture = Fixture::new();
    let params = Some(&b"[]"[..]);
    // Head 38.
    let reply = ObservedReply::Result(b"\"0x26\"");
    let judge_after = |elapsed: Duration| {
        let sent = fixture.world.instant_of(40) + elapsed;
        let method = "eth_blockNumber";
        let received = sent + Duration::from_millis(1);
        let client = elapsed.as_millis() as u64;
        fixture.oracle.judge(&Exchange { method, params, reply, sent, received, client })
    };
    // The reply is head 38 (0x26). The head was 39 half a second before the first call, and 40 half
    // a second before the second one. Head 38 lags one block behind 39, which is allowed.
    assert_eq!(judge_after(BLOCK / 4), Verdict::Right);
    assert_eq!(judge_after(BLOCK * 3 / 4), Verdict::Stale { blocks: 1 });
}

#[test]
fn a_response_of_a_dropped_branch_is_stale_after_the_reorg() {
    let fixture = Fixture::new();
    let params = json!(["0x1d", false]);
    let dropped = fixture.honest_result(30, "eth_getBlockByNumber", &params);
    assert_eq!(fixture.judge(30, "eth_getBlockByNumber", &params, &dropped), Verdict::Right);
    assert_eq!(fixture.judge(31, "eth_getBlockByNumber", &params, &dropped), Verdict::Right);
    let verdict = fixture.judge(33, "eth_getBlockByNumber", &params, &dropped);
    assert!(matches!(verdict, Verdict::Stale { blocks: 2 }), "{verdict:?}");
}

#[test]
fn logs_of_two_branches_are_mixed() {
    let fixture = Fixture::new();
    let logs = |head: u64, from: u64, to: u64| {
        let filter = json!([{ "fromBlock": format!("{from:#x}"), "toBlock": format!("{to:#x}") }]);
        let raw = fixture.honest_result(head, "eth_getLogs", &filter);
        String::from_utf8(raw).unwrap().trim_matches(['[', ']']).to_owned()
    };
    let range = json!([{ "fromBlock": "0x19", "toBlock": "0x1e" }]);
    // The first half has the logs of the old branch, the second half those of the new branch.
    let mixed = format!("[{},{}]", logs(30, 25, 28), logs(31, 29, 30));
    let verdict = fixture.judge(31, "eth_getLogs", &range, mixed.as_bytes());
    assert!(matches!(verdict, Verdict::Mixed(_)), "{verdict:?}");
    let missing = format!("[{},{}]", logs(31, 25, 27), logs(31, 29, 30));
    let verdict = fixture.judge(31, "eth_getLogs", &range, missing.as_bytes());
    assert!(matches!(verdict, Verdict::Wrong(_)), "{verdict:?}");
    let honest = format!("[{},{}]", logs(31, 25, 28), logs(31, 29, 30));
    assert_eq!(fixture.judge(31, "eth_getLogs", &range, honest.as_bytes()), Verdict::Right);
}

#[test]
fn a_block_with_another_branchs_transactions_is_mixed() {
    let fixture = Fixture::new();
    let read = |head: u64, full: bool| -> Value {
        let params = json!(["0x1d", full]);
        serde_json::from_slice(&fixture.honest_result(head, "eth_getBlockByNumber", &params))
            .unwrap()
    };
    for full in [false, true] {
        let mut block = read(31, full);
        block["transactions"] = read(30, full)["transactions"].clone();
        let params = json!(["0x1d", full]);
        let verdict =
            fixture.judge(31, "eth_getBlockByNumber", &params, block.to_string().as_bytes());
        assert!(matches!(verdict, Verdict::Mixed(_)), "{full}: {verdict:?}");
    }
}

#[test]
fn a_made_up_header_is_wrong() {
    let fixture = Fixture::new();
    let view = View { ahead_blocks: 50, ..View::honest(40) };
    let params = json!(["latest", false]);
    let raw = params.to_string();
    let reply = rpc::respond(&fixture.world, &view, "eth_getBlockByNumber", Some(raw.as_bytes()));
    let Reply::Result(lie) = reply else { panic!("{reply:?}") };
    let verdict = fixture.judge(40, "eth_getBlockByNumber", &params, &lie);
    let Verdict::Wrong(why) = verdict else { panic!("{verdict:?}") };
    assert!(why.starts_with("no branch has block"), "{why}");
    let verdict = fixture.judge(40, "eth_blockNumber", &json!([]), b"\"0x5a\"");
    assert!(matches!(verdict, Verdict::Wrong(_)), "{verdict:?}");
}

#[test]
fn heads_of_one_client_must_not_fall() {
    let fixture = Fixture::new();
    let judge = |head: u64, number: u64, client: u64| {
        let result = format!("\"{number:#x}\"");
        let reply = ObservedReply::Result(result.as_bytes());
        fixture.judge_reply(head, "eth_blockNumber", &json!([]), reply, client)
    };
    // The arguments are the newest head, the head in the reply, and the client.
    assert_eq!(judge(35, 35, 1), Verdict::Right);
    assert_eq!(judge(36, 35, 1), Verdict::Right, "the same again");
    assert_eq!(judge(36, 36, 2), Verdict::Right);
    assert_eq!(judge(37, 37, 1), Verdict::Right);
    assert_eq!(judge(37, 36, 1), Verdict::Backward { from: 37, to: 36 });
    assert_eq!(judge(37, 36, 2), Verdict::Right, "another client saw no more");
    let block = fixture.honest_result(37, "eth_getBlockByNumber", &json!(["latest", false]));
    let reply = ObservedReply::Result(&block);
    let params = json!(["latest", false]);
    // Client 2 receives head 38 (0x26), and then block 37.
    fixture.judge_reply(38, "eth_blockNumber", &json!([]), ObservedReply::Result(b"\"0x26\""), 2);
    let verdict = fixture.judge_reply(38, "eth_getBlockByNumber", &params, reply, 2);
    assert_eq!(verdict, Verdict::Backward { from: 38, to: 37 });
}

#[test]
fn overlapping_calls_may_end_in_any_order() {
    let fixture = Fixture::new();
    let params = Some(&b"[]"[..]);
    let judge = |number: &str, sent: Instant, received: Instant| {
        let reply = ObservedReply::Result(number.as_bytes());
        let method = "eth_blockNumber";
        fixture.oracle.judge(&Exchange { method, params, reply, sent, received, client: 1 })
    };
    // Head 40 is 0x28, and head 41 is 0x29.
    let (start, end) = (fixture.world.instant_of(40), fixture.world.instant_of(41));
    assert_eq!(judge("\"0x29\"", start, end), Verdict::Right);
    assert_eq!(judge("\"0x28\"", start, end), Verdict::Right, "sent before the other arrived");
    assert_eq!(judge("\"0x28\"", end, end), Verdict::Backward { from: 41, to: 40 });
}

#[test]
fn errors_are_right_where_they_are_due() {
    let fixture = Fixture::new();
    let error = |code| ObservedReply::Error { code };
    let reversed = json!([{ "fromBlock": "0x5", "toBlock": "0x4" }]);
    let judge =
        |method: &str, params: &Value, reply| fixture.judge_reply(40, method, params, reply, 0);
    assert_eq!(judge("eth_getLogs", &reversed, error(-32602)), Verdict::Right);
    let verdict = judge("eth_getLogs", &reversed, ObservedReply::Result(b"[]"));
    assert_eq!(verdict, Verdict::Wrong("a result where an honest view has an error".to_owned()));
    let balance = json!([fixture.world.addresses().accounts[0].to_string(), "0x5"]);
    assert_eq!(judge("eth_getBalance", &balance, error(-32000)), Verdict::Failed { code: -32000 });
    assert_eq!(judge("eth_nothing", &json!([]), error(-32601)), Verdict::Right);
}

#[test]
fn sent_transactions_are_judged_by_their_hash() {
    let fixture = Fixture::new();
    let raw = json!(["0x1234"]);
    let expected = format!("\"{:#x}\"", alloy_primitives::keccak256([0x12, 0x34]));
    let judge = |result: &str| fixture.judge(40, "eth_sendRawTransaction", &raw, result.as_bytes());
    assert_eq!(judge(&expected), Verdict::Right);
    assert!(matches!(judge("\"0x00\""), Verdict::Wrong(_)));
}
