//! The head of an HTTP/1.1 request, read strictly.
//!
//! Anything that two readers could take apart differently is refused here (RFC 9112 section 6:
//! both lengths, repeated or odd lengths, transfer codings other than a last `chunked`, bare line
//! feeds), so that no request can hide in another one's body. Bodies and the
//! connection loop are `http1.rs`. The head of the request ahead of TLS or HTTP/2 is not looked at
//! here.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::peer::Said;
use crate::access::caller::{Extra, KeptHeaders, Wanted};

/// Most header lines read from one request; nginx and hyper allow about as many.
const HEADERS_MAX: usize = 64;

/// How the body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// Neither length was given: there is no body.
    None,
    /// `Content-Length` bytes.
    Fixed(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// The request methods that the gateway tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Post,
    Get,
    Head,
    Options,
    Other,
}

/// What the client says of the body's media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    /// No `Content-Type` at all.
    Absent,
    /// One of the three types that JSON-RPC over HTTP uses.
    Json,
    Other,
}

/// What `Accept-Encoding` allows, with a quality above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Accept {
    pub(crate) gzip: bool,
    pub(crate) zstd: bool,
}

/// Content coding of the request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Identity,
    Gzip,
    Zstd,
    Other,
}

/// The facts of a head that later steps need; nothing borrows from the connection's buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) verb: Verb,
    pub(crate) path: Path,
    pub(crate) length: Length,
    pub(crate) keep_alive: bool,
    /// Whether the client has to be told that the connection stays: HTTP/1.0 ends it by default.
    pub(crate) tell_keep_alive: bool,
    pub(crate) expect_continue: bool,
    pub(crate) media: Media,
    pub(crate) accept: Accept,
    pub(crate) coding: Coding,
    pub(crate) origin: Option<Box<str>>,
    /// Value of the header that the configuration hashes for balancing, if it does.
    pub(crate) hash_header: Option<Box<[u8]>>,
    /// The client's address by what proxies say; it counts only where the peer is trusted.
    pub(crate) forwarded: Option<IpAddr>,
    /// Values of the headers that keys of request limits are made of, by [`Wanted::limits`].
    pub(crate) limit_headers: KeptHeaders,
    /// What access control, rules and the access log want of it; none while all are off.
    pub(crate) extra: Option<Arc<Extra>>,
    /// How it asks to go on as a WebSocket, if it does.
    pub(crate) upgrade: Option<Upgrade>,
    /// Length of the head in bytes, the empty line included.
    pub(crate) bytes: usize,
}

/// A request to go on as a WebSocket (RFC 6455, 4.1).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Upgrade {
    /// Whether it is the version that there is, 13.
    pub(crate) version_known: bool,
    pub(crate) key: Option<Box<str>>,
    /// The extensions that it offers, separated by commas.
    pub(crate) extensions: String,
}

/// The target's path without its query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Path {
    /// `/`, by far the most frequent, without an allocation.
    Root,
    Named(Box<str>),
}

impl Path {
    /// The path as text.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Path::Root => "/",
            Path::Named(path) => path,
        }
    }
}

/// Why a head is refused; `downstream/answer.rs` turns it into a status and a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadFault {
    #[error("request line or header is not valid HTTP/1.1")]
    Syntax,
    #[error("line ends in a bare line feed; CR LF is required")]
    BareLineFeed,
    #[error("more than 64 header lines")]
    TooManyHeaders,
    #[error("request head is over the allowed size")]
    TooLarge,
    #[error("HTTP version is not supported; use 1.0, 1.1 or 2")]
    Version,
    #[error("exactly one Host header is required")]
    Host,
    #[error("Host must be a name or an address, with a port or without")]
    BadHost,
    #[error("both Content-Length and Transfer-Encoding are given")]
    TwoLengths,
    #[error("Content-Length must be given once, in decimal digits")]
    BadLength,
    #[error("Transfer-Encoding must be `chunked`, once, in HTTP/1.1")]
    BadTransferCoding,
    #[error("expectation is not `100-continue`")]
    Expectation,
}

