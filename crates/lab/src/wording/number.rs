//! Formats numbers for people, with units and about three significant digits. Rounding never makes
//! a statement false: 99.996 % does not become 100 %.
//!
//! The terminal, the HTML page and Markdown share these functions, so they show the same texts.

use lab_model::metrics::Unit;
pub use lab_model::number::{count, join_first};

/// Smallest number of calls for a reliable p99. With fewer calls, fewer than 100 are slower than
/// the p99.
pub(crate) const WEAK_P99: u64 = 10_000;

/// Formats a number with at most three significant digits, or as an integer with commas from 100
/// on: `0.012`, `1.23`, `12.3`, `1,235`.
pub fn short(number: f64) -> String {
    if !number.is_finite() {
        return String::from("–");
    }
    if number < 0.0 {
        return format!("−{}", short(-number));
    }
    match number {
        0.0 => String::from("0"),
        n if n < 0.000_05 => String::from("<0.0001"),
        n if n < 0.01 => format!("{n:.4}"),
        n if n < 0.9995 => format!("{n:.3}"),
        n if n < 9.995 => format!("{n:.2}"),
        n if n < 99.95 => format!("{n:.1}"),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        n => count(n.round() as u64),
    }
}

/// Formats milliseconds without a unit, for columns whose heading has the unit.
pub(crate) fn bare_ms(ms: f64) -> String {
    short(ms)
}

/// Formats milliseconds in a suitable unit: `12 µs`, `3.4 ms`, `1.2 s`.
pub fn ms(ms: f64) -> String {
    match ms {
        0.0 => String::from("0 ms"),
        m if m.abs() < 0.1 => format!("{} µs", short(m * 1e3)),
        m if m.abs() < 10_000.0 => format!("{} ms", short(m)),
        m => format!("{} s", short(m / 1e3)),
    }
}

/// Formats a share in per cent: `0 %`, `0.012 %`, `12.3 %`, `99.996 %`, `100 %`. Only exact values
/// become 0 % and 100 %.
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return String::from("–");
    }
    let percent = share * 100.0;
    match percent {
        0.0 => String::from("0 %"),
        p if p < 0.0 => format!("−{}", self::percent(-share)),
        p if p < 0.0005 => String::from("<0.001 %"),
        p if p < 0.1 => format!("{p:.3} %"),
        p if p < 10.0 => format!("{p:.2} %"),
        p if p < 99.0 => format!("{p:.1} %"),
        p if p < 99.95 => format!("{p:.2} %"),
        p if p < 99.9995 => format!("{p:.3} %"),
        p if p < 100.0 => String::from(">99.999 %"),
        p => format!("{} %", short(p)),
    }
}

/// Formats a share in per cent with few digits: `0.4 %`, `85 %`.
pub(crate) fn brief_percent(share: f64) -> String {
    if share < 0.1 { format!("{:.1} %", share * 100.0) } else { format!("{:.0} %", share * 100.0) }
}

/// Formats a rate: `1,235/s`.
pub(crate) fn rate(per_second: f64) -> String {
    format!("{}/s", short(per_second))
}

/// Formats bytes in decimal units: `1.23 MB`.
pub fn bytes(bytes: f64) -> String {
    match bytes {
        b if b < 1e3 => format!("{} B", short(b)),
        b if b < 1e6 => format!("{} kB", short(b / 1e3)),
        b if b < 1e9 => format!("{} MB", short(b / 1e6)),
        b => format!("{} GB", short(b / 1e9)),
    }
}

/// Formats a value of a metric in its unit.
pub(crate) fn with_unit(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Share => percent(value),
        Unit::Milliseconds => ms(value),
        Unit::Bytes | Unit::BytesPerSecond => bytes(value),
        Unit::PerSecond => rate(value),
        Unit::Cores | Unit::SecondsPerSecond | Unit::Count => short(value),
    }
}

/// Formats a duration in seconds as text: `10 s`, `2 min 30 s`, `1 h 4 min`.
pub fn span(seconds: f64) -> String {
    if seconds < 60.0 && seconds.fract() == 0.0 {
        return format!("{seconds} s");
    }
    if !seconds.is_finite() || seconds < 59.5 {
        return format!("{} s", short(seconds));
    }
    let (hours, minutes, seconds_left) = split_time(seconds);
    match (hours, minutes, seconds_left) {
        (0, m, 0) => format!("{m} min"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, 0, 0) => format!("{h} h"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

/// Formats an elapsed time as on a clock: `0:42`, `1:02:03`.
pub(crate) fn clock(seconds: f64) -> String {
    let (hours, minutes, seconds_left) = split_time(seconds.max(0.0));
    match hours {
        0 => format!("{minutes}:{seconds_left:02}"),
        h => format!("{h}:{minutes:02}:{seconds_left:02}"),
    }
}

/// Splits a time into hours, minutes and seconds, rounded to whole seconds.
fn split_time(seconds: f64) -> (u64, u64, u64) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let whole_seconds = seconds.round() as u64;
    (whole_seconds / 3600, whole_seconds / 60 % 60, whole_seconds % 60)
}

/// Formats a count with its noun: `1 call`, `2 calls`.
pub(crate) fn plural(number: u64, noun: &str) -> String {
    let plural_ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural_ending}", count(number))
}
