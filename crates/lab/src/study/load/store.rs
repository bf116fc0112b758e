//! The folder of a load study: its finished runs, from which an interrupted study continues.
//!
//! A run is stored completely or not at all, even if the program is killed. To store a run, its
//! files are written into a temporary folder, which is then renamed. To remove a run, [`RUN_FILE`]
//! is removed first, and a folder without that file is not a run.
//!
//! A round counts if all its runs are stored. The runs of a round must be close in time. The runs
//! of an incomplete round are therefore removed, and the round is run again.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab_model::record::Totals;
use lab_model::results::run::RunResult;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::file::LoadStudy;
use super::finished::{FinishedRun, RunFacts, RunId};
use crate::import;
use crate::run::Finished;
use crate::study::{StudyFault, remove_folder};

/// Version of the format of [`STATE_FILE`].
const SCHEMA: &str = "weir.study-load-state/1";
/// The file that identifies the study whose runs a folder has.
const STATE_FILE: &str = "state.json";
/// Environment variable of every server process: the study's folder. By it, the next study in the
/// folder finds the processes that a killed study left running.
const FOLDER_VARIABLE: &str = "WEIR_STUDY_FOLDER";
/// The folder of the runs.
const RUNS_FOLDER: &str = "runs";
/// The folder of a run that is being written.
const UNFINISHED_RUN_FOLDER: &str = "unfinished-run";
/// The file with the facts of a run: when and how it was made ([`RunFacts`]).
const RUN_FILE: &str = "run.json";
/// The file of a run with its result.
const RESULT_FILE: &str = "result.json";
/// Longest wait for the end of killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which killed processes are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Identifies the study of a folder.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    /// [`SCHEMA`].
    schema: String,
    /// Version of the program.
    weir: String,
    /// Name of the study.
    name: String,
    /// Hash of the settings that all runs of a study share ([`LoadStudy::hash`]).
    hash: String,
}

/// A function that writes the files of a run's result into a folder. Its arguments are the folder,
/// the result, the totals, and the plan's methods, to which the totals refer by index.
pub type WriteRun<'a> =
    &'a mut dyn FnMut(&Path, &RunResult, &Totals, &[Box<str>]) -> Result<(), String>;

/// The folder of a study. The folder is locked until the value is dropped.
#[derive(Debug)]
pub struct Store {
    base: PathBuf,
    /// Value of [`FOLDER_VARIABLE`]: the absolute path of `base`.
    process_mark: String,
    /// The lock of the folder lasts as long as this file is open.
    _lock: File,
}

impl Store {
    /// Returns true if a folder has a study that can continue.
    pub fn has_study(base: &Path) -> bool {
        base.join(STATE_FILE).exists()
    }

    /// Opens the folder of a study, which is created if it is missing. Stops servers that a killed
    /// study left running.
    ///
    /// # Errors
    /// Fails if the folder has the runs of another study, or another program uses it.
    pub fn open(base: &Path, study: &LoadStudy) -> Result<Store, StudyFault> {
        let fault = |what: String| StudyFault::Operation(format!("{}: {what}", base.display()));
        let io_fault = |error: io::Error| fault(format!("cannot use the folder: {error}"));
        fs::create_dir_all(base).map_err(io_fault)?;
        let lock = File::create(base.join(".lock")).map_err(io_fault)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(fault("another weir runs a study in this folder".to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(io_fault(error)),
        }
        let state = State {
            schema: SCHEMA.to_owned(),
            weir: env!("CARGO_PKG_VERSION").to_owned(),
            name: study.file.name.to_string(),
            hash: study.hash.clone(),
        };
        match fs::read(base.join(STATE_FILE)) {
            Ok(bytes) => check_state(&bytes, &state).map_err(fault)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if base.join(RUNS_FOLDER).exists() {
                    return Err(fault("it has runs, but not of a load study".to_owned()));
                }
                let bytes = serde_json::to_vec_pretty(&state).expect("a state is plain JSON");
                write_atomically(&base.join(STATE_FILE), &bytes).map_err(io_fault)?;
            }
            Err(error) => return Err(io_fault(error)),
        }
        let process_mark = base.canonicalize().map_err(io_fault)?.display().to_string();
        let store = Store { base: base.to_owned(), process_mark, _lock: lock };
        store.kill_processes();
        Ok(store)
    }

    /// Returns the folder of a variant's servers.
    pub(super) fn server_folder(&self, variant: &str) -> PathBuf {
        self.base.join("servers").join(variant)
    }

    /// Returns the folder of the shared servers.
    pub(super) fn shared_folder(&self) -> PathBuf {
        self.base.join("shared-servers")
    }

    /// Returns the folder of a run.
    fn run_folder(&self, study: &LoadStudy, id: RunId) -> PathBuf {
        let runs = self.base.join(RUNS_FOLDER).join(&study.variants[id.variant].name);
        runs.join(&study.plans[id.plan]).join(label(id.round))
    }

