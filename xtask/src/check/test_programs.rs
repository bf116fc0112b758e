//! Runs test programs, several at once.
//!
//! Cargo builds the programs and lists them as JSON. `cargo test` would run them one after the
//! other, and cores would idle while the last tests of each program wait. Here the [`LONG`] programs
//! run at once, beside all others. Tests that measure the machine run afterwards, one at a time
//! ([`ALONE`]).
//!
//! Each program, and every process that it starts, has [`MARK`] in its environment. A process that
//! outlives its program is found by this variable, reported and killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::test_report::{Counts, TestReport};
use crate::shell;

/// Programs that run for minutes, each by the end of its options, with its number of test threads for
/// each two cores. All of
/// them run at once. Most tests wait for timers and sockets: a thread uses less than half a core.
const LONG: &[(&str, usize)] = &[("--test lab", 2), ("--test gateway", 2)];
/// Number of test threads, for each two cores, of each other program. One of them runs beside those
/// of [`LONG`], and another one instead of each program of [`LONG`] that has ended.
const OTHERS: usize = 1;
/// Tests that measure times or loads of the whole machine, or whose thousands of connections disturb
/// others that look at its sockets: the end of the program's options, and a part of their names. An
/// empty part means all tests of the program.
const ALONE: &[(&str, &str)] = &[
    ("--test bottleneck", ""),
    ("--test planted", ""),
    ("--test gateway", "bad_input::memory::"),
    ("--test gateway", "overload::slower::"),
    ("--test gateway", "stalls::two_hanging_nodes_of_three"),
    ("--test lab", "generator::a_generator_without_a_core_does_not_measure_the_target"),
    ("--test lab", "load_study::the_harmony_study_compares_direct_proxied_and_cached_calls"),
    ("--test lab", "studies::every_shipped_study_passes_against_a_sound_node"),
    ("--test lab", "studies::the_rpcstest_study_is_limited_by_its_own_pauses"),
    ("-p lab-engine --lib", "load::iterations_without_a_worker_are_dropped"),
];
/// Time without output after which a program is killed. Even on a busy host every test takes less
/// time.
const SILENCE_MAX: Duration = Duration::from_secs(10 * 60);
/// Maximum number of lines in the queue between reading and printing.
const LINES_WAITING_MAX: usize = 1_024;
/// Environment variable that names a run of a test program.
const MARK: &str = "WEIR_TEST_PROGRAM";
/// Time in which processes may still end after the program that started them. On a busy machine a
/// PostgreSQL needs seconds to stop, and so does the deletion of its files.
const END_MAX: Duration = Duration::from_secs(30);
/// Interval between two searches for processes that have not ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A test program that cargo has built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// The name of its target, such as `gateway`.
    name: String,
    /// Options of `cargo test` that run this program, such as `-p weir --test gateway`.
    options: String,
    path: PathBuf,
    /// Folder of its package.
    folder: PathBuf,
}

/// How the tests of a check run.
#[derive(Debug)]
pub(crate) struct Settings {
    /// File to which tests that skip themselves append a line.
    pub(crate) skip_log: PathBuf,
    /// Value of `WEIR_REQUIRE_PROGRAMS`. `None` if a missing program skips a test.
    pub(crate) required_programs: Option<&'static str>,
}

/// Runs a `cargo test --no-run` and returns the test programs that it has built.
///
/// # Errors
/// Fails if the build fails.
pub(crate) fn build(command: &mut Command) -> Result<Vec<TestProgram>> {
    command.args(["--no-run", "--quiet", "--message-format=json-render-diagnostics"]);
    let line = shell::format_command(command);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {line}"))?;
    ensure!(output.status.success(), "{line} failed ({})", output.status);
    let programs = parse_programs(&String::from_utf8_lossy(&output.stdout))?;
    ensure!(!programs.is_empty(), "{line} built no test program");
    Ok(programs)
}

/// Reads the test programs from the messages of cargo, one JSON object per line.
fn parse_programs(messages: &str) -> Result<Vec<TestProgram>> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("cargo prints no JSON")?;
        let (Some(path), Some(true)) =
            (message["executable"].as_str(), message["profile"]["test"].as_bool())
        else {
            continue;
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let manifest = PathBuf::from(text(&message["manifest_path"]));
        let folder = manifest.parent().context("a manifest has a folder")?.to_path_buf();
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (name, kind) = (text(&message["target"]["name"]), text(&message["target"]["kind"][0]));
        let target = match kind.as_str() {
            "bin" | "test" | "example" | "bench" => format!("--{kind} {name}"),
            _ => "--lib".to_owned(),
        };
        let options = format!("-p {package} {target}");
        programs.push(TestProgram { name, options, path: path.into(), folder });
    }
    Ok(programs)
}

