//! The kinds of values that a key may take: how each is read from text, and what it allows.
//!
//! What a kind allows is said here once, for the faults and for `docs/config.md` alike. It knows
//! nothing about TOML; that is `config/file.rs`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use wire::call::is_name_byte;

use super::database::Database;
use super::redis_url::RedisUrl;
use super::url::NodeUrl;
use super::{HashKey, KeyPart};
use crate::access_log::format::{CARRIERS_OF_SECRETS, Format};
use crate::rules::limit::Rate;
use crate::tls::ciphers;

#[cfg(test)]
mod tests;

/// What a key may be set to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `true` or `false`.
    Switch,
    /// A whole number within bounds.
    Count { min: u64, max: u64 },
    /// A number within bounds, whole or not.
    Number { min: f64, max: f64 },
    /// A text such as `"250ms"`.
    Duration { min: Duration, max: Duration },
    /// A text such as `"64MiB"`, or a whole number of bytes.
    Bytes { min: u64, max: u64 },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// IP address and port, or `"off"`.
    AddressOrOff,
    /// A name for a chain, node or group.
    Name,
    /// A node's URL; secret.
    Url,
    /// The URL of a Redis; secret.
    RedisUrl,
    /// Name of a file that is written, or the URL of a database; secret.
    Database,
    /// What a consistent hash is taken of.
    HashKey,
    /// Name of a file that is read.
    File,
    /// Name of a file that is written.
    Output,
    /// A host name or IP address.
    Host,
    /// List of names.
    Names,
    /// List of some of these words.
    Words(&'static [&'static str]),
    /// List of cipher suites, in either spelling.
    Ciphers,
    /// List of files' names.
    Files,
    /// List of host names, or `*.` before one.
    Hosts,
    /// List of IP addresses and networks.
    Networks,
    /// List of URL paths.
    Paths,
    /// List of method names and prefixes.
    Methods,
    /// List of web origins, or `["*"]`.
    Origins,
    /// HTTP headers by name; the values are secret.
    Headers,
    /// A secret of at least so many bytes.
    Secret { bytes_min: usize },
    /// SHA-256 of a key, in hexadecimal.
    Hash,
    /// A point in time.
    Time,
    /// The name of a header.
    HeaderName,
    /// Any text.
    Text,
    /// List of texts.
    Texts,
    /// List of headers with their values.
    HeaderTests,
    /// One URL path.
    Path,
    /// What a line of the access log holds.
    LogFormat,
    /// List of what a zone's key is made of.
    ZoneKey,
    /// Calls per second or per minute.
    Rate,
}

/// A value that was read and is within its bounds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Switch(bool),
    Count(u64),
    Number(f64),
    Duration(Duration),
    Bytes(u64),
    Choice(&'static str),
    Address(Option<SocketAddr>),
    Text(String),
    Url(NodeUrl),
    RedisUrl(RedisUrl),
    Database(Database),
    HashKey(HashKey),
    Texts(Vec<String>),
    Headers(Vec<(http::HeaderName, http::HeaderValue)>),
    Rate(Rate),
}

/// Longest name of a chain, node or group: they become metric labels.
const NAME_BYTES_MAX: usize = 64;

/// Longest method pattern: the bound that `front.method_bytes_max` has at most.
pub(super) const METHOD_BYTES_MAX: usize = 1024;

/// Longest URL path of a chain.
const PATH_BYTES_MAX: usize = 256;

/// Highest rate: far above what one machine answers, and far below where the arithmetic would end.
const RATE_MAX: u64 = 1_000_000_000;

/// Units of durations, with their length in milliseconds.
const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Units of byte counts; decimal and binary ones as in IEC 80000-13.
const BYTE_UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

impl Kind {
    /// Whether its value must not be shown as it is.
    pub(super) fn is_secret(self) -> bool {
        // Whoever puts a header that carries a secret into a rule is told so without it.
        matches!(
            self,
            Kind::Url
                | Kind::RedisUrl
                | Kind::Database
                | Kind::Headers
                | Kind::Secret { .. }
                | Kind::HeaderTests
        )
    }

