//! Accepts client connections: starts a task for each, reads the PROXY header, runs the TLS
//! handshake and selects the HTTP version.
//!
//! A *PROXY header* precedes the other bytes of a connection. In it, a proxy reports the client's
//! address. `http1.rs` and `http2.rs` serve the requests.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::listen_tls::ListenTls;
use crate::config::tls::client::ClientCertificate;
use crate::downstream::connection::ConnectionState;
use crate::downstream::peer::Peer;
use crate::downstream::thread::Thread;
use crate::downstream::{http1, http2, tls};
use crate::limits::clients::ConnectionGuard;
use crate::metrics::label::{Handshake, ProxyRefusal, TlsVersion};
use crate::policy::client::AddressSource;
use crate::policy::proxy;
use crate::policy::proxy::HEADER_BYTES_MAX;
use crate::state::context::ThreadContext;

/// The listening address that a client connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    /// `server.listen`, without TLS.
    Plaintext,
    /// `server.listen_tls`.
    Tls,
}

impl Thread {
    /// Serves a client over a plaintext stream in its own task.
    pub(crate) fn accept<S>(self: &Rc<Thread>, stream: S, client: IpAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let peer = Peer::new(client);
        self.spawn(client, |state| http1::serve(Rc::clone(self), stream, peer, state));
    }

    /// Serves a client that connected to a listening address.
    pub(crate) fn accept_tcp(
        self: &Rc<Thread>,
        tcp: TcpStream,
        client: IpAddr,
        address: ListenAddress,
    ) {
        let cx = self.context();
        let config = &cx.snapshot.config;
        match (address, &config.listen_tls) {
            (ListenAddress::Plaintext, _)
                if config.downstream.client_address == AddressSource::ProxyProtocol =>
            {
                self.spawn(client, |state| serve_proxied(Rc::clone(self), tcp, client, state));
            }
            (ListenAddress::Plaintext, _) => self.accept(tcp, client),
            (ListenAddress::Tls, Some(listen)) => {
                let listen = Arc::clone(listen);
                self.spawn(client, |state| serve_tls(Rc::clone(self), tcp, client, listen, state));
            }
            // This cannot happen, because a reload never removes the settings of an open TLS
            // address.
            (ListenAddress::Tls, None) => {}
        }
    }

    /// Serves a connection in a separate task, unless the client has reached its connection limit.
    /// Connections from trusted proxies carry many clients and are not limited.
    fn spawn<F>(self: &Rc<Thread>, client: IpAddr, serve: impl FnOnce(Rc<ConnectionState>) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        let cx = self.context();
        let is_trusted_proxy = cx.snapshot.config.downstream.trusted_proxies.contains(client);
        let connection_guard = match &cx.snapshot.clients {
            Some(clients) if !is_trusted_proxy => match clients.open(client) {
                // The connection is closed at once. A client notices that sooner than a connection
                // that never responds.
                None => return cx.counters.connections_refused.add(1),
                connection_guard => connection_guard,
            },
            _ => None,
        };
        drop(cx);
        let state = Rc::new(ConnectionState::default());
        let thread = Rc::clone(self);
        let account = Rc::clone(&state.account);
        let serving = serve(Rc::clone(&state));
        self.context().counters.record_connection_opened();
        let id = self.add_connection(state);
        let task = tokio::task::spawn_local(async move {
            let _close_guard = CloseGuard { thread, id, _connection_guard: connection_guard };
            serving.await;
        });
        account.set_task(task.abort_handle());
    }
}

/// A guard that the task of a connection holds. When the task ends or is aborted, the guard removes
/// the connection from the open connections and counts it as closed.
struct CloseGuard {
    thread: Rc<Thread>,
    id: u64,
    /// Counts the connection towards the client's limit; `None` if the client is not limited.
    _connection_guard: Option<ConnectionGuard>,
}

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.thread.remove_connection(self.id);
        self.thread.context().counters.record_connection_closed();
    }
}

