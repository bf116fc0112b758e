//! An incremental parser of HTTP/1.1 responses.
//!
//! Most responses arrive in one piece and are returned without a copy.
//! `crates/lab-engine/src/engine/body.rs` collects the bodies of others. RFC 9112 defines the end
//! of a body. `crates/lab-engine/src/engine/classify.rs` interprets the body.

use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime};

use memchr::memmem;

use super::body::{Body, ReceivedBody, TooLong};

#[cfg(test)]
mod tests;

/// Maximum number of bytes of a response head, in the range of other clients and proxies (nginx: 4
/// × 8 kB; hyper: about 400 kB; Go: 1 MB).
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of header fields.
const FIELDS_MAX: usize = 128;
/// Maximum number of bytes of a chunk's size line with extensions, and of all trailers.
const LINE_BYTES_MAX: usize = 4 << 10;

/// The parts of a response head that the engine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Status.
    pub(crate) status: u16,
    /// True if the server keeps the connection open.
    pub(crate) keep_alive: bool,
    /// Value of Retry-After.
    pub(crate) retry_after: Option<Duration>,
    end: BodyEnd,
}

/// How the end of the body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    Length(usize),
    Chunked,
    Close,
}

/// Why a response is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParseError {
    /// Not HTTP/1.x by RFC 9112.
    NotHttp,
    /// The body exceeds the plan's limit.
    TooLong,
}

