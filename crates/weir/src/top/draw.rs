//! Lays out a view (the values of one interval) as lines of a given width, and draws the lines on a
//! terminal.
//!
//! The text uses only colours that the terminal itself defines, so it is readable on light and dark
//! backgrounds. No information is in colours alone.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use lab::wording::number;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as TerminalLine, Span};
use ratatui::widgets::Paragraph;

use super::view::{ChainView, GroupView, UpstreamView, View};

/// Maximum width of a name, in cells. A longer name is shortened and ends with `…`.
const NAME_WIDTH_MAX: usize = 28;
/// Maximum width of a state, in cells.
const STATE_WIDTH_MAX: usize = 28;
/// Width of the space between two columns or items.
const GAP: usize = 2;
/// Number of columns of the table that are aligned to the left: names and states.
const LEFT_COLUMNS: usize = 2;
/// Text of an unknown value.
const UNKNOWN: &str = "–";

/// Style of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    Plain,
    Quiet,
    Strong,
    Good,
    Doubtful,
    Bad,
}

impl Tone {
    /// Returns the style on the terminal. Avoids yellow, which is unreadable on a light background.
    fn style(self, colour: bool) -> Style {
        let coloured = |tint| if colour { Style::new().fg(tint) } else { Style::new() };
        match self {
            Tone::Plain => Style::new(),
            Tone::Quiet => Style::new().add_modifier(Modifier::DIM),
            Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
            Tone::Good => coloured(Color::Green),
            Tone::Doubtful => coloured(Color::Magenta).add_modifier(Modifier::BOLD),
            Tone::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// A line of styled texts. `Display` writes the text without styles.
#[derive(Debug, Clone, Default)]
pub(super) struct Line(Vec<(Tone, String)>);

impl Line {
    fn new(tone: Tone, text: impl Into<String>) -> Line {
        Line(vec![(tone, text.into())])
    }

    fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// Appends a text after a gap.
    fn push(&mut self, tone: Tone, text: impl Into<String>) {
        if !self.0.is_empty() {
            self.0.push((Tone::Plain, " ".repeat(GAP)));
        }
        self.0.push((tone, text.into()));
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = self.0.iter().map(|(_, text)| text.as_str()).collect();
        f.write_str(text.trim_end())
    }
}

/// Order of the upstreams of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The order of the configuration.
    Configured,
    Attempts,
    Failed,
    P99,
    Lag,
}

impl Order {
    const ALL: [Order; 5] =
        [Order::Configured, Order::Attempts, Order::Failed, Order::P99, Order::Lag];

    fn name(self) -> &'static str {
        match self {
            Order::Configured => "configuration",
            Order::Attempts => "calls/s",
            Order::Failed => "failed/s",
            Order::P99 => "p99",
            Order::Lag => "lag",
        }
    }

    /// Returns the value by which upstreams are sorted, in descending order. An unknown value sorts
    /// last. With [`Order::Configured`] all values are equal, so a stable sort keeps the order.
    fn key(self, upstream: &UpstreamView) -> f64 {
        let key = match self {
            Order::Configured => None,
            Order::Attempts => upstream.attempts_rate,
            Order::Failed => upstream.failed_rate,
            Order::P99 => upstream.p99_ms,
            Order::Lag => upstream.lag.map(|lag| lag as f64),
        };
        key.unwrap_or(-1.0)
    }
}

/// The newest view, with the order and the scroll position that the user has chosen.
#[derive(Debug)]
pub(super) struct Screen {
    admin: SocketAddr,
    view: View,
    /// The reason why the newest status could not be read, and the age of the view. `None` if the
    /// status was read.
    error: Option<(String, Duration)>,
    /// True if the gateway was restarted since the previous view.
    restarted: bool,
    order: Order,
    /// Number of lines about chains that are hidden above the first visible line.
    scrolled_lines: u16,
}

impl Screen {
    pub(super) fn new(admin: SocketAddr, view: View) -> Screen {
        Screen {
            admin,
            view,
            error: None,
            restarted: false,
            order: Order::Configured,
            scrolled_lines: 0,
        }
    }

    pub(super) fn update(&mut self, view: View) {
        self.restarted = view.process != self.view.process;
        self.view = view;
        self.error = None;
    }

    /// Reports that the status could not be read. The last view stays on the screen. `age` is the
    /// age of that view.
    pub(super) fn report_error(&mut self, error: &str, age: Duration) {
        self.error = Some((error.to_owned(), age));
    }

