//! What was written: the first of the two stages of configuration, and the only one that knows
//! TOML.
//!
//! It reads a text along the table in `config/field.rs`: unknown keys are refused with a guess at
//! what was meant, every value is read by its kind, and every fault is kept with its place, so
//! that all are told at once. Whether the values fit each other is for `config/checked.rs`.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::database;
use super::expand::{self, World, expand};
use super::fault::Report;
use super::field::{self, Default, Field, Form, SECTIONS, Section};
use super::kind::{Kind, Value};
use super::mask::{Masks, Shown};
use super::redis_url;
use super::url::{self, MASK};

mod nearest;

pub(super) use nearest::nearest;

/// A configuration as it was written.
pub(super) struct Written {
    /// The tables in the order of the text.
    pub(super) entries: Vec<Entry>,
}

/// One table of the file.
pub(super) struct Entry {
    section: &'static Section,
    /// NAME of `[chain.NAME]`; empty for other tables.
    pub(super) name: String,
    /// Its heading; `None` for what was written nowhere.
    pub(super) span: Option<Range<usize>>,
    sets: Vec<Set>,
    /// Keys that stand there with values that could not be read, which is told already.
    unread: Vec<&'static str>,
}

/// One key that was set.
#[derive(Clone)]
pub(super) struct Set {
    key: &'static str,
    value: Value,
    /// Where the value stands.
    pub(super) span: Option<Range<usize>>,
    /// The value as it may be shown.
    pub(super) shown: String,
    /// For a list, where each element stands and how it may be shown.
    pub(super) elements: Vec<(Range<usize>, String)>,
}

impl Written {
    /// All tables of one section.
    pub(super) fn all(&self, section: &'static Section) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| std::ptr::eq(entry.section, section))
    }

    /// The table of a section that stands at most once; without it, one in which nothing is set.
    pub(super) fn once(&self, section: &'static Section) -> Entry {
        let sets = self.all(section).flat_map(|entry| entry.sets.iter().cloned()).collect();
        let span = self.all(section).next().and_then(|entry| entry.span.clone());
        let unread = self.all(section).flat_map(|entry| entry.unread.iter().copied()).collect();
        Entry { section, name: String::new(), span, sets, unread }
    }
}

impl Entry {
    /// A table that was written nowhere.
    pub(super) fn absent(section: &'static Section, name: &str) -> Entry {
        let (sets, unread) = (Vec::new(), Vec::new());
        Entry { section, name: name.to_owned(), span: None, sets, unread }
    }

    pub(super) fn section(&self) -> &'static Section {
        self.section
    }

    /// Every key that was set, with its value and how it may be shown.
    pub(super) fn each_set(&self) -> impl Iterator<Item = (&'static Field, &Value, &str)> {
        self.sets
            .iter()
            .filter_map(|set| Some((self.section.field(set.key)?, &set.value, &*set.shown)))
    }

    /// A key that was set, and set well.
    pub(super) fn set(&self, key: &str) -> Option<&Set> {
        debug_assert!(
            self.section.field(key).is_some(),
            "{}.{key} is not in the table",
            self.section.name
        );
        self.sets.iter().find(|set| set.key == key)
    }

    /// Whether one of these keys stands there with a value that could not be read.
    pub(super) fn has_unread(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.unread.contains(key))
    }

    /// The value that was set.
    pub(super) fn chosen(&self, key: &str) -> Option<Value> {
        self.set(key).map(|set| set.value.clone())
    }

    /// The value that was set, or the table's default.
    pub(super) fn value(&self, key: &str) -> Value {
        self.chosen(key).unwrap_or_else(|| {
            let field = self.section.field(key).expect("only keys of the table are asked for");
            default_value(field).expect("only keys that have a default are asked for without one")
        })
    }

    /// Whether it is a table of this section.
    pub(super) fn is_of(&self, section: &'static Section) -> bool {
        std::ptr::eq(self.section, section)
    }

    /// How it stands in a file.
    pub(super) fn heading(&self) -> String {
        self.section.heading()
    }

    /// The full name of a key, for faults.
    pub(super) fn key(&self, key: &str) -> String {
        match self.section.form {
            Form::Once | Form::Listed => format!("{}.{key}", self.section.name),
            Form::Named => format!("{}.{}.{key}", self.section.name, self.name),
        }
    }
}

