//! Finds the client address of a request from the header entries of trusted proxies, which are read
//! from the right.
//!
//! Each proxy appends the address of its caller. So an entry is trustworthy only if all entries to
//! its right are trusted proxies. The walk starts at the peer and goes left over trusted proxies.
//! It ends at the first untrusted address, or at the last readable one (nginx: `real_ip_recursive
//! on`). `proxy.rs` parses the PROXY protocol.

use core::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// Source of a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// The connection itself.
    Peer,
    /// The header `X-Forwarded-For`.
    XForwardedFor,
    /// The header `Forwarded` (RFC 7239).
    Forwarded,
    /// The PROXY protocol header at the start of the connection.
    ProxyProtocol,
}

impl AddressSource {
    /// Returns the lower-case name of the header, if the source is a header.
    pub fn header(self) -> Option<&'static str> {
        match self {
            AddressSource::XForwardedFor => Some("x-forwarded-for"),
            AddressSource::Forwarded => Some("forwarded"),
            AddressSource::Peer | AddressSource::ProxyProtocol => None,
        }
    }
}

/// Peers that may report the address of their client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trusted {
    networks: Vec<IpNet>,
}

impl Trusted {
    /// Trusts these networks. IPv4 in IPv6 form counts as IPv4.
    pub fn new(networks: Vec<IpNet>) -> Trusted {
        Trusted { networks }
    }

    /// Returns true if this address is trusted.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }
}

/// Returns the client's address from the values of a header, in the order of the request. The peer
/// must be trusted. Returns `None` if the values hold no trustworthy address; the peer is then the
/// client.
pub fn client<'a>(
    source: AddressSource,
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    trusted: &Trusted,
) -> Option<IpAddr> {
    let (split, read): (Split, Read) = match source {
        AddressSource::XForwardedFor => (last_of_list, address),
        AddressSource::Forwarded => (last_of_forwarded, forwarded_for),
        AddressSource::Peer | AddressSource::ProxyProtocol => return None,
    };
    let mut found = None;
    for value in values.rev() {
        let mut rest = value;
        while let Some((left, entry)) = split(rest) {
            let Some(address) = read(entry) else { return found };
            found = Some(address);
            if !trusted.contains(address) {
                return found;
            }
            rest = left;
        }
    }
    found
}

/// Splits the last entry off a value. Returns the rest and the entry; `None` at the start.
type Split = fn(&[u8]) -> Option<(&[u8], &[u8])>;
type Read = fn(&[u8]) -> Option<IpAddr>;

/// Splits at commas or spaces and skips empty entries, as in nginx.
fn last_of_list(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let divides = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
    let end = value.iter().rposition(|byte| !divides(byte))? + 1;
    let start = value[..end].iter().rposition(divides).map_or(0, |at| at + 1);
    Some((&value[..start], &value[start..end]))
}

/// Splits at commas outside of quotes. It reads from the right. So a quote that the client left
/// open cannot hide the entries that proxies appended.
fn last_of_forwarded(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let divides = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
    let end = value.iter().rposition(|byte| !divides(byte))? + 1;
    let mut quoted = false;
    for at in (0..end).rev() {
        match value[at] {
            b'"' if !is_escaped(value, at) => quoted = !quoted,
            b',' if !quoted => return Some((&value[..at], &value[at + 1..end])),
            _ => {}
        }
    }
    Some((&[], &value[..end]))
}

fn is_escaped(value: &[u8], at: usize) -> bool {
    let backslashes = value[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
    backslashes % 2 == 1
}

/// Returns the address of an element's `for`. Returns `None` for obfuscated names (`unknown`,
/// `_abc`).
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element;
    while !rest.is_empty() {
        let (pair, behind) = first_pair(rest);
        rest = behind;
        let pair = pair.trim_ascii();
        let Some(equals) = pair.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
    }
    let value = found?;
    let value = match value {
        [b'"', inside @ .., b'"'] => inside,
        plain => plain,
    };
    // An address never needs an escape.
    if value.contains(&b'"') || value.contains(&b'\\') {
        return None;
    }
    address(value).or_else(|| {
        // The port may be obfuscated too (RFC 7239, section 6).
        let colon = value.iter().rposition(|byte| *byte == b':')?;
        value[colon + 1..].starts_with(b"_").then(|| address(&value[..colon]))?
    })
}

/// Splits at the first semicolon outside of quotes.
fn first_pair(element: &[u8]) -> (&[u8], &[u8]) {
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in element.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b';' if !quoted => return (&element[..at], &element[at + 1..]),
            _ => {}
        }
    }
    (element, &[])
}

/// Parses an IP address with or without a port. IPv6 needs brackets before a port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = || {
        let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        inside.map_or_else(|| text.parse().ok(), |inside| inside.parse().ok().map(IpAddr::V6))
    };
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    bare().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests;
