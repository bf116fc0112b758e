//! Lists the differences between two files with the same declaration, key by key, with masked
//! secrets.
//!
//! A key that is set to its default equals a key that is not set. The tables of a list are matched
//! by their labels, such as a name, so their order does not matter. A section is a table of the
//! file's root.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::table::{DefaultDoc, Key, Origin, Table, default_text, default_value};
use crate::value::ValueType;

/// The keys that a file sets to other values than their defaults. `Debug` prints no values, because
/// they may be secrets.
#[derive(Default)]
pub struct Keys {
    list: Vec<SetKey>,
}

/// A key that the file sets.
struct SetKey {
    /// The index of the key's section.
    section: usize,
    /// The name and the label of the key's table, such as `upstream.first` for the table
    /// `[[upstream]]` with the name `first`.
    table: String,
    /// True if the key's table is an element of a list or a map.
    is_in_list: bool,
    /// The index of the key among the keys of its table.
    position: usize,
    /// The full name of the key.
    name: String,
    value: Box<dyn Comparable>,
    /// The value as written, with secrets masked.
    printed: String,
    /// The default in TOML; `None` if the default is described in words or missing.
    default: Option<String>,
    /// True if a change takes effect only at the next start.
    at_start_only: bool,
}

/// A value of any type.
trait Comparable: Any + Send + Sync {
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: PartialEq + Send + Sync + 'static> Comparable for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<T>().is_some_and(|other| self == other)
    }
}

/// A key whose value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The full name of the key, such as `upstream.first.weight`.
    pub key: String,
    /// The old value with masked secrets. `None` if the key was not set, or was set to its default.
    pub before: Option<String>,
    /// The new value with masked secrets. `None` if the key is not set, or is set to its default.
    pub after: Option<String>,
    /// The default in TOML. `None` if there is no default, if the default is described in words, or
    /// if the key's table is in a list and only one file has this table.
    pub default: Option<String>,
    /// True if the new value takes effect only at the next start.
    pub at_start_only: bool,
}

impl Keys {
    /// Returns the keys that a file sets.
    pub fn of(root: &impl Table) -> Keys {
        let mut collector = Collector::default();
        root.collect(&mut collector);
        collector.keys
    }

    /// Adds the keys of another file whose tables have the same declarations.
    #[must_use]
    pub fn merge(mut self, other: Keys) -> Keys {
        self.list.extend(other.list);
        self
    }

    /// Returns the keys by their full names.
    fn by_name(&self) -> HashMap<&str, &SetKey> {
        self.list.iter().map(|key| (key.name.as_str(), key)).collect()
    }

