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
use index::planner::range::End;
use index::store::{self, Settings};
use index::sync::{Event, Observer, Options, Outcome, Progress};
use index::verify::Level;
use settings::url::NodeUrl;

use test_support::proxy::start_proxy;
use test_support::running::{Running, Weir};

fn node(more: &[&str]) -> Running {
    let always = ["--head", "60", "--block-time", "1h", "--finality-depth", "5"];
    Weir::node().admin().args(&[&always, more].concat()).start()
}

struct Said {
    code: Option<i32>,
    text: String,
}

fn sync(urls: &[&str], file: &Path, more: &[&str]) -> Said {
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
    Said { code: output.status.code(), text: String::from_utf8(text).unwrap() }
}

/// The last block of a file; none of one that has none.
fn last(file: &Path) -> Option<u64> {
    let store = store::open_to_read(file, Settings::default()).unwrap();
    assert_eq!(store.integrity_errors().unwrap(), Vec::<String>::new());
    store.stored_range().unwrap().map(|held| held.last)
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("chain.db")
}

#[track_caller]
fn refused(said: &Said, words: &[&str]) {
    assert_eq!(said.code, Some(1), "{}", said.text);
    for word in words {
        assert!(said.text.contains(word), "no {word:?} in: {}", said.text);
    }
}

