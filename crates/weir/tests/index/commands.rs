//! Goal: the commands for an index file report the file's contents and its damage. Method: a sync
//! creates a file from a simulated node. Each command runs on the file or on a damaged copy, and
//! the command's output is compared with the library's results.

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

/// The exit code and the printed text of a command.
struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

/// Runs a command of `weir index` on a file.
fn weir(arguments: &[&str], file: &Path) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.arg("index").args(arguments).arg("--db").arg(file).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    CommandOutput { code, out: text(output.stdout), err: text(output.stderr) }
}

/// Runs a command that must succeed, and returns its output.
fn run_ok(arguments: &[&str], file: &Path) -> String {
    let output = weir(arguments, file);
    assert_eq!(output.code, 0, "{arguments:?}: {}{}", output.out, output.err);
    output.out
}

/// Runs a command that must fail with status 1, and returns all that it printed.
fn run_failing(arguments: &[&str], file: &Path) -> String {
    let output = weir(arguments, file);
    assert_eq!(output.code, 1, "{arguments:?}: {}{}", output.out, output.err);
    output.out + &output.err
}

fn sync(what: &str, node: &Running, file: &Path) {
    let url = format!("http://{}", node.address);
    let end = LAST.to_string();
    run_ok(&["sync", "--from", &url, "--end", &end, "--what", what, "--quiet"], file);
}

/// Starts a simulated node. All nodes that this function starts have the same chain.
fn node() -> Running {
    Weir::node().args(&["--head", "200", "--block-time", "1h", "--txs", "0..6"]).start()
}

/// Returns a copy of an index file with all contents. The first call syncs the file.
fn copy_full_index() -> (TempDir, PathBuf) {
    // The static holds bytes, not a `TempDir`: a static is never dropped, so the folder would
    // remain.
    static FILE_BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chain.db");
    let file_bytes = FILE_BYTES.get_or_init(|| {
        sync("blocks,receipts,logs", &node(), &path);
        std::fs::read(&path).unwrap()
    });
    std::fs::write(&path, file_bytes).unwrap();
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
    let mut receipts = Vec::new();
    for number in 0..=LAST {
        let (_, context) = reader.block_row(number).unwrap().unwrap();
        let mut out = Vec::new();
        reader.write_transactions(&mut out, &context, number, TransactionPart::Receipt).unwrap();
        let list: Value = serde_json::from_slice(&out).unwrap();
        receipts.extend(list.as_array().unwrap().clone());
    }
    receipts
}

fn logs(reader: &mut Reader) -> Vec<Value> {
    let receipts = receipts(reader);
    receipts.iter().flat_map(|receipt| receipt["logs"].as_array().unwrap().clone()).collect()
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
        let message = run_failing(&arguments, &file);
        assert!(message.contains("401"), "{message}");
        run_ok(&[&arguments[..], &["--header", header.as_str()]].concat(), &file);
        let verify = ["verify", "--from", url.as_str(), "--quiet"];
        let message = run_failing(&verify, &file);
        assert!(message.contains("401"), "{message}");
        assert_eq!(
            run_ok(&[&verify[..], &["-H", header.as_str()]].concat(), &file),
            "blocks 0 to 5: sound (level full)\n"
        );
        let wrong_header = format!("x-api-key: {SECRET}-wrong");
        let message = run_failing(&[&verify[..], &["-H", wrong_header.as_str()]].concat(), &file);
        assert!(message.contains("401") && !message.contains(SECRET), "{message}");
    }
    for (header, reason) in [
        (SECRET, "--header: not of the form NAME: VALUE"),
        ("host: weir_0123456789abcdef", "--header: the client sets the header host itself"),
        ("a b: weir_0123456789abcdef", "--header: not the name of a header"),
        ("x: weir_0123456789abcdef\u{7f}", "--header: the value of x contains a character"),
    ] {
        let file = folder.path().join("none.db");
        let output = weir(&["sync", "--from", &url, "--header", header], &file);
        assert_eq!(output.code, 2, "{}", output.err);
        assert!(output.err.contains(reason) && !output.err.contains(SECRET), "{}", output.err);
    }
}

