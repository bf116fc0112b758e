//! Formats the numbers of the status page. A narrow no-break space separates a number from its
//! unit.

use super::NONE;

/// Formats how often an event has happened, such as `3×`. Returns a dash for 0.
pub(super) fn format_times(count: u64) -> String {
    if count == 0 { NONE.to_owned() } else { format!("{}×", format_integer(count)) }
}

/// Formats a whole number in groups of three digits.
pub(super) fn format_integer(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a number. Numbers below 10 have one decimal, except 0.
pub(super) fn format_decimal(number: f64) -> String {
    if number >= 10.0 || number == 0.0 {
        format_integer(number.round() as u64)
    } else {
        format!("{number:.1}")
    }
}

/// Formats a share from 0 to 1 as a percentage.
pub(super) fn format_percent(ratio: f64) -> String {
    format!("{:.1}\u{202f}%", ratio * 100.0)
}

/// Formats milliseconds. Values of a second or more are formatted as seconds. Returns a dash for
/// `None`.
pub(super) fn format_millis(ms: Option<f64>) -> String {
    match ms {
        None => NONE.to_owned(),
        Some(ms) if ms >= 1000.0 => format!("{:.1}\u{202f}s", ms / 1000.0),
        Some(ms) if ms >= 10.0 => format!("{ms:.0}\u{202f}ms"),
        Some(ms) => format!("{ms:.2}\u{202f}ms"),
    }
}

/// Formats a number of bytes in the largest suitable binary unit. Values below 10 have one decimal,
/// except in bytes.
pub(super) fn format_bytes(number: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut amount = number as f64;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && amount < 10.0);
    format!("{amount:.digits$}\u{202f}{}", UNITS[unit])
}

/// Formats seconds in the two largest units.
pub(super) fn format_duration(seconds: f64) -> String {
    let whole_seconds = seconds as u64;
    let (days, hours, minutes) =
        (whole_seconds / 86_400, whole_seconds / 3600 % 24, whole_seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if seconds < 10.0 => format!("{seconds:.1}\u{202f}s"),
        (0, 0, 0) => format!("{whole_seconds}\u{202f}s"),
        (0, 0, minutes) => format!("{minutes} min {}\u{202f}s", whole_seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}
