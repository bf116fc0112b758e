//! Goal: files of transactions give each sender's transactions in order, or problems that name the
//! line. Method: transactions that the test signs, and texts that are not transactions.

use proptest::prelude::*;
use test_support::signing::{Account, hash, hex};

use super::*;

const CHAIN: u64 = 1337;
/// The index of `eth_sendRawTransaction` in the plan's methods.
const METHOD_INDEX: usize = 3;

/// Returns a line with a transfer that an account signs.
fn line(account: u8, nonce: u64) -> String {
    let to = Account::numbered(99).address;
    hex(&Account::numbered(account).transfer(CHAIN, nonce, to))
}

fn read_lines(lines: &[String]) -> Result<Transactions, String> {
    read("txs", lines.join("\n").as_bytes(), METHOD_INDEX).map_err(|problems| problems.to_string())
}

fn check_problem(lines: &[String], expected: &str) {
    let printed = read_lines(lines).expect_err("a faulty file passed");
    assert!(printed.contains(expected), "{printed}");
}

/// Returns the parameter of each call.
fn sent(transactions: &Transactions) -> Vec<String> {
    let parameter = |request: &RecordedRequest| {
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body["method"], METHOD);
        assert_eq!(body["id"].to_string().as_bytes(), &*request.id);
        body["params"][0].as_str().unwrap().to_owned()
    };
    transactions.requests.iter().map(parameter).collect()
}

#[test]
fn lines_with_and_without_prefix_are_calls_with_their_hash() {
    let first = line(1, 5);
    let second = line(2, 0).to_uppercase().replace("0X", "");
    let read = read_lines(&[first.clone(), String::new(), format!("  {second}\r")]).unwrap();
    assert_eq!(sent(&read), [first.clone(), format!("0x{}", second.to_lowercase())]);
    let hashes: Vec<_> = read.hashes.iter().map(|hash| hex(hash)).collect();
    let bytes = |line: &str| hex::decode(line).unwrap();
    assert_eq!(hashes, [hash(&bytes(&first)), hash(&bytes(&second))]);
    assert_eq!((read.method, read.chain_id), (METHOD_INDEX, Some(CHAIN)));
    assert_eq!((read.next, read.first_of_senders), (vec![None, None], vec![0, 1]));
}

#[test]
fn transactions_of_a_sender_take_its_positions_in_the_order_of_nonces() {
    // The lines 0, 2 and 4 are transactions of the first account, and their nonces are not in
    // order.
    let lines = [line(1, 9), line(2, 0), line(1, 8), line(2, 1), line(1, 7)];
    let read = read_lines(&lines).unwrap();
    assert_eq!(sent(&read), [line(1, 7), line(2, 0), line(1, 8), line(2, 1), line(1, 9)]);
    assert_eq!(read.next, [Some(2), Some(3), Some(4), None, None]);
    assert_eq!(read.first_of_senders, [0, 1]);
}

#[test]
fn every_kind_of_transaction_has_a_sender() {
    let (account, to) = (Account::numbered(1), Account::numbered(2).address);
    let legacy = hex(&account.legacy_transfer(Some(CHAIN), 0, to));
    let any_chain = hex(&account.legacy_transfer(None, 1, to));
    let read = read_lines(&[legacy, any_chain.clone(), line(1, 2)]).unwrap();
    assert_eq!((read.first_of_senders.len(), read.chain_id), (1, Some(CHAIN)));
    let alone = read_lines(&[any_chain]).unwrap();
    assert_eq!(alone.chain_id, None);
}

#[test]
fn texts_that_are_no_transaction_are_reported_with_their_line() {
    let good = line(1, 0);
    check_problem(&[good.clone(), "0xzz".into()], "txs:2:1: not hexadecimal");
    check_problem(&[good.clone(), "0x123".into()], "txs:2:1: not hexadecimal");
    check_problem(&["0x02c0".into(), good.clone()], "txs:1:1: not a signed transaction");
    check_problem(&[good[..good.len() - 2].to_owned()], "txs:1:1: not a signed transaction");
    check_problem(&[format!("{good}00")], "txs:1:1: not a signed transaction");
    check_problem(&["0x7e00".into()], "txs:1:1: not a signed transaction");
    check_problem(&[String::new()], "txs:1:1: holds no transaction");
}

#[test]
fn different_chains_and_wrong_nonces_are_reported_with_their_line() {
    let to = Account::numbered(2).address;
    let (other_chain, nonce) = (5, 0);
    let other = hex(&Account::numbered(3).transfer(other_chain, nonce, to));
    let message = "txs:2:1: for chain 5, but line 1 is for chain 1337";
    check_problem(&[line(1, 0), other], message);
    let sender = Account::numbered(1).address;
    let twice = format!("txs:3:1: nonce 4 of {sender} is also on line 1");
    check_problem(&[line(1, 4), line(2, 4), line(1, 4)], &twice);
    let gap = format!("txs:2:1: nonce 7 of {sender} follows 4 of line 3: 5 is missing");
    check_problem(&[line(2, 0), line(1, 7), line(1, 4)], &gap);
}

#[test]
fn many_transactions_are_decoded_in_order_and_their_problems_bounded() {
    let count = PARALLEL_MIN as u64 + 7;
    let mut lines: Vec<_> = (0..count).map(|nonce| line(1, nonce)).collect();
    let read = read_lines(&lines).unwrap();
    assert_eq!(sent(&read), lines);
    lines.iter_mut().for_each(|line| line.push('x'));
    let printed = read_lines(&lines).unwrap_err();
    // Diagnostics print the first 20 problems.
    assert!(printed.ends_with(&format!("and {} more\n", count - 20)), "{printed}");
}

proptest! {
    #[test]
    fn no_file_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let _refused = read("f", &bytes, 0);
        // A real transaction with some changed bytes.
        let to = Account::numbered(2).address;
        let mut transaction = Account::numbered(1).transfer(CHAIN, 1, to);
        for (index, value) in flips {
            let position = index.index(transaction.len());
            transaction[position] = value;
        }
        let _perhaps_refused = read("f", hex(&transaction).as_bytes(), 0);
        let _refused = read("f", hex(&bytes).as_bytes(), 0);
    }
}