#[test]
fn verify_reports_sound_and_damaged_files() {
    let (_folder, file) = copy_full_index();
    assert_eq!(run_ok(&["verify"], &file), "blocks 0 to 60: sound (level full)\n");
    let node = node();
    let url = format!("http://{}", node.address);
    // The simulated node's transactions have no valid signatures.
    let out = run_failing(&["verify", "--level", "senders", "--from", &url], &file);
    assert!(out.contains("transactions[0].from"), "{out}");
    let other = Weir::node().args(&["--head", "200", "--block-time", "1h", "--seed", "2"]).start();
    let out = run_failing(&["verify", "--from", &format!("http://{}", other.address)], &file);
    assert!(
        out.starts_with("block 0: http") && out.contains("has a block with another hash"),
        "{out}"
    );
    // Changes the stored hash of block 33. The file remains a valid database.
    let mut bytes = std::fs::read(&file).unwrap();
    let hash = reader(&file).store().block(33).unwrap().unwrap().hash;
    let offsets: Vec<usize> =
        (0..bytes.len() - 32).filter(|offset| bytes[*offset..*offset + 32] == hash).collect();
    assert!(!offsets.is_empty());
    offsets.iter().for_each(|offset| bytes[*offset + 20] ^= 1);
    std::fs::write(&file, bytes).unwrap();
    let out = run_failing(&["verify"], &file);
    assert!(out.contains("block 33: hash: found"), "{out}");
    assert!(out.contains("block 34: its parentHash is not the hash of the block before"), "{out}");
    assert!(!out.contains("sound"), "{out}");
}

#[test]
fn verify_prints_the_error_that_a_node_returned() {
    let (_folder, file) = copy_full_index();
    let node = node();
    for (method, expected) in [
        ("eth_chainId", "the index is of chain 424242, http"),
        ("eth_chainId", "did not return its chain id: error -32005: daily limit exceeded"),
        ("eth_getBlockByNumber", "did not return it: error -32005: daily limit exceeded"),
    ] {
        let failing = start_proxy(&node.address, move |request, response| {
            fail_method(request, &response, method)
        });
        let out = run_failing(&["verify", "--from", &failing], &file);
        assert!(out.contains(expected), "{out}");
        assert!(!out.contains("no valid chain id") && !out.contains("does not have it"), "{out}");
    }
    // A response without an error means that the block is missing.
    let behind =
        Weir::node().args(&["--head", "30", "--block-time", "1h", "--txs", "0..6"]).start();
    let out = run_failing(&["verify", "--from", &format!("http://{}", behind.address)], &file);
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
    assert_eq!(run_ok(&["verify"], &file), "blocks 0 to 60: sound (level full)\n");
    let (_other, whole) = copy_full_index();
    assert_eq!(run_ok(&["query", "logs"], &file), run_ok(&["query", "logs"], &whole));
    let out = run_failing(&["query", "receipt", &format!("0x{}", "1".repeat(64))], &file);
    assert!(out.contains("the index has only logs"), "{out}");
    let out = run_failing(&["query", "block", "3"], &file);
    assert!(out.contains("print blocks with --hashes"), "{out}");
}

#[test]
fn response_forms_are_left_to_nodes_until_a_sync_has_compared_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("young.db");
    let new_chain =
        Weir::node().args(&["--head", "0", "--block-time", "1h", "--txs", "0..6"]).start();
    let url = format!("http://{}", new_chain.address);
    let output = weir(&["sync", "--from", &url, "--end", "0"], &file);
    assert!(output.err.contains("until a later sync can compare them"), "{}", output.err);
    let stats = run_ok(&["stats"], &file);
    let unseen = "not seen yet  logs, hashes, transaction, receipt (left to nodes so far)\n";
    assert!(stats.contains(unseen), "{stats}");
    // A later sync tries to compare these forms again. Block 0 has no logs and no transactions.
    run_ok(&["sync", "--from", &url, "--end", "0", "--quiet"], &file);
    assert!(run_ok(&["stats"], &file).contains(unseen));
    sync("blocks,receipts,logs", &node(), &file);
    let stats = run_ok(&["stats"], &file);
    assert!(!stats.contains("not seen yet") && !stats.contains("left to nodes"), "{stats}");
}

