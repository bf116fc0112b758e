//! `[zone.NAME]` and `[[limit]]`: request limits, as nginx's `limit_req_zone` and `limit_req`.
//!
//! A zone has a counter for each value of its key, such as one per client address. A limit bounds
//! the counters of a zone.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::collections::HashSet;
use std::sync::Arc;

use settings::value::{Bool, Integer, List};
use settings::{Location, Report};
use wire::family::Family;
use wire::method::{Method, methods_of};

use super::access::Access;
use super::chain::{self, Chain};
use super::validate::find_name;
use super::values::{CallRate, GIB, MethodPattern, Name, Size, parse_header_name, parse_name};
use crate::policy::access::Grant;
use crate::policy::limit::{CALL, LimitTerms, Rate, matches_method};

/// Maximum number of methods that a warning names.
const METHODS_NAMED_MAX: usize = 3;

settings::choice! {
    /// How many calls one call counts as, in a limit or a quota.
    pub enum CallCost {
        /// One call.
        "call" => Call,
        /// As many calls as the weight of the method, which is its relative cost. A method that is
        /// not in the method table has weight 1.
        "weight" => Weight,
    }
}

settings::string_scalar! {
    /// A part of the key of a zone.
    pub ZoneKeyPart: KeyPart = parse_key_part, "a part of a key",
        "\"client\", \"client-net\", \"key\", \"header:NAME\", \"method\" or \"chain\"", "client";
}

settings::table! {
    /// A zone counts calls for request limits. It has a counter for each value of its key, such as
    /// one per client address. A call raises its counter, and the counter drains at the zone's
    /// rate. The arithmetic is that of nginx's `limit_req`, in thousandths of a call and
    /// milliseconds. A zone without a rate counts calls in flight, as nginx's `limit_conn`. All
    /// threads share the counters.
    pub struct ZoneTable {
        /// The key by which calls are counted; all parts of the list together make one key.
        /// `client` is the client's address. `client-net` is the same address, but only the first
        /// 64 bits of an IPv6 address. `key` is the name of the client's API key (`ISSUER:SUBJECT`
        /// for a token). `header:NAME` is the value of a request header. `method` and `chain` are
        /// the names of the method and the chain. A call whose whole key is empty or longer than
        /// 65535 bytes is not limited. So with `key` alone, calls without an API key are not
        /// limited.
        key: List<ZoneKeyPart> = required;
        /// The allowed rate of calls, per second or per minute. As in nginx, the rate is stored in
        /// whole thousandths of a call per second, so `1r/m` is 0.016 per second.
        rate: CallRate = described "none: the zone counts calls in flight";
        /// How many calls one call counts as. `call` counts one. `weight` counts as many as the
        /// weight of the method, its relative cost (`weir explain` prints it), as if that many
        /// calls arrived at once.
        cost: CallCost = "call";
        /// Memory for keys: 64 bytes per key, allocated as keys are added. When the memory is full,
        /// a new key evicts the least recently used one. A zone that counts calls in flight evicts
        /// no key, but rejects the calls of new keys.
        bytes: Size<{ 32 << 10 }, { 64 * GIB }> = "16MiB";
        /// If true, all gateways with the same `redis.prefix` share the counters of the zone. Each
        /// call waits for a script in Redis, at most for `redis.timeout`. The script does the same
        /// arithmetic by the clock of Redis. While Redis is down, slow or not yet connected, each
        /// gateway applies its share: the rate and the burst divided by the number of gateways
        /// (`redis.gateways`). It continues from the last known counters in Redis, and later
        /// reports its own calls to Redis. So calls are never unlimited, and a key gets no second
        /// burst. If Redis loses its data because it was emptied or evicts keys when full, a key
        /// gets at most one further burst. A limit in dry run always applies the share.
        shared: Bool = "false";
    }
}

