//! Plans of open-loop requests, and keep-alive connections to send them on.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// A planned request.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    /// When to send the request, from the start of the test.
    pub(crate) at: Duration,
    /// The limit's key of the request.
    pub(crate) key: String,
}

/// Plans a Poisson process for each key, with `rate` requests per second on average.
pub(crate) fn poisson(seed: u64, keys: usize, rate: f64, length: Duration) -> Vec<Arrival> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut all = Vec::new();
    for key in 0..keys {
        let mut at = 0.0;
        loop {
            at -= (1.0 - random.random::<f64>()).ln() / rate;
            if at >= length.as_secs_f64() {
                break;
            }
            all.push(Arrival { at: Duration::from_secs_f64(at), key: format!("p{key}") });
        }
    }
    sorted(all)
}

/// Plans bursts of `size` simultaneous requests for each key. The time between two bursts is
/// random: half to one and a half times `gap`.
pub(crate) fn bursts(
    seed: u64,
    keys: usize,
    size: usize,
    gap: Duration,
    length: Duration,
) -> Vec<Arrival> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut all = Vec::new();
    for key in 0..keys {
        let mut at = gap.mul_f64(random.random());
        while at < length {
            all.extend((0..size).map(|_| Arrival { at, key: format!("b{key}") }));
            at += gap.mul_f64(0.5 + random.random::<f64>());
        }
    }
    sorted(all)
}

fn sorted(mut all: Vec<Arrival>) -> Vec<Arrival> {
    all.sort_by_key(|arrival| arrival.at);
    all
}

/// A pool of keep-alive connections to one server.
#[derive(Clone)]
pub(crate) struct ConnectionPool {
    address: SocketAddr,
    idle: Rc<RefCell<Vec<TcpStream>>>,
}

impl ConnectionPool {
    pub(crate) fn new(address: SocketAddr) -> ConnectionPool {
        ConnectionPool { address, idle: Rc::default() }
    }

    /// Opens connections ahead of time.
    pub(crate) async fn open(&self, count: usize) {
        for _ in 0..count {
            let stream = self.take().await;
            self.idle.borrow_mut().insert(0, stream);
        }
    }

    /// Takes an idle connection, or opens one if there is none.
    pub(crate) async fn take(&self) -> TcpStream {
        let idle = self.idle.borrow_mut().pop();
        match idle {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                stream
            }
        }
    }

    /// Returns a connection to the pool.
    pub(crate) fn put_back(&self, stream: TcpStream) {
        self.idle.borrow_mut().push(stream);
    }

    /// Waits for a response and puts the connection back into the pool. Returns the HTTP status and
    /// the time of the response.
    pub(crate) async fn read_response(&self, mut stream: TcpStream) -> (u16, Instant) {
        let status = read_status(&mut stream).await;
        let received_at = Instant::now();
        self.put_back(stream);
        (status, received_at)
    }
}

/// Reads a whole response and returns its status.
pub(crate) async fn read_status(stream: &mut TcpStream) -> u16 {
    let mut received = Vec::with_capacity(512);
    loop {
        assert!(stream.read_buf(&mut received).await.unwrap() > 0, "the server closed");
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&received[..end]).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("an answer has a length").parse().unwrap();
        while received.len() < end + 4 + length {
            assert!(stream.read_buf(&mut received).await.unwrap() > 0, "the server closed");
        }
        assert_eq!(received.len(), end + 4 + length, "more than one response");
        return head[9..12].parse().unwrap();
    }
}

/// A GET request for a location of nginx, with further header lines.
pub(crate) fn get(location: &str, headers: &str) -> Vec<u8> {
    format!("GET /{location} HTTP/1.1\r\nHost: a\r\n{headers}\r\n").into_bytes()
}

/// Sends a request on a connection.
pub(crate) async fn send(stream: &mut TcpStream, request: &[u8]) {
    stream.write_all(request).await.unwrap();
}

/// Runs a future on a single-threaded runtime that allows local tasks.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}
