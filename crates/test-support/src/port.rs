//! A reserved port for a server that cannot choose one itself, such as nginx.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port of 127.0.0.1 for one server. The server must set `SO_REUSEADDR` on its listener, as most
/// servers do.
///
/// This process binds the port but does not listen on it. Linux lets a listener with `SO_REUSEADDR`
/// bind the port too. But Linux does not assign this port to a socket that binds port 0, or to an
/// outgoing connection.
pub struct ReservedPort {
    _socket: Socket,
    /// The address with the port.
    pub address: SocketAddr,
}

impl ReservedPort {
    /// Reserves a port until the value is dropped.
    #[allow(clippy::new_without_default)] // A reserved port is not a default value.
    pub fn new() -> ReservedPort {
        ReservedPort::at(0).expect("a free port")
    }

    /// Reserves this port; 0 reserves any free port.
    ///
    /// # Errors
    /// Fails if the port is in use.
    pub fn at(port: u16) -> std::io::Result<ReservedPort> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        // Without `SO_REUSEADDR` this bind fails if any other socket has the port.
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
        socket.set_reuse_address(true)?;
        let address = socket.local_addr()?.as_socket().expect("an address of IPv4");
        Ok(ReservedPort { _socket: socket, address })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_can_listen_and_nobody_else_gets_the_port() {
        let port = ReservedPort::new();
        let plain_socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(plain_socket.bind(&port.address.into()).is_err());
        assert!(ReservedPort::at(port.address.port()).is_err());
        // The standard library sets `SO_REUSEADDR`.
        let listener = TcpListener::bind(port.address).unwrap();
        std::net::TcpStream::connect(port.address).unwrap();
        listener.accept().unwrap();
    }
}
