//! Authorization: decides whether a caller may make a call, by lists of methods and networks. A
//! *grant* holds the rights of one key or token.
//!
//! `access/caller.rs` identifies the client. `routing_rules.rs` and `route.rs` decide where a call
//! goes.

use core::net::IpAddr;
use std::sync::Arc;

use wire::effect::{Effect, starts_with_ignoring_case};
use wire::family::Family;
use wire::method::equivalent_log_method;

use crate::policy::client::Networks;
use crate::policy::closed_set::closed_set;
use crate::policy::limit::Rate;

#[cfg(test)]
mod tests;

/// Methods by name and by prefix. Letter case does not matter, because some upstreams ignore it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MethodSet {
    /// Names in lower case, sorted.
    exact: Vec<Box<str>>,
    /// Prefixes without their star. An empty prefix matches every method.
    prefixes: Vec<Box<str>>,
}

impl MethodSet {
    /// Builds the set from patterns: exact names, prefixes that end in `*`, or `*`.
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

    /// Returns true if the set contains no method.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty()
    }

    /// Returns the names in lower case, without the prefixes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.exact.iter().map(|name| &**name)
    }

    /// Returns true if the set contains this method.
    pub fn has(&self, method: &str) -> bool {
        let lower_case = || method.bytes().map(|byte| byte.to_ascii_lowercase());
        self.exact.binary_search_by(|name| name.bytes().cmp(lower_case())).is_ok()
            || self.prefixes.iter().any(|prefix| starts_with_ignoring_case(method, prefix))
    }

    /// Returns true if the set contains this method, or a method of another name that returns the
    /// same logs (`wire::method::equivalent_log_method`).
    pub fn concerns(&self, method: &str) -> bool {
        self.has(method) || equivalent_log_method(method).is_some_and(|other| self.has(other))
    }
}

/// Lists of allowed and denied methods. A method is served if it is not denied, and if the list of
/// allowed methods contains it or is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MethodRules {
    /// An empty set allows all.
    pub allow: MethodSet,
    /// Takes precedence over `allow`.
    pub deny: MethodSet,
}

impl MethodRules {
    /// Returns true if a method is served.
    pub fn allows(&self, method: &str) -> bool {
        !self.deny.has(method) && (self.allow.is_empty() || self.allow.has(method))
    }

    /// Returns true if every method is served.
    pub fn is_open(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Checks a method. `allow` and `deny` are the configuration keys of the lists.
    ///
    /// # Errors
    ///
    /// The key of the list that refuses the method.
    fn check(
        &self,
        method: &str,
        allow: MethodRefusal,
        deny: MethodRefusal,
    ) -> Result<(), MethodRefusal> {
        match self.allows(method) {
            true => Ok(()),
            false => Err(if self.deny.has(method) { deny } else { allow }),
        }
    }
}

/// Lists of allowed and denied networks. A client may call if its address is not denied, and if the
/// list of allowed networks contains it or is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// An empty set allows all.
    pub allow: Networks,
    /// Takes precedence over `allow`.
    pub deny: Networks,
}

impl AddressRules {
    /// Returns true if a client at this address may call.
    pub fn allows(&self, address: IpAddr) -> bool {
        !self.deny.contains(address) && (self.allow.0.is_empty() || self.allow.contains(address))
    }

    /// Returns true if every client may call.
    pub fn is_open(&self) -> bool {
        self.allow.0.is_empty() && self.deny.0.is_empty()
    }
}

