//! Chain profiles: what is known of public chains, by name and id.
//!
//! The profiles are a file (`crates/wire/chains.toml`) that is compiled in and parsed at the first
//! use. `xtask/chains.mjs` writes the file from a public list of chains.

use std::sync::OnceLock;
use std::time::Duration;

use serde::Deserialize;

use crate::family::Family;

/// What is known of one chain.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainProfile {
    /// The name in configurations, such as `base`.
    pub name: String,
    /// Other names of the chain.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The name for people.
    pub title: String,
    /// The chain id that nodes return for `eth_chainId`; `None` if they return none.
    pub id: Option<u64>,
    /// The family, which determines the chain's methods.
    #[serde(default = "ethereum")]
    pub family: Family,
    /// Time between blocks in milliseconds; `None` if it is not known.
    block_ms: Option<u64>,
    /// True for a test network.
    #[serde(default)]
    pub testnet: bool,
    /// What distinguishes the chain from Ethereum.
    #[serde(default)]
    pub traits: Vec<ChainTrait>,
}

/// What distinguishes a chain from Ethereum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChainTrait {
    /// Some heights have no block.
    NullRounds,
    /// Blocks have deposits from a parent chain, as in the OP stack.
    OpStack,
    /// Blocks have transactions that their root does not include: state sync.
    StateSync,
    /// Blocks have transactions that their root does not include: system transactions.
    SystemTransactions,
}

impl ChainTrait {
    /// Describes the trait in a few words.
    pub fn describe(self) -> &'static str {
        match self {
            ChainTrait::NullRounds => "heights without a block",
            ChainTrait::OpStack => "OP stack",
            ChainTrait::StateSync => "state sync outside the transactions root",
            ChainTrait::SystemTransactions => "system transactions outside the transactions root",
        }
    }
}

impl ChainProfile {
    /// Returns the time between blocks; `None` if it is not known.
    pub fn block_time(&self) -> Option<Duration> {
        self.block_ms.map(Duration::from_millis)
    }
}

/// Returns all profiles, sorted by name.
pub fn list() -> &'static [ChainProfile] {
    static PROFILES: OnceLock<Vec<ChainProfile>> = OnceLock::new();
    PROFILES.get_or_init(|| {
        let file: ProfileFile = toml::from_str(include_str!("../chains.toml"))
            .expect("a test reads the file, which is compiled in");
        file.chain
    })
}

/// Returns the profile of the chain with this name or alias.
pub fn find_by_name(name: &str) -> Option<&'static ChainProfile> {
    let has_name = |profile: &&ChainProfile| {
        profile.name == name || profile.aliases.iter().any(|alias| alias == name)
    };
    list().iter().find(has_name)
}

/// Returns the profile of the chain with this id.
pub fn find_by_id(id: u64) -> Option<&'static ChainProfile> {
    list().iter().find(|profile| profile.id == Some(id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    chain: Vec<ChainProfile>,
}

fn ethereum() -> Family {
    Family::Ethereum
}

#[cfg(test)]
mod tests {
    //! Goal: the file is read, no name or id stands twice, and facts that everybody knows are right.

    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_name_or_id_stands_twice() {
        let (mut names, mut ids) = (HashSet::new(), HashSet::new());
        for profile in list() {
            for name in profile.aliases.iter().chain([&profile.name]) {
                let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                assert!(name.bytes().all(is_allowed), "{name}");
                assert!(names.insert(name), "{name} stands twice");
            }
            assert!(profile.id.is_none_or(|id| ids.insert(id)), "{:?} stands twice", profile.id);
            assert!(profile.id.is_some() || profile.family == Family::Bitcoin, "{}", profile.name);
            assert!(profile.block_ms.is_none_or(|ms| (100..=600_000).contains(&ms)), "{profile:?}");
        }
        assert!(ids.len() >= 200, "only {} chains", ids.len());
        assert!(list().is_sorted_by_key(|profile| &profile.name));
        assert!(list().iter().filter(|profile| profile.block_ms.is_some()).count() >= 100);
    }

    #[test]
    fn well_known_chains_are_right() {
        for (name, id, block_ms) in [
            ("ethereum", 1, 12_000),
            ("mainnet", 1, 12_000),
            ("optimism", 10, 2_000),
            ("gnosis", 100, 5_000),
            ("polygon", 137, 2_000),
            ("filecoin", 314, 30_000),
            ("base", 8453, 2_000),
            ("arbitrum-one", 42161, 250),
            ("sepolia", 11_155_111, 12_000),
            ("harmony", 1_666_600_000, 2_000),
        ] {
            let profile = find_by_name(name).unwrap();
            assert_eq!((profile.id, profile.block_ms), (Some(id), Some(block_ms)), "{name}");
            assert_eq!(find_by_id(id), Some(profile));
        }
        assert_eq!(find_by_name("harmony").unwrap().family, Family::Harmony);
        assert_eq!(find_by_name("base").unwrap().traits, [ChainTrait::OpStack]);
        assert_eq!(find_by_name("filecoin").unwrap().traits, [ChainTrait::NullRounds]);
        assert_eq!((find_by_name("eth"), find_by_id(2)), (None, None));
    }
}
