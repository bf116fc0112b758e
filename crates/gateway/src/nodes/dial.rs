//! Making a connection to a node: name, TCP, TLS.
//!
//! It makes one connection per call and keeps none; keeping is `pool.rs`.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::Node;
use crate::nodes::stream::Stream;

/// Makes one end of a stream in memory whose other end a simulated node serves.
pub type MemoryDial = Arc<dyn Fn() -> io::Result<DuplexStream> + Send + Sync>;

/// How a node is reached.
#[derive(Clone)]
pub(crate) enum Dial {
    /// Over the network, as the node's URL says.
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

impl Dial {
    /// Connects within the node's connect timeout.
    ///
    /// # Errors
    /// What the system, or TLS, says; `TimedOut` when it takes too long.
    pub(crate) async fn connect(&self, node: &Node) -> io::Result<Stream> {
        match self {
            Dial::Memory(dial) => dial().map(Stream::Memory),
            Dial::Net => tokio::time::timeout(node.connect_timeout, connect_net(node))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

async fn connect_net(node: &Node) -> io::Result<Stream> {
    let tcp = TcpStream::connect((node.url.host(), node.url.port())).await?;
    tcp.set_nodelay(true)?;
    match &node.tls {
        None => Ok(Stream::Tcp(tcp)),
        Some(tls) => {
            let connector = TlsConnector::from(Arc::clone(&tls.client));
            let stream = connector.connect(tls.server_name.clone(), tcp).await?;
            Ok(Stream::Tls(Box::new(stream)))
        }
    }
}
