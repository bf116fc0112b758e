//! Compares responses with the chain. Finds responses that lack data although a node has had the
//! data for a second.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use simnode::rpc::{self, Reply, View};
use simnode::world::World;
use tokio::time::Instant;

use super::filter;
use super::nodes::Nodes;

/// A response may lack data that no node has had for this long.
const GRACE_PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of findings that are stored and printed.
const FINDINGS_MAX: usize = 5;

/// A call about blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlockCall {
    /// Logs of a range of blocks, from one contract or from all. `address` is the index of the
    /// contract.
    Range { from: u64, to: u64, address: Option<usize> },
    /// The same logs, but through a filter.
    Filter { from: u64, to: u64, address: Option<usize> },
    /// Logs of a block by its hash.
    ByHash { number: u64, address: Option<usize> },
    /// Receipts of a block.
    Receipts { number: u64, by_hash: bool },
    /// The receipt of a transaction.
    Receipt { number: u64, index: usize },
}

/// Counts of the results of all calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    pub(crate) calls: u64,
    /// Responses from the cache.
    pub(crate) hits: u64,
    /// Incomplete responses whose missing data no node has had for a second. They are allowed.
    pub(crate) lacking_early: u64,
    /// Incomplete responses whose missing data a node has had for a second.
    pub(crate) lacking: u64,
    /// The part of `lacking` that came from the cache.
    pub(crate) lacking_hits: u64,
    /// Responses that are wrong in any other way.
    pub(crate) wrong: u64,
    /// Descriptions of the first forbidden incomplete or wrong responses.
    pub(crate) findings: Vec<String>,
}

/// Compares responses with the chain.
pub(crate) struct ResponseChecker {
    world: Arc<World>,
    pub(crate) results: RefCell<Results>,
}

impl ResponseChecker {
    pub(crate) fn new(world: &Arc<World>) -> ResponseChecker {
        ResponseChecker { world: Arc::clone(world), results: RefCell::default() }
    }

    /// The method and the parameters of a call. Returns `None` if its transaction does not exist.
    pub(crate) fn call(&self, block_call: BlockCall) -> Option<(&'static str, String)> {
        let address =
            |at: Option<usize>| at.map(|at| self.world.addresses().contracts[at].to_string());
        let hash = |number| self.world.hash_at(number, number).unwrap().to_string();
        Some(match block_call {
            BlockCall::Range { from, to, address: at }
            | BlockCall::Filter { from, to, address: at } => {
                let bounds = [("fromBlock", format!("{from:#x}")), ("toBlock", format!("{to:#x}"))];
                ("eth_getLogs", filter(&bounds, address(at)))
            }
            BlockCall::ByHash { number, address: at } => {
                ("eth_getLogs", filter(&[("blockHash", hash(number))], address(at)))
            }
            BlockCall::Receipts { number, by_hash: false } => {
                ("eth_getBlockReceipts", format!("[\"{number:#x}\"]"))
            }
            BlockCall::Receipts { number, by_hash: true } => {
                ("eth_getBlockReceipts", format!("[\"{}\"]", hash(number)))
            }
            BlockCall::Receipt { number, index } => {
                let block = self.world.block_at(number, number).unwrap();
                let transaction = block.transactions.get(index)?;
                ("eth_getTransactionReceipt", format!("[\"{}\"]", transaction.hash()))
            }
        })
    }

