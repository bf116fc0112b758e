//! Making a connection to an upstream: name, TCP, TLS, or a local socket.
//!
//! It makes one connection per call and keeps none; keeping is `pool.rs`.

use std::sync::Arc;
use std::{fmt, io};

use settings::url::{NodeUrl, Transport};
use tokio::io::DuplexStream;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::config::upstream::{Tls, Upstream};
use crate::upstream::stream::Stream;

/// Makes one end of a stream in memory whose other end a simulated node serves.
pub type MemoryDial = Arc<dyn Fn() -> io::Result<DuplexStream> + Send + Sync>;

/// How an upstream is reached.
#[derive(Clone)]
pub(crate) enum Dial {
    /// Over the network, as the upstream's URL says.
    Net,
    /// In this process, for simulations in virtual time.
    Memory(MemoryDial),
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dial::Net => "Net",
            Dial::Memory(_) => "Memory",
        })
    }
}

/// Which of an upstream's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Over HTTP, one call at a time.
    Http,
    /// Over a WebSocket or local socket.
    Multiplexed,
}

impl Dial {
    /// Connects to one of the upstream's addresses within its connect timeout.
    ///
    /// # Errors
    /// What the system, or TLS, says; `TimedOut` when it takes too long, `Unsupported` where the
    /// upstream has no such address.
    pub(crate) async fn connect(&self, upstream: &Upstream, way: Way) -> io::Result<Stream> {
        let address = match way {
            Way::Http => upstream.http(),
            Way::Multiplexed => upstream.multiplexed(),
        };
        let (url, tls) = address.ok_or(io::ErrorKind::Unsupported)?;
        match self {
            Dial::Memory(dial) => dial().map(Stream::Memory),
            Dial::Net => tokio::time::timeout(upstream.connect_timeout, connect_net(url, tls))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

async fn connect_net(url: &NodeUrl, tls: Option<&Tls>) -> io::Result<Stream> {
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
