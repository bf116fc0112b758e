//! What was written: the first of the two stages of a plan, and the only one that knows TOML.
//!
//! It reads a text along the table in `plan/field.rs`: unknown keys are refused with a guess at
//! what was meant, every value is read by its kind, and every fault is kept with its place, so that
//! all are told at once. Whether the values fit each other is for `plan/checked.rs`.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::Report;
use super::field::{Default, Field, Form, PLAN, SECTIONS, Section, VARIABLES};
use super::formula::{self, Variables};
use super::kind::{Kind, Value};
use super::mask::{self, Masks};
use super::nearest::nearest;

mod secrets;
mod values;

/// A value of the file together with where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The bytes of the value.
    pub(super) span: Range<usize>,
    /// The value.
    pub(super) tree: Tree,
}

/// A value of the file.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    /// A text.
    Text(String),
    /// A number as it may stand in JSON; empty if it may not (infinity).
    Number(String),
    /// A truth value.
    Bool(bool),
    /// A date or time.
    Moment,
    /// JSON's null, which TOML does not have.
    Null,
    /// A list.
    List(Vec<Node>),
    /// A table, in the order of the text.
    Table(Vec<Member>),
}

/// One key of a table with its value.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The key.
    pub(super) key: String,
    /// The bytes of the key.
    pub(super) span: Range<usize>,
    /// The value.
    pub(super) node: Node,
}

/// One table of the file, read along its section.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) section: &'static Section,
    /// What its keys are called by in faults: `scenario.warmup`.
    pub(super) path: String,
    /// NAME of `[mix.NAME]`; empty for other tables.
    pub(super) name: String,
    /// Its heading; `None` for what was written nowhere.
    pub(super) span: Option<Range<usize>>,
    pub(super) sets: Vec<Set>,
    /// Whether a key of it was misspelt or set badly: what is missing may only have been misread.
    pub(super) faulty: bool,
}

/// One key that was set.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) key: &'static str,
    pub(super) value: Value,
    /// Where the value stands.
    pub(super) span: Range<usize>,
    /// The value as it may be shown.
    pub(super) shown: String,
}

/// A plan as it was written.
pub(super) struct Written {
    /// All tables with a heading, in the order of the text.
    pub(super) entries: Vec<Entry>,
    /// The keys of the file itself.
    pub(super) plan: Entry,
    /// Members of `[thresholds]`.
    pub(super) thresholds: Vec<Member>,
    /// Variables, options of the command line included.
    pub(super) variables: Vec<(String, f64)>,
    /// The text as a result may keep it.
    pub(super) kept: String,
}

impl Written {
    /// All tables of one section.
    pub(super) fn all(&self, section: &'static Section) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| std::ptr::eq(entry.section, section))
    }

    /// The table of a section that stands at most once; without it, one in which nothing is set.
    pub(super) fn once(&self, section: &'static Section) -> Entry {
        self.all(section).next().cloned().unwrap_or_else(|| Entry::absent(section))
    }
}

