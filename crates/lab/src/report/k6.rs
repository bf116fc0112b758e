//! Writes a result in the format of k6's `--summary-export`, for tools that read k6 summaries.
//!
//! The summary lacks k6's http_req_blocked, _sending, _waiting and _receiving, because the lab does
//! not measure them. Two metrics are stricter than in k6: http_req_duration counts from the
//! scheduled send, and http_req_failed includes JSON-RPC errors inside HTTP 200. Metrics without an
//! equivalent in k6 have the lab's names, as custom metrics of a k6 script would.

use lab_model::metrics::{Collected, Counts, Kind, Metric, Selector};
use lab_model::record::{self, Class, Times, Totals};
use lab_model::results::ThresholdOutcome;
use lab_model::results::run::{RunResult, StageRow};
use serde_json::{Map, Value, json};

/// MD5 of the empty string, k6's id of the root group.
const ROOT_ID: &str = "d41d8cd98f00b204e9800998ecf8427e";

/// Returns the result without the warm-up in the format of k6's `--summary-export`. As in k6, a
/// threshold is true if it was broken.
///
/// The format is that of
/// <https://grafana.com/docs/k6/latest/results-output/end-of-test/#summary-export>; a test compares
/// it with the output of k6 1.8.1 (`testdata/k6`).
pub fn k6_summary(result: &RunResult, totals: &Totals, methods: &[Box<str>]) -> Value {
    let writer = SummaryWriter { result, totals, methods };
    let mut metrics = Map::new();
    let has_transactions = result.transactions.is_some();
    let is_measured = |metric: &Metric| has_transactions || !metric.is_of_transactions();
    for metric in Metric::ALL.into_iter().filter(is_measured) {
        metrics.insert(name_of(metric).into(), writer.metric(metric, ""));
    }
    writer.add_k6_metrics(&mut metrics);
    if result.wire.resumption.is_some() {
        let times =
            writer.pad_with_zeros(&[&totals.handshake_full_time, &totals.handshake_resumed_time]);
        metrics.insert("http_req_tls_handshaking".into(), trend(&times));
    }
    let ok_latency = totals.latency(|slot| slot.class == Class::Ok);
    metrics.insert("http_req_duration{expected_response:true}".into(), trend(&ok_latency));
    for method in methods {
        let tags = format!("method:{method}");
        for metric in [Metric::Latency, Metric::Failed] {
            metrics.insert(format!("{}{{{tags}}}", name_of(metric)), writer.metric(metric, &tags));
        }
    }
    for threshold in &result.thresholds {
        writer.add_threshold(&mut metrics, threshold);
    }
    json!({
        "metrics": metrics,
        "root_group": { "name": "", "path": "", "id": ROOT_ID, "groups": {}, "checks": {} },
    })
}

/// Returns the name of a metric in the summary.
fn name_of(metric: Metric) -> &'static str {
    metric.k6().unwrap_or(metric.as_str())
}

/// The data of the summary. `totals` refers to `methods` by index.
struct SummaryWriter<'a> {
    result: &'a RunResult,
    totals: &'a Totals,
    methods: &'a [Box<str>],
}

