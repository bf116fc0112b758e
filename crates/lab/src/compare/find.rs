//! Finds and reads the files of a variant, which is one of the compared systems: a result, a folder
//! of results, or another tool's file.

use std::path::{Path, PathBuf};

use crate::import::{ImportFault, read_file};
use crate::variant::Variant;

/// Maximum number of runs per variant. A thousand runs of a minute take most of a day.
const RUNS_MAX: usize = 1_000;
/// Name of the result in the folder of a run.
const RESULT_FILE: &str = "result.json";

/// Returns the variants at a path. A result, a folder with a `result.json` and a folder of runs are
/// one variant each. A report of erigontech/rpc-tests about several servers has one variant per
/// server.
///
/// Fails if a file cannot be read, or if there are no results.
pub fn variants_at(path: &Path) -> Result<Vec<Variant>, ImportFault> {
    if !path.is_dir() {
        return read_file(path);
    }
    let result_file = path.join(RESULT_FILE);
    if result_file.is_file() {
        return read_file(&result_file);
    }
    let name = crate::import::label(path);
    Ok(vec![merge_runs(&name, &runs_in(path)?)?])
}

/// Merges the runs at all paths into one variant with the given name.
///
/// Fails as [`variants_at`] does.
pub fn merge_runs(name: &str, paths: &[PathBuf]) -> Result<Variant, ImportFault> {
    let mut merged = Variant::named(name);
    for path in paths {
        for variant in variants_at(path)? {
            merged.runs.extend(variant.runs);
            merged.left_out.extend(variant.left_out);
            merged.notes.extend(variant.notes);
        }
    }
    merged.notes.sort();
    merged.notes.dedup();
    Ok(merged)
}

/// Returns the subfolders that contain a result, sorted by name. If there are none, returns the
/// result files of the folder.
fn runs_in(folder: &Path) -> Result<Vec<PathBuf>, ImportFault> {
    let read_fault = |source| ImportFault::Read { path: folder.to_owned(), source };
    let mut folders = Vec::new();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read_fault)? {
        let path = entry.map_err(read_fault)?.path();
        let has_extension = |name| path.extension().is_some_and(|extension| extension == name);
        if path.join(RESULT_FILE).is_file() {
            folders.push(path);
        } else if path.is_file() && (has_extension("json") || has_extension("csv")) {
            files.push(path);
        }
    }
    let mut paths = if folders.is_empty() { files } else { folders };
    paths.sort();
    if paths.is_empty() {
        let reason = format!("no {RESULT_FILE}, no folder with one, and no .json or .csv file");
        return Err(ImportFault::Empty { path: folder.to_owned(), reason });
    }
    if paths.len() > RUNS_MAX {
        let (path, runs) = (folder.to_owned(), paths.len());
        return Err(ImportFault::TooManyRuns { path, runs, runs_max: RUNS_MAX });
    }
    Ok(paths)
}
