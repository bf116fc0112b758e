//! One HTTP/1.1 connection to an upstream. The connection carries one call at a time.
//!
//! The *head* of a response is its status line and headers. This file does not interpret bodies.
//! `http.rs` chooses a connection for a call, and `connector.rs` opens the stream of a connection.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, Interest};
use tokio::time::Instant;
use wire::retry_after::parse_retry_after;

use crate::call::failure::{FailureKind, Sent};
use crate::io::buffers::{create_body, grow_body};
use crate::io::chunked::{ChunkFault, Chunked};
use crate::io::head_cache::HeadCache;
use crate::io::memory::{BudgetExhausted, Reservation};
use crate::io::wait::{self, ReadOutcome, Watchdog};
use crate::upstream::connector::Stream;
use crate::upstream::exchange::{ExchangeError, HttpResponse};

/// Upper limit of header lines of a response. Providers behind several proxies send 30 or more
/// header lines.
const HEADERS_MAX: usize = 100;
/// Upper limit of bytes of a response head.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Upper limit of interim (1xx) responses before the final response, as in Go's client (`net/http`
/// transport.go, `max1xxResponses`).
const INTERIM_MAX: u32 = 5;

/// Timeout of a write that makes no progress. The value is small, because most requests have at
/// most a few kB.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of parsed heads that one thread caches for one upstream. A few heads are enough,
/// because the heads that an upstream sends within one second differ only in the length of the
/// body.
const PARSED_HEADS_MAX: usize = 16;

/// Cache of the response heads that an upstream has recently sent.
pub(crate) type ParsedHeads = RefCell<HeadCache<ResponseHead>>;

/// Returns an empty cache of response heads.
pub(crate) fn new_parsed_heads() -> Rc<ParsedHeads> {
    Rc::new(RefCell::new(HeadCache::new(PARSED_HEADS_MAX)))
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// Cache of the response heads of the upstream.
    heads: Rc<ParsedHeads>,
    /// The timer for the deadlines of reads and writes.
    watchdog: Watchdog,
    /// True if the connection has carried a call before.
    has_carried_call: bool,
    /// When the last call ended, or when the connection was opened.
    pub(crate) idle_since: Instant,
}

impl Connection {
    /// Returns a new connection. `heads` is the cache of its upstream's response heads.
    pub(crate) fn new(stream: Stream, heads: Rc<ParsedHeads>) -> Connection {
        Connection {
            stream,
            heads,
            watchdog: Watchdog::default(),
            has_carried_call: false,
            idle_since: Instant::now(),
        }
    }