impl SummaryWriter<'_> {
    /// Returns one metric over the calls that the tags select, such as `method:eth_call`.
    /// Thresholds select calls in the same way.
    fn metric(&self, metric: Metric, tags: &str) -> Value {
        // k6 counts HTTP requests, and a batch of calls is one request.
        if metric == Metric::Calls && tags.is_empty() {
            return self.counter(self.totals.traffic.requests);
        }
        let mut sum = Collected::default();
        self.selector(metric, tags).collect(self.totals, &mut sum);
        let Counts { counted, total, .. } = sum.counts;
        match metric.kind() {
            Kind::Times => trend(&sum.times),
            Kind::Share => share(counted, total.saturating_sub(counted)),
            Kind::Counter => self.counter(counted),
        }
    }

    /// Adds the metrics of k6 that have no equivalent in the lab.
    fn add_k6_metrics(&self, metrics: &mut Map<String, Value>) {
        let traffic = &self.totals.traffic;
        let busy_workers = || self.result.series.iter().map(|second| second.workers_busy);
        let (min, max) = (busy_workers().min().unwrap_or(0), busy_workers().max().unwrap_or(0));
        let k6_metrics = [
            ("http_req_connecting", trend(&self.pad_with_zeros(&[&self.totals.connect_time]))),
            // k6's virtual users: the workers that are busy at the end of a second.
            (
                "vus",
                json!({ "value": busy_workers().next_back().unwrap_or(0), "min": min, "max": max }),
            ),
            // The largest number of busy workers. The result does not contain the number of idle
            // workers.
            ("vus_max", json!({ "value": max, "min": max, "max": max })),
            ("data_sent", self.counter(traffic.bytes_sent)),
            ("data_received", self.counter(traffic.bytes_received)),
        ];
        metrics.extend(k6_metrics.map(|(name, value)| (name.to_owned(), value)));
    }

    /// Converts tags to a selector of calls. A method, stage or scenario that the run does not have
    /// selects no calls.
    fn selector(&self, metric: Metric, tags: &str) -> Selector {
        /// An index that no method has.
        const NO_METHOD: usize = usize::MAX;
        let method_index = |name: &str| self.methods.iter().position(|method| **method == *name);
        let method = tag(tags, "method").map(|name| method_index(name).unwrap_or(NO_METHOD));
        let (stage, scenario) = (tag(tags, "stage"), tag(tags, "scenario"));
        let is_selected = |row: &StageRow| {
            let qualified_name = format!("{}/{}", row.scenario, row.stage);
            stage.is_none_or(|name| row.stage == name || qualified_name == name)
                && scenario.is_none_or(|name| row.scenario == name)
        };
        let stages = self.result.stages.iter().enumerate().filter(|(_, row)| is_selected(row));
        let stages = stages.map(|(index, _)| index).collect();
        let stages = (stage.is_some() || scenario.is_some()).then_some(stages);
        Selector { metric, method, stages }
    }

    /// Merges histograms, and adds a zero for every request without a time. k6 does the same for
    /// `http_req_connecting`: a request on a reused connection counts as zero.
    fn pad_with_zeros(&self, histograms: &[&Times]) -> Times {
        let mut padded = lab_model::record::empty_times();
        for &histogram in histograms {
            record::add_times(&mut padded, histogram);
        }
        let missing = self.totals.traffic.requests.saturating_sub(padded.len());
        padded.record_n(0, missing).expect("zero is within the bounds");
        padded
    }

    /// Returns a counter metric, with its rate over the measured time.
    fn counter(&self, count: u64) -> Value {
        let seconds = self.result.duration - self.result.plan.warmup;
        let rate = if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        json!({ "count": count, "rate": rate })
    }

    /// Adds the outcome of a threshold to its metric. A metric with tags is added if it is missing.
    fn add_threshold(&self, metrics: &mut Map<String, Value>, threshold: &ThresholdOutcome) {
        let (written_name, tags, expression) = split_threshold(&threshold.text);
        let metric = threshold.metric;
        let name = metric.map_or(written_name, |metric| name_of(metric));
        let key = if tags.is_empty() { name.to_owned() } else { format!("{name}{{{tags}}}") };
        let value = metrics.entry(key).or_insert_with(|| {
            metric.map_or_else(|| json!({}), |metric| self.metric(metric, tags))
        });
        let Some(fields) = value.as_object_mut() else { return };
        let list = fields.entry("thresholds").or_insert_with(|| json!({}));
        if let Some(list) = list.as_object_mut() {
            list.insert(expression.to_owned(), Value::Bool(!threshold.kept));
        }
    }
}

/// Splits a threshold such as `latency{method:eth_call} p(95)<800` into metric, tags and
/// expression.
fn split_threshold(text: &str) -> (&str, &str, &str) {
    let text = text.trim();
    if let Some((metric, after_brace)) = text.split_once('{')
        && let Some((tags, expression)) = after_brace.split_once('}')
    {
        return (metric.trim(), tags.trim(), expression.trim());
    }
    let (metric, expression) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (metric, "", expression.trim())
}

/// Returns the value of one tag in `method:eth_call,stage:steady`.
fn tag<'a>(tags: &'a str, name: &str) -> Option<&'a str> {
    tags.split(',').filter_map(|tag| tag.split_once(':')).find_map(|(key, value)| {
        (key.trim() == name).then(|| value.trim().trim_matches(['"', '\'']))
    })
}

/// Returns a trend metric (k6's name for a distribution) in milliseconds. Without data all values
/// are zero, as in k6.
fn trend(times: &Times) -> Value {
    let quantile_ms = |quantile: f64| {
        if times.is_empty() { 0.0 } else { times.value_at_quantile(quantile) as f64 / 1e6 }
    };
    let (mean, min) = match times.is_empty() {
        true => (0.0, 0.0),
        false => (times.mean() / 1e6, times.min() as f64 / 1e6),
    };
    json!({
        "avg": mean,
        "min": min,
        "med": quantile_ms(0.5),
        "max": times.max() as f64 / 1e6,
        "p(90)": quantile_ms(0.9),
        "p(95)": quantile_ms(0.95),
    })
}

/// Returns a rate metric (k6's name for a share).
fn share(passes: u64, fails: u64) -> Value {
    let total = passes + fails;
    let value = if total == 0 { 0.0 } else { passes as f64 / total as f64 };
    json!({ "passes": passes, "fails": fails, "value": value })
}
