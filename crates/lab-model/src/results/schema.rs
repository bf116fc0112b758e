//! The published JSON Schemas. They are derived from the types, so they always match the results.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde::Serialize;

use super::capacity::CapacityResult;
use super::compare::CompareResult;
use super::equal::EqualResult;
use super::load_study::LoadStudyResult;
use super::run::RunResult;
use super::study::StudyResult;

/// Returns the schema of `result.json`. Readers must accept unknown fields.
pub fn run() -> String {
    pretty(&schemars::schema_for!(RunResult))
}

/// Returns the schema of `capacity.json`.
pub fn capacity() -> String {
    closed::<CapacityResult>()
}

/// Returns the schema of the output of `weir compare --json`.
pub fn compare() -> String {
    closed::<CompareResult>()
}

/// Returns the schema of the output of `weir equal --json`.
pub fn equal() -> String {
    closed::<EqualResult>()
}

/// Returns the schema of `study.json`.
pub fn study() -> String {
    closed::<StudyResult>()
}

/// Returns the schema of `study.json` of `weir study load`.
pub fn load_study() -> String {
    closed::<LoadStudyResult>()
}

/// Returns the schema of written results, in which every field is present and no other is.
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