    pub(super) fn sort_by_next(&mut self) {
        let index = Order::ALL.iter().position(|order| *order == self.order).unwrap_or_default();
        self.order = Order::ALL[(index + 1) % Order::ALL.len()];
    }

    /// Scrolls down by a number of lines, or up if the number is negative.
    pub(super) fn scroll(&mut self, lines: i16) {
        self.scrolled_lines = self.scrolled_lines.saturating_add_signed(lines);
    }

    /// Returns all lines as text.
    pub(super) fn text(&self, width: u16) -> Vec<String> {
        let width = usize::from(width);
        let lines = self.gateway_lines(width).into_iter().chain(self.chain_lines(width));
        lines.map(|line| line.to_string()).collect()
    }

    /// Draws as many lines as fit. The lines about the gateway stay at the top, and the help for
    /// keys at the bottom.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, colour: bool) {
        let area = frame.area();
        let width = usize::from(area.width);
        let mut lines = self.gateway_lines(width);
        let chain_lines = self.chain_lines(width);
        let visible_lines = usize::from(area.height).saturating_sub(lines.len() + 1);
        let scrolled_max = chain_lines.len().saturating_sub(visible_lines);
        self.scrolled_lines =
            self.scrolled_lines.min(u16::try_from(scrolled_max).unwrap_or(u16::MAX));
        let lines_below = scrolled_max - usize::from(self.scrolled_lines);
        lines.extend(
            chain_lines.into_iter().skip(usize::from(self.scrolled_lines)).take(visible_lines),
        );
        lines.truncate(usize::from(area.height.saturating_sub(1)));
        let terminal_lines = lines.iter().map(|line| {
            let spans = line.0.iter().map(|(tone, text)| Span::styled(&**text, tone.style(colour)));
            TerminalLine::from_iter(spans)
        });
        frame.render_widget(Paragraph::new(terminal_lines.collect::<Vec<_>>()), area);
        if area.height > 1 {
            let bottom = Rect { y: area.bottom() - 1, height: 1, ..area };
            let mut keys = format!("q quit   s sort: {}", self.order.name());
            if scrolled_max > 0 {
                keys = format!("{keys}   ↑↓ {lines_below} more");
            }
            frame.render_widget(Paragraph::new(keys).style(Tone::Quiet.style(colour)), bottom);
        }
    }

    /// Returns the lines about the gateway as a whole.
    fn gateway_lines(&self, width: usize) -> Vec<Line> {
        let view = &self.view;
        let mut title = Line::new(Tone::Strong, format!("weir {}", view.version));
        title.push(Tone::Plain, self.admin.to_string());
        title.push(Tone::Quiet, format!("up {}", number::span(view.uptime_seconds.round())));
        title.push(Tone::Quiet, format!("configuration {}", view.config_generation));
        let mut lines = vec![title];
        if let Some((error, age)) = &self.error {
            let age = number::span(age.as_secs() as f64);
            lines.push(Line::new(
                Tone::Bad,
                format!("no status for {age}: {}", replace_controls(error)),
            ));
        } else if self.restarted {
            lines.push(Line::new(Tone::Doubtful, "the gateway was restarted"));
        }
        let tone_of_failures = |rate: Option<f64>| {
            if rate.is_some_and(|rate| rate > 0.0) { Tone::Bad } else { Tone::Plain }
        };
        let items = [
            (Tone::Strong, format!("calls {}", format_rate(view.calls_rate))),
            (Tone::Plain, format!("errors {}", format_rate(view.errors_rate))),
            (
                tone_of_failures(view.failed_rate),
                format!("failed {}", format_rate(view.failed_rate)),
            ),
            (
                tone_of_failures(view.refused_rate),
                format!("refused {}", format_rate(view.refused_rate)),
            ),
            (Tone::Plain, format!("retries {}", format_rate(view.retries_rate))),
            (
                Tone::Plain,
                format!("cache hits {}", format_or_unknown(view.hit_share, number::percent)),
            ),
            (Tone::Plain, format!("in flight {}", number::count(view.in_flight))),
            (Tone::Plain, format!("waiting {}", number::count(view.waiting))),
            (Tone::Plain, format!("connections {}", number::count(view.connections))),
            (
                Tone::Plain,
                format!(
                    "memory {} of {}",
                    number::bytes(view.memory_bytes as f64),
                    number::bytes(view.memory_bytes_max as f64)
                ),
            ),
        ];
        lines.extend(wrap_items(items, width));
        lines
    }

    /// Returns the lines about all chains.
    fn chain_lines(&self, width: usize) -> Vec<Line> {
        self.view.chains.iter().flat_map(|chain| self.lines_of_chain(chain, width)).collect()
    }

