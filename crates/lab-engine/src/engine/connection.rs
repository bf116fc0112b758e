//! One connection: a non-blocking socket, with or without TLS.
//!
//! A connection sends, receives and counts bytes. `crates/lab-engine/src/engine/thread.rs` decides
//! when to do so. Times are nanoseconds since the start of the run.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use lab_model::record::Traffic;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind};

use super::reader::Reader;
use super::websocket::CallSocket;
use super::world::{Plain, Socket};

/// Maximum number of bytes that a thread reads from one connection before it serves other
/// connections. Reading and classifying this many bytes takes about 100 µs.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// TCP connect in progress.
    Connecting,
    /// TLS handshake in progress.
    Handshaking,
    /// Opening handshake of a WebSocket in progress.
    Upgrading,
    /// Ready for requests.
    Open,
}

/// A connection of a worker.
pub(crate) struct Connection<S> {
    socket: S,
    /// State of TLS; `None` without TLS.
    tls: Option<Box<ClientConnection>>,
    pub(crate) phase: Phase,
    /// Start of the TCP connect.
    pub(crate) connect_started: u64,
    /// End of the TCP connect.
    pub(crate) connected: u64,
    /// Number of requests that were sent on the connection.
    pub(crate) uses: u32,
    /// Parser of the current HTTP/1.1 response.
    pub(crate) reader: Reader,
    /// The WebSocket that carries the calls; `None` for HTTP.
    pub(crate) websocket: Option<Box<CallSocket>>,
    /// Bytes of the request that the socket has not accepted yet. Empty with TLS, because rustls
    /// stores such bytes.
    unsent: Vec<u8>,
    /// True if the connection is in the read queue, because it has more to read.
    pub(crate) read_queued: bool,
    /// True if the server has closed its side.
    pub(crate) server_closed: bool,
}

/// TLS settings for connections to the target.
pub(crate) struct Peer {
    /// Server name and TLS settings; `None` without TLS.
    pub(crate) tls: Option<(ServerName<'static>, Arc<ClientConfig>)>,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    /// Bytes were read.
    Bytes {
        /// Number of bytes.
        count: usize,
        /// True if the socket has no more data for now.
        drained: bool,
    },
    /// No data for now.
    Nothing,
    /// The connection is closed or broken.
    End,
}

impl<S: Socket> Connection<S> {
    /// Creates a connection whose connect started `now`.
    pub(crate) fn new(socket: S, now: u64) -> Connection<S> {
        Connection {
            socket,
            tls: None,
            phase: Phase::Connecting,
            connect_started: now,
            connected: now,
            uses: 0,
            reader: Reader::default(),
            websocket: None,
            unsent: Vec::new(),
            read_queued: false,
            server_closed: false,
        }
    }

    /// Returns the socket.
    pub(crate) fn socket(&self) -> &S {
        &self.socket
    }

    /// Records the end of the TCP connect. If the target uses TLS, prepares TLS.
    ///
    /// # Errors
    /// Fails if the TLS settings do not fit the server name.
    pub(crate) fn start_tls(&mut self, peer: &Peer, now: u64) -> Result<(), rustls::Error> {
        self.connected = now;
        self.phase = Phase::Open;
        if let Some((name, config)) = &peer.tls {
            let mut tls = ClientConnection::new(Arc::clone(config), name.clone())?;
            tls.set_buffer_limit(None);
            self.tls = Some(Box::new(tls));
            self.phase = Phase::Handshaking;
        }
        Ok(())
    }

    /// Continues the TLS handshake as far as possible. The phase becomes [`Phase::Open`] at its
    /// end.
    ///
    /// # Errors
    /// Fails if the handshake failed or the connection ended.
    pub(crate) fn handshake(&mut self, traffic: &mut Traffic) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        loop {
            flush(tls, &self.socket, traffic)?;
            if !tls.is_handshaking() {
                self.phase = Phase::Open;
                return Ok(());
            }
            match tls.read_tls(&mut Plain(&self.socket)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    traffic.bytes_received += count as u64;
                    if let Err(error) = tls.process_new_packets() {
                        // Sends the TLS alert, if the socket accepts it.
                        let _ignored = flush(tls, &self.socket, traffic);
                        return Err(io::Error::other(error));
                    }
                }
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true if the TLS handshake resumed a session. Returns `None` without TLS, and before
    /// the server's choice is known.
    pub(crate) fn resumed(&self) -> Option<bool> {
        let kind = self.tls.as_ref()?.handshake_kind()?;
        Some(kind == HandshakeKind::Resumed)
    }

    /// Returns true if the connection may use HTTP/2: ALPN chose it, or there is no TLS.
    pub(crate) fn agreed_on_http2(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.alpn_protocol() == Some(b"h2"))
    }

