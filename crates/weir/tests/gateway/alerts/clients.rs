//! Clients that send requests until the test ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use test_support::raw::post_with;
use test_support::wait::pause;

use crate::support::harness::{GET_BALANCE, balance_params, body};

/// Threads that send requests, each on its own connection.
pub(crate) struct Clients(Arc<AtomicBool>);

impl Clients {
    /// Starts the threads. Each thread repeats these steps: it takes the next number, sends
    /// `request(number)`, waits for the first bytes of the response, and sleeps for `interval`.
    pub(crate) fn start(
        address: &str,
        connections: usize,
        interval: Duration,
        request: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static,
    ) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        let (request, next) = (Arc::new(request), Arc::new(AtomicU64::new(0)));
        for _ in 0..connections {
            let (stop, address) = (Arc::clone(&stop), address.to_owned());
            let (request, next) = (Arc::clone(&request), Arc::clone(&next));
            // The thread ends when `Clients` is dropped, or with the test's process.
            std::thread::spawn(move || {
                let mut connection = None;
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    connection = exchange(connection, &address, &request(number));
                    pause(interval); // Sleeps: the rate of the client.
                }
            });
        }
        Clients(stop)
    }

    /// Starts clients that each send up to 20 calls per second. Each call reads the latest balance
    /// of another account.
    pub(crate) fn start_readers(address: &str, connections: usize) -> Clients {
        Clients::start(address, connections, Duration::from_millis(50), |number| read(number, ""))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A request that reads the latest balance of account `number`. No cache has the response if no
/// other call reads that account.
pub(crate) fn read(number: u64, lines: &str) -> Vec<u8> {
    post_with("/", lines, &body(GET_BALANCE, &balance_params(number, "latest")))
}

/// Sends a request and reads a part of the response. Returns the connection if it is still open.
fn exchange(connection: Option<TcpStream>, address: &str, request: &[u8]) -> Option<TcpStream> {
    let mut stream = match connection {
        Some(stream) => stream,
        None => TcpStream::connect(address).ok()?,
    };
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(request).ok()?;
    let mut buffer = [0; 16 * 1024];
    match stream.read(&mut buffer) {
        Ok(1..) => Some(stream),
        _ => None,
    }
}
