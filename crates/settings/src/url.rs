//! The URL of a node. Its secrets cannot be printed by accident.
//!
//! Providers put their keys into the path, the query, the user part or even the host name. So
//! `Display` and `Debug` mask every part that may be a key. The methods return the unmasked parts
//! for a connection.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;

use crate::MASK;

#[cfg(test)]
mod tests;

/// Words that are printed in a path. All other words are masked, because a key may be short.
const PRINTED_WORDS: &[&str] = &[
    "api",
    "arb",
    "arbitrum",
    "archive",
    "avalanche",
    "avax",
    "base",
    "bc",
    "beacon",
    "besu",
    "bitcoin",
    "blast",
    "bsc",
    "btc",
    "c",
    "celo",
    "chain",
    "core",
    "cronos",
    "debug",
    "devnet",
    "erigon",
    "eth",
    "ethereum",
    "evm",
    "execution",
    "ext",
    "fantom",
    "full",
    "geth",
    "gnosis",
    "goerli",
    "harmony",
    "hmy",
    "holesky",
    "hoodi",
    "http",
    "https",
    "ipc",
    "jsonrpc",
    "linea",
    "main",
    "mainnet",
    "metrics",
    "nethermind",
    "node",
    "nodes",
    "nova",
    "ogrpc",
    "one",
    "opt",
    "optimism",
    "p",
    "polygon",
    "public",
    "reth",
    "rpc",
    "scroll",
    "sepolia",
    "shard",
    "solana",
    "test",
    "testnet",
    "trace",
    "ws",
    "wss",
    "x",
    "xdai",
    "zksync",
];

/// Maximum number of digits of a number that is printed in a path, such as a version or a shard.
const PRINTED_DIGITS_MAX: usize = 2;

/// A host label with at least this number of bytes is masked if it contains a digit. It may be a
/// key, because some providers put the key into the host name.
const MASKED_LABEL_BYTES_MIN: usize = 16;

/// Parts of a URL or header with at least this number of bytes are masked in a text of the node.
/// Masking shorter parts, which are rarely keys, would make the text unreadable.
const SECRET_BYTES_MIN: usize = 8;

/// Maximum number of bytes of a socket's path on Linux: 108 with the final zero byte (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The transport of calls to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// HTTP/1.1: one call at a time on a connection.
    Http,
    /// A WebSocket: many calls at a time.
    WebSocket,
    /// A local socket with JSON values one after the other: many calls at a time.
    Ipc,
}

impl Transport {
    /// Returns the name in metrics and pages.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Http => "http",
            Transport::WebSocket => "websocket",
            Transport::Ipc => "ipc",
        }
    }
}

/// A valid URL of a node: `http://`, `https://`, `ws://` or `wss://`, or `ipc:` and a path. Its
/// printed form has no secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeUrl {
    transport: Transport,
    tls: bool,
    host: Box<str>,
    port: u16,
    /// The host, and the port if the URL has one.
    authority: Box<str>,
    /// The path and query, or the path of a local socket.
    target: Box<str>,
    authorization: Option<HeaderValue>,
    /// The URL with masked secrets.
    printed: Box<str>,
}

