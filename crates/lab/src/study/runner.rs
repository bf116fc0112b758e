//! Runs a study file: starts its processes, samples them, stops them, and reads the samples of the
//! arms.
//!
//! Every process has its own process group (`runner/process.rs`). The group is killed by its id
//! when the run ends, when the study is stopped, and when this module returns, even with an error.

mod process;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::StudyFault;
use super::file::{Arm, Order, Setup, Study};
use super::read::{Form, read_run};
use crate::analysis::sync::{ArmRuns, Sample, SyncRun};
use crate::run::Stop;
use crate::wording::number::{short, span};
pub use process::Groups;

use process::{Process, Usage};

/// Maximum time between the starts of arms that run side by side.
const START_APART_MAX: Duration = Duration::from_secs(1);
/// How often the runner checks if a process has ended.
const TICK: Duration = Duration::from_millis(25);
/// Why a run that the user stopped is unusable.
const STOPPED: &str = "it was stopped by the user";
/// Maximum number of usage samples of a run. Beyond it every second sample is dropped.
const USAGE_MAX: usize = 100_000;
/// Timeout of an attempt to connect to a setup process.
const CONNECT: Duration = Duration::from_secs(1);

/// The runs of a study.
#[derive(Debug, Default)]
pub struct StudyRuns {
    /// Usable runs by arm; an arm may have none.
    pub arms: Vec<ArmRuns>,
    /// Reasons of the unusable runs, by arm.
    pub left_out: Vec<Vec<String>>,
    /// True if the study ended before its plan.
    pub partial: bool,
}