#[test]
fn a_file_is_of_one_chain() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let (one, other) = (node(&[]), node(&["--seed", "9", "--chain-id", "99"]));
    let said = sync(&[&one.url()], &file, &["--end", "20"]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    refused(&sync(&[&other.url()], &file, &["--end", "30"]), &["chain 424242", "chain 99"]);
    assert_eq!(last(&file), Some(20));
    // Beside a node of the right chain, the other one is left.
    let said = sync(&[&other.url(), &one.url()], &file, &["--end", "30"]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    assert!(said.text.contains("was removed: it is on another chain (id 99"), "{}", said.text);
    assert_eq!(last(&file), Some(30));
}

#[test]
fn a_file_keeps_to_its_range_and_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let node = node(&[]);
    let url = node.url();
    let said = sync(&[&url], &file, &["--start", "10", "--end", "20"]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    refused(&sync(&[&url], &file, &["--start", "5"]), &["begins with block 10"]);
    refused(&sync(&[&url], &file, &["--start", "40"]), &["ends with block 20"]);
    refused(
        &sync(&[&url], &file, &["--what", "logs"]),
        &["blocks,receipts,logs", "but logs was requested"],
    );
    assert_eq!(last(&file), Some(20));
    for arguments in
        [["--what", "birds"], ["--end", "latest"], ["--page-cache", "much"], ["--verify", "some"]]
    {
        let said = sync(&[&url], &file, &arguments);
        assert_eq!(said.code, Some(2), "{arguments:?}: {}", said.text);
        assert!(said.text.contains(arguments[1]), "{}", said.text);
    }
    // Block 58 is not finalized yet. A sync that ends at the finalized block would store nothing.
    let empty = folder.path().join("empty.db");
    refused(&sync(&[&url], &empty, &["--start", "58"]), &["block 58, is after", "block, 55"]);
    assert_eq!(last(&empty), None);
    let said = sync(&["ftp://node"], &file, &[]);
    assert!(
        said.code == Some(2) && said.text.contains("the scheme is none of http, https,"),
        "{}",
        said.text
    );
}

#[test]
fn failing_nodes_are_named_with_their_errors() {
    let folder = tempfile::tempdir().unwrap();
    let dead = sync(&["http://user:sekrit@127.0.0.1:1/v2/sekritsekritsekrit"], &file(&folder), &[]);
    refused(&dead, &["http://***@127.0.0.1:1/v2/***", "refused"]);
    assert!(!dead.text.contains("sekrit"), "{}", dead.text);
    let node = node(&[]);
    // A node that has lost what the sync needs.
    node.set(r#"{"unsupported":["eth_getBlockReceipts","eth_getTransactionReceipt"]}"#);
    refused(&sync(&[&node.url()], &file(&folder), &["--end", "20"]), &["block ", "error -32601"]);
    assert_eq!(last(&file(&folder)), None);
    // With the older method alone it goes on, one receipt at a time.
    node.set(r#"{"unsupported":["eth_getBlockReceipts"]}"#);
    let said = sync(&[&node.url()], &file(&folder), &["--end", "20"]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    // Faults in half of all requests are passed over.
    node.set(
        r#"{"faults":[{"fault":{"kind":"close"},"share":0.2},{"fault":{"kind":"html"},"share":0.2},
            {"fault":{"kind":"truncate"},"share":0.2}]}"#,
    );
    let said = sync(&[&node.url()], &file(&folder), &["--end", "55", "--patience", "60"]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    assert_eq!(last(&file(&folder)), Some(55));
}

/// A pruning node: for older blocks it responds as go-ethereum does, or with nothing.
#[test]
fn a_node_that_has_dropped_its_past_is_named_with_the_block() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    for (at, says) in [
        (0, r#""error":{"code":4444,"message":"pruned history unavailable"}}"#),
        (1, r#""result":null}"#),
    ] {
        let pruned = start_proxy(&node.address, move |asked, answer| pruned(asked, &answer, says));
        let file = folder.path().join(format!("{at}.db"));
        let words: &[&str] = if at == 0 {
            &["block ", "pruned history unavailable"]
        } else {
            &["block ", "does not have the block"]
        };
        refused(&sync(&[&pruned], &file, &["--end", "50"]), words);
        assert_eq!(last(&file), None);
        // A sync from the first available block succeeds; nodes serve older blocks.
        let file = folder.path().join(format!("{at}-late.db"));
        let said = sync(&[&pruned], &file, &["--start", "20", "--end", "50"]);
        assert_eq!(said.code, Some(0), "{}", said.text);
        assert_eq!(last(&file), Some(50));
        // Historical blocks are requested from the node that has them.
        let file = folder.path().join(format!("{at}-both.db"));
        let said = sync(&[&pruned, &node.url()], &file, &["--end", "50"]);
        assert_eq!(said.code, Some(0), "{}", said.text);
        assert_eq!(last(&file), Some(50));
    }
}

/// The answer of a node without blocks 1 to 19 to calls one by one or in a batch.
fn pruned(asked: &str, answer: &str, says: &str) -> String {
    let gone = |params: &serde_json::Value| {
        let block = params[0].as_str().and_then(|number| number.strip_prefix("0x"));
        let number = block.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.is_some_and(|number| (1..20).contains(&number))
    };
    let asked: serde_json::Value = serde_json::from_str(asked).unwrap();
    let one = |call: &serde_json::Value, answer: String| {
        let of_blocks = call["method"].as_str().is_some_and(|method| method.contains("Block"));
        if of_blocks && gone(&call["params"]) {
            format!(r#"{{"jsonrpc":"2.0","id":{},{says}"#, call["id"])
        } else {
            answer
        }
    };
    let Some(calls) = asked.as_array() else { return one(&asked, answer.to_owned()) };
    let answers: Vec<&serde_json::value::RawValue> = serde_json::from_str(answer).unwrap();
    let told = calls.iter().zip(answers).map(|(call, answer)| one(call, answer.get().to_owned()));
    format!("[{}]", told.collect::<Vec<_>>().join(","))
}

/// Nothing is written by who may not, and what lacks is said. A root may write anything, so the
/// command runs as nobody there.
#[test]
fn a_file_that_may_not_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (file, node) = (file(&folder), node(&[]));
    assert_eq!(sync(&[&node.url()], &file, &["--end", "20"]).code, Some(0));
    let before = std::fs::read(&file).unwrap();
    let allow = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // A folder without read permission.
    let open = tempfile::tempdir().unwrap();
    let program = open.path().join("weir");
    std::fs::hard_link(env!("CARGO_BIN_EXE_weir"), &program)
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_weir"), &program).map(|_| ()))
        .unwrap();
    allow(open.path(), 0o755);
    let nobody = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).arg("--db").arg(&file);
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        Said { code: output.status.code(), text: String::from_utf8(text).unwrap() }
    };
    let url = node.url();
    let more = ["index", "sync", "--from", &url, "--end", "40", "--patience", "1"];
    allow(&file, 0o444);
    allow(folder.path(), 0o555);
    refused(&nobody(&more), &["cannot write", "chain.db.lock", "folder must be writable"]);
    refused(&nobody(&["index", "stats"]), &["chain.db: a reader keeps", "folder must be writable"]);
    std::fs::remove_file(folder.path().join("chain.db.lock")).unwrap();
    allow(folder.path(), 0o777);
    refused(&nobody(&more), &["chain.db: it and its folder must be writable"]);
    let read = nobody(&["index", "stats"]);
    assert_eq!(read.code, Some(0), "{}", read.text);
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

/// A node's front that changes one text in what it says, for ever.
fn liar(node: &Running, from: &'static str, to: &'static str) -> String {
    start_proxy(&node.address, move |_, answer| answer.replacen(from, to, 1))
}

#[test]
fn a_node_that_lies_is_named_and_left() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    let lies = [
        ("\"cumulativeGasUsed\":\"0x5", "\"cumulativeGasUsed\":\"0x6", "cumulativeGasUsed"),
        ("\"extraData\":\"0x", "\"extraData\":\"0x00", "hash"),
    ];
    for (at, (from, to, named)) in lies.into_iter().enumerate() {
        let file = folder.path().join(format!("{at}.db"));
        let liar = liar(&node, from, to);
        let alone = sync(&[&liar], &file, &["--end", "30"]);
        refused(&alone, &["was removed", named, "all nodes were removed"]);
        assert_eq!(last(&file).unwrap_or(0), 0);
        let both = sync(&[&liar, &node.url()], &file, &["--end", "30"]);
        assert_eq!(both.code, Some(0), "{}", both.text);
        assert!(both.text.contains(&format!("{liar} was removed")), "{}", both.text);
        assert_eq!(last(&file), Some(30));
        // Who does not look is lied to: so the lie is one.
        let blind =
            sync(&[&liar], &folder.path().join("blind.db"), &["--end", "30", "--verify", "off"]);
        assert_eq!(blind.code, Some(0), "{}", blind.text);
        std::fs::remove_file(folder.path().join("blind.db")).unwrap();
    }
}

/// Of Harmony's blocks no hash can be looked at, but the two forms of one must be of one.
#[test]
fn a_node_whose_two_forms_of_a_block_differ_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    let file = file(&folder);
    let liar = liar(&node, "\"number\":7,", "\"number\":8,");
    let arguments = ["--end", "30", "--what", "blocks,receipts,logs,hmyv2"];
    let alone = sync(&[&liar], &file, &arguments);
    refused(&alone, &["was removed", "block 7: hmyv2 block.number"]);
    assert_eq!(last(&file).unwrap_or(0), 0);
    let both = sync(&[&liar, &node.url()], &file, &arguments);
    assert_eq!(both.code, Some(0), "{}", both.text);
    assert_eq!(last(&file), Some(30));
}

#[test]
fn a_second_writer_is_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let node = node(&[]);
    let store = store::open(&file, Settings::default()).unwrap();
    refused(&sync(&[&node.url()], &file, &[]), &["another process writes to this file"]);
    drop(store);
    std::fs::write(folder.path().join("text.db"), "no database ".repeat(200)).unwrap();
    refused(&sync(&[&node.url()], &folder.path().join("text.db"), &[]), &["not an index of weir"]);
    refused(&sync(&[&node.url()], &folder.path().join("none/a.db"), &[]), &["none/a.db"]);
}

