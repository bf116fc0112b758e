//! Declared tables: what a declaration knows, and how a tree of values is read along it.

use std::fmt;
use std::ops::Deref;

use serde_json::Value as Json;

use crate::diff::Collector;
use crate::expand::{World, expand};
use crate::report::{At, Located, Report};
use crate::syntax::{Item, Member, Span, Tree};
use crate::value::{Scalar, ValueType};

/// A table of a file, declared with [`table!`](crate::table!).
pub trait Table: Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The names of its keys, in the order of the declaration.
    const KEYS: &'static [&'static str];
    /// Its keys and what they are for.
    fn doc() -> TableDoc;
    /// The table where nothing of it is written; `path` is its full name.
    fn defaults(path: &str) -> Self;
    /// Reads its keys. Use [`Reader::table`], which also finds unknown keys.
    fn read(reader: &mut Reader<'_, '_>, members: &[Member], at: At) -> Self;
    /// Hands every key to the collector, for [`diff`](crate::diff).
    fn collect(&self, keys: &mut Collector);
    /// What tells it from other tables of a list; empty if only its place does.
    fn label(&self) -> String {
        String::new()
    }
}

/// The value of a key, and where it stands. Dereferences to the value. Two keys are equal if their
/// values are, wherever they come from. `Debug` and `Display` print the value.
#[derive(Clone, Default)]
pub struct Key<T> {
    value: T,
    /// Its full name and place, for [`Report::error`].
    pub at: At,
    /// Where the value comes from.
    pub origin: Origin,
    /// For a list that could be read, where each element stands.
    pub elements: Vec<Span>,
    /// The value as it is written, secrets masked; empty if the key is not set.
    pub shown: String,
}

/// Where the value of a key comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The key is not set.
    #[default]
    Default,
    /// The key is set.
    Set,
    /// The key is set to something that cannot be read, or missing though required. This is
    /// reported, and the value is the default or, without one, a placeholder.
    Unreadable,
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
    fn located(&self) -> &At {
        &self.at
    }
}

impl<T> Key<T> {
    /// Returns true if the file sets this key, readable or not.
    pub fn is_set(&self) -> bool {
        self.origin != Origin::Default
    }

    /// Returns true if the file sets a list, and the list has no element.
    pub fn is_empty_list(&self) -> bool {
        self.origin == Origin::Set && self.elements.is_empty()
    }

    /// The value; `None` if the file sets it to something that cannot be read.
    pub fn readable(&self) -> Option<&T> {
        (self.origin != Origin::Unreadable).then_some(&self.value)
    }

    /// The place of one element of a list.
    pub fn element(&self, at: usize) -> At {
        self.at.part(self.elements.get(at).cloned())
    }

    /// The value alone.
    pub fn into_value(self) -> T {
        self.value
    }

    /// Sets the key to a value that no file holds, such as an argument; `shown` masks its secrets.
    pub fn set(&mut self, value: T, shown: String) {
        (self.value, self.origin, self.shown) = (value, Origin::Set, shown);
    }

    /// The key whose default follows from elsewhere: `None` if the file does not set it.
    #[doc(hidden)]
    pub fn optional(self) -> Key<Option<T>> {
        let Key { value, at, origin, elements, shown } = self;
        Key { value: (origin == Origin::Set).then_some(value), at, origin, elements, shown }
    }

    /// The key whose default is computed.
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
    /// How the table stands in a file, such as `[server]`; empty for the file's root.
    pub heading: String,
    /// Its full name, such as `mix.NAME.step`.
    path: String,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys, in the order of the declaration.
    pub keys: Vec<KeyDoc>,
    /// How a key's name becomes its heading, for nested tables.
    form: fn(&str) -> String,
}

/// A declared key.
#[derive(Clone, Debug)]
pub struct KeyDoc {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// What it may be set to, in words.
    pub allowed: String,
    /// What holds when it is not set.
    pub default: DefaultDoc,
    /// The default as it would stand in a file, or in words.
    pub default_text: String,
    /// True if a running program does not take a changed value over.
    pub at_start_only: bool,
    /// Its JSON Schema.
    pub schema: Json,
    /// The tables that it holds.
    pub table: Option<TableDoc>,
    /// How diagnostics show a text of it; `None` as it is written.
    pub masked: fn(&str) -> Option<String>,
}

