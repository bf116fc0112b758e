//! Reads k6's end-of-test summaries, which have three forms:
//!
//! ```text
//! {"metrics": {"http_reqs": {"count": 9}}}                          (--summary-export)
//! {"metrics": {"http_reqs": {"values": {"count": 9}}}}              (handleSummary)
//! {"results": {"metrics": [{"name": "http_reqs", "values": {…}}]}}  (k6 1.x)
//! ```
//!
//! k6's `http_req_duration` starts when the request is sent and excludes connecting. So it is
//! compared with service times, never with latency from the scheduled start.
//!
//! A submetric covers the calls with some tags. Its name ends in the tags, as in
//! `http_req_duration{method:eth_call}`.

use std::path::Path;

use lab_model::results::compare::Metric;
use serde_json::Value;

use super::{ImportFault, label};
use crate::analysis::comparability::Tool;
use crate::variant::{Run, TOTAL};

/// Returns true if the value looks like a summary of k6.
pub(super) fn is_summary(value: &Value) -> bool {
    value.get("metrics").is_some_and(Value::is_object)
        || value.pointer("/results/metrics").is_some_and(Value::is_array)
}

/// Returns the run of a summary, and notes about how k6 measured it.
pub(super) fn read(value: &Value, path: &Path) -> Result<(Run, Vec<String>), ImportFault> {
    let mut run = Run::new(&label(path), Tool::K6);
    let duration_seconds = value.pointer("/config/duration").and_then(Value::as_f64);
    let mut requests_per_second = None;
    let mut failed_share = None;
    for (name, values) in metrics(value) {
        let (metric, tags) = name.split_once('{').unwrap_or((name, ""));
        let tags = tags.trim_end_matches('}');
        match metric {
            "http_req_duration" => put_times(&mut run, tags, values),
            "http_req_failed" => {
                let share = number(values, &["rate", "value"]);
                if let Some((method, share)) = method_of(tags).zip(share) {
                    run.put(method, Metric::FailedShare, share);
                    failed_share = if tags.is_empty() { Some(share) } else { failed_share };
                }
            }
            "http_reqs" if tags.is_empty() => {
                let count = number(values, &["count"]);
                let mean_rate = count.zip(duration_seconds).map(|(count, seconds)| count / seconds);
                requests_per_second = number(values, &["rate"]).or(mean_rate);
            }
            _ => {}
        }
    }
    if run.values.is_empty() {
        return Err(ImportFault::empty(path, "the summary has no http_req_duration"));
    }
    if let Some(requests) = requests_per_second {
        run.put(TOTAL, Metric::Goodput, requests * (1.0 - failed_share.unwrap_or(0.0)));
    }
    let script = value.pointer("/config/script").and_then(Value::as_str);
    run.facts.load = script.map(|script| format!("a k6 script of {} bytes", script.len()));
    let mut notes = vec![
        "k6 measures from sending, without connecting and without waiting for a free worker, and \
         counts a JSON-RPC error with status 200 as success"
            .to_owned(),
    ];
    let has_total = |metric| run.values.contains_key(&(TOTAL.to_owned(), metric));
    if has_total(Metric::ServiceP50) && !has_total(Metric::ServiceP99) {
        notes.push(
            "the summary has no p(99): give k6 --summary-trend-stats avg,med,p(95),p(99) and the \
             older --summary-export"
                .to_owned(),
        );
    }
    Ok((run, notes))
}

/// Returns the name and the values of every metric, from any of the formats.
fn metrics(value: &Value) -> Vec<(&str, &Value)> {
    /// Returns the object with the numbers of a metric.
    fn values(metric: &Value) -> &Value {
        metric.get("values").unwrap_or(metric)
    }
    if let Some(Value::Object(map)) = value.get("metrics") {
        return map.iter().map(|(name, metric)| (name.as_str(), values(metric))).collect();
    }
    let list = value.pointer("/results/metrics").and_then(Value::as_array);
    let with_name = |metric| Some((Value::as_str(Value::get(metric, "name")?)?, values(metric)));
    list.into_iter().flatten().filter_map(with_name).collect()
}

/// Returns the method of a submetric: the value of its only tag, or [`TOTAL`] without tags. `None`
/// for several tags, and for a tag that k6 itself sets.
fn method_of(tags: &str) -> Option<&str> {
    if tags.is_empty() {
        return Some(TOTAL);
    }
    let (tag, method) = tags.split_once(':')?;
    let k6_tags = ["expected_response", "status", "scenario", "group", "proto", "url", "method"];
    let is_method = !method.contains(',') && !k6_tags.contains(&tag.trim());
    is_method.then(|| method.trim().trim_matches('"'))
}

/// Adds the times of a metric or submetric. `tags` is the part of its name in braces.
fn put_times(run: &mut Run, tags: &str, values: &Value) {
    let Some(method) = method_of(tags) else { return };
    // All values of a submetric without samples are zero.
    if number(values, &["max"]) == Some(0.0) {
        return;
    }
    for (metric, keys) in [
        (Metric::ServiceMean, ["avg", "avg"]),
        (Metric::ServiceP50, ["med", "p(50)"]),
        (Metric::ServiceP95, ["p(95)", "p95"]),
        (Metric::ServiceP99, ["p(99)", "p99"]),
    ] {
        if let Some(value) = number(values, &keys) {
            run.put(method, metric, value);
        }
    }
}

/// Returns the number under the first of the keys that exists.
fn number(values: &Value, keys: &[&str]) -> Option<f64> {
    keys.iter().find_map(|key| values.get(*key)?.as_f64())
}
