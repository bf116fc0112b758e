//! One connection: a socket that never blocks, with TLS over it or not.
//!
//! Reading and writing move bytes and count them; when to, and what the bytes mean, is decided in
//! `crates/lab-engine/src/engine/thread.rs`.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use lab_model::record::Traffic;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind};

use super::reader::Reader;
use super::world::{Plain, Socket};

/// Read of one connection before others have their turn: with the reading and judging of it some
/// 100 µs.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// TCP is being connected.
    Connecting,
    /// TLS is being agreed on.
    Handshaking,
    /// Requests may be sent.
    Open,
}

/// A connection of a worker.
pub(crate) struct Connection<S> {
    socket: S,
    tls: Option<Box<ClientConnection>>,
    /// How far it is.
    pub(crate) phase: Phase,
    /// When its making began.
    pub(crate) began: u64,
    /// When TCP was connected.
    pub(crate) connected: u64,
    /// Requests sent on it.
    pub(crate) uses: u32,
    /// The answer that is being read.
    pub(crate) reader: Reader,
    /// What the socket has not taken yet of a request.
    unsent: Vec<u8>,
    /// Whether it waits for another turn to be read on.
    pub(crate) unread: bool,
    /// Whether the server has closed its side.
    pub(crate) ending: bool,
}

/// Which server, and how.
pub(crate) struct Peer {
    /// The name that certificates must have, and the settings; none without TLS.
    pub(crate) tls: Option<(ServerName<'static>, Arc<ClientConfig>)>,
}

/// What came of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// So many bytes; `drained` if the socket has no more for now.
    Bytes {
        /// Bytes read.
        count: usize,
        /// Whether nothing more can be read at once.
        drained: bool,
    },
    /// Nothing for now.
    Nothing,
    /// No more will come: closed or broken.
    End,
}

impl<S: Socket> Connection<S> {
    /// A connection whose making began `now`.
    pub(crate) fn new(socket: S, now: u64) -> Connection<S> {
        Connection {
            socket,
            tls: None,
            phase: Phase::Connecting,
            began: now,
            connected: now,
            uses: 0,
            reader: Reader::default(),
            unsent: Vec::new(),
            unread: false,
            ending: false,
        }
    }

    /// The socket, to be watched.
    pub(crate) fn socket(&self) -> &S {
        &self.socket
    }

    /// Why connecting failed, if it did.
    pub(crate) fn connect_fault(&self) -> Option<io::Error> {
        self.socket.connect_fault()
    }

    /// TCP is there; begins TLS if the peer has it.
    ///
    /// # Errors
    /// If the settings do not fit, such as a name that cannot be asked for.
    pub(crate) fn established(&mut self, peer: &Peer, now: u64) -> Result<(), rustls::Error> {
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

    /// Goes on with TLS as far as it can; the phase tells whether it is agreed on.
    ///
    /// # Errors
    /// If the handshake failed or the connection ended.
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
                        // Tells the server why, as far as that is possible.
                        let _told = flush(tls, &self.socket, traffic);
                        return Err(io::Error::other(error));
                    }
                }
                Err(error) if again(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the finished handshake resumed a session; none without TLS.
    pub(crate) fn resumed(&self) -> Option<bool> {
        let kind = self.tls.as_ref()?.handshake_kind()?;
        Some(kind == HandshakeKind::Resumed)
    }

    /// Whether TLS has settled on HTTP/2; without TLS nothing has to be settled.
    pub(crate) fn agreed_on_http2(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.alpn_protocol() == Some(b"h2"))
    }

    /// Sends a request, or as much of it as the socket takes; [`Connection::flush`] sends the rest.
    ///
    /// # Errors
    /// If the connection is broken; then nothing tells how much has left.
    pub(crate) fn send(&mut self, request: &[u8], traffic: &mut Traffic) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(request)?;
            return flush(tls, &self.socket, traffic);
        }
        let sent = write(&self.socket, request, traffic)?;
        self.unsent.extend_from_slice(&request[sent..]);
        Ok(())
    }

    /// Sends what is left.
    ///
    /// # Errors
    /// If the connection is broken.
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

    /// Whether the socket has taken all of the last request.
    pub(crate) fn sent_all(&self) -> bool {
        self.unsent.is_empty() && self.tls.as_ref().is_none_or(|tls| !tls.wants_write())
    }

    /// Reads what is there, up to the size of `into`.
    pub(crate) fn receive(&mut self, into: &mut [u8], traffic: &mut Traffic) -> Got {
        let Some(tls) = &mut self.tls else {
            return match self.socket.read(into) {
                Ok(0) => Got::End,
                Ok(count) => {
                    traffic.bytes_received += count as u64;
                    Got::Bytes { count, drained: count < into.len() }
                }
                Err(error) if again(&error) => Got::Nothing,
                Err(_) => Got::End,
            };
        };
        loop {
            match tls.reader().read(into) {
                Ok(0) => return Got::End,
                Ok(count) => return Got::Bytes { count, drained: false },
                Err(error) if again(&error) => {}
                Err(_) => return Got::End,
            }
            match tls.read_tls(&mut Plain(&self.socket)) {
                Ok(count) => {
                    traffic.bytes_received += count as u64;
                    if tls.process_new_packets().is_err() {
                        let _told = flush(tls, &self.socket, traffic);
                        return Got::End;
                    }
                    // Answers to key updates.
                    if tls.wants_write() && flush(tls, &self.socket, traffic).is_err() {
                        return Got::End;
                    }
                    if count == 0 && tls.wants_read() {
                        return Got::End;
                    }
                }
                Err(error) if again(&error) => return Got::Nothing,
                Err(_) => return Got::End,
            }
        }
    }

    /// Tells the server that nothing more comes, where the protocol has a word for it.
    pub(crate) fn farewell(&mut self, traffic: &mut Traffic) {
        if let Some(tls) = &mut self.tls
            && self.phase == Phase::Open
        {
            tls.send_close_notify();
            // The connection is given up either way.
            let _told = flush(tls, &self.socket, traffic);
        }
    }
}

fn flush<S: Socket>(
    tls: &mut ClientConnection,
    socket: &S,
    traffic: &mut Traffic,
) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(&mut Plain(socket)) {
            Ok(count) => traffic.bytes_sent += count as u64,
            Err(error) if again(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write<S: Socket>(socket: &S, bytes: &[u8], traffic: &mut Traffic) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if again(&error) => break,
            Err(error) => return Err(error),
        }
    }
    traffic.bytes_sent += sent as u64;
    Ok(sent)
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
