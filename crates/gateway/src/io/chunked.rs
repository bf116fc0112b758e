//! A strict decoder for the chunked transfer coding of HTTP/1.1 (RFC 9112, section 7.1).
//!
//! It decodes client requests and upstream responses. There is no encoder, because Weir always
//! sends a `Content-Length`.

/// Maximum bytes of a chunk-size line. Sizes have at most 8 digits; the rest is for chunk
/// extensions, which are rare.
const SIZE_LINE_BYTES_MAX: usize = 256;
/// Maximum bytes of all trailer lines together. Trailers are read and dropped.
const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// Reason for refusing a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChunkFault {
    #[error("chunk size must be 1 to 8 hexadecimal digits followed by CR LF")]
    Size,
    #[error("chunk must end in CR LF")]
    End,
    #[error("trailer section is over 8 KiB or malformed")]
    Trailer,
    #[error("body exceeds the size limit")]
    TooLarge,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Size,
    /// Number of payload bytes of the chunk that are still missing.
    Payload {
        remaining: usize,
    },
    PayloadEnd,
    /// Number of bytes of trailer lines that were read.
    Trailer {
        bytes_read: usize,
    },
    Done,
}

/// Decoder of one chunked body. Feed it the input in order until [`Chunked::is_done`].
#[derive(Debug)]
pub(crate) struct Chunked {
    state: State,
    body: Vec<u8>,
    body_bytes_max: usize,
}

impl Chunked {
    /// Creates a decoder that refuses bodies over `body_bytes_max`.
    pub(crate) fn new(body_bytes_max: usize) -> Chunked {
        Chunked { state: State::Size, body: Vec::new(), body_bytes_max }
    }

    /// Returns true if the last chunk and its trailers were read.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Returns the number of bytes of memory that the decoded body occupies.
    pub(crate) fn bytes_held(&self) -> usize {
        self.body.capacity()
    }

    /// Returns the decoded body.
    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Decodes `input` and returns the number of bytes used. Bytes after the end of the body are
    /// not used.
    ///
    /// # Errors
    /// A [`ChunkFault`]; the start of the next message is then unknown.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Result<usize, ChunkFault> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let step = match self.state {
                State::Size => self.decode_size(rest)?,
                State::Payload { remaining } => self.decode_payload(rest, remaining),
                State::PayloadEnd => self.decode_payload_end(rest)?,
                State::Trailer { bytes_read } => self.decode_trailer(rest, bytes_read)?,
                State::Done => None,
            };
            match step {
                Some(bytes) => used += bytes,
                None => return Ok(used),
            }
        }
    }

    fn decode_size(&mut self, rest: &[u8]) -> Result<Option<usize>, ChunkFault> {
        let Some(line) = split_line(rest, SIZE_LINE_BYTES_MAX, ChunkFault::Size)? else {
            return Ok(None);
        };
        let size = parse_size(line).ok_or(ChunkFault::Size)?;
        if self.body.len() + size > self.body_bytes_max {
            return Err(ChunkFault::TooLarge);
        }
        self.state = if size == 0 {
            State::Trailer { bytes_read: 0 }
        } else {
            State::Payload { remaining: size }
        };
        Ok(Some(line.len() + 2))
    }

    fn decode_payload(&mut self, rest: &[u8], remaining: usize) -> Option<usize> {
        let length = remaining.min(rest.len());
        if length == 0 {
            return None;
        }
        self.body.extend_from_slice(&rest[..length]);
        self.state = if length == remaining {
            State::PayloadEnd
        } else {
            State::Payload { remaining: remaining - length }
        };
        Some(length)
    }

    fn decode_payload_end(&mut self, rest: &[u8]) -> Result<Option<usize>, ChunkFault> {
        match rest {
            [b'\r', b'\n', ..] => {
                self.state = State::Size;
                Ok(Some(2))
            }
            [] | [b'\r'] => Ok(None),
            _ => Err(ChunkFault::End),
        }
    }

    fn decode_trailer(
        &mut self,
        rest: &[u8],
        bytes_read: usize,
    ) -> Result<Option<usize>, ChunkFault> {
        let Some(line) =
            split_line(rest, TRAILER_BYTES_MAX.saturating_sub(bytes_read), ChunkFault::Trailer)?
        else {
            return Ok(None);
        };
        let bytes = line.len() + 2;
        self.state = if line.is_empty() {
            State::Done
        } else {
            State::Trailer { bytes_read: bytes_read + bytes }
        };
        Ok(Some(bytes))
    }
}

/// Parses a chunk-size line and skips the extensions. Extensions begin with a semicolon and must
/// not contain control characters, which another parser could read as a line end.
fn parse_size(line: &[u8]) -> Option<usize> {
    let end = memchr::memchr(b';', line).unwrap_or(line.len());
    let (digits, extensions) = line.split_at(end);
    if extensions.iter().any(|byte| *byte != b'\t' && byte.is_ascii_control()) {
        return None;
    }
    let digits = std::str::from_utf8(digits).ok()?.trim_end_matches([' ', '\t']);
    let is_valid =
        (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_valid { usize::from_str_radix(digits, 16).ok() } else { None }
}

/// Returns the line at the start of `rest` without its CR LF, or `None` while it is incomplete.
fn split_line(
    rest: &[u8],
    bytes_max: usize,
    fault: ChunkFault,
) -> Result<Option<&[u8]>, ChunkFault> {
    match memchr::memchr(b'\n', rest) {
        Some(end) if end > bytes_max || end == 0 || rest[end - 1] != b'\r' => Err(fault),
        Some(end) => Ok(Some(&rest[..end - 1])),
        None if rest.len() > bytes_max => Err(fault),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
