//! Reads HTTP/1.1 answers as their bytes come, in pieces of any size.
//!
//! An answer that comes in one piece, as nearly all do, is handed out where it lies; else its body is
//! gathered by `crates/lab-engine/src/engine/body.rs`. RFC 9112 says what ends a body; what the body means is
//! told by `crates/lab-engine/src/engine/judge.rs`.

use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime};

use memchr::memmem;

use super::body::{Body, Came, TooLong};

#[cfg(test)]
mod tests;

/// Bytes of a head, as most servers and proxies bound them (nginx: 4 × 8 kB; Go: 1 MB; hyper: about
/// 400 kB); a longer one is no answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Header fields of a head.
const FIELDS_MAX: usize = 128;
/// Bytes of a chunk's size line with extensions, and of all trailers.
const LINE_BYTES_MAX: usize = 4 << 10;

/// What is needed of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Status.
    pub(crate) status: u16,
    /// Whether the server leaves the connection open.
    pub(crate) keep: bool,
    /// How long the server asks to wait.
    pub(crate) retry_after: Option<Duration>,
    end: End,
}

/// What ends the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Length(usize),
    Chunked,
    Close,
}

/// Why bytes are no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Not HTTP/1.x, or not as RFC 9112 allows.
    NotHttp,
    /// Longer than the plan allows.
    TooLong,
}

/// What is known after some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read<'a> {
    /// More has to come.
    More,
    /// The answer is whole.
    Whole {
        /// Its head.
        head: Head,
        /// Its body.
        body: Came<'a>,
        /// Whether bytes follow that nobody asked for.
        extra: bool,
    },
    /// It never will be.
    Bad(Unreadable),
}

/// The answer that a connection is in.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    head: Option<Head>,
    /// The head so far.
    start: Vec<u8>,
    body: Body,
    chunks: Chunks,
}

/// Where in a chunked body the next byte falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Chunks {
    part: Part,
    left: usize,
    line: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
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
    /// Makes ready for the next answer and keeps a small buffer.
    pub(crate) fn reset(&mut self) {
        self.head = None;
        self.chunks = Chunks::default();
        self.start.clear();
        self.body.reset();
    }

    /// To be said before an answer that will be compared.
    pub(crate) fn keep(&mut self) {
        self.body.keep();
    }

    /// Whether the answer is so long that it is judged piece by piece.
    pub(crate) fn is_long(&self) -> bool {
        self.body.is_long()
    }

    /// Takes the next bytes; `bytes_max` bounds the body.
    pub(crate) fn feed<'a>(&'a mut self, bytes: &'a [u8], bytes_max: usize) -> Read<'a> {
        if self.head.is_some() {
            return self.feed_body(bytes, bytes_max);
        }
        if self.start.is_empty() {
            return self.feed_first(bytes, bytes_max);
        }
        // A head in pieces: parse only when its end may have come, so that byte by byte is not
        // quadratic.
        let searched = self.start.len().saturating_sub(3);
        self.start.extend_from_slice(bytes);
        if !ends_head(&self.start[searched..]) {
            return self.await_head();
        }
        let whole = std::mem::take(&mut self.start);
        match final_head(&whole) {
            Ok(Some((head, length))) => {
                self.head = Some(head);
                self.feed_body(&whole[length..], bytes_max)
            }
            Ok(None) => {
                self.start = whole;
                self.await_head()
            }
            Err(unreadable) => Read::Bad(unreadable),
        }
    }

    fn await_head(&self) -> Read<'_> {
        if self.start.len() > HEAD_BYTES_MAX { Read::Bad(Unreadable::NotHttp) } else { Read::More }
    }

    fn feed_first<'a>(&'a mut self, bytes: &'a [u8], bytes_max: usize) -> Read<'a> {
        match final_head(bytes) {
            Err(unreadable) => Read::Bad(unreadable),
            Ok(None) => {
                self.start.extend_from_slice(bytes);
                self.await_head()
            }
            Ok(Some((head, begin))) => {
                if let End::Length(length) = head.end {
                    if length > bytes_max {
                        return Read::Bad(Unreadable::TooLong);
                    }
                    if let Some(body) = bytes[begin..].get(..length) {
                        let extra = bytes.len() > begin + length;
                        return Read::Whole { head, body: Came::at_once(body), extra };
                    }
                    self.body.expect(length);
                }
                self.head = Some(head);
                self.feed_body(&bytes[begin..], bytes_max)
            }
        }
    }

    fn feed_body(&mut self, bytes: &[u8], bytes_max: usize) -> Read<'_> {
        let Some(head) = self.head else { return Read::Bad(Unreadable::NotHttp) };
        let extra;
        match head.end {
            End::Length(length) if length > bytes_max => return Read::Bad(Unreadable::TooLong),
            End::Length(length) => {
                let part = bytes.len().min(length - self.body.length());
                if self.body.take(&bytes[..part], bytes_max).is_err() {
                    return Read::Bad(Unreadable::TooLong);
                }
                extra = bytes.len() > part;
                if self.body.length() < length {
                    return Read::More;
                }
            }
            End::Chunked => match self.chunks.feed(bytes, &mut self.body, bytes_max) {
                Err(unreadable) => return Read::Bad(unreadable),
                Ok(_) if self.chunks.part != Part::Done => return Read::More,
                Ok(used) => extra = used < bytes.len(),
            },
            End::Close => {
                return match self.body.take(bytes, bytes_max) {
                    Err(TooLong) => Read::Bad(Unreadable::TooLong),
                    Ok(()) => Read::More,
                };
            }
        }
        Read::Whole { head, body: self.body.came(), extra }
    }

    /// The answer, if the end of the connection is its end.
    pub(crate) fn at_end(&self) -> Option<(Head, Came<'_>)> {
        let head = self.head.filter(|head| head.end == End::Close)?;
        Some((head, self.body.came()))
    }
}

