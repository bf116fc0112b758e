//! The lab's part of `docs/metrics.md`, generated from the tables.

use super::table::{Kind, Metric};
use super::{k6, probe, table};

/// Text before the table of the metrics of a run.
const HEAD: &str = "
# Metrics of a run

`weir load` and `weir capacity` export these metrics during a run: they push them to a receiver of
Prometheus remote write, or serve them at an address to scrape. Counters start at zero with each run.
Pushed series end with a stale marker, so that graphs end with the run.

A *distribution* is pushed as a native histogram (`weir_lab_latency_seconds`), or as one gauge for
each requested statistic (`weir_lab_latency_seconds_p99`), over the whole run so far; scraped, it is
a classic histogram. A distribution without values is left out.

| name | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
";

/// Text before the table of the metrics under k6's names.
const K6: &str = "
## Under k6's names

Dashboards made for k6's Prometheus output work with these metrics. Their native histograms end in
`_seconds`, as k6's do. The differences from k6:

- `name` is the JSON-RPC method.
- A JSON-RPC error with HTTP 200 has `expected_response=\"false\"`.
- `k6_http_req_failed_rate` is the share of failed calls of a method, without 429; in k6 it is 0 or 1
  by `expected_response`, so that an average over it means little.
- Durations are measured from the scheduled time of a call; in k6 from sending it, which hides the
  wait behind a stalled server. `k6_http_req_waiting` is measured from sending.
- `status` is `4xx` or `5xx` where only the class is known, and `0` if there was no response.

| name | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
";

/// Text after the tables of a run's metrics.
const END: &str = "
## Example queries

| question | query |
| --- | --- |
| planned and started iterations per second | `sum(rate(weir_lab_iterations_scheduled_total[30s]))`, `sum(rate(weir_lab_iterations_started_total[30s]))` |
| results per second by method | `sum by (method) (rate(weir_lab_calls_total{class=\"ok\"}[30s]))` |
| share of calls by class | `sum by (class) (rate(weir_lab_calls_total[30s])) / ignoring(class) group_left sum(rate(weir_lab_calls_total[30s]))` |
| p99 by method, native histograms | `histogram_quantile(0.99, sum by (method) (rate(weir_lab_latency_seconds[30s])))` |
| whether the generator kept up | `histogram_quantile(0.99, rate(weir_lab_scheduling_delay_seconds[30s])) < 0.001` |
";

/// Text before the table of the metrics of a probe.
const PROBE: &str = "
# Metrics of a probe

`weir probe` serves these metrics, and pushes the same series by remote write; its
[page](probe.md) has example queries and alerts. A distribution is a classic histogram on both ways.

| name | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
";

/// Returns the lab's part of `docs/metrics.md`.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    table::METRICS.iter().for_each(|entry| push_row(&mut text, entry.metric));
    text.push_str(K6);
    k6::METRICS.iter().for_each(|entry| push_row(&mut text, entry.metric));
    text.push_str(END);
    text.push_str(PROBE);
    probe::METRICS.iter().for_each(|entry| push_row(&mut text, entry.metric));
    text
}

/// The declaration of a metric. Pages and files are generated from it.
#[derive(Clone, Debug)]
pub struct Declaration {
    /// Name of the samples. Samples of a distribution may have a further suffix.
    pub name: String,
    /// `counter`, `gauge`, `distribution` or `info`.
    pub kind: &'static str,
    /// Unit, which is the last part of the name; empty without a unit.
    pub unit: &'static str,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// Meaning of the metric, in one sentence.
    pub help: &'static str,
}

/// Returns the declarations of all metrics of a run under their own names.
pub fn declarations() -> Vec<Declaration> {
    table::METRICS.iter().map(|entry| Declaration::of(entry.metric)).collect()
}

impl Declaration {
    /// Returns the declaration of a metric.
    fn of(metric: &Metric) -> Declaration {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "distribution",
            Kind::Info => "info",
        };
        let Metric { unit, labels, help, .. } = *metric;
        Declaration { name: metric.sample_name(), kind, unit, labels, help }
    }
}

/// Adds the row of a metric to a Markdown table.
fn push_row(text: &mut String, metric: &Metric) {
    let Declaration { name, kind, unit, labels, help } = Declaration::of(metric);
    let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
    text.push_str(&format!("| `{name}` | {kind} | {unit} | {} | {help} |\n", labels.join(", ")));
}
