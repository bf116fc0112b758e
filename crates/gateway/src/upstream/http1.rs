//! One HTTP/1.1 connection to an upstream: one call at a time, one answer back.
//!
//! It knows HTTP and bytes, not JSON-RPC; what an answer means is `send.rs`. Which connection is
//! used is `pool.rs`, how it came to be is `dial.rs`.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, Interest};
use tokio::time::Instant;

use crate::io::chunked::{ChunkFault, Chunked};
use crate::io::head_cache::HeadCache;
use crate::io::memory::{Full, Reservation};
use crate::io::wait;
use crate::io::wait::{Filled, Watchdog};
use crate::upstream::stream::Stream;

/// Most header lines taken from an upstream; providers behind several proxies send 30 and more.
const HEADERS_MAX: usize = 100;
/// Most bytes of a head taken from an upstream.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most interim answers before the real one, as Go's client takes (`net/http` transport.go,
/// `max1xxResponses`).
const INTERIM_MAX: u32 = 5;

/// How long an upstream may take no byte of a request, which is seldom more than a few kB.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// An upstream's whole HTTP answer.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
    /// Whether the connection may carry another call.
    pub(crate) reusable: bool,
}

/// How an exchange failed, and what had happened by then.
#[derive(Debug)]
pub(crate) struct ExchangeFault {
    pub(crate) kind: ExchangeFaultKind,
    /// Whether any byte of an answer had come.
    pub(crate) answered: bool,
}

/// The ways in which an exchange fails.
#[derive(Debug)]
pub(crate) enum ExchangeFaultKind {
    Late,
    Closed,
    Malformed,
    TooLarge,
    /// The gateway has no memory left for the answer.
    Memory,
    Io(#[expect(dead_code, reason = "read by Debug in logs")] io::Error),
}

/// How many heads of one upstream are known to one thread: while its clock shows the same second,
/// one for each usual length of answers.
const HEADS_KNOWN: usize = 16;

/// What the last heads that an upstream sent have said.
pub(crate) type KnownHeads = RefCell<HeadCache<(AnswerHead, Framing)>>;

/// Room for the heads of an upstream.
pub(crate) fn known_heads() -> Rc<KnownHeads> {
    Rc::new(RefCell::new(HeadCache::new(HEADS_KNOWN)))
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    heads: Rc<KnownHeads>,
    watchdog: Watchdog,
    /// Whether it has carried a call before.
    pub(crate) used: bool,
    pub(crate) idle_since: Instant,
}

impl Connection {
    /// A new connection to the upstream of these heads.
    pub(crate) fn new(stream: Stream, heads: Rc<KnownHeads>) -> Connection {
        Connection {
            stream,
            heads,
            watchdog: Watchdog::default(),
            used: false,
            idle_since: Instant::now(),
        }
    }

