//! The document of a result: sections of text, lists, tables, facts and charts.
//!
//! One function per kind of result builds the document (`run.rs`, `capacity.rs`, `compare.rs`,
//! `equal.rs`, `study.rs`, `load_study.rs`, `assessment.rs`). Three renderers write it:
//! `terminal.rs`, `markdown.rs` and `page.rs` (HTML). Each block has the [`Formats`] in which it
//! appears. "The page" is always the HTML page.

use std::ops::BitOr;

use super::chart::{Chart, Ink};

/// A set of output formats, with one bit per format. `|` combines two sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Formats(u8);

pub(super) const TERMINAL: Formats = Formats(1);
pub(super) const MARKDOWN: Formats = Formats(2);
pub(super) const PAGE: Formats = Formats(4);
/// Markdown and HTML page. Both have more space than the terminal.
pub(super) const FILES: Formats = Formats(MARKDOWN.0 | PAGE.0);
pub(super) const ALL: Formats = Formats(TERMINAL.0 | MARKDOWN.0 | PAGE.0);

impl Formats {
    /// Returns true if the two sets share a format.
    pub(super) fn has(self, other: Formats) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Formats {
    type Output = Formats;

    fn bitor(self, other: Formats) -> Formats {
        Formats(self.0 | other.0)
    }
}

/// The document of one result.
pub(super) struct Document {
    /// Command that made the result. The page shows it above its heading.
    pub(super) command: &'static str,
    /// Heading of the page.
    pub(super) title: String,
    /// The title of the browser window. The page appends "weir".
    pub(super) window: String,
    /// The first heading of the Markdown.
    pub(super) heading: String,
    /// Introduction of the page: lines below its heading.
    pub(super) intro: Vec<Text>,
    pub(super) sections: Vec<Section>,
    /// True if the page ends with a glossary.
    pub(super) glossary: bool,
}

/// A heading with its blocks. The terminal prints an empty line instead of the heading.
#[derive(Default)]
pub(super) struct Section {
    /// Anchor on the page; empty for a section without heading.
    pub(super) id: String,
    /// Heading; empty for a section without heading.
    pub(super) title: String,
    /// Name in the page's navigation; `None` if the navigation does not list the section.
    pub(super) nav: Option<&'static str>,
    /// True if the terminal prints no empty line before the section.
    pub(super) tight: bool,
    /// Blocks, each with the formats in which it appears.
    pub(super) blocks: Vec<(Formats, Block)>,
}

impl Section {
    pub(super) fn new(id: impl Into<String>, title: impl Into<String>) -> Section {
        Section { id: id.into(), title: title.into(), ..Section::default() }
    }

    /// Lists the section in the page's navigation under this name.
    pub(super) fn nav(mut self, name: &'static str) -> Section {
        self.nav = Some(name);
        self
    }

    /// Adds a block that appears in these formats. Does nothing if there is no block.
    pub(super) fn on(mut self, formats: Formats, block: impl Into<Option<Block>>) -> Section {
        self.blocks.extend(block.into().map(|block| (formats, block)));
        self
    }

    /// Restricts each block to these formats. A block without a remaining format does not appear.
    pub(super) fn only(mut self, formats: Formats) -> Section {
        self.blocks.iter_mut().for_each(|(block_formats, _)| block_formats.0 &= formats.0);
        self
    }

