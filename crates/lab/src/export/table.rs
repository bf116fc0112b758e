//! A table of equal entries: every metric of a run, in the order in which it is exported and listed
//! in `docs/metrics.md`. To add one, add an entry; nothing else lists them.
//!
//! Labels come from plans, methods, classes and hosts: their number is bounded by the plan.

use std::collections::BTreeMap;

use lab_model::plan::{Model, Plan, Scenario, Stage};
use lab_model::record::{self, Class, Iterations, Slot, Times, times};

use super::spread::{Form, Spread};
use crate::run::Progress;

use Kind::{Counter, Gauge, Info, Spreads};

/// One metric of a table.
#[derive(Debug)]
pub(super) struct Metric {
    /// Its name with the unit, without what is appended by kind.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Last part of the name where it is a unit, else empty.
    pub(super) unit: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
    /// Writes its samples.
    pub(super) samples: fn(&mut Gathering<'_, '_>),
}

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Never falls.
    Counter,
    Gauge,
    /// A distribution of times.
    Spreads,
    /// Always 1; what it says is in its labels.
    Info,
}

/// One number or distribution at one time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) metric: &'static Metric,
    /// Values of the metric's labels, in its order.
    pub(super) labels: Vec<String>,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(f64),
    Spread(Spread),
}

/// What samples are made from, and where they go.
pub(super) struct Gathering<'a, 'p> {
    pub(super) progress: &'a Progress<'p>,
    form: &'a Form,
    metric: &'static Metric,
    samples: Vec<Sample>,
}

/// All samples of a table, distributions in one form. It takes a few microseconds for each
/// histogram that the run has filled.
pub(super) fn gather(
    table: &'static [Metric],
    progress: &Progress<'_>,
    form: &Form,
) -> Vec<Sample> {
    let mut samples = Vec::new();
    for metric in table {
        let mut gathering = Gathering { progress, form, metric, samples };
        (metric.samples)(&mut gathering);
        samples = gathering.samples;
    }
    samples
}

impl<'p> Gathering<'_, 'p> {
    pub(super) fn number(&mut self, labels: &[&str], value: f64) {
        self.push(labels, Value::Number(value));
    }

    pub(super) fn count(&mut self, labels: &[&str], value: u64) {
        self.number(labels, value as f64);
    }

    /// A distribution; one without any value is left out.
    pub(super) fn times(&mut self, labels: &[&str], times: &Times) {
        if !times.is_empty() {
            self.push(labels, Value::Spread(Spread::of(times, self.form)));
        }
    }

    fn push(&mut self, labels: &[&str], value: Value) {
        let names = self.metric.labels;
        assert_eq!(names.len(), labels.len(), "{} has these labels: {names:?}", self.metric.name);
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.samples.push(Sample { metric: self.metric, labels, value });
    }

    pub(super) fn plan(&self) -> &'p Plan {
        self.progress.plan
    }

    /// Scenario, stage and method of a slot.
    pub(super) fn names(&self, slot: Slot) -> [&'p str; 3] {
        let stage = self.plan().stages().nth(usize::from(slot.stage));
        let (scenario, stage) = stage
            .map_or(("", ""), |(scenario, stage)| (scenario.name.as_str(), stage.name.as_str()));
        [scenario, stage, self.method(slot.method)]
    }

    pub(super) fn method(&self, index: u16) -> &'p str {
        self.plan().methods.get(usize::from(index)).map_or("", |name| name)
    }

    /// The slots' histograms, one of `of` for each set of labels.
    pub(super) fn cells(&mut self, of: fn(&lab_model::record::Cell) -> &Times) {
        let totals = self.progress.totals;
        for (slot, cell) in &totals.cells {
            let [scenario, stage, method] = self.names(*slot);
            self.times(&[scenario, stage, method, slot.class.as_str()], of(cell));
        }
    }

    fn iterations(&mut self, of: fn(&Iterations) -> u64) {
        for ((scenario, stage), counts) in
            self.plan().stages().zip(&self.progress.totals.iterations)
        {
            self.count(&[&scenario.name, &stage.name], of(counts));
        }
    }

    /// The stages under way with their planned level at this time.
    pub(super) fn levels(&self) -> Vec<(&'p Scenario, &'p Stage, f64)> {
        let at = self.progress.at;
        let now = self.plan().spans().filter(|(_, _, span)| span.from <= at && at < span.to);
        now.map(|(scenario, stage, span)| (scenario, stage, stage.level(at - span.from))).collect()
    }
}

/// Histograms of equal labels, merged.
pub(super) fn merged<'h, K: Ord>(
    parts: impl Iterator<Item = (K, &'h Times)>,
) -> BTreeMap<K, Times> {
    let mut all = BTreeMap::new();
    for (key, part) in parts {
        let whole = all.entry(key).or_insert_with(times);
        record::add(whole, part);
    }
    all
}

