//! Reads files of signed transactions: hexadecimal, one per line, with or without `0x`.
//!
//! A line has the bytes that `eth_sendRawTransaction` takes (EIP-2718). `polycli loadtest
//! --output-raw-tx-only` prints such lines
//! (<https://github.com/0xPolygon/polygon-cli/blob/main/loadtest/mode/util.go>,
//! `OutputRawTransaction`). The reader decodes each transaction and recovers its sender, so that
//! mistakes are reported before the load starts.

use std::collections::HashMap;

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, hex};
use settings::Diagnostics;

use super::RecordedRequest;
use super::requests::report;

#[cfg(test)]
mod tests;

/// The method that sends a transaction.
pub const METHOD: &str = "eth_sendRawTransaction";
/// Maximum number of transactions of a file.
const TRANSACTIONS_MAX: usize = 2_000_000;
/// Minimum number of transactions that are decoded on all cores. Recovering a sender takes some
/// tens of microseconds, so fewer transactions are not worth the threads.
const PARALLEL_MIN: usize = 1_000;
/// The allowed content of a line.
const ALLOWED: &str = "one signed transaction per line, in hexadecimal";

/// Hash of a transaction.
pub type Hash = [u8; 32];

/// Signed transactions in the order in which they are sent. Each sender keeps its positions in the
/// file, but its transactions take these positions in the order of their nonces. If the lines of
/// the file are A's nonce 2, B's nonce 0 and A's nonce 1, the order is A's nonce 1, B's nonce 0 and
/// A's nonce 2.
#[derive(Clone, Debug, Default)]
pub struct Transactions {
    /// Index of [`METHOD`] into the plan's methods.
    pub method: usize,
    /// For each transaction: the call that sends it.
    pub requests: Vec<RecordedRequest>,
    /// For each transaction: its hash.
    pub hashes: Vec<Hash>,
    /// For each transaction: the index of the same sender's next transaction. `None` for the last
    /// one.
    pub next: Vec<Option<u32>>,
    /// For each sender: the index of the first transaction.
    pub first_of_senders: Vec<u32>,
    /// For each sender: its address and its nonces.
    pub senders: Vec<Sender>,
    /// Chain id of the transactions. `None` if they are valid on every chain (before EIP-155).
    pub chain_id: Option<u64>,
}

/// The sender of some transactions of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The address with `0x`.
    pub address: String,
    /// The first nonce.
    pub first_nonce: u64,
    /// Number of transactions. Their nonces have no gaps.
    pub count: u64,
}

impl Transactions {
    /// Returns the number of transactions.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns true if there is no transaction. The reader of a file never returns an empty list.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// A decoded line.
struct Decoded {
    /// Index of the line, from 0.
    line: usize,
    /// The encoded transaction.
    bytes: Vec<u8>,
    hash: Hash,
    sender: Address,
    nonce: u64,
    chain_id: Option<u64>,
}

/// Problems of a file. Each has the index of its line, the message, and the allowed content.
type Problems = Vec<(usize, String, &'static str)>;

/// Reads a file. `method` is the index of [`METHOD`] into the plan's methods.
///
/// # Errors
/// Returns all problems with their lines:
///
/// - a line that is not a signed transaction,
/// - a transaction for another chain than the first transaction,
/// - a nonce that a sender uses twice,
/// - a gap between the nonces of a sender.
pub(super) fn read(file: &str, bytes: &[u8], method: usize) -> Result<Transactions, Diagnostics> {
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    let lines = lines.map(|(index, line)| (index, line.trim_ascii()));
    let mut lines: Vec<_> =
        lines.filter(|(_, line)| !line.is_empty()).take(TRANSACTIONS_MAX + 1).collect();
    let mut problems = Problems::new();
    if lines.len() > TRANSACTIONS_MAX {
        problems.push((
            lines[TRANSACTIONS_MAX].0,
            format!("more than {TRANSACTIONS_MAX} transactions"),
            "fewer transactions",
        ));
        lines.truncate(TRANSACTIONS_MAX);
    }
    let mut transactions = Vec::with_capacity(lines.len());
    for (line, decoded) in decode_all(&lines) {
        match decoded {
            Ok(decoded) => transactions.push(decoded),
            Err(message) => problems.push((line, message, ALLOWED)),
        }
    }
    if transactions.is_empty() && problems.is_empty() {
        problems.push((0, "holds no transaction".to_owned(), ALLOWED));
    }
    let chain_id = find_chain(&transactions, &mut problems);
    let senders = group_by_sender(&transactions);
    for nonces in &senders {
        check_nonces(nonces, &transactions, &mut problems);
    }
    if problems.is_empty() {
        return Ok(build(transactions, &senders, method, chain_id));
    }
    problems.sort();
    let mut diagnostics = Diagnostics { file: Some(file.to_owned()), ..Diagnostics::default() };
    for (line, message, allowed) in problems {
        report(&mut diagnostics, line, message, allowed);
    }
    Err(diagnostics)
}

/// Decodes all lines and keeps their order. Uses all cores if there are many lines.
fn decode_all(lines: &[(usize, &[u8])]) -> Vec<(usize, Result<Decoded, String>)> {
    let decode = |part: &[(usize, &[u8])]| -> Vec<_> {
        part.iter().map(|&(line, text)| (line, decode_line(line, text))).collect()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if lines.len() < PARALLEL_MIN || cores == 1 {
        return decode(lines);
    }
    std::thread::scope(|scope| {
        let parts = lines.chunks(lines.len().div_ceil(cores));
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || decode(part))).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().expect("decoding cannot panic"));
        joined.flatten().collect()
    })
}

