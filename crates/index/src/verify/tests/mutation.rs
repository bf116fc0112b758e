//! Goal: a change of any member is rejected, and the error names the member or the hash that covers
//! it. Method: each member of real and synthetic responses is changed in turn. The lists
//! `UNDETECTED_...` name the changes that no check detects. Each entry of these lists must occur.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::test_block::{self, TestBlock};
use super::{block_with_hashes, folder, json, raw, response, unwrap_result};
use crate::verify::{
    Block, Error, Level, verify_block, verify_header, verify_logs, verify_receipts,
};

/// The way in which a member is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// Another value of almost the same form. An additional digit may also make the value
    /// malformed.
    Value,
    /// The member becomes null.
    Null,
    /// The member is removed.
    Removed,
    /// A JSON number, although no member is a number.
    Form,
    /// An array without its last element.
    Shorter,
}

use Change::{Form, Null, Removed, Shorter};

/// A position in a response.
#[derive(Debug, Clone)]
struct Position {
    /// The JSON pointer, such as `/transactions/3/value`.
    pointer: String,
    /// The path as errors name it, such as `transactions[3].value`.
    path: String,
    /// The path with `*` for each index.
    pattern: String,
    /// The type of the transaction to which the position belongs; empty outside of transactions.
    kind: String,
}

/// Changes that no check detects. Each entry has the pattern of the member, the transaction types
/// separated by spaces (empty for all types), and the changes.
type UndetectedChanges = &'static [(&'static str, &'static str, &'static [Change])];

/// The changes after which an optional member is missing.
const ABSENT: &[Change] = &[Null, Removed];

const UNDETECTED_IN_BLOCKS: UndetectedChanges = &[
    // It is the sum over all previous blocks.
    ("totalDifficulty", "", &[Change::Value, Null, Removed]),
    // Only the signature covers it, at `Level::Senders`.
    ("transactions[*].from", "", &[Change::Value]),
    // It is not in the standard; some nodes recover it.
    ("transactions[*].authorizationList[*].authority", "", &[Change::Value, Null, Removed, Form]),
    ("size", "", ABSENT),
    ("uncles", "", ABSENT),
    ("transactions[*].blockTimestamp", "", ABSENT),
    ("transactions[*].type", "0x0", ABSENT),
    ("transactions[*].chainId", "0x0", ABSENT),
    ("transactions[*].gasPrice", "0x2 0x3 0x4", ABSENT),
    // One of the two members suffices.
    ("transactions[*].v", "0x1 0x2 0x3 0x4", ABSENT),
    ("transactions[*].yParity", "0x1 0x2 0x3 0x4", ABSENT),
];

/// A block lists the hashes of its uncles, but `sha3Uncles` hashes their headers.
const UNDETECTED_BESIDE_UNCLES: UndetectedChanges = &[
    ("uncles[*]", "", &[Change::Value]),
    ("size", "", &[Change::Value, Null, Removed]),
    ("transactions[*].from", "", &[Change::Value]),
    ("transactions[*].blockTimestamp", "", ABSENT),
    ("transactions[*].type", "0x0", ABSENT),
    ("transactions[*].chainId", "0x0", ABSENT),
    ("transactions[*].v", "0x1", ABSENT),
    ("transactions[*].yParity", "0x1", ABSENT),
];

const UNDETECTED_IN_RECEIPTS: UndetectedChanges = &[
    ("receipts[*].type", "", ABSENT),
    ("receipts[*].blockTimestamp", "", ABSENT),
    ("receipts[*].effectiveGasPrice", "", ABSENT),
    ("receipts[*].blobGasUsed", "", ABSENT),
    ("receipts[*].blobGasPrice", "", ABSENT),
    ("receipts[*].logs[*].blockTimestamp", "", ABSENT),
    ("receipts[*].logs[*].removed", "", ABSENT),
];

/// Further changes that no check detects if the block has only the hashes of its transactions.
const UNDETECTED_IN_RECEIPTS_ALONE: UndetectedChanges = &[
    ("receipts[*].from", "", &[Change::Value, Null, Removed, Form]),
    ("receipts[*].to", "", &[Change::Value, Null, Removed, Form]),
    ("receipts[*].contractAddress", "", &[Change::Value, Form]),
    ("receipts[*].effectiveGasPrice", "", &[Change::Value, Null, Removed, Form]),
    ("receipts[*].type", "0x0", ABSENT),
    ("receipts[*].logs[*].removed", "", ABSENT),
];