    /// Sends as much of a request as the socket accepts now. [`Connection::flush`] sends the rest
    /// later.
    ///
    /// # Errors
    /// Fails if the connection is broken. The number of bytes sent is unknown then.
    pub(crate) fn send(&mut self, request: &[u8], traffic: &mut Traffic) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(request)?;
            return flush(tls, &self.socket, traffic);
        }
        if !self.unsent.is_empty() {
            self.unsent.extend_from_slice(request);
            return self.flush(traffic);
        }
        let sent = write(&self.socket, request, traffic)?;
        self.unsent.extend_from_slice(&request[sent..]);
        Ok(())
    }

    /// Sends the rest of the request.
    ///
    /// # Errors
    /// Fails if the connection is broken.
    pub(crate) fn flush(&mut self, traffic: &mut Traffic) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            return flush(tls, &self.socket, traffic);
        }
        if !self.unsent.is_empty() {
            let sent = write(&self.socket, &self.unsent, traffic)?;
            self.unsent.drain(..sent);
        }
        Ok(())
    }

    /// Returns true if the socket has accepted all of the last request.
    pub(crate) fn sent_all(&self) -> bool {
        self.unsent.is_empty() && self.tls.as_ref().is_none_or(|tls| !tls.wants_write())
    }

    /// Reads available data into `buffer`.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], traffic: &mut Traffic) -> ReadResult {
        let Some(tls) = &mut self.tls else {
            return match self.socket.read(buffer) {
                Ok(0) => ReadResult::End,
                Ok(count) => {
                    traffic.bytes_received += count as u64;
                    ReadResult::Bytes { count, drained: count < buffer.len() }
                }
                Err(error) if would_block(&error) => ReadResult::Nothing,
                Err(_) => ReadResult::End,
            };
        };
        loop {
            match tls.reader().read(buffer) {
                Ok(0) => return ReadResult::End,
                Ok(count) => return ReadResult::Bytes { count, drained: false },
                Err(error) if would_block(&error) => {}
                Err(_) => return ReadResult::End,
            }
            match tls.read_tls(&mut Plain(&self.socket)) {
                Ok(count) => {
                    traffic.bytes_received += count as u64;
                    if tls.process_new_packets().is_err() {
                        let _ignored = flush(tls, &self.socket, traffic);
                        return ReadResult::End;
                    }
                    // Sends TLS replies, such as key updates.
                    if tls.wants_write() && flush(tls, &self.socket, traffic).is_err() {
                        return ReadResult::End;
                    }
                    if count == 0 && tls.wants_read() {
                        return ReadResult::End;
                    }
                }
                Err(error) if would_block(&error) => return ReadResult::Nothing,
                Err(_) => return ReadResult::End,
            }
        }
    }

    /// Sends the TLS alert `close_notify`, if the connection uses TLS and is open.
    pub(crate) fn close_notify(&mut self, traffic: &mut Traffic) {
        if let Some(tls) = &mut self.tls
            && self.phase == Phase::Open
        {
            tls.send_close_notify();
            // The connection is closed in any case.
            let _ignored = flush(tls, &self.socket, traffic);
        }
    }
}

/// Sends pending TLS data as far as the socket accepts it.
fn flush<S: Socket>(
    tls: &mut ClientConnection,
    socket: &S,
    traffic: &mut Traffic,
) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(&mut Plain(socket)) {
            Ok(count) => traffic.bytes_sent += count as u64,
            Err(error) if would_block(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes as many bytes as the socket accepts, and returns their number.
fn write<S: Socket>(socket: &S, bytes: &[u8], traffic: &mut Traffic) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if would_block(&error) => break,
            Err(error) => return Err(error),
        }
    }
    traffic.bytes_sent += sent as u64;
    Ok(sent)
}

/// Returns true if the operation must be tried again later.
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
