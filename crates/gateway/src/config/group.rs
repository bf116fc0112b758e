//! `[call]` and `[[group]]`: the upstreams that serve certain methods, and how calls are sent to
//! them.
//!
//! A *group* is a set of upstreams of one chain that serve certain methods. The keys of `[call]`
//! and `[overload]` are the defaults of a group.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use settings::value::{Bool, Duration as Period, Integer, List, Number};
use settings::{Report, Table};

use super::chain::{self, Chain};
use super::overload::OverloadTable;
use super::upstream::Upstream;
use super::validate::{check_order, find_name, quote_duration};
use super::values::{GIB, HOUR_MS, MethodPattern, Methods, Name, Share, Size, parse_header_name};
use crate::policy::access::MethodSet;
use crate::policy::overload::limiter::LimiterSettings;

/// Reserved name of the group that serves the methods that no other group serves.
const OTHER_METHODS: &str = "all";

/// The pattern that matches every method.
const EVERY_METHOD: &str = "*";

settings::choice! {
    /// Load balancing algorithms.
    pub enum BalanceName {
        /// The less loaded of two random upstreams.
        "least_loaded" => LeastLoaded,
        /// Weighted round robin.
        "weighted" => Weighted,
        /// Consistent hash.
        "hash" => Hash,
    }
}

settings::string_scalar! {
    /// The input of the consistent hash that balances load.
    pub HashKeyName: HashKey = parse_hash_key, "a hash key",
        "\"call\", \"client\" or \"header:NAME\"", "call";
}

settings::table! {
    /// A group of upstreams that serve certain methods. The group whose pattern is the longest
    /// match for a method serves the method. Methods of no group go to all upstreams of the chain.
    pub struct GroupTable as label {
        /// Name of the group in metrics and `weir explain`.
        name: Name = required;
        /// The chain of the group. It must be set if there are several chains.
        chain: Name = described "the only chain";
        /// Names of the group's upstreams.
        upstreams: List<Name> = described "all upstreams of the chain";
        /// Methods that the group serves.
        methods: List<MethodPattern> = required;
        /// Methods that the group rejects. No other group serves them instead.
        methods_deny: Methods = empty;
        /// The load balancing algorithm.
        balance: BalanceName = described "as in `[call]`";
        /// The input of the hash if the group balances by `hash`.
        hash_key: HashKeyName = described "as in `[call]`";
        /// Load limit of one upstream if the group balances by `hash`.
        load_factor: LoadFactor = described "as in `[call]`";
        /// Maximum time for the whole call.
        deadline: Period<1, HOUR_MS> = described "as in `[call]`";
        /// Maximum time for one attempt.
        attempt_deadline: Period<1, HOUR_MS> = described "as in `[call]`";
        /// Maximum number of further attempts after the first.
        retries_max: Integer<0, 16, u32> = described "as in `[call]`";
        /// If true, a slow call is also sent to a second upstream.
        hedge: Bool = described "as in `[call]`";
        /// Maximum size of one response of an upstream.
        response_bytes_max: Size<1024, { 4 * GIB }> = described "as in `[call]`";
        /// The gateway limits the calls in flight at the group's upstreams. The limit never falls
        /// below this value.
        in_flight_min: Integer<1, 1_000_000, u32> = described "as in `[overload]`";
        /// The limit of calls in flight at the group's upstreams never rises above this value.
        in_flight_max: Integer<1, 1_000_000, u32> = described "as in `[overload]`";
    }
}

settings::table! {
    /// How a call is sent to upstreams. A group can override these settings.
    pub struct CallTable {
        /// The load balancing algorithm. `least_loaded` selects the less loaded of two random
        /// upstreams, by latency and calls in flight. `weighted` is smooth weighted round robin.
        /// `hash` is a consistent hash.
        balance: BalanceName = "least_loaded";
        /// The input of the hash: `call` is the method and its parameters, `client` the client's
        /// address, and `header:NAME` a header of the request. All groups that hash a header must
        /// hash the same one.
        hash_key: HashKeyName = "call";
        /// Load limit of one upstream with `hash`, as a multiple of the mean load. Calls above the
        /// limit go to the next upstream on the hash ring.
        load_factor: LoadFactor = "1.25";
        /// Maximum time for the whole call, including retries.
        deadline: Period<1, HOUR_MS> = "30s";
        /// Maximum time for one attempt at one upstream.
        attempt_deadline: Period<1, HOUR_MS> = "10s";
        /// Maximum number of further attempts after the first. A call is retried only if that is
        /// safe.
        retries_max: Integer<0, 16, u32> = "2";
        /// Maximum number of retries as a share of calls, over all groups.
        retry_share_max: Share = "0.2";
        /// Number of retries per second that are always allowed.
        retry_rate_min: Integer<0, 1_000_000, u32> = "10";
        /// If true, a slow call that is safe to repeat is also sent to a second upstream. The first
        /// response is returned.
        hedge: Bool = "true";
        /// Latency quantile above which a call counts as slow. The latencies of methods with
        /// similar weight are measured together.
        hedge_quantile: Number<500, 999> = "0.95";
        /// Latency below which a call never counts as slow.
        hedge_delay_min: Period<1, HOUR_MS> = "10ms";
        /// Maximum number of calls that are also sent to a second upstream, as a share of calls.
        hedge_share_max: Share = "0.05";
        /// Maximum size of one response of an upstream. A call with a larger response fails. Traces
        /// and receipts of full blocks reach tens of MiB.
        response_bytes_max: Size<1024, { 4 * GIB }> = "64MiB";
    }
}

