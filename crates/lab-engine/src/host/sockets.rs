//! Reads the TCP sockets of this host from netlink socket diagnosis, as in `ss`. Netlink is ten
//! times cheaper than `/proc/net/tcp` and reports when a socket last sent and received, which shows
//! which side waits for the other. `/proc/net/tcp` is the fallback if netlink is forbidden, as in
//! some containers.
//!
//! Messages: <https://man7.org/linux/man-pages/man7/sock_diag.7.html>; `struct tcp_info` in
//! <https://github.com/torvalds/linux/blob/master/include/uapi/linux/tcp.h>.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use procfs::net::TcpState;
use socket2::{Domain, Protocol, Socket as Raw, Type};

/// Maximum number of sockets that are read.
const SOCKETS_MAX: usize = 200_000;

/// One TCP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) state: State,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Inode, or 0 if no process holds the socket.
    pub(super) inode: u64,
    /// Received bytes that the program has not read. For a listener: connections that wait to be
    /// accepted.
    pub(super) unread: u32,
    /// For a listener: length limit of the accept queue; 0 if unknown.
    pub(super) backlog: u32,
    /// Time since the socket sent and received data, if the kernel reports it.
    pub(super) idle: Option<IdleTimes>,
}

/// Time since a socket sent and received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdleTimes {
    pub(super) sent: Duration,
    pub(super) received: Duration,
}

impl Socket {
    /// Returns true if the owner of the socket waits for a response: its last activity was to send
    /// data. If both times are equal, the response counts as received.
    pub(super) fn awaits_response(&self) -> bool {
        self.idle.is_some_and(|idle| idle.sent < idle.received)
    }

    /// Returns true if both times are in the same kernel tick, so that their order is unknown:
    /// either a quick response, or a call right after a response.
    pub(super) fn is_unclear(&self) -> bool {
        self.unread == 0 && self.idle.is_some_and(|idle| idle.received == idle.sent)
    }

    /// Returns true if the owner of the socket owes a response: its last activity was to receive
    /// data.
    pub(super) fn owes_response(&self) -> bool {
        self.unread > 0 || self.idle.is_some_and(|idle| idle.received < idle.sent)
    }
}

/// TCP states, as far as they matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Established.
    Established,
    /// Listening.
    Listen,
    /// TIME_WAIT; keeps its port for a minute.
    TimeWait,
    /// Being opened or closed.
    Other,
}

impl State {
    /// Converts the kernel's number (`enum` in `net/tcp_states.h`).
    fn of(number: u8) -> State {
        match number {
            1 => State::Established,
            6 => State::TimeWait,
            10 => State::Listen,
            _ => State::Other,
        }
    }
}

/// Returns all TCP sockets of this network namespace.
///
/// # Errors
/// Fails if neither netlink nor `/proc/net/tcp` can be read.
pub(super) fn read_all() -> io::Result<Vec<Socket>> {
    read_netlink().or_else(|_| read_proc())
}

fn read_netlink() -> io::Result<Vec<Socket>> {
    const NETLINK: i32 = 16;
    const SOCK_DIAG: i32 = 4;
    let raw = Raw::new(Domain::from(NETLINK), Type::DGRAM, Some(Protocol::from(SOCK_DIAG)))?;
    raw.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut sockets = Vec::new();
    for family in [INET, INET6] {
        (&raw).write_all(&encode_dump_request(family))?;
        receive(&raw, &mut sockets)?;
    }
    Ok(sockets)
}

const INET: u8 = 2;
const INET6: u8 = 10;