    fn lines_of_chain(&self, chain: &ChainView, width: usize) -> Vec<Line> {
        let mut title = Line::new(Tone::Strong, format!("chain {}", replace_controls(&chain.name)));
        match chain.head {
            Some(head) => title.push(Tone::Plain, format!("head {}", number::count(head))),
            None => title.push(Tone::Bad, "no head"),
        }
        if let Some(age) = chain.head_age_seconds {
            title.push(Tone::Quiet, format!("{} old", number::span(age.round())));
        }
        let mut lines = vec![Line::default(), title];
        let mut upstreams: Vec<&UpstreamView> = chain.upstreams.iter().collect();
        upstreams.sort_by(|left, right| self.order.key(right).total_cmp(&self.order.key(left)));
        lines.extend(table(&upstreams, width));
        for upstream in upstreams {
            if let Some(fault) = &upstream.fault {
                let (name, reason) =
                    (replace_controls(&upstream.name), replace_controls(&fault.reason));
                let since = number::span(fault.since_seconds.round());
                let text = format!("{name}: {reason}, since {since}");
                lines.push(Line::new(Tone::Bad, truncate(&text, width)));
            }
            if let Some(reason) =
                upstream.cordon.as_ref().and_then(|cordon| cordon.reason.as_deref())
            {
                let text =
                    format!("{}: {}", replace_controls(&upstream.name), replace_controls(reason));
                lines.push(Line::new(Tone::Doubtful, truncate(&text, width)));
            }
        }
        lines.extend(chain.groups.iter().flat_map(|group| group_lines(group, width)));
        lines
    }
}

/// A column of the table of upstreams.
struct Column {
    name: &'static str,
    /// Columns with a higher rank are omitted first on a narrow terminal. Rank 0 is never omitted.
    rank: u8,
    /// Returns the style and the text of an upstream's cell.
    cell: fn(&UpstreamView) -> (Tone, String),
}

/// The columns in their order.
const COLUMNS: [Column; 9] = [
    Column {
        name: "upstream",
        rank: 0,
        cell: |upstream| (Tone::Plain, truncate(&replace_controls(&upstream.name), NAME_WIDTH_MAX)),
    },
    Column { name: "state", rank: 0, cell: state_cell },
    Column {
        name: "calls/s",
        rank: 1,
        cell: |upstream| (Tone::Plain, format_or_unknown(upstream.attempts_rate, number::short)),
    },
    Column {
        name: "failed/s",
        rank: 2,
        cell: |upstream| {
            let is_failing = upstream.failed_rate.is_some_and(|rate| rate > 0.0);
            let tone = if is_failing { Tone::Bad } else { Tone::Plain };
            (tone, format_or_unknown(upstream.failed_rate, number::short))
        },
    },
    Column {
        name: "p50 ms",
        rank: 6,
        cell: |upstream| (Tone::Plain, format_or_unknown(upstream.p50_ms, number::short)),
    },
    Column {
        name: "p99 ms",
        rank: 4,
        cell: |upstream| (Tone::Plain, format_or_unknown(upstream.p99_ms, number::short)),
    },
    Column {
        name: "in flight",
        rank: 5,
        cell: |upstream| (Tone::Plain, number::count(upstream.in_flight)),
    },
    Column {
        name: "head",
        rank: 7,
        cell: |upstream| (Tone::Plain, format_or_unknown(upstream.head, number::count)),
    },
    Column {
        name: "lag",
        rank: 3,
        cell: |upstream| {
            let tone =
                if upstream.lag.unwrap_or_default() > 0 { Tone::Doubtful } else { Tone::Plain };
            (tone, format_or_unknown(upstream.lag, number::count))
        },
    },
];

/// Returns the state with the time until it ends. A cordon stands before the state.
fn state_cell(upstream: &UpstreamView) -> (Tone, String) {
    let state = replace_controls(&upstream.state);
    if let Some(cordon) = &upstream.cordon {
        let text = format!("cordoned {}, {state}", format_short_span(cordon.ends_seconds));
        return (Tone::Doubtful, truncate(&text, STATE_WIDTH_MAX));
    }
    let tone = match &*state {
        "healthy" => Tone::Good,
        "ejected" | "foreign" => Tone::Bad,
        _ => Tone::Doubtful,
    };
    let text = match upstream.state_ends_seconds {
        Some(seconds) => format!("{state} {}", format_short_span(seconds)),
        None => state,
    };
    (tone, truncate(&text, STATE_WIDTH_MAX))
}

