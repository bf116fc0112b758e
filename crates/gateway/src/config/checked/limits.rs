//! Zones and the limits that use them.

use std::collections::HashSet;

use wire::method::{FamilyName, family};

use super::super::fault::Report;
use super::super::field::{LIMIT, ZONE};
use super::super::file::{Entry, Written};
use super::super::kind::{check_name, key_part};
use super::super::{Chain, Cost, KeyPart, Limit, LimitKind, Zone};
use super::{not_found, refuse, refuse_element};
use crate::config::access::Access;
use crate::rules::access::Grant;
use crate::rules::limit::{CALL, Rate, Terms, fits};

/// Methods that a warning names at most.
const METHODS_NAMED_MAX: usize = 3;

/// All zones and limits.
pub(super) fn check(
    written: &Written,
    chains: &[Chain],
    access: &Access,
    report: &mut Report<'_>,
) -> (Vec<Zone>, Vec<Limit>) {
    // A zone that could not be read is missed by no limit: it is there, with its fault.
    let entries: Vec<&Entry> = written.all(&ZONE).collect();
    let zones: Vec<Zone> = entries.iter().map(|entry| zone(entry, report)).collect();
    let mut limits = Vec::new();
    for entry in written.all(&LIMIT) {
        limits.extend(limit(entry, &zones, chains, report));
    }
    for (at, (entry, zone)) in entries.iter().zip(&zones).enumerate() {
        if !limits.iter().any(|limit| limit.zone == at) {
            let message = "no limit uses this zone, so it limits nothing";
            let advice = format!("[[limit]] with zone = \"{}\"", zone.name);
            report.warn(entry.span.as_ref(), format!("zone.{}", zone.name), message, &advice);
        }
        let uses = |dry_run| limits.iter().any(|own| own.zone == at && own.dry_run == dry_run);
        if zone.shared && uses(true) && uses(false) {
            let message = "one limit of this shared zone is a dry run and another is not";
            refuse(report, entry, "shared", message, "a zone for each");
        }
    }
    let by_key = |limit: &Limit| {
        let zone = &zones[limit.zone];
        zone.rate.is_some() && zone.key.contains(&KeyPart::Key)
    };
    let own = |grant: &Grant| grant.rate.is_some() || grant.burst.is_some();
    if let Some(key) = access.keys.iter().find(|key| own(&key.grant))
        && !limits.iter().any(by_key)
    {
        let message =
            format!("key {} has its own rate or burst, and no limit counts by key", key.grant.name);
        let advice = "a [[limit]] with a zone of a rate and key = [\"key\"]";
        report.warn(None, "key.rate".to_owned(), message, advice);
    }
    (zones, limits)
}

/// Whether some call could count against both limits.
pub(super) fn meet(one: &Limit, other: &Limit) -> bool {
    let chains = one.chain.is_none() || other.chain.is_none() || one.chain == other.chain;
    let overlap = |one: &str, other: &str| match (one.strip_suffix('*'), other.strip_suffix('*')) {
        (Some(one), Some(other)) => one.starts_with(other) || other.starts_with(one),
        (Some(prefix), None) => other.starts_with(prefix),
        (None, Some(prefix)) => one.starts_with(prefix),
        (None, None) => one == other,
    };
    let all = one.methods.is_empty() || other.methods.is_empty();
    chains
        && (all || one.methods.iter().any(|one| other.methods.iter().any(|own| overlap(one, own))))
}

fn zone(entry: &Entry, report: &mut Report<'_>) -> Zone {
    if let Err(message) = check_name(&entry.name) {
        let allowed = "[zone.NAME], with a name such as clients".to_owned();
        report.fault(entry.span.as_ref(), "zone", None, message, Some(allowed));
    }
    let rate = entry.chosen("rate").map(|rate| rate.rate());
    let cost = match entry.value("cost").choice() {
        "weight" => Cost::Weight,
        _ => Cost::Call,
    };
    if cost == Cost::Weight && rate.is_none() {
        let message = "the zone counts calls in flight, whatever they weigh";
        refuse(report, entry, "cost", message, "a zone with a rate");
    }
    let shared = entry.value("shared").switch();
    if shared && rate.is_none() {
        let message = "calls in flight are counted by each gateway for itself";
        refuse(report, entry, "shared", message, "a zone with a rate");
    }
    Zone {
        name: entry.name.as_str().into(),
        key: key(entry, report),
        rate,
        cost,
        bytes: entry.value("bytes").size(),
        shared,
    }
}

fn key(entry: &Entry, report: &mut Report<'_>) -> Vec<KeyPart> {
    let Some(texts) = entry.chosen("key") else { return Vec::new() };
    if entry.set("key").is_some_and(|set| set.elements.is_empty()) {
        refuse(
            report,
            entry,
            "key",
            "the key is empty, so nothing is limited",
            "at least one part",
        );
    }
    let mut seen = HashSet::new();
    let mut parts = Vec::new();
    for (at, text) in texts.texts().iter().enumerate() {
        if !seen.insert(text.to_ascii_lowercase()) {
            refuse_element(report, entry, "key", at, "named twice", "each part once");
        }
        parts.extend(key_part(text));
    }
    parts
}