settings::table! {
    /// A limit on the calls that a zone counts. Each call of a batch is limited on its own. All
    /// limits that match a call apply. If several of them have the same zone, only the first
    /// applies. If one limit rejects the call, the call counts in no zone. Otherwise it counts in
    /// the zones of all limits that apply.
    pub struct LimitTable by zone {
        /// Name of the zone.
        zone: Name = required;
        /// Name of the chain whose calls are limited.
        chain: Name = described "every chain";
        /// Methods whose calls are limited. If this key is not set, the limit also counts request
        /// bodies that are not a valid call.
        methods: List<MethodPattern> = described "every method";
        /// If true, the limit counts requests that fail authentication instead of calls, so that
        /// nobody can guess API keys fast. A client over the limit gets `status` before its API key
        /// is checked, even if the key is right. Clients behind one address share the limit. The
        /// `key` of the zone must be `client` or `client-net` alone.
        failures: Bool = "false";
        /// Number of calls above the rate that are still accepted. Further calls are rejected.
        burst: Integer<0, 4_000_000> = "0";
        /// Number of calls above the rate that pass without a delay. Further calls within `burst`
        /// are delayed.
        delay: Integer<0, 4_000_000> = "0";
        /// If true, calls within `burst` are never delayed.
        nodelay: Bool = "false";
        /// Maximum number of calls in flight, for a zone without a rate. A delayed call is not in
        /// flight yet.
        concurrent: Integer<1, 1_000_000_000> = described "none: the zone's rate counts";
        /// If true, the limit neither rejects nor delays calls. It only counts the calls that it
        /// would reject or delay. Limits in dry run are checked after all other limits, and affect
        /// only each other.
        dry_run: Bool = "false";
        /// HTTP status of a rejected call (nginx: 503). A batch has this status if all its calls
        /// are rejected. The JSON-RPC code is always -32005.
        status: Integer<400, 599, u16> = "429";
    }
}

/// A zone of request limits, with a counter for each value of its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone {
    /// Unique name, which is a metric label.
    pub name: Arc<str>,
    /// Parts of the key by which calls are counted. At least one, without duplicates.
    pub key: Vec<KeyPart>,
    /// Rate at which a counter drains; `None` if the zone counts calls in flight.
    pub rate: Option<Rate>,
    /// How many calls one call counts as.
    pub cost: CallCost,
    /// Bytes of memory for keys. A full zone with a rate evicts the least recently used key.
    pub bytes: usize,
    /// True if gateways share the zone through Redis.
    pub shared: bool,
}

/// A part of the key of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's whole address.
    Client,
    /// The first 64 bits of the client's IPv6 address, which usually belong to one client, or its
    /// whole IPv4 address.
    ClientNet,
    /// The name of the caller's API key, or `ISSUER:SUBJECT` of the caller's token. Empty if the
    /// caller has neither.
    Key,
    /// The value of a request header. Empty if the request lacks the header.
    Header(http::HeaderName),
    /// The method's name; empty if the body could not be parsed.
    Method,
    /// The chain's name.
    Chain,
}

fn parse_key_part(text: &str) -> Result<KeyPart, &'static str> {
    match text.split_once(':') {
        None if text == "client" => Ok(KeyPart::Client),
        None if text == "client-net" => Ok(KeyPart::ClientNet),
        None if text == "key" => Ok(KeyPart::Key),
        None if text == "method" => Ok(KeyPart::Method),
        None if text == "chain" => Ok(KeyPart::Chain),
        Some(("header", name)) => parse_header_name(name).map(KeyPart::Header),
        _ => Err("no such part of a key"),
    }
}

/// A limit on the calls that a zone counts.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Index of the zone in [`super::Config::zones`].
    pub zone: usize,
    /// Index of the chain in [`super::Config::chains`]; `None` for every chain.
    pub chain: Option<usize>,
    /// Patterns of the limited methods: exact names, or prefixes that end in `*`. An empty list
    /// matches every method.
    pub methods: Vec<Box<str>>,
    /// True if the limit counts requests that fail authentication, instead of calls.
    pub failures: bool,
    /// The quantity that is limited.
    pub kind: LimitKind,
    /// True if the limit only counts the calls that it would delay or reject.
    pub dry_run: bool,
    /// HTTP status of a single rejected call.
    pub status: u16,
}

/// The quantity that a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// The rate of calls, by the zone's rate.
    Rate(LimitTerms),
    /// The number of calls in flight.
    Concurrent(u64),
}

/// Validates all zones and limits.
pub(super) fn check(
    zone_tables: &[(String, ZoneTable)],
    limit_tables: &[LimitTable],
    chains: &[Chain],
    access: &Access,
    report: &mut Report<'_>,
) -> (Vec<Zone>, Vec<Limit>) {
    // A zone with errors stays in the list, so limits that name it cause no further errors.
    let zones: Vec<Zone> =
        zone_tables.iter().map(|(name, table)| check_zone(name, table, report)).collect();
    let mut limits = Vec::new();
    for table in limit_tables {
        limits.extend(check_limit(table, &zones, chains, report));
    }
    for (index, ((_, table), zone)) in zone_tables.iter().zip(&zones).enumerate() {
        if !limits.iter().any(|limit| limit.zone == index) {
            let message = "no limit uses this zone";
            report.warn(table, message, format!("[[limit]] with zone = \"{}\"", zone.name));
        }
        let has_limit =
            |dry_run| limits.iter().any(|limit| limit.zone == index && limit.dry_run == dry_run);
        if zone.shared && has_limit(true) && has_limit(false) {
            let message = "one limit of this shared zone is a dry run and another is not";
            report.error(&table.shared, message, "a zone for each");
        }
    }
    if access.keys.is_empty() && access.issuers.is_empty() {
        warn_of_missing_keys(zone_tables, &zones, report);
    }
    warn_of_unused_key_rates(access, &zones, &limits, report);
    (zones, limits)
}