#[test]
fn blocks_transactions_and_receipts_are_printed_unchanged() {
    let (_folder, file) = copy_full_index();
    let mut reader = reader(&file);
    for number in [0, 1, 33, LAST] {
        let whole = block(&mut reader, number, TransactionPart::Body);
        assert_eq!(run_ok(&["query", "block", &number.to_string()], &file), whole);
        let hash = serde_json::from_str::<Value>(&whole).unwrap()["hash"].clone();
        assert_eq!(run_ok(&["query", "block", hash.as_str().unwrap()], &file), whole);
        let hashes = block(&mut reader, number, TransactionPart::Hash);
        assert_eq!(run_ok(&["query", "block", &format!("{number:#x}"), "--hashes"], &file), hashes);
    }
    let receipts = receipts(&mut reader);
    let receipt = &receipts[receipts.len() / 2];
    let hash = receipt["transactionHash"].as_str().unwrap();
    let out: Value = serde_json::from_str(&run_ok(&["query", "receipt", hash], &file)).unwrap();
    assert_eq!(out, *receipt);
    let out: Value = serde_json::from_str(&run_ok(&["query", "transaction", hash], &file)).unwrap();
    assert_eq!(
        (&out["hash"], &out["blockHash"]),
        (&receipt["transactionHash"], &receipt["blockHash"])
    );
    let not_stored = "is not stored: the index has blocks 0 to 60";
    let out = run_failing(&["query", "block", "61"], &file);
    assert!(out.contains(&format!("block 61 {not_stored}")), "{out}");
    let unknown_hash = format!("0x{}", "1".repeat(64));
    for item in ["block", "transaction", "receipt"] {
        let out = run_failing(&["query", item, &unknown_hash], &file);
        assert!(out.contains("with this hash is stored: the index has blocks 0 to 60"), "{out}");
    }
    assert_eq!(weir(&["query", "block", "0xg"], &file).code, 2);
}

#[test]
fn logs_are_printed_as_json_lines_and_as_csv() {
    let (_folder, file) = copy_full_index();
    let mut reader = reader(&file);
    let all = logs(&mut reader);
    let print = |arguments: &[&str]| -> Vec<Value> {
        let out = run_ok(&[&["query", "logs"], arguments].concat(), &file);
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert!(all.len() > 50, "only {} logs", all.len());
    assert_eq!(print(&[]), all);
    let filter = |matches: &dyn Fn(&Value) -> bool| -> Vec<Value> {
        all.iter().filter(|log| matches(log)).cloned().collect()
    };
    let sample = all.iter().find(|log| log["topics"].as_array().unwrap().len() > 1).unwrap();
    let address = sample["address"].as_str().unwrap();
    let topic = |position: usize| sample["topics"][position].as_str().unwrap();
    assert_eq!(print(&["--address", address]), filter(&|log| log["address"] == address));
    assert_eq!(print(&["--topic0", topic(0)]), filter(&|log| log["topics"][0] == topic(0)));
    let found = print(&["--address", address, "--topic1", topic(1)]);
    assert_eq!(found, filter(&|log| log["address"] == address && log["topics"][1] == topic(1)));
    assert!(!found.is_empty());
    let other_address =
        all.iter().map(|log| log["address"].as_str().unwrap()).find(|a| *a != address);
    let other_address = other_address.unwrap();
    let found = print(&["--address", address, "--address", other_address]);
    assert_eq!(found, filter(&|log| log["address"] == address || log["address"] == other_address));
    let block_number =
        |log: &Value| u64::from_str_radix(&log["blockNumber"].as_str().unwrap()[2..], 16).unwrap();
    let found = print(&["--from", "20", "--to", "22"]);
    assert_eq!(found, filter(&|log| (20..=22).contains(&block_number(log))));
    assert_eq!(print(&["--limit", "7"]), all[..7]);
    let csv = run_ok(&["query", "logs", "--csv"], &file);
    let mut lines = csv.lines();
    assert_eq!(
        lines.next().unwrap(),
        "block_number,block_hash,block_timestamp,transaction_index,transaction_hash,log_index,\
         address,topic0,topic1,topic2,topic3,data"
    );
    assert_eq!(lines.clone().count(), all.len());
    for (line, log) in lines.zip(&all) {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), 12, "{line}");
        assert_eq!(fields[0], block_number(log).to_string());
        let block = reader.store().block_hash_and_timestamp(block_number(log)).unwrap();
        assert_eq!(fields[2], block.unwrap().1.to_string());
        assert_eq!(fields[4], log["transactionHash"]);
        assert_eq!(fields[6], log["address"]);
        for position in 0..4 {
            assert_eq!(fields[7 + position], log["topics"][position].as_str().unwrap_or_default());
        }
        assert_eq!(fields[11], log["data"]);
    }
    let out = run_failing(&["query", "logs", "--to", "61"], &file);
    assert!(out.contains("blocks 0 to 61: the index has 0 to 60"), "{out}");
    assert_eq!(weir(&["query", "logs", "--address", "0x12"], &file).code, 2);
}

