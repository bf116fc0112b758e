//! The value types that only keys of plans have. A value type says which values a key accepts, and
//! how they are read. `settings::value` has the other value types. The traits `settings::ValueType`
//! and `settings::Scalar` explain the functions of a value type.
//!
//! An item is a parsed value with its position in the plan's file, and its tree is the value
//! itself.

use serde_json::json;
use settings::url::{self, NodeUrl, Transport};
use settings::value::{Integer, Json, List, Pair, Pairs, parse_header};
use settings::{Input, Item, Location, Reader, Scalar, Tree, ValueType};
use wire::family::Family;

use super::Reuse;

mod ciphers;

#[cfg(test)]
mod tests;

/// Maximum length of a method's name in bytes, as in `wire::call::Limits::DEFAULT`.
const METHOD_BYTES_MAX: usize = 128;

// Limits of durations are in milliseconds.
pub(super) const SECOND: u64 = 1000;
pub(super) const MINUTE: u64 = 60 * SECOND;
pub(super) const HOUR: u64 = 3600 * SECOND;
pub(super) const WEEK: u64 = 7 * 24 * HOUR;

/// Maximum number of requests per connection.
const REUSE_MAX: u64 = 1_000_000_000;

/// Maximum number of blocks from a block to the head, the newest block at the start of the run.
pub(super) const BLOCKS_BEHIND_MAX: u64 = 1_000_000_000;

// `string_scalar!` declares value types that are written as a string. An entry has a name, the Rust
// type, the parser, a noun for diagnostics, the allowed values, and an example. The functions after
// `mask` and `mask_replaced` hide secrets in diagnostics.
settings::string_scalar! {
    /// The URL of a server, which may contain secrets.
    pub Url: NodeUrl = NodeUrl::parse_http, "a url",
        "http://host[:port][/path] or https://host[:port][/path]", "http://127.0.0.1:8545",
        mask |text: &str| Some(format!("\"{}\"", url::mask_around_references(text))),
        mask_replaced NodeUrl::mask_unless_in;
    /// The URL of the server under load, which may contain secrets.
    pub(super) TargetUrl: NodeUrl = NodeUrl::parse_remote, "a url",
        "http[s]://host[:port][/path] or ws[s]://host[:port][/path]", "http://127.0.0.1:8545",
        mask |text: &str| Some(format!("\"{}\"", url::mask_around_references(text))),
        mask_replaced NodeUrl::mask_unless_in;
    /// The URL of a WebSocket, which may contain secrets.
    pub(super) WebSocketUrl: NodeUrl = websocket_url, "a url",
        "ws://host[:port][/path] or wss://host[:port][/path]", "ws://127.0.0.1:8546",
        mask |text: &str| Some(format!("\"{}\"", url::mask_around_references(text))),
        mask_replaced NodeUrl::mask_unless_in;
    /// The address of a contract.
    pub(super) Address: String = address, "an address",
        "0x and 40 hexadecimal digits", "0x0000000000000000000000000000000000000001";
    /// The name of a method. Labels of metrics and selectors of thresholds contain it.
    pub(super) MethodName: String = method, "the name of a method",
        format!("1 to {METHOD_BYTES_MAX} visible characters, such as \"eth_call\""), "eth_call";
    /// A TLS cipher suite, by IANA or OpenSSL name.
    pub(super) Cipher: Suite = ciphers::find, "a cipher suite",
        format!("{}; IANA's names too", ciphers::names().join(", ")), "TLS_AES_256_GCM_SHA384";
}

pub(super) use ciphers::Suite;

// `choice!` declares an enum with the name of each variant in the plan. With `for`, it declares the
// names of an existing enum.
settings::choice! {
    /// Families of methods.
    pub(super) Families for Family {
        "ethereum" => Ethereum,
        "harmony" => Harmony,
        "bitcoin" => Bitcoin,
    }
}

settings::choice! {
    /// What happens to a scheduled iteration if no worker is free.
    pub(super) enum Delayed {
        /// The iteration is queued.
        "queue" => Queue,
        /// The iteration is dropped and counted.
        "drop" => Drop,
    }
}

settings::choice! {
    /// What the notifications of a subscription contain.
    pub enum SubscriptionKind {
        /// The header of each new block.
        "newHeads" => Heads,
        /// The logs of each new block.
        "logs" => Logs,
    }
}

/// Parses the URL of a WebSocket.
fn websocket_url(text: &str) -> Result<NodeUrl, &'static str> {
    let url = NodeUrl::parse(text)?;
    match url.transport() {
        Transport::WebSocket => Ok(url),
        _ => Err("a url of a subscription begins with ws:// or wss://"),
    }
}

/// Parses the address of a contract.
fn address(text: &str) -> Result<String, &'static str> {
    let digits = text.strip_prefix("0x").ok_or("an address begins with 0x")?;
    let is_valid = digits.len() == 40 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_valid { Ok(text.to_owned()) } else { Err("an address has 40 hexadecimal digits") }
}

/// Parses the name of a method.
///
/// # Errors
/// Describes why the name is invalid.
pub(super) fn method(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Err("the name is empty");
    }
    if text.len() > METHOD_BYTES_MAX {
        return Err("the name is too long");
    }
    let is_visible = |letter: char| !letter.is_control() && !letter.is_whitespace();
    match text.chars().all(is_visible) {
        true => Ok(text.to_owned()),
        false => Err("the name contains blanks or control characters"),
    }
}

