//! Goal: calls to HTTP nodes use JSON-RPC batches and HTTP/2 if configured, without a difference
//! for clients: the same bytes, no error when a batch is rejected or a connection ends, and no
//! retry of calls that are not idempotent. Method: simulated nodes behind a proxy that records and
//! changes messages, and behind a real nginx with HTTP/2.

mod batches;
mod http2;

use serde_json::Value;

use crate::support::scene::{READ, SimNode, account};
use test_support::raw::Client;

/// Disables the cache, so that every call reaches a node.
const UNCACHED: &str = "[cache]\nenabled = false\n";

/// Sends one batch with a call for each account, and compares each response with the node's own.
fn ask_all(client: &mut Client, node: &SimNode, accounts: std::ops::Range<u64>) {
    let calls: Vec<String> = accounts.clone().map(|number| read_call(number, number)).collect();
    let answer = client.call("/", format!("[{}]", calls.join(",")).as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answers: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(answers.len() as u64, accounts.end - accounts.start);
    for (answer, number) in answers.iter().zip(accounts) {
        let theirs = node.result(READ, &account(number, "0x64"));
        assert_eq!(answer["id"], number, "{answer}");
        assert_eq!(answer["result"].to_string(), theirs, "{answer}");
    }
}

/// Returns a call of [`READ`] for an account.
fn read_call(id: u64, number: u64) -> String {
    let params = account(number, "0x64");
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{READ}","params":{params}}}"#)
}
