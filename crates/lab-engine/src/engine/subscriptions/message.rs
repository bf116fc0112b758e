//! Messages of a subscription. Builds the call that subscribes, and parses the server's messages:
//! the response to that call, and notifications.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use wire::quantity::parse_lenient;

use lab_model::plan::{Subscription, SubscriptionKind};

/// The id of the call that subscribes.
const CALL_ID: &str = "1";

/// Returns the JSON-RPC call that subscribes.
pub(super) fn subscribe_call(subscription: &Subscription) -> String {
    let kind = SubscriptionKind::name_of(subscription.kind);
    let filter = match (subscription.kind, subscription.addresses.as_slice()) {
        (SubscriptionKind::Heads, _) => String::new(),
        (SubscriptionKind::Logs, []) => ",{}".to_owned(),
        // Addresses consist of hexadecimal digits, so they need no escapes.
        (SubscriptionKind::Logs, addresses) => {
            format!(",{{\"address\":[\"{}\"]}}", addresses.join("\",\""))
        }
    };
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{CALL_ID},\"method\":\"eth_subscribe\",\
         \"params\":[\"{kind}\"{filter}]}}"
    )
}

/// A message of the server.
#[derive(Debug, PartialEq)]
pub(super) enum Message<'a> {
    /// The server confirms the subscription and gives it this id.
    Confirmed(Cow<'a, str>),
    /// The server refuses the subscription with this error code.
    Refused(i64),
    /// A notification of a new block or log.
    Notification {
        /// Id of the subscription.
        subscription: Cow<'a, str>,
        /// The block header or log, as JSON.
        result: &'a [u8],
    },
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<ErrorMember>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct ErrorMember {
    code: i64,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    subscription: Cow<'a, str>,
    #[serde(borrow)]
    result: &'a RawValue,
}

/// Parses a notification, an error, or the response to the subscribe call with a subscription id.
/// Returns `None` for any other message, and for invalid JSON.
pub(super) fn parse(message: &[u8]) -> Option<Message<'_>> {
    let envelope: Envelope<'_> = serde_json::from_slice(message).ok()?;
    if let Some(Params { subscription, result }) = envelope.params {
        return Some(Message::Notification { subscription, result: result.get().as_bytes() });
    }
    if let Some(error) = envelope.error {
        return Some(Message::Refused(error.code));
    }
    if envelope.id?.get() != CALL_ID {
        return None;
    }
    Some(Message::Confirmed(serde_json::from_str(envelope.result?.get()).ok()?))
}

/// The relevant members of a block header.
#[derive(Debug, PartialEq)]
pub(super) struct Head<'a> {
    /// Block number.
    pub(super) number: u64,
    /// Block hash, as the server wrote it.
    pub(super) hash: Cow<'a, str>,
    /// Seconds since 1970; `None` if the timestamp is absent or no number.
    pub(super) timestamp: Option<u64>,
}

/// The relevant members of a log.
#[derive(Debug, PartialEq)]
pub(super) struct Log<'a> {
    /// Number of the block that contains the log.
    pub(super) block: u64,
    /// Hash of the block that contains the log.
    pub(super) block_hash: Cow<'a, str>,
    /// Index of the log in the block.
    pub(super) index: u64,
    /// True if a reorg withdrew the log.
    pub(super) is_removed: bool,
}

#[derive(Deserialize)]
struct HeadMembers<'a> {
    #[serde(borrow)]
    number: Cow<'a, str>,
    #[serde(borrow)]
    hash: Cow<'a, str>,
    #[serde(borrow)]
    timestamp: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogMembers<'a> {
    #[serde(borrow)]
    block_number: Cow<'a, str>,
    #[serde(borrow)]
    block_hash: Cow<'a, str>,
    #[serde(borrow)]
    log_index: Cow<'a, str>,
    #[serde(default)]
    removed: bool,
}

/// Parses a block header. Returns `None` if a member other than the timestamp is missing or
/// invalid.
pub(super) fn parse_head(json: &[u8]) -> Option<Head<'_>> {
    let HeadMembers { number, hash, timestamp } = serde_json::from_slice(json).ok()?;
    Some(Head {
        number: parse_lenient(number.as_bytes())?,
        hash,
        timestamp: timestamp.and_then(|timestamp| parse_lenient(timestamp.as_bytes())),
    })
}

/// Parses a log. Returns `None` if a member is invalid, or missing. Only `removed` may be missing.
pub(super) fn parse_log(json: &[u8]) -> Option<Log<'_>> {
    let LogMembers { block_number, block_hash, log_index, removed } =
        serde_json::from_slice(json).ok()?;
    Some(Log {
        block: parse_lenient(block_number.as_bytes())?,
        block_hash,
        index: parse_lenient(log_index.as_bytes())?,
        is_removed: removed,
    })
}