/// Builds a request for all TCP sockets of a family with their `tcp_info`: `struct nlmsghdr`, then
/// `struct inet_diag_req_v2`.
fn encode_dump_request(family: u8) -> [u8; 72] {
    const BY_FAMILY: u16 = 20;
    const REQUEST_AND_DUMP: u16 = 0x301;
    const TCP: u8 = 6;
    /// The bit of `INET_DIAG_INFO`.
    const INFO: u8 = 1 << 1;
    let mut bytes = [0; 72];
    bytes[0..4].copy_from_slice(&72_u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST_AND_DUMP.to_ne_bytes());
    bytes[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    bytes[16] = family;
    bytes[17] = TCP;
    bytes[18] = INFO;
    // All states.
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes
}

fn receive(mut raw: &Raw, sockets: &mut Vec<Socket>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = raw.read(&mut buffer)?;
        if length == 0 || !parse_messages(&buffer[..length], sockets)? {
            return Ok(());
        }
    }
}

/// Reads the messages of one datagram. Returns true if more follow.
fn parse_messages(mut bytes: &[u8], sockets: &mut Vec<Socket>) -> io::Result<bool> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    while let Some(length) = u32_at(bytes, 0) {
        let length = length as usize;
        let Some(message) = bytes.get(16..length) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match u16_at(bytes, 4) {
            Some(DONE) => return Ok(false),
            Some(ERROR) => return Err(io::ErrorKind::Unsupported.into()),
            _ => {}
        }
        if sockets.len() < SOCKETS_MAX {
            sockets.extend(parse_socket(message));
        }
        // Messages are aligned to four bytes.
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(true)
}

/// Reads one `struct inet_diag_msg` with its attributes.
fn parse_socket(bytes: &[u8]) -> Option<Socket> {
    const INFO: u16 = 2;
    let family = *bytes.first()?;
    let address = |port: usize, ip: usize| {
        let port = u16::from_be_bytes(bytes.get(port..port + 2)?.try_into().ok()?);
        let ip: IpAddr = if family == INET {
            <[u8; 4]>::try_from(bytes.get(ip..ip + 4)?).ok()?.into()
        } else {
            let ipv6 = Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(ip..ip + 16)?).ok()?);
            ipv6.to_canonical()
        };
        Some(SocketAddr::new(ip, port))
    };
    let mut socket = Socket {
        state: State::of(*bytes.get(1)?),
        local: address(4, 8)?,
        remote: address(6, 24)?,
        inode: u64::from(u32_at(bytes, 68)?),
        unread: u32_at(bytes, 56)?,
        backlog: u32_at(bytes, 60)?,
        idle: None,
    };
    if socket.state != State::Listen {
        socket.backlog = 0;
    }
    let mut attributes = bytes.get(72..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        let Some(content) = attributes.get(4..length) else { break };
        if kind == INFO {
            socket.idle = parse_idle_times(content);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(socket)
}

/// Reads `tcpi_last_data_sent` and `tcpi_last_data_recv` of a `struct tcp_info`.
fn parse_idle_times(info: &[u8]) -> Option<IdleTimes> {
    let time = |offset| Some(Duration::from_millis(u64::from(u32_at(info, offset)?)));
    Some(IdleTimes { sent: time(44)?, received: time(52)? })
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

fn read_proc() -> io::Result<Vec<Socket>> {
    let ipv4_entries = procfs::net::tcp().map_err(io::Error::other)?;
    // Without IPv6 the second file is missing.
    let ipv6_entries = procfs::net::tcp6().unwrap_or_default();
    let canonical =
        |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let entries = ipv4_entries.into_iter().chain(ipv6_entries).take(SOCKETS_MAX);
    let socket = |entry: procfs::net::TcpNetEntry| Socket {
        state: match entry.state {
            TcpState::Established => State::Established,
            TcpState::Listen => State::Listen,
            TcpState::TimeWait => State::TimeWait,
            _ => State::Other,
        },
        local: canonical(entry.local_address),
        remote: canonical(entry.remote_address),
        inode: entry.inode,
        unread: entry.rx_queue,
        backlog: 0,
        idle: None,
    };
    Ok(entries.map(socket).collect())
}

#[cfg(test)]
mod tests;
