//! Runs a study: starts what its file names, watches it, ends it, and reads what the arms wrote.
//!
//! Every process stands in a group of its own, which is ended by its id: when the run is over, when
//! somebody asks, and when this part of the program is left in any way. What a process is, is in
//! `runner/process.rs`.

mod process;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::StudyFault;
use super::file::{Arm, Order, Setup, Study};
use super::read::{Form, course};
use crate::analysis::sync::{ArmCourses, Course, Sample};
use crate::run::Stop;
use crate::wording::number::{short, span};
pub use process::Groups;

use process::{Look, Process};

/// Arms that run side by side must be started within this.
const START_APART_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether a process has ended.
const TICK: Duration = Duration::from_millis(25);
/// Why a run that somebody ended cannot be used.
const BY_HAND: &str = "it was ended by hand";
/// Looks from outside that are kept of a run; with more, every second one goes.
const LOOKS_MAX: usize = 100_000;
/// How long a try to connect to what was set up may take.
const CONNECT: Duration = Duration::from_secs(1);

/// What a study left.
#[derive(Debug, Default)]
pub struct Made {
    /// Courses of the runs that can be used. An arm may have none.
    pub arms: Vec<ArmCourses>,
    /// Runs that cannot, each with why, by arm.
    pub left_out: Vec<Vec<String>>,
    /// Somebody asked to end it before its plan.
    pub partial: bool,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum Sight<'a> {
    /// A repeat begins: which (0 warms up), of how many, with which arms.
    Begins(u32, u32, Vec<&'a str>),
    /// What the running arms have come to: name, seconds, height.
    Second(Vec<(&'a str, f64, Option<u64>)>),
    /// A run has ended: arm, seconds, height, and why it cannot be used.
    Ended(&'a str, f64, Option<u64>, Option<String>),
}

/// One run of one arm, begun.
struct Run<'a> {
    arm: &'a Arm,
    place: usize,
    repeat: u32,
    process: Process,
    scratch: PathBuf,
    samples: PathBuf,
    /// Seconds since 1970.
    began: f64,
    looks: Vec<(f64, Look)>,
    /// When it was found to have ended, and how.
    ended: Option<(Duration, Result<(), String>)>,
}

/// A run that is over: its course, or why there is none.
struct Over {
    place: usize,
    repeat: u32,
    course: Result<Course, String>,
}

/// Runs a study below `base`: samples stay in `base/runs`, scratch folders are removed. `weir` is the
/// program that stands for `{weir}`.
///
/// # Errors
/// If a folder cannot be made, or something cannot be started at all. What an arm does once it runs
/// is a result.
pub fn run(
    study: &Study,
    weir: &Path,
    base: &Path,
    (stop, groups): (&Stop, &Groups),
    see: &mut dyn FnMut(Sight<'_>),
) -> Result<Made, StudyFault> {
    let world = World { study, weir, base, stop, groups };
    let mut setup = world.set_up()?;
    if *study.file.warm_up {
        world.warm_up(see)?;
    }
    let mut over: Vec<Over> = Vec::new();
    for repeat in 1..=study.repeats() {
        if stop.asked() {
            break;
        }
        let mut runs = world.repeat(repeat, see)?;
        let gone = study.file.setup.iter().zip(&mut setup).find_map(|(one, process)| {
            let ended = process.ended()?;
            Some(format!("setup {:?} did not go on: {}", one.name, why(ended, process)))
        });
        if let Some(gone) = gone {
            runs.iter_mut().for_each(|run| run.course = Err(gone.clone()));
            over.extend(runs);
            return Ok(made(study, over, true));
        }
        over.extend(runs);
        if repeat < study.repeats() {
            world.wait(*study.file.pause);
        }
    }
    Ok(made(study, over, stop.asked()))
}

/// Sorts runs by arm. Arms of one repeat belong together: if one of them cannot be used, none is.
fn made(study: &Study, over: Vec<Over>, partial: bool) -> Made {
    let mut made = Made { partial, ..Made::default() };
    let mut by_repeat: BTreeMap<u32, Vec<Over>> = BTreeMap::new();
    for one in over {
        by_repeat.entry(one.repeat).or_default().push(one);
    }
    made.left_out = vec![Vec::new(); study.arms.len()];
    made.arms = study
        .arms
        .iter()
        .map(|arm| ArmCourses { name: arm.name.clone(), runs: Vec::new() })
        .collect();
    for (repeat, runs) in by_repeat {
        let whole = runs.len() == study.arms.len() && runs.iter().all(|run| run.course.is_ok());
        for run in runs {
            match run.course {
                Ok(course) if whole => made.arms[run.place].runs.push(course),
                Ok(_) => made.left_out[run.place].push(format!(
                    "repeat {repeat}: another arm of the same repeat cannot be used"
                )),
                Err(why) => made.left_out[run.place].push(format!("repeat {repeat}: {why}")),
            }
        }
    }
    made
}

struct World<'a> {
    study: &'a Study,
    weir: &'a Path,
    base: &'a Path,
    stop: &'a Stop,
    groups: &'a Groups,
}

impl<'a> World<'a> {
    /// Starts what runs all the time, and waits until it is ready.
    fn set_up(&self) -> Result<Vec<Process>, StudyFault> {
        let mut running = Vec::new();
        for one in self.study.file.setup.iter() {
            let words = [("weir", self.weir.to_string_lossy().into_owned())];
            let command: Vec<String> =
                one.command.iter().map(|word| filled(word, &words)).collect();
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
        let told = |what: String| StudyFault::Asked(format!("setup {:?} {what}", one.name));
        while begun.elapsed() < *one.ready_timeout && !self.stop.asked() {
            if let Some(ended) = process.ended() {
                return Err(told(format!("ended before it was ready: {}", why(ended, process))));
            }
            let addresses = address.to_socket_addrs();
            let addresses =
                addresses.map_err(|error| told(format!("has no address {address:?}: {error}")))?;
            if addresses.into_iter().any(|to| TcpStream::connect_timeout(&to, CONNECT).is_ok()) {
                return Ok(());
            }
            std::thread::park_timeout(TICK * 4);
        }
        Err(told(format!("takes no connections at {address} within {:?}", one.ready_timeout)))
    }

    /// A run of the first arm that counts for nothing: what is slow only once is slow now.
    fn warm_up(&self, see: &mut dyn FnMut(Sight<'_>)) -> Result<(), StudyFault> {
        see(Sight::Begins(0, self.study.repeats(), vec![&self.study.arms[0].name]));
        let mut runs = vec![self.start(0, 0)?];
        self.follow(&mut runs, see);
        for run in runs {
            let folder = run.scratch.parent().map(Path::to_owned);
            self.end(run, Duration::ZERO, see);
            if let Some(folder) = folder {
                // What stays of it disturbs nobody.
                let _gone = std::fs::remove_dir_all(folder);
            }
        }
        self.wait(*self.study.file.pause);
        Ok(())
    }

    fn repeat(&self, repeat: u32, see: &mut dyn FnMut(Sight<'_>)) -> Result<Vec<Over>, StudyFault> {
        let mut order: Vec<usize> = (0..self.study.arms.len()).collect();
        if repeat.is_multiple_of(2) {
            order.reverse();
        }
        let groups: Vec<Vec<usize>> = match *self.study.file.order {
            Order::SideBySide => vec![order],
            Order::Alternate => order.into_iter().map(|place| vec![place]).collect(),
        };
        let mut over = Vec::new();
        let count = groups.len();
        for (turn, group) in groups.into_iter().enumerate() {
            if self.stop.asked() {
                break;
            }
            let names = group.iter().map(|place| self.study.arms[*place].name.as_str()).collect();
            see(Sight::Begins(repeat, self.study.repeats(), names));
            let mut runs = Vec::new();
            for place in group {
                runs.push(self.start(place, repeat)?);
            }
            let apart = apart(&runs);
            self.follow(&mut runs, see);
            over.extend(runs.into_iter().map(|run| self.end(run, apart, see)));
            if turn + 1 < count {
                self.wait(*self.study.file.pause);
            }
        }
        Ok(over)
    }

    fn start(&self, place: usize, repeat: u32) -> Result<Run<'a>, StudyFault> {
        let arm = &self.study.arms[place];
        let folder = self.base.join("runs").join(format!("{}-{repeat}", arm.name));
        let scratch = folder.join("scratch");
        let samples = folder.join("samples.jsonl");
        // What an earlier study left under this name must not be taken for this one's.
        let gone = |path: &Path| match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let made = gone(&folder).and_then(|()| std::fs::create_dir_all(&scratch));
        made.map_err(|error| {
            StudyFault::Asked(format!("cannot make the folder {}: {error}", scratch.display()))
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
        let command: Vec<String> = arm.command.iter().map(|word| filled(word, &words)).collect();
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
            looks: Vec::new(),
            ended: None,
        })
    }

    /// Until all have ended, the time is over, or somebody asks.
    fn follow(&self, runs: &mut [Run<'_>], see: &mut dyn FnMut(Sight<'_>)) {
        let begun = Instant::now();
        let mut next = Duration::ZERO;
        loop {
            let elapsed = begun.elapsed();
            if self.stop.asked() {
                // All at once, so that none goes on while another takes its time to end.
                runs.iter().for_each(|run| run.process.ask_to_end());
            }
            for run in runs.iter_mut().filter(|run| run.ended.is_none()) {
                if let Some(ended) = run.process.ended() {
                    let how = match () {
                        () if ended.success() => Ok(()),
                        () if self.stop.asked() => Err(BY_HAND.to_owned()),
                        () => Err(why(ended, &run.process)),
                    };
                    run.ended = Some((elapsed, how));
                } else if elapsed >= *self.study.file.timeout {
                    run.process.end();
                    run.ended = Some((elapsed, Ok(())));
                } else if self.stop.asked() {
                    run.process.end();
                    run.ended = Some((elapsed, Err(BY_HAND.to_owned())));
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
                see(Sight::Second(heights));
                for run in runs.iter_mut().filter(|run| run.ended.is_none()) {
                    let look = run.process.look(&run.scratch);
                    if run.looks.len() >= LOOKS_MAX {
                        let mut place = 0;
                        run.looks.retain(|_| {
                            place += 1;
                            place % 2 == 1
                        });
                    }
                    run.looks.push((unix_now(), look));
                }
            }
            std::thread::park_timeout(TICK);
        }
    }

    /// What is left of a run.
    fn end(&self, run: Run<'_>, apart: Duration, see: &mut dyn FnMut(Sight<'_>)) -> Over {
        let Run { arm, place, repeat, samples, began, looks, ended, scratch, process } = run;
        drop(process);
        let (after, how) = ended.unwrap_or((Duration::ZERO, Err("it never ran".to_owned())));
        let read = how
            .and_then(|()| match apart > START_APART_MAX {
                true => Err(format!("arms were started {} s apart", short(apart.as_secs_f64()))),
                false => Ok(()),
            })
            .and_then(|()| course(&samples, Form::Samples).map_err(|fault| fault.to_string()));
        let course = read.map(|mut course| {
            course.label = format!("repeat {repeat}");
            // An arm's clock is this machine's; its first sample comes when it has something to say.
            course.origin = began.min(course.origin);
            fill_in(&mut course.samples, &looks);
            if after >= *self.study.file.timeout {
                let limit = span(self.study.file.timeout.as_secs_f64());
                course.notes.push(format!("it was ended at the timeout of {limit}"));
            }
            course
        });
        // It may hold gigabytes, and another run needs the room; that it cannot be removed harms
        // nothing that was measured.
        let _ = std::fs::remove_dir_all(&scratch);
        let height = course.as_ref().ok().map(|course| course.last().height);
        let why = course.as_ref().err().cloned();
        see(Sight::Ended(&arm.name, after.as_secs_f64(), height, why));
        Over { place, repeat, course }
    }

    /// Waits, but not longer than until somebody asks.
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

/// How a process ended, with the last that it said.
fn why(status: std::process::ExitStatus, process: &Process) -> String {
    let said = process.last_words();
    match said.is_empty() {
        true => format!("it ended with {status} and said nothing"),
        false => format!("it ended with {status}: {}", said.join(" / ")),
    }
}

/// A word with what its placeholders stand for.
fn filled(word: &str, words: &[(&str, String)]) -> String {
    words
        .iter()
        .fold(word.to_owned(), |word, (name, value)| word.replace(&format!("{{{name}}}"), value))
}

/// Time between the first and the last start.
fn apart(runs: &[Run<'_>]) -> Duration {
    let began = || runs.iter().map(|run| run.began);
    let (first, last) = (began().fold(f64::INFINITY, f64::min), began().fold(0.0, f64::max));
    Duration::try_from_secs_f64(last - first).unwrap_or_default()
}

fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// What an arm does not tell of itself, from the look before.
fn fill_in(samples: &mut [Sample], looks: &[(f64, Look)]) {
    for sample in samples {
        let place = looks.partition_point(|(at, _)| *at <= sample.at);
        let Some((_, look)) = looks.get(place.saturating_sub(1)) else { continue };
        sample.memory = sample.memory.or(look.memory);
        sample.disk = sample.disk.or(look.disk);
        sample.cpu = sample.cpu.or(look.cpu);
    }
}

/// The height of the newest whole sample of a file that is being written.
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