/// The default of a field as a value; `None` where it follows from elsewhere or must be set.
pub(super) fn default_value(field: &Field) -> Option<Value> {
    match field.default {
        Default::Is(text) if field.kind.is_list() => Some(Value::Texts(vec![text.to_owned()])),
        Default::Is(text) => {
            Some(field.kind.of_text(text).expect("a test reads every default of the table"))
        }
        Default::Empty if field.kind.is_list() => Some(Value::Texts(Vec::new())),
        Default::Empty => Some(Value::Headers(Vec::new())),
        Default::Follows(_) | Default::Required => None,
    }
}

/// The default of a field as it would be written.
pub(super) fn default_text(field: &Field) -> String {
    match (field.default, field.kind) {
        (Default::Is(text), kind) if kind.is_list() => format!("[\"{text}\"]"),
        (Default::Is(text), Kind::Switch | Kind::Count { .. } | Kind::Number { .. }) => {
            text.to_owned()
        }
        (Default::Is(text), _) => format!("\"{text}\""),
        (Default::Empty, Kind::Headers) => "{}".to_owned(),
        (Default::Empty, _) => "[]".to_owned(),
        (Default::Follows(words), _) => words.to_owned(),
        (Default::Required, _) => "must be set".to_owned(),
    }
}

/// Reads a text. What cannot be read is in the report and left out of the result. A text that is
/// not TOML gives `None`, and only its faults of syntax: what the rest means is then a guess, and
/// which part of it is a secret too.
pub(super) fn read(text: &str, world: &World<'_>, report: &mut Report<'_>) -> Option<Written> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut line_told = None;
    for error in &errors {
        let span = error.span().unwrap_or(text.len()..text.len());
        // One slip often breaks the rest of its line several times over.
        let line = text.bytes().take(span.start).filter(|byte| *byte == b'\n').count();
        if line_told.replace(line) != Some(line) {
            report.fault(Some(&span), "", None, format!("not toml: {}", error.message()), None);
        }
    }
    if !errors.is_empty() {
        return None;
    }
    report.show(masks(text, table.get_ref()));
    let mut reader = Reader { text, world, report, entries: Vec::new() };
    for (key, value) in table.get_ref() {
        reader.section(key, value);
    }
    let mut entries = reader.entries;
    entries.sort_by_key(|entry| entry.span.as_ref().map(|span| span.start));
    Some(Written { entries })
}

/// What `--upstream URL…` says, as if it had been written.
pub(super) fn of_upstreams(upstreams: &[String], report: &mut Report<'_>) -> Written {
    let allowed = || Some(Kind::Url.to_string());
    if upstreams.is_empty() {
        report.fault(None, "--upstream", None, "at least one url of a node is needed", allowed());
    }
    let mut entries = Vec::with_capacity(upstreams.len());
    for (at, text) in upstreams.iter().enumerate() {
        let shown = url::masked(text);
        match Kind::Url.of_text(text) {
            Ok(value) => {
                let set = Set { key: "url", value, span: None, shown, elements: Vec::new() };
                let mut entry = Entry::absent(&field::NODE, "");
                entry.sets.push(set);
                entries.push(entry);
            }
            Err(message) => {
                let key = format!("--upstream {}", at + 1);
                report.fault(None, key, Some(shown), message, allowed());
            }
        }
    }
    Written { entries }
}

/// A value of the file together with where it stands.
type Spot<'a> = &'a Spanned<DeValue<'a>>;

