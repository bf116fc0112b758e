//! Reads the TCP sockets of this host through netlink (`sock_diag`), as `ss` does.
//!
//! Netlink is ten times cheaper than `/proc/net/tcp`. It also reports when a socket last sent and
//! received data, which shows which side waits for the other. Some containers forbid netlink. In
//! these, `/proc/net/tcp` is read instead.
//!
//! The messages are documented in <https://man7.org/linux/man-pages/man7/sock_diag.7.html>, and
//! `struct tcp_info` in
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
    /// Number of received bytes that the program has not read. For a listener, the number of
    /// connections that wait to be accepted.
    pub(super) unread: u32,
    /// For a listener, the maximum length of its accept queue, or 0 if it is unknown. Always 0 for
    /// a socket that is no listener.
    pub(super) backlog: u32,
    /// Number of sent bytes that the other side has not acknowledged. 0 for a listener, and if it is
    /// unknown.
    pub(super) unacknowledged: u32,
    /// Smoothed round-trip time; `None` if the kernel does not report it.
    pub(super) round_trip: Option<Duration>,
    /// `None` if the kernel does not report these times.
    pub(super) idle: Option<IdleTimes>,
}

/// Times since a socket last sent and received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdleTimes {
    /// Time since the socket last sent data.
    pub(super) sent: Duration,
    /// Time since the socket last received data.
    pub(super) received: Duration,
}

impl Socket {
    /// Returns true if the last activity of the socket was to send data. Its owner then waits for a
    /// response. If both times are equal, the response counts as received.
    pub(super) fn awaits_response(&self) -> bool {
        self.idle.is_some_and(|idle| idle.sent < idle.received)
    }

    /// Returns true if the socket sent and received in the same clock tick of the kernel, so that
    /// the order is unknown. Either a response arrived quickly after a call, or a call followed a
    /// response at once.
    pub(super) fn is_unclear(&self) -> bool {
        self.unread == 0 && self.idle.is_some_and(|idle| idle.received == idle.sent)
    }

    /// Returns true if the socket received data in the last second.
    pub(super) fn is_in_use(&self) -> bool {
        self.idle.is_some_and(|idle| idle.received < Duration::from_secs(1))
    }

    /// Returns true if the socket has unread data, or if its last activity was to receive data. Its
    /// owner then owes a response.
    pub(super) fn owes_response(&self) -> bool {
        self.unread > 0 || self.idle.is_some_and(|idle| idle.received < idle.sent)
    }
}

/// The TCP state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The connection is open.
    Established,
    /// The socket accepts connections.
    Listen,
    /// The connection is closed and occupies its port for one more minute.
    TimeWait,
    /// The connection is being opened or closed.
    Other,
}

impl State {
    /// Converts the kernel's number of a state (`net/tcp_states.h`).
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

/// Reads the sockets of both address families through netlink.
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

/// Number of the address family of IPv4 (`AF_INET`).
const INET: u8 = 2;
/// Number of the address family of IPv6 (`AF_INET6`).
const INET6: u8 = 10;

/// Builds a request for all TCP sockets of an address family with their `tcp_info`. The request
/// consists of a `struct nlmsghdr` and a `struct inet_diag_req_v2`.
fn encode_dump_request(family: u8) -> [u8; 72] {
    const BY_FAMILY: u16 = 20;
    const REQUEST_AND_DUMP: u16 = 0x301;
    const TCP: u8 = 6;
    /// The bit of `INET_DIAG_INFO`.
    const INFO: u8 = 1 << 1;
    let mut bytes = [0; 72];
    // The header: length, type, flags and sequence number.
    bytes[0..4].copy_from_slice(&72_u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST_AND_DUMP.to_ne_bytes());
    bytes[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    bytes[16] = family;
    bytes[17] = TCP;
    bytes[18] = INFO;
    // The request is for sockets in all states.
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes
}

/// Receives all messages of a response and appends their sockets.
fn receive(mut raw: &Raw, sockets: &mut Vec<Socket>) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = raw.read(&mut buffer)?;
        if length == 0 || !parse_messages(&buffer[..length], sockets)? {
            return Ok(());
        }
    }
}

