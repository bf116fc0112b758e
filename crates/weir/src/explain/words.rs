//! Describes in words, for `weir explain`, the decisions of tables and rules.

use gateway::config::cache::Cache;
use gateway::config::group::Group;
use gateway::config::limits::{Cost, KeyPart, Limit, LimitKind, Zone};
use gateway::policy::access::{Denial, Grant};
use gateway::policy::cacheable::CacheRule;
use gateway::policy::direct::{Action, Rule, WHOLE};
use gateway::policy::heads::ChainView;
use gateway::policy::logs::{LogsPlan, Part};
use gateway::policy::overload::Class;
use gateway::policy::plan::Lookup;
use wire::block::{BlockRef, BlockRefError, BlockTag};
use wire::block_param::BlockParam;
use wire::call::{Params, Rejection};
use wire::key::{KeyParts, ResolvedBlock};
use wire::method::{Method, Repeat, Validity};

use crate::source;

pub(super) const UNKNOWN: &str = "no: nothing is known of its answers; not joined either";
pub(super) const SUBSCRIPTION: &str =
    "by the gateway itself over a WebSocket; over HTTP with -32601 (docs/subscriptions.md)";
pub(super) const FILTER: &str =
    "by the gateway itself where the filter is its own (docs/subscriptions.md); else:";
pub(super) const CACHE_OFF: &str = "no: the cache is off";
pub(super) const UNKNOWN_REPEAT: &str = "only if it cannot have reached an upstream";

/// Longest parameters that are printed beside a key.
const PARAMS_SHOWN_BYTES_MAX: usize = 300;

/// Maximum number of parts of a log range that are listed.
const PARTS_SHOWN_MAX: usize = 8;

/// Longest key that is printed in full.
const KEY_SHOWN_BYTES_MAX: usize = 200;

pub(super) fn refusal(refusal: &Rejection<'_>) -> String {
    format!("the gateway answers {}: {}", refusal.code.0, refusal.message)
}

/// Describes why a request or a call is not served.
pub(super) fn denial(denial: Denial) -> String {
    let why = match denial {
        Denial::NoKey => "401: an API key or token is required",
        Denial::BadKey | Denial::TwoKeys => "401: the key is not valid",
        Denial::Expired => "401: the key has expired",
        Denial::Address => "403: this client address is not allowed",
        Denial::Chain => "403: the key does not lead to this chain",
        Denial::NodeMethod => {
            "-32601: the method acts on the node itself, and no node_methods names it"
        }
        Denial::Transaction => "-32601: signed transactions are not taken",
        Denial::Method => "-32601: a list of methods does not admit it",
        Denial::Rule => "a rule refuses it",
    };
    format!("the gateway answers {why}")
}

/// Describes a rule that matched, and its effect.
pub(super) fn rule(rule: &Rule) -> String {
    let what = match &rule.action {
        Action::Group(_) => "chooses the group".to_owned(),
        Action::Deny { status, message } => format!("refuses the call: {status}, {message}"),
        Action::Rewrite(to) => {
            format!("puts {to} in place of {}", rule.path.as_deref().unwrap_or("/"))
        }
    };
    let share = match rule.share {
        WHOLE => String::new(),
        share => format!(" (for {} % of what fits, and this is in)", f64::from(share) / 100.0),
    };
    format!("{} {what}{share}", rule.name)
}

pub(super) fn group(group: &Group) -> String {
    format!("{}, which serves {}", group.name, group.methods.join(" "))
}

/// Describes a limit that applies to a call.
pub(super) fn limit(
    limit: &Limit,
    zone: &Zone,
    method: Option<&Method>,
    grant: Option<&Grant>,
) -> String {
    let counts = match (zone.cost, method) {
        (Cost::Weight, Some(method)) if method.weight > 1 => {
            format!(", where the call counts as {}", method.weight)
        }
        _ => String::new(),
    };
    let dry = if limit.dry_run { ", in dry run" } else { "" };
    let mut kind = limit.kind;
    let mut own = "";
    if let (LimitKind::Rate(terms), Some(grant)) = (&mut kind, grant)
        && zone.key.contains(&KeyPart::Key)
        && (grant.rate.is_some() || grant.burst.is_some())
    {
        terms.rate = grant.rate.unwrap_or(terms.rate);
        terms.burst = grant.burst.unwrap_or(terms.burst);
        own = " (the key's own)";
    }
    let described = source::described_limit(&kind, zone);
    format!("{described}{own}{counts}{dry}; else status {}", limit.status)
}

pub(super) fn class(class: Class) -> &'static str {
    match class {
        Class::High => "high: the first to be served when upstreams are overloaded",
        Class::Normal => "normal",
        Class::Low => "low: the first to be shed when upstreams are overloaded",
    }
}

pub(super) fn deadline(group: &Group) -> String {
    let (whole, attempt) = (group.deadline, group.attempt_deadline);
    format!("{whole:?} for the whole call, {attempt:?} for each attempt")
}

pub(super) fn repeat(repeat: Repeat, group: &Group) -> &'static str {
    match repeat {
        _ if group.retries_max == 0 => "no: the group allows no further attempt",
        Repeat::Safe => "yes: asking twice changes nothing",
        Repeat::Broadcast => {
            "yes: the chain takes a signed transaction once, and \"already known\" counts as success"
        }
        Repeat::Never => UNKNOWN_REPEAT,
    }
}

