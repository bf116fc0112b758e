//! The other end of a client connection: whose it is, as far as the connection itself tells.

use std::net::IpAddr;
use std::rc::Rc;

use crate::config::downstream::Downstream;
use crate::config::tls::client::ClientCertificate;
use crate::downstream::head::Head;
use crate::policy::client::Trusted;

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// By the connection, or by the PROXY header that it began with.
    pub(crate) address: IpAddr,
    /// What it showed in a TLS handshake, verified.
    pub(crate) certificate: Option<Rc<ClientCertificate>>,
}

impl Peer {
    /// One that has shown no certificate.
    pub(crate) fn new(address: IpAddr) -> Peer {
        Peer { address, certificate: None }
    }

    /// The client's address for one request: what its head says counts only from a trusted proxy.
    pub(crate) fn client(&self, head: &Head, downstream: &Downstream) -> IpAddr {
        match head.forwarded {
            Some(client) if downstream.trusted_proxies.contains(self.address) => client,
            _ => self.address,
        }
    }

    /// The subject of its certificate, for logs.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.certificate.as_ref().map(|certificate| &*certificate.subject)
    }
}

/// Which header of a request says whose it is, and who may say it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Said<'a> {
    downstream: &'a Downstream,
    /// Its lower-case name.
    header: &'static str,
}

impl<'a> Said<'a> {
    /// `None` where no header counts.
    pub(crate) fn by(downstream: &'a Downstream) -> Option<Said<'a>> {
        downstream.client_address.header().map(|header| Said { downstream, header })
    }

    /// The header's lower-case name.
    pub(crate) fn header(&self) -> &'static str {
        self.header
    }

    /// The client's address by the header's values, should the peer be trusted.
    pub(crate) fn client<'v>(
        &self,
        values: impl DoubleEndedIterator<Item = &'v [u8]>,
    ) -> Option<IpAddr> {
        let trusted: &Trusted = &self.downstream.trusted_proxies;
        crate::policy::client::client(self.downstream.client_address, values, trusted)
    }
}