/// Runs the tests of all programs, apart from those that must run alone.
pub(crate) fn run_together(programs: &[TestProgram], settings: &Settings) -> TestReport {
    let threads = |per_two_cores: usize| (per_two_cores * count_cores() / 2).max(1);
    let (long, others): (Vec<_>, Vec<_>) = programs.iter().partition(|it| find_long(it).is_some());
    // Index of the next program in the queue of others.
    let next = AtomicUsize::new(0);
    let run_shared = |program, threads| {
        let parts: Vec<&str> = list_alone(program).collect();
        if parts.contains(&"") {
            return TestReport::default();
        }
        let skip: Vec<&str> = parts.iter().flat_map(|part| ["--skip", part]).collect();
        run(program, threads, &skip, settings)
    };
    // A thread whose long program has ended helps with the queue, so that no core idles.
    let run_queue = |mut report: TestReport| {
        while let Some(program) = others.get(next.fetch_add(1, Ordering::Relaxed)) {
            report.merge(run_shared(program, threads(OTHERS)));
        }
        report
    };
    thread::scope(|scope| {
        let (run_queue, run_shared) = (&run_queue, &run_shared);
        let running = long.into_iter().map(|program| {
            let threads = threads(find_long(program).unwrap_or(OTHERS));
            scope.spawn(move || run_queue(run_shared(program, threads)))
        });
        let running: Vec<_> = running.collect();
        let mut report = run_queue(TestReport::default());
        for program in running {
            report.merge(program.join().expect("a thread that runs a program does not panic"));
        }
        report
    })
}

impl TestProgram {
    /// Returns true if the options that run the program end with these.
    fn has_options(&self, end: &str) -> bool {
        self.options.ends_with(end)
    }
}

/// Returns the number of test threads that [`LONG`] has for this program.
fn find_long(program: &TestProgram) -> Option<usize> {
    LONG.iter().find(|(name, _)| program.has_options(name)).map(|(_, threads)| *threads)
}

fn count_cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs the tests of [`ALONE`], one after the other. A part of names that no test has is a failure.
pub(crate) fn run_alone(programs: &[TestProgram], settings: &Settings) -> TestReport {
    let mut report = TestReport::default();
    for (name, part) in ALONE {
        let mut run_now = TestReport::default();
        for program in programs.iter().filter(|program| program.has_options(name)) {
            run_now.merge(run(program, 1, &[part], settings));
        }
        if run_now.counts == Counts::default() {
            run_now.fail(format!("no test of {name} has {part:?} in its name"));
        }
        report.merge(run_now);
    }
    report
}

/// Returns the parts of test names that [`ALONE`] has for this program.
fn list_alone(program: &TestProgram) -> impl Iterator<Item = &'static str> {
    ALONE.iter().filter(|(name, _)| program.has_options(name)).map(|(_, part)| *part)
}

/// Runs a test program with further arguments, and prints its output.
fn run(
    program: &TestProgram,
    threads: usize,
    arguments: &[&str],
    settings: &Settings,
) -> TestReport {
    let mut command = Command::new(&program.path);
    command.args(["-Zunstable-options", "--report-time", "--test-threads"]);
    command.arg(threads.to_string()).args(arguments).current_dir(&program.folder);
    // The harness of a stable toolchain reports times only with this variable.
    command.env("RUSTC_BOOTSTRAP", "1");
    // What `cargo test` sets, as far as tests read it when they run.
    command.env("CARGO_MANIFEST_DIR", &program.folder);
    if let Some(debug) = program.path.parent().and_then(Path::parent) {
        command.env("CARGO_BIN_EXE_weir", debug.join("weir"));
    }
    let rerun = format!("cargo test {} --", program.options);
    run_command(&mut command, &program.name, &rerun, settings, SILENCE_MAX)
}

/// Runs `cargo test --doc` with the options of `command`, and prints its output.
pub(crate) fn run_doc_tests(command: &mut Command, settings: &Settings) -> TestReport {
    run_command(command.arg("--doc"), "doc", "cargo test --doc --", settings, SILENCE_MAX)
}

