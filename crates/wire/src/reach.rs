//! What a call acts on: it reads, hands over a signed transaction, or acts on the node itself.
//!
//! The facts are data (`crates/wire/methods/reach.toml`), as those of `method.rs` are. They hold
//! for methods without a row too, since a node may know more of a namespace than any table. Who may
//! call what is decided by the gateway.

use std::sync::OnceLock;

use serde::Deserialize;

use crate::method::FamilyName;

#[cfg(test)]
mod tests;

/// What a call acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Nothing: it reads.
    Read,
    /// The chain, by a transaction that its sender has signed.
    Transaction,
    /// The node's settings, peers, mining or files, or keys that the node holds.
    Node,
}

impl Reach {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Reach::Read => "reads",
            Reach::Transaction => "hands over a signed transaction",
            Reach::Node => "acts on the node itself or with keys that it holds",
        }
    }
}

/// What a method of this name acts on, whether a table knows it or not. The case of letters makes no
/// difference, because some nodes ignore it.
pub fn reach(family: FamilyName, name: &str) -> Reach {
    let reaches = reaches();
    let own: &[&Patterns] = match family {
        FamilyName::Ethereum => &[&reaches.ethereum],
        FamilyName::Harmony => &[&reaches.harmony, &reaches.ethereum],
        FamilyName::Bitcoin => &[&reaches.bitcoin],
    };
    let listed = |list: fn(&Patterns) -> &[String]| {
        own.iter().any(|patterns| list(patterns).iter().any(|pattern| fits(pattern, name)))
    };
    if listed(|patterns| &patterns.node) {
        Reach::Node
    } else if listed(|patterns| &patterns.transaction) {
        Reach::Transaction
    } else {
        Reach::Read
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => starts_with_any_case(name, prefix),
        None => pattern.eq_ignore_ascii_case(name),
    }
}

/// Returns true if `name` begins with `prefix` in any case of letters.
pub fn starts_with_any_case(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reaches {
    ethereum: Patterns,
    harmony: Patterns,
    bitcoin: Patterns,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patterns {
    transaction: Vec<String>,
    node: Vec<String>,
}

fn reaches() -> &'static Reaches {
    static REACHES: OnceLock<Reaches> = OnceLock::new();
    REACHES.get_or_init(|| {
        toml::from_str(include_str!("../methods/reach.toml"))
            .expect("the lists are compiled in and read in a test")
    })
}
