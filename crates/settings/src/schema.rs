//! The JSON Schema of a file that [`table!`](crate::table!) declares, for editors that complete and
//! check keys.
//!
//! A schema checks keys, types and bounds of numbers. [`crate::read`] checks more, such as that
//! a variable exists.

use serde_json::{Map, Value as Json, json};

use crate::table::{DefaultDoc, Table, TableDoc};

/// Returns the schema of a whole file in draft 2020-12. `id` is its `$id`.
pub fn document<T: Table>(id: &str, title: &str) -> Json {
    let mut schema = table_schema(&T::doc());
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

/// Returns the schema of one table.
pub(crate) fn table_schema(doc: &TableDoc) -> Json {
    let mut properties = Map::new();
    for key in &doc.keys {
        let mut schema = key.schema.clone();
        if let Some(members) = schema.as_object_mut() {
            let description = match key.default {
                DefaultDoc::Described(words) => format!("{} Default: {words}.", key.doc),
                DefaultDoc::Is(_) | DefaultDoc::Empty | DefaultDoc::Required => key.doc.to_owned(),
            };
            members.insert("description".into(), description.into());
            // Numbers, booleans and strings are written alike in TOML and in JSON.
            if key.default.is_value()
                && let Ok(default) = serde_json::from_str(&key.default_text)
            {
                members.insert("default".into(), default);
            }
        }
        properties.insert(key.name.to_owned(), schema);
    }
    let required = doc.keys.iter().filter(|key| key.default == DefaultDoc::Required);
    json!({
        "type": "object",
        "description": doc.doc,
        "properties": properties,
        "required": required.map(|key| key.name).collect::<Vec<_>>(),
        "additionalProperties": false,
    })
}
