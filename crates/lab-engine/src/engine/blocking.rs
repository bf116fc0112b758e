//! A blocking WebSocket for the few calls before and after a run. These calls are not measured.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use lab_model::plan::{HttpVersion, Target, Tls};
use rustls::{ClientConnection, StreamOwned};

use super::tls;
use super::websocket::{Decoder, Event, HandshakeState, Masking, NORMAL_CLOSURE, Opcode, Opener};

#[cfg(test)]
mod tests;

/// Maximum number of bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// An open WebSocket.
pub struct BlockingWebSocket {
    stream: Stream,
    /// Received bytes that are not decoded yet.
    received: Vec<u8>,
    decoder: Decoder,
    masking: Masking,
}

/// The result of an opening handshake.
pub enum OpenResult {
    /// The WebSocket is open.
    Open(BlockingWebSocket),
    /// The server responded with this status instead of 101.
    Refused(u16),
}

/// The connection to the server.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl BlockingWebSocket {
    /// Opens a WebSocket. `timeout` limits the TCP connect, the TLS handshake and the opening
    /// handshake together.
    ///
    /// # Errors
    /// Fails if the connection or a setting of the target cannot be used. A timeout has the kind
    /// `TimedOut`. A TLS error contains the [`rustls::Error`].
    pub fn open(target: &Target, tls: &Tls, timeout: Duration) -> io::Result<OpenResult> {
        let deadline = Instant::now() + timeout;
        let opener = Opener::new(target).map_err(io::Error::other)?;
        let mut stream = Stream::connect(target, tls, deadline)?;
        let (request, mut handshake) = opener.open();
        stream.write(&request, deadline)?;
        loop {
            let mut bytes = Vec::new();
            stream.read(&mut bytes, deadline)?;
            match handshake.feed(&bytes) {
                HandshakeState::Incomplete => {}
                HandshakeState::Refused { status, .. } => return Ok(OpenResult::Refused(status)),
                HandshakeState::Invalid => {
                    return Err(invalid("the response to the request for a WebSocket is invalid"));
                }
                HandshakeState::Open { frames } => {
                    return Ok(OpenResult::Open(BlockingWebSocket {
                        stream,
                        received: frames,
                        decoder: Decoder::default(),
                        masking: Masking::default(),
                    }));
                }
            }
        }
    }

    /// Sends a message and returns the next message of the server. Replies to pings.
    ///
    /// # Errors
    /// Fails if the connection ends, if the server violates the protocol, or if the message is
    /// longer than `bytes_max`. A timeout has the kind `TimedOut`. After an error, the WebSocket
    /// cannot be used any further.
    pub fn call(
        &mut self,
        body: &[u8],
        bytes_max: usize,
        timeout: Duration,
    ) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        self.send(Opcode::Text, body, deadline)?;
        let mut message = Vec::new();
        loop {
            let (used, event) = self
                .decoder
                .next(&self.received)
                .map_err(|error| invalid(format!("invalid frame: {error}")))?;
            let mut pong = None;
            let mut is_complete = false;
            match event {
                Some(Event::Ping(payload)) => pong = Some(payload.to_vec()),
                Some(Event::Close(code)) => {
                    let code =
                        code.map_or_else(|| "no code".to_owned(), |code| format!("code {code}"));
                    let message = format!("the server closed the WebSocket: {code}");
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, message));
                }
                Some(Event::Piece { bytes, is_last }) => {
                    if message.len() + bytes.len() > bytes_max {
                        return Err(invalid("the message is too long"));
                    }
                    message.extend_from_slice(bytes);
                    is_complete = is_last;
                }
                Some(Event::Pong) => {}
                None if used == self.received.len() => {
                    self.received.clear();
                    self.stream.read(&mut self.received, deadline)?;
                    continue;
                }
                None => {}
            }
            self.received.drain(..used);
            if let Some(payload) = pong {
                self.send(Opcode::Pong, &payload, deadline)?;
            }
            if is_complete {
                return Ok(message);
            }
        }
    }

    fn send(&mut self, opcode: Opcode, payload: &[u8], deadline: Instant) -> io::Result<()> {
        let mut frame = Vec::new();
        self.masking.encode(&mut frame, opcode, payload);
        self.stream.write(&frame, deadline)
    }
}

impl Drop for BlockingWebSocket {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(1);
        // The connection is closed in any case.
        let _ignored = self.send(Opcode::Close, &NORMAL_CLOSURE.to_be_bytes(), deadline);
    }
}

impl Stream {
    fn connect(target: &Target, settings: &Tls, deadline: Instant) -> io::Result<Stream> {
        let peer =
            tls::build_peer(target, settings, HttpVersion::Http1).map_err(io::Error::other)?;
        let mut result = Err(io::Error::other("the host name has no address"));
        for address in (target.url.host(), target.url.port()).to_socket_addrs()? {
            let timeout = target.connect_timeout.min(remaining(deadline)?);
            result = TcpStream::connect_timeout(&address, timeout);
            if result.is_ok() {
                break;
            }
        }
        let socket = result?;
        socket.set_nodelay(true)?;
        let Some((name, config)) = peer.tls else { return Ok(Stream::Plain(socket)) };
        let client = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(client, socket))))
    }

    /// Waits for bytes and appends them to `buffer`.
    ///
    /// # Errors
    /// Fails if the server has closed the connection, or if the deadline passes.
    fn read(&mut self, buffer: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        self.set_timeout(deadline)?;
        let mut bytes = vec![0; READ_BYTES];
        let count = match self {
            Stream::Plain(socket) => socket.read(&mut bytes),
            Stream::Tls(stream) => stream.read(&mut bytes),
        };
        match count.map_err(as_timeout)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                buffer.extend_from_slice(&bytes[..count]);
                Ok(())
            }
        }
    }

    fn write(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        self.set_timeout(deadline)?;
        let written = match self {
            Stream::Plain(socket) => socket.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        };
        written.map_err(as_timeout)
    }

    /// Limits the next read or write to the time until the deadline.
    fn set_timeout(&self, deadline: Instant) -> io::Result<()> {
        let socket = match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => &stream.sock,
        };
        let timeout = Some(remaining(deadline)?);
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)
    }
}

/// Returns the time until the deadline.
///
/// # Errors
/// Fails with `TimedOut` if the deadline has passed.
fn remaining(deadline: Instant) -> io::Result<Duration> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(remaining) }
}

/// Converts `WouldBlock` to `TimedOut`, because a blocking socket reports a timeout as
/// `WouldBlock`.
fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

/// Returns the error for a violation of the protocol or of a limit.
fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}
