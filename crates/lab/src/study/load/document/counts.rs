//! The table of counts of a load study, such as requests per second. It has a row per plan and
//! variant. The plan is a load; some studies call it a case.

use lab_model::results::load_study::{AccessLogRow, CountRow, CpuLimitKind, LoadStudyResult};

use crate::report::document::{Block, Column, Section, Table, Text, tone};
use crate::report::parts::or_dash;
use crate::wording::number::{bare_ms, percent, short};

/// A function that formats one cell of a row.
type CellFormat = fn(&CountRow) -> Text;

/// Maximum number of rows on the terminal.
const ROWS_MAX: usize = 80;

/// Returns the section, or `None` if no run has counts. A column without any value is omitted.
pub(super) fn section(result: &LoadStudyResult) -> Option<Section> {
    let rows = &result.counts;
    if rows.is_empty() {
        return None;
    }
    let any_row = |has_value: fn(&CountRow) -> bool| rows.iter().any(has_value);
    let has_handshakes = any_row(|row| row.handshakes_full + row.handshakes_resumed > 0.0);
    let has_log = any_row(|row| row.access_log.is_some());
    // Each entry has three parts: true if the table has the column, the column, and the function
    // that formats its cells.
    let columns: [(bool, Column, CellFormat); 16] = [
        (result.plans.len() > 1, Column::text("load"), |row| (&row.plan).into()),
        (true, Column::text("variant"), |row| (&row.variant).into()),
        (any_row(|row| row.cpu_limit.is_some()), Column::text("CPUs"), format_cpus),
        (true, Column::number("requests/s"), |row| short(row.requests).into()),
        (true, Column::number("results/s"), |row| short(row.goodput).into()),
        (any_row(|row| row.limited > 0.0), Column::number("429/s"), |row| {
            short(row.limited).into()
        }),
        (true, Column::number("failed"), |row| percent(row.failed_share).into()),
        (true, Column::number("p50 ms"), |row| bare_ms(row.p50_ms).into()),
        (true, Column::number("p95 ms"), |row| bare_ms(row.p95_ms).into()),
        (
            any_row(|row| row.cpu_ms_per_request.is_some()),
            Column::number("CPU ms/request"),
            |row| or_dash(row.cpu_ms_per_request, short).into(),
        ),
        (has_handshakes, Column::number("full TLS/s"), |row| short(row.handshakes_full).into()),
        (has_handshakes, Column::number("resumed/s"), |row| short(row.handshakes_resumed).into()),
        (has_log, Column::number("log/s"), |row| {
            or_dash(row.access_log, |log| short(log.requests)).into()
        }),
        (has_log, Column::number("log − generator"), format_log_difference),
        (has_log, Column::number("in one second"), |row| {
            or_dash(row.access_log, |log| log.second_difference_max.to_string()).into()
        }),
        (true, Column::text("verdict"), |row| {
            let outcomes: Vec<&str> = row.outcomes.iter().map(|outcome| outcome.as_str()).collect();
            outcomes.join(", ").into()
        }),
    ];
    let present = columns.into_iter().filter(|(is_present, ..)| *is_present);
    let (columns, formats): (Vec<Column>, Vec<CellFormat>) =
        present.map(|(_, column, format_cell)| (column, format_cell)).unzip();
    let mut table = Table::new(columns);
    for row in rows {
        table.row(formats.iter().map(|format_cell| format_cell(row)).collect());
    }
    let section = Section::new("counts", "Counts").nav("Counts").intro(
        "Medians over all runs, also those that the comparison leaves out. CPU is that of the target's \
         processes. The access log is compared with the generator's count: the difference over all \
         runs, and the largest difference in one second.",
    );
    Some(section.add(Block::Table(table.at_most(ROWS_MAX, "row"))))
}

/// Formats the CPU limit of the servers.
fn format_cpus(row: &CountRow) -> Text {
    match row.cpu_limit {
        None => "–".into(),
        Some(limit) if limit.kind == CpuLimitKind::Quota => limit.cpus.to_string().into(),
        Some(limit) => format!("{} ({})", limit.cpus, limit.kind.as_str()).into(),
    }
}

/// Formats the difference of two counts of requests: that of the server's access log, minus that of
/// the generator.
fn format_log_difference(row: &CountRow) -> Text {
    let Some(AccessLogRow { total, generator_total, .. }) = row.access_log else {
        return "–".into();
    };
    match total.abs_diff(generator_total) {
        0 => "0".into(),
        difference if total > generator_total => tone("limited", format!("+{difference}")),
        difference => tone("limited", format!("−{difference}")),
    }
}