impl NodeUrl {
    /// Parses a URL. The default port is 80, or 443 with TLS. The default path is `/`. The path of
    /// a socket follows `ipc:`.
    ///
    /// # Errors
    /// Returns a message that repeats no part of the URL.
    pub fn parse(text: &str) -> Result<NodeUrl, &'static str> {
        if let Some(path) = text.strip_prefix("ipc:") {
            return NodeUrl::parse_ipc(path);
        }
        if text.contains('#') {
            return Err("a url of a node has no fragment (#)");
        }
        let Some((scheme, _)) = text.split_once("://") else {
            return Err("a url begins with http://, https://, ws://, wss:// or ipc:");
        };
        let (transport, tls) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Transport::Http, false),
            "https" => (Transport::Http, true),
            "ws" => (Transport::WebSocket, false),
            "wss" => (Transport::WebSocket, true),
            _ => return Err("the scheme is none of http, https, ws, wss and ipc"),
        };
        let uri: http::Uri = text.parse().map_err(|_| "not a url")?;
        let authority = uri.authority().ok_or("the url has no host")?;
        let (userinfo, host_and_port) = match authority.as_str().rsplit_once('@') {
            Some((userinfo, host_and_port)) => (Some(userinfo), host_and_port),
            None => (None, authority.as_str()),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("the url has no host");
        }
        let port = match (authority.port_u16(), tls) {
            (Some(0), _) => return Err("the port is not one of 1 to 65535"),
            (Some(port), _) => port,
            (None, _) if has_port_text(host_and_port) => {
                return Err("the port is not one of 1 to 65535");
            }
            (None, true) => 443,
            (None, false) => 80,
        };
        let authorization = userinfo.map(basic_authorization).transpose()?;
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let target = if target.starts_with('/') { target.into() } else { format!("/{target}") };
        Ok(NodeUrl {
            transport,
            tls,
            host: host.to_ascii_lowercase().into(),
            port,
            authority: host_and_port.to_ascii_lowercase().into(),
            target: target.into(),
            printed: format_masked(&uri, host_and_port, userinfo.is_some()).into(),
            authorization,
        })
    }

    /// Parses a URL that must begin with `http://` or `https://`.
    ///
    /// # Errors
    /// Returns a message that repeats no part of the URL.
    pub fn parse_http(text: &str) -> Result<NodeUrl, &'static str> {
        NodeUrl::parse_if(text, &["http", "https"], "a url begins with http:// or https://")
    }

    /// Parses a URL that may have any scheme except `ipc:`.
    ///
    /// # Errors
    /// Returns a message that repeats no part of the URL.
    pub fn parse_remote(text: &str) -> Result<NodeUrl, &'static str> {
        let message = "a url begins with http://, https://, ws:// or wss://";
        NodeUrl::parse_if(text, &["http", "https", "ws", "wss"], message)
    }

    /// Parses a URL with one of these schemes.
    fn parse_if(
        text: &str,
        schemes: &[&str],
        message: &'static str,
    ) -> Result<NodeUrl, &'static str> {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        if schemes.iter().any(|allowed| scheme.eq_ignore_ascii_case(allowed)) {
            return NodeUrl::parse(text);
        }
        Err(message)
    }

    /// Returns the URL of the WebSocket at the same address and path. A URL of a WebSocket or a
    /// local socket does not change.
    #[must_use]
    pub fn to_websocket(&self) -> NodeUrl {
        let mut url = self.clone();
        if let (Transport::Http, Some((_, after_scheme))) =
            (url.transport, self.printed.split_once("://"))
        {
            url.transport = Transport::WebSocket;
            url.printed = format!("{}://{after_scheme}", if url.tls { "wss" } else { "ws" }).into();
        }
        url
    }

    /// Masks path segments that are not in `written`, the URL as written in the file. Such segments
    /// come from the environment or from another file. A short secret in such a segment may look
    /// like one of the words that are printed in a path.
    #[must_use]
    pub fn mask_unless_in(mut self, written: &str) -> NodeUrl {
        if self.transport == Transport::Ipc {
            return self;
        }
        let (address, query) = match self.printed.split_once('?') {
            Some((address, query)) => (address, Some(query)),
            None => (&*self.printed, None),
        };
        let written = written.split_once('?').map_or(written, |(address, _)| address);
        // The first three segments are the scheme, an empty segment, and the host.
        let mask_segment = |(index, segment): (usize, &str)| match index {
            0..3 => segment.to_owned(),
            _ if written.split('/').skip(3).any(|written_segment| written_segment == segment) => {
                segment.to_owned()
            }
            _ => MASK.to_owned(),
        };
        let mut printed =
            address.split('/').enumerate().map(mask_segment).collect::<Vec<_>>().join("/");
        if let Some(query) = query {
            printed.push('?');
            printed.push_str(query);
        }
        self.printed = printed.into();
        self
    }

    /// Parses the path of a local socket.
    fn parse_ipc(path: &str) -> Result<NodeUrl, &'static str> {
        // `ipc:///path` means the same as `ipc:/path`.
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
            return Err("after ipc: comes the whole path of a socket, such as ipc:/var/geth.ipc");
        }
        if path.len() > SOCKET_PATH_BYTES_MAX {
            return Err("the path of a socket has at most 107 bytes");
        }
        Ok(NodeUrl {
            transport: Transport::Ipc,
            tls: false,
            host: "".into(),
            port: 0,
            authority: "".into(),
            target: path.into(),
            authorization: None,
            printed: format!("ipc:{path}").into(),
        })
    }

    /// Returns the transport of calls.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns true for `https://` and `wss://`.
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// Returns the host name or address in lower case; an IPv6 address has no brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the value of the `host` header: the host, and the port if the URL has one.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the path and query of the request line, or the path of a socket. **Secret**: it may
    /// hold a key.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the value of the `authorization` header, marked sensitive, or `None` if the URL has
    /// no user part.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Masks secrets in a text that the node sent, because a node may repeat a key in an error. The
    /// secrets are the parts of the path and query, and the words of `header_values`.
    pub fn mask_secrets_in<'a>(
        &'a self,
        text: &str,
        header_values: impl IntoIterator<Item = &'a str>,
    ) -> String {
        let url_parts = self.target.split(['/', '?', '&', '=', '#']);
        let header_parts = header_values.into_iter().flat_map(|value| value.split(' '));
        let mut secrets: Vec<&str> = url_parts.chain(header_parts).collect();
        secrets.retain(|secret| secret.len() >= SECRET_BYTES_MIN);
        // The longest first: a secret may be a part of another one.
        secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
    }

    /// Returns the default name of the node: the file name of a local socket, or else the host and
    /// port. Labels of the host that look like keys are masked.
    pub fn default_name(&self) -> String {
        if self.transport == Transport::Ipc {
            let name = self.target.rsplit('/').next().unwrap_or_default();
            return format!("ipc:{name}");
        }
        let host = mask_host(&self.host);
        let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
        format!("{open}{host}{close}:{}", self.port)
    }
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.printed)
    }
}