struct Reader<'a, 'r, 't> {
    text: &'a str,
    world: &'a World<'a>,
    report: &'r mut Report<'t>,
    entries: Vec<Entry>,
}

impl Reader<'_, '_, '_> {
    fn section(&mut self, key: &Spanned<std::borrow::Cow<'_, str>>, value: Spot<'_>) {
        let name = key.get_ref().as_ref();
        let Some(section) = SECTIONS.iter().find(|section| section.name == name) else {
            return self.unknown_section(name, &key.span());
        };
        match (section.form, value.get_ref()) {
            (Form::Once, DeValue::Table(table)) => {
                self.entry(section, "", heading(key.span(), value), table);
            }
            (Form::Named, DeValue::Table(tables)) => {
                for (name, value) in tables {
                    let DeValue::Table(table) = value.get_ref() else {
                        self.wrong_form(section, &name.span());
                        continue;
                    };
                    self.entry(section, name.get_ref(), heading(name.span(), value), table);
                }
            }
            (Form::Listed, DeValue::Array(tables)) => {
                for value in tables.iter() {
                    let DeValue::Table(table) = value.get_ref() else {
                        self.wrong_form(section, &value.span());
                        continue;
                    };
                    self.entry(section, "", value.span(), table);
                }
            }
            _ => self.wrong_form(section, &key.span()),
        }
    }

    fn unknown_section(&mut self, name: &str, span: &Range<usize>) {
        let names = SECTIONS.map(|section| section.name);
        let headings: Vec<_> = SECTIONS.iter().map(|section| section.heading()).collect();
        let owners: Vec<_> =
            SECTIONS.iter().filter(|section| section.field(name).is_some()).collect();
        let message = match (owners.as_slice(), nearest(name, &names)) {
            ([], Some(near)) => format!("there is no such table; did you mean {near}?"),
            ([], None) => "there is no such table".to_owned(),
            ([owner, ..], _) => format!("this key belongs under {}", owner.heading()),
        };
        self.report.fault(Some(span), name, None, message, Some(headings.join(", ")));
    }

    fn wrong_form(&mut self, section: &Section, span: &Range<usize>) {
        let message = "not written as a table of its kind";
        self.report.fault(Some(span), section.name, None, message, Some(section.heading()));
    }

    fn entry(
        &mut self,
        section: &'static Section,
        name: &str,
        span: Range<usize>,
        table: &DeTable<'_>,
    ) {
        let mut entry = Entry::absent(section, name);
        entry.span = Some(span.clone());
        for (key, value) in table {
            let Some(field) = section.field(key.get_ref()) else {
                self.unknown_key(&entry, key.get_ref(), &key.span());
                continue;
            };
            match self.field(&entry, field, value) {
                Some(set) => entry.sets.push(set),
                None => entry.unread.push(field.key),
            }
        }
        for field in section.fields {
            let missing = !table.contains_key(field.key);
            if missing && matches!(field.default, Default::Required) {
                let key = entry.key(field.key);
                self.report.fault(Some(&span), key, None, "must be set", Some(field.allowed()));
            }
        }
        self.entries.push(entry);
    }

    fn unknown_key(&mut self, entry: &Entry, key: &str, span: &Range<usize>) {
        let keys: Vec<_> = entry.section.fields.iter().map(|field| field.key).collect();
        let owner = SECTIONS.iter().find(|section| section.field(key).is_some());
        let message = match (nearest(key, &keys), owner) {
            (Some(near), _) => format!("there is no such key; did you mean {near}?"),
            (None, Some(owner)) => format!("this key belongs under {}", owner.heading()),
            (None, None) => "there is no such key".to_owned(),
        };
        self.report.fault(Some(span), entry.key(key), None, message, Some(keys.join(", ")));
    }

    fn field(&mut self, entry: &Entry, field: &'static Field, value: Spot<'_>) -> Option<Set> {
        let span = value.span();
        let shown = self.shown(field, &span);
        let mut elements = Vec::new();
        let read = match (field.kind, value.get_ref()) {
            (Kind::Headers, DeValue::Table(headers)) => self.headers(entry, field, headers),
            (kind, DeValue::Array(list)) if kind.is_list() => {
                elements = list
                    .iter()
                    .map(|element| (element.span(), self.shown(field, &element.span())))
                    .collect();
                let texts = list.iter().filter_map(|element| self.element(entry, field, element));
                Some(Value::Texts(texts.collect()))
            }
            (kind, _) if kind.is_list() => {
                let message = format!("not {}", field.noun());
                self.refuse(entry, field, &span, message);
                None
            }
            _ => self.scalar(entry, field, value),
        }?;
        Some(Set { key: field.key, value: read, span: Some(span), shown, elements })
    }

    fn element(&mut self, entry: &Entry, field: &'static Field, value: Spot<'_>) -> Option<String> {
        self.scalar(entry, field, value).map(Value::text)
    }

    fn scalar(&mut self, entry: &Entry, field: &'static Field, value: Spot<'_>) -> Option<Value> {
        let read = match value.get_ref() {
            DeValue::String(text) => expand(text, self.world).and_then(|text| {
                if matches!(field.kind, Kind::File | Kind::Files) {
                    self.world.reads(&text);
                }
                field.kind.of_text(&text).map_err(str::to_owned)
            }),
            DeValue::Integer(number) => {
                let digits = number.as_str().trim_start_matches('+');
                u64::from_str_radix(digits, number.radix())
                    .map_err(|_| "out of range")
                    .and_then(|count| field.kind.of_count(count))
                    .map_err(str::to_owned)
            }
            DeValue::Float(number) => number
                .as_str()
                .parse()
                .map_err(|_| "not a number")
                .and_then(|number| field.kind.of_number(number))
                .map_err(str::to_owned),
            DeValue::Boolean(on) => field.kind.of_switch(*on).map_err(str::to_owned),
            _ => Err(format!("not {}", field.noun())),
        };
        read.map_err(|message| self.refuse(entry, field, &value.span(), message)).ok()
    }

    fn headers(
        &mut self,
        entry: &Entry,
        field: &'static Field,
        table: &DeTable<'_>,
    ) -> Option<Value> {
        let mut headers = Vec::with_capacity(table.len());
        for (name, value) in table {
            let read = match value.get_ref() {
                DeValue::String(text) => expand(text, self.world)
                    .and_then(|text| Kind::of_header(name.get_ref(), &text).map_err(str::to_owned)),
                _ => Err("the value of a header is a text".to_owned()),
            };
            match read {
                Ok(header) => headers.push(header),
                Err(message) => {
                    let key = format!("{}.{}", entry.key(field.key), name.get_ref());
                    let allowed = Some(field.allowed());
                    self.report.fault(Some(&name.span()), key, None, message, allowed);
                }
            }
        }
        Some(Value::Headers(headers))
    }

    fn refuse(&mut self, entry: &Entry, field: &Field, span: &Range<usize>, message: String) {
        let shown = self.shown(field, span);
        let allowed = Some(field.allowed());
        self.report.fault(Some(span), entry.key(field.key), Some(shown), message, allowed);
    }

    fn shown(&self, field: &Field, span: &Range<usize>) -> String {
        let written = &self.text[span.clone()];
        match shown(Some(field), written) {
            Shown::Itself => shortened(written),
            Shown::Instead(text) => text,
        }
    }
}

