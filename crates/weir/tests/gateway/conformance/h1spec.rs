//! The scenarios of the two suites named h1spec. Each scenario has the bytes that a client sends on
//! a new connection, the statuses of the responses, and the state of the connection afterwards. If
//! both suites have a scenario, it runs with the bytes of each.
//!
//! A GET request is the gateway's health check. Its response is 200 without a body.

use super::{Coverage, Group};
use test_support::raw::{Client, Response, post};
use test_support::running::{Running, Weir};

const UNETWORKING: &str = "uNetworking/h1spec";
const DROPSEED: &str = "dropseed/h1spec";

pub(super) const GROUPS: [Group; 4] = [
    Group::new(UNETWORKING, 15, "a request that is not whole yet is waited for", FRAGMENTS_IN),
    Group::new(
        UNETWORKING,
        17,
        "whole requests, right and wrong",
        Coverage::here("h1spec", "whole_requests_of_unetworking"),
    ),
    Group::new(
        DROPSEED,
        31,
        "request lines, headers, bodies, connections, hardening",
        Coverage::here("h1spec", "requests_of_dropseed"),
    ),
    Group::new(
        DROPSEED,
        2,
        "answers to HEAD, and who waits for 100",
        Coverage::here("h1spec", "heads_and_expectations_of_dropseed"),
    ),
];

const FRAGMENTS_IN: Coverage = Coverage::here("h1spec", "incomplete_requests_are_waited_for");

/// The state of a connection after the responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinalState {
    /// The gateway responds to another request on the connection.
    Open,
    /// The gateway closed the connection. If it sent a response, the response had the header
    /// `Connection: close`.
    Closed,
}

use FinalState::{Closed, Open};

/// A scenario.
struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    /// The expected statuses of all responses.
    statuses: &'static [u16],
    /// The expected state of the connection after the responses.
    final_state: FinalState,
}

fn case(
    name: &'static str,
    bytes: impl AsRef<[u8]>,
    statuses: &'static [u16],
    final_state: FinalState,
) -> Case {
    Case { name, bytes: bytes.as_ref().to_vec(), statuses, final_state }
}

const ALIVE: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const CALL: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;

fn start_gateway(more: &str) -> (Running, Running) {
    let node = Weir::node().start();
    let gateway =
        Weir::serve().config(&format!("[[upstream]]\nurl = \"{}\"\n{more}", node.url())).start();
    (node, gateway)
}

/// A GET request with these header lines.
fn get(headers: &str) -> String {
    format!("GET / HTTP/1.1\r\n{headers}\r\n")
}

/// A POST request with these header lines and this body.
fn post_of(headers: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{body}")
}

/// Runs the cases. Panics with a list of all unexpected results.
fn run(gateway: &mut Running, cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let mut client = Client::connect(&gateway.address);
        client.send(&case.bytes);
        let (statuses, final_state) = outcome(&mut client, case.statuses.len());
        if (&*statuses, final_state) != (case.statuses, case.final_state) {
            wrong.push(format!(
                "{}: expected {:?} and {:?}, got {statuses:?} and {final_state:?}",
                case.name, case.statuses, case.final_state
            ));
        }
        gateway.assert_sound();
        // The gateway must serve the next client, whatever this client sent.
        let mut next = Client::connect(&gateway.address);
        next.send(ALIVE);
        assert_eq!(
            next.read_response().map(|answer| answer.status),
            Some(200),
            "after {}",
            case.name
        );
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    println!("{} cases", cases.len());
}

/// Reads up to `count` responses. Returns their statuses and the state of the connection.
fn outcome(client: &mut Client, count: usize) -> (Vec<u16>, FinalState) {
    let mut statuses = Vec::new();
    for _ in 0..count {
        let Some(answer) = client.read_response() else { return (statuses, Closed) };
        statuses.push(answer.status);
        if says_close(&answer) {
            assert!(
                client.is_closed(),
                "the response says `Connection: close`, but the connection is open"
            );
            return (statuses, Closed);
        }
    }
    assert!(client.is_silent(), "the gateway sent more than the expected responses");
    client.send(ALIVE);
    assert_eq!(
        client.read_response().map(|answer| answer.status),
        Some(200),
        "the connection is neither open nor closed"
    );
    (statuses, Open)
}

fn says_close(answer: &Response) -> bool {
    answer.header("connection") == Some("close")
}

