//! The table of all metrics of a run, in the order of exports and of `docs/metrics.md`. To add a
//! metric, add an entry here; there is no other list. `probe.rs` has the metrics of `weir probe`.
//!
//! Label values come from plans, methods, classes and hosts, so the plan bounds the number of
//! series.
//!
//! A slot is a combination of stage, method and class of result. Its cell has the histograms of its
//! calls (`record.rs` of lab-model).

use std::collections::BTreeMap;

use lab_model::plan::{Model, Plan, Scenario, Stage};
use lab_model::record::{self, Iterations, Slot, Times, empty_times};

use super::distribution::{Distribution, Form};
use crate::run::Progress;

use Kind::{Counter, Gauge, Histogram, Info};

/// A metric.
#[derive(Debug)]
pub(super) struct Metric {
    /// Name with the unit, without the suffix of the kind (`_total`, `_info`).
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Unit, which is the last part of the name; empty without a unit.
    pub(super) unit: &'static str,
    /// Names of the labels.
    pub(super) labels: &'static [&'static str],
    /// Meaning of the metric, in one sentence.
    pub(super) help: &'static str,
}

impl Metric {
    /// Returns the name with the suffix of the kind. Samples that are numbers have this name.
    pub(super) fn sample_name(&self) -> String {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        [self.name, suffix].concat()
    }
}

/// An entry of a table of metrics.
#[derive(Debug)]
pub(super) struct Entry<F> {
    pub(super) metric: &'static Metric,
    /// The function that adds the metric's samples to a [`SampleBuilder`].
    pub(super) samples: F,
}

/// An entry of a table of a run's metrics.
pub(super) type RunEntry = Entry<fn(&mut RunSamples<'_, '_>)>;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Never decreases.
    Counter,
    /// Rises and falls.
    Gauge,
    /// A distribution of times.
    Histogram,
    /// Always 1; the information is in its labels.
    Info,
}

/// One number or distribution at one time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) metric: &'static Metric,
    /// Values of the metric's labels, in the order of their names.
    pub(super) labels: Vec<String>,
    /// The number or distribution.
    pub(super) value: Value,
}

/// The value of a sample.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(f64),
    Distribution(Distribution),
}

/// Builds the samples of a metric from a source. The source is the state of a run ([`Progress`]) or
/// of a probe.
pub(super) struct SampleBuilder<'a, S> {
    /// State of the run or probe.
    pub(super) source: &'a S,
    /// Format of distributions.
    pub(super) form: &'a Form,
    pub(super) metric: &'static Metric,
    /// The samples so far, including those of earlier metrics.
    pub(super) samples: Vec<Sample>,
}

/// Builds the samples of a run.
pub(super) type RunSamples<'a, 'p> = SampleBuilder<'a, Progress<'p>>;

/// A function that adds the samples of a metric to its builder.
pub(super) type AddSamples<S> = fn(&mut SampleBuilder<'_, S>);

/// Returns all samples of a table, with distributions in the given format. Each histogram that has
/// values takes a few microseconds.
pub(super) fn collect_samples<S>(
    table: &[Entry<AddSamples<S>>],
    source: &S,
    form: &Form,
) -> Vec<Sample> {
    let mut samples = Vec::new();
    for entry in table {
        let mut builder = SampleBuilder { source, form, metric: entry.metric, samples };
        (entry.samples)(&mut builder);
        samples = builder.samples;
    }
    samples
}

impl<S> SampleBuilder<'_, S> {
    /// Adds a number. `labels` has a value for each label of the metric, in the order of their
    /// names.
    pub(super) fn add_number(&mut self, labels: &[&str], value: f64) {
        self.push(labels, Value::Number(value));
    }

    /// Adds a count. `labels` is as in [`SampleBuilder::add_number`].
    pub(super) fn add_count(&mut self, labels: &[&str], value: u64) {
        self.add_number(labels, value as f64);
    }

    /// Adds a distribution, unless it has no values. `labels` is as in
    /// [`SampleBuilder::add_number`].
    pub(super) fn add_times(&mut self, labels: &[&str], times: &Times) {
        if !times.is_empty() {
            self.push(labels, Value::Distribution(Distribution::of(times, self.form)));
        }
    }

    /// Adds a sample. Panics if the number of label values does not match the metric.
    fn push(&mut self, labels: &[&str], value: Value) {
        let names = self.metric.labels;
        assert_eq!(names.len(), labels.len(), "{} has these labels: {names:?}", self.metric.name);
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.samples.push(Sample { metric: self.metric, labels, value });
    }
}