/// What holds when a key is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultDoc {
    /// This value, as in a file but without quotes.
    Is(&'static str),
    /// An empty list or table.
    Empty,
    /// Something that follows from elsewhere, in words.
    Follows(&'static str),
    /// It must be set.
    Required,
}

impl TableDoc {
    /// A table with these keys.
    pub fn new(doc: &'static str, keys: Vec<KeyDoc>) -> TableDoc {
        TableDoc {
            heading: String::new(),
            path: String::new(),
            doc: doc.trim(),
            keys,
            form: str::to_owned,
        }
    }

    /// True if it holds nothing but tables, as the root of most files.
    pub(crate) fn holds_tables_only(&self) -> bool {
        self.keys.iter().all(|key| key.table.is_some())
    }

    /// The table with the function that makes a heading of its name.
    #[must_use]
    pub fn in_form(self, form: fn(&str) -> String) -> TableDoc {
        TableDoc { form, ..self }
    }

    /// The table as the value of a key.
    fn named_by(mut self, key: &str) -> TableDoc {
        self.path = key.to_owned();
        self.heading = (self.form)(key);
        let own = self.heading.trim_matches(['[', ']']).to_owned();
        self.tables().for_each(|table| table.move_under(&own));
        self
    }

    fn move_under(&mut self, table: &str) {
        self.path = format!("{table}.{}", self.path);
        self.heading = (self.form)(&self.path);
        self.tables().for_each(|nested| nested.move_under(table));
    }

    fn tables(&mut self) -> impl Iterator<Item = &mut TableDoc> {
        self.keys.iter_mut().filter_map(|key| key.table.as_mut())
    }

    /// Every key of this name, also of nested tables, with the heading of its table.
    fn named<'d>(&'d self, name: &str, found: &mut Vec<(&'d str, &'d KeyDoc)>) {
        for key in &self.keys {
            match &key.table {
                Some(table) => table.named(name, found),
                None if key.name == name => found.push((&self.heading, key)),
                None => {}
            }
        }
    }
}

impl KeyDoc {
    /// A key of this value type.
    pub fn new<V: ValueType>(
        name: &'static str,
        doc: &'static str,
        default: DefaultDoc,
        at_start_only: bool,
    ) -> KeyDoc {
        let name = plain(name);
        KeyDoc {
            name,
            doc: doc.trim(),
            allowed: V::allowed(),
            default,
            default_text: default_text::<V>(default),
            at_start_only,
            schema: V::schema(),
            table: V::table().map(|table| table.named_by(name)),
            masked: V::masked,
        }
    }
}

/// A default as it would stand in a file, or in words.
pub(crate) fn default_text<V: ValueType>(default: DefaultDoc) -> String {
    match default {
        DefaultDoc::Is(text) => V::written(text),
        DefaultDoc::Empty => V::EMPTY.to_owned(),
        DefaultDoc::Follows(words) => words.to_owned(),
        DefaultDoc::Required => "must be set".to_owned(),
    }
}

/// Reads a tree of values along declarations.
pub struct Reader<'r, 'a> {
    report: &'r mut Report<'a>,
    world: &'r World<'r>,
    root: fn() -> TableDoc,
}

impl<'r, 'a> Reader<'r, 'a> {
    pub(crate) fn new(
        report: &'r mut Report<'a>,
        world: &'r World<'r>,
        root: fn() -> TableDoc,
    ) -> Reader<'r, 'a> {
        Reader { report, world, root }
    }

    /// Reads a table: its keys, then what it must not have and what it lacks.
    pub fn table<T: Table>(&mut self, members: &[Member], at: At) -> T {
        let problems = self.report.count();
        let table = T::read(self, members, at.clone());
        for member in members {
            if !T::KEYS.iter().any(|key| plain(key) == member.key) {
                self.unknown_key::<T>(&at, member);
            }
        }
        if self.report.count() > problems {
            self.report.mark_faulty(&at);
        }
        table
    }

    /// Reads one key of a table; `default` is what holds when it is not set. Generated code calls
    /// it for each declared key.
    pub fn key<V: ValueType>(
        &mut self,
        members: &[Member],
        table: &At,
        name: &str,
        default: DefaultDoc,
    ) -> Key<V::Value> {
        let name = plain(name);
        let Some(member) = members.iter().find(|member| member.key == name) else {
            let mut key = absent::<V>(&table.path, name, default);
            key.at.table.clone_from(&table.table);
            if default == DefaultDoc::Required {
                key.origin = Origin::Unreadable;
                self.report.missing(&key.at, "must be set", V::allowed());
            }
            return key;
        };
        let (item, span) = (&member.item, Some(member.item.span.clone()));
        let at = At { path: joined(&table.path, name), span, table: table.table.clone() };
        if !V::IS_TABLE {
            self.show::<V>(item);
        }
        let shown = self.report.value(&item.span);
        let problems = self.report.count();
        let read = V::read(item, &at, self);
        let is_clean = self.report.count() == problems;
        let elements = match &item.tree {
            Tree::List(list) if is_clean => list.iter().map(|item| item.span.clone()).collect(),
            _ => Vec::new(),
        };
        let origin = if is_clean { Origin::Set } else { Origin::Unreadable };
        let value = read.unwrap_or_else(|| default_value::<V>(default, &at.path));
        Key { value, at, origin, elements, shown }
    }

    /// Reports a value that is of another type than the key; returns `None`.
    pub fn wrong_type<V: ValueType>(&mut self, item: &Item, at: &At) -> Option<V::Value> {
        let allowed = match V::table() {
            Some(table) => (table.form)(&at.path),
            None => V::allowed(),
        };
        self.report.error(&at.part(Some(item.span.clone())), format!("not {}", V::noun()), allowed);
        None
    }

