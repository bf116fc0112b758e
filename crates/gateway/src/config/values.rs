//! The value types that several tables of this configuration use. `settings::value` has the general
//! types.

use std::net::{IpAddr, SocketAddr};

use alloy_primitives::hex;
use http::{HeaderName, HeaderValue};
use ipnet::IpNet;
use rustls::SupportedCipherSuite;
use serde_json::json;
use settings::url::{self, NodeUrl};
use settings::value::{Integer, Json, List, Pair, Pairs, parse_header};
use settings::{Item, Location, Reader, Tree, ValueType};
use wire::call::is_name_byte;

use super::redis_url;
use super::redis_url::RedisUrl;
use crate::config::tls::ciphers;
use crate::policy::access::MethodSet;
use crate::policy::client::Networks;
use crate::policy::history::HistorySetting;
use crate::policy::limit::Rate;

#[cfg(test)]
mod tests;

/// A second in milliseconds. The bounds of durations are in milliseconds.
pub(super) const SECOND_MS: u64 = 1000;
/// An hour in milliseconds.
pub(super) const HOUR_MS: u64 = 3600 * SECOND_MS;
/// A day in milliseconds.
pub(super) const DAY_MS: u64 = 24 * HOUR_MS;
/// Bytes of a mebibyte.
pub(super) const MIB: u64 = 1 << 20;
/// Bytes of a gibibyte.
pub(super) const GIB: u64 = 1 << 30;

/// Maximum bytes of the name of a chain, upstream or group. Names become metric labels, which
/// should be short.
const NAME_BYTES_MAX: usize = 64;

/// Maximum bytes of a method pattern, and the largest value of `downstream.method_bytes_max`.
pub(super) const METHOD_BYTES_MAX: usize = 1024;

/// Maximum bytes of a URL path of a chain.
const PATH_BYTES_MAX: usize = 256;

/// Highest rate in calls per second or minute. One machine serves far fewer calls, and the
/// arithmetic of limits does not overflow up to this rate.
const RATE_MAX: u64 = 1_000_000_000;

/// A share from 0 to 1. The bounds are in thousandths.
pub(super) type Share = settings::value::Number<0, 1000>;
/// A number of bytes in memory.
pub(super) type Size<const MIN: u64, const MAX: u64> = settings::value::Bytes<MIN, MAX, usize>;
/// Methods by name and prefix.
pub(super) type Methods = List<MethodPattern, MethodSet>;

// Each entry lists the type's name, the Rust type, the parser, a noun, the allowed values and an
// example. The functions after `mask` and `mask_replaced` hide secrets in diagnostics. A `mask`
// function returns `None` for a text that is printed as written.
settings::string_scalar! {
    /// Address of a listening socket; `None` if there is no socket.
    pub Address: Option<SocketAddr> = parse_address, "an address",
        "ip address and port, such as \"127.0.0.1:8646\", or \"off\"", "127.0.0.1:8646";
    /// A name of a chain, upstream, group, key or zone.
    pub Name: Box<str> = parse_name, "a name",
        format!("1 to {NAME_BYTES_MAX} of a-z A-Z 0-9 _ - . :"), "main";
    /// The URL of an upstream; it may contain secrets.
    pub UpstreamAddress: NodeUrl = NodeUrl::parse, "a url",
        "http[s]://host[:port][/path], ws[s]://… or ipc:/path", "http://127.0.0.1:8545",
        mask url::mask_quoted, mask_replaced NodeUrl::mask_unless_in;
    /// The URL of a collector of spans; it may contain secrets.
    pub CollectorAddress: NodeUrl = NodeUrl::parse_http, "a url",
        "http[s]://host[:port][/path]", "http://127.0.0.1:4318",
        mask url::mask_quoted, mask_replaced NodeUrl::mask_unless_in;
    /// The URL of a Redis; it may contain secrets.
    pub RedisAddress: RedisUrl = RedisUrl::parse, "a url",
        "redis://host[:port][/database], rediss://…, redis-sentinel://… or redis-cluster://…",
        "redis://127.0.0.1:6379", mask redis_url::mask_url;
    /// The name of an output file.
    pub OutputFile: Box<str> = parse_non_empty, "a file name",
        "name of a file, from the folder of this one", "access.log";
    /// A host name or IP address.
    pub Host: Box<str> = parse_non_empty, "a host name", "host name or ip address", "node.example";
    /// A host name in lower case, optionally with `*.` before it.
    pub HostPattern: String = parse_host_pattern, "a host name",
        "host name such as \"rpc.example\" or \"*.rpc.example\"", "rpc.example";
    /// A cipher suite of TLS, in either spelling.
    pub Cipher: SupportedCipherSuite = parse_cipher, "a cipher",
        format!("{}; iana's names too", ciphers::names().collect::<Vec<_>>().join(", ")),
        "TLS_AES_256_GCM_SHA384";
    /// An IP address or network.
    pub Network: IpNet = parse_network, "a network",
        "ip address or network, such as \"10.0.0.0/8\" or \"::1\"", "10.0.0.0/8";
    /// A path of a URL.
    pub UrlPath: Box<str> = parse_url_path, "a path",
        "path such as \"/\" or \"/eth\", without / at the end", "/eth";
    /// The name of a method, a prefix, or every method.
    pub MethodPattern: Box<str> = parse_method_pattern, "a method",
        "name such as \"eth_getLogs\", prefix such as \"debug_*\", or \"*\"", "eth_getLogs";
    /// A web origin in lower case, or every origin.
    pub Origin: Box<str> = parse_origin, "an origin",
        "origin such as \"https://app.example\", or \"*\"", "https://app.example",
        mask |_: &str| None;
    /// The SHA-256 of a key.
    pub KeyHash: [u8; 32] = parse_hash, "a hash", "sha256: and 64 hexadecimal digits",
        "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    /// A point in time, in seconds since 1970.
    pub Timestamp: u64 = parse_timestamp, "a time", "time such as \"2027-01-31T00:00:00Z\"",
        "2027-01-31T00:00:00Z";
    /// The name of a header, in lower case.
    pub HeaderKey: Box<str> = parse_header_key, "the name of a header",
        "name of a header, such as \"x-api-key\"", "x-api-key";
    /// Calls per second or per minute.
    pub CallRate: Rate = parse_rate, "a rate",
        format!("\"1r/s\" to \"{RATE_MAX}r/s\", or the same with r/m"), "10r/s";
    /// A text that is not empty.
    pub NonEmptyString: Box<str> = parse_non_empty, "a text", "a text that is not empty", "text";
}

