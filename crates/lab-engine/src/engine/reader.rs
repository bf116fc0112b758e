//! An incremental parser of HTTP/1.1 responses (RFC 9112). The head of a response is its status
//! line and its header fields.
//!
//! Most responses arrive in one read. The parser returns them without a copy.
//! `crates/lab-engine/src/engine/body.rs` collects the other bodies.
//! `crates/lab-engine/src/engine/classify.rs` interprets the body.

use std::mem::MaybeUninit;
use std::time::Duration;

use memchr::memmem;
use wire::retry_after::parse_retry_after;

use super::body::{Body, ReceivedBody, TooLong};

#[cfg(test)]
mod tests;

/// Maximum number of bytes of a response head. Other clients and proxies have similar limits
/// (nginx: 4 × 8 kB; hyper: about 400 kB; Go: 1 MB).
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of header fields.
const FIELDS_MAX: usize = 128;
/// Maximum number of bytes of the size line of a chunk, extensions included. All trailers together
/// have the same limit.
const LINE_BYTES_MAX: usize = 4 << 10;

/// The parts of a response head that the engine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// True if the server keeps the connection open after the response.
    pub(crate) keep_alive: bool,
    /// Value of Retry-After; `None` if it is absent or invalid.
    pub(crate) retry_after: Option<Duration>,
    body_end: BodyEnd,
}

/// Determines where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    /// The body has this many bytes.
    Length(usize),
    /// The last chunk ends the body.
    Chunked,
    /// The end of the connection ends the body.
    Close,
}

/// Why a response is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParseError {
    /// The bytes are not HTTP/1.x (RFC 9112), or exceed a limit of this module.
    NotHttp,
    /// The body exceeds the plan's limit.
    TooLong,
}

/// The result of [`Reader::feed`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read<'a> {
    /// The response is incomplete.
    Incomplete,
    /// The response is complete.
    Complete {
        /// Head of the response.
        head: Head,
        /// Body of the response.
        body: ReceivedBody<'a>,
        /// True if further bytes follow the response.
        extra: bool,
    },
    /// The response is invalid.
    Invalid(ParseError),
}

/// Parser state of one response.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// `None` until the head is complete.
    head: Option<Head>,
    /// Bytes of the incomplete head.
    head_bytes: Vec<u8>,
    body: Body,
    chunks: Chunks,
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Chunks {
    state: ChunkState,
    /// Remaining bytes of the current chunk.
    remaining: usize,
    /// Number of bytes of the current line.
    line_bytes: usize,
}

/// The part of a chunked body that the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    /// The first digit of a chunk's size.
    #[default]
    Size,
    /// The remaining digits of the size.
    SizeDigits,
    /// A chunk extension, which is ignored.
    Extension,
    /// The data of the chunk.
    Bytes,
    /// The end of the line after the data.
    AfterBytes,
    /// The start of a trailer line, or the empty line that ends the body.
    Trailer,
    /// The rest of a trailer line, which is ignored.
    TrailerLine,
    /// The body is complete.
    Done,
}

impl Reader {
    /// Prepares for the next response. Reuses small buffers.
    pub(crate) fn reset(&mut self) {
        self.head = None;
        self.chunks = Chunks::default();
        self.head_bytes.clear();
        self.body.reset();
    }

    /// Makes the reader store the next response body, for the comparison with the reference node.
    pub(crate) fn store_body(&mut self) {
        self.body.store();
    }

    /// Returns true if the body is long and therefore scanned piece by piece.
    pub(crate) fn is_long(&self) -> bool {
        self.body.is_long()
    }

    /// Parses the next bytes. The response is invalid if its body has more than `body_bytes_max`
    /// bytes.
    pub(crate) fn feed<'a>(&'a mut self, bytes: &'a [u8], body_bytes_max: usize) -> Read<'a> {
        if self.head.is_some() {
            return self.feed_body(bytes, body_bytes_max);
        }
        if self.head_bytes.is_empty() {
            return self.feed_first(bytes, body_bytes_max);
        }
        // The head is incomplete. Parsing the head at every call could take quadratic time. So the
        // reader first searches the new bytes for the end of the head. That end can begin in the
        // last three of the earlier bytes.
        let search_start = self.head_bytes.len().saturating_sub(3);
        self.head_bytes.extend_from_slice(bytes);
        if !ends_head(&self.head_bytes[search_start..]) {
            return self.await_head();
        }
        let bytes = std::mem::take(&mut self.head_bytes);
        match final_head(&bytes) {
            Ok(Some((head, body_start))) => {
                self.head = Some(head);
                self.feed_body(&bytes[body_start..], body_bytes_max)
            }
            Ok(None) => {
                self.head_bytes = bytes;
                self.await_head()
            }
            Err(error) => Read::Invalid(error),
        }
    }