/// An event of a running study.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A repeat starts: its number (0 is the warm-up), the number of repeats, and its arms.
    Begins(u32, u32, Vec<&'a str>),
    /// Progress of the running arms: name, seconds, height.
    Second(Vec<(&'a str, f64, Option<u64>)>),
    /// A run has ended: arm, seconds, height, and the reason if it is unusable.
    Ended(&'a str, f64, Option<u64>, Option<String>),
}

/// A running arm.
struct Run<'a> {
    arm: &'a Arm,
    /// Index of the arm.
    place: usize,
    repeat: u32,
    process: Process,
    scratch: PathBuf,
    samples: PathBuf,
    /// Start, in seconds since 1970.
    began: f64,
    usage: Vec<(f64, Usage)>,
    /// When the runner found that it had ended, and the reason if it is unusable.
    ended: Option<(Duration, Result<(), String>)>,
}

/// An ended run, or the reason why it is unusable.
struct EndedRun {
    /// Index of the arm.
    place: usize,
    repeat: u32,
    run: Result<SyncRun, String>,
}

/// Runs a study in the folder `base`. Samples remain in `base/runs`; scratch folders are removed.
/// `weir` is the program that replaces `{weir}`.
///
/// # Errors
/// If a folder cannot be created, or a process cannot be started. A failure of a started
/// arm is a result and not an error.
pub fn run(
    study: &Study,
    weir: &Path,
    base: &Path,
    (stop, groups): (&Stop, &Groups),
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<StudyRuns, StudyFault> {
    let runner = Runner { study, weir, base, stop, groups };
    let mut setup = runner.set_up()?;
    if *study.file.warm_up {
        runner.warm_up(on_event)?;
    }
    let mut ended: Vec<EndedRun> = Vec::new();
    for repeat in 1..=study.repeats() {
        if stop.asked() {
            break;
        }
        let mut runs = runner.repeat(repeat, on_event)?;
        let failed = study.file.setup.iter().zip(&mut setup).find_map(|(one, process)| {
            let status = process.ended()?;
            Some(format!("setup {:?} ended early: {}", one.name, exit_reason(status, process)))
        });
        if let Some(failed) = failed {
            runs.iter_mut().for_each(|ended| ended.run = Err(failed.clone()));
            ended.extend(runs);
            return Ok(by_arm(study, ended, true));
        }
        ended.extend(runs);
        if repeat < study.repeats() {
            runner.wait(*study.file.pause);
        }
    }
    Ok(by_arm(study, ended, stop.asked()))
}

/// Sorts runs by arm. If one run of a repeat is unusable, the whole repeat is left out.
fn by_arm(study: &Study, ended: Vec<EndedRun>, partial: bool) -> StudyRuns {
    let mut by_repeat: BTreeMap<u32, Vec<EndedRun>> = BTreeMap::new();
    for one in ended {
        by_repeat.entry(one.repeat).or_default().push(one);
    }
    let mut left_out = vec![Vec::new(); study.arms.len()];
    let empty = |arm: &Arm| ArmRuns { name: arm.name.clone(), runs: Vec::new() };
    let mut arms: Vec<ArmRuns> = study.arms.iter().map(empty).collect();
    for (repeat, runs) in by_repeat {
        let usable = runs.len() == study.arms.len() && runs.iter().all(|ended| ended.run.is_ok());
        for EndedRun { place, run, .. } in runs {
            match run {
                Ok(run) if usable => arms[place].runs.push(run),
                Ok(_) => left_out[place]
                    .push(format!("repeat {repeat}: another arm of the same repeat is unusable")),
                Err(why) => left_out[place].push(format!("repeat {repeat}: {why}")),
            }
        }
    }
    StudyRuns { arms, left_out, partial }
}

struct Runner<'a> {
    study: &'a Study,
    weir: &'a Path,
    base: &'a Path,
    stop: &'a Stop,
    groups: &'a Groups,
}

impl<'a> Runner<'a> {
    /// Starts the setup processes and waits until they are ready.
    fn set_up(&self) -> Result<Vec<Process>, StudyFault> {
        let mut running = Vec::new();
        for one in self.study.file.setup.iter() {
            let words = [("weir", self.weir.to_string_lossy().into_owned())];
            let command: Vec<String> =
                one.command.iter().map(|word| replace_placeholders(word, &words)).collect();
            let whose = format!("setup {:?}", one.name);
            let mut process = start(&whose, &command, &BTreeMap::new(), self.groups)?;
            self.await_ready(one, &mut process)?;
            running.push(process);
        }
        Ok(running)
    }

    fn await_ready(&self, one: &Setup, process: &mut Process) -> Result<(), StudyFault> {
        let Some(address) = one.ready.as_ref() else { return Ok(()) };
        let begun = Instant::now();
        let fault = |what: String| StudyFault::Asked(format!("setup {:?} {what}", one.name));
        while begun.elapsed() < *one.ready_timeout && !self.stop.asked() {
            if let Some(status) = process.ended() {
                let why = exit_reason(status, process);
                return Err(fault(format!("ended before it was ready: {why}")));
            }
            let addresses = address.to_socket_addrs();
            let addresses = addresses
                .map_err(|error| fault(format!("has an invalid address {address:?}: {error}")))?;
            if addresses.into_iter().any(|to| TcpStream::connect_timeout(&to, CONNECT).is_ok()) {
                return Ok(());
            }
            std::thread::park_timeout(TICK * 4);
        }
        Err(fault(format!("accepts no connection at {address} within {:?}", one.ready_timeout)))
    }

    /// Runs the first arm without counting it. Work that is slow only the first time is then
    /// already done.
    fn warm_up(&self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), StudyFault> {
        on_event(Event::Begins(0, self.study.repeats(), vec![&self.study.arms[0].name]));
        let mut runs = vec![self.start(0, 0)?];
        self.watch(&mut runs, on_event);
        for run in runs {
            let folder = run.scratch.parent().map(Path::to_owned);
            self.end(run, Duration::ZERO, on_event);
            if let Some(folder) = folder {
                // A folder that remains does no harm.
                let _removed = std::fs::remove_dir_all(folder);
            }
        }
        self.wait(*self.study.file.pause);
        Ok(())
    }

    fn repeat(
        &self,
        repeat: u32,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Vec<EndedRun>, StudyFault> {
        let mut order: Vec<usize> = (0..self.study.arms.len()).collect();
        if repeat.is_multiple_of(2) {
            order.reverse();
        }
        let groups: Vec<Vec<usize>> = match *self.study.file.order {
            Order::SideBySide => vec![order],
            Order::Alternate => order.into_iter().map(|place| vec![place]).collect(),
        };
        let mut ended = Vec::new();
        let count = groups.len();
        for (index, group) in groups.into_iter().enumerate() {
            if self.stop.asked() {
                break;
            }
            let names = group.iter().map(|place| self.study.arms[*place].name.as_str()).collect();
            on_event(Event::Begins(repeat, self.study.repeats(), names));
            let mut runs = Vec::new();
            for place in group {
                runs.push(self.start(place, repeat)?);
            }
            let apart = start_distance(&runs);
            self.watch(&mut runs, on_event);
            ended.extend(runs.into_iter().map(|run| self.end(run, apart, on_event)));
            if index + 1 < count {
                self.wait(*self.study.file.pause);
            }
        }
        Ok(ended)
    }

    fn start(&self, place: usize, repeat: u32) -> Result<Run<'a>, StudyFault> {
        let arm = &self.study.arms[place];
        let folder = self.base.join("runs").join(format!("{}-{repeat}", arm.name));
        let scratch = folder.join("scratch");
        let samples = folder.join("samples.jsonl");
        // Files of an earlier study with this name must not be read as files of this study.
        let remove = |path: &Path| match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let created = remove(&folder).and_then(|()| std::fs::create_dir_all(&scratch));
        created.map_err(|error| {
            StudyFault::Asked(format!("cannot create the folder {}: {error}", scratch.display()))
        })?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let words = [
            ("weir", text(self.weir)),
            ("dir", text(&scratch)),
            ("samples", text(&samples)),
            ("setting", arm.setting.clone().unwrap_or_default()),
            ("arm", arm.name.clone()),
            ("repeat", repeat.to_string()),
        ];
        let command = arm.command.iter().map(|word| replace_placeholders(word, &words));
        let command: Vec<String> = command.collect();
        let began = unix_now();
        let process = start(&format!("arm {:?}", arm.name), &command, &arm.env, self.groups)?;
        Ok(Run {
            arm,
            place,
            repeat,
            process,
            scratch,
            samples,
            began,
            usage: Vec::new(),
            ended: None,
        })
    }

    /// Samples the runs until all have ended. Stops them at the timeout or if the study is stopped.
    fn watch(&self, runs: &mut [Run<'_>], on_event: &mut dyn FnMut(Event<'_>)) {
        let begun = Instant::now();
        let mut next = Duration::ZERO;
        loop {
            let elapsed = begun.elapsed();
            if self.stop.asked() {
                // All runs get the signal at once, so none continues while another one shuts down.
                runs.iter().for_each(|run| run.process.terminate());
            }
            for run in runs.iter_mut().filter(|run| run.ended.is_none()) {
                if let Some(status) = run.process.ended() {
                    let outcome = match () {
                        () if status.success() => Ok(()),
                        () if self.stop.asked() => Err(STOPPED.to_owned()),
                        () => Err(exit_reason(status, &run.process)),
                    };
                    run.ended = Some((elapsed, outcome));
                } else if elapsed >= *self.study.file.timeout {
                    run.process.end();
                    run.ended = Some((elapsed, Ok(())));
                } else if self.stop.asked() {
                    run.process.end();
                    run.ended = Some((elapsed, Err(STOPPED.to_owned())));
                }
            }
            if runs.iter().all(|run| run.ended.is_some()) {
                return;
            }
            if elapsed >= next {
                next += *self.study.file.sample;
                let running = || runs.iter().filter(|run| run.ended.is_none());
                let heights: Vec<_> = running()
                    .map(|run| (run.arm.name.as_str(), elapsed.as_secs_f64(), newest(&run.samples)))
                    .collect();
                on_event(Event::Second(heights));
                for run in runs.iter_mut().filter(|run| run.ended.is_none()) {
                    let usage = run.process.usage(&run.scratch);
                    if run.usage.len() >= USAGE_MAX {
                        let mut index = 0;
                        run.usage.retain(|_| {
                            index += 1;
                            index % 2 == 1
                        });
                    }
                    run.usage.push((unix_now(), usage));
                }
            }
            std::thread::park_timeout(TICK);
        }
    }

    /// Reads the samples of an ended run and removes its scratch folder.
    fn end(&self, run: Run<'_>, apart: Duration, on_event: &mut dyn FnMut(Event<'_>)) -> EndedRun {
        let Run { arm, place, repeat, samples, began, usage, ended, scratch, process } = run;
        drop(process);
        let (after, outcome) = ended.unwrap_or((Duration::ZERO, Err("it never ran".to_owned())));
        let read = outcome
            .and_then(|()| match apart > START_APART_MAX {
                true => Err(format!("arms were started {} s apart", short(apart.as_secs_f64()))),
                false => Ok(()),
            })
            .and_then(|()| read_run(&samples, Form::Samples).map_err(|fault| fault.to_string()));
        let run = read.map(|mut run| {
            run.label = format!("repeat {repeat}");
            // An arm uses this machine's clock. Its first sample comes some time after its start.
            run.origin = began.min(run.origin);
            fill_in(&mut run.samples, &usage);
            if after >= *self.study.file.timeout {
                let limit = span(self.study.file.timeout.as_secs_f64());
                run.notes.push(format!("it was stopped at the timeout of {limit}"));
            }
            run
        });
        // The folder may hold gigabytes that the next run needs. An error does not affect the
        // results.
        let _ = std::fs::remove_dir_all(&scratch);
        let height = run.as_ref().ok().map(|run| run.last().height);
        let why = run.as_ref().err().cloned();
        on_event(Event::Ended(&arm.name, after.as_secs_f64(), height, why));
        EndedRun { place, repeat, run }
    }

    /// Waits until the time is over or the study is stopped.
    fn wait(&self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time && !self.stop.asked() {
            std::thread::park_timeout(TICK.min(time));
        }
    }
}

fn start(
    whose: &str,
    command: &[String],
    env: &BTreeMap<String, String>,
    groups: &Groups,
) -> Result<Process, StudyFault> {
    Process::start(command, env, groups).map_err(|error| {
        let program = command.first().map_or("", String::as_str);
        StudyFault::Asked(format!("{whose}: cannot start {program:?}: {error}"))
    })
}

/// Formats the exit status of a process with its last lines of output.
fn exit_reason(status: std::process::ExitStatus, process: &Process) -> String {
    let lines = process.last_lines();
    match lines.is_empty() {
        true => format!("it ended with {status} without output"),
        false => format!("it ended with {status}: {}", lines.join(" / ")),
    }
}

fn replace_placeholders(word: &str, words: &[(&str, String)]) -> String {
    words
        .iter()
        .fold(word.to_owned(), |word, (name, value)| word.replace(&format!("{{{name}}}"), value))
}

/// Returns the time between the first and the last start.
fn start_distance(runs: &[Run<'_>]) -> Duration {
    let began = || runs.iter().map(|run| run.began);
    let (first, last) = (began().fold(f64::INFINITY, f64::min), began().fold(0.0, f64::max));
    Duration::try_from_secs_f64(last - first).unwrap_or_default()
}

fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Fills values that an arm does not report with those of the previous usage sample.
fn fill_in(samples: &mut [Sample], usage: &[(f64, Usage)]) {
    for sample in samples {
        let next = usage.partition_point(|(at, _)| *at <= sample.at);
        let Some((_, usage)) = usage.get(next.saturating_sub(1)) else { continue };
        sample.memory = sample.memory.or(usage.memory);
        sample.disk = sample.disk.or(usage.disk);
        sample.cpu = sample.cpu.or(usage.cpu);
    }
}

/// Returns the height of the newest complete sample of a file that is still being written.
fn newest(path: &Path) -> Option<u64> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    const TAIL: u64 = 4096;
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let (whole, _) = text.rsplit_once('\n')?;
    let line: super::read::SampleLine = serde_json::from_str(whole.lines().last()?).ok()?;
    line.height
}
