//! Goal: used nonces and gaps are found before a load (`testdata/public-faults/load-used-nonces.json`).
//! Method: a fake node whose account has a given nonce.

use lab_model::plan::Tls;
use serde_json::{Value, json};

use super::super::client::tests::{Fake, http};
use super::*;

/// Compares the nonces of two senders, the second of which has the transactions 5 to 9. The node
/// returns `result` for its next nonce.
fn check_second(result: Value) -> Result<Option<String>, Reason> {
    let fake = Fake::responding(move |request| {
        let (_, body) = request.split_once("\r\n\r\n")?;
        let call: Value = serde_json::from_str(body).ok()?;
        assert_eq!(call["method"], "eth_getTransactionCount");
        assert_eq!(call["params"][1], "pending");
        let is_second = call["params"][0] == "0xbb";
        let member = if is_second { result.clone() } else { json!({"result": "0x0"}) };
        let mut response = json!({"jsonrpc": "2.0", "id": 1});
        response.as_object_mut()?.extend(member.as_object()?.clone());
        Some(http("200 OK", &response.to_string()))
    });
    let sender = |address: &str, first_nonce, count| Sender {
        address: address.to_owned(),
        first_nonce,
        count,
    };
    let client = Client::new(&fake.target(), &Tls::default()).unwrap();
    check(&client, &[sender("0xaa", 0, 3), sender("0xbb", 5, 5)])
}

#[test]
fn the_next_nonce_must_be_the_first_of_the_file() {
    assert_eq!(check_second(json!({"result": "0x5"})), Ok(None));
    let used = |next: &str| check_second(json!({"result": next})).unwrap_err();
    let expected = |used, next| {
        let sender = "0xbb".to_owned();
        Reason::UsedNonces { sender, used, count: 5, next, first: 5 }
    };
    assert_eq!(used("0x7"), expected(2, 7));
    assert_eq!(used("0x64"), expected(5, 100));
    let text = used("0x7").to_string();
    assert!(
        text.starts_with("2 of 5 transactions of 0xbb are used: its next nonce is 7"),
        "{text}"
    );
    let gap = check_second(json!({"result": "0x4"})).unwrap_err();
    assert_eq!(gap, Reason::NonceGap { sender: "0xbb".to_owned(), next: 4, first: 5 });
}

#[test]
fn a_target_without_nonces_causes_a_warning() {
    let error = json!({"error": {"code": -32601, "message": "no such method"}});
    for (result, expected) in [(error, "no such method"), (json!({"result": null}), "null")] {
        let warning = check_second(result).unwrap().unwrap();
        assert!(warning.contains("1 senders were not compared"), "{warning}");
        assert!(warning.contains(expected), "{warning}");
    }
}
