//! Goal: a sync reports any fault of nodes, files and arguments precisely and leaves the file
//! intact. Method: simulated nodes, some with faults, one behind a proxy that changes a byte; the
//! messages and the files are checked.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use index::nodes::Endpoint;
use index::planner::range::SyncEnd;
use index::store::{self, Settings};
use index::sync::{Event, Observer, Options, Progress, SyncOutcome};
use index::verify::Level;
use settings::url::NodeUrl;

use test_support::proxy::start_proxy;
use test_support::running::{Running, Weir};

/// Starts a simulated node with these further arguments. Its newest block is block 60.
fn node(more: &[&str]) -> Running {
    let always = ["--head", "60", "--block-time", "1h", "--finality-depth", "5"];
    Weir::node().admin().args(&[&always, more].concat()).start()
}

/// The exit code and the printed text of a command.
struct CommandOutput {
    code: Option<i32>,
    text: String,
}

/// Runs `weir index sync` from these nodes into a file, with these further arguments.
fn sync(urls: &[&str], file: &Path, more: &[&str]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["index", "sync", "--db"]).arg(file);
    if !more.contains(&"--patience") {
        command.args(["--patience", "1"]);
    }
    for url in urls {
        command.args(["--from", url]);
    }
    let output = command.args(more).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    CommandOutput { code: output.status.code(), text: String::from_utf8(text).unwrap() }
}

/// Returns the last block of a file, which must be intact; `None` if the file has no blocks.
fn last_block(file: &Path) -> Option<u64> {
    let store = store::open_to_read(file, Settings::default()).unwrap();
    assert_eq!(store.integrity_errors().unwrap(), Vec::<String>::new());
    store.stored_range().unwrap().map(|range| range.last)
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("chain.db")
}

/// Asserts that a command failed with status 1 and printed all these texts.
#[track_caller]
fn assert_fails(output: &CommandOutput, expected: &[&str]) {
    assert_eq!(output.code, Some(1), "{}", output.text);
    for text in expected {
        assert!(output.text.contains(text), "no {text:?} in: {}", output.text);
    }
}