/// The value type of `load_factor`. The bounds are in thousandths: 1 to 100.
type LoadFactor = Number<1000, 100_000>;

/// The retry budget bounds the number of retries that the gateway adds to the load of the
/// upstreams.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryBudget {
    /// Maximum number of retries as a share of calls.
    pub share_max: f64,
    /// Number of retries per second that are always allowed.
    pub rate_min: u32,
}

/// Upstreams that serve certain methods of one chain.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name, unique within the chain.
    pub name: Arc<str>,
    /// Index of the chain in [`super::Config::chains`].
    pub chain: usize,
    /// Indexes of the group's upstreams in [`super::Config::upstreams`]: at least one, all of the
    /// same chain, without duplicates.
    pub upstreams: Vec<usize>,
    /// Patterns of the served methods, at least one: exact names, or prefixes that end in `*`. The
    /// pattern `*` matches every method.
    pub methods: Vec<Box<str>>,
    /// Methods that the group rejects.
    pub methods_deny: MethodSet,
    /// The load balancing algorithm.
    pub balance: Balance,
    /// Maximum time for the whole call, including retries.
    pub deadline: Duration,
    /// Maximum time for one attempt at one upstream.
    pub attempt_deadline: Duration,
    /// Maximum number of further attempts after the first.
    pub retries_max: u32,
    /// Maximum bytes of one response of an upstream.
    pub response_bytes_max: usize,
    /// Settings of hedging: a slow call is also sent to a second upstream. `None` if hedging is
    /// off.
    pub hedge: Option<Hedge>,
    /// Bounds of the limit of calls in flight at the group's upstreams. The gateway finds the limit
    /// itself.
    pub in_flight: LimiterSettings,
}

impl Group {
    /// Returns the header that the group hashes for load balancing; `None` without such a header.
    pub(crate) fn hash_header(&self) -> Option<&http::HeaderName> {
        match &self.balance {
            Balance::Hash { key: HashKey::Header(name), .. } => Some(name),
            _ => None,
        }
    }
}

/// Load balancing algorithms.
#[derive(Clone, Debug, PartialEq)]
pub enum Balance {
    /// The less loaded of two random upstreams, by peak-EWMA latency.
    LeastLoaded,
    /// Smooth weighted round robin, as in nginx.
    Weighted,
    /// The same upstream for the same key, on a consistent-hash ring.
    Hash {
        /// The input of the hash.
        key: HashKey,
        /// Load limit of an upstream, as a multiple of the mean load; at least 1.
        load_factor: f64,
    },
}

/// The input of a consistent hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// Method and params.
    Call,
    /// The client's address.
    Client,
    /// The value of a request header, or the client's address if the request lacks the header.
    Header(http::HeaderName),
}

fn parse_hash_key(text: &str) -> Result<HashKey, &'static str> {
    match text.split_once(':') {
        None if text == "call" => Ok(HashKey::Call),
        None if text == "client" => Ok(HashKey::Client),
        Some(("header", name)) => parse_header_name(name).map(HashKey::Header),
        _ => Err("no such hash key"),
    }
}

/// Hedging settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Hedge {
    /// Latency quantile, from 0.5 to 0.999, after which the second upstream is used.
    pub quantile: f64,
    /// Shortest wait before the second upstream is used.
    pub delay_min: Duration,
    /// Maximum number of calls that are sent to a second upstream, as a share of calls from 0 to 1.
    pub share_max: f64,
}

/// Labels the table in diagnostics with chain and name, because groups of two chains may have the
/// same name.
fn label(table: &GroupTable) -> String {
    let chain = table.chain.as_ref().map(|chain| format!("{chain}."));
    format!("{}{}", chain.unwrap_or_default(), table.name)
}

/// The tables that hold the defaults of groups.
pub(super) struct GroupDefaults<'a> {
    pub(super) call: &'a CallTable,
    pub(super) overload: &'a OverloadTable,
}