    /// Whether nothing was heard from the upstream since the last answer. An idle connection on
    /// which something can be read was closed, or is out of step. No system call is made: the event
    /// loop has noted what came.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let tcp = match &self.stream {
            Stream::Tcp(tcp) => tcp,
            Stream::Tls(tls) => tls.get_ref().0,
            Stream::Unix(_) | Stream::Memory(_) => return true,
        };
        // The closure would be called only if there was something to read.
        tcp.try_io(Interest::READABLE, || Ok(())).is_err()
    }

    /// Sends `request` and reads the answer, whose bytes are counted by `hold`.
    ///
    /// # Errors
    /// An [`ExchangeFault`]; the connection must then be dropped.
    pub(crate) async fn exchange(
        &mut self,
        request: &[u8],
        deadline: Instant,
        body_bytes_max: usize,
        hold: &mut Reservation,
    ) -> Result<HttpAnswer, ExchangeFault> {
        let mut progress = Progress { answered: false };
        wait::write(&mut self.stream, &mut self.watchdog, WRITE_PATIENCE, [request, &[], &[]])
            .await
            .map_err(|error| progress.fault(from_io(error)))?;
        self.used = true;
        self.read_answer(deadline, body_bytes_max, &mut progress, hold)
            .await
            .map_err(|kind| progress.fault(kind))
    }

    async fn read_answer(
        &mut self,
        deadline: Instant,
        body_bytes_max: usize,
        progress: &mut Progress,
        hold: &mut Reservation,
    ) -> Result<HttpAnswer, ExchangeFaultKind> {
        let heads = Rc::clone(&self.heads);
        let mut reader = Reader::new(body_bytes_max, &heads);
        loop {
            let filled = wait::fill(&mut self.stream, &mut self.watchdog, deadline, |bytes| {
                reader.feed(bytes)
            })
            .await
            .map_err(from_io)?;
            match filled {
                Filled::Bytes(step) => {
                    progress.answered = true;
                    match step? {
                        Step::Done(answer) => return Ok(answer),
                        Step::More => {}
                    }
                }
                Filled::End => return reader.end(),
                Filled::Late => return Err(ExchangeFaultKind::Late),
            }
            if let Some((mut body, head)) = reader.take_long_body() {
                Box::pin(self.read_rest(&mut body, head.length, deadline, hold)).await?;
                return Ok(head.answer(body.freeze(), true));
            }
            hold.set(reader.bytes()).map_err(|Full| ExchangeFaultKind::Memory)?;
        }
    }

    /// Reads a body of known length straight into its own buffer.
    async fn read_rest(
        &mut self,
        body: &mut BytesMut,
        length: usize,
        deadline: Instant,
        hold: &mut Reservation,
    ) -> Result<(), ExchangeFaultKind> {
        let rest = async {
            while body.len() < length {
                let mut limited = (&mut self.stream).take((length - body.len()) as u64);
                if limited.read_buf(body).await.map_err(from_io)? == 0 {
                    return Err(ExchangeFaultKind::Closed);
                }
                // Memory is used as bytes come, not by what the head announces.
                hold.set(body.len()).map_err(|Full| ExchangeFaultKind::Memory)?;
            }
            Ok(())
        };
        let done = tokio::time::timeout_at(deadline, rest).await;
        done.unwrap_or(Err(ExchangeFaultKind::Late))
    }
}

struct Progress {
    answered: bool,
}

impl Progress {
    fn fault(&self, kind: ExchangeFaultKind) -> ExchangeFault {
        ExchangeFault { kind, answered: self.answered }
    }
}

fn from_io(error: io::Error) -> ExchangeFaultKind {
    match error.kind() {
        io::ErrorKind::TimedOut => ExchangeFaultKind::Late,
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => ExchangeFaultKind::Closed,
        _ => ExchangeFaultKind::Io(error),
    }
}

/// Takes an answer apart as its bytes come.
struct Reader<'a> {
    heads: &'a KnownHeads,
    body_bytes_max: usize,
    interims: u32,
    state: ReaderState,
}

enum ReaderState {
    Head(Vec<u8>),
    Fixed { head: AnswerHead, body: BytesMut },
    Chunked { head: AnswerHead, body: Chunked, rest: Vec<u8> },
    UntilEnd { head: AnswerHead, body: Vec<u8> },
    Taken,
}

enum Step {
    Done(HttpAnswer),
    More,
}

/// What a head says of its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerHead {
    status: u16,
    retry_after: Option<Duration>,
    keep_alive: bool,
    length: usize,
}

impl AnswerHead {
    fn answer(self, body: Bytes, complete: bool) -> HttpAnswer {
        HttpAnswer {
            status: self.status,
            retry_after: self.retry_after,
            body,
            reusable: self.keep_alive && complete,
        }
    }
}

