//! The mixes that are shipped with the program. Each file in `crates/lab-model/mixes/` describes a
//! mix and the source of its weights.

use wire::family::Family;

#[cfg(test)]
mod tests;

/// Names and texts of all shipped mixes.
pub(super) static MIXES: [(&str, &str); 7] = [
    ("ethereum", include_str!("../../mixes/ethereum.toml")),
    ("harmony", include_str!("../../mixes/harmony.toml")),
    ("bitcoin", include_str!("../../mixes/bitcoin.toml")),
    ("somnia", include_str!("../../mixes/somnia.toml")),
    ("ethspam", include_str!("../../mixes/ethspam.toml")),
    ("chainbench-eth", include_str!("../../mixes/chainbench-eth.toml")),
    ("json-bench", include_str!("../../mixes/json-bench.toml")),
];

/// Returns the text of a shipped mix, or `None` if no shipped mix has this name.
pub(super) fn text(name: &str) -> Option<&'static str> {
    MIXES.iter().find(|(shipped, _)| *shipped == name).map(|(_, text)| *text)
}

/// Returns the names of the shipped mixes.
pub fn names() -> impl Iterator<Item = &'static str> {
    MIXES.iter().map(|(name, _)| *name)
}

/// Returns the name of a family's default mix. The calls of this mix do not write to the node.
pub fn default_mix(family: Family) -> &'static str {
    family.as_str()
}
