//! Opens a connection to an upstream: connects to its host over TCP, with or without TLS, or to a
//! local socket. The result is a byte stream, [`Stream`].
//!
//! Each call of [`Connector::connect`] opens a new connection. `http.rs` holds idle connections.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use settings::url::{NodeUrl, Transport};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::upstream::Tls;

/// Opens an in-memory stream to a simulated node and returns the gateway's side of it.
pub type MemoryConnector = Arc<dyn Fn() -> io::Result<DuplexStream> + Send + Sync>;

/// Opens connections to one upstream.
#[derive(Clone)]
pub(crate) enum Connector {
    /// Connects to the upstream's URL over the network.
    Network,
    /// Connects within this process, for simulations in virtual time.
    Memory(MemoryConnector),
}

impl Connector {
    /// Connects to an address of an upstream within `timeout`. The address is the result of
    /// `Upstream::http` or `Upstream::multiplexed`: a URL and, for TLS, the TLS settings.
    ///
    /// # Errors
    /// `TimedOut` after the timeout. `Unsupported` if the upstream has no such address. Otherwise
    /// the error of the system or of TLS.
    pub(crate) async fn connect(
        &self,
        address: Option<(&NodeUrl, Option<&Tls>)>,
        timeout: Duration,
    ) -> io::Result<Stream> {
        let (url, tls) = address.ok_or(io::ErrorKind::Unsupported)?;
        match self {
            Connector::Memory(open) => open().map(Stream::Memory),
            Connector::Network => tokio::time::timeout(timeout, connect_over_network(url, tls))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// Connects to a local socket, or over TCP and, if `tls` is given, TLS.
async fn connect_over_network(url: &NodeUrl, tls: Option<&Tls>) -> io::Result<Stream> {
    if url.transport() == Transport::Ipc {
        return UnixStream::connect(url.target()).await.map(Stream::Unix);
    }
    let tcp = TcpStream::connect((url.host(), url.port())).await?;
    tcp.set_nodelay(true)?;
    match tls {
        None => Ok(Stream::Tcp(tcp)),
        Some(tls) => {
            let connector = TlsConnector::from(Arc::clone(&tls.client));
            let stream = connector.connect(tls.server_name.clone(), tcp).await?;
            Ok(Stream::Tls(Box::new(stream)))
        }
    }
}

/// Keeps a `dialing` flag true while a connection is being opened. When the guard is dropped,
/// clears the flag and notifies the waiting calls.
pub(crate) struct DialGuard<'a> {
    dialing: &'a Cell<bool>,
    /// Notified when the guard is dropped.
    changed: &'a Notify,
}

impl<'a> DialGuard<'a> {
    pub(crate) fn new(dialing: &'a Cell<bool>, changed: &'a Notify) -> DialGuard<'a> {
        dialing.set(true);
        DialGuard { dialing, changed }
    }
}

impl Drop for DialGuard<'_> {
    fn drop(&mut self) {
        self.dialing.set(false);
        self.changed.notify_waiters();
    }
}

/// A byte stream to an upstream.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    /// A stream to a simulated node, in virtual time.
    Memory(DuplexStream),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(task, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(task, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(task, buf),
            Stream::Memory(stream) => Pin::new(stream).poll_read(task, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(task, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(task, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(task, buf),
            Stream::Memory(stream) => Pin::new(stream).poll_write(task, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(_) | Stream::Unix(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(task),
            Stream::Memory(stream) => Pin::new(stream).poll_flush(task),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(task),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(task),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(task),
            Stream::Memory(stream) => Pin::new(stream).poll_shutdown(task),
        }
    }
}
