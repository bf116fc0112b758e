//! A blocking HTTP/1.1 client for checks and for filling caches. Measurements use wrk instead.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Read timeout. Every response of the bench takes less time.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// A kept-alive connection.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

/// An HTTP response.
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Status line and headers as received.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// Returns the value of the header `name` (case-insensitive), if present.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

impl Connection {
    /// Connects to `address`.
    ///
    /// # Errors
    /// Fails if no server listens there.
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect(address).with_context(|| format!("cannot reach {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        // The buffer is small, because the bench keeps 10,000 connections open.
        Ok(Self { reader: BufReader::with_capacity(2 << 10, stream) })
    }

    /// Sends one POST and reads the whole response.
    ///
    /// # Errors
    /// Fails if the connection fails or the response has no length.
    pub(crate) fn post(&mut self, body: &str) -> Result<Reply> {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.reader.get_mut().write_all(request.as_bytes())?;
        let mut head = String::new();
        loop {
            let line_start = head.len();
            ensure!(self.reader.read_line(&mut head)? > 0, "closed before the response");
            if &head[line_start..] == "\r\n" {
                break;
            }
        }
        let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok());
        let status = status.with_context(|| format!("not HTTP: {head:?}"))?;
        let mut reply = Reply { status, head, body: Vec::new() };
        if reply.header("transfer-encoding").is_some() {
            reply.body = self.read_chunks()?;
            return Ok(reply);
        }
        let length = reply.header("content-length").context("a response without Content-Length")?;
        let length = length.parse().with_context(|| format!("Content-Length {length:?}"))?;
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes)?;
        reply.body = bytes;
        Ok(reply)
    }

    /// Reads a chunked body (RFC 9112, section 7.1).
    fn read_chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut line = String::new();
            ensure!(self.reader.read_line(&mut line)? > 0, "closed within the response");
            let length = usize::from_str_radix(line.trim(), 16)
                .with_context(|| format!("a chunk of {line:?} bytes"))?;
            let start = body.len();
            // A line end of two bytes follows each chunk.
            body.resize(start + length + 2, 0);
            self.reader.read_exact(&mut body[start..])?;
            body.truncate(start + length);
            if length == 0 {
                return Ok(body);
            }
        }
    }
}

/// Sends one POST on a new connection.
///
/// # Errors
/// Same as [`Connection::open`] and [`Connection::post`].
pub(crate) fn post(address: SocketAddr, body: &str) -> Result<Reply> {
    Connection::open(address)?.post(body)
}
