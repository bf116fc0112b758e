//! An HTTP/1.1 server whose responses a test writes. Each connection has a thread and a blocking
//! socket.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Request line and header section.
    pub(super) head: String,
    pub(super) body: String,
    /// Number of the connection on this server, from 0.
    pub(super) connection: usize,
    /// Number of the request on its connection, from 0.
    pub(super) number: usize,
    /// When the request was complete.
    pub(super) at: Instant,
}

impl Request {
    /// Returns the id of a single call, as JSON text.
    pub(super) fn id(&self) -> &str {
        let (_, after_id) = self.body.split_once("\"id\":").unwrap();
        after_id.split([',', '}']).next().unwrap()
    }

    /// Returns a JSON-RPC response with this member, such as `"result":1`.
    pub(super) fn response_with(&self, member: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},{member}}}"#, self.id())
    }

    /// Returns the default response.
    pub(super) fn ok(&self) -> Reply {
        Reply::body(200, "", &self.response_with("\"result\":\"0x1\""))
    }
}

/// The server's action after it has received a request.
pub(super) enum Reply {
    /// Sends these bytes.
    Bytes(Vec<u8>),
    /// Sends these bytes one by one.
    Singly(Vec<u8>),
    /// Sends these bytes and closes the connection.
    Last(Vec<u8>),
    /// Sends these bytes and resets the connection.
    Reset(Vec<u8>),
    /// Sends these bytes at this time.
    At(Instant, Vec<u8>),
    /// Sends nothing.
    Silence,
}

impl Reply {
    /// Sends a complete response. `fields` are further header lines with their line ends.
    pub(super) fn body(status: u16, fields: &str, body: &str) -> Reply {
        Reply::Bytes(http(status, fields, body))
    }
}

/// Returns the bytes of an HTTP response. `fields` are further header lines with their line ends.
pub(super) fn http(status: u16, fields: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\n{fields}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// A server on an unused port, which stops when it is dropped.
pub(super) struct Server {
    /// Address for clients. A test may replace it.
    pub(super) address: SocketAddr,
    /// Address at which the server listens.
    listen_address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    is_stopped: Arc<AtomicBool>,
}

impl Server {
    /// Starts a server with this response to each request.
    pub(super) fn new(reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let is_stopped = Arc::<AtomicBool>::default();
        let (reply, log, stopped) =
            (Arc::new(reply), Arc::clone(&requests), Arc::clone(&is_stopped));
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (reply, log) = (Arc::clone(&reply), Arc::clone(&log));
                let stream = stream.unwrap();
                std::thread::spawn(move || {
                    // The client may end the connection at any time.
                    let _ended = converse(stream, connection, &*reply, &log);
                });
            }
        });
        Server { address, listen_address: address, requests, is_stopped }
    }

    /// Returns all requests so far.
    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.lock().clone()
    }

    /// Returns the bodies of all requests so far.
    pub(super) fn bodies(&self) -> Vec<String> {
        self.requests.lock().iter().map(|request| request.body.clone()).collect()
    }

    /// Returns the number of connections with a request.
    pub(super) fn connections(&self) -> usize {
        let requests = self.requests.lock();
        let mut numbers: Vec<usize> = requests.iter().map(|request| request.connection).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let _woken = TcpStream::connect(self.listen_address);
    }
}

/// Responds to the requests of a connection until the client or the reply ends it.
fn converse(
    mut stream: TcpStream,
    connection: usize,
    reply: &(impl Fn(&Request) -> Reply + ?Sized),
    log: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    let mut number = 0;
    loop {
        let Some((head_end, request_end)) = find_request_end(&bytes) else {
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                count => bytes.extend_from_slice(&buffer[..count]),
            }
            continue;
        };
        let request = Request {
            head: String::from_utf8(bytes[..head_end].to_vec()).unwrap(),
            body: String::from_utf8(bytes[head_end..request_end].to_vec()).unwrap(),
            connection,
            number,
            at: Instant::now(),
        };
        bytes.drain(..request_end);
        number += 1;
        log.lock().push(request.clone());
        match reply(&request) {
            Reply::Bytes(response) => stream.write_all(&response)?,
            Reply::Singly(response) => {
                for byte in response {
                    stream.write_all(&[byte])?;
                }
            }
            Reply::Last(response) => {
                stream.write_all(&response)?;
                return stream.shutdown(Shutdown::Both);
            }
            Reply::Reset(response) => {
                stream.write_all(&response)?;
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                return Ok(());
            }
            Reply::At(at, response) => {
                while let Some(remaining) = at.checked_duration_since(Instant::now()) {
                    std::thread::park_timeout(remaining); // Sleeps: the planted response time.
                }
                stream.write_all(&response)?;
            }
            Reply::Silence => {}
        }
    }
}

/// Returns the ends of the head and of the body of the first request, or `None` if the request is
/// incomplete.
fn find_request_end(bytes: &[u8]) -> Option<(usize, usize)> {
    let head_end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head_end]).unwrap();
    let length = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, value)| value.trim().parse().unwrap());
    let body_end = head_end + length;
    (bytes.len() >= body_end).then_some((head_end, body_end))
}
