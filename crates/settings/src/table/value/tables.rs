//! Value types that hold other values: lists, tables with free keys, and declared tables.
//!
//! A declared table occurs in a file once ([`Once`]), under names ([`Named`]), or in a list
//! ([`Listed`]). In a table with free keys, the user chooses the keys, and the declaration does not
//! name them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use http::{HeaderName, HeaderValue};
use serde_json::{Value as Json, json};

use super::ValueType;
use crate::MASK;
use crate::diff::Collector;
use crate::report::Location;
use crate::syntax::{Item, Tree};
use crate::table::{Reader, Table, TableDoc};

/// A list of values. The Rust value is the list converted into a `T`.
pub struct List<V: ValueType, T = Vec<<V as ValueType>::Value>>(PhantomData<(V, T)>);

impl<V, T> ValueType for List<V, T>
where
    V: ValueType,
    T: From<Vec<V::Value>> + Clone + Debug + PartialEq + Send + Sync + 'static,
{
    type Value = T;
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

    fn placeholder() -> T {
        T::from(Vec::<V::Value>::new())
    }

    fn parse_default(text: &str) -> Result<T, String> {
        // The declared default is the only element of the list.
        Ok(vec![V::parse_default(text)?].into())
    }

    fn to_toml(default: &str) -> String {
        format!("[{}]", V::to_toml(default))
    }

    fn mask(text: &str) -> Option<String> {
        V::mask(text)
    }

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<T> {
        let Tree::List(list) = &item.tree else {
            return reader.wrong_type::<Self>(item, location);
        };
        let values = list.iter().filter_map(|item| V::read(item, location, reader));
        Some(values.collect::<Vec<_>>().into())
    }
}

/// A table with free keys, such as the headers of a request. All values have the value type `V`.
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

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, location);
        };
        let mut values = BTreeMap::new();
        for member in members {
            if let Some(value) = V::read(&member.item, &location.of_member(member), reader) {
                values.insert(member.key.clone(), value);
            }
        }
        Some(values)
    }

    fn mask(text: &str) -> Option<String> {
        V::mask(text)
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
    /// Returns a message that does not repeat the value, which may be a secret.
    fn parse(key: &str, text: &str) -> Result<Self::Value, String>;
    /// Masks a string for diagnostics and adds quotes. Returns `None` if diagnostics may print the
    /// string as written.
    fn mask(_text: &str) -> Option<String> {
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

    fn mask(text: &str) -> Option<String> {
        P::mask(text)
    }

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, location);
        };
        let mut members: Vec<_> = members.iter().collect();
        members.sort_by_key(|member| member.key.to_ascii_lowercase());
        let mut pairs = Vec::with_capacity(members.len());
        for member in members {
            let parsed = match &member.item.tree {
                Tree::String(text) => {
                    reader.expand(text).and_then(|text| P::parse(&member.key, &text))
                }
                _ => Err("not a text".to_owned()),
            };
            match parsed {
                Ok(pair) => pairs.push(pair),
                Err(message) => {
                    reader.report().error_without_value(
                        &location.of_member(member),
                        message,
                        P::allowed(),
                    );
                }
            }
        }
        Some(pairs)
    }
}

/// A table that a file has at most once, such as `[server]`. If the table is absent, every key has
/// its default.
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
        T::doc().schema()
    }

    fn placeholder() -> T {
        T::defaults("")
    }

    fn empty(path: &str) -> T {
        T::defaults(path)
    }

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<T> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, location);
        };
        let location =
            Location { path: location.path.clone(), span: None, table: Some(item.span.clone()) };
        Some(reader.read_table(members, location))
    }

    fn collect(table: &T, name: &'static str, keys: &mut Collector) {
        let is_in_list = false;
        keys.add_table(name.to_owned(), is_in_list, table);
    }

    fn table() -> Option<TableDoc> {
        Some(T::doc().with_heading(|key| format!("[{key}]")))
    }
}

/// Any number of tables with names, such as `[chain.NAME]`.
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
        json!({ "type": "object", "additionalProperties": T::doc().schema() })
    }

    fn placeholder() -> Self::Value {
        Vec::new()
    }

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Self>(item, location);
        };
        let mut tables = Vec::with_capacity(members.len());
        for member in members {
            let location = location.of_member(member);
            if let Some(table) = <Once<T>>::read(&member.item, &location, reader) {
                tables.push((member.key.clone(), table));
            }
        }
        Some(tables)
    }

    fn collect(tables: &Self::Value, name: &'static str, keys: &mut Collector) {
        let is_in_list = true;
        for (table_name, table) in tables {
            keys.add_table(format!("{name}.{table_name}"), is_in_list, table);
        }
    }

    fn table() -> Option<TableDoc> {
        Some(T::doc().with_heading(|key| format!("[{key}.NAME]")))
    }
}

/// A list of any number of tables, such as `[[upstream]]`.
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
        json!({ "type": "array", "items": T::doc().schema() })
    }

    fn placeholder() -> Self::Value {
        Vec::new()
    }

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::List(list) = &item.tree else {
            return reader.wrong_type::<Self>(item, location);
        };
        Some(list.iter().filter_map(|item| <Once<T>>::read(item, location, reader)).collect())
    }

    fn collect(tables: &Vec<T>, name: &'static str, keys: &mut Collector) {
        let is_in_list = true;
        for table in tables {
            let label = table.label();
            let name = if label.is_empty() { name.to_owned() } else { format!("{name}.{label}") };
            keys.add_table(name, is_in_list, table);
        }
    }

    fn table() -> Option<TableDoc> {
        Some(T::doc().with_heading(|key| format!("[[{key}]]")))
    }
}

/// Parses a header. `sender` is the program that sends the header, such as `gateway`.
///
/// # Errors
/// Describes an invalid name or value, or a header that the sender sets itself.
pub fn parse_header(
    name: &str,
    value: &str,
    sender: &str,
) -> Result<(HeaderName, HeaderValue), String> {
    // These headers frame the message or name the host.
    const SET_BY_SENDER: [&str; 6] =
        ["host", "content-length", "transfer-encoding", "connection", "content-type", "upgrade"];
    let name: HeaderName = name.parse().map_err(|_| "not the name of a header")?;
    if SET_BY_SENDER.contains(&name.as_str()) {
        return Err(format!("the {sender} sets this header itself"));
    }
    let value = HeaderValue::from_str(value)
        .map_err(|_| "the value contains a character that is not allowed in a header")?;
    Ok((name, value))
}
