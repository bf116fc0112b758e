//! Goal: WebSocket frames conform to RFC 6455 byte by byte. Method: the cases of the Autobahn test
//! suite, reimplemented with the suite's numbers. Where the suite sends a message that the server
//! echoes, these cases send a call whose response repeats the id. Each case runs on a new
//! connection, and again with one write per byte.
//!
//! Two groups of cases are omitted: those for which the suite also accepts other behavior (6.4,
//! 7.13), and its measurements (9), except one long message. `websocket.rs` tests compressed
//! messages (12, 13).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::harness::{NodeRuntime, TestGateway, chain_polled_once};

const OPENING: &[u8] =
    b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// Read timeout, which only a failing test reaches.
const PATIENCE: Duration = Duration::from_secs(60);

/// A message that the gateway sends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Message {
    /// The response to the call with this id.
    Answer(String),
    Pong(Vec<u8>),
    /// A close frame with this code, after which the gateway sends nothing. `None` if the frame has
    /// no code.
    Close(Option<u16>),
}

/// Returns a client's frame with this first byte (flags and opcode). The mask that clients must
/// apply to the payload is zero, so the payload remains unchanged.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..=125 => frame.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            frame.push(0xfe);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            frame.push(0xff);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

/// Returns a call with this id, padded with spaces to at least this length.
fn call(id: &str, length_min: usize) -> Vec<u8> {
    let mut call =
        format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"eth_chainId"}}"#).into_bytes();
    call.resize(call.len().max(length_min), b' ');
    call
}

/// Returns a text frame with a call.
fn text(id: &str) -> Vec<u8> {
    frame(0x81, &call(id, 0))
}

/// Returns a close frame.
fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(0x88, &[&code.to_be_bytes()[..], reason].concat())
}

fn answer(id: &str) -> Message {
    Message::Answer(id.to_owned())
}

/// The gateway's message after a client violates the protocol.
const PROTOCOL_ERROR: Message = Message::Close(Some(1002));

/// Sends these bytes on a new connection, `step` bytes per write. Returns the gateway's messages
/// until a close frame or until the expected count.
fn send_and_receive(
    gateway: &TestGateway,
    bytes: &[u8],
    step: usize,
    expected_count: usize,
) -> Vec<Message> {
    let mut stream = TcpStream::connect(&gateway.address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(OPENING).unwrap();
    let mut header_section = Vec::new();
    while !header_section.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        header_section.push(byte[0]);
    }
    assert!(header_section.starts_with(b"HTTP/1.1 101 "));
    for piece in bytes.chunks(step) {
        // The write may fail if the gateway has already closed the connection.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let mut received = Vec::new();
    while received.len() < expected_count {
        let message = next_message(&mut stream);
        let is_close = matches!(message, Message::Close(_));
        received.push(message);
        if is_close {
            // Responds to the close frame. This may fail, because the gateway may have closed the
            // connection already.
            let _ = stream.write_all(&close(1000, b""));
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            assert!(rest.is_empty(), "sent after a close: {rest:x?}");
            return received;
        }
    }
    // The gateway must send only the expected messages, so its next one responds to this close.
    stream.write_all(&close(1000, b"")).unwrap();
    assert_eq!(next_message(&mut stream), Message::Close(Some(1000)), "after {received:?}");
    received
}

/// Reads the gateway's next message.
fn next_message(stream: &mut TcpStream) -> Message {
    let mut frame_header = [0; 2];
    stream.read_exact(&mut frame_header).unwrap();
    assert!(frame_header[1] < 126, "every expected message is shorter: {frame_header:x?}");
    let mut payload = vec![0; usize::from(frame_header[1])];
    stream.read_exact(&mut payload).unwrap();
    match frame_header[0] {
        0x81 => {
            let answer: serde_json::Value = serde_json::from_slice(&payload).unwrap();
            Message::Answer(answer["id"].as_str().unwrap().to_owned())
        }
        0x8a => Message::Pong(payload),
        0x88 => Message::Close(payload.first_chunk().map(|code| u16::from_be_bytes(*code))),
        other => panic!("unexpected first byte {other:x}"),
    }
}

/// The case's number in the suite, the client's frames, and the gateway's expected messages.
type Case<'a> = (&'a str, Vec<Vec<u8>>, Vec<Message>);

