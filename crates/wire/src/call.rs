//! Decodes a client's body into one call or a batch, and writes a call for a node.
//!
//! A call that names a member twice, at any depth, is rejected. Otherwise two parsers could read
//! different calls from the same bytes.

use std::borrow::Cow;

use crate::error::ErrorCode;
use crate::json::string::{self, JsonString};
use crate::json::{Scanner, SyntaxError, SyntaxErrorKind};

#[cfg(test)]
mod tests;

/// The limits of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of the body.
    pub body_bytes_max: usize,
    /// Maximum nesting of arrays and objects, at most [`crate::json::DEPTH_CEILING`].
    pub depth_max: usize,
    /// Maximum number of calls of a batch.
    pub batch_calls_max: usize,
    /// Maximum bytes of a method's name with decoded escapes.
    pub method_bytes_max: usize,
    /// Maximum bytes of a raw id.
    pub id_bytes_max: usize,
}

impl Limits {
    /// The limits of public nodes: 5 MiB per body and 1000 calls per batch, as in go-ethereum
    /// (`rpc/http.go` `defaultBodyLimit`, `node/defaults.go` `BatchRequestLimit`). No known client
    /// comes near the limits of names, ids and nesting.
    pub const DEFAULT: Limits = Limits {
        body_bytes_max: 5 * 1024 * 1024,
        depth_max: 128,
        batch_calls_max: 1000,
        method_bytes_max: 128,
        id_bytes_max: 1024,
    };
}

/// The parameters of a call, as received, with their brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Params<'a> {
    /// There is no `params` member.
    Absent,
    /// The member is `null`, which means the same as an absent member. It is forwarded unchanged.
    Null,
    /// An array.
    Array(&'a [u8]),
    /// An object.
    Object(&'a [u8]),
}

impl<'a> Params<'a> {
    /// Returns the raw JSON value, or `None` if the member is absent.
    pub fn raw(self) -> Option<&'a [u8]> {
        match self {
            Params::Absent => None,
            Params::Null => Some(b"null"),
            Params::Array(raw) | Params::Object(raw) => Some(raw),
        }
    }

    /// Returns the raw array or object, or an empty array if the member is absent or null.
    pub fn raw_or_empty(self) -> &'a [u8] {
        match self {
            Params::Absent | Params::Null => b"[]",
            Params::Array(raw) | Params::Object(raw) => raw,
        }
    }
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<'a> {
    /// The raw id: a number of any size and form, a string with its escapes, or null. `None` marks
    /// a notification, which has no `id` member and gets no response.
    pub id: Option<&'a [u8]>,
    /// The method's name with decoded escapes. It has only ASCII letters, digits, `_` and `.`.
    pub method: Cow<'a, str>,
    /// The parameters.
    pub params: Params<'a>,
}

/// The error response to a body or a batch member that is not a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection<'a> {
    /// The code of the error.
    pub code: ErrorCode,
    /// The message of the error, with the invalid part, its position and the allowed values.
    pub message: Cow<'static, str>,
    /// The raw id of the response; `None` for `null`.
    pub id: Option<&'a [u8]>,
}

/// A decoded body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// A single call: the body is an object.
    Single(Result<Call<'a>, Rejection<'a>>),
    /// An array of 1 to `batch_calls_max` members, in order.
    Batch(Vec<Result<Call<'a>, Rejection<'a>>>),
}

/// Decodes a body: one call object, or an array of 1 to `limits.batch_calls_max` call objects.
///
/// # Errors
/// If the whole body is rejected with one error. The code is -32700 if the body is not JSON or
/// nested too deep. The code is -32600 if the body is too large, or is neither an object nor an
/// array. It is also -32600 for a batch that is empty or has too many calls. Rejections of single
/// calls are not errors; they are in [`Body`].
pub fn decode<'a>(body: &'a [u8], limits: &Limits) -> Result<Body<'a>, Rejection<'a>> {
    if body.len() > limits.body_bytes_max {
        return Err(invalid_request_rejection(describe_excess(
            "body",
            body.len(),
            limits.body_bytes_max,
        )));
    }
    let mut scanner = Scanner::new(body, limits.depth_max);
    let decoded = match scanner.peek().map_err(syntax_error_rejection)? {
        b'{' => Body::Single(decode_call(&mut scanner, limits).map_err(syntax_error_rejection)?),
        b'[' => decode_batch(&mut scanner, limits)?,
        _ => {
            scanner.document().map_err(syntax_error_rejection)?;
            return Err(invalid_request_rejection("body is neither an object nor an array"));
        }
    };
    scanner.finish().map_err(syntax_error_rejection)?;
    Ok(decoded)
}

