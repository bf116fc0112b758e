//! Parses a node's body into responses, and writes a response for a client.
//!
//! The parser validates the whole body, so a truncated or garbled response is never forwarded or
//! stored. Callers decide whether an error leads to a retry.

use std::borrow::Cow;

use crate::call::write_envelope_start;
use crate::json::string::{self, JsonString};
use crate::json::{DEPTH_CEILING, Scanner, SyntaxError, validate, walk};
use crate::quantity;

#[cfg(test)]
mod tests;

/// The result or the error of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The raw `result`.
    Result(&'a [u8]),
    /// The `error` object.
    Error {
        /// The whole object as received.
        raw: &'a [u8],
        /// The code.
        code: i64,
        /// The message with decoded escapes; empty if there is no message.
        message: Cow<'a, str>,
        /// The raw `data`; `None` if it is absent.
        data: Option<&'a [u8]>,
    },
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response<'a> {
    /// The raw id.
    pub id: &'a [u8],
    /// The result or the error.
    pub outcome: Outcome<'a>,
}

/// The responses of one body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Responses<'a> {
    /// The body is an object: the response to a single call, or an error for a whole batch.
    Single(Response<'a>),
    /// The body is an array. Each element is either a valid response or an error.
    Batch(Vec<Result<Response<'a>, ResponseError>>),
}

/// The reason why a body or an element of a batch is not a response. Offsets count from the start
/// of the body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// The body is not JSON, such as an HTML page or a truncated response.
    #[error("response is not json: {0}")]
    NotJson(#[from] SyntaxError),
    /// The JSON is not an object.
    #[error("response is not an object")]
    NotObject,
    /// The response has a result and an error, and neither is null.
    #[error("response has both a result and an error")]
    BothResultAndError,
    /// The response has neither a result nor an error.
    #[error("response has neither a result nor an error")]
    NeitherResultNorError,
    /// There is no `id` member.
    #[error("response has no id")]
    NoId,
    /// A member name occurs twice in one object.
    #[error("member name at byte {offset} occurs twice in its object")]
    Repeated {
        /// The offset of the second name.
        offset: usize,
    },
    /// The error is not an object with an integer code, or its message is not a string.
    #[error("error of the response is not an object with an integer code and a text")]
    BadError,
    /// A batch has more responses than calls.
    #[error("batch response has more than {0} members")]
    TooMany(usize),
}

/// Parses the response to a single call and validates the whole body. The body may have at most
/// `depth_max` nested arrays and objects. Repeated names are rejected in the response and in its
/// error, because decisions depend on these members. Repeated names are allowed in the result.
///
/// A result beside `"error": null` is a result, because JSON-RPC 1.0 writes both members. An error
/// beside `"result": null` is an error.
///
/// # Errors
/// If the body is not a response.
pub fn parse_response(body: &[u8], depth_max: usize) -> Result<Response<'_>, ResponseError> {
    // Names are checked for repetitions in level 1, the response object.
    let mut scanner = Scanner::with_names_depth(body, depth_max, 1);
    if scanner.peek()? != b'{' {
        scanner.document()?;
        return Err(ResponseError::NotObject);
    }
    let response = parse_object(&mut scanner)?;
    scanner.finish()?;
    response
}

/// Parses the response to a batch of `responses_max` calls. The body is an array of at most
/// `responses_max` responses in any order, or one object.
///
/// # Errors
/// If the whole body is invalid. The returned value contains the errors of single responses.
pub fn parse_responses(
    body: &[u8],
    depth_max: usize,
    responses_max: usize,
) -> Result<Responses<'_>, ResponseError> {
    // Names are checked for repetitions up to level 2: the objects in the batch.
    let mut scanner = Scanner::with_names_depth(body, depth_max, 2);
    if scanner.peek()? != b'[' {
        return parse_response(body, depth_max).map(Responses::Single);
    }
    let mut responses = Vec::new();
    let mut too_many = false;
    scanner.elements(|scanner| {
        if responses.len() == responses_max {
            too_many = true;
            return Ok(false);
        }
        if scanner.peek()? == b'{' {
            responses.push(parse_object(scanner)?);
        } else {
            scanner.value()?;
            // Forgets a name that occurs twice in this element. Otherwise the next response would
            // be rejected because of that name.
            scanner.take_repeated();
            responses.push(Err(ResponseError::NotObject));
        }
        Ok(true)
    })?;
    if too_many {
        return Err(ResponseError::TooMany(responses_max));
    }
    scanner.finish()?;
    Ok(Responses::Batch(responses))
}

