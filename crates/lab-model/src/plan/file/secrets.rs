//! Which values of a plan are secret: what faults may show, and what the kept text must hide.

use std::ops::Range;

use super::{Member, Node, Tree};
use crate::plan::field::{Field, Form, PLAN, SECTIONS, Section, THRESHOLDS, VARIABLES};
use crate::plan::kind::Kind;
use crate::plan::mask::Shown;
use crate::plan::url::{self, MASK};

/// The values of a text, by place.
#[derive(Default)]
pub(super) struct Secrets {
    /// Each value, and what a fault may show of it.
    pub(super) shown: Vec<(Range<usize>, Shown)>,
    /// Values that the kept text must not hold, with what it holds instead; in order.
    pub(super) hidden: Vec<(Range<usize>, String)>,
    /// All values, in order.
    pub(super) values: Vec<Range<usize>>,
}

/// How a value may be shown: as it is only under a known key that holds no secret.
pub(super) fn shown(field: Option<&Field>, written: &str) -> Shown {
    let text = written.trim_matches(['"', '\'']);
    let quoted = |text: String| Shown::Instead(format!("\"{text}\""));
    match field {
        Some(Field { kind: Kind::Url, .. }) => quoted(masked_url(text)),
        Some(field) if field.kind.is_secret() && is_reference(text) => Shown::Itself,
        Some(field) if field.kind.is_secret() => quoted(MASK.to_owned()),
        _ if text.contains("://") => quoted(MASK.to_owned()),
        _ => Shown::Itself,
    }
}

/// A URL without its secrets. References to the environment are none, and stay.
fn masked_url(text: &str) -> String {
    let whole = text.strip_prefix(OPEN).and_then(|text| text.strip_suffix('}'));
    if let Some((name, default)) = whole.and_then(|inside| inside.split_once(":-"))
        && !name.contains('}')
    {
        return format!("{OPEN}{name}:-{}}}", url::masked(default));
    }
    // A word that no masking touches stands for each reference while the rest is masked.
    let (mut plain, mut references, mut rest) = (String::new(), Vec::new(), text);
    while let Some(at) = rest.find(OPEN) {
        let Some(end) = rest[at..].find('}') else { return MASK.to_owned() };
        let reference = &rest[at..=at + end];
        if reference.contains(":-") {
            return MASK.to_owned();
        }
        plain.push_str(&rest[..at]);
        plain.push_str(&stand_in(references.len()));
        references.push(reference);
        rest = &rest[at + end + 1..];
    }
    plain.push_str(rest);
    if references.len() == 1 && plain == stand_in(0) {
        return text.to_owned();
    }
    let mut shown = url::masked(&plain);
    for (at, reference) in references.iter().enumerate() {
        shown = shown.replace(&stand_in(at), reference);
    }
    shown
}

/// How a reference to the environment begins.
const OPEN: &str = "${env:";

fn stand_in(at: usize) -> String {
    let letter = |place: usize| (b'a' + (at / 26usize.pow(place as u32) % 26) as u8) as char;
    format!("envq{}{}", letter(0), letter(1))
}

/// Whether a header's value holds nothing but a scheme and one reference to the environment.
fn is_reference(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(OPEN) else { return false };
    let scheme = scheme.trim();
    let known = ["", "Bearer", "Basic", "Token"].contains(&scheme);
    known && rest.strip_suffix('}').is_some_and(|name| !name.contains(['{', '}', '$', ':']))
}

/// The values of a whole plan.
pub(super) fn of_plan(text: &str, members: &[Member]) -> Secrets {
    let mut found = Found { text, secrets: Secrets::default() };
    for member in members {
        let section = SECTIONS.iter().find(|section| section.name == member.key);
        match (section, PLAN.field(&member.key)) {
            (Some(section), _) => found.section(section, &member.node),
            (None, Some(field)) => found.value(Known::Field(field), &member.node),
            (None, None) => found.value(Known::No, &member.node),
        }
    }
    found.finish()
}

