//! Counts tests by what `cargo test` prints, while passing it on.

use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::Command;

use anyhow::{Context, Result};

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
    /// Tests that returned early because something was missing count as passed to cargo.
    pub(crate) fn move_to_skipped(&mut self, tests: usize) {
        let moved = tests.min(self.passed);
        self.passed -= moved;
        self.skipped += moved;
    }

    /// The counts in a line such as
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out`.
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

/// Runs a command whose output is piped, prints that output, and sums the results in it. The flag
/// says whether the command succeeded.
///
/// # Errors
/// If it cannot be run.
pub(crate) fn run(command: &mut Command) -> Result<(bool, Counts)> {
    let line = crate::shell::line(command);
    let mut child = command.spawn().with_context(|| format!("cannot run {line}"))?;
    let output = child.stdout.take().context("the output is not piped")?;
    let mut total = Counts::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        if let Some(counts) = Counts::parse(&line) {
            total += counts;
        }
    }
    Ok((child.wait()?.success(), total))
}

#[cfg(test)]
mod tests;
