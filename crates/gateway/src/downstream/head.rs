//! A strict parser for the *head* of an HTTP/1.1 request: the request line and headers.
//!
//! The parser refuses every head that two parsers could interpret differently. Otherwise a request
//! could hide in the body of another request (RFC 9112, section 6). Examples are a `Content-Length`
//! beside a `Transfer-Encoding`, repeated or malformed lengths, transfer codings other than a
//! single `chunked`, and bare line feeds. `http1.rs` reads bodies and runs the connection loop.
//! `accept.rs` and `http2.rs` handle TLS and HTTP/2.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::forwarded_header::ForwardedHeader;
use crate::access::caller::{AccessValues, HeadFields, HeaderValues};
use crate::policy::trace_context::{ClientTrace, TraceHeaders};

/// Maximum number of header lines in a request. nginx and hyper have similar limits.
const HEADERS_MAX: usize = 64;

/// How the end of the request body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum BodyLength {
    /// The head has neither `Content-Length` nor `Transfer-Encoding`, so the request has no body.
    #[default]
    None,
    /// `Content-Length` bytes.
    Fixed(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// The request methods that the gateway distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum HttpMethod {
    Post,
    Get,
    Head,
    Options,
    #[default]
    Other,
}

/// The media type of the request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum MediaType {
    /// The request has no `Content-Type`.
    #[default]
    Absent,
    /// One of the three media types of JSON-RPC.
    Json,
    Other,
}

/// The codings that `Accept-Encoding` allows with a quality above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AcceptedCodings {
    pub(crate) gzip: bool,
    pub(crate) zstd: bool,
}

/// Content coding of the request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ContentCoding {
    #[default]
    Identity,
    Gzip,
    Zstd,
    Other,
}

/// The parsed head. It borrows nothing from the connection's buffer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Head {
    pub(crate) http_method: HttpMethod,
    pub(crate) path: Path,
    pub(crate) body_length: BodyLength,
    /// True if the client may send another request on the connection.
    pub(crate) keep_alive: bool,
    /// True if the response must confirm `Connection: keep-alive`, because HTTP/1.0 closes by
    /// default.
    pub(crate) confirm_keep_alive: bool,
    /// True if the client waits for `100 Continue` before it sends the body.
    pub(crate) expect_continue: bool,
    pub(crate) media_type: MediaType,
    pub(crate) accepted_codings: AcceptedCodings,
    pub(crate) content_coding: ContentCoding,
    /// Value of the `Origin` header, which browsers send.
    pub(crate) origin: Option<Box<str>>,
    /// Value of the header that consistent hashing uses. `None` if no header is configured or the
    /// request lacks the header.
    pub(crate) hash_header: Option<Box<[u8]>>,
    /// The client address that a proxy's header reports; `None` if no header reports an address.
    /// The address is valid only if the peer is a trusted proxy.
    pub(crate) forwarded_address: Option<IpAddr>,
    /// Values of the headers that rate-limit keys use, in the order of
    /// [`HeadFields::limit_headers`].
    pub(crate) limit_headers: HeaderValues,
    /// The fields for access control, rules and the access log; `None` while all three are off.
    pub(crate) access_values: Option<Arc<AccessValues>>,
    /// The client's trace context; `None` if the client sends no valid trace context.
    pub(crate) trace: Option<Box<ClientTrace>>,
    /// The WebSocket upgrade, if requested.
    pub(crate) upgrade: Option<Upgrade>,
    /// Length of the head in bytes, including the empty line.
    pub(crate) bytes: usize,
}

/// A request to upgrade to a WebSocket (RFC 6455, section 4.1).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Upgrade {
    /// True if the WebSocket version is 13, the only version in use.
    pub(crate) version_known: bool,
    /// Value of `Sec-WebSocket-Key`, unchecked.
    pub(crate) key: Option<Box<str>>,
    /// The offered extensions, separated by commas.
    pub(crate) extensions: String,
}

/// The path of the request target, without its query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Path {
    /// `/`, the most frequent path; it needs no allocation.
    #[default]
    Root,
    Named(Box<str>),
}

impl Path {
    /// Returns the path as text.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Path::Root => "/",
            Path::Named(path) => path,
        }
    }
}

