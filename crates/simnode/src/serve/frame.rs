//! The part of RFC 6455 that a small WebSocket server needs: the handshake, reading of masked
//! frames and writing of frames. The backend of `cargo xtask bench` also compiles this file. The
//! gateway has another implementation, so that tests can compare the two.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

/// The GUID of the handshake (RFC 6455, section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Returns the value of `Sec-WebSocket-Accept` for the key of a client.
pub(super) fn accept(key: &str) -> String {
    STANDARD.encode(Sha1::digest(format!("{key}{GUID}")))
}

/// Number of bytes of a masking key.
const MASKING_KEY_BYTES: usize = 4;

/// The client has violated the protocol or a limit.
#[derive(Debug)]
pub(super) struct ProtocolError;

/// A frame: its first byte (final bit and opcode), its unmasked payload, and its length in the
/// buffer.
pub(super) type Frame<'a> = (u8, &'a [u8], usize);

/// Reads the first frame of a buffer. Returns `None` if the frame is incomplete. Fails if its
/// payload has more than `bytes_max` bytes.
pub(super) fn read(bytes: &mut [u8], bytes_max: usize) -> Result<Option<Frame<'_>>, ProtocolError> {
    let [first_byte, second_byte, after_two_bytes @ ..] = &*bytes else { return Ok(None) };
    let first_byte = *first_byte;
    // A client must mask its frames, and must not set the reserved bits.
    if second_byte & 0x80 == 0 || first_byte & 0x70 != 0 {
        return Err(ProtocolError);
    }
    let (length, header_bytes) = match second_byte & 0x7f {
        126 => match after_two_bytes.first_chunk() {
            Some(length) => (u64::from(u16::from_be_bytes(*length)), 4),
            None => return Ok(None),
        },
        127 => match after_two_bytes.first_chunk() {
            Some(length) => (u64::from_be_bytes(*length), 10),
            None => return Ok(None),
        },
        short_length => (u64::from(short_length), 2),
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= bytes_max);
    let frame_bytes = header_bytes + MASKING_KEY_BYTES + length.ok_or(ProtocolError)?;
    if bytes.len() < frame_bytes {
        return Ok(None);
    }
    let (key, payload) = bytes[header_bytes..frame_bytes].split_at_mut(MASKING_KEY_BYTES);
    for (byte, key) in payload.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
    Ok(Some((first_byte, payload, frame_bytes)))
}

/// Encodes an unmasked frame with this first byte.
pub(super) fn write(first_byte: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first_byte];
    match payload.len() {
        length @ 0..=125 => out.push(length as u8),
        length @ 126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}