const UNDETECTED_IN_LOGS: UndetectedChanges = &[
    // Only the receipts' root covers them, together with the receipts.
    ("logs[*].data", "", &[Change::Value]),
    ("logs[*].blockTimestamp", "", ABSENT),
    ("logs[*].removed", "", ABSENT),
];

/// Returns true if a change at this position may cause an error that names `field`.
fn covers(field: &str, position: &Position) -> bool {
    let path = position.path.as_str();
    // The path of the element of a list to which the position belongs.
    let element_path = |list: &str| {
        path.strip_prefix(list)
            .and_then(|rest| rest.find(']').map(|end| &path[..list.len() + end + 1]))
    };
    if field == path {
        return true;
    }
    if let Some(transaction) = element_path("transactions[") {
        // The transaction's hash covers every member, so the error may name the hash.
        return field.starts_with(&format!("{transaction}."));
    }
    if let Some(receipt) = element_path("receipts[") {
        let pattern = position.pattern.strip_prefix("receipts[*].").unwrap_or_default();
        // The other member of the receipt that the error may name.
        let other_member = match pattern {
            "cumulativeGasUsed" => "gasUsed",
            // Only one of the two members exists.
            "root" => "status",
            "logs[*].address" | "logs[*].topics" | "logs[*].topics[*]" | "logs" => "logsBloom",
            _ => "",
        };
        // Two logs may have the same topics, and no bloom covers the other members.
        let covered_by_root = ["status", "root", "type", "logs[*].topics", "logs[*].data", "logs"];
        return field == format!("{receipt}.{other_member}")
            || (covered_by_root.contains(&pattern) && field == "receiptsRoot")
            // All receipts with blobs have the same price.
            || (pattern == "blobGasPrice" && field.ends_with(".blobGasPrice"))
            // The logs of the next receipt get other indexes.
            || (pattern == "logs" && field.ends_with(".logIndex"));
    }
    match position.pattern.as_str() {
        "transactions" => field == "transactionsRoot",
        "receipts" => field == "receipts",
        "logs" => field == "logsBloom",
        "logs[*].transactionIndex" => field == path.replace("Index", "Hash"),
        "logs[*].address" | "logs[*].topics" | "logs[*].topics[*]" => field == "logsBloom",
        "withdrawals" => field == "withdrawalsRoot",
        pattern if pattern.starts_with("withdrawals[") => field == "withdrawalsRoot",
        pattern => !pattern.contains('[') && field == "hash",
    }
}

/// Adds all positions below a value to `found`.
fn collect_positions(value: &Value, parent: &Position, found: &mut Vec<Position>) {
    match value {
        Value::Object(members) => {
            let kind = members.get("type").and_then(Value::as_str).unwrap_or(&parent.kind);
            for (name, member) in members {
                let separator = if parent.path.is_empty() { "" } else { "." };
                let child = Position {
                    pointer: format!("{}/{name}", parent.pointer),
                    path: format!("{}{separator}{name}", parent.path),
                    pattern: format!("{}{separator}{name}", parent.pattern),
                    kind: kind.to_owned(),
                };
                collect_positions(member, &child, found);
                found.push(child);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                let child = Position {
                    pointer: format!("{}/{index}", parent.pointer),
                    path: format!("{}[{index}]", parent.path),
                    pattern: format!("{}[*]", parent.pattern),
                    kind: parent.kind.clone(),
                };
                collect_positions(element, &child, found);
                found.push(child);
            }
        }
        _ => {}
    }
}

/// Returns at most `per_pattern` positions of each pattern and transaction type: the first, the
/// last, and positions in equal steps between.
fn sample_positions(value: &Value, root: &str, per_pattern: usize) -> Vec<Position> {
    let root_position = Position {
        pointer: String::new(),
        path: root.to_owned(),
        pattern: root.to_owned(),
        kind: String::new(),
    };
    let mut found = Vec::new();
    collect_positions(value, &root_position, &mut found);
    let mut groups: BTreeMap<(String, String), Vec<Position>> = BTreeMap::new();
    for position in found {
        groups.entry((position.pattern.clone(), position.kind.clone())).or_default().push(position);
    }
    let sample = |positions: Vec<Position>| {
        let last_index = positions.len() - 1;
        let steps = per_pattern.saturating_sub(1).max(1);
        let indexes: BTreeSet<usize> =
            (0..per_pattern).map(|step| last_index * step / steps).collect();
        indexes.into_iter().map(move |index| positions[index].clone())
    };
    groups.into_values().flat_map(sample).collect()
}

