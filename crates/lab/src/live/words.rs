//! Numbers and times as people read them while a run goes on: short, and of steady width.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// A count with its thousands set apart.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate per second: whole from 100 on.
pub(super) fn rate(per_second: f64) -> String {
    if per_second >= 100.0 || per_second.fract() == 0.0 {
        count(per_second.round().max(0.0) as u64)
    } else {
        format!("{per_second:.1}")
    }
}

/// Milliseconds with three significant digits, and seconds from ten of them on.
pub(super) fn millis(ms: f64) -> String {
    match ms {
        _ if !ms.is_finite() => "-".to_owned(),
        ms if ms < 9.995 => format!("{ms:.2}"),
        ms if ms < 99.95 => format!("{ms:.1}"),
        ms if ms < 9_999.5 => format!("{ms:.0}"),
        ms => format!("{:.1}s", ms / 1e3),
    }
}

/// A share in percent; a small one is never rounded to nothing, nor a large one to all.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        _ if !share.is_finite() => "-".to_owned(),
        0.0 => "0 %".to_owned(),
        100.0 => "100 %".to_owned(),
        percent if percent < 0.01 => "<0.01 %".to_owned(),
        percent if percent > 99.99 => ">99.99 %".to_owned(),
        percent if !(10.0..=99.0).contains(&percent) => format!("{percent:.2} %"),
        percent => format!("{percent:.1} %"),
    }
}

/// A time in a run: `8 s`, `2:05`, `1:02:05`.
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}