/// Decodes an array of calls.
fn decode_batch<'a>(scanner: &mut Scanner<'a>, limits: &Limits) -> Result<Body<'a>, Rejection<'a>> {
    let mut calls = Vec::new();
    let mut too_many = false;
    scanner
        .elements(|scanner| {
            if calls.len() == limits.batch_calls_max {
                too_many = true;
                return Ok(false);
            }
            let first_byte = scanner.peek()?;
            let offset = scanner.offset();
            if first_byte == b'{' {
                calls.push(decode_call(scanner, limits)?);
            } else {
                scanner.value()?;
                // Forgets a name that occurs twice in this member. Otherwise the next call would be
                // rejected because of that name.
                scanner.take_repeated();
                calls.push(Err(invalid_request_rejection(format!(
                    "batch member at byte {offset} is not an object"
                ))));
            }
            Ok(true)
        })
        .map_err(syntax_error_rejection)?;
    if too_many {
        return Err(invalid_request_rejection(format!(
            "batch too large: at most {} calls are allowed",
            limits.batch_calls_max
        )));
    }
    if calls.is_empty() {
        // If other bytes follow the array, the body is not JSON. That error takes precedence.
        scanner.finish().map_err(syntax_error_rejection)?;
        return Err(invalid_request_rejection("empty batch"));
    }
    Ok(Body::Batch(calls))
}

/// The raw members of a call before validation. A member is `None` if it is absent. `version` is
/// the member `jsonrpc`.
#[derive(Default)]
struct RawMembers<'a> {
    id: Option<&'a [u8]>,
    method: Option<&'a [u8]>,
    params: Option<&'a [u8]>,
    version: Option<&'a [u8]>,
}

/// Decodes one call. The outer error means that the whole body is not JSON. The inner error rejects
/// this call alone.
fn decode_call<'a>(
    scanner: &mut Scanner<'a>,
    limits: &Limits,
) -> Result<Result<Call<'a>, Rejection<'a>>, SyntaxError> {
    let mut members = RawMembers::default();
    scanner.members(|name, value| {
        let member = match &*name.decode() {
            b"id" => &mut members.id,
            b"method" => &mut members.method,
            b"params" => &mut members.params,
            b"jsonrpc" => &mut members.version,
            _ => return,
        };
        *member = Some(value);
    })?;
    Ok(validate_call(&members, scanner.take_repeated(), limits))
}

/// Validates the members of a call. `repeated_name` is the offset of a name that occurs twice, or
/// `None` if there is no such name.
fn validate_call<'a>(
    members: &RawMembers<'a>,
    repeated_name: Option<usize>,
    limits: &Limits,
) -> Result<Call<'a>, Rejection<'a>> {
    if let Some(offset) = repeated_name {
        // The error has no id, because the repeated member may be the id.
        return Err(invalid_request_rejection(format!(
            "member name at byte {offset} occurs twice in its object"
        )));
    }
    let id = members.id;
    if let Some(raw) = id {
        if !matches!(raw[0], b'"' | b'-' | b'0'..=b'9' | b'n') {
            return Err(invalid_request_rejection("id must be a number, a string or null"));
        }
        if raw.len() > limits.id_bytes_max {
            return Err(invalid_request_rejection(describe_excess(
                "id",
                raw.len(),
                limits.id_bytes_max,
            )));
        }
    }
    let reject = |code, message: Cow<'static, str>| Rejection { code, message, id };
    if !matches!(members.version, None | Some(br#""2.0""# | br#""1.1""# | br#""1.0""#)) {
        let message = r#"jsonrpc must be "2.0", "1.1", "1.0" or absent"#;
        return Err(reject(ErrorCode::INVALID_REQUEST, message.into()));
    }
    let method = parse_method(members.method, limits)
        .map_err(|message| reject(ErrorCode::INVALID_REQUEST, message))?;
    let params = match members.params {
        None => Params::Absent,
        Some(b"null") => Params::Null,
        Some(raw @ [b'[', ..]) => Params::Array(raw),
        Some(raw @ [b'{', ..]) => Params::Object(raw),
        // The code is go-ethereum's (`rpc/json.go`, "non-array args").
        Some(_) => {
            let message = "params must be an array, an object or absent";
            return Err(reject(ErrorCode::INVALID_PARAMS, message.into()));
        }
    };
    Ok(Call { id, method, params })
}

/// Parses the raw name of the method. The error is the message of a rejection.
fn parse_method<'a>(
    raw: Option<&'a [u8]>,
    limits: &Limits,
) -> Result<Cow<'a, str>, Cow<'static, str>> {
    let Some(raw) = raw else { return Err("method is missing".into()) };
    let Some(text) = JsonString::from_value(raw) else {
        return Err("method must be a string".into());
    };
    let name = text.decode();
    if name.is_empty() {
        return Err("method is empty".into());
    }
    if name.len() > limits.method_bytes_max {
        return Err(describe_excess("method name", name.len(), limits.method_bytes_max).into());
    }
    let valid_name = match &name {
        Cow::Borrowed(name) => name_text(name).map(Cow::Borrowed),
        Cow::Owned(name) => name_text(name).map(|name| Cow::Owned(name.to_owned())),
    };
    valid_name.ok_or_else(|| match std::str::from_utf8(&name) {
        Ok(_) => "method holds a character other than A-Z, a-z, 0-9, _ and .".into(),
        Err(_) => "method is not valid unicode".into(),
    })
}

