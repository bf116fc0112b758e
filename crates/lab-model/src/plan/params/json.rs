//! Converts JSON texts to the same trees as TOML, so that a JSON text can contain generators too. A
//! generator stands for a random value. Keeps numbers as written, and the order of members.
//!
//! An item is a parsed value with its position in the plan's file, and its tree is the value
//! itself.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use settings::{Item, Member, Span, Tree};

use super::DRAW;

/// Maximum nesting depth, as in `wire::call::Limits::DEFAULT`.
const DEPTH_MAX: usize = 128;

/// Parses a JSON text. Every part of the tree gets the position `span`. Returns `None` if the text
/// is not JSON, or if its arrays and objects are nested deeper than [`DEPTH_MAX`].
pub(super) fn parse_item(text: &str, span: &Span) -> Option<Item> {
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    convert_raw(raw, span, 0)
}

/// Returns true if a tree contains a generator, literal JSON, or a name such as `$address`. Other
/// tools replace such a name by a random value.
pub(super) fn has_generators(item: &Item) -> bool {
    match &item.tree {
        Tree::List(list) => list.iter().any(has_generators),
        Tree::Table(members) => {
            let has_only = |key: &str| matches!(members.as_slice(), [only] if only.key == key);
            let is_generator_key =
                |member: &Member| member.key == DRAW || super::is_dollar_name(&member.key);
            members.iter().any(|member| is_generator_key(member) || has_generators(&member.item))
                || has_only(super::BLOCK)
                || has_only(super::JSON)
        }
        Tree::String(text) => super::is_dollar_name(text),
        _ => false,
    }
}

/// Converts a JSON text that is nested in `depth` arrays and objects.
fn convert_raw(raw: &RawValue, span: &Span, depth: usize) -> Option<Item> {
    if depth > DEPTH_MAX {
        return None;
    }
    let text = raw.get();
    let tree = match text.as_bytes().first()? {
        b'[' => {
            let list: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Tree::List(
                list.into_iter()
                    .map(|raw| convert_raw(raw, span, depth + 1))
                    .collect::<Option<_>>()?,
            )
        }
        b'{' => {
            let Members(members) = serde_json::from_str(text).ok()?;
            let member = |(key, raw): (String, &RawValue)| {
                Some(Member { key, span: span.clone(), item: convert_raw(raw, span, depth + 1)? })
            };
            Tree::Table(members.into_iter().map(member).collect::<Option<_>>()?)
        }
        b'"' => Tree::String(serde_json::from_str(text).ok()?),
        b't' => Tree::Bool(true),
        b'f' => Tree::Bool(false),
        b'n' => Tree::Null,
        _ if text.contains(['.', 'e', 'E']) => Tree::Float(text.to_owned()),
        _ => Tree::Integer(text.to_owned()),
    };
    Some(Item { span: span.clone(), tree })
}

/// The members of an object, in the order of the text.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}