    /// Adds the introduction of the section on the page; see [`Text::marked`].
    pub(super) fn intro(self, marked: &str) -> Section {
        self.on(PAGE, Block::Intro(Text::marked(marked)))
    }
}

/// A part of a section. A "class" is a class of the page's style sheet (`page/style.css`), which
/// sets the colour: `pass`, `fail`, `invalid`, `bad`, and so on. It is empty for the normal colour.
pub(super) enum Block {
    /// The reason why the result is partial, as a sentence without a full stop.
    Partial(&'static str),
    /// The verdict on the page. `word` is the verdict itself, such as `PASS`.
    Verdict {
        class: &'static str,
        word: String,
        summary: String,
        reasons: Vec<String>,
    },
    /// The first line on the terminal. It has a class, a text in the colour of that class, and a
    /// plain text.
    Banner(&'static str, String, String),
    /// Values in large type: class, value, description.
    Tiles(Vec<(&'static str, String, Text)>),
    /// The introduction of a section.
    Intro(Text),
    /// A remark in small type.
    Note(Text),
    Paragraph(Text),
    List(List),
    Table(Table),
    /// Names with their values.
    Facts(Vec<(Text, Text)>),
    /// Blocks side by side, if the page is wide enough.
    Columns(Vec<Block>),
    /// Blocks in one frame.
    Card(Vec<Block>),
    /// A chart and its legend: colours with their texts.
    Figure(Chart, Vec<(Ink, String)>),
    Code(String),
    /// Collapsible blocks below the `summary`, which is always visible. `open` is true if the
    /// blocks are visible at first.
    Fold {
        summary: String,
        open: bool,
        blocks: Vec<Block>,
    },
    /// A line on the terminal: a name in the left column, and a text.
    Line(&'static str, Text),
    /// A heading within a section.
    Subheading(String),
}

/// A list of sentences.
pub(super) struct List {
    pub(super) items: Vec<Text>,
    /// Name in a column before each item on the terminal.
    pub(super) name: Option<&'static str>,
    /// Prefix of each item on the terminal.
    pub(super) prefix: &'static str,
    /// Maximum number of items on the terminal.
    pub(super) terminal_max: usize,
    /// Noun for an item, in the terminal's note on omitted items.
    pub(super) noun: &'static str,
}

impl List {
    /// Creates a list that the terminal does not shorten.
    pub(super) fn of<T: Into<Text>>(items: impl IntoIterator<Item = T>) -> List {
        let items = items.into_iter().map(Into::into).collect();
        List { items, name: None, prefix: "", terminal_max: usize::MAX, noun: "" }
    }
}

/// A column of a table.
pub(super) struct Column {
    /// Heading on the terminal and in Markdown.
    pub(super) head: Text,
    /// Heading on the page.
    pub(super) page_head: Text,
    pub(super) formats: Formats,
    /// True if heading and cells are aligned to the left.
    pub(super) align_left: bool,
    /// True if the page may wrap the cells.
    pub(super) wraps: bool,
}

impl Column {
    /// Creates a column of numbers: aligned to the right, in all formats. The heading is marked
    /// text (see [`Text::marked`]).
    pub(super) fn number(head: &str) -> Column {
        let head = Text::marked(head);
        Column { page_head: head.clone(), head, formats: ALL, align_left: false, wraps: false }
    }

    /// Creates a column of short texts: aligned to the left, in all formats.
    pub(super) fn text(head: &str) -> Column {
        Column { align_left: true, ..Column::number(head) }
    }

    /// Creates a column of long texts: aligned to the left, in all formats. The page wraps the
    /// cells.
    pub(super) fn prose(head: &str) -> Column {
        Column { wraps: true, ..Column::text(head) }
    }

    /// Replaces the heading on the page by other marked text.
    pub(super) fn page_head(self, head: &str) -> Column {
        Column { page_head: Text::marked(head), ..self }
    }

    /// Replaces the formats in which the column appears.
    pub(super) fn only(self, formats: Formats) -> Column {
        Column { formats, ..self }
    }
}

/// A table. Its rows are in groups: a group is a row with its sub-rows.
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) groups: Vec<Vec<Row>>,
    /// Style class of each group on the page. `None` if the page does not mark the groups.
    pub(super) group_class: Option<&'static str>,
    /// Maximum number of rows on the terminal.
    pub(super) terminal_max: usize,
    /// Noun for a row, in the terminal's note on omitted rows.
    pub(super) noun: &'static str,
    /// Total number of rows, if the table has only a selection of them. `None` if it has all rows.
    pub(super) total_rows: Option<usize>,
}

/// A row.
pub(super) struct Row {
    pub(super) cells: Vec<Text>,
    /// Number of columns at the left that stay empty, if one cell spans all other columns. `None`
    /// if the row has a cell per column.
    pub(super) across: Option<usize>,
    /// True if the row is a sub-row of the row above.
    pub(super) is_sub_row: bool,
    pub(super) formats: Formats,
}

impl Row {
    /// Creates a sub-row that appears only on the page.
    pub(super) fn sub_row(cells: Vec<Text>) -> Row {
        Row { cells, across: None, is_sub_row: true, formats: PAGE }
    }

    /// Creates a row with one text across all columns except the first `skip` columns.
    pub(super) fn across(skip: usize, text: impl Into<Text>, formats: Formats) -> Row {
        Row { cells: vec![text.into()], across: Some(skip), is_sub_row: skip > 0, formats }
    }
}

impl Table {
    /// Creates a table with these columns and no rows.
    pub(super) fn new(columns: impl IntoIterator<Item = Column>) -> Table {
        Table {
            columns: columns.into_iter().collect(),
            groups: Vec::new(),
            group_class: None,
            terminal_max: usize::MAX,
            noun: "",
            total_rows: None,
        }
    }

    /// Adds a column of numbers whose heading is plain text, such as a name from the input.
    pub(super) fn column(&mut self, head: impl Into<Text>) {
        let head = head.into();
        let page_head = head.clone();
        self.columns.push(Column { head, page_head, ..Column::number("") });
    }

    /// Adds a row with a cell per column, as a group without sub-rows.
    pub(super) fn row(&mut self, cells: Vec<Text>) {
        self.groups.push(vec![Row { cells, across: None, is_sub_row: false, formats: ALL }]);
    }

    /// Adds sub-rows to each row. `class` is the style class of each group. `sub_rows` returns the
    /// sub-rows of the row with this index.
    pub(super) fn with_sub_rows(
        mut self,
        class: &'static str,
        sub_rows: impl Fn(usize) -> Vec<Row>,
    ) -> Table {
        self.group_class = Some(class);
        self.groups.iter_mut().enumerate().for_each(|(index, rows)| rows.extend(sub_rows(index)));
        self
    }

    /// Limits the number of rows on the terminal. `noun` names a row in the note on omitted rows.
    pub(super) fn at_most(self, terminal_max: usize, noun: &'static str) -> Table {
        Table { terminal_max, noun, ..self }
    }

    /// Returns the rows that appear in a format, with sub-rows.
    pub(super) fn rows(&self, format: Formats) -> impl Iterator<Item = &Row> {
        self.groups.iter().flatten().filter(move |row| row.formats.has(format))
    }

    /// Returns the indexes of the columns that appear in a format.
    pub(super) fn column_indexes(&self, format: Formats) -> Vec<usize> {
        (0..self.columns.len()).filter(|index| self.columns[*index].formats.has(format)).collect()
    }
}

/// Formatted text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Text(pub(super) Vec<Span>);

/// A span of formatted text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Span {
    Plain(String),
    Code(String),
    /// A name from the input, such as a method.
    Name(String),
    Bold(String),
    Small(String),
    /// A text, and the name of the glossary entry that explains it. The page links the two.
    Term(String, String),
    /// A class of the style sheet, and the text in the colour of that class.
    Tone(&'static str, String),
    /// A text, and the URL that it links to. A link to an anchor of the document begins with `#`.
    Link(String, String),
    /// A target of links in the document. Its name consists of lower-case letters, digits and
    /// hyphens.
    Anchor(String),
    /// The mark `~` of a number that is based on few calls.
    Weak,
    /// A bar before a number. Its length is a share of the longest bar, from 0 to 1.
    Bar(f64),
    /// An HTML element that only the page can draw; it is not escaped.
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
    /// Parses trusted text. `[text](entry)` is a term that the glossary entry explains, and text
    /// between backticks is code.
    pub(super) fn marked(prose: &str) -> Text {
        let mut spans = Vec::new();
        let mut remaining = prose;
        while let Some(mark_index) = remaining.find(['[', '`']) {
            let (plain_text, from_mark) = remaining.split_at(mark_index);
            spans.extend(Text::from(plain_text).0);
            let code = from_mark.strip_prefix('`').and_then(|code| code.split_once('`'));
            let term = from_mark[1..].split_once("](").and_then(|(text, after_mark)| {
                let (entry, remaining) = after_mark.split_once(')')?;
                Some((Span::Term(text.into(), entry.into()), remaining))
            });
            let code = code.map(|(code, remaining)| (Span::Code(code.into()), remaining));
            let (span, after_mark) = code.or(term).expect("marks of our own prose are closed");
            spans.push(span);
            remaining = after_mark;
        }
        spans.extend(Text::from(remaining).0);
        Text(spans)
    }

    /// Returns the text without formatting.
    pub(super) fn plain(&self) -> String {
        use Span::*;
        let plain = |span: &Span| match span {
            Plain(text) | Code(text) | Name(text) | Bold(text) | Small(text) => text.clone(),
            Term(text, _) | Tone(_, text) | Link(text, _) => text.clone(),
            Weak => "~".to_owned(),
            Anchor(_) | Bar(_) | Drawing(_) => String::new(),
        };
        self.0.iter().map(plain).collect()
    }
}

/// Creates text in the colour of a class of the style sheet, such as `bad`, `kept` or `limited`. If
/// the class is empty, creates plain text.
pub(super) fn tone(class: &'static str, text: impl Into<String>) -> Text {
    let text = text.into();
    if class.is_empty() { Text::from(text) } else { Span::Tone(class, text).into() }
}

pub(super) fn code(text: impl Into<String>) -> Text {
    Span::Code(text.into()).into()
}

/// Creates the text of a name from the input, such as a method.
pub(super) fn name(text: impl Into<String>) -> Text {
    Span::Name(text.into()).into()
}

pub(super) fn bold(text: impl Into<String>) -> Text {
    Span::Bold(text.into()).into()
}

/// Concatenates texts: `text!["a ", code("b")]`.
macro_rules! text {
    ($($part:expr),+ $(,)?) => {
        $crate::report::document::Text([$($crate::report::document::Text::from($part)),+].map(|text| text.0).concat())
    };
}
/// Creates the cells of a row from their texts.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$($crate::report::document::Text::from($cell)),*] };
}
/// Creates a table with a row for each item of an iterator. `table!(items, |item| HEAD => CELL, …)`
/// lists the columns: `HEAD` is a [`Column`], and `CELL` the expression of its cell for one item.
macro_rules! table {
    ($rows:expr, |$row:pat_param| $($column:expr => $cell:expr),+ $(,)?) => {{
        let mut table = $crate::report::document::Table::new([$($column),+]);
        for $row in $rows {
            table.row($crate::report::document::cells![$($cell),+]);
        }
        table
    }};
}
pub(super) use {cells, table, text};