/// What a file was founded on half of the answers would be so for ever.
#[test]
fn a_file_that_is_stopped_while_it_is_founded_is_not_founded() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    // Sampling has begun when receipts are asked for.
    let url = start_proxy(&node.address, move |body, answer| {
        if body.contains("eth_getBlockReceipts") {
            told.store(true, Ordering::Relaxed);
        }
        answer
    });
    let options = Options {
        nodes: vec![Arc::new(Endpoint::from(NodeUrl::parse(&url).unwrap()))],
        start: None,
        end: End::At(30),
        contents: "blocks,receipts,logs".parse().unwrap(),
        verify: Level::Full,
        concurrency: 1,
        batch_max: 10,
        settings: Settings::default(),
        patience: None,
    };
    let store = store::open(file(&folder), Settings::default()).unwrap();
    assert_eq!(index::sync::sync(store, &options, &Silent, &stop).unwrap(), Outcome::Stopped);
    assert!(stop.load(Ordering::Relaxed), "it was stopped while samples were taken");
    let store = store::open(file(&folder), Settings::default()).unwrap();
    assert_eq!(store.metadata().unwrap(), None);
}

/// Hears nothing.
struct Silent;

impl Observer for Silent {
    fn on_progress(&self, _: &Progress) {}
    fn on_event(&self, _: &Event) {}
}

