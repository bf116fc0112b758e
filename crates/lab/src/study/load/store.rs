//! The folder of a load study: its finished runs, from which an interrupted study continues.
//!
//! A run is written into a temporary folder, which is renamed once it is complete. It is removed
//! with [`RUN_FILE`] first, and a folder without that file is no run. So a run is in the folder
//! completely or not at all, whenever the program is killed. A round counts if all its runs are
//! there; the runs of an incomplete round are removed, and the round is run again, because runs of
//! one round must be close in time.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab_model::record::Totals;
use lab_model::results::run::RunResult;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::analyse::{FinishedRun, RunFacts, RunId};
use super::file::LoadStudy;
use crate::import;
use crate::study::runner::process::signal;
use crate::study::{StudyFault, remove_folder};

/// Version of the format of [`STATE_FILE`].
const SCHEMA: &str = "weir.study-load-state/1";
/// The file that identifies the study whose runs a folder has.
const STATE_FILE: &str = "state.json";
/// The file with the id and the start time of each server process.
const PROCESSES_FILE: &str = "processes";
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

/// Writes the files of a run's result into a folder.
pub type WriteRun<'a> =
    &'a mut dyn FnMut(&Path, &RunResult, &Totals, &[Box<str>]) -> Result<(), String>;

/// The folder of a study. It is locked as long as the value exists.
#[derive(Debug)]
pub struct Store {
    base: PathBuf,
    _lock: File,
}

impl Store {
    /// Opens the folder of a study, which is created if it is missing. Stops servers that a killed
    /// study left running.
    ///
    /// # Errors
    /// If the folder has the runs of another study, or another program uses it.
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
        let store = Store { base: base.to_owned(), _lock: lock };
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

    fn run_folder(&self, study: &LoadStudy, id: RunId) -> PathBuf {
        let runs = self.base.join(RUNS_FOLDER).join(&study.variants[id.variant].name);
        runs.join(&study.plans[id.plan]).join(label(id.round))
    }

    /// Writes a finished run.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn write_run(
        &self,
        study: &LoadStudy,
        run: &FinishedRun,
        result: Option<(&RunResult, &Totals, &[Box<str>])>,
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
        if let Some((result, totals, methods)) = result {
            write_result(&unfinished, result, totals, methods).map_err(fault)?;
        }
        let bytes = serde_json::to_vec_pretty(&run.facts).expect("facts are plain JSON");
        write_atomically(&unfinished.join(RUN_FILE), &bytes).map_err(io_fault)?;
        let parent = folder.parent().unwrap_or(&self.base);
        fs::create_dir_all(parent).map_err(io_fault)?;
        fs::rename(&unfinished, &folder).map_err(io_fault)
    }

    /// Reads the runs of all complete rounds, and removes those of the incomplete round after them.
    ///
    /// # Errors
    /// If a finished run cannot be read.
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
                let read = read_run(&folder, id).map_err(|error| {
                    let advice = "remove the folder of the study to begin again";
                    StudyFault::Operation(format!("{}: {error}; {advice}", folder.display()))
                })?;
                runs.push(read);
            }
        }
        runs.sort_by(|a, b| a.facts.started_unix.total_cmp(&b.facts.started_unix));
        Ok(runs)
    }

    /// Registers a process, so that a later study in this folder can stop it if this one is killed.
    pub(super) fn add_process(&self, id: u32) {
        let Some(start) = start_time(id) else { return };
        let path = self.base.join(PROCESSES_FILE);
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        // If the file cannot be written, only one thing is lost: a process would keep running after
        // this study was killed.
        let _ = file.and_then(|mut file| writeln!(file, "{id} {start}"));
    }

    /// Kills the processes that a killed study left running. A process is recognised by its id and
    /// its start time.
    fn kill_processes(&self) {
        let path = self.base.join(PROCESSES_FILE);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let parse = |line: &str| -> Option<(u32, u64)> {
            let (id, start) = line.split_once(' ')?;
            Some((id.parse().ok()?, start.parse().ok()?))
        };
        let is_running = |(id, start): &(u32, u64)| start_time(*id) == Some(*start);
        let running: Vec<(u32, u64)> = text.lines().filter_map(parse).filter(is_running).collect();
        running.iter().for_each(|(id, _)| signal(*id, Signal::KILL));
        let start = Instant::now();
        while start.elapsed() < KILL_TIMEOUT && running.iter().any(is_running) {
            std::thread::park_timeout(POLL_INTERVAL);
        }
        // It fails if the file is missing, because no server was started.
        let _ = fs::remove_file(path);
    }
}

/// Name of a round's folder, and its label in results. Rounds count from 0, labels from 1.
pub(super) fn label(round: usize) -> String {
    format!("round-{:03}", round + 1)
}

fn check_state(bytes: &[u8], expected: &State) -> Result<(), String> {
    let found: State = serde_json::from_slice(bytes)
        .map_err(|error| format!("{STATE_FILE} is damaged: {error}"))?;
    if found.schema != expected.schema || found.weir != expected.weir {
        return Err(format!(
            "its runs were made by weir {} ({}), and this is weir {}: choose another folder",
            found.weir, found.schema, expected.weir
        ));
    }
    if found.hash != expected.hash {
        return Err(format!(
            "it has runs of the study {:?} with other variants, plans, order or restarts: choose \
             another folder, or remove this one",
            found.name
        ));
    }
    Ok(())
}

fn read_run(folder: &Path, id: RunId) -> Result<FinishedRun, String> {
    let bytes = fs::read(folder.join(RUN_FILE)).map_err(|error| format!("{RUN_FILE}: {error}"))?;
    let facts: RunFacts =
        serde_json::from_slice(&bytes).map_err(|error| format!("{RUN_FILE}: {error}"))?;
    let run = match &facts.fault {
        Some(_) => None,
        None => {
            let read =
                import::read_file(&folder.join(RESULT_FILE)).map_err(|error| error.to_string())?;
            read.into_iter().next().and_then(|variant| variant.runs.into_iter().next())
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

/// Removes a run, or what a killed study left of it.
fn remove_run(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(RUN_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => remove_folder(folder),
    }
}

/// Returns the start time of a process in clock ticks since the boot; none if it has ended.
fn start_time(id: u32) -> Option<u64> {
    let stat = procfs::process::Process::new(i32::try_from(id).ok()?).ok()?.stat().ok()?;
    (stat.state != 'Z').then_some(stat.starttime)
}
