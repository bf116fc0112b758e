//! The constant node over WebSocket. One write sends the responses to all calls that one read has
//! received, as in geth.

use anyhow::{Result, anyhow, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Chain, REQUEST_BYTES_MAX};

#[path = "../../../crates/simnode/src/serve/frame.rs"]
mod frame;

/// Returns the `Sec-WebSocket-Key` of an upgrade request, or `None` for other requests.
pub(super) fn websocket_key(header_section: &str) -> Option<&str> {
    let header = |name: &str| {
        let mut lines = header_section.lines().filter_map(|line| line.split_once(':'));
        let matching = lines.find(|(line_name, _)| line_name.eq_ignore_ascii_case(name));
        matching.map(|(_, value)| value.trim())
    };
    header("upgrade").filter(|value| value.eq_ignore_ascii_case("websocket"))?;
    header("sec-websocket-key")
}

/// Returns the response that completes the handshake (RFC 6455, section 4.2.2).
pub(super) fn handshake_response(key: &str) -> String {
    let accept = frame::accept(key);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Serves calls until the client closes the connection.
pub(super) async fn serve_connection(
    mut stream: TcpStream,
    mut buffer: Vec<u8>,
    chain: Chain,
) -> Result<()> {
    let mut out = Vec::with_capacity(64 << 10);
    loop {
        let mut consumed = 0;
        while let Some((flags, payload, length)) =
            frame::read(&mut buffer[consumed..], REQUEST_BYTES_MAX).map_err(
                |frame::ProtocolError| {
                    anyhow!("not a masked frame of up to {REQUEST_BYTES_MAX} bytes")
                },
            )?
        {
            // Bit 0x80 marks the last frame of a message. The lower four bits are the opcode.
            ensure!(flags & 0x80 != 0, "fragmented messages are not supported");
            // Opcodes of RFC 6455, section 5.2: text and binary, ping and close. The first byte of
            // a frame that the node sends is 0x81 for a whole text message, or 0x8a for a pong.
            match flags & 0x0f {
                0x1 | 0x2 => out.extend(frame::write(0x81, chain.reply(payload)?.as_bytes())),
                0x9 => out.extend(frame::write(0x8a, payload)),
                0x8 => return Ok(()),
                _ => {}
            }
            consumed += length;
        }
        buffer.drain(..consumed);
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
