//! The published JSON Schemas, made from the types, so that they cannot differ from what is written.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde::Serialize;

use super::capacity::CapacityResult;
use super::compare::CompareResult;
use super::run::RunResult;
use super::study::StudyResult;

/// The schema of `result.json`. It is open: a reader must accept fields that it does not know.
pub fn run() -> String {
    pretty(&schemars::schema_for!(RunResult))
}

/// The schema of `capacity.json`.
pub fn capacity() -> String {
    closed::<CapacityResult>()
}

/// The schema of what `weir compare --json` prints.
pub fn compare() -> String {
    closed::<CompareResult>()
}

/// The schema of `study.json`.
pub fn study() -> String {
    closed::<StudyResult>()
}

/// The schema of what is written, not of all that can be read: every field is there, and no other.
fn closed<T: JsonSchema>() -> String {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(|schema: &mut Schema| {
        if schema.get("properties").is_some() {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
    })
    .transform(&mut schema);
    pretty(&schema)
}

fn pretty(schema: &impl Serialize) -> String {
    serde_json::to_string_pretty(schema).expect("a schema is plain JSON") + "\n"
}
