//! Nodes that answer wickedly. Alone, such a node costs its client a precise error, soon; beside an
//! honest one it costs nothing: the client gets the honest answer.

use std::time::{Duration, Instant};

use super::wicked::{Deed, STRUCK, Then, Wicked, whole, with};
use super::{After, Client, Running, assert_lean, post, state, told};
use test_support::running::Weir;

const CLOSED: &str = "502 7 -32603 upstream closed the connection before it responded";
const NONSENSE: &str = "502 7 -32603 upstream sent an invalid response";
const LATE: &str = "504 7 -32002 no upstream responded in time";
const TOO_LARGE: &str = "502 7 -32003 upstream's response exceeds the size limit";

/// Longer than any deed may keep a client waiting: the attempt's deadline is 0.4 s.
const PATIENCE: Duration = Duration::from_secs(15);
/// Calls for each misbehaviour; the nodes are used in rotation.
const CALLS: usize = 4;

/// The misbehaviour of a node, and the response to a client without another node.
fn deeds() -> Vec<(&'static str, Deed, &'static str)> {
    use Then::{Close, Drip, Repeat, SayUnasked, Serve, Wait};
    let deed = |say: fn(&str) -> Vec<u8>, then| Deed { say, then };
    vec![
        ("closes", deed(|_| Vec::new(), Close), CLOSED),
        ("closes within the head", deed(|_| b"HTTP/1.1 200 O".into(), Close), CLOSED),
        ("closes within the body", deed(|id| cut(&whole(&right(id)), 5), Close), CLOSED),
        ("closes before the body", deed(|_| with_length("100", ""), Close), CLOSED),
        (
            "cuts a body without a length",
            deed(
                |id| [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &cut(right(id).as_bytes(), 3)].concat(),
                Close,
            ),
            NONSENSE,
        ),
        ("closes within chunks", deed(|_| chunks("5\r\n{\"jso"), Close), CLOSED),
        ("closes before the last chunk", deed(|_| chunks("2\r\n{}\r\n"), Close), CLOSED),
        ("says nothing", deed(|_| Vec::new(), Wait), LATE),
        ("stops within the head", deed(|_| b"HTTP/1.1 200 OK\r\nX: ".into(), Wait), LATE),
        ("stops within the body", deed(|id| cut(&whole(&right(id)), 5), Wait), LATE),
        ("stops within chunks", deed(|_| chunks("5\r\n{\"jso"), Wait), LATE),
        ("drips a body", deed(|_| with_length("1000", "{"), Drip(b" ")), LATE),
        ("drips a head", deed(|_| b"HTTP/1.1 200 OK\r\nX: ".into(), Drip(b"y")), LATE),
        ("chunks without sizes", deed(|_| chunks("zz\r\n{}\r\n0\r\n\r\n"), Wait), NONSENSE),
        ("chunks without ends", deed(|_| chunks("2\r\n{}xx0\r\n\r\n"), Wait), NONSENSE),
        ("chunks of unknown coding", deed(|_| coded("gzip, chunked"), Wait), NONSENSE),
        (
            "a page",
            deed(|_| with("Content-Type: text/html", "<html>Sorry</html>"), Serve),
            NONSENSE,
        ),
        ("an empty body", deed(|_| whole(""), Serve), NONSENSE),
        (
            "half a body of its own length",
            deed(|_| whole("{\"jsonrpc\":\"2.0\",\"id"), Serve),
            NONSENSE,
        ),
        ("another id", deed(|_| whole(&right("99999999")), Serve), NONSENSE),
        ("its id as a string", deed(|id| whole(&right(&format!("\"{id}\""))), Serve), NONSENSE),
        ("its id as a fraction", deed(|id| whole(&right(&format!("{id}.0"))), Serve), NONSENSE),
        ("a result under id null", deed(|_| whole(&right("null")), Serve), NONSENSE),
        ("no id", deed(|_| whole(r#"{"jsonrpc":"2.0","result":"0x1"}"#), Serve), NONSENSE),
        (
            "both result and error",
            deed(
                |id| {
                    whole(&format!(
                        r#"{{"id":{id},"result":"0x1","error":{{"code":1,"message":"x"}}}}"#
                    ))
                },
                Serve,
            ),
            NONSENSE,
        ),
        (
            "neither result nor error",
            deed(|id| whole(&format!(r#"{{"id":{id}}}"#)), Serve),
            NONSENSE,
        ),
        (
            "two results",
            deed(|id| whole(&format!(r#"{{"id":{id},"result":1,"result":2}}"#)), Serve),
            NONSENSE,
        ),
        (
            "an error that is none",
            deed(|id| whole(&format!(r#"{{"id":{id},"error":"x"}}"#)), Serve),
            NONSENSE,
        ),
        ("an array", deed(|id| whole(&format!("[{}]", right(id))), Serve), NONSENSE),
        ("a byte too many", deed(|id| whole(&format!("{}x", right(id))), Serve), NONSENSE),
        ("invalid UTF-8", deed(not_utf8, Serve), NONSENSE),
        (
            "depth 10^5",
            deed(
                |id| {
                    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
                    whole(&format!(r#"{{"id":{id},"result":{open}{close}}}"#))
                },
                Serve,
            ),
            NONSENSE,
        ),
        ("packed unasked", deed(|id| with("Content-Encoding: gzip", &right(id)), Serve), NONSENSE),
        ("two lengths", deed(|id| with("Content-Length: 3", &right(id)), Wait), NONSENSE),
        ("a length with a sign", deed(|_| with_length("+2", "{}"), Wait), NONSENSE),
        ("another protocol", deed(|_| b"SSH-2.0-OpenSSH_9.6\r\n\r\n".into(), Wait), NONSENSE),
        ("a switch of protocols", deed(|_| b"HTTP/1.1 101 x\r\n\r\n".into(), Wait), NONSENSE),
        (
            "4,000 interim answers at once",
            deed(|id| [b"HTTP/1.1 100 \r\n\r\n".repeat(4000), whole(&right(id))].concat(), Wait),
            NONSENSE,
        ),
        (
            "interim answers for ever",
            deed(|_| Vec::new(), Repeat(b"HTTP/1.1 103 x\r\n\r\n")),
            NONSENSE,
        ),
        ("1 TiB announced", deed(|_| with_length("1099511627776", "{"), Wait), TOO_LARGE),
        ("a chunk of 4 GiB announced", deed(|_| chunks("ffffffff\r\n{"), Wait), TOO_LARGE),
        (
            "an endless header",
            deed(|_| b"HTTP/1.1 200 OK\r\nX: ".into(), Repeat(b"yyyyyyyy")),
            TOO_LARGE,
        ),
        ("endless headers", deed(|_| b"HTTP/1.1 200 OK\r\n".into(), Repeat(b"X: y\r\n")), NONSENSE),
        (
            "an endless body",
            deed(|_| b"HTTP/1.1 200 OK\r\n\r\n".into(), Repeat(b"        ")),
            TOO_LARGE,
        ),
        ("endless chunks", deed(|_| chunks(""), Repeat(b"4\r\n    \r\n")), TOO_LARGE),
        (
            "two answers at once",
            deed(|id| [whole(&right(id)), whole(&poison(id))].concat(), Serve),
            NONSENSE,
        ),
        (
            "an answer, and one that nobody asked for",
            deed(|id| whole(&right(id)), SayUnasked(|next| whole(&poison(next)))),
            r#"200 7 result "0x1""#,
        ),
    ]
}

fn right(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0x1"}}"#)
}

/// A response to a call that was not sent yet, which must never reach a client.
fn poison(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0xdead"}}"#)
}

fn not_utf8(id: &str) -> Vec<u8> {
    let mut answer = whole(&right(id));
    let at = answer.len() - 3;
    answer[at] = 0xff;
    answer
}

fn cut(bytes: &[u8], last: usize) -> Vec<u8> {
    bytes[..bytes.len() - last].to_vec()
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

/// A gateway in front of these nodes, in turn, which no failure takes out.
fn gateway(nodes: &[&str]) -> Running {
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
        response_bytes_max = "1MiB"
        [health]
        failures_max = 1000
        window_calls_min = 1000000
        {}
        "#,
            nodes.collect::<String>()
        ))
        .start()
}

/// A call that the cache has not seen.
fn fresh_call(of: usize) -> Vec<u8> {
    let params = format!("[\"0x{of:040x}\",\"0x10\"]");
    format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{STRUCK}","params":{params}}}"#).into()
}

#[test]
fn a_wicked_node_alone_costs_a_precise_error() {
    let honest = Weir::node().start();
    let wicked = Wicked::start(&honest.address);
    let mut gateway = gateway(&[&wicked.url]);
    let (before, _) = gateway.memory();
    let mut wrong = Vec::new();
    for (at, (name, deed, due)) in deeds().into_iter().enumerate() {
        wicked.shall(&deed);
        let began = Instant::now();
        let mut client = Client::connect(&gateway.address);
        client.send(&post("/", &fresh_call(at)));
        let answer = client.answer().unwrap();
        let took = began.elapsed();
        if told(&answer) != due {
            wrong.push(format!("{name}: {}, not {due}", told(&answer)));
        }
        assert!(took < PATIENCE, "{name}: after {took:?}");
        // Only the node's connection is spoilt, never the client's.
        assert_eq!(state(&mut client, &answer), After::Open, "{name}");
        gateway.assert_sound();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(wicked.struck(), deeds().len(), "each was asked for once");
    assert_lean(&gateway, before);
}

#[test]
fn a_wicked_node_beside_an_honest_one_costs_nothing() {
    let honest = Weir::node().start();
    let wicked = Wicked::start(&honest.address);
    let mut gateway = gateway(&[&wicked.url, &honest.url()]);
    let (before, _) = gateway.memory();
    let mut direct = Client::connect(&honest.address);
    let mut client = Client::connect(&gateway.address);
    let mut wrong = Vec::new();
    let passable = r#"200 7 result "0x1""#;
    for (at, (name, deed, alone)) in deeds().into_iter().enumerate() {
        wicked.shall(&deed);
        let struck = wicked.struck();
        for turn in 0..CALLS {
            let call = fresh_call(at * CALLS + turn);
            let began = Instant::now();
            let said = told(&client.call("/", &call));
            let took = began.elapsed();
            let due = told(&direct.call("/", &call));
            // One deed is a lie in due form, which no gateway can tell from the truth.
            if said != due && !(alone == passable && said == passable) {
                wrong.push(format!("{name}: {said}, not {due}"));
            }
            assert!(took < PATIENCE, "{name}: after {took:?}");
        }
        assert!(wicked.struck() > struck, "{name}: it was never asked");
        gateway.assert_sound();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_lean(&gateway, before);
}
