//! `cargo xtask check`: everything that CI checks, in order, each stage timed.
//!
//! Only this file lists the stages and their order. `check/programs.rs` fetches outside programs in
//! the background while cargo builds, `check/counts.rs` counts tests, and `check/commands.rs`
//! checks the commands in pages of the documentation. The output always ends with
//! `N passed, N failed, N skipped`, for tests and stages together.

mod commands;
mod counts;
pub(crate) mod programs;

use std::fs;
use std::num::NonZero;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::{fuzz, generate, release, shell, site, tidy};
use counts::{Counts, Slowest};

/// The stages to run.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Scope {
    /// Run only the stages without outside programs and a second build: fmt, tidy, build, generate,
    /// test
    #[arg(long)]
    fast: bool,
    /// Continue after a stage that failed
    #[arg(long)]
    keep_going: bool,
}

/// The outcome of a stage that did not fail.
enum Outcome {
    Passed,
    /// The stage did not run, for this reason.
    Skipped(String),
    /// Tests ran, with these counts.
    Counted(Counts),
}

/// State shared by the stages.
struct Context {
    /// True if a test fails when its outside program is missing. Otherwise such a test is skipped.
    programs_required: bool,
    /// True if packages and an image are built and tested. Then `cargo test` builds a static
    /// program.
    packages_tested: bool,
    /// The thread that fetches outside programs. `None` with `--fast`, and after the thread has
    /// been joined.
    fetching: Option<thread::JoinHandle<Result<String>>>,
    slowest: Slowest,
}

/// A stage of the check.
struct Stage {
    name: &'static str,
    /// True if the stage also runs with `--fast`.
    fast: bool,
    run: fn(&mut Context) -> Result<Outcome>,
}

/// The stages in running order: those that fail fastest and most often are first.
const STAGES: &[Stage] = &[
    Stage { name: "fmt", fast: true, run: check_format },
    Stage { name: "tidy", fast: true, run: |_| tidy::run().map(|()| Outcome::Passed) },
    Stage { name: "build", fast: true, run: build_tests },
    Stage { name: "programs", fast: false, run: finish_fetching },
    Stage { name: "packages", fast: false, run: build_packages },
    Stage {
        name: "generate",
        fast: true,
        run: |_| generate::check_built().map(|()| Outcome::Passed),
    },
    Stage { name: "test", fast: true, run: run_tests },
    Stage { name: "docs", fast: false, run: check_docs },
    Stage { name: "deny", fast: false, run: check_dependencies },
    Stage { name: "fuzz", fast: false, run: fuzz_briefly },
];

/// Seconds of fuzzing per decoder, as a smoke test.
const FUZZ_SECONDS: u64 = 2;
/// Time without output after which the tests are stopped. Even on a busy host every test takes less
/// time.
const SILENCE_MAX: Duration = Duration::from_secs(10 * 60);

/// Arguments of cargo that run all tests except doc tests, and print the time of each test.
///
/// If a toolchain removes `--report-time`, the stage fails with the message of the test harness.
const TIMED_TESTS: &[&str] = &[
    "--lib",
    "--bins",
    "--tests",
    "--config",
    "target.'cfg(all())'.runner = ['env', 'RUSTC_BOOTSTRAP=1']",
    "--",
    "-Zunstable-options",
    "--report-time",
];

/// The result of a stage, for the table.
struct StageReport {
    name: &'static str,
    /// Text such as `passed`.
    outcome: String,
    duration: Duration,
}

