//! Listening sockets: bound anew, or taken over from the process whose place this one takes.
//!
//! Each serving thread has its own socket on the one address. A connection waits in one of them
//! before it is accepted, so a process that is replaced hands over the very sockets: with others on
//! the same address, what waits in the old ones would be reset when they close.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Config;
use crate::downstream::thread::ListenAddress;
use crate::runtime::error::Error;

/// Connections that may wait to be accepted; Linux caps it at `net.core.somaxconn`, 4096 by
/// default.
const BACKLOG: i32 = 4096;

/// Listening sockets that pass from one process to the next.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Those for clients in clear text.
    pub clients: Vec<Socket>,
    /// Those for clients over TLS.
    pub tls: Vec<Socket>,
    /// The one for metrics and status.
    pub admin: Option<Socket>,
}

/// What a gateway listens on.
pub(super) struct Bound {
    /// For clients in clear text, or over TLS where only that is served.
    pub(super) listen: SocketAddr,
    pub(super) listen_tls: Option<SocketAddr>,
    pub(super) admin_address: Option<SocketAddr>,
    /// By serving thread.
    pub(super) clients: Vec<Vec<(ListenAddress, Socket)>>,
    pub(super) admin: Option<Socket>,
    /// Copies of all.
    pub(super) kept: Sockets,
}

impl Sockets {
    /// Further descriptors of the same sockets.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn try_clone(&self) -> io::Result<Sockets> {
        Ok(Sockets {
            clients: self.clients.iter().map(Socket::try_clone).collect::<io::Result<_>>()?,
            tls: self.tls.iter().map(Socket::try_clone).collect::<io::Result<_>>()?,
            admin: self.admin.as_ref().map(Socket::try_clone).transpose()?,
        })
    }
}

/// Takes over what fits the configuration and binds the rest.
pub(super) fn bind(config: &Config, inherited: Sockets) -> Result<Bound, Error> {
    let all = |asked, inherited| listen_all(asked, inherited, config.server.threads);
    let clear = config.server.listen.map(|asked| all(asked, inherited.clients)).transpose()?;
    let asked = config.listen_tls.as_ref().map(|tls| tls.address);
    let tls = asked.map(|asked| all(asked, inherited.tls)).transpose()?;
    let (address, clear) = clear.unzip();
    let (listen_tls, tls) = tls.unzip();
    let address = address.or(listen_tls);
    let address = address.expect("a checked configuration has an address for clients");
    let admin = match config.server.admin {
        None => None,
        Some(asked) => match inherited.admin.filter(|socket| fits(socket, asked)) {
            Some(socket) => Some((local(&socket, asked)?, socket)),
            None => {
                let socket = listen(asked, true)?;
                Some((local(&socket, asked)?, socket))
            }
        },
    };
    let (admin_address, admin) = admin.unzip();
    let sockets =
        Sockets { clients: clear.unwrap_or_default(), tls: tls.unwrap_or_default(), admin };
    let failed = |source| Error::Listen { address, source };
    let kept = sockets.try_clone().map_err(failed)?;
    let mut clients: Vec<Vec<(ListenAddress, Socket)>> =
        (0..config.server.threads).map(|_| Vec::new()).collect();
    for (door, sockets) in
        [(ListenAddress::Clear, sockets.clients), (ListenAddress::Tls, sockets.tls)]
    {
        for (index, socket) in sockets.into_iter().enumerate() {
            clients[index % config.server.threads].push((door, socket));
        }
    }
    Ok(Bound { listen: address, listen_tls, admin_address, clients, admin: sockets.admin, kept })
}

/// Sockets on one address for so many threads at least, as far as possible those that are there
/// already.
fn listen_all(
    asked: SocketAddr,
    mut sockets: Vec<Socket>,
    threads: usize,
) -> Result<(SocketAddr, Vec<Socket>), Error> {
    sockets.retain(|socket| fits(socket, asked));
    if sockets.is_empty() {
        sockets.push(listen(asked, true)?);
    }
    let address = local(&sockets[0], asked)?;
    while sockets.len() < threads {
        sockets.push(listen(address, false)?);
    }
    Ok((address, sockets))
}

/// Whether a socket listens where it is asked for; port 0 asks for any.
fn fits(socket: &Socket, asked: SocketAddr) -> bool {
    let address = socket.local_addr().ok().and_then(|address| address.as_socket());
    address.is_some_and(|address| {
        address == asked || (asked.port() == 0 && address.ip() == asked.ip())
    })
}

fn listen(address: SocketAddr, first: bool) -> Result<Socket, Error> {
    let bound = || -> io::Result<Socket> {
        if first && address.port() != 0 {
            // With SO_REUSEPORT a second gateway would silently take half of the connections, so
            // the address is tried without it first.
            let probe =
                Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            probe.set_reuse_address(true)?;
            probe.bind(&address.into())?;
            probe.listen(1)?;
        }
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    bound().map_err(|source| Error::Listen { address, source })
}

fn local(socket: &Socket, asked: SocketAddr) -> Result<SocketAddr, Error> {
    let address = socket.local_addr().map_err(|source| Error::Listen { address: asked, source })?;
    Ok(address.as_socket().unwrap_or(asked))
}
