//! Reads `debug.log` of Pocketcoin nodes. A line announces a statistic. A JSON object follows on
//! several lines; the first and the last line are a single brace. The counters of the object cover
//! the interval since the previous statistic.
//!
//! The format is that of `src/statistic.hpp` of pocketnetteam/pocketnet.core at v0.20.15. Other
//! lines are ignored, except those about peers' heights and about blocks that peers did not
//! deliver.

use lab_model::results::study::Accesses;
use serde::Deserialize;

use super::{Lines, RunBuilder, StudyFault, parse_instant};
use crate::analysis::sync::{Sample, Timeout};
use crate::wording::number::count;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Record {
    general: General,
    #[serde(rename = "SQL")]
    sql: Option<Sql>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct General {
    height: u64,
    #[serde(rename = "PeersALL")]
    peers: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Sql {
    memory_used: Option<u64>,
    cache_used: Option<u64>,
    cache_hit: Option<u64>,
    cache_miss: Option<u64>,
    cache_spill: Option<u64>,
}

/// An incomplete statistic.
struct Open {
    at: f64,
    line: u64,
    text: String,
}

pub(super) fn read(mut lines: Lines<'_>) -> Result<RunBuilder, StudyFault> {
    let mut run = lines.run();
    let (mut open, mut broken): (Option<Open>, u64) = (None, 0);
    let max_bytes = lines.limits.line_bytes;
    while let Some(line) = lines.next()? {
        if let Some(mut statistic) = open.take() {
            let stamp = split_timestamp(line);
            // If a line inside an object has a time, the object is incomplete, for example after a
            // restart.
            if stamp.is_none() && statistic.text.len() + line.len() < max_bytes {
                statistic.text.push_str(line);
                statistic.text.push('\n');
                if line != "}" {
                    open = Some(statistic);
                    continue;
                }
                match serde_json::from_str::<Record>(&statistic.text) {
                    Ok(record) => {
                        let number = statistic.line;
                        run.push(to_sample(statistic.at, &record)).map_err(|what| {
                            StudyFault::Line { path: lines.path.to_owned(), line: number, what }
                        })?;
                    }
                    Err(_) => broken += 1,
                }
                continue;
            }
            broken += 1;
        }
        let Some((at, words)) = split_timestamp(line) else { continue };
        if words.starts_with("Statistic for last") {
            open = Some(Open { at, line: lines.number, text: String::new() });
        } else if let Some(details) = words.strip_prefix("New outbound peer connected: ") {
            if let Some(height) = number_after(details, "blocks=") {
                run.announce(at, height);
            }
        } else if let Some(details) = words.strip_prefix("Timeout downloading block ") {
            let peer = number_after(details, "peer=").unwrap_or(0);
            run.timeout(Timeout { at, peer });
        }
    }
    if broken + u64::from(open.is_some()) > 0 {
        let broken = broken + u64::from(open.is_some());
        run.note(format!("{} statistics were incomplete or invalid", count(broken)));
    }
    Ok(run)
}

/// Returns the time at the start of a line, and the rest of the line. None for lines without a
/// time.
fn split_timestamp(line: &str) -> Option<(f64, &str)> {
    let (stamp, words) = line.split_once(' ')?;
    let looks_like = stamp.len() >= 20 && stamp.as_bytes().get(10) == Some(&b'T');
    Some((parse_instant(stamp).ok().filter(|_| looks_like)?, words))
}

/// Returns the number after a mark.
fn number_after(text: &str, mark: &str) -> Option<u64> {
    let (_, after_mark) = text.split_once(mark)?;
    let digits =
        after_mark.len() - after_mark.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    after_mark[..digits].parse().ok()
}

fn to_sample(at: f64, record: &Record) -> Sample {
    let sql = record.sql.as_ref();
    let accesses = sql.filter(|sql| sql.cache_hit.is_some()).map(|sql| Accesses {
        hit: sql.cache_hit.unwrap_or(0),
        miss: sql.cache_miss.unwrap_or(0),
        spill: sql.cache_spill.unwrap_or(0),
    });
    Sample {
        at,
        height: record.general.height,
        used: sql.and_then(|sql| sql.cache_used),
        accesses,
        memory: sql.and_then(|sql| sql.memory_used),
        peers: record.general.peers,
        ..Sample::default()
    }
}
