//! Axes of charts: their range, and ticks at round values.
//!
//! Charts treat all axes as linear. The positions on a logarithmic axis are exponents of ten. Code
//! that draws on such an axis converts its values with [`log`] or [`rarity`].

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

use crate::wording::number::{bytes, clock, ms, percent, short, span};

/// A value with its label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    /// Position, in units of the axis.
    pub(crate) at: f64,
    pub(crate) label: String,
}

/// One axis of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    /// Smallest value.
    pub(crate) from: f64,
    /// Largest value; above `from`.
    pub(crate) to: f64,
    /// Ticks in ascending order.
    pub(crate) ticks: Vec<Tick>,
}

/// Format of an axis' labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Plain numbers.
    Number,
    /// Shares, in per cent.
    Share,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Milliseconds,
}

impl Scale {
    /// Formats the label of a value.
    fn write(self, value: f64) -> String {
        match self {
            Scale::Number if value >= 1e6 => format!("{}M", tidy(&short(value / 1e6))),
            Scale::Number if value >= 1e5 => format!("{}k", tidy(&short(value / 1e3))),
            Scale::Number => tidy(&short(value)),
            Scale::Share => tidy(&percent(value)),
            Scale::Bytes => tidy(&bytes(value)),
            Scale::Milliseconds if value >= 1e3 => tidy(&format!("{} s", short(value / 1e3))),
            Scale::Milliseconds => tidy(&ms(value)),
        }
    }
}

/// Removes trailing zeros after the decimal point.
pub(crate) fn tidy(text: &str) -> String {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    };
    if unit.is_empty() { number.to_owned() } else { format!("{number} {unit}") }
}

impl Axis {
    /// Returns an axis with ticks at the multiples of `step`. `from` must be a multiple of `step`.
    pub(crate) fn stepped(from: f64, to: f64, step: f64, label: impl Fn(f64) -> String) -> Axis {
        let mut ticks = Vec::new();
        let mut at = from;
        while at <= to + step * 1e-6 {
            // The rounding removes the error of the sum, and the sign of a negative zero.
            let multiple = (at / step).round() * step + 0.0;
            ticks.push(Tick { at: multiple, label: label(multiple) });
            at += step;
        }
        Axis { from, to, ticks }
    }

    /// Returns an axis of the time since the start of a run, in seconds.
    pub(crate) fn time(duration: f64) -> Axis {
        let end = duration.max(1.0);
        let steps = [
            1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0,
            7200.0, 14400.0, 21600.0, 43200.0, 86400.0,
        ];
        let step = steps.iter().copied().find(|step| end / step <= 10.0).unwrap_or(end / 8.0);
        Axis::stepped(0.0, end, step, if end < 60.0 { span } else { clock })
    }

    /// Returns an axis from zero to a round value above `maximum`.
    pub(crate) fn up_to(maximum: f64, scale: Scale) -> Axis {
        let maximum = if maximum.is_finite() && maximum > 0.0 { maximum } else { 1.0 };
        let step = round_step(maximum / 4.0, &[1.0, 2.0, 2.5, 5.0, 10.0]);
        let end = (maximum * 1.05 / step).ceil() * step;
        Axis::stepped(0.0, end, step, |value| scale.write(value))
    }

    /// Returns an axis of milliseconds on a logarithmic scale, from below `minimum` to above
    /// `maximum`. [`log`] converts values.
    pub(crate) fn log_ms(minimum: f64, maximum: f64) -> Axis {
        let minimum = if minimum.is_finite() && minimum > 0.0 { minimum } else { 1.0 };
        let maximum =
            if maximum.is_finite() && maximum > minimum { maximum } else { minimum * 10.0 };
        // The ends are exponents of ten. Each end is a multiple of 0.5, and at least 0.05 beyond
        // the exponent of its value.
        let start = (minimum.log10() * 2.0 - 0.1).floor() / 2.0;
        let end = ((maximum.log10() * 2.0 + 0.1).ceil() / 2.0).max(start + 1.0);
        let mut ticks = Vec::new();
        let mut power = start.ceil();
        while power <= end + 1e-9 {
            ticks.push(Tick { at: power, label: Scale::Milliseconds.write(10f64.powf(power)) });
            power += 1.0;
        }
        // A short axis also has ticks at 3, 30, 300 and so on.
        if ticks.len() < 3 {
            for power in [start.floor(), start.floor() + 1.0, start.floor() + 2.0] {
                let position = power + 3f64.log10();
                if position > start && position < end {
                    let label = Scale::Milliseconds.write(3.0 * 10f64.powf(power));
                    ticks.push(Tick { at: position, label });
                }
            }
            ticks.sort_by(|a, b| a.at.total_cmp(&b.at));
        }
        Axis { from: start, to: end, ticks }
    }

    /// Returns an axis of quantiles by [`rarity`], on which 90 %, 99 % and 99.9 % are equally far
    /// apart. The axis ends at the rarest quantile that this number of calls resolves, but not
    /// below 99 % and not above 99.9999 %.
    pub(crate) fn quantile(calls: u64) -> Axis {
        // The number of nines of the last quantile: 99.9 % has three.
        let nines = (calls.max(10) as f64).log10().clamp(2.0, 6.0);
        let quantiles = [
            (0.0, "0"),
            (0.5, "50 %"),
            (0.9, "90 %"),
            (0.99, "99 %"),
            (0.999, "99.9 %"),
            (0.9999, "99.99 %"),
            (0.99999, "99.999 %"),
            (0.999_999, "99.9999 %"),
        ];
        let ticks = quantiles
            .into_iter()
            .map(|(quantile, label)| Tick { at: rarity(quantile), label: label.into() })
            .filter(|tick| tick.at <= nines + 1e-9)
            .collect();
        Axis { from: 0.0, to: nines, ticks }
    }

    /// Returns the label of the tick at a position, or an empty text if there is no tick.
    pub(crate) fn label(&self, at: f64) -> String {
        let is_near = |tick: &&Tick| (tick.at - at).abs() <= (self.to - self.from) * 1e-6;
        self.ticks.iter().find(is_near).map_or_else(String::new, |tick| tick.label.clone())
    }

    /// Clamps a value to the range of the axis.
    pub(crate) fn clamp(&self, value: f64) -> f64 {
        if value.is_finite() { value.clamp(self.from, self.to) } else { self.from }
    }
}

/// For plotters: a linear axis with grid lines and labels at the ticks only.
impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (value - self.from) / (self.to - self.from);
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let units = (f64::from(high - low) * share).round() as i32;
        low + units
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.iter().map(|tick| tick.at).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

/// Returns the position of a time in milliseconds on [`Axis::log_ms`].
pub(crate) fn log(ms: f64) -> f64 {
    ms.max(1e-6).log10()
}

/// Returns the position of a quantile on [`Axis::quantile`]: 1 for 90 %, 2 for 99 %, 3 for 99.9 %.
pub(crate) fn rarity(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-12).log10()
}

/// Returns the smallest product of a factor and a power of ten that is at least `minimum`. Factors
/// are between 1 and 10, in ascending order.
pub(crate) fn round_step(minimum: f64, factors: &[f64]) -> f64 {
    let power = 10f64.powf(minimum.log10().floor());
    let steps = factors.iter().map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= minimum * 0.999).unwrap_or(10.0 * power)
}
