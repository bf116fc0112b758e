//! A TCP proxy that a test can order to close all its connections at once. It goes on accepting
//! new ones.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// The proxy that this module's doc describes. It runs until the test's process ends.
pub(crate) struct Relay {
    /// The address on which the proxy accepts clients.
    pub(crate) address: String,
    /// A connection to this address makes the proxy close all its connections. The proxy then
    /// closes that connection too, to confirm.
    pub(crate) cutter: String,
}

impl Relay {
    /// Starts a proxy in front of this server address.
    pub(crate) fn before(server: &str) -> Relay {
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (listener, cutter) = (listen(), listen());
        let address_of = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let relay = Relay { address: address_of(&listener), cutter: address_of(&cutter) };
        let (server, open) = (server.to_owned(), Arc::clone(&streams));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let ends = [(&client, &server), (&server, &client)];
                for (from, to) in ends.map(|(from, to)| (clone_stream(from), clone_stream(to))) {
                    std::thread::spawn(move || forward_bytes(from, to));
                }
                open.lock().extend([client, server]);
            }
        });
        std::thread::spawn(move || {
            for _order in cutter.incoming().flatten() {
                for stream in streams.lock().drain(..) {
                    // Either side may have closed it already.
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        });
        relay
    }
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn clone_stream(stream: &TcpStream) -> TcpStream {
    stream.try_clone().unwrap()
}

fn forward_bytes(mut from: TcpStream, mut to: TcpStream) {
    // Either side may close the connection at any time.
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