/// Where the heading of a table stands: the parser gives its body's span to inline tables.
fn heading(key: Range<usize>, value: Spot<'_>) -> Range<usize> {
    let body = value.span();
    if body.start <= key.start && key.end <= body.end { body } else { key }
}

/// Longest value that a fault repeats.
const SHOWN_CHARS_MAX: usize = 60;

fn shortened(written: &str) -> String {
    let line = written.lines().next().unwrap_or_default();
    if line.chars().count() <= SHOWN_CHARS_MAX && line.len() == written.len() {
        return line.to_owned();
    }
    let start: String = line.chars().take(SHOWN_CHARS_MAX).collect();
    format!("{start}…")
}

/// How a value may be shown: as it is only under a known key that holds no secret, or if it is a
/// number, true or false.
fn shown(field: Option<&Field>, written: &str) -> Shown {
    let text = written.trim_matches(['"', '\'']);
    if expand::is_reference(text) {
        return Shown::Itself;
    }
    let quoted = |text: String| Shown::Instead(format!("\"{text}\""));
    match field {
        None if written.parse::<bool>().is_ok() || written.parse::<f64>().is_ok() => Shown::Itself,
        None => Shown::Instead(MASK.to_owned()),
        Some(Field { kind: Kind::Url, .. }) => quoted(url::masked(text)),
        Some(Field { kind: Kind::RedisUrl, .. }) => quoted(redis_url::masked(text)),
        Some(Field { kind: Kind::Database, .. }) => quoted(database::masked(text)),
        Some(field) if field.kind.is_secret() => Shown::Instead(MASK.to_owned()),
        Some(Field { kind: Kind::Origins, .. }) => Shown::Itself,
        Some(_) if text.contains("://") || text.contains(":-") => quoted(MASK.to_owned()),
        Some(_) => Shown::Itself,
    }
}

