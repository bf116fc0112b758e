//! Replaces `${VAR}` by an environment variable and `${file:PATH}` by the content of a file.
//!
//! In a file that allows formulas, `${…}` is a formula and `${env:VAR}` an environment variable.
//! Every string of a configuration file is expanded. Diagnostics print the string as written, never
//! the replacement, which may be a secret.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::formula::{self, Variable};

#[cfg(test)]
mod tests;

/// The context in which a configuration file is read: its folder, the environment variables, and
/// the variables of its formulas.
pub struct ReadContext<'a> {
    /// The folder that relative file names start from.
    pub folder: &'a Path,
    /// Returns an environment variable.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Maximum number of bytes of the configuration file.
    pub text_bytes_max: usize,
    /// The files that the configuration names.
    files: RefCell<BTreeSet<PathBuf>>,
    /// The variables of formulas; `None` if the file allows no formulas.
    variables: Option<RefCell<Vec<Variable>>>,
    /// Variables whose values replace the values in the file.
    overrides: &'a [Variable],
}

impl<'a> ReadContext<'a> {
    /// Creates a context without formulas, for files of at most 1 MiB.
    pub fn new(
        folder: &'a Path,
        environment: &'a dyn Fn(&str) -> Option<String>,
    ) -> ReadContext<'a> {
        ReadContext {
            folder,
            environment,
            text_bytes_max: TEXT_BYTES_MAX,
            files: RefCell::default(),
            variables: None,
            overrides: &[],
        }
    }

    /// Allows formulas: a string instead of a number, and `${…}` in any string.
    /// Formulas use the file's [`Variables`](crate::value::Variables). `overrides` replace values
    /// of the file's variables.
    #[must_use]
    pub fn with_formulas(self, overrides: &'a [Variable]) -> ReadContext<'a> {
        ReadContext { variables: Some(RefCell::default()), overrides, ..self }
    }

    /// Returns true if the file allows formulas.
    pub(crate) fn allows_formulas(&self) -> bool {
        self.variables.is_some()
    }

    /// Returns the value of a formula, or `None` if the file allows no formulas.
    pub(crate) fn evaluate(&self, text: &str) -> Option<Result<f64, String>> {
        let variables = self.variables.as_ref()?;
        Some(formula::evaluate(text, &variables.borrow()))
    }

    /// Sets a variable and returns its value, which an override may have replaced.
    pub(crate) fn set_variable(&self, name: &str, value: f64) -> f64 {
        let override_value = self.overrides.iter().rev().find(|(variable, _)| variable == name);
        let value = override_value.map_or(value, |(_, value)| *value);
        if let Some(variables) = &self.variables {
            variables.borrow_mut().push((name.to_owned(), value));
        }
        value
    }

    /// Registers a file that the configuration names, relative to the folder.
    pub fn register_file(&self, name: &str) {
        self.files.borrow_mut().insert(self.folder.join(name));
    }

    /// Returns the files that the configuration names, with their full paths.
    pub fn files(&self) -> Vec<PathBuf> {
        self.files.borrow().iter().cloned().collect()
    }
}

/// The prefix of an environment variable in a file that allows formulas.
const ENVIRONMENT_PREFIX: &str = "env:";

/// Default of the maximum number of bytes of a configuration file. Such files have a few kilobytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of bytes of a file that `${file:…}` reads. Keys and tokens are far shorter.
const SECRET_FILE_BYTES_MAX: u64 = 64 * 1024;

/// Replaces every `${VAR}`, `${VAR:-default}` and `${file:PATH}` of a text, and `$${` by `${`. A
/// replacement is not expanded again.
///
/// # Errors
/// Returns a message with the name of the variable or file that is missing.
pub(crate) fn expand(text: &str, context: &ReadContext<'_>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some(start) = remaining.find("${") {
        if let Some(prefix) = remaining[..start].strip_suffix('$') {
            expanded.push_str(prefix);
            expanded.push_str("${");
            remaining = &remaining[start + 2..];
            continue;
        }
        expanded.push_str(&remaining[..start]);
        let Some(end) = remaining[start..].find('}') else {
            return Err("${ is not closed by }".to_owned());
        };
        expanded.push_str(&resolve_reference(&remaining[start + 2..start + end], context)?);
        remaining = &remaining[start + end + 1..];
    }
    expanded.push_str(remaining);
    Ok(expanded)
}

/// Returns the value of a reference: the text between `${` and `}`.
fn resolve_reference(reference: &str, context: &ReadContext<'_>) -> Result<String, String> {
    if let Some(path) = reference.strip_prefix("file:") {
        return read_secret_file(path, context);
    }
    let variable = match reference.strip_prefix(ENVIRONMENT_PREFIX) {
        Some(variable) if context.allows_formulas() => variable,
        _ => match context.evaluate(reference) {
            Some(result) => return result.map(|number| number.to_string()),
            // The file allows no formulas.
            None => reference,
        },
    };
    let (name, default) = match variable.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (variable, None),
    };
    if !is_variable_name(name) {
        let prefix = if context.allows_formulas() { ENVIRONMENT_PREFIX } else { "" };
        return Err(format!(
            "${{…}} must contain {prefix}NAME, {prefix}NAME:-default or file:PATH"
        ));
    }
    // As in a shell, `:-` also replaces an empty variable.
    match ((context.environment)(name).filter(|value| !value.is_empty()), default) {
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!("the environment variable {name} is not set or empty")),
    }
}

/// Returns true if the whole text is a `${VAR}` or a `${file:PATH}`. Such a text names the source
/// of a secret, but is no secret itself.
pub(crate) fn is_reference(text: &str) -> bool {
    let reference = text.strip_prefix("${").and_then(|after_open| after_open.strip_suffix('}'));
    reference.is_some_and(|reference| {
        is_variable_name(reference.strip_prefix(ENVIRONMENT_PREFIX).unwrap_or(reference))
            || (reference.starts_with("file:") && !reference.contains('}'))
    })
}

fn is_variable_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn read_secret_file(path: &str, context: &ReadContext<'_>) -> Result<String, String> {
    context.register_file(path);
    let text = read_text_file(&context.folder.join(path), SECRET_FILE_BYTES_MAX)
        .map_err(|error| format!("cannot read the file {path}: {error}"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads a file of at most `bytes_max` bytes in UTF-8.
///
/// # Errors
/// Returns the error of the system, or a message with the size of a larger file.
pub fn read_text_file(path: &Path, bytes_max: u64) -> io::Result<String> {
    let size = std::fs::metadata(path)?.len();
    if size > bytes_max {
        let message = format!("{size} bytes, at most {bytes_max} are allowed");
        return Err(io::Error::other(message));
    }
    std::fs::read_to_string(path)
}
