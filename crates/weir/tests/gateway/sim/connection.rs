//! A client's connection: HTTP/1.1 over any stream, so that one client serves virtual and real
//! time. It reads what the gateway writes strictly and judges nothing.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// More than the largest answer of the simulated chain's calls, in a batch.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes read at once.
const PART_BYTES: usize = 16 * 1024;

/// One end of a connection to the gateway.
pub(crate) struct Connection<S> {
    stream: S,
    read: Vec<u8>,
}

/// An HTTP answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The value of `x-weir-cache`, for the report of a finding.
    pub(crate) cache: String,
    /// The value of `x-weir-upstream`, for the same.
    pub(crate) node: String,
    pub(crate) body: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(stream: S) -> Connection<S> {
        Connection { stream, read: Vec::new() }
    }

    /// Sends a POST of a JSON body.
    pub(crate) async fn send(&mut self, body: &[u8]) -> Result<()> {
        let mut request = format!(
            "POST / HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request).await?;
        self.stream.flush().await
    }

    /// Reads the next answer whole.
    pub(crate) async fn receive(&mut self) -> Result<Answer> {
        let head_end = loop {
            if let Some(at) = self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.fill().await?;
        };
        let head: Vec<u8> = self.read.drain(..head_end).collect();
        let head = String::from_utf8(head).map_err(|_| odd("a head that is no text"))?;
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status: u16 = status.ok_or_else(|| odd("no status line"))?;
        let header = |name: &str| {
            let mut lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
            Some(value.trim())
        };
        let length = header("content-length").and_then(|value| value.parse().ok());
        let length: usize = length.ok_or_else(|| odd("no length"))?;
        if length > ANSWER_BYTES_MAX {
            return Err(odd("a length beyond all answers"));
        }
        while self.read.len() < length {
            self.fill().await?;
        }
        let body = self.read.drain(..length).collect();
        let word = |name| header(name).unwrap_or("-").to_owned();
        Ok(Answer { status, cache: word("x-weir-cache"), node: word("x-weir-upstream"), body })
    }

    async fn fill(&mut self) -> Result<()> {
        let before = self.read.len();
        self.read.reserve(PART_BYTES);
        self.stream.read_buf(&mut self.read).await?;
        if self.read.len() == before { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

fn odd(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}