/// Returns the text of a method's name, or `None` if the name has an invalid byte.
#[expect(unsafe_code, reason = "a second check of each byte would cost more than the first")]
fn name_text(name: &[u8]) -> Option<&str> {
    // Nearly all names are valid, so all bytes must be checked. A loop without an early exit is
    // faster.
    let is_valid = name.iter().fold(true, |is_valid, byte| is_valid & is_name_byte(*byte));
    // SAFETY: all bytes of a valid name are ASCII, and ASCII is UTF-8.
    is_valid.then(|| unsafe { std::str::from_utf8_unchecked(name) })
}

/// Returns true if a method's name may contain this byte. Nodes trim or ignore some other bytes.
/// With such a byte, an access list could allow one method while the node calls another.
pub fn is_name_byte(byte: u8) -> bool {
    NAME_BYTES[usize::from(byte)]
}

/// The results of [`is_name_byte`] for all bytes. A lookup is faster than comparisons.
const NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128u8 {
        table[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        byte += 1;
    }
    table
};

/// Returns the message for a subject that is larger than its limit.
fn describe_excess(subject: &str, bytes: usize, bytes_max: usize) -> String {
    format!("{subject} of {bytes} bytes, at most {bytes_max} are allowed")
}

/// Returns a rejection without an id.
fn invalid_request_rejection<'a>(message: impl Into<Cow<'static, str>>) -> Rejection<'a> {
    Rejection { code: ErrorCode::INVALID_REQUEST, message: message.into(), id: None }
}

/// Returns the rejection of a body that is not JSON or nested too deep. Both have the same code, as
/// in go-ethereum, whose decoder limits the nesting too.
fn syntax_error_rejection<'a>(error: SyntaxError) -> Rejection<'a> {
    let message = match error.kind {
        SyntaxErrorKind::Empty => Cow::Borrowed("empty body where a json-rpc call is needed"),
        _ => Cow::Owned(error.to_string()),
    };
    Rejection { code: ErrorCode::PARSE, message, id: None }
}

/// Appends a call for a node. `id` and `params` are raw JSON. If `params` is `None`, the call has
/// no parameters.
pub fn write_call(out: &mut Vec<u8>, id: &[u8], method: &str, params: Option<&[u8]>) {
    out.reserve(call_bytes(id, method, params));
    write_envelope_start(out, id);
    out.extend_from_slice(METHOD);
    string::write(out, method);
    if let Some(params) = params {
        out.extend_from_slice(PARAMS);
        out.extend_from_slice(params);
    }
    out.push(b'}');
}

/// Returns the number of bytes that [`write_call`] appends.
pub fn call_bytes(id: &[u8], method: &str, params: Option<&[u8]>) -> usize {
    let params_bytes = params.map_or(0, |params| PARAMS.len() + params.len());
    START.len() + id.len() + METHOD.len() + string::written_bytes(method) + params_bytes + 1
}

// The constant parts of a written call, in order.
const START: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
const METHOD: &[u8] = br#","method":"#;
const PARAMS: &[u8] = br#","params":"#;

/// Appends the opening bracket and the first members, `jsonrpc` and `id`, of a call or response.
pub(crate) fn write_envelope_start(out: &mut Vec<u8>, id: &[u8]) {
    out.extend_from_slice(START);
    out.extend_from_slice(id);
}
