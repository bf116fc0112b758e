//! Writes `latency.hlog`, the latencies of a run as an HdrHistogram log, version 1.3.
//!
//! The log has one line per stage, method and class, with the tag `method.class`. Values are
//! nanoseconds since the scheduled send. The maximum of each line is in milliseconds, as
//! HdrHistogram tools expect. Format:
//! <https://github.com/HdrHistogram/HdrHistogram/blob/master/src/main/java/org/HdrHistogram/HistogramLogWriter.java>.

use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use lab_model::record::{Slot, Totals};
use lab_model::results::run::RunResult;

use super::ReportFault;

/// The column names of HdrHistogram's own writer.
const LEGEND: &str =
    "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n";
/// Nanoseconds per millisecond. The maximum of each line is in milliseconds.
const NANOS_PER_MS: f64 = 1e6;

/// Returns the log as bytes. `totals` refers to `methods` by index.
pub(super) fn log(
    result: &RunResult,
    totals: &Totals,
    methods: &[Box<str>],
) -> Result<Vec<u8>, ReportFault> {
    let fault = |error: &dyn std::fmt::Display| ReportFault::Form {
        file: "latency.hlog",
        reason: error.to_string(),
    };
    let start = SystemTime::UNIX_EPOCH
        + Duration::try_from_secs_f64(result.started_unix).unwrap_or_default();
    let mut bytes = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .add_comment("[Written by weir: nanoseconds from the planned send; a line per stage,")
        .add_comment(" method and class of outcome; tags are METHOD.CLASS]")
        .with_start_time(start)
        .with_base_time(start)
        .begin_log_with(&mut bytes, &mut serializer)
        .map_err(|error| fault(&error))?;
    // A writer cannot write the legend, so a second writer continues after the legend.
    bytes.extend_from_slice(LEGEND.as_bytes());
    let mut log = IntervalLogWriterBuilder::new()
        .with_max_value_divisor(NANOS_PER_MS)
        .begin_log_with(&mut bytes, &mut serializer)
        .map_err(|error| fault(&error))?;
    for (&slot, cell) in &totals.cells {
        let (start, length) = stage_time(result, slot);
        let tag = format_tag(slot, methods);
        log.write_histogram(&cell.latency, start, length, Tag::new(&tag))
            .map_err(|error| fault(&error))?;
    }
    Ok(bytes)
}

/// Returns the start and length of a slot's stage, or of the whole run if the stage is unknown. A
/// slot is a combination of stage, method and class.
fn stage_time(result: &RunResult, slot: Slot) -> (Duration, Duration) {
    let seconds = |time: f64| Duration::try_from_secs_f64(time).unwrap_or_default();
    match result.stages.get(usize::from(slot.stage)) {
        Some(stage) => (seconds(stage.from), seconds(stage.to - stage.from)),
        None => (Duration::ZERO, seconds(result.duration)),
    }
}

/// Returns `METHOD.CLASS`. Replaces characters that would end a tag.
fn format_tag(slot: Slot, methods: &[Box<str>]) -> String {
    let method = methods.get(usize::from(slot.method)).map_or("unknown", |name| name);
    let method = method.replace([',', ' ', '\t', '\r', '\n'], "_");
    format!("{method}.{}", slot.class.as_str())
}
