//! Runs a sync study. A *variant* is one of the compared commands, for example a node with one
//! setting. For each run, this module starts the process of a variant, samples its resource usage,
//! and stops it. Then this module reads the *samples* that the process wrote to a file. A sample is
//! the block height at one time.
//!
//! Every process has its own process group (`process.rs`). This module kills the group when
//! the run ends, when the study is stopped, and when [`run`] returns, even with an error.
//!
//! A *repeat* is one run of every variant. A run that failed is *unusable*, and then the result
//! leaves out the whole repeat. A *setup process* is a process that all runs need, such as a
//! server. It runs during the whole study.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab_model::results::load_study::RunOrder;

use super::file::{Order, Setup, Study, VariantTable};
use super::placeholders::{self, PlaceholderValues};
use super::process::{
    Process, ProcessGroups, Readiness, Usage, await_connection, describe_failed_start,
};
use super::read::{FileFormat, read_run};
use super::{StudyFault, remove_folder};
use crate::analysis::rounds;
use crate::analysis::sync::{Sample, SyncRun, VariantRuns};
use crate::run::{Stop, unix_now};
use crate::wording::number::{short, span};

/// Maximum time between the first and the last start of variants that run side by side. If they
/// start further apart, their runs are unusable.
const START_APART_MAX: Duration = Duration::from_secs(1);
/// Interval at which the runner checks if a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Reason why a run is unusable if the user stopped it.
const STOPPED: &str = "it was stopped by the user";
/// Maximum number of usage samples (memory, CPU, disk) of a run. When this number is reached, every
/// other sample is dropped.
const USAGE_MAX: usize = 100_000;

/// The runs of a study.
#[derive(Debug, Default)]
pub struct StudyRuns {
    /// Usable runs by variant; a variant may have none.
    pub variants: Vec<VariantRuns>,
    /// For each variant, the reasons why runs of that variant are left out. A usable run is also
    /// left out if another run of the same repeat is unusable.
    pub exclusion_reasons: Vec<Vec<String>>,
    /// True if the study ended before all planned repeats.
    pub partial: bool,
}

/// An event of a running study.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// Variants of a repeat start.
    Begins {
        /// Number of the repeat; 0 is the warm-up.
        repeat: u32,
        /// Number of repeats of the study.
        repeats: u32,
        /// Names of the variants that start.
        variants: Vec<&'a str>,
    },
    /// Progress of the running variants, once per sampling interval of the study.
    Progress(Vec<VariantProgress<'a>>),
    /// A run has ended.
    Ended {
        /// Name of the variant.
        variant: &'a str,
        /// Duration of the run in seconds.
        seconds: f64,
        /// Last height; `None` if the run is unusable.
        height: Option<u64>,
        /// Reason why the run is unusable; `None` if it is usable.
        reason: Option<String>,
    },
}

/// Progress of a running variant.
#[derive(Clone, Debug)]
pub struct VariantProgress<'a> {
    /// Name of the variant.
    pub variant: &'a str,
    /// Seconds since the variants were started.
    pub elapsed: f64,
    /// Newest height; `None` before the first sample.
    pub height: Option<u64>,
}

/// A running variant.
struct Run<'a> {
    variant: &'a VariantTable,
    /// Index of the variant.
    variant_index: usize,
    repeat: u32,
    process: Process,
    /// Folder for the data of the process. The folder is removed when the run ends.
    scratch: PathBuf,
    /// File to which the process writes its samples.
    samples: PathBuf,
    /// Start of the process, in seconds since 1970.
    began: f64,
    /// Usage samples, each with its time in seconds since 1970.
    usage: Vec<(f64, Usage)>,
    /// The end of the process. `None` while the process runs.
    end: Option<RunEnd>,
}

/// The end of a process.
struct RunEnd {
    /// Time from the start of the variants until the runner noticed the end.
    elapsed: Duration,
    /// The error is the reason why the run is unusable.
    outcome: Result<(), String>,
}

