//! Opens a connection to an upstream: resolves the name, then connects over TCP and TLS, or to a
//! local socket.
//!
//! Each [`Connector::connect`] opens a new connection. `pool.rs` holds idle connections.

use std::sync::Arc;
use std::{fmt, io};

use settings::url::{NodeUrl, Transport};
use tokio::io::DuplexStream;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::config::upstream::{Tls, Upstream};
use crate::upstream::stream::Stream;

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

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Connector::Network => "Network",
            Connector::Memory(_) => "Memory",
        })
    }
}

/// Selects one of an upstream's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressKind {
    /// The HTTP address.
    Http,
    /// The address of a WebSocket or local socket.
    Multiplexed,
}

impl Connector {
    /// Connects to one of the upstream's addresses within its connect timeout.
    ///
    /// # Errors
    /// Errors of the system or of TLS; `TimedOut` after the connect timeout; `Unsupported` if the
    /// upstream has no such address.
    pub(crate) async fn connect(
        &self,
        upstream: &Upstream,
        kind: AddressKind,
    ) -> io::Result<Stream> {
        let address = match kind {
            AddressKind::Http => upstream.http(),
            AddressKind::Multiplexed => upstream.multiplexed(),
        };
        let (url, tls) = address.ok_or(io::ErrorKind::Unsupported)?;
        match self {
            Connector::Memory(open) => open().map(Stream::Memory),
            Connector::Network => {
                tokio::time::timeout(upstream.connect_timeout, connect_over_network(url, tls))
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

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