impl<'p> RunSamples<'_, 'p> {
    /// Returns the plan of the run.
    pub(super) fn plan(&self) -> &'p Plan {
        self.source.plan
    }

    /// Returns the names of the scenario, stage and method of a slot.
    pub(super) fn names(&self, slot: Slot) -> [&'p str; 3] {
        let stage = self.plan().stages().nth(usize::from(slot.stage));
        let (scenario, stage) = stage
            .map_or(("", ""), |(scenario, stage)| (scenario.name.as_str(), stage.name.as_str()));
        [scenario, stage, self.method(slot.method)]
    }

    /// Returns the name of a method; empty for an unknown index.
    pub(super) fn method(&self, index: u16) -> &'p str {
        self.plan().methods.get(usize::from(index)).map_or("", |name| name)
    }

    /// Adds one histogram for each slot. `histogram_of` selects it from the slot's cell.
    pub(super) fn add_histograms(&mut self, histogram_of: fn(&lab_model::record::Cell) -> &Times) {
        let totals = self.source.totals;
        for (slot, cell) in &totals.cells {
            let [scenario, stage, method] = self.names(*slot);
            self.add_times(&[scenario, stage, method, slot.class.as_str()], histogram_of(cell));
        }
    }

    /// Adds a count of iterations for each stage.
    fn add_iterations(&mut self, count_of: fn(&Iterations) -> u64) {
        for ((scenario, stage), counts) in self.plan().stages().zip(&self.source.totals.iterations)
        {
            self.add_count(&[&scenario.name, &stage.name], count_of(counts));
        }
    }

    /// Returns the stages that run now, each with its scenario and its planned level. A level is
    /// iterations per second, or a number of workers in the closed model.
    pub(super) fn levels(&self) -> Vec<(&'p Scenario, &'p Stage, f64)> {
        let elapsed = self.source.elapsed;
        let running =
            self.plan().spans().filter(|(_, _, span)| span.from <= elapsed && elapsed < span.to);
        running
            .map(|(scenario, stage, span)| (scenario, stage, stage.level(elapsed - span.from)))
            .collect()
    }
}

/// Merges the histograms that have the same labels.
pub(super) fn merge<'h, K: Ord>(parts: impl Iterator<Item = (K, &'h Times)>) -> BTreeMap<K, Times> {
    let mut by_key = BTreeMap::new();
    for (key, histogram) in parts {
        let merged = by_key.entry(key).or_insert_with(empty_times);
        record::add_times(merged, histogram);
    }
    by_key
}

/// Declares a table of metrics. An entry has the name, kind, unit, labels and help of a metric, and
/// the function that adds its samples: `"name" Kind in "unit", &[labels], "help": |out| …;`. The
/// unit may be left out.
macro_rules! metrics {
    ($($name:literal $kind:ident $(in $unit:literal)?, $labels:expr, $help:literal: $samples:expr;)+) => {
        &[$(Entry {
            metric: &Metric {
                name: $name,
                kind: $kind,
                unit: concat!($($unit)?),
                labels: $labels,
                help: $help,
            },
            samples: $samples,
        },)+]
    };
}
pub(super) use metrics;

/// Labels of metrics about calls.
const CALLS: &[&str] = &["scenario", "stage", "method", "class"];
/// Labels of metrics about iterations.
const STAGE: &[&str] = &["scenario", "stage"];

