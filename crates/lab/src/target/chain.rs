//! Fetches the chain data from which parameters are drawn. This is the head (the number of the
//! newest block), the hashes of recent blocks, and the transactions and addresses in these blocks.
//! The fetch covers only the kinds of data that the plan draws from. It stops when there is enough
//! data for varied parameters. If recent blocks have none, it looks further back (`missing.rs` has
//! what follows if there is none at all).

use std::time::{Duration, Instant};

use lab_engine::chain::ChainFacts;
use lab_model::plan::{Draw, Piece, Plan, Step, Template};
use serde_json::Value;
use wire::family::Family;

use super::client::{Client, Reply};
use super::{Reason, TargetFault};

/// Maximum number of blocks whose hashes are fetched.
const BLOCKS_MAX: u64 = 64;
/// Maximum number of blocks that are fetched with all their transactions.
const FULL_BLOCKS_MAX: u64 = 16;
/// Number of entries that is enough for a list of transaction hashes or of addresses. Once every
/// needed list has this many, no further block is fetched with its transactions.
const ENTRIES_ENOUGH: usize = 1_000;
/// Maximum number of stored transaction hashes, and of stored addresses.
const ENTRIES_MAX: usize = 4_096;

/// Maximum time of the search in older blocks, for a chain whose recent blocks lack data.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(5);

/// The kinds of chain data that a plan uses. A field is true if the plan draws parameters from this
/// kind of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NeededData {
    head: bool,
    block_hashes: bool,
    transactions: bool,
    pub(super) addresses: bool,
}

impl NeededData {
    /// Returns the data that the mixes of a plan use.
    pub(super) fn of(plan: &Plan) -> NeededData {
        let mut needed = NeededData::default();
        let steps = plan.mixes.iter().flat_map(|mix| &mix.steps);
        let templates = steps.flat_map(|step| match step {
            Step::Choose(calls) => calls.iter().map(|call| &call.template).collect(),
            Step::Replay(_) | Step::Transactions(_) => Vec::new(),
        });
        templates.for_each(|template| needed.add(template));
        needed
    }

    /// Adds the data that a call needs. Its template consists of fixed text and of draws; a draw is
    /// a place where the engine inserts a random value.
    fn add(&mut self, template: &Template) {
        for piece in &template.params {
            let Piece::Draw(draw) = piece else { continue };
            match draw {
                Draw::BlockBehind { .. } | Draw::LogRange { .. } => self.head = true,
                Draw::BlockHash => self.block_hashes = true,
                Draw::TransactionHash => self.transactions = true,
                // A plan may list the addresses that it draws from.
                Draw::Address(listed) => self.addresses |= listed.is_empty(),
                Draw::RandomBytes(_) | Draw::OneOf(_) => {}
            }
        }
    }
}

/// Parses a number in JSON-RPC: hexadecimal text, decimal text or a JSON number.
pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => number_in(text),
        _ => None,
    }
}

