//! Wording of `weir explain`. Each function describes one decision of the gateway.

use gateway::config::cache::Cache;
use gateway::config::group::Group;
use gateway::config::limits::{Limit, Zone};
use gateway::explain::{AppliedLimit, Refusal};
use gateway::policy::access::MethodRefusal;
use gateway::policy::cacheable::CacheRule;
use gateway::policy::heads::ChainView;
use gateway::policy::logs::{LogsPlan, Part};
use gateway::policy::overload::Class;
use gateway::policy::plan::Lookup;
use gateway::policy::routing_rules::{Action, Rule, SHARE_ALL};
use wire::block::{BlockRef, BlockRefError, BlockTag};
use wire::block_param::BlockParam;
use wire::call::Params;
use wire::key::{KeyParts, ResolvedBlock};
use wire::method::{Method, Repeat, Validity};

use crate::source;

/// Text about the caching and coalescing of a call of an unknown method.
pub(super) const UNKNOWN_METHOD: &str = "no: the method is unknown; not coalesced either";
/// Text about the response to a subscription.
pub(super) const SUBSCRIPTION: &str =
    "by the gateway itself over a WebSocket; over HTTP with -32601 (docs/subscriptions.md)";
/// Text about the response to a call of a filter. The gateway may have created the filter.
pub(super) const FILTER: &str =
    "by the gateway itself if it created the filter (docs/subscriptions.md); else:";
/// Text about caching with a disabled cache.
pub(super) const CACHE_OFF: &str = "no: the cache is off";
/// Text about the repetition of a call that may have an effect each time it is sent.
pub(super) const REPEAT_IF_UNSENT: &str = "only if it cannot have reached an upstream";

/// Maximum number of bytes of the parameters that are printed with a key.
const PARAMS_SHOWN_BYTES_MAX: usize = 300;

/// Maximum number of parts of a log range that are listed.
const PARTS_SHOWN_MAX: usize = 8;

/// Maximum number of bytes of a key that are printed.
const KEY_SHOWN_BYTES_MAX: usize = 200;

/// Describes why a call is refused.
pub(super) fn refusal(refusal: &Refusal) -> String {
    let reason = match refusal.refused_by {
        Some(method_refusal) => method_reason(method_refusal),
        None => refusal.message.clone(),
    };
    format!("the gateway responds {}: {reason}", refusal.code.0)
}

/// Describes why a method is refused.
fn method_reason(refusal: MethodRefusal) -> String {
    let key = refusal.as_str();
    match refusal {
        MethodRefusal::NodeMethods => {
            format!("the method acts on the node itself, and {key} does not name it")
        }
        MethodRefusal::Transactions | MethodRefusal::KeyTransactions => {
            format!("{key} refuses signed transactions")
        }
        MethodRefusal::Allow
        | MethodRefusal::ChainAllow
        | MethodRefusal::KeyAllow
        | MethodRefusal::TokenClaim => format!("{key} does not contain the method"),
        MethodRefusal::Deny
        | MethodRefusal::ChainDeny
        | MethodRefusal::GroupDeny
        | MethodRefusal::KeyDeny => format!("{key} contains the method"),
    }
}

/// Describes a rule that matched, and its effect.
pub(super) fn rule(rule: &Rule) -> String {
    let effect = match &rule.action {
        Action::Group(_) => "chooses the group".to_owned(),
        Action::Deny { status, message } => format!("denies the call: {status}, {message}"),
        Action::Rewrite(path) => {
            format!("replaces {} by {path}", rule.path.as_deref().unwrap_or("/"))
        }
    };
    let share = match rule.share {
        SHARE_ALL => String::new(),
        // A share is in hundredths of a percent.
        share => {
            format!(" (for {} % of the matching traffic, with this call)", f64::from(share) / 100.0)
        }
    };
    format!("{} {effect}{share}", rule.name)
}

/// Describes a group.
pub(super) fn group(group: &Group) -> String {
    format!("{}, which serves {}", group.name, group.methods.join(" "))
}

/// Describes a limit that applies to a call.
pub(super) fn limit(applied: &AppliedLimit, limit: &Limit, zone: &Zone) -> String {
    let rate_source = if applied.kind == limit.kind { "" } else { " (the key's own)" };
    let cost_note = match applied.cost {
        1 => String::new(),
        cost => format!(", where the call counts as {cost}"),
    };
    let dry_run = if limit.dry_run { ", in dry run" } else { "" };
    let description = source::describe_limit(&applied.kind, zone);
    format!("{description}{rate_source}{cost_note}{dry_run}; else status {}", limit.status)
}

/// Describes the priority class of a call.
pub(super) fn class(class: Class) -> &'static str {
    match class {
        Class::High => "high: the first to be served when upstreams are overloaded",
        Class::Normal => "normal",
        Class::Low => "low: the first to be shed when upstreams are overloaded",
    }
}

/// Describes the deadlines of a call.
pub(super) fn deadline(group: &Group) -> String {
    let (deadline, attempt_deadline) = (group.deadline, group.attempt_deadline);
    format!("{deadline:?} for the whole call, {attempt_deadline:?} for each attempt")
}

/// Describes whether the gateway may repeat a call at another upstream.
pub(super) fn repeat(repeat: Repeat, group: &Group) -> &'static str {
    match repeat {
        _ if group.retries_max == 0 => "no: the group allows no further attempt",
        Repeat::Safe => "yes: a repetition changes nothing",
        Repeat::Broadcast => {
            "yes: the chain executes a signed transaction once, and \"already known\" counts as success"
        }
        Repeat::Never => REPEAT_IF_UNSENT,
    }
}