/// What may be shown of every value of a text.
fn masks(text: &str, table: &DeTable<'_>) -> Masks {
    let mut ranges = Vec::new();
    for (name, value) in table {
        let section = SECTIONS.iter().find(|section| section.name == name.get_ref().as_ref());
        section_masks(text, section.copied(), value, &mut ranges);
    }
    Masks::of_values(ranges)
}

type Ranges = Vec<(Range<usize>, Shown)>;

fn section_masks(text: &str, section: Option<&Section>, value: Spot<'_>, ranges: &mut Ranges) {
    let form = section.map(|section| section.form);
    match (form, value.get_ref()) {
        (Some(Form::Once), DeValue::Table(table)) => entry_masks(text, section, table, ranges),
        (Some(Form::Named), DeValue::Table(tables)) => {
            for (_, value) in tables {
                match value.get_ref() {
                    DeValue::Table(table) => entry_masks(text, section, table, ranges),
                    _ => leaf_masks(text, None, value, ranges),
                }
            }
        }
        (Some(Form::Listed), DeValue::Array(tables)) => {
            for value in tables.iter() {
                match value.get_ref() {
                    DeValue::Table(table) => entry_masks(text, section, table, ranges),
                    _ => leaf_masks(text, None, value, ranges),
                }
            }
        }
        _ => leaf_masks(text, None, value, ranges),
    }
}

fn entry_masks(text: &str, section: Option<&Section>, table: &DeTable<'_>, ranges: &mut Ranges) {
    for (key, value) in table {
        let field = section.and_then(|section| section.field(key.get_ref()));
        let field = field.or_else(|| elsewhere(key.get_ref()));
        leaf_masks(text, field, value, ranges);
    }
}

/// What a key in a place where it does not belong is known as.
fn elsewhere(key: &str) -> Option<&'static Field> {
    let fields = SECTIONS.iter().filter_map(|section| section.field(key));
    fields.max_by_key(|field| field.kind.is_secret())
}

fn leaf_masks(text: &str, field: Option<&Field>, value: Spot<'_>, ranges: &mut Ranges) {
    match value.get_ref() {
        DeValue::Table(table) => {
            for (key, value) in table {
                leaf_masks(text, field.or_else(|| elsewhere(key.get_ref())), value, ranges);
            }
        }
        DeValue::Array(list) => {
            for value in list.iter() {
                leaf_masks(text, field, value, ranges);
            }
        }
        _ => ranges.push((value.span(), shown(field, &text[value.span()]))),
    }
}
