//! What nodes send and what clients get: answers read as slices, envelopes written around them.
//!
//! Reading validates the whole body, so that a truncated or mixed-up answer is never passed on or
//! stored. Does not judge what an error means for routing (the gateway does), and does not know
//! HTTP.

use std::borrow::Cow;

use crate::call::Params;
use crate::json::text::{self, Text};
use crate::json::{DEPTH_CEILING, Fault, Scan, check, walk};
use crate::quantity;

#[cfg(test)]
mod tests;

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The raw `result`.
    Result(&'a [u8]),
    /// The `error` object.
    Error {
        /// The whole object as sent.
        raw: &'a [u8],
        /// Its code.
        code: i64,
        /// Its message, escapes decoded; empty if it has none.
        message: Cow<'a, str>,
        /// Its raw `data`.
        data: Option<&'a [u8]>,
    },
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The raw id.
    pub id: &'a [u8],
    /// Result or error.
    pub outcome: Outcome<'a>,
}

/// The answers in one body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answers<'a> {
    /// The body is one object: the answer to a single call, or an error about a whole batch.
    One(Answer<'a>),
    /// The body is an array; a faulty member does not spoil its siblings.
    Batch(Vec<Result<Answer<'a>, AnswerFault>>),
}

/// Why bytes from a node are no answer. All offsets count from the start of the body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// The body is not one JSON text; an HTML page and a truncated answer end here.
    #[error("answer is not json: {0}")]
    NotJson(#[from] Fault),
    /// The JSON is no object (or, where a batch may come, no array of objects).
    #[error("answer is not an object")]
    NotObject,
    /// Both members are there and neither is null.
    #[error("answer has both a result and an error")]
    BothResultAndError,
    /// Neither a result nor an error is there.
    #[error("answer has neither a result nor an error")]
    NeitherResultNorError,
    /// There is no `id` member.
    #[error("answer has no id")]
    NoId,
    /// A member name occurs twice in one object.
    #[error("member name at byte {at} occurs twice in its object")]
    Repeated {
        /// Offset of the second name.
        at: usize,
    },
    /// The error is not an object with an integer code, or its message is no text.
    #[error("error of the answer is not an object with an integer code and a text")]
    BadError,
    /// A batch answer has more members than were asked for.
    #[error("batch answer has more than {0} members")]
    TooMany(usize),
}

/// Reads the answer to a single call, validating the whole body with at most `depth_max` nested
/// arrays and objects. Repeated names are refused in the answer itself and in its error, by which
/// decisions are made; a result passes as it is.
///
/// `"error": null` beside a result is a result (JSON-RPC 1.0 writes both members), `"result": null`
/// beside an error is an error.
///
/// # Errors
/// What is wrong with the node's bytes.
pub fn read_answer(body: &[u8], depth_max: usize) -> Result<Answer<'_>, AnswerFault> {
    let mut scan = Scan::shallow(body, depth_max, 1);
    if scan.peek()? != b'{' {
        scan.document()?;
        return Err(AnswerFault::NotObject);
    }
    let answer = read_object(&mut scan)?;
    scan.finish()?;
    answer
}

/// Reads the answer to a batch of `answers_max` calls: an array of at most as many answers in any
/// order, or one object.
///
/// # Errors
/// What is wrong with the body as a whole; faults of single members are inside.
pub fn read_answers(
    body: &[u8],
    depth_max: usize,
    answers_max: usize,
) -> Result<Answers<'_>, AnswerFault> {
    let mut scan = Scan::shallow(body, depth_max, 2);
    if scan.peek()? != b'[' {
        return read_answer(body, depth_max).map(Answers::One);
    }
    let mut answers = Vec::new();
    let mut too_many = false;
    scan.elements(|scan| {
        if answers.len() == answers_max {
            too_many = true;
            return Ok(false);
        }
        if scan.peek()? == b'{' {
            answers.push(read_object(scan)?);
        } else {
            scan.value()?;
            scan.take_repeated();
            answers.push(Err(AnswerFault::NotObject));
        }
        Ok(true)
    })?;
    if too_many {
        return Err(AnswerFault::TooMany(answers_max));
    }
    scan.finish()?;
    Ok(Answers::Batch(answers))
}

