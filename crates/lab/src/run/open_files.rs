//! Advice for a plan that needs more open files than this machine allows. Each worker of a plan
//! needs a connection, and each connection is an open file. An example of the advice:
//!
//! ```text
//! workers fits up to 900, with 980 open files: --set workers=900
//! ```

use lab_engine::engine::{EngineFault, files_needed};
use lab_model::plan;

use super::RunFault;

/// A variable of a plan, with a value for which the allowed number of open files is enough.
#[derive(Clone, Debug, PartialEq)]
struct FittingValue {
    variable: String,
    value: f64,
    /// Number of open files that the plan needs with this value.
    files: u64,
}

/// Returns advice if a run failed because its plan needs too many open files. The advice names a
/// variable of the plan, and the largest value with which the plan needs few enough files. `None`
/// if the run failed for another reason, or if no variable of the plan has such a value.
///
/// `text` is the content of the plan's file and `name` its name. `overrides` has the variables that
/// the command line sets (`--set`).
pub fn advice(
    fault: &RunFault,
    text: &str,
    name: &str,
    overrides: &[(String, f64)],
) -> Option<String> {
    let RunFault::Engine(EngineFault::Files { allowed, .. }) = fault else { return None };
    let table = text.parse::<toml::Table>().ok()?;
    let variables = table.get("variables")?.as_table()?;
    let number = |value: &toml::Value| {
        let integer = value.as_integer().and_then(|number| i32::try_from(number).ok());
        integer.map(f64::from).or_else(|| value.as_float())
    };
    let fits = variables.iter().filter_map(|(variable, value)| {
        let overridden = overrides.iter().rfind(|(name, _)| name == variable);
        let current = overridden.map(|(_, value)| *value).or_else(|| number(value))?;
        let files_with = |value: f64| {
            let other_overrides = overrides.iter().filter(|(name, _)| name != variable).cloned();
            let values: Vec<_> = other_overrides.chain([(variable.clone(), value)]).collect();
            Some(files_needed(&plan::read(text, name, &values).ok()?))
        };
        let (value, files) = find_largest_fit(current, *allowed, files_with)?;
        Some(FittingValue { variable: variable.clone(), value, files })
    });
    // If several variables help, the one whose value needs the most files reduces the load least.
    let FittingValue { variable, value, files } = fits.max_by_key(|fit| fit.files)?;
    Some(format!(
        "{variable} fits up to {value}, with {files} open files: --set {variable}={value}"
    ))
}

/// Returns the largest value below `current` that fits, and the number of files that it needs. A
/// value fits if it needs at most `allowed` files. The function searches the whole numbers below
/// `current`. If none fits, it searches the tenths below 1, from 0.1 to 0.9. `None` if no tenth
/// fits either, for example if the variable does not change the number of files.
///
/// `files_with` returns the number of files for a value, or `None` if the plan rejects the value.
/// The search is binary: it assumes that a larger value needs more files.
fn find_largest_fit(
    current: f64,
    allowed: u64,
    files_with: impl Fn(f64) -> Option<u64>,
) -> Option<(f64, u64)> {
    let files_if_fitting = |value: f64| files_with(value).filter(|files| *files <= allowed);
    for (steps_per_one, limit) in [(1.0, current), (10.0, current.min(1.0))] {
        let value_of = |step: u32| f64::from(step) / steps_per_one;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let mut lowest_excess = (limit * steps_per_one).ceil() as u32;
        let mut largest_fit = None;
        let mut highest_fit = 0;
        while lowest_excess > highest_fit + 1 {
            let step = highest_fit + (lowest_excess - highest_fit) / 2;
            match files_if_fitting(value_of(step)) {
                Some(files) => {
                    highest_fit = step;
                    largest_fit = Some((value_of(step), files));
                }
                None => lowest_excess = step,
            }
        }
        if largest_fit.is_some() {
            return largest_fit;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_that_fits_is_found() {
        // A plan that needs 100 files, and 2,200 more for each unit of the variable.
        let files = |value: f64| {
            let workers = 100.0 + 2_200.0 * value;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Some(workers as u64)
        };
        assert_eq!(find_largest_fit(10.0, 20_000, files), Some((9.0, 19_900)));
        assert_eq!(find_largest_fit(10.0, 2_300, files), Some((1.0, 2_300)));
        assert_eq!(find_largest_fit(10.0, 1_024, files), Some((0.4, 980)));
        assert_eq!(find_largest_fit(10.0, 200, files), None, "not even the smallest value");
        assert_eq!(find_largest_fit(10.0, 200, |_| Some(300)), None, "another variable");
    }
}