    /// Stores a finished run. `output` is `None` if the run failed.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub(super) fn write_run(
        &self,
        study: &LoadStudy,
        run: &FinishedRun,
        output: Option<&Finished>,
        write_result: WriteRun<'_>,
    ) -> Result<(), StudyFault> {
        let folder = self.run_folder(study, run.id);
        let fault = |error: String| {
            StudyFault::Operation(format!("cannot write the run to {}: {error}", folder.display()))
        };
        let io_fault = |error: io::Error| fault(error.to_string());
        let unfinished = self.base.join(UNFINISHED_RUN_FOLDER);
        remove_folder(&unfinished).map_err(io_fault)?;
        fs::create_dir(&unfinished).map_err(io_fault)?;
        if let Some(Finished { result, totals }) = output {
            let methods = study.variants[run.id.variant].plans[run.id.plan].methods.as_slice();
            write_result(&unfinished, result, totals, methods).map_err(fault)?;
        }
        let bytes = serde_json::to_vec_pretty(&run.facts).expect("facts are plain JSON");
        write_atomically(&unfinished.join(RUN_FILE), &bytes).map_err(io_fault)?;
        let parent = folder.parent().unwrap_or(&self.base);
        fs::create_dir_all(parent).map_err(io_fault)?;
        fs::rename(&unfinished, &folder).map_err(io_fault)
    }

    /// Reads the runs of all complete rounds, and removes the runs of the incomplete round that
    /// follows them.
    ///
    /// # Errors
    /// Fails if a finished run cannot be read.
    pub(super) fn load_complete_rounds(
        &self,
        study: &LoadStudy,
    ) -> Result<Vec<FinishedRun>, StudyFault> {
        let mut finished = Vec::new();
        let mut round = 0;
        loop {
            let runs = self.read_round(study, round)?;
            if runs.len() < study.plans.len() * study.variants.len() {
                break;
            }
            finished.extend(runs);
            round += 1;
        }
        for (plan, variant) in study.pairs() {
            let folder = self.run_folder(study, RunId { round, plan, variant });
            remove_run(&folder).map_err(|error| {
                StudyFault::Operation(format!("cannot remove {}: {error}", folder.display()))
            })?;
        }
        Ok(finished)
    }

    /// Reads the finished runs of a round in the order of their start.
    fn read_round(&self, study: &LoadStudy, round: usize) -> Result<Vec<FinishedRun>, StudyFault> {
        let mut runs = Vec::new();
        for (plan, variant) in study.pairs() {
            let id = RunId { round, plan, variant };
            let folder = self.run_folder(study, id);
            if folder.join(RUN_FILE).exists() {
                let run = read_run(&folder, id).map_err(|error| {
                    let advice = "remove the folder of the study to begin again";
                    StudyFault::Operation(format!("{}: {error}; {advice}", folder.display()))
                })?;
                runs.push(run);
            }
        }
        runs.sort_by(|a, b| a.facts.started_unix.total_cmp(&b.facts.started_unix));
        Ok(runs)
    }

    /// Returns the environment variable by which [`Store::kill_processes`] finds a process.
    pub(super) fn process_mark(&self) -> (String, String) {
        (FOLDER_VARIABLE.to_owned(), self.process_mark.clone())
    }

    /// Kills the processes that a killed study left running.
    fn kill_processes(&self) {
        let start = Instant::now();
        loop {
            let running = self.find_processes();
            for id in &running {
                // An error means that the process has ended.
                let _ = kill_process(*id, Signal::KILL);
            }
            if running.is_empty() || start.elapsed() > KILL_TIMEOUT {
                return;
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    /// Returns the ids of all processes with this folder's mark.
    fn find_processes(&self) -> Vec<Pid> {
        let is_marked = |process: &procfs::process::Process| {
            let environment = process.environ().unwrap_or_default();
            environment
                .get(OsStr::new(FOLDER_VARIABLE))
                .is_some_and(|mark| *mark == *self.process_mark)
        };
        let processes = procfs::process::all_processes().into_iter().flatten().flatten();
        processes.filter(is_marked).filter_map(|process| Pid::from_raw(process.pid())).collect()
    }
}

/// Returns the name of a round's folder, which is also the round's label in results. `round` counts
/// from 0, and labels count from 1.
pub(super) fn label(round: usize) -> String {
    format!("round-{:03}", round + 1)
}

/// Fails if the state file of the folder belongs to another study or to another version.
fn check_state(bytes: &[u8], expected: &State) -> Result<(), String> {
    let stored: State = serde_json::from_slice(bytes)
        .map_err(|error| format!("{STATE_FILE} is damaged: {error}"))?;
    if stored.schema != expected.schema || stored.weir != expected.weir {
        return Err(format!(
            "its runs were made by weir {} ({}), and this is weir {}: choose another folder",
            stored.weir, stored.schema, expected.weir
        ));
    }
    if stored.hash != expected.hash {
        return Err(format!(
            "it has runs of the study {:?} with other variants, plans, order or restarts: choose \
             another folder, or remove this one",
            stored.name
        ));
    }
    Ok(())
}

/// Reads a finished run from its folder.
fn read_run(folder: &Path, id: RunId) -> Result<FinishedRun, String> {
    let bytes = fs::read(folder.join(RUN_FILE)).map_err(|error| format!("{RUN_FILE}: {error}"))?;
    let facts: RunFacts =
        serde_json::from_slice(&bytes).map_err(|error| format!("{RUN_FILE}: {error}"))?;
    let run = match &facts.fault {
        Some(_) => None,
        None => {
            let variants =
                import::read_file(&folder.join(RESULT_FILE)).map_err(|error| error.to_string())?;
            variants.into_iter().next().and_then(|variant| variant.runs.into_iter().next())
        }
    };
    Ok(FinishedRun { id, facts, run })
}

/// Writes a file under a temporary name and renames it.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("part");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

/// Removes a run, or the files of a run whose removal was interrupted.
fn remove_run(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(RUN_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => remove_folder(folder),
    }
}
