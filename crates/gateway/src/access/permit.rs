//! Authorizes calls: checks that a caller may call a method.

use wire::effect::{Effect, effect_of};
use wire::method::{Method, MethodTable, equivalent_log_method};

use crate::config::Config;
use crate::policy::access::{Denial, Grant, MethodCheck, MethodSet, may_call};

/// Returns true if a caller with this grant may still call a method. The first call of the method
/// was permitted before. The methods that a group denies are not checked again, because a rule may
/// have selected the group.
pub(crate) fn is_still_permitted(
    config: &Config,
    family: &MethodTable,
    chain: usize,
    method: &str,
    grant: Option<&Grant>,
) -> bool {
    let check = MethodCheck {
        method,
        effect: effect_of(family.family(), method),
        policy: &config.access.policy,
        chain: &config.chains[chain].methods,
        group_deny: &MethodSet::default(),
        grant,
    };
    grant.is_none_or(|grant| grant.allows_chain(chain)) && may_call(&check).is_ok()
}

/// Returns the effect of a method.
pub(crate) fn effect_of_method(
    family: &MethodTable,
    row: Option<&'static Method>,
    method: &str,
) -> Effect {
    row.map_or_else(|| effect_of(family.family(), method), |row| row.effect)
}

/// Checks that a caller may call a method. If the method is equivalent to a log method, the caller
/// must be allowed to call both. `group` returns the group that serves a method.
///
/// # Errors
/// The reason why the call is denied.
pub(crate) fn permit(
    config: &Config,
    chain: usize,
    method: &str,
    effect: Effect,
    grant: Option<&Grant>,
    group: impl Fn(&str) -> usize,
) -> Result<(), Denial> {
    let may_call_as = |method: &str| {
        may_call(&MethodCheck {
            method,
            effect,
            policy: &config.access.policy,
            chain: &config.chains[chain].methods,
            group_deny: &config.groups[group(method)].methods_deny,
            grant,
        })
    };
    equivalent_log_method(method).map_or(Ok(()), may_call_as)?;
    may_call_as(method)
}
