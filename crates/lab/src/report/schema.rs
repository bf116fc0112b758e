//! The published JSON Schemas of `result.json` and `study.json`, made from the types, so that they
//! cannot differ from what is written.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use serde::Serialize;

use crate::result::RunResult;
use crate::study::StudyResult;

/// That of runs as pretty JSON text, with a last line break.
pub(super) fn schema() -> String {
    pretty(&schemars::schema_for!(RunResult))
}

/// That of studies, likewise. It is that of what is written, not of all that could be read: every
/// field is there, and none that it does not name.
pub(super) fn study() -> String {
    let mut schema = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
        .into_root_schema_for::<StudyResult>();
    RecursiveTransform(close).transform(&mut schema);
    pretty(&schema)
}

/// An object has no fields but those that are named.
fn close(schema: &mut Schema) {
    if schema.get("properties").is_some() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
}

fn pretty(schema: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(schema).expect("a schema is plain JSON");
    text.push('\n');
    text
}