/// Warns of zones that count by API key if no key is configured.
fn warn_of_missing_keys(
    zone_tables: &[(String, ZoneTable)],
    zones: &[Zone],
    report: &mut Report<'_>,
) {
    for ((_, table), zone) in zone_tables.iter().zip(zones) {
        let Some(part) = zone.key.iter().position(|part| *part == KeyPart::Key) else { continue };
        let message = match &*zone.key {
            [_] => "no API key is configured, so the zone limits no call",
            _ => "no API key is configured, so this part is always empty",
        };
        let advice = "a [[key]] or [[jwt]] for callers, or the part \"client\"";
        report.warn(&table.key.element_location(part), message, advice);
    }
}

/// Warns if an API key has its own rate or burst, but no limit counts calls by API key.
fn warn_of_unused_key_rates(
    access: &Access,
    zones: &[Zone],
    limits: &[Limit],
    report: &mut Report<'_>,
) {
    let counts_by_key = |limit: &Limit| {
        let zone = &zones[limit.zone];
        zone.rate.is_some() && zone.key.contains(&KeyPart::Key)
    };
    let overrides_rate = |grant: &Grant| grant.rate.is_some() || grant.burst.is_some();
    if let Some(key) = access.keys.iter().find(|key| overrides_rate(&key.grant))
        && !limits.iter().any(counts_by_key)
    {
        let message =
            format!("key {} has its own rate or burst, but no limit counts by key", key.grant.name);
        let location = Location { path: "key.rate".to_owned(), ..Location::default() };
        report.warn(&location, message, "a [[limit]] with a zone of a rate and key = [\"key\"]");
    }
}

/// Returns true if a call can match both limits.
pub(super) fn can_both_apply(left: &Limit, right: &Limit) -> bool {
    let chains_overlap = left.chain.is_none() || right.chain.is_none() || left.chain == right.chain;
    let patterns_overlap =
        |left: &str, right: &str| match (left.strip_suffix('*'), right.strip_suffix('*')) {
            (Some(left), Some(right)) => left.starts_with(right) || right.starts_with(left),
            (Some(prefix), None) => right.starts_with(prefix),
            (None, Some(prefix)) => left.starts_with(prefix),
            (None, None) => left == right,
        };
    let overlaps_right =
        |pattern: &str| right.methods.iter().any(|other| patterns_overlap(pattern, other));
    // An empty list of patterns matches every method.
    let methods_overlap = left.methods.is_empty()
        || right.methods.is_empty()
        || left.methods.iter().any(|pattern| overlaps_right(pattern));
    chains_overlap && methods_overlap
}

/// Validates a zone. Returns the zone even if it has errors.
fn check_zone(zone_name: &str, table: &ZoneTable, report: &mut Report<'_>) -> Zone {
    if let Err(message) = parse_name(zone_name) {
        report.error(table, message, "[zone.NAME], with a name such as clients");
    }
    let has_rate = table.rate.is_some();
    if *table.cost == CallCost::Weight && !has_rate {
        let message = "the zone counts calls in flight, regardless of weight";
        report.error(&table.cost, message, "a zone with a rate");
    }
    if *table.shared && !has_rate {
        let message = "each gateway counts calls in flight on its own";
        report.error(&table.shared, message, "a zone with a rate");
    }
    if table.key.is_empty_list() {
        report.error(&table.key, "the key is empty, so nothing is limited", "at least one part");
    }
    for (index, part) in table.key.iter().enumerate() {
        if table.key[..index].contains(part) {
            report.error(&table.key.element_location(index), "named twice", "each part once");
        }
    }
    Zone {
        name: zone_name.into(),
        key: (*table.key).clone(),
        rate: *table.rate,
        cost: *table.cost,
        bytes: *table.bytes,
        shared: *table.shared,
    }
}