/// Parses one response object. The outer error means that the whole body is not JSON. The inner
/// error rejects this response alone.
fn parse_object<'a>(
    scanner: &mut Scanner<'a>,
) -> Result<Result<Response<'a>, ResponseError>, SyntaxError> {
    let (mut id, mut result, mut error) = (None, None, None);
    scanner.members(|name, value| match &*name.decode() {
        b"id" => id = Some(value),
        b"result" => result = Some(value),
        b"error" => error = Some(value),
        _ => {}
    })?;
    if let Some(offset) = scanner.take_repeated() {
        return Ok(Err(ResponseError::Repeated { offset }));
    }
    let error = error.filter(|raw: &&[u8]| *raw != b"null");
    let outcome = match (result, error) {
        (Some(result), Some(_)) if result != b"null" => Err(ResponseError::BothResultAndError),
        (_, Some(error)) => parse_error(error, scanner.offset_of(error)),
        (Some(result), None) => Ok(Outcome::Result(result)),
        (None, None) => Err(ResponseError::NeitherResultNorError),
    };
    Ok(outcome.and_then(|outcome| {
        let id = id.ok_or(ResponseError::NoId)?;
        Ok(Response { id, outcome })
    }))
}

/// Parses an error object, which starts at `error_offset` in the body.
fn parse_error(raw: &[u8], error_offset: usize) -> Result<Outcome<'_>, ResponseError> {
    // Decisions depend on the members of an error, so no name may be repeated.
    if let (_, Some(offset)) = validate(raw, DEPTH_CEILING)? {
        return Err(ResponseError::Repeated { offset: error_offset + offset });
    }
    let [code, message, data] = walk::fields_of(raw, ["code", "message", "data"]);
    let code = code.and_then(parse_integer).ok_or(ResponseError::BadError)?;
    let message = match message {
        None | Some(b"null") => Cow::Borrowed(""),
        Some(raw) => JsonString::from_value(raw)
            .and_then(JsonString::to_str)
            .ok_or(ResponseError::BadError)?,
    };
    Ok(Outcome::Error { raw, code, message, data })
}

fn parse_integer(raw: &[u8]) -> Option<i64> {
    std::str::from_utf8(raw).ok()?.parse().ok()
}

/// Bytes to reserve for the constant parts of a response, `{"jsonrpc":"2.0","id":,"result":}`,
/// which take 33 bytes.
const ENVELOPE_BYTES: usize = 40;

/// Appends a response with a raw result. The members have go-ethereum's order.
pub fn write_result(out: &mut Vec<u8>, id: &[u8], result: &[u8]) {
    out.reserve(id.len() + result.len() + ENVELOPE_BYTES);
    write_envelope_start(out, id);
    out.extend_from_slice(br#","result":"#);
    out.extend_from_slice(result);
    out.push(b'}');
}

/// Appends a response with a raw error object.
pub fn write_error_raw(out: &mut Vec<u8>, id: &[u8], error: &[u8]) {
    out.reserve(id.len() + error.len() + ENVELOPE_BYTES);
    write_envelope_start(out, id);
    out.extend_from_slice(br#","error":"#);
    out.extend_from_slice(error);
    out.push(b'}');
}

/// Appends a response with this error. `data` is a raw JSON value.
pub fn write_error(out: &mut Vec<u8>, id: &[u8], code: i64, message: &str, data: Option<&[u8]>) {
    write_envelope_start(out, id);
    out.extend_from_slice(br#","error":{"code":"#);
    if code < 0 {
        out.push(b'-');
    }
    quantity::write_decimal(out, code.unsigned_abs());
    out.extend_from_slice(br#","message":"#);
    string::write(out, message);
    if let Some(data) = data {
        out.extend_from_slice(br#","data":"#);
        out.extend_from_slice(data);
    }
    out.extend_from_slice(b"}}");
}