/// Decodes a line.
///
/// # Errors
/// Describes why the text is not a signed transaction.
fn decode_line(line: usize, text: &[u8]) -> Result<Decoded, String> {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    let bytes = hex::decode(digits).map_err(|error| format!("not hexadecimal: {error}"))?;
    let envelope = TxEnvelope::decode_2718_exact(&bytes)
        .map_err(|error| format!("not a signed transaction: {error}"))?;
    let sender = envelope
        .signature()
        .recover_address_from_prehash(&envelope.signature_hash())
        .map_err(|_| "its signature is valid for no sender".to_owned())?;
    Ok(Decoded {
        line,
        hash: envelope.tx_hash().0,
        sender,
        nonce: envelope.nonce(),
        chain_id: envelope.chain_id(),
        bytes,
    })
}

/// Returns the chain id of the first transaction that has one, or `None` if no transaction has one.
/// Reports each transaction with a different chain id.
fn find_chain(transactions: &[Decoded], problems: &mut Problems) -> Option<u64> {
    let mut chains = transactions
        .iter()
        .filter_map(|transaction| Some((transaction.line, transaction.chain_id?)));
    let (first_line, first_id) = chains.next()?;
    for (line, id) in chains.filter(|(_, id)| *id != first_id) {
        let first_line = first_line + 1;
        let message = format!("for chain {id}, but line {first_line} is for chain {first_id}");
        problems.push((line, message, "transactions of one chain"));
    }
    Some(first_id)
}

/// Returns the indexes of each sender's transactions, sorted by nonce. The senders are in the order
/// of their first lines.
fn group_by_sender(transactions: &[Decoded]) -> Vec<Vec<usize>> {
    let mut sender_indexes: HashMap<Address, usize> = HashMap::new();
    let mut senders: Vec<Vec<usize>> = Vec::new();
    for (index, transaction) in transactions.iter().enumerate() {
        let sender_index = *sender_indexes.entry(transaction.sender).or_insert(senders.len());
        match senders.get_mut(sender_index) {
            Some(indexes) => indexes.push(index),
            None => senders.push(vec![index]),
        }
    }
    for indexes in &mut senders {
        indexes.sort_by_key(|&index| transactions[index].nonce);
    }
    senders
}

/// Reports nonces that a sender uses twice, and gaps between the nonces. `sorted` has the indexes
/// of the sender's transactions, sorted by nonce.
fn check_nonces(sorted: &[usize], transactions: &[Decoded], problems: &mut Problems) {
    for (&before, &after) in sorted.iter().zip(&sorted[1..]) {
        let (before, after) = (&transactions[before], &transactions[after]);
        let (sender, nonce, line) = (after.sender, after.nonce, before.line + 1);
        let expected = before.nonce.checked_add(1);
        if nonce == before.nonce {
            let message = format!("nonce {nonce} of {sender} is also on line {line}");
            problems.push((after.line, message, "each nonce of a sender once"));
        } else if expected != Some(nonce) {
            let (last, expected) = (before.nonce, before.nonce + 1);
            let message = format!(
                "nonce {nonce} of {sender} follows {last} of line {line}: {expected} is missing"
            );
            problems.push((after.line, message, "the nonces of a sender without a gap"));
        }
    }
}

/// Arranges the transactions in the order in which they are sent. A sender's transactions take the
/// positions that the sender has in the file, in the order of their nonces. `senders` has the
/// indexes of each sender's transactions, sorted by nonce.
fn build(
    transactions: Vec<Decoded>,
    senders: &[Vec<usize>],
    method: usize,
    chain_id: Option<u64>,
) -> Transactions {
    let count = transactions.len();
    // For each position in the new order: the index into `transactions`.
    let mut order = vec![0; count];
    let mut next = vec![None; count];
    let mut first_of_senders = Vec::with_capacity(senders.len());
    let describe = |sorted: &Vec<usize>| {
        let first = &transactions[sorted[0]];
        let address = first.sender.to_string();
        Sender { address, first_nonce: first.nonce, count: sorted.len() as u64 }
    };
    let described = senders.iter().map(describe).collect();
    for sorted in senders {
        let mut positions = sorted.clone();
        positions.sort_unstable();
        for (position, index) in positions.iter().zip(sorted) {
            order[*position] = *index;
        }
        let as_u32 = |position: usize| u32::try_from(position).expect("TRANSACTIONS_MAX fits");
        for pair in positions.windows(2) {
            next[pair[0]] = Some(as_u32(pair[1]));
        }
        first_of_senders.push(as_u32(positions[0]));
    }
    let request = |(position, index): (usize, &usize)| {
        let id = (position + 1).to_string();
        let digits = hex::encode(&transactions[*index].bytes);
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{METHOD}","params":["0x{digits}"]}}"#);
        RecordedRequest {
            method,
            calls: 1,
            body: body.into_bytes().into(),
            id: id.into_bytes().into(),
        }
    };
    Transactions {
        method,
        requests: order.iter().enumerate().map(request).collect(),
        hashes: order.iter().map(|&index| transactions[index].hash).collect(),
        next,
        first_of_senders,
        senders: described,
        chain_id,
    }
}