    /// Returns true if nothing was received since the last response. If an idle connection has
    /// something to read, the upstream has closed it or has sent bytes that belong to no call. The
    /// check usually makes no system call, because the event loop tracks readiness.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let tcp = match &self.stream {
            Stream::Tcp(tcp) => tcp,
            Stream::Tls(tls) => tls.get_ref().0,
            Stream::Unix(_) | Stream::Memory(_) => return true,
        };
        // `try_io` calls the closure only if the stream has something to read, and else fails.
        tcp.try_io(Interest::READABLE, || Ok(())).is_err()
    }

    /// Sends `request` and reads the response. A body of more than `body_bytes_max` bytes is an
    /// error. `reservation` counts the buffered bytes of the response.
    ///
    /// # Errors
    /// An [`ExchangeError`]; the connection must then be dropped.
    pub(crate) async fn exchange(
        &mut self,
        request: &[u8],
        deadline: Instant,
        body_bytes_max: usize,
        reservation: &mut Reservation,
    ) -> Result<HttpResponse, ExchangeError> {
        let is_reused = std::mem::replace(&mut self.has_carried_call, true);
        let mut response_started = false;
        // `wait::write` takes three parts, of which two are empty here.
        let parts: [&[u8]; 3] = [request, &[], &[]];
        let written = wait::write(&mut self.stream, &mut self.watchdog, WRITE_TIMEOUT, parts).await;
        let exchanged = match written {
            Ok(()) => {
                self.read_response(deadline, body_bytes_max, &mut response_started, reservation)
                    .await
            }
            Err(error) => Err(classify_io_error(error)),
        };
        exchanged.map_err(|kind| ExchangeError {
            kind,
            sent: if response_started { Sent::Yes } else { Sent::Maybe },
            stale_connection: is_reused && !response_started && kind == FailureKind::Closed,
        })
    }

    /// Reads a response. Sets `response_started` once the first byte has arrived.
    async fn read_response(
        &mut self,
        deadline: Instant,
        body_bytes_max: usize,
        response_started: &mut bool,
        reservation: &mut Reservation,
    ) -> Result<HttpResponse, FailureKind> {
        let heads = Rc::clone(&self.heads);
        let mut reader = Reader::new(body_bytes_max, &heads);
        loop {
            let filled = wait::fill(&mut self.stream, &mut self.watchdog, deadline, |bytes| {
                reader.feed(bytes)
            })
            .await
            .map_err(classify_io_error)?;
            match filled {
                ReadOutcome::Bytes(step) => {
                    *response_started = true;
                    match step? {
                        Step::Done(response) => return Ok(response),
                        Step::LongBody { head, length, mut body } => {
                            Box::pin(self.read_long_body(&mut body, length, deadline, reservation))
                                .await?;
                            return Ok(head.response(body.freeze(), true));
                        }
                        Step::More => {}
                    }
                }
                ReadOutcome::End => return reader.end(),
                ReadOutcome::TimedOut => return Err(FailureKind::Deadline),
            }
            reservation.set(reader.bytes_held()).map_err(|BudgetExhausted| FailureKind::Memory)?;
        }
    }

    /// Reads the missing bytes of a body of known length directly into its buffer.
    async fn read_long_body(
        &mut self,
        body: &mut BytesMut,
        length: usize,
        deadline: Instant,
        reservation: &mut Reservation,
    ) -> Result<(), FailureKind> {
        let read_remaining = async {
            while body.len() < length {
                grow_body(body, length);
                reservation.set(body.capacity()).map_err(|BudgetExhausted| FailureKind::Memory)?;
                let mut limited = (&mut self.stream).take((length - body.len()) as u64);
                if limited.read_buf(body).await.map_err(classify_io_error)? == 0 {
                    return Err(FailureKind::Closed);
                }
            }
            Ok(())
        };
        let outcome = tokio::time::timeout_at(deadline, read_remaining).await;
        outcome.unwrap_or(Err(FailureKind::Deadline))
    }
}

/// Returns the failure that a socket error means.
fn classify_io_error(error: io::Error) -> FailureKind {
    // `TimedOut` means that a write has stalled.
    if error.kind() == io::ErrorKind::TimedOut {
        FailureKind::Deadline
    } else {
        FailureKind::Closed
    }
}

/// Parses a response as its bytes arrive.
struct Reader<'a> {
    heads: &'a ParsedHeads,
    body_bytes_max: usize,
    /// Number of interim responses so far.
    interim_count: u32,
    state: ReaderState,
}

/// The part of the response that is being read.
enum ReaderState {
    /// The head; holds its bytes so far.
    Head(Vec<u8>),
    /// A body in chunks; `undecoded` holds received bytes that the decoder has not used yet.
    Chunked { head: ResponseHead, body: Chunked, undecoded: Vec<u8> },
    /// A body that ends with the connection.
    UntilEnd { head: ResponseHead, body: Vec<u8> },
    /// The response was returned.
    Taken,
}

/// The result of passing bytes to a [`Reader`].
enum Step {
    /// The response is complete.
    Done(HttpResponse),
    /// More bytes are needed.
    More,
    /// The body has `length` bytes, and `body` holds the first of them. The caller reads the
    /// missing bytes directly into `body`.
    LongBody { head: ResponseHead, length: usize, body: BytesMut },
}

/// A parsed response head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseHead {
    status: u16,
    retry_after: Option<Duration>,
    /// True if the upstream keeps the connection open after the response.
    keep_alive: bool,
    framing: Framing,
}

/// How the end of a response body is found.
#[derive(Debug, Clone, Copy)]
enum Framing {
    /// The body has this many bytes.
    Fixed(u64),
    Chunked,
    /// The body ends with the connection.
    UntilEnd,
}

impl ResponseHead {
    /// Returns the response with this head and `body`. `complete` is false if the body ended with
    /// the connection. The connection is then not reusable.
    fn response(self, body: Bytes, complete: bool) -> HttpResponse {
        HttpResponse {
            status: self.status,
            retry_after: self.retry_after,
            body,
            reusable: self.keep_alive && complete,
        }
    }
}

