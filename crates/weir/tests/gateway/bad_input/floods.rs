//! Floods: a client sends an endless stream of requests that are cheap for the client and expensive
//! for the gateway. The gateway closes the client's connection or stops reading from it. Its memory
//! stays bounded, and it still serves other clients.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::{CALL, CALL_OK, Client, assert_memory_bounded, describe, start_gateway};

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Size of a flood: 64 MiB. It is above every limit that should end the flood.
const FLOOD_BYTES: usize = 64 << 20;

/// Timeout of the client's reads and writes. If a write times out, the gateway has stopped reading.
const STUCK: Duration = Duration::from_secs(4);

/// How a flood ended.
#[derive(Debug, PartialEq, Eq)]
enum FloodOutcome {
    /// The gateway closed the connection.
    Closed,
    /// The gateway stopped reading, because it waits until the client reads its responses.
    NotRead,
    /// The gateway read the whole flood and kept the connection open.
    Accepted,
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const END_STREAM: u8 = 1;

/// `:method POST`, `:scheme http`, `:path /` and an authority, in HPACK.
const POST_ROOT: &[u8] = &[0x83, 0x86, 0x84, 0x41, 1, b'a'];

/// Sends `first`, and then `part(0)`, `part(1)` and so on. Ends after [`FLOOD_BYTES`], or earlier
/// if the gateway closes the connection or stops reading.
fn flood(address: &str, first: &[u8], mut part: impl FnMut(u32) -> Vec<u8>) -> FloodOutcome {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(STUCK)).unwrap();
    stream.set_read_timeout(Some(STUCK)).unwrap();
    let mut sent = 0;
    let mut bytes = first.to_vec();
    let mut number = 0;
    while sent < FLOOD_BYTES {
        while bytes.len() < 64 * 1024 {
            bytes.extend(part(number));
            number += 1;
        }
        match stream.write_all(&bytes) {
            Ok(()) => sent += bytes.len(),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return FloodOutcome::NotRead;
            }
            Err(_) => return FloodOutcome::Closed,
        }
        bytes.clear();
    }
    let mut scratch = [0; 64 * 1024];
    loop {
        match stream.read(&mut scratch) {
            Ok(0) => return FloodOutcome::Closed,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return FloodOutcome::Closed;
            }
            Err(_) => return FloodOutcome::Accepted,
        }
    }
}

#[test]
fn floods_of_http2_frames_are_cut_or_held() {
    let (_node, mut gateway) =
        start_gateway("[downstream]\nbody_timeout = \"1s\"\nwrite_timeout = \"1s\"");
    assert_eq!(describe(&Client::connect(&gateway.address).call("/", CALL.as_bytes())), CALL_OK);
    let before = gateway.memory().0;
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let address = gateway.address.clone();
    // Stream ids of a client are odd.
    let stream_id = |number: u32| 2 * number + 1;

    // A header section that never ends: ever more headers (CVE-2024-27316 and similar attacks).
    let header = [&[0_u8, 7][..], b"x-flood", &[100], &[b'v'; 100]].concat();
    let first = [&hello[..], &frame(HEADERS, 0, 1, POST_ROOT)].concat();
    let ended = flood(&address, &first, |_| frame(CONTINUATION, 0, 1, &header));
    assert_eq!(ended, FloodOutcome::Closed, "headers without end");
    let ended = flood(&address, &first, |_| frame(CONTINUATION, 0, 1, &[]));
    assert_eq!(ended, FloodOutcome::Closed, "empty parts of a head without end");

    // Streams that the client opens and resets at once (CVE-2023-44487).
    let ended = flood(&address, &hello, |number| {
        let head = frame(HEADERS, END_HEADERS | END_STREAM, stream_id(number), POST_ROOT);
        [head, frame(RST_STREAM, 0, stream_id(number), &[0, 0, 0, 8])].concat()
    });
    assert_eq!(ended, FloodOutcome::Closed, "streams that are reset at once");

    // More streams than the gateway allows.
    let ended =
        flood(&address, &hello, |number| frame(HEADERS, END_HEADERS, stream_id(number), POST_ROOT));
    assert_ne!(ended, FloodOutcome::Accepted, "streams without end");

    // Frames that each need a response, which the client never reads (CVE-2019-9512,
    // CVE-2019-9515).
    for (what, kind, payload) in [("pings", PING, &[0_u8; 8][..]), ("settings", SETTINGS, &[])] {
        let ended = flood(&address, &hello, |_| frame(kind, 0, 0, payload));
        assert_ne!(ended, FloodOutcome::Accepted, "{what} without end");
    }

    // Empty parts of a body that never ends (CVE-2019-9518).
    let first = [&hello[..], &frame(HEADERS, END_HEADERS, 1, POST_ROOT)].concat();
    flood(&address, &first, |_| frame(DATA, 0, 1, &[]));

    assert_eq!(describe(&Client::connect(&gateway.address).call("/", CALL.as_bytes())), CALL_OK);
    assert_memory_bounded(&gateway, before);
    gateway.assert_sound();
}

/// If a client reads all responses, no unread response makes the gateway stop reading. So the
/// gateway must close the connection.
#[test]
fn floods_of_http2_frames_are_cut_even_if_the_client_reads_the_responses() {
    let (_node, mut gateway) = start_gateway("");
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for (what, kind, stream, payload) in [
        ("pings", PING, 0, &[0_u8; 8][..]),
        ("settings", SETTINGS, 0, &[]),
        ("priorities", PRIORITY, 1, &[0, 0, 0, 3, 7]),
    ] {
        let mut client = TcpStream::connect(&gateway.address).unwrap();
        client.set_write_timeout(Some(STUCK)).unwrap();
        let mut answers = client.try_clone().unwrap();
        let reading = std::thread::spawn(move || {
            let mut scratch = [0; 64 * 1024];
            while answers.read(&mut scratch).is_ok_and(|bytes| bytes > 0) {}
        });
        client.write_all(&hello).unwrap();
        let part = frame(kind, 0, stream, payload).repeat(4096);
        let cut = (0..FLOOD_BYTES / part.len()).any(|_| client.write_all(&part).is_err());
        assert!(cut, "{what} without end");
        reading.join().unwrap();
    }
    assert_eq!(describe(&Client::connect(&gateway.address).call("/", CALL.as_bytes())), CALL_OK);
    gateway.assert_sound();
}

#[test]
fn floods_of_header_lines_are_cut() {
    let (_node, mut gateway) = start_gateway("");
    let first = b"POST / HTTP/1.1\r\nHost: a\r\n";
    assert_eq!(
        flood(&gateway.address, first, |_| b"x-flood: v\r\n".to_vec()),
        FloodOutcome::Closed
    );
    assert_eq!(flood(&gateway.address, b"POST /", |_| vec![b'a'; 1024]), FloodOutcome::Closed);
    assert_eq!(flood(&gateway.address, b"", |_| b"\r\n".to_vec()), FloodOutcome::Closed);
    assert_eq!(describe(&Client::connect(&gateway.address).call("/", CALL.as_bytes())), CALL_OK);
    gateway.assert_sound();
}
