//! A strict decoder for the chunked transfer coding of HTTP/1.1 (RFC 9112, section 7.1).
//!
//! The decoder reads the bodies of client requests and upstream responses. There is no encoder,
//! because Weir always sends a `Content-Length`.

/// Maximum bytes of a chunk-size line with its CR LF. A size has at most 8 digits. The other bytes
/// are for chunk extensions, which are rare.
const SIZE_LINE_BYTES_MAX: usize = 256;
/// Maximum bytes of all trailer lines together, with the empty line that ends the body. The decoder
/// drops trailers.
const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// Length of a line end.
const CR_LF_BYTES: usize = 2;

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

/// The part of the body that the decoder expects next.
#[derive(Debug, Clone, Copy)]
enum State {
    /// A chunk-size line.
    Size,
    /// The payload of a chunk.
    Payload {
        /// Number of payload bytes of the chunk that are still missing.
        missing_bytes: usize,
    },
    /// The CR LF after the payload of a chunk.
    PayloadEnd,
    /// A trailer line, or the empty line that ends the body.
    Trailer {
        /// Number of bytes of the trailer lines so far.
        bytes_read: usize,
    },
    /// Nothing; the body is complete.
    Done,
}

/// Decoder of one chunked body. The caller feeds the input in order until [`Chunked::is_done`].
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
        let mut used_bytes = 0;
        loop {
            let unused = &input[used_bytes..];
            let decoded_bytes = match self.state {
                State::Size => self.decode_size(unused)?,
                State::Payload { missing_bytes } => self.decode_payload(unused, missing_bytes),
                State::PayloadEnd => self.decode_payload_end(unused)?,
                State::Trailer { bytes_read } => self.decode_trailer(unused, bytes_read)?,
                State::Done => None,
            };
            match decoded_bytes {
                Some(bytes) => used_bytes += bytes,
                None => return Ok(used_bytes),
            }
        }
    }

    /// Decodes a chunk-size line at the start of `input`. Like the other `decode_` functions,
    /// returns the number of bytes used; `None` if more input is needed.
    fn decode_size(&mut self, input: &[u8]) -> Result<Option<usize>, ChunkFault> {
        let Some(line) = split_line(input, SIZE_LINE_BYTES_MAX, ChunkFault::Size)? else {
            return Ok(None);
        };
        let size = parse_size(line).ok_or(ChunkFault::Size)?;
        if self.body.len() + size > self.body_bytes_max {
            return Err(ChunkFault::TooLarge);
        }
        self.state = if size == 0 {
            State::Trailer { bytes_read: 0 }
        } else {
            State::Payload { missing_bytes: size }
        };
        Ok(Some(line.len() + CR_LF_BYTES))
    }

    fn decode_payload(&mut self, input: &[u8], missing_bytes: usize) -> Option<usize> {
        let length = missing_bytes.min(input.len());
        if length == 0 {
            return None;
        }
        self.body.extend_from_slice(&input[..length]);
        self.state = if length == missing_bytes {
            State::PayloadEnd
        } else {
            State::Payload { missing_bytes: missing_bytes - length }
        };
        Some(length)
    }

    fn decode_payload_end(&mut self, input: &[u8]) -> Result<Option<usize>, ChunkFault> {
        match input {
            [b'\r', b'\n', ..] => {
                self.state = State::Size;
                Ok(Some(CR_LF_BYTES))
            }
            [] | [b'\r'] => Ok(None),
            _ => Err(ChunkFault::End),
        }
    }

    fn decode_trailer(
        &mut self,
        input: &[u8],
        bytes_read: usize,
    ) -> Result<Option<usize>, ChunkFault> {
        let Some(line) =
            split_line(input, TRAILER_BYTES_MAX.saturating_sub(bytes_read), ChunkFault::Trailer)?
        else {
            return Ok(None);
        };
        let bytes = line.len() + CR_LF_BYTES;
        self.state = if line.is_empty() {
            State::Done
        } else {
            State::Trailer { bytes_read: bytes_read + bytes }
        };
        Ok(Some(bytes))
    }
}

/// Parses a chunk-size line and skips its extensions, which begin with a semicolon. Refuses control
/// characters in extensions, because another parser could treat such a character as a line end.
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

/// Returns the line at the start of `input` without its CR LF; `None` while the line is incomplete.
/// Returns `fault` if the line with its CR LF is longer than `bytes_max`, or if it ends in a bare
/// line feed.
fn split_line(
    input: &[u8],
    bytes_max: usize,
    fault: ChunkFault,
) -> Result<Option<&[u8]>, ChunkFault> {
    match memchr::memchr(b'\n', input) {
        Some(end) if end >= bytes_max || end == 0 || input[end - 1] != b'\r' => Err(fault),
        Some(end) => Ok(Some(&input[..end - 1])),
        None if input.len() >= bytes_max => Err(fault),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
