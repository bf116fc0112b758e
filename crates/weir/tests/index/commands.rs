//! Goal: the commands for an index file report its contents and its damage. Method: a file is
//! synced from a simulated node. Each command runs on it, or on a damaged copy, and its output is
//! compared with the library's results.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use index::reader::Reader;
use index::store::Settings;
use index::store::TransactionPart;
use serde_json::Value;
use tempfile::TempDir;

use test_support::proxy::start_proxy;
use test_support::running::{Running, Weir};

/// The last block of the file; the first one is 0.
const LAST: u64 = 60;

struct Said {
    code: i32,
    out: String,
    err: String,
}

fn weir(arguments: &[&str], file: &Path) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.arg("index").args(arguments).arg("--db").arg(file).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    Said { code, out: text(output.stdout), err: text(output.stderr) }
}

/// As above, for a run that must succeed; returns its output.
fn fine(arguments: &[&str], file: &Path) -> String {
    let said = weir(arguments, file);
    assert_eq!(said.code, 0, "{arguments:?}: {}{}", said.out, said.err);
    said.out
}

/// As above, for a run that must fail with status 1; returns its message.
fn refused(arguments: &[&str], file: &Path) -> String {
    let said = weir(arguments, file);
    assert_eq!(said.code, 1, "{arguments:?}: {}{}", said.out, said.err);
    said.out + &said.err
}

fn sync(what: &str, node: &Running, file: &Path) {
    let url = format!("http://{}", node.address);
    let end = LAST.to_string();
    fine(&["sync", "--from", &url, "--end", &end, "--what", what, "--quiet"], file);
}

/// A simulated node. All of them have the same chain.
fn node() -> Running {
    Weir::node().args(&["--head", "200", "--block-time", "1h", "--txs", "0..6"]).start()
}

/// A copy of a file that holds everything, which the first caller syncs.
fn copy() -> (TempDir, PathBuf) {
    // Bytes, because a static is never dropped: a folder would be left behind.
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chain.db");
    let whole = WHOLE.get_or_init(|| {
        sync("blocks,receipts,logs", &node(), &path);
        std::fs::read(&path).unwrap()
    });
    std::fs::write(&path, whole).unwrap();
    (folder, path)
}

fn reader(file: &Path) -> Reader {
    Reader::open(file, Settings::default()).unwrap().unwrap()
}

fn block(reader: &mut Reader, number: u64, part: TransactionPart) -> String {
    let mut out = Vec::new();
    assert!(reader.write_block(&mut out, number, part).unwrap());
    String::from_utf8(out).unwrap() + "\n"
}

fn receipts(reader: &mut Reader) -> Vec<Value> {
    let mut all = Vec::new();
    for number in 0..=LAST {
        let (_, context) = reader.block_row(number).unwrap().unwrap();
        let mut out = Vec::new();
        reader.write_transactions(&mut out, &context, number, TransactionPart::Receipt).unwrap();
        let list: Value = serde_json::from_slice(&out).unwrap();
        all.extend(list.as_array().unwrap().clone());
    }
    all
}

fn logs(reader: &mut Reader) -> Vec<Value> {
    let receipts = receipts(reader);
    receipts.iter().flat_map(|one| one["logs"].as_array().unwrap().clone()).collect()
}

