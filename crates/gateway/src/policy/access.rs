//! Who may call what: lists of methods and networks, what a key grants, and the order in which they
//! decide.
//!
//! `access/caller.rs` identifies the client. `direct.rs` and `route.rs` decide where a call goes.

use core::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use wire::effect::{Effect, starts_with_ignoring_case};
use wire::family::Family;
use wire::method::equivalent_log_method;

use crate::policy::closed_set::closed_set;

use crate::policy::limit::Rate;

#[cfg(test)]
mod tests;

/// Methods by name and by prefix, in any case of letters: some upstreams ignore it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MethodSet {
    /// In lower case, sorted.
    exact: Vec<Box<str>>,
    /// Without their star; an empty one is every method.
    prefixes: Vec<Box<str>>,
}

impl MethodSet {
    /// The methods that these patterns name: exact names, prefixes that end in `*`, or `*`.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> MethodSet {
        let mut set = MethodSet::default();
        for pattern in patterns {
            match pattern.strip_suffix('*') {
                Some(prefix) => set.prefixes.push(prefix.into()),
                None => set.exact.push(pattern.to_ascii_lowercase().into()),
            }
        }
        set.exact.sort_unstable();
        set
    }

    /// Whether it names no method at all.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty()
    }

    /// Whether it names this method.
    pub fn has(&self, method: &str) -> bool {
        let lower = || method.bytes().map(|byte| byte.to_ascii_lowercase());
        self.exact.binary_search_by(|known| known.bytes().cmp(lower())).is_ok()
            || self.prefixes.iter().any(|prefix| starts_with_ignoring_case(method, prefix))
    }

    /// Whether it names this method, or the one whose results this method returns.
    pub fn concerns(&self, method: &str) -> bool {
        self.has(method) || equivalent_log_method(method).is_some_and(|other| self.has(other))
    }
}

/// Which methods are served: what is denied is not; where some are allowed, no others are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MethodRules {
    /// Empty: all.
    pub allow: MethodSet,
    /// Decides before `allow`.
    pub deny: MethodSet,
}

impl MethodRules {
    /// Whether a method is served.
    pub fn admit(&self, method: &str) -> bool {
        !self.deny.has(method) && (self.allow.is_empty() || self.allow.has(method))
    }

    /// Whether every method is.
    pub fn is_open(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

/// Networks by address and length of prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(pub Vec<IpNet>);

impl Networks {
    /// Whether an address is in one of them.
    pub fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// Which clients may call: who is denied may not; where some are allowed, no others may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// Empty: all.
    pub allow: Networks,
    /// Decides before `allow`.
    pub deny: Networks,
}

impl AddressRules {
    /// Whether a client at this address may call.
    pub fn admit(&self, address: IpAddr) -> bool {
        !self.deny.has(address) && (self.allow.0.is_empty() || self.allow.has(address))
    }

    /// Whether everybody may.
    pub fn is_open(&self) -> bool {
        self.allow.0.is_empty() && self.deny.0.is_empty()
    }
}

/// What whoever holds a key or a token may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// How logs and limits call its holder; never a part of the secret.
    pub name: Arc<str>,
    /// Where it is counted: the place of the key, or behind all keys that of the token's issuer.
    pub index: usize,
    /// The class that its calls belong to.
    pub tier: Option<Arc<str>>,
    /// Which methods.
    pub methods: MethodRules,
    /// Methods that act on the node itself, and are served nevertheless.
    pub node_methods: MethodSet,
    /// Whether signed transactions are taken; `None` leaves it to [`Policy::transactions`].
    pub transactions: Option<bool>,
    /// Which chains, by index; `None` is all.
    pub chains: Option<Box<[usize]>>,
    /// From which networks; empty is all.
    pub clients: Networks,
    /// The second since 1970 from which on it is void.
    pub expires: Option<u64>,
    /// Its own rate where a zone counts by key.
    pub rate: Option<Rate>,
    /// Its own burst there, thousandths of a call.
    pub burst: Option<u64>,
    /// Units that it may use in a month.
    pub quota: Option<u64>,
}

impl Grant {
    /// Whether it leads to this chain.
    pub fn leads_to(&self, chain: usize) -> bool {
        self.chains.as_ref().is_none_or(|chains| chains.contains(&chain))
    }
}

/// What holds for all callers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether signed transactions are taken.
    pub transactions: bool,
    /// Methods that act on the node itself, and are served nevertheless.
    pub node_methods: MethodSet,
    /// Which methods.
    pub methods: MethodRules,
}