/// Why a head is refused. `downstream/answer.rs` maps it to a status and a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadFault {
    #[error("request line or header is not valid HTTP/1.1")]
    Syntax,
    #[error("line ends in a bare line feed; CR LF is required")]
    BareLineFeed,
    #[error("more than 64 header lines")]
    TooManyHeaders,
    #[error("request head exceeds the size limit")]
    TooLarge,
    #[error("HTTP version is not supported; use 1.0, 1.1 or 2")]
    Version,
    #[error("exactly one Host header is required")]
    Host,
    #[error("Host must be a name or an address, optionally with a port")]
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

/// Parses a head at the start of `buf`. Returns `Ok(None)` while the head is incomplete.
/// `bytes_max` is the maximum length of a head.
///
/// `fields` selects the optional parts of the head to store. If the hash header is repeated, the
/// last value counts. If a rate-limit header is repeated, the first value counts, as for nginx's
/// `$http_NAME`. `forwarded_header` names the header with the client's address.
///
/// # Errors
/// A [`HeadFault`]. The connection cannot be reused.
pub(crate) fn read_head(
    buf: &[u8],
    bytes_max: usize,
    fields: &HeadFields,
    forwarded_header: Option<ForwardedHeader<'_>>,
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
    let target = parsed.path.unwrap_or("/");
    let mut builder = HeadBuilder {
        minor_version: parsed.version.unwrap_or(0),
        head: Head {
            http_method: parse_http_method(parsed.method.unwrap_or("")),
            path: parse_path(target),
            limit_headers: SmallVec::from_elem(None, fields.limit_headers.len()),
            bytes,
            ..Head::default()
        },
        ..HeadBuilder::default()
    };
    for header in parsed.headers.iter() {
        builder.add(header, fields)?;
    }
    if let Some(access_fields) = &fields.access_fields {
        let mut access_values = AccessValues::new(access_fields);
        let mut host = "";
        for header in parsed.headers.iter() {
            if header.name.eq_ignore_ascii_case("host") {
                host = std::str::from_utf8(header.value).unwrap_or("");
            }
            access_values.add_header(header.name, header.value, access_fields);
        }
        access_values.set_target(parse_authority(target).unwrap_or(host), target, access_fields);
        builder.head.access_values = Some(Arc::new(access_values));
    }
    let mut head = builder.build()?;
    if let Some(forwarded_header) = forwarded_header {
        let is_forwarded = |header: &&httparse::Header<'_>| {
            header.name.eq_ignore_ascii_case(forwarded_header.name)
        };
        head.forwarded_address = forwarded_header
            .find_client(parsed.headers.iter().filter(is_forwarded).map(|header| header.value));
    }
    Ok(Some(head))
}

/// Collects header lines into a [`Head`]. The fields beside `head` hold values that
/// [`HeadBuilder::build`] checks or combines.
#[derive(Default)]
struct HeadBuilder {
    head: Head,
    /// Minor version of HTTP/1: 0 or 1.
    minor_version: u8,
    /// Number of `Host` headers.
    host_count: usize,
    /// Value of `Content-Length`.
    content_length: Option<u64>,
    /// True if `Transfer-Encoding: chunked` was found.
    chunked: bool,
    /// True if `Connection: close` was found.
    connection_close: bool,
    /// True if `Connection: keep-alive` was found.
    connection_keep_alive: bool,
    /// True if `Connection: upgrade` was found.
    connection_upgrade: bool,
    /// True if `Upgrade: websocket` was found.
    upgrade_websocket: bool,
    trace: TraceHeaders,
    /// Values of the `Sec-WebSocket` headers.
    websocket: Upgrade,
}

