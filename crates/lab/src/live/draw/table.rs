//! Draws the table of calls by method, with their failures and latencies.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Text;
use ratatui::widgets::{Cell, Row, Table};

use super::{BAD, DOUBTFUL, QUIET};
use crate::live::state::{MethodRow, Percentiles, State, TimePeriod};
use crate::wording::number;

/// Smallest width, in cells, at which the times of the last second and of the whole run are side by
/// side.
const BOTH_PERIODS_WIDTH_MIN: u16 = 112;

/// Returns the number of lines of the complete table.
pub(super) fn height(state: &State) -> u16 {
    u16::try_from(state.rows.len().max(1) + 1).unwrap_or(u16::MAX)
}

/// Draws the table. If some methods do not fit, the last line has the number of these methods.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let periods: &[TimePeriod] = match state.table_period {
        _ if area.width >= BOTH_PERIODS_WIDTH_MIN => {
            &[TimePeriod::LastSecond, TimePeriod::WholeRun]
        }
        TimePeriod::LastSecond => &[TimePeriod::LastSecond],
        TimePeriod::WholeRun => &[TimePeriod::WholeRun],
    };
    // The column of calls with HTTP 429 exists only if there are such calls.
    let has_limited = state.rows.iter().any(|row| row.limited > 0);
    let lines_max = usize::from(area.height.saturating_sub(1));
    let is_cut = state.rows.len() > lines_max;
    let row_count = if is_cut { lines_max.saturating_sub(1) } else { state.rows.len() };
    let rows = state.rows.iter().take(row_count);
    let mut lines: Vec<Row<'_>> = rows.map(|row| format_row(row, periods, has_limited)).collect();
    if is_cut {
        let cut_text = format!("and {} more", state.rows.len() - row_count);
        lines.push(Row::new([cut_text]).style(QUIET));
    }
    // The columns: method, calls, calls per second, failed share.
    let mut widths = vec![
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(6),
        Constraint::Length(7),
    ];
    widths.extend(has_limited.then_some(Constraint::Length(7)));
    widths.extend(std::iter::repeat_n(Constraint::Length(6), periods.len() * 4));
    let table = Table::new(lines, widths).header(header(periods, has_limited)).column_spacing(1);
    frame.render_widget(table, area);
}

/// Returns the header, whose first cell names the periods of the latencies.
fn header(periods: &[TimePeriod], has_limited: bool) -> Row<'static> {
    let mut cells = vec![Cell::new(match periods {
        [TimePeriod::LastSecond] => "ms, last second",
        [TimePeriod::WholeRun] => "ms, whole run",
        _ => "ms, last second | whole run",
    })];
    let counts = ["calls", "per s", "failed"].into_iter().chain(has_limited.then_some("429"));
    let times = periods.iter().flat_map(|_| ["p50", "p95", "p99", "max"]);
    cells.extend(counts.chain(times).map(|name| align_right(name.to_owned(), QUIET)));
    Row::new(cells).style(QUIET)
}

/// Formats the row of a method with its latencies in these periods.
fn format_row(row: &MethodRow, periods: &[TimePeriod], has_limited: bool) -> Row<'static> {
    let share = |count: u64| match count {
        0 => "0".to_owned(),
        count => number::percent(count as f64 / row.calls as f64),
    };
    let style = |count: u64, above_zero: Style| if count == 0 { Style::new() } else { above_zero };
    let mut cells = vec![
        Cell::new(row.method.clone()),
        align_right(number::count(row.calls), Style::new()),
        align_right(number::count(row.calls_last), Style::new()),
        align_right(share(row.failed), style(row.failed, BAD)),
    ];
    if has_limited {
        cells.push(align_right(share(row.limited), style(row.limited, DOUBTFUL)));
    }
    for period in periods {
        let percentiles = match period {
            TimePeriod::LastSecond => row.last_second,
            TimePeriod::WholeRun => Some(row.whole_run),
        };
        let Percentiles { p50, p95, p99, max } = percentiles.unwrap_or(Percentiles::NONE);
        let times = [p50, p95, p99, max];
        cells.extend(times.map(|time| align_right(number::bare_ms(time), Style::new())));
    }
    Row::new(cells)
}

fn align_right(text: String, style: Style) -> Cell<'static> {
    Cell::new(Text::raw(text).right_aligned()).style(style)
}