impl CallTable {
    /// Returns the retry budget over all groups.
    pub(super) fn retry_budget(&self) -> RetryBudget {
        RetryBudget { share_max: *self.retry_share_max, rate_min: *self.retry_rate_min }
    }
}

/// Validates all groups, and adds each to its chain. The last group of a chain serves the methods
/// that no other group names.
pub(super) fn check(
    tables: &[GroupTable],
    defaults: &GroupDefaults<'_>,
    chains: &mut [Chain],
    upstreams: &[Upstream],
    report: &mut Report<'_>,
) -> Vec<Group> {
    let call = defaults.call;
    check_order(&call.attempt_deadline, &call.deadline, report);
    let mut groups: Vec<Group> = Vec::new();
    // The name of the group that serves a pattern, by chain index and pattern.
    let mut patterns: HashMap<(usize, Box<str>), Arc<str>> = HashMap::new();
    for table in tables {
        let Some(chain) = chain::find_or_only(&table.chain, chains, report) else { continue };
        if table.methods.is_empty_list() {
            report.error(&table.methods, "the group serves nothing", "at least one pattern");
        }
        let group = check_group(table, defaults, chain, chains, upstreams, report);
        let has_same_name = |other: &usize| groups[*other].name == group.name;
        if table.name.valid_value().is_some() && chains[chain].groups.iter().any(has_same_name) {
            let message = "another group of the chain has this name";
            report.error(&table.name, message, "each name once");
        }
        for (index, pattern) in group.methods.iter().enumerate() {
            let owner = patterns.insert((chain, pattern.clone()), Arc::clone(&group.name));
            if let Some(owner) = owner {
                let message = format!("group {owner} already serves this pattern");
                report.error(&table.methods.element_location(index), message, "each pattern once");
            }
        }
        chains[chain].groups.push(groups.len());
        groups.push(group);
    }
    for index in 0..chains.len() {
        serve_all_methods(index, chains, defaults, tables, upstreams, &mut groups, report);
    }
    check_hash_headers(&groups, tables, call, report);
    groups
}

/// Checks that all groups that hash a header hash the same header, because a request stores only
/// one header for load balancing.
fn check_hash_headers(
    groups: &[Group],
    tables: &[GroupTable],
    call: &CallTable,
    report: &mut Report<'_>,
) {
    let mut hashing_groups = groups.iter().filter_map(|group| Some((group, group.hash_header()?)));
    let Some((first_group, header)) = hashing_groups.next() else { return };
    for (group, other_header) in hashing_groups.filter(|(_, other)| *other != header) {
        let message = format!("group {} hashes another header", first_group.name);
        let allowed =
            format!("\"header:{}\" for every group that hashes a header", header.as_str());
        let sets_header = |table: &&GroupTable| {
            **table.name == *group.name
                && matches!(&*table.hash_key, Some(HashKey::Header(name)) if name == other_header)
        };
        match tables.iter().find(sets_header) {
            Some(table) => report.error(&table.hash_key, message, allowed),
            None => report.error(&call.hash_key, message, allowed),
        }
    }
}

/// Validates a group. `chain` is the index of its chain.
fn check_group(
    table: &GroupTable,
    defaults: &GroupDefaults<'_>,
    chain: usize,
    chains: &[Chain],
    upstreams: &[Upstream],
    report: &mut Report<'_>,
) -> Group {
    let members = check_members(table, &chains[chain], upstreams, report);
    let call = defaults.call;
    let group = Group {
        name: (**table.name).into(),
        chain,
        in_flight: check_in_flight(table, defaults.overload, &members, upstreams, report),
        upstreams: members,
        methods: (*table.methods).clone(),
        methods_deny: (*table.methods_deny).clone(),
        balance: read_balance(table, call),
        deadline: table.deadline.unwrap_or(*call.deadline),
        attempt_deadline: table.attempt_deadline.unwrap_or(*call.attempt_deadline),
        retries_max: table.retries_max.unwrap_or(*call.retries_max),
        response_bytes_max: table.response_bytes_max.unwrap_or(*call.response_bytes_max),
        hedge: table.hedge.unwrap_or(*call.hedge).then(|| Hedge {
            quantile: *call.hedge_quantile,
            delay_min: *call.hedge_delay_min,
            share_max: *call.hedge_share_max,
        }),
    };
    if group.attempt_deadline > group.deadline {
        if table.attempt_deadline.is_set() {
            let message = "longer than deadline";
            let allowed = format!("at most deadline, {}", quote_duration(group.deadline));
            report.error(&table.attempt_deadline, message, allowed);
        } else if table.deadline.is_set() {
            let message = "shorter than attempt_deadline";
            let attempt_deadline = quote_duration(group.attempt_deadline);
            let allowed = format!("at least attempt_deadline, {attempt_deadline}");
            report.error(&table.deadline, message, allowed);
        }
    }
    if !matches!(group.balance, Balance::Hash { .. }) {
        let (message, allowed) =
            ("has no effect, because the group does not balance by hash", "balance = \"hash\"");
        if table.hash_key.is_set() {
            report.error(&table.hash_key, message, allowed);
        }
        if table.load_factor.is_set() {
            report.error(&table.load_factor, message, allowed);
        }
    }
    group
}

