//! The registry of the metrics of a run, which thresholds and exports use. Metrics of hosts are in
//! `metrics/host.rs`.
//!
//! To add a metric, add an entry to `metrics!`: a name, k6's name, the kind of samples, the
//! function that selects the samples, and the meaning. The parser of thresholds, the verdict,
//! reports, exports and `docs/plan.md` then use the entry.
//!
//! A stage is a part of the planned load. The class of a call says how the call ended. A slot is a
//! combination of stage, method and class. A cell has the times of the calls of one slot. A row has
//! the values of one method in a published result.

pub mod host;

use crate::named::named;
use crate::record::{
    self, Cell, Class, Iterations, Quantiles, Row, Slot, Times, Totals, TransactionCounts,
    empty_times,
};

// `named!` gives each variant its name in JSON, and a label for reports if the label differs.
named! {
    /// Unit of a number.
    pub enum Unit {
        /// A share, 0 to 1.
        Share = "share" | "share, 0 to 1",
        /// Events per second.
        PerSecond = "1/s",
        /// Bytes.
        Bytes = "bytes",
        /// Bytes per second.
        BytesPerSecond = "bytes/s",
        /// Cores: seconds of CPU per second.
        Cores = "cores",
        /// A count.
        Count = "count",
        /// Milliseconds.
        Milliseconds = "ms",
        /// Seconds per second, summed over threads; may exceed 1.
        SecondsPerSecond = "s/s",
    }
}

/// The kind of a metric's samples, with the function that selects them.
#[derive(Clone, Copy)]
pub enum Samples {
    /// Times of calls. The first function selects the times of a cell. The second function selects
    /// their quantiles in a row.
    CallTimes(fn(&Cell) -> &Times, fn(&Row) -> &Quantiles),
    /// Share of the calls that have one of the selected classes.
    CallShare(fn(Class) -> bool),
    /// Share of the calls whose results have a property. The function returns the number of these
    /// calls for each method.
    ResultShare(fn(&Totals) -> &[u64]),
    /// Number of the calls that have one of the selected classes and ended before the end of their
    /// scenario.
    CallCount(fn(Class) -> bool),
    /// Times of iterations. The function selects them from the totals of a run.
    IterationTimes(fn(&Totals) -> &Times),
    /// The number of iterations that the function returns, divided by the number of scheduled
    /// iterations.
    IterationShare(fn(Iterations) -> u64),
    /// The number of iterations that the function returns.
    IterationCount(fn(Iterations) -> u64),
    /// Times of transactions. The function selects them from the totals of a run.
    TransactionTimes(fn(&Totals) -> &Times),
    /// The number of transactions that the function returns.
    TransactionCount(fn(TransactionCounts) -> u64),
}

/// Declares the metrics. An entry is `"name" ("k6's name") Variant: samples, "meaning";`. k6's name
/// is optional.
macro_rules! metrics {
    ($($name:literal $(($k6:literal))? $variant:ident: $samples:expr, $meaning:literal;)+) => {
        named! {
            /// A metric of a run.
            pub enum Metric { $(#[doc = $meaning] $variant = $name,)+ }
        }

        impl Metric {
            /// Returns k6's name, or `None` if k6 has no such metric.
            pub const fn k6(self) -> Option<&'static str> {
                match self { $(Metric::$variant => metrics!(@k6 $($k6)?),)+ }
            }

            /// Returns the kind of the metric's samples, with the function that selects them.
            pub const fn samples(self) -> Samples {
                use Samples::*;
                match self { $(Metric::$variant => $samples,)+ }
            }

            /// Describes the metric for the documentation.
            pub const fn meaning(self) -> &'static str {
                match self { $(Metric::$variant => $meaning,)+ }
            }
        }
    };
    (@k6) => { None };
    (@k6 $k6:literal) => { Some($k6) };
}

