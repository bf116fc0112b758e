//! JSON lines of our own: one object a second and one at the end, with counters that only grow.

use lab_model::results::study::Accesses;
use serde::{Deserialize, Serialize};

use super::{Builder, Lines, StudyFault, begin, instant, shown};
use crate::analysis::sync::Sample;

/// A line of a file of samples. What is not known is left out; further keys are passed over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// RFC 3339.
    pub time: String,
    /// Blocks that it has; null as long as it has none.
    #[serde(deserialize_with = "Option::deserialize")] // else it could be left out
    pub height: Option<u64>,
    /// Bytes that its page cache uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_used: Option<u64>,
    /// Pages found there so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_hit: Option<u64>,
    /// Pages that had to be read so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_miss: Option<u64>,
    /// Changed pages that had to be written for want of room so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_spill: Option<u64>,
    /// Bytes of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Bytes on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
    /// CPU seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Whether this is the last one, of an arm that did all it was to do.
    #[serde(default)]
    pub done: bool,
}

impl Line {
    /// What it says, as the course that is built takes it; none as long as there is no height.
    ///
    /// # Errors
    /// If its time is none.
    fn sample(&self, built: &mut Builder) -> Result<Option<Sample>, String> {
        let at = instant(&self.time)?;
        let Some(height) = self.height else { return Ok(None) };
        let accesses = self.page_cache_hit.is_some() || self.page_cache_miss.is_some();
        let accesses = accesses.then(|| {
            built.since_last(Accesses {
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
        }))
    }
}

pub(super) fn read(mut lines: Lines<'_>) -> Result<Builder, StudyFault> {
    let mut built = lines.course();
    while let Some(text) = lines.next()? {
        if text.trim().is_empty() {
            continue;
        }
        let parsed = serde_json::from_str::<Line>(text).map_err(|error| (error, shown(text)));
        let line = match parsed {
            Ok(line) => line,
            // Whoever wrote it was ended in the middle of a line.
            Err(_) if !lines.whole => {
                built.note("its last line is cut off".to_owned());
                break;
            }
            Err((error, first)) => {
                // A text where a number should be is repeated whole.
                let error = begin(&error.to_string(), 200);
                let what = format!(
                    "no sample: {error}; it begins with {first:?}; a sample is a JSON object with at least \
                     time and height"
                );
                return Err(lines.fault(what));
            }
        };
        let sample = line.sample(&mut built).map_err(|what| lines.fault(what))?;
        if let Some(sample) = sample {
            built.push(sample).map_err(|what| lines.fault(what))?;
        }
    }
    Ok(built)
}
