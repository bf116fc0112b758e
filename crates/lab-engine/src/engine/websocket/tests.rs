//! Goal: frames and handshakes follow RFC 6455, and a hostile server cannot grow the decoder's
//! memory. The first argument of `frame` is the first byte of a frame: the FIN bit 0x80 and the
//! opcode (0 continuation, 1 text, 2 binary, 8 close, 9 ping, 10 pong).

pub(crate) mod server;

use wire::websocket::ProtocolError;

use super::*;

/// Feeds these bytes to a decoder in pieces of this size. Returns the decoded events as text.
fn decode(bytes: &[u8], piece_bytes: usize) -> Result<Vec<String>, ProtocolError> {
    let mut decoder = Decoder::default();
    let (mut events, mut message) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(piece_bytes) {
        let mut offset = 0;
        loop {
            let (used, event) = decoder.next(&piece[offset..])?;
            offset += used;
            match event {
                None if offset == piece.len() => break,
                None => {}
                Some(Event::Piece { bytes, is_last }) => {
                    message.extend_from_slice(bytes);
                    if is_last {
                        events.push(String::from_utf8(std::mem::take(&mut message)).unwrap());
                    }
                }
                Some(Event::Ping(payload)) => {
                    events.push(format!("ping {}", String::from_utf8_lossy(payload)));
                }
                Some(Event::Pong) => events.push("pong".to_owned()),
                Some(Event::Close(code)) => events.push(format!("close {code:?}")),
            }
        }
    }
    Ok(events)
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    server::frame(first, payload)
}

#[test]
fn messages_and_control_frames_are_decoded_at_any_split() {
    let long = "x".repeat(70_000);
    let medium = "y".repeat(300);
    let bytes = [
        frame(0x81, b"whole"),
        frame(0x01, b"frag"),
        frame(0x89, b"are you there"),
        frame(0x00, b""),
        frame(0x80, b"ments"),
        frame(0x82, medium.as_bytes()),
        frame(0x81, b""),
        frame(0x8a, b""),
        frame(0x81, long.as_bytes()),
        frame(0x88, &1001u16.to_be_bytes()),
        frame(0x88, b""),
    ]
    .concat();
    let expected = [
        "whole",
        "ping are you there",
        "fragments",
        &medium,
        "",
        "pong",
        &long,
        "close Some(1001)",
        "close None",
    ];
    for piece_bytes in [1, 2, 3, 7, 1000, bytes.len()] {
        assert_eq!(decode(&bytes, piece_bytes).unwrap(), expected, "{piece_bytes}");
    }
}

#[test]
fn violations_are_rejected() {
    let masked = [0x81, 0x81, 1, 2, 3, 4, 5];
    let length_above_63_bits = [0x81, 127, 0xff, 0, 0, 0, 0, 0, 0, 0];
    let cases: [&[u8]; 9] = [
        &masked,
        &length_above_63_bits,
        &frame(0xc1, b"compressed"),
        &frame(0x83, b"unknown opcode"),
        &frame(0x80, b"continuation of nothing"),
        &[frame(0x01, b"a"), frame(0x81, b"message in a message")].concat(),
        &frame(0x09, b"fragmented ping"),
        &frame(0x89, &[0; 126]),
        &frame(0x88, b"1"),
    ];
    for bytes in cases {
        assert!(decode(bytes, 3).is_err(), "{bytes:?}");
    }
}

#[test]
fn client_frames_are_masked_with_fresh_keys() {
    let masking = Masking::default();
    let mut keys = std::collections::HashSet::new();
    for length in [0, 1, 125, 126, 65_535, 65_536] {
        let payload: Vec<u8> = (0..length).map(|byte: usize| byte as u8).collect();
        let mut bytes = Vec::new();
        masking.encode(&mut bytes, Opcode::Text, &payload);
        let (opcode, decoded) = server::read_masked(&mut bytes.as_slice()).unwrap();
        assert_eq!((opcode, decoded), (0x81, payload), "{length}");
        let header_bytes = bytes.len() - length - 4;
        keys.insert(bytes[header_bytes..header_bytes + 4].to_vec());
    }
    assert!(keys.len() >= 5, "keys repeat: {keys:?}");
}

#[test]
fn a_handshake_is_accepted_refused_or_invalid() {
    let target = lab_model::samples::open(1.0, 1, &["a"]).target;
    let opener = Opener::new(&target).unwrap();
    let (request, mut handshake) = opener.open();
    let request = String::from_utf8(request).unwrap();
    let accept = server::accept(&request);
    let response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\nrest"
    );
    let (start, end) = response.as_bytes().split_at(30);
    assert_eq!(handshake.feed(start), HandshakeState::Incomplete);
    assert_eq!(handshake.feed(end), HandshakeState::Open { frames: b"rest".to_vec() });

    let feed = |response: &str| opener.open().1.feed(response.as_bytes());
    // The value belongs to another key.
    assert_eq!(feed(&response), HandshakeState::Invalid);
    assert_eq!(feed("SSH-2.0-OpenSSH\r\n\r\n"), HandshakeState::Invalid);
    let refused = feed("HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(refused, HandshakeState::Refused { status: 429, retry_after: None });
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(70_000));
    assert_eq!(feed(&endless), HandshakeState::Invalid);
}