#[test]
fn incomplete_requests_are_waited_for() {
    let (_node, mut gateway) = start_gateway("");
    let whole = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let fragments = [
        ("a part of the method", "G"),
        ("the method and its space", "GET "),
        ("a target without its end", "GET /hello"),
        ("a target and its space", "GET /hello "),
        ("a version without its number", "GET /hello HTTP"),
        ("a request line without its end", "GET /hello HTTP/1.1"),
        ("half of its line end", "GET /hello HTTP/1.1\r"),
        ("a request line", "GET /hello HTTP/1.1\r\n"),
        ("a part of a name", "GET /hello HTTP/1.1\r\nHos"),
        ("a name and its colon", "GET /hello HTTP/1.1\r\nHost:"),
        ("a space before a value", "GET /hello HTTP/1.1\r\nHost: "),
        ("a value without its end", "GET /hello HTTP/1.1\r\nHost: localhost"),
        ("half of a header's line end", "GET /hello HTTP/1.1\r\nHost: localhost\r"),
        ("a header", "GET /hello HTTP/1.1\r\nHost: localhost\r\n"),
        ("half of the empty line", "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r"),
    ];
    assert_eq!(fragments.len(), GROUPS[0].scenarios);
    for (name, fragment) in fragments {
        let rest =
            whole.strip_prefix(fragment).expect("a fragment is a prefix of the whole request");
        let mut client = Client::connect(&gateway.address);
        client.send(fragment.as_bytes());
        assert!(client.is_silent(), "{name}: the gateway does not wait for the rest");
        client.send(rest.as_bytes());
        assert_eq!(client.read_response().map(|answer| answer.status), Some(200), "{name}");
        // A request that stays incomplete gets no response.
        let mut client = Client::connect(&gateway.address);
        client.send(fragment.as_bytes());
        client.half_close();
        assert!(client.is_closed(), "{name}: half a request is answered");
    }
    gateway.assert_sound();
}

#[test]
fn whole_requests_of_unetworking() {
    let (_node, mut gateway) = start_gateway("");
    let with_host = |lines: &str| get(&format!("Host: example.com\r\n{lines}"));
    let length = |value: &str| with_host(&format!("Content-Length: {value}\r\n"));
    let cases = [
        // The version is empty, and the gateway does not support an empty version.
        case("no version", "GET / \r\n\r\n", &[505], Closed),
        // RFC 9110, section 10.1.1: a server need not send 100 if the request has no content. The
        // gateway sends the final response. The suite accepts 100 or 2xx.
        case("an expectation without a body", with_host("Expect: 100-continue\r\n"), &[200], Open),
        case("a plain GET", with_host(""), &[200], Open),
        case(
            "mixed case, a tab, an empty value",
            get("hoSt:\texample.com\r\nempty:\r\n"),
            &[200],
            Open,
        ),
        case("brackets in a name", with_host("X-Invalid[]: test\r\n"), &[400], Closed),
        case("no host", get("Content-Length: 5\r\n"), &[400], Closed),
        case("two hosts", with_host("Host: example.org\r\n"), &[400], Closed),
        case("a length far below zero", length("-123456789123456789123456789"), &[400], Closed),
        case("a length below zero", length("-1234"), &[400], Closed),
        case("a length in letters", length("abc"), &[400], Closed),
        case("a value of one space", with_host("X-Empty-Header: \r\n"), &[200], Open),
        case("a bell in a value", with_host("X-Bad-Control-Char: test\x07\r\n"), &[400], Closed),
        case("HTTP/9.9", with_host("").replace("1.1", "9.9"), &[505], Closed),
        // The parser reads the text before `/` as the method and the target, and the text after it
        // as the version.
        case("words before the method", format!("Extra line{}", with_host("")), &[505], Closed),
        case(
            "a carriage return alone before a name",
            with_host("\rSome-Header: Test\r\n"),
            &[400],
            Closed,
        ),
        // RFC 9110, section 15.5.16: by default, the gateway accepts only JSON content types. With
        // `content_type = "lenient"`, the gateway below accepts others.
        case(
            "a body of five bytes",
            "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\n\r\nhello",
            &[415],
            Open,
        ),
        case(
            "both lengths",
            length("5").replace("Content", "Transfer-Encoding: chunked\r\nContent"),
            &[400],
            Closed,
        ),
    ];
    assert_eq!(cases.len(), GROUPS[1].scenarios);
    run(&mut gateway, &cases);

    let (_node, mut lenient) = start_gateway("[downstream]\ncontent_type = \"lenient\"");
    // The body is not a call, so the response is a JSON-RPC error with the status 200, which is the
    // status that the suite expects.
    let bytes = "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\n\r\nhello";
    run(&mut lenient, &[case("a body of five bytes", bytes, &[200], Open)]);
}