impl HeadBuilder {
    /// Adds a header line.
    fn add(&mut self, header: &httparse::Header<'_>, fields: &HeadFields) -> Result<(), HeadFault> {
        let (name, value) = (header.name, header.value);
        let is_named = |other: &str| name.eq_ignore_ascii_case(other);
        // Comparing lengths first rejects most names before any byte is compared.
        match name.len() {
            4 if is_named("host") => {
                if !is_host(value) {
                    return Err(HeadFault::BadHost);
                }
                self.host_count += 1;
            }
            6 if is_named("expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(HeadFault::Expectation);
                }
                self.head.expect_continue = true;
            }
            6 if is_named("origin") => {
                self.head.origin = std::str::from_utf8(value).ok().map(Box::from)
            }
            7 if is_named("upgrade") => self.upgrade_websocket |= has_token(value, b"websocket"),
            10 if is_named("connection") => self.add_connection(value),
            10 if is_named("tracestate") => self.trace.add_state(value),
            11 if is_named("traceparent") => self.trace.add_parent(value),
            12 if is_named("content-type") => self.head.media_type = parse_media_type(value),
            14 if is_named("content-length") => {
                let earlier_length = self.content_length.replace(parse_length(value)?);
                if earlier_length.is_some() {
                    return Err(HeadFault::BadLength);
                }
            }
            15 if is_named("accept-encoding") => {
                self.head.accepted_codings = parse_accepted_codings(value)
            }
            16 if is_named("content-encoding") => {
                self.head.content_coding = parse_content_coding(value)
            }
            17 if is_named("transfer-encoding") => {
                let is_repeated = std::mem::replace(&mut self.chunked, true);
                if self.minor_version == 0 || is_repeated || !value.eq_ignore_ascii_case(b"chunked")
                {
                    return Err(HeadFault::BadTransferCoding);
                }
            }
            17 if is_named("sec-websocket-key") => {
                self.websocket.key = std::str::from_utf8(value).ok().map(Box::from);
            }
            24 if is_named("sec-websocket-extensions") => {
                let extensions = &mut self.websocket.extensions;
                if !extensions.is_empty() {
                    extensions.push(',');
                }
                extensions.push_str(std::str::from_utf8(value).unwrap_or_default());
            }
            21 if is_named("sec-websocket-version") => {
                self.websocket.version_known = value == b"13"
            }
            _ => {}
        }
        if fields.hash_header.as_deref().is_some_and(is_named) {
            self.head.hash_header = Some(value.into());
        }
        for (limit_header, slot) in fields.limit_headers.iter().zip(&mut self.head.limit_headers) {
            if slot.is_none() && is_named(limit_header.as_str()) {
                *slot = Some(SmallVec::from_slice(value));
            }
        }
        Ok(())
    }

    /// Adds a `Connection` header.
    fn add_connection(&mut self, value: &[u8]) {
        for token in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            self.connection_close |= token.eq_ignore_ascii_case(b"close");
            self.connection_keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
            self.connection_upgrade |= token.eq_ignore_ascii_case(b"upgrade");
        }
    }

    /// Checks the combination of the header lines and returns the head.
    fn build(self) -> Result<Head, HeadFault> {
        if self.host_count > 1 || (self.minor_version == 1 && self.host_count == 0) {
            return Err(HeadFault::Host);
        }
        let mut head = self.head;
        head.body_length = match (self.content_length, self.chunked) {
            (Some(_), true) => return Err(HeadFault::TwoLengths),
            (Some(bytes), false) => BodyLength::Fixed(bytes),
            (None, true) => BodyLength::Chunked,
            (None, false) => BodyLength::None,
        };
        head.keep_alive =
            !self.connection_close && (self.minor_version == 1 || self.connection_keep_alive);
        head.confirm_keep_alive = self.minor_version == 0;
        head.expect_continue &= self.minor_version == 1;
        head.trace = self.trace.finish();
        let is_upgrade = head.http_method == HttpMethod::Get
            && self.minor_version == 1
            && self.connection_upgrade
            && self.upgrade_websocket;
        head.upgrade = is_upgrade.then_some(self.websocket);
        Ok(head)
    }
}

/// Returns true if a comma-separated list contains a token, in any letter case.
fn has_token(value: &[u8], token_name: &[u8]) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|token| token.trim_ascii().eq_ignore_ascii_case(token_name))
}

/// Refuses a head with a line feed that does not follow a carriage return.
fn refuse_bare_line_feeds(head: &[u8]) -> Result<(), HeadFault> {
    let has_bare_line_feed =
        memchr::memchr_iter(b'\n', head).any(|index| index == 0 || head[index - 1] != b'\r');
    if has_bare_line_feed { Err(HeadFault::BareLineFeed) } else { Ok(()) }
}

/// Parses a request method.
pub(crate) fn parse_http_method(name: &str) -> HttpMethod {
    match name {
        "POST" => HttpMethod::Post,
        "GET" => HttpMethod::Get,
        "HEAD" => HttpMethod::Head,
        "OPTIONS" => HttpMethod::Options,
        _ => HttpMethod::Other,
    }
}

