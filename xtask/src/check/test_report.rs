//! What the output of test programs reports: counts, failed tests and the slowest tests.

use std::ops::AddAssign;
use std::time::Duration;

/// Number of slowest tests to print at the end.
const SLOWEST: usize = 10;

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

/// The results of the tests of one or several programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestReport {
    pub(crate) counts: Counts,
    /// The slowest tests with their times, the slowest first.
    slowest: Vec<(Duration, String)>,
    /// A line for each failed test or program.
    pub(crate) failures: Vec<String>,
}

impl TestReport {
    /// Records a line of output, such as `test limits::waits::it_waits ... ok <1.234s>` or
    /// `test result: …`. Ignores other lines. `rerun` is the command that runs the tests again.
    pub(crate) fn record(&mut self, rerun: &str, line: &str) {
        if let Some(counts) = Counts::parse(line) {
            self.counts += counts;
        }
        let test = line.strip_prefix("test ").and_then(|test| test.split_once(" ... "));
        let Some((name, result)) = test else { return };
        if result.starts_with("FAILED") {
            self.failures.push(format!("{rerun} {name}"));
        }
        let seconds = result.split_once(" <").and_then(|(_, time)| time.strip_suffix("s>"));
        let seconds = seconds.and_then(|digits| digits.parse().ok());
        if let Some(time) = seconds.and_then(|it| Duration::try_from_secs_f64(it).ok()) {
            self.slowest.push((time, name.to_owned()));
            self.keep_slowest();
        }
    }

    /// Records a failure that is no failed test.
    pub(crate) fn fail(&mut self, failure: String) {
        self.counts.failed += 1;
        self.failures.push(failure);
    }

    /// Adds the results of other tests.
    pub(crate) fn merge(&mut self, other: Self) {
        self.counts += other.counts;
        self.failures.extend(other.failures);
        self.slowest.extend(other.slowest);
        self.keep_slowest();
    }

    /// Moves tests from passed to skipped. A test that skips itself returns early, so the harness
    /// counts it as passed.
    pub(crate) fn move_to_skipped(&mut self, tests: usize) {
        let skipped = tests.min(self.counts.passed);
        self.counts.passed -= skipped;
        self.counts.skipped += skipped;
    }

    fn keep_slowest(&mut self) {
        self.slowest.sort_by(|left, right| right.cmp(left));
        self.slowest.truncate(SLOWEST);
    }

    /// Formats a line per slow test and per failure; empty if no test was timed and none failed.
    pub(crate) fn format(&self) -> String {
        let mut text = String::new();
        if !self.slowest.is_empty() {
            text.push_str("slowest     seconds  test\n");
        }
        for (time, name) in &self.slowest {
            text.push_str(&format!("{:>19.1}  {name}\n", time.as_secs_f64()));
        }
        for failure in &self.failures {
            text.push_str(&format!("failed: {failure}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests;
