//! [`TableDoc`] describes a declared table at run time. [`Reader`] reads a tree of values by the
//! declaration.

use std::fmt;
use std::ops::Deref;

use serde_json::{Map, Value as Json, json};

use crate::diff::Collector;
use crate::expand::{ReadContext, expand};
use crate::names::{find_nearest_name, not_found_message};
use crate::report::{Located, Location, Report};
use crate::syntax::{Item, Member, Span, Tree};
use crate::value::{Scalar, ValueType};

pub mod diff;
pub mod value;

/// A table of a file, declared with [`table!`](crate::table!).
pub trait Table: Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The names of the table's keys, in the order of the declaration.
    const KEYS: &'static [&'static str];
    /// Returns the documentation of the table and of its keys.
    fn doc() -> TableDoc;
    /// Returns the table with all defaults; `path` is its full name.
    fn defaults(path: &str) -> Self;
    /// Reads the keys. Call [`Reader::read_table`] instead, because it also reports unknown keys.
    fn read(reader: &mut Reader<'_, '_>, members: &[Member], location: Location) -> Self;
    /// Passes every key to the collector, for [`diff`].
    fn collect(&self, keys: &mut Collector);
    /// Returns the label that distinguishes the table from other tables of its list. Empty if the
    /// table has no label.
    fn label(&self) -> String {
        String::new()
    }
}

/// The value of a key, with its position and origin. Dereferences to the value. Two keys are equal
/// if their values are equal. `Debug` and `Display` print the value.
#[derive(Clone, Default)]
pub struct Key<T> {
    value: T,
    /// The full name and the position of the key, for [`Report::error`].
    pub location: Location,
    /// Source of the value.
    pub origin: Origin,
    /// The byte range of each element if the value is a valid list, else empty.
    pub elements: Vec<Span>,
    /// The value as written, with masked secrets. Empty if the key is not set.
    pub printed: String,
}

/// The source of a key's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The key is not set.
    #[default]
    Default,
    /// The key is set.
    Set,
    /// The value is invalid, or a required key is missing. The error is reported, and the value is
    /// the default or a placeholder.
    Invalid,
}

impl<T: PartialEq> PartialEq for Key<T> {
    fn eq(&self, other: &Key<T>) -> bool {
        self.value == other.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Key<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(formatter)
    }
}

impl<T: fmt::Display> fmt::Display for Key<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(formatter)
    }
}

impl<T> Deref for Key<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Located for Key<T> {
    fn location(&self) -> &Location {
        &self.location
    }
}

impl<T> Key<T> {
    /// Returns true if the file sets this key, to a valid or an invalid value. Also returns true
    /// for a required key that is missing.
    pub fn is_set(&self) -> bool {
        self.origin != Origin::Default
    }

    /// Returns true if the file sets a list, and the list has no element.
    pub fn is_empty_list(&self) -> bool {
        self.origin == Origin::Set && self.elements.is_empty()
    }

    /// Returns the value. Returns `None` if the value in the file is invalid, or if a required key
    /// is missing.
    pub fn valid_value(&self) -> Option<&T> {
        (self.origin != Origin::Invalid).then_some(&self.value)
    }

    /// Returns the position of one element of a list.
    pub fn element_location(&self, index: usize) -> Location {
        let with_span = |span: &Span| self.location.with_span(span);
        self.elements.get(index).map_or_else(|| self.location.clone(), with_span)
    }

    /// Returns the value alone.
    pub fn into_value(self) -> T {
        self.value
    }

    /// Sets the key to a value that is not from the file, such as an argument. `printed` is the
    /// value with secrets masked.
    pub fn set(&mut self, value: T, printed: String) {
        (self.value, self.origin, self.printed) = (value, Origin::Set, printed);
    }

    /// Converts the value to an option: `None` if the file sets no valid value.
    #[doc(hidden)]
    pub fn optional(self) -> Key<Option<T>> {
        let Key { value, location, origin, elements, printed } = self;
        Key { value: (origin == Origin::Set).then_some(value), location, origin, elements, printed }
    }