#[test]
fn requests_of_dropseed() {
    let (_node, mut gateway) = start_gateway("");
    let with_host = |lines: &str| get(&format!("Host: localhost\r\n{lines}"));
    let line = |line: &str| format!("{line}\r\nHost: localhost\r\n\r\n");
    let hello = "5\r\nhello\r\n0\r\n\r\n";
    let chunked = |body: &str| post_of("Transfer-Encoding: chunked\r\n", body);
    let next = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let both = post_of("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", hello);
    let many: String = (0..101).map(|at| format!("X-H-{at}: value\r\n")).collect();
    let cases = [
        // Request lines (RFC 9112, section 3).
        case("a plain GET", ALIVE, &[200], Open),
        case("a POST with a length", post("/", CALL), &[200], Open),
        case("OPTIONS of the server as a whole", line("OPTIONS * HTTP/1.1"), &[204], Open),
        case("a target with scheme and host", line("GET http://localhost/ HTTP/1.1"), &[200], Open),
        // RFC 9110, section 9.3.6: a server that is no tunnel refuses CONNECT.
        case("CONNECT", line("CONNECT example.com:443 HTTP/1.1"), &[405], Open),
        case("HTTP/2.0 as text", line("GET / HTTP/2.0"), &[505], Closed),
        case("a request line of two words", line("GET /"), &[400], Closed),
        // Headers (section 5).
        case("no host", get(""), &[400], Closed),
        case("two hosts", with_host("Host: example.com\r\n"), &[400], Closed),
        case("a host of two words", get("Host: bad host\r\n"), &[400], Closed),
        case("a name of two words", with_host("Bad Header: value\r\n"), &[400], Closed),
        case("a folded line", get("Host: localhost\r\n  continued\r\n"), &[400], Closed),
        case("a space before the colon", get("Host : localhost\r\n"), &[400], Closed),
        case("a zero byte in a value", get("Host: local\0host\r\n"), &[400], Closed),
        // Bodies (sections 6 and 7). The gateway refuses a body without a content type. It still
        // reads the body to its end, so the connection stays open.
        case("chunks", chunked(hello), &[415], Open),
        case("chunks in HTTP/1.0", chunked(hello).replace("HTTP/1.1", "HTTP/1.0"), &[400], Closed),
        case("both lengths", &both, &[400], Closed),
        case("both lengths, and a request behind", format!("{both}{next}"), &[400], Closed),
        case(
            "an unknown coding",
            post_of("Transfer-Encoding: nonsense\r\n", "hello"),
            &[400],
            Closed,
        ),
        case(
            "chunks that are not the last coding, and a request behind",
            format!("{}{next}", post_of("Transfer-Encoding: chunked, gzip\r\n", hello)),
            &[400],
            Closed,
        ),
        case("a length in letters", post_of("Content-Length: xyz\r\n", "hello"), &[400], Closed),
        case(
            "two lengths",
            post_of("Content-Length: 5\r\nContent-Length: 7\r\n", "hello!!"),
            &[400],
            Closed,
        ),
        case(
            "a chunk's size in letters, and a request behind",
            format!("{}{next}", chunked("Z\r\nhello\r\n0\r\n\r\n")),
            &[400],
            Closed,
        ),
        case(
            "a chunk without its end, and a request behind",
            format!("{}{next}", chunked("5\r\nhello0\r\n\r\n")),
            &[400],
            Closed,
        ),
        // The suite also requires that responses declare their length. The test's client panics if
        // one does not.
        case("a method in small letters", line("get / HTTP/1.1"), &[405], Open),
        // Connections (section 9).
        case("two requests on one connection", [ALIVE, ALIVE].concat(), &[200, 200], Open),
        case("a connection to close", next, &[200], Closed),
        case("HTTP/1.0", line("GET / HTTP/1.0"), &[200], Closed),
        // Limits: all three header sections are below the limit of 16 KiB, but one has too many
        // lines.
        case(
            "a target of 9,000 bytes",
            line(&format!("GET /{} HTTP/1.1", "a".repeat(9000))),
            &[200],
            Open,
        ),
        case("101 headers", with_host(&many), &[431], Closed),
        case(
            "a header of 9,000 bytes",
            with_host(&format!("X-Big: {}\r\n", "x".repeat(9000))),
            &[200],
            Open,
        ),
    ];
    assert_eq!(cases.len(), GROUPS[2].scenarios);
    run(&mut gateway, &cases);
}

#[test]
fn heads_and_expectations_of_dropseed() {
    let (_node, gateway) = start_gateway("");
    let mut client = Client::connect(&gateway.address);
    client.send(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.read_head_response().map(|answer| answer.status), Some(200));
    assert!(client.is_silent(), "an answer to HEAD has no body");

    let mut client = Client::connect(&gateway.address);
    client.send(
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    );
    assert_eq!(client.read_response().map(|answer| answer.status), Some(100));
    client.send(b"hello");
    assert_eq!(client.read_response().map(|answer| answer.status), Some(415));
}