fn read_object<'a>(scan: &mut Scan<'a>) -> Result<Result<Answer<'a>, AnswerFault>, Fault> {
    let (mut id, mut result, mut error) = (None, None, None);
    scan.members(|name, value| match &*name.decode() {
        b"id" => id = Some(value),
        b"result" => result = Some(value),
        b"error" => error = Some(value),
        _ => {}
    })?;
    if let Some(at) = scan.take_repeated() {
        return Ok(Err(AnswerFault::Repeated { at }));
    }
    let error = error.filter(|raw: &&[u8]| *raw != b"null");
    let outcome = match (result, error) {
        (Some(result), Some(_)) if result != b"null" => Err(AnswerFault::BothResultAndError),
        (_, Some(error)) => read_error(error).map_err(|fault| fault.moved(scan.offset_of(error))),
        (Some(result), None) => Ok(Outcome::Result(result)),
        (None, None) => Err(AnswerFault::NeitherResultNorError),
    };
    Ok(outcome.and_then(|outcome| Ok(Answer { id: id.ok_or(AnswerFault::NoId)?, outcome })))
}

impl AnswerFault {
    /// The same fault of a text that begins `by` bytes into the body.
    fn moved(self, by: usize) -> AnswerFault {
        match self {
            AnswerFault::Repeated { at } => AnswerFault::Repeated { at: at + by },
            fault => fault,
        }
    }
}

fn read_error(raw: &[u8]) -> Result<Outcome<'_>, AnswerFault> {
    // What an error means is decided by its members, so these must be said once.
    if let (_, Some(at)) = check(raw, DEPTH_CEILING)? {
        return Err(AnswerFault::Repeated { at });
    }
    let [code, message, data] = walk::fields_of(raw, ["code", "message", "data"]);
    let code = code.and_then(integer).ok_or(AnswerFault::BadError)?;
    let message = match message {
        None | Some(b"null") => Cow::Borrowed(""),
        Some(raw) => Text::from_value(raw).and_then(Text::to_str).ok_or(AnswerFault::BadError)?,
    };
    Ok(Outcome::Error { raw, code, message, data })
}

fn integer(raw: &[u8]) -> Option<i64> {
    std::str::from_utf8(raw).ok()?.parse().ok()
}

/// Appends an answer with a raw result. The members stand in go-ethereum's order, so that equal
/// results give equal bytes.
pub fn write_result(out: &mut Vec<u8>, id: &[u8], result: &[u8]) {
    out.reserve(id.len() + result.len() + 40);
    open(out, id);
    out.extend_from_slice(br#","result":"#);
    out.extend_from_slice(result);
    out.push(b'}');
}

/// Appends an answer with a node's own error object.
pub fn write_error_raw(out: &mut Vec<u8>, id: &[u8], error: &[u8]) {
    out.reserve(id.len() + error.len() + 40);
    open(out, id);
    out.extend_from_slice(br#","error":"#);
    out.extend_from_slice(error);
    out.push(b'}');
}

/// Appends an answer with an error of our own; `data` is a raw JSON value.
pub fn write_error(out: &mut Vec<u8>, id: &[u8], code: i64, message: &str, data: Option<&[u8]>) {
    open(out, id);
    out.extend_from_slice(br#","error":{"code":"#);
    if code < 0 {
        out.push(b'-');
    }
    quantity::write_decimal(out, code.unsigned_abs());
    out.extend_from_slice(br#","message":"#);
    text::write(out, message);
    if let Some(data) = data {
        out.extend_from_slice(br#","data":"#);
        out.extend_from_slice(data);
    }
    out.extend_from_slice(b"}}");
}

/// Appends a call for a node: the envelope is ours, the parameters are the client's bytes.
pub fn write_call(out: &mut Vec<u8>, id: &[u8], method: &str, params: &Params<'_>) {
    write_call_raw(out, id, method, params.raw());
}

/// Appends a call for a node with these raw parameters.
pub fn write_call_raw(out: &mut Vec<u8>, id: &[u8], method: &str, params: Option<&[u8]>) {
    out.reserve(call_bytes(id, method, params));
    open(out, id);
    out.extend_from_slice(METHOD);
    text::write(out, method);
    if let Some(params) = params {
        out.extend_from_slice(PARAMS);
        out.extend_from_slice(params);
    }
    out.push(b'}');
}

/// How many bytes [`write_call_raw`] appends.
pub fn call_bytes(id: &[u8], method: &str, params: Option<&[u8]>) -> usize {
    let params = params.map_or(0, |params| PARAMS.len() + params.len());
    OPEN.len() + id.len() + METHOD.len() + text::written_bytes(method) + params + 1
}

const OPEN: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
const METHOD: &[u8] = br#","method":"#;
const PARAMS: &[u8] = br#","params":"#;

fn open(out: &mut Vec<u8>, id: &[u8]) {
    out.extend_from_slice(OPEN);
    out.extend_from_slice(id);
}
