//! Open-loop requests at planned times over keep-alive connections.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// One planned request.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) at: Duration,
    pub(crate) key: String,
}

/// Random arrivals: so many per second of each key, with exponential gaps.
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

/// Groups of `size` requests of one key at one instant, about every `gap`.
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

/// Connections to one server that are kept between requests.
#[derive(Clone)]
pub(crate) struct Kept {
    address: SocketAddr,
    idle: Rc<RefCell<Vec<TcpStream>>>,
}

impl Kept {
    pub(crate) fn to(address: SocketAddr) -> Kept {
        Kept { address, idle: Rc::default() }
    }

    /// Opens so many ahead of time.
    pub(crate) async fn open(&self, count: usize) {
        for _ in 0..count {
            let stream = self.take().await;
            self.idle.borrow_mut().insert(0, stream);
        }
    }

    pub(crate) async fn take(&self) -> TcpStream {
        let kept = self.idle.borrow_mut().pop();
        match kept {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                stream
            }
        }
    }

    pub(crate) fn give(&self, stream: TcpStream) {
        self.idle.borrow_mut().push(stream);
    }

    /// The status of the answer to a request that was sent on a connection, and when it came.
    pub(crate) async fn answer(&self, mut stream: TcpStream) -> (u16, Instant) {
        let status = status(&mut stream).await;
        let came = Instant::now();
        self.give(stream);
        (status, came)
    }
}

/// Reads one answer whole; its status.
pub(crate) async fn status(stream: &mut TcpStream) -> u16 {
    let mut read = Vec::with_capacity(512);
    loop {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0, "the server closed");
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&read[..end]).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.expect("an answer has a length").parse().unwrap();
        while read.len() < end + 4 + length {
            assert!(stream.read_buf(&mut read).await.unwrap() > 0, "the server closed");
        }
        assert_eq!(read.len(), end + 4 + length, "more than an answer");
        return head[9..12].parse().unwrap();
    }
}

/// A GET with a key, for nginx.
pub(crate) fn get(location: &str, lines: &str) -> Vec<u8> {
    format!("GET /{location} HTTP/1.1\r\nHost: a\r\n{lines}\r\n").into_bytes()
}

/// Sends a request on a connection.
pub(crate) async fn send(stream: &mut TcpStream, request: &[u8]) {
    stream.write_all(request).await.unwrap();
}

/// Runs a test on one thread, with tasks of its own.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}
