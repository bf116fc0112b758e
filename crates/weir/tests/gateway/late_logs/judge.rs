//! Compares responses with the chain and finds those that lack data a node has had for a second.

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

/// A response is a finding only if a node has had the missing data for this long.
const HAD_FOR: Duration = Duration::from_secs(1);
/// Maximum number of findings that are stored and printed.
const FINDINGS_MAX: usize = 5;

/// A call about blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Question {
    /// Logs of a range, of all contracts or one.
    Range { from: u64, to: u64, address: Option<usize> },
    /// The same logs through a filter.
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
pub(crate) struct Account {
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
    pub(crate) findings: Vec<String>,
}

pub(crate) struct Judge {
    world: Arc<World>,
    pub(crate) account: RefCell<Account>,
}

impl Judge {
    pub(crate) fn new(world: &Arc<World>) -> Judge {
        Judge { world: Arc::clone(world), account: RefCell::default() }
    }

    /// The method and the parameters of a question; `None` if its transaction does not exist.
    pub(crate) fn call(&self, question: Question) -> Option<(&'static str, String)> {
        let address =
            |at: Option<usize>| at.map(|at| self.world.addresses().contracts[at].to_string());
        let hash = |number| self.world.hash_at(number, number).unwrap().to_string();
        Some(match question {
            Question::Range { from, to, address: at }
            | Question::Filter { from, to, address: at } => {
                let bounds = [("fromBlock", format!("{from:#x}")), ("toBlock", format!("{to:#x}"))];
                ("eth_getLogs", filter(&bounds, address(at)))
            }
            Question::ByHash { number, address: at } => {
                ("eth_getLogs", filter(&[("blockHash", hash(number))], address(at)))
            }
            Question::Receipts { number, by_hash: false } => {
                ("eth_getBlockReceipts", format!("[\"{number:#x}\"]"))
            }
            Question::Receipts { number, by_hash: true } => {
                ("eth_getBlockReceipts", format!("[\"{}\"]", hash(number)))
            }
            Question::Receipt { number, index } => {
                let block = self.world.block_at(number, number).unwrap();
                let transaction = block.transactions.get(index)?;
                ("eth_getTransactionReceipt", format!("[\"{}\"]", transaction.hash()))
            }
        })
    }

    /// Compares a response with the chain, and counts the result. `cache` is the cache status of
    /// the response, `sent` the time of the call.
    pub(crate) fn judge(
        &self,
        question: Question,
        response: &Value,
        cache: &str,
        sent: Instant,
        nodes: &Nodes,
    ) {
        let received = Instant::now();
        let Some((method, params)) = self.call(question) else { return };
        let newest = match question {
            Question::Range { to, .. } | Question::Filter { to, .. } => to,
            Question::ByHash { number, .. }
            | Question::Receipts { number, .. }
            | Question::Receipt { number, .. } => number,
        };
        let reply =
            rpc::respond(&self.world, &View::honest(newest), method, Some(params.as_bytes()));
        let Reply::Result(expected) = reply else { panic!("{method} {params}: no result") };
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let mut account = self.account.borrow_mut();
        account.calls += 1;
        let hit = cache.contains("hit");
        account.hits += u64::from(hit);
        if response.get("result") == Some(&expected) {
            return;
        }
        let result = response.get("result");
        let lacking = result.and_then(|result| lacking_blocks(newest, &expected, result));
        let problem = match lacking {
            None => {
                account.wrong += 1;
                "wrong".to_owned()
            }
            Some(blocks) => {
                let from = sent.checked_sub(HAD_FOR).unwrap_or(sent);
                let had = blocks.iter().find(|number| nodes.had(**number, from, received));
                let Some(number) = had else {
                    account.lacking_early += 1;
                    return;
                };
                account.lacking += 1;
                account.lacking_hits += u64::from(hit);
                format!("lacks block {number}")
            }
        };
        if account.findings.len() < FINDINGS_MAX {
            let shown = response.to_string();
            let since = sent.saturating_duration_since(self.world.origin());
            account.findings.push(format!(
                "{problem}: {question:?} sent at {since:?}, head {}, cache {cache}\n  {}\n{}",
                self.world.height_at(sent),
                &shown[..shown.len().min(300)],
                nodes.describe_phases(sent),
            ));
        }
    }

    /// Panics unless a client that followed the chain got every log after block `head_at_start`
    /// exactly once.
    pub(crate) fn check_followed(&self, head_at_start: u64, received: &[Value]) {
        let last = received.iter().map(|log| number(&log["blockNumber"])).max().unwrap();
        let bounds =
            |from: u64| [("fromBlock", format!("{from:#x}")), ("toBlock", format!("{last:#x}"))];
        let params = filter(&bounds(head_at_start + 1), None);
        let reply =
            rpc::respond(&self.world, &View::honest(last), "eth_getLogs", Some(params.as_bytes()));
        let Reply::Result(expected) = reply else { panic!("eth_getLogs has no result") };
        let expected: Vec<Value> = serde_json::from_slice(&expected).unwrap();
        assert!(expected.len() > 20, "a filter over {head_at_start} to {last} selects nothing");
        let received: Vec<&Value> =
            received.iter().filter(|log| number(&log["blockNumber"]) > head_at_start).collect();
        assert!(
            received == expected.iter().collect::<Vec<_>>(),
            "{} logs, {} received",
            expected.len(),
            received.len()
        );
    }
}

/// The blocks whose data a result lacks. `None` if the result is wrong in another way.
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
        blocks.entry(number(&item["blockNumber"])).or_default().push(item);
    }
    blocks
}

/// Parses a quantity such as `"0x1f"`.
pub(crate) fn number(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "calls {}, hits {}, lacking before any node had it for 1 s {}, lacking {} (hits {}), \
             wrong {}",
            self.calls, self.hits, self.lacking_early, self.lacking, self.lacking_hits, self.wrong
        )
    }
}
