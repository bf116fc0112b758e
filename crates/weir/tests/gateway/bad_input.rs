//! Goal: after bad input from a client or a node, the client gets a precise response. The
//! connection is then in a known state, and the gateway keeps running in bounded memory. Method:
//! raw bytes over sockets to a gateway process. There are cases for bad clients and for bad nodes.

mod bodies;
mod connections;
mod faulty_node;
mod floods;
mod http2;
mod memory;
mod nodes;
mod requests;

use test_support::members::{self, members};
use test_support::raw::{Client, Response, post};
use test_support::running::{Running, Weir};

/// A valid call.
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
/// The response to [`CALL`] as [`describe`] writes it.
const CALL_OK: &str = r#"200 1 result "0x67932""#;

/// The state of a connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The gateway responds to the next request on the connection.
    Open,
    /// The response had the header `Connection: close`. The gateway then closed the connection and
    /// sent nothing more.
    Closed,
}

/// Bytes to send on a new connection, and the expected result.
struct Case {
    name: String,
    bytes: Vec<u8>,
    /// The response as [`describe`] writes it.
    expected: String,
    after: After,
}

/// Starts a simulated node and a gateway with default limits and the paths `/` and `/eth`. Returns
/// the node first.
fn start_gateway(more: &str) -> (Running, Running) {
    let node = Weir::node().start();
    let gateway = Weir::serve()
        .config(&format!(
            r#"
        [server]
        threads = 2
        [chain.sim]
        paths = ["/", "/eth"]
        default = false
        [[upstream]]
        url = "{}"
        {more}
        "#,
            node.url()
        ))
        .start();
    (node, gateway)
}

/// Describes a response in one line: HTTP status, id, and the result or the error's code and
/// message.
fn describe(answer: &Response) -> String {
    let status = answer.status;
    if answer.body.is_empty() {
        return format!("{status}");
    }
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let text = answer.text();
    let describe_object = |text: &str| {
        let object = members(text);
        if object.contains_key("service") {
            return "service".to_owned();
        }
        assert_eq!(object["jsonrpc"].get(), "\"2.0\"");
        let id = object["id"].get();
        match object.get("error") {
            None => format!("{id} result {}", object["result"].get()),
            Some(error) => {
                let error = members(error.get());
                let message: String = serde_json::from_str(error["message"].get()).unwrap();
                format!("{id} {} {message}", error["code"].get())
            }
        }
    };
    if text.starts_with('[') {
        let items: Vec<_> =
            members::items(text).iter().map(|item| describe_object(item.get())).collect();
        format!("{status} [{}]", items.join(", "))
    } else {
        format!("{status} {}", describe_object(text))
    }
}

/// Returns the state of a connection after `answer`. Sends a further call on it to find out.
fn state(client: &mut Client, answer: &Response) -> After {
    if answer.header("connection") == Some("close") {
        assert!(
            client.is_closed(),
            "the response says `Connection: close`, but the connection is open"
        );
        return After::Closed;
    }
    assert!(client.is_silent(), "the gateway sent more than one response");
    client.send(&post("/", CALL.as_bytes()));
    let next = client.read_response().expect("a connection without `Connection: close` stays open");
    assert_eq!(describe(&next), CALL_OK);
    After::Open
}

/// Runs the cases. Panics with a list of all cases that did not have the expected result.
fn check(gateway: &mut Running, cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let mut client = Client::connect(&gateway.address);
        client.send(&case.bytes);
        let (description, after) = match client.read_response() {
            None => ("nothing".to_owned(), After::Closed),
            Some(answer) => (describe(&answer), state(&mut client, &answer)),
        };
        if (&description, after) != (&case.expected, case.after) {
            wrong.push(format!(
                "{}:\n  expected {:?}: {}\n  got      {after:?}: {description}",
                case.name, case.after, case.expected
            ));
        }
        gateway.assert_sound();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    println!("{} cases", cases.len());
}

/// Allowed growth of the gateway's memory under bad input. Each of the gateway's two threads needs
/// a compressed and a decompressed body (5 MiB each), zstd's window (8 MiB), and memory that the
/// allocator retains. Twenty decompression bombs need no more memory than two.
const GROWTH_BYTES_MAX: u64 = 96 << 20;

/// Panics if the gateway's peak memory exceeds `before` by [`GROWTH_BYTES_MAX`] or more. `before`
/// is in bytes.
fn assert_memory_bounded(gateway: &Running, before: u64) {
    let (now, peak) = gateway.memory();
    println!("memory: {before} bytes before, {now} after, {peak} at most");
    assert!(peak < before + GROWTH_BYTES_MAX, "from {before} bytes to {peak}");
}