/// Serves a connection to the TLS address. `peer_address` is the address of the client, or of a
/// proxy between the client and the gateway.
async fn serve_tls(
    thread: Rc<Thread>,
    mut tcp: TcpStream,
    peer_address: IpAddr,
    listen: Arc<ListenTls>,
    state: Rc<ConnectionState>,
) {
    // `cx` keeps the current configuration in memory, so it is dropped after the handshake.
    // Otherwise a long connection would keep an old configuration in memory after a reload.
    let cx = thread.context();
    let Some(mut peer) = identify(&cx, &mut tcp, peer_address).await else { return };
    let handshake = Box::pin(tls::handshake(&listen.server, tcp, listen.handshake_timeout)).await;
    drop(listen);
    let stream = match handshake {
        Ok(stream) => stream,
        Err(fault) => {
            cx.counters.tls_handshakes_failed[fault.class()].add(1);
            tracing::debug!(from = %peer_address, %fault, "tls handshake failed");
            return;
        }
    };
    let session = &stream.session;
    let version = TlsVersion::of(session.protocol_version());
    let handshake = Handshake::of(session.handshake_kind());
    cx.counters.tls_handshakes[version][handshake].add(1);
    if let Some([client_certificate, ..]) = session.peer_certificates() {
        let certificate = ClientCertificate::read(client_certificate);
        tracing::debug!(from = %peer_address, ?certificate, "client certificate received");
        peer.certificate = Some(Rc::new(certificate));
    }
    drop(cx);
    if session.alpn_protocol() == Some(b"h2") {
        // Only the memory account is passed on: HTTP/2 needs no other state of the connection,
        // because `http2.rs` itself closes the streams when the gateway stops.
        let account = Rc::clone(&state.account);
        let served = Box::pin(http2::serve(thread, stream, Vec::new(), peer, account)).await;
        if let Err(error) = served {
            tracing::trace!(from = %peer_address, %error, "client connection ended");
        }
    } else {
        http1::serve(thread, stream, peer, state).await;
    }
}

/// Serves a connection in clear text that begins with a PROXY header.
async fn serve_proxied(
    thread: Rc<Thread>,
    mut tcp: TcpStream,
    peer_address: IpAddr,
    state: Rc<ConnectionState>,
) {
    let cx = thread.context();
    let Some(peer) = identify(&cx, &mut tcp, peer_address).await else { return };
    drop(cx);
    http1::serve(thread, tcp, peer, state).await;
}

/// Identifies the client. Reads the PROXY header if the configuration requires one. Returns `None`
/// if the connection must be closed.
async fn identify(cx: &ThreadContext, tcp: &mut TcpStream, peer_address: IpAddr) -> Option<Peer> {
    let downstream = &cx.snapshot.config.downstream;
    if downstream.client_address != AddressSource::ProxyProtocol {
        return Some(Peer::new(peer_address));
    }
    let refusal = if downstream.trusted_proxies.contains(peer_address) {
        let deadline = Instant::now() + downstream.header_timeout;
        match tokio::time::timeout_at(deadline, Box::pin(read_proxy_header(tcp))).await {
            Ok(Ok(source)) => return Some(Peer::new(source.unwrap_or(peer_address))),
            Ok(Err(error)) => {
                tracing::debug!(from = %peer_address, %error, "invalid PROXY header");
                ProxyRefusal::Malformed
            }
            Err(_) => ProxyRefusal::Timeout,
        }
    } else {
        ProxyRefusal::Untrusted
    };
    cx.counters.proxy_refused[refusal].add(1);
    None
}

/// Reads exactly the PROXY header and leaves the following bytes in the socket. Returns the
/// client's address; `None` if the header has no address.
async fn read_proxy_header(tcp: &mut TcpStream) -> io::Result<Option<IpAddr>> {
    let mut header = Vec::new();
    let mut peeked = [0; HEADER_BYTES_MAX];
    loop {
        let peeked_len = tcp.peek(&mut peeked[..HEADER_BYTES_MAX - header.len()]).await?;
        if peeked_len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let consumed_len = header.len();
        header.extend_from_slice(&peeked[..peeked_len]);
        let parsed = proxy::parse(&header).map_err(io::Error::other)?;
        // If the header is incomplete, all bytes so far belong to it. If the header is complete,
        // other bytes may follow it.
        let header_len = parsed.map_or(header.len(), |proxy_header| proxy_header.bytes);
        // The read removes the header's bytes from the socket. It does not wait, because the bytes
        // were peeked before.
        tcp.read_exact(&mut peeked[..header_len - consumed_len]).await?;
        if let Some(proxy_header) = parsed {
            return Ok(proxy_header.source);
        }
    }
}
