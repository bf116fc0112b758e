//! Draws the table of calls by method, with their failures and latencies.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Row as Line, Table};

use super::Tone;
use crate::live::state::{Percentiles, Row, Span, State};
use crate::wording::number;

/// Smallest width, in cells, at which the times of the last second and of the whole run are side by
/// side.
const WIDE: u16 = 112;

/// Returns the number of lines of the complete table.
pub(super) fn lines(state: &State) -> u16 {
    u16::try_from(state.rows.len().max(1) + 1).unwrap_or(u16::MAX)
}

/// Draws the table. The last line has the number of methods that do not fit.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let spans: &[Span] = match state.table_span {
        _ if area.width >= WIDE => &[Span::LastSecond, Span::WholeRun],
        Span::LastSecond => &[Span::LastSecond],
        Span::WholeRun => &[Span::WholeRun],
    };
    let room = usize::from(area.height.saturating_sub(1));
    let more = state.rows.len() > room;
    let shown = if more { room.saturating_sub(1) } else { state.rows.len() };
    let mut lines: Vec<Line<'_>> =
        state.rows.iter().take(shown).map(|row| line(row, spans, state)).collect();
    if more {
        let more_text = format!("and {} more", state.rows.len() - shown);
        lines.push(Line::new([Cell::new(more_text)]).style(Tone::Quiet.style(state.colour)));
    }
    let mut widths = vec![
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(6),
        Constraint::Length(7),
    ];
    widths.extend(limits(state).then_some(Constraint::Length(7)));
    widths.extend(std::iter::repeat_n(Constraint::Length(6), spans.len() * 4));
    let table = Table::new(lines, widths).header(head(spans, state)).column_spacing(1);
    frame.render_widget(table, area);
}

/// Returns true if a call got HTTP 429. The column is needed then.
fn limits(state: &State) -> bool {
    state.rows.iter().any(|row| row.limited > 0)
}

fn head(spans: &[Span], state: &State) -> Line<'static> {
    let mut cells = vec![Cell::new(match spans {
        [Span::LastSecond] => "ms, last second",
        [Span::WholeRun] => "ms, whole run",
        _ => "ms, last second | whole run",
    })];
    let names = ["calls", "per s", "failed"].into_iter().chain(limits(state).then_some("429"));
    cells.extend(names.map(|name| right(name.to_owned(), Tone::Quiet, state)));
    for _ in spans {
        let names = ["p50", "p95", "p99", "max"];
        cells.extend(names.map(|name| right(name.to_owned(), Tone::Quiet, state)));
    }
    Line::new(cells).style(Tone::Quiet.style(state.colour))
}

fn line(row: &Row, spans: &[Span], state: &State) -> Line<'static> {
    let share = |count: u64| match count {
        0 => "0".to_owned(),
        count => number::percent(count as f64 / row.calls as f64),
    };
    let tone =
        |count: u64, tone_above_zero: Tone| if count == 0 { Tone::Plain } else { tone_above_zero };
    let mut cells = vec![
        Cell::new(row.method.clone()),
        right(number::count(row.calls), Tone::Plain, state),
        right(number::count(row.calls_last), Tone::Plain, state),
        right(share(row.failed), tone(row.failed, Tone::Bad), state),
    ];
    if limits(state) {
        cells.push(right(share(row.limited), tone(row.limited, Tone::Doubtful), state));
    }
    for span in spans {
        let percentiles = match span {
            Span::LastSecond => row.last_second,
            Span::WholeRun => Some(row.whole_run),
        };
        let Percentiles { p50, p95, p99, max } = percentiles.unwrap_or(Percentiles::NONE);
        let times = [p50, p95, p99, max];
        cells.extend(times.map(|time| right(number::bare_ms(time), Tone::Plain, state)));
    }
    Line::new(cells)
}

fn right(text: String, tone: Tone, state: &State) -> Cell<'static> {
    Cell::new(Text::raw(text).right_aligned()).style(tone.style(state.colour))
}
