//! Directing traffic: the rules of the operator, in their order, about where calls go.
//!
//! The first rule that fits a call decides, unless it only rewrites the path: then those behind it
//! see the new path. What may be called at all is `access.rs`.

use core::net::IpAddr;
use std::borrow::Cow;

use crate::policy::access::MethodSet;
use crate::policy::choose::hash64;

#[cfg(test)]
mod tests;

/// One rule: everything that is set must fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// How metrics and explanations call it.
    pub name: Box<str>,
    /// Hosts, lower case; `*.suffix` is every name below; empty is any.
    pub hosts: Vec<Box<str>>,
    /// What the path begins with, whole segments.
    pub path: Option<Box<str>>,
    /// Headers, all of which must fit.
    pub headers: Vec<HeaderTest>,
    /// Names of keys; empty is any caller.
    pub keys: Vec<Box<str>>,
    /// Names of tiers; empty is any caller.
    pub tiers: Vec<Box<str>>,
    /// Methods; empty is any.
    pub methods: MethodSet,
    /// What the parameters begin with, as they are written.
    pub params: Option<Box<str>>,
    /// The first parameter: a text without its quotes, or any other value as it is written.
    pub first_param: Option<Box<str>>,
    /// Which share of what fits, in hundredths of a percent.
    pub share: u32,
    /// What the share is taken of.
    pub share_of: ShareOf,
    /// What becomes of a call that fits.
    pub action: Action,
}

/// A header that must be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderTest {
    /// Place in the list of headers that are kept of each request.
    pub place: usize,
    /// The value, or what it begins with.
    pub value: Box<str>,
    /// Whether `value` is only the beginning.
    pub prefix: bool,
}

/// What a share is taken of, so that the same caller or the same call is always in or out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareOf {
    /// The caller: key, or else address.
    Client,
    /// Method and parameters.
    Call,
}

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Upstreams of this group take it; by chain, the group's index. A chain without a group of the
    /// name is not meant by the rule.
    Group(Vec<Option<usize>>),
    /// It is refused with this HTTP status and message.
    Deny {
        /// HTTP status of a request that holds this call alone.
        status: u16,
        /// What the client is told.
        message: Box<str>,
    },
    /// The part of the path that the rule names is replaced by this.
    Rewrite(Box<str>),
}

/// What is known of a request and a call.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The host that was asked for, without its port.
    pub host: &'a str,
    /// The path, without key and query.
    pub path: &'a str,
    /// By [`HeaderTest::place`].
    pub headers: &'a [Option<Box<[u8]>>],
    /// Name of the caller's key.
    pub key: Option<&'a str>,
    /// Its tier.
    pub tier: Option<&'a str>,
    /// A hash of the caller.
    pub client: u64,
    /// The call; none while only the path is looked at, and then no rule about calls fits.
    pub call: Option<CallFacts<'a>>,
}

/// What is known of a call.
#[derive(Debug, Clone, Copy)]
pub struct CallFacts<'a> {
    /// The method's name.
    pub method: &'a str,
    /// The parameters as they were written; empty where there are none.
    pub params: &'a [u8],
}

/// Where a call goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directed<'a> {
    /// The path, perhaps another one.
    pub path: Cow<'a, str>,
    /// What decided.
    pub end: End,
    /// Which rules fitted, in their order.
    pub fitted: Vec<usize>,
}

/// How walking the rules ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// No rule decided.
    Free,
    /// This group takes it.
    Group(usize),
    /// The rule at this place refuses it.
    Deny(usize),
}

/// A hash of a caller: of the name of its key, or else of its address.
pub fn caller_hash(key: Option<&str>, address: IpAddr) -> u64 {
    match (key, address) {
        (Some(key), _) => hash64(key.as_bytes()),
        (None, IpAddr::V4(address)) => hash64(&address.octets()),
        (None, IpAddr::V6(address)) => hash64(&address.octets()),
    }
}

