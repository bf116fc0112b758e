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
/// Letter case is ignored, because some nodes ignore it.
pub fn effect_of(family: Family, name: &str) -> Effect {
    let effects = effects();
    let family_patterns: &[&Patterns] = match family {
        Family::Ethereum => &[&effects.ethereum],
        Family::Harmony => &[&effects.harmony, &effects.ethereum],
        Family::Bitcoin => &[&effects.bitcoin],
    };
    let is_listed = |list_of: fn(&Patterns) -> &[String]| {
        family_patterns
            .iter()
            .any(|patterns| list_of(patterns).iter().any(|pattern| is_match(pattern, name)))
    };
    if is_listed(|patterns| &patterns.node) {
        Effect::Node
    } else if is_listed(|patterns| &patterns.transaction) {
        Effect::Transaction
    } else {
        Effect::Read
    }
}

/// Returns true if a pattern of `effect.toml` matches a name. A pattern is a name, or a prefix with
/// `*` at its end. Letter case is ignored.
fn is_match(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => starts_with_ignoring_case(name, prefix),
        None => pattern.eq_ignore_ascii_case(name),
    }
}

/// Returns true if `name` starts with `prefix`, ignoring the case of letters.
pub fn starts_with_ignoring_case(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

// The content of `effect.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Effects {
    ethereum: Patterns,
    harmony: Patterns,
    bitcoin: Patterns,
}

// The methods of a chain family that submit a transaction or change the node. All other methods
// read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patterns {
    transaction: Vec<String>,
    node: Vec<String>,
}

fn effects() -> &'static Effects {
    static EFFECTS: OnceLock<Effects> = OnceLock::new();
    EFFECTS.get_or_init(|| {
        toml::from_str(include_str!("../methods/effect.toml"))
            .expect("a test reads the list, which is compiled in")
    })
}
