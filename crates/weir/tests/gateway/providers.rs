//! Goal: if configured, calls to HTTP nodes use JSON-RPC batches and HTTP/2. Clients notice no
//! difference: they get the same bytes, and no error when a node rejects a batch or closes a
//! connection. The gateway never retries a call that is not idempotent. Method: simulated nodes
//! behind a proxy that records and changes messages, and behind a real nginx with HTTP/2.

mod batches;
mod goaway;
mod http2;

use serde_json::Value;

use crate::support::harness::{GET_BALANCE, SimNode, balance_params};
use test_support::raw::Client;

/// Disables the cache, so that every call reaches a node.
const UNCACHED: &str = "[cache]\nenabled = false\n";

/// Sends one batch with a call for each account, and compares each response with the node's own.
fn ask_all(client: &mut Client, node: &SimNode, accounts: std::ops::Range<u64>) {
    let calls: Vec<String> =
        accounts.clone().map(|account| balance_call(account, account)).collect();
    let answer = client.call("/", format!("[{}]", calls.join(",")).as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answers: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(answers.len() as u64, accounts.end - accounts.start);
    for (answer, account) in answers.iter().zip(accounts) {
        let expected = node.call(GET_BALANCE, &balance_params(account, "0x64"));
        assert_eq!(answer["id"], account, "{answer}");
        assert_eq!(answer["result"].to_string(), expected, "{answer}");
    }
}

/// Returns a call of [`GET_BALANCE`] for an account.
fn balance_call(id: u64, account: u64) -> String {
    let params = balance_params(account, "0x64");
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{GET_BALANCE}","params":{params}}}"#)
}