    /// Whether it is a list, each element of which is read by itself.
    pub(super) fn is_list(self) -> bool {
        matches!(
            self,
            Kind::Names
                | Kind::Words(_)
                | Kind::Ciphers
                | Kind::Files
                | Kind::Hosts
                | Kind::Networks
                | Kind::Paths
                | Kind::Methods
                | Kind::Origins
                | Kind::Texts
                | Kind::HeaderTests
                | Kind::ZoneKey
        )
    }

    /// What it is, for a value of another type: "a list of paths".
    pub(super) fn noun(self) -> &'static str {
        match self {
            Kind::Switch => "true or false",
            Kind::Count { .. } => "a whole number",
            Kind::Number { .. } => "a number",
            Kind::Duration { .. } => "a duration",
            Kind::Bytes { .. } => "a number of bytes",
            Kind::Choice(_) => "one of the words",
            Kind::AddressOrOff => "an address",
            Kind::Name => "a name",
            Kind::Url | Kind::RedisUrl => "a url",
            Kind::Database => "a file name or a url",
            Kind::HashKey => "a hash key",
            Kind::File | Kind::Output => "a file name",
            Kind::Host => "a host name",
            Kind::Names => "a list of names",
            Kind::Words(_) => "a list of words",
            Kind::Ciphers => "a list of ciphers",
            Kind::Files => "a list of file names",
            Kind::Hosts => "a list of host names",
            Kind::Networks => "a list of networks",
            Kind::Paths => "a list of paths",
            Kind::Methods => "a list of methods",
            Kind::Origins => "a list of origins",
            Kind::Headers => "a table of headers",
            Kind::Secret { .. } => "a secret",
            Kind::Hash => "a hash",
            Kind::Time => "a time",
            Kind::HeaderName => "the name of a header",
            Kind::Text => "a text",
            Kind::Texts => "a list of texts",
            Kind::HeaderTests => "a list of headers",
            Kind::Path => "a path",
            Kind::LogFormat => "a format",
            Kind::ZoneKey => "a list of what the key is made of",
            Kind::Rate => "a rate",
        }
    }

    /// Reads a whole number.
    pub(super) fn of_count(self, count: u64) -> Result<Value, &'static str> {
        match self {
            Kind::Count { min, max } if (min..=max).contains(&count) => Ok(Value::Count(count)),
            Kind::Bytes { min, max } if (min..=max).contains(&count) => Ok(Value::Bytes(count)),
            Kind::Count { .. } | Kind::Bytes { .. } => Err("out of range"),
            Kind::Number { .. } => self.of_number(count as f64),
            Kind::Duration { .. } => Err("a duration needs a unit"),
            Kind::Rate => Err("a rate needs a unit"),
            _ => Err("a number does not fit here"),
        }
    }

    /// Reads a number with a fraction.
    pub(super) fn of_number(self, number: f64) -> Result<Value, &'static str> {
        match self {
            Kind::Number { min, max } if number >= min && number <= max => {
                Ok(Value::Number(number))
            }
            Kind::Number { .. } => Err("out of range"),
            _ => Err("a fraction does not fit here"),
        }
    }

    /// Reads a switch.
    pub(super) fn of_switch(self, on: bool) -> Result<Value, &'static str> {
        match self {
            Kind::Switch => Ok(Value::Switch(on)),
            _ => Err("true or false does not fit here"),
        }
    }

    /// Reads a text; for a list, one element of it.
    pub(super) fn of_text(self, text: &str) -> Result<Value, &'static str> {
        let plain =
            |checked: Result<(), &'static str>| checked.map(|()| Value::Text(text.to_owned()));
        match self {
            Kind::Duration { min, max } => {
                let duration = duration(text)?;
                let fits = (min..=max).contains(&duration);
                if fits { Ok(Value::Duration(duration)) } else { Err("out of range") }
            }
            Kind::Bytes { .. } => self.of_count(bytes(text)?),
            Kind::Choice(words) => {
                let word = words.iter().find(|word| **word == text);
                word.map(|word| Value::Choice(word)).ok_or("no such choice")
            }
            Kind::AddressOrOff if text == "off" => Ok(Value::Address(None)),
            Kind::AddressOrOff => address(text).map(|address| Value::Address(Some(address))),
            Kind::Url => NodeUrl::parse(text).map(Value::Url),
            Kind::RedisUrl => RedisUrl::parse(text).map(Value::RedisUrl),
            Kind::Database => Database::parse(text).map(Value::Database),
            Kind::HashKey => hash_key(text).map(Value::HashKey),
            Kind::Name | Kind::Names => plain(check_name(text)),
            Kind::File | Kind::Files | Kind::Output | Kind::Host => plain(check_not_empty(text)),
            Kind::Words(words) => {
                let known = words.contains(&text);
                plain(if known { Ok(()) } else { Err("no such choice") })
            }
            Kind::Ciphers => {
                let known = ciphers::find(text).is_some();
                plain(if known { Ok(()) } else { Err("no such cipher") })
            }
            Kind::Hosts => host_pattern(text).map(Value::Text),
            Kind::Networks => plain(network(text).map(drop)),
            Kind::Paths | Kind::Path => plain(check_path(text)),
            Kind::Secret { bytes_min } if text.len() < bytes_min => Err("the secret is too short"),
            Kind::Secret { .. } | Kind::Text | Kind::Texts => plain(check_not_empty(text)),
            Kind::Hash => plain(hash(text).map(drop)),
            Kind::Time => time(text).map(Value::Count),
            Kind::HeaderName => plain(header_name(text).map(drop))
                .map(|value| Value::Text(value.text().to_ascii_lowercase())),
            Kind::HeaderTests => plain(header_test(text).map(drop)),
            Kind::LogFormat => plain(Format::parse(text).map(drop).map_err(|fault| fault.as_str())),
            Kind::Methods => plain(check_method(text)),
            Kind::Origins => origin(text).map(Value::Text),
            Kind::ZoneKey => plain(key_part(text).map(|_| ())),
            Kind::Rate => rate(text).map(Value::Rate),
            // A variable of the environment is text; what it stands for may be a number.
            Kind::Count { .. } => self.of_count(text.parse().map_err(|_| "not a whole number")?),
            Kind::Number { .. } => self.of_number(text.parse().map_err(|_| "not a number")?),
            Kind::Switch => self.of_switch(text.parse().map_err(|_| "neither true nor false")?),
            Kind::Headers => Err("a text does not fit here"),
        }
    }

    /// Reads one header.
    pub(super) fn of_header(
        name: &str,
        value: &str,
    ) -> Result<(http::HeaderName, http::HeaderValue), &'static str> {
        // What the gateway itself sets: framing, and the node's name.
        const OWN: [&str; 6] = [
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "content-type",
            "upgrade",
        ];
        let name: http::HeaderName = name.parse().map_err(|_| "not the name of a header")?;
        if OWN.contains(&name.as_str()) {
            return Err("the gateway sets this header itself");
        }
        let mut value = http::HeaderValue::from_str(value)
            .map_err(|_| "the value holds a character that no header may hold")?;
        value.set_sensitive(true);
        Ok((name, value))
    }
}