/// Runs a command that runs tests. Prints each line of its output after `name`. A command that
/// prints nothing for `silence_max` is killed. Kills the processes that it has left.
fn run_command(
    command: &mut Command,
    name: &str,
    rerun: &str,
    settings: &Settings,
    silence_max: Duration,
) -> TestReport {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    // The id of this process tells apart two checks on one machine.
    let value = format!("{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
    let mark = format!("{MARK}={value}");
    command.env(MARK, value);
    command.env("WEIR_SKIP_LOG", &settings.skip_log);
    if let Some(programs) = settings.required_programs {
        command.env("WEIR_REQUIRE_PROGRAMS", programs);
    }
    let mut report = TestReport::default();
    match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => follow(child, &mark, name, rerun, silence_max, &mut report),
        Err(error) => report.fail(format!("{name}: cannot run: {error}")),
    }
    report
}

/// Follows a running command to its end, as [`run_command`] describes.
fn follow(
    mut child: Child,
    mark: &str,
    name: &str,
    rerun: &str,
    silence_max: Duration,
    report: &mut TestReport,
) {
    let output = child.stdout.take().expect("the output is piped");
    let (sender, lines) = sync_channel(LINES_WAITING_MAX);
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            // The channel is closed if the command was killed.
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut last_output = Instant::now();
    loop {
        match lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line);
                println!("{name:>10} | {line}");
                report.record(rerun, &line);
                last_output = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // A process that the program has left may keep its output open.
            Err(RecvTimeoutError::Timeout) if has_ended(&mut child) => break,
            Err(RecvTimeoutError::Timeout) if last_output.elapsed() >= silence_max => {
                report.fail(format!("{name}: killed after {silence_max:?} without output"));
                kill_marked(mark);
                break;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    match child.wait() {
        Ok(status) if status.success() || report.counts.failed > 0 => {}
        Ok(status) => report.fail(format!("{rerun}: {status}, although no test failed")),
        Err(error) => report.fail(format!("{name}: {error}")),
    }
    for left in end_left_processes(mark) {
        report.fail(format!("{name} left a process, which was killed: {left}"));
    }
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().is_ok_and(|status| status.is_some())
}

/// Waits until all processes with this mark have ended. Kills those that do not end in time, and
/// returns their command lines.
fn end_left_processes(mark: &str) -> Vec<String> {
    let started = Instant::now();
    while started.elapsed() < END_MAX {
        // Processes are listed one after the other, so a list may lack both a process that has just
        // ended and the one that it has just started. Two lists in a row do not.
        let is_empty = list_marked(mark).is_empty();
        shell::pause(POLL_INTERVAL);
        if is_empty && list_marked(mark).is_empty() {
            return Vec::new();
        }
    }
    kill_marked(mark)
}

/// Kills all processes with this mark and returns their command lines.
fn kill_marked(mark: &str) -> Vec<String> {
    let mut killed = BTreeMap::new();
    // A process can start another one before it is killed, and a busy machine ends it late.
    loop {
        let running = list_marked(mark);
        if running.is_empty() {
            return killed.into_values().collect();
        }
        for (process, command_line) in running {
            // The process may have ended by itself.
            let _ = Command::new("kill").args(["-KILL", &process]).stderr(Stdio::null()).status();
            killed.insert(process, command_line);
        }
        shell::pause(POLL_INTERVAL);
    }
}

/// Kills processes that tests of an earlier check have left because that check was killed.
pub(crate) fn end_processes_of_killed_checks() {
    let is_running = |process: &str| Path::new("/proc").join(process).exists();
    for (_, mark) in list_processes() {
        let check = mark.split(['=', '-']).nth(1).unwrap_or_default();
        if !is_running(check) {
            for command_line in kill_marked(&mark) {
                println!("killed a process of an earlier check: {command_line}");
            }
        }
    }
}

/// Lists the running processes with this mark in their environment: id and command line.
fn list_marked(mark: &str) -> Vec<(String, String)> {
    let marked = list_processes().into_iter().filter(|(_, found)| found == mark);
    let read = |id: &str| std::fs::read(Path::new("/proc").join(id).join("cmdline"));
    let command_line =
        |id: &str| String::from_utf8_lossy(&read(id).unwrap_or_default()).replace('\0', " ");
    marked.map(|(id, _)| (id.clone(), command_line(&id))).collect()
}

/// Lists the running processes with a mark in their environment: id and mark. A process that has
/// ended but was not waited for has no environment.
fn list_processes() -> Vec<(String, String)> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let marked = processes.filter_map(|entry| {
        let id = entry.file_name().to_string_lossy().into_owned();
        id.parse::<u32>().ok()?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let prefix = format!("{MARK}=");
        let mark = variables.find(|variable| variable.starts_with(prefix.as_bytes()))?;
        Some((id, String::from_utf8_lossy(mark).into_owned()))
    });
    marked.collect()
}

#[cfg(test)]
mod tests;
