//! A byte-exact HTTP/1.1 client: it sends bytes unchanged and parses responses strictly.
//!
//! The client blocks and follows no redirects. It tolerates no errors: a response without a length,
//! or with an additional byte, fails the test.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Timeout of a read or write. It is longer than any call takes on a busy machine.
const IO_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a response. It is above the size of any response of a test.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// One connection.
pub struct Client {
    stream: TcpStream,
    /// Received bytes that are not parsed yet.
    received: Vec<u8>,
}

/// One response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Headers in order, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, without chunk framing.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the value of a header that occurs at most once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut matching = self.headers.iter().filter(|(header_name, _)| header_name == name);
        let header = matching.next();
        assert!(matching.next().is_none(), "{name} occurs twice: {:?}", self.headers);
        header.map(|(_, value)| value.as_str())
    }

    /// Returns the body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a response is text")
    }
}

/// Reads the next request of a client and returns its body. The body is empty if the request has no
/// Content-Length. Returns `None` at the end of the connection, or if Content-Length is not a
/// number.
pub fn read_request(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

/// Builds a POST request with a JSON body.
pub fn post(path: &str, body: &[u8]) -> Vec<u8> {
    post_with(path, "", body)
}

/// Builds a POST request with a JSON body and additional header lines, each with CR LF.
pub fn post_with(path: &str, header_lines: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{header_lines}\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

impl Client {
    /// Opens a connection to `HOST:PORT`.
    pub fn connect(address: &str) -> Client {
        let stream = TcpStream::connect(address).expect("something listens there");
        stream.set_nodelay(true).expect("a socket takes options");
        stream.set_read_timeout(Some(IO_TIMEOUT)).expect("a socket takes options");
        stream.set_write_timeout(Some(IO_TIMEOUT)).expect("a socket takes options");
        Client { stream, received: Vec::new() }
    }

    /// Opens a connection with a small receive buffer, so that most unread bytes stay in the
    /// sender's buffers.
    pub fn with_small_receive_buffer(address: &str) -> Client {
        let address: std::net::SocketAddr = address.parse().expect("an address");
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            None,
        )
        .expect("a socket");
        socket.set_recv_buffer_size(16 * 1024).expect("a socket takes options");
        socket.connect(&address.into()).expect("something listens there");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(IO_TIMEOUT)).expect("a socket takes options");
        stream.set_write_timeout(Some(IO_TIMEOUT)).expect("a socket takes options");
        Client { stream, received: Vec::new() }
    }

    /// Returns the number of buffered bytes, and true if they are exactly one complete response.
    pub fn buffered(&self) -> (usize, bool) {
        let separator = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let response_bytes = separator.and_then(|position| {
            let head = String::from_utf8_lossy(&self.received[..position + 2]);
            let head = head.to_ascii_lowercase();
            let (_, after_name) = head.split_once("content-length: ")?;
            let length: usize = after_name.split_once("\r\n")?.0.parse().ok()?;
            Some(position + 4 + length)
        });
        (self.received.len(), response_bytes == Some(self.received.len()))
    }

    /// Sends bytes. Does not fail if the server has closed the connection, because the test can
    /// still read earlier responses.
    pub fn send(&mut self, bytes: &[u8]) {
        match self.stream.write_all(bytes) {
            Ok(()) => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            Err(error) => panic!("cannot send: {error}"),
        }
    }

    /// Closes the sending side of the connection.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).expect("it is open");
    }

    /// Sends a call and returns its response.
    pub fn call(&mut self, path: &str, body: &[u8]) -> Response {
        self.send(&post(path, body));
        self.read_response().expect("the connection is open")
    }

    /// Reads the next response. Returns `None` if the connection ends instead.
    pub fn read_response(&mut self) -> Option<Response> {
        self.read_response_with(true)
    }

    /// Reads the next response, which has a length. Returns `None` if the connection ends before the
    /// last byte of it.
    pub fn read_whole_response(&mut self) -> Option<Response> {
        loop {
            let head_end = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n");
            if let Some(head_end) = head_end {
                let head = String::from_utf8_lossy(&self.received[..head_end]).to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length: usize = length.and_then(|it| it.parse().ok()).expect("a length");
                if self.received.len() >= head_end + 4 + length {
                    return self.read_response();
                }
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads the next response as the response to a HEAD request, which has no body.
    pub fn read_head_response(&mut self) -> Option<Response> {
        self.read_response_with(false)
    }

    /// Reads the next response. `with_body` is false for the response to a HEAD request.
    fn read_response_with(&mut self, with_body: bool) -> Option<Response> {
        let head_end = loop {
            let separator = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n");
            if let Some(position) = separator {
                break position + 4;
            }
            if !self.fill() {
                let partial_head = String::from_utf8_lossy(&self.received);
                assert!(
                    self.received.is_empty(),
                    "the connection ended within a head: {partial_head}"
                );
                return None;
            }
        };
        let head = String::from_utf8(self.received.drain(..head_end).collect()).expect("text");
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().expect("a split has a first part");
        let status =
            status_line.strip_prefix("HTTP/1.1 ").and_then(|after_version| after_version.get(..3));
        let status = status.and_then(|digits| digits.parse().ok());
        let status: u16 = status.unwrap_or_else(|| panic!("no status line: {status_line:?}"));
        let headers = lines
            .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("no header: {line:?}")))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut response = Response { status, headers, body: Vec::new() };
        let has_body = with_body && status >= 200 && !matches!(status, 204 | 304);
        if has_body && response.header("transfer-encoding") == Some("chunked") {
            response.body = self.read_chunks();
        } else if has_body {
            let length = response.header("content-length").expect("a body has a length");
            response.body = self.read_exact(length.parse().expect("a length is a number"));
        }
        Some(response)
    }

    /// Reads a chunked body. Nodes send such bodies; Weir does not.
    fn read_chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line_end = loop {
                let line_break = self.received.windows(2).position(|bytes| bytes == b"\r\n");
                if let Some(position) = line_break {
                    break position + 2;
                }
                assert!(self.fill(), "the connection ended within a chunk's size");
            };
            let line = String::from_utf8(self.read_exact(line_end)).expect("text");
            let size = usize::from_str_radix(line.trim_end(), 16).expect("a size is hexadecimal");
            body.extend_from_slice(&self.read_exact(size));
            let end = self.read_exact(2);
            assert_eq!(end, b"\r\n", "a chunk ends in CR LF, and there is no trailer");
            if size == 0 {
                return body;
            }
        }
    }

    /// Reads exactly this many bytes.
    fn read_exact(&mut self, length: usize) -> Vec<u8> {
        assert!(length <= RESPONSE_BYTES_MAX, "{length} bytes at once");
        while self.received.len() < length {
            assert!(self.fill(), "the connection ended within a body");
        }
        self.received.drain(..length).collect()
    }

    /// Waits until the server sends bytes or closes the connection. Returns true if the server has
    /// closed it and no received bytes are left. If bytes are left, returns false at once.
    pub fn is_closed(&mut self) -> bool {
        self.received.is_empty() && !self.fill()
    }

    /// Reads until the server closes the connection.
    pub fn drain(&mut self) {
        while self.fill() {
            assert!(self.received.len() <= RESPONSE_BYTES_MAX, "it never ends");
        }
    }

    /// Reads until the server closes the connection and returns all bytes.
    pub fn read_to_end(&mut self) -> &[u8] {
        self.drain();
        &self.received
    }

    /// Returns true if no bytes arrive within 50 ms.
    pub fn is_silent(&mut self) -> bool {
        self.stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .expect("a socket takes options");
        let mut byte = [0];
        let is_silent = self.received.is_empty()
            && self.stream.peek(&mut byte).is_err_and(|error| {
                matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
            });
        self.stream.set_read_timeout(Some(IO_TIMEOUT)).expect("a socket takes options");
        is_silent
    }

    /// Reads once. Returns true if bytes arrived, and false at the end of the connection.
    fn fill(&mut self) -> bool {
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(count) => {
                self.received.extend_from_slice(&chunk[..count]);
                count > 0
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came for {IO_TIMEOUT:?}: {error}"),
        }
    }
}
