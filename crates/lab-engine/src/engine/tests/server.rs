//! A server whose responses a test writes: one thread per connection, plain blocking sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) head: String,
    pub(super) body: String,
    /// Number of the connection on this server, from 0.
    pub(super) connection: usize,
    /// Number of the request on its connection, from 0.
    pub(super) nth: usize,
    pub(super) at: Instant,
}

impl Request {
    /// Id of a single call, as raw JSON.
    pub(super) fn id(&self) -> &str {
        let (_, rest) = self.body.split_once("\"id\":").unwrap();
        rest.split([',', '}']).next().unwrap()
    }

    /// A response with this member, such as `"result":1`.
    pub(super) fn answer(&self, member: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},{member}}}"#, self.id())
    }

    /// The default response.
    pub(super) fn ok(&self) -> Reply {
        Reply::body(200, "", &self.answer("\"result\":\"0x1\""))
    }
}

/// Action of the server for a request.
pub(super) enum Reply {
    /// Sends these bytes.
    Bytes(Vec<u8>),
    /// Sends these bytes one by one.
    Singly(Vec<u8>),
    /// Sends these bytes and closes the connection.
    Last(Vec<u8>),
    /// Sends these bytes and resets the connection.
    Reset(Vec<u8>),
    /// Sends these bytes after this time.
    At(Instant, Vec<u8>),
    /// Sends nothing.
    Silence,
}

impl Reply {
    /// Sends a complete response; `fields` are further header lines with their line ends.
    pub(super) fn body(status: u16, fields: &str, body: &str) -> Reply {
        Reply::Bytes(http(status, fields, body))
    }
}

pub(super) fn http(status: u16, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\n{fields}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// A server on an unused port, which stops when it is dropped.
pub(super) struct Server {
    /// Address for clients; a test may replace it.
    pub(super) address: SocketAddr,
    listens: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    over: Arc<AtomicBool>,
}

impl Server {
    /// Starts a server with this response to each request.
    pub(super) fn new(reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Request>>>::default();
        let over = Arc::<AtomicBool>::default();
        let (reply, log, ended) = (Arc::new(reply), Arc::clone(&seen), Arc::clone(&over));
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (reply, log) = (Arc::clone(&reply), Arc::clone(&log));
                let stream = stream.unwrap();
                std::thread::spawn(move || {
                    // The other side ends it whenever it likes.
                    let _ended = converse(stream, connection, &*reply, &log);
                });
            }
        });
        Server { address, listens: address, seen, over }
    }

    /// Returns all requests so far.
    pub(super) fn seen(&self) -> Vec<Request> {
        self.seen.lock().clone()
    }

    /// Returns the bodies of all requests so far.
    pub(super) fn bodies(&self) -> Vec<String> {
        self.seen.lock().iter().map(|request| request.body.clone()).collect()
    }

    /// Returns the number of connections with a request.
    pub(super) fn connections(&self) -> usize {
        let mut all: Vec<usize> = self.seen.lock().iter().map(|one| one.connection).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _woken = TcpStream::connect(self.listens);
    }
}

fn converse(
    mut stream: TcpStream,
    connection: usize,
    reply: &(impl Fn(&Request) -> Reply + ?Sized),
    log: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    let mut nth = 0;
    loop {
        let Some((head, whole)) = bounds(&bytes) else {
            let mut more = [0; 4096];
            match stream.read(&mut more)? {
                0 => return Ok(()),
                count => bytes.extend_from_slice(&more[..count]),
            }
            continue;
        };
        let request = Request {
            head: String::from_utf8(bytes[..head].to_vec()).unwrap(),
            body: String::from_utf8(bytes[head..whole].to_vec()).unwrap(),
            connection,
            nth,
            at: Instant::now(),
        };
        bytes.drain(..whole);
        nth += 1;
        log.lock().push(request.clone());
        match reply(&request) {
            Reply::Bytes(answer) => stream.write_all(&answer)?,
            Reply::Singly(answer) => {
                for byte in answer {
                    stream.write_all(&[byte])?;
                }
            }
            Reply::Last(answer) => {
                stream.write_all(&answer)?;
                return stream.shutdown(Shutdown::Both);
            }
            Reply::Reset(answer) => {
                stream.write_all(&answer)?;
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                return Ok(());
            }
            Reply::At(at, answer) => {
                while let Some(left) = at.checked_duration_since(Instant::now()) {
                    std::thread::park_timeout(left); // Sleeps: the planted response time.
                }
                stream.write_all(&answer)?;
            }
            Reply::Silence => {}
        }
    }
}

fn bounds(bytes: &[u8]) -> Option<(usize, usize)> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).unwrap();
    let length = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, value)| value.trim().parse().unwrap());
    (bytes.len() >= head + length).then_some((head, head + length))
}