/// Describes the block that a call names.
pub(super) fn block(
    parameter: BlockParam,
    block: Result<Option<BlockRef>, BlockRefError>,
    view: &ChainView,
) -> String {
    let position = parameter.at + 1;
    match block {
        Err(reason) => format!("parameter {position} names none: {reason}"),
        Ok(None) => format!("parameter {position} is absent and has no default"),
        Ok(Some(BlockRef::Number(number))) => {
            let state = match view.head {
                _ if view.is_finalized(number) => "final",
                Some(head) if number > head.number => "above the head",
                _ => "not final yet",
            };
            format!("parameter {position} is the number {number}, {state}")
        }
        Ok(Some(BlockRef::Hash(_))) => format!("parameter {position} is a hash"),
        Ok(Some(BlockRef::CanonicalHash(_))) => {
            format!("parameter {position} is a hash that must be in the chain")
        }
        Ok(Some(BlockRef::Tag(tag))) => format!("parameter {position} is {}", tag.as_str()),
    }
}

/// Describes whether the response is cached, and under which condition it stays valid.
pub(super) fn caching(lookup: &Lookup, cache: &Cache, view: &ChainView) -> String {
    match lookup.caching.rule {
        CacheRule::Constant => "yes, for ever: it never changes on this chain".to_owned(),
        CacheRule::AtNumber { number, .. } | CacheRule::AtRange { to: number, .. } => {
            if view.is_finalized(number) {
                return format!("yes, for ever: bound to block {number}, which is final");
            }
            format!("yes, while block {number} stays in the chain; for ever once it is final")
        }
        CacheRule::AtHash => "yes, for ever: it follows from the hash alone".to_owned(),
        CacheRule::AtTransaction => {
            "yes, while the block that the response names stays in the chain".to_owned()
        }
        CacheRule::AtHead => format!("yes, until the next head, at most {:?}", cache.head_age_max),
        CacheRule::Never | CacheRule::Logs if !cache.enabled => CACHE_OFF.to_owned(),
        CacheRule::Never | CacheRule::Logs => {
            let block = lookup.block.clone().map(|block| block.map(|(block, _)| block));
            format!("no: {}", reason_against_caching(lookup.method, block, view))
        }
    }
}

/// Returns the reason why a response is not cached.
fn reason_against_caching(
    method: &Method,
    block: Result<Option<BlockRef>, BlockRefError>,
    view: &ChainView,
) -> &'static str {
    match (method.validity, block) {
        (Validity::Mempool, _) => "it depends on the upstream's pending transactions",
        (Validity::Never, _) if method.write => "it changes state",
        (Validity::Never, _) if method.sticky => "it depends on the state of one upstream",
        (Validity::Never, _) => "it is unknown how long a response stays valid",
        (_, Err(_)) => "the block that it names cannot be parsed; the upstream decides",
        (_, Ok(None)) => "it names no block",
        (_, Ok(Some(BlockRef::CanonicalHash(_)))) => "whether a hash is in the chain can change",
        (_, Ok(Some(BlockRef::Tag(BlockTag::Pending)))) => "the pending block changes all the time",
        (_, Ok(Some(BlockRef::Tag(_)))) => "the block of the tag is not known",
        (_, Ok(Some(BlockRef::Number(number)))) => match view.head {
            Some(head) if number > head.number => "the block is above every known head",
            _ => "so close to the head the response is not complete yet",
        },
        (_, Ok(Some(BlockRef::Hash(_)))) => "it is unknown how long a response stays valid",
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
    let describe_part = |part: &Part| {
        let lifetime = match part.finalized {
            true => "for ever: they are final",
            false => "while they stay in the chain",
        };
        format!("blocks {} to {}, {lifetime}", part.from, part.to)
    };
    let mut lines = vec![match parts.len() {
        1 => "yes, as a whole".to_owned(),
        count => format!("yes, as {count} separate parts"),
    }];
    lines.extend(parts.iter().take(PARTS_SHOWN_MAX).map(describe_part));
    if parts.len() > PARTS_SHOWN_MAX {
        lines.push(format!("and {} more", parts.len() - PARTS_SHOWN_MAX));
    }
    lines
}

/// Describes whether the call is coalesced. `method_coalesces` is true if the method allows it.
pub(super) fn coalescing(
    is_coalesced: bool,
    method_coalesces: bool,
    cache: &Cache,
) -> &'static str {
    match (is_coalesced, method_coalesces) {
        (true, _) => "yes: equal calls in flight at the same time share one response",
        (false, true) if !cache.coalesce => "no: coalescing is off",
        (false, _) => "no: every call is sent to an upstream",
    }
}

/// Describes a cache key.
pub(super) fn key(parts: &KeyParts<'_>) -> String {
    let params = match parts.params {
        Params::Absent | Params::Null => "[]".to_owned(),
        Params::Array(raw) | Params::Object(raw) => {
            let printed = &raw[..raw.len().min(PARAMS_SHOWN_BYTES_MAX)];
            let ellipsis = if printed.len() < raw.len() { "…" } else { "" };
            format!("{}{ellipsis}", String::from_utf8_lossy(printed))
        }
    };
    let block = match parts.block {
        Some(ResolvedBlock::Number(number)) => format!(", with block {number}"),
        _ => String::new(),
    };
    format!("{} {} {params}{block}", parts.chain, parts.method.name)
}

/// Formats the bytes of a cache key.
pub(super) fn hex(key: &[u8]) -> String {
    let printed = &key[..key.len().min(KEY_SHOWN_BYTES_MAX)];
    let digits: String = printed.iter().map(|byte| format!("{byte:02x}")).collect();
    let ellipsis = if printed.len() < key.len() { "…" } else { "" };
    format!("{digits}{ellipsis} ({} bytes)", key.len())
}
