//! The listening sockets. A process binds new sockets, or inherits them from the process that it
//! replaces.
//!
//! Each serving thread has its own socket on the same address, with its own backlog. A process that
//! is replaced hands its sockets over to the new process. If it closed the sockets instead, the
//! system would reset the connections in the backlogs.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Config;
use crate::downstream::accept::ListenAddress;
use crate::runtime::error::Error;

/// Maximum number of connections that wait to be accepted at one socket. Linux also limits this
/// number to `net.core.somaxconn`, which is 4096 by default.
const BACKLOG: i32 = 4096;

/// Listening sockets for a hand-over between processes.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Sockets for clients without TLS.
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
    /// Address for clients without TLS. If all clients use TLS, the address for TLS.
    pub(super) listen: SocketAddr,
    /// Address for clients over TLS; `None` if TLS is off.
    pub(super) listen_tls: Option<SocketAddr>,
    /// Address of metrics and status; `None` if it is off.
    pub(super) admin_address: Option<SocketAddr>,
    /// Address of health, readiness and metrics; `None` if it is off.
    pub(super) health_address: Option<SocketAddr>,
    /// The client sockets of each serving thread. Each socket comes with the kind of its address.
    pub(super) clients: Vec<Vec<(ListenAddress, Socket)>>,
    /// The socket of the admin address; `None` if it is off.
    pub(super) admin: Option<Socket>,
    /// The socket of the health address; `None` if it is off.
    pub(super) health: Option<Socket>,
    /// Copies of all sockets, for the hand-over to a process that replaces this one.
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

/// Uses the inherited sockets whose addresses are configured, and binds the missing sockets.
pub(super) fn bind(config: &Config, inherited: Sockets) -> Result<BoundSockets, Error> {
    let server = &config.server;
    let tls = config.listen_tls.as_ref().map(|tls| tls.address);
    let (clear_address, clients) = listen_on(server.listen, inherited.clients, server.threads)?;
    let (listen_tls, tls) = listen_on(tls, inherited.tls, server.threads)?;
    let (admin_address, admin) = listen_on(server.admin, inherited.admin, 1)?;
    let (health_address, health) = listen_on(server.health, inherited.health, 1)?;
    let listen = clear_address.or(listen_tls);
    let listen = listen.expect("a checked configuration has an address for clients");
    let (admin, health) = (admin.into_iter().next(), health.into_iter().next());
    let sockets = Sockets { clients, tls, admin, health };
    let listen_error = |source| Error::Listen { address: listen, source };
    let copies = sockets.try_clone().map_err(listen_error)?;
    let mut clients: Vec<Vec<(ListenAddress, Socket)>> = Vec::new();
    clients.resize_with(server.threads, Vec::new);
    for (listen_address, sockets) in
        [(ListenAddress::Plaintext, sockets.clients), (ListenAddress::Tls, sockets.tls)]
    {
        for (index, socket) in sockets.into_iter().enumerate() {
            clients[index % server.threads].push((listen_address, socket));
        }
    }
    Ok(BoundSockets {
        listen,
        listen_tls,
        admin_address,
        health_address,
        clients,
        admin: sockets.admin,
        health: sockets.health,
        copies,
    })
}

/// Returns the actual address and at least `count` sockets. Uses inherited sockets first. Returns
/// no sockets if no address is configured.
fn listen_on(
    configured: Option<SocketAddr>,
    inherited: impl IntoIterator<Item = Socket>,
    count: usize,
) -> Result<(Option<SocketAddr>, Vec<Socket>), Error> {
    let Some(configured) = configured else { return Ok((None, Vec::new())) };
    let fits = |socket: &Socket| matches_address(socket, configured);
    let mut sockets: Vec<Socket> = inherited.into_iter().filter(fits).collect();
    if sockets.is_empty() {
        let is_first = true;
        sockets.push(listen(configured, is_first)?);
    }
    let address = local_address(&sockets[0], configured)?;
    while sockets.len() < count {
        let is_first = false;
        sockets.push(listen(address, is_first)?);
    }
    Ok((Some(address), sockets))
}

/// Returns true if a socket listens on the configured address. Port 0 matches any port.
fn matches_address(socket: &Socket, configured: SocketAddr) -> bool {
    let address = socket.local_addr().ok().and_then(|address| address.as_socket());
    address.is_some_and(|address| {
        address == configured || (configured.port() == 0 && address.ip() == configured.ip())
    })
}

/// Binds a listening socket. If `is_first` is true, fails if another process already listens on the
/// address.
fn listen(address: SocketAddr, is_first: bool) -> Result<Socket, Error> {
    let open = || -> io::Result<Socket> {
        if is_first && address.port() != 0 {
            // With SO_REUSEPORT, binding succeeds even if another gateway listens on the address.
            // That gateway would then lose half of its connections. So `probe` first binds the
            // address without SO_REUSEPORT. This fails if another gateway listens on the address.
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

/// Returns the address of a socket, with the actual port if port 0 was configured.
fn local_address(socket: &Socket, configured: SocketAddr) -> Result<SocketAddr, Error> {
    let address =
        socket.local_addr().map_err(|source| Error::Listen { address: configured, source })?;
    Ok(address.as_socket().unwrap_or(configured))
}
