//! The method tables, one for each chain family (Ethereum, Harmony, Bitcoin). A row is the entry of
//! one method. The row states how long responses are valid and whether a call may be repeated. It
//! also states the position of the block parameter, which names the block that a call is about.
//!
//! The tables are files (`crates/wire/methods/*.toml`) that are compiled in and parsed at the first
//! use. A method without a row is unknown: its calls must not be coalesced or repeated, and their
//! responses must not be stored.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use foldhash::fast::RandomState;
use serde::{Deserialize, Deserializer};

use crate::block::{BlockRef, BlockRefError, ResponseBlock};
use crate::block_param::BlockParam;
use crate::call::Params;
use crate::effect::{Effect, effect_of};
use crate::family::Family;

#[cfg(test)]
mod tests;

/// The part of the chain that a response depends on. It determines how long the response is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Validity {
    /// The response never changes on one chain.
    Constant,
    /// The response depends on the block that the block parameter names by number, tag or hash. If
    /// a call lacks the parameter and the method has no default, the validity is
    /// [`Validity::Never`].
    Number,
    /// The response depends on the block whose hash is the block parameter.
    Hash,
    /// The response depends on the block of a transaction. The result names the block. If
    /// `response_block` is [`ResponseBlock::None`], the response must not be stored.
    Transaction,
    /// The response depends on the head, which is the newest block of the chain at the time of the
    /// response. There is no block parameter.
    Head,
    /// The response depends on the block range of a log filter.
    Logs,
    /// The response depends on the node's transaction pool. It must not be stored.
    Mempool,
    /// The response depends on something that the gateway cannot check. It must not be stored.
    Never,
}

/// Data of old blocks that a node may have deleted. A node deletes each kind after a time of its own:
/// the state of a block after 128 blocks, for example, and its receipts never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum History {
    /// Headers and transactions.
    Blocks,
    /// Receipts and logs.
    Receipts,
    /// Balances, code, storage, and calls that read them.
    State,
    /// Traces of the transactions of a block.
    Traces,
}

impl History {
    /// All kinds, in the order of their numbers.
    pub const ALL: [History; 4] =
        [History::Blocks, History::Receipts, History::State, History::Traces];

    /// Returns the name in metrics and on status pages.
    pub fn as_str(self) -> &'static str {
        match self {
            History::Blocks => "blocks",
            History::Receipts => "receipts",
            History::State => "state",
            History::Traces => "traces",
        }
    }
}

/// Says if a call may be sent again after a node may have received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Repeat {
    /// A repeated call has no further effect.
    #[default]
    Safe,
    /// A signed transaction. The chain includes it at most once, so a repetition is safe. If the
    /// second node returns the error "already known", the call has succeeded.
    Broadcast,
    /// A repeated call may take effect twice.
    Never,
}

/// The type of a parameter. It defines when two values have the same meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParamType {
    /// 20 bytes in hexadecimal, or a bech32 text. The letter case of a bech32 text is significant.
    Address,
    /// 32 bytes in hexadecimal.
    Hash,
    /// Bytes in hexadecimal.
    Data,
    /// A number in hexadecimal.
    Quantity,
    /// A block.
    Block,
    /// A boolean.
    Bool,
    /// A log filter.
    Filter,
    /// A transaction or call object.
    CallObject,
    /// Any other value. Two values have the same meaning if they differ only in whitespace, escapes
    /// and the order of members.
    Any,
}

/// The form of a result that is not `null`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResultType {
    /// A number in hexadecimal, with at least one digit.
    Quantity,
    /// Bytes in hexadecimal: an even number of digits, or none.
    Bytes,
    /// A text that begins with `0x`, for methods whose clients write either of the two above.
    Hex,
    /// A JSON number.
    Number,
    /// A boolean.
    Bool,
    /// Any text.
    Text,
    /// A JSON object.
    Object,
    /// A JSON array.
    List,
    /// Any value, `null` too. The form is not known, or clients differ in it.
    #[default]
    Any,
}

/// The form of one result, as far as its ends and its length show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultForm {
    /// `null`.
    Null,
    /// A text that begins with `0x`.
    Hex {
        /// Number of hexadecimal digits.
        digits: usize,
    },
    /// Another text.
    Text,
    /// A number.
    Number,
    /// A boolean.
    Bool,
    /// An object.
    Object,
    /// An array.
    List,
}

impl ResultForm {
    /// Returns the form of a valid raw JSON value without white space around it. Looks only at its
    /// ends, so a long value costs no more than a short one.
    pub fn of(raw: &[u8]) -> ResultForm {
        match raw {
            [b'n', ..] => ResultForm::Null,
            // The quotes and `0x` are 4 characters.
            [b'"', b'0', b'x', .., b'"'] => ResultForm::Hex { digits: raw.len() - 4 },
            [b'"', ..] => ResultForm::Text,
            [b't' | b'f', ..] => ResultForm::Bool,
            [b'{', ..] => ResultForm::Object,
            [b'[', ..] => ResultForm::List,
            _ => ResultForm::Number,
        }
    }
}