/// Runs cases with a single write. Cases with at most 2000 bytes also run with one write per byte.
fn check(cases: &[Case<'_>]) {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    assert!(!cases.is_empty());
    for (name, frames, expected) in cases {
        let bytes = frames.concat();
        for step in [usize::MAX, 1] {
            if step == 1 && bytes.len() > 2000 {
                continue;
            }
            let received = send_and_receive(&gateway, &bytes, step, expected.len().max(1));
            assert_eq!(received, *expected, "case {name}, {step} bytes at a time");
        }
    }
}

#[test]
fn messages_of_every_length() {
    let lengths = [0, 125, 126, 127, 128, 1000, 65_535, 65_536, 4 << 20];
    let mut cases = Vec::new();
    for (name, first) in [("1.1", 0x81), ("1.2", 0x82)] {
        for length in lengths {
            cases.push((name, vec![frame(first, &call("a", length))], vec![answer("a")]));
        }
    }
    check(&cases);
}

#[test]
fn pings_and_pongs() {
    let pong = |payload: &[u8]| Message::Pong(payload.to_vec());
    let ten: Vec<Vec<u8>> = (0..10).map(|number| frame(0x89, &[number; 5])).collect();
    check(&[
        ("2.1", vec![frame(0x89, b"")], vec![pong(b"")]),
        ("2.2", vec![frame(0x89, b"Hello, world!")], vec![pong(b"Hello, world!")]),
        ("2.3", vec![frame(0x89, b"\0\xff\xfe\xfd")], vec![pong(b"\0\xff\xfe\xfd")]),
        ("2.4", vec![frame(0x89, &[0xfe; 125])], vec![pong(&[0xfe; 125])]),
        ("2.5", vec![frame(0x89, &[0xfe; 126])], vec![PROTOCOL_ERROR]),
        ("2.7", vec![frame(0x8a, b""), text("a")], vec![answer("a")]),
        ("2.8", vec![frame(0x8a, b"unasked"), text("a")], vec![answer("a")]),
        ("2.9", vec![frame(0x8a, b"unasked"), frame(0x89, b"p")], vec![pong(b"p")]),
        ("2.10", ten, (0..10).map(|number| pong(&[number; 5])).collect()),
    ]);
}

#[test]
fn reserved_bits_and_opcodes_are_rejected() {
    let mut cases = vec![
        ("3.1", vec![frame(0x91, b"{}")], vec![PROTOCOL_ERROR]),
        ("3.2", vec![frame(0xa1, b"{}"), frame(0x89, b"")], vec![PROTOCOL_ERROR]),
        ("3.4", vec![frame(0xc1, b"{}"), frame(0x89, b"")], vec![PROTOCOL_ERROR]),
        ("3.5", vec![frame(0xd2, &[0, 0xff])], vec![PROTOCOL_ERROR]),
        ("3.6", vec![frame(0xe9, b"p")], vec![PROTOCOL_ERROR]),
        ("3.7", vec![frame(0xf8, &[3, 0xe8])], vec![PROTOCOL_ERROR]),
    ];
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        cases.push(("4", vec![frame(0x80 | opcode, b""), frame(0x89, b"")], vec![PROTOCOL_ERROR]));
        cases.push(("4", vec![frame(0x80 | opcode, b"payload")], vec![PROTOCOL_ERROR]));
    }
    check(&cases);
}

