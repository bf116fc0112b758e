//! How a call ended, from the status and the body of its answer: the table of
//! [`lab_model::record::Class`] in code.

use lab_model::plan::Recorded;
use lab_model::record::Class;
use wire::json::DEPTH_CEILING;
use wire::quantity::parse_decimal;
use wire::response::{
    Outcome, Response, ResponseError, Responses, parse_response, parse_responses,
};

#[cfg(test)]
mod tests;

/// How one call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// Its class.
    pub(crate) class: Class,
    /// The code of a JSON-RPC error.
    pub(crate) code: Option<i64>,
    /// True if the result is null.
    pub(crate) null: bool,
}

impl Ending {
    /// An ending without a JSON-RPC error.
    pub(crate) const fn of(class: Class) -> Ending {
        Ending { class, code: None, null: false }
    }

    /// A result under an HTTP status that says that the request failed is one that usual clients
    /// throw away.
    fn told(status: u16, outcome: &Outcome<'_>) -> Ending {
        match outcome {
            Outcome::Result(_) if status >= 400 => unanswered(status),
            Outcome::Result(result) => Ending { null: *result == b"null", ..Ending::of(Class::Ok) },
            Outcome::Error { code, .. } => {
                Ending { code: Some(*code), ..Ending::of(Class::RpcError) }
            }
        }
    }
}

/// The class of an answer whose body is no JSON-RPC answer, or is not taken for one.
fn unanswered(status: u16) -> Ending {
    Ending::of(match status {
        429 => Class::Limited,
        400..=499 => Class::Http4xx,
        500.. => Class::Http5xx,
        _ => Class::Malformed,
    })
}

/// How a single call with the id `id` ended.
pub(crate) fn single(status: u16, body: &[u8], id: u64) -> Ending {
    one(status, body, |raw| parse_decimal(raw) == Some(id))
}

/// How a recorded call ended. One without an id takes an answer to any.
pub(crate) fn recorded(status: u16, body: &[u8], asked: &Recorded) -> Ending {
    one(status, body, |raw| asked.id.is_empty() || raw == &*asked.id)
}

fn one(status: u16, body: &[u8], ours: impl Fn(&[u8]) -> bool) -> Ending {
    if status == 429 {
        return Ending::of(Class::Limited);
    }
    match parse_response(body, DEPTH_CEILING) {
        Err(_) => unanswered(status),
        Ok(answer) if ours(answer.id) || blind(&answer) => Ending::told(status, &answer.outcome),
        Ok(_) => Ending::of(Class::WrongId),
    }
}

/// An error with the id null: the server could not read the id (JSON-RPC 2.0, section 5).
fn blind(answer: &Response<'_>) -> bool {
    answer.id == b"null" && matches!(answer.outcome, Outcome::Error { .. })
}

/// How the calls of a batch ended, whose ids begin with `first` and are `stride` apart; `endings` is
/// as long as the batch is.
pub(crate) fn batch(status: u16, body: &[u8], first: u64, stride: u64, endings: &mut [Ending]) {
    let place = |answer: &Response<'_>, _: usize| {
        let away = parse_decimal(answer.id)?.checked_sub(first)?;
        (away % stride == 0).then_some((away / stride) as usize)
    };
    many(status, body, place, endings);
}

/// How the calls of a recorded batch ended. Its ids are not known, so answers are only counted.
pub(crate) fn recorded_batch(status: u16, body: &[u8], endings: &mut [Ending]) {
    many(status, body, |_, nth| Some(nth), endings);
}

fn many(
    status: u16,
    body: &[u8],
    place: impl Fn(&Response<'_>, usize) -> Option<usize>,
    endings: &mut [Ending],
) {
    endings.fill(unanswered(status));
    if status == 429 {
        return;
    }
    let answers = match parse_responses(body, DEPTH_CEILING, endings.len()) {
        Err(ResponseError::TooMany(_)) => return endings.fill(Ending::of(Class::WrongId)),
        Err(_) => return,
        Ok(Responses::Single(answer)) => {
            // An error may be about the batch as a whole; a result cannot be.
            if matches!(answer.outcome, Outcome::Error { .. }) {
                endings.fill(Ending::told(status, &answer.outcome));
            }
            return;
        }
        Ok(Responses::Batch(answers)) => answers,
    };
    endings.fill(Ending::of(Class::Malformed));
    let mut seen = vec![false; endings.len()];
    let mut strange = false;
    let mut errors = Vec::new();
    for (nth, answer) in answers.iter().enumerate() {
        let Ok(answer) = answer else { continue };
        match place(answer, nth).filter(|&at| seen.get(at) == Some(&false)) {
            Some(at) => {
                seen[at] = true;
                endings[at] = Ending::told(status, &answer.outcome);
            }
            None if blind(answer) => errors.push(Ending::told(status, &answer.outcome)),
            None => strange = true,
        }
    }
    let mut missing = endings.iter_mut().zip(&seen).filter(|(_, seen)| !**seen);
    // Errors without an id are about calls that have no other answer.
    errors.into_iter().zip(missing.by_ref()).for_each(|(error, (ending, _))| *ending = error);
    // Where answers to other calls came, those that are missing were mixed up with them.
    if strange {
        missing.for_each(|(ending, _)| *ending = Ending::of(Class::WrongId));
    }
}
