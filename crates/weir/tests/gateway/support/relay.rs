//! A way to a server that can be cut: all connections over it end at once, and new ones are carried
//! as before.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// See the module's doc. It ends with the test's process.
pub(crate) struct Relay {
    /// Where it carries from.
    pub(crate) address: String,
    /// A connection to this address cuts the relay's connections; its end confirms the cut.
    pub(crate) cutter: String,
}

impl Relay {
    /// Carries to this address.
    pub(crate) fn before(server: &str) -> Relay {
        let carried: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (listener, cutter) = (bound(), bound());
        let place = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let relay = Relay { address: place(&listener), cutter: place(&cutter) };
        let (server, open) = (server.to_owned(), Arc::clone(&carried));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let ends = [(&client, &server), (&server, &client)];
                for (from, to) in ends.map(|(from, to)| (copy(from), copy(to))) {
                    std::thread::spawn(move || carry(from, to));
                }
                open.lock().extend([client, server]);
            }
        });
        std::thread::spawn(move || {
            for _told in cutter.incoming().flatten() {
                for stream in carried.lock().drain(..) {
                    // It may have ended before.
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        });
        relay
    }
}

fn bound() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn copy(stream: &TcpStream) -> TcpStream {
    stream.try_clone().unwrap()
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    // Either side may end it.
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