impl<'a> Reader<'a> {
    fn new(body_bytes_max: usize, heads: &'a ParsedHeads) -> Reader<'a> {
        Reader { heads, body_bytes_max, interim_count: 0, state: ReaderState::Head(Vec::new()) }
    }

    /// Parses the next bytes of the response.
    fn feed(&mut self, bytes: &[u8]) -> Result<Step, FailureKind> {
        match &mut self.state {
            // One read nearly always returns the whole head, which is then parsed without a copy.
            ReaderState::Head(buffered) if buffered.is_empty() => self.read_head(bytes),
            ReaderState::Head(buffered) => {
                buffered.extend_from_slice(bytes);
                if buffered.len() > HEAD_BYTES_MAX + self.body_bytes_max {
                    return Err(FailureKind::TooLarge);
                }
                let buffered = std::mem::take(buffered);
                self.read_head(&buffered)
            }
            ReaderState::Chunked { .. } => self.feed_chunks(bytes),
            ReaderState::UntilEnd { body, .. } => {
                if body.len() + bytes.len() > self.body_bytes_max {
                    return Err(FailureKind::TooLarge);
                }
                body.extend_from_slice(bytes);
                Ok(Step::More)
            }
            ReaderState::Taken => Err(FailureKind::Malformed),
        }
    }

    /// Decodes the next bytes of a chunked body.
    fn feed_chunks(&mut self, bytes: &[u8]) -> Result<Step, FailureKind> {
        let ReaderState::Chunked { head, body, undecoded } = &mut self.state else {
            return Err(FailureKind::Malformed);
        };
        let classify_fault = |fault| match fault {
            ChunkFault::TooLarge => FailureKind::TooLarge,
            _ => FailureKind::Malformed,
        };
        if undecoded.is_empty() {
            let used_bytes = body.feed(bytes).map_err(classify_fault)?;
            undecoded.extend_from_slice(&bytes[used_bytes..]);
        } else {
            undecoded.extend_from_slice(bytes);
            let used_bytes = body.feed(undecoded).map_err(classify_fault)?;
            undecoded.drain(..used_bytes);
        }
        if !body.is_done() {
            return Ok(Step::More);
        }
        if !undecoded.is_empty() {
            return Err(FailureKind::Malformed);
        }
        // The placeholder is dropped with the old state.
        let placeholder = Chunked::new(0);
        let (head, body) = (*head, std::mem::replace(body, placeholder));
        self.state = ReaderState::Taken;
        Ok(Step::Done(head.response(body.into_body().into(), true)))
    }

    /// Parses the head once it is complete. Then starts to read the body, with the bytes after the
    /// head.
    fn read_head(&mut self, mut bytes: &[u8]) -> Result<Step, FailureKind> {
        let cached = self.heads.borrow().find(bytes).map(|(head_bytes, head)| (head_bytes, *head));
        if let Some((head_bytes, head)) = cached {
            return self.start_body(head, &bytes[head_bytes..]);
        }
        loop {
            let mut slots = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
            let mut parsed = httparse::Response::new(&mut []);
            let config = httparse::ParserConfig::default();
            let status = config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut slots);
            let head_bytes = match status {
                Ok(httparse::Status::Complete(head_bytes)) => head_bytes,
                Ok(httparse::Status::Partial) if bytes.len() > HEAD_BYTES_MAX => {
                    return Err(FailureKind::TooLarge);
                }
                Ok(httparse::Status::Partial) => {
                    self.state = ReaderState::Head(bytes.to_vec());
                    return Ok(Step::More);
                }
                Err(_) => return Err(FailureKind::Malformed),
            };
            let status = parsed.code.unwrap_or(0);
            let body = &bytes[head_bytes..];
            if !(100..200).contains(&status) {
                let version = parsed.version.unwrap_or(0);
                let head = parse_head(status, version, parsed.headers)?;
                self.heads.borrow_mut().insert(bytes, head_bytes, head);
                return self.start_body(head, body);
            }
            // This is an interim response, such as 103, and another response follows. Status 101 is
            // invalid, because the request asked for no upgrade.
            self.interim_count += 1;
            if status == 101 || self.interim_count > INTERIM_MAX {
                return Err(FailureKind::Malformed);
            }
            bytes = body;
        }
    }

