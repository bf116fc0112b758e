//! Advice for a plan whose workers need more open files than this machine allows.

use lab_engine::engine::{EngineFault, files_needed};
use lab_model::plan;

use super::RunFault;

/// A value of a plan's variable for which the allowed open files are enough.
#[derive(Clone, Debug, PartialEq)]
struct Fit {
    variable: String,
    value: f64,
    files: u64,
}

/// Returns advice if a run failed because its plan needs too many open files: the variable of the
/// plan to set, and its largest value that fits. `text` and `name` are those of the plan's file, and
/// `overrides` the variables of the command line.
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
        let overridden = overrides.iter().rfind(|(other, _)| other == variable);
        let value = overridden.map(|(_, value)| *value).or_else(|| number(value))?;
        let files = |value: f64| {
            let others = overrides.iter().filter(|(other, _)| other != variable).cloned();
            let values: Vec<_> = others.chain([(variable.clone(), value)]).collect();
            Some(files_needed(&plan::read(text, name, &values).ok()?))
        };
        let (value, files) = largest_that_fits(value, *allowed, files)?;
        Some(Fit { variable: variable.clone(), value, files })
    });
    let Fit { variable, value, files } = fits.max_by_key(|fit| fit.files)?;
    Some(format!(
        "{variable} fits up to {value}, with {files} open files: --set {variable}={value}"
    ))
}

/// Returns the largest value below `current` for which the open files are enough, and their number.
/// Values are whole numbers, or tenths below 1. None if the files do not depend on the value.
fn largest_that_fits(
    current: f64,
    allowed: u64,
    files: impl Fn(f64) -> Option<u64>,
) -> Option<(f64, u64)> {
    let fits = |value: f64| files(value).filter(|files| *files <= allowed);
    for (steps_per_one, limit) in [(1.0, current), (10.0, current.min(1.0))] {
        let value_of = |step: u32| f64::from(step) / steps_per_one;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let mut too_many = (limit * steps_per_one).ceil() as u32;
        let mut found = None;
        let mut fitting = 0;
        while too_many > fitting + 1 {
            let step = fitting + (too_many - fitting) / 2;
            match fits(value_of(step)) {
                Some(files) => {
                    fitting = step;
                    found = Some((value_of(step), files));
                }
                None => too_many = step,
            }
        }
        if found.is_some() {
            return found;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_that_fits_is_found() {
        let files = |value: f64| {
            let workers = 100.0 + 2_200.0 * value;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Some(workers as u64)
        };
        assert_eq!(largest_that_fits(10.0, 20_000, files), Some((9.0, 19_900)));
        assert_eq!(largest_that_fits(10.0, 2_300, files), Some((1.0, 2_300)));
        assert_eq!(largest_that_fits(10.0, 1_024, files), Some((0.4, 980)));
        assert_eq!(largest_that_fits(10.0, 200, files), None, "not even the smallest value");
        assert_eq!(largest_that_fits(10.0, 200, |_| Some(300)), None, "another variable");
    }
}