/// Returns the changes of one value, each with the new value; `None` removes the member.
fn changes(value: &Value, in_array: bool) -> Vec<(Change, Option<Value>)> {
    let mut changes = vec![(Form, Some(json!(7)))];
    if !value.is_null() {
        changes.push((Null, Some(Value::Null)));
    }
    if !in_array {
        changes.push((Removed, None));
    }
    let value_to = |text: String| (Change::Value, Some(Value::from(text)));
    match value {
        Value::String(text) if text == "0x" => changes.push(value_to("0x00".to_owned())),
        Value::String(text) => {
            let digit =
                |index: usize| text[index..=index].chars().next().unwrap().to_digit(16).unwrap();
            let last_index = text.len() - 1;
            changes.push(value_to(format!("{}{:x}", &text[..last_index], digit(last_index) ^ 1)));
            changes.push(value_to(format!("0x{:x}{}", digit(2) % 15 + 1, &text[3..])));
            changes.push(value_to(format!("{text}0")));
        }
        Value::Bool(value) => changes.push((Change::Value, Some(json!(!value)))),
        Value::Null => changes.push(value_to(format!("0x{}", "1".repeat(40)))),
        Value::Array(elements) if !elements.is_empty() => {
            let shorter = Value::from(elements[..elements.len() - 1].to_vec());
            changes.push((Shorter, Some(shorter)));
        }
        _ => {}
    }
    // A change to the same value is no change.
    changes.retain(|(_, changed)| changed.as_ref() != Some(value));
    changes
}

/// A test that changes responses.
struct Mutations {
    undetected: UndetectedChanges,
    /// The undetected changes that have occurred, each with the index of its entry.
    occurred: BTreeSet<(usize, Change)>,
    /// Number of rejected changes.
    rejected: usize,
}

impl Mutations {
    fn new(undetected: UndetectedChanges) -> Self {
        Self { undetected, occurred: BTreeSet::new(), rejected: 0 }
    }

    /// Returns the index of the entry for an undetected change, or `None` if there is no such
    /// entry.
    fn find_entry(&self, position: &Position, change: Change) -> Option<usize> {
        self.undetected.iter().position(|(pattern, kinds, changes)| {
            let has_kind = kinds.is_empty() || kinds.split(' ').any(|kind| kind == position.kind);
            *pattern == position.pattern && has_kind && changes.contains(&change)
        })
    }

    /// Changes each sampled member of `response` in turn.
    fn run(
        &mut self,
        response: &Value,
        root: &str,
        per_pattern: usize,
        check: impl Fn(&[u8]) -> Result<(), Error>,
    ) {
        check(&raw(response)).unwrap();
        let positions = sample_positions(response, root, per_pattern);
        assert!(positions.len() > 10, "nothing to change");
        for position in positions {
            let value = response.pointer(&position.pointer).unwrap();
            let (parent, name) = position.pointer.rsplit_once('/').unwrap();
            let in_array = response.pointer(parent).unwrap().is_array();
            for (change, changed) in changes(value, in_array) {
                let mut changed_response = response.clone();
                match changed {
                    Some(changed) => {
                        *changed_response.pointer_mut(&position.pointer).unwrap() = changed
                    }
                    None => {
                        let object =
                            changed_response.pointer_mut(parent).unwrap().as_object_mut().unwrap();
                        object.remove(name);
                    }
                }
                let result = check(&raw(&changed_response));
                let description =
                    || format!("{change:?} of {} ({}): {result:?}", position.path, position.kind);
                if let Some(entry) = self.find_entry(&position, change) {
                    // An additional digit may also make the value malformed, which is rejected.
                    let is_malformed = result.as_ref().is_err_and(|error| {
                        change == Change::Value && error.field == position.path
                    });
                    assert!(result.is_ok() || is_malformed, "{}", description());
                    if result.is_ok() {
                        self.occurred.insert((entry, change));
                    }
                } else if value.is_null() && change == Removed {
                    assert!(result.is_ok(), "{}", description());
                } else {
                    let field = result.as_ref().err().map(|error| error.field.as_str());
                    assert!(
                        field.is_some_and(|field| covers(field, &position)),
                        "{}",
                        description()
                    );
                    self.rejected += 1;
                }
            }
        }
    }

