//! Parameters of a call: from a tree of the plan's text to JSON in pieces, some of them drawn for
//! each call.
//!
//! A table with the key `draw` is a generator, and so is `{ block = "latest-100" }`; `{ json = "…" }`
//! is JSON as it stands; every other table is an object. The same holds within a JSON text. What is
//! drawn is drawn by the engine.

use serde::de::IgnoredAny;

use super::fault::Report;
use super::field::{self, DRAW, DRAWS, Section};
use super::file::{Entry, Member, Node, Tree, read_entry};
use super::formula::Variables;
use super::kind::Value;
use super::nearest::not_found;
use super::{Draw, Piece};

mod json;

#[cfg(test)]
mod tests;

/// Values of one `one-of`, or addresses of one list.
const CHOICES_MAX: usize = 100_000;

/// The one key of a block behind the head in short.
const BLOCK: &str = "block";
/// The one key of JSON as it stands.
const JSON: &str = "json";

/// The parameters of a call that sets none.
pub(super) fn none() -> Vec<Piece> {
    vec![Piece::Text(b"[]".as_slice().into())]
}

/// Reads parameters; what is wrong is in the report.
pub(super) fn read(
    node: &Node,
    key: &str,
    variables: &Variables,
    report: &mut Report<'_>,
) -> Option<Vec<Piece>> {
    let faults = report.count();
    let mut writer = Writer { key, variables, report, text: Vec::new(), pieces: Vec::new() };
    match &node.tree {
        Tree::Text(text) => match json::node(text, &node.span) {
            Some(inner) if json::draws(&inner) => writer.value(&inner),
            Some(Node { tree: Tree::List(_) | Tree::Table(_), .. }) => writer.push(text.trim()),
            _ => writer.refuse(node, "not a list, a table or a JSON text of one"),
        },
        Tree::List(_) | Tree::Table(_) => writer.value(node),
        _ => writer.refuse(node, "not a list, a table or a JSON text of one"),
    }
    writer.flush();
    let pieces = writer.pieces;
    (report.count() == faults).then_some(pieces)
}

struct Writer<'w, 'r, 't> {
    key: &'w str,
    variables: &'w Variables,
    report: &'r mut Report<'t>,
    text: Vec<u8>,
    pieces: Vec<Piece>,
}

