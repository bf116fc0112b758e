//! The result of a demo, printed as a table or as JSON.
//!
//! The judge, in `judge.rs`, is the thread that compares results with the simulated chain. A client
//! is idle if it has no call in flight.

use std::fmt::Write as _;

use lab_model::number;
use serde::Serialize;

use super::judge::{LAG_BLOCKS_MAX, STALENESS, Verdicts};
use super::nodes::{DIRECT_NODE, NAMES};
use super::paint::Paint;
use super::traffic::{Latencies, Measurements, RATE, quantile_ms};
use super::watch::{Event, Watch};

#[cfg(test)]
mod tests;

/// Limit for the 99th percentile of idle clients' scheduling delay, in milliseconds. Above this
/// limit the report notes that the machine was busy.
const SCHEDULING_DELAY_MS_MAX: f64 = 2.0;
/// Width of the column of names in characters.
const NAME_WIDTH: usize = 32;
/// Width of each column of numbers in characters.
const NUMBER_WIDTH: usize = 15;
/// Name of the row of errors. Its number is coloured.
const CLIENT_ERRORS: &str = "errors received by clients";
/// Name of the row of wrong responses. Its number is coloured.
const WRONG_ANSWERS: &str = "wrong answers";

/// Reads one quantile, which is unknown without calls.
type ReadQuantile = fn(&Quantiles) -> Option<f64>;

/// The result of a run. Field names are those of the JSON output.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Number of JSON-RPC calls through the gateway that have ended.
    pub(super) requests: u64,
    /// Number of calls through the gateway that returned no result.
    pub(super) client_errors: u64,
    /// Number of results that do not match the chain.
    pub(super) wrong_answers: u64,
    /// Number of results that were compared with the chain.
    pub(super) compared: u64,
    /// Number of results that were skipped because the judge could not keep up.
    pub(super) not_compared: u64,
    /// Number of calls in flight when Ctrl-C ended the run.
    pub(super) unanswered: u64,
    /// Hits divided by the sum of hits, misses and coalesced calls.
    pub(super) hit_ratio: Option<f64>,
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// Number of coalesced calls, which waited for the response to an identical call in flight.
    pub(super) joined: u64,
    /// Number of attempts at another node after a failure.
    pub(super) retried: u64,
    /// Number of hedges: attempts at another node because the first one was slow.
    pub(super) hedged: u64,
    /// Number of hedges that returned before the first attempt.
    pub(super) hedges_won: u64,
    /// Number of ejections of a node.
    pub(super) ejected: u64,
    /// Number of readmissions of a node.
    pub(super) readmitted: u64,
    /// Number of blocks by which the gateway's head advanced.
    pub(super) heads: u64,
    /// Number of reorgs that the gateway followed.
    pub(super) reorgs: u64,
    pub(super) reorg_depth_max: u64,
    pub(super) seconds: f64,
    /// Scheduled calls per second.
    pub(super) rate: u32,
    pub(super) seed: u64,
    /// True if Ctrl-C ended the run early.
    pub(super) interrupted: bool,
    pub(super) latency_ms: LatencyByPath,
    /// 99th percentile of the delay between a call's scheduled and actual send time, in
    /// milliseconds, for clients that had no other call in flight. All latencies include this
    /// delay.
    pub(super) late_p99_ms: Option<f64>,
    /// Number of direct calls to a node that returned no result.
    pub(super) direct_errors: u64,
    pub(super) nodes: Vec<NodeCounts>,
    pub(super) timeline: Vec<Event>,
    /// Descriptions of the first errors and wrong responses.
    pub(super) faults: Vec<String>,
}

/// Latencies by path.
#[derive(Debug, Serialize)]
pub(super) struct LatencyByPath {
    pub(super) gateway: LatencyByKind,
    pub(super) direct: LatencyByKind,
}

/// Latencies by kind of traffic.
#[derive(Debug, Serialize)]
pub(super) struct LatencyByKind {
    pub(super) head: Quantiles,
    pub(super) history: Quantiles,
}

/// Latencies in milliseconds from the scheduled time of sending.
#[derive(Debug, Serialize)]
pub(super) struct Quantiles {
    pub(super) calls: u64,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) max: Option<f64>,
}

/// Counts of the gateway's attempts at a node.
#[derive(Debug, Serialize)]
pub(super) struct NodeCounts {
    pub(super) name: &'static str,
    pub(super) attempts: u64,
    pub(super) failed: u64,
}

