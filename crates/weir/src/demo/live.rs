//! Progress output of a running demo, on standard error. On a terminal, a few lines are redrawn in
//! place. Other outputs get a status line every two seconds and a line per event.

use std::collections::VecDeque;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Result;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use lab_model::number;

use super::nodes::NAMES;
use super::paint::Paint;
use super::report::{format_ms, format_percent};
use super::watch::{Cause, Event, Node, NodeState};

#[cfg(test)]
mod tests;

/// Time between two status lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of points of the sparkline: one per half second of a run of the default length.
const SPARK_POINTS_MAX: usize = 40;
/// Number of newest events that are printed. The JSON result has all events.
const EVENTS_SHOWN: usize = 4;
/// Text of an empty line. It has a space, because indicatif omits lines without characters.
const GAP: &str = " ";
/// Width of the progress bar in characters.
const BAR_CHARS: usize = 40;

/// State of a run at one moment.
pub(super) struct Snapshot<'a> {
    pub(super) since_start: Duration,
    pub(super) calls: u64,
    pub(super) errors: u64,
    pub(super) wrong_responses: u64,
    /// Share of cache hits, from 0 to 1; `None` before the first lookup.
    pub(super) hit_ratio: Option<f64>,
    pub(super) nodes: &'a [Node],
    pub(super) events: &'a [Event],
}

/// Measurements since the last sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) calls_per_second: f64,
    /// 99th percentile of the latency; `None` if no call has ended since the last sample.
    pub(super) p99_ms: Option<f64>,
}

/// The progress output, with the latest measurements.
pub(super) struct Live {
    paint: Paint,
    duration: Duration,
    output: Output,
    sample: Sample,
    /// The values of the sparkline in milliseconds, oldest first.
    p99_ms: VecDeque<f64>,
}

/// The form of the output: redrawn on a terminal, or plain lines.
enum Output {
    /// The progress bar, one line per node, the numbers, the sparkline, and the newest events.
    Terminal { group: MultiProgress, bar: ProgressBar, lines: Vec<ProgressBar> },
    /// Lines that are never redrawn.
    Plain {
        /// Time of the next status line, since the start.
        next_line: Duration,
        events_printed: usize,
    },
}

impl Live {
    pub(super) fn start(duration: Duration) -> Result<Live> {
        let is_terminal = std::io::stderr().is_terminal();
        let output = if is_terminal { Output::terminal(duration)? } else { Output::plain() };
        let sample = Sample { calls_per_second: 0.0, p99_ms: None };
        let paint = Paint::for_terminal(is_terminal);
        Ok(Live { paint, duration, output, sample, p99_ms: VecDeque::new() })
    }

    /// Adds a sample for the next [`Live::show`].
    pub(super) fn add_sample(&mut self, sample: Sample) {
        self.sample = sample;
        if self.p99_ms.len() == SPARK_POINTS_MAX {
            self.p99_ms.pop_front();
        }
        self.p99_ms.extend(sample.p99_ms);
    }

    /// Prints or redraws the state.
    pub(super) fn show(&mut self, snapshot: &Snapshot<'_>) {
        let numbers = self.format_numbers(snapshot);
        match &mut self.output {
            Output::Plain { next_line, events_printed } => {
                let mut text = String::new();
                for event in &snapshot.events[*events_printed..] {
                    text.push_str(&format!("{}\n", format_event(event, self.paint)));
                }
                *events_printed = snapshot.events.len();
                if snapshot.since_start >= *next_line {
                    *next_line += LINE_INTERVAL;
                    let seconds = snapshot.since_start.as_secs_f64();
                    text.push_str(&format!("{seconds:>6.1} s  {numbers}\n"));
                }
                // The demo continues if standard error is closed.
                let _ = std::io::stderr().lock().write_all(text.as_bytes());
            }
            Output::Terminal { bar, lines, .. } => {
                let elapsed = snapshot.since_start.min(self.duration);
                bar.set_position(elapsed.as_millis() as u64);
                let (elapsed, duration) = (elapsed.as_secs_f64(), self.duration.as_secs_f64());
                bar.set_message(format!("{elapsed:.1} of {duration:.0} s"));
                let mut texts: Vec<_> = NAMES
                    .iter()
                    .zip(snapshot.nodes)
                    .map(|(name, node)| format_node(name, node, self.paint))
                    .collect();
                texts.push(GAP.to_owned());
                texts.push(format!("  {numbers}"));
                let p99_line = draw_sparkline(self.p99_ms.make_contiguous());
                texts.push(format!("  p99 {}", self.paint.good(p99_line)));
                texts.push(GAP.to_owned());
                let skipped = snapshot.events.len().saturating_sub(EVENTS_SHOWN);
                let newest = &snapshot.events[skipped..];
                texts.extend(newest.iter().map(|event| format_event(event, self.paint)));
                for (line, text) in lines.iter().zip(texts) {
                    line.set_message(text);
                }
            }
        }
    }

