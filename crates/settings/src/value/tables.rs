//! Value types that hold others: lists, free tables, and declared tables in their three forms.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde_json::{Value as Json, json};

use super::ValueType;
use crate::report::At;
use crate::schema;
use crate::syntax::{Item, Tree};
use crate::table::{Reader, Table, TableDoc};

/// A list, each element of which is read by itself.
pub struct List<V>(PhantomData<V>);

impl<V: ValueType> ValueType for List<V> {
    type Value = Vec<V::Value>;

    fn noun() -> String {
        format!("a list, each element {}", V::noun())
    }

    fn allowed() -> String {
        format!("a list of: {}", V::allowed())
    }

    fn schema() -> Json {
        json!({ "type": "array", "items": V::schema() })
    }

    fn placeholder() -> Self::Value {
        Vec::new()
    }

    fn of_default(text: &str) -> Result<Self::Value, String> {
        Ok(vec![V::of_default(text)?])
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::List(list) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        let read: Vec<_> = list.iter().filter_map(|item| V::read(item, at, reader)).collect();
        (read.len() == list.len()).then_some(read)
    }
}

/// A table whose keys are free, such as HTTP headers or variables of the environment.
pub struct Map<V>(PhantomData<V>);

impl<V: ValueType> ValueType for Map<V> {
    type Value = BTreeMap<String, V::Value>;

    fn noun() -> String {
        format!("a table, each value {}", V::noun())
    }

    fn allowed() -> String {
        format!("a table of: {}", V::allowed())
    }

    fn schema() -> Json {
        json!({ "type": "object", "additionalProperties": V::schema() })
    }

    fn placeholder() -> Self::Value {
        BTreeMap::new()
    }

    fn of_default(_: &str) -> Result<Self::Value, String> {
        Err("a table has no default but an empty one".to_owned())
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        let mut read = BTreeMap::new();
        for member in members {
            let path = format!("{}.{}", at.path, member.key);
            let at = At { path, span: Some(member.span.clone()) };
            if let Some(value) = V::read(&member.item, &at, reader) {
                read.insert(member.key.clone(), value);
            }
        }
        (read.len() == members.len()).then_some(read)
    }
}

/// A table that stands at most once: `[server]`. Without it every key has its default.
pub struct Once<T>(PhantomData<T>);

impl<T: Table> ValueType for Once<T> {
    type Value = T;

    fn noun() -> String {
        "a table".to_owned()
    }

    fn allowed() -> String {
        format!("a table with the keys {}", T::doc().key_names().join(", "))
    }

    fn schema() -> Json {
        schema::table(&T::doc())
    }

    fn placeholder() -> T {
        T::defaults("")
    }

    fn of_default(_: &str) -> Result<T, String> {
        Err("a table has no default but an empty one".to_owned())
    }

    fn empty(path: &str) -> T {
        T::defaults(path)
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<T> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        let at = At { path: at.path.clone(), span: Some(item.span.clone()) };
        Some(reader.table(members, at))
    }

    fn table() -> Option<TableDoc> {
        Some(T::doc().in_form(|key| format!("[{key}]")))
    }
}

/// Tables that each have a name: `[chain.NAME]`.
pub struct Named<T>(PhantomData<T>);

impl<T: Table> ValueType for Named<T> {
    type Value = Vec<(String, T)>;

    fn noun() -> String {
        "tables with names".to_owned()
    }

    fn allowed() -> String {
        format!("tables with the keys {}", T::doc().key_names().join(", "))
    }

    fn schema() -> Json {
        json!({ "type": "object", "additionalProperties": schema::table(&T::doc()) })
    }

    fn placeholder() -> Self::Value {
        Vec::new()
    }

    fn of_default(_: &str) -> Result<Self::Value, String> {
        Err("a table has no default but an empty one".to_owned())
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        let mut read = Vec::with_capacity(members.len());
        for member in members {
            let path = format!("{}.{}", at.path, member.key);
            let at = At { path, span: Some(member.span.clone()) };
            if let Some(table) = <Once<T>>::read(&member.item, &at, reader) {
                read.push((member.key.clone(), table));
            }
        }
        (read.len() == members.len()).then_some(read)
    }

    fn table() -> Option<TableDoc> {
        Some(T::doc().in_form(|key| format!("[{key}.NAME]")))
    }
}

/// Any number of tables: `[[node]]`.
pub struct Listed<T>(PhantomData<T>);

impl<T: Table> ValueType for Listed<T> {
    type Value = Vec<T>;

    fn noun() -> String {
        "a list of tables".to_owned()
    }

    fn allowed() -> String {
        format!("tables with the keys {}", T::doc().key_names().join(", "))
    }

    fn schema() -> Json {
        json!({ "type": "array", "items": schema::table(&T::doc()) })
    }

    fn placeholder() -> Self::Value {
        Vec::new()
    }

    fn of_default(_: &str) -> Result<Self::Value, String> {
        Err("a table has no default but an empty one".to_owned())
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::List(list) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        let read: Vec<_> =
            list.iter().filter_map(|item| <Once<T>>::read(item, at, reader)).collect();
        (read.len() == list.len()).then_some(read)
    }

    fn table() -> Option<TableDoc> {
        Some(T::doc().in_form(|key| format!("[[{key}]]")))
    }
}
