//! Goal: the values show whether a call is unread, in the target, or waits for the upstream server.
//! Method: this test is client, target and upstream server at once, and sends one byte at a time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use test_support::wait::WAIT_TIMEOUT;

use super::*;

/// Returns the values of the sockets with one of these ports. Other tests of this process have
/// sockets too.
fn reading(
    connections: &mut TargetSockets,
    processes: &mut Processes,
    ports: &[u16],
) -> BTreeMap<String, f64> {
    let mut values = Values::default();
    let mut sockets = sockets::read_all().unwrap();
    let has_port = |socket: &Socket| {
        ports.contains(&socket.local.port()) || ports.contains(&socket.remote.port())
    };
    sockets.retain(has_port);
    connections.add_ports(&sockets, &mut values);
    connections.add_inbound(&sockets, &mut values);
    connections.add_outbound(&sockets, processes, &mut values);
    values.sample(0.0, "x").values.into_iter().collect()
}

/// Reads until a metric has the expected value. Panics after [`WAIT_TIMEOUT`].
fn until(
    connections: &mut TargetSockets,
    ports: &[u16],
    name: &str,
    expected: f64,
) -> BTreeMap<String, f64> {
    let start = Instant::now();
    let mut processes = Processes::new();
    processes.add(std::process::id(), ProcessRole::Target);
    loop {
        let values = reading(connections, &mut processes, ports);
        if values.get(name) == Some(&expected) {
            return values;
        }
        assert!(start.elapsed() < WAIT_TIMEOUT, "{name} {expected}: {values:?}");
        std::thread::park_timeout(Duration::from_millis(10)); // Sleeps: between two looks.
    }
}

#[test]
fn calls_that_wait_upstream_are_seen() {
    let target_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = target_listener.local_addr().unwrap();
    let ports = [target.port(), upstream_listener.local_addr().unwrap().port()];
    let mut connections = TargetSockets::new(target, true);
    let mut client = TcpStream::connect(target).unwrap();
    assert_eq!(
        until(&mut connections, &ports, "target.accept_queue", 1.0)["target.unread_in"],
        0.0
    );

    let mut target_inbound = target_listener.accept().unwrap().0;
    let mut target_outbound = TcpStream::connect(upstream_listener.local_addr().unwrap()).unwrap();
    let mut upstream = upstream_listener.accept().unwrap().0;
    // Sleeps: the kernel measures times in ticks of at most 10 ms.
    let wait_for_tick = || std::thread::park_timeout(Duration::from_millis(30));
    wait_for_tick();
    client.write_all(b"?").unwrap();
    assert_eq!(until(&mut connections, &ports, "target.unread_in", 1.0)["target.waiting_in"], 1.0);

    let mut byte = [0];
    target_inbound.read_exact(&mut byte).unwrap();
    target_outbound.write_all(&byte).unwrap();
    let values = until(&mut connections, &ports, "target.waiting_out", 1.0);
    assert_eq!(values["target.waiting_in"], 1.0);
    assert_eq!(values["target.connections_in"], 1.0);
    let facts = connections.facts();
    assert_eq!(facts.len(), 1, "{facts:?}");
    assert_eq!(facts[0].address, upstream_listener.local_addr().unwrap().to_string());
    assert!(facts[0].waiting > 0.0);

    upstream.read_exact(&mut byte).unwrap();
    wait_for_tick();
    upstream.write_all(&byte).unwrap();
    target_outbound.read_exact(&mut byte).unwrap();
    until(&mut connections, &ports, "target.waiting_out", 0.0);
    wait_for_tick();
    target_inbound.write_all(&byte).unwrap();
    client.read_exact(&mut byte).unwrap();
    let values = until(&mut connections, &ports, "target.waiting_in", 0.0);
    assert!(values["ports_used"] >= 1.0, "{values:?}");
}

#[test]
fn the_upstream_with_most_waiting_calls_is_first() {
    let mut connections = TargetSockets::new("127.0.0.1:1".parse().unwrap(), true);
    connections.readings = 10.0;
    for (port, waiting) in [(2, 1.0), (3, 9.0), (4, 5.0)] {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        connections.upstreams.insert(address, Upstream { process: None, waiting });
    }
    let facts = connections.facts();
    let order: Vec<_> =
        facts.iter().map(|upstream| (&*upstream.address, upstream.waiting)).collect();
    assert_eq!(order, [("127.0.0.1:3", 0.9), ("127.0.0.1:4", 0.5), ("127.0.0.1:2", 0.1)]);
}

#[test]
fn connections_of_other_clients_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    let connections = TargetSockets::new(target, true);
    let mut clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(target).unwrap()).collect();
    let _accepted: Vec<TcpStream> =
        (0..3).map(|_| listener.accept().map(|(stream, _)| stream).unwrap()).collect();
    clients.iter_mut().for_each(|client| client.write_all(b"x").unwrap());
    let sockets = sockets::read_all().unwrap();
    // The first client is this load generator, and the other two are not.
    let own = clients[0].local_addr().unwrap();
    let own_socket = sockets.iter().find(|socket| socket.local == own).unwrap();
    let mut values = Values::default();
    connections.add_other_clients(&sockets, &BTreeSet::from([own_socket.inode]), &mut values);
    connections.add_round_trips(&sockets, &mut values);
    let values: BTreeMap<String, f64> = values.sample(0.0, "x").values.into_iter().collect();
    assert_eq!(values.get("target.connections_other"), Some(&2.0), "{values:?}");
}