metrics! {
    "latency" ("http_req_duration") Latency: CallTimes(|cell| &cell.latency, |row| &row.latency),
        "time from a call's scheduled send to the end of its response, over all classes; a timeout counts with its full length";
    "service" Service: CallTimes(|cell| &cell.service, |row| &row.service),
        "time from a call's actual send to the end of its response";
    "failed" ("http_req_failed") Failed: CallShare(Class::is_failure),
        "failed calls / calls; a 429 is not a failure";
    "limited" Limited: CallShare(|class| matches!(class, Class::Limited)),
        "calls with HTTP status 429 / calls";
    "null" Null: ResultShare(|totals| &totals.nulls[..]),
        "calls whose result is null / calls";
    "wrong_type" WrongType: ResultShare(|totals| &totals.wrong_types[..]),
        "calls whose result has another JSON type than the method's results, or is null although those never are / calls";
    "calls" ("http_reqs") Calls: CallCount(|_| true),
        "calls that ended";
    "goodput" Goodput: CallCount(|class| matches!(class, Class::Ok)),
        "successful calls";
    "dropped" ("dropped_iterations") Dropped: IterationCount(|iterations| iterations.dropped),
        "scheduled iterations that were dropped because no worker was free";
    "iterations" ("iterations") Iterations:
        IterationCount(|iterations| iterations.ended.saturating_sub(iterations.ended_after_end)),
        "iterations that ended";
    "iteration_time" ("iteration_duration") IterationTime: IterationTimes(|totals| &totals.iteration_time),
        "time from an iteration's scheduled start to its end";
    "delivered" Delivered: IterationShare(|iterations| iterations.in_time()),
        "started / scheduled iterations";
    "inclusion_time" InclusionTime: TransactionTimes(|totals| &totals.inclusion_time),
        "time from a transaction's scheduled send until a poll saw it in a block; only those that got into one";
    "included" Included: TransactionCount(|transactions| transactions.included),
        "sent transactions that got into a block, those of the wait after the load included";
    "pending" Pending: TransactionCount(|transactions| transactions.pending),
        "at the end of the run: sent transactions that the server did not refuse and that got into no block";
}

/// Kinds of samples, which determine the allowed aggregations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Times, in milliseconds.
    Times,
    /// A share.
    Share,
    /// A count.
    Counter,
}

impl Kind {
    /// Describes the allowed aggregations.
    pub const fn aggregations(self) -> &'static str {
        match self {
            Kind::Times => "avg, min, max, med, p(x)",
            Kind::Share => "rate",
            Kind::Counter => "count, rate",
        }
    }
}

impl Metric {
    /// Finds a metric by its name or by k6's name. Returns `None` if the name is unknown.
    pub fn of_name(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.as_str() == name || metric.k6() == Some(name))
    }

    /// Returns the kind of the metric's samples.
    pub const fn kind(self) -> Kind {
        match self.samples() {
            Samples::CallTimes(..) | Samples::IterationTimes(_) | Samples::TransactionTimes(_) => {
                Kind::Times
            }
            Samples::CallShare(_) | Samples::ResultShare(_) | Samples::IterationShare(_) => {
                Kind::Share
            }
            Samples::CallCount(_) | Samples::IterationCount(_) | Samples::TransactionCount(_) => {
                Kind::Counter
            }
        }
    }

    /// Returns true if the metric's samples are transactions. A selector cannot choose transactions
    /// by method or stage.
    pub const fn is_of_transactions(self) -> bool {
        matches!(self.samples(), Samples::TransactionTimes(_) | Samples::TransactionCount(_))
    }

    /// Returns true if the metric's samples are recorded by stage.
    pub const fn per_stage(self) -> bool {
        !matches!(self.samples(), Samples::IterationTimes(_) | Samples::ResultShare(_))
            && !self.is_of_transactions()
    }

    /// Returns true if the metric's samples are calls. Only calls have a method.
    pub const fn per_method(self) -> bool {
        use Samples::{CallCount, CallShare, CallTimes, ResultShare};
        matches!(self.samples(), CallTimes(..) | CallShare(_) | ResultShare(_) | CallCount(_))
    }
}

