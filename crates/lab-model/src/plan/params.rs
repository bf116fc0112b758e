//! Converts the parameters of a call from the plan to pieces of JSON. A piece is constant text or a
//! random value. The engine draws random values anew for each call.
//!
//! In the plan, a generator stands for a random value. A table with the key `draw` is a generator,
//! and so is `{ block = "latest-100" }`. A table `{ json = "…" }` is literal JSON, and every other
//! table is a JSON object. The same rules apply within a JSON text.
//!
//! An item is a parsed value with its position in the plan's file, and its tree is the value
//! itself. The head is the newest block of the chain at the start of the run.

use serde::de::IgnoredAny;
use serde_json::json;
use settings::value::{AnyString, Integer, Json, List};
use settings::{Input, Item, Location, Member, Reader, Scalar, Table, TableDoc, Tree, ValueType};

use super::values::{BLOCKS_BEHIND_MAX, Behind};
use super::{Draw, Piece};

mod json;

#[cfg(test)]
mod tests;

/// Maximum number of values of a `one-of`, and of addresses of an `address` generator.
const CHOICES_MAX: usize = 100_000;

/// The key that names a generator.
const DRAW: &str = "draw";
/// The only key of the short form of a block.
const BLOCK: &str = "block";
/// The only key of literal JSON.
const JSON: &str = "json";

const ALLOWED: &str = "a JSON value, or a generator such as { draw = \"block\", behind = 10 }";

// `settings::choice!` declares an enum with the name of each variant in the plan.
settings::choice! {
    /// The generators of parameters.
    enum Generator {
        /// The number of a block.
        "block" => Block,
        /// A log filter.
        "logs" => Logs,
        /// The hash of a block.
        "block-hash" => BlockHash,
        /// The hash of a transaction.
        "transaction-hash" => TransactionHash,
        /// An address.
        "address" => Address,
        /// Random bytes.
        "bytes" => Bytes,
        /// One of several values.
        "one-of" => OneOf,
    }
}

/// Returns the name and the keys of each generator, for the reference page.
pub(super) fn generators() -> [(&'static str, TableDoc); 7] {
    [
        ("block", BlockDraw::doc()),
        ("logs", LogsDraw::doc()),
        ("block-hash", BlockHashDraw::doc()),
        ("transaction-hash", TransactionHashDraw::doc()),
        ("address", AddressDraw::doc()),
        ("bytes", BytesDraw::doc()),
        ("one-of", OneOfDraw::doc()),
    ]
}

// `settings::table!` declares the keys of a table as `key: Type = default;`.
settings::table! {
    /// A block number, in the form of the target's family. The block is the newest block at the
    /// start of the run (the head), or an earlier one. `{ block = "latest-100" }` is short for
    /// `{ draw = "block", behind = 100 }`.
    struct BlockDraw {
        /// Which generator this is.
        draw: Generator = required;
        /// Number of blocks from this block to the head. With `[smallest, largest]`, each call
        /// draws a number from the range.
        behind: Behind = "0";
    }
}

settings::table! {
    /// A log filter over a range of blocks. The range ends at or before the newest block at the
    /// start of the run (the head).
    struct LogsDraw {
        /// Which generator this is.
        draw: Generator = required;
        /// Number of blocks in the range.
        blocks: Integer<1, BLOCKS_BEHIND_MAX> = required;
        /// Number of blocks from the end of the range to the head. With `[smallest, largest]`, each
        /// call draws a number from the range.
        behind: Behind = "0";
        /// The filter's `address`: a string, a list or a generator.
        address: Param = described "any";
        /// The filter's `topics`.
        topics: Param = described "any";
    }
}

settings::table! {
    /// The hash of one of the newest blocks at the start of the run.
    struct BlockHashDraw {
        /// Which generator this is.
        draw: Generator = required;
    }
}

settings::table! {
    /// The hash of a transaction in one of the newest blocks at the start of the run.
    struct TransactionHashDraw {
        /// Which generator this is.
        draw: Generator = required;
    }
}

settings::table! {
    /// An address.
    struct AddressDraw {
        /// Which generator this is.
        draw: Generator = required;
        /// Addresses to draw from. If the list is empty, an address from the newest blocks is
        /// drawn.
        of: List<AnyString> = empty;
    }
}

settings::table! {
    /// Random bytes as `"0x…"`.
    struct BytesDraw {
        /// Which generator this is.
        draw: Generator = required;
        /// Number of bytes.
        count: Integer<1, 65_536, usize> = required;
    }
}

settings::table! {
    /// One of several values.
    struct OneOfDraw {
        /// Which generator this is.
        draw: Generator = required;
        /// Values to draw from. They cannot contain generators.
        values: Choices = required;
    }
}

/// Declares value types that a [`ParamsWriter`] reads. An entry has the name, the Rust type, the
/// function that reads the value, the allowed values, and the JSON Schema. The trait `ValueType`
/// explains the functions of a value type.
macro_rules! params_types {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident : $value:ty = $read:expr, $allowed:literal, $schema:tt;
    )+) => {$(
        $(#[doc = $doc])+
        pub(super) struct $name;

        impl ValueType for $name {
            type Value = $value;

            fn noun() -> String {
                $allowed.to_owned()
            }

            fn allowed() -> String {
                $allowed.to_owned()
            }

            fn schema() -> Json {
                json!($schema)
            }

            fn placeholder() -> $value {
                Vec::new()
            }

            fn parse_default(text: &str) -> Result<$value, String> {
                Ok(vec![text.as_bytes().into()])
            }

            fn to_toml(default: &str) -> String {
                default.to_owned()
            }

            fn mask(text: &str) -> Option<String> {
                <AnyString as Scalar>::mask(text)
            }

            fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<$value> {
                let problems = reader.report().count();
                let mut writer = ParamsWriter { location, reader, text: Vec::new(), pieces: Vec::new() };
                let value = ($read)(&mut writer, item);
                (reader.report().count() == problems).then_some(value)
            }
        }
    )+};
}