/// Prints what is allowed.
impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Switch => write!(formatter, "true or false"),
            Kind::Count { min, max: u64::MAX } => write!(formatter, "{min} or more"),
            Kind::Count { min, max } => write!(formatter, "{min} to {max}"),
            Kind::Number { min, max } => write!(formatter, "{min} to {max}"),
            Kind::Duration { min, max } => {
                let (min, max) = (ShownDuration(*min), ShownDuration(*max));
                write!(formatter, "\"{min}\" to \"{max}\" (units ms, s, m, h, d)")
            }
            Kind::Bytes { min, max } => {
                let (min, max) = (ShownBytes(*min), ShownBytes(*max));
                write!(formatter, "\"{min}\" to \"{max}\" (units B, kB, MB, GB, KiB, MiB, GiB)")
            }
            Kind::Choice(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                formatter.write_str(&words.join(", "))
            }
            Kind::AddressOrOff => {
                write!(formatter, "ip address and port, such as \"127.0.0.1:8646\", or \"off\"")
            }
            Kind::Name => write!(formatter, "1 to {NAME_BYTES_MAX} of a-z A-Z 0-9 _ - . :"),
            Kind::Url => {
                write!(formatter, "http[s]://host[:port][/path], ws[s]://… or ipc:/path")
            }
            Kind::RedisUrl => write!(
                formatter,
                "redis://host[:port][/database], rediss://…, redis-sentinel://… or redis-cluster://…"
            ),
            Kind::Database => write!(
                formatter,
                "name of a file, from the folder of this one, or postgres://user@host[:port]/database"
            ),
            Kind::HashKey => write!(formatter, "\"call\", \"client\" or \"header:NAME\""),
            Kind::File | Kind::Output => {
                write!(formatter, "name of a file, from the folder of this one")
            }
            Kind::Host => write!(formatter, "host name or ip address"),
            Kind::Names => write!(formatter, "list of names that stand elsewhere in the file"),
            Kind::Words(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                write!(formatter, "list of {}", words.join(", "))
            }
            Kind::Ciphers => {
                let names: Vec<_> = ciphers::names().collect();
                write!(formatter, "list of {}; iana's names too", names.join(", "))
            }
            Kind::Files => {
                write!(formatter, "list of names of files, from the folder of this one")
            }
            Kind::Hosts => {
                write!(formatter, "list of host names such as \"rpc.example\" or \"*.rpc.example\"")
            }
            Kind::Networks => write!(
                formatter,
                "list of ip addresses and networks such as \"10.0.0.0/8\" or \"::1\""
            ),
            Kind::Paths => {
                write!(formatter, "list of paths such as \"/\" or \"/eth\", without / at the end")
            }
            Kind::Methods => write!(
                formatter,
                "list of names such as \"eth_getLogs\", prefixes such as \"debug_*\", or \"*\""
            ),
            Kind::Origins => {
                write!(formatter, "list of origins such as \"https://app.example\", or [\"*\"]")
            }
            Kind::Headers => write!(formatter, "table of header names and values"),
            Kind::Secret { bytes_min } => write!(formatter, "{bytes_min} bytes or more"),
            Kind::Hash => write!(formatter, "sha256: and 64 hexadecimal digits"),
            Kind::Time => write!(formatter, "time such as \"2027-01-31T00:00:00Z\""),
            Kind::HeaderName => write!(formatter, "name of a header, such as \"x-api-key\""),
            Kind::Text => write!(formatter, "any text"),
            Kind::Texts => write!(formatter, "list of texts"),
            Kind::HeaderTests => write!(
                formatter,
                "list such as \"x-client: mobile\", or \"x-client: mobile*\" for what begins so"
            ),
            Kind::Path => write!(formatter, "path such as \"/\" or \"/eth\""),
            Kind::LogFormat => write!(
                formatter,
                "\"json\", \"combined\", or a text with variables such as \"$remote_addr $status\""
            ),
            Kind::ZoneKey => write!(
                formatter,
                "list of \"client\", \"client-net\", \"key\", \"header:NAME\", \"method\" and \"chain\""
            ),
            Kind::Rate => {
                write!(formatter, "\"1r/s\" to \"{RATE_MAX}r/s\", or the same with r/m")
            }
        }
    }
}

