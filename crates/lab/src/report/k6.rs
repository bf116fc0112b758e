//! The result in the shape of k6's `--summary-export`, so that what reads k6's reads ours.
//!
//! Only what was measured is told: k6's http_req_blocked, _sending, _waiting and _receiving are left
//! out. Where the lab's meaning is stricter, its own is kept: http_req_duration counts from the
//! planned send, http_req_failed counts JSON-RPC errors inside HTTP 200. Metrics that k6 does not
//! have keep the lab's names, as custom metrics of a script would.

use serde_json::{Map, Value, json};

use crate::record::{Class, Slot, Times, Totals};
use crate::results::ThresholdOutcome;
use crate::results::run::RunResult;

/// MD5 of nothing, k6's id of the root group.
const ROOT_ID: &str = "d41d8cd98f00b204e9800998ecf8427e";

/// See [`super::k6_summary`].
pub(super) fn summary(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> Value {
    let told = Told { result, totals, methods };
    let mut metrics = Map::new();
    for name in METRICS {
        metrics.insert((*name).into(), told.metric(name, "").unwrap_or_else(empty));
    }
    if result.wire.resumption.is_some() {
        let times = told.padded(&[&totals.handshake_full_time, &totals.handshake_resumed_time]);
        metrics.insert("http_req_tls_handshaking".into(), trend(&times));
    }
    let ok = totals.latency(|slot| slot.class == Class::Ok);
    metrics.insert("http_req_duration{expected_response:true}".into(), trend(&ok));
    for method in methods {
        let tags = format!("method:{method}");
        for name in ["http_req_duration", "http_req_failed"] {
            let value = told.metric(name, &tags).unwrap_or_else(empty);
            metrics.insert(format!("{name}{{{tags}}}"), value);
        }
    }
    for threshold in &result.thresholds {
        told.add(&mut metrics, threshold);
    }
    json!({
        "metrics": metrics,
        "root_group": { "name": "", "path": "", "id": ROOT_ID, "groups": {}, "checks": {} },
    })
}

/// Told always, by k6's names where it has one.
const METRICS: &[&str] = &[
    "http_reqs",
    "http_req_duration",
    "http_req_failed",
    "http_req_connecting",
    "iterations",
    "iteration_duration",
    "dropped_iterations",
    "vus",
    "vus_max",
    "data_sent",
    "data_received",
    "service",
    "limited",
    "goodput",
    "delivered",
];

/// The name under which a metric of a threshold is told.
fn k6_name(metric: &str) -> &str {
    match metric {
        "latency" => "http_req_duration",
        "failed" => "http_req_failed",
        "calls" => "http_reqs",
        "dropped" => "dropped_iterations",
        "iteration_time" => "iteration_duration",
        same => same,
    }
}

struct Told<'a> {
    result: &'a RunResult,
    totals: &'a Totals,
    methods: &'a [Box<str>],
}

