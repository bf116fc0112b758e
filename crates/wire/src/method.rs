//! Facts about methods: what an answer is bound to, where the block stands, what may be repeated.
//!
//! The facts are data (`crates/wire/methods/*.toml`), read once and checked in tests. A method without a row is
//! unknown: callers must neither store, join nor repeat it. What follows from a fact is decided by
//! the gateway's rules.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::OnceLock;

use foldhash::fast::RandomState;
use serde::Deserialize;

use crate::block::{BlockForm, Tag};
use crate::reach::{Reach, reach};

#[cfg(test)]
mod tests;

/// What an answer stays true with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Nothing: the same for ever on one chain.
    Constant,
    /// The block that the block parameter names (by number, tag or hash). Left out without a
    /// default, nobody can say which block: treat the call like [`Bound::Never`].
    Number,
    /// A pure function of the block hash given as block parameter.
    Hash,
    /// The block in which a transaction stands; the answer names it (rule of the gateway: valid
    /// while that hash is canonical). If `answer_block` is none the answer names no block and
    /// must not be stored.
    Transaction,
    /// The head at the time of answering; there is no block parameter.
    Head,
    /// The range of a log filter.
    Logs,
    /// The node's pool of waiting transactions: never stored.
    Mempool,
    /// Nothing that can be checked: never stored.
    Never,
}

/// Whether a call that may have reached a node can be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Repeat {
    /// Repeating changes nothing.
    #[default]
    Safe,
    /// A signed transaction: repeating is harmless since the chain takes it once, but the second
    /// node's "already known" must be understood as success.
    Broadcast,
    /// Repeating may do the thing twice.
    Never,
}

/// How a result names the block it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerBlock {
    /// It does not.
    #[default]
    None,
    /// It is the block: members `hash` and `number`.
    Block,
    /// Members `blockHash` and `blockNumber`.
    Names,
    /// It is an array whose elements have members `blockHash` and `blockNumber`, in rising order.
    EachNames,
}

/// What a parameter is, as far as keys need to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParamKind {
    /// 20 bytes in hexadecimal, or a bech32 text whose case is kept.
    Address,
    /// 32 bytes in hexadecimal.
    Hash,
    /// Bytes in hexadecimal.
    Data,
    /// A number in hexadecimal.
    Quantity,
    /// A block.
    Block,
    /// A truth value.
    Bool,
    /// A log filter.
    Filter,
    /// A transaction or call object.
    CallObject,
    /// Anything else: compared as it is written, whitespace, escapes and member order aside.
    Any,
}

/// Where a method's block parameter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockParam {
    /// Position in the parameters, from 0. For a range of blocks this is its end.
    pub at: usize,
    /// Its form.
    pub form: BlockForm,
    /// What leaving it out means, where a specification fixes that.
    pub default: Option<Tag>,
}

/// One row of a table.
#[derive(Debug, PartialEq, Eq)]
pub struct Method {
    /// The whole name.
    pub name: &'static str,
    /// What an answer stays true with.
    pub bound: Bound,
    /// Where the block parameter stands, if there is one.
    pub block: Option<BlockParam>,
    /// Whether a call may be sent again.
    pub repeat: Repeat,
    /// Rough cost for a node; 1 is a read of one record.
    pub weight: u32,
    /// The parameters by position; those beyond are [`ParamKind::Any`].
    pub params: &'static [ParamKind],
    /// Whether equal calls at the same time may share one answer.
    pub coalesce: bool,
    /// Whether follow-up calls must go to the node that answered (filters, subscriptions).
    pub sticky: bool,
    /// Whether the call changes something: the pool, the node's settings, its keys.
    pub write: bool,
    /// Whether the result is the head's number itself.
    pub head_value: bool,
    /// How a result names its block.
    pub answer_block: AnswerBlock,
    /// How far below the head a block must be for its answer to be final in form: 1 where a node
    /// completes the newest block's answer only with the next block.
    pub behind_head: u64,
    /// What a call acts on.
    pub reach: Reach,
}

/// The method whose results another method returns too. Lists and limits that name the former hold
/// for the latter. The case of letters makes no difference.
pub fn stands_for(name: &str) -> Option<&'static str> {
    let (namespace, method) = name.split_once('_')?;
    if !method.eq_ignore_ascii_case("getFilterLogs") {
        return None;
    }
    let known = ["eth_getLogs", "hmy_getLogs", "hmyv2_getLogs"];
    let is_of = |own: &&str| {
        own.split_once('_').is_some_and(|(own, _)| own.eq_ignore_ascii_case(namespace))
    };
    known.into_iter().find(is_of)
}

/// The families of chains that have a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FamilyName {
    /// Ethereum and chains with its methods.
    Ethereum,
    /// Harmony: `hmy_` and `hmyv2_` beside Ethereum's.
    Harmony,
    /// Bitcoin and chains with its methods.
    Bitcoin,
}

impl FamilyName {
    /// All families.
    pub const ALL: [FamilyName; 3] =
        [FamilyName::Ethereum, FamilyName::Harmony, FamilyName::Bitcoin];

