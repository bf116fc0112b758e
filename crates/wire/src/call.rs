//! What clients send: bodies of one call or a batch, decoded into slices of the body.
//!
//! Decides what is a call and what is refused with which error. Does not know methods
//! (`method.rs`), does not limit rates, does not write answers (`answer.rs`).
//!
//! One rule for repeated members: a call that names a member twice, at any depth, is refused, so
//! that no two readers can see different calls in the same bytes.

use std::borrow::Cow;

use crate::error::ErrorCode;
use crate::json::text::Text;
use crate::json::{Fault, Flaw, Scan};

#[cfg(test)]
mod tests;

/// Bounds on what a body may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a whole body.
    pub body_bytes_max: usize,
    /// Nested arrays and objects, at most [`crate::json::DEPTH_CEILING`].
    pub depth_max: usize,
    /// Members of a batch.
    pub batch_calls_max: usize,
    /// Bytes of a method name, after decoding escapes.
    pub method_bytes_max: usize,
    /// Bytes of a raw id.
    pub id_bytes_max: usize,
}

impl Limits {
    /// Bounds that fit public nodes: 5 MiB bodies and batches of 1000 calls as in go-ethereum
    /// (`rpc/http.go` `defaultBodyLimit`, `node/defaults.go` `BatchRequestLimit`), names and ids
    /// longer than any in use, nesting far beyond any method's parameters.
    pub const USUAL: Limits = Limits {
        body_bytes_max: 5 * 1024 * 1024,
        depth_max: 128,
        batch_calls_max: 1000,
        method_bytes_max: 128,
        id_bytes_max: 1024,
    };
}

/// The id of a call, as exact bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Id<'a> {
    /// There is no `id` member: the call is a notification and gets no answer.
    Absent,
    /// The raw JSON value: a number of any size and form, a string with its escapes, or null.
    Raw(&'a [u8]),
}

impl<'a> Id<'a> {
    /// The bytes to answer with; none for a notification.
    pub fn raw(self) -> Option<&'a [u8]> {
        match self {
            Id::Absent => None,
            Id::Raw(raw) => Some(raw),
        }
    }
}

/// The parameters of a call, as exact bytes with their brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Params<'a> {
    /// There is no `params` member.
    Absent,
    /// The member is `null`: means the same as absent, and is passed on as it was.
    Null,
    /// An array.
    Array(&'a [u8]),
    /// An object.
    Object(&'a [u8]),
}

impl<'a> Params<'a> {
    /// The raw JSON value; none if the member is absent.
    pub fn raw(self) -> Option<&'a [u8]> {
        match self {
            Params::Absent => None,
            Params::Null => Some(b"null"),
            Params::Array(raw) | Params::Object(raw) => Some(raw),
        }
    }
}

/// The version of JSON-RPC that a call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// No version, or "1.0" or "1.1".
    V1,
    /// "2.0".
    V2,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<'a> {
    /// The id as sent.
    pub id: Id<'a>,
    /// The method's name, escapes decoded: letters, digits, `_` and `.` of ASCII.
    pub method: Cow<'a, str>,
    /// The parameters as sent.
    pub params: Params<'a>,
    /// The version that the call names.
    pub version: Version,
}

/// Why something is no call: what to answer instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal<'a> {
    /// The code to answer with.
    pub code: ErrorCode,
    /// What is wrong, where, and what is allowed.
    pub message: Cow<'static, str>,
    /// The raw id to answer with; none means `null`.
    pub id: Option<&'a [u8]>,
}

/// A decoded body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// One object.
    Single(Result<Call<'a>, Refusal<'a>>),
    /// An array of 1 to `batch_calls_max` members, in order.
    Batch(Vec<Result<Call<'a>, Refusal<'a>>>),
}

/// Decodes a body: one call object, or an array of 1 to `limits.batch_calls_max` of them.
///
/// # Errors
/// A refusal of the whole body, to be answered with one error object: not JSON or nested too deep
/// (-32700); too large, neither object nor array, empty batch, batch too large (-32600). Faults of
/// one call are inside [`Body`], beside its valid siblings.
pub fn decode<'a>(body: &'a [u8], limits: &Limits) -> Result<Body<'a>, Refusal<'a>> {
    if body.len() > limits.body_bytes_max {
        return Err(invalid(format!(
            "body of {} bytes, at most {} are allowed",
            body.len(),
            limits.body_bytes_max
        )));
    }
    let mut scan = Scan::new(body, limits.depth_max);
    let decoded = match scan.peek().map_err(not_json)? {
        b'{' => Body::Single(decode_call(&mut scan, limits).map_err(not_json)?),
        b'[' => decode_batch(&mut scan, limits)?,
        _ => {
            scan.document().map_err(not_json)?;
            return Err(invalid("body is neither an object nor an array"));
        }
    };
    scan.finish().map_err(not_json)?;
    Ok(decoded)
}

