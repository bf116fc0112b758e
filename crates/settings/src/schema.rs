//! The JSON Schema of a file that [`table!`](crate::table!) declares, for editors that complete and
//! check keys.
//!
//! A schema checks keys, types and bounds of numbers. [`crate::read`] checks more, such as that
//! a variable exists.

use serde_json::Value as Json;

use crate::table::Table;

/// Returns the schema of a whole file in draft 2020-12. `id` is its `$id`.
pub fn document<T: Table>(id: &str, title: &str) -> Json {
    let mut schema = T::doc().schema();
    if let Some(members) = schema.as_object_mut() {
        members.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        members.insert("$id".into(), id.into());
        members.insert("title".into(), title.into());
    }
    schema
}

/// Returns the schema for a file that allows formulas: any string may replace a number.
pub fn with_formulas(mut schema: Json) -> Json {
    allow_formulas(&mut schema);
    schema
}

/// Allows any string in place of a number. Without formulas, a pattern allows only strings with a
/// reference such as `${NAME}`. This function removes the pattern.
fn allow_formulas(schema: &mut Json) {
    match schema {
        Json::Array(list) => list.iter_mut().for_each(allow_formulas),
        Json::Object(members) => {
            if let Some(Json::Array(alternatives)) = members.get_mut("anyOf")
                && let [number, Json::Object(string)] = alternatives.as_mut_slice()
                && (number["type"] == "integer" || number["type"] == "number")
            {
                string.remove("pattern");
            }
            members.values_mut().for_each(allow_formulas);
        }
        _ => {}
    }
}
