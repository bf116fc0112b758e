//! Invariants of the WebSocket decoder for arbitrary bytes, as functions for fuzzers.
//!
//! `fuzz/src/websocket.rs` calls these functions without a time limit. A test in this file calls
//! them for one second in every check. They are not part of the crate's interface.

use wire::websocket::{Opcode, ProtocolError, Role, write_frame};

use super::decoder::{Decoder, Event};
use super::deflate;

/// A small limit, so that inputs reach it.
const MESSAGE_BYTES_MAX: usize = 400;

/// The decoded events of one connection, and the protocol violation that ended it, if any.
#[derive(Debug, PartialEq, Eq)]
struct Conversation {
    /// For each event, its payload and a letter for its kind.
    events: Vec<(char, Vec<u8>)>,
    fault: Option<ProtocolError>,
}

/// Decodes bytes as the input of one connection, for the client's and the server's side. Read
/// boundaries must not change the events, and re-encoded messages must decode to themselves.
///
/// # Panics
/// If an invariant is violated.
pub(crate) fn websocket(bytes: &[u8]) {
    // Decompression must respect the limit for any input.
    if let Ok(message) = deflate::decompress(bytes, MESSAGE_BYTES_MAX) {
        assert!(message.len() <= MESSAGE_BYTES_MAX, "{} bytes", message.len());
    }
    for role in [Role::Client, Role::Server] {
        let expected = decode_connection(role, bytes, usize::MAX);
        for read_bytes in [1, 2, 7, 64] {
            assert_eq!(
                decode_connection(role, bytes, read_bytes),
                expected,
                "in reads of {read_bytes} bytes"
            );
        }
        for (kind, payload) in &expected.events {
            let opcode = match kind {
                'm' => Opcode::Binary,
                'p' => Opcode::Ping,
                _ => continue,
            };
            let mut encoded = Vec::new();
            write_frame(
                &mut encoded,
                opcode,
                payload,
                (role == Role::Server).then_some([3, 1, 4, 1]),
            );
            let conversation = decode_connection(role, &encoded, 5);
            assert_eq!(conversation.events, [(*kind, payload.clone())], "written and read again");
        }
    }
}

/// Decodes `bytes` as a connection does, in reads of `read_bytes` bytes.
fn decode_connection(role: Role, bytes: &[u8], read_bytes: usize) -> Conversation {
    let mut decoder = Decoder::new(role, MESSAGE_BYTES_MAX, role == Role::Server);
    let mut conversation = Conversation { events: Vec::new(), fault: None };
    for chunk in bytes.chunks(read_bytes.min(bytes.len().max(1))) {
        let mut used_bytes = 0;
        loop {
            // Bytes are read directly into the message whenever the decoder allows that.
            if let Some((body, missing)) = decoder.direct_read_buffer() {
                let length = missing.min(chunk.len() - used_bytes);
                body.extend_from_slice(&chunk[used_bytes..used_bytes + length]);
                used_bytes += length;
                decoder.record_direct_read(length);
            }
            let (used, event) = match decoder.next(&chunk[used_bytes..]) {
                Ok(next) => next,
                Err(fault) => {
                    conversation.fault = Some(fault);
                    return conversation;
                }
            };
            used_bytes += used;
            assert!(used_bytes <= chunk.len(), "more bytes were used than there are");
            conversation.events.push(match event {
                None => break,
                Some(Event::Message(payload)) => ('m', payload.to_vec()),
                Some(Event::Compressed { payload, is_text }) => {
                    (if is_text { 'z' } else { 'Z' }, payload.to_vec())
                }
                Some(Event::TooLarge(prefix)) => ('t', prefix.to_vec()),
                Some(Event::Ping(payload)) => ('p', payload.to_vec()),
                Some(Event::Pong) => ('o', Vec::new()),
                Some(Event::Close(code)) => ('c', code.unwrap_or(0).to_be_bytes().to_vec()),
            });
        }
        assert_eq!(used_bytes, chunk.len(), "bytes were left without an event");
    }
    conversation
}

/// Seed inputs.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut calls = Vec::new();
    let mut responses = Vec::new();
    let response = br#"{"jsonrpc":"2.0","id":281474976710656,"result":"0x10"}"#;
    write_frame(&mut responses, Opcode::Text, response, None);
    write_frame(&mut responses, Opcode::Ping, b"are you there", None);
    write_frame(&mut responses, Opcode::Binary, &[b'x'; 300], None);
    write_frame(&mut responses, Opcode::Binary, &[b'x'; 500], None);
    write_frame(&mut responses, Opcode::Close, &1001_u16.to_be_bytes(), None);
    let call = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
    write_frame(&mut calls, Opcode::Text, call, Some([1, 2, 3, 4]));
    write_frame(&mut calls, Opcode::Pong, b"", Some([5, 6, 7, 8]));
    write_frame(&mut calls, Opcode::Text, &[b' '; 200], Some([0, 0, 0, 0]));
    let fragments = b"\x01\x03Hel\x89\x01?\x00\x00\x80\x02lo\x82\x7e\x00\x7e".to_vec();
    // "Hello", compressed (RFC 7692, section 7.2.3.1).
    let compressed = b"\xc1\x87\0\0\0\0\xf2\x48\xcd\xc9\xc9\x07\0\xc9\x80\0\0\0\0".to_vec();
    vec![calls, responses, fragments, compressed]
}

/// Mutates the seeds while `go_on` returns true. Returns the number of inputs.
pub(crate) fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    wire::fuzz::mutate_all(&seeds(), websocket, seed, go_on)
}

#[cfg(test)]
mod tests {
    //! Goal: every check fuzzes for one second, from seeds that decode as intended.

    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn seeds_hold_and_are_read() {
        for (seed, role) in seeds().iter().zip([Role::Server, Role::Client]) {
            let conversation = decode_connection(role, seed, usize::MAX);
            assert!(
                conversation.fault.is_none() && conversation.events.len() >= 3,
                "{conversation:?}"
            );
        }
        seeds().iter().for_each(|seed| websocket(seed));
    }

    #[test]
    fn one_second_of_mutations_holds() {
        let start = Instant::now();
        let seed = 4;
        let tried = mutate(seed, &mut |_| start.elapsed() < Duration::from_secs(1));
        assert!(tried > 100, "only {tried} inputs in a second");
    }
}
