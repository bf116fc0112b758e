//! Reads the results for `weir report` from files and folders.

use std::io;
use std::path::{Path, PathBuf};

use lab_model::results::capacity::CapacityResult;
use lab_model::results::compare::CompareResult;
use lab_model::results::load_study::LoadStudyResult;
use lab_model::results::run::RunResult;
use lab_model::results::{capacity, compare, load_study, run};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::analysis::assessment::Labelled;
use crate::import::FILE_BYTES_MAX;

/// Maximum number of results in a report. Each run adds several charts to the page.
const RESULTS_MAX: usize = 200;
/// Names of the result files that the commands write into their folders.
const RESULT_FILES: [&str; 3] = ["result.json", "capacity.json", "study.json"];
/// Explanation of the allowed results, for messages.
const ALLOWED: &str = "a result is the result.json of weir load, the capacity.json of weir capacity, \
                       the study.json of weir study load, or the output of weir compare --json";

/// Reason why a result cannot be used.
#[derive(Debug, Error)]
pub enum ReadFault {
    /// Reading failed.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file is too long.
    #[error("{} has {bytes} bytes; at most {FILE_BYTES_MAX} are allowed", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Length of the file.
        bytes: u64,
    },
    /// The file is not JSON.
    #[error("{} is not JSON: {reason}; {ALLOWED}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        reason: serde_json::Error,
    },
    /// The file has an unknown schema.
    #[error(
        "{} has the schema {schema:?}; a report reads {:?}, {:?}, {:?} and {:?}",
        path.display(), run::SCHEMA, capacity::SCHEMA, load_study::SCHEMA, compare::SCHEMA
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// Schema of the file.
        schema: String,
    },
    /// The file has no schema.
    #[error("{} is not a result of Weir, because it has no \"schema\"; {ALLOWED}", path.display())]
    NoSchema {
        /// The file.
        path: PathBuf,
    },
    /// The file does not conform to its schema.
    #[error("{} is not a valid {schema}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Schema of the file.
        schema: &'static str,
        /// The first fault.
        reason: serde_json::Error,
    },
    /// The folder has no result.
    #[error(
        "{} contains no result: neither result.json, capacity.json or study.json, nor a folder with \
         one of them",
        path.display()
    )]
    Empty {
        /// The folder.
        path: PathBuf,
    },
    /// There are too many results.
    #[error("{} has results beyond the maximum of {RESULTS_MAX} for a report", path.display())]
    TooMany {
        /// The file or folder with the first result beyond the maximum.
        path: PathBuf,
    },
}

/// A run or a capacity search, with the name of its system if the user gave one.
#[derive(Clone, Debug)]
pub struct Input {
    /// The user's name for the system, if there is one.
    pub system: Option<String>,
    /// Name of the folder or file.
    pub label: String,
    /// The result.
    pub result: SystemResult,
}

/// A result that belongs to one system.
#[derive(Clone, Debug)]
pub enum SystemResult {
    /// A load run.
    Run(RunResult),
    /// A capacity search.
    Search(CapacityResult),
}

/// All results that were read.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Runs and capacity searches.
    pub inputs: Vec<Input>,
    /// Studies of load runs.
    pub studies: Vec<Labelled<LoadStudyResult>>,
    /// Comparisons.
    pub comparisons: Vec<Labelled<CompareResult>>,
}

impl Results {
    /// Returns the number of results.
    fn len(&self) -> usize {
        self.inputs.len() + self.studies.len() + self.comparisons.len()
    }
}

/// Reads the results of all arguments. An argument has a list of paths. If the user named the
/// system of these results, the argument also has its name.
///
/// Fails if a path cannot be read or contains no result, or if a file is not a result.
pub fn read(arguments: &[(Option<String>, Vec<PathBuf>)]) -> Result<Results, ReadFault> {
    let mut results = Results::default();
    for (system, paths) in arguments {
        for path in paths {
            for file in find_files(path)? {
                read_file(&file, system.as_deref(), &mut results)?;
                if results.len() > RESULTS_MAX {
                    return Err(ReadFault::TooMany { path: path.clone() });
                }
            }
        }
    }
    Ok(results)
}

/// Returns the result files of a path. If the path is a file, returns only that file. If it is a
/// folder, returns the result files in it. If there are none, returns the result files in its
/// subfolders.
fn find_files(path: &Path) -> Result<Vec<PathBuf>, ReadFault> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let result_files = |folder: &Path| -> Vec<PathBuf> {
        RESULT_FILES.iter().map(|name| folder.join(name)).filter(|file| file.is_file()).collect()
    };
    let files_in_folder = result_files(path);
    if !files_in_folder.is_empty() {
        return Ok(files_in_folder);
    }
    let fault = |source| ReadFault::Read { path: path.to_owned(), source };
    let mut files_in_subfolders = Vec::new();
    for entry in std::fs::read_dir(path).map_err(fault)? {
        files_in_subfolders.extend(result_files(&entry.map_err(fault)?.path()));
    }
    files_in_subfolders.sort();
    match files_in_subfolders.is_empty() {
        true => Err(ReadFault::Empty { path: path.to_owned() }),
        false => Ok(files_in_subfolders),
    }
}

/// Reads one file and adds its result to `results`.
fn read_file(path: &Path, system: Option<&str>, results: &mut Results) -> Result<(), ReadFault> {
    let read_fault = |source| ReadFault::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(read_fault)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(ReadFault::TooLong { path: path.to_owned(), bytes });
    }
    let content = std::fs::read(path).map_err(read_fault)?;
    let json_fault = |reason| ReadFault::Json { path: path.to_owned(), reason };
    let value: Value = serde_json::from_slice(&content).map_err(json_fault)?;
    let Some(schema) = value.get("schema").and_then(Value::as_str).map(str::to_owned) else {
        return Err(ReadFault::NoSchema { path: path.to_owned() });
    };
    let (label, system) = (label(path), system.map(str::to_owned));
    match schema.as_str() {
        run::SCHEMA => {
            let result = SystemResult::Run(parse(path, run::SCHEMA, value)?);
            results.inputs.push(Input { system, label, result });
        }
        capacity::SCHEMA => {
            let result = SystemResult::Search(parse(path, capacity::SCHEMA, value)?);
            results.inputs.push(Input { system, label, result });
        }
        load_study::SCHEMA => {
            let result = parse(path, load_study::SCHEMA, value)?;
            results.studies.push(Labelled { label, result });
        }
        compare::SCHEMA => {
            let result = parse(path, compare::SCHEMA, value)?;
            results.comparisons.push(Labelled { label, result });
        }
        _ => return Err(ReadFault::Schema { path: path.to_owned(), schema }),
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(
    path: &Path,
    schema: &'static str,
    value: Value,
) -> Result<T, ReadFault> {
    let fault = |reason| ReadFault::Invalid { path: path.to_owned(), schema, reason };
    serde_json::from_value(value).map_err(fault)
}

/// Returns the label of a result. If the file has a name of [`RESULT_FILES`], the label is the name
/// of its folder. Otherwise the label is the name of the file without extension.
fn label(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let is_result_file = RESULT_FILES.iter().any(|result_file| name == *result_file);
    let folder = path.parent().and_then(Path::file_name).filter(|_| is_result_file);
    folder.unwrap_or(path.file_stem().unwrap_or(name)).to_string_lossy().into_owned()
}