/// A column with the cells of all rows. The first cell is the heading.
struct FilledColumn {
    rank: u8,
    width: usize,
    cells: Vec<(Tone, String)>,
}

impl FilledColumn {
    fn new(column: &Column, upstreams: &[&UpstreamView]) -> FilledColumn {
        let heading = std::iter::once((Tone::Quiet, column.name.to_owned()));
        let cells: Vec<(Tone, String)> =
            heading.chain(upstreams.iter().map(|upstream| (column.cell)(upstream))).collect();
        let widths = cells.iter().map(|(_, text)| text.chars().count());
        FilledColumn { rank: column.rank, width: widths.max().unwrap_or_default(), cells }
    }
}

/// Returns the table of upstreams, with the columns that fit into the width.
fn table(upstreams: &[&UpstreamView], width: usize) -> Vec<Line> {
    let mut columns: Vec<FilledColumn> =
        COLUMNS.iter().map(|column| FilledColumn::new(column, upstreams)).collect();
    let table_width = |columns: &[FilledColumn]| {
        columns.iter().map(|column| column.width + GAP).sum::<usize>().saturating_sub(GAP)
    };
    while table_width(&columns) > width
        && let Some(index) = (0..columns.len())
            .filter(|index| columns[*index].rank > 0)
            .max_by_key(|index| columns[*index].rank)
    {
        columns.remove(index);
    }
    let row_line = |row: usize| {
        let mut line = Line::default();
        for (index, FilledColumn { width, cells, .. }) in columns.iter().enumerate() {
            let (tone, text) = &cells[row];
            let padded = if index < LEFT_COLUMNS {
                format!("{text:<width$}")
            } else {
                format!("{text:>width$}")
            };
            line.push(*tone, padded);
        }
        line
    };
    (0..=upstreams.len()).map(row_line).collect()
}

/// Returns the lines about a group. Its candidates are the upstreams that get its calls now.
fn group_lines(view: &GroupView, width: usize) -> Vec<Line> {
    let group = &view.group;
    let candidates = match group.candidates.len() {
        0 => "no upstream".to_owned(),
        _ => replace_controls(&group.candidates.join(", ")),
    };
    let tone = if group.candidates.is_empty() { Tone::Bad } else { Tone::Quiet };
    let in_flight = match group.in_flight_limit {
        Some(limit) => {
            let limit = number::count(u64::from(limit));
            format!("in flight {} of {limit}", number::count(group.in_flight))
        }
        None => format!("in flight {}", number::count(group.in_flight)),
    };
    let is_shedding = view.shed_rate.is_some_and(|rate| rate > 0.0);
    let shed_tone = if is_shedding { Tone::Bad } else { Tone::Quiet };
    let name = replace_controls(&group.name);
    let title = format!("group {name}, {}: {candidates}", replace_controls(&group.balance));
    let items = [
        (tone, truncate(&title, width)),
        (Tone::Quiet, in_flight),
        (Tone::Quiet, format!("queued {}", number::count(group.queued))),
        (shed_tone, format!("shed {}", format_rate(view.shed_rate))),
    ];
    wrap_items(items, width)
}

/// Puts items side by side. An item that does not fit starts the next line.
fn wrap_items(items: impl IntoIterator<Item = (Tone, String)>, width: usize) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    for (tone, text) in items {
        let mut line = lines.pop().unwrap_or_default();
        let fits = line.0.is_empty() || line.width() + GAP + text.chars().count() <= width;
        if !fits {
            lines.push(std::mem::take(&mut line));
        }
        line.push(tone, text);
        lines.push(line);
    }
    lines
}

/// Formats a rate per second.
fn format_rate(rate: Option<f64>) -> String {
    format_or_unknown(rate, |rate| format!("{}/s", number::short(rate)))
}

fn format_or_unknown<T>(value: Option<T>, format: impl Fn(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), format)
}

/// Formats a duration in its largest unit: `12s`, `29m`, `5h`, `3d`.
fn format_short_span(seconds: f64) -> String {
    match seconds.max(0.0) {
        seconds if seconds < 60.0 => format!("{seconds:.0}s"),
        seconds if seconds < 3600.0 => format!("{:.0}m", seconds / 60.0),
        seconds if seconds < 86_400.0 => format!("{:.0}h", seconds / 3600.0),
        seconds => format!("{:.0}d", seconds / 86_400.0),
    }
}

/// Replaces control characters, which could change the terminal.
fn replace_controls(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// Shortens a text to a width.
fn truncate(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut text: String = text.chars().take(width.saturating_sub(1)).collect();
    text.push('…');
    text
}
