//! A minimal WebSocket client over any stream, which works in virtual time. It can subscribe and
//! read notifications.

use std::io::{Error, ErrorKind, Result};

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const TEXT: u8 = 0x81;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;
/// Maximum length of a frame. Notifications are shorter.
const FRAME_BYTES_MAX: usize = 1 << 20;

pub(crate) struct WebSocketClient<S> {
    stream: S,
    read: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocketClient<S> {
    /// Sends the opening handshake, with the example key of RFC 6455.
    pub(crate) async fn open(mut stream: S) -> Result<WebSocketClient<S>> {
        let request = "GET / HTTP/1.1\r\nHost: weir\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        stream.write_all(request.as_bytes()).await?;
        let mut socket = WebSocketClient { stream, read: Vec::new() };
        let end = loop {
            if let Some(head_end) = socket.read.windows(4).position(|four| four == b"\r\n\r\n") {
                break head_end + 4;
            }
            socket.fill().await?;
        };
        let head: Vec<u8> = socket.read.drain(..end).collect();
        if head.starts_with(b"HTTP/1.1 101") { Ok(socket) } else { Err(invalid_data("no 101")) }
    }

    pub(crate) async fn send(&mut self, text: &str) -> Result<()> {
        self.write(TEXT, text.as_bytes()).await
    }

    /// Waits for the next text message, and responds to pings meanwhile.
    pub(crate) async fn next(&mut self) -> Result<Value> {
        loop {
            let (kind, payload) = self.frame().await?;
            match kind {
                TEXT => {
                    return serde_json::from_slice(&payload).map_err(|_| invalid_data("no JSON"));
                }
                PING => self.write(PONG, &payload).await?,
                _ => return Err(invalid_data("neither text nor ping")),
            }
        }
    }

    /// Reads a frame. Returns its first byte and its payload.
    async fn frame(&mut self) -> Result<(u8, Vec<u8>)> {
        self.fill_to(2).await?;
        let (head, length) = match self.read[1] {
            126 => {
                self.fill_to(4).await?;
                (4, usize::from(u16::from_be_bytes([self.read[2], self.read[3]])))
            }
            127 => return Err(invalid_data("a frame beyond all notifications")),
            length => (2, usize::from(length)),
        };
        self.fill_to(head + length).await?;
        let kind = self.read[0];
        let payload = self.read[head..head + length].to_vec();
        self.read.drain(..head + length);
        Ok((kind, payload))
    }

    /// Writes a frame. Its mask is zero, so the payload stays readable.
    async fn write(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        let mut frame = vec![kind];
        match payload.len() {
            length @ 0..126 => frame.push(0x80 | length as u8),
            length => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(length as u16).to_be_bytes());
            }
        }
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).await?;
        self.stream.flush().await
    }

    /// Reads until the buffer has this many bytes.
    async fn fill_to(&mut self, bytes: usize) -> Result<()> {
        if bytes > FRAME_BYTES_MAX {
            return Err(invalid_data("a frame beyond all notifications"));
        }
        while self.read.len() < bytes {
            self.fill().await?;
        }
        Ok(())
    }

    async fn fill(&mut self) -> Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn invalid_data(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}
