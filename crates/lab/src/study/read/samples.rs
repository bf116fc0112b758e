//! Reads sample files: JSON lines with one object per second, and one object at the end. For
//! example:
//!
//! ```text
//! {"time":"2026-11-22T15:00:01Z","height":5,"page_cache_hit":7,"page_cache_miss":1,"done":false}
//! ```

use lab_model::results::study::Accesses;
use serde::{Deserialize, Serialize};

use super::{Lines, RunBuilder, StudyFault, excerpt, parse_instant, truncate};
use crate::analysis::sync::Sample;

/// A line of a sample file. Unknown values are left out; other keys are ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleLine {
    /// Time in RFC 3339.
    pub time: String,
    /// Block height; null before the first block.
    // Without this attribute, serde would accept a line that lacks the key.
    #[serde(deserialize_with = "Option::deserialize")]
    pub height: Option<u64>,
    /// Size of the page cache in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_used: Option<u64>,
    /// Pages found in the cache, cumulative.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_hit: Option<u64>,
    /// Pages that were read, cumulative.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_miss: Option<u64>,
    /// Dirty pages that were written because the cache was full, cumulative.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_spill: Option<u64>,
    /// Memory in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Disk space in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
    /// CPU seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// True for the last line of a variant that completed its work.
    #[serde(default)]
    pub done: bool,
}

impl SampleLine {
    /// Converts the line to a sample. Returns `None` if the line has no height.
    ///
    /// # Errors
    /// Fails if the time is invalid.
    fn to_sample(&self, run: &mut RunBuilder) -> Result<Option<Sample>, String> {
        let at = parse_instant(&self.time)?;
        let Some(height) = self.height else { return Ok(None) };
        let has_counters = self.page_cache_hit.is_some() || self.page_cache_miss.is_some();
        let accesses = has_counters.then(|| {
            run.since_last(Accesses {
                hit: self.page_cache_hit.unwrap_or(0),
                miss: self.page_cache_miss.unwrap_or(0),
                spill: self.page_cache_spill.unwrap_or(0),
            })
        });
        Ok(Some(Sample {
            at,
            height,
            used: self.page_cache_used,
            accesses,
            memory: self.memory,
            disk: self.disk,
            peers: None,
            cpu: self.cpu,
            age: None,
        }))
    }
}

/// Reads the samples of a file.
pub(super) fn read(mut lines: Lines<'_>) -> Result<RunBuilder, StudyFault> {
    let mut run = lines.new_run();
    while let Some(text) = lines.next()? {
        if text.trim().is_empty() {
            continue;
        }
        let parsed =
            serde_json::from_str::<SampleLine>(text).map_err(|error| (error, excerpt(text)));
        let line = match parsed {
            Ok(line) => line,
            // The program that writes the file was stopped in the middle of a line.
            Err(_) if !lines.ends_with_break => {
                run.note("its last line is incomplete".to_owned());
                break;
            }
            Err((error, line_start)) => {
                // The error may quote a long string of the line.
                let error = truncate(&error.to_string(), 200);
                let what = format!(
                    "not a sample: {error}; the line begins with {line_start:?}; a sample is a JSON object with \
                     at least time and height"
                );
                return Err(lines.fault(what));
            }
        };
        let sample = line.to_sample(&mut run).map_err(|what| lines.fault(what))?;
        if let Some(sample) = sample {
            run.push(sample).map_err(|what| lines.fault(what))?;
        }
    }
    Ok(run)
}