impl Run<'_> {
    /// Adds a usage sample. If there are too many samples, first drops every other stored sample.
    fn sample_usage(&mut self) {
        let usage = self.process.usage(&self.scratch);
        if self.usage.len() >= USAGE_MAX {
            let mut index = 0;
            self.usage.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        self.usage.push((unix_now(), usage));
    }
}

/// A run that has ended. The error of `run` is the reason why it is unusable.
struct EndedRun {
    /// Index of the variant.
    variant_index: usize,
    repeat: u32,
    run: Result<SyncRun, String>,
}

/// Runs a study in the folder `base`. Samples remain in `base/runs`; scratch folders are removed.
/// `weir` is the program that replaces the placeholder `{weir}` in commands. `groups` collects the
/// process groups, so the program can kill them when it exits.
///
/// # Errors
/// Fails if a folder cannot be created, a process cannot be started, or a setup process is not
/// ready in time. A failure of a started variant is a result and not an error.
pub fn run(
    study: &Study,
    weir: &Path,
    base: &Path,
    stop: &Stop,
    groups: &ProcessGroups,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<StudyRuns, StudyFault> {
    let runner = Runner { study, weir, base, stop, groups };
    let mut setup = runner.set_up()?;
    if *study.file.warm_up {
        runner.warm_up(on_event)?;
    }
    let mut ended: Vec<EndedRun> = Vec::new();
    for repeat in 1..=study.repeats() {
        if stop.is_requested() {
            break;
        }
        let mut runs = runner.run_repeat(repeat, on_event)?;
        if let Some(setup_failure) = find_setup_failure(study, &mut setup) {
            runs.iter_mut().for_each(|ended| ended.run = Err(setup_failure.clone()));
            ended.extend(runs);
            return Ok(group_by_variant(study, ended, true));
        }
        ended.extend(runs);
        if repeat < study.repeats() {
            stop.wait(*study.file.pause);
        }
    }
    Ok(group_by_variant(study, ended, stop.is_requested()))
}

/// Returns a message about a setup process that has ended, or `None` if all of them run.
fn find_setup_failure(study: &Study, processes: &mut [Process]) -> Option<String> {
    study.file.setup.iter().zip(processes).find_map(|(setup, process)| {
        let reason = process.exit_reason()?;
        Some(format!("setup {:?} ended early: {reason}", setup.name))
    })
}

/// Groups runs by variant. If one run of a repeat is unusable, the whole repeat is left out.
fn group_by_variant(study: &Study, ended: Vec<EndedRun>, partial: bool) -> StudyRuns {
    let mut by_repeat: BTreeMap<u32, Vec<EndedRun>> = BTreeMap::new();
    for ended_run in ended {
        by_repeat.entry(ended_run.repeat).or_default().push(ended_run);
    }
    let mut exclusion_reasons = vec![Vec::new(); study.file.variant.len()];
    let without_runs =
        |variant: &VariantTable| VariantRuns { name: variant.name.to_string(), runs: Vec::new() };
    let mut variants: Vec<VariantRuns> = study.file.variant.iter().map(without_runs).collect();
    for (repeat, runs) in by_repeat {
        let is_repeat_usable =
            runs.len() == study.file.variant.len() && runs.iter().all(|ended| ended.run.is_ok());
        for EndedRun { variant_index, run, .. } in runs {
            match run {
                Ok(run) if is_repeat_usable => variants[variant_index].runs.push(run),
                Ok(_) => exclusion_reasons[variant_index].push(format!(
                    "repeat {repeat}: another variant of the same repeat is unusable"
                )),
                Err(reason) => {
                    exclusion_reasons[variant_index].push(format!("repeat {repeat}: {reason}"))
                }
            }
        }
    }
    StudyRuns { variants, exclusion_reasons, partial }
}

/// Runs the processes of a study.
struct Runner<'a> {
    study: &'a Study,
    /// The program that replaces `{weir}`.
    weir: &'a Path,
    /// Folder of the study.
    base: &'a Path,
    stop: &'a Stop,
    groups: &'a ProcessGroups,
}