    /// Shows a value, and each value in it, in diagnostics as the value type allows.
    pub fn show<V: ValueType>(&mut self, item: &Item) {
        self.report.show_values(item, V::masked);
    }

    /// Where problems are reported.
    pub fn report(&mut self) -> &mut Report<'a> {
        self.report
    }

    /// The text with its variables replaced.
    ///
    /// # Errors
    /// The variable or file that is missing.
    pub fn expand(&self, text: &str) -> Result<String, String> {
        expand(text, self.world)
    }

    /// The value of a formula; `None` where the file allows no formulas.
    pub(crate) fn evaluate(&self, text: &str) -> Option<Result<f64, String>> {
        self.world.evaluate(text)
    }

    /// What is allowed for a value type, formulas included where the file allows them.
    pub(crate) fn allowed<S: Scalar>(&self) -> String {
        let formula = S::IS_NUMBER && self.world.allows_formulas();
        format!("{}{}", S::allowed(), if formula { ", or a formula" } else { "" })
    }

    /// Sets a variable of formulas; returns its value, which may be one given in its place.
    pub(crate) fn set_variable(&mut self, name: &str, value: f64) -> f64 {
        self.world.set_variable(name, value)
    }

    /// Registers that a file is read, so that a change of it can be noticed.
    pub(crate) fn reads_file(&mut self, name: &str) {
        self.world.reads(name);
    }

    fn unknown_key<T: Table>(&mut self, at: &At, member: &Member) {
        let (name, root, doc) = (member.key.as_str(), (self.root)(), T::doc());
        let mut elsewhere = Vec::new();
        root.named(name, &mut elsewhere);
        // A key in the wrong table is shown if it is a secret in no table.
        if let [(_, first), others @ ..] = &elsewhere[..] {
            let secret = others.iter().find(|(_, key)| (key.masked)("").is_some());
            let masked = secret.map_or(first.masked, |(_, key)| key.masked);
            self.report.show_values(&member.item, masked);
        }
        let names: Vec<&str> = doc.keys.iter().map(|key| key.name).collect();
        let (what, allowed) = match doc.holds_tables_only() {
            true => ("table", headings(&doc)),
            false => ("key", names.join(", ")),
        };
        let message = match (nearest(name, &names), elsewhere.first()) {
            (Some(near), _) => format!("there is no such {what}; did you mean {near}?"),
            (None, Some((heading, _))) => format!("this key belongs under {heading}"),
            (None, None) => format!("there is no such {what}"),
        };
        let at = At { path: joined(&at.path, name), span: Some(member.span.clone()), table: None };
        self.report.missing(&at, message, allowed);
    }
}

fn headings(doc: &TableDoc) -> String {
    let tables = doc.keys.iter().filter_map(|key| key.table.as_ref());
    tables.map(|table| table.heading.as_str()).collect::<Vec<_>>().join(", ")
}

/// A key that is not set. Generated code calls it for each declared key.
pub fn absent<V: ValueType>(path: &str, name: &str, default: DefaultDoc) -> Key<V::Value> {
    let at = At { path: joined(path, plain(name)), span: None, table: None };
    let value = default_value::<V>(default, &at.path);
    Key { value, at, origin: Origin::Default, elements: Vec::new(), shown: String::new() }
}

/// What a key holds that is not set or not readable; `path` is its full name.
pub(crate) fn default_value<V: ValueType>(default: DefaultDoc, path: &str) -> V::Value {
    match default {
        DefaultDoc::Is(text) => V::of_default(text).expect("a test reads every declared default"),
        DefaultDoc::Empty => V::empty(path),
        DefaultDoc::Follows(_) | DefaultDoc::Required => V::placeholder(),
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The name of a key that is declared as a raw identifier, such as `r#match`.
fn plain(name: &str) -> &str {
    name.trim_start_matches("r#")
}

/// The name that was probably meant: the nearest one, if it is near enough for its length.
pub fn nearest<'n>(written: &str, names: &[&'n str]) -> Option<&'n str> {
    /// Longer words are not worth the square of their length.
    const WORD_BYTES_MAX: usize = 64;
    if written.len() > WORD_BYTES_MAX {
        return None;
    }
    let distance = |name: &str| strsim::osa_distance(&written.to_lowercase(), &name.to_lowercase());
    let near = names.iter().map(|name| (distance(name), *name)).min_by_key(|near| near.0)?;
    let allowed = (near.1.len().max(written.len()) / 3).max(1);
    // A word of which no letter is left was not meant.
    (near.0 <= allowed && near.0 < written.len()).then_some(near.1)
}

/// A name that is looked up and not found: the message, and what there is. `what` is what it should
/// name, such as "chain".
pub fn not_found(what: &str, name: &str, known: &[&str]) -> (String, String) {
    let message = match nearest(name, known) {
        Some(near) => format!("there is no such {what}; did you mean {near}?"),
        None => format!("there is no such {what}"),
    };
    let allowed = if known.is_empty() { format!("no {what} is defined") } else { known.join(", ") };
    (message, allowed)
}
