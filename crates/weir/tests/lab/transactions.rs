//! Goal: `weir check` and `weir load` handle files of signed transactions. Method: the test signs
//! transactions and sends them to a simulated node, which never includes transactions of its pool
//! in a block.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use test_support::proxy::start_proxy;
use test_support::raw::Client;
use test_support::running::{Running, Weir};
use test_support::signing::{Account, hex};

/// Runs the program. Returns its exit code, and its standard output followed by its errors.
fn weir(arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(test_support::running::weir());
    let Output { status, stdout, stderr } =
        command.args(arguments).stdin(Stdio::null()).output().unwrap();
    (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

/// Returns the node's chain id.
fn fetch_chain_id(node: &Running) -> u64 {
    let call = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;
    let response = Client::connect(&node.address).call("/", call);
    let response: Value = serde_json::from_str(response.text()).unwrap();
    let id = response["result"].as_str().unwrap().trim_start_matches("0x").to_owned();
    u64::from_str_radix(&id, 16).unwrap()
}

/// Writes a file with `count` signed transfers of each of two senders, and a plan that sends them
/// and ends with `sections`. Returns the plan's path.
fn write_plan(folder: &Path, url: &str, chain_id: u64, count: u64, sections: &str) -> String {
    let recipient = Account::numbered(99).address;
    let lines: Vec<String> = (0..count)
        .flat_map(|nonce| {
            [1, 2].map(|account| {
                hex(&Account::numbered(account).transfer(chain_id, nonce, recipient))
            })
        })
        .collect();
    std::fs::write(folder.join("transactions.txt"), lines.join("\n")).unwrap();
    let plan = format!(
        "[target]\nurl = \"{url}\"\n[[scenario]]\nmix = \"signed\"\nworkers_max = 4\n\
         stages = [{{ duration = \"30s\", rate = 50 }}]\n\
         [mix.signed]\ntransactions = \"transactions.txt\"\n{sections}"
    );
    let path = folder.join("plan.toml");
    std::fs::write(&path, plan).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn transactions_in_no_block_are_pending() {
    let node = Weir::node().start();
    let folder = TempDir::new().unwrap();
    let sections = "[validity]\nscheduling_delay_p99_max = \"10m\"\nwaited_share_max = 1\n\
                [inclusion]\nwait = \"1s\"\n[thresholds]\npending = \"count==0\"\n";
    let plan = write_plan(folder.path(), &node.url(), fetch_chain_id(&node), 5, sections);
    let out = folder.path().join("out");
    let (code, text) = weir(&["load", &plan, "--out", out.to_str().unwrap()]);
    assert_eq!(code, 3, "{text}");
    let result = std::fs::read(out.join("result.json")).unwrap();
    let result: Value = serde_json::from_slice(&result).unwrap();
    let row = &result["transactions"];
    let counts = ["total", "sent", "accepted", "refused"].map(|name| row[name].as_u64().unwrap());
    assert_eq!(counts, [10, 10, 10, 0], "{row}");
    assert_eq!(row["inclusion"]["pending"], 10, "{row}");
    assert!(text.contains("10 of 10") && text.contains("were in no block"), "{text}");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("id=\"transactions\"") && page.contains("pending"));

    // The node's pool still holds all transactions of the first run.
    let (_, text) = weir(&["load", &plan]);
    assert!(text.contains("10 of 10 sent transactions were refused"), "{text}");
    assert!(text.contains("already known"), "{text}");
}

#[test]
fn used_nonces_are_named_before_anything_is_sent() {
    let node = Weir::node().start();
    let url = start_proxy(&node.address, |request, response| {
        match request.contains("eth_getTransactionCount") {
            true => r#"{"jsonrpc":"2.0","id":1,"result":"0x2"}"#.to_owned(),
            false => {
                assert!(!request.contains("eth_sendRawTransaction"), "{request}");
                response
            }
        }
    });
    let folder = TempDir::new().unwrap();
    let plan = write_plan(folder.path(), &url, fetch_chain_id(&node), 5, "");
    let (code, text) = weir(&["load", &plan]);
    assert_eq!(code, 1, "{text}");
    let sender = Account::numbered(1).address;
    let expected = format!("2 of 5 transactions of {sender} are used: its next nonce is 2");
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn the_example_of_the_page_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/transaction-load.md")).unwrap();
    let plan = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = TempDir::new().unwrap();
    let path = write_plan(folder.path(), "http://127.0.0.1:1", 1337, 3, "");
    std::fs::write(&path, plan).unwrap();
    let (code, text) = weir(&["check", &path]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("6 signed transactions of 2 senders, each sent once"), "{text}");
}

#[test]
fn faults_of_a_file_have_their_line() {
    let folder = TempDir::new().unwrap();
    let path = write_plan(folder.path(), "http://127.0.0.1:1", 1337, 3, "");
    let file = folder.path().join("transactions.txt");
    let lines = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{lines}\n0xnothex\n")).unwrap();
    let (code, text) = weir(&["check", &path]);
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("transactions.txt:7:1: not hexadecimal"), "{text}");
}

#[test]
fn a_capacity_search_refuses_transactions() {
    let node = Weir::node().start();
    let folder = TempDir::new().unwrap();
    let path = write_plan(folder.path(), &node.url(), fetch_chain_id(&node), 3, "");
    let (code, text) = weir(&["capacity", &path]);
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("sends signed transactions"), "{text}");
}
