//! Explains calls: runs the steps of `path.rs` and records what they decide. The last step plans
//! the call instead of resolving it.

use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use wire::call::{Body, Call, Rejection, decode};
use wire::error::ErrorCode;

use super::{Progress, Request, StepError, StepHandler, run_steps};
use crate::call::failure::{ErrorResponse, Failure, describe};
use crate::limits::{AppliedLimit, LimitedCall, Limits};
use crate::policy::access::MethodRefusal;
use crate::policy::overload::Class;
use crate::policy::plan::Plan;
use crate::resolve::{Route, find_class, plan_call};
use crate::state::context::ThreadContext;

/// The decisions about one call.
#[derive(Debug)]
pub struct CallExplanation<'a> {
    /// The call; `None` if it cannot be decoded.
    pub call: Option<Call<'a>>,
    /// The decisions of the first steps.
    pub steps: StepRecord,
    /// Index of the chain: the chain of the route, or the chain of the URL if the call is refused
    /// before it has a route.
    pub chain: usize,
    /// How the call is served, or why it is refused.
    pub decision: Result<Resolution, Refusal>,
}

/// The decisions of the steps before the last one.
#[derive(Debug, Default)]
pub struct StepRecord {
    /// The limits that apply to the call, in the order of the configuration.
    pub limits: Vec<AppliedLimit>,
    /// The time for which the limits delay the call.
    pub delay: Option<Duration>,
    /// Indices in `Config::rules` of the rules that match the call.
    pub rules: Vec<usize>,
}

/// How the response to a call is found.
#[derive(Debug)]
pub struct Resolution {
    /// Index of the group of upstreams.
    pub group: usize,
    /// True if the call may be about a subscription or filter.
    pub is_sticky: bool,
    /// How the cache and upstreams are used.
    pub plan: Plan,
    /// The priority class; `None` without overload protection.
    pub class: Option<Class>,
}

/// Why a request or a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status of the response to the request, or to a single call.
    pub status: u16,
    /// Code of the JSON-RPC error.
    pub code: ErrorCode,
    /// Message of the JSON-RPC error.
    pub message: String,
    /// The configuration key that refuses the method; `None` for other reasons.
    pub refused_by: Option<MethodRefusal>,
}

impl Refusal {
    pub(crate) fn new(response: &ErrorResponse<'_>, refused_by: Option<MethodRefusal>) -> Refusal {
        let ErrorResponse { status, code, message } = *response;
        Refusal { status, code, message: message.to_owned(), refused_by }
    }
}

/// Explains the calls of a request. `body` is the request's body.
pub(crate) fn explain<'a>(
    cx: &Rc<ThreadContext>,
    request: &Request<'_>,
    body: &'a [u8],
) -> Vec<CallExplanation<'a>> {
    let parsed_calls = match decode(body, &cx.snapshot.config.call_limits) {
        Err(rejection) => vec![Err(rejection)],
        Ok(Body::Single(parsed_call)) => vec![parsed_call],
        Ok(Body::Batch(parsed_calls)) => parsed_calls,
    };
    let calls = parsed_calls.into_iter();
    calls.map(|parsed_call| explain_call(cx, request, parsed_call)).collect()
}

fn explain_call<'a>(
    cx: &Rc<ThreadContext>,
    request: &Request<'_>,
    parsed_call: Result<Call<'a>, Rejection<'a>>,
) -> CallExplanation<'a> {
    let mut progress = Progress::new(request.chain, None);
    let mut steps = StepRecord::default();
    let outcome = run_steps(cx, request, None, &parsed_call, &mut progress, &mut steps);
    // The record does not wait, and without Redis no other step does.
    let outcome = outcome.now_or_never().expect("explaining a call never waits");
    let decision = outcome.map_err(|error| match (error, &parsed_call) {
        (StepError::Failed(Failure { kind, .. }), _) => {
            Refusal::new(&describe(kind, &cx.snapshot.config), kind.refused_by())
        }
        (StepError::Unparsable, Err(Rejection { code, message, .. })) => {
            Refusal::new(&ErrorResponse { status: 200, code: *code, message }, None)
        }
        (StepError::Unparsable, Ok(_)) => unreachable!("the call is parsed"),
    });
    CallExplanation { call: parsed_call.ok(), steps, chain: progress.chain, decision }
}

impl StepHandler for &mut StepRecord {
    type Outcome = Resolution;

    fn on_limits(&mut self, limits: &Limits, call: &LimitedCall<'_>) {
        self.limits = limits.list_applied(call);
    }

    async fn delay(&mut self, _cx: &ThreadContext, _request: &Request<'_>, wait: Duration) {
        self.delay = Some(wait);
    }

    fn on_rules(&mut self, rules: &[usize]) {
        self.rules = rules.to_vec();
    }

    async fn finish(
        self,
        cx: &Rc<ThreadContext>,
        _request: &Request<'_>,
        route: &Route<'_>,
        is_sticky: bool,
        _now: Instant,
    ) -> Resolution {
        let view = cx.snapshot.chains[route.chain].view.load();
        let (group, class) = (route.group(cx), find_class(cx, route));
        Resolution { group, is_sticky, plan: plan_call(cx, route, &view), class }
    }
}