impl Told<'_> {
    /// One metric over the calls that the tags pick; none if its name is not known.
    fn metric(&self, name: &str, tags: &str) -> Option<Value> {
        let generator = &self.result.generator.iterations;
        let iterations = self.iterations(tags);
        let traffic = &self.totals.traffic;
        let wanted = |slot: Slot| self.picks(tags, slot);
        Some(match name {
            "http_reqs" if tags.is_empty() => self.counter(traffic.requests),
            "http_reqs" => self.counter(self.totals.count(wanted)),
            "goodput" => {
                let wanted = |slot: Slot| wanted(slot) && slot.class == Class::Ok;
                let late = self.totals.count_late(wanted);
                self.counter(self.totals.count(wanted).saturating_sub(late))
            }
            "http_req_duration" => trend(&self.totals.latency(wanted)),
            "service" => trend(&self.service(wanted)),
            "http_req_failed" => self.rate(wanted, Class::failed),
            "limited" => self.rate(wanted, |class| class == Class::Limited),
            "http_req_connecting" => trend(&self.padded(&[&self.totals.connect_time])),
            "iterations" => self.counter(iterations.ended),
            "iteration_duration" => trend(&self.totals.iteration_time),
            "dropped_iterations" => self.counter(iterations.dropped),
            "delivered" => {
                let begun = generator.in_time();
                share(begun, generator.due.saturating_sub(begun))
            }
            "vus" => self.workers(),
            "vus_max" => self.workers_max(),
            "data_sent" => self.counter(traffic.bytes_sent),
            "data_received" => self.counter(traffic.bytes_received),
            _ => return None,
        })
    }

    fn iterations(&self, tags: &str) -> crate::record::Iterations {
        let mut sum = crate::record::Iterations::default();
        for (index, iterations) in self.totals.iterations.iter().enumerate() {
            if self.picks_stage(tags, index) {
                sum.add(*iterations);
            }
        }
        sum
    }

    fn picks(&self, tags: &str, slot: Slot) -> bool {
        let method = self.methods.get(usize::from(slot.method));
        tag(tags, "method").is_none_or(|name| method.is_some_and(|method| **method == *name))
            && self.picks_stage(tags, usize::from(slot.stage))
    }

    fn picks_stage(&self, tags: &str, index: usize) -> bool {
        let stage = self.result.stages.get(index);
        let of_scenario = |name: &str| stage.is_some_and(|stage| stage.scenario == name);
        tag(tags, "stage").is_none_or(|name| self.is_stage(index, name))
            && tag(tags, "scenario").is_none_or(of_scenario)
    }

    fn is_stage(&self, index: usize, name: &str) -> bool {
        let stage = self.result.stages.get(index);
        stage.is_some_and(|stage| {
            stage.stage == name || format!("{}/{}", stage.scenario, stage.stage) == name
        })
    }

    fn service(&self, wanted: impl Fn(Slot) -> bool) -> Times {
        let mut merged = crate::record::times();
        for (_, cell) in self.totals.cells.iter().filter(|(slot, _)| wanted(**slot)) {
            merged.add(&cell.service).expect("all histograms have one form");
        }
        merged
    }

    /// Times of some requests with a zero for every other request, as k6 counts connecting.
    fn padded(&self, parts: &[&Times]) -> Times {
        let mut all = crate::record::times();
        for &part in parts {
            all.add(part).expect("all histograms have one form");
        }
        let rest = self.totals.traffic.requests.saturating_sub(all.len());
        all.record_n(0, rest).expect("zero is within the bounds");
        all
    }

    fn counter(&self, count: u64) -> Value {
        let seconds = self.result.duration - self.result.plan.warmup;
        let rate = if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        json!({ "count": count, "rate": rate })
    }

    fn rate(&self, wanted: impl Fn(Slot) -> bool, is: impl Fn(Class) -> bool) -> Value {
        let all = self.totals.count(&wanted);
        let passes = self.totals.count(|slot| wanted(slot) && is(slot.class));
        share(passes, all - passes)
    }

    /// Busy workers at the ends of the seconds.
    fn workers(&self) -> Value {
        let busy = || self.result.series.iter().map(|second| second.workers_busy);
        json!({
            "value": busy().next_back().unwrap_or(0),
            "min": busy().min().unwrap_or(0),
            "max": busy().max().unwrap_or(0),
        })
    }

    /// The most workers seen busy: a result does not know how many more there were.
    fn workers_max(&self) -> Value {
        let most = self.result.series.iter().map(|second| second.workers_busy).max().unwrap_or(0);
        json!({ "value": most, "min": most, "max": most })
    }

    fn add(&self, metrics: &mut Map<String, Value>, threshold: &ThresholdOutcome) {
        let (metric, tags, expression) = parts(&threshold.text);
        let name = k6_name(metric);
        let key = if tags.is_empty() { name.to_owned() } else { format!("{name}{{{tags}}}") };
        let value =
            metrics.entry(key).or_insert_with(|| self.metric(name, tags).unwrap_or_else(empty));
        let Some(fields) = value.as_object_mut() else { return };
        let list = fields.entry("thresholds").or_insert_with(empty);
        if let Some(list) = list.as_object_mut() {
            list.insert(expression.to_owned(), Value::Bool(!threshold.kept));
        }
    }
}

/// Metric, tags and expression of a threshold as written.
fn parts(text: &str) -> (&str, &str, &str) {
    let text = text.trim();
    if let Some((metric, rest)) = text.split_once('{')
        && let Some((tags, expression)) = rest.split_once('}')
    {
        return (metric.trim(), tags.trim(), expression.trim());
    }
    let (metric, expression) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (metric, "", expression.trim())
}

/// The value of one tag in `method:eth_call,stage:steady`.
fn tag<'a>(tags: &'a str, name: &str) -> Option<&'a str> {
    tags.split(',').filter_map(|tag| tag.split_once(':')).find_map(|(key, value)| {
        (key.trim() == name).then(|| value.trim().trim_matches(['"', '\'']))
    })
}

/// A distribution in milliseconds; zeros without data, as k6 writes.
fn trend(times: &Times) -> Value {
    let at = |quantile: f64| {
        if times.is_empty() { 0.0 } else { times.value_at_quantile(quantile) as f64 / 1e6 }
    };
    let (mean, min) = match times.is_empty() {
        true => (0.0, 0.0),
        false => (times.mean() / 1e6, times.min() as f64 / 1e6),
    };
    json!({
        "avg": mean,
        "min": min,
        "med": at(0.5),
        "max": times.max() as f64 / 1e6,
        "p(90)": at(0.9),
        "p(95)": at(0.95),
    })
}

fn share(passes: u64, fails: u64) -> Value {
    let all = passes + fails;
    let value = if all == 0 { 0.0 } else { passes as f64 / all as f64 };
    json!({ "passes": passes, "fails": fails, "value": value })
}

fn empty() -> Value {
    Value::Object(Map::new())
}
