//! Value types that hold others: lists, tables with free keys, and declared tables in three forms.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use serde_json::{Value as Json, json};

use super::ValueType;
use crate::MASK;
use crate::diff::Collector;
use crate::report::At;
use crate::schema;
use crate::syntax::{Item, Tree};
use crate::table::{Reader, Table, TableDoc};

/// A list of values.
pub struct List<V>(PhantomData<V>);

impl<V: ValueType> ValueType for List<V> {
    type Value = Vec<V::Value>;
    const EMPTY: &'static str = "[]";

    fn noun() -> String {
        "a list".to_owned()
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

    fn written(default: &str) -> String {
        format!("[{}]", V::written(default))
    }

    fn masked(text: &str) -> Option<String> {
        V::masked(text)
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::List(list) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        Some(list.iter().filter_map(|item| V::read(item, at, reader)).collect())
    }
}

/// A value that is converted into another Rust type.
pub struct As<V, T>(PhantomData<(V, T)>);

impl<V, T> ValueType for As<V, T>
where
    V: ValueType,
    T: From<V::Value> + Clone + Debug + PartialEq + Send + Sync + 'static,
{
    type Value = T;
    const EMPTY: &'static str = V::EMPTY;

    fn noun() -> String {
        V::noun()
    }

    fn allowed() -> String {
        V::allowed()
    }

    fn schema() -> Json {
        V::schema()
    }

    fn placeholder() -> T {
        V::placeholder().into()
    }

    fn of_default(text: &str) -> Result<T, String> {
        V::of_default(text).map(T::from)
    }

    fn written(default: &str) -> String {
        V::written(default)
    }

    fn masked(text: &str) -> Option<String> {
        V::masked(text)
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<T> {
        V::read(item, at, reader).map(T::from)
    }
}

/// A table with free keys, such as the headers of a request.
pub struct Map<V>(PhantomData<V>);

impl<V: ValueType> ValueType for Map<V> {
    type Value = BTreeMap<String, V::Value>;
    const EMPTY: &'static str = "{}";

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
        Err("the default of a table is always empty".to_owned())
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        let mut read = BTreeMap::new();
        for member in members {
            let path = format!("{}.{}", at.path, member.key);
            let at = At { path, span: Some(member.span.clone()), table: at.table.clone() };
            if let Some(value) = V::read(&member.item, &at, reader) {
                read.insert(member.key.clone(), value);
            }
        }
        Some(read)
    }

    fn masked(text: &str) -> Option<String> {
        V::masked(text)
    }
}

/// A value that is parsed together with its free key, such as an HTTP header.
pub trait Pair {
    /// The Rust type of the pair.
    type Value: Clone + Debug + PartialEq + Send + Sync + 'static;

    /// Returns the noun for errors about a value of another type: "a table of headers".
    fn noun() -> String;
    /// Returns the allowed keys and values.
    fn allowed() -> String;
    /// Parses a pair.
    ///
    /// # Errors
    /// A message that does not repeat the value, which may be a secret.
    fn parse(key: &str, text: &str) -> Result<Self::Value, String>;
    /// Masks a string for diagnostics and adds quotes. Returns `None` if they may print it as
    /// written.
    fn masked(_text: &str) -> Option<String> {
        Some(MASK.to_owned())
    }
}

/// A table of [`Pair`]s, in the order of their keys.
pub struct Pairs<P>(PhantomData<P>);

impl<P: Pair> ValueType for Pairs<P> {
    type Value = Vec<P::Value>;
    const EMPTY: &'static str = "{}";

    fn noun() -> String {
        P::noun()
    }

    fn allowed() -> String {
        P::allowed()
    }

    fn schema() -> Json {
        json!({ "type": "object", "additionalProperties": { "type": "string" } })
    }

    fn placeholder() -> Self::Value {
        Vec::new()
    }

    fn of_default(_: &str) -> Result<Self::Value, String> {
        Err("the default of a table is always empty".to_owned())
    }

