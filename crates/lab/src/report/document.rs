//! A result as a document: sections of text, lists, tables, facts, figures and charts.
//!
//! Each kind of result is turned into a document by one function (`run.rs`, `capacity.rs`, `compare.rs`,
//! `study.rs`); three renderers write it: `terminal.rs`, `markdown.rs` and `page.rs`. A part that does
//! not suit all three says where it is shown ([`On`]).

use std::ops::BitOr;

use super::chart::{Chart, Ink};

/// Where a part of a document is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct On(u8);

pub(super) const TERMINAL: On = On(1);
pub(super) const MARKDOWN: On = On(2);
pub(super) const PAGE: On = On(4);
/// What is kept in files: more room than a terminal has.
pub(super) const FILES: On = On(6);
pub(super) const ALL: On = On(7);

impl On {
    pub(super) fn has(self, other: On) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for On {
    type Output = On;

    fn bitor(self, other: On) -> On {
        On(self.0 | other.0)
    }
}

/// A whole result.
pub(super) struct Document {
    /// The command that made it: the line above the page's heading.
    pub(super) command: &'static str,
    /// The page's heading, and its title in the browser.
    pub(super) title: String,
    pub(super) window: String,
    /// The first heading of the Markdown.
    pub(super) heading: String,
    /// Lines below the page's heading.
    pub(super) lead: Vec<Text>,
    pub(super) sections: Vec<Section>,
    /// Whether the page ends with the meaning of its terms.
    pub(super) glossary: bool,
}

/// A heading and what is below it. The terminal shows no headings, and an empty line before each section
/// that is not tight.
#[derive(Default)]
pub(super) struct Section {
    /// The page's anchor; empty for a section without heading.
    pub(super) id: String,
    pub(super) title: String,
    /// The name in the page's list of contents, if it is listed.
    pub(super) nav: Option<&'static str>,
    pub(super) tight: bool,
    pub(super) blocks: Vec<(On, Block)>,
}

impl Section {
    pub(super) fn new(id: impl Into<String>, title: impl Into<String>) -> Section {
        Section { id: id.into(), title: title.into(), ..Section::default() }
    }

    pub(super) fn nav(mut self, name: &'static str) -> Section {
        self.nav = Some(name);
        self
    }

    /// Adds a block, if there is one.
    pub(super) fn on(mut self, on: On, block: impl Into<Option<Block>>) -> Section {
        self.blocks.extend(block.into().map(|block| (on, block)));
        self
    }