/// Result of parsing some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read<'a> {
    /// The response is incomplete.
    Incomplete,
    /// The response is complete.
    Complete {
        /// Its head.
        head: Head,
        /// Its body.
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
    head: Option<Head>,
    /// Bytes of an incomplete head.
    start: Vec<u8>,
    body: Body,
    chunks: Chunks,
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Chunks {
    state: ChunkState,
    /// Remaining bytes of the current chunk.
    remaining: usize,
    /// Bytes of the current line.
    line_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    #[default]
    Size,
    SizeDigits,
    Extension,
    Bytes,
    AfterBytes,
    Trailer,
    TrailerLine,
    Done,
}

impl Reader {
    /// Prepares for the next response. A small buffer is reused.
    pub(crate) fn reset(&mut self) {
        self.head = None;
        self.chunks = Chunks::default();
        self.start.clear();
        self.body.reset();
    }

    /// Stores the next response body for the comparison.
    pub(crate) fn store_body(&mut self) {
        self.body.store();
    }

    /// Returns true if the body is long and therefore parsed piece by piece.
    pub(crate) fn is_long(&self) -> bool {
        self.body.is_long()
    }

    /// Parses the next bytes. `bytes_max` limits the body.
    pub(crate) fn feed<'a>(&'a mut self, bytes: &'a [u8], bytes_max: usize) -> Read<'a> {
        if self.head.is_some() {
            return self.feed_body(bytes, bytes_max);
        }
        if self.start.is_empty() {
            return self.feed_first(bytes, bytes_max);
        }
        // The head is incomplete. It is parsed again only once its end may have arrived, because
        // parsing at every byte would take quadratic time.
        let searched = self.start.len().saturating_sub(3);
        self.start.extend_from_slice(bytes);
        if !ends_head(&self.start[searched..]) {
            return self.await_head();
        }
        let bytes = std::mem::take(&mut self.start);
        match final_head(&bytes) {
            Ok(Some((head, length))) => {
                self.head = Some(head);
                self.feed_body(&bytes[length..], bytes_max)
            }
            Ok(None) => {
                self.start = bytes;
                self.await_head()
            }
            Err(error) => Read::Invalid(error),
        }
    }

    fn await_head(&self) -> Read<'_> {
        if self.start.len() > HEAD_BYTES_MAX {
            Read::Invalid(ParseError::NotHttp)
        } else {
            Read::Incomplete
        }
    }

    fn feed_first<'a>(&'a mut self, bytes: &'a [u8], bytes_max: usize) -> Read<'a> {
        match final_head(bytes) {
            Err(error) => Read::Invalid(error),
            Ok(None) => {
                self.start.extend_from_slice(bytes);
                self.await_head()
            }
            Ok(Some((head, body_start))) => {
                if let BodyEnd::Length(length) = head.end {
                    if length > bytes_max {
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
                self.feed_body(&bytes[body_start..], bytes_max)
            }
        }
    }

    fn feed_body(&mut self, bytes: &[u8], bytes_max: usize) -> Read<'_> {
        let Some(head) = self.head else { return Read::Invalid(ParseError::NotHttp) };
        let extra;
        match head.end {
            BodyEnd::Length(length) if length > bytes_max => {
                return Read::Invalid(ParseError::TooLong);
            }
            BodyEnd::Length(length) => {
                let count = bytes.len().min(length - self.body.length());
                if self.body.append(&bytes[..count], bytes_max).is_err() {
                    return Read::Invalid(ParseError::TooLong);
                }
                extra = bytes.len() > count;
                if self.body.length() < length {
                    return Read::Incomplete;
                }
            }
            BodyEnd::Chunked => match self.chunks.feed(bytes, &mut self.body, bytes_max) {
                Err(error) => return Read::Invalid(error),
                Ok(_) if self.chunks.state != ChunkState::Done => return Read::Incomplete,
                Ok(consumed) => extra = consumed < bytes.len(),
            },
            BodyEnd::Close => {
                return match self.body.append(bytes, bytes_max) {
                    Err(TooLong) => Read::Invalid(ParseError::TooLong),
                    Ok(()) => Read::Incomplete,
                };
            }
        }
        Read::Complete { head, body: self.body.received(), extra }
    }

    /// Returns the response if the end of the connection completes it.
    pub(crate) fn at_end(&self) -> Option<(Head, ReceivedBody<'_>)> {
        let head = self.head.filter(|head| head.end == BodyEnd::Close)?;
        Some((head, self.body.received()))
    }
}

impl From<TooLong> for ParseError {
    fn from(_: TooLong) -> ParseError {
        ParseError::TooLong
    }
}

fn ends_head(bytes: &[u8]) -> bool {
    // A bare line feed ends a line too (RFC 9112, 2.2).
    memmem::find(bytes, b"\n\r\n").is_some() || memmem::find(bytes, b"\n\n").is_some()
}

/// Returns the final head, after any interim ones, and the offset of its body.
fn final_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, ParseError> {
    let mut head_end = 0;
    loop {
        let Some((head, length)) = parse(&bytes[head_end..])? else { return Ok(None) };
        head_end += length;
        if head_end > HEAD_BYTES_MAX {
            return Err(ParseError::NotHttp);
        }
        // Status 101 switches the protocol, which the engine never requests.
        match head.status {
            101 => return Err(ParseError::NotHttp),
            100..=199 => {}
            _ => return Ok(Some((head, head_end))),
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, ParseError> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let status = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, bytes, &mut fields)
        .map_err(|_| ParseError::NotHttp)?;
    let httparse::Status::Complete(length) = status else { return Ok(None) };
    let status = response.code.ok_or(ParseError::NotHttp)?;
    let is_http11 = response.version == Some(1);
    let mut head = Head { status, keep_alive: is_http11, retry_after: None, end: BodyEnd::Close };
    let (mut content_length, mut chunked) = (None, false);
    for field in response.headers.iter() {
        // Comparing the length first is faster, because few fields are relevant.
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
    // 204 and 304 have no body. Transfer-Encoding overrides Content-Length (RFC 9112, 6.3).
    head.end = match (status, chunked, content_length) {
        (100..=199 | 204 | 304, _, _) => BodyEnd::Length(0),
        (_, true, _) => BodyEnd::Chunked,
        (_, false, Some(length)) => BodyEnd::Length(length),
        (_, false, None) => BodyEnd::Close,
    };
    head.keep_alive &= head.end != BodyEnd::Close;
    Ok(Some((head, length)))
}

/// Parses an unsigned decimal number without a sign.
fn parse_number(text: &[u8]) -> Option<usize> {
    let text = text.trim_ascii();
    let is_decimal = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_decimal)?.parse().ok()
}

/// Returns true if the value of a Connection header keeps the connection open. `default` applies if
/// the value has neither `close` nor `keep-alive`.
fn parse_keep_alive(value: &[u8], default: bool) -> bool {
    let contains = |word: &[u8]| {
        value.split(|&byte| byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(word))
    };
    if contains(b"close") { false } else { default || contains(b"keep-alive") }
}

/// Parses Retry-After: seconds, or a date (RFC 9110, 10.2.3).
pub(crate) fn parse_retry_after(value: &[u8]) -> Option<Duration> {
    if let Some(seconds) = parse_number(value) {
        return Some(Duration::from_secs(seconds as u64));
    }
    let date = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

impl Chunks {
    /// Parses a chunked body up to its end and appends the data to `body`. Returns the number of
    /// bytes consumed.
    fn feed(
        &mut self,
        bytes: &[u8],
        body: &mut Body,
        bytes_max: usize,
    ) -> Result<usize, ParseError> {
        let mut consumed = 0;
        while consumed < bytes.len() && self.state != ChunkState::Done {
            if self.state == ChunkState::Bytes {
                let count = self.remaining.min(bytes.len() - consumed);
                body.append(&bytes[consumed..consumed + count], bytes_max)?;
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

    /// Parses a byte outside of the data of a chunk.
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