const CALLS: &[&str] = &["scenario", "stage", "method", "class"];
const STAGE: &[&str] = &["scenario", "stage"];

/// Every metric.
pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "weir_lab_run",
        kind: Info,
        unit: "",
        labels: &["plan", "target", "client"],
        help: "Which plan runs against whom.",
        samples: |all| {
            let client = all.progress.target.client.as_deref().unwrap_or("unknown");
            let plan = all.plan();
            all.number(&[&plan.name, &plan.target.url.to_string(), client], 1.0);
        },
    },
    Metric {
        name: "weir_lab_run_passed_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: &[],
        help: "Time since the start of the run.",
        samples: |all| all.number(&[], all.progress.at.as_secs_f64()),
    },
    Metric {
        name: "weir_lab_calls",
        kind: Counter,
        unit: "",
        labels: CALLS,
        help: "Calls that ended, each of a batch by itself, by how they ended.",
        samples: |all| {
            for (slot, cell) in &all.progress.totals.cells {
                let [scenario, stage, method] = all.names(*slot);
                let labels = [scenario, stage, method, slot.class.as_str()];
                all.count(&labels, cell.latency.len());
            }
        },
    },
    Metric {
        name: "weir_lab_latency_seconds",
        kind: Spreads,
        unit: "seconds",
        labels: CALLS,
        help: "Time from when a call was due to its whole answer; a timeout counts as its deadline.",
        samples: |all| all.cells(|cell| &cell.latency),
    },
    Metric {
        name: "weir_lab_service_seconds",
        kind: Spreads,
        unit: "seconds",
        labels: CALLS,
        help: "Time from when a call was really sent to its whole answer.",
        samples: |all| all.cells(|cell| &cell.service),
    },
    Metric {
        name: "weir_lab_rpc_errors",
        kind: Counter,
        unit: "",
        labels: &["method", "code"],
        help: "Calls answered with a JSON-RPC error, by its code; 0 for codes beyond the first 256.",
        samples: |all| {
            for (&(method, code), &count) in &all.progress.totals.codes {
                all.count(&[all.method(method), &code.to_string()], count);
            }
        },
    },
    Metric {
        name: "weir_lab_level",
        kind: Gauge,
        unit: "",
        labels: &["scenario", "stage", "model"],
        help: "What the plan asks for now: iterations per second (open) or workers (closed).",
        samples: |all| {
            for (scenario, stage, level) in all.levels() {
                let model = match scenario.model {
                    Model::Open { .. } => "open",
                    Model::Closed => "closed",
                };
                all.number(&[&scenario.name, &stage.name, model], level);
            }
        },
    },
    Metric {
        name: "weir_lab_iterations_due",
        kind: Counter,
        unit: "",
        labels: STAGE,
        help: "Iterations that the plan asked for; in the closed model those that were begun.",
        samples: |all| all.iterations(|counts| counts.due),
    },
    Metric {
        name: "weir_lab_iterations_begun",
        kind: Counter,
        unit: "",
        labels: STAGE,
        help: "Iterations that were begun.",
        samples: |all| all.iterations(|counts| counts.begun),
    },
    Metric {
        name: "weir_lab_iterations_ended",
        kind: Counter,
        unit: "",
        labels: STAGE,
        help: "Iterations that ended.",
        samples: |all| all.iterations(|counts| counts.ended),
    },
    Metric {
        name: "weir_lab_iterations_dropped",
        kind: Counter,
        unit: "",
        labels: STAGE,
        help: "Iterations given up because no worker was free.",
        samples: |all| all.iterations(|counts| counts.dropped),
    },
    Metric {
        name: "weir_lab_iteration_seconds",
        kind: Spreads,
        unit: "seconds",
        labels: &[],
        help: "Time from when an iteration was due to the end of its last call.",
        samples: |all| all.times(&[], &all.progress.totals.iteration_time),
    },
    Metric {
        name: "weir_lab_lateness_seconds",
        kind: Spreads,
        unit: "seconds",
        labels: &[],
        help: "How late sends were because of the generator itself.",
        samples: |all| all.times(&[], &all.progress.totals.lateness),
    },
    Metric {
        name: "weir_lab_generator_busy_ratio",
        kind: Gauge,
        unit: "ratio",
        labels: &[],
        help: "Share of the engine threads' time in the last second that was not idle, 0 to 1.",
        samples: |all| all.number(&[], all.progress.second.generator_busy),
    },
    Metric {
        name: "weir_lab_generator_cpu_seconds",
        kind: Counter,
        unit: "seconds",
        labels: &[],
        help: "CPU time of the engine threads.",
        samples: |all| all.number(&[], all.progress.totals.cpu.as_secs_f64()),
    },
    Metric {
        name: "weir_lab_generator_run_delay_seconds",
        kind: Counter,
        unit: "seconds",
        labels: &[],
        help: "Time that engine threads were ready to run but had no core.",
        samples: |all| all.number(&[], all.progress.totals.run_delay.as_secs_f64()),
    },
    Metric {
        name: "weir_lab_calls_in_flight",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Calls under way.",
        samples: |all| all.count(&[], all.progress.second.in_flight),
    },
    Metric {
        name: "weir_lab_workers_busy",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Workers that are in an iteration.",
        samples: |all| all.count(&[], all.progress.second.workers_busy),
    },
    Metric {
        name: "weir_lab_iterations_waiting",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Iterations that are due and wait for a worker.",
        samples: |all| all.count(&[], all.progress.second.waiting),
    },
    Metric {
        name: "weir_lab_requests",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "HTTP requests whose end was seen; a batch is one.",
        samples: |all| all.count(&[], all.progress.totals.traffic.requests),
    },
    Metric {
        name: "weir_lab_responses",
        kind: Counter,
        unit: "",
        labels: &["status"],
        help: "HTTP requests by the status that they were answered with.",
        samples: |all| {
            for (status, count) in &all.progress.totals.statuses {
                all.count(&[&status.to_string()], *count);
            }
        },
    },
    Metric {
        name: "weir_lab_connections",
        kind: Counter,
        unit: "",
        labels: &["outcome"],
        help: "Connections by what came of them: made, failed, closed_by_server, ports_exhausted.",
        samples: |all| {
            let traffic = all.progress.totals.traffic;
            all.count(&["made"], traffic.connections);
            all.count(&["failed"], traffic.connections_failed);
            all.count(&["closed_by_server"], traffic.closed_by_server);
            all.count(&["ports_exhausted"], traffic.ports_exhausted);
        },
    },
    Metric {
        name: "weir_lab_connect_seconds",
        kind: Spreads,
        unit: "seconds",
        labels: &[],
        help: "Time of TCP connects.",
        samples: |all| all.times(&[], &all.progress.totals.connect_time),
    },
    Metric {
        name: "weir_lab_handshakes",
        kind: Counter,
        unit: "",
        labels: &["kind"],
        help: "TLS handshakes, full or resumed.",
        samples: |all| {
            let traffic = all.progress.totals.traffic;
            all.count(&["full"], traffic.handshakes_full);
            all.count(&["resumed"], traffic.handshakes_resumed);
        },
    },
    Metric {
        name: "weir_lab_handshake_seconds",
        kind: Spreads,
        unit: "seconds",
        labels: &["kind"],
        help: "Time of TLS handshakes, full or resumed.",
        samples: |all| {
            all.times(&["full"], &all.progress.totals.handshake_full_time);
            all.times(&["resumed"], &all.progress.totals.handshake_resumed_time);
        },
    },
    Metric {
        name: "weir_lab_retry_after_seconds",
        kind: Spreads,
        unit: "seconds",
        labels: &[],
        help: "Retry-After of answers that had one.",
        samples: |all| all.times(&[], &all.progress.totals.retry_after),
    },
    Metric {
        name: "weir_lab_sent_bytes",
        kind: Counter,
        unit: "bytes",
        labels: &[],
        help: "Bytes written to sockets.",
        samples: |all| all.count(&[], all.progress.totals.traffic.bytes_sent),
    },
    Metric {
        name: "weir_lab_received_bytes",
        kind: Counter,
        unit: "bytes",
        labels: &[],
        help: "Bytes read from sockets.",
        samples: |all| all.count(&[], all.progress.totals.traffic.bytes_received),
    },
    Metric {
        name: "weir_lab_threshold_kept",
        kind: Gauge,
        unit: "",
        labels: &["threshold"],
        help: "1 for an objective that is kept so far, 0 for a broken one; missing without data.",
        samples: |all| {
            for outcome in all.progress.thresholds {
                if outcome.observed.is_some() {
                    all.count(&[&outcome.text], u64::from(outcome.kept));
                }
            }
        },
    },
    Metric {
        name: "weir_lab_host",
        kind: Gauge,
        unit: "",
        labels: &["host", "metric"],
        help: "What was watched on hosts; names and units as in docs/host-metrics.md.",
        samples: |all| {
            // The newest sample of each host: of several, the last.
            let newest: BTreeMap<_, _> =
                all.progress.host.iter().map(|sample| (&sample.host, sample)).collect();
            for (host, sample) in newest {
                for (name, value) in &sample.values {
                    all.number(&[host, name], *value);
                }
            }
        },
    },
];

/// Whether a class is what k6 calls an expected response.
pub(super) fn expected(class: Class) -> bool {
    class == Class::Ok
}
