//! Parses logs, and matches them with the addresses and topics of a log filter.
//!
//! A filter selects the same logs as in go-ethereum (`eth/filters/api.go`
//! `FilterCriteria.UnmarshalJSON`, `eth/filters/filter.go` `filterLogs`). `filter.rs` has the block
//! range of a filter. Alternatives are the values that a filter accepts for the address, or for the
//! topic at one position. A log must have one of the alternatives.

use smallvec::SmallVec;

use crate::hex::{address_from_value, hash_from_value};
use crate::json::walk;
use crate::quantity;

#[cfg(test)]
mod tests;

/// Maximum number of addresses in a filter, and of topics at one position (go-ethereum
/// `ethconfig.Defaults.LogQueryLimit`).
pub const ALTERNATIVES_MAX: usize = 1000;
/// Maximum number of topics in a log (go-ethereum `eth/filters/api.go` `maxTopics`).
pub const TOPICS_MAX: usize = 4;

/// The addresses and topics of a log filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LogMatcher {
    /// The addresses, sorted. An empty list matches every address.
    pub addresses: Vec<[u8; 20]>,
    /// The topics by position, each list sorted. An empty list matches every topic, but the log
    /// must have a topic at that position.
    pub topics: Vec<Vec<[u8; 32]>>,
}

/// The reason why a filter is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.as_str())]
pub enum MatcherError {
    /// The filter is not an object.
    NotObject,
    /// An address is not a string of 0x and 40 hexadecimal digits.
    Address,
    /// A topic is neither null, a hash, nor an array of these.
    Topic,
    /// The filter has too many addresses or topics.
    TooMany,
}

impl MatcherError {
    /// Returns a text with the error and the allowed values.
    pub fn as_str(self) -> &'static str {
        match self {
            MatcherError::NotObject => "the filter must be an object",
            MatcherError::Address => {
                "address must be 0x and 40 hexadecimal digits, or an array of such strings"
            }
            MatcherError::Topic => {
                "a topic must be null, 0x and 64 hexadecimal digits, or an array of these"
            }
            MatcherError::TooMany => {
                "a filter has at most 4 topics, and 1000 addresses or alternatives of a topic"
            }
        }
    }
}

impl LogMatcher {
    /// Parses `address` and `topics` of a raw filter object.
    ///
    /// # Errors
    /// If a member has an invalid format.
    pub fn parse(raw: &[u8]) -> Result<LogMatcher, MatcherError> {
        if raw.first() != Some(&b'{') {
            return Err(MatcherError::NotObject);
        }
        let [address, topics] = walk::fields_of(raw, ["address", "topics"]);
        let mut matcher = LogMatcher::default();
        if let Some(raw) = address {
            matcher.addresses = parse_alternatives(raw, address_from_value, MatcherError::Address)?
                .unwrap_or_default();
        }
        match topics {
            None | Some(b"null") => {}
            Some(raw) if raw.first() == Some(&b'[') => {
                for alternatives in walk::elements(raw) {
                    if matcher.topics.len() == TOPICS_MAX {
                        return Err(MatcherError::TooMany);
                    }
                    let topics =
                        parse_alternatives(alternatives, hash_from_value, MatcherError::Topic)?;
                    matcher.topics.push(topics.unwrap_or_default());
                }
            }
            Some(_) => return Err(MatcherError::Topic),
        }
        Ok(matcher)
    }

    /// Returns true if the filter matches a log.
    pub fn matches(&self, log: &LogFields) -> bool {
        let mut topics = self.topics.iter().zip(&log.topics);
        is_accepted(&self.addresses, || Some(log.address))
            && self.topics.len() <= log.topics.len()
            && topics.all(|(alternatives, topic)| is_accepted(alternatives, || Some(*topic)))
    }