/// Parses a number in hexadecimal or decimal text.
pub(crate) fn number_in(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the head, or `None` if the target does not return one.
pub(super) fn read_head(client: &Client, family: Family) -> Result<Option<u64>, TargetFault> {
    Ok(match client.call(head_method(family), "[]")? {
        Reply::Result(value) => number(&value),
        Reply::Error { .. } => None,
    })
}

/// Returns the chain id, or `None` if the target does not return one. Bitcoin's family has none.
pub(super) fn read_chain_id(client: &Client, family: Family) -> Option<String> {
    if family == Family::Bitcoin {
        return None;
    }
    match result_of(client.call("eth_chainId", "[]")).ok()? {
        Value::String(id) if number_in(&id).is_some() => Some(id),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

/// Returns the hash of the chain's first block, or `None` if the target does not return it.
pub(super) fn read_first_block(client: &Client, family: Family) -> Option<String> {
    let hash = match family {
        Family::Bitcoin => result_of(client.call("getblockhash", "[0]")).ok()?,
        _ => fetch_block(client, family, 0, false).ok()?.get("hash")?.clone(),
    };
    hash.as_str().map(str::to_owned)
}

/// Returns the method whose result is the number of the newest block.
pub(crate) fn head_method(family: Family) -> &'static str {
    match family {
        Family::Ethereum => "eth_blockNumber",
        Family::Harmony => "hmyv2_blockNumber",
        Family::Bitcoin => "getblockcount",
    }
}

/// Fetches the needed data into `chain`. `head` is the target's head, if it returned one.
///
/// # Errors
/// Fails if the plan needs a head or hashes and the target returns none.
pub(super) fn fetch(
    client: &Client,
    family: Family,
    needed: NeededData,
    head: Option<u64>,
    chain: &mut ChainFacts,
) -> Result<(), Reason> {
    if needed == NeededData::default() {
        chain.head = head.unwrap_or_default();
        return Ok(());
    }
    let no_head = || Reason::NoChain {
        what: "block numbers",
        method: head_method(family).to_owned(),
        answer: "no number".to_owned(),
    };
    chain.head = head.ok_or_else(no_head)?;
    if !needed.transactions && !needed.addresses && !needed.block_hashes {
        return Ok(());
    }
    let mut last_failure = String::from("nothing");
    let start = Instant::now();
    for blocks_behind in distances(chain.head) {
        let lists = [
            (needed.transactions, &chain.transaction_hashes),
            (needed.addresses, &chain.addresses),
        ];
        let has_fewer = |entries: usize| {
            lists.iter().any(|(is_needed, list)| *is_needed && list.len() < entries)
        };
        let is_recent = blocks_behind < BLOCKS_MAX;
        let with_transactions =
            has_fewer(1) || (blocks_behind < FULL_BLOCKS_MAX && has_fewer(ENTRIES_ENOUGH));
        let is_needed = with_transactions || (is_recent && needed.block_hashes);
        if !is_needed || (!is_recent && start.elapsed() > SEARCH_TIME_MAX) {
            break;
        }
        match fetch_block(client, family, chain.head - blocks_behind, with_transactions) {
            Ok(block) => {
                if is_recent {
                    add_text(&block["hash"], usize::MAX, &mut chain.block_hashes);
                }
                add_transactions(&block, family, chain);
            }
            Err(failure) => last_failure = failure,
        }
    }
    let missing = |what| Reason::NoChain {
        what,
        method: block_method(family).to_owned(),
        answer: last_failure.clone(),
    };
    // A young chain may have no transactions. So missing transactions are a fault only if the blocks
    // are missing too.
    if needed.block_hashes && chain.block_hashes.is_empty() {
        return Err(missing("block hashes"));
    }
    if needed.transactions && chain.transaction_hashes.is_empty() && chain.block_hashes.is_empty() {
        return Err(missing("transactions"));
    }
    Ok(())
}

/// Returns the distances from the head of the blocks to fetch, in blocks: the recent blocks one by
/// one, then ever larger steps back, and at last the first block.
fn distances(head: u64) -> impl Iterator<Item = u64> {
    let doubled = (BLOCKS_MAX.ilog2()..u64::BITS).map(|power| 1 << power);
    let older = doubled.take_while(move |distance| *distance < head).chain([head]);
    (0..BLOCKS_MAX.min(head + 1)).chain(older.filter(|distance| *distance >= BLOCKS_MAX))
}

/// Returns the name of the method that returns a block.
fn block_method(family: Family) -> &'static str {
    match family {
        Family::Ethereum => "eth_getBlockByNumber",
        Family::Harmony => "hmyv2_getBlockByNumber",
        Family::Bitcoin => "getblock",
    }
}

/// Fetches a block. `with_transactions` is true if the block must contain whole transactions
/// instead of their hashes; blocks of Bitcoin always have hashes. The error describes the response.
fn fetch_block(
    client: &Client,
    family: Family,
    height: u64,
    with_transactions: bool,
) -> Result<Value, String> {
    let params = match family {
        Family::Ethereum => format!(r#"["{height:#x}",{with_transactions}]"#),
        Family::Harmony => format!(
            r#"[{height},{{"fullTx":{with_transactions},"withSigners":false,"inclStaking":false}}]"#
        ),
        Family::Bitcoin => {
            let hash = result_of(client.call("getblockhash", &format!("[{height}]")))?;
            let hash = hash.as_str().ok_or("a hash that is not text")?.to_owned();
            if !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err("a hash that is not hexadecimal".to_owned());
            }
            format!(r#"["{hash}",1]"#)
        }
    };
    result_of(client.call(block_method(family), &params))
}

/// Returns the result of a call, or a description of the reply if it has no result.
fn result_of(reply: Result<Reply, TargetFault>) -> Result<Value, String> {
    match reply {
        Ok(Reply::Result(value)) if !value.is_null() => Ok(value),
        Ok(Reply::Result(_)) => Err("null".to_owned()),
        Ok(Reply::Error { code, message }) => Err(format!("error {code} ({message})")),
        Err(fault) => Err(fault.reason.to_string()),
    }
}

/// Adds the transactions and addresses of a block, without duplicates.
fn add_transactions(block: &Value, family: Family, chain: &mut ChainFacts) {
    let list = if family == Family::Bitcoin { &block["tx"] } else { &block["transactions"] };
    for transaction in list.as_array().into_iter().flatten() {
        if transaction.is_string() {
            add_text(transaction, ENTRIES_MAX, &mut chain.transaction_hashes);
            continue;
        }
        add_text(&transaction["hash"], ENTRIES_MAX, &mut chain.transaction_hashes);
        add_text(&transaction["from"], ENTRIES_MAX, &mut chain.addresses);
        add_text(&transaction["to"], ENTRIES_MAX, &mut chain.addresses);
    }
}

/// Adds the accounts that the node itself manages (`eth_accounts`) to the chain's addresses. A node
/// for development has some.
pub(super) fn add_accounts(client: &Client, chain: &mut ChainFacts) {
    if let Ok(accounts) = result_of(client.call("eth_accounts", "[]")) {
        let accounts = accounts.as_array().into_iter().flatten();
        accounts.for_each(|account| add_text(account, ENTRIES_MAX, &mut chain.addresses));
    }
}

/// Adds a text to a list with at most `max_entries` entries. Ignores a text that is empty, a
/// duplicate, or needs escaping in JSON. Ignores every text if the list is full.
fn add_text(value: &Value, max_entries: usize, texts: &mut Vec<Box<str>>) {
    let Some(text) = value.as_str() else { return };
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain && texts.len() < max_entries && !texts.iter().any(|other| **other == *text) {
        texts.push(text.into());
    }
}
