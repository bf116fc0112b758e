//! Reads CSV tables with a header line and one row for each sample. Columns are identified by name.
//! For example:
//!
//! ```text
//! # start 2021-12-13T23:20:52Z
//! seconds,height,hit,miss
//! 0,0,0,0
//! 60.5,3837,1313668,3390
//! ```
//!
//! Columns with other names than these are ignored:
//!
//! | column | meaning |
//! | --- | --- |
//! | `time`, or `seconds` | an instant; or seconds since an instant |
//! | `height` | number of the newest block |
//! | `used`, `CacheUsed`, `page_cache_used` | size of the page cache in bytes |
//! | `hit`, `miss`, `spill`, `CacheHit`, … | cache accesses since the previous row |
//! | `page_cache_hit`, `page_cache_miss`, `page_cache_spill` | cumulative cache accesses |
//! | `memory`, `MemoryUsed` | memory in bytes |
//! | `disk` | disk space in bytes |
//! | `peers`, `PeersALL` | number of peers |
//! | `cpu` | cumulative CPU seconds |
//!
//! A line `# start INSTANT` sets the instant from which `seconds` count. Without such a line, they
//! count from 1970.

use lab_model::results::study::Accesses;

use super::{Lines, RunBuilder, StudyFault, excerpt, parse_instant};
use crate::analysis::sync::Sample;

/// Removes spaces, quotes and a byte order mark.
fn trim_cell(cell: &str) -> &str {
    cell.trim().trim_matches('"').trim_start_matches('\u{feff}').trim()
}

/// Reads the samples of a table.
pub(super) fn read(mut lines: Lines<'_>) -> Result<RunBuilder, StudyFault> {
    // The instant of second 0, in seconds since 1970. Only tables with a column `seconds` use it.
    let mut start = 0.0;
    let mut columns: Option<Vec<String>> = None;
    let mut run = lines.new_run();
    while let Some(line) = lines.next()? {
        if let Some(comment) = line.strip_prefix('#') {
            if let Some(text) = comment.trim().strip_prefix("start ") {
                start = parse_instant(text).map_err(|what| lines.fault(what))?;
            }
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        match &columns {
            None => columns = Some(parse_header(line).map_err(|what| lines.fault(what))?),
            Some(columns) => {
                let sample = parse_row(line, columns, start, &mut run);
                let added = sample.and_then(|sample| run.push(sample));
                added.map_err(|what| lines.fault(what))?;
            }
        }
    }
    Ok(run)
}

/// Returns the names of the columns in lower case. Fails if a required column is missing.
fn parse_header(line: &str) -> Result<Vec<String>, String> {
    let columns: Vec<String> =
        line.split(',').map(|name| trim_cell(name).to_ascii_lowercase()).collect();
    let has = |name: &str| columns.iter().any(|column| column == name);
    let missing = |column: &str| {
        format!(
            "the header {:?} has no column {column}; known columns are time or seconds, height, used, hit, \
             miss, spill, page_cache_hit, page_cache_miss, page_cache_spill, memory, disk, peers, cpu, and \
             CacheUsed, CacheHit, CacheMiss, CacheSpill, MemoryUsed, PeersALL",
            excerpt(line)
        )
    };
    match () {
        () if !has("time") && !has("seconds") => Err(missing("time")),
        () if !has("height") => Err(missing("height")),
        () => Ok(columns),
    }
}

/// Parses a row. `start` is the instant of second 0 of the column `seconds`. `run` converts
/// cumulative accesses.
fn parse_row(
    line: &str,
    columns: &[String],
    start: f64,
    run: &mut RunBuilder,
) -> Result<Sample, String> {
    let cell_count = line.split(',').count();
    if cell_count != columns.len() {
        return Err(format!(
            "the row has {cell_count} cells, but the header has {}",
            columns.len()
        ));
    }
    let mut sample = Sample { at: f64::NAN, ..Sample::default() };
    // Accesses since the previous row, or cumulative accesses.
    let (mut since_previous, mut cumulative): (Option<Accesses>, Option<Accesses>) = (None, None);
    for (cell, column) in line.split(',').zip(columns) {
        let cell = trim_cell(cell);
        if cell.is_empty() && !["time", "seconds", "height"].contains(&column.as_str()) {
            continue;
        }
        let integer = |name: &str| parse_integer(cell, name);
        match column.as_str() {
            "time" => sample.at = parse_instant(cell)?,
            "seconds" => sample.at = start + parse_seconds(cell)?,
            "height" => sample.height = integer("height")?,
            "used" | "cacheused" | "page_cache_used" => sample.used = Some(integer("used")?),
            "hit" | "cachehit" => since_previous.get_or_insert_default().hit = integer("hit")?,
            "miss" | "cachemiss" => since_previous.get_or_insert_default().miss = integer("miss")?,
            "spill" | "cachespill" => {
                since_previous.get_or_insert_default().spill = integer("spill")?;
            }
            "page_cache_hit" => cumulative.get_or_insert_default().hit = integer(column)?,
            "page_cache_miss" => cumulative.get_or_insert_default().miss = integer(column)?,
            "page_cache_spill" => cumulative.get_or_insert_default().spill = integer(column)?,
            "memory" | "memoryused" => sample.memory = Some(integer("memory")?),
            "disk" => sample.disk = Some(integer("disk")?),
            "peers" | "peersall" => sample.peers = Some(integer("peers")?),
            "cpu" => sample.cpu = Some(parse_seconds(cell)?),
            _ => {}
        }
    }
    sample.accesses =
        since_previous.or_else(|| cumulative.map(|cumulative| run.since_last(cumulative)));
    Ok(sample)
}

fn parse_integer(cell: &str, name: &str) -> Result<u64, String> {
    let fault = || format!("{name} {:?} is not an integer of 0 or more", excerpt(cell));
    cell.parse().map_err(|_| fault())
}

fn parse_seconds(cell: &str) -> Result<f64, String> {
    let value: Option<f64> =
        cell.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| format!("{:?} is not a number of seconds of 0 or more", excerpt(cell)))
}