#[test]
fn headers_authorize_requests_to_nodes_and_are_never_printed() {
    const SECRET: &str = "weir_0123456789abcdef";
    let node = node();
    let url = node.url();
    let keys = format!(
        "[access]\nrequired = true\n[[key]]\nname = \"a\"\nsecret = \"{SECRET}\"\n\
         [chain.sim]\n[[upstream]]\nurl = \"{url}\"\n"
    );
    let gateway = Weir::serve().config(&keys).start();
    let folder = tempfile::tempdir().unwrap();
    let header = format!("authorization: Bearer {SECRET}");
    for scheme in ["http", "ws"] {
        let url = format!("{scheme}://{}", gateway.address);
        let file = folder.path().join(format!("{scheme}.db"));
        let arguments =
            ["sync", "--from", url.as_str(), "--end", "5", "--patience", "1", "--quiet"];
        let message = refused(&arguments, &file);
        assert!(message.contains("401"), "{message}");
        fine(&[&arguments[..], &["--header", header.as_str()]].concat(), &file);
        let verify = ["verify", "--from", url.as_str(), "--quiet"];
        let message = refused(&verify, &file);
        assert!(message.contains("401"), "{message}");
        assert_eq!(
            fine(&[&verify[..], &["-H", header.as_str()]].concat(), &file),
            "blocks 0 to 5: sound (level full)\n"
        );
        let wrong = format!("x-api-key: {SECRET}-wrong");
        let message = refused(&[&verify[..], &["-H", wrong.as_str()]].concat(), &file);
        assert!(message.contains("401") && !message.contains(SECRET), "{message}");
    }
    for (header, reason) in [
        (SECRET, "--header: not of the form NAME: VALUE"),
        ("host: weir_0123456789abcdef", "--header: the client sets the header host itself"),
        ("a b: weir_0123456789abcdef", "--header: not the name of a header"),
        ("x: weir_0123456789abcdef\u{7f}", "--header: the value of x contains a character"),
    ] {
        let file = folder.path().join("none.db");
        let said = weir(&["sync", "--from", &url, "--header", header], &file);
        assert_eq!(said.code, 2, "{}", said.err);
        assert!(said.err.contains(reason) && !said.err.contains(SECRET), "{}", said.err);
    }
}

#[test]
fn verify_reports_sound_and_damaged_files() {
    let (_folder, file) = copy();
    assert_eq!(fine(&["verify"], &file), "blocks 0 to 60: sound (level full)\n");
    let node = node();
    let url = format!("http://{}", node.address);
    // Nobody signed what the simulated node makes up.
    let out = refused(&["verify", "--level", "senders", "--from", &url], &file);
    assert!(out.contains("transactions[0].from"), "{out}");
    let other = Weir::node().args(&["--head", "200", "--block-time", "1h", "--seed", "2"]).start();
    let out = refused(&["verify", "--from", &format!("http://{}", other.address)], &file);
    assert!(
        out.starts_with("block 0: http") && out.contains("has a block with another hash"),
        "{out}"
    );
    // A hole in the middle: the file is a database still, but no chain.
    let mut bytes = std::fs::read(&file).unwrap();
    let hash = reader(&file).store().block(33).unwrap().unwrap().hash;
    let places: Vec<usize> =
        (0..bytes.len() - 32).filter(|at| bytes[*at..*at + 32] == hash).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| bytes[*at + 20] ^= 1);
    std::fs::write(&file, bytes).unwrap();
    let out = refused(&["verify"], &file);
    assert!(out.contains("block 33: hash: found"), "{out}");
    assert!(out.contains("block 34: its parentHash is not the hash of the block before"), "{out}");
    assert!(!out.contains("sound"), "{out}");
}

#[test]
fn verify_prints_the_error_that_a_node_returned() {
    let (_folder, file) = copy();
    let node = node();
    for (method, expected) in [
        ("eth_chainId", "the index is of chain 424242, http"),
        ("eth_chainId", "did not return its chain id: error -32005: daily limit exceeded"),
        ("eth_getBlockByNumber", "did not return it: error -32005: daily limit exceeded"),
    ] {
        let failing = start_proxy(&node.address, move |request, response| {
            fail_method(request, &response, method)
        });
        let out = refused(&["verify", "--from", &failing], &file);
        assert!(out.contains(expected), "{out}");
        assert!(!out.contains("no valid chain id") && !out.contains("does not have it"), "{out}");
    }
    // A response without an error means that the block is missing.
    let behind =
        Weir::node().args(&["--head", "30", "--block-time", "1h", "--txs", "0..6"]).start();
    let out = refused(&["verify", "--from", &format!("http://{}", behind.address)], &file);
    assert!(out.contains("block 60: http") && out.contains("does not have it"), "{out}");
}

/// Replaces the responses to all calls of one method in a batch by an error.
fn fail_method(request: &str, response: &str, method: &str) -> String {
    let calls: Vec<Value> = serde_json::from_str(request).unwrap();
    let mut responses: Vec<Value> = serde_json::from_str(response).unwrap();
    for (call, response) in calls.iter().zip(&mut responses) {
        if call["method"] == method {
            let error = serde_json::json!({"code": -32005, "message": "daily limit exceeded"});
            *response = serde_json::json!({"jsonrpc": "2.0", "id": call["id"], "error": error});
        }
    }
    serde_json::to_string(&responses).unwrap()
}