/// A duration in the largest unit that holds it whole.
pub(super) struct ShownDuration(pub(super) Duration);

impl fmt::Display for ShownDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis() as u64;
        let unit =
            DURATION_UNITS.iter().rev().find(|(_, size)| ms != 0 && ms.is_multiple_of(*size));
        let (unit, size) = unit.unwrap_or(&("ms", 1));
        write!(formatter, "{}{unit}", ms / size)
    }
}

/// A number of bytes in the largest binary unit that holds it whole.
pub(super) struct ShownBytes(pub(super) u64);

impl fmt::Display for ShownBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let unit = BYTE_UNITS[..3]
            .iter()
            .rev()
            .find(|(_, size)| bytes != 0 && bytes.is_multiple_of(*size));
        let (unit, size) = unit.unwrap_or(&("B", 1));
        write!(formatter, "{}{unit}", bytes / size)
    }
}

/// Reads a duration.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    const WHAT: &str = "not a duration: a whole number and a unit";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| WHAT)?;
    let (_, size) = DURATION_UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or(WHAT)?;
    number.checked_mul(*size).map(Duration::from_millis).ok_or("out of range")
}

fn bytes(text: &str) -> Result<u64, &'static str> {
    const WHAT: &str = "not a number of bytes: a whole number and a unit";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| WHAT)?;
    let (_, size) = BYTE_UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or(WHAT)?;
    number.checked_mul(*size).ok_or("out of range")
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "not an ip address with a port")
}