    /// Begins to read the body; `body` holds its first bytes.
    fn start_body(&mut self, head: ResponseHead, body: &[u8]) -> Result<Step, FailureKind> {
        match head.framing {
            Framing::Fixed(length) if length > self.body_bytes_max as u64 => {
                Err(FailureKind::TooLarge)
            }
            Framing::Fixed(length) => {
                let length = length as usize;
                if body.len() > length {
                    return Err(FailureKind::Malformed);
                }
                if body.len() == length {
                    return Ok(Step::Done(head.response(Bytes::copy_from_slice(body), true)));
                }
                let mut buffer = create_body(length);
                buffer.extend_from_slice(body);
                Ok(Step::LongBody { head, length, body: buffer })
            }
            Framing::Chunked => {
                self.state = ReaderState::Chunked {
                    head,
                    body: Chunked::new(self.body_bytes_max),
                    undecoded: Vec::new(),
                };
                self.feed_chunks(body)
            }
            Framing::UntilEnd => {
                self.state = ReaderState::UntilEnd { head, body: body.to_vec() };
                Ok(Step::More)
            }
        }
    }

    /// Returns the number of bytes of memory that the buffers occupy.
    fn bytes_held(&self) -> usize {
        match &self.state {
            ReaderState::Head(buffered) => buffered.capacity(),
            ReaderState::Chunked { body, undecoded, .. } => {
                body.bytes_held() + undecoded.capacity()
            }
            ReaderState::UntilEnd { body, .. } => body.capacity(),
            ReaderState::Taken => 0,
        }
    }

    /// Handles the end of the stream. It completes a body without a length; any other response is
    /// cut off.
    fn end(self) -> Result<HttpResponse, FailureKind> {
        match self.state {
            ReaderState::UntilEnd { head, body } => Ok(head.response(body.into(), false)),
            _ => Err(FailureKind::Closed),
        }
    }
}

/// Builds the parsed head of a response. `version` is the minor version of HTTP/1.
fn parse_head(
    status: u16,
    version: u8,
    headers: &[httparse::Header<'_>],
) -> Result<ResponseHead, FailureKind> {
    let mut has_length_and_coding = false;
    // By default, HTTP/1.1 keeps a connection open and HTTP/1.0 closes it.
    let (keep_alive, framing) = (version == 1, Framing::UntilEnd);
    let mut head = ResponseHead { status, retry_after: None, keep_alive, framing };
    for header in headers {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            // `parse` would also accept a plus sign.
            let is_number = value.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(value).ok().filter(|_| is_number);
            let length = text.and_then(|text| text.parse().ok());
            let length = length.ok_or(FailureKind::Malformed)?;
            match head.framing {
                Framing::Chunked => has_length_and_coding = true,
                Framing::Fixed(previous) if previous != length => {
                    return Err(FailureKind::Malformed);
                }
                _ => head.framing = Framing::Fixed(length),
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(FailureKind::Malformed);
            }
            has_length_and_coding |= matches!(head.framing, Framing::Fixed(_));
            head.framing = Framing::Chunked;
        } else if header.name.eq_ignore_ascii_case("content-encoding") {
            // The request offered no encoding, so an encoded body is unreadable.
            if !value.eq_ignore_ascii_case(b"identity") {
                return Err(FailureKind::Malformed);
            }
        } else if header.name.eq_ignore_ascii_case("connection") {
            if value.eq_ignore_ascii_case(b"close") {
                head.keep_alive = false;
            } else if value.eq_ignore_ascii_case(b"keep-alive") {
                head.keep_alive = true;
            }
        } else if header.name.eq_ignore_ascii_case("retry-after") {
            head.retry_after = parse_retry_after(value);
        }
    }
    if has_length_and_coding {
        // The transfer coding overrides the length (RFC 9112, 6.3). A proxy may have used the
        // length though, so the connection is not reused.
        head.keep_alive = false;
    }
    if matches!(status, 204 | 304) {
        head.framing = Framing::Fixed(0);
    }
    Ok(head)
}

#[cfg(test)]
mod tests;