impl ResultType {
    /// Returns true if a result that is not `null` may have this form.
    fn allows(self, form: ResultForm) -> bool {
        use ResultForm::{Bool, Hex, List, Number, Object, Text};
        // A quantity has at most 32 bytes.
        const QUANTITY_DIGITS: std::ops::RangeInclusive<usize> = 1..=64;
        match (self, form) {
            (ResultType::Quantity, Hex { digits }) => QUANTITY_DIGITS.contains(&digits),
            (ResultType::Bytes, Hex { digits }) => digits.is_multiple_of(2),
            (ResultType::Any, _)
            | (ResultType::Hex | ResultType::Text, Hex { .. })
            | (ResultType::Text, Text)
            | (ResultType::Number, Number)
            | (ResultType::Bool, Bool)
            | (ResultType::Object, Object)
            | (ResultType::List, List) => true,
            _ => false,
        }
    }
}

/// When a result may be `null` although the node has the block that the call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nullable {
    /// Never.
    #[default]
    Never,
    /// If the second parameter, an index, is not below the number of transactions of the block.
    WithoutTransaction,
    /// If the block lacks the item. The block's header does not say whether it does.
    WithoutItem,
}

/// One row of a method table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// The name.
    #[serde(deserialize_with = "leak_name")]
    pub name: LeakedName,
    /// Prefixes of the name. If there are prefixes, the row of the file stands for one method per
    /// prefix.
    #[serde(default)]
    prefixes: Vec<String>,
    /// The part of the chain that a response depends on.
    pub validity: Validity,
    /// The data that a call reads of the block that it names by number, or of the first block of
    /// its range; `None` if the call names neither.
    pub history: Option<History>,
    /// The block parameter; `None` if the method has none.
    pub block: Option<BlockParam>,
    /// Says if a call may be sent a second time.
    #[serde(default)]
    pub repeat: Repeat,
    /// The approximate cost of a call for a node. A read of one record costs 1.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// The types of the parameters by position. Further parameters are [`ParamType::Any`].
    #[serde(default)]
    pub params: Vec<ParamType>,
    // If present, replaces the default of `Method::coalesces`.
    coalesce: Option<bool>,
    /// True if further calls must go to the node that sent the response, for example for filters
    /// and subscriptions.
    #[serde(default)]
    pub sticky: bool,
    /// True if the call changes something: the transaction pool, the node's settings or its keys.
    #[serde(default)]
    pub write: bool,
    /// True if the result is the number of the head, the newest block.
    #[serde(default)]
    pub head_value: bool,
    /// The place of the block's number and hash in a result.
    #[serde(default)]
    pub response_block: ResponseBlock,
    /// The number of newer blocks that must exist before the response for a block is complete. It
    /// is 1 if a node completes the response for the newest block only when the next block arrives.
    #[serde(default)]
    pub blocks_behind_head: u64,
    /// When the result may be `null` although the node has the block.
    #[serde(default)]
    pub nullable: Nullable,
    /// The form of the result.
    #[serde(default)]
    pub result: ResultType,
    /// True if the result may also be `null`, for example because the node does not have the block
    /// or the transaction.
    #[serde(default)]
    pub null: bool,
    /// The effect of a call.
    #[serde(skip)]
    pub effect: Effect,
}

impl Method {
    /// Returns the block of a call, as [`BlockParam::read`] does. Returns `None` if the method has
    /// no block parameter.
    ///
    /// # Errors
    /// If the call has no valid block although the method needs one.
    pub fn block_ref(
        &self,
        params: &Params<'_>,
    ) -> Result<Option<(BlockRef, Range<usize>)>, BlockRefError> {
        self.block.map_or(Ok(None), |block| block.read(params))
    }

    /// Returns true if a result of the method may have this form.
    pub fn allows(&self, form: ResultForm) -> bool {
        match form {
            ResultForm::Null => self.null || self.result == ResultType::Any,
            form => self.result.allows(form),
        }
    }

    /// Returns true if concurrent equal calls may share one response. By default, this is true for
    /// calls that change nothing.
    pub fn coalesces(&self) -> bool {
        let changes_nothing = self.repeat == Repeat::Safe && !self.sticky && !self.write;
        self.coalesce.unwrap_or(changes_nothing)
    }