    /// Clears the redrawn lines before the result is printed.
    pub(super) fn finish(self) {
        if let Output::Terminal { group, bar, lines } = self.output {
            lines.iter().for_each(ProgressBar::finish_and_clear);
            bar.finish_and_clear();
            // This fails only if the terminal is closed.
            let _ = group.clear();
        }
    }

    fn format_numbers(&self, snapshot: &Snapshot<'_>) -> String {
        let format_failures = |count: u64, noun: &str| {
            let text = format!("{} {noun}", number::count(count));
            if count == 0 { self.paint.good(text) } else { self.paint.bad(text) }
        };
        format!(
            "{} calls  {}/s  {}  {}  {} hits  p99 {}",
            number::count(snapshot.calls),
            number::count(self.sample.calls_per_second.round() as u64),
            format_failures(snapshot.errors, "errors"),
            format_failures(snapshot.wrong_responses, "wrong"),
            format_percent(snapshot.hit_ratio),
            format_ms(self.sample.p99_ms),
        )
    }
}

impl Output {
    fn plain() -> Output {
        Output::Plain { next_line: LINE_INTERVAL, events_printed: 0 }
    }

    fn terminal(duration: Duration) -> Result<Output> {
        /// Number of lines: one per node, a gap, the numbers, the sparkline, a gap, and one per
        /// event.
        const LINES: usize = NAMES.len() + 4 + EVENTS_SHOWN;
        let group = MultiProgress::new();
        let bar = group.add(ProgressBar::new(duration.as_millis() as u64));
        let template = format!("\n  {{bar:{BAR_CHARS}.cyan/dim}} {{msg}}");
        bar.set_style(ProgressStyle::with_template(&template)?.progress_chars("━━─"));
        let text_style = ProgressStyle::with_template("{msg}")?;
        let new_line = |_| group.add(ProgressBar::new(1)).with_style(text_style.clone());
        let lines = (0..LINES).map(new_line).collect();
        Ok(Output::Terminal { group, bar, lines })
    }
}

/// Formats an event as a line.
pub(super) fn format_event(event: &Event, paint: Paint) -> String {
    let Event { seconds, cause, text } = event;
    match cause {
        Cause::Simulation => format!("{seconds:>6.1} s  {}", paint.doubtful(text)),
        Cause::Weir => format!("{seconds:>6.1} s    weir {text}"),
    }
}

fn format_node(name: &str, node: &Node, paint: Paint) -> String {
    let state = format!("{:<8}", node.state.as_str());
    let state = match node.state {
        NodeState::Healthy => paint.good(state),
        NodeState::Lagging | NodeState::Probing | NodeState::Paused => paint.doubtful(state),
        NodeState::Ejected | NodeState::Foreign => paint.bad(state),
    };
    let head = node.head.map_or_else(|| "none".to_owned(), |head| head.to_string());
    let (in_flight, attempts) = (node.in_flight, number::count(node.attempts));
    format!("  {name}  {state}  head {head:>5}  in flight {in_flight:>3}  attempts {attempts:>7}")
}

/// Returns a sparkline with eight heights on a logarithmic scale from 0.1 ms to 1 s.
fn draw_sparkline(values_ms: &[f64]) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let block = |ms: &f64| {
        // From 0.1 ms to 1 s, the logarithm grows by 4.
        let height = (ms.max(0.1) / 0.1).log10() / 4.0 * BLOCKS.len() as f64;
        BLOCKS[(height as usize).min(BLOCKS.len() - 1)]
    };
    values_ms.iter().map(block).collect()
}