/// What an upstream has of old blocks: a word or a table.
pub(super) struct History;

impl ValueType for History {
    type Value = HistorySetting;

    fn noun() -> String {
        "a history".to_owned()
    }

    fn allowed() -> String {
        "\"auto\", \"archive\", or a table such as { blocks = 128 }".to_owned()
    }

    fn schema() -> Json {
        json!({ "anyOf": [{ "enum": ["auto", "archive"] }, {
            "type": "object",
            "properties": { "blocks": { "type": "integer", "minimum": 1 } },
            "required": ["blocks"],
            "additionalProperties": false,
        }] })
    }

    fn placeholder() -> HistorySetting {
        HistorySetting::Auto
    }

    fn read(
        item: &Item,
        location: &Location,
        reader: &mut Reader<'_, '_>,
    ) -> Option<HistorySetting> {
        match &item.tree {
            Tree::String(word) if word == "auto" => Some(HistorySetting::Auto),
            Tree::String(word) if word == "archive" => Some(HistorySetting::Archive),
            Tree::Table(members) if matches!(&members[..], [only] if only.key == "blocks") => {
                let location = location.of_member(&members[0]);
                let blocks = Integer::<1, { u64::MAX }>::read(&members[0].item, &location, reader)?;
                Some(HistorySetting::Blocks(blocks))
            }
            _ => reader.wrong_type::<Self>(item, location),
        }
    }

    fn parse_default(text: &str) -> Result<HistorySetting, String> {
        (text == "auto").then_some(HistorySetting::Auto).ok_or("not \"auto\"".to_owned())
    }

    fn mask(_text: &str) -> Option<String> {
        None
    }
}

/// Headers by name, as a table; the values are secrets.
pub type Headers = Pairs<Header>;

/// A header with its value.
pub struct Header;

impl Pair for Header {
    type Value = (HeaderName, HeaderValue);

    fn noun() -> String {
        "a table of headers".to_owned()
    }

    fn allowed() -> String {
        "table of header names and values".to_owned()
    }

    fn parse(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
        let (name, mut value) = parse_header(name, value, "gateway")?;
        value.set_sensitive(true);
        Ok((name, value))
    }
}

impl From<Vec<Box<str>>> for MethodSet {
    fn from(patterns: Vec<Box<str>>) -> MethodSet {
        MethodSet::new(patterns.iter().map(|pattern| &**pattern))
    }
}

impl From<Vec<IpNet>> for Networks {
    fn from(networks: Vec<IpNet>) -> Networks {
        Networks(networks)
    }
}

/// Returns true if a text is a valid name of a chain, upstream, group or key.
pub fn is_name(text: &str) -> bool {
    parse_name(text).is_ok()
}

