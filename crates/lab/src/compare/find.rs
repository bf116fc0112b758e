//! Finds the files of an arm: a result, a folder of results, or another tool's file.

use std::path::{Path, PathBuf};

use crate::arm::Arm;
use crate::import::{ImportFault, read_file};

/// Maximum number of runs per arm. A thousand runs of a minute take most of a day.
const RUNS_MAX: usize = 1_000;
const RESULT: &str = "result.json";

/// Returns the arms at a path. A result, a folder with a `result.json` and a folder of runs are one
/// arm each. A report about several servers has one arm per server.
///
/// # Errors
/// If a file cannot be read, or if there are no results.
pub fn arms_at(path: &Path) -> Result<Vec<Arm>, ImportFault> {
    if !path.is_dir() {
        return read_file(path);
    }
    let own = path.join(RESULT);
    if own.is_file() {
        return read_file(&own);
    }
    let name = crate::import::label(path);
    Ok(vec![arm_of(&name, &runs_in(path)?)?])
}

/// Joins the runs at all paths in one arm.
///
/// # Errors
/// As [`arms_at`].
pub fn arm_of(name: &str, paths: &[PathBuf]) -> Result<Arm, ImportFault> {
    let mut whole =
        Arm { name: name.to_owned(), runs: Vec::new(), left_out: Vec::new(), notes: Vec::new() };
    for path in paths {
        for arm in arms_at(path)? {
            whole.runs.extend(arm.runs);
            whole.left_out.extend(arm.left_out);
            whole.notes.extend(arm.notes);
        }
    }
    whole.notes.sort();
    whole.notes.dedup();
    Ok(whole)
}

/// Returns the subfolders that contain a result, sorted by name. If there are none, returns the
/// result files of the folder.
fn runs_in(folder: &Path) -> Result<Vec<PathBuf>, ImportFault> {
    let failed = |source| ImportFault::Read { path: folder.to_owned(), source };
    let mut folders = Vec::new();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let known = |ending| path.extension().is_some_and(|own| own == ending);
        if path.join(RESULT).is_file() {
            folders.push(path);
        } else if path.is_file() && (known("json") || known("csv")) {
            files.push(path);
        }
    }
    let mut found = if folders.is_empty() { files } else { folders };
    found.sort();
    let empty = |why: String| ImportFault::Empty { path: folder.to_owned(), why };
    if found.is_empty() {
        return Err(empty(format!("no {RESULT}, no folder with one, and no .json or .csv file")));
    }
    if found.len() > RUNS_MAX {
        return Err(empty(format!("{} runs; at most {RUNS_MAX} are compared", found.len())));
    }
    Ok(found)
}