impl Entry {
    /// A table that was written nowhere.
    pub(super) fn absent(section: &'static Section) -> Entry {
        Entry {
            section,
            path: section.name.to_owned(),
            name: String::new(),
            span: None,
            sets: Vec::new(),
            faulty: false,
        }
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

    /// The full name of a key, for faults.
    pub(super) fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Where a key's value stands, else its table.
    pub(super) fn span_of(&self, key: &str) -> Option<&Range<usize>> {
        self.set(key).map(|set| &set.span).or(self.span.as_ref())
    }
}

/// The default of a field as a value; `None` where it follows from elsewhere or must be set.
pub(super) fn default_value(field: &Field) -> Option<Value> {
    match (field.default, field.kind) {
        (Default::Is(_), Kind::Tree) => None,
        (Default::Is(text), kind) => {
            Some(kind.of_text(text).expect("a test reads every default of the table"))
        }
        (Default::Empty, Kind::Headers) => Some(Value::Pairs(Vec::new())),
        (Default::Empty, Kind::Counts { .. }) => Some(Value::Counts(Vec::new())),
        (Default::Empty, _) => Some(Value::Texts(Vec::new())),
        (Default::Follows(_) | Default::Required, _) => None,
    }
}

/// Longest text of a plan.
pub(super) const TEXT_BYTES_MAX: usize = 1 << 20;

/// Returns true if a text is meant as a plan: it has a table that only plans have.
pub(super) fn is_plan(text: &str) -> bool {
    let (table, _) = DeTable::parse_recoverable(text);
    let own = ["scenario", "target", "mix", "thresholds", "validity", "capacity", "variables"];
    own.iter().any(|key| table.get_ref().contains_key(*key))
}

/// The text as a tree. A text that is not TOML gives `None`, and only its faults of syntax: what
/// the rest means is then a guess, and which part of it is a secret too.
pub(super) fn parse(report: &mut Report<'_>) -> Option<Vec<Member>> {
    let text = report.text();
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("{} bytes are too many for a plan", text.len());
        report.fault(None, "", None, message, Some(format!("at most {TEXT_BYTES_MAX} bytes")));
        return None;
    }
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
    errors.is_empty().then(|| values::members(table.get_ref()))
}