    /// Returns one row for each prefix, or this row alone if it has no prefixes.
    fn expand(self, family: Family) -> Vec<Method> {
        let names: Vec<LeakedName> = match &self.prefixes[..] {
            [] => vec![self.name],
            prefixes => {
                let add_prefix = |prefix| &*format!("{prefix}{}", self.name).leak();
                prefixes.iter().map(add_prefix).collect()
            }
        };
        let to_row = |name| Method { name, effect: effect_of(family, name), ..self.clone() };
        names.into_iter().map(to_row).collect()
    }
}

/// Returns the row of a method in the table of any family. `None` if no family has the method.
pub fn find_in_any_family(name: &str) -> Option<&'static Method> {
    Family::ALL.into_iter().find_map(|family| methods_of(family).method(name))
}

/// Returns the log method with the same results as this method: `eth_getLogs` for
/// `eth_getFilterLogs`. Rules for the log method apply to this method too. Letter case is ignored.
/// Returns `None` for all other methods.
pub fn equivalent_log_method(name: &str) -> Option<&'static str> {
    let (namespace, method) = name.split_once('_')?;
    if !method.eq_ignore_ascii_case("getFilterLogs") {
        return None;
    }
    let log_methods = ["eth_getLogs", "hmy_getLogs", "hmyv2_getLogs"];
    let is_in_namespace = |log_method: &&str| {
        log_method
            .strip_suffix("_getLogs")
            .is_some_and(|log_namespace| log_namespace.eq_ignore_ascii_case(namespace))
    };
    log_methods.into_iter().find(is_in_namespace)
}

/// The methods of one family.
pub struct MethodTable {
    /// The family.
    pub family: Family,
    rows: Vec<Method>,
    /// For each method's name, the index of its row in `rows`.
    indexes: HashMap<&'static str, usize, RandomState>,
}

impl MethodTable {
    /// Returns the row of the method with exactly this name.
    pub fn method(&'static self, name: &str) -> Option<&'static Method> {
        self.indexes.get(name).map(|index| &self.rows[*index])
    }

    /// Returns the row of the method with exactly this name, and the index of the row.
    pub fn find(&'static self, name: &str) -> Option<(usize, &'static Method)> {
        self.indexes.get(name).map(|index| (*index, &self.rows[*index]))
    }

    /// Returns the row of the method with this name, ignoring letter case. Use it only to count or
    /// reject calls, because a node may treat a name in another letter case as another method.
    pub fn method_ignoring_case(&'static self, name: &str) -> Option<&'static Method> {
        let find_ignoring_case =
            || self.rows.iter().find(|row| row.name.eq_ignore_ascii_case(name));
        self.find(name).map(|(_, row)| row).or_else(find_ignoring_case)
    }

    /// Returns all rows in the order of the table.
    pub fn methods(&'static self) -> impl Iterator<Item = &'static Method> {
        self.rows.iter()
    }
}

/// Returns the methods of a family. The first call parses the files.
pub fn methods_of(family: Family) -> &'static MethodTable {
    /// One table per family, in the order of [`Family`].
    static TABLES: [OnceLock<MethodTable>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    TABLES[family as usize].get_or_init(|| {
        let mut rows = Vec::new();
        for (text, prefixes) in files_of(family) {
            let file: TableFile =
                toml::from_str(text).expect("a test reads the tables, which are compiled in");
            let is_included = |row: &Method| {
                prefixes.is_empty() || prefixes.iter().any(|prefix| row.name.starts_with(prefix))
            };
            let expanded = file.method.into_iter().flat_map(|row| row.expand(family));
            rows.extend(expanded.filter(is_included));
        }
        let indexes = rows.iter().enumerate().map(|(index, row)| (row.name, index)).collect();
        MethodTable { family, rows, indexes }
    })
}

/// Returns the files of a family. Each file has a list of prefixes. Only the methods whose names
/// start with one of the prefixes belong to the family. If the list is empty, all methods of the
/// file do.
fn files_of(family: Family) -> &'static [(&'static str, &'static [&'static str])] {
    const ETHEREUM: &str = include_str!("../methods/ethereum.toml");
    const HARMONY: &str = include_str!("../methods/harmony.toml");
    const BITCOIN: &str = include_str!("../methods/bitcoin.toml");
    match family {
        Family::Ethereum => &[(ETHEREUM, &[])],
        Family::Harmony => {
            &[(HARMONY, &[]), (ETHEREUM, &["eth_", "net_", "web3_", "debug_", "trace_"])]
        }
        Family::Bitcoin => &[(BITCOIN, &[])],
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableFile {
    method: Vec<Method>,
}

/// The name of a method. Its memory is never freed, because the tables live as long as the process.
/// If the type were written as `&'static str`, serde would borrow the name from the file's text.
type LeakedName = &'static str;

fn default_weight() -> u32 {
    1
}

fn leak_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LeakedName, D::Error> {
    String::deserialize(deserializer).map(|name| &*name.leak())
}
