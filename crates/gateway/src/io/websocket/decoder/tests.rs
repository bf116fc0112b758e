//! Goal: the decoder accepts exactly the frames of RFC 6455, at any read boundary. Method: the
//! examples of RFC 6455, section 5.7, and the cases of groups 1 to 7 and 9 of the Autobahn test
//! suite, each fed whole and in small pieces.

use wire::websocket::{write_compressed_header, write_frame};

use super::*;

/// An event that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OwnedEvent {
    Message(Vec<u8>),
    TooLarge(Vec<u8>),
    Ping(Vec<u8>),
    Pong,
    Close(Option<u16>),
}

const MESSAGE_BYTES_MAX: usize = 300;

fn read(role: Role, bytes: &[u8], piece_bytes: usize) -> (Vec<OwnedEvent>, Option<ProtocolError>) {
    let mut decoder = Decoder::new(role, MESSAGE_BYTES_MAX, false);
    let mut events = Vec::new();
    for piece in bytes.chunks(piece_bytes) {
        let mut used_bytes = 0;
        loop {
            match decoder.next(&piece[used_bytes..]) {
                Err(fault) => return (events, Some(fault)),
                Ok((used, event)) => {
                    used_bytes += used;
                    let Some(event) = event else { break };
                    events.push(match event {
                        Event::Message(payload) => OwnedEvent::Message(payload.to_vec()),
                        Event::Compressed { payload, .. } => panic!("{payload:x?} is packed"),
                        Event::TooLarge(prefix) => OwnedEvent::TooLarge(prefix.to_vec()),
                        Event::Ping(payload) => OwnedEvent::Ping(payload.to_vec()),
                        Event::Pong => OwnedEvent::Pong,
                        Event::Close(code) => OwnedEvent::Close(code),
                    });
                }
            }
        }
        assert_eq!(used_bytes, piece.len(), "bytes were left without an event");
    }
    (events, None)
}

/// Decodes in pieces of several sizes, which must not change the result.
fn check(role: Role, bytes: &[u8], expected: &[OwnedEvent], fault: Option<ProtocolError>) {
    for piece_bytes in [1, 2, 3, 5, 8, 13, 64, usize::MAX] {
        let read = read(role, bytes, piece_bytes.min(bytes.len().max(1)));
        assert_eq!(read, (expected.to_vec(), fault), "in pieces of {piece_bytes}: {bytes:x?}");
    }
}

fn message(text: &[u8]) -> OwnedEvent {
    OwnedEvent::Message(text.to_vec())
}

/// Returns an unmasked frame. `first` is its first byte, with the flags and the opcode.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, Opcode::Text, payload, None);
    bytes[0] = first;
    bytes
}

#[test]
fn the_examples_of_the_rfc() {
    let hello = b"\x81\x05Hello";
    check(Role::Client, hello, &[message(b"Hello")], None);
    let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    check(Role::Server, masked, &[message(b"Hello")], None);
    check(Role::Client, b"\x01\x03Hel\x80\x02lo", &[message(b"Hello")], None);
    check(Role::Client, b"\x89\x05Hello", &[OwnedEvent::Ping(b"Hello".to_vec())], None);
    check(Role::Server, b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", &[OwnedEvent::Pong], None);
    let binary = [b"\x82\x7e\x01\x00", &[7; 256][..]].concat();
    check(Role::Client, &binary, &[message(&[7; 256])], None);
}

#[test]
fn lengths_at_their_edges() {
    for length in [0, 1, 124, 125, 126, 127, 128, 255, 256, 299, 300] {
        let payload = vec![b'x'; length];
        for key in [None, Some([1, 2, 3, 4])] {
            let role = if key.is_some() { Role::Server } else { Role::Client };
            let mut bytes = Vec::new();
            write_frame(&mut bytes, Opcode::Binary, &payload, key);
            write_frame(&mut bytes, Opcode::Text, b"next", key);
            check(role, &bytes, &[message(&payload), message(b"next")], None);
        }
    }
    for length in [65_535, 65_536, 70_000] {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, Opcode::Text, &vec![b'x'; length], None);
        let mut decoder = Decoder::new(Role::Client, 1 << 20, false);
        let (used, event) = decoder.next(&bytes).unwrap();
        assert_eq!(used, bytes.len());
        assert!(matches!(event, Some(Event::Message(payload)) if payload.len() == length));
    }
}

