//! `cargo xtask check`: everything that CI checks, each stage timed.
//!
//! Only this file lists the stages and their order (docs/check.md has the same list).
//! `check/programs.rs` fetches outside programs in the background while cargo builds, and
//! `check/test_programs.rs` runs the tests. The output always ends with `N passed, N failed, N
//! skipped`, for tests and stages together.

pub(crate) mod programs;
mod test_programs;
mod test_report;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use parking_lot::Mutex;

use crate::{fuzz, generate, release, shell, site, tidy};
use test_programs::{Settings, TestProgram};
use test_report::{Counts, TestReport};

/// The stages to run.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Scope {
    /// Run only the stages without outside programs and a second build: fmt, tidy, build, generate,
    /// test, measure
    #[arg(long)]
    fast: bool,
    /// Also build the outside programs that take minutes to build, and run the tests that need them
    #[arg(long, conflicts_with = "fast")]
    full: bool,
    /// Print the stages and run none
    #[arg(long)]
    list: bool,
}

/// The outcome of a stage that did not fail.
enum Outcome {
    Passed,
    /// The stage did not run, for this reason.
    Skipped(String),
    /// Tests ran.
    Tested(TestReport),
}

/// State shared by the stages.
struct Context {
    scope: Scope,
    /// True if `CI` is set. Then a test fails when its outside program is missing.
    is_ci: bool,
    /// True if packages and an image are built and tested. Then `cargo test` builds a static
    /// program.
    packages_tested: bool,
    /// The thread that fetches outside programs. `None` with `--fast`, and after the thread has
    /// been joined.
    fetching: Mutex<Option<thread::JoinHandle<Result<String>>>>,
    /// Set once all outside programs are installed.
    fetched: OnceLock<()>,
    /// The test programs, once they are built.
    test_programs: OnceLock<Vec<TestProgram>>,
}

impl Context {
    /// Returns true if a test must fail when its outside program is missing. Otherwise such a test
    /// is skipped.
    fn requires_programs(&self) -> bool {
        self.is_ci || self.fetched.get().is_some()
    }
}

/// A stage of the check.
struct Stage {
    name: &'static str,
    /// True if the stage also runs with `--fast`.
    fast: bool,
    /// What the stage checks, as Markdown.
    checks: &'static str,
    run: fn(&Context) -> Result<Outcome>,
}

/// The stages that run first, one after the other: those that fail fastest and most often come
/// first.
const FIRST: &[Stage] = &[
    Stage { name: "fmt", fast: true, checks: "formatting, by rustfmt", run: check_format },
    Stage {
        name: "tidy",
        fast: true,
        checks: "conventions that no other tool checks: `xtask/src/tidy.rs`",
        run: |_| tidy::run().map(|()| Outcome::Passed),
    },
    Stage {
        name: "build",
        fast: true,
        checks: "everything builds, with the tests, under Clippy's lints and the bans of \
                 `clippy.toml`; warnings are errors",
        run: build_tests,
    },
    Stage {
        name: "programs",
        fast: false,
        checks: "the outside programs are installed; they are fetched while cargo builds",
        run: finish_fetching,
    },
    Stage {
        name: "packages",
        fast: false,
        checks: "packages and an image of the debug program are built, for their tests",
        run: build_packages,
    },
    Stage {
        name: "generate",
        fast: true,
        checks: "the generated pages in docs/ are fresh",
        run: |_| generate::check_built().map(|()| Outcome::Passed),
    },
];

/// The stages that run beside the stage [`TEST`], one after the other, with low priority: most tests
/// wait, and these stages use the cores meanwhile.
const BESIDE: &[Stage] = &[
    Stage {
        name: "deny",
        fast: false,
        checks: "licences, duplicate versions and sources of crates, as listed in `deny.toml`",
        run: check_dependencies,
    },
    Stage {
        name: "docs",
        fast: false,
        checks: "links in code docs; the site builds",
        run: check_docs,
    },
    Stage { name: "doctest", fast: true, checks: "the examples in code docs", run: run_doc_tests },
    Stage {
        name: "fuzz",
        fast: false,
        checks: "a fixed number of random inputs for each decoder except `config`, which takes minutes to build",
        run: fuzz_briefly,
    },
];

const TEST: Stage = Stage {
    name: "test",
    fast: true,
    checks: "all other tests: those of all programs run at once",
    run: |context| run_tests(context, test_programs::run_together),
};

/// Runs when nothing else does.
const MEASURE: Stage = Stage {
    name: "measure",
    fast: true,
    checks: "tests that measure the machine, one at a time",
    run: |context| run_tests(context, test_programs::run_alone),
};

