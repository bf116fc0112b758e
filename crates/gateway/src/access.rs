//! Authentication and authorization of callers. A *grant* holds the rights of one key or token.
//! `access/caller.rs` finds the grant of a request, and `access/token.rs` verifies tokens. This
//! file checks whether a grant allows a call.

use wire::effect::{Effect, effect_of};
use wire::method::{MethodTable, equivalent_log_method};

use crate::config::Config;
use crate::policy::access::{Grant, MethodCheck, MethodRefusal, MethodSet, check_call};

pub(crate) mod caller;
pub(crate) mod refusals;
pub(crate) mod token;

/// Returns true if a caller with this grant may still call a method that [`permit`] has allowed
/// before. Does not check the deny lists of groups again: a rule may have selected the group that
/// serves the method, so the group is not known here.
pub(crate) fn is_still_permitted(
    config: &Config,
    family: &MethodTable,
    chain: usize,
    method: &str,
    grant: Option<&Grant>,
) -> bool {
    let (effect, group_deny) = (effect_of(family.family, method), MethodSet::default());
    grant.is_none_or(|grant| grant.allows_chain(chain))
        && check_method(config, chain, method, effect, grant, &group_deny).is_ok()
}

/// Checks that a caller may call a method. If another method returns the same logs
/// (`equivalent_log_method`), the caller must be allowed to call both methods. `effect` states
/// whether the method reads, submits a transaction, or administers the node. `find_group` returns
/// the index of the group of upstreams that serves a method.
///
/// # Errors
/// The configuration key that refuses the method.
pub(crate) fn permit(
    config: &Config,
    chain: usize,
    method: &str,
    effect: Effect,
    grant: Option<&Grant>,
    find_group: impl Fn(&str) -> usize,
) -> Result<(), MethodRefusal> {
    let check = |method: &str| {
        let group_deny = &config.groups[find_group(method)].methods_deny;
        check_method(config, chain, method, effect, grant, group_deny)
    };
    equivalent_log_method(method).map_or(Ok(()), check)?;
    check(method)
}

/// Checks one method. `group_deny` holds the methods that the group of upstreams rejects.
fn check_method(
    config: &Config,
    chain: usize,
    method: &str,
    effect: Effect,
    grant: Option<&Grant>,
    group_deny: &MethodSet,
) -> Result<(), MethodRefusal> {
    let (policy, chain) = (&config.access.policy, &config.chains[chain].methods);
    check_call(&MethodCheck { method, effect, policy, chain, group_deny, grant })
}
