//! The logs that a subscriber or a filter selects. Filters are parsed as in go-ethereum
//! (`eth/filters/api.go`).

use std::ops::RangeInclusive;

use wire::block::{BlockRef, BlockTag};
use wire::filter::{LogFilter, MEMBERS};
use wire::json::string::write_member;
use wire::json::walk;
use wire::logs::{LogFields, LogMatcher, MatcherError};

use crate::call::failure::SubscribeRefusal;

/// The logs that a subscriber selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSelection {
    /// The addresses and topics of the selected logs.
    matcher: LogMatcher,
    /// Heights of the blocks whose logs are selected.
    blocks: RangeInclusive<u64>,
}

/// Returns a filter object without unknown members. Names of members can have any letter case, as
/// in geth. The result uses the standard spelling.
fn keep_known_members(raw: &[u8]) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (name, value) in walk::members(raw) {
        let name = name.decode();
        let matches_name = |member: &&&str| member.as_bytes().eq_ignore_ascii_case(&name);
        if let Some(member) = MEMBERS.iter().find(matches_name) {
            write_member(&mut out, member.as_bytes(), value);
        }
    }
    out.push(b'}');
    out
}

impl LogSelection {
    /// Parses a filter. Returns the selection, and the filter in its standard form.
    pub(super) fn parse(raw: &[u8]) -> Result<(LogSelection, Vec<u8>), SubscribeRefusal> {
        if raw.first() != Some(&b'{') {
            return Err(SubscribeRefusal::Filter(MatcherError::NotObject));
        }
        let raw = keep_known_members(raw);
        let matcher = LogMatcher::parse(&raw).map_err(SubscribeRefusal::Filter)?;
        let filter = LogFilter::parse(&raw).map_err(|_| SubscribeRefusal::Range)?;
        if filter.block_hash.is_some() {
            return Err(SubscribeRefusal::Range);
        }
        let to_height = |bound, unbounded_height| match bound {
            None | Some(BlockRef::Tag(BlockTag::Latest)) => Ok(unbounded_height),
            Some(BlockRef::Number(number)) => Ok(number),
            Some(_) => Err(SubscribeRefusal::Range),
        };
        // For future blocks, `earliest` is equivalent to no lower bound.
        let from = filter.from.filter(|from| *from != BlockRef::Tag(BlockTag::Earliest));
        let blocks = to_height(from, 0)?..=to_height(filter.to, u64::MAX)?;
        if blocks.is_empty() {
            return Err(SubscribeRefusal::Range);
        }
        Ok((LogSelection { matcher, blocks }, raw))
    }

    pub(super) fn selects(&self, log: &LogFields) -> bool {
        self.blocks.contains(&log.block_number) && self.matcher.matches(log)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: filters are parsed as geth parses them.

    use super::*;

    #[test]
    fn a_filter_is_reduced_to_known_members() {
        let long = "x".repeat(1 << 20);
        let raw = format!(
            r#"{{ "x": "{long}", "address": ["0x01", "0x02"],"topics" :[null,["0x03"]], "fromBlock":"0x1" }}"#
        );
        let expected = r#"{"address":["0x01", "0x02"],"topics":[null,["0x03"]],"fromBlock":"0x1"}"#;
        assert_eq!(String::from_utf8(keep_known_members(raw.as_bytes())).unwrap(), expected);
        assert_eq!(keep_known_members(b"{}"), b"{}");
    }

    #[test]
    fn member_names_are_read_in_any_case() {
        let expected = LogSelection::parse(br#"{"toBlock":"0x2","fromBlock":"0x1"}"#).unwrap();
        assert_eq!(expected.0.blocks, 1..=2);
        assert_eq!(LogSelection::parse(br#"{"toblock":"0x2","FROMBLOCK":"0x1"}"#), Ok(expected));
        let hash = format!(r#"{{"BLOCKHASH":"0x{}"}}"#, "0".repeat(64));
        assert_eq!(LogSelection::parse(hash.as_bytes()), Err(SubscribeRefusal::Range));
        assert_eq!(
            LogSelection::parse(br#"{"ADDRESS":1}"#),
            Err(SubscribeRefusal::Filter(MatcherError::Address))
        );
    }
}