    /// Returns true if the filter matches a raw log. Returns false if the bytes are not a log. The
    /// function reads no more of the log than necessary.
    pub fn matches_raw(&self, log: &[u8]) -> bool {
        let [Some(address), Some(topics)] = walk::fields_of(log, ["address", "topics"]) else {
            return false;
        };
        let mut topics = walk::elements(topics);
        is_accepted(&self.addresses, || address_from_value(address))
            && self.topics.iter().all(|alternatives| {
                let topic = topics.next();
                topic.is_some_and(|topic| is_accepted(alternatives, || hash_from_value(topic)))
            })
    }
}

/// Returns true if a log's value is among these sorted alternatives. `parse` returns the value of
/// the log. If there are no alternatives, every value is accepted, and `parse` is not called.
fn is_accepted<const N: usize>(
    alternatives: &[[u8; N]],
    parse: impl FnOnce() -> Option<[u8; N]>,
) -> bool {
    alternatives.is_empty()
        || parse().is_some_and(|value| alternatives.binary_search(&value).is_ok())
}

/// Parses one value or an array of values, and sorts the values. `error` is the error for an
/// invalid value. Returns `None` if the filter accepts all values: the value is null, or null is
/// among the alternatives of a topic.
fn parse_alternatives<const N: usize>(
    raw: &[u8],
    parse_value: impl Fn(&[u8]) -> Option<[u8; N]>,
    error: MatcherError,
) -> Result<Option<Vec<[u8; N]>>, MatcherError> {
    let mut values = Vec::new();
    match raw.first() {
        Some(b'n') => return Ok(None),
        Some(b'[') => {
            for element in walk::elements(raw) {
                if values.len() == ALTERNATIVES_MAX {
                    return Err(MatcherError::TooMany);
                }
                if element == b"null" && error == MatcherError::Topic {
                    return Ok(None);
                }
                values.push(parse_value(element).ok_or(error)?);
            }
        }
        _ => values.push(parse_value(raw).ok_or(error)?),
    }
    values.sort_unstable();
    values.dedup();
    Ok(Some(values))
}

/// The block of a log, and the fields that a filter compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFields {
    /// The number of the block.
    pub block_number: u64,
    /// The hash of the block.
    pub block_hash: [u8; 32],
    /// The address of the contract.
    pub address: [u8; 20],
    /// The topics, at most [`TOPICS_MAX`].
    pub topics: Vec<[u8; 32]>,
}

impl LogFields {
    /// Parses a raw log. Returns `None` if the bytes are not a log.
    pub fn parse(raw: &[u8]) -> Option<LogFields> {
        let [number, hash] = walk::fields_of(raw, ["blockNumber", "blockHash"]);
        let (address, topics) = parse_address_and_topics(raw)?;
        Some(LogFields {
            block_number: quantity::from_value(number?)?,
            block_hash: hash_from_value(hash?)?,
            address,
            topics: topics.to_vec(),
        })
    }
}

/// The topics of a log.
pub type Topics = SmallVec<[[u8; 32]; TOPICS_MAX]>;

/// Parses the address and the topics of a raw log. Returns `None` if a member is missing or
/// invalid.
pub fn parse_address_and_topics(raw: &[u8]) -> Option<([u8; 20], Topics)> {
    let [address, topics] = walk::fields_of(raw, ["address", "topics"]);
    let topics: Option<SmallVec<_>> = walk::elements(topics?).map(hash_from_value).collect();
    Some((address_from_value(address?)?, topics.filter(|topics| topics.len() <= TOPICS_MAX)?))
}

/// Returns the raw log with `"removed": true`, which means that a reorg dropped its block.
pub fn mark_removed(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len() + 16);
    let removed_member = walk::member_spans(raw).find(|(name, _)| *name.decode() == *b"removed");
    match removed_member {
        Some((_, span)) => {
            out.extend_from_slice(&raw[..span.start]);
            out.extend_from_slice(b"true");
            out.extend_from_slice(&raw[span.end..]);
        }
        None => {
            out.extend_from_slice(br#"{"removed":true,"#);
            out.extend_from_slice(raw.strip_prefix(b"{").unwrap_or(raw));
        }
    }
    out
}
