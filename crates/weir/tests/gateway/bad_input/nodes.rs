//! Nodes that send bad responses. If such a node is the only upstream, the client soon gets a
//! precise error. If there is an honest upstream too, the client gets the honest response.

use std::time::{Duration, Instant};

use super::faulty_node::{
    BAD_METHOD, FaultyNode, FollowUp, Misbehaviour, ok_response, ok_response_with,
};
use super::{After, Client, Running, assert_memory_bounded, describe, post, state};
use test_support::running::Weir;

const CLOSED: &str = "502 7 -32603 upstream closed the connection before it responded";
const NONSENSE: &str = "502 7 -32603 upstream sent an invalid response";
const LATE: &str = "504 7 -32002 no upstream responded in time";
const TOO_LARGE: &str = "502 7 -32003 upstream's response exceeds the size limit";

/// The longest time that a client may wait for a response. The gateway's deadline for an attempt at
/// one node is 0.4 s.
const PATIENCE: Duration = Duration::from_secs(15);
/// Minimum number of calls for each misbehaviour, if there are two nodes. The gateway uses them in
/// turn, but on a busy machine it may avoid one whose poll is late.
const CALLS: usize = 4;

/// Each misbehaviour of a node: its name, what the node does, and the response that the client gets
/// if there is no other node. [`describe`] wrote that response.
fn misbehaviours() -> Vec<(&'static str, Misbehaviour, &'static str)> {
    use FollowUp::{Close, Drip, Repeat, SendUnsolicited, Serve, Wait};
    let respond = |response: fn(&str) -> Vec<u8>, then| Misbehaviour { response, then };
    vec![
        ("closes", respond(|_| Vec::new(), Close), CLOSED),
        ("closes within the head", respond(|_| b"HTTP/1.1 200 O".into(), Close), CLOSED),
        ("closes within the body", respond(|id| cut(&ok_response(&ok_body(id)), 5), Close), CLOSED),
        ("closes before the body", respond(|_| with_length("100", ""), Close), CLOSED),
        (
            "cuts a body without a length",
            respond(
                |id| [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &cut(ok_body(id).as_bytes(), 3)].concat(),
                Close,
            ),
            NONSENSE,
        ),
        ("closes within chunks", respond(|_| chunks("5\r\n{\"jso"), Close), CLOSED),
        ("closes before the last chunk", respond(|_| chunks("2\r\n{}\r\n"), Close), CLOSED),
        ("says nothing", respond(|_| Vec::new(), Wait), LATE),
        ("stops within the head", respond(|_| b"HTTP/1.1 200 OK\r\nX: ".into(), Wait), LATE),
        ("stops within the body", respond(|id| cut(&ok_response(&ok_body(id)), 5), Wait), LATE),
        ("stops within chunks", respond(|_| chunks("5\r\n{\"jso"), Wait), LATE),
        ("drips a body", respond(|_| with_length("1000", "{"), Drip(b" ")), LATE),
        ("drips a head", respond(|_| b"HTTP/1.1 200 OK\r\nX: ".into(), Drip(b"y")), LATE),
        ("chunks without sizes", respond(|_| chunks("zz\r\n{}\r\n0\r\n\r\n"), Wait), NONSENSE),
        ("chunks without ends", respond(|_| chunks("2\r\n{}xx0\r\n\r\n"), Wait), NONSENSE),
        ("chunks of unknown coding", respond(|_| coded("gzip, chunked"), Wait), NONSENSE),
        (
            "a page",
            respond(|_| ok_response_with("Content-Type: text/html", "<html>Sorry</html>"), Serve),
            NONSENSE,
        ),
        ("an empty body", respond(|_| ok_response(""), Serve), NONSENSE),
        (
            "half a body of its own length",
            respond(|_| ok_response("{\"jsonrpc\":\"2.0\",\"id"), Serve),
            NONSENSE,
        ),
        ("another id", respond(|_| ok_response(&ok_body("99999999")), Serve), NONSENSE),
        (
            "its id as a string",
            respond(|id| ok_response(&ok_body(&format!("\"{id}\""))), Serve),
            NONSENSE,
        ),
        (
            "its id as a fraction",
            respond(|id| ok_response(&ok_body(&format!("{id}.0"))), Serve),
            NONSENSE,
        ),
        ("a result under id null", respond(|_| ok_response(&ok_body("null")), Serve), NONSENSE),
        ("no id", respond(|_| ok_response(r#"{"jsonrpc":"2.0","result":"0x1"}"#), Serve), NONSENSE),
        (
            "both result and error",
            respond(
                |id| {
                    ok_response(&format!(
                        r#"{{"id":{id},"result":"0x1","error":{{"code":1,"message":"x"}}}}"#
                    ))
                },
                Serve,
            ),
            NONSENSE,
        ),
        (
            "neither result nor error",
            respond(|id| ok_response(&format!(r#"{{"id":{id}}}"#)), Serve),
            NONSENSE,
        ),
        (
            "two results",
            respond(|id| ok_response(&format!(r#"{{"id":{id},"result":1,"result":2}}"#)), Serve),
            NONSENSE,
        ),
        (
            "an error that is none",
            respond(|id| ok_response(&format!(r#"{{"id":{id},"error":"x"}}"#)), Serve),
            NONSENSE,
        ),
        ("an array", respond(|id| ok_response(&format!("[{}]", ok_body(id))), Serve), NONSENSE),
        (
            "a byte too many",
            respond(|id| ok_response(&format!("{}x", ok_body(id))), Serve),
            NONSENSE,
        ),
        ("invalid UTF-8", respond(not_utf8, Serve), NONSENSE),
        (
            "depth 10^5",
            respond(
                |id| {
                    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
                    ok_response(&format!(r#"{{"id":{id},"result":{open}{close}}}"#))
                },
                Serve,
            ),
            NONSENSE,
        ),
        (
            "packed unasked",
            respond(|id| ok_response_with("Content-Encoding: gzip", &ok_body(id)), Serve),
            NONSENSE,
        ),
        (
            "two lengths",
            respond(|id| ok_response_with("Content-Length: 3", &ok_body(id)), Wait),
            NONSENSE,
        ),
        ("a length with a sign", respond(|_| with_length("+2", "{}"), Wait), NONSENSE),
        ("another protocol", respond(|_| b"SSH-2.0-OpenSSH_9.6\r\n\r\n".into(), Wait), NONSENSE),
        ("a switch of protocols", respond(|_| b"HTTP/1.1 101 x\r\n\r\n".into(), Wait), NONSENSE),
        (
            "4,000 interim answers at once",
            respond(
                |id| [b"HTTP/1.1 100 \r\n\r\n".repeat(4000), ok_response(&ok_body(id))].concat(),
                Wait,
            ),
            NONSENSE,
        ),
        (
            "interim answers for ever",
            respond(|_| Vec::new(), Repeat(b"HTTP/1.1 103 x\r\n\r\n")),
            NONSENSE,
        ),
        ("1 TiB announced", respond(|_| with_length("1099511627776", "{"), Wait), TOO_LARGE),
        ("a chunk of 4 GiB announced", respond(|_| chunks("ffffffff\r\n{"), Wait), TOO_LARGE),
        (
            "an endless header",
            respond(|_| b"HTTP/1.1 200 OK\r\nX: ".into(), Repeat(b"yyyyyyyy")),
            TOO_LARGE,
        ),
        (
            "endless headers",
            respond(|_| b"HTTP/1.1 200 OK\r\n".into(), Repeat(b"X: y\r\n")),
            NONSENSE,
        ),
        (
            "an endless body",
            respond(|_| b"HTTP/1.1 200 OK\r\n\r\n".into(), Repeat(b"        ")),
            TOO_LARGE,
        ),
        ("endless chunks", respond(|_| chunks(""), Repeat(b"4\r\n    \r\n")), TOO_LARGE),
        (
            "two answers at once",
            respond(|id| [ok_response(&ok_body(id)), ok_response(&poison(id))].concat(), Serve),
            NONSENSE,
        ),
        (
            "an answer, and one that nobody asked for",
            respond(
                |id| ok_response(&ok_body(id)),
                SendUnsolicited(|next| ok_response(&poison(next))),
            ),
            r#"200 7 result "0x1""#,
        ),
    ]
}

fn ok_body(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0x1"}}"#)
}

/// A response to a call that the gateway has not sent yet. It must never reach a client.
fn poison(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0xdead"}}"#)
}

fn not_utf8(id: &str) -> Vec<u8> {
    let mut answer = ok_response(&ok_body(id));
    let position = answer.len() - 3;
    answer[position] = 0xff;
    answer
}

/// The bytes without the last `missing` ones.
fn cut(bytes: &[u8], missing: usize) -> Vec<u8> {
    bytes[..bytes.len() - missing].to_vec()
}

fn with_length(length: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").into()
}

fn chunks(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}").into()
}

fn coded(coding: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\n").into()
}

/// Starts a gateway that uses these nodes in rotation and never ejects them.
fn start_gateway(nodes: &[&str]) -> Running {
    let nodes = nodes.iter().map(|url| format!("[[upstream]]\nurl = \"{url}\"\n"));
    Weir::serve()
        .config(&format!(
            r#"
        [server]
        threads = 1
        [call]
        balance = "weighted"
        attempt_deadline = "400ms"
        deadline = "5s"
        retry_rate_min = 1000
        response_bytes_max = "256KiB"
        [health]
        failures_max = 1000
        window_calls_min = 1000000
        {}
        "#,
            nodes.collect::<String>()
        ))
        .start()
}

/// A call whose response is not in the cache, because each number is another account.
fn fresh_call(number: usize) -> Vec<u8> {
    let params = format!("[\"0x{number:040x}\",\"0x10\"]");
    format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{BAD_METHOD}","params":{params}}}"#).into()
}

#[test]
fn a_faulty_node_alone_causes_a_precise_error() {
    let honest = Weir::node().start();
    let faulty = FaultyNode::start(&honest.address);
    let mut gateway = start_gateway(&[&faulty.url]);
    let (before, _) = gateway.memory();
    let mut wrong = Vec::new();
    for (number, (name, misbehaviour, expected)) in misbehaviours().into_iter().enumerate() {
        faulty.set_misbehaviour(&misbehaviour);
        let start = Instant::now();
        let mut client = Client::connect(&gateway.address);
        client.send(&post("/", &fresh_call(number)));
        let answer = client.read_response().unwrap();
        let took = start.elapsed();
        if describe(&answer) != expected {
            wrong.push(format!("{name}: {}, not {expected}", describe(&answer)));
        }
        assert!(took < PATIENCE, "{name}: after {took:?}");
        // A bad response closes only the connection to the node, never the client's.
        assert_eq!(state(&mut client, &answer), After::Open, "{name}");
        gateway.assert_sound();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(
        faulty.faulty_call_count(),
        misbehaviours().len(),
        "the gateway retried a call, or did not send it"
    );
    assert_memory_bounded(&gateway, before);
}

#[test]
fn a_faulty_node_beside_an_honest_one_causes_no_error() {
    let honest = Weir::node().start();
    let faulty = FaultyNode::start(&honest.address);
    let start = || start_gateway(&[&faulty.url, &honest.url()]);
    let mut gateway = start();
    let (mut memory_before, _) = gateway.memory();
    let mut direct = Client::connect(&honest.address);
    let mut client = Client::connect(&gateway.address);
    let mut wrong = Vec::new();
    let false_result = r#"200 7 result "0x1""#;
    let mut call_numbers = 0..;
    for (name, misbehaviour, response_alone) in misbehaviours() {
        faulty.set_misbehaviour(&misbehaviour);
        let before = faulty.faulty_call_count();
        let is_called = || faulty.faulty_call_count() > before;
        let first_call = Instant::now();
        let mut calls = 0;
        while calls < CALLS || !is_called() && first_call.elapsed() < PATIENCE {
            calls += 1;
            let call = fresh_call(call_numbers.next().unwrap());
            let start = Instant::now();
            let response = describe(&client.call("/", &call));
            let took = start.elapsed();
            let expected = describe(&direct.call("/", &call));
            // One misbehaviour sends a valid response with a false result, which no gateway can
            // detect.
            let is_undetectable = response_alone == false_result && response == false_result;
            if response != expected && !is_undetectable {
                wrong.push(format!("{name}: {response}, not {expected}"));
            }
            assert!(took < PATIENCE, "{name}: after {took:?}");
        }
        assert!(is_called(), "{name}: the faulty node was never called");
        gateway.assert_sound();
        if response_alone == TOO_LARGE {
            // A gateway avoids a node whose responses are too large. A new one does not know that.
            assert_memory_bounded(&gateway, memory_before);
            gateway = start();
            (memory_before, _) = gateway.memory();
            client = Client::connect(&gateway.address);
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_memory_bounded(&gateway, memory_before);
}
