//! Goal: whatever comes in, from clients or from nodes, is answered or refused precisely; the
//! connection is then in a known state, and the gateway lives on in bounded memory. Method: raw
//! bytes over sockets against the real binary, a table of cases for each side.

mod bodies;
mod connections;
mod floods;
mod http2;
mod memory;
mod nodes;
mod requests;
mod wicked;

use test_support::members::{self, members};
use test_support::raw::{Answer, Client, post};
use test_support::running::{Running, Weir};

/// A call that is always right, and its answer in the words of [`told`].
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
const RIGHT: &str = r#"200 1 result "0x67932""#;

/// What is left of a connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The next request on it is answered.
    Open,
    /// The gateway announced the close, closed the connection and sent nothing more.
    Closed,
}

/// Bytes to send on a fresh connection, and what must come of them.
struct Case {
    name: String,
    bytes: Vec<u8>,
    told: String,
    after: After,
}

/// A gateway in front of a simulated node, with every limit at its default, and with a path that
/// leads nowhere.
fn gateway(more: &str) -> (Running, Running) {
    let node = Weir::node().start();
    let gateway = Weir::serve()
        .config(&format!(
            r#"
        [server]
        threads = 2
        [chain.ethereum]
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

/// An answer in one line: status, id, and the result or the error's code and message.
fn told(answer: &Answer) -> String {
    let status = answer.status;
    if answer.body.is_empty() {
        return format!("{status}");
    }
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let text = answer.text();
    let one = |text: &str| {
        let all = members(text);
        assert_eq!(all["jsonrpc"].get(), "\"2.0\"");
        let id = all["id"].get();
        match all.get("error") {
            None => format!("{id} result {}", all["result"].get()),
            Some(error) => {
                let error = members(error.get());
                let message: String = serde_json::from_str(error["message"].get()).unwrap();
                format!("{id} {} {message}", error["code"].get())
            }
        }
    };
    if text.starts_with('[') {
        let items: Vec<_> = members::items(text).iter().map(|item| one(item.get())).collect();
        format!("{status} [{}]", items.join(", "))
    } else {
        format!("{status} {}", one(text))
    }
}

/// The state of a connection after an answer, found out by using it.
fn state(client: &mut Client, answer: &Answer) -> After {
    if answer.header("connection") == Some("close") {
        assert!(client.is_closed(), "it says close and goes on");
        return After::Closed;
    }
    assert!(client.is_silent(), "more came than was asked for");
    client.send(&post("/", CALL.as_bytes()));
    let next = client.answer().expect("a connection that does not say close stays open");
    assert_eq!(told(&next), RIGHT);
    After::Open
}

/// Runs the cases and fails with all that came otherwise than told.
fn check(gateway: &mut Running, cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let mut client = Client::connect(&gateway.address);
        client.send(&case.bytes);
        let (said, after) = match client.answer() {
            None => ("nothing".to_owned(), After::Closed),
            Some(answer) => (told(&answer), state(&mut client, &answer)),
        };
        if (&said, after) != (&case.told, case.after) {
            wrong.push(format!(
                "{}:\n  expected {:?}: {}\n  got      {after:?}: {said}",
                case.name, case.after, case.told
            ));
        }
        gateway.assert_sound();
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    println!("{} cases", cases.len());
}

/// Allowed growth of the gateway's memory under bad input. For each of its two threads: a body as
/// sent and decompressed (5 MiB each), zstd's window (8 MiB), and memory that the allocator
/// retains. Twenty bombs need no more than two.
const GROWTH_BYTES_MAX: u64 = 96 << 20;

/// Fails if memory grew by more than is allowed since `before`, even for a moment.
fn assert_lean(gateway: &Running, before: u64) {
    let (now, most) = gateway.memory();
    println!("memory: {before} bytes before, {now} after, {most} at most");
    assert!(most < before + GROWTH_BYTES_MAX, "from {before} bytes to {most}");
}
