//! Reads logs in which a node writes one line for each new block. Such a line becomes a *sample*:
//! the time, and the height (the number of the block). For example, geth writes:
//!
//! ```text
//! INFO [12-31|23:59:59.500] Imported new potential chain segment number=18,000,000 hash=0b0b0b…
//! ```
//!
//! The file `log_formats.toml` has the regular expressions for such lines.

use std::sync::{LazyLock, OnceLock};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use regex::{Captures, Regex};
use serde::Deserialize;

use super::{Lines, RunBuilder, StudyFault, excerpt, parse_instant};
use crate::analysis::sync::Sample;

/// The reader assumes this year for the first sample of a log without years. It is a leap year, so
/// 29 February is valid.
const FIRST_YEAR: i16 = 2000;

/// The formats of `log_formats.toml`.
static FORMATS: LazyLock<Formats> = LazyLock::new(|| {
    toml::from_str(include_str!("log_formats.toml")).expect("a test reads the shipped formats")
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Formats {
    format: Vec<LogFormat>,
}

/// The log format of one kind of node.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogFormat {
    /// Name on the command line.
    pub name: String,
    /// Assumed time between two blocks, in seconds, for logs that do not show it.
    pub block_time: f64,
    /// A block that is younger than this many seconds shows that the node is at the chain tip.
    tip_age: f64,
    line: Vec<LineFormat>,
}

/// The format of a line that announces a block.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineFormat {
    /// Regular expression with the groups `height`, `time` and, in some formats, `cache_mib`, `age`
    /// and `block_time`.
    pattern: String,
    /// The compiled pattern. Every command of the program loads the formats, and most commands use
    /// none. The pattern is therefore compiled at its first use.
    #[serde(skip)]
    compiled: OnceLock<Regex>,
    /// True if the times have no year.
    #[serde(default)]
    lacks_year: bool,
}

impl LineFormat {
    /// Returns the compiled pattern.
    fn regex(&self) -> &Regex {
        let compile = || Regex::new(&self.pattern).expect("a test reads a log of each format");
        self.compiled.get_or_init(compile)
    }
}

impl LogFormat {
    /// Returns all formats.
    pub fn all() -> &'static [LogFormat] {
        &FORMATS.format
    }
}

/// Reads the samples of a log. Lines that announce no block are ignored.
pub(super) fn read(mut lines: Lines<'_>, format: &LogFormat) -> Result<RunBuilder, StudyFault> {
    let mut run = lines.new_run();
    let mut clock = YearlessClock { year: FIRST_YEAR, last: None };
    let mut has_ages = false;
    while let Some(line) = lines.next()? {
        let matching_format = format
            .line
            .iter()
            .find_map(|line_format| Some((line_format, line_format.regex().captures(line)?)));
        let Some((line_format, captures)) = matching_format else { continue };
        has_ages |= ["age", "block_time"].iter().any(|group| captures.name(group).is_some());
        let sample = parse_sample(line_format, &captures, &mut clock);
        let added = sample.and_then(|sample| run.push(sample));
        added.map_err(|what| lines.fault(what))?;
    }
    // Without any age, the log was cut or rewritten, so a missing age means nothing.
    if has_ages {
        run.set_tip_age(format.tip_age);
    }
    if clock.last.is_some() {
        run.note(format!("the log has no years; its first line is set to the year {FIRST_YEAR}"));
    }
    Ok(run)
}

/// Converts a line that matches a format to a sample. `captures` has the groups of the match.
fn parse_sample(
    format: &LineFormat,
    captures: &Captures<'_>,
    clock: &mut YearlessClock,
) -> Result<Sample, String> {
    let group = |name: &str| captures.name(name).map_or("", |found| found.as_str());
    let height = group("height").replace(',', "");
    let height = height.parse().map_err(|_| format!("{:?} is not a height", excerpt(&height)))?;
    let time = group("time");
    let at = if format.lacks_year { clock.parse_time(time)? } else { parse_instant(time)? };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let bytes = |mib: f64| (mib * 1_048_576.0) as u64;
    let cache_mib = captures.name("cache_mib").and_then(|found| found.as_str().parse().ok());
    let block_time = captures.name("block_time").map(|time| parse_instant(time.as_str()));
    let age = match block_time {
        Some(block_time) => at - block_time?,
        // geth omits the age of young blocks.
        None => captures.name("age").map_or(0.0, |age| parse_age(age.as_str())),
    };
    // `used` is the size of the node's cache in bytes.
    Ok(Sample { at, height, used: cache_mib.map(bytes), age: Some(age), ..Sample::default() })
}

/// Converts an age such as `1y2mo3w` or `5m12s` to seconds (common/format.go of go-ethereum).
fn parse_age(text: &str) -> f64 {
    let number_end = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(number_end(rest));
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let unit_seconds = match unit {
            "y" => 365.0 * 86_400.0,
            "mo" => 30.0 * 86_400.0,
            "w" => 7.0 * 86_400.0,
            "d" => 86_400.0,
            "h" => 3_600.0,
            "m" => 60.0,
            _ => 1.0,
        };
        seconds += number.parse::<f64>().unwrap_or(0.0) * unit_seconds;
        rest = next;
    }
    seconds
}

/// Adds the missing year to times such as `01-31|23:59:59.999`.
struct YearlessClock {
    /// Year of the last time that was parsed.
    year: i16,
    /// The last time that was parsed. `None` before the first time.
    last: Option<DateTime>,
}

impl YearlessClock {
    /// Returns the seconds since 1970 of a time such as `01-31|23:59:59.999`. If the time is in
    /// January and the previous time is in December, the next year has begun.
    fn parse_time(&mut self, text: &str) -> Result<f64, String> {
        let parse = |year: i16| {
            let text_with_year = format!("{year}-{}", text.replace('|', "T"));
            let fault = |_| format!("{:?} is not a time such as 01-31|23:59:59.999", excerpt(text));
            text_with_year.parse::<DateTime>().map_err(fault)
        };
        let mut time = parse(self.year)?;
        if self.last.is_some_and(|last| last.month() == 12 && time.month() == 1) {
            self.year += 1;
            time = parse(self.year)?;
        }
        self.last = Some(time);
        let timestamp = time.to_zoned(TimeZone::UTC).map_err(|error| error.to_string())?;
        #[expect(clippy::cast_precision_loss, reason = "to the microsecond until the year 2200")]
        let seconds = timestamp.timestamp().as_microsecond() as f64 / 1e6;
        Ok(seconds)
    }
}
