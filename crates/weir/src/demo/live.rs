//! What a demo shows while it runs: on a terminal a few lines that stay in place, elsewhere a line
//! every two seconds and one for each event. It goes to standard error, the result to standard
//! output.

use std::collections::VecDeque;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Result;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::nodes::NAMES;
use super::paint::Paint;
use super::report::{milliseconds, percent, thousands};
use super::watch::{By, Event, Node};

#[cfg(test)]
mod tests;

/// Time between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(2);
/// Points of the small curve: with one each half second, all of a usual run.
const SPARK_POINTS: usize = 40;
/// Events that are shown while it runs; the result has all.
const EVENTS_SHOWN: usize = 4;
/// An empty line: one without any letter would take no room.
const GAP: &str = " ";
/// Width of the bar, in letters.
const BAR_LETTERS: usize = 40;

/// What can be seen at one moment.
pub(super) struct Glance<'a> {
    pub(super) since_start: Duration,
    pub(super) calls: u64,
    pub(super) errors: u64,
    pub(super) wrong: u64,
    pub(super) hit_ratio: Option<f64>,
    pub(super) nodes: &'a [Node],
    pub(super) events: &'a [Event],
}

/// What was measured since the last such sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) calls_per_second: f64,
    pub(super) p99_ms: Option<f64>,
}

/// The live view.
pub(super) struct Live {
    paint: Paint,
    duration: Duration,
    form: Form,
    sample: Sample,
    p99_ms: VecDeque<f64>,
}

enum Form {
    /// The bar, one line for each node, the numbers, the curve, the newest events.
    Terminal {
        all: MultiProgress,
        bar: ProgressBar,
        lines: Vec<ProgressBar>,
    },
    Plain {
        next_line: Duration,
        events_told: usize,
    },
}

impl Live {
    pub(super) fn start(duration: Duration) -> Result<Live> {
        let is_terminal = std::io::stderr().is_terminal();
        let form = if is_terminal { Form::terminal(duration)? } else { Form::plain() };
        let sample = Sample { calls_per_second: 0.0, p99_ms: None };
        let paint = Paint::of(is_terminal);
        Ok(Live { paint, duration, form, sample, p99_ms: VecDeque::new() })
    }

    /// Takes a new sample; the next [`Live::show`] shows it.
    pub(super) fn sample(&mut self, sample: Sample) {
        self.sample = sample;
        if self.p99_ms.len() == SPARK_POINTS {
            self.p99_ms.pop_front();
        }
        self.p99_ms.extend(sample.p99_ms);
    }

    /// Shows the present state.
    pub(super) fn show(&mut self, glance: &Glance<'_>) {
        let numbers = self.numbers(glance);
        match &mut self.form {
            Form::Plain { next_line, events_told } => {
                let mut text = String::new();
                for event in &glance.events[*events_told..] {
                    text.push_str(&format!("{}\n", told(event, self.paint)));
                }
                *events_told = glance.events.len();
                if glance.since_start >= *next_line {
                    *next_line += LINE_INTERVAL;
                    let seconds = glance.since_start.as_secs_f64();
                    text.push_str(&format!("{seconds:>6.1} s  {numbers}\n"));
                }
                // Whoever started it may not read it; that is no reason to stop.
                let _ = std::io::stderr().lock().write_all(text.as_bytes());
            }
            Form::Terminal { bar, lines, .. } => {
                let passed = glance.since_start.min(self.duration);
                bar.set_position(passed.as_millis() as u64);
                let (passed, whole) = (passed.as_secs_f64(), self.duration.as_secs_f64());
                bar.set_message(format!("{passed:.1} of {whole:.0} s"));
                let mut texts: Vec<_> = NAMES
                    .iter()
                    .zip(glance.nodes)
                    .map(|(name, node)| node_line(name, node, self.paint))
                    .collect();
                texts.push(GAP.to_owned());
                texts.push(format!("  {numbers}"));
                let curve = spark(self.p99_ms.make_contiguous());
                texts.push(format!("  p99 {}", self.paint.good(curve)));
                texts.push(GAP.to_owned());
                let told_before = glance.events.len().saturating_sub(EVENTS_SHOWN);
                let newest = &glance.events[told_before..];
                texts.extend(newest.iter().map(|event| told(event, self.paint)));
                for (line, text) in lines.iter().zip(texts) {
                    line.set_message(text);
                }
            }
        }
    }

    /// Takes the lines away again, so that the result stands alone.
    pub(super) fn finish(self) {
        if let Form::Terminal { all, bar, lines } = self.form {
            lines.iter().for_each(ProgressBar::finish_and_clear);
            bar.finish_and_clear();
            // It fails only where the terminal is gone.
            let _ = all.clear();
        }
    }

    fn numbers(&self, glance: &Glance<'_>) -> String {
        let counted = |count: u64, word: &str| {
            let text = format!("{} {word}", thousands(count));
            if count == 0 { self.paint.good(text) } else { self.paint.bad(text) }
        };
        format!(
            "{} calls  {}/s  {}  {}  {} hits  p99 {}",
            thousands(glance.calls),
            thousands(self.sample.calls_per_second.round() as u64),
            counted(glance.errors, "errors"),
            counted(glance.wrong, "wrong"),
            percent(glance.hit_ratio),
            milliseconds(self.sample.p99_ms),
        )
    }
}

impl Form {
    fn plain() -> Form {
        Form::Plain { next_line: LINE_INTERVAL, events_told: 0 }
    }

    fn terminal(duration: Duration) -> Result<Form> {
        /// The nodes, a gap, numbers, curve, a gap, the newest events.
        const LINES: usize = NAMES.len() + 4 + EVENTS_SHOWN;
        let all = MultiProgress::new();
        let bar = all.add(ProgressBar::new(duration.as_millis() as u64));
        let template = format!("\n  {{bar:{BAR_LETTERS}.cyan/dim}} {{msg}}");
        bar.set_style(ProgressStyle::with_template(&template)?.progress_chars("━━─"));
        let text = ProgressStyle::with_template("{msg}")?;
        let line = |_| all.add(ProgressBar::new(1)).with_style(text.clone());
        let lines = (0..LINES).map(line).collect();
        Ok(Form::Terminal { all, bar, lines })
    }
}

/// An event as a line.
pub(super) fn told(event: &Event, paint: Paint) -> String {
    let Event { seconds, by, text } = event;
    match by {
        By::World => format!("{seconds:>6.1} s  {}", paint.doubtful(text)),
        By::Weir => format!("{seconds:>6.1} s    weir {text}"),
    }
}

fn node_line(name: &str, node: &Node, paint: Paint) -> String {
    let state = format!("{:<8}", node.state);
    let state = match &*node.state {
        "healthy" => paint.good(state),
        "lagging" | "probing" | "paused" => paint.doubtful(state),
        _ => paint.bad(state),
    };
    let head = node.head.map_or_else(|| "none".to_owned(), |head| head.to_string());
    let (in_flight, attempts) = (node.in_flight, thousands(node.attempts));
    format!("  {name}  {state}  head {head:>5}  in flight {in_flight:>3}  asked {attempts:>7}")
}

/// A curve of letters, each an eighth of the way from 0.1 ms to 1 s higher, by the logarithm.
fn spark(values_ms: &[f64]) -> String {
    const LETTERS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let letter = |ms: &f64| {
        let height = (ms.max(0.1) / 0.1).log10() / 4.0 * LETTERS.len() as f64;
        LETTERS[(height as usize).min(LETTERS.len() - 1)]
    };
    values_ms.iter().map(letter).collect()
}
