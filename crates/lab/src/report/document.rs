//! The document of a result: sections of text, lists, tables, facts and charts.
//!
//! One function per kind of result builds the document (`run.rs`, `capacity.rs`, `compare.rs`,
//! `equal.rs`, `assessment.rs`, `study/document.rs`, `study/load/document.rs`). A document has two
//! lists of sections: the summary, which the terminal (`terminal.rs`) and Markdown (`markdown.rs`)
//! show, and the page (`page.rs`), which is always the HTML page. Terminal and Markdown show the
//! same blocks in the same order. The terminal has less space: it leaves out the sections that
//! are details ([`Section::detail`]), and shortens long lists and tables.
//!
//! `table!(&rows, |row| Column::text("name") => &row.name)` creates a table with one row for each of
//! `rows`. `text!["a ", code("b")]` joins texts. `cells![…]` creates the cells of a row. `name(…)`
//! and `code(…)` mark text from the input. In a heading, intro or note, `[threshold](threshold)` is
//! a text that links to the glossary entry "threshold" on the page.

use super::chart::{Chart, Ink};

/// The document of one result.
pub(crate) struct Document {
    /// Command that made the result. The page shows it above its heading.
    pub(crate) command: &'static str,
    /// Heading of the page.
    pub(crate) title: String,
    /// The title of the browser window. The page appends "weir".
    pub(crate) window: String,
    /// The first heading of the Markdown.
    pub(crate) heading: String,
    /// Introduction of the page: lines below its heading.
    pub(crate) intro: Vec<Text>,
    /// Sections of the terminal and of Markdown.
    pub(crate) summary: Vec<Section>,
    /// Sections of the page.
    pub(crate) page: Vec<Section>,
    /// True if the page ends with a glossary.
    pub(crate) glossary: bool,
}

/// How the terminal begins a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Start {
    /// With an empty line.
    #[default]
    EmptyLine,
    /// With an empty line and the section's title.
    Title,
    /// On the next line.
    NextLine,
    /// The terminal leaves the section out.
    Omitted,
}

/// A heading with its blocks.
#[derive(Default)]
pub(crate) struct Section {
    /// Anchor on the page; empty for a section without heading.
    pub(crate) id: String,
    /// Heading; empty for a section without heading.
    pub(crate) title: String,
    /// Name in the page's navigation; `None` if the navigation does not list the section.
    pub(crate) nav: Option<&'static str>,
    /// How the terminal begins the section.
    pub(crate) start: Start,
    pub(crate) blocks: Vec<Block>,
}

impl Section {
    pub(crate) fn new(id: impl Into<String>, title: impl Into<String>) -> Section {
        Section { id: id.into(), title: title.into(), ..Section::default() }
    }

    /// Lists the section in the page's navigation under this name.
    pub(crate) fn nav(mut self, name: &'static str) -> Section {
        self.nav = Some(name);
        self
    }

    /// Changes how the terminal begins the section.
    pub(crate) fn start(self, start: Start) -> Section {
        Section { start, ..self }
    }

    /// Makes the section a detail, which the terminal leaves out.
    pub(crate) fn detail(self) -> Section {
        self.start(Start::Omitted)
    }

    /// Adds a block. Does nothing if there is no block.
    pub(crate) fn add(mut self, block: impl Into<Option<Block>>) -> Section {
        self.blocks.extend(block.into());
        self
    }

    /// Adds a heading and the blocks of another section.
    pub(crate) fn add_section(mut self, heading: String, other: Section) -> Section {
        self.blocks.push(Block::Subheading(heading));
        self.blocks.extend(other.blocks);
        self
    }

    /// Adds the introduction of the section on the page; see [`Text::marked`].
    pub(crate) fn intro(self, marked: &str) -> Section {
        self.add(Block::Intro(Text::marked(marked)))
    }
}

