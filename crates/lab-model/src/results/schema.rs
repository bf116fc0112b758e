//! The published JSON Schemas. They are derived from the types, so they always match the results.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde::Serialize;

use super::run::RunResult;

/// Returns the schema of `result.json`. It allows unknown fields, because later versions add
/// fields.
pub fn run() -> String {
    pretty(&schemars::schema_for!(RunResult))
}

/// Returns the schema of a result exactly as this version writes it. The schema requires every
/// field and allows no others.
pub fn closed<T: JsonSchema>() -> String {
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
