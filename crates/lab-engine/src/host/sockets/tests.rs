//! Goal: netlink and `/proc` report the same sockets, and netlink shows which side of a connection
//! waits. Method: sockets of this test, and invalid bytes.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use super::*;

/// A time of more than two ticks of the kernel's clock, which are at most 10 ms long.
const TICKS: Duration = Duration::from_millis(25);

fn find(sockets: &[Socket], local: SocketAddr, state: State) -> Socket {
    let mut found = sockets.iter().filter(|socket| socket.local == local && socket.state == state);
    found.next().unwrap_or_else(|| panic!("{local} {state:?}")).clone()
}

#[test]
fn listeners_and_connections_are_seen_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"hello").unwrap();
    for sockets in [read_netlink().expect("this kernel has sock_diag"), read_proc().unwrap()] {
        let waiting = find(&sockets, address, State::Listen);
        assert_eq!(waiting.unread, 1, "one connection waits to be accepted");
        let client_socket = find(&sockets, client.local_addr().unwrap(), State::Established);
        assert_eq!(client_socket.remote, address);
        assert_ne!(client_socket.inode, 0);
        assert_eq!(find(&sockets, address, State::Established).unread, 5);
    }
    let listener = find(&read_netlink().unwrap(), address, State::Listen);
    assert!(listener.backlog >= 100, "{listener:?}");
}

#[test]
fn the_waiting_side_is_seen() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let mut server = listener.accept().unwrap().0;
    let local = client.local_addr().unwrap();
    let until = |holds: &dyn Fn(&Socket, &Socket) -> bool| {
        let start = Instant::now();
        loop {
            let sockets = read_netlink().unwrap();
            let client_socket = find(&sockets, local, State::Established);
            // A closed connection may still have the port of the client.
            let is_server = |socket: &&Socket| (socket.local, socket.remote) == (address, local);
            let server_socket = sockets.iter().find(is_server).unwrap();
            if holds(&client_socket, server_socket) {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{client_socket:?} {server_socket:?}"
            );
            thread::park_timeout(Duration::from_millis(5)); // Sleeps: between two looks.
        }
    };
    let check = |is_waiting| {
        until(&|client_socket, server_socket| {
            client_socket.awaits_response() == is_waiting
                && server_socket.owes_response() == is_waiting
        })
    };
    // The kernel measures times in clock ticks. The next send must be in a later tick than the
    // previous one.
    let wait_until_idle = || {
        let is_idle =
            |socket: &Socket| socket.idle.is_some_and(|idle| idle.sent.min(idle.received) >= TICKS);
        until(&|client_socket, server_socket| is_idle(client_socket) && is_idle(server_socket));
    };
    let mut byte = [0];
    wait_until_idle();
    client.write_all(b"?").unwrap();
    server.read_exact(&mut byte).unwrap();
    check(true);
    wait_until_idle();
    server.write_all(b"!").unwrap();
    client.read_exact(&mut byte).unwrap();
    check(false);
}

#[test]
fn invalid_messages_are_rejected_and_never_panic() {
    let mut bytes = encode_dump_request(INET).to_vec();
    bytes.extend([0; 40]);
    for length in 0..bytes.len() {
        let _ = parse_messages(&bytes[..length], &mut Vec::new());
        let _ = parse_socket(&bytes[..length]);
    }
    // A parser that accepted a length of zero would never end.
    assert!(parse_messages(&[0; 64], &mut Vec::new()).is_err());
    let long = 4_000_000_000_u32.to_ne_bytes();
    assert!(parse_messages(&[long.as_slice(), &[0; 60]].concat(), &mut Vec::new()).is_err());
}