/// Walks the rules. `chain_at` tells which chain a path leads to.
pub fn direct<'a>(
    rules: &[Rule],
    facts: &Facts<'a>,
    chain_at: impl Fn(&str) -> Option<usize>,
) -> Directed<'a> {
    let mut directed =
        Directed { path: Cow::Borrowed(facts.path), end: End::Free, fitted: Vec::new() };
    for (place, rule) in rules.iter().enumerate() {
        if !rule.fits(facts, &directed.path) {
            continue;
        }
        match &rule.action {
            Action::Group(groups) => {
                let chain = chain_at(&directed.path);
                let group = chain.and_then(|chain| groups.get(chain).copied().flatten());
                let Some(group) = group else { continue };
                directed.end = End::Group(group);
            }
            Action::Deny { .. } => directed.end = End::Deny(place),
            Action::Rewrite(to) => {
                let rest = rule.path.as_deref().and_then(|prefix| below(&directed.path, prefix));
                directed.path = Cow::Owned(joined(to, rest.unwrap_or("")));
            }
        }
        directed.fitted.push(place);
        if directed.end != End::Free {
            break;
        }
    }
    directed
}

impl Rule {
    /// Whether every condition holds; cheap ones first.
    fn fits(&self, facts: &Facts<'_>, path: &str) -> bool {
        self.fits_call(facts.call.as_ref())
            && self.path.as_deref().is_none_or(|prefix| below(path, prefix).is_some())
            && one_of(&self.keys, facts.key)
            && one_of(&self.tiers, facts.tier)
            && (self.hosts.is_empty() || self.hosts.iter().any(|host| is_host(host, facts.host)))
            && self.headers.iter().all(|header| header.fits(facts.headers))
            && self.fits_share(facts)
    }

    fn fits_call(&self, call: Option<&CallFacts<'_>>) -> bool {
        let Some(call) = call else { return !self.is_about_calls() };
        (self.methods.is_empty() || self.methods.concerns(call.method))
            && self.params.as_deref().is_none_or(|start| call.params.starts_with(start.as_bytes()))
            && self.first_param.as_deref().is_none_or(|wanted| has_first(call.params, wanted))
    }

    /// Whether it looks at anything but the request's head.
    pub fn is_about_calls(&self) -> bool {
        !self.methods.is_empty()
            || self.params.is_some()
            || self.first_param.is_some()
            || (self.share < WHOLE && self.share_of == ShareOf::Call)
    }

    fn fits_share(&self, facts: &Facts<'_>) -> bool {
        if self.share >= WHOLE {
            return true;
        }
        let of = match (self.share_of, &facts.call) {
            (ShareOf::Call, Some(call)) => {
                hash64(call.method.as_bytes()) ^ hash64(call.params).rotate_left(1)
            }
            _ => facts.client,
        };
        // The rule's name takes part, so that two rules of one share mean different clients.
        let salted = hash64(&(of ^ hash64(self.name.as_bytes())).to_le_bytes());
        (salted % u64::from(WHOLE)) < u64::from(self.share)
    }
}

/// A share that everything is in.
pub const WHOLE: u32 = 10_000;

impl HeaderTest {
    fn fits(&self, headers: &[Option<Box<[u8]>>]) -> bool {
        let value = headers.get(self.place).and_then(Option::as_deref);
        value.is_some_and(|value| match self.prefix {
            true => value.starts_with(self.value.as_bytes()),
            false => value == self.value.as_bytes(),
        })
    }
}

fn one_of(wanted: &[Box<str>], given: Option<&str>) -> bool {
    wanted.is_empty() || given.is_some_and(|given| wanted.iter().any(|name| **name == *given))
}

fn is_host(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => {
            let start = host.len().checked_sub(suffix.len()).filter(|start| *start > 0);
            let end = start.and_then(|start| host.get(start..));
            end.is_some_and(|end| end.eq_ignore_ascii_case(suffix))
        }
        None => host.eq_ignore_ascii_case(pattern),
    }
}

/// What of a path is below a prefix of whole segments: empty, or with its slash.
fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    let prefix = prefix.trim_end_matches('/');
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn joined(start: &str, rest: &str) -> String {
    let path = format!("{}{rest}", start.trim_end_matches('/'));
    if path.is_empty() { "/".to_owned() } else { path }
}

/// Whether the first parameter is this one.
fn has_first(params: &[u8], wanted: &str) -> bool {
    if params.first() != Some(&b'[') {
        return false;
    }
    let Some(first) = wire::json::walk::elements(params).next() else { return false };
    match wire::json::string::JsonString::from_value(first) {
        Some(text) => *text.decode() == *wanted.as_bytes(),
        None => first == wanted.as_bytes(),
    }
}
