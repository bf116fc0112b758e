//! The same run under the names and labels of k6's Prometheus output.
//!
//! What differs from k6, and is said in `docs/metrics.md` too: `name` is the JSON-RPC method; a
//! JSON-RPC error inside HTTP 200 is no expected response; the share of failed calls is of all
//! calls of a method, not 0 or 1 by `expected_response`, so that an average over it means
//! something; durations count from when a call was due.

use std::collections::BTreeMap;

use lab_model::plan::{HttpVersion, Model};
use lab_model::record::{Cell, Class, Iterations, Slot, Times};

use super::table::Kind::{Counter, Gauge, Spreads};
use super::table::{Gathering, Metric, expected, merged};

/// Labels of requests; the first four are k6's system tags of the same names.
const REQUESTS: &[&str] = &["scenario", "name", "status", "expected_response", "method", "proto"];

/// Every metric.
pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "k6_http_reqs",
        kind: Counter,
        unit: "",
        labels: REQUESTS,
        help: "Calls that ended.",
        samples: |all| {
            let mut counts = BTreeMap::<Tags<'_>, u64>::new();
            for (slot, cell) in &all.progress.totals.cells {
                *counts.entry(tags(all, *slot)).or_default() += cell.latency.len();
            }
            for (tags, count) in counts {
                let labels = requests(all, tags);
                all.count(&labels, count);
            }
        },
    },
    Metric {
        name: "k6_http_req_duration",
        kind: Spreads,
        unit: "seconds",
        labels: REQUESTS,
        help: "Time from when a call was due to its whole answer.",
        samples: |all| durations(all, |cell| &cell.latency),
    },
    Metric {
        name: "k6_http_req_waiting",
        kind: Spreads,
        unit: "seconds",
        labels: REQUESTS,
        help: "Time from when a call was really sent to its whole answer.",
        samples: |all| durations(all, |cell| &cell.service),
    },
    Metric {
        name: "k6_http_req_connecting",
        kind: Spreads,
        unit: "seconds",
        labels: &[],
        help: "Time of TCP connects; calls on a connection that was open are not in it.",
        samples: |all| all.times(&[], &all.progress.totals.connect_time),
    },
    Metric {
        name: "k6_http_req_tls_handshaking",
        kind: Spreads,
        unit: "seconds",
        labels: &[],
        help: "Time of TLS handshakes; calls on a connection that was open are not in it.",
        samples: |all| {
            let totals = all.progress.totals;
            let both = [&totals.handshake_full_time, &totals.handshake_resumed_time];
            for times in merged(both.into_iter().map(|times| ((), times))).into_values() {
                all.times(&[], &times);
            }
        },
    },
    Metric {
        name: "k6_http_req_failed_rate",
        kind: Gauge,
        unit: "",
        labels: &["scenario", "name"],
        help: "Share of calls that failed, 0 to 1; a 429 is no failure.",
        samples: |all| {
            let mut shares = BTreeMap::<[&str; 2], (u64, u64)>::new();
            for (slot, cell) in &all.progress.totals.cells {
                let [scenario, _, name] = all.names(*slot);
                let (failed, calls) = shares.entry([scenario, name]).or_default();
                *failed += if slot.class.failed() { cell.latency.len() } else { 0 };
                *calls += cell.latency.len();
            }
            for (labels, (failed, calls)) in shares {
                all.number(&labels, failed as f64 / calls.max(1) as f64);
            }
        },
    },
    Metric {
        name: "k6_iterations",
        kind: Counter,
        unit: "",
        labels: &["scenario"],
        help: "Iterations that ended.",
        samples: |all| iterations(all, |counts| counts.ended),
    },
    Metric {
        name: "k6_dropped_iterations",
        kind: Counter,
        unit: "",
        labels: &["scenario"],
        help: "Iterations given up because no worker was free.",
        samples: |all| iterations(all, |counts| counts.dropped),
    },
    Metric {
        name: "k6_iteration_duration",
        kind: Spreads,
        unit: "seconds",
        labels: &[],
        help: "Time from when an iteration was due to the end of its last call.",
        samples: |all| all.times(&[], &all.progress.totals.iteration_time),
    },
    Metric {
        name: "k6_vus",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Workers: those that the plan asks for, or those that are busy if these are more.",
        samples: |all| {
            let levels = all.levels();
            let closed = levels.iter().filter(|(scenario, ..)| scenario.model == Model::Closed);
            let asked: f64 = closed.map(|(.., level)| level.round()).sum();
            all.number(&[], asked.max(all.progress.second.workers_busy as f64));
        },
    },
    Metric {
        name: "k6_vus_max",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Workers that the plan allows.",
        samples: |all| {
            let most =
                all.plan().scenarios.iter().map(|scenario| scenario.workers_max as u64).sum();
            all.count(&[], most);
        },
    },
    Metric {
        name: "k6_data_sent",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Bytes written to sockets.",
        samples: |all| all.count(&[], all.progress.totals.traffic.bytes_sent),
    },
    Metric {
        name: "k6_data_received",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Bytes read from sockets.",
        samples: |all| all.count(&[], all.progress.totals.traffic.bytes_received),
    },
];

/// Scenario, method, status, and whether the response was expected.
type Tags<'p> = (&'p str, &'p str, &'static str, bool);

fn tags<'p>(all: &Gathering<'_, 'p>, slot: Slot) -> Tags<'p> {
    let [scenario, _, name] = all.names(slot);
    (scenario, name, status(slot.class), expected(slot.class))
}

/// The status that k6 would show. What is counted are classes, so that of some only the hundreds
/// are known.
fn status(class: Class) -> &'static str {
    match class {
        Class::Ok | Class::RpcError | Class::WrongId | Class::WrongAnswer | Class::Malformed => {
            "200"
        }
        Class::Limited => "429",
        Class::Http4xx => "4xx",
        Class::Http5xx => "5xx",
        Class::Timeout | Class::Connect | Class::Tls | Class::Reset => "0",
    }
}

fn requests<'p>(all: &Gathering<'_, 'p>, tags: Tags<'p>) -> [&'p str; 6] {
    let (scenario, name, status, expected) = tags;
    let proto = match all.plan().connections.http {
        HttpVersion::Http1 => "HTTP/1.1",
        HttpVersion::Http2 => "HTTP/2.0",
    };
    [scenario, name, status, if expected { "true" } else { "false" }, "POST", proto]
}

fn durations(all: &mut Gathering<'_, '_>, of: fn(&Cell) -> &Times) {
    let cells = all.progress.totals.cells.iter();
    let whole = merged(cells.map(|(slot, cell)| (tags(all, *slot), of(cell))));
    for (tags, times) in whole {
        let labels = requests(all, tags);
        all.times(&labels, &times);
    }
}

fn iterations(all: &mut Gathering<'_, '_>, of: fn(&Iterations) -> u64) {
    let mut by_scenario = BTreeMap::<&str, u64>::new();
    for ((scenario, _), counts) in all.plan().stages().zip(&all.progress.totals.iterations) {
        *by_scenario.entry(&scenario.name).or_default() += of(counts);
    }
    for (scenario, count) in by_scenario {
        all.count(&[scenario], count);
    }
}