fn hash_key(text: &str) -> Result<HashKey, &'static str> {
    match text.split_once(':') {
        None if text == "call" => Ok(HashKey::Call),
        None if text == "client" => Ok(HashKey::Client),
        Some(("header", name)) => {
            let name = name.parse().map_err(|_| "not the name of a header")?;
            Ok(HashKey::Header(name))
        }
        _ => Err("no such hash key"),
    }
}

/// Reads an address or a network; the bits behind the prefix do not count.
pub(super) fn network(text: &str) -> Result<IpNet, &'static str> {
    const WHAT: &str = "neither an ip address nor a network";
    let network = match text.parse::<IpNet>() {
        Ok(network) => network,
        Err(_) => IpNet::from(text.parse::<IpAddr>().map_err(|_| WHAT)?),
    };
    Ok(network.trunc())
}

/// Reads a host name that a certificate is for, in lower case.
fn host_pattern(text: &str) -> Result<String, &'static str> {
    const WHAT: &str = "not a host name; * stands only for its whole first part";
    let name = text.strip_prefix("*.").unwrap_or(text);
    match rustls::pki_types::DnsName::try_from(name) {
        Ok(_) => Ok(text.to_ascii_lowercase()),
        Err(_) => Err(WHAT),
    }
}

/// Reads `sha256:` and 64 hexadecimal digits; the prefix may be left out.
pub(super) fn hash(text: &str) -> Result<[u8; 32], &'static str> {
    const WHAT: &str = "not a sha-256 in hexadecimal";
    let digits = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
    if digits.len() != 64 {
        return Err(WHAT);
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(WHAT);
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    Ok(hash)
}

/// Reads a time as RFC 3339 writes it, as seconds since 1970.
fn time(text: &str) -> Result<u64, &'static str> {
    let time: jiff::Timestamp = text.parse().map_err(|_| "not a time with a zone")?;
    u64::try_from(time.as_second()).map_err(|_| "before 1970")
}

fn header_name(text: &str) -> Result<http::HeaderName, &'static str> {
    text.parse().map_err(|_| "not the name of a header")
}

/// Reads a header and its value, as `name: value`.
pub(super) fn header_test(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once(':').ok_or("not a name, a colon and a value")?;
    let name = header_name(name.trim())?;
    if CARRIERS_OF_SECRETS.contains(&name.as_str()) {
        return Err("this header carries secrets, which rules do not see");
    }
    Ok((name.as_str().to_owned(), value.trim().to_owned()))
}

/// Reads a part of the key of a zone.
pub(super) fn key_part(text: &str) -> Result<KeyPart, &'static str> {
    match text.split_once(':') {
        None if text == "client" => Ok(KeyPart::Client),
        None if text == "client-net" => Ok(KeyPart::ClientNet),
        None if text == "key" => Ok(KeyPart::Key),
        None if text == "method" => Ok(KeyPart::Method),
        None if text == "chain" => Ok(KeyPart::Chain),
        Some(("header", name)) => {
            let name = name.parse().map_err(|_| "not the name of a header")?;
            Ok(KeyPart::Header(name))
        }
        _ => Err("no such part of a key"),
    }
}

fn rate(text: &str) -> Result<Rate, &'static str> {
    const WHAT: &str = "not a rate: a whole number and r/s or r/m";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| WHAT)?;
    if !(1..=RATE_MAX).contains(&number) {
        return Err("out of range");
    }
    match unit {
        "r/s" => Ok(Rate::per_second(number)),
        "r/m" => Ok(Rate::per_minute(number)),
        _ => Err(WHAT),
    }
}

fn check_not_empty(text: &str) -> Result<(), &'static str> {
    if text.is_empty() { Err("is empty") } else { Ok(()) }
}

