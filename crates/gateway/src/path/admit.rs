//! Where a call goes by the operator's rules, and whether its caller may make it.
//!
//! The decisions are `rules/direct.rs` and `rules/access.rs`; this gathers what they need to know.

use std::borrow::Cow;

use wire::call::Call;
use wire::method::{Method, stands_for};
use wire::reach::{Reach, reach};

use super::Request;
use crate::error::Kind;
use crate::rules::access::{Denial, Grant, MethodCase, MethodSet, may_call};
use crate::rules::direct::{self, Action, CallFacts, Directed, End, Facts};
use crate::worker::Worker;

/// The request as the rules direct this call of it.
///
/// # Errors
/// A rule refuses the call, or its new path leads nowhere.
pub(super) fn directed<'a>(
    worker: &Worker,
    request: &Request<'a>,
    call: &Call<'_>,
) -> Result<Request<'a>, Kind> {
    let shared = &worker.shared;
    if shared.config.rules.is_empty() {
        return Ok(*request);
    }
    let params = call.params.raw().unwrap_or(b"");
    let facts = facts(request, Some(CallFacts { method: &call.method, params }));
    let directed = walk(worker, &facts);
    for place in &directed.fitted {
        worker.counters.rules[*place].calls.add(1);
    }
    let chain = match directed.path {
        Cow::Borrowed(_) => request.chain,
        Cow::Owned(path) => shared.router.chain(&path).ok_or(Kind::NoChain)?,
    };
    if chain != request.chain && !may_reach(worker, request, chain) {
        return Err(Kind::Forbidden);
    }
    match directed.end {
        End::Free => Ok(Request { chain, ..*request }),
        End::Group(group) => Ok(Request { chain, group: Some(group), ..*request }),
        End::Deny(place) => {
            worker.counters.denied[Denial::Rule].add(1);
            Err(Kind::Rule(place as u16))
        }
    }
}

/// The chain of a path that leads to none, where a rule rewrites it.
pub(crate) fn rewritten(worker: &Worker, request: &Request<'_>) -> Option<usize> {
    let rules = &worker.shared.config.rules;
    if !rules.iter().any(|rule| matches!(rule.action, Action::Rewrite(_))) {
        return None;
    }
    let directed = walk(worker, &facts(request, None));
    worker.shared.router.chain(&directed.path)
}

fn walk<'a>(worker: &Worker, facts: &Facts<'a>) -> Directed<'a> {
    let shared = &worker.shared;
    direct::direct(&shared.config.rules, facts, |path| shared.router.chain(path))
}

fn facts<'a>(request: &Request<'a>, call: Option<CallFacts<'a>>) -> Facts<'a> {
    Facts {
        host: request.extra.map_or("", |extra| &*extra.host),
        path: request.path,
        headers: request.extra.map_or(&[], |extra| &*extra.headers),
        key: request.caller.key(),
        tier: request.caller.tier(),
        client: request.caller.hash(),
        call,
    }
}

fn may_reach(worker: &Worker, request: &Request<'_>, chain: usize) -> bool {
    let grant = request.caller.grant.as_ref();
    let may = grant.is_none_or(|grant| grant.leads_to(chain));
    if !may {
        worker.counters.denied[Denial::Chain].add(1);
    }
    may
}

/// Whether somebody with this grant, who was allowed to call this method, still is. What the call's
/// group denies was looked at then: a rule may have chosen the group.
pub(crate) fn still_permitted(
    worker: &Worker,
    chain: usize,
    method: &str,
    grant: Option<&Grant>,
) -> bool {
    let shared = &worker.shared;
    let case = MethodCase {
        method,
        reach: reach(shared.chains[chain].family.name(), method),
        policy: &shared.config.access.policy,
        chain: &shared.config.chains[chain].methods,
        group_deny: &MethodSet::default(),
        grant,
    };
    grant.is_none_or(|grant| grant.leads_to(chain)) && may_call(&case).is_ok()
}

/// Whether the caller may make this call.
///
/// # Errors
/// [`Kind::MethodOff`].
pub(super) fn permitted(
    worker: &Worker,
    request: &Request<'_>,
    call: &Call<'_>,
    method: Option<&'static Method>,
) -> Result<(), Kind> {
    let shared = &worker.shared;
    let family = shared.chains[request.chain].family.name();
    let reach = method.map_or_else(|| reach(family, &call.method), |method| method.reach);
    if reach == Reach::Read && !shared.has_method_lists {
        return Ok(());
    }
    let config = &shared.config;
    let may_call_as = |method: &str| {
        let group = request.group.unwrap_or_else(|| shared.router.group(request.chain, method));
        may_call(&MethodCase {
            method,
            reach,
            policy: &config.access.policy,
            chain: &config.chains[request.chain].methods,
            group_deny: &config.groups[group].methods_deny,
            grant: request.caller.grant.as_deref(),
        })
    };
    let other = stands_for(&call.method).map_or(Ok(()), may_call_as);
    other.and_then(|()| may_call_as(&call.method)).map_err(|denial| {
        worker.counters.denied[denial].add(1);
        Kind::MethodOff
    })
}
