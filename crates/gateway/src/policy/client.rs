//! Finds the client address of a request from the header entries of trusted proxies. The entries
//! are read from right to left.
//!
//! Each proxy appends the address of its caller. So an entry is trustworthy only if all entries to
//! its right belong to trusted proxies. The search starts at the rightmost entry. The client is the
//! first address that is not a trusted proxy. The search also ends at the leftmost entry or before
//! a malformed one; the client is then the last address that was read. nginx does the same with
//! `real_ip_recursive on`. `proxy.rs` parses the PROXY protocol.

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
    /// Returns the lower-case name of the HTTP header; `None` if the source is no HTTP header.
    pub fn header(self) -> Option<&'static str> {
        match self {
            AddressSource::XForwardedFor => Some("x-forwarded-for"),
            AddressSource::Forwarded => Some("forwarded"),
            AddressSource::Peer | AddressSource::ProxyProtocol => None,
        }
    }
}

/// A set of networks. An address of the form `::ffff:a.b.c.d` counts as the IPv4 address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(pub Vec<IpNet>);

impl Networks {
    /// Returns true if an address is in one of the networks.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// Returns the client's address from the values of a header, in the order of the request. The
/// caller must have checked that the *peer*, the other end of the connection, is a trusted proxy.
/// Returns `None` if the values hold no trustworthy address; the peer is then the client.
pub fn find_client<'a>(
    source: AddressSource,
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    trusted: &Networks,
) -> Option<IpAddr> {
    let (split_entry, parse): (SplitEntry, ParseAddress) = match source {
        AddressSource::XForwardedFor => (split_last_listed, parse_address),
        AddressSource::Forwarded => (split_last_forwarded, parse_forwarded_for),
        AddressSource::Peer | AddressSource::ProxyProtocol => return None,
    };
    let mut client = None;
    for value in values.rev() {
        let mut unread = value;
        while let Some((before_entry, entry)) = split_entry(unread) {
            let Some(address) = parse(entry) else { return client };
            client = Some(address);
            if !trusted.contains(address) {
                return client;
            }
            unread = before_entry;
        }
    }
    client
}

/// Splits the last entry off a value. Returns the bytes before the entry, and the entry; `None` if
/// the value has no entry.
type SplitEntry = fn(&[u8]) -> Option<(&[u8], &[u8])>;
/// Parses the address of an entry. Returns `None` for a malformed or obfuscated address.
type ParseAddress = fn(&[u8]) -> Option<IpAddr>;

/// Splits off the last entry. Commas or spaces separate entries, and empty entries are skipped, as
/// in nginx.
fn split_last_listed(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_separator = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
    let end = value.iter().rposition(|byte| !is_separator(byte))? + 1;
    let start = value[..end].iter().rposition(is_separator).map_or(0, |index| index + 1);
    Some((&value[..start], &value[start..end]))
}

/// Splits off the last entry. Commas outside of quotes separate entries. The value is read from the
/// right. So a quote that the client left open cannot hide the entries that proxies appended.
fn split_last_forwarded(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_separator = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
    let end = value.iter().rposition(|byte| !is_separator(byte))? + 1;
    let mut quoted = false;
    for index in (0..end).rev() {
        match value[index] {
            b'"' if !is_escaped(value, index) => quoted = !quoted,
            b',' if !quoted => return Some((&value[..index], &value[index + 1..end])),
            _ => {}
        }
    }
    Some((&[], &value[..end]))
}

/// Returns true if an odd number of backslashes precedes the byte at `index`.
fn is_escaped(value: &[u8], index: usize) -> bool {
    let backslashes = value[..index].iter().rev().take_while(|byte| **byte == b'\\').count();
    backslashes % 2 == 1
}

/// Returns the address in the `for` parameter of an entry of `Forwarded`. Returns `None` if the
/// parameter is missing, occurs twice, is malformed, or is an obfuscated name (`unknown`, `_abc`).
fn parse_forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut for_value = None;
    let mut unread = element;
    while !unread.is_empty() {
        let (pair, after_pair) = split_first_pair(unread);
        unread = after_pair;
        let pair = pair.trim_ascii();
        let Some(equals) = pair.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        if name.eq_ignore_ascii_case(b"for") && for_value.replace(value).is_some() {
            return None;
        }
    }
    let value = for_value?;
    let value = match value {
        [b'"', unquoted @ .., b'"'] => unquoted,
        unquoted => unquoted,
    };
    // An address never needs an escape.
    if value.contains(&b'"') || value.contains(&b'\\') {
        return None;
    }
    parse_address(value).or_else(|| {
        // The port may be obfuscated too (RFC 7239, section 6).
        let colon = value.iter().rposition(|byte| *byte == b':')?;
        value[colon + 1..].starts_with(b"_").then(|| parse_address(&value[..colon]))?
    })
}

/// Splits at the first semicolon outside of quotes. Returns the first pair and the bytes after the
/// semicolon.
fn split_first_pair(element: &[u8]) -> (&[u8], &[u8]) {
    let mut quoted = false;
    let mut escaped = false;
    for (index, byte) in element.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b';' if !quoted => return (&element[..index], &element[index + 1..]),
            _ => {}
        }
    }
    (element, &[])
}

/// Parses an IP address with or without a port. IPv6 needs brackets before a port.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let without_port = || {
        let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        in_brackets.map_or_else(|| text.parse().ok(), |ipv6| ipv6.parse().ok().map(IpAddr::V6))
    };
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    without_port().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests;