#[test]
fn vacuum_changes_no_query_result() {
    let (_folder, file) = copy_full_index();
    let before = run_ok(&["query", "logs"], &file);
    let out = run_ok(&["vacuum"], &file);
    assert!(out.contains(" bytes) before, ") && out.contains("log postings merged"), "{out}");
    assert_eq!(run_ok(&["query", "logs"], &file), before);
    assert_eq!(run_ok(&["verify"], &file), "blocks 0 to 60: sound (level full)\n");
    let missing = file.with_file_name("missing.db");
    assert!(run_failing(&["vacuum"], &missing).contains("there is no such file"));
    assert!(!missing.exists());
}

#[test]
fn tables_and_requests_are_exported() {
    let (folder, file) = copy_full_index();
    let tables = folder.path().join("tables");
    let corpus = folder.path().join("calls.jsonl");
    let (tables, calls) = (tables.to_str().unwrap(), corpus.to_str().unwrap());
    let arguments =
        ["export", "--out", tables, "--what", "logs,blocks", "--corpus", calls, "--count", "60"];
    let out = run_ok(&arguments, &file);
    assert!(out.contains("blocks.parquet: 61 rows, "), "{out}");
    let rows = logs(&mut reader(&file)).len();
    assert!(out.contains(&format!("logs.parquet: {rows} rows, ")), "{out}");
    let bytes = std::fs::read(folder.path().join("tables/logs.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    assert!(!folder.path().join("tables/transactions.parquet").exists());
    // `weir load` accepts the exported calls, and a node can answer each of them.
    assert_eq!(std::fs::read_to_string(&corpus).unwrap().lines().count(), 60);
    let node = node();
    let url = format!("http://{}", node.address);
    let load = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["load", &url, "--requests", calls, "-n", "60"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&[load.stdout, load.stderr].concat()).into_owned();
    // On a busy machine the run may be invalid (4) or client-limited (5), but every call succeeds.
    let exit_code = load.status.code();
    assert!(matches!(exit_code, Some(0 | 4 | 5)), "{exit_code:?}: {printed}");
    assert!(!printed.contains("rpc error"), "{printed}");
    assert_eq!(weir(&["export"], &file).code, 2);
    let repeated = weir(&["export", "--out", tables], &file);
    assert_eq!(repeated.code, 2, "{}", repeated.err);
    assert!(repeated.err.contains("already has blocks.parquet"), "{}", repeated.err);
    let other = folder.path().join("other");
    let out = run_failing(&["export", "--out", other.to_str().unwrap(), "--to", "99"], &file);
    assert!(out.contains("blocks 0 to 99: the index has 0 to 60"), "{out}");
}