#[test]
fn a_file_holds_blocks_of_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let (one, other) = (node(&[]), node(&["--seed", "9", "--chain-id", "99"]));
    let output = sync(&[&one.url()], &file, &["--end", "20"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert_fails(&sync(&[&other.url()], &file, &["--end", "30"]), &["chain 424242", "chain 99"]);
    assert_eq!(last_block(&file), Some(20));
    // With a node of the right chain too, the sync removes the other node and succeeds.
    let output = sync(&[&other.url(), &one.url()], &file, &["--end", "30"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert!(output.text.contains("was removed: it is on another chain (id 99"), "{}", output.text);
    assert_eq!(last_block(&file), Some(30));
}

#[test]
fn a_sync_must_fit_the_range_and_the_contents_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let node = node(&[]);
    let url = node.url();
    let output = sync(&[&url], &file, &["--start", "10", "--end", "20"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert_fails(&sync(&[&url], &file, &["--start", "5"]), &["begins with block 10"]);
    assert_fails(&sync(&[&url], &file, &["--start", "40"]), &["ends with block 20"]);
    assert_fails(
        &sync(&[&url], &file, &["--what", "logs"]),
        &["blocks,receipts,logs", "but logs was requested"],
    );
    assert_eq!(last_block(&file), Some(20));
    for arguments in
        [["--what", "birds"], ["--end", "latest"], ["--page-cache", "much"], ["--verify", "some"]]
    {
        let output = sync(&[&url], &file, &arguments);
        assert_eq!(output.code, Some(2), "{arguments:?}: {}", output.text);
        assert!(output.text.contains(arguments[1]), "{}", output.text);
    }
    // Block 58 is not finalized yet. A sync that ends at the finalized block would store nothing.
    let empty = folder.path().join("empty.db");
    assert_fails(&sync(&[&url], &empty, &["--start", "58"]), &["block 58, is after", "block, 55"]);
    assert_eq!(last_block(&empty), None);
    let output = sync(&["ftp://node"], &file, &[]);
    assert!(
        output.code == Some(2) && output.text.contains("the scheme is none of http, https,"),
        "{}",
        output.text
    );
}

#[test]
fn failing_nodes_are_named_with_their_errors() {
    let folder = tempfile::tempdir().unwrap();
    let dead = sync(&["http://user:sekrit@127.0.0.1:1/v2/sekritsekritsekrit"], &file(&folder), &[]);
    assert_fails(&dead, &["http://***@127.0.0.1:1/v2/***", "refused"]);
    assert!(!dead.text.contains("sekrit"), "{}", dead.text);
    let node = node(&[]);
    // The node no longer supports methods that the sync needs.
    node.set_node_settings(
        r#"{"unsupported":["eth_getBlockReceipts","eth_getTransactionReceipt"]}"#,
    );
    assert_fails(
        &sync(&[&node.url()], &file(&folder), &["--end", "20"]),
        &["block ", "error -32601"],
    );
    // The first request is for block 0 alone, which needs no receipts.
    assert!(last_block(&file(&folder)) <= Some(0));
    // With only the older method the sync works, one receipt per call.
    node.set_node_settings(r#"{"unsupported":["eth_getBlockReceipts"]}"#);
    let output = sync(&[&node.url()], &file(&folder), &["--end", "20"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    // The sync retries requests that meet one of these faults.
    node.set_node_settings(
        r#"{"faults":[{"fault":{"kind":"close"},"share":0.2},{"fault":{"kind":"html"},"share":0.2},
            {"fault":{"kind":"truncate"},"share":0.2}]}"#,
    );
    let output = sync(&[&node.url()], &file(&folder), &["--end", "55", "--patience", "60"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert_eq!(last_block(&file(&folder)), Some(55));
}

/// A node that has pruned old blocks responds with go-ethereum's error or with `null`.
#[test]
fn a_pruned_node_is_named_with_the_missing_block() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    for (case, response_end) in [
        (0, r#""error":{"code":4444,"message":"pruned history unavailable"}}"#),
        (1, r#""result":null}"#),
    ] {
        let pruned = start_proxy(&node.address, move |request, response| {
            prune_response(request, &response, response_end)
        });
        let file = folder.path().join(format!("{case}.db"));
        let expected: &[&str] = if case == 0 {
            &["block ", "pruned history unavailable"]
        } else {
            &["block ", "does not have the block"]
        };
        assert_fails(&sync(&[&pruned], &file, &["--end", "50"]), expected);
        // The first request is for block 0 alone, which the node has.
        assert!(last_block(&file) <= Some(0));
        // A sync from the first available block succeeds.
        let file = folder.path().join(format!("{case}-late.db"));
        let output = sync(&[&pruned], &file, &["--start", "20", "--end", "50"]);
        assert_eq!(output.code, Some(0), "{}", output.text);
        assert_eq!(last_block(&file), Some(50));
        // Historical blocks are requested from the node that has them.
        let file = folder.path().join(format!("{case}-both.db"));
        let output = sync(&[&pruned, &node.url()], &file, &["--end", "50"]);
        assert_eq!(output.code, Some(0), "{}", output.text);
        assert_eq!(last_block(&file), Some(50));
    }
}

/// Changes the response to a single call or a batch into that of a node without blocks 1 to 19. The
/// response to a call for one of these blocks ends with `response_end`.
fn prune_response(request: &str, response: &str, response_end: &str) -> String {
    let is_pruned = |params: &serde_json::Value| {
        let block = params[0].as_str().and_then(|number| number.strip_prefix("0x"));
        let number = block.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.is_some_and(|number| (1..20).contains(&number))
    };
    let request: serde_json::Value = serde_json::from_str(request).unwrap();
    let prune_call = |call: &serde_json::Value, response: String| {
        let has_block_params =
            call["method"].as_str().is_some_and(|method| method.contains("Block"));
        if has_block_params && is_pruned(&call["params"]) {
            format!(r#"{{"jsonrpc":"2.0","id":{},{response_end}"#, call["id"])
        } else {
            response
        }
    };
    let Some(calls) = request.as_array() else {
        return prune_call(&request, response.to_owned());
    };
    let responses: Vec<&serde_json::value::RawValue> = serde_json::from_str(response).unwrap();
    let pruned = calls
        .iter()
        .zip(responses)
        .map(|(call, response)| prune_call(call, response.get().to_owned()));
    format!("[{}]", pruned.collect::<Vec<_>>().join(","))
}

/// A command without write permission changes nothing and names the missing permission. Root may
/// write any file, so a test that runs as root runs the command as the user nobody.
#[test]
fn a_file_without_write_permission_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (file, node) = (file(&folder), node(&[]));
    assert_eq!(sync(&[&node.url()], &file, &["--end", "20"]).code, Some(0));
    let before = std::fs::read(&file).unwrap();
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // The user nobody may not be allowed to read the build folder, so the program is copied to a
    // folder that every user can read.
    let public_folder = tempfile::tempdir().unwrap();
    let program = public_folder.path().join("weir");
    std::fs::hard_link(env!("CARGO_BIN_EXE_weir"), &program)
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_weir"), &program).map(|_| ()))
        .unwrap();
    set_mode(public_folder.path(), 0o755);
    let run_as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).arg("--db").arg(&file);
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        CommandOutput { code: output.status.code(), text: String::from_utf8(text).unwrap() }
    };
    let url = node.url();
    let sync_arguments = ["index", "sync", "--from", &url, "--end", "40", "--patience", "1"];
    set_mode(&file, 0o444);
    set_mode(folder.path(), 0o555);
    assert_fails(
        &run_as_nobody(&sync_arguments),
        &["cannot write", "chain.db.lock", "folder must be writable"],
    );
    assert_fails(
        &run_as_nobody(&["index", "stats"]),
        &["chain.db: a reader keeps", "folder must be writable"],
    );
    std::fs::remove_file(folder.path().join("chain.db.lock")).unwrap();
    set_mode(folder.path(), 0o777);
    assert_fails(
        &run_as_nobody(&sync_arguments),
        &["chain.db: it and its folder must be writable"],
    );
    let read = run_as_nobody(&["index", "stats"]);
    assert_eq!(read.code, Some(0), "{}", read.text);
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

/// Starts a proxy in front of a node, and returns the proxy's URL. The proxy replaces the first
/// occurrence of `from` in every response by `to`.
fn start_liar(node: &Running, from: &'static str, to: &'static str) -> String {
    start_proxy(&node.address, move |_, response| response.replacen(from, to, 1))
}

#[test]
fn a_node_with_invalid_responses_is_named_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    let lies = [
        ("\"cumulativeGasUsed\":\"0x5", "\"cumulativeGasUsed\":\"0x6", "cumulativeGasUsed"),
        ("\"extraData\":\"0x", "\"extraData\":\"0x00", "hash"),
    ];
    for (case, (from, to, named_field)) in lies.into_iter().enumerate() {
        let file = folder.path().join(format!("{case}.db"));
        let liar = start_liar(&node, from, to);
        let alone = sync(&[&liar], &file, &["--end", "30"]);
        assert_fails(&alone, &["was removed", named_field, "all nodes were removed"]);
        assert_eq!(last_block(&file).unwrap_or(0), 0);
        let both = sync(&[&liar, &node.url()], &file, &["--end", "30"]);
        assert_eq!(both.code, Some(0), "{}", both.text);
        assert!(both.text.contains(&format!("{liar} was removed")), "{}", both.text);
        assert_eq!(last_block(&file), Some(30));
        // Without verification the same response is accepted.
        let unverified =
            sync(&[&liar], &folder.path().join("blind.db"), &["--end", "30", "--verify", "off"]);
        assert_eq!(unverified.code, Some(0), "{}", unverified.text);
        std::fs::remove_file(folder.path().join("blind.db")).unwrap();
    }
}

/// The sync cannot verify the hashes of Harmony's blocks. It compares the `eth_` and `hmyv2_` forms
/// of each block instead.
#[test]
fn a_node_whose_two_forms_of_a_block_differ_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    let file = file(&folder);
    let liar = start_liar(&node, "\"number\":7,", "\"number\":8,");
    let arguments = ["--end", "30", "--what", "blocks,receipts,logs,hmyv2"];
    let alone = sync(&[&liar], &file, &arguments);
    assert_fails(&alone, &["was removed", "block 7: hmyv2 block.number"]);
    assert_eq!(last_block(&file).unwrap_or(0), 0);
    let both = sync(&[&liar, &node.url()], &file, &arguments);
    assert_eq!(both.code, Some(0), "{}", both.text);
    assert_eq!(last_block(&file), Some(30));
}

#[test]
fn a_second_writer_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let node = node(&[]);
    let store = store::open(&file, Settings::default()).unwrap();
    assert_fails(&sync(&[&node.url()], &file, &[]), &["another process writes to this file"]);
    drop(store);
    std::fs::write(folder.path().join("text.db"), "no database ".repeat(200)).unwrap();
    assert_fails(
        &sync(&[&node.url()], &folder.path().join("text.db"), &[]),
        &["not an index of weir"],
    );
    assert_fails(&sync(&[&node.url()], &folder.path().join("none/a.db"), &[]), &["none/a.db"]);
}

/// The first sync samples blocks before it initializes the index. An index initialized from some of
/// the samples would keep wrong metadata for ever.
#[test]
fn a_sync_that_is_stopped_while_it_samples_initializes_no_index() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    let stop = Arc::new(AtomicBool::new(false));
    let stop_from_proxy = Arc::clone(&stop);
    // A request for receipts means that sampling has begun.
    let url = start_proxy(&node.address, move |body, answer| {
        if body.contains("eth_getBlockReceipts") {
            stop_from_proxy.store(true, Ordering::Relaxed);
        }
        answer
    });
    let options = Options {
        nodes: vec![Arc::new(Endpoint::from(NodeUrl::parse(&url).unwrap()))],
        start: None,
        end: SyncEnd::At(30),
        contents: "blocks,receipts,logs".parse().unwrap(),
        verify: Level::Full,
        concurrency: 1,
        batch_max: 10,
        settings: Settings::default(),
        patience: None,
    };
    let store = store::open(file(&folder), Settings::default()).unwrap();
    assert_eq!(
        index::sync::sync(store, &options, &IgnoreReports, &stop).unwrap(),
        SyncOutcome::Stopped
    );
    assert!(stop.load(Ordering::Relaxed), "the sync requested no receipts");
    let store = store::open(file(&folder), Settings::default()).unwrap();
    assert_eq!(store.metadata().unwrap(), None);
}

/// An observer that ignores all reports.
struct IgnoreReports;

impl Observer for IgnoreReports {
    fn on_progress(&self, _: &Progress) {}
    fn on_event(&self, _: &Event) {}
}

#[test]
fn a_last_block_that_a_reorg_dropped_is_replaced_before_it_becomes_final() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let since = ["--since", "1700000000", "--block-time", "100000h"];
    let start_node = |head: &str, more: &[&str]| {
        let always = ["--head", head, "--finality-depth", "5"];
        Weir::node().admin().args(&[&always, &since[..], more].concat()).start()
    };
    let before = start_node("58", &[]);
    assert_eq!(sync(&[&before.url()], &file, &["--end", "58"]).code, Some(0));
    let read_last_block = |file: &Path| {
        let store = store::open_to_read(file, Settings::default()).unwrap();
        let stored = store.stored_range().unwrap().unwrap();
        (stored.last, stored.last_hash, stored.finalized)
    };
    let (_, old_hash, _) = read_last_block(&file);
    // The same chain later: blocks 56 to 58 have been replaced.
    let after = start_node("80", &["--reorg", "58:3"]);
    let output = sync(&[&after.url()], &file, &["--end", "58"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    let (number, new_hash, finalized) = read_last_block(&file);
    assert_eq!((number, finalized), (58, 58), "{}", output.text);
    assert_ne!(new_hash, old_hash, "{}", output.text);
}

/// After a restart geth reports blocks as final too early, and corrects this later
/// (`testdata/public-faults/index-finality-too-early.json`).
#[test]
fn blocks_that_were_final_too_early_are_replaced_once_the_node_corrects_its_finality() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let since = ["--since", "1700000000", "--block-time", "100000h"];
    let start_node = |head: &str, more: &[&str]| {
        let node =
            Weir::node().admin().args(&[&["--head", head], &since[..], more].concat()).start();
        node.set_node_settings(r#"{"keeping":{"finality_depth":4}}"#);
        node
    };
    let before = start_node("100", &["--finality-depth", "90"]);
    assert_eq!(sync(&[&before.url()], &file, &["--end", "100"]).code, Some(0));
    let finalized = |file: &Path| {
        let store = store::open_to_read(file, Settings::default()).unwrap();
        store.stored_range().unwrap().unwrap().finalized
    };
    assert_eq!(finalized(&file), 96);
    // The same chain later: 30 blocks up to block 100 have been replaced.
    let after = start_node("130", &["--finality-depth", "90", "--reorg", "100:30"]);
    let output = sync(&[&after.url()], &file, &["--end", "120"]);
    assert_fails(&output, &["below block 97, which are final", "too early", "goes on once"]);
    assert_eq!(last_block(&file), Some(100));
    after.set_node_settings(r#"{"keeping":{"finality_depth":null}}"#);
    let output = sync(&[&after.url()], &file, &["--end", "120"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert_eq!((last_block(&file), finalized(&file)), (Some(120), 70));
}

#[test]
fn a_sync_that_fails_at_once_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    assert_fails(&sync(&["http://127.0.0.1:1"], &file, &[]), &["refused"]);
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(names.is_empty(), "{names:?}");
    // An index that an earlier sync has initialized stays.
    let node = node(&[]);
    assert_eq!(sync(&[&node.url()], &file, &["--end", "20"]).code, Some(0));
    assert_fails(&sync(&["http://127.0.0.1:1"], &file, &[]), &["refused"]);
    assert_eq!(last_block(&file), Some(20));
}

#[test]
fn a_node_that_fails_at_first_is_removed_if_it_is_on_another_chain() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (node(&[]), node(&["--seed", "9", "--chain-id", "99"]));
    // Enough failures for the sync to skip the node at first.
    other.set_node_settings(r#"{"faults":[{"fault":{"kind":"html"},"times":6}]}"#);
    let output = sync(&[&other.url(), &one.url()], &file(&folder), &["--end", "30"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert!(output.text.contains("was removed: it is on another chain (id 99"), "{}", output.text);
    assert_eq!(last_block(&file(&folder)), Some(30));
}

#[test]
fn an_impossible_head_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    // The node's newest block is 60, which is 0x3c.
    let liar = start_liar(&node, "\"result\":\"0x3c\"", "\"result\":\"0xffffffffffffffff\"");
    assert_fails(
        &sync(&[&liar], &file(&folder), &["--end", "follow"]),
        &["too high for any chain"],
    );
    let output = sync(&[&liar, &node.url()], &file(&folder), &["--end", "30"]);
    assert_eq!(output.code, Some(0), "{}", output.text);
}

#[test]
fn a_file_records_its_lowest_verification_level() {
    let folder = tempfile::tempdir().unwrap();
    let (node, file) = (node(&[]), file(&folder));
    let verified = |file: &Path| {
        let store = store::open_to_read(file, Settings::default()).unwrap();
        store.metadata().unwrap().unwrap().verification
    };
    for (end, level, expected) in [
        ("10", "full", "full"),
        ("30", "headers", "headers"),
        ("40", "full", "headers"),
        ("50", "off", "off: some responses of nodes were not verified"),
    ] {
        let output = sync(&[&node.url()], &file, &["--end", end, "--verify", level]);
        assert_eq!(output.code, Some(0), "{}", output.text);
        assert_eq!(verified(&file), expected, "{level}");
    }
}

/// Changes the block with this number in the response to a single call or a batch.
fn change_block(
    response: &str,
    number: &str,
    mut change: impl FnMut(&mut serde_json::Value),
) -> String {
    let mut response: serde_json::Value = serde_json::from_str(response).unwrap();
    let responses = match &mut response {
        serde_json::Value::Array(responses) => responses.iter_mut().collect(),
        single => vec![single],
    };
    for response in responses {
        let block = &mut response["result"];
        if block.get("number").is_some_and(|found| found == number) {
            change(block);
        }
    }
    response.to_string()
}

/// Adds a transaction without a signature to block 16, as Polygon's nodes do after a sprint
/// (`testdata/public-faults/state-sync-transaction.json`).
fn add_state_sync(response: String) -> String {
    let zero = format!("0x{}", "0".repeat(40));
    change_block(&response, "0x10", |block| {
        let (hash, number) = (block["hash"].clone(), block["number"].clone());
        let Some(transactions) = block["transactions"].as_array_mut() else { return };
        transactions.push(serde_json::json!({
            "blockHash": hash, "blockNumber": number, "from": zero, "to": zero, "gas": "0x0",
            "gasPrice": "0x0", "hash": format!("0x{}", "ab".repeat(32)), "input": "0x",
            "nonce": "0x0", "transactionIndex": format!("{:#x}", transactions.len()),
            "value": "0x0", "type": "0x0", "v": "0x0", "r": "0x0", "s": "0x0",
        }));
    })
}

#[test]
fn a_block_that_cannot_be_verified_is_named_with_the_way_on() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    let polygon = start_proxy(&node.address, |_, response| add_state_sync(response));
    let file = folder.path().join("full.db");
    let options = ["--what", "blocks", "--end", "50", "--patience", "60"];
    let output = sync(&[&polygon], &file, &options);
    let expected = ["block 16: transactions[", "has no signature", "--verify headers"];
    assert_fails(&output, &expected);
    assert!(!output.text.contains("removed"), "{}", output.text);
    let file = folder.path().join("headers.db");
    let output = sync(&[&polygon], &file, &[&options[..4], &["--verify", "headers"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert_eq!(last_block(&file), Some(50));
}

#[test]
fn a_height_without_a_block_is_named_and_its_node_stays() {
    let folder = tempfile::tempdir().unwrap();
    let hint = "an index cannot hold a chain that skips heights";
    for (skipped, expected) in [
        ("null", ["block 9: the node does not have the block", "failed for too long"]),
        ("error", ["block 9: error 12: requested epoch was a null round (9)", hint]),
        ("below", ["block 9: block.number: is 8, but 9 was requested", hint]),
    ] {
        let node = node(&["--skip-every", "10", "--skipped", skipped]);
        let output = sync(&[&node.url()], &folder.path().join(skipped), &["--end", "50"]);
        assert_fails(&output, &expected);
        assert!(!output.text.contains("removed"), "{}", output.text);
    }
}

#[test]
fn a_chain_with_known_unverifiable_transactions_is_verified_but_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&["--chain-id", "137"]);
    let polygon = start_proxy(&node.address, |_, response| add_state_sync(response));
    let file = folder.path().join("polygon.db");
    let options = ["--what", "blocks", "--end", "50"];
    let output = sync(&[&polygon], &file, &options);
    assert_eq!(output.code, Some(0), "{}", output.text);
    assert_eq!(last_block(&file), Some(50));
    let store = store::open_to_read(&file, Settings::default()).unwrap();
    let verification = store.metadata().unwrap().unwrap().verification;
    assert_eq!(verification, "full; blocks with state syncs of Polygon: headers");
    let mut verify = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = verify.args(["index", "verify", "--db"]).arg(&file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("sound (level full); 1 of them have transactions"), "{text}");
    // The header of such a block is still verified, and all of any other block.
    type Change = fn(&mut serde_json::Value);
    let lies: [(&str, Change); 2] = [
        ("0x10", |block| block["gasUsed"] = "0x7".into()),
        ("0x11", |block| block["transactions"][0]["value"] = "0x7".into()),
    ];
    for (number, change) in lies {
        let liar = start_proxy(&node.address, move |_, response| {
            change_block(&add_state_sync(response), number, change)
        });
        let output = sync(&[&liar], &folder.path().join("liar.db"), &options);
        assert_fails(&output, &["was removed"]);
    }
}