params_types! {
    /// The parameters of a call: a list or table, which may also be written as a JSON text.
    Params: Vec<Piece> = ParamsWriter::write_params,
        "a list or table of JSON values and generators, or a JSON text of one",
        { "type": ["array", "object", "string"] };
    /// Any JSON value, generators included.
    Param: Vec<Piece> = ParamsWriter::write_param, "a JSON value or a generator", {};
    /// A list of JSON values without generators.
    Choices: Vec<Box<[u8]>> = ParamsWriter::write_choices, "a list of JSON values",
        { "type": "array", "minItems": 1, "maxItems": CHOICES_MAX };
}

impl From<&[u8]> for Piece {
    fn from(text: &[u8]) -> Piece {
        Piece::Text(text.into())
    }
}

/// Converts a value of the plan to pieces of JSON and reports its problems.
struct ParamsWriter<'w, 'r, 'a> {
    /// Position of the value in the plan.
    location: &'w Location,
    reader: &'w mut Reader<'r, 'a>,
    /// Constant text that is not in `pieces` yet.
    text: Vec<u8>,
    pieces: Vec<Piece>,
}

impl ParamsWriter<'_, '_, '_> {
    /// Writes parameters: a list or table, which may be written as a JSON text. Returns the pieces.
    fn write_params(&mut self, item: &Item) -> Vec<Piece> {
        match &item.tree {
            Tree::String(text) => match json::parse_item(text, &item.span) {
                Some(parsed) if json::has_generators(&parsed) => {
                    self.write_value(&parsed);
                    // `write_value` has reported the problems within the JSON text, at the position
                    // of the whole text. Diagnostics may print that text.
                    self.reader.allow_printing::<Params>(item);
                }
                Some(Item { tree: Tree::List(_) | Tree::Table(_), .. }) => self.push(text.trim()),
                _ => self.reject(item, "not a list, a table or a JSON text of one"),
            },
            Tree::List(_) | Tree::Table(_) => self.write_value(item),
            _ => self.reject(item, "not a list, a table or a JSON text of one"),
        }
        self.finish()
    }

    /// Writes any value, which may contain generators. Returns the pieces.
    fn write_param(&mut self, item: &Item) -> Vec<Piece> {
        self.write_value(item);
        self.finish()
    }

    /// Returns all pieces.
    fn finish(&mut self) -> Vec<Piece> {
        self.flush();
        std::mem::take(&mut self.pieces)
    }

    /// Returns the JSON texts of the values of a `one-of` generator.
    fn write_choices(&mut self, item: &Item) -> Vec<Box<[u8]>> {
        let list = match &item.tree {
            Tree::List(list) if (1..=CHOICES_MAX).contains(&list.len()) => list,
            _ => {
                self.reject(item, "not a list of 1 to 100000 values");
                return Vec::new();
            }
        };
        let mut texts = Vec::with_capacity(list.len());
        for value in list {
            for piece in self.write_param(value) {
                match piece {
                    Piece::Text(text) => texts.push(text),
                    Piece::Draw(_) => self.reject(value, "generators cannot stand in one-of"),
                }
            }
        }
        texts
    }

    /// Appends constant text.
    fn push(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    /// Adds the constant text so far as a piece.
    fn flush(&mut self) {
        if !self.text.is_empty() {
            self.pieces.push(Piece::Text(std::mem::take(&mut self.text).into_boxed_slice()));
        }
    }

    /// Adds the constant text so far and a random value as pieces.
    fn push_draw(&mut self, draw: Draw) {
        self.flush();
        self.pieces.push(Piece::Draw(draw));
    }

    /// Appends finished pieces.
    fn append(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.text.extend_from_slice(&text),
                Piece::Draw(draw) => self.push_draw(draw),
            }
        }
    }

    /// Reports a problem of the item.
    fn reject(&mut self, item: &Item, message: &str) {
        let location = self.location.with_span(&item.span);
        self.reader.report().error_without_value(&location, message, ALLOWED);
    }

    /// Writes a value, which may contain generators.
    fn write_value(&mut self, item: &Item) {
        match &item.tree {
            Tree::String(text) if is_dollar_name(text) => self.reject_dollar_name(item, text),
            Tree::String(text) => self.push(&json_text(text)),
            Tree::Float(digits) if !digits.parse().is_ok_and(f64::is_finite) => {
                self.reject(item, "not a number in JSON");
            }
            Tree::Integer(digits) | Tree::Float(digits) => self.push(digits),
            Tree::Null => self.push("null"),
            Tree::Bool(value) => self.push(if *value { "true" } else { "false" }),
            Tree::DateTime(_) => self.reject(item, "JSON has no dates; write it as a text"),
            Tree::List(list) => self.write_list(list),
            Tree::Table(members) => self.write_table(item, members),
        }
    }

    /// Writes a JSON array.
    fn write_list(&mut self, list: &[Item]) {
        self.push("[");
        for (index, item) in list.iter().enumerate() {
            if index > 0 {
                self.push(",");
            }
            self.write_value(item);
        }
        self.push("]");
    }

    /// Writes a table: a generator, literal JSON, or a JSON object.
    fn write_table(&mut self, item: &Item, members: &[Member]) {
        if let Some(draw) = members.iter().find(|member| member.key == DRAW) {
            return self.write_generator(item, members, &draw.item);
        }
        match members {
            [Member { key, item, .. }] if key == BLOCK => return self.write_latest(item),
            [Member { key, item, .. }] if key == JSON => return self.write_json(item),
            _ => {}
        }
        if let Some(member) = members.iter().find(|member| is_dollar_name(&member.key)) {
            return self.reject_dollar_name(item, &member.key);
        }
        self.push("{");
        for (index, member) in members.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            self.push(&format!("{comma}{}:", json_text(&member.key)));
            self.write_value(&member.item);
        }
        self.push("}");
    }

    /// Reports a text such as `"$address"`. Other tools replace such a text by a random value, but
    /// here it would be sent unchanged.
    fn reject_dollar_name(&mut self, item: &Item, text: &str) {
        let name = &text[1..];
        let advice = if Generator::NAMES.contains(&name) {
            format!("a generator is written as {{ \"draw\": \"{name}\" }}")
        } else {
            format!("it is no generator; known are {}", Generator::NAMES.join(", "))
        };
        let location = self.location.with_span(&item.span);
        let message = format!("{text:?} would be sent unchanged: {advice}");
        let allowed =
            format!("{ALLOWED}, or {{ json = '\"$text\"' }} for a text that begins with $");
        self.reader.report().error_without_value(&location, message, allowed);
    }

    /// Writes the generator of a block from a text such as `latest` or `latest-100`.
    fn write_latest(&mut self, item: &Item) {
        let Tree::String(text) = &item.tree else {
            return self.reject(item, "a block is a text such as \"latest-100\"");
        };
        let behind = match text.strip_prefix("latest").map(str::trim_start) {
            Some("") => Some(0),
            Some(offset) => offset.strip_prefix('-').and_then(|blocks| blocks.trim().parse().ok()),
            None => None,
        };
        match behind {
            Some(behind) => self.push_draw(Draw::BlockBehind { behind: (behind, behind) }),
            None => self.reject(
                item,
                "a block is \"latest\" or \"latest-NUMBER\"; { json = '…' } writes a table as it is",
            ),
        }
    }

    /// Writes literal JSON.
    fn write_json(&mut self, item: &Item) {
        match &item.tree {
            Tree::String(json) if serde_json::from_str::<IgnoredAny>(json).is_ok() => {
                self.push(json.trim());
            }
            _ => self.reject(item, "not a JSON text"),
        }
    }

    /// Writes the generator whose name is the value of the key `draw`.
    fn write_generator(&mut self, item: &Item, members: &[Member], draw: &Item) {
        let location = Location { table: Some(item.span.clone()), ..self.location.clone() };
        let Tree::String(name) = &draw.tree else {
            return self.reject(draw, "the name of a generator is a text");
        };
        match Generator::parse(Input::String(name)) {
            Ok(generator) => self.read_generator(generator, members, location),
            Err(message) => {
                let path = format!("{}.{DRAW}", location.path);
                let location = Location { path, span: Some(draw.span.clone()), ..location };
                self.reader.report().error(&location, message, <Generator as Scalar>::allowed());
            }
        }
    }

    /// Reads the keys of a generator, and writes it.
    fn read_generator(&mut self, generator: Generator, members: &[Member], location: Location) {
        match generator {
            Generator::Block => {
                let table: BlockDraw = self.reader.read_table(members, location);
                self.push_draw(Draw::BlockBehind { behind: *table.behind });
            }
            Generator::Logs => {
                let table: LogsDraw = self.reader.read_table(members, location);
                self.write_logs(table);
            }
            Generator::BlockHash => {
                self.reader.read_table::<BlockHashDraw>(members, location);
                self.push_draw(Draw::BlockHash);
            }
            Generator::TransactionHash => {
                self.reader.read_table::<TransactionHashDraw>(members, location);
                self.push_draw(Draw::TransactionHash);
            }
            Generator::Address => {
                let table: AddressDraw = self.reader.read_table(members, location);
                self.write_address(&table);
            }
            Generator::Bytes => {
                let table: BytesDraw = self.reader.read_table(members, location);
                self.push_draw(Draw::RandomBytes(*table.count));
            }
            Generator::OneOf => {
                let table: OneOfDraw = self.reader.read_table(members, location);
                self.push_draw(Draw::OneOf(table.values.into_value()));
            }
        }
    }

    /// Writes a log filter with a random range of blocks.
    fn write_logs(&mut self, table: LogsDraw) {
        self.push("{");
        self.push_draw(Draw::LogRange { blocks: *table.blocks, behind: *table.behind });
        for (key, value) in [("address", table.address), ("topics", table.topics)] {
            if let Some(pieces) = value.into_value() {
                self.push(&format!(",\"{key}\":"));
                self.append(pieces);
            }
        }
        self.push("}");
    }

    /// Writes the generator of an address, and reports invalid addresses.
    fn write_address(&mut self, table: &AddressDraw) {
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        let is_valid =
            |text: &String| (1..=128).contains(&text.len()) && text.bytes().all(is_allowed);
        let report = self.reader.report();
        if let Some(invalid) = table.of.iter().position(|text| !is_valid(text)) {
            let allowed = "1 to 128 visible characters, neither \" nor \\";
            report.error(&table.of.element_location(invalid), "cannot be an address", allowed);
        } else if table.of.len() > CHOICES_MAX {
            report.error_without_value(
                &table.of.location,
                "too many addresses",
                format!("at most {CHOICES_MAX}"),
            );
        }
        let addresses = table.of.iter().map(|address| address.clone().into_boxed_str());
        self.push_draw(Draw::Address(addresses.collect()));
    }
}

/// Returns true if a text consists of `$` and a name.
fn is_dollar_name(text: &str) -> bool {
    let name = text.strip_prefix('$').unwrap_or_default();
    name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
}

/// Returns a text as a JSON string.
fn json_text(text: &str) -> String {
    serde_json::to_string(text).expect("a text is always JSON")
}