/// A part of a section. A "class" is a class of the page's style sheet (`page/style.css`), which
/// sets the colour: `pass`, `fail`, `invalid`, `bad`, and so on. It is empty for the normal colour.
pub(crate) enum Block {
    /// The reason why the result is partial, as a sentence without a full stop and a capital letter.
    Partial(&'static str),
    /// The verdict: the verdict itself in the colour of the class, such as `PASS`, the subject, and
    /// the reasons. The page has its subject in its heading.
    Verdict {
        class: &'static str,
        word: String,
        subject: String,
        summary: String,
        reasons: List,
    },
    /// Values in large type: class, value, description.
    Tiles(Vec<(&'static str, String, Text)>),
    /// The introduction of a section. Only the page shows it.
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
    /// A heading within a section.
    Subheading(String),
}

/// A list of sentences.
#[derive(Default)]
pub(crate) struct List {
    pub(crate) items: Vec<Text>,
    /// Name in a column before each item on the terminal.
    pub(crate) name: Option<&'static str>,
    /// Prefix of each item on the terminal.
    pub(crate) prefix: &'static str,
    /// Maximum number of items on the terminal.
    pub(crate) terminal_max: usize,
    /// Noun for an item, in the terminal's note on omitted items.
    pub(crate) noun: &'static str,
}

impl List {
    /// Creates a list that the terminal does not shorten.
    pub(crate) fn of<T: Into<Text>>(items: impl IntoIterator<Item = T>) -> List {
        let items = items.into_iter().map(Into::into).collect();
        List { items, name: None, prefix: "", terminal_max: usize::MAX, noun: "" }
    }
}

/// A column of a table.
pub(crate) struct Column {
    pub(crate) head: Text,
    /// True if heading and cells are aligned to the left.
    pub(crate) align_left: bool,
    /// True if the page may wrap the cells.
    pub(crate) wraps: bool,
}

impl Column {
    /// Creates a column of numbers, aligned to the right. The heading is marked text (see
    /// [`Text::marked`]).
    pub(crate) fn number(head: &str) -> Column {
        Column { head: Text::marked(head), align_left: false, wraps: false }
    }

    /// Creates a column of short texts, aligned to the left.
    pub(crate) fn text(head: &str) -> Column {
        Column { align_left: true, ..Column::number(head) }
    }

    /// Creates a column of long texts, aligned to the left. The page wraps the cells.
    pub(crate) fn prose(head: &str) -> Column {
        Column { wraps: true, ..Column::text(head) }
    }
}

/// A table. Its rows are in groups: a group is a row with its sub-rows.
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) groups: Vec<Vec<Row>>,
    /// Style class of each group on the page. `None` if the page does not mark the groups.
    pub(crate) group_class: Option<&'static str>,
    /// The rows of the terminal: their indexes, counted over all groups, and a note on the rows that
    /// it leaves out. `None` if the terminal shows all rows.
    pub(crate) excerpt: Option<(Vec<usize>, Option<String>)>,
}

/// A row.
pub(crate) struct Row {
    pub(crate) cells: Vec<Text>,
    /// Number of columns at the left that stay empty, if one cell spans all other columns. `None`
    /// if the row has a cell per column.
    pub(crate) across: Option<usize>,
    /// True if the row is a sub-row of the row above.
    pub(crate) is_sub_row: bool,
}

impl Row {
    /// Creates a row with a cell per column.
    pub(crate) fn new(cells: Vec<Text>) -> Row {
        Row { cells, across: None, is_sub_row: false }
    }

    pub(crate) fn sub_row(cells: Vec<Text>) -> Row {
        Row { is_sub_row: true, ..Row::new(cells) }
    }

    /// Creates a row with one text across all columns except the first `skip` columns.
    pub(crate) fn across(skip: usize, text: impl Into<Text>) -> Row {
        Row { cells: vec![text.into()], across: Some(skip), is_sub_row: skip > 0 }
    }
}

impl Table {
    /// Creates a table with these columns and no rows.
    pub(crate) fn new(columns: impl IntoIterator<Item = Column>) -> Table {
        Table {
            columns: columns.into_iter().collect(),
            groups: Vec::new(),
            group_class: None,
            excerpt: None,
        }
    }

    /// Adds a column of numbers whose heading is plain text, such as a name from the input.
    pub(crate) fn column(&mut self, head: impl Into<Text>) {
        self.columns.push(Column { head: head.into(), ..Column::number("") });
    }

    /// Adds a row with a cell per column, as a group without sub-rows.
    pub(crate) fn row(&mut self, cells: Vec<Text>) {
        self.groups.push(vec![Row::new(cells)]);
    }

    /// Adds sub-rows to each row. `class` is the style class of each group. `sub_rows` returns the
    /// sub-rows of the row with this index.
    pub(crate) fn with_sub_rows(
        mut self,
        class: &'static str,
        sub_rows: impl Fn(usize) -> Vec<Row>,
    ) -> Table {
        self.group_class = Some(class);
        self.groups.iter_mut().enumerate().for_each(|(index, rows)| rows.extend(sub_rows(index)));
        self
    }

    /// Limits the number of rows on the terminal. `noun` names a row in the note on omitted rows.
    pub(crate) fn at_most(self, terminal_max: usize, noun: &str) -> Table {
        let total = self.rows().count();
        self.excerpt((0..total.min(terminal_max)).collect(), total, noun)
    }

    /// Limits the terminal to the rows with these indexes, in this order. `total` and `noun` are for
    /// the note on omitted rows.
    pub(crate) fn excerpt(self, rows: Vec<usize>, total: usize, noun: &str) -> Table {
        let note = omission_note(total, rows.len(), noun);
        Table { excerpt: Some((rows, note)), ..self }
    }

    /// Returns all rows, with sub-rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.groups.iter().flatten()
    }
}

/// Returns the terminal's note on items that it leaves out, or `None` if it shows all items.
pub(super) fn omission_note(total: usize, shown: usize, noun: &str) -> Option<String> {
    let remaining = total.checked_sub(shown).filter(|remaining| *remaining > 0)?;
    let plural_ending = if remaining == 1 { "" } else { "s" };
    Some(format!("  … and {remaining} more {noun}{plural_ending}; --out DIR saves all of them"))
}

/// Formatted text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Text(pub(crate) Vec<Span>);

/// A span of formatted text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Span {
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
    pub(crate) fn marked(prose: &str) -> Text {
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
    pub(crate) fn plain(&self) -> String {
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
pub(crate) fn tone(class: &'static str, text: impl Into<String>) -> Text {
    let text = text.into();
    if class.is_empty() { Text::from(text) } else { Span::Tone(class, text).into() }
}

pub(crate) fn code(text: impl Into<String>) -> Text {
    Span::Code(text.into()).into()
}

/// Creates the text of a name from the input, such as a method.
pub(crate) fn name(text: impl Into<String>) -> Text {
    Span::Name(text.into()).into()
}

pub(crate) fn bold(text: impl Into<String>) -> Text {
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
pub(crate) use {cells, table, text};