impl Writer<'_, '_, '_> {
    fn push(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            self.pieces.push(Piece::Text(std::mem::take(&mut self.text).into_boxed_slice()));
        }
    }

    fn draw(&mut self, draw: Draw) {
        self.flush();
        self.pieces.push(Piece::Draw(draw));
    }

    fn refuse(&mut self, node: &Node, message: &str) {
        let allowed = "a JSON value, or a generator such as { draw = \"block\", behind = 10 }";
        self.report.fault(Some(&node.span), self.key, None, message, Some(allowed.to_owned()));
    }

    fn value(&mut self, node: &Node) {
        match &node.tree {
            Tree::Text(text) if is_name(text) => self.unknown_name(node, text),
            Tree::Text(text) => self.push(&json_text(text)),
            Tree::Number(text) if text.is_empty() => self.refuse(node, "not a number in JSON"),
            Tree::Number(text) => self.push(text),
            Tree::Null => self.push("null"),
            Tree::Bool(on) => self.push(if *on { "true" } else { "false" }),
            Tree::Moment => self.refuse(node, "JSON has no dates; write it as a text"),
            Tree::List(list) => self.list(list),
            Tree::Table(members) => self.table(node, members),
        }
    }

    fn list(&mut self, list: &[Node]) {
        self.push("[");
        for (at, node) in list.iter().enumerate() {
            if at > 0 {
                self.push(",");
            }
            self.value(node);
        }
        self.push("]");
    }

    fn table(&mut self, node: &Node, members: &[Member]) {
        if let Some(draw) = members.iter().find(|member| member.key == DRAW) {
            return self.generator(node, &draw.node);
        }
        match members {
            [Member { key, node, .. }] if key == BLOCK => return self.latest(node),
            [Member { key, node, .. }] if key == JSON => return self.json(node),
            _ => {}
        }
        if let Some(member) = members.iter().find(|member| is_name(&member.key)) {
            return self.unknown_name(node, &member.key);
        }
        self.push("{");
        for (at, member) in members.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            self.push(&format!("{comma}{}:", json_text(&member.key)));
            self.value(&member.node);
        }
        self.push("}");
    }

    /// `"$address"` is how other tools write a generator, and no node knows such a value.
    fn unknown_name(&mut self, node: &Node, text: &str) {
        let name = &text[1..];
        let known = DRAWS.iter().any(|section| section.name == name);
        let instead = if known {
            format!("a generator is written as {{ \"draw\": \"{name}\" }}")
        } else {
            let names: Vec<_> = DRAWS.iter().map(|section| section.name).collect();
            format!("it is no generator; known are {}", names.join(", "))
        };
        let message = format!("{text:?} would be sent as it stands: {instead}");
        let allowed = "a JSON value, a generator such as { draw = \"block\", behind = 10 }, or \
                       { json = '\"$text\"' } for a text that begins with $";
        self.report.fault(Some(&node.span), self.key, None, message, Some(allowed.to_owned()));
    }

    /// `latest`, or `latest-100`.
    fn latest(&mut self, node: &Node) {
        let Tree::Text(text) = &node.tree else {
            return self.refuse(node, "a block is a text such as \"latest-100\"");
        };
        let behind = match text.strip_prefix("latest").map(str::trim_start) {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix('-').and_then(|rest| rest.trim().parse().ok()),
            None => None,
        };
        match behind {
            Some(behind) => self.draw(Draw::BlockBehind { behind: (behind, behind) }),
            None => self.refuse(node, "a block is \"latest\" or \"latest-NUMBER\"; { json = '…' } writes a table as it is"),
        }
    }

    fn json(&mut self, node: &Node) {
        match &node.tree {
            Tree::Text(json) if serde_json::from_str::<IgnoredAny>(json).is_ok() => {
                self.push(json.trim());
            }
            _ => self.refuse(node, "not a JSON text"),
        }
    }

    fn generator(&mut self, node: &Node, which: &Node) {
        let names: Vec<_> = DRAWS.iter().map(|section| section.name).collect();
        let Tree::Text(name) = &which.tree else {
            return self.refuse(which, "the name of a generator is a text");
        };
        let Some(section) = DRAWS.iter().find(|section| section.name == name) else {
            let (message, allowed) = not_found("generator", name, &names);
            let key = format!("{}.{DRAW}", self.key);
            return self.report.fault(Some(&which.span), key, None, message, Some(allowed));
        };
        let faults = self.report.count();
        let entry = read_entry(self.report, self.variables, section, self.key, node);
        if let Some(entry) = entry.filter(|_| self.report.count() == faults) {
            self.drawn(section, &entry, node);
        }
    }

    fn drawn(&mut self, section: &Section, entry: &Entry, node: &Node) {
        let is = |other: &Section| section.name == other.name;
        if is(&field::BLOCK) {
            self.draw(Draw::BlockBehind { behind: behind(entry) });
        } else if is(&field::LOGS) {
            self.logs(entry);
        } else if is(&field::BLOCK_HASH) {
            self.draw(Draw::BlockHash);
        } else if is(&field::TRANSACTION_HASH) {
            self.draw(Draw::TransactionHash);
        } else if is(&field::ADDRESS) {
            self.address(entry, node);
        } else if is(&field::BYTES) {
            self.draw(Draw::RandomBytes(entry.value("count").size()));
        } else {
            self.one_of(entry, node);
        }
    }

    fn logs(&mut self, entry: &Entry) {
        self.push("{");
        self.draw(Draw::LogRange { blocks: entry.value("blocks").count(), behind: behind(entry) });
        for key in ["address", "topics"] {
            if let Some(Value::Tree(node)) = entry.chosen(key) {
                self.push(&format!(",\"{key}\":"));
                self.value(&node);
            }
        }
        self.push("}");
    }

    fn address(&mut self, entry: &Entry, node: &Node) {
        let addresses = entry.value("of").texts();
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        let plain = |text: &String| (1..=128).contains(&text.len()) && text.bytes().all(fits);
        if let Some(odd) = addresses.iter().find(|text| !plain(text)) {
            let start: String = odd.chars().take(20).collect();
            self.refuse(node, &format!("{start:?} cannot be an address"));
        } else if addresses.len() > CHOICES_MAX {
            self.refuse(node, "more addresses than 100000");
        } else {
            self.draw(Draw::Address(addresses.into_iter().map(String::into_boxed_str).collect()));
        }
    }

    fn one_of(&mut self, entry: &Entry, node: &Node) {
        let Some(Value::Tree(Node { tree: Tree::List(list), .. })) = entry.chosen("values") else {
            return self.refuse(node, "values is not a list");
        };
        if list.is_empty() || list.len() > CHOICES_MAX {
            return self.refuse(node, "values holds none, or more than 100000");
        }
        let mut texts = Vec::with_capacity(list.len());
        for value in &list {
            let outer = (std::mem::take(&mut self.text), std::mem::take(&mut self.pieces));
            self.value(value);
            self.flush();
            let inner = std::mem::replace(&mut self.pieces, outer.1);
            self.text = outer.0;
            match inner.into_iter().next() {
                Some(Piece::Text(text)) => texts.push(text),
                Some(Piece::Draw(_)) => self.refuse(value, "generators cannot stand in one-of"),
                None => {}
            }
        }
        self.draw(Draw::OneOf(texts));
    }
}

/// True if a text is `$` and a name.
fn is_name(text: &str) -> bool {
    let name = text.strip_prefix('$').unwrap_or_default();
    name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
}

fn behind(entry: &Entry) -> (u64, u64) {
    match entry.value("behind") {
        Value::Span(low, high) => (low, high),
        other => unreachable!("{other:?} is not a span"),
    }
}

fn json_text(text: &str) -> String {
    serde_json::to_string(text).expect("a text is always JSON")
}
