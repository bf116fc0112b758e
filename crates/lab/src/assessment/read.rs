//! Reads results of the lab from files and folders.

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

/// Maximum number of results in a report. Each run has several charts on the page.
const RESULTS_MAX: usize = 200;
/// Files that the commands write into their folders.
const NAMES: [&str; 3] = ["result.json", "capacity.json", "study.json"];
/// Results that a report may contain, for messages.
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
        /// Its length.
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
        /// Its schema.
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
        /// Its schema.
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
    /// The name of the system.
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

/// Everything that was read.
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
    fn len(&self) -> usize {
        self.inputs.len() + self.studies.len() + self.comparisons.len()
    }
}

/// Reads all results of the arguments. Each argument has paths and may name their system.
///
/// # Errors
/// If a path cannot be read or contains no result, or if a file is not a result.
pub fn read(arguments: &[(Option<String>, Vec<PathBuf>)]) -> Result<Results, ReadFault> {
    let mut results = Results::default();
    for (system, paths) in arguments {
        for path in paths {
            for file in files(path)? {
                read_file(&file, system.as_deref(), &mut results)?;
                if results.len() > RESULTS_MAX {
                    return Err(ReadFault::TooMany { path: path.clone() });
                }
            }
        }
    }
    Ok(results)
}

/// Returns the result files of a path: itself, those in the folder, or those in its subfolders.
fn files(path: &Path) -> Result<Vec<PathBuf>, ReadFault> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let known = |folder: &Path| -> Vec<PathBuf> {
        NAMES.iter().map(|name| folder.join(name)).filter(|file| file.is_file()).collect()
    };
    let direct = known(path);
    if !direct.is_empty() {
        return Ok(direct);
    }
    let fault = |source| ReadFault::Read { path: path.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(fault)? {
        found.extend(known(&entry.map_err(fault)?.path()));
    }
    found.sort();
    if found.is_empty() { Err(ReadFault::Empty { path: path.to_owned() }) } else { Ok(found) }
}

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

/// Returns the name of the folder for a file that a command wrote into it, else the file's own name.
fn label(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let is_known = NAMES.iter().any(|known| name == *known);
    let folder = path.parent().and_then(Path::file_name).filter(|_| is_known);
    folder.unwrap_or(path.file_stem().unwrap_or(name)).to_string_lossy().into_owned()
}