/// Rights of a key or token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
    /// Name of the key or token in logs and limits. The name contains no part of the secret.
    pub name: Arc<str>,
    /// Index of the counters (metrics) of the key or token. Each key has an index of its own.
    /// Higher indices follow for the token issuers: all tokens of one issuer share an index.
    pub index: usize,
    /// The tier of the key or token: a name such as `gold`, to which routing rules and priorities
    /// refer. `None` without a tier.
    pub tier: Option<Arc<str>>,
    /// True if the rights come from the claims of a token.
    pub is_token: bool,
    /// Methods that may be called with the key or token.
    pub methods: MethodRules,
    /// Methods that administer the node and that the operator allows for this key or token.
    pub node_methods: MethodSet,
    /// True if signed transactions are accepted; `None` applies [`Policy::transactions`].
    pub transactions: Option<bool>,
    /// Indices of the chains that may be called; `None` allows all.
    pub chains: Option<Box<[usize]>>,
    /// Networks of the clients that may use the key or token; an empty list allows all.
    pub clients: Networks,
    /// Expiry in seconds since 1970; `None` if it never expires.
    pub expires: Option<u64>,
    /// Rate of the key's calls. It replaces the rate of each limit zone (a table of call counters,
    /// `limit.rs`) that counts by key. `None` keeps the zone's rate.
    pub rate: Option<Rate>,
    /// Burst in limit zones that count by key, in thousandths of a call. It replaces the burst of
    /// the limit; `None` keeps that burst.
    pub burst: Option<u64>,
    /// Number of units (`quota.rs`) that may be used in a calendar month; `None` for no quota.
    pub quota: Option<u64>,
}

impl Grant {
    /// Returns true if the key or token may use this chain.
    pub fn allows_chain(&self, chain: usize) -> bool {
        self.chains.as_ref().is_none_or(|chains| chains.contains(&chain))
    }
}

/// Rules for all callers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// True if signed transactions are accepted.
    pub transactions: bool,
    /// Methods that administer the node and that every caller may call. All others need a grant.
    pub node_methods: MethodSet,
    /// Lists of the methods that are served.
    pub methods: MethodRules,
}

// `closed_set!` gives each variant the name that metrics and status pages use.
closed_set! {
    /// Reason for rejecting a request.
    pub enum Denial {
        /// A key is required and missing.
        NoKey = "no_key",
        /// The key or token is invalid.
        BadKey = "bad_key",
        /// The key or token has expired.
        Expired = "expired",
        /// The request has two keys, so it is ambiguous which one counts.
        TwoKeys = "two_keys",
        /// The client's address may not call at all, or not with this key.
        Address = "address",
        /// The key may not use this chain.
        Chain = "chain",
        /// The method administers the node, and neither the policy nor the key permits it.
        NodeMethod = "node_method",
        /// Signed transactions are not accepted.
        Transaction = "transaction",
        /// A list of methods excludes the method.
        Method = "method",
        /// A routing rule denies the call.
        Rule = "rule",
    }
}

// `closed_set!` gives each variant the name of the configuration key.
closed_set! {
    /// The configuration key that refuses a method.
    pub enum MethodRefusal {
        /// The key for all callers does not name the method, which administers the node.
        NodeMethods = "access.node_methods",
        /// The key for all callers refuses signed transactions.
        Transactions = "access.transactions",
        /// The list for all callers does not contain the method.
        Allow = "access.methods_allow",
        /// The list for all callers contains the method.
        Deny = "access.methods_deny",
        /// The list of the chain does not contain the method.
        ChainAllow = "chain.methods_allow",
        /// The list of the chain contains the method.
        ChainDeny = "chain.methods_deny",
        /// The list of the group contains the method.
        GroupDeny = "group.methods_deny",
        /// The caller's API key refuses signed transactions.
        KeyTransactions = "key.transactions",
        /// The list of the caller's API key does not contain the method.
        KeyAllow = "key.methods_allow",
        /// The list of the caller's API key contains the method.
        KeyDeny = "key.methods_deny",
        /// The claim of the caller's token does not contain the method.
        TokenClaim = "jwt.methods_claim",
    }
}

