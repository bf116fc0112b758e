//! The raw members of JSON-RPC responses, and the first difference between two responses.
//!
//! Only the envelope is parsed. The values of its members are compared byte by byte.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// The members of one response or call, each as raw text.
pub type Members<'a> = BTreeMap<&'a str, &'a RawValue>;

/// Parses the members of an object.
pub fn members(text: &str) -> Members<'_> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {}", excerpt(text)))
}

/// Parses the raw items of an array.
pub fn items(text: &str) -> Vec<&RawValue> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {}", excerpt(text)))
}

/// Describes the first difference between the expected response, `theirs`, and the response of the
/// program under test, `ours`. Returns `None` if all members are equal byte by byte.
pub fn difference(theirs: &str, ours: &str) -> Option<String> {
    let (theirs, ours) = (members(theirs), members(ours));
    let names = |members: &Members<'_>| members.keys().copied().collect::<Vec<_>>().join(" ");
    if theirs.keys().ne(ours.keys()) {
        return Some(format!("members {} became {}", names(&theirs), names(&ours)));
    }
    theirs.iter().find_map(|(name, theirs)| {
        let (theirs, ours) = (theirs.get(), ours[name].get());
        if theirs == ours {
            return None;
        }
        let offset =
            theirs.bytes().zip(ours.bytes()).take_while(|(left, right)| left == right).count();
        let context = |text: &str| {
            let (start, end) = (offset.saturating_sub(40), (offset + 40).min(text.len()));
            String::from_utf8_lossy(&text.as_bytes()[start..end]).into_owned()
        };
        Some(format!("{name} at byte {offset}: {:?} became {:?}", context(theirs), context(ours)))
    })
}

/// Returns the first 300 characters of a text, for messages.
pub fn excerpt(text: &str) -> String {
    text.chars().take(300).collect()
}
