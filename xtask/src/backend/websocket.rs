//! The constant node over WebSocket, as geth has it: answers to all calls of one read go out in one
//! write.

use anyhow::{Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Chain, REQUEST_BYTES_MAX};

/// RFC 6455, 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The key of a head that asks for a WebSocket.
pub(super) fn key_of(head: &str) -> Option<&str> {
    let header = |wanted: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    };
    header("upgrade").filter(|value| value.eq_ignore_ascii_case("websocket"))?;
    header("sec-websocket-key")
}

/// The answer that opens it.
pub(super) fn accepted(key: &str) -> String {
    let hash = Sha1::digest(format!("{key}{GUID}"));
    let accept = STANDARD.encode(hash);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Answers until the client leaves.
pub(super) async fn converse(
    mut stream: TcpStream,
    mut buffer: Vec<u8>,
    chain: Chain,
) -> Result<()> {
    let mut out = Vec::with_capacity(64 << 10);
    loop {
        let mut at = 0;
        while let Some((op, payload, used)) = frame(&mut buffer[at..])? {
            match op {
                0x1 | 0x2 => write(&mut out, 0x81, chain.reply(payload)?.as_bytes()),
                0x9 => write(&mut out, 0x8a, payload),
                0x8 => return Ok(()),
                _ => {}
            }
            at += used;
        }
        buffer.drain(..at);
        if !out.is_empty() {
            stream.write_all(&out).await?;
            out.clear();
        }
        ensure!(buffer.len() <= REQUEST_BYTES_MAX, "message above {REQUEST_BYTES_MAX} bytes");
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// A frame: its kind, its unmasked payload and its whole length.
type Frame<'a> = (u8, &'a [u8], usize);

/// The first frame, once it is there.
fn frame(bytes: &mut [u8]) -> Result<Option<Frame<'_>>> {
    let [first, second, rest @ ..] = &*bytes else { return Ok(None) };
    ensure!(first & 0x80 != 0 && second & 0x80 != 0, "only whole, masked frames are read here");
    let op = first & 0x0f;
    let (length, head) = match second & 0x7f {
        126 => match rest.first_chunk() {
            Some(length) => (usize::from(u16::from_be_bytes(*length)), 4),
            None => return Ok(None),
        },
        127 => match rest.first_chunk() {
            Some(length) => (usize::try_from(u64::from_be_bytes(*length))?, 10),
            None => return Ok(None),
        },
        short => (usize::from(short), 2),
    };
    ensure!(length <= REQUEST_BYTES_MAX, "message above {REQUEST_BYTES_MAX} bytes");
    let whole = head + 4 + length;
    if bytes.len() < whole {
        return Ok(None);
    }
    let (key, payload) = bytes[head..whole].split_at_mut(4);
    for (byte, key) in payload.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
    Ok(Some((op, payload, whole)))
}

fn write(out: &mut Vec<u8>, first: u8, payload: &[u8]) {
    out.push(first);
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
}
