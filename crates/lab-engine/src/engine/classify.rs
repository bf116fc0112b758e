//! Determines the outcome of a call from the status and the body of its response.
//!
//! [`lab_model::record::Class`] defines the classes of outcomes. An HTTP response, a WebSocket
//! message and a response to a recorded call are classified by the same rules.

use lab_model::plan::RecordedRequest;
use lab_model::record::Class;
use wire::json::DEPTH_CEILING;
use wire::method::ResultForm;
use wire::quantity::parse_decimal;
use wire::response::{
    Outcome, Response, ResponseError, Responses, parse_response, parse_responses,
};

#[cfg(test)]
mod tests;

/// Outcome of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallOutcome {
    pub(crate) class: Class,
    /// Code of the JSON-RPC error; `None` if the response is no JSON-RPC error.
    pub(crate) code: Option<i64>,
    /// Form of the result; `None` without a result.
    pub(crate) form: Option<ResultForm>,
}

impl CallOutcome {
    /// Returns an outcome of this class without an error code.
    pub(crate) const fn of(class: Class) -> CallOutcome {
        CallOutcome { class, code: None, form: None }
    }

    /// Classifies a JSON-RPC response. A result with an HTTP error status counts as an HTTP error,
    /// because most clients ignore the body of such a response.
    fn of_response(status: u16, outcome: &Outcome<'_>) -> CallOutcome {
        match outcome {
            Outcome::Result(_) if status >= 400 => by_status(status),
            Outcome::Result(result) => {
                let form = Some(ResultForm::of(result));
                CallOutcome { form, ..CallOutcome::of(Class::Ok) }
            }
            Outcome::Error { code, .. } => {
                CallOutcome { code: Some(*code), ..CallOutcome::of(Class::RpcError) }
            }
        }
    }
}

/// Classifies a response without a valid JSON-RPC body.
fn by_status(status: u16) -> CallOutcome {
    CallOutcome::of(match status {
        429 => Class::Limited,
        400..=499 => Class::Http4xx,
        500.. => Class::Http5xx,
        _ => Class::Malformed,
    })
}

/// Classifies the response to a single call with this id.
pub(crate) fn single(status: u16, body: &[u8], id: u64) -> CallOutcome {
    classify_single(status, body, |raw| parse_decimal(raw) == Some(id))
}

/// Classifies the response to a recorded call. If the recorded call has no id, any id is accepted.
pub(crate) fn recorded(status: u16, body: &[u8], call: &RecordedRequest) -> CallOutcome {
    classify_single(status, body, |raw| call.id.is_empty() || raw == &*call.id)
}

/// Classifies the response to a single call. `is_request_id` returns true if the raw JSON of an id
/// is the id of the call.
fn classify_single(status: u16, body: &[u8], is_request_id: impl Fn(&[u8]) -> bool) -> CallOutcome {
    if status == 429 {
        return CallOutcome::of(Class::Limited);
    }
    match parse_response(body, DEPTH_CEILING) {
        Err(_) => by_status(status),
        Ok(response) if is_request_id(response.id) || is_error_without_id(&response) => {
            CallOutcome::of_response(status, &response.outcome)
        }
        Ok(_) => CallOutcome::of(Class::WrongId),
    }
}

/// Returns true if the response is an error with the id null. A server sends that id if it could
/// not read the id of the request (JSON-RPC 2.0, section 5).
fn is_error_without_id(response: &Response<'_>) -> bool {
    response.id == b"null" && matches!(response.outcome, Outcome::Error { .. })
}

/// Classifies the responses to a batch. The first call has the id `first_id`, and consecutive ids
/// differ by `stride`. `outcomes` has one entry per call.
pub(crate) fn batch(
    status: u16,
    body: &[u8],
    first_id: u64,
    stride: u64,
    outcomes: &mut [CallOutcome],
) {
    let index_of = |response: &Response<'_>, _: usize| {
        let distance = parse_decimal(response.id)?.checked_sub(first_id)?;
        (distance % stride == 0).then_some((distance / stride) as usize)
    };
    classify_batch(status, body, index_of, outcomes);
}

/// Classifies the responses to a recorded batch. The ids of its calls are unknown, so the n-th
/// response counts for the n-th call.
pub(crate) fn recorded_batch(status: u16, body: &[u8], outcomes: &mut [CallOutcome]) {
    classify_batch(status, body, |_, position| Some(position), outcomes);
}

/// Classifies the responses to a batch. `index_of` returns the index of the call to which a
/// response belongs, from the response and its position.
fn classify_batch(
    status: u16,
    body: &[u8],
    index_of: impl Fn(&Response<'_>, usize) -> Option<usize>,
    outcomes: &mut [CallOutcome],
) {
    outcomes.fill(by_status(status));
    if status == 429 {
        return;
    }
    let responses = match parse_responses(body, DEPTH_CEILING, outcomes.len()) {
        // With more responses than calls, at least one response belongs to another call.
        Err(ResponseError::TooMany(_)) => return outcomes.fill(CallOutcome::of(Class::WrongId)),
        Err(_) => return,
        Ok(Responses::Single(response)) => {
            // A single error may apply to the whole batch. A single result cannot, so the calls
            // keep the class that follows from the status.
            if matches!(response.outcome, Outcome::Error { .. }) {
                outcomes.fill(CallOutcome::of_response(status, &response.outcome));
            }
            return;
        }
        Ok(Responses::Batch(responses)) => responses,
    };
    outcomes.fill(CallOutcome::of(Class::Malformed));
    let mut answered = vec![false; outcomes.len()];
    let mut has_unknown_ids = false;
    let mut errors_without_id = Vec::new();
    for (position, response) in responses.iter().enumerate() {
        let Ok(response) = response else { continue };
        let index = index_of(response, position);
        match index.filter(|&index| answered.get(index) == Some(&false)) {
            Some(index) => {
                answered[index] = true;
                outcomes[index] = CallOutcome::of_response(status, &response.outcome);
            }
            None if is_error_without_id(response) => {
                errors_without_id.push(CallOutcome::of_response(status, &response.outcome))
            }
            None => has_unknown_ids = true,
        }
    }
    let mut unanswered = outcomes.iter_mut().zip(&answered).filter(|(_, answered)| !**answered);
    // Each error without an id counts for a call that has no other response.
    errors_without_id
        .into_iter()
        .zip(unanswered.by_ref())
        .for_each(|(error, (outcome, _))| *outcome = error);
    // The responses with unknown ids count for the remaining calls.
    if has_unknown_ids {
        unanswered.for_each(|(outcome, _)| *outcome = CallOutcome::of(Class::WrongId));
    }
}
