//! The PROXY protocol header, version 1 (text) and 2 (binary), as HAProxy's
//! `doc/proxy-protocol.txt` defines it. The header carries the address of the proxy's client.
//!
//! This file only parses bytes. `downstream/accept.rs` reads the header, and decides which peers
//! may send one.

use core::net::IpAddr;

/// Longest header of version 1, in bytes (section 2.1).
const V1_BYTES_MAX: usize = 107;
/// Signature of version 2.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Number of bytes of a version 2 header before the addresses.
const V2_FIXED_BYTES: usize = 16;
/// Longest accepted header, in bytes: the addresses and the fields that proxies add. nginx has the
/// same limit (`NGX_PROXY_PROTOCOL_MAX_HEADER`).
pub const HEADER_BYTES_MAX: usize = 4096;

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Address of the proxy's client. `None` if the proxy itself opened the connection, as for a
    /// health check, or if the proxy does not know the address.
    pub source: Option<IpAddr>,
    /// Length of the header in bytes.
    pub bytes: usize,
}

/// The bytes are no valid header, or the header is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The signature is missing.
    #[error("not a PROXY protocol header")]
    NoHeader,
    /// The signature is there, but the rest is malformed.
    #[error("malformed PROXY protocol header")]
    Malformed,
    /// The header exceeds [`HEADER_BYTES_MAX`], or [`V1_BYTES_MAX`] if it is of version 1.
    #[error("PROXY protocol header is too long")]
    TooLong,
}

/// Parses the header at the start of a connection. Returns `None` while the header is incomplete;
/// all bytes of `received` then belong to the header.
///
/// # Errors
///
/// A [`ProxyError`], always caused by the peer.
pub fn parse(received: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    // An incomplete signature also counts, because more bytes may still arrive.
    let may_begin_with = |signature: &[u8]| {
        let length = received.len().min(signature.len());
        received[..length] == signature[..length]
    };
    if may_begin_with(V2_SIGNATURE) {
        parse_v2(received)
    } else if may_begin_with(b"PROXY ") {
        parse_v1(received)
    } else {
        Err(ProxyError::NoHeader)
    }
}

fn parse_v1(received: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let start = &received[..received.len().min(V1_BYTES_MAX)];
    let Some(end) = start.windows(2).position(|pair| pair == b"\r\n") else {
        return if received.len() >= V1_BYTES_MAX { Err(ProxyError::TooLong) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&received[..end]).map_err(|_| ProxyError::Malformed)?;
    let bytes = end + 2;
    let mut words = line.split(' ').skip(1);
    let is_v4 = match words.next() {
        // The specification requires receivers to ignore the remaining words.
        Some("UNKNOWN") => return Ok(Some(ProxyHeader { source: None, bytes })),
        Some("TCP4") => true,
        Some("TCP6") => false,
        _ => return Err(ProxyError::Malformed),
    };
    let mut next_ip = || {
        let ip: IpAddr = words.next()?.parse().ok()?;
        (ip.is_ipv4() == is_v4).then_some(ip)
    };
    let (source, target) = (next_ip(), next_ip());
    let mut next_port = || words.next()?.parse::<u16>().ok();
    let (source_port, target_port) = (next_port(), next_port());
    match (source, target, source_port, target_port, words.next()) {
        (Some(source), Some(_), Some(_), Some(_), None) => {
            Ok(Some(ProxyHeader { source: Some(source.to_canonical()), bytes }))
        }
        _ => Err(ProxyError::Malformed),
    }
}

fn parse_v2(received: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let Some((fixed_part, after_fixed)) = received.split_first_chunk::<V2_FIXED_BYTES>() else {
        return Ok(None);
    };
    // Byte 12 has the version and the command, byte 13 the address family and the protocol. Bytes
    // 14 and 15 have the length of the remaining header.
    let (command, family) = (fixed_part[12], fixed_part[13]);
    let length = usize::from(u16::from_be_bytes([fixed_part[14], fixed_part[15]]));
    let bytes = V2_FIXED_BYTES + length;
    if command >> 4 != 2 {
        return Err(ProxyError::Malformed);
    }
    if bytes > HEADER_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    let Some(addresses) = after_fixed.get(..length) else { return Ok(None) };
    let source = match (command & 0xf, family >> 4) {
        // LOCAL: the proxy itself opened the connection.
        (0, _) => None,
        // PROXY over IPv4: two addresses of 4 bytes and two ports of 2 bytes.
        (1, 1) => {
            let source = addresses.first_chunk::<4>().filter(|_| length >= 12);
            Some(IpAddr::from(*source.ok_or(ProxyError::Malformed)?))
        }
        // PROXY over IPv6: two addresses of 16 bytes and two ports of 2 bytes.
        (1, 2) => {
            let source = addresses.first_chunk::<16>().filter(|_| length >= 36);
            Some(IpAddr::from(*source.ok_or(ProxyError::Malformed)?).to_canonical())
        }
        // PROXY over a Unix socket or an unspecified family: no IP address.
        (1, 0 | 3) => None,
        _ => return Err(ProxyError::Malformed),
    };
    Ok(Some(ProxyHeader { source, bytes }))
}

#[cfg(test)]
mod tests;