/// Request headers by name. The values are secret.
pub(super) type Headers = Pairs<Header>;

/// A request header.
pub(super) struct Header;

impl Pair for Header {
    type Value = (String, String);

    fn noun() -> String {
        "a table of headers".to_owned()
    }

    fn allowed() -> String {
        "table of header names and values".to_owned()
    }

    fn parse(name: &str, value: &str) -> Result<(String, String), String> {
        let (name, _) = parse_header(name, value, "load generator")?;
        Ok((name.as_str().to_owned(), value.to_owned()))
    }

    fn mask(text: &str) -> Option<String> {
        (!is_reference(text)).then(|| format!("\"{}\"", settings::MASK))
    }
}

/// Returns true if a header's value is an optional authorization scheme and a reference to an
/// environment variable, such as `Bearer ${env:TOKEN}`. Such a text contains no secret, so it is
/// not masked.
fn is_reference(text: &str) -> bool {
    let Some((scheme, reference)) = text.split_once("${env:") else { return false };
    let is_known_scheme = ["", "Bearer", "Basic", "Token"].contains(&scheme.trim());
    let is_name = |name: &str| !name.contains(['{', '}', '$', ':']);
    is_known_scheme && reference.strip_suffix('}').is_some_and(is_name)
}

/// How often a connection is reused: a word, or a number of requests.
pub(super) struct Reused;

impl Scalar for Reused {
    type Value = Reuse;

    fn noun() -> String {
        "a word or a number of requests".to_owned()
    }

    fn allowed() -> String {
        "\"always\", \"never\", or requests per connection (0 is always, 1 is never)".to_owned()
    }

    fn schema() -> Json {
        json!({ "anyOf": [
            { "enum": ["always", "never"] },
            { "type": "integer", "minimum": 0, "maximum": REUSE_MAX },
            { "type": "string", "pattern": "^[0-9]+$" },
        ] })
    }

    fn placeholder() -> Reuse {
        Reuse::Always
    }

    fn parse(input: Input<'_>) -> Result<Reuse, String> {
        match input {
            Input::String("always") => Ok(Reuse::Always),
            Input::String("never") => Ok(Reuse::Never),
            Input::String(text) if text.parse::<u64>().is_err() => {
                Err("neither a word nor a number of requests".to_owned())
            }
            number => {
                let requests = <Integer<0, REUSE_MAX, u32> as Scalar>::parse(number)?;
                Ok(match requests {
                    0 => Reuse::Always,
                    1 => Reuse::Never,
                    more => Reuse::Requests(more),
                })
            }
        }
    }
}

/// Request bodies as JSON texts, which are sent unchanged.
pub(super) struct Bodies;

impl ValueType for Bodies {
    type Value = Vec<String>;

    fn noun() -> String {
        "a list of texts".to_owned()
    }

    fn allowed() -> String {
        "list of JSON-RPC calls, or batches of them, as JSON texts".to_owned()
    }

    fn schema() -> Json {
        json!({ "type": "array", "minItems": 1, "items": { "type": "string" } })
    }

    fn placeholder() -> Vec<String> {
        Vec::new()
    }

    fn parse_default(text: &str) -> Result<Vec<String>, String> {
        Ok(vec![text.to_owned()])
    }

    fn mask(text: &str) -> Option<String> {
        <MethodName as Scalar>::mask(text)
    }

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<Vec<String>> {
        let Tree::List(list) = &item.tree else {
            return reader.wrong_type::<Bodies>(item, location);
        };
        let text = |item: &Item| match &item.tree {
            Tree::String(text) => Some(text.clone()),
            _ => {
                let location = location.with_span(&item.span);
                reader.report().error(&location, "not a text", Bodies::allowed());
                None
            }
        };
        Some(list.iter().filter_map(text).collect())
    }
}

/// Number of blocks from a block to the head: one number, or the smallest and the largest number.
pub(super) struct Behind;

type Blocks = Integer<0, BLOCKS_BEHIND_MAX>;

impl ValueType for Behind {
    type Value = (u64, u64);

    fn noun() -> String {
        "a number or two of them".to_owned()
    }

    fn allowed() -> String {
        format!("a number, or [smallest, largest], up to {BLOCKS_BEHIND_MAX}")
    }

    fn schema() -> Json {
        let pair = json!({ "type": "array", "minItems": 2, "maxItems": 2 });
        json!({ "anyOf": [<Blocks as ValueType>::schema(), pair] })
    }

    fn placeholder() -> (u64, u64) {
        (0, 0)
    }

    fn parse_default(text: &str) -> Result<(u64, u64), String> {
        <Blocks as ValueType>::parse_default(text).map(|blocks| (blocks, blocks))
    }

    fn to_toml(default: &str) -> String {
        default.to_owned()
    }

    fn mask(text: &str) -> Option<String> {
        <Blocks as ValueType>::mask(text)
    }

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<(u64, u64)> {
        let Tree::List(_) = &item.tree else {
            return <Blocks as ValueType>::read(item, location, reader)
                .map(|blocks| (blocks, blocks));
        };
        let problems = reader.report().count();
        let message = match <List<Blocks>>::read(item, location, reader)?.as_slice() {
            _ if reader.report().count() > problems => return None,
            [low, high] if low <= high => return Some((*low, *high)),
            [_, _] => "the first number is above the second",
            _ => "not two numbers",
        };
        reader.report().error(location, message, Behind::allowed());
        None
    }
}
