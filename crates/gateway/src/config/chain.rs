//! `[chain.NAME]`: chains, and the URL paths that lead to them. A *head* is the newest block of an
//! upstream. The *served head* is the newest block that clients get.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use settings::value::{Bool, Duration as Period, Integer, List};
use settings::{Key, Report, Table};
use wire::chain_profile::{self, ChainProfile};
use wire::family::Family;

use super::validate::find_name;
use super::values::{DAY_MS, HOUR_MS, Methods, UrlPath, parse_name};
use crate::policy::access::MethodRules;

/// Time after which a block of Ethereum is final: two epochs of 32 slots of 12 seconds.
const FINALITY_TIME: Duration = Duration::from_secs(768);
/// Time by which an upstream may be behind the served head: two polls. On a chain with slow blocks a
/// number of blocks counts instead.
const LAG_TIME: Duration = Duration::from_secs(1);

/// Name of the only chain if the file has no `[chain]`.
const DEFAULT_CHAIN_NAME: &str = "ethereum";

settings::choice! {
    /// Families of chains. The chains of a family have the same methods.
    pub FamilyName for Family {
        "ethereum" => Ethereum,
        "harmony" => Harmony,
        "bitcoin" => Bitcoin,
    }
}

settings::table! {
    /// A chain or shard. If the file has no such table, the gateway serves one chain, `ethereum`,
    /// on every path. A chain that Weir knows, by its `id` or else by NAME, needs no further key:
    /// `weir chains` lists them.
    pub struct ChainTable {
        /// The family determines the chain's methods and their caching rules.
        family: FamilyName = described "the family of a known chain, else `\"ethereum\"`";
        /// The chain id that every upstream must have. An upstream with another id is not used.
        id: Integer<1, { u64::MAX }> = described "the id of a known chain, else not verified";
        /// URL paths that lead to this chain.
        paths: List<UrlPath> = described "`[\"/NAME\"]`, and `\"/\"` for the default chain";
        /// If true, this chain serves the requests whose path belongs to no chain.
        default: Bool = described "true for the only chain";
        /// Expected time between blocks. Together with `jump_max` it bounds how far the head
        /// (newest block) may jump.
        block_time: Period<1, DAY_MS> =
            described "that of a known chain, else ethereum `\"12s\"`, harmony `\"2s\"`, bitcoin `\"10m\"`";
        /// If the upstreams do not report finality, a block this many blocks below the head counts
        /// as final.
        finality_depth: Integer<0, 1_000_000> =
            described "ethereum the blocks of 768 seconds, at least 64; harmony 2, bitcoin 6";
        /// Interval at which the gateway polls the head of each upstream. A longer interval saves
        /// calls, but the served head is older by the same time.
        poll_interval: Period<10, HOUR_MS> = "500ms";
        /// Maximum number of blocks that an upstream may be behind the served head. An upstream
        /// that is further behind gets only calls that no better upstream can serve.
        lag_max: Integer<0, 1_000_000> = described "the blocks of one second, at least 2";
        /// Maximum number of blocks by which a new head may exceed the height expected from
        /// `block_time`. A second upstream must confirm a larger jump.
        jump_max: Integer<0, 1_000_000_000> = "64";
        /// Methods that are served; an empty list allows all.
        methods_allow: Methods = empty;
        /// Methods that are not served. This list takes precedence over every allow list.
        methods_deny: Methods = empty;
    }
}

/// A chain (or shard) with the upstreams and groups that serve it.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Unique name, which is a part of every cache key and metric label.
    pub name: Arc<str>,
    /// The family, which determines the method table.
    pub family: Family,
    /// The chain id that every upstream must return. `None` accepts any id on which the upstreams
    /// agree.
    pub id: Option<u64>,
    /// Expected time between blocks.
    pub block_time: Duration,
    /// Number of blocks below the head at which a block counts as final if the upstreams do not
    /// report finality.
    pub finality_depth: u64,
    /// Interval at which the head of each upstream is polled.
    pub poll_interval: Duration,
    /// Maximum number of blocks that an upstream may be behind the served head. An upstream that is
    /// further behind gets only calls that no better upstream can serve.
    pub lag_max: u64,
    /// Maximum number of blocks by which a new head may exceed the height expected from the block
    /// time. A second upstream must confirm a larger jump.
    pub jump_max: u64,
    /// URL paths of this chain. Each begins with `/`.
    pub paths: Vec<Box<str>>,
    /// True for the default chain, which serves all other paths. At most one chain is the default.
    pub default: bool,
    /// Methods that are served on the chain.
    pub methods: MethodRules,
    /// Indexes of the chain's upstreams in [`super::Config::upstreams`], in the order of the file.
    pub upstreams: Vec<usize>,
    /// Indexes of the chain's groups in [`super::Config::groups`], in the order of the file. The
    /// last group always exists and serves the methods that no other group names.
    pub groups: Vec<usize>,
}

