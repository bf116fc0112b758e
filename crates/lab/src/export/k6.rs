//! The metrics of a run under the names and labels of k6's Prometheus output. A *slot* is the key
//! under which calls are counted: stage, method and class of result.
//!
//! The differences from k6, which `docs/metrics.md` lists too:
//! - The label `name` is the JSON-RPC method.
//! - A JSON-RPC error with HTTP 200 has the label `expected_response="false"`.
//! - The failed share covers all calls of a method, so that it can be averaged. In k6 it is 0 or 1,
//!   once for each value of `expected_response`.
//! - Durations are measured from the scheduled time of a call.

use std::collections::BTreeMap;

use lab_model::plan::{HttpVersion, Model};
use lab_model::record::{Cell, Class, Iterations, Slot, Times};

use super::table::Kind::{Counter, Gauge, Histogram};
use super::table::{Entry, Metric, RunEntry, RunSamples, merge, metrics};

/// Labels of requests; the first four are k6's system tags of the same names.
const REQUESTS: &[&str] = &["scenario", "name", "status", "expected_response", "method", "proto"];

/// Every metric that has a name in k6. `table.rs` describes the macro `metrics!`; `out` is its
/// [`RunSamples`].
pub(super) const METRICS: &[RunEntry] = metrics! {
    "k6_http_reqs" Counter, REQUESTS, "Calls that ended.":
        |out| {
            let mut counts = BTreeMap::<Tags<'_>, u64>::new();
            for (slot, cell) in &out.source.totals.cells {
                *counts.entry(tags(out, *slot)).or_default() += cell.latency.len();
            }
            for (tags, count) in counts {
                let labels = request_labels(out, tags);
                out.add_count(&labels, count);
            }
        };
    "k6_http_req_duration" Histogram in "seconds", REQUESTS,
        "Time from the scheduled start of a call to its complete response.":
        |out| add_durations(out, |cell| &cell.latency);
    "k6_http_req_waiting" Histogram in "seconds", REQUESTS,
        "Time from sending a call to its complete response.":
        |out| add_durations(out, |cell| &cell.service);
    "k6_http_req_connecting" Histogram in "seconds", &[],
        "Time of TCP connects; calls on an open connection are not included.":
        |out| out.add_times(&[], &out.source.totals.connect_time);
    "k6_http_req_tls_handshaking" Histogram in "seconds", &[],
        "Time of TLS handshakes; calls on an open connection are not included.":
        |out| {
            let totals = out.source.totals;
            let handshakes = [&totals.handshake_full_time, &totals.handshake_resumed_time];
            for times in merge(handshakes.into_iter().map(|times| ((), times))).into_values() {
                out.add_times(&[], &times);
            }
        };
    "k6_http_req_failed_rate" Gauge, &["scenario", "name"],
        "Share of failed calls, 0 to 1; a 429 is not a failure.":
        |out| {
            let mut shares = BTreeMap::<[&str; 2], (u64, u64)>::new();
            for (slot, cell) in &out.source.totals.cells {
                let [scenario, _, name] = out.names(*slot);
                let (failed, calls) = shares.entry([scenario, name]).or_default();
                *failed += if slot.class.is_failure() { cell.latency.len() } else { 0 };
                *calls += cell.latency.len();
            }
            for (labels, (failed, calls)) in shares {
                out.add_number(&labels, failed as f64 / calls.max(1) as f64);
            }
        };
    "k6_iterations" Counter, &["scenario"], "Iterations that ended.":
        |out| add_iterations(out, |counts| counts.ended);
    "k6_dropped_iterations" Counter, &["scenario"],
        "Iterations dropped because no worker was free.":
        |out| add_iterations(out, |counts| counts.dropped);
    "k6_iteration_duration" Histogram in "seconds", &[],
        "Time from the scheduled start of an iteration to the end of its last call.":
        |out| out.add_times(&[], &out.source.totals.iteration_time);
    "k6_vus" Gauge, &[],
        "Workers: the number that the plan asks for, or the busy ones if they are more.":
        |out| {
            let levels = out.levels();
            let closed = levels.iter().filter(|(scenario, ..)| scenario.model == Model::Closed);
            let asked: f64 = closed.map(|(.., level)| level.round()).sum();
            out.add_number(&[], asked.max(out.source.second.workers_busy as f64));
        };
    "k6_vus_max" Gauge, &[], "Workers that the plan allows.":
        |out| {
            let max_workers =
                out.plan().scenarios.iter().map(|scenario| scenario.workers_max as u64).sum();
            out.add_count(&[], max_workers);
        };
    "k6_data_sent" Counter, &[], "Bytes written to sockets.":
        |out| out.add_count(&[], out.source.totals.traffic.bytes_sent);
    "k6_data_received" Counter, &[], "Bytes read from sockets.":
        |out| out.add_count(&[], out.source.totals.traffic.bytes_received);
};

/// The tags of a request: scenario, method, status, and true if the response was expected.
type Tags<'p> = (&'p str, &'p str, &'static str, bool);

/// Returns the tags of the calls in a slot.
fn tags<'p>(out: &RunSamples<'_, 'p>, slot: Slot) -> Tags<'p> {
    let [scenario, _, name] = out.names(slot);
    (scenario, name, status(slot.class), slot.class == Class::Ok)
}

/// Returns the status that k6 would report for calls of a class. For some classes only the first
/// digit is known. JSON-RPC errors and malformed responses are assumed to have status 200.
fn status(class: Class) -> &'static str {
    match class {
        Class::Ok | Class::RpcError | Class::WrongId | Class::WrongAnswer | Class::Malformed => {
            "200"
        }
        Class::Limited => "429",
        Class::Http4xx => "4xx",
        Class::Http5xx => "5xx",
        Class::Timeout
        | Class::Connect
        | Class::Tls
        | Class::Upgrade
        | Class::Reset
        | Class::Closed => "0",
    }
}

/// Returns the values of the labels [`REQUESTS`].
fn request_labels<'p>(out: &RunSamples<'_, 'p>, tags: Tags<'p>) -> [&'p str; 6] {
    let (scenario, name, status, expected) = tags;
    let proto = match out.plan().connections.http {
        _ if out.plan().target.is_websocket() => "WebSocket",
        HttpVersion::Http1 => "HTTP/1.1",
        HttpVersion::Http2 => "HTTP/2.0",
    };
    [scenario, name, status, if expected { "true" } else { "false" }, "POST", proto]
}

/// Adds a histogram for each combination of tags.
fn add_durations(out: &mut RunSamples<'_, '_>, times_of: fn(&Cell) -> &Times) {
    let cells = out.source.totals.cells.iter();
    let by_tags = merge(cells.map(|(slot, cell)| (tags(out, *slot), times_of(cell))));
    for (tags, times) in by_tags {
        let labels = request_labels(out, tags);
        out.add_times(&labels, &times);
    }
}

/// Adds a count of iterations for each scenario.
fn add_iterations(out: &mut RunSamples<'_, '_>, count_of: fn(&Iterations) -> u64) {
    let mut by_scenario = BTreeMap::<&str, u64>::new();
    for ((scenario, _), counts) in out.plan().stages().zip(&out.source.totals.iterations) {
        *by_scenario.entry(&scenario.name).or_default() += count_of(counts);
    }
    for (scenario, count) in by_scenario {
        out.add_count(&[scenario], count);
    }
}
