//! Floods: a client that sends what costs it little and the gateway much, without end. Its
//! connection is cut, or it is made to wait for itself; memory stays where it was, and others are
//! served.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::{CALL, Client, RIGHT, assert_lean, gateway, told};

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes to repeat, above every limit that should end the flood: 64 MiB.
const FLOOD_BYTES: usize = 64 << 20;

/// A write or read that makes no progress for so long never will.
const STUCK: Duration = Duration::from_secs(4);

/// How a flood ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The gateway closed the connection.
    Cut,
    /// The gateway stops reading until the client reads its responses.
    Held,
    /// It took all of it.
    Taken,
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

/// Sends the first bytes, then chunks until the gateway closes the connection or all are sent.
fn flood(address: &str, first: &[u8], mut part: impl FnMut(u32) -> Vec<u8>) -> Ended {
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
                return Ended::Held;
            }
            Err(_) => return Ended::Cut,
        }
        bytes.clear();
    }
    let mut scratch = [0; 64 * 1024];
    loop {
        match stream.read(&mut scratch) {
            Ok(0) => return Ended::Cut,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ended::Cut,
            Err(_) => return Ended::Taken,
        }
    }
}

#[test]
fn floods_of_http2_frames_are_cut_or_held() {
    let (_node, mut gateway) =
        gateway("[downstream]\nbody_timeout = \"1s\"\nwrite_timeout = \"1s\"");
    assert_eq!(told(&Client::connect(&gateway.address).call("/", CALL.as_bytes())), RIGHT);
    let before = gateway.memory().0;
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let address = gateway.address.clone();
    let own = |number: u32| 2 * number + 1;

    // A head that never ends: more and more headers (CVE-2024-27316 and its kin).
    let header = [&[0_u8, 7][..], b"x-flood", &[100], &[b'v'; 100]].concat();
    let first = [&hello[..], &frame(HEADERS, 0, 1, POST_ROOT)].concat();
    let ended = flood(&address, &first, |_| frame(CONTINUATION, 0, 1, &header));
    assert_eq!(ended, Ended::Cut, "headers without end");
    let ended = flood(&address, &first, |_| frame(CONTINUATION, 0, 1, &[]));
    assert_eq!(ended, Ended::Cut, "empty parts of a head without end");

    // Streams that are opened and taken back (CVE-2023-44487).
    let ended = flood(&address, &hello, |number| {
        let head = frame(HEADERS, END_HEADERS | END_STREAM, own(number), POST_ROOT);
        [head, frame(RST_STREAM, 0, own(number), &[0, 0, 0, 8])].concat()
    });
    assert_eq!(ended, Ended::Cut, "streams that are taken back at once");

    // Streams that are opened beyond what is allowed.
    let ended =
        flood(&address, &hello, |number| frame(HEADERS, END_HEADERS, own(number), POST_ROOT));
    assert_ne!(ended, Ended::Taken, "streams without end");

    // Frames that ask for an answer each, which is never read (CVE-2019-9512, CVE-2019-9515).
    for (what, kind, payload) in [("pings", PING, &[0_u8; 8][..]), ("settings", SETTINGS, &[])] {
        let ended = flood(&address, &hello, |_| frame(kind, 0, 0, payload));
        assert_ne!(ended, Ended::Taken, "{what} without end");
    }

    // Empty parts of a body that never ends (CVE-2019-9518).
    let first = [&hello[..], &frame(HEADERS, END_HEADERS, 1, POST_ROOT)].concat();
    flood(&address, &first, |_| frame(DATA, 0, 1, &[]));

    assert_eq!(told(&Client::connect(&gateway.address).call("/", CALL.as_bytes())), RIGHT);
    assert_lean(&gateway, before);
    gateway.assert_sound();
}

/// A client that reads all that it is sent is told nothing by what is held back.
#[test]
fn floods_of_http2_frames_are_cut_although_their_answers_are_read() {
    let (_node, mut gateway) = gateway("");
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
    assert_eq!(told(&Client::connect(&gateway.address).call("/", CALL.as_bytes())), RIGHT);
    gateway.assert_sound();
}

#[test]
fn floods_of_header_lines_are_cut() {
    let (_node, mut gateway) = gateway("");
    let first = b"POST / HTTP/1.1\r\nHost: a\r\n";
    assert_eq!(flood(&gateway.address, first, |_| b"x-flood: v\r\n".to_vec()), Ended::Cut);
    assert_eq!(flood(&gateway.address, b"POST /", |_| vec![b'a'; 1024]), Ended::Cut);
    assert_eq!(flood(&gateway.address, b"", |_| b"\r\n".to_vec()), Ended::Cut);
    assert_eq!(told(&Client::connect(&gateway.address).call("/", CALL.as_bytes())), RIGHT);
    gateway.assert_sound();
}
