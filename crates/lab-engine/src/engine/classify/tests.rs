//! Goal: each response of a server has the right class. Method: a table.

use lab_model::plan::RecordedRequest;
use lab_model::record::Class;

use super::{CallOutcome, batch, recorded, recorded_batch, single};

fn check(status: u16, body: &str, expected: Class) -> Option<i64> {
    let outcome = single(status, body.as_bytes(), 7);
    assert_eq!(outcome.class, expected, "{status} {body}");
    outcome.code
}

#[test]
fn single_calls() {
    check(200, r#"{"jsonrpc":"2.0","id":7,"result":"0x1"}"#, Class::Ok);
    check(200, r#" { "result" : null, "id" : 7 } "#, Class::Ok);
    check(500, r#"{"jsonrpc":"2.0","id":7,"result":"0x1"}"#, Class::Http5xx);
    check(404, r#"{"jsonrpc":"2.0","id":7,"result":"0x1"}"#, Class::Http4xx);
    let error = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"x"}}"#;
    assert_eq!(check(200, error, Class::RpcError), Some(-32000));
    assert_eq!(check(503, error, Class::RpcError), Some(-32000));
    assert_eq!(check(429, error, Class::Limited), None);
    let no_id = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#;
    assert_eq!(check(400, no_id, Class::RpcError), Some(-32700));
    check(200, r#"{"jsonrpc":"2.0","id":null,"result":1}"#, Class::WrongId);
    check(200, r#"{"jsonrpc":"2.0","id":8,"result":1}"#, Class::WrongId);
    check(200, r#"{"jsonrpc":"2.0","id":"7","result":1}"#, Class::WrongId);
    check(200, "<html>", Class::Malformed);
    check(200, "", Class::Malformed);
    check(302, "", Class::Malformed);
    check(200, r#"{"jsonrpc":"2.0","id":7,"result":1}x"#, Class::Malformed);
    check(200, r#"{"jsonrpc":"2.0","id":7}"#, Class::Malformed);
    check(200, r#"[{"jsonrpc":"2.0","id":7,"result":1}]"#, Class::Malformed);
    check(404, "not found", Class::Http4xx);
    check(500, "<html>", Class::Http5xx);
    check(999, "", Class::Http5xx);
}

#[test]
fn recorded_calls() {
    let mut call =
        RecordedRequest { method: 0, calls: 1, body: Box::default(), id: (*b"\"a\"").into() };
    let response = br#"{"id":"a","result":1}"#;
    assert_eq!(recorded(200, response, &call).class, Class::Ok);
    call.id = (*b"1").into();
    assert_eq!(recorded(200, response, &call).class, Class::WrongId);
    call.id = Box::default();
    assert_eq!(recorded(200, response, &call).class, Class::Ok);
}

fn classes(status: u16, body: &str) -> Vec<Class> {
    // The calls have the ids 10, 12 and 14.
    let mut outcomes = [CallOutcome::of(Class::Reset); 3];
    batch(status, body.as_bytes(), 10, 2, &mut outcomes);
    outcomes.map(|outcome| outcome.class).into()
}

#[test]
fn batches() {
    use Class::{Http5xx, Limited, Malformed, Ok, RpcError, WrongId};
    let (a, b, c) =
        (r#"{"id":10,"result":1}"#, r#"{"id":12,"result":1}"#, r#"{"id":14,"result":1}"#);
    let error = r#"{"id":12,"error":{"code":1,"message":""}}"#;
    assert_eq!(classes(200, &format!("[{c},{a},{b}]")), [Ok, Ok, Ok]);
    assert_eq!(classes(200, &format!("[{c},{a},{error}]")), [Ok, RpcError, Ok]);
    assert_eq!(classes(200, &format!("[{c},{a}]")), [Ok, Malformed, Ok]);
    assert_eq!(classes(200, &format!("[{c},{a},{a}]")), [Ok, WrongId, Ok]);
    assert_eq!(classes(200, &format!("[{c},{a},{{\"id\":11,\"result\":1}}]")), [Ok, WrongId, Ok]);
    assert_eq!(classes(200, &format!("[{c},{a},5]")), [Ok, Malformed, Ok]);
    assert_eq!(classes(200, &format!("[{a},{b},{c},{c}]")), [WrongId; 3]);
    assert_eq!(classes(200, a), [Malformed; 3]);
    assert_eq!(classes(200, r#"{"id":null,"error":{"code":1,"message":""}}"#), [RpcError; 3]);
    // An error has the id null if the server could not read the id of its call (JSON-RPC 2.0,
    // section 6).
    let no_id = r#"{"id":null,"error":{"code":-32600,"message":""}}"#;
    assert_eq!(classes(200, &format!("[{a},{no_id},{c}]")), [Ok, RpcError, Ok]);
    assert_eq!(classes(200, &format!("[{no_id},{a},{no_id}]")), [Ok, RpcError, RpcError]);
    assert_eq!(classes(200, &format!("[{no_id},{a}]")), [Ok, RpcError, Malformed]);
    let other = r#"{"id":11,"result":1}"#;
    assert_eq!(classes(200, &format!("[{no_id},{a},{other}]")), [Ok, RpcError, WrongId]);
    assert_eq!(classes(200, "[]"), [Malformed; 3]);
    assert_eq!(classes(502, "<html>"), [Http5xx; 3]);
    assert_eq!(classes(429, &format!("[{a},{b},{c}]")), [Limited; 3]);
}

#[test]
fn recorded_batches() {
    let mut outcomes = [CallOutcome::of(Class::Reset); 2];
    recorded_batch(200, br#"[{"id":"x","result":1}]"#, &mut outcomes);
    assert_eq!(outcomes.map(|outcome| outcome.class), [Class::Ok, Class::Malformed]);
}
