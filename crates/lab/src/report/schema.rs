//! The published JSON Schema of `result.json`, made from the types, so that it cannot differ from
//! what is written.

use crate::result::RunResult;

/// The schema as pretty JSON text, with a last line break.
pub(super) fn schema() -> String {
    let schema = schemars::schema_for!(RunResult);
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is plain JSON");
    text.push('\n');
    text
}
