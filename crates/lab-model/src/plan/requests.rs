//! Reads files of recorded requests: one JSON-RPC body per line, or vegeta's JSON targets.
//!
//! A vegeta target (<https://github.com/tsenart/vegeta#json-format>) is a line with a JSON object,
//! which has the members `method`, `url` and a base64 `body`. Only the body is used. Errors contain
//! the number of a line but not its text, because headers may be secret.

use base64::Engine;
use serde::Deserialize;
use settings::{Diagnostic, Diagnostics, Position};
use wire::call::{self, Body, Limits};

use super::RecordedRequest;
use super::values;

#[cfg(test)]
mod tests;

/// Maximum size of a file in bytes. It suffices for one minute with 20,000 average calls per
/// second.
pub(super) const FILE_BYTES_MAX: usize = 256 << 20;
/// Maximum number of bodies in a file.
const BODIES_MAX: usize = 2_000_000;
/// Maximum number of problems of a file that are printed. Further problems are only counted.
const PRINTED_MAX: usize = 20;

/// The allowed content of a line.
const ALLOWED: &str = "one JSON-RPC body per line, or vegeta's JSON targets";

/// The names of all methods in a plan.
#[derive(Default)]
pub(super) struct Methods {
    /// The names, at most [`METHODS_MAX`].
    pub(super) names: Vec<Box<str>>,
    /// True if methods may be missing from the list, because calls could not be read. Then the
    /// check of thresholds must not report a method as unknown.
    pub(super) is_incomplete: bool,
}

impl Methods {
    /// Returns the index of a method, and adds the method if it is new. Returns `None` if there are
    /// too many methods.
    pub(super) fn add(&mut self, name: &str) -> Option<usize> {
        let existing = self.names.iter().position(|listed| **listed == *name);
        existing.or_else(|| {
            let index = self.names.len();
            (index < METHODS_MAX).then(|| {
                self.names.push(name.into());
                index
            })
        })
    }
}

/// Maximum number of methods of a plan.
pub(super) const METHODS_MAX: usize = 1000;

/// Reads a file of requests.
///
/// # Errors
/// Returns the number and the problem of each invalid line. Also fails if the file has no
/// requests or too many.
pub(super) fn read(
    file: &str,
    bytes: &[u8],
    methods: &mut Methods,
) -> Result<Vec<RecordedRequest>, Diagnostics> {
    let mut problems = Diagnostics { file: Some(file.to_owned()), ..Diagnostics::default() };
    let mut bodies = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        if bodies.len() >= BODIES_MAX {
            report(&mut problems, index, format!("more than {BODIES_MAX} bodies"), ALLOWED);
            break;
        }
        match read_line(line, methods) {
            Ok(body) => bodies.push(body),
            Err(message) => report(&mut problems, index, message, ALLOWED),
        }
    }
    if bodies.is_empty() && problems.list.is_empty() {
        report(&mut problems, 0, "holds no request".to_owned(), ALLOWED);
    }
    if problems.list.is_empty() { Ok(bodies) } else { Err(problems) }
}

/// Adds the problem of a line to `problems`. `index` is the index of the line, from 0.
pub(super) fn report(
    problems: &mut Diagnostics,
    index: usize,
    message: String,
    allowed: &'static str,
) {
    if problems.list.len() >= PRINTED_MAX {
        problems.unlisted += 1;
        return;
    }
    // The text of the line may be secret, so the position has no text.
    let position = Position { line: index + 1, column: 1, text: String::new(), marked: 0..0 };
    let error = Diagnostic::error("", message, allowed);
    problems.list.push(Diagnostic { position: Some(position), ..error });
}

/// A line that may be a vegeta target. A line without a URL is a JSON-RPC body instead.
#[derive(Deserialize)]
struct Target<'a> {
    url: Option<serde::de::IgnoredAny>,
    #[serde(borrow, default)]
    method: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow, default)]
    body: Option<std::borrow::Cow<'a, str>>,
}

/// Reads a line of a file.
///
/// # Errors
/// Describes why the line is not a request to which a server responds.
fn read_line(line: &[u8], methods: &mut Methods) -> Result<RecordedRequest, String> {
    match serde_json::from_slice::<Target<'_>>(line) {
        Ok(Target { url: Some(_), method, body }) => {
            if method.as_deref().is_some_and(|method| !method.eq_ignore_ascii_case("POST")) {
                return Err("a target that is not a POST makes no call".to_owned());
            }
            let body = body.ok_or("a target without a body makes no call")?;
            let decoded = base64::engine::general_purpose::STANDARD
                .decode(body.as_bytes())
                .map_err(|_| "the target's body is not base64")?;
            read_body(decoded.trim_ascii(), methods)
        }
        _ => read_body(line, methods),
    }
}

/// Reads a JSON-RPC body: a call or a batch.
///
/// # Errors
/// Describes why the body is not a request to which a server responds.
pub(super) fn read_body(body: &[u8], methods: &mut Methods) -> Result<RecordedRequest, String> {
    let decoded = call::decode(body, &Limits::DEFAULT).map_err(|refusal| refusal.to_string())?;
    let (calls, is_single) = match decoded {
        Body::Single(call) => (vec![call], true),
        Body::Batch(calls) => (calls, false),
    };
    let count = calls.len();
    let mut first_call: Option<(String, Vec<u8>)> = None;
    for call in calls {
        let call = call.map_err(|refusal| refusal.to_string())?;
        let id = call.id.ok_or("a call without id gets no answer")?;
        // Fails if the name of the method is invalid.
        values::method(&call.method)?;
        first_call.get_or_insert_with(|| (call.method.to_string(), id.to_vec()));
    }
    let (method, id) = first_call.ok_or("an empty batch")?;
    let method = methods.add(&method).ok_or_else(|| format!("more than {METHODS_MAX} methods"))?;
    Ok(RecordedRequest {
        method,
        calls: count,
        body: body.into(),
        id: if is_single { id.into() } else { Box::default() },
    })
}