/// Reads a head from the start of `buf`: `Ok(None)` when it is not complete yet.
///
/// `wanted` says what is kept of it beyond what HTTP needs: of the header for balancing the last,
/// of those for limits the first, as nginx's `$http_NAME` has it. `said` is which one says whose
/// request it is.
///
/// # Errors
/// A [`HeadFault`]: the client's, always; the connection cannot be used further.
pub(crate) fn read_head(
    buf: &[u8],
    bytes_max: usize,
    wanted: &Wanted,
    said: Option<Said<'_>>,
) -> Result<Option<Head>, HeadFault> {
    let mut slots = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    let status = parsed.parse_with_uninit_headers(buf, &mut slots);
    let bytes = match status {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) if buf.len() >= bytes_max => return Err(HeadFault::TooLarge),
        Ok(httparse::Status::Partial) => return refuse_bare_line_feeds(buf).map(|()| None),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadFault::TooManyHeaders),
        Err(httparse::Error::Version) => return Err(HeadFault::Version),
        Err(_) => return Err(HeadFault::Syntax),
    };
    if bytes > bytes_max {
        return Err(HeadFault::TooLarge);
    }
    refuse_bare_line_feeds(&buf[..bytes])?;
    let version = parsed.version.unwrap_or(0);
    let mut facts = Facts::new(version, wanted.limits.len());
    for header in parsed.headers.iter() {
        facts.note(header, wanted)?;
    }
    let target = parsed.path.unwrap_or("/");
    if let Some(wanted) = &wanted.extra {
        let mut extra = Extra::new(wanted);
        let mut host = "";
        for header in parsed.headers.iter() {
            if header.name.eq_ignore_ascii_case("host") {
                host = std::str::from_utf8(header.value).unwrap_or("");
            }
            extra.note(header.name, header.value, wanted);
        }
        extra.note_target(authority(target).unwrap_or(host), target, wanted);
        facts.extra = Some(Arc::new(extra));
    }
    let mut head = facts.head(verb(parsed.method.unwrap_or("")), path(target), bytes)?;
    if let Some(said) = said {
        let own = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(said.header());
        head.forwarded = said.client(parsed.headers.iter().filter(own).map(|header| header.value));
    }
    Ok(Some(head))
}

/// What the header lines have said so far.
struct Facts {
    version: u8,
    hosts: usize,
    fixed: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expect_continue: bool,
    media: Media,
    accept: Accept,
    coding: Coding,
    origin: Option<Box<str>>,
    hash_header: Option<Box<[u8]>>,
    limit_headers: KeptHeaders,
    extra: Option<Arc<Extra>>,
    /// `Connection: upgrade` and `Upgrade: websocket`.
    upgrade: (bool, bool),
    websocket: Upgrade,
}

impl Facts {
    fn new(version: u8, limit_headers: usize) -> Facts {
        Facts {
            version,
            hosts: 0,
            fixed: None,
            chunked: false,
            close: false,
            keep_alive: false,
            expect_continue: false,
            media: Media::Absent,
            accept: Accept::default(),
            coding: Coding::Identity,
            origin: None,
            hash_header: None,
            limit_headers: SmallVec::from_elem(None, limit_headers),
            extra: None,
            upgrade: (false, false),
            websocket: Upgrade::default(),
        }
    }

    fn note(&mut self, header: &httparse::Header<'_>, wanted: &Wanted) -> Result<(), HeadFault> {
        let (name, value) = (header.name, header.value);
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        // The length of a name tells most headers apart before any byte is compared.
        match name.len() {
            4 if is("host") => {
                if !is_host(value) {
                    return Err(HeadFault::BadHost);
                }
                self.hosts += 1;
            }
            6 if is("expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(HeadFault::Expectation);
                }
                self.expect_continue = true;
            }
            6 if is("origin") => self.origin = std::str::from_utf8(value).ok().map(Box::from),
            7 if is("upgrade") => self.upgrade.1 |= has_token(value, b"websocket"),
            10 if is("connection") => self.note_connection(value),
            12 if is("content-type") => self.media = media(value),
            14 if is("content-length") => self.note_length(value)?,
            15 if is("accept-encoding") => self.accept = accept(value),
            16 if is("content-encoding") => self.coding = coding(value),
            17 if is("transfer-encoding") => {
                let once = !std::mem::replace(&mut self.chunked, true);
                if self.version == 0 || !once || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(HeadFault::BadTransferCoding);
                }
            }
            17 if is("sec-websocket-key") => {
                self.websocket.key = std::str::from_utf8(value).ok().map(Box::from);
            }
            24 if is("sec-websocket-extensions") => {
                let known = &mut self.websocket.extensions;
                if !known.is_empty() {
                    known.push(',');
                }
                known.push_str(std::str::from_utf8(value).unwrap_or_default());
            }
            21 if is("sec-websocket-version") => self.websocket.version_known = value == b"13",
            _ => {}
        }
        if wanted.hash_header.as_deref().is_some_and(is) {
            self.hash_header = Some(value.into());
        }
        for (known, kept) in wanted.limits.iter().zip(&mut self.limit_headers) {
            if kept.is_none() && is(known.as_str()) {
                *kept = Some(SmallVec::from_slice(value));
            }
        }
        Ok(())
    }

    fn note_length(&mut self, value: &[u8]) -> Result<(), HeadFault> {
        match self.fixed.replace(content_length(value)?) {
            None => Ok(()),
            Some(_) => Err(HeadFault::BadLength),
        }
    }

    fn note_connection(&mut self, value: &[u8]) {
        for token in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            self.close |= token.eq_ignore_ascii_case(b"close");
            self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
            self.upgrade.0 |= token.eq_ignore_ascii_case(b"upgrade");
        }
    }

    fn head(self, verb: Verb, path: Path, bytes: usize) -> Result<Head, HeadFault> {
        if self.hosts > 1 || (self.version == 1 && self.hosts == 0) {
            return Err(HeadFault::Host);
        }
        let length = match (self.fixed, self.chunked) {
            (Some(_), true) => return Err(HeadFault::TwoLengths),
            (Some(bytes), false) => Length::Fixed(bytes),
            (None, true) => Length::Chunked,
            (None, false) => Length::None,
        };
        Ok(Head {
            verb,
            path,
            length,
            keep_alive: !self.close && (self.version == 1 || self.keep_alive),
            tell_keep_alive: self.version == 0,
            expect_continue: self.expect_continue && self.version == 1,
            media: self.media,
            accept: self.accept,
            coding: self.coding,
            origin: self.origin,
            hash_header: self.hash_header,
            forwarded: None,
            limit_headers: self.limit_headers,
            extra: self.extra,
            upgrade: (verb == Verb::Get && self.version == 1 && self.upgrade == (true, true))
                .then_some(self.websocket),
            bytes,
        })
    }
}

