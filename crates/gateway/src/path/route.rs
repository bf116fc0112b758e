//! Routes a call by the operator's rules and authorizes it.
//!
//! `policy/routing_rules.rs` and `policy/access.rs` make the decisions. This file collects their
//! inputs.

use std::borrow::Cow;

use wire::call::Call;
use wire::effect::{Effect, effect_of};

use super::{Request, StepHandler};
use crate::access::caller::{AccessValues, Authenticated, Caller};
use crate::access::permit;
use crate::call::failure::{Failure, FailureKind};
use crate::policy::access::Denial;
use crate::policy::routing_rules;
use crate::policy::routing_rules::{Action, CallFacts, RequestFacts, RouteDecision, RoutingResult};
use crate::resolve::Route;
use crate::state::context::ThreadContext;

/// Returns the route of a call by the operator's rules. Without rules, the route leads to the chain
/// of the URL.
///
/// # Errors
/// A rule denies the call, the rewritten path has no chain, or the caller may not use the chain.
pub(super) fn route<'a>(
    cx: &ThreadContext,
    request: &Request<'a>,
    call: &'a Call<'a>,
    handler: &mut impl StepHandler,
) -> Result<Route<'a>, Failure> {
    let snapshot = &cx.snapshot;
    let build_route = |chain: usize, group: Option<usize>| Route {
        call,
        row: snapshot.chains[chain].family.find(&call.method),
        chain,
        group,
        caller: request.caller,
        hash_header: request.hash_header,
        waiting: request.waiting,
        trace: request.trace,
    };
    if snapshot.config.rules.is_empty() {
        return Ok(build_route(request.chain, None));
    }
    let params = call.params.raw().unwrap_or(b"");
    let call_facts = CallFacts { method: &call.method, params };
    let Request { caller, path, access_values, .. } = *request;
    let routing = apply_rules(cx, caller, path, access_values, Some(call_facts));
    handler.on_rules(&routing.matched);
    for rule_index in &routing.matched {
        cx.counters.rules[*rule_index].calls.add(1);
    }
    let chain = match routing.path {
        // No rule has rewritten the path.
        Cow::Borrowed(_) => request.chain,
        Cow::Owned(path) => {
            snapshot.router.find_chain(&path).ok_or(Failure::ours(FailureKind::NoChain))?
        }
    };
    if chain != request.chain && !may_use_chain(cx, request, chain) {
        return Err(Failure::ours(FailureKind::Forbidden));
    }
    match routing.decision {
        RouteDecision::Undecided => Ok(build_route(chain, None)),
        RouteDecision::Group(group) => Ok(build_route(chain, Some(group))),
        RouteDecision::Deny(rule_index) => {
            cx.counters.denied[Denial::Rule].add(1);
            snapshot.process.refusals.record(&call.method, "rule.deny");
            Err(Failure::ours(FailureKind::Rule(rule_index as u16)))
        }
    }
}

/// Finds the chain of a request whose own path belongs to no chain. A rule may rewrite the path to
/// the path of a chain. Returns `None` if no rule does so.
pub(super) fn rewritten_chain(
    cx: &ThreadContext,
    access_values: Option<&AccessValues>,
    client: &Authenticated<'_>,
) -> Option<usize> {
    let rules = &cx.snapshot.config.rules;
    if !rules.iter().any(|rule| matches!(rule.action, Action::Rewrite(_))) {
        return None;
    }
    let routing = apply_rules(cx, &client.caller, client.path, access_values, None);
    cx.snapshot.router.find_chain(&routing.path)
}

/// Applies the operator's rules to a call. `call` is `None` before the body is decoded.
fn apply_rules<'a>(
    cx: &ThreadContext,
    caller: &'a Caller,
    path: &'a str,
    access_values: Option<&'a AccessValues>,
    call: Option<CallFacts<'a>>,
) -> RoutingResult<'a> {
    let snapshot = &cx.snapshot;
    let facts = RequestFacts {
        host: access_values.map_or("", |access_values| &*access_values.host),
        path,
        headers: access_values.map_or(&[], |access_values| &*access_values.headers),
        key: caller.key(),
        tier: caller.tier(),
        client: caller.hash(),
        call,
    };
    routing_rules::apply_rules(&snapshot.config.rules, &facts, |path| {
        snapshot.router.find_chain(path)
    })
}

/// Returns true if the caller may use the chain. If not, counts a denial.
fn may_use_chain(cx: &ThreadContext, request: &Request<'_>, chain: usize) -> bool {
    let grant = request.caller.grant.as_ref();
    let is_allowed = grant.is_none_or(|grant| grant.allows_chain(chain));
    if !is_allowed {
        cx.counters.denied[Denial::Chain].add(1);
    }
    is_allowed
}

/// Checks that the caller may call the method. The check depends on the method's *effect*: a method
/// reads, submits a transaction, or administers the node.
///
/// # Errors
/// [`FailureKind::MethodNotAllowed`] if the caller may not call the method.
pub(super) fn authorize(cx: &ThreadContext, route: &Route<'_>) -> Result<(), Failure> {
    let snapshot = &cx.snapshot;
    let name = &*route.call.method;
    let family = snapshot.chains[route.chain].family.family;
    let effect = route.method().map_or_else(|| effect_of(family, name), |method| method.effect);
    if effect == Effect::Read && !snapshot.checks_methods {
        return Ok(());
    }
    let find_group = |method_name: &str| {
        route.group.unwrap_or_else(|| snapshot.router.find_group(route.chain, method_name))
    };
    let grant = route.caller.grant.as_deref();
    permit(&snapshot.config, route.chain, name, effect, grant, find_group).map_err(|refusal| {
        cx.counters.denied[refusal.denial()].add(1);
        snapshot.process.refusals.record(name, refusal.as_str());
        Failure::ours(FailureKind::MethodNotAllowed(refusal))
    })
}
