//! The operator's routing rules, in order. They decide which group (set of upstreams) serves a
//! call.
//!
//! The first matching rule that selects a group or rejects the call decides. A matching rule can
//! also rewrite the path; later rules then match the new path. `access.rs` decides which calls are
//! allowed at all.

use core::net::IpAddr;
use std::borrow::Cow;

use crate::policy::access::MethodSet;
use crate::policy::choose::hash64;

#[cfg(test)]
mod tests;

/// A routing rule. Every condition that is set must match.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Name in metrics and explanations.
    pub name: Box<str>,
    /// Hosts in lower case. `*.suffix` matches every name below `suffix`. An empty list matches any
    /// host.
    pub hosts: Vec<Box<str>>,
    /// Prefix of the path, in whole segments; `None` matches any path.
    pub path: Option<Box<str>>,
    /// Header conditions. All must match.
    pub headers: Vec<HeaderCondition>,
    /// Names of API keys; an empty list matches any caller.
    pub keys: Vec<Box<str>>,
    /// Names of tiers, which the configuration assigns to keys. An empty list matches any caller.
    pub tiers: Vec<Box<str>>,
    /// Methods; an empty set matches any method.
    pub methods: MethodSet,
    /// Prefix of the call's parameters as JSON text; `None` matches any parameters.
    pub params: Option<Box<str>>,
    /// The expected first parameter: a string without its quotes, or any other value as written in
    /// the call. `None` matches any parameters.
    pub first_param: Option<Box<str>>,
    /// The rule applies to this share, in hundredths of a percent, of the traffic that meets all
    /// other conditions.
    pub share: u32,
    /// The input that selects the share.
    pub share_of: ShareOf,
    /// Action for a matching call.
    pub action: Action,
}

/// A condition on a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderCondition {
    /// Index in the list of stored headers of each request.
    pub index: usize,
    /// The value, or its prefix.
    pub value: Box<str>,
    /// True if `value` is a prefix.
    pub prefix: bool,
}

/// The input that selects the share of matching traffic. The selection is stable: the same caller,
/// or the same call, is always inside or always outside of the share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareOf {
    /// The caller: its key, or else its address.
    Client,
    /// The method and the parameters.
    Call,
}

/// Action of a rule.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Sends the call to a group. The list has the group's index for each chain. `None` marks a
    /// chain without a group of that name; the rule does not match there.
    Group(Vec<Option<usize>>),
    /// Rejects the call with this HTTP status and message.
    Deny {
        /// HTTP status if the request holds this call alone.
        status: u16,
        /// Error message for the client.
        message: Box<str>,
    },
    /// Replaces the part of the path that the rule matched.
    Rewrite(Box<str>),
}

/// The values of a request and a call that rules match.
#[derive(Debug, Clone, Copy)]
pub struct RequestFacts<'a> {
    /// The requested host, without its port.
    pub host: &'a str,
    /// The path, without key and query.
    pub path: &'a str,
    /// Values of the stored headers, by [`HeaderCondition::index`].
    pub headers: &'a [Option<Box<[u8]>>],
    /// Name of the caller's key; `None` for a caller without a key.
    pub key: Option<&'a str>,
    /// The caller's tier; `None` for a caller without a tier.
    pub tier: Option<&'a str>,
    /// Hash of the caller, from [`hash_caller`].
    pub client: u64,
    /// The call. `None` if only the path is routed. Rules that depend on a call then do not match.
    pub call: Option<CallFacts<'a>>,
}

/// The values of a call that rules match.
#[derive(Debug, Clone, Copy)]
pub struct CallFacts<'a> {
    /// The method's name.
    pub method: &'a str,
    /// The parameters as JSON text; empty if there are none.
    pub params: &'a [u8],
}

/// Result of routing a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingResult<'a> {
    /// The path, which a rule may have rewritten.
    pub path: Cow<'a, str>,
    /// The decision.
    pub decision: RouteDecision,
    /// Indices of the matching rules, in order.
    pub matched: Vec<usize>,
}

/// Outcome of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteDecision {
    /// No rule decided.
    Undecided,
    /// The group with this index serves the call.
    Group(usize),
    /// The rule at this index rejects the call.
    Deny(usize),
}

/// Returns the hash of the name of the caller's key, or of the address of a caller without a key.
pub fn hash_caller(key: Option<&str>, address: IpAddr) -> u64 {
    match (key, address) {
        (Some(key), _) => hash64(key.as_bytes()),
        (None, IpAddr::V4(address)) => hash64(&address.octets()),
        (None, IpAddr::V6(address)) => hash64(&address.octets()),
    }
}

