//! The table of counts of a load study: a row for each plan or case and variant.

use lab_model::results::load_study::{AccessLogRow, CountRow, CpuLimitKind, LoadStudyResult};

use super::super::document::{ALL, Block, Column, FILES, Section, Table, Text, tone};
use crate::wording::number::{bare_ms, percent, short};

/// Formats one cell of a row.
type Cell = fn(&CountRow) -> Text;

/// Maximum number of rows on the terminal.
const ROWS_MAX: usize = 80;

/// A column: its head, and the text of a row.
type CountColumn = (Column, Cell);

/// Returns the section; none if no run has counts. Columns without any value are left out.
pub(super) fn section(result: &LoadStudyResult) -> Option<Section> {
    let rows = &result.counts;
    if rows.is_empty() {
        return None;
    }
    let any = |has: fn(&CountRow) -> bool| rows.iter().any(has);
    let mut columns: Vec<CountColumn> = Vec::new();
    if result.plans.len() > 1 {
        columns.push((Column::text("load"), |row| Text::from(row.plan.as_str())));
    }
    columns.push((Column::text("variant"), |row| Text::from(row.variant.as_str())));
    if any(|row| row.cpu_limit.is_some()) {
        columns.push((Column::text("CPUs"), cpus));
    }
    columns.push((Column::number("requests/s"), |row| short(row.requests).into()));
    columns.push((Column::number("results/s"), |row| short(row.goodput).into()));
    if any(|row| row.limited > 0.0) {
        columns.push((Column::number("429/s"), |row| short(row.limited).into()));
    }
    columns.push((Column::number("failed"), |row| percent(row.failed_share).into()));
    columns.push((Column::number("p50 ms"), |row| bare_ms(row.p50_ms).into()));
    columns.push((Column::number("p95 ms"), |row| bare_ms(row.p95_ms).into()));
    if any(|row| row.cpu_ms_per_request.is_some()) {
        columns.push((Column::number("CPU ms/request"), |row| {
            row.cpu_ms_per_request.map_or_else(|| "–".to_owned(), short).into()
        }));
    }
    if any(|row| row.handshakes_full + row.handshakes_resumed > 0.0) {
        columns.push((Column::number("full TLS/s"), |row| short(row.handshakes_full).into()));
        columns.push((Column::number("resumed/s"), |row| short(row.handshakes_resumed).into()));
    }
    if any(|row| row.access_log.is_some()) {
        columns.push((Column::number("log/s"), |row| {
            row.access_log.map_or_else(|| "–".to_owned(), |log| short(log.requests)).into()
        }));
        columns.push((Column::number("log − generator"), log_difference));
        columns.push((Column::number("in one second").only(FILES), |row| {
            let difference = row.access_log.map(|log| log.second_difference_max.to_string());
            difference.unwrap_or_else(|| "–".to_owned()).into()
        }));
    }
    columns.push((Column::text("verdict"), |row| {
        let outcomes: Vec<&str> = row.outcomes.iter().map(|outcome| outcome.as_str()).collect();
        outcomes.join(", ").into()
    }));
    let (heads, cells): (Vec<Column>, Vec<Cell>) = columns.into_iter().unzip();
    let mut table = Table::new(heads).at_most(ROWS_MAX, "row");
    for row in rows {
        table.row(cells.iter().map(|cell| cell(row)).collect());
    }
    let section = Section::new("counts", "Counts").nav("Counts").lead(
        "Medians over all runs, also those that the comparison leaves out. CPU is that of the target's \
         processes. The access log is compared with the generator's count: the difference over all \
         runs, and the largest difference in one second.",
    );
    Some(section.on(ALL, Block::Table(table)))
}

fn cpus(row: &CountRow) -> Text {
    match row.cpu_limit {
        None => "–".into(),
        Some(limit) if limit.kind == CpuLimitKind::Quota => limit.cpus.to_string().into(),
        Some(limit) => format!("{} ({})", limit.cpus, limit.kind.as_str()).into(),
    }
}

fn log_difference(row: &CountRow) -> Text {
    let Some(AccessLogRow { total, generator_total, .. }) = row.access_log else {
        return "–".into();
    };
    match total.abs_diff(generator_total) {
        0 => "0".into(),
        difference if total > generator_total => tone("limited", format!("+{difference}")),
        difference => tone("limited", format!("−{difference}")),
    }
}
