//! Prints progress as lines on standard error, for output that is not a terminal.

use std::io::Write;
use std::time::Duration;

use lab_model::record::Class;

use super::state::stage_at;
use crate::run::Progress;
use crate::wording::number;

#[cfg(test)]
mod tests;

/// Time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Writes a line every five seconds, and when a stage starts or a threshold breaks.
#[derive(Debug)]
pub struct PlainProgress<W> {
    out: W,
    /// Time since the start of the run at which the next line is due.
    next_line_at: Duration,
    /// Names of the stages that ran at the end of the previous second.
    stages: Vec<String>,
    /// Texts of the thresholds that were broken at the end of the previous second.
    broken: Vec<String>,
    counts: Counts,
}

/// Counts since the last line.
#[derive(Debug, Default)]
struct Counts {
    seconds: u64,
    /// Number of iterations that the plan scheduled.
    scheduled: u64,
    /// Number of iterations that started.
    started: u64,
    /// Number of iterations that did not start because no worker was free.
    dropped: u64,
    calls: u64,
    /// Number of failed calls.
    failed: u64,
    /// Number of calls with HTTP status 429, which are not failures.
    limited: u64,
    /// Largest p99 of any method in any second.
    p99_ms: f64,
    /// Largest p99 of the scheduling delay in any second.
    scheduling_delay_p99_ms: f64,
}

impl<W: Write> PlainProgress<W> {
    /// Creates a printer that writes to `out`, which is standard error in the program.
    pub fn new(out: W) -> PlainProgress<W> {
        let (stages, broken) = (Vec::new(), Vec::new());
        PlainProgress {
            out,
            next_line_at: LINE_INTERVAL,
            stages,
            broken,
            counts: Counts::default(),
        }
    }

    /// Adds a second. Prints a line if the time for the next line has come.
    pub fn update(&mut self, progress: &Progress<'_>) {
        let mut text = String::new();
        self.print_stages(progress, &mut text);
        self.counts.add(progress);
        if progress.elapsed >= self.next_line_at || progress.elapsed >= progress.duration {
            self.next_line_at = progress.elapsed + LINE_INTERVAL;
            let counts = std::mem::take(&mut self.counts);
            text.push_str(&format!("{}{}\n", time_prefix(progress), counts.format()));
        }
        self.print_broken(progress, &mut text);
        // A closed standard error must not stop the run.
        let _ = self.out.write_all(text.as_bytes());
    }

    /// Prints the stages that have started.
    fn print_stages(&mut self, progress: &Progress<'_>, text: &mut String) {
        // A second may end slightly before or after the end of a stage. Adding half a second
        // selects the next stage in both cases.
        let half_second = Duration::from_millis(500);
        let mut stages = Vec::new();
        for scenario in &progress.plan.scenarios {
            if let Some((stage, remaining)) = stage_at(scenario, progress.elapsed + half_second) {
                let remaining = number::clock((remaining + half_second).as_secs_f64());
                stages.push((format!("{}/{}", scenario.name, stage.name), remaining));
            }
        }
        for (name, remaining) in &stages {
            if !self.stages.contains(name) {
                text.push_str(&format!(
                    "{}stage {name}, {remaining} left\n",
                    time_prefix(progress)
                ));
            }
        }
        self.stages = stages.into_iter().map(|(name, _)| name).collect();
    }

    /// Prints the thresholds that have broken.
    fn print_broken(&mut self, progress: &Progress<'_>, text: &mut String) {
        let mut broken_texts = Vec::new();
        for outcome in progress.thresholds {
            let Some(observed) = outcome.observed.filter(|_| !outcome.kept) else { continue };
            if !self.broken.contains(&outcome.text) {
                let prefix = time_prefix(progress);
                text.push_str(&format!("{prefix}BROKEN {} (is {observed:.4})\n", outcome.text));
            }
            broken_texts.push(outcome.text.clone());
        }
        self.broken = broken_texts;
    }
}

/// Formats the time since the start of the run as the beginning of a line.
fn time_prefix(progress: &Progress<'_>) -> String {
    format!("{:>7.1} s  ", progress.elapsed.as_secs_f64())
}

impl Counts {
    /// Adds the counts of a second.
    fn add(&mut self, progress: &Progress<'_>) {
        let second = progress.second;
        self.seconds += 1;
        self.scheduled += second.scheduled;
        self.started += second.started;
        self.dropped += second.dropped;
        self.scheduling_delay_p99_ms =
            self.scheduling_delay_p99_ms.max(second.scheduling_delay_p99_ms);
        self.p99_ms = second.methods.iter().map(|method| method.p99_ms).fold(self.p99_ms, f64::max);
        self.calls += second.count(|_| true);
        self.failed += second.count(Class::is_failure);
        self.limited += second.count(|class| class == Class::Limited);
    }

    /// Formats the counts as a line without the time.
    fn format(&self) -> String {
        let per_second = |count: u64| number::rate(count as f64 / self.seconds.max(1) as f64);
        let mut text = format!(
            "planned {}  started {}  calls {}",
            per_second(self.scheduled),
            per_second(self.started),
            per_second(self.calls)
        );
        if self.dropped > 0 {
            text.push_str(&format!("  dropped {}", number::count(self.dropped)));
        }
        if self.calls > 0 {
            let share = |count: u64| number::percent(count as f64 / self.calls as f64);
            text.push_str(&format!("  failed {}", share(self.failed)));
            if self.limited > 0 {
                text.push_str(&format!("  429 {}", share(self.limited)));
            }
            text.push_str(&format!("  worst p99 {}", number::ms(self.p99_ms)));
        }
        text.push_str(&format!("  late p99 {}", number::ms(self.scheduling_delay_p99_ms)));
        text
    }
}