/// Parameters and end of a run.
pub(super) struct RunSummary {
    pub(super) seconds: f64,
    pub(super) seed: u64,
    pub(super) interrupted: bool,
    /// Number of calls sent to the gateway.
    pub(super) sent: u64,
}

impl Report {
    /// Builds the report from all measurements.
    pub(super) fn new(
        run: &RunSummary,
        measurements: &Measurements,
        verdicts: &Verdicts,
        watch: Watch,
    ) -> Report {
        let heads = watch.blocks_followed();
        let status = watch.status;
        let chain = &status.chains[0];
        let requests = measurements.requests();
        let node_counts = |(name, node): (&&'static str, &super::watch::Node)| NodeCounts {
            name,
            attempts: node.attempts,
            failed: node.failed,
        };
        let mut faults = measurements.error_samples.clone();
        faults.extend(verdicts.samples());
        Report {
            requests,
            client_errors: measurements.errors,
            wrong_answers: verdicts.wrong(),
            compared: verdicts.right() + verdicts.wrong(),
            not_compared: verdicts.skipped(),
            unanswered: run.sent.saturating_sub(requests),
            hit_ratio: status.cache.hit_ratio,
            hits: status.cache.hits,
            misses: status.cache.misses,
            joined: status.cache.coalesced,
            retried: status.totals.retries,
            hedged: status.totals.hedges,
            hedges_won: status.totals.hedges_won,
            ejected: chain.ejections(),
            readmitted: chain.readmissions(),
            heads,
            reorgs: chain.reorgs,
            reorg_depth_max: chain.reorg_depth_max,
            seconds: run.seconds,
            rate: RATE,
            seed: run.seed,
            interrupted: run.interrupted,
            latency_ms: LatencyByPath {
                gateway: LatencyByKind::new(&measurements.gateway),
                direct: LatencyByKind::new(&measurements.direct),
            },
            late_p99_ms: quantile_ms(&measurements.scheduling_delay, 0.99),
            direct_errors: measurements.direct_errors,
            nodes: NAMES.iter().zip(&chain.upstreams).map(node_counts).collect(),
            timeline: watch.events,
            faults,
        }
    }

    /// Returns true if no client received an error or a wrong response.
    pub(super) fn is_good(&self) -> bool {
        self.client_errors == 0 && self.wrong_answers == 0
    }

    /// Formats the report as a table.
    pub(super) fn table(&self, paint: Paint) -> String {
        let mut text = format!("\n{}\n\n", self.headline(paint));
        self.push_latencies(&mut text, paint);
        text.push('\n');
        self.push_counts(&mut text, paint);
        if !self.faults.is_empty() {
            let _ = write!(text, "\n  {}\n", paint.bold("what went wrong"));
            for fault in &self.faults {
                let _ = writeln!(text, "  {}", fault.replace('\n', "\n    "));
            }
        }
        for note in self.notes() {
            let _ = write!(text, "\n  {}", paint.doubtful(format!("note: {note}")));
        }
        if !self.notes().is_empty() {
            text.push('\n');
        }
        text
    }

    fn headline(&self, paint: Paint) -> String {
        let (errors, wrong) = (self.client_errors, self.wrong_answers);
        let interruption = if self.interrupted { ", then Ctrl-C" } else { "" };
        let verdict =
            format!("{} errors, {} wrong answers", number::count(errors), number::count(wrong));
        let verdict = if self.is_good() { paint.good(verdict) } else { paint.bad(verdict) };
        format!(
            "  {}: {} calls in {:.1} s{interruption}, {verdict}",
            paint.bold("weir in front of three simulated nodes"),
            number::count(self.requests),
            self.seconds,
        )
    }

    fn push_latencies(&self, text: &mut String, paint: Paint) {
        let LatencyByPath { gateway, direct } = &self.latency_ms;
        let mut row = |name: &str, head: String, history: String| {
            let _ = write!(text, "  {name:<NAME_WIDTH$}{head:>NUMBER_WIDTH$}");
            let _ = writeln!(text, "{history:>NUMBER_WIDTH$}");
        };
        row("", "head reads".to_owned(), "history reads".to_owned());
        row("calls", number::count(gateway.head.calls), number::count(gateway.history.calls));
        let direct_path = format!("directly to {}", NAMES[DIRECT_NODE]);
        let paths = [("through weir", gateway), (&*direct_path, direct)];
        let p50 = |quantiles: &Quantiles| quantiles.p50;
        let p99 = |quantiles: &Quantiles| quantiles.p99;
        let slowest = |quantiles: &Quantiles| quantiles.max;
        for (quantile, read) in [("p50", p50 as ReadQuantile), ("p99", p99), ("slowest", slowest)] {
            for (path, kinds) in paths {
                let cell = |quantiles: &Quantiles| format_ms(read(quantiles));
                row(&format!("{quantile} {path}"), cell(&kinds.head), cell(&kinds.history));
            }
        }
        let _ = writeln!(
            text,
            "  {}",
            paint.dim("latency from the scheduled send time; simulated nodes take about 3 ms")
        );
    }