#[test]
fn a_file_of_logs_alone_is_synced_and_sound() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logs.db");
    sync("logs", &node(), &file);
    assert_eq!(fine(&["verify"], &file), "blocks 0 to 60: sound (level full)\n");
    let (_other, whole) = copy();
    assert_eq!(fine(&["query", "logs"], &file), fine(&["query", "logs"], &whole));
    let out = refused(&["query", "receipt", &format!("0x{}", "1".repeat(64))], &file);
    assert!(out.contains("the index has only logs"), "{out}");
    let out = refused(&["query", "block", "3"], &file);
    assert!(out.contains("print blocks with --hashes"), "{out}");
}

#[test]
fn forms_that_no_block_has_shown_are_nodes_until_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("young.db");
    let young = Weir::node().args(&["--head", "0", "--block-time", "1h", "--txs", "0..6"]).start();
    let url = format!("http://{}", young.address);
    let said = weir(&["sync", "--from", &url, "--end", "0"], &file);
    assert!(said.err.contains("until a later sync can compare them"), "{}", said.err);
    let stats = fine(&["stats"], &file);
    let unseen = "not seen yet  logs, hashes, transaction, receipt (left to nodes so far)\n";
    assert!(stats.contains(unseen), "{stats}");
    // A later start tries again, as long as there is something to be tried.
    fine(&["sync", "--from", &url, "--end", "0", "--quiet"], &file);
    assert!(fine(&["stats"], &file).contains(unseen));
    sync("blocks,receipts,logs", &node(), &file);
    let stats = fine(&["stats"], &file);
    assert!(!stats.contains("not seen yet") && !stats.contains("left to nodes"), "{stats}");
}

#[test]
fn blocks_transactions_and_receipts_are_printed_as_they_are() {
    let (_folder, file) = copy();
    let mut reader = reader(&file);
    for number in [0, 1, 33, LAST] {
        let whole = block(&mut reader, number, TransactionPart::Body);
        assert_eq!(fine(&["query", "block", &number.to_string()], &file), whole);
        let hash = serde_json::from_str::<Value>(&whole).unwrap()["hash"].clone();
        assert_eq!(fine(&["query", "block", hash.as_str().unwrap()], &file), whole);
        let hashes = block(&mut reader, number, TransactionPart::Hash);
        assert_eq!(fine(&["query", "block", &format!("{number:#x}"), "--hashes"], &file), hashes);
    }
    let receipts = receipts(&mut reader);
    let said = &receipts[receipts.len() / 2];
    let hash = said["transactionHash"].as_str().unwrap();
    let out: Value = serde_json::from_str(&fine(&["query", "receipt", hash], &file)).unwrap();
    assert_eq!(out, *said);
    let out: Value = serde_json::from_str(&fine(&["query", "transaction", hash], &file)).unwrap();
    assert_eq!((&out["hash"], &out["blockHash"]), (&said["transactionHash"], &said["blockHash"]));
    let told = "is not stored: the index has blocks 0 to 60";
    let out = refused(&["query", "block", "61"], &file);
    assert!(out.contains(&format!("block 61 {told}")), "{out}");
    let none = format!("0x{}", "1".repeat(64));
    for about in ["block", "transaction", "receipt"] {
        let out = refused(&["query", about, &none], &file);
        assert!(out.contains("with this hash is stored: the index has blocks 0 to 60"), "{out}");
    }
    assert_eq!(weir(&["query", "block", "0xg"], &file).code, 2);
}