/// Parses the messages of one datagram and appends their sockets. Returns true if more datagrams
/// follow.
fn parse_messages(mut bytes: &[u8], sockets: &mut Vec<Socket>) -> io::Result<bool> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    /// Size of a `struct nlmsghdr`.
    const HEADER_BYTES: usize = 16;
    while let Some(length) = u32_at(bytes, 0) {
        let length = length as usize;
        let Some(message) = bytes.get(HEADER_BYTES..length) else {
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

/// Parses a `struct inet_diag_msg` with its attributes. Returns `None` if the message is too short.
fn parse_socket(bytes: &[u8]) -> Option<Socket> {
    const INFO: u16 = 2;
    let family = *bytes.first()?;
    let address_at = |port_offset: usize, ip_offset: usize| {
        let port_bytes = bytes.get(port_offset..port_offset + 2)?;
        let port = u16::from_be_bytes(port_bytes.try_into().ok()?);
        let ip: IpAddr = if family == INET {
            <[u8; 4]>::try_from(bytes.get(ip_offset..ip_offset + 4)?).ok()?.into()
        } else {
            let ip_bytes = bytes.get(ip_offset..ip_offset + 16)?;
            Ipv6Addr::from(<[u8; 16]>::try_from(ip_bytes).ok()?).to_canonical()
        };
        Some(SocketAddr::new(ip, port))
    };
    // The offsets are those of `struct inet_diag_msg`.
    let mut socket = Socket {
        state: State::of(*bytes.get(1)?),
        local: address_at(4, 8)?,
        remote: address_at(6, 24)?,
        inode: u64::from(u32_at(bytes, 68)?),
        unread: u32_at(bytes, 56)?,
        backlog: 0,
        unacknowledged: 0,
        round_trip: None,
        idle: None,
    };
    let send_queue = u32_at(bytes, 60)?;
    match socket.state {
        State::Listen => socket.backlog = send_queue,
        _ => socket.unacknowledged = send_queue,
    }
    // The attributes follow the struct. Each begins with its length and its kind.
    let mut attributes = bytes.get(72..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let length = usize::from(length);
        let Some(content) = attributes.get(4..length) else { break };
        if kind == INFO {
            socket.idle = parse_idle_times(content);
            socket.round_trip = parse_round_trip(content);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(socket)
}

/// Parses `tcpi_last_data_sent` and `tcpi_last_data_recv` of a `struct tcp_info`, which are in
/// milliseconds. Returns `None` if the struct is too short.
fn parse_idle_times(info: &[u8]) -> Option<IdleTimes> {
    let time_at = |offset| Some(Duration::from_millis(u64::from(u32_at(info, offset)?)));
    Some(IdleTimes { sent: time_at(44)?, received: time_at(52)? })
}

/// Parses `tcpi_rtt` of a `struct tcp_info`, which is in microseconds. Returns `None` if the struct
/// is too short, or if no round trip was measured yet.
fn parse_round_trip(info: &[u8]) -> Option<Duration> {
    let micros = u32_at(info, 68).filter(|micros| *micros > 0)?;
    Some(Duration::from_micros(u64::from(micros)))
}

/// Returns the number at an offset, in this host's byte order. Returns `None` beyond the end.
fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

/// Returns the number at an offset, in this host's byte order. Returns `None` beyond the end.
fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

/// Reads the sockets of both address families from `/proc/net`.
fn read_proc() -> io::Result<Vec<Socket>> {
    let ipv4_entries = procfs::net::tcp().map_err(io::Error::other)?;
    // The second file does not exist on a host without IPv6.
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
        unacknowledged: entry.tx_queue,
        round_trip: None,
        idle: None,
    };
    Ok(entries.map(socket).collect())
}

#[cfg(test)]
mod tests;