/// Whether a text can name a chain, node or group.
pub(super) fn check_name(text: &str) -> Result<(), &'static str> {
    check_not_empty(text)?;
    if text.len() > NAME_BYTES_MAX {
        return Err("the name is too long");
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    if text.bytes().all(fits) { Ok(()) } else { Err("a name holds no such character") }
}

fn check_path(text: &str) -> Result<(), &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"/_-.~".contains(&byte);
    if !text.starts_with('/') {
        return Err("a path begins with /");
    }
    if text.len() > PATH_BYTES_MAX {
        return Err("the path is too long");
    }
    if text.len() > 1 && (text.ends_with('/') || text.contains("//")) {
        return Err("a path holds no empty segment");
    }
    if text.bytes().all(fits) { Ok(()) } else { Err("a path holds no such character") }
}

fn check_method(text: &str) -> Result<(), &'static str> {
    check_not_empty(text)?;
    if text.len() > METHOD_BYTES_MAX {
        return Err("the method is too long");
    }
    let name = text.strip_suffix('*').unwrap_or(text);
    if name.contains('*') {
        return Err("* stands only at the end");
    }
    if !name.bytes().all(is_name_byte) {
        return Err("a method holds only letters, digits, _ and .");
    }
    Ok(())
}

fn origin(text: &str) -> Result<String, &'static str> {
    const WHAT: &str = "not an origin: scheme, host and port, and nothing after them";
    if text == "*" {
        return Ok(text.to_owned());
    }
    let (scheme, place) = text.split_once("://").ok_or(WHAT)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
    if scheme.is_empty() || place.is_empty() || !place.bytes().all(fits) {
        return Err(WHAT);
    }
    Ok(text.to_ascii_lowercase())
}

/// What a value of the table's kind holds. Asking for another kind than the table states is a
/// slip in `config/checked.rs`, which the test over all defaults meets.
impl Value {
    pub(super) fn switch(self) -> bool {
        match self {
            Value::Switch(on) => on,
            other => misread(&other),
        }
    }

    pub(super) fn count(self) -> u64 {
        match self {
            Value::Count(count) => count,
            other => misread(&other),
        }
    }

    pub(super) fn number(self) -> f64 {
        match self {
            Value::Number(number) => number,
            other => misread(&other),
        }
    }

    pub(super) fn duration(self) -> Duration {
        match self {
            Value::Duration(duration) => duration,
            other => misread(&other),
        }
    }

    /// Bytes or a count as a size in memory.
    pub(super) fn size(self) -> usize {
        match self {
            Value::Bytes(size) | Value::Count(size) => usize::try_from(size).unwrap_or(usize::MAX),
            other => misread(&other),
        }
    }

    pub(super) fn choice(self) -> &'static str {
        match self {
            Value::Choice(word) => word,
            other => misread(&other),
        }
    }

    pub(super) fn address(self) -> Option<SocketAddr> {
        match self {
            Value::Address(address) => address,
            other => misread(&other),
        }
    }

    pub(super) fn text(self) -> String {
        match self {
            Value::Text(text) => text,
            other => misread(&other),
        }
    }

    pub(super) fn texts(self) -> Vec<String> {
        match self {
            Value::Texts(texts) => texts,
            other => misread(&other),
        }
    }

    pub(super) fn url(self) -> NodeUrl {
        match self {
            Value::Url(url) => url,
            other => misread(&other),
        }
    }

    pub(super) fn redis_url(self) -> RedisUrl {
        match self {
            Value::RedisUrl(url) => url,
            other => misread(&other),
        }
    }

    pub(super) fn database(self) -> Database {
        match self {
            Value::Database(database) => database,
            other => misread(&other),
        }
    }

    pub(super) fn hash_key(self) -> HashKey {
        match self {
            Value::HashKey(key) => key,
            other => misread(&other),
        }
    }

    pub(super) fn rate(self) -> Rate {
        match self {
            Value::Rate(rate) => rate,
            other => misread(&other),
        }
    }

    pub(super) fn headers(self) -> Vec<(http::HeaderName, http::HeaderValue)> {
        match self {
            Value::Headers(headers) => headers,
            other => misread(&other),
        }
    }
}

fn misread(value: &Value) -> ! {
    panic!("asked for another kind than the table of keys states: {value:?}")
}