    /// Adds the page's introduction of the section; see [`Text::marked`].
    pub(super) fn lead(self, marked: &str) -> Section {
        self.on(PAGE, Block::Lead(Text::marked(marked)))
    }
}

/// A part of a section.
pub(super) enum Block {
    /// That the result is of a part only, in a sentence without a full stop.
    Partial(&'static str),
    /// The verdict as the page has it: class, word, sum, reasons.
    Verdict(&'static str, String, String, Vec<String>),
    /// The first line of the terminal: the class and text of its head, and what follows.
    Banner(&'static str, String, String),
    /// Values in large type: class, value, what it is.
    Tiles(Vec<(&'static str, String, Text)>),
    /// Introduces a section.
    Lead(Text),
    /// A remark in small type.
    Note(Text),
    Paragraph(Text),
    List(List),
    Table(Table),
    /// Names with their values.
    Facts(Vec<(Text, Text)>),
    /// Blocks side by side, if there is room.
    Columns(Vec<Block>),
    /// Blocks in one frame.
    Card(Vec<Block>),
    Figure(Chart, Vec<(Ink, String)>),
    Code(String),
    /// What opens on demand: its summary, whether it is open.
    Fold(String, bool, Vec<Block>),
    /// A text after the name of what it is about, as the terminal has it.
    Line(&'static str, Text),
    /// A heading within a section.
    Subheading(String),
}

/// Sentences one below the other.
pub(super) struct List {
    pub(super) items: Vec<Text>,
    /// What the terminal writes before each: a name in a column of its own, or a prefix.
    pub(super) name: Option<&'static str>,
    pub(super) prefix: &'static str,
    /// How many the terminal shows, and what they are called where it shows fewer.
    pub(super) max: (usize, &'static str),
}

impl List {
    pub(super) fn of<T: Into<Text>>(items: impl IntoIterator<Item = T>) -> List {
        let items = items.into_iter().map(Into::into).collect();
        List { items, name: None, prefix: "", max: (usize::MAX, "") }
    }
}

/// A column of a table.
pub(super) struct Column {
    pub(super) head: Text,
    /// The page's own head.
    pub(super) page_head: Text,
    pub(super) on: On,
    pub(super) left: bool,
    /// Whether the page may break its cells.
    pub(super) wrap: bool,
}

/// Rows of cells, each a group with the rows that are parts of it.
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) groups: Vec<Vec<Row>>,
    /// Class of each group on the page; none if the rows are not grouped.
    pub(super) grouped: Option<&'static str>,
    /// How many rows the terminal shows, and what they are called where it shows fewer.
    pub(super) max: (usize, &'static str),
    /// Rows that there are, where the table holds a choice of them.
    pub(super) all: Option<usize>,
}

/// A row; a part belongs to the row above it.
pub(super) struct Row {
    pub(super) cells: Vec<Text>,
    /// Set for one text across all columns but the first few: their number.
    pub(super) across: Option<usize>,
    pub(super) part: bool,
    pub(super) on: On,
}

impl Row {
    /// A row of the page that belongs to the one above it.
    pub(super) fn part(cells: Vec<Text>) -> Row {
        Row { cells, across: None, part: true, on: PAGE }
    }

    /// One text across all columns but the first few.
    pub(super) fn across(skip: usize, text: impl Into<Text>, on: On) -> Row {
        Row { cells: vec![text.into()], across: Some(skip), part: skip > 0, on }
    }
}

impl Table {
    /// A table with these columns, and no rows. A head is a text (see [`Text::marked`]), before which `<`
    /// stands for words, aligned to the left, and `~` for sentences, which wrap; ` @` and letters of `tmp`
    /// behind it say where the column is shown (terminal, Markdown, page; everywhere if left out), and a
    /// `|` divides it from the page's own head.
    pub(super) fn new<H: AsRef<str>>(heads: &[H]) -> Table {
        let column = |written: &H| {
            let (head, on) =
                written.as_ref().rsplit_once(" @").unwrap_or((written.as_ref(), "tmp"));
            let bit = |letter, bit: On| if on.contains(letter) { bit.0 } else { 0 };
            let wrap = head.starts_with('~');
            let left = wrap || head.starts_with('<');
            let head = head.trim_start_matches(['<', '~']);
            let (head, page_head) = head.split_once('|').unwrap_or((head, head));
            let on = On(bit('t', TERMINAL) | bit('m', MARKDOWN) | bit('p', PAGE));
            let (head, page_head) = (Text::marked(head), Text::marked(page_head));
            Column { head, page_head, on, left, wrap }
        };
        let columns = heads.iter().map(column).collect();
        Table { columns, groups: Vec::new(), grouped: None, max: (usize::MAX, ""), all: None }
    }

    /// Adds a column of numbers whose head is from outside.
    pub(super) fn column(&mut self, head: impl Into<Text>) {
        let head = head.into();
        let page_head = head.clone();
        self.columns.push(Column { head, page_head, on: ALL, left: false, wrap: false });
    }

    pub(super) fn row(&mut self, cells: Vec<Text>) {
        self.groups.push(vec![Row { cells, across: None, part: false, on: ALL }]);
    }

    /// With the parts of each row below it, by the row's place.
    pub(super) fn with_parts(
        mut self,
        class: &'static str,
        parts: impl Fn(usize) -> Vec<Row>,
    ) -> Table {
        self.grouped = Some(class);
        self.groups.iter_mut().enumerate().for_each(|(place, rows)| rows.extend(parts(place)));
        self
    }

    pub(super) fn at_most(mut self, max: usize, noun: &'static str) -> Table {
        self.max = (max, noun);
        self
    }

    pub(super) fn rows(&self, on: On) -> impl Iterator<Item = &Row> {
        self.groups.iter().flatten().filter(move |row| row.on.has(on))
    }

    /// Places of the columns that are shown.
    pub(super) fn shown(&self, on: On) -> Vec<usize> {
        (0..self.columns.len()).filter(|at| self.columns[*at].on.has(on)).collect()
    }
}

/// Text with marks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Text(pub(super) Vec<Span>);

/// A piece of text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Span {
    Plain(String),
    Code(String),
    /// A name from outside, such as a method's.
    Name(String),
    Bold(String),
    Small(String),
    /// A text, and the word of the glossary that explains it.
    Term(String, String),
    /// In a colour of the style sheet.
    Tone(&'static str, String),
    /// A text that leads to an address.
    Link(String, String),
    /// The sign of a figure with too few calls behind it.
    Weak,
    /// A length before a number, as a share of the longest.
    Bar(f64),
    /// What only the page can draw: an element made by us.
    Drawing(String),
}

impl<T: AsRef<str>> From<T> for Text {
    fn from(text: T) -> Text {
        let text = text.as_ref();
        Text(if text.is_empty() { Vec::new() } else { vec![Span::Plain(text.to_owned())] })
    }
}

impl From<Span> for Text {
    fn from(span: Span) -> Text {
        Text(vec![span])
    }
}

impl Text {
    /// Prose of our own in which `[text](word)` is a term and text between backticks is code.
    pub(super) fn marked(prose: &str) -> Text {
        let mut spans = Vec::new();
        let mut rest = prose;
        while let Some(at) = rest.find(['[', '`']) {
            let (before, marked) = rest.split_at(at);
            spans.extend(Text::from(before).0);
            let code = marked.strip_prefix('`').and_then(|code| code.split_once('`'));
            let term = marked[1..].split_once("](").and_then(|(text, after)| {
                let (word, rest) = after.split_once(')')?;
                Some((Span::Term(text.into(), word.into()), rest))
            });
            let code = code.map(|(code, rest)| (Span::Code(code.into()), rest));
            let (span, after) = code.or(term).expect("marks of our own prose are closed");
            spans.push(span);
            rest = after;
        }
        spans.extend(Text::from(rest).0);
        Text(spans)
    }

    /// Without marks.
    pub(super) fn plain(&self) -> String {
        use Span::*;
        let plain = |span: &Span| match span {
            Plain(text) | Code(text) | Name(text) | Bold(text) | Small(text) => text.clone(),
            Term(text, _) | Tone(_, text) | Link(text, _) => text.clone(),
            Weak => "~".to_owned(),
            Bar(_) | Drawing(_) => String::new(),
        };
        self.0.iter().map(plain).collect()
    }
}

/// Text in a colour of the style sheet; without a class, plain text.
pub(super) fn tone(class: &'static str, text: impl Into<String>) -> Text {
    let text = text.into();
    if class.is_empty() { Text::from(text) } else { Span::Tone(class, text).into() }
}

pub(super) fn code(text: impl Into<String>) -> Text {
    Span::Code(text.into()).into()
}

/// A name from outside, such as a method's.
pub(super) fn name(text: impl Into<String>) -> Text {
    Span::Name(text.into()).into()
}

pub(super) fn bold(text: impl Into<String>) -> Text {
    Span::Bold(text.into()).into()
}

/// Texts one after the other.
macro_rules! text {
    ($($part:expr),+ $(,)?) => {
        $crate::report::document::Text([$($crate::report::document::Text::from($part)),+].map(|text| text.0).concat())
    };
}
/// The cells of a row.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$($crate::report::document::Text::from($cell)),*] };
}
/// A table of rows: each column by its head (see [`Table::new`]) and its cell.
macro_rules! table {
    ($rows:expr, |$row:pat_param| $($head:literal => $cell:expr),+ $(,)?) => {{
        let mut table = $crate::report::document::Table::new(&[$($head),+]);
        for $row in $rows {
            table.row($crate::report::document::cells![$($cell),+]);
        }
        table
    }};
}
pub(super) use {cells, table, text};