    /// Returns `Incomplete` for an incomplete head, or `Invalid` if the head is too long already.
    fn await_head(&self) -> Read<'_> {
        if self.head_bytes.len() > HEAD_BYTES_MAX {
            Read::Invalid(ParseError::NotHttp)
        } else {
            Read::Incomplete
        }
    }

    /// Parses the first bytes of a response. Returns a complete response without copying its body.
    fn feed_first<'a>(&'a mut self, bytes: &'a [u8], body_bytes_max: usize) -> Read<'a> {
        match final_head(bytes) {
            Err(error) => Read::Invalid(error),
            Ok(None) => {
                self.head_bytes.extend_from_slice(bytes);
                self.await_head()
            }
            Ok(Some((head, body_start))) => {
                if let BodyEnd::Length(length) = head.body_end {
                    if length > body_bytes_max {
                        return Read::Invalid(ParseError::TooLong);
                    }
                    if let Some(body) = bytes[body_start..].get(..length) {
                        let extra = bytes.len() > body_start + length;
                        return Read::Complete {
                            head,
                            body: ReceivedBody::in_one_piece(body),
                            extra,
                        };
                    }
                    self.body.expect_length(length);
                }
                self.head = Some(head);
                self.feed_body(&bytes[body_start..], body_bytes_max)
            }
        }
    }

    /// Parses bytes of the body. The head is complete.
    fn feed_body(&mut self, bytes: &[u8], body_bytes_max: usize) -> Read<'_> {
        let Some(head) = self.head else { return Read::Invalid(ParseError::NotHttp) };
        let extra;
        match head.body_end {
            BodyEnd::Length(length) if length > body_bytes_max => {
                return Read::Invalid(ParseError::TooLong);
            }
            BodyEnd::Length(length) => {
                let count = bytes.len().min(length - self.body.length());
                if self.body.append(&bytes[..count], body_bytes_max).is_err() {
                    return Read::Invalid(ParseError::TooLong);
                }
                extra = bytes.len() > count;
                if self.body.length() < length {
                    return Read::Incomplete;
                }
            }
            BodyEnd::Chunked => match self.chunks.feed(bytes, &mut self.body, body_bytes_max) {
                Err(error) => return Read::Invalid(error),
                Ok(_) if self.chunks.state != ChunkState::Done => return Read::Incomplete,
                Ok(consumed) => extra = consumed < bytes.len(),
            },
            BodyEnd::Close => {
                return match self.body.append(bytes, body_bytes_max) {
                    Err(TooLong) => Read::Invalid(ParseError::TooLong),
                    Ok(()) => Read::Incomplete,
                };
            }
        }
        Read::Complete { head, body: self.body.received(), extra }
    }

    /// Must be called at the end of the connection. Returns the response if the end of the
    /// connection ends its body. Returns `None` if the response is still incomplete.
    pub(crate) fn at_end(&self) -> Option<(Head, ReceivedBody<'_>)> {
        let head = self.head.filter(|head| head.body_end == BodyEnd::Close)?;
        Some((head, self.body.received()))
    }
}

impl From<TooLong> for ParseError {
    fn from(_: TooLong) -> ParseError {
        ParseError::TooLong
    }
}

/// Returns true if `bytes` contain the empty line that ends a head.
fn ends_head(bytes: &[u8]) -> bool {
    // A line feed without a carriage return ends a line too (RFC 9112, 2.2).
    memmem::find(bytes, b"\n\r\n").is_some() || memmem::find(bytes, b"\n\n").is_some()
}

/// Parses the final head and skips interim heads (status 1xx). Also returns the offset of the body.
/// Returns `None` if the final head is incomplete.
fn final_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, ParseError> {
    let mut head_end = 0;
    loop {
        let Some((head, length)) = parse_head(&bytes[head_end..])? else { return Ok(None) };
        head_end += length;
        if head_end > HEAD_BYTES_MAX {
            return Err(ParseError::NotHttp);
        }
        // Status 101 switches the protocol. The requests never ask for a switch, and WebSockets
        // have their own parser.
        match head.status {
            101 => return Err(ParseError::NotHttp),
            100..=199 => {}
            _ => return Ok(Some((head, head_end))),
        }
    }
}