impl<'a> Reader<'a> {
    fn new(body_bytes_max: usize, heads: &'a KnownHeads) -> Reader<'a> {
        Reader { heads, body_bytes_max, interims: 0, state: ReaderState::Head(Vec::new()) }
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<Step, ExchangeFaultKind> {
        match &mut self.state {
            // Nearly always the head, and the body of a small answer, come in one read.
            ReaderState::Head(seen) if seen.is_empty() => self.begin(bytes),
            ReaderState::Head(seen) => {
                seen.extend_from_slice(bytes);
                if seen.len() > HEAD_BYTES_MAX + self.body_bytes_max {
                    return Err(ExchangeFaultKind::TooLarge);
                }
                let seen = std::mem::take(seen);
                self.begin(&seen)
            }
            ReaderState::Fixed { head, body } => {
                if body.len() + bytes.len() > head.length {
                    return Err(ExchangeFaultKind::Malformed);
                }
                body.extend_from_slice(bytes);
                if body.len() < head.length {
                    return Ok(Step::More);
                }
                Ok(Step::Done(head.answer(std::mem::take(body).freeze(), true)))
            }
            ReaderState::Chunked { .. } => self.feed_chunks(bytes),
            ReaderState::UntilEnd { body, .. } => {
                if body.len() + bytes.len() > self.body_bytes_max {
                    return Err(ExchangeFaultKind::TooLarge);
                }
                body.extend_from_slice(bytes);
                Ok(Step::More)
            }
            ReaderState::Taken => Err(ExchangeFaultKind::Malformed),
        }
    }

    fn feed_chunks(&mut self, bytes: &[u8]) -> Result<Step, ExchangeFaultKind> {
        let ReaderState::Chunked { head, body, rest } = &mut self.state else {
            return Err(ExchangeFaultKind::Malformed);
        };
        let fault = |fault| match fault {
            ChunkFault::TooLarge => ExchangeFaultKind::TooLarge,
            _ => ExchangeFaultKind::Malformed,
        };
        if rest.is_empty() {
            let used = body.feed(bytes).map_err(fault)?;
            rest.extend_from_slice(&bytes[used..]);
        } else {
            rest.extend_from_slice(bytes);
            let used = body.feed(rest).map_err(fault)?;
            rest.drain(..used);
        }
        if !body.is_done() {
            return Ok(Step::More);
        }
        if !rest.is_empty() {
            return Err(ExchangeFaultKind::Malformed);
        }
        let (head, body) = (*head, std::mem::replace(body, Chunked::new(0)));
        self.state = ReaderState::Taken;
        Ok(Step::Done(head.answer(body.into_body().into(), true)))
    }

    /// Reads the head, once it is complete, and the start of the body behind it.
    fn begin(&mut self, mut bytes: &[u8]) -> Result<Step, ExchangeFaultKind> {
        let known = self.heads.borrow().find(bytes).map(|(length, known)| (length, *known));
        if let Some((head_bytes, (head, framing))) = known {
            return self.begin_body(head, framing, &bytes[head_bytes..]);
        }
        loop {
            let mut slots = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
            let mut parsed = httparse::Response::new(&mut []);
            let config = httparse::ParserConfig::default();
            let status = config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut slots);
            let head_bytes = match status {
                Ok(httparse::Status::Complete(head_bytes)) => head_bytes,
                Ok(httparse::Status::Partial) if bytes.len() > HEAD_BYTES_MAX => {
                    return Err(ExchangeFaultKind::TooLarge);
                }
                Ok(httparse::Status::Partial) => {
                    self.state = ReaderState::Head(bytes.to_vec());
                    return Ok(Step::More);
                }
                Err(_) => return Err(ExchangeFaultKind::Malformed),
            };
            let status = parsed.code.unwrap_or(0);
            let body = &bytes[head_bytes..];
            if !(100..200).contains(&status) {
                let version = parsed.version.unwrap_or(0);
                let (head, framing) = answer_head(status, version, parsed.headers)?;
                self.heads.borrow_mut().keep(bytes, head_bytes, (head, framing));
                return self.begin_body(head, framing, body);
            }
            // An interim answer, such as 103; the real one follows. No upgrade was asked for.
            self.interims += 1;
            if status == 101 || self.interims > INTERIM_MAX {
                return Err(ExchangeFaultKind::Malformed);
            }
            bytes = body;
        }
    }

    fn begin_body(
        &mut self,
        mut head: AnswerHead,
        framing: Framing,
        body: &[u8],
    ) -> Result<Step, ExchangeFaultKind> {
        match framing {
            Framing::Fixed(length) if length > self.body_bytes_max as u64 => {
                Err(ExchangeFaultKind::TooLarge)
            }
            Framing::Fixed(length) => {
                head.length = length as usize;
                if body.len() > head.length {
                    return Err(ExchangeFaultKind::Malformed);
                }
                if body.len() == head.length {
                    return Ok(Step::Done(head.answer(Bytes::copy_from_slice(body), true)));
                }
                let mut whole = BytesMut::with_capacity(head.length);
                whole.extend_from_slice(body);
                self.state = ReaderState::Fixed { head, body: whole };
                Ok(Step::More)
            }
            Framing::Chunked => {
                self.state = ReaderState::Chunked {
                    head,
                    body: Chunked::new(self.body_bytes_max),
                    rest: Vec::new(),
                };
                self.feed_chunks(body)
            }
            Framing::UntilEnd => {
                self.state = ReaderState::UntilEnd { head, body: body.to_vec() };
                Ok(Step::More)
            }
        }
    }

    /// Bytes of its buffers.
    fn bytes(&self) -> usize {
        match &self.state {
            ReaderState::Head(seen) => seen.capacity(),
            ReaderState::Fixed { body, .. } => body.len(),
            ReaderState::Chunked { body, rest, .. } => body.bytes_held() + rest.capacity(),
            ReaderState::UntilEnd { body, .. } => body.capacity(),
            ReaderState::Taken => 0,
        }
    }

    /// A body of known length that is still incomplete, to be read without a copy.
    fn take_long_body(&mut self) -> Option<(BytesMut, AnswerHead)> {
        match &mut self.state {
            ReaderState::Fixed { head, body } => {
                let taken = (std::mem::take(body), *head);
                self.state = ReaderState::Taken;
                Some(taken)
            }
            _ => None,
        }
    }

    /// The upstream has closed its direction.
    fn end(self) -> Result<HttpAnswer, ExchangeFaultKind> {
        match self.state {
            ReaderState::UntilEnd { head, body } => Ok(head.answer(body.into(), false)),
            _ => Err(ExchangeFaultKind::Closed),
        }
    }
}

/// The seconds of a `Retry-After`; a date is not taken, for no upstream sends one.
pub(crate) fn retry_after(value: &[u8]) -> Option<Duration> {
    let seconds = std::str::from_utf8(value).ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// How the body of an answer is delimited.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Framing {
    Fixed(u64),
    Chunked,
    UntilEnd,
}

fn answer_head(
    status: u16,
    version: u8,
    headers: &[httparse::Header<'_>],
) -> Result<(AnswerHead, Framing), ExchangeFaultKind> {
    let mut framing = Framing::UntilEnd;
    let mut two_lengths = false;
    let mut head = AnswerHead { status, retry_after: None, keep_alive: version == 1, length: 0 };
    for header in headers {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            let digits = value.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(value).ok().filter(|_| digits);
            let length = text.and_then(|text| text.parse().ok());
            let length = length.ok_or(ExchangeFaultKind::Malformed)?;
            match framing {
                Framing::Chunked => two_lengths = true,
                Framing::Fixed(before) if before != length => {
                    return Err(ExchangeFaultKind::Malformed);
                }
                _ => framing = Framing::Fixed(length),
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(ExchangeFaultKind::Malformed);
            }
            two_lengths |= matches!(framing, Framing::Fixed(_));
            framing = Framing::Chunked;
        } else if header.name.eq_ignore_ascii_case("content-encoding") {
            // None was offered, so an encoded body cannot be read by anyone.
            if !value.eq_ignore_ascii_case(b"identity") {
                return Err(ExchangeFaultKind::Malformed);
            }
        } else if header.name.eq_ignore_ascii_case("connection") {
            if value.eq_ignore_ascii_case(b"close") {
                head.keep_alive = false;
            } else if value.eq_ignore_ascii_case(b"keep-alive") {
                head.keep_alive = true;
            }
        } else if header.name.eq_ignore_ascii_case("retry-after") {
            head.retry_after = retry_after(value);
        }
    }
    if two_lengths {
        // Chunked holds (RFC 9112, 6.3), but something on the way may have read it otherwise.
        head.keep_alive = false;
    }
    if matches!(status, 204 | 304) {
        framing = Framing::Fixed(0);
    }
    Ok((head, framing))
}

#[cfg(test)]
mod tests;