/// Applies the rules in order. `chain_of` returns the index of a path's chain.
pub fn apply_rules<'a>(
    rules: &[Rule],
    facts: &RequestFacts<'a>,
    chain_of: impl Fn(&str) -> Option<usize>,
) -> RoutingResult<'a> {
    let mut result = RoutingResult {
        path: Cow::Borrowed(facts.path),
        decision: RouteDecision::Undecided,
        matched: Vec::new(),
    };
    for (index, rule) in rules.iter().enumerate() {
        if !rule.matches(facts, &result.path) {
            continue;
        }
        match &rule.action {
            Action::Group(groups) => {
                let chain = chain_of(&result.path);
                let group = chain.and_then(|chain| groups.get(chain).copied().flatten());
                let Some(group) = group else { continue };
                result.decision = RouteDecision::Group(group);
            }
            Action::Deny { .. } => result.decision = RouteDecision::Deny(index),
            Action::Rewrite(new_start) => {
                let after_prefix =
                    rule.path.as_deref().and_then(|prefix| strip_path_prefix(&result.path, prefix));
                result.path = Cow::Owned(join_paths(new_start, after_prefix.unwrap_or("")));
            }
        }
        result.matched.push(index);
        if result.decision != RouteDecision::Undecided {
            break;
        }
    }
    result
}

impl Rule {
    /// Returns true if every condition matches. `path` is the request's path, which earlier rules
    /// may have rewritten. Cheap conditions come first.
    fn matches(&self, facts: &RequestFacts<'_>, path: &str) -> bool {
        self.matches_call(facts.call.as_ref())
            && self.path.as_deref().is_none_or(|prefix| strip_path_prefix(path, prefix).is_some())
            && is_listed(&self.keys, facts.key)
            && is_listed(&self.tiers, facts.tier)
            && (self.hosts.is_empty()
                || self.hosts.iter().any(|host| matches_host(host, facts.host)))
            && self.headers.iter().all(|header| header.matches(facts.headers))
            && self.matches_share(facts)
    }

    fn matches_call(&self, call: Option<&CallFacts<'_>>) -> bool {
        let Some(call) = call else { return !self.is_about_calls() };
        (self.methods.is_empty() || self.methods.concerns(call.method))
            && self.params.as_deref().is_none_or(|start| call.params.starts_with(start.as_bytes()))
            && self
                .first_param
                .as_deref()
                .is_none_or(|expected| is_first_param(call.params, expected))
    }

    /// Returns true if the rule depends on a call, and not only on the HTTP request.
    pub fn is_about_calls(&self) -> bool {
        !self.methods.is_empty()
            || self.params.is_some()
            || self.first_param.is_some()
            || (self.share < SHARE_ALL && self.share_of == ShareOf::Call)
    }

    fn matches_share(&self, facts: &RequestFacts<'_>) -> bool {
        if self.share >= SHARE_ALL {
            return true;
        }
        let share_hash = match (self.share_of, &facts.call) {
            (ShareOf::Call, Some(call)) => {
                hash64(call.method.as_bytes()) ^ hash64(call.params).rotate_left(1)
            }
            _ => facts.client,
        };
        // The hash includes the rule's name, so that two rules with the same share select different
        // clients.
        let salted = hash64(&(share_hash ^ hash64(self.name.as_bytes())).to_le_bytes());
        (salted % u64::from(SHARE_ALL)) < u64::from(self.share)
    }
}

/// The share that includes all traffic, in hundredths of a percent.
pub const SHARE_ALL: u32 = 10_000;

impl HeaderCondition {
    fn matches(&self, headers: &[Option<Box<[u8]>>]) -> bool {
        let value = headers.get(self.index).and_then(Option::as_deref);
        value.is_some_and(|value| match self.prefix {
            true => value.starts_with(self.value.as_bytes()),
            false => value == self.value.as_bytes(),
        })
    }
}

/// Returns true if the list is empty or has this name.
fn is_listed(list: &[Box<str>], name: Option<&str>) -> bool {
    list.is_empty() || name.is_some_and(|name| list.iter().any(|listed| **listed == *name))
}

/// Returns true if a host matches a name or `*.suffix`. Letter case does not matter.
fn matches_host(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => {
            let suffix_start = host.len().checked_sub(suffix.len()).filter(|start| *start > 0);
            let host_suffix = suffix_start.and_then(|start| host.get(start..));
            host_suffix.is_some_and(|host_suffix| host_suffix.eq_ignore_ascii_case(suffix))
        }
        None => host.eq_ignore_ascii_case(pattern),
    }
}

/// Returns the part of a path after a prefix of whole segments. The part is empty or starts with a
/// slash. Returns `None` if the path does not have the prefix.
fn strip_path_prefix<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    let prefix = prefix.trim_end_matches('/');
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn join_paths(start: &str, rest: &str) -> String {
    let path = format!("{}{rest}", start.trim_end_matches('/'));
    if path.is_empty() { "/".to_owned() } else { path }
}

/// Returns true if the first parameter is `expected`, which has no quotes.
fn is_first_param(params: &[u8], expected: &str) -> bool {
    if params.first() != Some(&b'[') {
        return false;
    }
    let Some(first) = wire::json::walk::elements(params).next() else { return false };
    match wire::json::string::JsonString::from_value(first) {
        Some(text) => *text.decode() == *expected.as_bytes(),
        None => first == expected.as_bytes(),
    }
}