#[test]
fn oversized_messages_are_skipped() {
    let long = [b"{\"id\":7,", &[b' '; MESSAGE_BYTES_MAX][..]].concat();
    let prefix = OwnedEvent::TooLarge(long[..OVERSIZED_PREFIX_BYTES].to_vec());
    let mut bytes = frame(0x81, &long);
    bytes.extend(frame(0x81, b"next"));
    check(Role::Client, &bytes, &[prefix.clone(), message(b"next")], None);
    let mut bytes = frame(0x01, &long[..200]);
    bytes.extend(frame(0x00, &long[200..]));
    bytes.extend(frame(0x89, b""));
    bytes.extend(frame(0x80, &[b' '; 50]));
    bytes.extend(frame(0x81, b"next"));
    check(Role::Client, &bytes, &[OwnedEvent::Ping(vec![]), prefix, message(b"next")], None);
    // A header alone allocates little memory, although it announces 2^62 bytes.
    let mut decoder = Decoder::new(Role::Client, usize::MAX, false);
    let header = [b"\x82\x7f", &(1_u64 << 62).to_be_bytes()[..]].concat();
    assert_eq!(decoder.next(&header).unwrap(), (10, None));
    assert!(
        decoder
            .direct_read_buffer()
            .is_some_and(|(body, _)| body.capacity() <= 2 * PREALLOCATED_BYTES_MAX)
    );
}

#[test]
fn control_frames_between_fragments() {
    let bytes = b"\x01\x02ab\x89\x01p\x00\x00\x8a\x00\x80\x02cd\x88\x02\x03\xe8ignored";
    let events = [
        OwnedEvent::Ping(b"p".to_vec()),
        OwnedEvent::Pong,
        message(b"abcd"),
        OwnedEvent::Close(Some(1000)),
    ];
    check(Role::Client, bytes, &events, None);
}

#[test]
fn protocol_violations_are_refused() {
    let cases: &[(&[u8], ProtocolError)] = &[
        (b"\xc1\x00", ProtocolError::Reserved),
        (b"\xa1\x00", ProtocolError::Reserved),
        (b"\x91\x00", ProtocolError::Reserved),
        (b"\x83\x00", ProtocolError::Opcode),
        (b"\x87\x00", ProtocolError::Opcode),
        (b"\x8b\x00", ProtocolError::Opcode),
        (b"\x8f\x00", ProtocolError::Opcode),
        (b"\x81\x80\x01\x02\x03\x04", ProtocolError::Masking),
        (b"\x81\x7e\x00\x7d", ProtocolError::Length),
        (b"\x81\x7f\x00\x00\x00\x00\x00\x00\xff\xff", ProtocolError::Length),
        (b"\x81\x7f\x80\x00\x00\x00\x00\x00\x00\x00", ProtocolError::Length),
        (b"\x09\x00", ProtocolError::Control),
        (b"\x08\x00", ProtocolError::Control),
        (b"\x89\x7e\x00\x7e", ProtocolError::Control),
        (b"\x80\x01x", ProtocolError::Fragment),
        (b"\x00\x01x", ProtocolError::Fragment),
        (b"\x01\x01x\x81\x01y", ProtocolError::Fragment),
        (b"\x01\x01x\x02\x01y", ProtocolError::Fragment),
        (b"\x88\x01\x03", ProtocolError::Close),
        (b"\x88\x02\x00\x00", ProtocolError::Close),
        (b"\x88\x02\x03\xe7", ProtocolError::Close),
        (b"\x88\x02\x03\xec", ProtocolError::Close),
        (b"\x88\x02\x03\xed", ProtocolError::Close),
        (b"\x88\x02\x03\xee", ProtocolError::Close),
        (b"\x88\x02\x03\xf7", ProtocolError::Close),
        (b"\x88\x02\x07\xd0", ProtocolError::Close),
        (b"\x88\x02\x0b\xb7", ProtocolError::Close),
        (b"\x88\x02\x13\x88", ProtocolError::Close),
        (b"\x88\x03\x03\xe8\xff", ProtocolError::Utf8),
    ];
    for (bytes, fault) in cases {
        check(Role::Client, bytes, &[], Some(*fault));
    }
    check(Role::Server, b"\x81\x05Hello", &[], Some(ProtocolError::Masking));
    assert_eq!(
        (ProtocolError::Length.close_code(), ProtocolError::Utf8.close_code()),
        (1002, 1007)
    );
}