/// Returns the indexes of a group's upstreams: those that the group names, or all upstreams of the
/// chain.
fn check_members(
    table: &GroupTable,
    chain: &Chain,
    upstreams: &[Upstream],
    report: &mut Report<'_>,
) -> Vec<usize> {
    let Some(names) = &*table.upstreams else { return chain.upstreams.clone() };
    let upstream_names: Vec<&str> =
        chain.upstreams.iter().map(|upstream| &*upstreams[*upstream].name).collect();
    if names.is_empty() {
        report.error(&table.upstreams, "the group has no upstream", upstream_names.join(", "));
    }
    let mut members = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let location = table.upstreams.element_location(index);
        match find_name(&upstream_names, name, "upstream of the chain", &location, report) {
            None => {}
            Some(name_index) if members.contains(&chain.upstreams[name_index]) => {
                report.error(&location, "named twice", "each upstream once");
            }
            Some(name_index) => members.push(chain.upstreams[name_index]),
        }
    }
    members
}

/// Makes sure that the last group of a chain serves every method. Moves a group with the pattern
/// `*` to the end, or adds such a group.
fn serve_all_methods(
    chain_index: usize,
    chains: &mut [Chain],
    defaults: &GroupDefaults<'_>,
    tables: &[GroupTable],
    upstreams: &[Upstream],
    groups: &mut Vec<Group>,
    report: &mut Report<'_>,
) {
    let chain = &mut chains[chain_index];
    let serves_all =
        |group: &usize| groups[*group].methods.iter().any(|pattern| &**pattern == EVERY_METHOD);
    if let Some(position) = chain.groups.iter().position(serves_all) {
        let catch_all = chain.groups.remove(position);
        chain.groups.push(catch_all);
        return;
    }
    if chain.groups.iter().any(|group| &*groups[*group].name == OTHER_METHODS)
        && let Some(table) = tables.iter().find(|table| &**table.name == OTHER_METHODS)
    {
        let message = "this name is reserved for the group of all other methods";
        report.error(&table.name, message, "another name, or methods with \"*\"");
    }
    chain.groups.push(groups.len());
    let mut table = GroupTable::defaults("");
    // The second argument of `set` is the printed form of the value, which is not needed here.
    table.name.set(OTHER_METHODS.into(), String::new());
    table.methods.set(vec![EVERY_METHOD.into()], String::new());
    groups.push(check_group(&table, defaults, chain_index, chains, upstreams, report));
}

/// Returns the bounds of the concurrency limit, from the group or from `[overload]`. The default of
/// the upper bound is the sum of `connections_max` over the group's upstreams.
fn check_in_flight(
    table: &GroupTable,
    overload: &OverloadTable,
    members: &[usize],
    upstreams: &[Upstream],
    report: &mut Report<'_>,
) -> LimiterSettings {
    let limit_min = table.in_flight_min.unwrap_or(*overload.in_flight_min);
    let connections: usize =
        members.iter().map(|upstream| upstreams[*upstream].connections_max).sum();
    let default_max = || u32::try_from(connections).unwrap_or(u32::MAX).max(limit_min);
    let limit_max = table.in_flight_max.or(*overload.in_flight_max).unwrap_or_else(default_max);
    if limit_min > limit_max {
        let location = match (*table.in_flight_min, *table.in_flight_max) {
            (Some(_), _) => &table.in_flight_min.location,
            (None, Some(_)) => &table.in_flight_max.location,
            (None, None) => &overload.in_flight_min.location,
        };
        let message = "the lowest limit is above the highest";
        report.error(location, message, "in_flight_min at most in_flight_max");
    }
    LimiterSettings { limit_min, limit_max: limit_max.max(limit_min) }
}

/// Returns the load balancing algorithm of a group, from the group or from `[call]`.
fn read_balance(table: &GroupTable, call: &CallTable) -> Balance {
    match table.balance.unwrap_or(*call.balance) {
        BalanceName::LeastLoaded => Balance::LeastLoaded,
        BalanceName::Weighted => Balance::Weighted,
        BalanceName::Hash => Balance::Hash {
            key: (*table.hash_key).clone().unwrap_or_else(|| (*call.hash_key).clone()),
            load_factor: table.load_factor.unwrap_or(*call.load_factor),
        },
    }
}
