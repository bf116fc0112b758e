//! Listening sockets, which are new or inherited from the process that this one replaces.
//!
//! Each serving thread has its own socket on the same address, with its own backlog. A replaced
//! process hands over its sockets, because closing them would reset the connections in their
//! backlogs.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Config;
use crate::downstream::thread::ListenAddress;
use crate::runtime::error::Error;

/// Backlog of a socket; Linux caps it at `net.core.somaxconn`, 4096 by default.
const BACKLOG: i32 = 4096;

/// Listening sockets for a hand-over between processes.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Sockets for clients in clear text.
    pub clients: Vec<Socket>,
    /// Sockets for clients over TLS.
    pub tls: Vec<Socket>,
    /// Socket for metrics and status.
    pub admin: Option<Socket>,
    /// Socket for probes and scrapers.
    pub health: Option<Socket>,
}

/// The sockets and addresses of a gateway.
pub(super) struct BoundSockets {
    /// Address for clients in clear text. If all clients use TLS, the address for TLS.
    pub(super) listen: SocketAddr,
    pub(super) listen_tls: Option<SocketAddr>,
    pub(super) admin_address: Option<SocketAddr>,
    pub(super) health_address: Option<SocketAddr>,
    /// The sockets of each serving thread, with the kind of their address.
    pub(super) clients: Vec<Vec<(ListenAddress, Socket)>>,
    pub(super) admin: Option<Socket>,
    pub(super) health: Option<Socket>,
    /// Copies of all sockets.
    pub(super) copies: Sockets,
}

impl Sockets {
    /// Duplicates the file descriptors of all sockets.
    ///
    /// # Errors
    /// If the system has no file descriptor left.
    pub fn try_clone(&self) -> io::Result<Sockets> {
        Ok(Sockets {
            clients: self.clients.iter().map(Socket::try_clone).collect::<io::Result<_>>()?,
            tls: self.tls.iter().map(Socket::try_clone).collect::<io::Result<_>>()?,
            admin: self.admin.as_ref().map(Socket::try_clone).transpose()?,
            health: self.health.as_ref().map(Socket::try_clone).transpose()?,
        })
    }
}

/// Uses the inherited sockets that fit the configuration and binds the others.
pub(super) fn bind(config: &Config, inherited: Sockets) -> Result<BoundSockets, Error> {
    let listen_on =
        |configured, inherited| listen_all(configured, inherited, config.server.threads);
    let clear_text = config
        .server
        .listen
        .map(|configured| listen_on(configured, inherited.clients))
        .transpose()?;
    let configured = config.listen_tls.as_ref().map(|tls| tls.address);
    let tls = configured.map(|configured| listen_on(configured, inherited.tls)).transpose()?;
    let (address, clear_text) = clear_text.unzip();
    let (listen_tls, tls) = tls.unzip();
    let address = address.or(listen_tls);
    let address = address.expect("a checked configuration has an address for clients");
    let listen_once_on = |configured: Option<SocketAddr>, inherited| {
        configured.map(|configured| listen_once(configured, inherited)).transpose()
    };
    let (admin_address, admin) = listen_once_on(config.server.admin, inherited.admin)?.unzip();
    let (health_address, health) = listen_once_on(config.server.health, inherited.health)?.unzip();
    let sockets = Sockets {
        clients: clear_text.unwrap_or_default(),
        tls: tls.unwrap_or_default(),
        admin,
        health,
    };
    let listen_error = |source| Error::Listen { address, source };
    let copies = sockets.try_clone().map_err(listen_error)?;
    let mut clients: Vec<Vec<(ListenAddress, Socket)>> =
        (0..config.server.threads).map(|_| Vec::new()).collect();
    for (listen_address, sockets) in
        [(ListenAddress::Clear, sockets.clients), (ListenAddress::Tls, sockets.tls)]
    {
        for (index, socket) in sockets.into_iter().enumerate() {
            clients[index % config.server.threads].push((listen_address, socket));
        }
    }
    Ok(BoundSockets {
        listen: address,
        listen_tls,
        admin_address,
        health_address,
        clients,
        admin: sockets.admin,
        health: sockets.health,
        copies,
    })
}

/// Returns the sockets of one address, at least one per thread. Uses inherited sockets first.
fn listen_all(
    configured: SocketAddr,
    mut sockets: Vec<Socket>,
    threads: usize,
) -> Result<(SocketAddr, Vec<Socket>), Error> {
    sockets.retain(|socket| matches_address(socket, configured));
    if sockets.is_empty() {
        sockets.push(listen(configured, true)?);
    }
    let address = local_address(&sockets[0], configured)?;
    while sockets.len() < threads {
        sockets.push(listen(address, false)?);
    }
    Ok((address, sockets))
}

/// Returns the single socket of an address. Uses the inherited socket if it matches.
fn listen_once(
    configured: SocketAddr,
    inherited: Option<Socket>,
) -> Result<(SocketAddr, Socket), Error> {
    let socket = match inherited.filter(|socket| matches_address(socket, configured)) {
        Some(socket) => socket,
        None => listen(configured, true)?,
    };
    Ok((local_address(&socket, configured)?, socket))
}

/// Returns true if a socket listens on the configured address; port 0 matches any port.
fn matches_address(socket: &Socket, configured: SocketAddr) -> bool {
    let address = socket.local_addr().ok().and_then(|address| address.as_socket());
    address.is_some_and(|address| {
        address == configured || (configured.port() == 0 && address.ip() == configured.ip())
    })
}

/// Binds a listening socket. If `is_first` is true, fails if another process listens on the
/// address.
fn listen(address: SocketAddr, is_first: bool) -> Result<Socket, Error> {
    let open = || -> io::Result<Socket> {
        if is_first && address.port() != 0 {
            // With SO_REUSEPORT a second gateway would silently take half of the connections. So
            // the address is first bound without SO_REUSEPORT.
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
    open().map_err(|source| Error::Listen { address, source })
}

fn local_address(socket: &Socket, configured: SocketAddr) -> Result<SocketAddr, Error> {
    let address =
        socket.local_addr().map_err(|source| Error::Listen { address: configured, source })?;
    Ok(address.as_socket().unwrap_or(configured))
}
