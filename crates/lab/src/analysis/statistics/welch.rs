//! Welch's t-test, for samples that are too small for rank tests.

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{CONFIDENCE, Interval, mean, variance};

/// A mean with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Variance of the mean, not of the values.
    pub variance: f64,
    /// Degrees of freedom of that variance; above 0.
    pub freedom: f64,
}

impl Estimate {
    /// Estimates the mean of independent values. `None` for fewer than two values.
    pub fn of(values: &[f64]) -> Option<Estimate> {
        let count = values.len() as f64;
        let variance = variance(values)? / count;
        Some(Estimate { mean: mean(values)?, variance, freedom: count - 1.0 })
    }
}

/// A difference of two means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Second minus first.
    pub difference: f64,
    /// 95 % interval.
    pub interval: Interval,
    /// Two-sided p-value.
    pub p: f64,
    /// Degrees of freedom.
    pub freedom: f64,
}

/// Returns the second mean minus the first. The variances may be unequal (Welch 1947; degrees of
/// freedom by Satterthwaite 1946). If both variances are 0, any difference is certain.
pub fn difference(a: Estimate, b: Estimate) -> Difference {
    let difference = b.mean - a.mean;
    let variance = a.variance + b.variance;
    if variance <= 0.0 {
        let interval = Interval { low: difference, high: difference };
        let p = if difference == 0.0 { 1.0 } else { 0.0 };
        return Difference { difference, interval, p, freedom: a.freedom + b.freedom };
    }
    let divisor = a.variance.powi(2) / a.freedom + b.variance.powi(2) / b.freedom;
    // Below one degree of freedom the interval is meaningless.
    let freedom = (variance.powi(2) / divisor).max(1.0);
    let student = StudentsT::new(0.0, 1.0, freedom).expect("scale and freedom are positive");
    let standard_error = variance.sqrt();
    let half_width = student.inverse_cdf(0.5 + CONFIDENCE / 2.0) * standard_error;
    let interval = Interval { low: difference - half_width, high: difference + half_width };
    let p = 2.0 * student.sf((difference / standard_error).abs());
    Difference { difference, interval, p, freedom }
}
