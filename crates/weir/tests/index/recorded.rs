//! Goal: the index verifies blocks of mainnet and returns them unchanged. Method: a simulated node
//! replays recorded responses (`testdata/mainnet`) to the calls that a sync makes. The program
//! syncs from the node, and the index's responses are compared with the recorded text.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use index::reader::Reader;
use index::search::SearchLimits;
use index::serve::{Lookup, QueryContext};
use index::store::Settings;

use test_support::members::{excerpt, items, members};
use test_support::running::{Running, Weir};

/// Number and hash of mainnet's block 0, which identify the chain. A sync needs no other field.
const GENESIS: &str = r#"{"number":"0x0","hash":"0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3"}"#;

/// Calls and their responses, in the format that `weir node --replay` reads.
#[derive(Default)]
struct Recording(Vec<String>);

impl Recording {
    fn add(&mut self, method: &str, params: &str, result: &str) {
        self.0.push(format!(
            r#"{{"request":{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}},"response":{{"jsonrpc":"2.0","id":1,"result":{result}}}}}"#
        ));
    }

    /// Starts a node that replays the recording. The node's newest block is 500 blocks above
    /// `number`.
    fn serve(mut self, folder: &Path, number: u64) -> Running {
        self.add("eth_getBlockByNumber", r#"["0x0",false]"#, GENESIS);
        let file = folder.join("recorded.json");
        std::fs::write(&file, format!("[{}]", self.0.join(","))).unwrap();
        let (head, file) = ((number + 500).to_string(), file.to_str().unwrap().to_owned());
        Weir::node().args(&["--head", &head, "--replay", &file]).start()
    }
}

/// Reads a recorded response without whitespace between its values, as a node sends it.
fn read_recorded(path: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/mainnet/");
    let raw = std::fs::read(format!("{root}{path}")).unwrap();
    let raw = index::fragments::compact_json(&raw).unwrap_or(raw);
    String::from_utf8(raw).unwrap()
}

/// Returns the value of a member of an object, as raw JSON.
fn member(raw: &str, name: &str) -> String {
    let members = members(raw);
    let found = members.get(name).unwrap_or_else(|| panic!("no {name} in {}", excerpt(raw)));
    found.get().to_owned()
}

/// Returns the elements of an array, as raw JSON.
fn elements(raw: &str) -> Vec<String> {
    items(raw).into_iter().map(|item| item.get().to_owned()).collect()
}

/// Syncs a range of blocks and opens the index.
fn sync_and_open(node: &Running, folder: &Path, what: &str, (from, to): (u64, u64)) -> Reader {
    let file = folder.join("chain.db");
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["index", "sync", "--quiet", "--from", &node.url(), "--what", what])
        .args(["--start", &from.to_string(), "--end", &to.to_string(), "--patience", "10", "--db"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reader = Reader::open(&file, Settings::default()).unwrap().unwrap();
    let stored = reader.stored_range().unwrap().unwrap();
    assert_eq!(
        (stored.first, stored.last, reader.metadata().verification.as_str()),
        (from, to, "full")
    );
    reader
}

/// Asserts that the index's result of a call equals the recorded one.
fn assert_same(reader: &mut Reader, method: &str, params: &str, expected: &str) {
    let context = QueryContext {
        finalized: Some(u64::MAX),
        is_canonical: &|_, _| true,
        limits: SearchLimits::NONE,
    };
    let Lookup::Full(ours) = reader.lookup(method, params.as_bytes(), &context).unwrap() else {
        panic!("{method} {params}: not answered; unlike: {:?}", reader.metadata().differing_forms)
    };
    let ours = String::from_utf8(ours).unwrap();
    assert!(
        ours == expected,
        "{method} {params}\nours:     {}\nrecorded: {}",
        excerpt(&ours),
        excerpt(expected)
    );
}

#[test]
fn blocks_with_their_transactions() {
    let folder = tempfile::tempdir().unwrap();
    let numbers = [22_431_089, 22_431_090];
    let blocks = numbers.map(|number| read_recorded(&format!("nimbus-blocks/{number}.json")));
    let mut recording = Recording::default();
    for (number, block) in numbers.iter().zip(&blocks) {
        recording.add("eth_getBlockByNumber", &format!(r#"["{number:#x}",true]"#), block);
        for transaction in elements(&member(block, "transactions")) {
            let hash = member(&transaction, "hash");
            recording.add("eth_getTransactionByHash", &format!("[{hash}]"), &transaction);
        }
    }
    let node = recording.serve(folder.path(), numbers[1]);
    let mut reader = sync_and_open(&node, folder.path(), "blocks", (numbers[0], numbers[1]));
    let mut transactions = 0;
    for (number, block) in numbers.iter().zip(&blocks) {
        assert_same(
            &mut reader,
            "eth_getBlockByNumber",
            &format!(r#"["{number:#x}",true]"#),
            block,
        );
        let hash = member(block, "hash");
        assert_same(&mut reader, "eth_getBlockByHash", &format!("[{hash},true]"), block);
        for (index, transaction) in elements(&member(block, "transactions")).iter().enumerate() {
            let transaction_hash = member(transaction, "hash");
            assert_same(
                &mut reader,
                "eth_getTransactionByHash",
                &format!("[{transaction_hash}]"),
                transaction,
            );
            let position = format!(r#"[{hash},"{index:#x}"]"#);
            assert_same(
                &mut reader,
                "eth_getTransactionByBlockHashAndIndex",
                &position,
                transaction,
            );
            transactions += 1;
        }
    }
    assert_eq!(transactions, 97 + 249);
}

#[test]
fn logs_of_a_block() {
    let folder = tempfile::tempdir().unwrap();
    let number = 21_925_176;
    let (block, receipts) =
        (read_recorded("helios/block.json"), read_recorded("helios/receipts.json"));
    let logs: Vec<String> =
        elements(&receipts).iter().flat_map(|receipt| elements(&member(receipt, "logs"))).collect();
    assert_eq!(logs.len(), 463);
    let all_logs = format!("[{}]", logs.join(","));
    let range = format!(r#""fromBlock":"{number:#x}","toBlock":"{number:#x}""#);
    let mut recording = Recording::default();
    recording.add("eth_getBlockByNumber", &format!(r#"["{number:#x}",false]"#), &block);
    recording.add("eth_getLogs", &format!("[{{{range}}}]"), &all_logs);
    let node = recording.serve(folder.path(), number);
    let mut reader = sync_and_open(&node, folder.path(), "logs", (number, number));
    assert_same(&mut reader, "eth_getBlockByNumber", &format!(r#"["{number:#x}",false]"#), &block);
    assert_same(&mut reader, "eth_getLogs", &format!("[{{{range}}}]"), &all_logs);
    let addresses: BTreeSet<String> = logs.iter().map(|log| member(log, "address")).collect();
    assert_eq!(addresses.len(), 140);
    for address in addresses {
        let matching_logs: Vec<&str> = logs
            .iter()
            .filter(|log| member(log, "address") == address)
            .map(String::as_str)
            .collect();
        let params = format!(r#"[{{{range},"address":{address}}}]"#);
        assert_same(&mut reader, "eth_getLogs", &params, &format!("[{}]", matching_logs.join(",")));
    }
}