#[test]
fn logs_are_printed_as_json_lines_and_as_csv() {
    let (_folder, file) = copy();
    let all = logs(&mut reader(&file));
    let print = |arguments: &[&str]| -> Vec<Value> {
        let out = fine(&[&["query", "logs"], arguments].concat(), &file);
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert!(all.len() > 50, "only {} logs", all.len());
    assert_eq!(print(&[]), all);
    let only = |is: &dyn Fn(&Value) -> bool| -> Vec<Value> {
        all.iter().filter(|log| is(log)).cloned().collect()
    };
    let one = all.iter().find(|log| log["topics"].as_array().unwrap().len() > 1).unwrap();
    let address = one["address"].as_str().unwrap();
    let topic = |at: usize| one["topics"][at].as_str().unwrap();
    assert_eq!(print(&["--address", address]), only(&|log| log["address"] == address));
    assert_eq!(print(&["--topic0", topic(0)]), only(&|log| log["topics"][0] == topic(0)));
    let found = print(&["--address", address, "--topic1", topic(1)]);
    assert_eq!(found, only(&|log| log["address"] == address && log["topics"][1] == topic(1)));
    assert!(!found.is_empty());
    let other = all.iter().map(|log| log["address"].as_str().unwrap()).find(|a| *a != address);
    let other = other.unwrap();
    let found = print(&["--address", address, "--address", other]);
    assert_eq!(found, only(&|log| log["address"] == address || log["address"] == other));
    let number =
        |log: &Value| u64::from_str_radix(&log["blockNumber"].as_str().unwrap()[2..], 16).unwrap();
    let found = print(&["--from", "20", "--to", "22"]);
    assert_eq!(found, only(&|log| (20..=22).contains(&number(log))));
    assert_eq!(print(&["--limit", "7"]), all[..7]);
    let csv = fine(&["query", "logs", "--csv"], &file);
    let mut lines = csv.lines();
    assert_eq!(
        lines.next().unwrap(),
        "block_number,block_hash,transaction_index,transaction_hash,log_index,address,topic0,topic1,\
         topic2,topic3,data"
    );
    assert_eq!(lines.clone().count(), all.len());
    for (line, log) in lines.zip(&all) {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), 11, "{line}");
        assert_eq!(fields[0], number(log).to_string());
        assert_eq!(fields[3], log["transactionHash"]);
        assert_eq!(fields[5], log["address"]);
        for at in 0..4 {
            assert_eq!(fields[6 + at], log["topics"][at].as_str().unwrap_or_default());
        }
        assert_eq!(fields[10], log["data"]);
    }
    let out = refused(&["query", "logs", "--to", "61"], &file);
    assert!(out.contains("blocks 0 to 61: the index has 0 to 60"), "{out}");
    assert_eq!(weir(&["query", "logs", "--address", "0x12"], &file).code, 2);
}

#[test]
fn vacuum_leaves_what_is_found() {
    let (_folder, file) = copy();
    let before = fine(&["query", "logs"], &file);
    let out = fine(&["vacuum"], &file);
    assert!(out.contains(" bytes) before, ") && out.contains("log postings merged"), "{out}");
    assert_eq!(fine(&["query", "logs"], &file), before);
    assert_eq!(fine(&["verify"], &file), "blocks 0 to 60: sound (level full)\n");
    let missing = file.with_file_name("missing.db");
    assert!(refused(&["vacuum"], &missing).contains("there is no such file"));
    assert!(!missing.exists());
}

#[test]
fn tables_and_requests_are_exported() {
    let (folder, file) = copy();
    let tables = folder.path().join("tables");
    let corpus = folder.path().join("calls.jsonl");
    let (tables, calls) = (tables.to_str().unwrap(), corpus.to_str().unwrap());
    let arguments =
        ["export", "--out", tables, "--what", "logs,blocks", "--corpus", calls, "--count", "60"];
    let out = fine(&arguments, &file);
    assert!(out.contains("blocks.parquet: 61 rows, "), "{out}");
    let rows = logs(&mut reader(&file)).len();
    assert!(out.contains(&format!("logs.parquet: {rows} rows, ")), "{out}");
    let bytes = std::fs::read(folder.path().join("tables/logs.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    assert!(!folder.path().join("tables/transactions.parquet").exists());
    // The calls are what `weir load` takes, and a node has an answer to each.
    assert_eq!(std::fs::read_to_string(&corpus).unwrap().lines().count(), 60);
    let node = node();
    let url = format!("http://{}", node.address);
    let load = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["load", &url, "--requests", calls, "-n", "60"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[load.stdout, load.stderr].concat()).into_owned();
    // It may be the generator's fault that it was slow, but every call was answered.
    let verdict = load.status.code();
    assert!(matches!(verdict, Some(0 | 4 | 5)), "{verdict:?}: {said}");
    assert!(!said.contains("rpc error"), "{said}");
    assert_eq!(weir(&["export"], &file).code, 2);
    let out = refused(&["export", "--out", tables, "--to", "99"], &file);
    assert!(out.contains("blocks 0 to 99: the index has 0 to 60"), "{out}");
}
