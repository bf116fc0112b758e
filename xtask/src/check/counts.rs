//! Counts and times tests from the output of `cargo test`, and prints that output.

use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Maximum number of lines in the queue between reading and printing.
const LINES_WAITING_MAX: usize = 1_024;

/// Number of slowest tests to print at the end.
const SLOWEST: usize = 5;

/// Numbers of tests or stages.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

impl Counts {
    /// Moves tests from passed to skipped. A test that skips itself returns early, so cargo counts
    /// it as passed.
    pub(crate) fn move_to_skipped(&mut self, tests: usize) {
        let skipped = tests.min(self.passed);
        self.passed -= skipped;
        self.skipped += skipped;
    }

    /// Parses the counts in a line such as
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out`. Returns `None`
    /// for other lines.
    fn parse(line: &str) -> Option<Self> {
        let numbers = line.strip_prefix("test result: ")?.split_once(". ")?.1;
        let mut counts = Self::default();
        for part in numbers.split("; ") {
            let (number, word) = part.split_once(' ')?;
            let number = number.parse().ok();
            match word {
                "passed" => counts.passed = number?,
                "failed" => counts.failed = number?,
                "ignored" => counts.skipped = number?,
                _ => {}
            }
        }
        Some(counts)
    }
}

/// The slowest tests so far with their times, the slowest first.
#[derive(Debug, Default)]
pub(crate) struct Slowest(Vec<(Duration, String)>);

impl Slowest {
    /// Records the test of a line such as `test limits::waits::it_waits ... ok <1.234s>`. Ignores
    /// other lines.
    fn record(&mut self, line: &str) {
        let Some((name, result)) =
            line.strip_prefix("test ").and_then(|test| test.split_once(" ... "))
        else {
            return;
        };
        let seconds = result.split_once(" <").and_then(|(_, time)| time.strip_suffix("s>"));
        let Some(seconds) = seconds.and_then(|digits| digits.parse().ok()) else { return };
        let Ok(time) = Duration::try_from_secs_f64(seconds) else { return };
        self.0.push((time, name.to_owned()));
        self.0.sort_by(|left, right| right.cmp(left));
        self.0.truncate(SLOWEST);
    }

    /// Formats a line per test; empty if no test was timed.
    pub(crate) fn format_table(&self) -> String {
        let line =
            |(time, name): &(Duration, String)| format!("{:>19.1}  {name}\n", time.as_secs_f64());
        let lines: String = self.0.iter().map(line).collect();
        if lines.is_empty() { lines } else { format!("slowest     seconds  test\n{lines}") }
    }
}

/// Runs a command with piped output, prints the output, sums the test counts in it and records the
/// slowest tests. Returns true if the command succeeded, and the summed counts.
///
/// A command that prints nothing for `silence_max` is killed with all of its descendants.
///
/// # Errors
/// Fails if the command cannot run, or was killed.
pub(crate) fn run(
    command: &mut Command,
    silence_max: Duration,
    slowest: &mut Slowest,
) -> Result<(bool, Counts)> {
    let name = crate::shell::format_command(command);
    let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
    let output = child.stdout.take().context("the output is not piped")?;
    let (sender, lines) = sync_channel(LINES_WAITING_MAX);
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            let failed = line.is_err();
            // The channel is closed if `run` has returned early, after it killed a silent process.
            if sender.send(line).is_err() || failed {
                return;
            }
        }
    });
    let mut total = Counts::default();
    loop {
        match lines.recv_timeout(silence_max) {
            Ok(line) => {
                let line = line.with_context(|| format!("cannot read the output of {name}"))?;
                let line = String::from_utf8_lossy(&line);
                println!("{line}");
                slowest.record(&line);
                if let Some(counts) = Counts::parse(&line) {
                    total += counts;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                kill_tree(child.id());
                bail!(
                    "{name} printed nothing for {silence_max:?} and was killed; so far {total:?}"
                );
            }
        }
    }
    Ok((child.wait()?.success(), total))
}

/// Kills a process and all of its descendants. The children are listed first, because the kernel
/// gives them another parent when the process ends.
fn kill_tree(process: u32) {
    let children = list_children(process);
    // The process may have ended by itself.
    let _ignored = Command::new("kill").args(["-KILL", &process.to_string()]).status();
    children.into_iter().for_each(kill_tree);
}

/// Lists the children of all threads of a process.
fn list_children(process: u32) -> Vec<u32> {
    let mut children = Vec::new();
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        // The thread may have ended by itself.
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    }
    children
}

#[cfg(test)]
mod tests;