/// Name of the stage without which no later stage can run.
const BUILD: &str = "build";

/// The result of a stage, for the table.
struct StageReport {
    name: &'static str,
    /// Text such as `passed`.
    outcome: String,
    duration: Duration,
}

/// The results of all stages so far.
#[derive(Default)]
struct CheckReport {
    stages: Vec<StageReport>,
    /// The tests, and the failures of stages.
    tests: TestReport,
    /// Set once the build has failed.
    is_stopped: bool,
}

/// Runs the stages and prints the table and the counts. Returns a failure code if a stage or a test
/// failed.
///
/// # Errors
/// Never fails.
pub(crate) fn run(scope: Scope) -> Result<ExitCode> {
    if scope.list {
        print!("{}", format_stages());
        return Ok(ExitCode::SUCCESS);
    }
    let fetching = (!scope.fast).then(|| thread::spawn(move || programs::fetch(scope.full)));
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci != "false");
    let context = Context {
        scope,
        is_ci,
        packages_tested: is_ci || shell::find("nfpm").is_some(),
        fetching: Mutex::new(fetching),
        fetched: OnceLock::new(),
        test_programs: OnceLock::new(),
    };
    let _ignored = fs::remove_file(skip_log());
    test_programs::end_processes_of_killed_checks();
    let mut report = CheckReport::default();
    FIRST.iter().for_each(|stage| report.run(stage, &context));
    let mut beside = CheckReport { is_stopped: report.is_stopped, ..CheckReport::default() };
    thread::scope(|scope| {
        scope.spawn(|| {
            lower_priority();
            BESIDE.iter().for_each(|stage| beside.run(stage, &context));
        });
        report.run(&TEST, &context);
    });
    report.stages.extend(beside.stages);
    report.tests.merge(beside.tests);
    report.run(&MEASURE, &context);
    let skipped_tests = fs::read_to_string(skip_log()).unwrap_or_default();
    for line in skipped_tests.lines() {
        println!("skipped: {line}");
    }
    report.tests.move_to_skipped(skipped_tests.lines().count());
    println!("\n{}\n{}", report.tests.format(), format_table(&report.stages));
    let Counts { passed, failed, skipped } = report.tests.counts;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    // The counts must be the last line of the output. So the exit code reports a failure, instead
    // of an error with a message.
    Ok(if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl CheckReport {
    /// Runs a stage and adds its result, unless the scope excludes the stage or the build failed.
    fn run(&mut self, stage: &Stage, context: &Context) {
        let started = Instant::now();
        let outcome = if self.is_stopped {
            self.tests.counts.skipped += 1;
            "not reached".to_owned()
        } else if context.scope.fast && !stage.fast {
            self.tests.counts.skipped += 1;
            "skipped: --fast".to_owned()
        } else {
            println!("== {}", stage.name);
            let result = (stage.run)(context);
            self.is_stopped = result.is_err() && stage.name == BUILD;
            self.record(stage.name, result)
        };
        self.stages.push(StageReport { name: stage.name, outcome, duration: started.elapsed() });
    }

    /// Adds the result of a stage to the counts and returns its outcome for the table.
    fn record(&mut self, stage: &str, result: Result<Outcome>) -> String {
        match result {
            Ok(Outcome::Passed) => {
                self.tests.counts.passed += 1;
                "passed".to_owned()
            }
            Ok(Outcome::Skipped(reason)) => {
                self.tests.counts.skipped += 1;
                format!("skipped: {reason}")
            }
            Ok(Outcome::Tested(tests)) => {
                let Counts { passed, failed, skipped } = tests.counts;
                self.tests.merge(tests);
                format!("{passed} tests passed, {failed} failed, {skipped} ignored")
            }
            Err(error) => {
                eprintln!("failed: {error:#}");
                let text = format!("{error:#}");
                let text = text.lines().next().unwrap_or_default();
                self.tests.fail(format!("stage {stage}: {text}"));
                format!("FAILED: {text}")
            }
        }
    }
}

/// Formats all stages as a Markdown table.
fn format_stages() -> String {
    let mut table = String::from("| stage | `--fast` | checks |\n| --- | --- | --- |\n");
    for stage in FIRST.iter().chain([&TEST]).chain(BESIDE).chain([&MEASURE]) {
        let fast = if stage.fast { "yes" } else { "" };
        table.push_str(&format!("| {} | {fast} | {} |\n", stage.name, stage.checks));
    }
    table
}

fn format_table(reports: &[StageReport]) -> String {
    let mut text = format!("{:<10}{:>9}  outcome\n", "stage", "seconds");
    for report in reports {
        let seconds = report.duration.as_secs_f64();
        text.push_str(&format!("{:<10}{seconds:>9.1}  {}\n", report.name, report.outcome));
    }
    text
}

/// Gives this thread, and the processes that it starts, the lowest priority.
fn lower_priority() {
    let thread = fs::read_link("/proc/thread-self").unwrap_or_default();
    let id = thread.file_name().unwrap_or_default();
    // Without `renice` the stages only take turns with the tests.
    let _ignored = Command::new("renice").args(["-n", "19", "-p"]).arg(id).output();
}

fn check_format(_: &Context) -> Result<Outcome> {
    shell::run_cargo(&["fmt", "--all", "--check"]).map(|()| Outcome::Passed)
}

/// Waits for the thread that fetches outside programs.
fn finish_fetching(context: &Context) -> Result<Outcome> {
    let Some(fetching) = context.fetching.lock().take() else { return Ok(Outcome::Passed) };
    match fetching.join() {
        Ok(Ok(summary)) => {
            println!("{summary}");
            context.fetched.get_or_init(|| ());
            Ok(Outcome::Passed)
        }
        Ok(Err(error)) if context.is_ci => Err(error),
        Ok(Err(error)) => Ok(Outcome::Skipped(format!("{error:#}"))),
        Err(_) => bail!("the thread that fetches programs panicked"),
    }
}

/// Builds the packages and the container image that their tests read.
fn build_packages(context: &Context) -> Result<Outcome> {
    if !context.packages_tested {
        let reason = "nfpm was missing when the check began: no packages were built";
        return Ok(Outcome::Skipped(reason.to_owned()));
    }
    release::write_for_check().map(|()| Outcome::Passed)
}

/// Returns a `cargo test` that compiles with Clippy's lints. If packages are tested, the command
/// builds the static program that the packages contain.
fn test_command(context: &Context) -> Command {
    let mut command = shell::cargo_command();
    command.args(["test", "--workspace"]);
    let compiler = if context.packages_tested { "clippy-static.sh" } else { "clippy.sh" };
    command.env("RUSTC_WORKSPACE_WRAPPER", shell::root().join("xtask").join(compiler));
    command
}

fn build_tests(context: &Context) -> Result<Outcome> {
    let programs = test_programs::build(&mut test_command(context))?;
    context.test_programs.get_or_init(|| programs);
    Ok(Outcome::Passed)
}

/// File to which a test that skips itself appends a line.
fn skip_log() -> PathBuf {
    shell::root().join("target/skipped-tests.log")
}

fn settings(context: &Context) -> Settings {
    let required = if context.scope.full { "all" } else { "1" };
    let required_programs = context.requires_programs().then_some(required);
    Settings { skip_log: skip_log(), required_programs }
}

fn run_tests(
    context: &Context,
    run: fn(&[TestProgram], &Settings) -> TestReport,
) -> Result<Outcome> {
    let programs = context.test_programs.get().context("the tests are not built")?;
    let report = run(programs, &settings(context));
    ensure!(report.counts.passed + report.counts.failed > 0, "no test ran");
    Ok(Outcome::Tested(report))
}

fn run_doc_tests(context: &Context) -> Result<Outcome> {
    let mut command = test_command(context);
    Ok(Outcome::Tested(test_programs::run_doc_tests(&mut command, &settings(context))))
}

fn check_docs(context: &Context) -> Result<Outcome> {
    let mut command = shell::cargo_command();
    command.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
    // `--document-private-items` makes links to private items valid.
    let flags = "--deny warnings --allow rustdoc::private-intra-doc-links";
    shell::run(command.env("RUSTDOCFLAGS", flags))?;
    if shell::find("mdbook").is_none() && !context.requires_programs() {
        return Ok(Outcome::Skipped("mdbook is missing: the site was not built".to_owned()));
    }
    site::build()?;
    Ok(Outcome::Passed)
}

fn check_dependencies(_: &Context) -> Result<Outcome> {
    if shell::find("cargo-deny").is_none() {
        return Ok(Outcome::Skipped("cargo-deny is missing".to_owned()));
    }
    // The check of advisories needs a database from the network, so this stage omits it.
    let mut command = shell::cargo_command();
    command.args(["deny", "--all-features", "check", "licenses", "bans", "sources"]);
    shell::run(&mut command).map(|()| Outcome::Passed)
}

fn fuzz_briefly(_: &Context) -> Result<Outcome> {
    fuzz::run_quick_targets()?;
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests;