    /// The name in config and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            FamilyName::Ethereum => "ethereum",
            FamilyName::Harmony => "harmony",
            FamilyName::Bitcoin => "bitcoin",
        }
    }
}

/// A family that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown chain family {0:?}, it is one of ethereum, harmony, bitcoin")]
pub struct UnknownFamily(String);

impl FromStr for FamilyName {
    type Err = UnknownFamily;

    fn from_str(text: &str) -> Result<FamilyName, UnknownFamily> {
        FamilyName::ALL
            .into_iter()
            .find(|name| name.as_str() == text)
            .ok_or_else(|| UnknownFamily(text.to_owned()))
    }
}

/// The table of one family.
pub struct Family {
    name: FamilyName,
    rows: Vec<Method>,
    places: HashMap<&'static str, usize, RandomState>,
}

impl Family {
    /// Which family this is.
    pub fn name(&self) -> FamilyName {
        self.name
    }

    /// The row of the method of exactly this name.
    pub fn method(&'static self, name: &str) -> Option<&'static Method> {
        self.places.get(name).map(|place| &self.rows[*place])
    }

    /// The same with the row's place in the table.
    pub fn find(&'static self, name: &str) -> Option<(usize, &'static Method)> {
        self.places.get(name).map(|place| (*place, &self.rows[*place]))
    }

    /// The row of a name in any case of letters. For counting and refusing calls only: a node may
    /// take a name that differs in case for another method.
    pub fn in_any_case(&'static self, name: &str) -> Option<&'static Method> {
        let other = || self.rows.iter().find(|row| row.name.eq_ignore_ascii_case(name));
        self.find(name).map(|(_, row)| row).or_else(other)
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// All rows in the order of the table.
    pub fn methods(&'static self) -> impl Iterator<Item = &'static Method> {
        self.rows.iter()
    }
}

/// The table of a family, read on first use.
pub fn family(name: FamilyName) -> &'static Family {
    static FAMILIES: [OnceLock<Family>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    FAMILIES[name as usize].get_or_init(|| {
        let mut rows = Vec::new();
        for (text, prefixes) in sources(name) {
            let file: TableFile =
                toml::from_str(text).expect("tables are compiled in and read in a test");
            let wanted = |row: &Method| {
                prefixes.is_empty() || prefixes.iter().any(|prefix| row.name.starts_with(prefix))
            };
            let expanded = file.method.into_iter().flat_map(|row| row.expand(name));
            rows.extend(expanded.filter(wanted));
        }
        let places = rows.iter().enumerate().map(|(place, row)| (row.name, place)).collect();
        Family { name, rows, places }
    })
}

/// The files of a family, each with the prefixes of the names to take from it; empty means all.
fn sources(name: FamilyName) -> &'static [(&'static str, &'static [&'static str])] {
    const ETHEREUM: &str = include_str!("../methods/ethereum.toml");
    const HARMONY: &str = include_str!("../methods/harmony.toml");
    const BITCOIN: &str = include_str!("../methods/bitcoin.toml");
    match name {
        FamilyName::Ethereum => &[(ETHEREUM, &[])],
        FamilyName::Harmony => {
            &[(HARMONY, &[]), (ETHEREUM, &["eth_", "net_", "web3_", "debug_", "trace_"])]
        }
        FamilyName::Bitcoin => &[(BITCOIN, &[])],
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableFile {
    method: Vec<Row>,
}

/// A row as written: it stands for one method, or with `prefixes` for one per prefix.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    #[serde(default)]
    prefixes: Vec<String>,
    bound: Bound,
    block: Option<BlockParam>,
    #[serde(default)]
    repeat: Repeat,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    params: Vec<ParamKind>,
    coalesce: Option<bool>,
    #[serde(default)]
    sticky: bool,
    #[serde(default)]
    write: bool,
    #[serde(default)]
    head_value: bool,
    #[serde(default)]
    answer_block: AnswerBlock,
    #[serde(default)]
    behind_head: u64,
}

fn one() -> u32 {
    1
}

impl Row {
    /// The rows it stands for. Names and parameter lists are leaked, once per table.
    fn expand(self, family: FamilyName) -> Vec<Method> {
        let params: &'static [ParamKind] = self.params.leak();
        let names = if self.prefixes.is_empty() {
            vec![self.name]
        } else {
            self.prefixes.iter().map(|prefix| format!("{prefix}{}", self.name)).collect()
        };
        let joinable = self.repeat == Repeat::Safe && !self.sticky && !self.write;
        let row = |name: String| Method {
            reach: reach(family, &name),
            name: name.leak(),
            bound: self.bound,
            block: self.block,
            repeat: self.repeat,
            weight: self.weight,
            params,
            coalesce: self.coalesce.unwrap_or(joinable),
            sticky: self.sticky,
            write: self.write,
            head_value: self.head_value,
            answer_block: self.answer_block,
            behind_head: self.behind_head,
        };
        names.into_iter().map(row).collect()
    }
}