    /// Replaces the value by a computed default if the file sets no valid value.
    #[doc(hidden)]
    pub fn or_else(mut self, default: impl FnOnce() -> T) -> Key<T> {
        if self.origin != Origin::Set {
            self.value = default();
        }
        self
    }
}

/// A declared table, for reference pages and schemas.
#[derive(Clone, Debug)]
pub struct TableDoc {
    /// The heading in a file, such as `[server]`; empty for the file's root.
    pub heading: String,
    /// The full name of the table, such as `mix.NAME.step`.
    path: String,
    /// The purpose of the table.
    pub doc: &'static str,
    /// The keys of the table, in the order of the declaration.
    pub keys: Vec<KeyDoc>,
    /// Returns the heading of the table for the key's full name.
    heading_of: fn(&str) -> String,
}

/// A declared key.
#[derive(Clone, Debug)]
pub struct KeyDoc {
    /// The name of the key.
    pub name: &'static str,
    /// The effect of the key.
    pub doc: &'static str,
    /// The allowed values, in words.
    pub allowed: String,
    /// The default.
    pub default: DefaultDoc,
    /// The default in TOML, or in words.
    pub default_text: String,
    /// True if a change takes effect only at the next start.
    pub at_start_only: bool,
    /// The JSON Schema of the value.
    pub schema: Json,
    /// The declaration of the tables that the key holds; `None` if its value holds no table.
    pub table: Option<TableDoc>,
    /// Masks a string for diagnostics. Returns `None` if diagnostics may print the string as
    /// written.
    pub mask: fn(&str) -> Option<String>,
}