impl MethodRefusal {
    /// Returns the reason that metrics count.
    pub fn denial(self) -> Denial {
        match self {
            MethodRefusal::NodeMethods => Denial::NodeMethod,
            MethodRefusal::Transactions | MethodRefusal::KeyTransactions => Denial::Transaction,
            _ => Denial::Method,
        }
    }
}

/// Checks whether a client at this address may use a key or token now. `now` returns the seconds
/// since 1970, and is called only if the grant has an expiry.
///
/// # Errors
///
/// The reason why the client may not use the key or token.
pub fn check_grant(
    grant: &Grant,
    address: IpAddr,
    now: impl FnOnce() -> u64,
) -> Result<(), Denial> {
    if grant.expires.is_some_and(|expires| now() >= expires) {
        return Err(Denial::Expired);
    }
    if !grant.clients.0.is_empty() && !grant.clients.contains(address) {
        return Err(Denial::Address);
    }
    Ok(())
}

/// A call to check, and the lists that apply to the call.
#[derive(Debug, Clone, Copy)]
pub struct MethodCheck<'a> {
    /// The method's name.
    pub method: &'a str,
    /// Effect of the method: it reads, sends a signed transaction, or administers the node.
    pub effect: Effect,
    /// Rules for all callers.
    pub policy: &'a Policy,
    /// The lists of the call's chain.
    pub chain: &'a MethodRules,
    /// Methods that the call's group (a set of upstreams) denies.
    pub group_deny: &'a MethodSet,
    /// The grant of the caller's key or token; `None` for a caller without one.
    pub grant: Option<&'a Grant>,
}

/// Returns true if a method subscribes or unsubscribes. Such calls are not forwarded like others,
/// because many clients share an upstream's connections.
pub fn is_subscription_method(method: &str) -> bool {
    let name = method.rsplit_once('_').map_or("", |(_, name)| name);
    name.eq_ignore_ascii_case("subscribe") || is_unsubscription(method)
}

/// Returns true if a method unsubscribes.
pub fn is_unsubscription(method: &str) -> bool {
    method.rsplit_once('_').is_some_and(|(_, name)| name.eq_ignore_ascii_case("unsubscribe"))
}

/// Returns true if a call of this method may be about a filter that the gateway itself created. The
/// gateway implements filters of blocks and logs for chains of the family Ethereum, whose JSON-RPC
/// methods are Ethereum's. Only the id in the call shows whether the gateway created the filter.
pub fn is_own_filter_method(family: Family, method: &str) -> bool {
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

/// Checks whether a call is served. Every list must allow its method. A method that administers the
/// node must also be in `node_methods` of the policy or the grant.
///
/// # Errors
///
/// The configuration key that refuses the call.
pub fn check_call(check: &MethodCheck<'_>) -> Result<(), MethodRefusal> {
    let MethodCheck { method, policy, grant, .. } = *check;
    match check.effect {
        Effect::Read => {}
        Effect::Transaction => {
            let transactions_granted = grant.and_then(|grant| grant.transactions);
            if transactions_granted == Some(false) {
                return Err(MethodRefusal::KeyTransactions);
            }
            if !policy.transactions && transactions_granted.is_none() {
                return Err(MethodRefusal::Transactions);
            }
        }
        Effect::Node => {
            let is_granted = grant.is_some_and(|grant| grant.node_methods.has(method));
            if !is_granted && !policy.node_methods.has(method) {
                return Err(MethodRefusal::NodeMethods);
            }
        }
    }
    policy.methods.check(method, MethodRefusal::Allow, MethodRefusal::Deny)?;
    check.chain.check(method, MethodRefusal::ChainAllow, MethodRefusal::ChainDeny)?;
    if check.group_deny.has(method) {
        return Err(MethodRefusal::GroupDeny);
    }
    let Some(grant) = grant else { return Ok(()) };
    let allow = if grant.is_token { MethodRefusal::TokenClaim } else { MethodRefusal::KeyAllow };
    grant.methods.check(method, allow, MethodRefusal::KeyDeny)
}
