//! Reads CSV tables: a header, then a row for each sample. Columns are identified by name; other
//! columns are ignored.
//!
//! | column | meaning |
//! | --- | --- |
//! | `time`, or `seconds` | an instant; or seconds since the start, which a line `# start INSTANT` before the header sets |
//! | `height` | blocks |
//! | `used`, `CacheUsed`, `page_cache_used` | size of the page cache in bytes |
//! | `hit`, `miss`, `spill`, `CacheHit`, … | cache accesses since the previous row |
//! | `page_cache_hit`, `page_cache_miss`, `page_cache_spill` | cumulative cache accesses |
//! | `memory`, `MemoryUsed`; `disk`; `peers`, `PeersALL`; `cpu` | bytes; bytes; nodes; seconds |

use lab_model::results::study::Accesses;

use super::{Lines, RunBuilder, StudyFault, excerpt, instant};
use crate::analysis::sync::Sample;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Time,
    Seconds,
    Height,
    Used,
    Hit,
    Miss,
    Spill,
    HitTotal,
    MissTotal,
    SpillTotal,
    Memory,
    Disk,
    Peers,
    Cpu,
    Other,
}

impl Column {
    fn of(name: &str) -> Column {
        match clean(name).to_ascii_lowercase().as_str() {
            "time" => Column::Time,
            "seconds" => Column::Seconds,
            "height" => Column::Height,
            "used" | "cacheused" | "page_cache_used" => Column::Used,
            "hit" | "cachehit" => Column::Hit,
            "miss" | "cachemiss" => Column::Miss,
            "spill" | "cachespill" => Column::Spill,
            "page_cache_hit" => Column::HitTotal,
            "page_cache_miss" => Column::MissTotal,
            "page_cache_spill" => Column::SpillTotal,
            "memory" | "memoryused" => Column::Memory,
            "disk" => Column::Disk,
            "peers" | "peersall" => Column::Peers,
            "cpu" => Column::Cpu,
            _ => Column::Other,
        }
    }
}

fn clean(cell: &str) -> &str {
    cell.trim().trim_matches('"').trim_start_matches('\u{feff}').trim()
}

pub(super) fn read(mut lines: Lines<'_>) -> Result<RunBuilder, StudyFault> {
    let (mut start, mut columns): (f64, Option<Vec<Column>>) = (0.0, None);
    let mut run = lines.run();
    while let Some(line) = lines.next()? {
        if let Some(comment) = line.strip_prefix('#') {
            if let Some(text) = comment.trim().strip_prefix("start ") {
                start = instant(text).map_err(|what| lines.fault(what))?;
            }
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        match &columns {
            None => columns = Some(header(line).map_err(|what| lines.fault(what))?),
            Some(columns) => {
                let sample = row(line, columns, start, &mut run);
                let added = sample.and_then(|sample| run.push(sample));
                added.map_err(|what| lines.fault(what))?;
            }
        }
    }
    Ok(run)
}

fn header(line: &str) -> Result<Vec<Column>, String> {
    let columns: Vec<Column> = line.split(',').map(Column::of).collect();
    let has = |column| columns.contains(&column);
    let missing = |column: &str| {
        format!(
            "the header {:?} has no column {column}; known columns are time or seconds, height, used, hit, \
             miss, spill, page_cache_hit, page_cache_miss, page_cache_spill, memory, disk, peers, cpu, and \
             CacheUsed, CacheHit, CacheMiss, CacheSpill, MemoryUsed, PeersALL",
            excerpt(line)
        )
    };
    match () {
        () if !has(Column::Time) && !has(Column::Seconds) => Err(missing("time")),
        () if !has(Column::Height) => Err(missing("height")),
        () => Ok(columns),
    }
}

fn row(line: &str, columns: &[Column], start: f64, run: &mut RunBuilder) -> Result<Sample, String> {
    let cells = line.split(',').count();
    if cells != columns.len() {
        return Err(format!("the row has {cells} cells, but the header has {}", columns.len()));
    }
    let (mut sample, mut seen) = (Sample { at: f64::NAN, ..Sample::default() }, false);
    let (mut since, mut total): (Option<Accesses>, Option<Accesses>) = (None, None);
    for (cell, column) in line.split(',').zip(columns) {
        let cell = clean(cell);
        if cell.is_empty() && !matches!(column, Column::Time | Column::Seconds | Column::Height) {
            continue;
        }
        match column {
            Column::Time => sample.at = instant(cell)?,
            Column::Seconds => sample.at = start + seconds(cell)?,
            Column::Height => (sample.height, seen) = (whole(cell, "height")?, true),
            Column::Used => sample.used = Some(whole(cell, "used")?),
            Column::Hit => since.get_or_insert_default().hit = whole(cell, "hit")?,
            Column::Miss => since.get_or_insert_default().miss = whole(cell, "miss")?,
            Column::Spill => since.get_or_insert_default().spill = whole(cell, "spill")?,
            Column::HitTotal => total.get_or_insert_default().hit = whole(cell, "page_cache_hit")?,
            Column::MissTotal => {
                total.get_or_insert_default().miss = whole(cell, "page_cache_miss")?;
            }
            Column::SpillTotal => {
                total.get_or_insert_default().spill = whole(cell, "page_cache_spill")?;
            }
            Column::Memory => sample.memory = Some(whole(cell, "memory")?),
            Column::Disk => sample.disk = Some(whole(cell, "disk")?),
            Column::Peers => sample.peers = Some(whole(cell, "peers")?),
            Column::Cpu => sample.cpu = Some(seconds(cell)?),
            Column::Other => {}
        }
    }
    debug_assert!(seen, "the header has a height");
    sample.accesses = since.or_else(|| total.map(|total| run.since_last(total)));
    Ok(sample)
}

fn whole(cell: &str, what: &str) -> Result<u64, String> {
    let fault = || format!("{what} {:?} is not an integer of 0 or more", excerpt(cell));
    cell.parse().map_err(|_| fault())
}

fn seconds(cell: &str) -> Result<f64, String> {
    let value: Option<f64> =
        cell.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| format!("{:?} is not a number of seconds of 0 or more", excerpt(cell)))
}