/// Every metric of a run. `out` is the [`SampleBuilder`].
pub(super) const METRICS: &[RunEntry] = metrics! {
    "weir_lab_run" Info, &["plan", "target", "client"], "The plan of the run and its target.":
        |out| {
            let client = out.source.target.client.as_deref().unwrap_or("unknown");
            let plan = out.plan();
            out.add_number(&[&plan.name, &plan.target.url.to_string(), client], 1.0);
        };
    "weir_lab_run_passed_seconds" Gauge in "seconds", &[], "Time since the start of the run.":
        |out| out.add_number(&[], out.source.elapsed.as_secs_f64());
    "weir_lab_calls" Counter, CALLS,
        "Finished calls by result; the calls of a batch are counted one by one.":
        |out| {
            for (slot, cell) in &out.source.totals.cells {
                let [scenario, stage, method] = out.names(*slot);
                let labels = [scenario, stage, method, slot.class.as_str()];
                out.add_count(&labels, cell.latency.len());
            }
        };
    "weir_lab_latency_seconds" Histogram in "seconds", CALLS,
        "Time from the scheduled start of a call to its complete response; a timeout counts as its deadline.":
        |out| out.add_histograms(|cell| &cell.latency);
    "weir_lab_service_seconds" Histogram in "seconds", CALLS,
        "Time from sending a call to its complete response.":
        |out| out.add_histograms(|cell| &cell.service);
    "weir_lab_rpc_errors" Counter, &["method", "code"],
        "Calls with a JSON-RPC error, by its code; 0 for codes beyond the first 256.":
        |out| {
            for (&(method, code), &count) in &out.source.totals.codes {
                out.add_count(&[out.method(method), &code.to_string()], count);
            }
        };
    "weir_lab_level" Gauge, &["scenario", "stage", "model"],
        "The planned load now: iterations per second (open) or workers (closed).":
        |out| {
            for (scenario, stage, level) in out.levels() {
                let model = Model::name_of(scenario.model);
                out.add_number(&[&scenario.name, &stage.name, model], level);
            }
        };
    "weir_lab_iterations_scheduled" Counter, STAGE,
        "Iterations that the plan scheduled; in the closed model, the started ones.":
        |out| out.add_iterations(|counts| counts.scheduled);
    "weir_lab_iterations_started" Counter, STAGE, "Started iterations.":
        |out| out.add_iterations(|counts| counts.started);
    "weir_lab_iterations_ended" Counter, STAGE, "Finished iterations.":
        |out| out.add_iterations(|counts| counts.ended);
    "weir_lab_iterations_dropped" Counter, STAGE, "Iterations dropped because no worker was free.":
        |out| out.add_iterations(|counts| counts.dropped);
    "weir_lab_iteration_seconds" Histogram in "seconds", &[],
        "Time from the scheduled start of an iteration to the end of its last call.":
        |out| out.add_times(&[], &out.source.totals.iteration_time);
    "weir_lab_inclusion_seconds" Histogram in "seconds", &[],
        "Time from the scheduled send of a transaction until it was seen in a block.":
        |out| out.add_times(&[], &out.source.totals.inclusion_time);
    "weir_lab_transactions_included" Counter, &[],
        "Sent transactions that were seen in a block; only for plans with transactions.":
        |out| {
            if out.plan().transactions().is_some() {
                out.add_count(&[], out.source.totals.transactions.included);
            }
        };
    "weir_lab_scheduling_delay_seconds" Histogram in "seconds", &[],
        "Delay of sends that the generator itself caused.":
        |out| out.add_times(&[], &out.source.totals.scheduling_delay);
    "weir_lab_generator_busy_ratio" Gauge in "ratio", &[],
        "Share of the last second in which the engine threads were not idle, 0 to 1.":
        |out| out.add_number(&[], out.source.second.generator_busy);
    "weir_lab_generator_cpu_seconds" Counter in "seconds", &[], "CPU time of the engine threads.":
        |out| out.add_number(&[], out.source.totals.cpu.as_secs_f64());
    "weir_lab_generator_run_delay_seconds" Counter in "seconds", &[],
        "Time that engine threads were ready to run but had no CPU core.":
        |out| out.add_number(&[], out.source.totals.run_delay.as_secs_f64());
    "weir_lab_calls_in_flight" Gauge, &[], "Calls in flight.":
        |out| out.add_count(&[], out.source.second.in_flight);
    "weir_lab_workers_busy" Gauge, &[], "Workers that run an iteration.":
        |out| out.add_count(&[], out.source.second.workers_busy);
    "weir_lab_iterations_waiting" Gauge, &[], "Scheduled iterations that wait for a worker.":
        |out| out.add_count(&[], out.source.second.waiting);
    "weir_lab_requests" Counter, &[], "Finished HTTP requests, or messages to a WebSocket; a batch is one.":
        |out| out.add_count(&[], out.source.totals.traffic.requests);
    "weir_lab_responses" Counter, &["status"], "HTTP requests by the status of the response.":
        |out| {
            for (status, count) in &out.source.totals.statuses {
                out.add_count(&[&status.to_string()], *count);
            }
        };
    "weir_lab_connections" Counter, &["outcome"],
        "Connections by outcome: made, failed, closed_by_server, ports_exhausted.":
        |out| {
            let traffic = out.source.totals.traffic;
            out.add_count(&["made"], traffic.connections);
            out.add_count(&["failed"], traffic.connections_failed);
            out.add_count(&["closed_by_server"], traffic.closed_by_server);
            out.add_count(&["ports_exhausted"], traffic.ports_exhausted);
        };
    "weir_lab_connect_seconds" Histogram in "seconds", &[], "Time of TCP connects.":
        |out| out.add_times(&[], &out.source.totals.connect_time);
    "weir_lab_handshakes" Counter, &["kind"], "TLS handshakes, full or resumed.":
        |out| {
            let traffic = out.source.totals.traffic;
            out.add_count(&["full"], traffic.handshakes_full);
            out.add_count(&["resumed"], traffic.handshakes_resumed);
        };
    "weir_lab_handshake_seconds" Histogram in "seconds", &["kind"],
        "Time of TLS handshakes, full or resumed.":
        |out| {
            out.add_times(&["full"], &out.source.totals.handshake_full_time);
            out.add_times(&["resumed"], &out.source.totals.handshake_resumed_time);
        };
    "weir_lab_upgrade_seconds" Histogram in "seconds", &[],
        "Time to open WebSockets, after TCP and TLS.":
        |out| out.add_times(&[], &out.source.totals.upgrade_time);
    "weir_lab_websocket_closes" Counter, &["code"],
        "Close frames of the server by code; 1005 stands for none.":
        |out| {
            for (code, count) in &out.source.totals.close_codes {
                out.add_count(&[&code.to_string()], *count);
            }
        };
    "weir_lab_retry_after_seconds" Histogram in "seconds", &[],
        "Retry-After of the responses that had it.":
        |out| out.add_times(&[], &out.source.totals.retry_after);
    "weir_lab_sent_bytes" Counter in "bytes", &[], "Bytes written to sockets.":
        |out| out.add_count(&[], out.source.totals.traffic.bytes_sent);
    "weir_lab_received_bytes" Counter in "bytes", &[], "Bytes read from sockets.":
        |out| out.add_count(&[], out.source.totals.traffic.bytes_received);
    "weir_lab_threshold_kept" Gauge, &["threshold"],
        "1 if the threshold is met so far, 0 if it is exceeded; missing without data.":
        |out| {
            for outcome in out.source.thresholds {
                if outcome.observed.is_some() {
                    out.add_count(&[&outcome.text], u64::from(outcome.kept));
                }
            }
        };
    "weir_lab_host" Gauge, &["host", "metric"],
        "Values measured on hosts; names and units as in docs/host-metrics.md.":
        |out| {
            // The last sample of each host replaces its earlier samples.
            let newest: BTreeMap<_, _> =
                out.source.host.iter().map(|sample| (&sample.host, sample)).collect();
            for (host, sample) in newest {
                for (name, value) in &sample.values {
                    out.add_number(&[host, name], *value);
                }
            }
        };
};