#[test]
fn a_last_block_that_was_dropped_is_replaced_before_it_is_final() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder);
    let since = ["--since", "1700000000", "--block-time", "100000h"];
    let of = |head: &str, more: &[&str]| {
        let always = ["--head", head, "--finality-depth", "5"];
        Weir::node().admin().args(&[&always, &since[..], more].concat()).start()
    };
    let before = of("58", &[]);
    assert_eq!(sync(&[&before.url()], &file, &["--end", "58"]).code, Some(0));
    let hash = |file: &Path| {
        let store = store::open_to_read(file, Settings::default()).unwrap();
        let held = store.stored_range().unwrap().unwrap();
        (held.last, held.last_hash, held.finalized)
    };
    let (_, dropped, _) = hash(&file);
    // The same chain later: blocks 56 to 58 have been replaced.
    let after = of("80", &["--reorg", "58:3"]);
    let said = sync(&[&after.url()], &file, &["--end", "58"]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    let (number, kept, finalized) = hash(&file);
    assert_eq!((number, finalized), (58, 58), "{}", said.text);
    assert_ne!(kept, dropped, "{}", said.text);
}

#[test]
fn the_chain_of_a_node_that_was_silent_at_first_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (node(&[]), node(&["--seed", "9", "--chain-id", "99"]));
    // As many as it takes until it is passed over.
    other.set(r#"{"faults":[{"fault":{"kind":"html"},"times":6}]}"#);
    let said = sync(&[&other.url(), &one.url()], &file(&folder), &["--end", "30"]);
    assert_eq!(said.code, Some(0), "{}", said.text);
    assert!(said.text.contains("was removed: it is on another chain (id 99"), "{}", said.text);
    assert_eq!(last(&file(&folder)), Some(30));
}

#[test]
fn a_head_that_no_chain_has_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(&[]);
    let mad = liar(&node, "\"result\":\"0x3c\"", "\"result\":\"0xffffffffffffffff\"");
    refused(&sync(&[&mad], &file(&folder), &["--end", "follow"]), &["too high for any chain"]);
    let said = sync(&[&mad, &node.url()], &file(&folder), &["--end", "30"]);
    assert_eq!(said.code, Some(0), "{}", said.text);
}

#[test]
fn a_file_says_how_closely_its_least_part_was_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let (node, file) = (node(&[]), file(&folder));
    let verified = |file: &Path| {
        let store = store::open_to_read(file, Settings::default()).unwrap();
        store.metadata().unwrap().unwrap().verification
    };
    for (end, level, says) in [
        ("10", "full", "full"),
        ("30", "headers", "headers"),
        ("40", "full", "headers"),
        ("50", "off", "off: some responses of nodes were not verified"),
    ] {
        let said = sync(&[&node.url()], &file, &["--end", end, "--verify", level]);
        assert_eq!(said.code, Some(0), "{}", said.text);
        assert_eq!(verified(&file), says, "{level}");
    }
}