/// Parses an address. Returns `None` for `off`.
fn parse_address(text: &str) -> Result<Option<SocketAddr>, &'static str> {
    match text {
        "off" => Ok(None),
        _ => text.parse().map(Some).map_err(|_| "not an ip address with a port"),
    }
}

fn parse_cipher(text: &str) -> Result<SupportedCipherSuite, &'static str> {
    ciphers::find(text).ok_or("no such cipher")
}

/// Parses an address or network. Ignores the bits after the prefix of a network.
fn parse_network(text: &str) -> Result<IpNet, &'static str> {
    const MESSAGE: &str = "neither an ip address nor a network";
    let network = match text.parse::<IpNet>() {
        Ok(network) => network,
        Err(_) => IpNet::from(text.parse::<IpAddr>().map_err(|_| MESSAGE)?),
    };
    Ok(network.trunc())
}

fn parse_host_pattern(text: &str) -> Result<String, &'static str> {
    const MESSAGE: &str = "not a host name; * may only replace its first label";
    let name = text.strip_prefix("*.").unwrap_or(text);
    match rustls::pki_types::DnsName::try_from(name) {
        Ok(_) => Ok(text.to_ascii_lowercase()),
        Err(_) => Err(MESSAGE),
    }
}

/// Parses a hash. The prefix `sha256:` is optional.
fn parse_hash(text: &str) -> Result<[u8; 32], &'static str> {
    const DIGITS: usize = 64;
    let digits = Some(text.strip_prefix("sha256:").unwrap_or(text));
    let hash = digits.filter(|digits| digits.len() == DIGITS).map(hex::decode_to_array);
    hash.and_then(Result::ok).ok_or("not a sha-256 in hexadecimal")
}

fn parse_timestamp(text: &str) -> Result<u64, &'static str> {
    let time: jiff::Timestamp = text.parse().map_err(|_| "not a time with a zone")?;
    u64::try_from(time.as_second()).map_err(|_| "before 1970")
}

pub(super) fn parse_header_name(text: &str) -> Result<HeaderName, &'static str> {
    text.parse().map_err(|_| "not the name of a header")
}

pub(super) fn parse_header_key(text: &str) -> Result<Box<str>, &'static str> {
    parse_header_name(text).map(|name| name.as_str().into())
}

fn parse_rate(text: &str) -> Result<Rate, &'static str> {
    const MESSAGE: &str = "not a rate: a whole number and r/s or r/m";
    let digit_count = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digit_count);
    let number: u64 = number.parse().map_err(|_| MESSAGE)?;
    if !(1..=RATE_MAX).contains(&number) {
        return Err("out of range");
    }
    match unit {
        "r/s" => Ok(Rate::per_second(number)),
        "r/m" => Ok(Rate::per_minute(number)),
        _ => Err(MESSAGE),
    }
}

fn parse_non_empty(text: &str) -> Result<Box<str>, &'static str> {
    if text.is_empty() { Err("is empty") } else { Ok(text.into()) }
}

pub(super) fn parse_name(text: &str) -> Result<Box<str>, &'static str> {
    if text.len() > NAME_BYTES_MAX {
        return Err("the name is too long");
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    if text.bytes().all(is_allowed) {
        parse_non_empty(text)
    } else {
        Err("the name contains an invalid character")
    }
}

fn parse_url_path(text: &str) -> Result<Box<str>, &'static str> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/_-.~".contains(&byte);
    if !text.starts_with('/') {
        return Err("a path must begin with /");
    }
    if text.len() > PATH_BYTES_MAX {
        return Err("the path is too long");
    }
    if text.len() > 1 && (text.ends_with('/') || text.contains("//")) {
        return Err("a path must not contain an empty segment");
    }
    if text.bytes().all(is_allowed) {
        Ok(text.into())
    } else {
        Err("the path contains an invalid character")
    }
}

fn parse_method_pattern(text: &str) -> Result<Box<str>, &'static str> {
    if text.len() > METHOD_BYTES_MAX {
        return Err("the method is too long");
    }
    let name = text.strip_suffix('*').unwrap_or(text);
    if name.contains('*') {
        return Err("* is allowed only at the end");
    }
    if !name.bytes().all(is_name_byte) {
        return Err("a method may contain only letters, digits, _ and .");
    }
    parse_non_empty(text)
}

fn parse_origin(text: &str) -> Result<Box<str>, &'static str> {
    const MESSAGE: &str = "not an origin: scheme, host and port, and nothing after them";
    if text == "*" {
        return Ok(text.into());
    }
    let (scheme, authority) = text.split_once("://").ok_or(MESSAGE)?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
    if scheme.is_empty() || authority.is_empty() || !authority.bytes().all(is_allowed) {
        return Err(MESSAGE);
    }
    Ok(text.to_ascii_lowercase().into())
}