/// The default of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultDoc {
    /// This value in TOML, without quotes.
    Is(&'static str),
    /// An empty list or table.
    Empty,
    /// A description of a value that depends on other keys or on the system.
    Described(&'static str),
    /// No default: the key must be set.
    Required,
}

impl DefaultDoc {
    /// Returns true if the default is a value, which TOML can express.
    pub fn is_value(self) -> bool {
        matches!(self, DefaultDoc::Is(_) | DefaultDoc::Empty)
    }
}

impl TableDoc {
    /// Creates the documentation of a table with these keys.
    pub fn new(doc: &'static str, keys: Vec<KeyDoc>) -> TableDoc {
        TableDoc {
            heading: String::new(),
            path: String::new(),
            doc: doc.trim(),
            keys,
            heading_of: str::to_owned,
        }
    }

    /// Returns true if the value of every key is a table or holds tables, as in the root of most
    /// files.
    pub(crate) fn holds_tables_only(&self) -> bool {
        self.keys.iter().all(|key| key.table.is_some())
    }

    /// Sets the function that makes the heading of the table.
    #[must_use]
    pub fn with_heading(self, heading_of: fn(&str) -> String) -> TableDoc {
        TableDoc { heading_of, ..self }
    }

    /// Returns the table as the value of a key. The paths and headings of the table and of its
    /// nested tables then begin with the key.
    fn under_key(mut self, key: &str) -> TableDoc {
        self.path = key.to_owned();
        self.heading = (self.heading_of)(key);
        let heading = self.heading.trim_matches(['[', ']']).to_owned();
        self.nested_tables().for_each(|table| table.prefix_path(&heading));
        self
    }

    /// Puts `prefix`, the name of the enclosing table, in front of the paths of this table and of
    /// its nested tables.
    fn prefix_path(&mut self, prefix: &str) {
        self.path = format!("{prefix}.{}", self.path);
        self.heading = (self.heading_of)(&self.path);
        self.nested_tables().for_each(|nested| nested.prefix_path(prefix));
    }

    fn nested_tables(&mut self) -> impl Iterator<Item = &mut TableDoc> {
        self.keys.iter_mut().filter_map(|key| key.table.as_mut())
    }

    /// Adds every key with this name to `matches`, each with the heading of its table. Includes the
    /// keys of nested tables.
    fn find_keys<'d>(&'d self, name: &str, matches: &mut Vec<(&'d str, &'d KeyDoc)>) {
        for key in &self.keys {
            match &key.table {
                Some(table) => table.find_keys(name, matches),
                None if key.name == name => matches.push((&self.heading, key)),
                None => {}
            }
        }
    }

    /// Returns the JSON Schema of the table.
    pub(crate) fn schema(&self) -> Json {
        let mut properties = Map::new();
        for key in &self.keys {
            let mut schema = key.schema.clone();
            if let Some(members) = schema.as_object_mut() {
                let description = match key.default {
                    DefaultDoc::Described(words) => format!("{} Default: {words}.", key.doc),
                    DefaultDoc::Is(_) | DefaultDoc::Empty | DefaultDoc::Required => {
                        key.doc.to_owned()
                    }
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
        let required = self.keys.iter().filter(|key| key.default == DefaultDoc::Required);
        json!({
            "type": "object",
            "description": self.doc,
            "properties": properties,
            "required": required.map(|key| key.name).collect::<Vec<_>>(),
            "additionalProperties": false,
        })
    }
}

impl KeyDoc {
    /// Creates the documentation of a key of this value type.
    pub fn new<V: ValueType>(
        name: &'static str,
        doc: &'static str,
        default: DefaultDoc,
        at_start_only: bool,
    ) -> KeyDoc {
        let name = strip_raw_prefix(name);
        KeyDoc {
            name,
            doc: doc.trim(),
            allowed: V::allowed(),
            default,
            default_text: default_text::<V>(default),
            at_start_only,
            schema: V::schema(),
            table: V::table().map(|table| table.under_key(name)),
            mask: V::mask,
        }
    }
}

/// Formats a default in TOML, or in words.
pub(crate) fn default_text<V: ValueType>(default: DefaultDoc) -> String {
    match default {
        DefaultDoc::Is(text) => V::to_toml(text),
        DefaultDoc::Empty => V::EMPTY.to_owned(),
        DefaultDoc::Described(words) => words.to_owned(),
        DefaultDoc::Required => "must be set".to_owned(),
    }
}

/// Reads a tree of values by its declaration.
pub struct Reader<'r, 'a> {
    report: &'r mut Report<'a>,
    pub(crate) context: &'r ReadContext<'r>,
    /// Returns the declaration of the file's root table.
    root: fn() -> TableDoc,
}

impl<'r, 'a> Reader<'r, 'a> {
    pub(crate) fn new(
        report: &'r mut Report<'a>,
        context: &'r ReadContext<'r>,
        root: fn() -> TableDoc,
    ) -> Reader<'r, 'a> {
        Reader { report, context, root }
    }

    /// Reads a table and reports its unknown keys.
    pub fn read_table<T: Table>(&mut self, members: &[Member], location: Location) -> T {
        let problems_before = self.report.count();
        let table = T::read(self, members, location.clone());
        for member in members {
            if !T::KEYS.iter().any(|key| strip_raw_prefix(key) == member.key) {
                self.report_unknown_key::<T>(&location, member);
            }
        }
        if self.report.count() > problems_before {
            self.report.mark_faulty(&location);
        }
        table
    }

    /// Reads one key of a table; `default` applies if the key is not set. Generated code calls this
    /// for each declared key.
    pub fn read_key<V: ValueType>(
        &mut self,
        members: &[Member],
        table: &Location,
        name: &str,
        default: DefaultDoc,
    ) -> Key<V::Value> {
        let name = strip_raw_prefix(name);
        let Some(member) = members.iter().find(|member| member.key == name) else {
            let mut key = unset_key::<V>(&table.path, name, default);
            key.location.table.clone_from(&table.table);
            if default == DefaultDoc::Required {
                key.origin = Origin::Invalid;
                self.report.error_without_value(&key.location, "must be set", V::allowed());
            }
            return key;
        };
        let (item, span) = (&member.item, Some(member.item.span.clone()));
        let location =
            Location { path: join_path(&table.path, name), span, table: table.table.clone() };
        if !V::IS_TABLE {
            self.allow_printing::<V>(item);
        }
        let printed = self.report.mask_value(&item.span);
        let problems_before = self.report.count();
        let value = V::read(item, &location, self);
        let is_clean = self.report.count() == problems_before;
        let elements = match &item.tree {
            Tree::List(list) if is_clean => list.iter().map(|item| item.span.clone()).collect(),
            _ => Vec::new(),
        };
        let origin = if is_clean { Origin::Set } else { Origin::Invalid };
        let value = value.unwrap_or_else(|| default_value::<V>(default, &location.path));
        Key { value, location, origin, elements, printed }
    }

    /// Reports that a value has another type than the key, and returns `None`.
    pub fn wrong_type<V: ValueType>(
        &mut self,
        item: &Item,
        location: &Location,
    ) -> Option<V::Value> {
        let allowed = match V::table() {
            Some(table) => (table.heading_of)(&location.path),
            None => V::allowed(),
        };
        self.report.error(&location.with_span(&item.span), format!("not {}", V::noun()), allowed);
        None
    }

    /// Lets diagnostics print a value and the values in it. The value type `V` masks their secrets.
    pub fn allow_printing<V: ValueType>(&mut self, item: &Item) {
        self.report.show_values(item, V::mask);
    }

    /// Returns the report of this file.
    pub fn report(&mut self) -> &mut Report<'a> {
        self.report
    }

    /// Returns a text with its variables replaced.
    ///
    /// # Errors
    /// Returns a message with the name of the variable or file that is missing.
    pub fn expand(&self, text: &str) -> Result<String, String> {
        expand(text, self.context)
    }

    /// Describes the allowed values of a type. Mentions formulas if the file allows formulas.
    pub(crate) fn allowed<S: Scalar>(&self) -> String {
        let formula = S::IS_NUMBER && self.context.allows_formulas();
        format!("{}{}", S::allowed(), if formula { ", or a formula" } else { "" })
    }

    /// Reports an unknown key. The message names the nearest key of this table, or another table
    /// that has a key of this name.
    fn report_unknown_key<T: Table>(&mut self, location: &Location, member: &Member) {
        let (name, root, doc) = (member.key.as_str(), (self.root)(), T::doc());
        let mut matching_keys = Vec::new();
        root.find_keys(name, &mut matching_keys);
        // If another table has a key of this name, the diagnostic prints the value. But the value
        // is masked if any key of this name holds a secret.
        if let [(_, first), others @ ..] = &matching_keys[..] {
            let secret = others.iter().find(|(_, key)| (key.mask)("").is_some());
            let mask = secret.map_or(first.mask, |(_, key)| key.mask);
            self.report.show_values(&member.item, mask);
        }
        let names: Vec<&str> = doc.keys.iter().map(|key| key.name).collect();
        let kind = if doc.holds_tables_only() { "table" } else { "key" };
        let (mut message, mut allowed) = not_found_message(kind, name, &names);
        if let (None, Some((heading, _))) = (find_nearest_name(name, &names), matching_keys.first())
        {
            message = format!("this key belongs under {heading}");
        }
        if doc.holds_tables_only() {
            let tables = doc.keys.iter().filter_map(|key| key.table.as_ref());
            let headings: Vec<&str> = tables.map(|table| table.heading.as_str()).collect();
            allowed = headings.join(", ");
        }
        let path = join_path(&location.path, name);
        let location = Location { path, span: Some(member.span.clone()), table: None };
        self.report.error_without_value(&location, message, allowed);
    }
}

/// Returns a key that is not set. Generated code calls this for each declared key.
pub fn unset_key<V: ValueType>(path: &str, name: &str, default: DefaultDoc) -> Key<V::Value> {
    let location =
        Location { path: join_path(path, strip_raw_prefix(name)), span: None, table: None };
    let value = default_value::<V>(default, &location.path);
    Key { value, location, origin: Origin::Default, elements: Vec::new(), printed: String::new() }
}

/// Returns the value of a key that is not set, or that is invalid. `path` is the key's full name.
pub(crate) fn default_value<V: ValueType>(default: DefaultDoc, path: &str) -> V::Value {
    match default {
        DefaultDoc::Is(text) => {
            V::parse_default(text).expect("a test reads every declared default")
        }
        DefaultDoc::Empty => V::empty(path),
        DefaultDoc::Described(_) | DefaultDoc::Required => V::placeholder(),
    }
}

fn join_path(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns the name of a key that is declared as a raw identifier, such as `r#match`.
fn strip_raw_prefix(name: &str) -> &str {
    name.trim_start_matches("r#")
}