/// Parses one head and returns it with its length in bytes, or `None` if the head is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, ParseError> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let status = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, bytes, &mut fields)
        .map_err(|_| ParseError::NotHttp)?;
    let httparse::Status::Complete(length) = status else { return Ok(None) };
    let status = response.code.ok_or(ParseError::NotHttp)?;
    let is_http11 = response.version == Some(1);
    let mut head =
        Head { status, keep_alive: is_http11, retry_after: None, body_end: BodyEnd::Close };
    let (mut content_length, mut chunked) = (None, false);
    for field in response.headers.iter() {
        // Few fields are relevant. Comparing lengths first excludes most other fields quickly.
        match field.name.len() {
            14 if field.name.eq_ignore_ascii_case("content-length") => {
                let value = parse_number(field.value).ok_or(ParseError::NotHttp)?;
                if content_length.is_some_and(|other| other != value) {
                    return Err(ParseError::NotHttp);
                }
                content_length = Some(value);
            }
            17 if field.name.eq_ignore_ascii_case("transfer-encoding") => {
                chunked = field.value.trim_ascii().eq_ignore_ascii_case(b"chunked");
                if !chunked {
                    return Err(ParseError::NotHttp);
                }
            }
            10 if field.name.eq_ignore_ascii_case("connection") => {
                head.keep_alive = parse_keep_alive(field.value, head.keep_alive);
            }
            11 if field.name.eq_ignore_ascii_case("retry-after") => {
                head.retry_after = parse_retry_after(field.value);
            }
            _ => {}
        }
    }
    // Responses with status 1xx, 204 or 304 have no body. Transfer-Encoding overrides
    // Content-Length (RFC 9112, 6.3).
    head.body_end = match (status, chunked, content_length) {
        (100..=199 | 204 | 304, _, _) => BodyEnd::Length(0),
        (_, true, _) => BodyEnd::Chunked,
        (_, false, Some(length)) => BodyEnd::Length(length),
        (_, false, None) => BodyEnd::Close,
    };
    head.keep_alive &= head.body_end != BodyEnd::Close;
    Ok(Some((head, length)))
}

/// Parses a decimal number that has digits only. Returns `None` for any other text, and for a
/// number that is too large.
fn parse_number(text: &[u8]) -> Option<usize> {
    let text = text.trim_ascii();
    // The parser of numbers would accept a plus sign too.
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Returns true if the value of a Connection header keeps the connection open. Returns `default` if
/// the value has neither `close` nor `keep-alive`.
fn parse_keep_alive(value: &[u8], default: bool) -> bool {
    let contains = |word: &[u8]| {
        value.split(|&byte| byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(word))
    };
    if contains(b"close") { false } else { default || contains(b"keep-alive") }
}

impl Chunks {
    /// Parses bytes of a chunked body and appends the data to `body`. Stops at the end of the body.
    /// Returns the number of bytes consumed.
    fn feed(
        &mut self,
        bytes: &[u8],
        body: &mut Body,
        body_bytes_max: usize,
    ) -> Result<usize, ParseError> {
        let mut consumed = 0;
        while consumed < bytes.len() && self.state != ChunkState::Done {
            if self.state == ChunkState::Bytes {
                let count = self.remaining.min(bytes.len() - consumed);
                body.append(&bytes[consumed..consumed + count], body_bytes_max)?;
                self.remaining -= count;
                consumed += count;
                if self.remaining == 0 {
                    self.state = ChunkState::AfterBytes;
                }
            } else {
                self.parse_byte(bytes[consumed])?;
                consumed += 1;
            }
        }
        Ok(consumed)
    }

    /// Parses a byte that is not part of a chunk's data.
    fn parse_byte(&mut self, byte: u8) -> Result<(), ParseError> {
        self.line_bytes += 1;
        if self.line_bytes > LINE_BYTES_MAX {
            return Err(ParseError::NotHttp);
        }
        self.state = match (self.state, byte) {
            (
                ChunkState::Size | ChunkState::SizeDigits,
                b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F',
            ) => {
                let digit = (byte as char).to_digit(16).unwrap_or_default() as usize;
                let size = self.remaining.checked_mul(16).ok_or(ParseError::NotHttp)?;
                self.remaining = size + digit;
                ChunkState::SizeDigits
            }
            (ChunkState::SizeDigits, b';' | b' ' | b'\t') => ChunkState::Extension,
            (ChunkState::SizeDigits | ChunkState::Extension, b'\n') => {
                self.line_bytes = 0;
                if self.remaining == 0 { ChunkState::Trailer } else { ChunkState::Bytes }
            }
            (ChunkState::SizeDigits, b'\r') | (ChunkState::Extension, _) => ChunkState::Extension,
            (ChunkState::AfterBytes, b'\n') => {
                self.line_bytes = 0;
                ChunkState::Size
            }
            (ChunkState::AfterBytes, b'\r') => ChunkState::AfterBytes,
            (ChunkState::Trailer, b'\n') => ChunkState::Done,
            (ChunkState::Trailer, b'\r') => ChunkState::Trailer,
            (ChunkState::TrailerLine, b'\n') => ChunkState::Trailer,
            (ChunkState::Trailer | ChunkState::TrailerLine, _) => ChunkState::TrailerLine,
            _ => return Err(ParseError::NotHttp),
        };
        Ok(())
    }
}
