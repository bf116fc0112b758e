//! A client's HTTP/1.1 connection over any stream, in virtual or real time. It parses responses
//! strictly and does not check their content.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum size of a response body. The largest batch response of the simulated chain is smaller.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Minimum size of the buffer of a read.
const READ_BYTES: usize = 16 * 1024;

/// The client's end of a connection to the gateway.
pub(crate) struct Connection<S> {
    stream: S,
    /// Bytes that were read but not yet parsed.
    unparsed: Vec<u8>,
}

/// An HTTP response.
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// The value of the header `x-weir-cache`, or `-`.
    pub(crate) cache: String,
    /// The value of the header `x-weir-upstream`, or `-`.
    pub(crate) node: String,
    pub(crate) body: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(stream: S) -> Connection<S> {
        Connection { stream, unparsed: Vec::new() }
    }

    /// Sends a POST request with a JSON body.
    pub(crate) async fn send(&mut self, body: &[u8]) -> Result<()> {
        let mut request = format!(
            "POST / HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.send_raw(&request).await
    }

    /// Sends the bytes of a request.
    pub(crate) async fn send_raw(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).await?;
        self.stream.flush().await
    }

    /// Reads the next response completely.
    pub(crate) async fn receive(&mut self) -> Result<HttpResponse> {
        let header_end = loop {
            if let Some(position) = self.unparsed.windows(4).position(|four| four == b"\r\n\r\n") {
                break position + 4;
            }
            self.fill().await?;
        };
        let header_section: Vec<u8> = self.unparsed.drain(..header_end).collect();
        let header_section =
            String::from_utf8(header_section).map_err(|_| invalid("a head that is not text"))?;
        let status = header_section.strip_prefix("HTTP/1.1 ");
        let status = status.and_then(|rest| rest.get(..3)?.parse().ok());
        let status: u16 = status.ok_or_else(|| invalid("no status line"))?;
        let header = |name: &str| {
            let mut lines = header_section.split("\r\n").filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|(header, _)| header.eq_ignore_ascii_case(name))?;
            Some(value.trim())
        };
        let length = header("content-length").and_then(|value| value.parse().ok());
        let length: usize = length.ok_or_else(|| invalid("no length"))?;
        if length > BODY_BYTES_MAX {
            return Err(invalid("a length beyond all answers"));
        }
        while self.unparsed.len() < length {
            self.fill().await?;
        }
        let body = self.unparsed.drain(..length).collect();
        let header_or_dash = |name| header(name).unwrap_or("-").to_owned();
        Ok(HttpResponse {
            status,
            cache: header_or_dash("x-weir-cache"),
            node: header_or_dash("x-weir-upstream"),
            body,
        })
    }

    /// Reads more bytes. Fails if the connection has ended.
    async fn fill(&mut self) -> Result<()> {
        let before = self.unparsed.len();
        self.unparsed.reserve(READ_BYTES);
        self.stream.read_buf(&mut self.unparsed).await?;
        if self.unparsed.len() == before { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, reason)
}