/// The values of a file that holds one table.
pub(super) fn of_section(text: &str, section: &Section, members: &[Member]) -> Secrets {
    let mut found = Found { text, secrets: Secrets::default() };
    found.members(section, members);
    found.finish()
}

/// What is known of a value by the keys above it.
#[derive(Clone, Copy)]
enum Known<'a> {
    /// It stands under this key.
    Field(&'a Field),
    /// It stands in a table whose keys are free, or in parameters.
    Free,
    /// Its key does not exist: it may be anything.
    No,
}

struct Found<'a> {
    text: &'a str,
    secrets: Secrets,
}

/// What a key in a place where it does not belong is known as.
fn elsewhere(key: &str) -> Known<'static> {
    let fields = SECTIONS.iter().filter_map(|section| section.field(key));
    let secret_first = fields.max_by_key(|field| field.kind.is_secret());
    secret_first.map_or(Known::No, Known::Field)
}

/// Whether a value is a number, true or false, which are no secrets under any key.
fn is_plain(written: &str) -> bool {
    written.parse::<bool>().is_ok() || written.parse::<f64>().is_ok()
}

impl Found<'_> {
    fn section(&mut self, section: &'static Section, node: &Node) {
        match (section.form, &node.tree) {
            (Form::Once, Tree::Table(members)) => self.members(section, members),
            (Form::Named, Tree::Table(tables)) => {
                for table in tables {
                    match &table.node.tree {
                        Tree::Table(members) => self.members(section, members),
                        _ => self.value(Known::No, &table.node),
                    }
                }
            }
            (Form::Listed, Tree::List(tables)) => {
                for table in tables {
                    match &table.tree {
                        Tree::Table(members) => self.members(section, members),
                        _ => self.value(Known::No, table),
                    }
                }
            }
            (Form::Free, _) => {
                debug_assert!([VARIABLES.name, THRESHOLDS.name].contains(&section.name));
                self.value(Known::Free, node);
            }
            _ => self.value(Known::No, node),
        }
    }

    fn members(&mut self, section: &Section, members: &[Member]) {
        for member in members {
            let known =
                section.field(&member.key).map_or_else(|| elsewhere(&member.key), Known::Field);
            self.value(known, &member.node);
        }
    }

    fn value(&mut self, known: Known<'_>, node: &Node) {
        let inner = match known {
            Known::Field(Field { kind: Kind::Table(section) | Kind::Tables(section), .. }) => {
                Some(*section)
            }
            _ => None,
        };
        match (&node.tree, inner) {
            (Tree::Table(members), Some(section)) => self.members(section, members),
            (Tree::Table(members), None) => {
                for member in members {
                    let known = match known {
                        Known::No => elsewhere(&member.key),
                        known => known,
                    };
                    self.value(known, &member.node);
                }
            }
            (Tree::List(list), _) => {
                for node in list {
                    self.value(known, node);
                }
            }
            _ => self.leaf(known, &node.span),
        }
    }

    fn leaf(&mut self, known: Known<'_>, span: &Range<usize>) {
        let written = &self.text[span.clone()];
        let as_shown = match known {
            Known::Field(field) => shown(Some(field), written),
            Known::Free => shown(None, written),
            Known::No if is_plain(written) => Shown::Itself,
            Known::No => Shown::Instead(MASK.to_owned()),
        };
        self.secrets.values.push(span.clone());
        if let (Known::Field(_) | Known::Free, Shown::Instead(text)) = (known, &as_shown) {
            self.secrets.hidden.push((span.clone(), text.clone()));
        }
        self.secrets.shown.push((span.clone(), as_shown));
    }

    fn finish(mut self) -> Secrets {
        self.secrets.values.sort_by_key(|range| range.start);
        self.secrets.hidden.sort_by_key(|(range, _)| range.start);
        self.secrets
    }
}
