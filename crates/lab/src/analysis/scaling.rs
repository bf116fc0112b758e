//! Describes how throughput grows with concurrency, by Gunther's universal scalability law:
//! X(N) = λN ÷ (1 + σ(N−1) + κN(N−1)).
//!
//! N is the concurrency: the mean number of iterations in flight. X(N) is the throughput in
//! iterations per second. λ is the throughput at a concurrency of one. σ (contention) is the share
//! of the work that runs serially. κ (coherency) is the cost of keeping shared data consistent.
//!
//! The curve describes measured points and does not decide the capacity. `analysis/search.rs` finds
//! the capacity from thresholds.

use lab_model::results::capacity::Scaling;

use crate::analysis::statistics::mean;

/// Smallest number of different concurrencies for a fit. Source: Gunther, Guerrilla Capacity
/// Planning, 2007, chapter 5.
const POINTS_MIN: usize = 6;
/// Maximum number of Gauss–Newton steps. The steps start from the solution of the linear form;
/// three or four usually suffice.
const STEPS_MAX: usize = 20;

/// Fits the law to `points`, pairs of concurrency N and throughput X, by least squares.
///
/// Gunther's linear form gives the start values, but weighs points of large N too much.
/// Gauss–Newton steps then minimize the squared errors of X itself. σ and κ are at least 0. Returns
/// `None` for fewer than six different concurrencies, or if the fit fails.
pub fn fit(points: &[(f64, f64)]) -> Option<Scaling> {
    let is_usable = |point: &&(f64, f64)| {
        point.0 > 0.0 && point.1 > 0.0 && point.0.is_finite() && point.1.is_finite()
    };
    let points: Vec<(f64, f64)> = points.iter().filter(is_usable).copied().collect();
    let mut concurrencies: Vec<f64> = points.iter().map(|point| point.0).collect();
    concurrencies.sort_by(f64::total_cmp);
    // Values within 1 % of each other count once.
    concurrencies.dedup_by(|larger, smaller| *larger / *smaller < 1.01);
    if concurrencies.len() < POINTS_MIN {
        return None;
    }
    let mut law = solve_linear_form(&points)?;
    for _ in 0..STEPS_MAX {
        let Some(better) = refine(law, &points)
            .filter(|new| squared_error(*new, &points) < squared_error(law, &points))
        else {
            break;
        };
        law = better;
    }
    let [lambda, sigma, kappa] = law;
    let mean_throughput = mean(&points.iter().map(|point| point.1).collect::<Vec<_>>())?;
    // `spread` is the sum of the squared deviations from the mean, for R².
    let spread: f64 = points.iter().map(|point| (point.1 - mean_throughput).powi(2)).sum();
    // The throughput is largest where the derivative of X(N) is 0.
    let peak = (kappa > 0.0 && sigma < 1.0).then(|| ((1.0 - sigma) / kappa).sqrt());
    Some(Scaling {
        lambda,
        sigma,
        kappa,
        peak_in_flight: peak,
        peak_rate: peak.map(|in_flight| throughput_at(law, in_flight)),
        r_squared: if spread > 0.0 { 1.0 - squared_error(law, &points) / spread } else { 0.0 },
        points: points.len(),
    })
}

/// The parameters λ, σ and κ of the law, in this order.
type Law = [f64; 3];

/// Returns X(N), the throughput at a concurrency.
fn throughput_at([lambda, sigma, kappa]: Law, n: f64) -> f64 {
    lambda * n / (1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0))
}

/// Returns the sum of the squared differences between measured and predicted throughput.
fn squared_error(law: Law, points: &[(f64, f64)]) -> f64 {
    points.iter().map(|(n, x)| (x - throughput_at(law, *n)).powi(2)).sum()
}

/// Solves the linear form N ÷ X = 1/λ + (σ/λ)(N−1) + (κ/λ)N(N−1) by weighted least squares. The
/// weight of a squared error is X² ÷ N.
fn solve_linear_form(points: &[(f64, f64)]) -> Option<Law> {
    let row = |(n, x): &(f64, f64)| {
        // Both sides of an equation are multiplied by the square root of X² ÷ N.
        let weight = x / n.sqrt();
        ([weight, weight * (n - 1.0), weight * n * (n - 1.0)], weight * n / x)
    };
    // `a` is 1/λ, `b` is σ/λ and `c` is κ/λ.
    let [a, b, c] = least_squares(points.iter().map(row))?;
    let law = [1.0 / a, (b / a).max(0.0), (c / a).max(0.0)];
    (a > 0.0 && law.iter().all(|value| value.is_finite())).then_some(law)
}

/// Makes one Gauss–Newton step: linearizes the law at its parameters and solves for their changes.
fn refine(law: Law, points: &[(f64, f64)]) -> Option<Law> {
    let [lambda, sigma, kappa] = law;
    let row = |(n, x): &(f64, f64)| {
        let divisor = 1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0);
        let predicted = lambda * n / divisor;
        let slope_sigma = -predicted * (n - 1.0) / divisor;
        let slope_kappa = -predicted * n * (n - 1.0) / divisor;
        ([n / divisor, slope_sigma, slope_kappa], x - predicted)
    };
    let [step_lambda, step_sigma, step_kappa] = least_squares(points.iter().map(row))?;
    let law = [lambda + step_lambda, (sigma + step_sigma).max(0.0), (kappa + step_kappa).max(0.0)];
    (law[0] > 0.0 && law.iter().all(|value| value.is_finite())).then_some(law)
}

/// Returns the least-squares solution for three unknowns. A row is one equation: its three
/// coefficients, and the value to approximate. `None` if there is no unique solution.
///
/// Each column of coefficients is scaled to a maximum of 1. Gaussian elimination with pivoting then
/// solves the normal equations.
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
        for (i, equation) in system.iter_mut().enumerate() {
            for (j, cell) in equation.iter_mut().take(3).enumerate() {
                *cell += row[i] / scale[i] * row[j] / scale[j];
            }
            equation[3] += row[i] / scale[i] * value;
        }
    }
    for column in 0..3 {
        let pivot = (column..3)
            .max_by(|a, b| system[*a][column].abs().total_cmp(&system[*b][column].abs()))?;
        system.swap(column, pivot);
        if system[column][column].abs() < 1e-12 {
            return None;
        }
        let pivot_equation = system[column];
        for equation in system.iter_mut().skip(column + 1) {
            let factor = equation[column] / pivot_equation[column];
            for (cell, pivot_cell) in equation.iter_mut().zip(pivot_equation) {
                *cell -= factor * pivot_cell;
            }
        }
    }
    let mut solution = [0.0; 3];
    for row in (0..3).rev() {
        let solved_part: f64 =
            (row + 1..3).map(|column| system[row][column] * solution[column]).sum();
        solution[row] = (system[row][3] - solved_part) / system[row][row];
    }
    Some([solution[0] / scale[0], solution[1] / scale[1], solution[2] / scale[2]])
}

#[cfg(test)]
mod tests;