fn decode_batch<'a>(scan: &mut Scan<'a>, limits: &Limits) -> Result<Body<'a>, Refusal<'a>> {
    let mut calls = Vec::new();
    let mut too_many = false;
    scan.elements(|scan| {
        if calls.len() == limits.batch_calls_max {
            too_many = true;
            return Ok(false);
        }
        let at = {
            scan.peek()?;
            scan.at()
        };
        if scan.peek()? == b'{' {
            calls.push(decode_call(scan, limits)?);
        } else {
            scan.value()?;
            scan.take_repeated();
            calls.push(Err(invalid(format!("batch member at byte {at} is not an object"))));
        }
        Ok(true)
    })
    .map_err(not_json)?;
    if too_many {
        return Err(invalid(format!(
            "batch too large: at most {} calls are allowed",
            limits.batch_calls_max
        )));
    }
    if calls.is_empty() {
        // What has bytes behind it is no JSON, and so no batch either.
        scan.finish().map_err(not_json)?;
        return Err(invalid("empty batch"));
    }
    Ok(Body::Batch(calls))
}

/// The members of a call as they were found, before they are judged.
#[derive(Default)]
struct Found<'a> {
    id: Option<&'a [u8]>,
    method: Option<&'a [u8]>,
    params: Option<&'a [u8]>,
    version: Option<&'a [u8]>,
}

fn decode_call<'a>(
    scan: &mut Scan<'a>,
    limits: &Limits,
) -> Result<Result<Call<'a>, Refusal<'a>>, Fault> {
    let mut found = Found::default();
    scan.members(|name, value| {
        let place = match &*name.decode() {
            b"id" => &mut found.id,
            b"method" => &mut found.method,
            b"params" => &mut found.params,
            b"jsonrpc" => &mut found.version,
            _ => return,
        };
        *place = Some(value);
    })?;
    Ok(judge(&found, scan.take_repeated(), limits))
}

fn judge<'a>(
    found: &Found<'a>,
    repeated: Option<usize>,
    limits: &Limits,
) -> Result<Call<'a>, Refusal<'a>> {
    if let Some(at) = repeated {
        // With two ids nobody can say which one the client waits for.
        return Err(invalid(format!("member name at byte {at} occurs twice in its object")));
    }
    let id = match found.id {
        None => Id::Absent,
        Some(raw) if !matches!(raw[0], b'"' | b'-' | b'0'..=b'9' | b'n') => {
            return Err(invalid("id must be a number, a string or null"));
        }
        Some(raw) if raw.len() > limits.id_bytes_max => {
            return Err(invalid(format!(
                "id of {} bytes, at most {} are allowed",
                raw.len(),
                limits.id_bytes_max
            )));
        }
        Some(raw) => Id::Raw(raw),
    };
    let refuse = |code, message: Cow<'static, str>| Refusal { code, message, id: id.raw() };
    let version = match found.version {
        None | Some(br#""1.0""# | br#""1.1""#) => Version::V1,
        Some(br#""2.0""#) => Version::V2,
        Some(_) => {
            return Err(refuse(
                ErrorCode::INVALID_REQUEST,
                r#"jsonrpc must be "2.0", "1.1", "1.0" or absent"#.into(),
            ));
        }
    };
    let method = method_name(found.method, limits)
        .map_err(|message| refuse(ErrorCode::INVALID_REQUEST, message))?;
    let params = match found.params {
        None => Params::Absent,
        Some(b"null") => Params::Null,
        Some(raw @ [b'[', ..]) => Params::Array(raw),
        Some(raw @ [b'{', ..]) => Params::Object(raw),
        // The code is go-ethereum's (`rpc/json.go`, "non-array args").
        Some(_) => {
            return Err(refuse(
                ErrorCode::INVALID_PARAMS,
                "params must be an array, an object or absent".into(),
            ));
        }
    };
    Ok(Call { id, method, params, version })
}

fn method_name<'a>(
    raw: Option<&'a [u8]>,
    limits: &Limits,
) -> Result<Cow<'a, str>, Cow<'static, str>> {
    let Some(raw) = raw else { return Err("method is missing".into()) };
    let Some(text) = Text::from_value(raw) else { return Err("method must be a string".into()) };
    let Some(name) = text.to_str() else { return Err("method is not valid unicode".into()) };
    if name.is_empty() {
        return Err("method is empty".into());
    }
    if name.len() > limits.method_bytes_max {
        return Err(format!(
            "method name of {} bytes, at most {} are allowed",
            name.len(),
            limits.method_bytes_max
        )
        .into());
    }
    if !name.bytes().all(is_name_byte) {
        return Err("method holds a character other than A-Z, a-z, 0-9, _ and .".into());
    }
    Ok(name)
}

/// Returns true for the bytes that a method's name may hold. Nodes trim or ignore some others, so a
/// name with such a byte would be one method to the gateway's lists and another one to a node.
pub fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.')
}

fn invalid<'a>(message: impl Into<Cow<'static, str>>) -> Refusal<'a> {
    Refusal { code: ErrorCode::INVALID_REQUEST, message: message.into(), id: None }
}

/// Nesting beyond the limit counts as not JSON too, as in Go's decoder and so in go-ethereum:
/// what follows has not been read.
fn not_json<'a>(fault: Fault) -> Refusal<'a> {
    let message = match fault.flaw {
        Flaw::Empty => Cow::Borrowed("empty body where a json-rpc call is needed"),
        _ => Cow::Owned(fault.to_string()),
    };
    Refusal { code: ErrorCode::PARSE, message, id: None }
}
