//! What a new configuration would change, key by key, secrets masked.
//!
//! It compares what was written, with defaults in place of what was not: a key that is set to what
//! held anyway is no change. Entries of lists are told apart by their names, so that their order is
//! no change either. What a reload does with the changes is `shared/succeed.rs`.

use std::fmt;

use super::Config;
use super::field::{Field, Form, SECTIONS};
use super::file::{Entry, Written, default_text, default_value};
use super::kind::Value;

#[cfg(test)]
mod tests;

/// Keys that only a restart, or an upgrade in place, brings into effect: sockets and threads are
/// made once, and the log is opened before anything else.
const AT_START_ONLY: [&str; 14] = [
    "server.listen",
    "server.listen_tls",
    "server.admin",
    "server.threads",
    "index.db",
    "index.chain",
    "index.follow",
    "index.verify",
    "index.readers",
    "index.page_cache",
    "index.mmap",
    "index.logs_max",
    "log.format",
    "log.level",
];

/// One key whose value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its full name, such as `node.first.weight`.
    pub key: String,
    /// The former value as it may be shown; `None` where it was not set.
    pub before: Option<String>,
    /// The new one.
    pub after: Option<String>,
    /// What holds where it is not set, if that is a value.
    pub default: Option<String>,
    /// Whether a reload leaves it as it was.
    pub at_start_only: bool,
}

/// All keys that a configuration sets. Holds secrets, and prints none.
#[derive(Clone, Default)]
pub(super) struct Keys {
    list: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    /// The section with the name of the entry.
    entry: String,
    field: &'static Field,
    value: Value,
    shown: String,
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl Key {
    fn name(&self) -> String {
        format!("{}.{}", self.entry, self.field.key)
    }

    /// Whether it stands in one of several tables.
    fn is_of_many(&self) -> bool {
        self.entry.contains('.')
    }

    fn is_default(&self) -> bool {
        default_value(self.field).is_some_and(|default| default == self.value)
    }
}

impl Keys {
    pub(super) fn of(written: &Written) -> Keys {
        let mut list = Vec::new();
        let mut entries: Vec<String> = Vec::new();
        for entry in &written.entries {
            let base = entry_name(entry);
            let numbered = (2..).map(|turn| format!("{base}:{turn}"));
            let mut free = std::iter::once(base.clone()).chain(numbered);
            let is_once = entry.section().form == Form::Once;
            let name = free.find(|name| is_once || !entries.contains(name));
            let name = name.expect("one of endlessly many names is free");
            entries.push(name.clone());
            for (field, value, shown) in entry.each_set() {
                let shown = shown.to_owned();
                list.push(Key { entry: name.clone(), field, value: value.clone(), shown });
            }
        }
        // The name of an entry is in the names of its keys.
        let is_name = |key: &Key| key.field.key == "name" && key.is_of_many();
        list.retain(|key| !key.is_default() && !is_name(key));
        Keys { list }
    }

    /// Whether anything is set under this entry.
    fn has(&self, entry: &str) -> bool {
        self.list.iter().any(|key| key.entry == entry)
    }

    fn get(&self, name: &str) -> Option<&Key> {
        self.list.iter().find(|key| key.name() == name)
    }
}

/// What an entry is called, whatever its place among others.
fn entry_name(entry: &Entry) -> String {
    let section = entry.section();
    match section.form {
        Form::Once => return section.name.to_owned(),
        Form::Named => return format!("{}.{}", section.name, entry.name),
        Form::Listed => {}
    }
    let text = |key: &str| {
        section.field(key)?;
        match entry.chosen(key)? {
            Value::Text(text) => Some(text),
            Value::Url(url) => Some(url.place()),
            _ => None,
        }
    };
    let file = || text("chain_file");
    let mut name = section.name.to_owned();
    // Two chains may have groups of one name; the names of nodes differ over all chains.
    let scope = if section.name == "group" { text("chain") } else { None };
    let own = text("name").or_else(|| text("zone")).or_else(|| text("url")).or_else(file);
    for part in scope.into_iter().chain(own) {
        name.push('.');
        name.push_str(&part);
    }
    name
}

/// What differs between two configurations, in the order of the tables of `docs/config.md`.
pub fn diff(before: &Config, after: &Config) -> Vec<Change> {
    let (before, after) = (&before.keys, &after.keys);
    let mut keys: Vec<&Key> = Vec::new();
    for key in before.list.iter().chain(&after.list) {
        if !keys.iter().any(|known| known.name() == key.name()) {
            keys.push(key);
        }
    }
    let entry_of = |entry: &str| keys.iter().position(|key| key.entry == entry);
    let section_of = |entry: &str| {
        let section = entry.split('.').next();
        SECTIONS.iter().position(|own| Some(own.name) == section)
    };
    let mut sorted = keys.clone();
    sorted.sort_by_key(|key| (section_of(&key.entry), entry_of(&key.entry)));
    sorted.into_iter().filter_map(|key| change(key, before, after)).collect()
}

fn change(key: &Key, before: &Keys, after: &Keys) -> Option<Change> {
    let name = key.name();
    let (old, new) = (before.get(&name), after.get(&name));
    if old.map(|key| &key.value) == new.map(|key| &key.value) {
        return None;
    }
    // Of an entry that comes or goes whole nothing held before or holds after.
    let is_whole = key.is_of_many() && !(before.has(&key.entry) && after.has(&key.entry));
    let default = default_value(key.field).filter(|_| !is_whole);
    Some(Change {
        before: old.map(|key| key.shown.clone()),
        after: new.map(|key| key.shown.clone()),
        default: default.map(|_| default_text(key.field)),
        at_start_only: AT_START_ONLY.contains(&&*name),
        key: name,
    })
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match (&self.before, &self.after, &self.default) {
            (Some(before), Some(after), _) if before == after => {
                write!(formatter, "~ {key} = {after}: another value behind what is shown")?;
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
        if self.at_start_only {
            formatter.write_str("   (only after a restart or `weir upgrade`)")?;
        }
        Ok(())
    }
}