impl From<TooLong> for Unreadable {
    fn from(_: TooLong) -> Unreadable {
        Unreadable::TooLong
    }
}

fn ends_head(bytes: &[u8]) -> bool {
    // A bare line feed ends a line too (RFC 9112, 2.2).
    memmem::find(bytes, b"\n\r\n").is_some() || memmem::find(bytes, b"\n\n").is_some()
}

/// The head of the answer, past interim ones, and where its body begins.
fn final_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Unreadable> {
    let mut begin = 0;
    loop {
        let Some((head, length)) = parse(&bytes[begin..])? else { return Ok(None) };
        begin += length;
        if begin > HEAD_BYTES_MAX {
            return Err(Unreadable::NotHttp);
        }
        // 101 would be another protocol, which nobody asked for.
        match head.status {
            101 => return Err(Unreadable::NotHttp),
            100..=199 => {}
            _ => return Ok(Some((head, begin))),
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, Unreadable> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let status = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, bytes, &mut fields)
        .map_err(|_| Unreadable::NotHttp)?;
    let httparse::Status::Complete(length) = status else { return Ok(None) };
    let status = response.code.ok_or(Unreadable::NotHttp)?;
    let mut head =
        Head { status, keep: response.version == Some(1), retry_after: None, end: End::Close };
    let (mut content_length, mut chunked) = (None, false);
    for field in response.headers.iter() {
        // Names are told apart by length first: few of a head's fields are of interest.
        match field.name.len() {
            14 if field.name.eq_ignore_ascii_case("content-length") => {
                let value = number(field.value).ok_or(Unreadable::NotHttp)?;
                if content_length.is_some_and(|other| other != value) {
                    return Err(Unreadable::NotHttp);
                }
                content_length = Some(value);
            }
            17 if field.name.eq_ignore_ascii_case("transfer-encoding") => {
                chunked = field.value.trim_ascii().eq_ignore_ascii_case(b"chunked");
                if !chunked {
                    return Err(Unreadable::NotHttp);
                }
            }
            10 if field.name.eq_ignore_ascii_case("connection") => {
                head.keep = keeps(field.value, head.keep);
            }
            11 if field.name.eq_ignore_ascii_case("retry-after") => {
                head.retry_after = wait(field.value);
            }
            _ => {}
        }
    }
    // 204 and 304 have no body; a length beside chunks is overruled (RFC 9112, 6.3).
    head.end = match (status, chunked, content_length) {
        (100..=199 | 204 | 304, _, _) => End::Length(0),
        (_, true, _) => End::Chunked,
        (_, false, Some(length)) => End::Length(length),
        (_, false, None) => End::Close,
    };
    head.keep &= head.end != End::Close;
    Ok(Some((head, length)))
}

fn number(text: &[u8]) -> Option<usize> {
    let text = text.trim_ascii();
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

fn keeps(value: &[u8], otherwise: bool) -> bool {
    let says = |word: &[u8]| {
        value.split(|&byte| byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(word))
    };
    if says(b"close") { false } else { otherwise || says(b"keep-alive") }
}

/// The value of Retry-After: seconds, or a date (RFC 9110, 10.2.3).
pub(crate) fn wait(value: &[u8]) -> Option<Duration> {
    if let Some(seconds) = number(value) {
        return Some(Duration::from_secs(seconds as u64));
    }
    let date = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

impl Chunks {
    /// Takes bytes of a chunked body up to its end, appends what they carry, and tells how many were
    /// taken.
    fn feed(
        &mut self,
        bytes: &[u8],
        body: &mut Body,
        bytes_max: usize,
    ) -> Result<usize, Unreadable> {
        let mut at = 0;
        while at < bytes.len() && self.part != Part::Done {
            if self.part == Part::Bytes {
                let part = self.left.min(bytes.len() - at);
                body.take(&bytes[at..at + part], bytes_max)?;
                self.left -= part;
                at += part;
                if self.left == 0 {
                    self.part = Part::AfterBytes;
                }
            } else {
                self.byte(bytes[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    fn byte(&mut self, byte: u8) -> Result<(), Unreadable> {
        self.line += 1;
        if self.line > LINE_BYTES_MAX {
            return Err(Unreadable::NotHttp);
        }
        self.part = match (self.part, byte) {
            (Part::Size | Part::SizeDigits, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = (byte as char).to_digit(16).unwrap_or_default() as usize;
                let left = self.left.checked_mul(16).ok_or(Unreadable::NotHttp)?;
                self.left = left + digit;
                Part::SizeDigits
            }
            (Part::SizeDigits, b';' | b' ' | b'\t') => Part::Extension,
            (Part::SizeDigits | Part::Extension, b'\n') => {
                self.line = 0;
                if self.left == 0 { Part::Trailer } else { Part::Bytes }
            }
            (Part::SizeDigits, b'\r') | (Part::Extension, _) => Part::Extension,
            (Part::AfterBytes, b'\n') => {
                self.line = 0;
                Part::Size
            }
            (Part::AfterBytes, b'\r') => Part::AfterBytes,
            (Part::Trailer, b'\n') => Part::Done,
            (Part::Trailer, b'\r') => Part::Trailer,
            (Part::TrailerLine, b'\n') => Part::Trailer,
            (Part::Trailer | Part::TrailerLine, _) => Part::TrailerLine,
            _ => return Err(Unreadable::NotHttp),
        };
        Ok(())
    }
}
