//! Schemas of the objects that the chart can render: those of Kubernetes, recorded from an API
//! server in `testdata/kubernetes`, and those of custom resources, from their definitions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{CUSTOM_RESOURCES, Helm, KINDS, root};

/// Paths of the API groups that have the recorded kinds.
pub(super) const API_GROUPS: [&str; 5] = [
    "api/v1",
    "apis/apps/v1",
    "apis/autoscaling/v2",
    "apis/networking.k8s.io/v1",
    "apis/policy/v1",
];
/// Prefix of a reference to another schema.
const REFERENCE: &str = "#/components/schemas/";

/// A validator of each kind.
pub(super) struct Schemas(BTreeMap<&'static str, jsonschema::Validator>);

impl Schemas {
    /// Reads the schemas. They reject unknown fields, as the API server does.
    pub(super) fn read(helm: &Helm) -> Schemas {
        let file = root().join("testdata/kubernetes/schemas.json");
        let text = std::fs::read_to_string(file).unwrap();
        let mut schemas: Map<String, Value> = serde_json::from_str(&text).unwrap();
        let definitions =
            CUSTOM_RESOURCES.map(|file| std::fs::read_to_string(root().join(file)).unwrap());
        for definition in helm.convert_to_json(&definitions) {
            let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
            let [version] = definition["spec"]["versions"].as_array().unwrap().as_slice() else {
                panic!("{kind} has several versions");
            };
            schemas.insert(format!("custom.{kind}"), version["schema"]["openAPIV3Schema"].clone());
        }
        schemas.values_mut().for_each(reject_unknown_fields);
        let name = |kind| {
            let is_kind = |name: &&String| name.ends_with(&format!(".{kind}"));
            schemas.keys().find(is_kind).unwrap_or_else(|| panic!("no schema of {kind}"))
        };
        let validator = |kind| {
            let reference = format!("{REFERENCE}{}", name(kind));
            let schema = json!({"$ref": reference, "components": {"schemas": schemas}});
            jsonschema::validator_for(&schema).unwrap()
        };
        Schemas(KINDS.iter().map(|kind| (*kind, validator(kind))).collect())
    }

    /// Returns what is invalid in an object.
    pub(super) fn find_faults(&self, object: &Value) -> Vec<String> {
        let kind = object["kind"].as_str().unwrap();
        let errors = self.0[kind].iter_errors(object);
        errors.map(|error| format!("{}: {error}", error.instance_path())).collect()
    }
}

/// Rejects fields that an object's schema does not name. A schema without names allows any.
fn reject_unknown_fields(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.values_mut().for_each(reject_unknown_fields);
            if members.contains_key("properties") {
                members.entry("additionalProperties").or_insert(Value::Bool(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(reject_unknown_fields),
        _ => {}
    }
}

/// Returns the schemas of the chart's kinds, and those to which they refer, as the text of the
/// recorded file. `documents` are the OpenAPI documents of [`API_GROUPS`].
pub(super) fn record(documents: &[Value]) -> String {
    let mut recorded = BTreeMap::new();
    for document in documents {
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let kinds = schemas.keys().filter(|name| {
            let (group, kind) = name.rsplit_once('.').unwrap();
            // The other groups have kinds with equal names.
            KINDS.contains(&kind) && group.starts_with("io.k8s.api.")
        });
        let mut names: Vec<&str> = kinds.map(String::as_str).collect();
        while let Some(name) = names.pop() {
            if !recorded.contains_key(name) {
                list_references(&schemas[name], &mut names);
                recorded.insert(name.to_owned(), without_descriptions(&schemas[name]));
            }
        }
    }
    serde_json::to_string_pretty(&recorded).unwrap() + "\n"
}

/// Appends the names of the schemas to which a schema refers.
fn list_references<'a>(schema: &'a Value, names: &mut Vec<&'a str>) {
    match schema {
        Value::Object(members) => {
            let reference = members.get("$ref").and_then(Value::as_str);
            names.extend(reference.and_then(|text| text.strip_prefix(REFERENCE)));
            members.values().for_each(|member| list_references(member, names));
        }
        Value::Array(items) => items.iter().for_each(|item| list_references(item, names)),
        _ => {}
    }
}

/// Returns a schema without the members that validate nothing.
fn without_descriptions(schema: &Value) -> Value {
    match schema {
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, value)| {
                let is_text = *name == "description" && value.is_string();
                !is_text && *name != "default" && !name.starts_with("x-kubernetes-")
            });
            kept.map(|(name, value)| (name.clone(), without_descriptions(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_descriptions).collect(),
        _ => schema.clone(),
    }
}