/// Returns the host and port of an absolute-form target; `None` for other targets. They override
/// the `Host` header (RFC 9112, section 3.2.2).
fn parse_authority(target: &str) -> Option<&str> {
    let (_, after_scheme) = target.split_once("://").filter(|_| !target.starts_with('/'))?;
    let authority = after_scheme.split(['/', '?', '#']).next().unwrap_or("");
    Some(authority.rsplit_once('@').map_or(authority, |(_, host)| host))
}

/// Returns the path of an origin-form (`/a?b`) or absolute-form (`http://host/a?b`) target.
pub(crate) fn parse_path(target: &str) -> Path {
    if target == "/" {
        return Path::Root;
    }
    let target = match target.find("://") {
        Some(scheme_end) if !target.starts_with('/') => {
            let after_scheme = &target[scheme_end + "://".len()..];
            after_scheme.find('/').map_or("/", |slash| &after_scheme[slash..])
        }
        _ => target,
    };
    match target.split(['?', '#']).next().unwrap_or("/") {
        "/" | "" => Path::Root,
        path => Path::Named(path.into()),
    }
}

/// Returns true if a value is `uri-host [ ":" port ]`, as RFC 9112, section 3.2, requires. An empty
/// host is valid, because a target may have no host.
fn is_host(value: &[u8]) -> bool {
    let is_name_byte =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(byte);
    // Brackets enclose an IPv6 address. `port` includes its colon.
    let (has_valid_name, port) = match value.strip_prefix(b"[") {
        Some(after_bracket) => {
            let Some(end) = after_bracket.iter().position(|byte| *byte == b']') else {
                return false;
            };
            let (literal, bracket_and_port) = after_bracket.split_at(end);
            let is_valid_byte = |byte: &u8| *byte == b':' || is_name_byte(byte);
            (end > 0 && literal.iter().all(is_valid_byte), &bracket_and_port[1..])
        }
        None => {
            let end = value.iter().position(|byte| *byte == b':').unwrap_or(value.len());
            let (name, port) = value.split_at(end);
            (name.iter().all(is_name_byte), port)
        }
    };
    let is_port = |port: &[u8]| port.iter().all(u8::is_ascii_digit);
    has_valid_name && (port.is_empty() || port.strip_prefix(b":").is_some_and(is_port))
}

/// Parses `Content-Length`.
fn parse_length(value: &[u8]) -> Result<u64, HeadFault> {
    let text = std::str::from_utf8(value).ok();
    let digits = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or(HeadFault::BadLength)
}

/// Parses `Content-Type`. geth accepts the same three JSON types (`accepted content types` in its
/// `rpc/http.go`).
pub(crate) fn parse_media_type(value: &[u8]) -> MediaType {
    // The media type without its parameters, such as a charset.
    let essence = value.split(|byte| *byte == b';').next().unwrap_or(b"").trim_ascii();
    let json_types: [&[u8]; 3] =
        [b"application/json", b"application/json-rpc", b"application/jsonrequest"];
    if json_types.iter().any(|json_type| essence.eq_ignore_ascii_case(json_type)) {
        MediaType::Json
    } else {
        MediaType::Other
    }
}

/// Parses `Accept-Encoding` (RFC 9110, section 12.5.3). A coding with `q=0` is not acceptable.
pub(crate) fn parse_accepted_codings(value: &[u8]) -> AcceptedCodings {
    let mut codings = AcceptedCodings::default();
    for entry in value.split(|byte| *byte == b',') {
        let mut parts = entry.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or(b"");
        let is_refused = parts.any(|part| {
            let quality = part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q="));
            quality.is_some_and(|q| q.iter().all(|byte| matches!(byte, b'0' | b'.')))
        });
        codings.gzip |= !is_refused && name.eq_ignore_ascii_case(b"gzip");
        codings.zstd |= !is_refused && name.eq_ignore_ascii_case(b"zstd");
    }
    codings
}

/// Parses `Content-Encoding`.
pub(crate) fn parse_content_coding(value: &[u8]) -> ContentCoding {
    match value.trim_ascii() {
        b"" => ContentCoding::Identity,
        name if name.eq_ignore_ascii_case(b"identity") => ContentCoding::Identity,
        name if name.eq_ignore_ascii_case(b"gzip") => ContentCoding::Gzip,
        name if name.eq_ignore_ascii_case(b"zstd") => ContentCoding::Zstd,
        _ => ContentCoding::Other,
    }
}

#[cfg(test)]
mod tests;