/// Selects the samples of a threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Selector {
    /// The metric.
    pub metric: Metric,
    /// Selects calls of this method, an index into the plan's methods. `None` selects all methods.
    pub method: Option<usize>,
    /// Selects calls and iterations that were scheduled in these stages. An entry is the index of a
    /// stage among all stages of the plan. `None` selects all stages.
    pub stages: Option<Vec<usize>>,
}

/// The samples of one metric.
#[derive(Debug)]
pub struct Collected {
    /// The times. Empty if the metric is a share or a counter.
    pub times: Times,
    /// The counts, which matter only if the metric is a share or a counter.
    pub counts: Counts,
}

/// Counts of a share or a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Number of calls, iterations or transactions that the metric counts.
    pub counted: u64,
    /// Number of all selected calls or iterations; 0 for transactions. A share is `counted` divided
    /// by `total`.
    pub total: u64,
    /// Number of counted calls whose failure a response of the server shows. 0 if the metric is not
    /// a share of calls.
    pub by_server: u64,
}

impl Counts {
    /// Adds other counts.
    pub fn add(&mut self, other: Counts) {
        self.counted += other.counted;
        self.total += other.total;
        self.by_server += other.by_server;
    }
}

impl Default for Collected {
    fn default() -> Collected {
        Collected { times: empty_times(), counts: Counts::default() }
    }
}

impl Selector {
    /// Returns true if the selector selects this stage.
    pub fn selects_stage(&self, stage: usize) -> bool {
        self.stages.as_ref().is_none_or(|stages| stages.contains(&stage))
    }

    /// Returns true if the selector selects the calls of this slot.
    fn selects(&self, slot: Slot) -> bool {
        self.method.is_none_or(|method| method == usize::from(slot.method))
            && self.selects_stage(usize::from(slot.stage))
    }

    /// Adds the selected samples of `totals` to `sum`.
    pub fn collect(&self, totals: &Totals, sum: &mut Collected) {
        let samples = self.metric.samples();
        if let Samples::IterationTimes(times_of) | Samples::TransactionTimes(times_of) = samples {
            record::add_times(&mut sum.times, times_of(totals));
        }
        if let Samples::TransactionCount(count_of) = samples {
            sum.counts.counted += count_of(totals.transactions);
        }
        if let Samples::IterationShare(count_of) | Samples::IterationCount(count_of) = samples {
            let stages = totals.iterations.iter().enumerate();
            for (_, iterations) in stages.filter(|(stage, _)| self.selects_stage(*stage)) {
                sum.counts.counted += count_of(*iterations);
                sum.counts.total += iterations.scheduled;
            }
        }
        if let Samples::ResultShare(counts_of) = samples {
            let counts = counts_of(totals).iter().enumerate();
            let selected = counts.filter(|(method, _)| self.method.is_none_or(|it| it == *method));
            let counted: u64 = selected.map(|(_, count)| count).sum();
            // The result itself shows that the server sent it.
            sum.counts.counted += counted;
            sum.counts.by_server += counted;
        }
        if !self.metric.per_method() {
            return;
        }
        for (slot, cell) in totals.cells.iter().filter(|(slot, _)| self.selects(**slot)) {
            let calls = cell.latency.len();
            sum.counts.total += calls;
            match samples {
                Samples::CallTimes(times_of, _) => {
                    record::add_times(&mut sum.times, times_of(cell))
                }
                Samples::CallShare(is_selected) if is_selected(slot.class) => {
                    sum.counts.counted += calls;
                    sum.counts.by_server += if slot.class.failed_by_server() { calls } else { 0 };
                }
                Samples::CallCount(is_selected) if is_selected(slot.class) => {
                    let after_end = totals.ended_after_end.get(slot).copied().unwrap_or(0);
                    sum.counts.counted += calls.saturating_sub(after_end);
                }
                _ => {}
            }
        }
    }
}