fn has_token(value: &[u8], wanted: &[u8]) -> bool {
    value.split(|byte| *byte == b',').any(|token| token.trim_ascii().eq_ignore_ascii_case(wanted))
}

fn refuse_bare_line_feeds(head: &[u8]) -> Result<(), HeadFault> {
    let bare = memchr::memchr_iter(b'\n', head).any(|at| at == 0 || head[at - 1] != b'\r');
    if bare { Err(HeadFault::BareLineFeed) } else { Ok(()) }
}

fn verb(name: &str) -> Verb {
    match name {
        "POST" => Verb::Post,
        "GET" => Verb::Get,
        "HEAD" => Verb::Head,
        "OPTIONS" => Verb::Options,
        _ => Verb::Other,
    }
}

/// The host and port of an absolute-form target, which hold in place of the `Host` header (RFC
/// 9112, section 3.2.2).
fn authority(target: &str) -> Option<&str> {
    let (_, rest) = target.split_once("://").filter(|_| !target.starts_with('/'))?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    Some(authority.rsplit_once('@').map_or(authority, |(_, host)| host))
}

/// The path of an origin-form (`/a?b`) or absolute-form (`http://host/a?b`) target.
pub(crate) fn path(target: &str) -> Path {
    if target == "/" {
        return Path::Root;
    }
    let target = match target.find("://") {
        Some(scheme) if !target.starts_with('/') => {
            let rest = &target[scheme + 3..];
            rest.find('/').map_or("/", |slash| &rest[slash..])
        }
        _ => target,
    };
    match target.split(['?', '#']).next().unwrap_or("/") {
        "/" | "" => Path::Root,
        named => Path::Named(named.into()),
    }
}

/// Whether a value is `uri-host [ ":" port ]` (RFC 9112, section 3.2: another one must be refused);
/// the host may be empty, as where a target has none.
fn is_host(value: &[u8]) -> bool {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(byte);
    let (named, port) = match value.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let (literal, port) = rest.split_at(end);
            (literal.iter().all(|byte| *byte == b':' || is_name(byte)) && end > 0, &port[1..])
        }
        None => {
            let end = value.iter().position(|byte| *byte == b':').unwrap_or(value.len());
            let (name, port) = value.split_at(end);
            (name.iter().all(is_name), port)
        }
    };
    let is_port = |port: &[u8]| port.iter().all(u8::is_ascii_digit);
    named && (port.is_empty() || port.strip_prefix(b":").is_some_and(is_port))
}

fn content_length(value: &[u8]) -> Result<u64, HeadFault> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).map_err(|_| HeadFault::BadLength)?;
    if digits {
        u64::from_str(text).map_err(|_| HeadFault::BadLength)
    } else {
        Err(HeadFault::BadLength)
    }
}

/// The types that geth serves: `accepted content types` in its `rpc/http.go`.
pub(crate) fn media(value: &[u8]) -> Media {
    let essence = value.split(|byte| *byte == b';').next().unwrap_or(b"").trim_ascii();
    let json: [&[u8]; 3] =
        [b"application/json", b"application/json-rpc", b"application/jsonrequest"];
    if json.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
        Media::Json
    } else {
        Media::Other
    }
}

/// Reads `Accept-Encoding` (RFC 9110, 12.5.3): a coding with `q=0` is not acceptable.
pub(crate) fn accept(value: &[u8]) -> Accept {
    let mut accept = Accept::default();
    for entry in value.split(|byte| *byte == b',') {
        let mut parts = entry.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or(b"");
        let refused = parts.any(|part| {
            let zero = part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q="));
            zero.is_some_and(|q| q.iter().all(|byte| matches!(byte, b'0' | b'.')))
        });
        accept.gzip |= !refused && name.eq_ignore_ascii_case(b"gzip");
        accept.zstd |= !refused && name.eq_ignore_ascii_case(b"zstd");
    }
    accept
}

/// Reads `Content-Encoding`.
pub(crate) fn coding(value: &[u8]) -> Coding {
    match value.trim_ascii() {
        b"" => Coding::Identity,
        name if name.eq_ignore_ascii_case(b"identity") => Coding::Identity,
        name if name.eq_ignore_ascii_case(b"gzip") => Coding::Gzip,
        name if name.eq_ignore_ascii_case(b"zstd") => Coding::Zstd,
        _ => Coding::Other,
    }
}

#[cfg(test)]
mod tests;