/// Reads a plan. What cannot be read is in the report and left out of the result.
pub(super) fn read(
    report: &mut Report<'_>,
    given: &Variables,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Option<Written> {
    let members = parse(report)?;
    let secrets = secrets::of_plan(report.text(), &members);
    report.show(Masks::of_values(secrets.shown));
    let variables = values::variables(report, &members, given);
    let mut instead = secrets.hidden;
    instead.extend(values::given(&members, given));
    instead.sort_by_key(|(range, _)| range.start);
    let kept = mask::kept(report.text(), &instead, &secrets.values);
    let mut reader = Reader { report, variables: &variables, environment, entries: Vec::new() };
    let mut plan = Entry::absent(&PLAN);
    let mut thresholds = Vec::new();
    for member in &members {
        if let Some(field) = PLAN.field(&member.key) {
            if let Some(set) = reader.field(&plan, field, &member.node) {
                plan.sets.push(set);
            }
        } else if member.key == super::field::THRESHOLDS.name {
            thresholds = reader.free_table(member);
        } else if member.key != VARIABLES.name {
            reader.section(member);
        }
    }
    let mut entries = reader.entries;
    entries.sort_by_key(|entry| entry.span.as_ref().map(|span| span.start));
    Some(Written { entries, plan, thresholds, variables, kept })
}

/// Reads a file that holds the keys of one mix.
pub(super) fn read_mix(report: &mut Report<'_>, section: &'static Section) -> Option<Entry> {
    let members = parse(report)?;
    let secrets = secrets::of_section(report.text(), section, &members);
    report.show(Masks::of_values(secrets.shown));
    let mut reader = Reader::plain(report);
    let entry = reader.entry(section, "mix", "", None, &members);
    Some(entry)
}

/// Reads a table that is the value of a key along a section of its own.
pub(super) fn read_entry(
    report: &mut Report<'_>,
    variables: &Variables,
    section: &'static Section,
    path: &str,
    node: &Node,
) -> Option<Entry> {
    let Tree::Table(members) = &node.tree else { return None };
    let mut reader = Reader { variables, ..Reader::plain(report) };
    Some(reader.entry(section, path, "", Some(node.span.clone()), members))
}

pub(super) struct Reader<'r, 't> {
    report: &'r mut Report<'t>,
    variables: &'r Variables,
    environment: &'r dyn Fn(&str) -> Option<String>,
    entries: Vec<Entry>,
}

impl<'r, 't> Reader<'r, 't> {
    fn plain(report: &'r mut Report<'t>) -> Reader<'r, 't> {
        Reader { report, variables: &[], environment: &|_| None, entries: Vec::new() }
    }

    fn section(&mut self, member: &Member) {
        let name = member.key.as_str();
        let Some(section) = SECTIONS.iter().find(|section| section.name == name) else {
            return self.unknown_section(member);
        };
        match (section.form, &member.node.tree) {
            (Form::Once, Tree::Table(members)) => {
                let entry = self.entry(section, name, "", Some(member.span.clone()), members);
                self.entries.push(entry);
            }
            (Form::Named, Tree::Table(tables)) => {
                for table in tables {
                    let Tree::Table(members) = &table.node.tree else {
                        self.wrong_form(section, &table.span);
                        continue;
                    };
                    let path = format!("{name}.{}", table.key);
                    let span = Some(table.span.clone());
                    let entry = self.entry(section, &path, &table.key, span, members);
                    self.entries.push(entry);
                }
            }
            (Form::Listed, Tree::List(tables)) => {
                for (at, table) in tables.iter().enumerate() {
                    let Tree::Table(members) = &table.tree else {
                        self.wrong_form(section, &table.span);
                        continue;
                    };
                    let path = numbered(name, at, members);
                    let span = Some(table.span.clone());
                    let entry = self.entry(section, &path, "", span, members);
                    self.entries.push(entry);
                }
            }
            _ => self.wrong_form(section, &member.span),
        }
    }

    fn unknown_section(&mut self, member: &Member) {
        let name = member.key.as_str();
        let mut names = SECTIONS.map(|section| section.name).to_vec();
        names.extend(PLAN.fields.iter().map(|field| field.key));
        let headings: Vec<_> = SECTIONS.iter().map(|section| section.heading()).collect();
        let owner = SECTIONS.iter().find(|section| section.field(name).is_some());
        let message = match (owner, nearest(name, &names)) {
            (Some(owner), _) => format!("this key belongs under {}", owner.heading()),
            (None, Some(near)) => format!("there is no such table or key; did you mean {near}?"),
            (None, None) => "there is no such table or key".to_owned(),
        };
        self.report.fault(Some(&member.span), name, None, message, Some(headings.join(", ")));
    }

    fn wrong_form(&mut self, section: &Section, span: &Range<usize>) {
        let message = "not written as a table of its kind";
        self.report.fault(Some(span), section.name, None, message, Some(section.heading()));
    }

    /// The members of a table whose keys are free.
    fn free_table(&mut self, member: &Member) -> Vec<Member> {
        match &member.node.tree {
            Tree::Table(members) => members.clone(),
            _ => {
                self.wrong_form(&super::field::THRESHOLDS, &member.span);
                Vec::new()
            }
        }
    }

    fn entry(
        &mut self,
        section: &'static Section,
        path: &str,
        name: &str,
        span: Option<Range<usize>>,
        members: &[Member],
    ) -> Entry {
        let (path, name) = (path.to_owned(), name.to_owned());
        let mut entry = Entry { section, path, name, span, sets: Vec::new(), faulty: false };
        let faults = self.report.count();
        for member in members {
            let Some(field) = section.field(&member.key) else {
                self.unknown_key(&entry, member);
                continue;
            };
            if entry.sets.iter().any(|set| set.key == field.key) {
                let message = format!("says the same as {}, which is set too", field.key);
                let key = entry.key(&member.key);
                self.report.fault(Some(&member.span), key, None, message, None);
            } else if let Some(set) = self.field(&entry, field, &member.node) {
                entry.sets.push(set);
            }
        }
        for field in section.fields {
            let written = |member: &Member| {
                section.field(&member.key).is_some_and(|found| found.key == field.key)
            };
            if matches!(field.default, Default::Required) && !members.iter().any(written) {
                let (key, allowed) = (entry.key(field.key), Some(field.kind.to_string()));
                self.report.fault(entry.span.as_ref(), key, None, "must be set", allowed);
            }
        }
        entry.faulty = self.report.count() > faults;
        entry
    }

    fn unknown_key(&mut self, entry: &Entry, member: &Member) {
        let key = member.key.as_str();
        let keys: Vec<_> = entry.section.fields.iter().map(|field| field.key).collect();
        let owner = SECTIONS.iter().find(|section| section.field(key).is_some());
        let message = match (nearest(key, &keys), owner) {
            (Some(near), _) => format!("there is no such key; did you mean {near}?"),
            (None, Some(owner)) => format!("this key belongs under {}", owner.heading()),
            (None, None) => "there is no such key".to_owned(),
        };
        let allowed = Some(entry.section.keys());
        self.report.fault(Some(&member.span), entry.key(key), None, message, allowed);
    }

    fn field(&mut self, entry: &Entry, field: &'static Field, node: &Node) -> Option<Set> {
        let span = node.span.clone();
        let shown = values::shown(self.report.text(), Some(field), &span);
        let value = match (field.kind, &node.tree) {
            (Kind::Table(section), Tree::Table(members)) => {
                let path = entry.key(field.key);
                let table = self.entry(section, &path, "", Some(span.clone()), members);
                Value::Entries(vec![table])
            }
            (Kind::Tables(section), Tree::List(list)) => {
                Value::Entries(self.tables(entry, field, section, list))
            }
            (Kind::Headers, Tree::Table(headers)) => self.headers(entry, field, headers),
            (Kind::Tree, _) => Value::Tree(node.clone()),
            (kind, _) => match values::scalar(kind, node, self.variables, self.environment) {
                Ok(value) => value,
                Err(message) => {
                    self.refuse(entry, field, node, message);
                    return None;
                }
            },
        };
        Some(Set { key: field.key, value, span, shown })
    }

    fn tables(
        &mut self,
        entry: &Entry,
        field: &'static Field,
        section: &'static Section,
        list: &[Node],
    ) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (at, node) in list.iter().enumerate() {
            let Tree::Table(members) = &node.tree else {
                self.refuse(entry, field, node, format!("not {}", field.kind.noun()));
                continue;
            };
            let path = numbered(&entry.key(field.key), at, members);
            entries.push(self.entry(section, &path, "", Some(node.span.clone()), members));
        }
        entries
    }

    fn headers(&mut self, entry: &Entry, field: &'static Field, members: &[Member]) -> Value {
        let mut headers = Vec::with_capacity(members.len());
        for member in members {
            let read = match &member.node.tree {
                Tree::Text(text) => values::expanded(text, self.environment)
                    .and_then(|text| Kind::of_header(&member.key, &text).map_err(str::to_owned)),
                _ => Err("the value of a header is a text".to_owned()),
            };
            match read {
                Ok(header) => headers.push(header),
                Err(message) => {
                    let key = format!("{}.{}", entry.key(field.key), member.key);
                    let allowed = Some(field.kind.to_string());
                    self.report.fault(Some(&member.span), key, None, message, allowed);
                }
            }
        }
        Value::Pairs(headers)
    }

    fn refuse(&mut self, entry: &Entry, field: &Field, node: &Node, message: String) {
        let shown = values::shown(self.report.text(), Some(field), &node.span);
        let allowed = Some(match field.kind.is_number() {
            true => format!("{}, or a formula", field.kind),
            false => field.kind.to_string(),
        });
        self.report.fault(Some(&node.span), entry.key(field.key), Some(shown), message, allowed);
    }
}

/// What one of several tables is called by: its name if it has one, else its number from 1.
fn numbered(key: &str, at: usize, members: &[Member]) -> String {
    let named = members.iter().find(|member| matches!(&*member.key, "name" | "method"));
    match named.map(|member| &member.node.tree) {
        Some(Tree::Text(name)) if super::kind::check_name(name).is_ok() => format!("{key}.{name}"),
        _ => format!("{key}.{}", at + 1),
    }
}

/// Where the heading of a table stands: the parser gives its body's span to inline tables.
fn heading(key: Range<usize>, value: &Spanned<DeValue<'_>>) -> Range<usize> {
    let body = value.span();
    if body.start <= key.start && key.end <= body.end { body } else { key }
}

/// The value of a formula or number in a tree.
pub(super) fn number(node: &Node, variables: &Variables) -> Result<f64, String> {
    match &node.tree {
        Tree::Number(text) => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(number),
            _ => Err("not a finite number".to_owned()),
        },
        Tree::Text(text) => formula::value(text, variables),
        _ => Err("not a number".to_owned()),
    }
}