impl fmt::Debug for NodeUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.printed)
    }
}

/// Maximum bytes of an unknown scheme that is printed.
const SCHEME_BYTES_MAX: usize = 6;

/// Masks a string that may be a URL, and adds quotes.
pub fn mask_quoted(text: &str) -> Option<String> {
    Some(format!("\"{}\"", mask_url(text)))
}

/// Masks the secrets of a URL. Returns `***` for any other text, except localhost, an IP address and
/// a URL with another scheme, such as `htp`.
pub fn mask_url(text: &str) -> String {
    if let Ok(url) = NodeUrl::parse(text) {
        return url.to_string();
    }
    let (scheme, after_scheme) = text.split_once("://").unwrap_or(("", text));
    let Ok(url) = NodeUrl::parse(&format!("http://{after_scheme}")) else { return MASK.to_owned() };
    // A text without a scheme may be a key. Only localhost and IP addresses certainly are no keys.
    let is_host = url.host() == "localhost" || url.host().parse::<std::net::IpAddr>().is_ok();
    let masked = url.to_string();
    let masked_after_scheme = masked.trim_start_matches("http://");
    if scheme.is_empty() && is_host {
        return masked_after_scheme.to_owned();
    }
    // No key is as short as a scheme.
    let is_scheme = scheme.bytes().all(|byte| byte.is_ascii_lowercase());
    if !scheme.is_empty() && scheme.len() <= SCHEME_BYTES_MAX && is_scheme {
        return format!("{scheme}://{masked_after_scheme}");
    }
    MASK.to_owned()
}