/// Validates all chains. `upstream::check` and `group::check` add upstreams and groups later.
pub(super) fn check(tables: &[(String, ChainTable)], report: &mut Report<'_>) -> Vec<Chain> {
    if tables.is_empty() {
        let table = ChainTable::defaults(&format!("chain.{DEFAULT_CHAIN_NAME}"));
        return vec![check_chain(DEFAULT_CHAIN_NAME, &table, None, true, report)];
    }
    let is_only = tables.len() == 1;
    let mut chains = Vec::with_capacity(tables.len());
    for (chain_name, table) in tables {
        if let Err(message) = parse_name(chain_name) {
            report.error(table, message, "[chain.NAME], with a name such as eth");
        }
        let profile = find_profile(chain_name, table);
        let chain = check_chain(chain_name, table, profile, is_only, report);
        let known = chain_profile::find_by_name(chain_name).and_then(|profile| profile.id);
        if let (Some(known), Some(id)) = (known, *table.id)
            && known != id
        {
            let message = format!("the well-known chain {chain_name} has the id {known}");
            report.warn(&table.id, message, format!("{known}, or another name of the chain"));
        }
        // Bitcoin nodes return no number that identifies the chain.
        if chain.id.is_none() && chain.family != Family::Bitcoin {
            let message = "not set: an upstream of another chain would not be detected";
            let advice = "the chain id from eth_chainId, such as 1 for ethereum";
            report.warn(&table.id, message, advice);
        }
        chains.push(chain);
    }
    check_default(tables, &chains, report);
    check_paths(tables, &chains, report);
    chains
}

/// Validates a chain. `profile` is what is known of it. `is_only` is true if the file has no other
/// chain.
fn check_chain(
    name: &str,
    table: &ChainTable,
    profile: Option<&ChainProfile>,
    is_only: bool,
    report: &mut Report<'_>,
) -> Chain {
    let family = table.family.or(profile.map(|profile| profile.family));
    let family = family.unwrap_or(Family::Ethereum);
    let default_block_time = match family {
        Family::Ethereum => Duration::from_secs(12),
        Family::Harmony => Duration::from_secs(2),
        Family::Bitcoin => Duration::from_secs(600),
    };
    let known_block_time = profile.and_then(ChainProfile::block_time);
    let block_time = table.block_time.or(known_block_time).unwrap_or(default_block_time);
    let blocks_of =
        |time: Duration| time.as_millis().div_ceil(block_time.as_millis().max(1)) as u64;
    let default_finality_depth = match family {
        Family::Ethereum => blocks_of(FINALITY_TIME).max(64),
        // Consensus makes a block final when it is produced. The depth is a small margin.
        Family::Harmony => 2,
        // Six confirmations are customary.
        Family::Bitcoin => 6,
    };
    let is_default = table.default.unwrap_or(is_only);
    let paths = (*table.paths).clone().unwrap_or_else(|| {
        let root = is_default.then(|| "/".into());
        root.into_iter().chain([format!("/{name}").into()]).collect()
    });
    if paths.is_empty() && !is_default {
        report.error(&table.paths, "the chain has no path", "at least one path");
    }
    Chain {
        name: name.into(),
        family,
        id: table.id.or(profile.and_then(|profile| profile.id)),
        block_time,
        finality_depth: table.finality_depth.unwrap_or(default_finality_depth),
        poll_interval: *table.poll_interval,
        lag_max: table.lag_max.unwrap_or_else(|| blocks_of(LAG_TIME).max(2)),
        jump_max: *table.jump_max,
        paths,
        default: is_default,
        methods: MethodRules {
            allow: (*table.methods_allow).clone(),
            deny: (*table.methods_deny).clone(),
        },
        upstreams: Vec::new(),
        groups: Vec::new(),
    }
}

/// Returns what is known of the chain, by its id or else by its name. Returns `None` if the file says
/// that the chain has another family.
fn find_profile(name: &str, table: &ChainTable) -> Option<&'static ChainProfile> {
    let profile = match *table.id {
        Some(id) => chain_profile::find_by_id(id)?,
        None => chain_profile::find_by_name(name)?,
    };
    table.family.is_none_or(|family| family == profile.family).then_some(profile)
}

/// Reports an error if several chains are the default.
fn check_default(tables: &[(String, ChainTable)], chains: &[Chain], report: &mut Report<'_>) {
    let mut defaults = tables.iter().zip(chains).filter(|(_, chain)| chain.default);
    let Some((_, first)) = defaults.next() else { return };
    for ((_, table), _) in defaults {
        let message = format!("{} is already the default chain", first.name);
        report.error(&table.default, message, "true for at most one chain");
    }
}

/// Reports paths that several chains have.
fn check_paths(tables: &[(String, ChainTable)], chains: &[Chain], report: &mut Report<'_>) {
    let mut owners: HashMap<&str, &str> = HashMap::new();
    for ((_, table), chain) in tables.iter().zip(chains) {
        for (index, path) in chain.paths.iter().enumerate() {
            if let Some(owner) = owners.insert(path, &chain.name) {
                let message = format!("the path {path} already belongs to chain {owner}");
                report.error(&table.paths.element_location(index), message, "each path once");
            }
        }
    }
}

/// Returns the index of the chain that a configuration key names. If the key is not set, returns
/// the index of the only chain. Returns `None` after an error.
pub(super) fn find_or_only(
    key: &Key<Option<Box<str>>>,
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Option<usize> {
    match &**key {
        Some(_) => find_chain(key, chains, report),
        None if chains.len() == 1 => Some(0),
        None => {
            if !key.is_set() {
                let message = "must be set, because there are several chains";
                report.error(key, message, list_names(chains).join(", "));
            }
            None
        }
    }
}

/// Returns the index of the chain that a configuration key names; `None` if the key is not set.
/// Reports an unknown name.
pub(super) fn find_chain(
    key: &Key<Option<Box<str>>>,
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Option<usize> {
    find_name(&list_names(chains), key.as_deref()?, "chain", key, report)
}

pub(super) fn list_names(chains: &[Chain]) -> Vec<&str> {
    chains.iter().map(|chain| &*chain.name).collect()
}