    /// Checks that each entry of the list has occurred, and that enough changes were rejected.
    fn end(&self, rejected_min: usize) {
        for (entry, (pattern, _, changes)) in self.undetected.iter().enumerate() {
            for change in *changes {
                assert!(
                    self.occurred.contains(&(entry, *change)),
                    "{pattern}: {change:?} never occurred"
                );
            }
        }
        assert!(self.rejected >= rejected_min, "only {} rejected", self.rejected);
    }
}

fn full(raw: &[u8]) -> Result<(), Error> {
    verify_block(raw, Level::Full).map(|_| ())
}

#[test]
fn changed_blocks_are_rejected() {
    let mut mutations = Mutations::new(UNDETECTED_IN_BLOCKS);
    mutations.run(&TestBlock::new().block, "", 3, full);
    // One block of each fork that changed blocks or transactions.
    let chain = test_block::chain();
    for number in [1, 24, 27, 30, 37, 39, 42, 45, 53] {
        mutations.run(&chain[number - 1], "", 2, full);
    }
    mutations.run(&response("eth_getBlockByNumber/get-safe.io"), "", 2, full);
    for file in ["op-service-goerli/blocks/post-shanghai-success_data", "nimbus-blocks/Frontier"] {
        mutations.run(&unwrap_result(json(&folder(&format!("mainnet/{file}.json")))), "", 2, full);
    }
    mutations.run(&unwrap_result(json(&folder("mainnet/nimbus-blocks/Cancun.json"))), "", 1, full);
    mutations.end(5_000);

    let mut mutations = Mutations::new(UNDETECTED_BESIDE_UNCLES);
    // Blocks with uncles.
    for number in [3, 29] {
        mutations.run(&chain[number - 1], "", 2, full);
    }
    mutations.end(500);
}

#[test]
fn changed_headers_are_rejected() {
    const UNDETECTED: UndetectedChanges =
        &[("totalDifficulty", "", &[Change::Value, Null, Removed])];
    let mut mutations = Mutations::new(UNDETECTED);
    let file = "mainnet/op-service-goerli/headers/post-shanghai-success_data.json";
    let mut sample = json(&folder(file));
    let members = sample.as_object_mut().unwrap();
    members.retain(|name, value| !value.is_array() && name != "size");
    mutations.run(&sample, "", 1, |raw| verify_header(raw, Level::Headers).map(|_| ()));
    mutations.end(100);
}

#[test]
fn changed_senders_are_rejected() {
    let sample = TestBlock::new().block;
    let mut count = 0;
    for position in sample_positions(&sample, "", 100)
        .into_iter()
        .filter(|position| position.pattern == "transactions[*].from")
    {
        let mut changed = sample.clone();
        *changed.pointer_mut(&position.pointer).unwrap() = json!(format!("0x{}", "5".repeat(40)));
        full(&raw(&changed)).unwrap();
        assert_eq!(verify_block(&raw(&changed), Level::Senders).unwrap_err().field, position.path);
        count += 1;
    }
    assert_eq!(count, 9);
}

#[test]
fn changed_receipts_are_rejected() {
    let mut mutations = Mutations::new(UNDETECTED_IN_RECEIPTS);
    let check = |block: Block| move |raw: &[u8]| verify_receipts(&block, raw, Level::Full);
    let sample = TestBlock::new();
    let verified_sample = verify_block(&raw(&sample.block), Level::Full).unwrap();
    mutations.run(&sample.receipts, "receipts", 3, check(verified_sample));
    for (block_file, receipts_file) in [
        ("eth_getBlockByHash/get-block-by-hash.io", "get-block-receipts-by-hash.io"),
        ("eth_getBlockByNumber/get-safe.io", "get-block-receipts-latest.io"),
    ] {
        let block = verify_block(&raw(&response(block_file)), Level::Full).unwrap();
        let sample = response(&format!("eth_getBlockReceipts/{receipts_file}"));
        mutations.run(&sample, "receipts", 2, check(block));
    }
    mutations.end(600);

    let mut mutations = Mutations::new(UNDETECTED_IN_RECEIPTS_ALONE);
    let block = block_with_hashes(&json(&folder("mainnet/helios/block.json")));
    mutations.run(&json(&folder("mainnet/helios/receipts.json")), "receipts", 1, check(block));
    mutations.end(100);
}

#[test]
fn changed_logs_are_rejected() {
    let mut mutations = Mutations::new(UNDETECTED_IN_LOGS);
    let sample = TestBlock::new();
    let block = verify_block(&raw(&sample.block), Level::Full).unwrap();
    mutations.run(&sample.logs(), "logs", 5, |raw| verify_logs(&block, raw, Level::Headers));
    mutations.end(150);
}