/// Runs the stages and prints the table and the counts. Returns a failure code if a stage or a test
/// failed.
///
/// # Errors
/// Never fails.
pub(crate) fn run(scope: Scope) -> Result<ExitCode> {
    let fetching = (!scope.fast).then(|| thread::spawn(programs::fetch));
    let programs_required = std::env::var("CI").is_ok_and(|ci| ci != "false");
    let mut context = Context {
        programs_required,
        packages_tested: programs_required || shell::find("nfpm").is_some(),
        fetching,
        slowest: Slowest::default(),
    };
    let mut reports = Vec::new();
    let mut total = Counts::default();
    let mut stopped = false;
    for stage in STAGES {
        let started = Instant::now();
        let outcome = if stopped {
            total.skipped += 1;
            "not reached".to_owned()
        } else if scope.fast && !stage.fast {
            total.skipped += 1;
            "skipped: --fast".to_owned()
        } else {
            println!("== {}", stage.name);
            let result = (stage.run)(&mut context);
            stopped = has_failed(&result) && !scope.keep_going;
            record_result(result, &mut total)
        };
        reports.push(StageReport { name: stage.name, outcome, duration: started.elapsed() });
    }
    println!("\n{}\n{}", context.slowest.format_table(), format_table(&reports));
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    // The counts must be the last line of the output. So the exit code reports a failure, instead
    // of an error with a message.
    Ok(if total.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn has_failed(result: &Result<Outcome>) -> bool {
    match result {
        Err(_) => true,
        Ok(Outcome::Counted(counts)) => counts.failed > 0,
        Ok(Outcome::Passed | Outcome::Skipped(_)) => false,
    }
}

/// Adds a stage to the total and returns its outcome for the table.
fn record_result(result: Result<Outcome>, total: &mut Counts) -> String {
    match result {
        Ok(Outcome::Passed) => {
            total.passed += 1;
            "passed".to_owned()
        }
        Ok(Outcome::Skipped(reason)) => {
            total.skipped += 1;
            format!("skipped: {reason}")
        }
        Ok(Outcome::Counted(counts)) => {
            *total += counts;
            let Counts { passed, failed, skipped } = counts;
            format!("{passed} tests passed, {failed} failed, {skipped} skipped")
        }
        Err(error) => {
            total.failed += 1;
            eprintln!("failed: {error:#}");
            let text = format!("FAILED: {error:#}");
            text.lines().next().unwrap_or("FAILED").to_owned()
        }
    }
}

fn format_table(reports: &[StageReport]) -> String {
    let mut text = format!("{:<10}{:>9}  outcome\n", "stage", "seconds");
    for report in reports {
        let seconds = report.duration.as_secs_f64();
        text.push_str(&format!("{:<10}{seconds:>9.1}  {}\n", report.name, report.outcome));
    }
    text
}

fn check_format(_: &mut Context) -> Result<Outcome> {
    shell::run_cargo(&["fmt", "--all", "--check"]).map(|()| Outcome::Passed)
}

/// Waits for the thread that fetches outside programs.
fn finish_fetching(context: &mut Context) -> Result<Outcome> {
    let Some(fetching) = context.fetching.take() else { return Ok(Outcome::Passed) };
    match fetching.join() {
        Ok(Ok(summary)) => {
            println!("{summary}");
            // All programs are installed, so a test that cannot find one must fail.
            context.programs_required = true;
            Ok(Outcome::Passed)
        }
        Ok(Err(error)) if context.programs_required => Err(error),
        Ok(Err(error)) => Ok(Outcome::Skipped(format!("{error:#}"))),
        Err(_) => bail!("the thread that fetches programs panicked"),
    }
}

/// Builds the packages and the container image that their tests read.
fn build_packages(context: &mut Context) -> Result<Outcome> {
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

fn build_tests(context: &mut Context) -> Result<Outcome> {
    shell::run(test_command(context).args(["--quiet", "--no-run"])).map(|()| Outcome::Passed)
}

fn run_tests(context: &mut Context) -> Result<Outcome> {
    let log = shell::root().join("target/skipped-tests.log");
    let _ignored = fs::remove_file(&log);
    let (mut success, mut counts) = (true, Counts::default());
    for arguments in [TIMED_TESTS, &["--doc"]] {
        let mut command = test_command(context);
        command.arg("--no-fail-fast").args(arguments);
        command
            .env("WEIR_SKIP_LOG", &log)
            .env("RUST_TEST_THREADS", count_test_threads().to_string());
        if context.programs_required {
            command.env("WEIR_REQUIRE_PROGRAMS", "1");
        }
        let command = command.stdout(Stdio::piped());
        let (succeeded, run_counts) = counts::run(command, SILENCE_MAX, &mut context.slowest)?;
        success &= succeeded;
        counts += run_counts;
    }
    let skipped_tests = fs::read_to_string(&log).unwrap_or_default();
    for line in skipped_tests.lines() {
        println!("skipped: {line}");
    }
    counts.move_to_skipped(skipped_tests.lines().count());
    ensure!(counts.passed > 0 || counts.failed > 0, "cargo test ran no test");
    ensure!(success || counts.failed > 0, "cargo test failed although no test failed");
    Ok(Outcome::Counted(counts))
}

/// Returns one thread more than there are cores: most tests wait for timers and sockets. With one
/// per core, the cores were 40 % busy.
fn count_test_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get) + 1
}

fn check_docs(context: &mut Context) -> Result<Outcome> {
    let mut command = shell::cargo_command();
    command.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
    // `--document-private-items` makes links to private items valid.
    let flags = "--deny warnings --allow rustdoc::private-intra-doc-links";
    shell::run(command.env("RUSTDOCFLAGS", flags))?;
    commands::check()?;
    if site::find().is_none() && !context.programs_required {
        return Ok(Outcome::Skipped("mdbook is missing: the site was not built".to_owned()));
    }
    site::build()?;
    Ok(Outcome::Passed)
}

fn check_dependencies(_: &mut Context) -> Result<Outcome> {
    if shell::find("cargo-deny").is_none() {
        return Ok(Outcome::Skipped("cargo-deny is missing".to_owned()));
    }
    // The check of advisories needs a database from the network, so this stage omits it.
    let mut command = shell::cargo_command();
    command.args(["deny", "--all-features", "check", "licenses", "bans", "sources"]);
    shell::run(&mut command).map(|()| Outcome::Passed)
}

fn fuzz_briefly(_: &mut Context) -> Result<Outcome> {
    fuzz::run_quick_targets(FUZZ_SECONDS)?;
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests;
