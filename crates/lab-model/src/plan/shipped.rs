//! Mixes that are shipped with the program, as data (`crates/lab-model/mixes/*.toml`). Each says what it
//! stands for and where its weights are from.

use wire::family::Family;

#[cfg(test)]
mod tests;

/// All of them: name and text.
pub(super) static MIXES: [(&str, &str); 7] = [
    ("ethereum", include_str!("../../mixes/ethereum.toml")),
    ("harmony", include_str!("../../mixes/harmony.toml")),
    ("bitcoin", include_str!("../../mixes/bitcoin.toml")),
    ("somnia", include_str!("../../mixes/somnia.toml")),
    ("ethspam", include_str!("../../mixes/ethspam.toml")),
    ("chainbench-eth", include_str!("../../mixes/chainbench-eth.toml")),
    ("json-bench", include_str!("../../mixes/json-bench.toml")),
];

/// The text of a shipped mix.
pub(super) fn text(name: &str) -> Option<&'static str> {
    MIXES.iter().find(|(shipped, _)| *shipped == name).map(|(_, text)| *text)
}

/// Names of the shipped mixes.
pub fn names() -> impl Iterator<Item = &'static str> {
    MIXES.iter().map(|(name, _)| *name)
}

/// The mix of reads for a family, which is what a run sends if nothing is asked for.
pub fn usual(family: Family) -> &'static str {
    family.as_str()
}