impl<'a> Runner<'a> {
    /// Starts the setup processes and waits until they are ready.
    fn set_up(&self) -> Result<Vec<Process>, StudyFault> {
        let mut running = Vec::new();
        for setup in self.study.file.setup.iter() {
            let weir = ("weir".to_owned(), self.weir.to_string_lossy().into_owned());
            let values = PlaceholderValues::from([weir]);
            let command = placeholders::replace_all(&setup.command, &values);
            let owner = format!("setup {:?}", setup.name);
            let mut process = start(&owner, &command, &BTreeMap::new(), self.groups)?;
            self.await_ready(setup, &mut process)?;
            running.push(process);
        }
        Ok(running)
    }

    /// Waits until a setup process accepts connections at its address, if it has one. Fails if the
    /// process ends, if it accepts no connection in time, or if the study is stopped.
    fn await_ready(&self, setup: &Setup, process: &mut Process) -> Result<(), StudyFault> {
        let Some(address) = setup.ready.as_ref() else { return Ok(()) };
        let timeout = *setup.ready_timeout;
        let what = match address.to_socket_addrs() {
            Err(error) => format!("has an invalid address {address:?}: {error}"),
            Ok(_) => match await_connection(address, timeout, self.stop, Some(process)) {
                Readiness::Ready => return Ok(()),
                Readiness::Ended(reason) => format!("ended before it was ready: {reason}"),
                Readiness::Stopped | Readiness::TimedOut => {
                    format!("accepts no connection at {address} within {timeout:?}")
                }
            },
        };
        Err(StudyFault::Operation(format!("setup {:?} {what}", setup.name)))
    }

    /// Runs the first variant and discards the run. Some work is slow only the first time. The
    /// discarded run does this work, so the work does not slow a counted run.
    fn warm_up(&self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), StudyFault> {
        on_event(Event::Begins {
            repeat: 0,
            repeats: self.study.repeats(),
            variants: vec![self.study.file.variant[0].name.as_str()],
        });
        // The arguments are the first variant and repeat 0. Repeat 0 stands for the warm-up.
        let mut runs = vec![self.start(0, 0)?];
        self.watch(&mut runs, on_event);
        for run in runs {
            let folder = run.scratch.parent().map(Path::to_owned);
            self.end(run, Duration::ZERO, on_event);
            if let Some(folder) = folder {
                // If the folder cannot be removed, it only takes up space.
                let _removed = std::fs::remove_dir_all(folder);
            }
        }
        self.stop.wait(*self.study.file.pause);
        Ok(())
    }

