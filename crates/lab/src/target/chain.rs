//! The data of the chain that parameters are drawn from: the head, the hashes of recent blocks, and
//! the transactions and addresses in them. Only the data that the plan draws from is fetched, and
//! only enough for varied parameters.

use lab_engine::chain::ChainFacts;
use lab_model::plan::{Draw, Piece, Plan, Step, Template};
use serde_json::Value;
use wire::family::Family;

use super::client::{Client, Reply};
use super::{Reason, TargetFault};

/// Number of blocks whose hashes are fetched.
const BLOCKS_MAX: u64 = 64;
/// Number of blocks whose transactions are fetched, and the number of transactions and addresses
/// that is enough.
const FULL_BLOCKS_MAX: u64 = 16;
const ENTRIES_ENOUGH: usize = 1_000;
/// Maximum number of stored transactions and of stored addresses.
const ENTRIES_MAX: usize = 4_096;

/// The data of the chain that a plan uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NeededData {
    head: bool,
    block_hashes: bool,
    transactions: bool,
    addresses: bool,
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

    fn add(&mut self, template: &Template) {
        for piece in &template.params {
            let Piece::Draw(draw) = piece else { continue };
            match draw {
                Draw::BlockBehind { .. } | Draw::LogRange { .. } => self.head = true,
                Draw::BlockHash => self.block_hashes = true,
                Draw::TransactionHash => self.transactions = true,
                Draw::Address(given) => self.addresses |= given.is_empty(),
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

/// Returns the head; none if the target does not return one.
pub(super) fn read_head(client: &Client, family: Family) -> Result<Option<u64>, TargetFault> {
    Ok(match client.call(head_method(family), "[]")? {
        Reply::Result(value) => number(&value),
        Reply::Error { .. } => None,
    })
}

/// Returns the method whose result is the number of the newest block.
pub(crate) fn head_method(family: Family) -> &'static str {
    match family {
        Family::Ethereum => "eth_blockNumber",
        Family::Harmony => "hmyv2_blockNumber",
        Family::Bitcoin => "getblockcount",
    }
}

/// Fetches the needed data.
pub(super) fn fill(
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
    let full = needed.transactions || needed.addresses;
    if !full && !needed.block_hashes {
        return Ok(());
    }
    let mut last_answer = String::from("nothing");
    for behind in 0..BLOCKS_MAX.min(chain.head + 1) {
        let enough =
            |stored: &[Box<str>], is_needed: bool| !is_needed || stored.len() >= ENTRIES_ENOUGH;
        let transactions = full
            && behind < FULL_BLOCKS_MAX
            && !(enough(&chain.transaction_hashes, needed.transactions)
                && enough(&chain.addresses, needed.addresses));
        if !transactions && !needed.block_hashes {
            break;
        }
        match block(client, family, chain.head - behind, transactions) {
            Ok(block) => add_block(&block, family, chain),
            Err(answer) => last_answer = answer,
        }
    }
    let missing = |what| Reason::NoChain {
        what,
        method: block_method(family).to_owned(),
        answer: last_answer.clone(),
    };
    // A young chain may have no transactions; the engine reports it if a mix needs one.
    if needed.block_hashes && chain.block_hashes.is_empty() {
        return Err(missing("block hashes"));
    }
    if needed.transactions && chain.transaction_hashes.is_empty() && chain.block_hashes.is_empty() {
        return Err(missing("transactions"));
    }
    Ok(())
}

fn block_method(family: Family) -> &'static str {
    match family {
        Family::Ethereum => "eth_getBlockByNumber",
        Family::Harmony => "hmyv2_getBlockByNumber",
        Family::Bitcoin => "getblock",
    }
}

/// Returns a block, or a description of the response if the response is no block.
fn block(
    client: &Client,
    family: Family,
    height: u64,
    transactions: bool,
) -> Result<Value, String> {
    let params = match family {
        Family::Ethereum => format!(r#"["{height:#x}",{transactions}]"#),
        Family::Harmony => format!(
            r#"[{height},{{"fullTx":{transactions},"withSigners":false,"inclStaking":false}}]"#
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

fn result_of(reply: Result<Reply, TargetFault>) -> Result<Value, String> {
    match reply {
        Ok(Reply::Result(value)) if !value.is_null() => Ok(value),
        Ok(Reply::Result(_)) => Err("null".to_owned()),
        Ok(Reply::Error { code, message }) => Err(format!("error {code} ({message})")),
        Err(fault) => Err(fault.reason.to_string()),
    }
}

/// Adds the hashes, transactions and addresses of a block, without duplicates.
fn add_block(block: &Value, family: Family, chain: &mut ChainFacts) {
    add_text(&block["hash"], usize::MAX, &mut chain.block_hashes);
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

/// Adds a text that needs no escaping in JSON.
fn add_text(value: &Value, max_entries: usize, texts: &mut Vec<Box<str>>) {
    let Some(text) = value.as_str() else { return };
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if plain && texts.len() < max_entries && !texts.iter().any(|known| **known == *text) {
        texts.push(text.into());
    }
}
