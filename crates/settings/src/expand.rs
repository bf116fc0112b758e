//! Replaces `${VAR}` by an environment variable and `${file:PATH}` by the content of a file.
//!
//! In a file that allows formulas, `${…}` is a formula and `${env:VAR}` an environment variable.
//! Every string of a configuration file is expanded. Diagnostics print the string as written, never
//! the replacement, which may be a secret.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::formula::{self, Variable};

#[cfg(test)]
mod tests;

/// The surroundings of a configuration file: its folder, the environment, and the values of
/// variables.
pub struct World<'a> {
    /// The folder of relative file names.
    pub folder: &'a Path,
    /// Returns an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Maximum number of bytes of the file.
    pub text_bytes_max: usize,
    /// The files that the configuration names.
    files: RefCell<BTreeSet<PathBuf>>,
    /// The variables of formulas; `None` if the file allows no formulas.
    variables: Option<RefCell<Vec<Variable>>>,
    /// Values that override those of the file's variables.
    overrides: &'a [Variable],
}

impl<'a> World<'a> {
    /// Surroundings without formulas, for files of at most 1 MiB.
    pub fn new(folder: &'a Path, environment: &'a dyn Fn(&str) -> Option<String>) -> World<'a> {
        let files = RefCell::default();
        let (text_bytes_max, variables) = (TEXT_BYTES_MAX, None);
        World { folder, environment, text_bytes_max, files, variables, overrides: &[] }
    }

    /// Allows formulas. A string instead of a number is a formula, and so is `${…}` in a string.
    /// Formulas use the file's [`Variables`](crate::value::Variables). `overrides` replace values
    /// of the file's variables.
    #[must_use]
    pub fn with_formulas(self, overrides: &'a [Variable]) -> World<'a> {
        World { variables: Some(RefCell::default()), overrides, ..self }
    }

    /// Returns true if the file allows formulas.
    pub(crate) fn allows_formulas(&self) -> bool {
        self.variables.is_some()
    }

    /// Returns the value of a formula, or `None` if the file allows none.
    pub(crate) fn evaluate(&self, text: &str) -> Option<Result<f64, String>> {
        let variables = self.variables.as_ref()?;
        Some(formula::value(text, &variables.borrow()))
    }

    /// Sets a variable and returns its value, which an override may have replaced.
    pub(crate) fn set_variable(&self, name: &str, value: f64) -> f64 {
        let found = self.overrides.iter().rev().find(|(known, _)| known == name);
        let value = found.map_or(value, |(_, value)| *value);
        if let Some(variables) = &self.variables {
            variables.borrow_mut().push((name.to_owned(), value));
        }
        value
    }

    /// Registers a file that the configuration names.
    pub fn reads(&self, name: &str) {
        self.files.borrow_mut().insert(self.folder.join(name));
    }

    /// Returns the files that the configuration names.
    pub fn files(&self) -> Vec<PathBuf> {
        self.files.borrow().iter().cloned().collect()
    }
}

/// The prefix of an environment variable in a file that allows formulas.
const ENVIRONMENT: &str = "env:";

/// Default maximum bytes of a file. Configurations have a few kilobytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of bytes of a file that `${file:…}` reads. Keys and tokens are far shorter.
const SECRET_FILE_BYTES_MAX: u64 = 64 * 1024;

/// Replaces every `${VAR}`, `${VAR:-default}` and `${file:PATH}` of a text, and `$${` by `${`. A
/// replacement is not expanded again.
///
/// # Errors
/// The variable or file that is missing.
pub(crate) fn expand(text: &str, world: &World<'_>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        expanded.push_str(&rest[..at]);
        let Some(end) = rest[at..].find('}') else {
            return Err("${ is not closed by }".to_owned());
        };
        expanded.push_str(&replacement(&rest[at + 2..at + end], world)?);
        rest = &rest[at + end + 1..];
    }
    expanded.push_str(rest);
    Ok(expanded)
}

fn replacement(inside: &str, world: &World<'_>) -> Result<String, String> {
    if let Some(path) = inside.strip_prefix("file:") {
        return secret_file(path, world);
    }
    let variable = match inside.strip_prefix(ENVIRONMENT).filter(|_| world.allows_formulas()) {
        Some(variable) => variable,
        None => match world.evaluate(inside) {
            Some(number) => return number.map(|number| number.to_string()),
            None => inside,
        },
    };
    let (name, default) = match variable.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (variable, None),
    };
    if !is_variable_name(name) {
        let own = if world.allows_formulas() { ENVIRONMENT } else { "" };
        return Err(format!("${{…}} must contain {own}NAME, {own}NAME:-default or file:PATH"));
    }
    // As in a shell, `:-` also replaces an empty variable.
    match ((world.environment)(name).filter(|value| !value.is_empty()), default) {
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!("the environment variable {name} is not set or empty")),
    }
}

/// Returns true if a text is only a `${VAR}` or a `${file:PATH}`. Such a text names the source of a
/// secret, but is no secret itself.
pub(crate) fn is_reference(text: &str) -> bool {
    let inside = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    inside.is_some_and(|inside| {
        is_variable_name(inside.strip_prefix(ENVIRONMENT).unwrap_or(inside))
            || (inside.starts_with("file:") && !inside.contains('}'))
    })
}

fn is_variable_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn secret_file(path: &str, world: &World<'_>) -> Result<String, String> {
    let place = world.folder.join(path);
    world.reads(path);
    let describe = |what: &dyn std::fmt::Display| format!("cannot read the file {path}: {what}");
    let size = std::fs::metadata(&place).map_err(|error| describe(&error))?.len();
    if size > SECRET_FILE_BYTES_MAX {
        return Err(describe(&format!("{size} bytes, at most {SECRET_FILE_BYTES_MAX} allowed")));
    }
    let text = std::fs::read_to_string(&place).map_err(|error| describe(&error))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