/// Validates a limit. Returns `None` if the name of its zone is invalid or unknown.
fn check_limit(
    table: &LimitTable,
    zones: &[Zone],
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Option<Limit> {
    let name = table.zone.valid_value()?;
    let zone_names: Vec<&str> = zones.iter().map(|zone| &*zone.name).collect();
    let zone = find_name(&zone_names, name, "zone", &table.zone, report)?;
    if table.methods.is_empty_list() {
        report.error(&table.methods, "the limit applies to nothing", "at least one pattern");
    }
    let limit = Limit {
        zone,
        chain: chain::find_chain(&table.chain, chains, report),
        methods: (*table.methods).clone().unwrap_or_default(),
        failures: *table.failures,
        kind: check_kind(table, &zones[zone], report),
        dry_run: *table.dry_run,
        status: *table.status,
    };
    if limit.failures {
        check_failure_limit(table, &zones[zone], report);
    } else if zones[zone].cost == CallCost::Weight {
        warn_of_heavy_methods(table, &limit, chains, report);
    }
    Some(limit)
}

/// Checks a limit of failed authentications. Of such a request the gateway knows only the client's
/// address, so a condition on anything else is an error.
fn check_failure_limit(table: &LimitTable, zone: &Zone, report: &mut Report<'_>) {
    let by_client = matches!(*zone.key, [KeyPart::Client | KeyPart::ClientNet]);
    let LimitTable { zone: zone_key, chain, methods, delay, dry_run, .. } = table;
    let (position, allowed) = if !by_client {
        (&zone_key.location, "a key of client or client-net alone")
    } else if zone.rate.is_none() {
        (&zone_key.location, "a zone with a rate")
    } else if zone.shared {
        (&zone_key.location, "a zone that is not shared")
    } else if chain.is_set() {
        (&chain.location, "no chain: it is unknown before authentication")
    } else if methods.is_set() {
        (&methods.location, "no methods: they are unknown before authentication")
    } else if delay.is_set() {
        (&delay.location, "no delay: failures are never delayed")
    } else if **dry_run {
        (&dry_run.location, "false")
    } else {
        return;
    };
    report.error(position, "it counts requests with failed authentication", allowed);
}

/// Returns the quantity that a limit bounds: the rate of calls if its zone has a rate, otherwise
/// the number of calls in flight.
fn check_kind(table: &LimitTable, zone: &Zone, report: &mut Report<'_>) -> LimitKind {
    let LimitTable { burst, delay, nodelay, concurrent, .. } = table;
    let Some(rate) = zone.rate else {
        if !concurrent.is_set() {
            let message =
                format!("zone {} has no rate, and this limit has no concurrent", zone.name);
            report.error(&table.zone, message, "concurrent here, or a rate there");
        }
        let keys = [&burst.location, &delay.location, &nodelay.location];
        for position in keys.into_iter().filter(|position| position.is_written()) {
            let message = format!("zone {} counts calls in flight", zone.name);
            report.error(position, message, "a zone with a rate");
        }
        return LimitKind::Concurrent(concurrent.unwrap_or(1));
    };
    if concurrent.is_some() {
        let message = format!("zone {} counts by its rate", zone.name);
        report.error(concurrent, message, "a zone without a rate");
    }
    if **nodelay && delay.is_set() {
        report.error(delay, "with nodelay there is no delay", "delay or nodelay, not both");
    }
    LimitKind::Rate(LimitTerms {
        rate,
        // Terms store calls in thousandths.
        burst: **burst * CALL,
        delay: (!**nodelay).then_some(**delay * CALL),
    })
}

/// Warns of methods whose calls never pass, because their weight exceeds the burst.
fn warn_of_heavy_methods(
    table: &LimitTable,
    limit: &Limit,
    chains: &[Chain],
    report: &mut Report<'_>,
) {
    let LimitKind::Rate(terms) = limit.kind else { return };
    // The first unit of a call's weight needs no burst. `CALL` is the number of thousandths of one
    // call.
    let weight_max = terms.burst / CALL + 1;
    let applies_to = |index: &usize| limit.chain.is_none_or(|chain| chain == *index);
    let families: HashSet<Family> =
        (0..chains.len()).filter(applies_to).map(|index| chains[index].family).collect();
    let mut heavy: Vec<&Method> = families
        .into_iter()
        .flat_map(|family| methods_of(family).methods())
        .filter(|method| {
            u64::from(method.weight) > weight_max && matches_method(&limit.methods, method.name)
        })
        .collect();
    heavy.sort_unstable_by_key(|method| (std::cmp::Reverse(method.weight), method.name));
    heavy.dedup_by_key(|method| (method.weight, method.name));
    if let Some(heaviest) = heavy.first() {
        let names: Vec<&str> =
            heavy.iter().take(METHODS_NAMED_MAX).map(|method| method.name).collect();
        let more_count = heavy.len() - names.len();
        let more = if more_count > 0 { format!(" and {more_count} more") } else { String::new() };
        let message =
            format!("{}{more} weigh more than burst + 1 and are always rejected", names.join(", "));
        report.warn(&table.burst, message, format!("burst = {}", heaviest.weight - 1));
    }
}
