//! Describes how throughput grows with concurrency, by the universal scalability law.
//!
//! The curve is descriptive only. Thresholds decide the capacity of a target, in `search`.

use lab_model::results::capacity::Scaling;

use crate::analysis::statistics::mean;

/// Smallest number of different concurrencies for a fit. Source: Gunther, Guerrilla Capacity
/// Planning, 2007, chapter 5.
const POINTS_MIN: usize = 6;
/// Maximum number of Gauss–Newton steps. Three or four are enough from the linear solution.
const STEPS: usize = 20;

/// Fits X(N) = λN ÷ (1 + σ(N−1) + κN(N−1)) to pairs of mean concurrency and throughput by least
/// squares. Gunther's linear form gives the start values. Gauss–Newton on X refines them, so points
/// of large N do not count more. σ and κ are at least 0. None for fewer than six different
/// concurrencies, or if the fit fails.
pub fn fit(points: &[(f64, f64)]) -> Option<Scaling> {
    let good = |point: &&(f64, f64)| {
        point.0 > 0.0 && point.1 > 0.0 && point.0.is_finite() && point.1.is_finite()
    };
    let points: Vec<(f64, f64)> = points.iter().filter(good).copied().collect();
    let mut levels: Vec<f64> = points.iter().map(|point| point.0).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup_by(|b, a| *b / *a < 1.01);
    if levels.len() < POINTS_MIN {
        return None;
    }
    let mut law = start(&points)?;
    for _ in 0..STEPS {
        let Some(better) =
            refine(law, &points).filter(|it| error(*it, &points) < error(law, &points))
        else {
            break;
        };
        law = better;
    }
    let [lambda, sigma, kappa] = law;
    let centre = mean(&points.iter().map(|point| point.1).collect::<Vec<_>>())?;
    let spread: f64 = points.iter().map(|point| (point.1 - centre).powi(2)).sum();
    let peak = (kappa > 0.0 && sigma < 1.0).then(|| ((1.0 - sigma) / kappa).sqrt());
    Some(Scaling {
        lambda,
        sigma,
        kappa,
        peak_in_flight: peak,
        peak_rate: peak.map(|in_flight| at(law, in_flight)),
        r_squared: if spread > 0.0 { 1.0 - error(law, &points) / spread } else { 0.0 },
        points: points.len(),
    })
}

/// λ, σ, κ.
type Law = [f64; 3];

fn at([lambda, sigma, kappa]: Law, n: f64) -> f64 {
    lambda * n / (1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0))
}

fn error(law: Law, points: &[(f64, f64)]) -> f64 {
    points.iter().map(|(n, x)| (x - at(law, *n)).powi(2)).sum()
}

/// Solves the linear form N ÷ X = 1/λ + (σ/λ)(N−1) + (κ/λ)N(N−1), with weights X² ÷ N.
fn start(points: &[(f64, f64)]) -> Option<Law> {
    let row = |(n, x): &(f64, f64)| {
        let weight = x / n.sqrt();
        ([weight, weight * (n - 1.0), weight * n * (n - 1.0)], weight * n / x)
    };
    let [a, b, c] = least_squares(points.iter().map(row))?;
    let law = [1.0 / a, (b / a).max(0.0), (c / a).max(0.0)];
    (a > 0.0 && law.iter().all(|value| value.is_finite())).then_some(law)
}

fn refine(law: Law, points: &[(f64, f64)]) -> Option<Law> {
    let [lambda, sigma, kappa] = law;
    let row = |(n, x): &(f64, f64)| {
        let below = 1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0);
        let model = lambda * n / below;
        let slopes = [n / below, -model * (n - 1.0) / below, -model * n * (n - 1.0) / below];
        (slopes, x - model)
    };
    let [l, s, k] = least_squares(points.iter().map(row))?;
    let law = [lambda + l, (sigma + s).max(0.0), (kappa + k).max(0.0)];
    (law[0] > 0.0 && law.iter().all(|value| value.is_finite())).then_some(law)
}

/// Solves the normal equations of three unknowns by elimination with pivoting; the columns are
/// scaled first.
fn least_squares(rows: impl Iterator<Item = ([f64; 3], f64)> + Clone) -> Option<[f64; 3]> {
    let mut scale = [0.0_f64; 3];
    for (row, _) in rows.clone() {
        for (largest, value) in scale.iter_mut().zip(row) {
            *largest = largest.max(value.abs());
        }
    }
    if scale.iter().any(|largest| *largest <= 0.0 || !largest.is_finite()) {
        return None;
    }
    let mut system = [[0.0_f64; 4]; 3];
    for (row, value) in rows {
        for (i, line) in system.iter_mut().enumerate() {
            for (j, cell) in line.iter_mut().take(3).enumerate() {
                *cell += row[i] / scale[i] * row[j] / scale[j];
            }
            line[3] += row[i] / scale[i] * value;
        }
    }
    for column in 0..3 {
        let pivot = (column..3)
            .max_by(|a, b| system[*a][column].abs().total_cmp(&system[*b][column].abs()))?;
        system.swap(column, pivot);
        if system[column][column].abs() < 1e-12 {
            return None;
        }
        let top = system[column];
        for line in system.iter_mut().skip(column + 1) {
            let factor = line[column] / top[column];
            for (cell, above) in line.iter_mut().zip(top) {
                *cell -= factor * above;
            }
        }
    }
    let mut solved = [0.0; 3];
    for row in (0..3).rev() {
        let known: f64 = (row + 1..3).map(|column| system[row][column] * solved[column]).sum();
        solved[row] = (system[row][3] - known) / system[row][row];
    }
    Some([solved[0] / scale[0], solved[1] / scale[1], solved[2] / scale[2]])
}

#[cfg(test)]
mod tests;
