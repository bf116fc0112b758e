//! The header in which a trusted proxy reports the client's address.

use std::net::IpAddr;

use crate::config::downstream::Downstream;
use crate::policy::client::Networks;

/// The configured header that holds the client's address, and the proxies that may set it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForwardedHeader<'a> {
    /// The settings that name the header and the trusted proxies.
    downstream: &'a Downstream,
    /// The header's lower-case name.
    pub(super) name: &'static str,
}

impl<'a> ForwardedHeader<'a> {
    /// Returns the header that is configured; `None` if no header is configured.
    pub(crate) fn of(downstream: &'a Downstream) -> Option<ForwardedHeader<'a>> {
        downstream.client_address.header().map(|name| ForwardedHeader { downstream, name })
    }

    /// Returns the client's address; `None` if the header's values contain none. The address is
    /// valid only if the peer is a trusted proxy.
    pub(crate) fn find_client<'v>(
        &self,
        values: impl DoubleEndedIterator<Item = &'v [u8]>,
    ) -> Option<IpAddr> {
        let trusted: &Networks = &self.downstream.trusted_proxies;
        crate::policy::client::find_client(self.downstream.client_address, values, trusted)
    }
}