    /// Runs each variant once and returns the runs. Reverses the order of the variants in every
    /// other repeat. If the study is stopped, some variants have no run.
    fn run_repeat(
        &self,
        repeat: u32,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Vec<EndedRun>, StudyFault> {
        // Repeats count from 1, rounds from 0.
        let round = repeat.saturating_sub(1) as usize;
        let order = rounds::order(RunOrder::Abba, self.study.file.variant.len(), round);
        let groups: Vec<Vec<usize>> = match *self.study.file.order {
            Order::SideBySide => vec![order],
            Order::Alternate => {
                order.into_iter().map(|variant_index| vec![variant_index]).collect()
            }
        };
        let mut ended = Vec::new();
        let count = groups.len();
        for (index, group) in groups.into_iter().enumerate() {
            if self.stop.is_requested() {
                break;
            }
            let names = group
                .iter()
                .map(|variant_index| self.study.file.variant[*variant_index].name.as_str())
                .collect();
            on_event(Event::Begins { repeat, repeats: self.study.repeats(), variants: names });
            let mut runs = Vec::new();
            for variant_index in group {
                runs.push(self.start(variant_index, repeat)?);
            }
            let distance = start_distance(&runs);
            self.watch(&mut runs, on_event);
            ended.extend(runs.into_iter().map(|run| self.end(run, distance, on_event)));
            if index + 1 < count {
                self.stop.wait(*self.study.file.pause);
            }
        }
        Ok(ended)
    }

    /// Starts the process of a variant, with empty folders for its data and its samples.
    fn start(&self, variant_index: usize, repeat: u32) -> Result<Run<'a>, StudyFault> {
        let variant = &self.study.file.variant[variant_index];
        let folder = self.base.join("runs").join(format!("{}-{repeat}", variant.name));
        let scratch = folder.join("scratch");
        let samples = folder.join("samples.jsonl");
        // An earlier study may have left files in this folder. They must not be read as samples of
        // this study.
        let created = remove_folder(&folder).and_then(|()| std::fs::create_dir_all(&scratch));
        created.map_err(|error| {
            StudyFault::Operation(format!(
                "cannot create the folder {}: {error}",
                scratch.display()
            ))
        })?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let named = |(name, value): (&str, String)| (name.to_owned(), value);
        let mut values: PlaceholderValues =
            [("variant", variant.name.to_string()), ("repeat", repeat.to_string())]
                .map(named)
                .into();
        // A setting may contain the name of its variant and the number of the repeat.
        let setting = variant.setting.as_deref().unwrap_or_default();
        let setting = placeholders::replace(setting, &values);
        let paths = [("weir", self.weir), ("dir", &*scratch), ("samples", &*samples)];
        values.extend(paths.map(|(name, path)| named((name, text(path)))));
        values.extend([named(("setting", setting))]);
        let command = placeholders::replace_all(self.study.file.command_of(variant), &values);
        let began = unix_now();
        let process =
            start(&format!("variant {:?}", variant.name), &command, &variant.env, self.groups)?;
        Ok(Run {
            variant,
            variant_index,
            repeat,
            process,
            scratch,
            samples,
            began,
            usage: Vec::new(),
            end: None,
        })
    }