    /// Returns the names of the tables that have a key in the list.
    fn tables(&self) -> HashSet<&str> {
        self.list.iter().map(|key| key.table.as_str()).collect()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// Lists the differences in the order of the declaration.
pub fn list_changes(old: &Keys, new: &Keys) -> Vec<Change> {
    let (old_keys, new_keys) = (old.by_name(), new.by_name());
    let (old_tables, new_tables) = (old.tables(), new.tables());
    let mut keys: Vec<&SetKey> = old.list.iter().collect();
    keys.extend(new.list.iter().filter(|key| !old_keys.contains_key(key.name.as_str())));
    let mut first_index = HashMap::new();
    for (index, key) in keys.iter().enumerate() {
        first_index.entry(key.table.as_str()).or_insert(index);
    }
    keys.sort_by_key(|key| (key.section, first_index[key.table.as_str()], key.position));
    let find_change = |key: &SetKey| {
        let (name, table) = (key.name.as_str(), key.table.as_str());
        let (old_key, new_key) = (old_keys.get(name), new_keys.get(name));
        if let (Some(old_key), Some(new_key)) = (old_key, new_key)
            && old_key.value.equals(&*new_key.value)
        {
            return None;
        }
        // A table of a list may be in one file only. The other file then has none of its keys, not
        // even as a default.
        let is_in_both = old_tables.contains(table) && new_tables.contains(table);
        Some(Change {
            key: key.name.clone(),
            before: old_key.map(|key| key.printed.clone()),
            after: new_key.map(|key| key.printed.clone()),
            default: key.default.clone().filter(|_| is_in_both || !key.is_in_list),
            at_start_only: key.at_start_only,
        })
    };
    keys.into_iter().filter_map(find_change).collect()
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match (&self.before, &self.after, &self.default) {
            (Some(before), Some(after), _) if before == after => {
                write!(formatter, "~ {key} = {after}: the part that is masked has changed")?;
            }
            (Some(before), Some(after), _) => write!(formatter, "~ {key} = {before} -> {after}")?,
            (None, Some(after), Some(default)) => {
                write!(formatter, "~ {key} = {default} (default) -> {after}")?;
            }
            (None, Some(after), None) => write!(formatter, "+ {key} = {after}")?,
            (Some(before), None, Some(default)) => {
                write!(formatter, "~ {key} = {before} -> {default} (default)")?;
            }
            (Some(before), None, None) => write!(formatter, "- {key} = {before}")?,
            (None, None, _) => {}
        }
        if self.at_start_only { formatter.write_str("   (only after a restart)") } else { Ok(()) }
    }
}

/// Collects the keys of a file. Generated code calls it.
#[derive(Default)]
pub struct Collector {
    keys: Keys,
    /// The names of all tables so far.
    tables: HashSet<String>,
    // The other fields describe the current key and its table, like the fields of `SetKey`.
    section: usize,
    position: usize,
    table: String,
    is_in_list: bool,
    at_start_only: bool,
}

impl Collector {
    /// Adds a key, or the keys of the tables that it holds.
    pub fn add_key<V: ValueType>(
        &mut self,
        name: &'static str,
        key: &Key<V::Value>,
        default: DefaultDoc,
        at_start_only: bool,
    ) {
        self.position += 1;
        if V::IS_TABLE {
            return self.add_tables::<V>(name, key, at_start_only);
        }
        let is_default =
            default.is_value() && default_value::<V>(default, &key.location.path) == **key;
        if !is_default {
            self.push::<V>(name, key, default, at_start_only);
        }
    }

    /// Adds a key whose default is described in words.
    pub fn add_optional_key<V: ValueType>(
        &mut self,
        name: &'static str,
        key: &Key<Option<V::Value>>,
        default: DefaultDoc,
        at_start_only: bool,
    ) {
        self.position += 1;
        match &**key {
            Some(value) if V::IS_TABLE => self.add_tables::<V>(name, value, at_start_only),
            _ => self.push::<V>(name, key, default, at_start_only),
        }
    }

    /// Adds the keys of the tables that the key holds.
    fn add_tables<V: ValueType>(
        &mut self,
        name: &'static str,
        value: &V::Value,
        at_start_only: bool,
    ) {
        let outer = (self.section, self.position, self.at_start_only);
        if self.table.is_empty() {
            self.section = self.position;
        }
        self.at_start_only |= at_start_only;
        V::collect(value, name, self);
        (self.section, self.position, self.at_start_only) = outer;
    }

    /// Adds the keys of a table. A second table of the same name gets a number.
    pub(crate) fn add_table(&mut self, name: String, is_in_list: bool, table: &impl Table) {
        let numbered = (2..).map(|number| format!("{name}:{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        let name = names.find(|name| self.tables.insert(name.clone()));
        let name = name.expect("the numbers are endless");
        let outer = (std::mem::replace(&mut self.table, name), self.is_in_list);
        (self.is_in_list, self.position) = (is_in_list, 0);
        table.collect(self);
        (self.table, self.is_in_list) = outer;
    }

    /// Adds the current key if the file sets it.
    fn push<V: ValueType>(
        &mut self,
        name: &'static str,
        key: &Key<impl Clone + PartialEq + Send + Sync + 'static>,
        default: DefaultDoc,
        at_start_only: bool,
    ) {
        // The key `name` of a table in a list is not a change, because it is part of the label.
        if key.origin != Origin::Set || (self.is_in_list && name == "name") {
            return;
        }
        let name = name.trim_start_matches("r#");
        self.keys.list.push(SetKey {
            section: if self.table.is_empty() { self.position } else { self.section },
            name: match self.table.as_str() {
                "" => name.to_owned(),
                table => format!("{table}.{name}"),
            },
            table: self.table.clone(),
            is_in_list: self.is_in_list,
            position: self.position,
            value: Box::new((**key).clone()),
            printed: key.printed.clone(),
            default: default.is_value().then(|| default_text::<V>(default)),
            at_start_only: self.at_start_only || at_start_only,
        });
    }
}