    /// Compares a response with the chain and counts the result. `cache` is the cache status of the
    /// response, and `sent` is the time at which the client sent the call.
    pub(crate) fn check(
        &self,
        block_call: BlockCall,
        response: &Value,
        cache: &str,
        sent: Instant,
        nodes: &Nodes,
    ) {
        let received = Instant::now();
        let Some((method, params)) = self.call(block_call) else { return };
        let newest = match block_call {
            BlockCall::Range { to, .. } | BlockCall::Filter { to, .. } => to,
            BlockCall::ByHash { number, .. }
            | BlockCall::Receipts { number, .. }
            | BlockCall::Receipt { number, .. } => number,
        };
        let reply =
            rpc::respond(&self.world, &View::honest(newest), method, Some(params.as_bytes()));
        let Reply::Result(expected) = reply else { panic!("{method} {params}: no result") };
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let mut results = self.results.borrow_mut();
        results.calls += 1;
        let hit = cache.contains("hit");
        results.hits += u64::from(hit);
        if response.get("result") == Some(&expected) {
            return;
        }
        let result = response.get("result");
        let missing = result.and_then(|result| lacking_blocks(newest, &expected, result));
        let problem = match missing {
            None => {
                results.wrong += 1;
                "wrong".to_owned()
            }
            Some(blocks) => {
                let from = sent.checked_sub(GRACE_PERIOD).unwrap_or(sent);
                let had = blocks.iter().find(|number| nodes.had_logs_of(**number, from, received));
                let Some(number) = had else {
                    results.lacking_early += 1;
                    return;
                };
                results.lacking += 1;
                results.lacking_hits += u64::from(hit);
                format!("lacks block {number}")
            }
        };
        if results.findings.len() < FINDINGS_MAX {
            let shown = response.to_string();
            let since = sent.saturating_duration_since(self.world.origin());
            results.findings.push(format!(
                "{problem}: {block_call:?} sent at {since:?}, head {}, cache {cache}\n  {}\n{}",
                self.world.height_at(sent),
                &shown[..shown.len().min(300)],
                nodes.describe_phases(sent),
            ));
        }
    }

    /// Checks the logs that a client received while it followed the chain. Panics if they are not
    /// exactly the logs after block `head_at_start`, each once.
    pub(crate) fn check_followed(&self, head_at_start: u64, received: &[Value]) {
        let last = received.iter().map(|log| parse_quantity(&log["blockNumber"])).max().unwrap();
        let bounds =
            |from: u64| [("fromBlock", format!("{from:#x}")), ("toBlock", format!("{last:#x}"))];
        let params = filter(&bounds(head_at_start + 1), None);
        let reply =
            rpc::respond(&self.world, &View::honest(last), "eth_getLogs", Some(params.as_bytes()));
        let Reply::Result(expected) = reply else { panic!("eth_getLogs has no result") };
        let expected: Vec<Value> = serde_json::from_slice(&expected).unwrap();
        assert!(expected.len() > 20, "a filter over {head_at_start} to {last} selects nothing");
        let is_later = |log: &&Value| parse_quantity(&log["blockNumber"]) > head_at_start;
        let received: Vec<&Value> = received.iter().filter(is_later).collect();
        assert!(
            received == expected.iter().collect::<Vec<_>>(),
            "{} logs, {} received",
            expected.len(),
            received.len()
        );
    }
}

/// Returns the blocks whose data a result lacks. Returns `None` if the result is wrong in another
/// way.
fn lacking_blocks(newest: u64, expected: &Value, result: &Value) -> Option<Vec<u64>> {
    let Value::Array(expected) = expected else {
        return result.is_null().then(|| vec![newest]);
    };
    let result = match result {
        Value::Array(result) => result.as_slice(),
        Value::Null => &[],
        _ => return None,
    };
    let (expected, result) = (by_block(expected), by_block(result));
    if result.iter().any(|(number, logs)| expected.get(number) != Some(logs)) {
        return None;
    }
    Some(expected.into_keys().filter(|number| !result.contains_key(number)).collect())
}

fn by_block(items: &[Value]) -> BTreeMap<u64, Vec<&Value>> {
    let mut blocks: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for item in items {
        blocks.entry(parse_quantity(&item["blockNumber"])).or_default().push(item);
    }
    blocks
}

/// Parses a quantity such as `"0x1f"`.
pub(crate) fn parse_quantity(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "calls {}, hits {}, lacking before any node had it for 1 s {}, lacking {} (hits {}), \
             wrong {}",
            self.calls, self.hits, self.lacking_early, self.lacking, self.lacking_hits, self.wrong
        )
    }
}