fn limit(
    entry: &Entry,
    zones: &[Zone],
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Option<Limit> {
    let known: Vec<&str> = zones.iter().map(|zone| &*zone.name).collect();
    let name = entry.chosen("zone")?.text();
    let Some(at) = known.iter().position(|known| *known == name) else {
        let (message, allowed) = not_found("zone", &name, &known);
        refuse(report, entry, "zone", &message, &allowed);
        return None;
    };
    let chain = match entry.chosen("chain") {
        None => None,
        Some(name) => {
            let (name, known) = (name.text(), chains.iter().map(|chain| &*chain.name));
            let known: Vec<&str> = known.collect();
            let found = known.iter().position(|known| *known == name);
            if found.is_none() {
                let (message, allowed) = not_found("chain", &name, &known);
                refuse(report, entry, "chain", &message, &allowed);
            }
            found
        }
    };
    if entry.set("methods").is_some_and(|set| set.elements.is_empty()) {
        refuse(report, entry, "methods", "the limit applies to nothing", "at least one pattern");
    }
    let methods = entry.chosen("methods").map_or_else(Vec::new, |methods| methods.texts());
    let limit = Limit {
        zone: at,
        chain,
        methods: methods.into_iter().map(String::into_boxed_str).collect(),
        failures: entry.value("failures").switch(),
        kind: kind(entry, &zones[at], report),
        dry_run: entry.value("dry_run").switch(),
        status: entry.value("status").count() as u16,
    };
    if limit.failures {
        of_failures(entry, &zones[at], report);
    }
    if zones[at].cost == Cost::Weight {
        too_heavy(entry, &limit, chains, report);
    }
    Some(limit)
}

/// Whether a limit that counts refused requests asks for no more than is known of them.
fn of_failures(entry: &Entry, zone: &Zone, report: &mut Report<'_>) {
    let by_client = matches!(*zone.key, [KeyPart::Client | KeyPart::ClientNet]);
    let fits = [
        (by_client, "zone", "a key of client or client-net alone"),
        (zone.rate.is_some(), "zone", "a zone with a rate"),
        (!zone.shared, "zone", "a zone that is not shared"),
        (entry.set("chain").is_none(), "chain", "no chain: it is not known yet"),
        (entry.set("methods").is_none(), "methods", "no methods: they are not known yet"),
        (entry.set("delay").is_none(), "delay", "no delay: nothing waits"),
        (!entry.value("dry_run").switch(), "dry_run", "false"),
    ];
    if let Some((_, key, allowed)) = fits.into_iter().find(|(fits, ..)| !fits) {
        let message = "it counts requests that are refused for who sends them";
        refuse(report, entry, key, message, allowed);
    }
}

fn kind(entry: &Entry, zone: &Zone, report: &mut Report<'_>) -> LimitKind {
    let concurrent = entry.chosen("concurrent").map(|count| count.count());
    let Some(rate) = zone.rate else {
        if concurrent.is_none() {
            let message = format!("zone {} has no rate, and this limit no number", zone.name);
            refuse(report, entry, "zone", &message, "concurrent here, or a rate there");
        }
        for key in ["burst", "delay", "nodelay"] {
            if entry.set(key).is_some() {
                let message = format!("zone {} counts calls in flight", zone.name);
                refuse(report, entry, key, &message, "a zone with a rate");
            }
        }
        return LimitKind::Concurrent(concurrent.unwrap_or(1));
    };
    if concurrent.is_some() {
        let message = format!("zone {} counts by its rate", zone.name);
        refuse(report, entry, "concurrent", &message, "a zone without a rate");
    }
    let nodelay = entry.value("nodelay").switch();
    if nodelay && entry.set("delay").is_some() {
        let message = "with nodelay nothing waits";
        refuse(report, entry, "delay", message, "delay or nodelay, not both");
    }
    LimitKind::Rate(terms(entry, rate, nodelay))
}

fn terms(entry: &Entry, rate: Rate, nodelay: bool) -> Terms {
    Terms {
        rate,
        burst: entry.value("burst").count() * CALL,
        delay: (!nodelay).then(|| entry.value("delay").count() * CALL),
    }
}

/// Warns of methods that cost more than the burst can ever hold.
fn too_heavy(entry: &Entry, limit: &Limit, chains: &[Chain], report: &mut Report<'_>) {
    let LimitKind::Rate(terms) = limit.kind else { return };
    let most = terms.burst / CALL + 1;
    let own = |at: &usize| limit.chain.is_none_or(|chain| chain == *at);
    let families: HashSet<FamilyName> =
        (0..chains.len()).filter(own).map(|at| chains[at].family).collect();
    let mut heavy: Vec<(u32, &str)> = families
        .into_iter()
        .flat_map(|name| family(name).methods())
        .filter(|method| u64::from(method.weight) > most && fits(&limit.methods, method.name))
        .map(|method| (method.weight, method.name))
        .collect();
    heavy.sort_unstable_by_key(|(weight, name)| (std::cmp::Reverse(*weight), *name));
    heavy.dedup();
    if let Some((weight, _)) = heavy.first() {
        let named: Vec<&str> =
            heavy.iter().take(METHODS_NAMED_MAX).map(|(_, name)| *name).collect();
        let more = heavy.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message =
            format!("{}{more} weigh more than burst + 1 and are refused always", named.join(", "));
        let span = entry.set("burst").and_then(|set| set.span.as_ref()).or(entry.span.as_ref());
        report.warn(span, entry.key("burst"), message, &format!("burst = {}", weight - 1));
    }
}