    /// Samples the resource usage of the runs until all have ended. Stops a run at the timeout, and
    /// all runs if the study is stopped. A run that reaches the timeout is usable.
    fn watch(&self, runs: &mut [Run<'_>], on_event: &mut dyn FnMut(Event<'_>)) {
        let started = Instant::now();
        let mut next_sample = Duration::ZERO;
        loop {
            let elapsed = started.elapsed();
            if self.stop.is_requested() {
                // All runs get the signal at once, so no run continues while another shuts down.
                runs.iter().for_each(|run| run.process.terminate());
            }
            for run in runs.iter_mut().filter(|run| run.end.is_none()) {
                run.end = self.find_end(&mut run.process, elapsed);
            }
            if runs.iter().all(|run| run.end.is_some()) {
                return;
            }
            if elapsed >= next_sample {
                next_sample += *self.study.file.sample;
                let running = || runs.iter().filter(|run| run.end.is_none());
                let progress = running().map(|run| VariantProgress {
                    variant: run.variant.name.as_str(),
                    elapsed: elapsed.as_secs_f64(),
                    height: newest_height(&run.samples),
                });
                on_event(Event::Progress(progress.collect()));
                runs.iter_mut().filter(|run| run.end.is_none()).for_each(Run::sample_usage);
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    /// Returns the end of a process, or `None` if the process continues. Stops the process at the
    /// timeout, and if the study is stopped. `elapsed` is the time since the start of the variants.
    fn find_end(&self, process: &mut Process, elapsed: Duration) -> Option<RunEnd> {
        let outcome = if let Some(status) = process.exit_status() {
            match () {
                () if status.success() => Ok(()),
                () if self.stop.is_requested() => Err(STOPPED.to_owned()),
                () => Err(process.exit_reason().unwrap_or_default()),
            }
        } else if elapsed >= *self.study.file.timeout {
            process.stop();
            Ok(())
        } else if self.stop.is_requested() {
            process.stop();
            Err(STOPPED.to_owned())
        } else {
            return None;
        };
        Some(RunEnd { elapsed, outcome })
    }

    /// Reads the samples of an ended run and removes its scratch folder. `start_distance` is the
    /// time between the first and the last start of the variants that ran side by side.
    fn end(
        &self,
        run: Run<'_>,
        start_distance: Duration,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> EndedRun {
        let Run { variant, variant_index, repeat, samples, began, usage, end, scratch, process } =
            run;
        drop(process);
        let never_ran =
            || RunEnd { elapsed: Duration::ZERO, outcome: Err("it never ran".to_owned()) };
        let RunEnd { elapsed: run_time, outcome } = end.unwrap_or_else(never_ran);
        let outcome = outcome.and_then(|()| check_start_distance(start_distance));
        let read_result = outcome.and_then(|()| {
            read_run(&samples, FileFormat::Samples).map_err(|fault| fault.to_string())
        });
        let run = read_result.map(|mut run| {
            run.label = format!("repeat {repeat}");
            // The process writes its first sample some time after it starts. Times include this
            // delay, because they count from the start. Both `began` and `run.origin` are from this
            // machine's clock.
            run.origin = began.min(run.origin);
            fill_in(&mut run.samples, &usage);
            if run_time >= *self.study.file.timeout {
                let limit = span(self.study.file.timeout.as_secs_f64());
                run.notes.push(format!("it was stopped at the timeout of {limit}"));
            }
            run
        });
        // The next run may need the disk space. If the removal fails, the results are still
        // correct.
        let _ = std::fs::remove_dir_all(&scratch);
        let height = run.as_ref().ok().map(|run| run.last().height);
        let reason = run.as_ref().err().cloned();
        on_event(Event::Ended {
            variant: &variant.name,
            seconds: run_time.as_secs_f64(),
            height,
            reason,
        });
        EndedRun { variant_index, repeat, run }
    }
}

/// Starts a process. `owner` is the variant or setup process, as messages name it.
fn start(
    owner: &str,
    command: &[String],
    env: &BTreeMap<String, String>,
    groups: &ProcessGroups,
) -> Result<Process, StudyFault> {
    Process::start(command, env, groups).map_err(|error| {
        let what = describe_failed_start(command, &error);
        StudyFault::Operation(format!("{owner}: {what}"))
    })
}

/// Returns the time between the first and the last start.
fn start_distance(runs: &[Run<'_>]) -> Duration {
    let starts = || runs.iter().map(|run| run.began);
    let (first_start, last_start) =
        (starts().fold(f64::INFINITY, f64::min), starts().fold(0.0, f64::max));
    Duration::try_from_secs_f64(last_start - first_start).unwrap_or_default()
}

/// Fails if the variants that run side by side were started too far apart.
fn check_start_distance(distance: Duration) -> Result<(), String> {
    if distance <= START_APART_MAX {
        return Ok(());
    }
    Err(format!("variants were started {} s apart", short(distance.as_secs_f64())))
}

/// Completes the samples that a variant wrote. If a sample lacks the memory, disk space or CPU
/// time, it gets the value of the last usage sample before it. If no usage sample precedes it, it
/// gets the value of the first one.
fn fill_in(samples: &mut [Sample], usage: &[(f64, Usage)]) {
    for sample in samples {
        let next = usage.partition_point(|(at, _)| *at <= sample.at);
        let Some((_, usage)) = usage.get(next.saturating_sub(1)) else { continue };
        sample.memory = sample.memory.or(usage.memory);
        sample.disk = sample.disk.or(usage.disk);
        sample.cpu = sample.cpu.or(usage.cpu);
    }
}

/// Returns the height of the newest sample in a file that is still being written. `None` if the
/// file has no complete line yet, or if its last complete line has no height.
fn newest_height(path: &Path) -> Option<u64> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    const TAIL_BYTES: u64 = 4096;
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let (complete_lines, _) = text.rsplit_once('\n')?;
    let line: super::read::SampleLine =
        serde_json::from_str(complete_lines.lines().last()?).ok()?;
    line.height
}