#[test]
fn the_first_frame_marks_a_compressed_message() {
    let key = [0; 4];
    let masked = |first: u8, payload: &[u8]| {
        [&[first, 0x80 | payload.len() as u8][..], &key, payload].concat()
    };
    let read = |bytes: &[u8]| {
        let mut decoder = Decoder::new(Role::Server, MESSAGE_BYTES_MAX, true);
        let mut used_bytes = 0;
        loop {
            let (used, event) = decoder.next(&bytes[used_bytes..])?;
            used_bytes += used;
            match event {
                Some(Event::Compressed { payload, is_text }) => {
                    return Ok(Some((payload.to_vec(), is_text)));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
    };
    // A compressed payload is not text yet.
    assert_eq!(read(&masked(0xc1, b"\xff")), Ok(Some((b"\xff".to_vec(), true))));
    let fragments = [masked(0x42, b"a"), masked(0x89, b""), masked(0x80, b"b")].concat();
    assert_eq!(read(&fragments), Ok(Some((b"ab".to_vec(), false))));
    assert_eq!(read(&masked(0x81, b"plain")), Ok(None));
    for bytes in [
        [masked(0x41, b"a"), masked(0xc0, b"b")].concat(),
        masked(0xc9, b""),
        masked(0xa1, b""),
        masked(0xe1, b""),
    ] {
        assert_eq!(read(&bytes), Err(ProtocolError::Reserved), "{bytes:x?}");
    }
    let mut out = Vec::new();
    write_compressed_header(&mut out, 300);
    assert_eq!(out, [0xc1, 126, 1, 44]);
}

#[test]
fn reasons_for_closing() {
    for code in [1000_u16, 1001, 1003, 1007, 1009, 1011, 1012, 1014, 3000, 3999, 4000, 4999] {
        let payload = [&code.to_be_bytes()[..], "why: \u{fc}".as_bytes()].concat();
        check(Role::Client, &frame(0x88, &payload), &[OwnedEvent::Close(Some(code))], None);
    }
    check(Role::Client, b"\x88\x00\x81\x01x", &[OwnedEvent::Close(None)], None);
}

#[test]
fn a_server_takes_only_utf8_as_text() {
    let key = Some([9, 8, 7, 6]);
    let text = "\u{3ba}\u{1f49b}".as_bytes();
    for (opcode, payload, is_valid) in [
        (Opcode::Text, text, true),
        (Opcode::Text, &text[..3], false),
        (Opcode::Binary, &text[..3], true),
    ] {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, opcode, payload, key);
        let events = [message(payload)];
        let fault = (!is_valid).then_some(ProtocolError::Utf8);
        check(Role::Server, &bytes, &events[..usize::from(is_valid)], fault);
    }
}

#[test]
fn the_rest_of_a_long_frame_is_read_in_place() {
    let payload: Vec<u8> = (0..250).collect();
    let bytes = frame(0x82, &payload);
    let mut decoder = Decoder::new(Role::Client, MESSAGE_BYTES_MAX, false);
    assert_eq!(decoder.next(&bytes[..50]).unwrap(), (50, None));
    let (body, missing) = decoder.direct_read_buffer().unwrap();
    assert_eq!(missing, bytes.len() - 50);
    body.extend_from_slice(&bytes[50..]);
    decoder.record_direct_read(missing);
    assert!(decoder.direct_read_buffer().is_none());
    let (used, event) = decoder.next(b"").unwrap();
    assert_eq!(used, 0);
    assert!(matches!(event, Some(Event::Message(Payload::Owned(whole))) if *whole == *payload));
}

#[test]
fn a_frame_too_long_to_be_skipped_is_refused_at_its_header() {
    for length in [1_u64 << 40, 1 << 62] {
        for (role, second_byte, key) in
            [(Role::Server, 0xff, &[0; 4][..]), (Role::Client, 0x7f, &[])]
        {
            let bytes = [&[0x81, second_byte], &length.to_be_bytes()[..], key].concat();
            check(role, &bytes, &[], Some(ProtocolError::TooLong));
        }
    }
    assert_eq!(ProtocolError::TooLong.close_code(), 1009);
}