/// Describes the block that a call names.
pub(super) fn block(
    at: BlockParam,
    block: Result<Option<BlockRef>, BlockRefError>,
    view: &ChainView,
) -> String {
    let place = at.at + 1;
    match block {
        Err(why) => format!("parameter {place} names none: {why}"),
        Ok(None) => format!("parameter {place} is left out, and no default is fixed for it"),
        Ok(Some(BlockRef::Number(number))) => {
            let state = match view.head {
                _ if view.is_finalized(number) => "final",
                Some(head) if number > head.number => "above the head",
                _ => "not final yet",
            };
            format!("parameter {place} is the number {number}, {state}")
        }
        Ok(Some(BlockRef::Hash(_))) => format!("parameter {place} is a hash"),
        Ok(Some(BlockRef::CanonicalHash(_))) => {
            format!("parameter {place} is a hash that must be in the chain")
        }
        Ok(Some(BlockRef::Tag(tag))) => format!("parameter {place} is {}", tag.as_str()),
    }
}

/// Describes whether the response is cached, and under which condition it stays valid.
pub(super) fn cached(lookup: &Lookup, cache: &Cache, view: &ChainView) -> String {
    match lookup.caching.rule {
        CacheRule::Constant => "yes, for ever: it is the same on this chain always".to_owned(),
        CacheRule::AtNumber { number, .. } | CacheRule::AtRange { to: number, .. } => {
            if view.is_finalized(number) {
                return format!("yes, for ever: bound to block {number}, which is final");
            }
            format!("yes, while block {number} stays in the chain; for ever once it is final")
        }
        CacheRule::AtHash => "yes, for ever: it follows from the hash alone".to_owned(),
        CacheRule::AtTransaction => {
            "yes, while the block that the answer names stays in the chain".to_owned()
        }
        CacheRule::AtHead => format!("yes, until the next head, at most {:?}", cache.head_age_max),
        CacheRule::Never | CacheRule::Logs if !cache.enabled => CACHE_OFF.to_owned(),
        CacheRule::Never | CacheRule::Logs => {
            let block = lookup.block.clone().map(|found| found.map(|(block, _)| block));
            format!("no: {}", why_not(lookup.method, block, view))
        }
    }
}

fn why_not(
    method: &Method,
    block: Result<Option<BlockRef>, BlockRefError>,
    view: &ChainView,
) -> &'static str {
    match (method.validity, block) {
        (Validity::Mempool, _) => "it is about the upstream's waiting transactions",
        (Validity::Never, _) if method.write => "it changes something",
        (Validity::Never, _) if method.sticky => "it belongs to one upstream's own state",
        (Validity::Never, _) => "nothing is known that would tell when its answer ends",
        (_, Err(_)) => "the block that it names cannot be read; the upstream may know better",
        (_, Ok(None)) => "it names no block",
        (_, Ok(Some(BlockRef::CanonicalHash(_)))) => "whether a hash is in the chain can change",
        (_, Ok(Some(BlockRef::Tag(BlockTag::Pending)))) => "the pending block changes all the time",
        (_, Ok(Some(BlockRef::Tag(_)))) => "what the tag stands for is not known",
        (_, Ok(Some(BlockRef::Number(number)))) => match view.head {
            Some(head) if number > head.number => "the block is above every known head",
            _ => "so close to the head the answer is not complete yet",
        },
        (_, Ok(Some(BlockRef::Hash(_)))) => "nothing is known that would tell when its answer ends",
    }
}

/// Describes how a log filter is split into parts, and how long each part is cached.
pub(super) fn logs(plan: &LogsPlan) -> Vec<String> {
    let parts = match plan {
        LogsPlan::Forward => {
            return vec!["no: the bounds move, are reversed or lie above the head".to_owned()];
        }
        LogsPlan::ByHash => {
            return vec!["yes, for ever: it follows from the hash alone".to_owned()];
        }
        LogsPlan::Parts(parts) => parts,
    };
    let told = |part: &Part| {
        let life = match part.finalized {
            true => "for ever: they are final",
            false => "while they stay in the chain",
        };
        format!("blocks {} to {}, {life}", part.from, part.to)
    };
    let mut lines = vec![match parts.len() {
        1 => "yes, whole".to_owned(),
        count => format!("yes, in {count} parts, each by itself"),
    }];
    lines.extend(parts.iter().take(PARTS_SHOWN_MAX).map(told));
    if parts.len() > PARTS_SHOWN_MAX {
        lines.push(format!("and {} more", parts.len() - PARTS_SHOWN_MAX));
    }
    lines
}

pub(super) fn joined(join: bool, coalesce: bool, cache: &Cache) -> &'static str {
    match (join, coalesce) {
        (true, _) => "yes: equal calls under way at the same time share one answer",
        (false, true) if !cache.coalesce => "no: coalescing is off",
        (false, _) => "no: every call reaches an upstream by itself",
    }
}

/// Describes a cache key.
pub(super) fn key(parts: &KeyParts<'_>) -> String {
    let params = match parts.params {
        Params::Absent | Params::Null => "[]".to_owned(),
        Params::Array(raw) | Params::Object(raw) => {
            let shown = &raw[..raw.len().min(PARAMS_SHOWN_BYTES_MAX)];
            let cut = if shown.len() < raw.len() { "…" } else { "" };
            format!("{}{cut}", String::from_utf8_lossy(shown))
        }
    };
    let block = match parts.block {
        Some(ResolvedBlock::Number(number)) => format!(", its block as {number}"),
        _ => String::new(),
    };
    format!("{} {} {params}{block}", parts.chain, parts.method.name)
}

/// Formats the bytes of a cache key.
pub(super) fn hex(key: &[u8]) -> String {
    let shown = &key[..key.len().min(KEY_SHOWN_BYTES_MAX)];
    let digits: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    let cut = if shown.len() < key.len() { "…" } else { "" };
    format!("{digits}{cut} ({} bytes)", key.len())
}