closed_set! {
    /// Why a request is not served.
    pub enum Denial {
        /// A key is needed and none was given.
        NoKey = "no_key",
        /// What was given is no key, or no valid token.
        BadKey = "bad_key",
        /// The key or token was valid once.
        Expired = "expired",
        /// Two keys were given, and which one counts is anybody's guess.
        TwoKeys = "two_keys",
        /// The client's address may not call at all, or not with this key.
        Address = "address",
        /// The key does not lead to this chain.
        Chain = "chain",
        /// The method acts on the node itself.
        NodeMethod = "node_method",
        /// Signed transactions are not taken.
        Transaction = "transaction",
        /// A list of methods says so.
        Method = "method",
        /// A rule says so.
        Rule = "rule",
    }
}

/// Whether a key may be used from this address at this second since 1970.
///
/// # Errors
/// Why it may not.
pub fn may_use(grant: &Grant, address: IpAddr, now: impl FnOnce() -> u64) -> Result<(), Denial> {
    if grant.expires.is_some_and(|expires| now() >= expires) {
        return Err(Denial::Expired);
    }
    if !grant.clients.0.is_empty() && !grant.clients.has(address) {
        return Err(Denial::Address);
    }
    Ok(())
}

/// One call, and the lists that it meets.
#[derive(Debug, Clone, Copy)]
pub struct MethodCase<'a> {
    /// The method's name.
    pub method: &'a str,
    /// What the method acts on.
    pub reach: Effect,
    /// What holds for all callers.
    pub policy: &'a Policy,
    /// The lists of the call's chain.
    pub chain: &'a MethodRules,
    /// What the call's group denies.
    pub group_deny: &'a MethodSet,
    /// What the caller's key grants, if there is one.
    pub grant: Option<&'a Grant>,
}

/// Whether a method of this name asks to be told of what is to come, or no more: nothing that is
/// passed on to an upstream, whose connections are many clients'.
pub fn is_subscription(method: &str) -> bool {
    let name = method.rsplit_once('_').map_or("", |(_, name)| name);
    name.eq_ignore_ascii_case("subscribe") || is_unsubscription(method)
}

/// Whether it asks to be told no more.
pub fn is_unsubscription(method: &str) -> bool {
    method.rsplit_once('_').is_some_and(|(_, name)| name.eq_ignore_ascii_case("unsubscribe"))
}

/// Whether a method is about filters that the gateway keeps itself: those of blocks and logs, where
/// these have Ethereum's form. That a filter is such a one, its id tells.
pub fn is_own_filter(family: Family, method: &str) -> bool {
    family == Family::Ethereum
        && matches!(
            method,
            "eth_newFilter"
                | "eth_newBlockFilter"
                | "eth_getFilterChanges"
                | "eth_getFilterLogs"
                | "eth_uninstallFilter"
        )
}

/// Whether a call is served. Every list must admit it; what acts on the node itself must be named
/// by a list of such methods besides.
///
/// # Errors
/// Why it is not.
pub fn may_call(case: &MethodCase<'_>) -> Result<(), Denial> {
    let MethodCase { method, policy, grant, .. } = *case;
    match case.reach {
        Effect::Read => {}
        Effect::Transaction => {
            let own = grant.and_then(|grant| grant.transactions);
            if !own.unwrap_or(policy.transactions) {
                return Err(Denial::Transaction);
            }
        }
        Effect::Node => {
            let own = grant.is_some_and(|grant| grant.node_methods.has(method));
            if !own && !policy.node_methods.has(method) {
                return Err(Denial::NodeMethod);
            }
        }
    }
    let admitted = policy.methods.admit(method)
        && case.chain.admit(method)
        && !case.group_deny.has(method)
        && grant.is_none_or(|grant| grant.methods.admit(method));
    if admitted { Ok(()) } else { Err(Denial::Method) }
}
