//! The client of a connection: its address and its TLS certificate.

use std::net::IpAddr;
use std::rc::Rc;

use crate::config::downstream::Downstream;
use crate::config::tls::client::ClientCertificate;
use crate::downstream::head::Head;

/// The remote end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// The address of the connection, or the address in its PROXY header.
    pub(crate) address: IpAddr,
    /// The client's certificate, verified by the TLS handshake; `None` if the client sent no
    /// certificate.
    pub(crate) certificate: Option<Rc<ClientCertificate>>,
}

impl Peer {
    /// Returns a peer without a certificate.
    pub(crate) fn new(address: IpAddr) -> Peer {
        Peer { address, certificate: None }
    }

    /// Returns the client's address for one request. The address that a header reports is used only
    /// if the peer is a trusted proxy.
    pub(crate) fn client_address(&self, head: &Head, downstream: &Downstream) -> IpAddr {
        match head.forwarded_address {
            Some(client) if downstream.trusted_proxies.contains(self.address) => client,
            _ => self.address,
        }
    }

    /// Returns the subject of the certificate, for logs; `None` without a certificate.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.certificate.as_ref().map(|certificate| &*certificate.subject)
    }
}
