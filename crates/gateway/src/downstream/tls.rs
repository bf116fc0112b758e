//! TLS on one client connection: the handshake, and the byte stream after it.
//!
//! rustls implements the protocol. This module moves TLS records to and from the socket with few
//! system calls. Session tickets are sent together with the first response, or earlier if a read
//! has to wait. All parts of a response are sent in one write. `crate::config::tls` builds the
//! settings.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::io::wait::Watchdog;
use crate::metrics::label::HandshakeFailure;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeFault {
    /// The handshake timed out.
    #[error("took too long")]
    TimedOut,
    /// The client disconnected, or the socket failed.
    #[error("client has closed the connection")]
    Closed,
    /// rustls has reported an error. The client receives the error as an alert.
    #[error("{0}")]
    Tls(rustls::Error),
}

impl HandshakeFault {
    /// Returns the class of the failure for metrics.
    pub(crate) fn class(&self) -> HandshakeFailure {
        match self {
            HandshakeFault::TimedOut => HandshakeFailure::Timeout,
            HandshakeFault::Closed => HandshakeFailure::Closed,
            HandshakeFault::Tls(error) => match error {
                rustls::Error::InvalidMessage(_) => HandshakeFailure::NotTls,
                rustls::Error::PeerIncompatible(_) => HandshakeFailure::NothingInCommon,
                rustls::Error::NoCertificatesPresented => HandshakeFailure::CertificateMissing,
                rustls::Error::InvalidCertificate(_) => HandshakeFailure::CertificateRefused,
                rustls::Error::AlertReceived(_) => HandshakeFailure::Alert,
                _ => HandshakeFailure::Other,
            },
        }
    }
}

impl From<io::Error> for HandshakeFault {
    fn from(error: io::Error) -> HandshakeFault {
        error.downcast().map_or(HandshakeFault::Closed, HandshakeFault::Tls)
    }
}

/// Runs the TLS handshake with a client.
///
/// # Errors
/// A [`HandshakeFault`]; the connection must be dropped.
pub(crate) async fn handshake(
    server: &Arc<ServerConfig>,
    tcp: TcpStream,
    timeout: Duration,
) -> Result<TlsStream, HandshakeFault> {
    let session = ServerConnection::new(Arc::clone(server)).map_err(HandshakeFault::Tls)?;
    let mut stream = TlsStream { tcp, session: Box::new(session), is_at_end: false };
    let deadline = Instant::now() + timeout;
    let mut watchdog = Watchdog::default();
    std::future::poll_fn(|task| match stream.poll_handshake(task) {
        Poll::Pending if watchdog.poll_passed(task, deadline).is_ready() => {
            Poll::Ready(Err(HandshakeFault::TimedOut))
        }
        polled => polled,
    })
    .await?;
    Ok(stream)
}

/// A connection after its handshake.
pub(crate) struct TlsStream {
    tcp: TcpStream,
    /// The session that the handshake negotiated.
    pub(super) session: Box<ServerConnection>,
    /// True if the client has closed its side of the socket.
    is_at_end: bool,
}

impl TlsStream {
    /// Writes and reads records until the handshake is complete.
    fn poll_handshake(&mut self, task: &mut Context<'_>) -> Poll<Result<(), HandshakeFault>> {
        while self.session.is_handshaking() {
            ready!(self.poll_write_records(task))?;
            if ready!(self.poll_read_records(task))? == 0 {
                return Poll::Ready(Err(HandshakeFault::Closed));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from the socket once and passes the bytes to rustls. Returns the number of bytes; 0 at
    /// the end of the stream. An error of rustls is wrapped in an `InvalidData` error.
    fn poll_read_records(&mut self, task: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let read = self.session.read_tls(&mut Ciphertext { tcp: &mut self.tcp, task });
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if let Err(error) = self.session.process_new_packets() {
            // Sends the alert that reports the error. A failure to send the alert is ignored.
            let _ = self.poll_write_records(task);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        Poll::Ready(Ok(bytes))
    }

    /// Writes all pending records.
    fn poll_write_records(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Ciphertext { tcp: &mut self.tcp, task }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Calls `encrypt` with the writer of rustls and returns the number of encrypted bytes. rustls
    /// buffers at most 64 KiB of records. If the buffer is full, writes the buffered records first.
    fn poll_encrypt(
        &mut self,
        task: &mut Context<'_>,
        mut encrypt: impl FnMut(&mut rustls::Writer<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let encrypted_bytes = encrypt(&mut self.session.writer())?;
        if encrypted_bytes > 0 {
            return Poll::Ready(Ok(encrypted_bytes));
        }
        ready!(self.poll_write_records(task))?;
        Poll::Ready(encrypt(&mut self.session.writer()))
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let mut reader = this.session.reader();
            match reader.fill_buf() {
                Ok(bytes) => {
                    let copied_bytes = bytes.len().min(buf.remaining());
                    buf.put_slice(&bytes[..copied_bytes]);
                    reader.consume(copied_bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The client has closed the connection without `close_notify`. This counts as a
                // normal end, because HTTP detects truncated messages itself.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            if this.is_at_end {
                return Poll::Ready(Ok(()));
            }
            match this.poll_read_records(task) {
                Poll::Ready(bytes) => this.is_at_end = bytes? == 0,
                Poll::Pending => {
                    // Pending records are written now, because the next response may come much
                    // later.
                    if let Poll::Ready(written) = this.poll_write_records(task) {
                        written?;
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_encrypt(task, |writer| writer.write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_encrypt(task, |writer| writer.write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_write_records(task)
    }

    /// Sends `close_notify`. The socket stays open until it is dropped.
    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.session.send_close_notify();
        this.poll_write_records(task)
    }
}

/// Adapter through which rustls reads and writes the socket. Returns `WouldBlock` instead of
/// waiting.
struct Ciphertext<'a, 'c> {
    tcp: &'a mut TcpStream,
    task: &'a mut Context<'c>,
}

/// Converts `Pending` to `WouldBlock`.
fn ready_or_would_block<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Read for Ciphertext<'_, '_> {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(output);
        ready_or_would_block(Pin::new(&mut *self.tcp).poll_read(self.task, &mut buf))?;
        Ok(buf.filled().len())
    }
}

impl Write for Ciphertext<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ready_or_would_block(Pin::new(&mut *self.tcp).poll_write(self.task, bytes))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match bufs {
            // A plain write is a cheaper system call than a vectored one.
            [single] => self.write(single),
            several => ready_or_would_block(
                Pin::new(&mut *self.tcp).poll_write_vectored(self.task, several),
            ),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
