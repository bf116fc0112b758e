//! JSON texts as trees, so that generators may stand in them as in TOML. Numbers and the order of
//! members stay as they were written.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use settings::{Item, Member, Span, Tree};

use super::DRAW;

/// Nesting that is followed, as deep as nodes read calls (`wire::call::Limits::DEFAULT`).
const DEPTH_MAX: usize = 128;

/// The tree of a JSON text; all of it stands at `span`. None if the text is not JSON, or nested
/// deeper than 128.
pub(super) fn item(text: &str, span: &Span) -> Option<Item> {
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    of_raw(raw, span, 0)
}

/// True if anything in a tree is a generator, or looks like one of another tool.
pub(super) fn draws(item: &Item) -> bool {
    match &item.tree {
        Tree::List(list) => list.iter().any(draws),
        Tree::Table(members) => {
            let only = |key: &str| matches!(members.as_slice(), [one] if one.key == key);
            let own = |member: &Member| member.key == DRAW || super::is_name(&member.key);
            members.iter().any(|member| own(member) || draws(&member.item))
                || only(super::BLOCK)
                || only(super::JSON)
        }
        Tree::Text(text) => super::is_name(text),
        _ => false,
    }
}

fn of_raw(raw: &RawValue, span: &Span, depth: usize) -> Option<Item> {
    if depth > DEPTH_MAX {
        return None;
    }
    let text = raw.get();
    let tree = match text.as_bytes().first()? {
        b'[' => {
            let list: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            Tree::List(
                list.into_iter().map(|raw| of_raw(raw, span, depth + 1)).collect::<Option<_>>()?,
            )
        }
        b'{' => {
            let Members(members) = serde_json::from_str(text).ok()?;
            let member = |(key, raw): (String, &RawValue)| {
                Some(Member { key, span: span.clone(), item: of_raw(raw, span, depth + 1)? })
            };
            Tree::Table(members.into_iter().map(member).collect::<Option<_>>()?)
        }
        b'"' => Tree::Text(serde_json::from_str(text).ok()?),
        b't' => Tree::Bool(true),
        b'f' => Tree::Bool(false),
        b'n' => Tree::Null,
        _ if text.contains(['.', 'e', 'E']) => Tree::Float(text.to_owned()),
        _ => Tree::Integer(text.to_owned()),
    };
    Some(Item { span: span.clone(), tree })
}

/// The members of an object in their order.
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
