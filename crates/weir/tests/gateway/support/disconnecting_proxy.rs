//! A TCP proxy that closes all its connections at once when a test requests it. It continues to
//! accept new ones.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// The proxy. It runs until the test's process ends.
pub(crate) struct DisconnectingProxy {
    /// The address on which the proxy accepts clients.
    pub(crate) address: String,
    /// A test connects to this address to make the proxy close all its connections. The proxy then
    /// closes the test's connection too, to confirm.
    pub(crate) disconnect_address: String,
}

impl DisconnectingProxy {
    /// Starts a proxy in front of this server address.
    pub(crate) fn in_front_of(server: &str) -> DisconnectingProxy {
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (listener, disconnect_listener) = (listen(), listen());
        let address_of = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let proxy = DisconnectingProxy {
            address: address_of(&listener),
            disconnect_address: address_of(&disconnect_listener),
        };
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
            for _request in disconnect_listener.incoming().flatten() {
                for stream in streams.lock().drain(..) {
                    // Either side may have closed it already.
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        });
        proxy
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
