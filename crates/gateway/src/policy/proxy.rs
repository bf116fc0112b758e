//! The header of the PROXY protocol, version 1 (text) and 2 (binary), as HAProxy's
//! `doc/proxy-protocol.txt` defines it: whose connection a proxy hands on.
//!
//! It reads bytes only. Who may send one, and how long to wait for it, is `downstream/arrive.rs`.

use core::net::IpAddr;

/// A header of version 1 is never longer (section 2.1).
const V1_BYTES_MAX: usize = 107;
/// What version 2 begins with.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before the addresses.
const V2_FIXED: usize = 16;
/// The longest header that is read: room for the addresses and for what proxies add to them; nginx
/// reads as much (`NGX_PROXY_PROTOCOL_MAX_HEADER`).
pub const HEADER_BYTES_MAX: usize = 4096;

/// What a whole header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxied {
    /// Who called the proxy; `None` where it speaks for itself (a health check) or cannot tell.
    pub source: Option<IpAddr>,
    /// Bytes of the header.
    pub bytes: usize,
}

/// The bytes are no header, or a longer one than is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyFault {
    /// It begins like no header.
    #[error("not a PROXY protocol header")]
    NoHeader,
    /// It begins like one, and goes on otherwise.
    #[error("malformed PROXY protocol header")]
    Malformed,
    /// It is longer than any should be.
    #[error("PROXY protocol header is too long")]
    TooLong,
}

/// Reads the header at the start of a connection; `None` while it is not whole. Then all of `buf`
/// belongs to the header.
///
/// # Errors
/// A [`ProxyFault`]: the peer's, always.
pub fn read(buf: &[u8]) -> Result<Option<Proxied>, ProxyFault> {
    let begins = |with: &[u8]| {
        let known = buf.len().min(with.len());
        buf[..known] == with[..known]
    };
    if begins(V2_SIGNATURE) {
        read_v2(buf)
    } else if begins(b"PROXY ") {
        read_v1(buf)
    } else {
        Err(ProxyFault::NoHeader)
    }
}

fn read_v1(buf: &[u8]) -> Result<Option<Proxied>, ProxyFault> {
    let seen = &buf[..buf.len().min(V1_BYTES_MAX)];
    let Some(end) = seen.windows(2).position(|two| two == b"\r\n") else {
        return if buf.len() >= V1_BYTES_MAX { Err(ProxyFault::TooLong) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&buf[..end]).map_err(|_| ProxyFault::Malformed)?;
    let bytes = end + 2;
    let mut words = line.split(' ').skip(1);
    let v4 = match words.next() {
        // What follows it is to be ignored.
        Some("UNKNOWN") => return Ok(Some(Proxied { source: None, bytes })),
        Some("TCP4") => true,
        Some("TCP6") => false,
        _ => return Err(ProxyFault::Malformed),
    };
    let mut ip = || {
        let ip: IpAddr = words.next()?.parse().ok()?;
        (ip.is_ipv4() == v4).then_some(ip)
    };
    let (source, target) = (ip(), ip());
    let mut port = || words.next()?.parse::<u16>().ok();
    let (source_port, target_port) = (port(), port());
    match (source, target, source_port, target_port, words.next()) {
        (Some(source), Some(_), Some(_), Some(_), None) => {
            Ok(Some(Proxied { source: Some(source.to_canonical()), bytes }))
        }
        _ => Err(ProxyFault::Malformed),
    }
}

fn read_v2(buf: &[u8]) -> Result<Option<Proxied>, ProxyFault> {
    let Some((fixed, rest)) = buf.split_first_chunk::<V2_FIXED>() else { return Ok(None) };
    let (command, family) = (fixed[12], fixed[13]);
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let bytes = V2_FIXED + length;
    if command >> 4 != 2 {
        return Err(ProxyFault::Malformed);
    }
    if bytes > HEADER_BYTES_MAX {
        return Err(ProxyFault::TooLong);
    }
    let Some(addresses) = rest.get(..length) else { return Ok(None) };
    let source = match (command & 0xf, family >> 4) {
        // LOCAL: the proxy speaks for itself.
        (0, _) => None,
        (1, 1) => {
            // Two addresses and two ports.
            let source = addresses.first_chunk::<4>().filter(|_| length >= 12);
            Some(IpAddr::from(*source.ok_or(ProxyFault::Malformed)?))
        }
        (1, 2) => {
            let source = addresses.first_chunk::<16>().filter(|_| length >= 36);
            Some(IpAddr::from(*source.ok_or(ProxyFault::Malformed)?).to_canonical())
        }
        // A socket of the same machine, or a family that it cannot name.
        (1, 0 | 3) => None,
        _ => return Err(ProxyFault::Malformed),
    };
    Ok(Some(Proxied { source, bytes }))
}

#[cfg(test)]
mod tests;