    fn masked(text: &str) -> Option<String> {
        P::masked(text)
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        let mut members: Vec<_> = members.iter().collect();
        members.sort_by_key(|member| member.key.to_ascii_lowercase());
        let mut pairs = Vec::with_capacity(members.len());
        for member in members {
            let read = match &member.item.tree {
                Tree::Text(text) => {
                    reader.expand(text).and_then(|text| P::parse(&member.key, &text))
                }
                _ => Err("not a text".to_owned()),
            };
            match read {
                Ok(pair) => pairs.push(pair),
                Err(message) => {
                    let path = format!("{}.{}", at.path, member.key);
                    let at = At { path, span: Some(member.span.clone()), table: None };
                    reader.report().missing(&at, message, P::allowed());
                }
            }
        }
        Some(pairs)
    }
}

/// A table that a file has at most once: `[server]`. Without it every key has its default.
pub struct Once<T>(PhantomData<T>);

impl<T: Table> ValueType for Once<T> {
    type Value = T;
    const IS_TABLE: bool = true;

    fn noun() -> String {
        "a table".to_owned()
    }

    fn allowed() -> String {
        format!("a table with the keys {}", T::KEYS.join(", "))
    }

    fn schema() -> Json {
        schema::table(&T::doc())
    }

    fn placeholder() -> T {
        T::defaults("")
    }

    fn of_default(_: &str) -> Result<T, String> {
        Err("the default of a table is always empty".to_owned())
    }

    fn empty(path: &str) -> T {
        T::defaults(path)
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<T> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        let at = At { path: at.path.clone(), span: None, table: Some(item.span.clone()) };
        Some(reader.table(members, at))
    }

    fn collect(table: &T, name: &'static str, keys: &mut Collector) {
        keys.table(name.to_owned(), false, table);
    }

    fn table() -> Option<TableDoc> {
        Some(T::doc().in_form(|key| format!("[{key}]")))
    }
}

/// Tables that each have a name: `[chain.NAME]`.
pub struct Named<T>(PhantomData<T>);

impl<T: Table> ValueType for Named<T> {
    type Value = Vec<(String, T)>;
    const IS_TABLE: bool = true;

    fn noun() -> String {
        "tables with names".to_owned()
    }

    fn allowed() -> String {
        format!("tables with the keys {}", T::KEYS.join(", "))
    }

    fn schema() -> Json {
        json!({ "type": "object", "additionalProperties": schema::table(&T::doc()) })
    }

    fn placeholder() -> Self::Value {
        Vec::new()
    }

    fn of_default(_: &str) -> Result<Self::Value, String> {
        Err("the default of a table is always empty".to_owned())
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        let mut read = Vec::with_capacity(members.len());
        for member in members {
            let path = format!("{}.{}", at.path, member.key);
            let at = At { path, span: Some(member.span.clone()), table: None };
            if let Some(table) = <Once<T>>::read(&member.item, &at, reader) {
                read.push((member.key.clone(), table));
            }
        }
        Some(read)
    }

    fn collect(tables: &Self::Value, name: &'static str, keys: &mut Collector) {
        for (own, table) in tables {
            keys.table(format!("{name}.{own}"), true, table);
        }
    }

    fn table() -> Option<TableDoc> {
        Some(T::doc().in_form(|key| format!("[{key}.NAME]")))
    }
}

/// Any number of tables: `[[upstream]]`.
pub struct Listed<T>(PhantomData<T>);

impl<T: Table> ValueType for Listed<T> {
    type Value = Vec<T>;
    const IS_TABLE: bool = true;

    fn noun() -> String {
        "a list of tables".to_owned()
    }

    fn allowed() -> String {
        format!("tables with the keys {}", T::KEYS.join(", "))
    }

    fn schema() -> Json {
        json!({ "type": "array", "items": schema::table(&T::doc()) })
    }

    fn placeholder() -> Self::Value {
        Vec::new()
    }

    fn of_default(_: &str) -> Result<Self::Value, String> {
        Err("the default of a table is always empty".to_owned())
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::List(list) = &item.tree else {
            return reader.wrong_type::<Self>(item, at);
        };
        Some(list.iter().filter_map(|item| <Once<T>>::read(item, at, reader)).collect())
    }

    fn collect(tables: &Vec<T>, name: &'static str, keys: &mut Collector) {
        for table in tables {
            let label = table.label();
            let name = if label.is_empty() { name.to_owned() } else { format!("{name}.{label}") };
            keys.table(name, true, table);
        }
    }

    fn table() -> Option<TableDoc> {
        Some(T::doc().in_form(|key| format!("[[{key}]]")))
    }
}