/// Masks the secrets of a URL from a file. Does not mask references, such as `${env:NAME}`, because
/// a reference only names the source of a part of the URL. An example of the result is
/// `https://h/***/${env:NAME}`.
///
/// Returns `***` for a text that cannot be read as a URL, and for a text with both a reference and
/// `~`. Also returns `***` for a longer text that contains a reference with a default.
pub fn mask_around_references(text: &str) -> String {
    let reference = text.strip_prefix("${env:").and_then(|text| text.strip_suffix('}'));
    if let Some((name, default)) = reference.and_then(|reference| reference.split_once(":-"))
        && !name.contains('}')
    {
        return format!("${{env:{name}:-{}}}", mask_url(default));
    }
    if !text.contains("${") {
        return mask_url(text);
    }
    // While the URL is masked, `~word~` stands for each reference. Masking either keeps such a
    // word, or removes the whole path segment, host label or query that contains it.
    if text.contains('~') {
        return MASK.to_owned();
    }
    let (mut text_with_words, mut references, mut remaining) = (String::new(), Vec::new(), text);
    while let Some((literal, reference)) = remaining.split_once("${") {
        let word = PRINTED_WORDS.get(references.len());
        let (Some(word), Some((reference, after_reference))) = (word, reference.split_once('}'))
        else {
            return MASK.to_owned();
        };
        if reference.contains(":-") {
            return MASK.to_owned();
        }
        text_with_words.push_str(&format!("{literal}~{word}~"));
        references.push(reference);
        remaining = after_reference;
    }
    text_with_words.push_str(remaining);
    let masked = mask_url(&text_with_words);
    let reference_of = |word: &str| {
        let index = PRINTED_WORDS.iter().position(|printed_word| *printed_word == word);
        format!("${{{}}}", index.map_or("", |index| references[index]))
    };
    // After a split at `~`, every second part is a word that stands for a reference.
    let restore = |(index, part): (usize, &str)| match index % 2 {
        0 => part.to_owned(),
        _ => reference_of(part),
    };
    masked.split('~').enumerate().map(restore).collect()
}

/// Returns true if a colon follows the host. The URI parser does not validate the port.
fn has_port_text(host_and_port: &str) -> bool {
    let after_brackets = host_and_port.rsplit_once(']').map_or(host_and_port, |parts| parts.1);
    after_brackets.contains(':')
}

/// Formats a URL with secrets masked. `has_user` is true if the URL has a user part.
pub fn format_masked(uri: &http::Uri, host_and_port: &str, has_user: bool) -> String {
    let mut printed = format!("{}://", uri.scheme_str().unwrap_or_default().to_ascii_lowercase());
    if has_user {
        printed.push_str(MASK);
        printed.push('@');
    }
    printed.push_str(&mask_host(&host_and_port.to_ascii_lowercase()));
    if uri.path() != "/" {
        for segment in uri.path().split('/').skip(1) {
            printed.push('/');
            printed.push_str(if is_printable(segment) { segment } else { MASK });
        }
    }
    if uri.query().is_some() {
        printed.push('?');
        printed.push_str(MASK);
    }
    printed
}

/// Masks the labels of a host name that may be keys. Returns IP addresses unchanged.
fn mask_host(host: &str) -> String {
    let is_masked_label = |label: &str| {
        label.len() >= MASKED_LABEL_BYTES_MIN && label.bytes().any(|byte| byte.is_ascii_digit())
    };
    if host.contains('[') || host.parse::<std::net::IpAddr>().is_ok() {
        return host.to_owned();
    }
    let labels = host.split('.').map(|label| if is_masked_label(label) { MASK } else { label });
    labels.collect::<Vec<_>>().join(".")
}

/// Returns true if a path segment cannot be a key, because it has only known words and short
/// numbers. Examples are `rpc`, `eth-mainnet` and `v2`.
fn is_printable(segment: &str) -> bool {
    segment.split(['-', '_', '.', '~']).all(|part| {
        let word = part.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let is_number_or_version = word.is_empty() || word == "v";
        part.len() - word.len() <= PRINTED_DIGITS_MAX
            && (is_number_or_version
                || PRINTED_WORDS.iter().any(|printed| printed.eq_ignore_ascii_case(word)))
    })
}

/// Returns the header for the user part of a URL (RFC 7617): percent-decoded, then base64.
fn basic_authorization(userinfo: &str) -> Result<HeaderValue, &'static str> {
    let decoded = percent_decode(userinfo).ok_or("the user part has a bad % escape")?;
    let value = format!("Basic {}", STANDARD.encode(decoded));
    let mut value = HeaderValue::from_str(&value).expect("base64 is legal in a header");
    value.set_sensitive(true);
    Ok(value)
}

/// Replaces every `%XX`. Returns `None` for a `%` without two hexadecimal digits after it.
pub(crate) fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
        let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
        decoded.push((high * 16 + low) as u8);
    }
    Some(decoded)
}
