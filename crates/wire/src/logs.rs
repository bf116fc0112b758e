//! Logs, and which of them a filter selects by address and topics.
//!
//! The rules are those of go-ethereum (`eth/filters/api.go` `FilterCriteria.UnmarshalJSON`,
//! `eth/filters/filter.go` `filterLogs`). Which blocks a filter spans is `filter.rs`.

use smallvec::SmallVec;

use crate::block::{address_of_value, hash_of_value};
use crate::json::walk;
use crate::quantity;

#[cfg(test)]
mod tests;

/// Most addresses of one filter, and most topics at one position (go-ethereum
/// `ethconfig.Defaults.LogQueryLimit`).
pub const ALTERNATIVES_MAX: usize = 1000;
/// A log has at most so many topics (go-ethereum `eth/filters/api.go` `maxTopics`).
pub const TOPICS_MAX: usize = 4;

/// Which logs are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Sorted; empty is every address.
    addresses: Vec<[u8; 20]>,
    /// By position, sorted; empty is every topic, but the log must have one there.
    topics: Vec<Vec<[u8; 32]>>,
}

/// Why a filter selects nothing that could be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.as_str())]
pub enum NoSelection {
    /// It is no object.
    NotObject,
    /// An address is no string of 0x and 40 hexadecimal digits.
    Address,
    /// A topic is neither null, a hash, nor an array of such.
    Topic,
    /// Too many of something.
    TooMany,
}

impl NoSelection {
    /// What is wrong, and what is allowed.
    pub fn as_str(self) -> &'static str {
        match self {
            NoSelection::NotObject => "the filter must be an object",
            NoSelection::Address => {
                "address must be 0x and 40 hexadecimal digits, or an array of such strings"
            }
            NoSelection::Topic => {
                "a topic must be null, 0x and 64 hexadecimal digits, or an array of these"
            }
            NoSelection::TooMany => {
                "a filter has at most 4 topics, and 1000 addresses or alternatives of a topic"
            }
        }
    }
}

impl Selection {
    /// Reads `address` and `topics` of a raw filter object.
    ///
    /// # Errors
    /// What is not of the right form.
    pub fn read(raw: &[u8]) -> Result<Selection, NoSelection> {
        if raw.first() != Some(&b'{') {
            return Err(NoSelection::NotObject);
        }
        let [address, topics] = walk::fields_of(raw, ["address", "topics"]);
        let mut selection = Selection::default();
        if let Some(raw) = address {
            selection.addresses =
                alternatives(raw, address_of_value, NoSelection::Address)?.unwrap_or_default();
        }
        match topics {
            None | Some(b"null") => {}
            Some(raw) if raw.first() == Some(&b'[') => {
                for position in walk::elements(raw) {
                    if selection.topics.len() == TOPICS_MAX {
                        return Err(NoSelection::TooMany);
                    }
                    let topics = alternatives(position, hash_of_value, NoSelection::Topic)?;
                    selection.topics.push(topics.unwrap_or_default());
                }
            }
            Some(_) => return Err(NoSelection::Topic),
        }
        Ok(selection)
    }

    /// The addresses wanted, sorted; none at all for every address.
    pub fn addresses(&self) -> &[[u8; 20]] {
        &self.addresses
    }

    /// The topics wanted by position, each sorted; an empty one is every topic.
    pub fn topics(&self) -> &[Vec<[u8; 32]>] {
        &self.topics
    }

    /// Whether a log is wanted.
    pub fn has(&self, log: &LogKeys) -> bool {
        let known = self.addresses.is_empty() || self.addresses.binary_search(&log.address).is_ok();
        known
            && self.topics.len() <= log.topics.len()
            && self
                .topics
                .iter()
                .zip(&log.topics)
                .all(|(wanted, topic)| wanted.is_empty() || wanted.binary_search(topic).is_ok())
    }

    /// Whether a raw log is wanted; what is no log is not. Looks at no more of it than it must.
    pub fn has_raw(&self, log: &[u8]) -> bool {
        let [Some(address), Some(topics)] = walk::fields_of(log, ["address", "topics"]) else {
            return false;
        };
        let is_one_of = |wanted: &[[u8; 32]], topic| {
            wanted.is_empty()
                || hash_of_value(topic).is_some_and(|topic| wanted.binary_search(&topic).is_ok())
        };
        let known = self.addresses.is_empty()
            || address_of_value(address)
                .is_some_and(|address| self.addresses.binary_search(&address).is_ok());
        let mut topics = walk::elements(topics);
        known
            && self
                .topics
                .iter()
                .all(|wanted| topics.next().is_some_and(|topic| is_one_of(wanted, topic)))
    }
}

/// One value or an array of them, sorted; none where null stands for all of them.
fn alternatives<const N: usize>(
    raw: &[u8],
    read: impl Fn(&[u8]) -> Option<[u8; N]>,
    fault: NoSelection,
) -> Result<Option<Vec<[u8; N]>>, NoSelection> {
    let mut values = Vec::new();
    match raw.first() {
        Some(b'n') => return Ok(None),
        Some(b'[') => {
            for element in walk::elements(raw) {
                if values.len() == ALTERNATIVES_MAX {
                    return Err(NoSelection::TooMany);
                }
                // Among the alternatives of a topic, null is any.
                if element == b"null" && fault == NoSelection::Topic {
                    return Ok(None);
                }
                values.push(read(element).ok_or(fault)?);
            }
        }
        _ => values.push(read(raw).ok_or(fault)?),
    }
    values.sort_unstable();
    values.dedup();
    Ok(Some(values))
}

/// What a log is selected by, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogKeys {
    /// Height of its block.
    pub number: u64,
    /// Hash of its block.
    pub block_hash: [u8; 32],
    /// The contract.
    pub address: [u8; 20],
    /// At most [`TOPICS_MAX`].
    pub topics: Vec<[u8; 32]>,
}

impl LogKeys {
    /// Reads them of a raw log.
    pub fn read(raw: &[u8]) -> Option<LogKeys> {
        let [number, hash] = walk::fields_of(raw, ["blockNumber", "blockHash"]);
        let (address, topics) = keys_of(raw)?;
        Some(LogKeys {
            number: quantity::from_value(number?)?,
            block_hash: hash_of_value(hash?)?,
            address,
            topics: topics.to_vec(),
        })
    }
}

/// Topics of a log.
pub type Topics = SmallVec<[[u8; 32]; TOPICS_MAX]>;

/// Address and topics of a raw log.
pub fn keys_of(raw: &[u8]) -> Option<([u8; 20], Topics)> {
    let [address, topics] = walk::fields_of(raw, ["address", "topics"]);
    let topics: Option<SmallVec<_>> = walk::elements(topics?).map(hash_of_value).collect();
    Some((address_of_value(address?)?, topics.filter(|topics| topics.len() <= TOPICS_MAX)?))
}

/// The same log as one whose block is not on the chain any more.
pub fn removed(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len() + 16);
    let found = walk::member_spans(raw).find(|(name, _)| *name.decode() == *b"removed");
    match found {
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
