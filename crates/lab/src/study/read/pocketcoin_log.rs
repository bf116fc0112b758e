//! Reads `debug.log` of Pocketcoin nodes.
//!
//! A *statistic* is a set of counters that the node logs at intervals. Its counters cover the
//! interval since the previous statistic. One line announces a statistic, and a JSON object follows
//! on several lines:
//!
//! ```text
//! 2021-12-13T23:20:52Z Statistic for last 60s:
//! {
//!  "General": { "Height": 3837, "PeersALL": 8 },
//!  "SQL": { "CacheUsed": 5261904, "CacheHit": 1313668, "CacheMiss": 3390 }
//! }
//! ```
//!
//! The reader also uses the lines about peers' heights and about blocks that peers did not deliver.
//! It ignores all other lines. `src/statistic.hpp` of pocketnetteam/pocketnet.core at v0.20.15
//! defines the format.

use lab_model::results::study::Accesses;
use serde::Deserialize;

use super::{Lines, RunBuilder, StudyFault, parse_instant};
use crate::analysis::sync::{Sample, Timeout};
use crate::wording::number::count;

/// The JSON object of a statistic.
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

/// A statistic whose lines are not all read yet.
struct OpenStatistic {
    /// Time of the line that announced it, in seconds since 1970.
    at: f64,
    /// Number of that line.
    line: u64,
    /// The JSON text that was read so far.
    text: String,
}

/// Reads the statistics of a log as samples. If statistics are incomplete or invalid, a note of the
/// run has their number.
pub(super) fn read(mut lines: Lines<'_>) -> Result<RunBuilder, StudyFault> {
    let mut run = lines.new_run();
    let (mut open, mut broken): (Option<OpenStatistic>, u64) = (None, 0);
    let max_bytes = lines.limits.line_bytes;
    while let Some(line) = lines.next()? {
        if let Some(mut statistic) = open.take() {
            // A line with a time inside the object means that the object is incomplete, for example
            // after a restart.
            let has_time = split_timestamp(line).is_some();
            if !has_time && statistic.text.len() + line.len() < max_bytes {
                statistic.text.push_str(line);
                statistic.text.push('\n');
                if line != "}" {
                    open = Some(statistic);
                    continue;
                }
                match serde_json::from_str::<Record>(&statistic.text) {
                    Ok(record) => {
                        let line = statistic.line;
                        run.push(to_sample(statistic.at, &record)).map_err(|what| {
                            StudyFault::Line { path: lines.path.to_owned(), line, what }
                        })?;
                    }
                    Err(_) => broken += 1,
                }
                continue;
            }
            broken += 1;
            // This line may announce the next statistic, so it is also read below.
        }
        let Some((at, message)) = split_timestamp(line) else { continue };
        if message.starts_with("Statistic for last") {
            open = Some(OpenStatistic { at, line: lines.number, text: String::new() });
        } else if let Some(details) = message.strip_prefix("New outbound peer connected: ") {
            if let Some(height) = number_after(details, "blocks=") {
                run.announce(at, height);
            }
        } else if let Some(details) = message.strip_prefix("Timeout downloading block ") {
            let peer = number_after(details, "peer=").unwrap_or(0);
            run.timeout(Timeout { at, peer });
        }
    }
    // A statistic that is still open at the end is incomplete.
    broken += u64::from(open.is_some());
    if broken > 0 {
        run.note(format!("{} statistics were incomplete or invalid", count(broken)));
    }
    Ok(run)
}

/// Splits a line into its time, in seconds since 1970, and its message. Returns `None` if the line
/// does not begin with a time.
fn split_timestamp(line: &str) -> Option<(f64, &str)> {
    let (timestamp, message) = line.split_once(' ')?;
    // Times in the log have the form `2024-10-02T08:00:01Z`.
    let looks_like_time = timestamp.len() >= 20 && timestamp.as_bytes().get(10) == Some(&b'T');
    Some((parse_instant(timestamp).ok().filter(|_| looks_like_time)?, message))
}

/// Returns the number after a key such as `peer=`, or `None` if the key or the number is missing.
fn number_after(text: &str, key: &str) -> Option<u64> {
    let (_, value) = text.split_once(key)?;
    let digits = value.len() - value.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    value[..digits].parse().ok()
}

/// Converts a statistic to a sample.
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
