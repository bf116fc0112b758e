//! A minimal HTTP/2 client (RFC 9113, section 4.1) that sends single frames, including invalid ones
//! that no library sends. Also the scenarios of nginx's `h2_limit_req.t`, which depend on how the
//! client splits a body into frames.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::harness::{NodeRuntime, TestGateway, body, chain_polled_once};
use test_support::wait::pause;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Types of frames.
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

// Flags of frames. `END_STREAM` and `ACK` are the same bit in different types of frames.
pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

/// `:status: 200` in the static table (RFC 7541, appendix A).
const STATUS_200: u8 = 0x88;
/// Read timeout: longer than any frame takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Encodes a frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// The preface and an empty SETTINGS frame, with which every client begins.
pub(super) fn beginning() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// The encoded header fields of a POST request with a JSON body to `/`. The encoding uses only the
/// static table of HPACK.
pub(super) fn post_block() -> Vec<u8> {
    // :method POST, :scheme http, :path /, then literals without indexing.
    let mut block = vec![0x83, 0x86, 0x84];
    for (name, value) in [(":authority", "localhost"), ("content-type", "application/json")] {
        block.extend(literal(name, value));
    }
    block
}

/// Encodes a header field as a literal without indexing. The name and the value must be shorter
/// than 127 bytes.
pub(super) fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0, u8::try_from(name.len()).unwrap()];
    field.extend_from_slice(name.as_bytes());
    field.push(u8::try_from(value.len()).unwrap());
    field.extend_from_slice(value.as_bytes());
    field
}

/// A received frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

/// A connection that sends and receives single frames.
pub(super) struct Framed {
    pub(super) stream: TcpStream,
    /// Received bytes that are not yet parsed.
    unparsed: Vec<u8>,
}

impl Framed {
    /// Opens a connection and sends the preface and empty settings.
    pub(super) fn begin(address: &str) -> Framed {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut framed = Framed { stream, unparsed: Vec::new() };
        framed.send(&beginning());
        framed
    }

    /// Sends bytes. Ignores errors, because the gateway may have closed the connection.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Waits for the next frame. Returns `None` at the end of the connection.
    pub(super) fn next(&mut self) -> Option<Frame> {
        loop {
            if self.unparsed.len() >= 9 {
                let length =
                    u32::from_be_bytes([0, self.unparsed[0], self.unparsed[1], self.unparsed[2]])
                        as usize;
                if self.unparsed.len() >= 9 + length {
                    let whole: Vec<u8> = self.unparsed.drain(..9 + length).collect();
                    let stream = u32::from_be_bytes(whole[5..9].try_into().unwrap());
                    return Some(Frame {
                        kind: whole[3],
                        flags: whole[4],
                        stream,
                        payload: whole[9..].to_vec(),
                    });
                }
            }
            let mut part = [0; 16 * 1024];
            match self.stream.read(&mut part) {
                Ok(0) => return None,
                Ok(bytes) => self.unparsed.extend_from_slice(&part[..bytes]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing received for {PATIENCE:?}: {error}"),
            }
        }
    }

    /// Waits for the response on a stream, and acknowledges settings and pings meanwhile. Returns
    /// the body, and true if the status is 200. Returns `None` if the stream or the connection ends
    /// before the response.
    pub(super) fn answer(&mut self, stream: u32) -> Option<(bool, String)> {
        let (mut is_ok, mut body) = (false, Vec::new());
        loop {
            let received = self.next()?;
            match received.kind {
                SETTINGS if received.flags & ACK == 0 => self.send(&frame(SETTINGS, ACK, 0, &[])),
                PING if received.flags & ACK == 0 => {
                    self.send(&frame(PING, ACK, 0, &received.payload))
                }
                HEADERS if received.stream == stream => {
                    is_ok = received.payload.first() == Some(&STATUS_200)
                }
                DATA if received.stream == stream => body.extend_from_slice(&received.payload),
                RST_STREAM if received.stream == stream => return None,
                GOAWAY => return None,
                _ => continue,
            }
            let ends = received.stream == stream && matches!(received.kind, HEADERS | DATA);
            if ends && received.flags & END_STREAM != 0 {
                return Some((is_ok, String::from_utf8(body).unwrap()));
            }
        }
    }
}

/// Opens a stream: sends the headers of a POST request.
fn open(framed: &mut Framed, stream: u32, flags: u8) {
    framed.send(&frame(HEADERS, flags | END_HEADERS, stream, &post_block()));
}

#[test]
fn bodies_of_h2_limit_req() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let limit =
        "[zone.req]\nkey = [\"client\"]\nrate = \"1r/s\"\n[[limit]]\nzone = \"req\"\nburst = 2\n";
    let gateway = TestGateway::in_front_of(&[&node], &format!("{}{limit}", chain_polled_once("")));
    let call = body("eth_chainId", "[]");
    let wait = Duration::from_millis(1100);
    let assert_result = |answer: Option<(bool, String)>, what: &str| {
        let (is_ok, text) = answer.unwrap_or_else(|| panic!("{what}: no answer"));
        assert!(is_ok && text.contains("\"result\":\"0x"), "{what}: {text}");
    };

    let mut framed = Framed::begin(&gateway.address);
    open(&mut framed, 1, 0);
    framed.send(&frame(DATA, END_STREAM, 1, &call));
    assert_result(framed.answer(1), "a body behind its headers");

    let mut framed = Framed::begin(&gateway.address);
    open(&mut framed, 1, 0);
    pause(wait); // Sleeps: the client is late with its body.
    framed.send(&frame(DATA, END_STREAM, 1, &call));
    assert_result(framed.answer(1), "a body that comes late");

    let mut framed = Framed::begin(&gateway.address);
    open(&mut framed, 1, 0);
    framed.send(&frame(DATA, END_STREAM, 1, b""));
    let (is_ok, text) = framed.answer(1).unwrap();
    assert!(is_ok && text.contains("-32700"), "an empty body is no call, and is told so: {text}");

    let began = Instant::now();
    let mut framed = Framed::begin(&gateway.address);
    open(&mut framed, 1, 0);
    framed.send(&frame(DATA, END_STREAM, 1, &call));
    assert_result(framed.answer(1), "a body at once, of a call that waits");
    assert!(began.elapsed() > Duration::from_millis(300), "it did not wait");

    // A frame in two parts, and then another stream.
    let mut framed = Framed::begin(&gateway.address);
    open(&mut framed, 1, 0);
    let whole = frame(DATA, END_STREAM, 1, &call);
    framed.send(&whole[..30]);
    pause(wait); // Sleeps: the client is late with its body.
    framed.send(&whole[30..]);
    assert_result(framed.answer(1), "half a frame, and the other half later");
    open(&mut framed, 3, 0);
    framed.send(&frame(DATA, END_STREAM, 3, &call));
    assert_result(framed.answer(3), "the next stream");

    // A client that disconnects in the middle of a frame.
    let mut framed = Framed::begin(&gateway.address);
    open(&mut framed, 1, 0);
    framed.send(&whole[..30]);
    pause(wait); // Sleeps: the client is late with its body.
    drop(framed);
    assert_eq!(gateway.client().call("/", &call).status, 200, "a client that left harms nobody");
}