    fn push_counts(&self, text: &mut String, paint: Paint) {
        let mut row = |name: &str, number: String, comment: &str| {
            // Padding precedes colouring, because colour codes have no width on the screen.
            let padded = format!("{number:>NUMBER_WIDTH$}");
            let padded = match &*number {
                "0" if matches!(name, CLIENT_ERRORS | WRONG_ANSWERS) => paint.good(padded),
                _ if matches!(name, CLIENT_ERRORS | WRONG_ANSWERS) => paint.bad(padded),
                _ => padded,
            };
            let line = format!("  {name:<NAME_WIDTH$}{padded}  {comment}");
            let _ = writeln!(text, "{}", line.trim_end());
        };
        row(CLIENT_ERRORS, number::count(self.client_errors), "");
        let compared = match self.not_compared {
            0 => format!("all {} results compared with the chain", number::count(self.compared)),
            _ => {
                let share = self.compared as f64 / (self.compared + self.not_compared) as f64;
                format!("{} of the results compared with the chain", format_percent(Some(share)))
            }
        };
        row(WRONG_ANSWERS, number::count(self.wrong_answers), &compared);
        row("answered from the cache", format_percent(self.hit_ratio), "");
        row("coalesced with a call in flight", number::count(self.joined), "");
        row("retried after a failure", number::count(self.retried), "");
        let hedges_won = format!("{} hedges returned first", number::count(self.hedges_won));
        row("hedged for a slow node", number::count(self.hedged), &hedges_won);
        let readmitted = match self.readmitted {
            0 if self.ejected == 0 => String::new(),
            0 => "not readmitted".to_owned(),
            1 => "readmitted once".to_owned(),
            count => format!("readmitted {count} times"),
        };
        row("nodes ejected", number::count(self.ejected), &readmitted);
        let reorgs = match self.reorgs {
            0 => "no reorg".to_owned(),
            1 => format!("1 reorg, {} deep", format_blocks(self.reorg_depth_max)),
            count => format!("{count} reorgs, up to {} deep", format_blocks(self.reorg_depth_max)),
        };
        row("new blocks followed", number::count(self.heads), &reorgs);
    }

    /// Returns notes that explain the numbers.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(delay_ms) = self.late_p99_ms.filter(|delay| *delay > SCHEDULING_DELAY_MS_MAX) {
            notes.push(format!(
                "this machine was busy: 1 in 100 calls was sent {delay_ms:.1} ms late or more, \
                 which counts as latency"
            ));
        }
        if self.unanswered > 0 {
            notes.push(format!("calls without a response at the end: {}", self.unanswered));
        }
        if self.direct_errors > 0 {
            let node = NAMES[DIRECT_NODE];
            notes.push(format!("failed calls directly to {node}: {}", self.direct_errors));
        }
        if self.wrong_answers > 0 {
            notes.push(format!(
                "a result is right if a node at most {LAG_BLOCKS_MAX} blocks behind would have \
                 returned it during the call or at most {} s before; the scheduling delay of this \
                 machine is allowed in addition",
                STALENESS.as_secs_f64()
            ));
        }
        notes
    }
}

impl LatencyByKind {
    fn new(latencies: &[Latencies; 2]) -> LatencyByKind {
        let quantiles = |latencies: &Latencies| Quantiles {
            calls: latencies.len(),
            p50: quantile_ms(latencies, 0.5),
            p99: quantile_ms(latencies, 0.99),
            max: quantile_ms(latencies, 1.0),
        };
        let [head, history] = latencies;
        LatencyByKind { head: quantiles(head), history: quantiles(history) }
    }
}

fn format_blocks(count: u64) -> String {
    if count == 1 { "1 block".to_owned() } else { format!("{count} blocks") }
}

/// Formats a share as percent, and `None` as a dash.
pub(super) fn format_percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// Formats milliseconds with about three significant digits, and `None` as a dash.
pub(super) fn format_ms(ms: Option<f64>) -> String {
    match ms {
        None => "-".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.2} ms"),
        Some(ms) if ms < 100.0 => format!("{ms:.1} ms"),
        Some(ms) => format!("{} ms", number::count(ms.round() as u64)),
    }
}
