//! The effect of a method: the method reads, submits a signed transaction, or changes the node.
//!
//! `crates/wire/methods/effect.toml` lists names and prefixes of names. Methods that are missing in
//! the method tables have an effect too, because they may match a prefix.

use std::sync::OnceLock;

use serde::Deserialize;

use crate::family::Family;

#[cfg(test)]
mod tests;

/// The effect of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Effect {
    /// The method reads.
    #[default]
    Read,
    /// The method submits a signed transaction to the chain.
    Transaction,
    /// The method changes the node's settings, peers, mining or files, or uses keys of the node.
    Node,
}

/// Returns the effect of the method with this name. The method need not be in a method table.
/// Letter case is ignored, because some nodes ignore it. The longest matching pattern decides, and
/// without one the words of the name.
pub fn effect_of(family: Family, name: &str) -> Effect {
    let effects = effects();
    let family_patterns: &[&Patterns] = match family {
        Family::Ethereum => &[&effects.ethereum],
        Family::Harmony => &[&effects.harmony, &effects.ethereum],
        Family::Bitcoin => &[&effects.bitcoin],
    };
    let lists = family_patterns.iter().flat_map(|patterns| {
        [
            (Effect::Read, &patterns.read),
            (Effect::Transaction, &patterns.transaction),
            (Effect::Node, &patterns.node),
        ]
    });
    lists
        .flat_map(|(effect, list)| list.iter().map(move |pattern| (effect, pattern)))
        .filter(|(_, pattern)| is_match(pattern, name))
        .max_by_key(|(effect, pattern)| (pattern.len(), *effect == Effect::Node))
        .map_or_else(|| effects.shape.effect_of(family, name), |(effect, _)| effect)
}

/// Returns true if a pattern of `effect.toml` matches a name. A pattern is a name, or a prefix with
/// `*` at its end. Letter case is ignored.
fn is_match(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => starts_with_ignoring_case(name, prefix),
        None => pattern.eq_ignore_ascii_case(name),
    }
}

impl Shape {
    /// Returns the effect of a method that no pattern matches.
    fn effect_of(&self, family: Family, name: &str) -> Effect {
        let own_name = name.split_once(['_', '.', '/']).map_or(name, |(_, own_name)| own_name);
        if family == Family::Bitcoin {
            let starts_with_verb =
                |text| self.change.iter().any(|verb| starts_with_ignoring_case(text, verb));
            let changes = starts_with_verb(name) || starts_with_verb(own_name);
            return if changes { Effect::Node } else { Effect::Read };
        }
        let has = |list: &[String], word: &str| list.iter().any(|w| w.eq_ignore_ascii_case(word));
        let starts_with = |list, text| words_of(text).next().is_some_and(|word| has(list, word));
        if starts_with(&self.reading, own_name) {
            return Effect::Read;
        }
        let mut words = words_of(own_name);
        let submits = words.any(|word| has(&self.submit, word))
            && words.any(|word| has(&self.submitted, word));
        if submits && words_of(own_name).any(|word| has(&self.signed, word)) {
            Effect::Transaction
        } else if starts_with(&self.change, name) || starts_with(&self.change, own_name) {
            Effect::Node
        } else if submits {
            Effect::Transaction
        } else {
            Effect::Read
        }
    }
}

/// Returns the words of a name: `eth_sendRawTransaction` has the words eth, send, Raw and
/// Transaction. A word begins after a separator, and at a capital letter after a small one or a
/// digit.
fn words_of(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    core::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        let bytes = rest.as_bytes();
        let ends_at = |at: &usize| {
            let (before, byte) = (bytes[at - 1], bytes[*at]);
            !byte.is_ascii_alphanumeric()
                || (byte.is_ascii_uppercase() && !before.is_ascii_uppercase())
        };
        let end = (1..bytes.len()).find(ends_at).unwrap_or(bytes.len());
        let (word, after) = rest.split_at_checked(end)?;
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// Returns true if `name` starts with `prefix`, ignoring the case of letters.
pub fn starts_with_ignoring_case(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

// The content of `effect.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Effects {
    shape: Shape,
    ethereum: Patterns,
    harmony: Patterns,
    bitcoin: Patterns,
}

// The words that decide about a name that no pattern matches.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    change: Vec<String>,
    reading: Vec<String>,
    submit: Vec<String>,
    submitted: Vec<String>,
    signed: Vec<String>,
}

// Patterns of the methods of a chain family.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patterns {
    transaction: Vec<String>,
    node: Vec<String>,
    read: Vec<String>,
}

fn effects() -> &'static Effects {
    static EFFECTS: OnceLock<Effects> = OnceLock::new();
    EFFECTS.get_or_init(|| {
        toml::from_str(include_str!("../methods/effect.toml"))
            .expect("a test reads the list, which is compiled in")
    })
}
