//! Goal: both ways of reading tell the same, and who waits for whom is seen. Method: sockets of
//! this test itself; torn bytes.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use super::*;

/// More than two ticks of the kernel's clock, of at most 10 ms each.
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
    for sockets in [diagnosed().expect("this kernel has sock_diag"), listed().unwrap()] {
        let waiting = find(&sockets, address, State::Listen);
        assert_eq!(waiting.unread, 1, "one connection waits to be accepted");
        let mine = find(&sockets, client.local_addr().unwrap(), State::Established);
        assert_eq!(mine.remote, address);
        assert_ne!(mine.inode, 0);
        assert_eq!(find(&sockets, address, State::Established).unread, 5);
    }
    let listener = find(&diagnosed().unwrap(), address, State::Listen);
    assert!(listener.backlog >= 100, "{listener:?}");
}

#[test]
fn who_waits_for_whom() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let mut server = listener.accept().unwrap().0;
    let local = client.local_addr().unwrap();
    let until = |holds: &dyn Fn(&Socket, &Socket) -> bool| {
        let start = Instant::now();
        loop {
            let sockets = diagnosed().unwrap();
            let mine = find(&sockets, local, State::Established);
            let theirs = sockets.iter().find(|socket| socket.remote == local).unwrap();
            if holds(&mine, theirs) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{mine:?} {theirs:?}");
            thread::park_timeout(Duration::from_millis(5)); // Sleeps: between two looks.
        }
    };
    let seen = |asks| {
        until(&|mine, theirs| mine.awaits_response() == asks && theirs.owes_response() == asks)
    };
    // The kernel counts by its own ticks: what is sent next must fall into a later one.
    let quiet = || {
        let long = |socket: &Socket| {
            socket.quiet.is_some_and(|quiet| quiet.sent.min(quiet.received) >= TICKS)
        };
        until(&|mine, theirs| long(mine) && long(theirs));
    };
    let mut byte = [0];
    quiet();
    client.write_all(b"?").unwrap();
    server.read_exact(&mut byte).unwrap();
    seen(true);
    quiet();
    server.write_all(b"!").unwrap();
    client.read_exact(&mut byte).unwrap();
    seen(false);
}

#[test]
fn torn_messages_are_refused_and_never_panic() {
    let mut bytes = dump_request(INET).to_vec();
    bytes.extend([0; 40]);
    for length in 0..bytes.len() {
        let _ = messages(&bytes[..length], &mut Vec::new());
        let _ = socket(&bytes[..length]);
    }
    // A length of zero would be read for ever.
    assert!(messages(&[0; 64], &mut Vec::new()).is_err());
    let long = 4_000_000_000_u32.to_ne_bytes();
    assert!(messages(&[long.as_slice(), &[0; 60]].concat(), &mut Vec::new()).is_err());
}
