//! Goal: a change of any member is rejected, and the error names the member or its binding. Method:
//! each member of real and synthetic responses is changed in turn. Lists name the members that
//! nothing binds, and each entry must occur.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::test_block::{self, TestBlock};
use super::{bare_block, folder, json, raw, response, result};
use crate::verify::{Block, Error, Level, block, header, logs, receipts};

/// How a member is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// Another value of almost the same form; one more digit may also make it malformed.
    Value,
    Null,
    Removed,
    /// A number, which no member is.
    Form,
    /// An array without its last element.
    Shorter,
}

use Change::{Form, Null, Removed, Shorter};

/// A position in a response, and its pattern with `*` for each index.
#[derive(Debug, Clone)]
struct Spot {
    pointer: String,
    path: String,
    pattern: String,
    /// The type of its transaction, if it belongs to one.
    kind: String,
}

/// The changes that nothing detects: patterns, transaction types (all if empty), changes.
type Unbound = &'static [(&'static str, &'static str, &'static [Change])];

/// The change of an optional member that is missing afterwards.
const ABSENT: &[Change] = &[Null, Removed];

const UNBOUND_IN_BLOCKS: Unbound = &[
    // It is the sum of all blocks before.
    ("totalDifficulty", "", &[Change::Value, Null, Removed]),
    // Only the signature binds it, at `Level::Senders`.
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
const UNBOUND_BESIDE_UNCLES: Unbound = &[
    ("uncles[*]", "", &[Change::Value]),
    ("size", "", &[Change::Value, Null, Removed]),
    ("transactions[*].from", "", &[Change::Value]),
    ("transactions[*].blockTimestamp", "", ABSENT),
    ("transactions[*].type", "0x0", ABSENT),
    ("transactions[*].chainId", "0x0", ABSENT),
    ("transactions[*].v", "0x1", ABSENT),
    ("transactions[*].yParity", "0x1", ABSENT),
];

const UNBOUND_IN_RECEIPTS: Unbound = &[
    ("receipts[*].type", "", ABSENT),
    ("receipts[*].blockTimestamp", "", ABSENT),
    ("receipts[*].effectiveGasPrice", "", ABSENT),
    ("receipts[*].blobGasUsed", "", ABSENT),
    ("receipts[*].blobGasPrice", "", ABSENT),
    ("receipts[*].logs[*].blockTimestamp", "", ABSENT),
    ("receipts[*].logs[*].removed", "", ABSENT),
];

/// More changes that nothing detects without the transactions.
const UNBOUND_IN_BARE_RECEIPTS: Unbound = &[
    ("receipts[*].from", "", &[Change::Value, Null, Removed, Form]),
    ("receipts[*].to", "", &[Change::Value, Null, Removed, Form]),
    ("receipts[*].contractAddress", "", &[Change::Value, Form]),
    ("receipts[*].effectiveGasPrice", "", &[Change::Value, Null, Removed, Form]),
    ("receipts[*].type", "0x0", ABSENT),
    ("receipts[*].logs[*].removed", "", ABSENT),
];

const UNBOUND_IN_LOGS: Unbound = &[
    // Only the receipts' root binds them, together with the receipts.
    ("logs[*].data", "", &[Change::Value]),
    ("logs[*].blockTimestamp", "", ABSENT),
    ("logs[*].removed", "", ABSENT),
];

/// Returns true if an error of this field may result from a change at this spot.
fn covers(field: &str, spot: &Spot) -> bool {
    let path = spot.path.as_str();
    let of_element = |list: &str| {
        path.strip_prefix(list)
            .and_then(|rest| rest.find(']').map(|end| &path[..list.len() + end + 1]))
    };
    if field == path {
        return true;
    }
    if let Some(transaction) = of_element("transactions[") {
        // An error of the hash covers every member that it binds.
        return field.starts_with(&format!("{transaction}."));
    }
    if let Some(receipt) = of_element("receipts[") {
        let pattern = spot.pattern.strip_prefix("receipts[*].").unwrap_or_default();
        let bound = match pattern {
            "cumulativeGasUsed" => "gasUsed",
            // Only one of the two members exists.
            "root" => "status",
            "logs[*].address" | "logs[*].topics" | "logs[*].topics[*]" | "logs" => "logsBloom",
            _ => "",
        };
        // Two logs may have the same topics, and no bloom covers the other members.
        let in_root = ["status", "root", "type", "logs[*].topics", "logs[*].data", "logs"];
        return field == format!("{receipt}.{bound}")
            || (in_root.contains(&pattern) && field == "receiptsRoot")
            // All receipts with blobs have the same price.
            || (pattern == "blobGasPrice" && field.ends_with(".blobGasPrice"))
            // The logs of the next receipt get other indexes.
            || (pattern == "logs" && field.ends_with(".logIndex"));
    }
    match spot.pattern.as_str() {
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

/// Every position below a value.
fn spots(value: &Value, at: &Spot, found: &mut Vec<Spot>) {
    match value {
        Value::Object(members) => {
            let kind = members.get("type").and_then(Value::as_str).unwrap_or(&at.kind);
            for (name, member) in members {
                let point = if at.path.is_empty() { "" } else { "." };
                let below = Spot {
                    pointer: format!("{}/{name}", at.pointer),
                    path: format!("{}{point}{name}", at.path),
                    pattern: format!("{}{point}{name}", at.pattern),
                    kind: kind.to_owned(),
                };
                spots(member, &below, found);
                found.push(below);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                let below = Spot {
                    pointer: format!("{}/{index}", at.pointer),
                    path: format!("{}[{index}]", at.path),
                    pattern: format!("{}[*]", at.pattern),
                    kind: at.kind.clone(),
                };
                spots(element, &below, found);
                found.push(below);
            }
        }
        _ => {}
    }
}

/// A few positions of each pattern and type: the first, the last, and some in equal steps between.
fn sampled(value: &Value, root: &str, each: usize) -> Vec<Spot> {
    let at = Spot {
        pointer: String::new(),
        path: root.to_owned(),
        pattern: root.to_owned(),
        kind: String::new(),
    };
    let mut found = Vec::new();
    spots(value, &at, &mut found);
    let mut groups: BTreeMap<(String, String), Vec<Spot>> = BTreeMap::new();
    for spot in found {
        groups.entry((spot.pattern.clone(), spot.kind.clone())).or_default().push(spot);
    }
    let sample = |spots: Vec<Spot>| {
        let last = spots.len() - 1;
        let steps = each.saturating_sub(1).max(1);
        let picks: BTreeSet<usize> = (0..each).map(|step| last * step / steps).collect();
        picks.into_iter().map(move |pick| spots[pick].clone())
    };
    groups.into_values().flat_map(sample).collect()
}

/// The changes of one value, each with the new value; `None` removes the member.
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
            let digit = |at: usize| text[at..=at].chars().next().unwrap().to_digit(16).unwrap();
            let last = text.len() - 1;
            changes.push(value_to(format!("{}{:x}", &text[..last], digit(last) ^ 1)));
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

/// The members that nothing binds, and which of them occurred.
struct Mutations {
    unbound: Unbound,
    occurred: BTreeSet<(usize, Change)>,
    rejected: usize,
}

impl Mutations {
    fn new(unbound: Unbound) -> Self {
        Self { unbound, occurred: BTreeSet::new(), rejected: 0 }
    }

    fn entry(&self, spot: &Spot, change: Change) -> Option<usize> {
        self.unbound.iter().position(|(pattern, kinds, changes)| {
            let kind = kinds.is_empty() || kinds.split(' ').any(|kind| kind == spot.kind);
            *pattern == spot.pattern && kind && changes.contains(&change)
        })
    }

    /// Changes each sampled member of `response` in turn.
    fn run(
        &mut self,
        response: &Value,
        root: &str,
        each: usize,
        check: impl Fn(&[u8]) -> Result<(), Error>,
    ) {
        check(&raw(response)).unwrap();
        let spots = sampled(response, root, each);
        assert!(spots.len() > 10, "nothing to change");
        for spot in spots {
            let value = response.pointer(&spot.pointer).unwrap();
            let (parent, name) = spot.pointer.rsplit_once('/').unwrap();
            let in_array = response.pointer(parent).unwrap().is_array();
            for (change, changed) in changes(value, in_array) {
                let mut changed_response = response.clone();
                match changed {
                    Some(changed) => {
                        *changed_response.pointer_mut(&spot.pointer).unwrap() = changed
                    }
                    None => {
                        let object =
                            changed_response.pointer_mut(parent).unwrap().as_object_mut().unwrap();
                        object.remove(name);
                    }
                }
                let checked = check(&raw(&changed_response));
                let what = || format!("{change:?} of {} ({}): {checked:?}", spot.path, spot.kind);
                if let Some(entry) = self.entry(&spot, change) {
                    // One more digit may also break the form, which is rejected.
                    let form = checked
                        .as_ref()
                        .is_err_and(|error| change == Change::Value && error.field == spot.path);
                    assert!(checked.is_ok() || form, "{}", what());
                    if checked.is_ok() {
                        self.occurred.insert((entry, change));
                    }
                } else if value.is_null() && change == Removed {
                    assert!(checked.is_ok(), "{}", what());
                } else {
                    let field = checked.as_ref().err().map(|error| error.field.as_str());
                    assert!(field.is_some_and(|field| covers(field, &spot)), "{}", what());
                    self.rejected += 1;
                }
            }
        }
    }

    /// Checks that each entry of the list occurred, so that no entry outlives its reason.
    fn end(&self, rejected_min: usize) {
        for (entry, (pattern, _, changes)) in self.unbound.iter().enumerate() {
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
    block(raw, Level::Full).map(|_| ())
}

#[test]
fn changed_blocks_are_rejected() {
    let mut mutations = Mutations::new(UNBOUND_IN_BLOCKS);
    mutations.run(&TestBlock::new().block, "", 3, full);
    // One block of each fork that changed blocks or transactions.
    let chain = test_block::chain();
    for number in [1, 24, 27, 30, 37, 39, 42, 45, 53] {
        mutations.run(&chain[number - 1], "", 2, full);
    }
    mutations.run(&response("eth_getBlockByNumber/get-safe.io"), "", 2, full);
    for file in ["op-service-goerli/blocks/post-shanghai-success_data", "nimbus-blocks/Frontier"] {
        mutations.run(&result(json(&folder(&format!("mainnet/{file}.json")))), "", 2, full);
    }
    mutations.run(&result(json(&folder("mainnet/nimbus-blocks/Cancun.json"))), "", 1, full);
    mutations.end(5_000);

    let mut mutations = Mutations::new(UNBOUND_BESIDE_UNCLES);
    for number in [3, 29] {
        mutations.run(&chain[number - 1], "", 2, full);
    }
    mutations.end(500);
}

#[test]
fn changed_headers_are_rejected() {
    const UNBOUND: Unbound = &[("totalDifficulty", "", &[Change::Value, Null, Removed])];
    let mut mutations = Mutations::new(UNBOUND);
    let file = "mainnet/op-service-goerli/headers/post-shanghai-success_data.json";
    let mut sample = json(&folder(file));
    let members = sample.as_object_mut().unwrap();
    members.retain(|name, value| !value.is_array() && name != "size");
    mutations.run(&sample, "", 1, |raw| header(raw, Level::Headers).map(|_| ()));
    mutations.end(100);
}

#[test]
fn changed_senders_are_rejected() {
    let sample = TestBlock::new().block;
    let mut tried = 0;
    for spot in
        sampled(&sample, "", 100).into_iter().filter(|spot| spot.pattern == "transactions[*].from")
    {
        let mut changed = sample.clone();
        *changed.pointer_mut(&spot.pointer).unwrap() = json!(format!("0x{}", "5".repeat(40)));
        full(&raw(&changed)).unwrap();
        assert_eq!(block(&raw(&changed), Level::Senders).unwrap_err().field, spot.path);
        tried += 1;
    }
    assert_eq!(tried, 9);
}

#[test]
fn changed_receipts_are_rejected() {
    let mut mutations = Mutations::new(UNBOUND_IN_RECEIPTS);
    let check = |block: Block| move |raw: &[u8]| receipts(&block, raw, Level::Full);
    let sample = TestBlock::new();
    let of_sample = block(&raw(&sample.block), Level::Full).unwrap();
    mutations.run(&sample.receipts, "receipts", 3, check(of_sample));
    for (of_block, of_receipts) in [
        ("eth_getBlockByHash/get-block-by-hash.io", "get-block-receipts-by-hash.io"),
        ("eth_getBlockByNumber/get-safe.io", "get-block-receipts-latest.io"),
    ] {
        let block = block(&raw(&response(of_block)), Level::Full).unwrap();
        let sample = response(&format!("eth_getBlockReceipts/{of_receipts}"));
        mutations.run(&sample, "receipts", 2, check(block));
    }
    mutations.end(600);

    let mut mutations = Mutations::new(UNBOUND_IN_BARE_RECEIPTS);
    let block = bare_block(&json(&folder("mainnet/helios/block.json")));
    mutations.run(&json(&folder("mainnet/helios/receipts.json")), "receipts", 1, check(block));
    mutations.end(100);
}

#[test]
fn changed_logs_are_rejected() {
    let mut mutations = Mutations::new(UNBOUND_IN_LOGS);
    let sample = TestBlock::new();
    let block = block(&raw(&sample.block), Level::Full).unwrap();
    mutations.run(&sample.logs(), "logs", 5, |raw| logs(&block, raw, Level::Headers));
    mutations.end(150);
}
