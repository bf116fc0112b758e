//! A strict decoder for the chunked transfer coding of HTTP/1.1 (RFC 9112, section 7.1).
//!
//! It decodes client requests and upstream responses. There is no encoder, because Weir always
//! sends a `Content-Length`.

/// Maximum bytes of a chunk-size line. Sizes have at most 8 digits; the rest is for chunk
/// extensions, which are rare.
const SIZE_LINE_BYTES_MAX: usize = 256;
/// Maximum bytes of all trailer lines together. Trailers are read and dropped.
const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// Why a chunked body is refused.
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
    Payload { left: usize },
    PayloadEnd,
    Trailer { seen: usize },
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

    /// Bytes of memory that the decoded body occupies.
    pub(crate) fn bytes_held(&self) -> usize {
        self.body.capacity()
    }

    /// Returns the decoded body.
    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Decodes `input` and returns how many bytes it used. Bytes after the end of the body are not
    /// used.
    ///
    /// # Errors
    /// A [`ChunkFault`]; the start of the next message is then unknown.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Result<usize, ChunkFault> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let step = match self.state {
                State::Size => self.size(rest)?,
                State::Payload { left } => self.payload(rest, left),
                State::PayloadEnd => self.payload_end(rest)?,
                State::Trailer { seen } => self.trailer(rest, seen)?,
                State::Done => None,
            };
            match step {
                Some(bytes) => used += bytes,
                None => return Ok(used),
            }
        }
    }

    fn size(&mut self, rest: &[u8]) -> Result<Option<usize>, ChunkFault> {
        let Some(line) = line(rest, SIZE_LINE_BYTES_MAX, ChunkFault::Size)? else {
            return Ok(None);
        };
        let digits = size_digits(line).ok_or(ChunkFault::Size)?;
        let valid = (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
        let text = std::str::from_utf8(digits).map_err(|_| ChunkFault::Size)?;
        let size = if valid {
            usize::from_str_radix(text, 16).map_err(|_| ChunkFault::Size)?
        } else {
            return Err(ChunkFault::Size);
        };
        if self.body.len() + size > self.body_bytes_max {
            return Err(ChunkFault::TooLarge);
        }
        self.state =
            if size == 0 { State::Trailer { seen: 0 } } else { State::Payload { left: size } };
        Ok(Some(line.len() + 2))
    }

    fn payload(&mut self, rest: &[u8], left: usize) -> Option<usize> {
        let take = left.min(rest.len());
        if take == 0 {
            return None;
        }
        self.body.extend_from_slice(&rest[..take]);
        self.state =
            if take == left { State::PayloadEnd } else { State::Payload { left: left - take } };
        Some(take)
    }

    fn payload_end(&mut self, rest: &[u8]) -> Result<Option<usize>, ChunkFault> {
        match rest {
            [b'\r', b'\n', ..] => {
                self.state = State::Size;
                Ok(Some(2))
            }
            [] | [b'\r'] => Ok(None),
            _ => Err(ChunkFault::End),
        }
    }

    fn trailer(&mut self, rest: &[u8], seen: usize) -> Result<Option<usize>, ChunkFault> {
        let Some(line) = line(rest, TRAILER_BYTES_MAX.saturating_sub(seen), ChunkFault::Trailer)?
        else {
            return Ok(None);
        };
        let bytes = line.len() + 2;
        self.state =
            if line.is_empty() { State::Done } else { State::Trailer { seen: seen + bytes } };
        Ok(Some(bytes))
    }
}

/// Returns the size digits of a chunk-size line and skips the extensions. Extensions begin with a
/// semicolon and must not contain control characters, which another parser could read as a line
/// end.
fn size_digits(line: &[u8]) -> Option<&[u8]> {
    let end = memchr::memchr(b';', line).unwrap_or(line.len());
    let (digits, extensions) = line.split_at(end);
    let clean = extensions.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control());
    let spaces = digits.iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    clean.then(|| &digits[..digits.len() - spaces])
}

/// Returns the line at the start of `rest` without its CR LF, or `None` while it is incomplete.
fn line(rest: &[u8], bytes_max: usize, fault: ChunkFault) -> Result<Option<&[u8]>, ChunkFault> {
    match memchr::memchr(b'\n', rest) {
        Some(at) if at > bytes_max || at == 0 || rest[at - 1] != b'\r' => Err(fault),
        Some(at) => Ok(Some(&rest[..at - 1])),
        None if rest.len() > bytes_max => Err(fault),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