#[test]
fn fragments() {
    let whole = call("a", 0);
    let (start, end) = whole.split_at(20);
    let pong = |payload: &[u8]| Message::Pong(payload.to_vec());
    let fifths = |with_pings: bool| -> Vec<Vec<u8>> {
        let pieces: Vec<&[u8]> = whole.chunks(whole.len().div_ceil(5)).collect();
        let last = pieces.len() - 1;
        let mut frames = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let opcode = if index == 0 { 0x01 } else { 0x00 };
            frames.push(frame(if index == last { 0x80 | opcode } else { opcode }, piece));
            if with_pings && index < last {
                frames.push(frame(0x89, &[index as u8]));
            }
        }
        frames
    };
    let mut pongs_and_answer: Vec<Message> = (0..4).map(|number| pong(&[number])).collect();
    pongs_and_answer.push(answer("a"));
    check(&[
        ("5.1", vec![frame(0x09, b"a"), frame(0x80, b"b")], vec![PROTOCOL_ERROR]),
        ("5.2", vec![frame(0x0a, b"a"), frame(0x80, b"b")], vec![PROTOCOL_ERROR]),
        ("5.3", vec![frame(0x01, start), frame(0x80, end)], vec![answer("a")]),
        (
            "5.6",
            vec![frame(0x01, start), frame(0x89, b"p"), frame(0x80, end)],
            vec![pong(b"p"), answer("a")],
        ),
        ("5.9", vec![frame(0x80, b"x"), text("a")], vec![PROTOCOL_ERROR]),
        ("5.12", vec![frame(0x00, b"x"), text("a")], vec![PROTOCOL_ERROR]),
        ("5.18", vec![frame(0x01, start), frame(0x81, end)], vec![PROTOCOL_ERROR]),
        ("5.18", vec![frame(0x02, start), frame(0x02, end)], vec![PROTOCOL_ERROR]),
        ("5.19", fifths(true), pongs_and_answer),
        ("5.20", fifths(false), vec![answer("a")]),
        (
            "empty ones",
            vec![frame(0x01, b""), frame(0x00, &whole), frame(0x80, b"")],
            vec![answer("a")],
        ),
    ]);
}

#[test]
fn text_is_utf8() {
    // A code point of four bytes, split between frames at every position.
    let call = call("\u{1f49b}", 0);
    let code_point_start = call.iter().position(|byte| *byte == 0xf0).unwrap();
    let mut cases = vec![("6.1", vec![frame(0x81, &call)], vec![answer("\u{1f49b}")])];
    for split_at in code_point_start..code_point_start + 5 {
        let frames = vec![frame(0x01, &call[..split_at]), frame(0x80, &call[split_at..])];
        cases.push(("6.2", frames, vec![answer("\u{1f49b}")]));
    }
    let invalid_text = Message::Close(Some(1007));
    for bytes in [
        &b"\xce\xba\xed\xa0\x80"[..],
        b"\xff",
        b"\x80",
        b"\xc0\xaf",
        b"\xe0\x80\xaf",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"\xed\xbf\xbf",
        b"\xe2\x82",
    ] {
        cases.push(("6.3", vec![frame(0x81, bytes)], vec![invalid_text.clone()]));
        let (start, end) = bytes.split_at(1);
        cases.push(("6.3", vec![frame(0x01, start), frame(0x80, end)], vec![invalid_text.clone()]));
    }
    check(&cases);
}

#[test]
fn closes() {
    let closed = |code: u16| Message::Close(Some(code));
    let mut cases = vec![
        ("7.1.2", vec![close(1000, b""), close(1000, b"")], vec![closed(1000)]),
        ("7.1.3", vec![close(1000, b""), frame(0x89, b"p")], vec![closed(1000)]),
        ("7.1.4", vec![close(1000, b""), text("a")], vec![closed(1000)]),
        ("7.1.5", vec![frame(0x01, b"{"), close(1000, b""), frame(0x80, b"}")], vec![closed(1000)]),
        ("7.3.1", vec![frame(0x88, b"")], vec![Message::Close(None)]),
        ("7.3.2", vec![frame(0x88, b"\x03")], vec![PROTOCOL_ERROR]),
        ("7.3.4", vec![close(1000, b"Hello, world!")], vec![closed(1000)]),
        ("7.3.5", vec![close(1000, &[b'*'; 123])], vec![closed(1000)]),
        ("7.3.6", vec![close(1000, &[b'*'; 124])], vec![PROTOCOL_ERROR]),
        ("7.5.1", vec![close(1000, b"\xce\xba\xed\xa0\x80")], vec![closed(1007)]),
    ];
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999] {
        cases.push(("7.7", vec![close(code, b"")], vec![closed(code)]));
    }
    for code in [0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65_535] {
        cases.push(("7.9", vec![close(code, b"")], vec![PROTOCOL_ERROR]));
    }
    check(&cases);
}
