//! Goal: the index verifies and gives back mainnet's own blocks. Method: a replaying node has
//! recorded blocks (`testdata/mainnet`) under the calls that a sync makes; the program syncs from
//! it, and what the file answers is compared with the recorded text.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use index::reader::Reader;
use index::search::SearchLimits;
use index::serve::{Lookup, QueryContext};
use index::store::Settings;

use test_support::members::{excerpt, items, members};
use test_support::running::{Running, Weir};

/// Block 0 of mainnet, by which a chain is known; nothing else of it is asked.
const GENESIS: &str = r#"{"number":"0x0","hash":"0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3"}"#;

/// A recording that grows call by call.
#[derive(Default)]
struct Recorded(Vec<String>);

impl Recorded {
    fn add(&mut self, method: &str, params: &str, result: &str) {
        self.0.push(format!(
            r#"{{"request":{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}},"response":{{"jsonrpc":"2.0","id":1,"result":{result}}}}}"#
        ));
    }

    /// A node that has it, and whose head is some hundred blocks above this one.
    fn serve(mut self, folder: &Path, number: u64) -> Running {
        self.add("eth_getBlockByNumber", r#"["0x0",false]"#, GENESIS);
        let file = folder.join("recorded.json");
        std::fs::write(&file, format!("[{}]", self.0.join(","))).unwrap();
        let (head, file) = ((number + 500).to_string(), file.to_str().unwrap().to_owned());
        Weir::node().args(&["--head", &head, "--replay", &file]).start()
    }
}

/// A file without the whitespace between its values, as a node says it.
fn recorded(path: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/mainnet/");
    let raw = std::fs::read(format!("{root}{path}")).unwrap();
    let raw = index::fragments::compact_json(&raw).unwrap_or(raw);
    String::from_utf8(raw).unwrap()
}

fn member(raw: &str, name: &str) -> String {
    let members = members(raw);
    let found = members.get(name).unwrap_or_else(|| panic!("no {name} in {}", excerpt(raw)));
    found.get().to_owned()
}

/// The elements of an array, as raw text.
fn listed(raw: &str) -> Vec<String> {
    items(raw).into_iter().map(|item| item.get().to_owned()).collect()
}

fn synced(node: &Running, folder: &Path, what: &str, (from, to): (u64, u64)) -> Reader {
    let file = folder.join("chain.db");
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["index", "sync", "--quiet", "--from", &node.url(), "--what", what])
        .args(["--start", &from.to_string(), "--end", &to.to_string(), "--patience", "10", "--db"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reader = Reader::open(&file, Settings::default()).unwrap().unwrap();
    let held = reader.stored_range().unwrap().unwrap();
    assert_eq!(
        (held.first, held.last, reader.metadata().verification.as_str()),
        (from, to, "full")
    );
    reader
}

fn same(reader: &mut Reader, method: &str, params: &str, expected: &str) {
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
    let blocks = numbers.map(|number| recorded(&format!("nimbus-blocks/{number}.json")));
    let mut recording = Recorded::default();
    for (number, block) in numbers.iter().zip(&blocks) {
        recording.add("eth_getBlockByNumber", &format!(r#"["{number:#x}",true]"#), block);
        for transaction in listed(&member(block, "transactions")) {
            let hash = member(&transaction, "hash");
            recording.add("eth_getTransactionByHash", &format!("[{hash}]"), &transaction);
        }
    }
    let node = recording.serve(folder.path(), numbers[1]);
    let mut reader = synced(&node, folder.path(), "blocks", (numbers[0], numbers[1]));
    let mut transactions = 0;
    for (number, block) in numbers.iter().zip(&blocks) {
        same(&mut reader, "eth_getBlockByNumber", &format!(r#"["{number:#x}",true]"#), block);
        let hash = member(block, "hash");
        same(&mut reader, "eth_getBlockByHash", &format!("[{hash},true]"), block);
        for (index, transaction) in listed(&member(block, "transactions")).iter().enumerate() {
            let own = member(transaction, "hash");
            same(&mut reader, "eth_getTransactionByHash", &format!("[{own}]"), transaction);
            let place = format!(r#"[{hash},"{index:#x}"]"#);
            same(&mut reader, "eth_getTransactionByBlockHashAndIndex", &place, transaction);
            transactions += 1;
        }
    }
    assert_eq!(transactions, 97 + 249);
}

#[test]
fn logs_of_a_block() {
    let folder = tempfile::tempdir().unwrap();
    let number = 21_925_176;
    let (block, receipts) = (recorded("helios/block.json"), recorded("helios/receipts.json"));
    let logs: Vec<String> =
        listed(&receipts).iter().flat_map(|receipt| listed(&member(receipt, "logs"))).collect();
    assert_eq!(logs.len(), 463);
    let all = format!("[{}]", logs.join(","));
    let range = format!(r#""fromBlock":"{number:#x}","toBlock":"{number:#x}""#);
    let mut recording = Recorded::default();
    recording.add("eth_getBlockByNumber", &format!(r#"["{number:#x}",false]"#), &block);
    recording.add("eth_getLogs", &format!("[{{{range}}}]"), &all);
    let node = recording.serve(folder.path(), number);
    let mut reader = synced(&node, folder.path(), "logs", (number, number));
    same(&mut reader, "eth_getBlockByNumber", &format!(r#"["{number:#x}",false]"#), &block);
    same(&mut reader, "eth_getLogs", &format!("[{{{range}}}]"), &all);
    let addresses: BTreeSet<String> = logs.iter().map(|log| member(log, "address")).collect();
    assert_eq!(addresses.len(), 140);
    for address in addresses {
        let own: Vec<&str> = logs
            .iter()
            .filter(|log| member(log, "address") == address)
            .map(String::as_str)
            .collect();
        let params = format!(r#"[{{{range},"address":{address}}}]"#);
        same(&mut reader, "eth_getLogs", &params, &format!("[{}]", own.join(",")));
    }
}
