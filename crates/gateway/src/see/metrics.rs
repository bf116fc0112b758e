//! The state and the counters as OpenMetrics text for `/metrics`, and the page that lists them.
//!
//! One table, in `metrics/table.rs`, names every metric with its labels, its help and the function
//! that gives its samples; both the text and `docs/metrics.md` are made from it, so that neither
//! can have what the other lacks. Labels come from the configuration and from method tables, never
//! from clients: their number is bounded.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

use super::counters::LATENCY_BOUNDS;
use super::status::{self, Status};
use super::tally::{GroupTally, MethodTally, Spread, Tally};
use crate::quota::{Stand, unix_seconds};
use crate::shared::Shared;

mod table;

#[cfg(test)]
mod tests;

use table::METRICS;

/// The content type of [`text`] (OpenMetrics 1.0, section "Content Type").
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One metric of the table.
struct Metric {
    /// Its name with the unit, without the suffix that OpenMetrics adds by kind.
    name: &'static str,
    kind: Kind,
    /// Last part of the name where it is a unit, else empty.
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    /// Writes its samples.
    samples: fn(&Scrape, &mut Series<'_>) -> fmt::Result,
}

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Never falls.
    Counter,
    Gauge,
    Histogram,
    /// Always 1; what it says is in its labels.
    Info,
}

/// Everything at the instant of one scrape.
#[derive(Debug)]
struct Scrape {
    status: Status,
    tally: Tally,
    /// By chain.
    methods: Vec<Vec<&'static str>>,
    /// By place in the tally.
    keys: Vec<String>,
    /// By place in the tally.
    rules: Vec<String>,
    /// Lines of the access log that the file did not take.
    log_unwritten: u64,
    /// Whether gateways share zones.
    shared_zones: bool,
    /// None where no key has a quota.
    quotas: Option<QuotaScrape>,
    /// Messages sent and heard; none where the tier in Redis is off.
    redis: Option<(u64, u64)>,
    has_index: bool,
}

/// How quotas stand.
#[derive(Debug)]
struct QuotaScrape {
    keys: Vec<Stand>,
    refused: u64,
    alone: bool,
    write_failures: u64,
}

/// Where the samples of one metric are written.
struct Series<'a> {
    encoder: MetricEncoder<'a>,
    metric: &'static Metric,
}

/// The text for `/metrics`.
pub(crate) fn text(shared: &Shared) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape::of(shared)));
    let mut text = String::with_capacity(64 * 1024);
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("writing into a string cannot fail");
    text
}

/// The text of `docs/metrics.md`.
pub fn reference() -> String {
    let mut text = String::from(REFERENCE_HEAD);
    for metric in METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let unit = if metric.unit.is_empty() { "" } else { metric.unit };
        let row = [
            format!("`{}{}`", metric.name, metric.kind.suffix()),
            metric.kind.as_str().to_owned(),
            unit.to_owned(),
            labels.join(", "),
            metric.help.to_owned(),
        ];
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text.push_str(REFERENCE_END);
    text
}

const REFERENCE_HEAD: &str = "\
# Metrics

<!-- Printed by `cargo xtask generate` from crates/gateway/src/see/metrics/table.rs. Do not edit. -->

`GET /metrics` on the admin address answers with OpenMetrics text, which Prometheus reads as it is:

```yaml
scrape_configs:
  - job_name: weir
    static_configs:
      - targets: [\"127.0.0.1:8646\"]
```

Counters begin at zero when the gateway starts. A series of a method appears with the method's
first call.

| name | type | unit | labels | what it says |
| --- | --- | --- | --- | --- |
";

const REFERENCE_END: &str = "
## Labels

- `chain`, `node`, `group`: names from the configuration.
- `method`: a method of the chain's table; `other` for every method that the table does not know,
  so that clients cannot make labels.
- `cache`: `hit` (from memory or Redis, or known without asking a node), `miss` (from a node, kept if it
  may be), `join` (from a call to a node that another client had begun), `bypass` (from a node, may
  not be kept).
- `outcome`: of attempts `ok`, `failed` (the node did not answer, or not with an answer),
  `rate_limited` (the node refused because it is called too often); of request limits `passed`,
  `delayed`, `rejected`, and what a dry run would have done, `delayed_dry_run` and
  `rejected_dry_run`; of reloads `applied` or `refused`.
- `zone`: a zone of request limits, from the configuration.
- `class`: `high`, `normal` or `low`; `reason` of a call that is shed: `full` (as many waited as may),
  `displaced` (it gave way to a better or newer one), `late` (it had waited long enough).
- `by`: `redis` (its script judged the call), `share` (Redis is away: this gateway's part of rate and
  burst did), `memory` (refused without asking, by what Redis had said of the key before).
- `state`: `healthy`, `lagging`, `probing`, `paused`, `ejected`, `foreign`; one of them is 1.
- `outcome` of lookups in Redis: `hit`, `miss`, `stale` (the value does not hold by this gateway's
  view of the chain), `refused` (it is not a value that a gateway wrote), `error`, `timeout`,
  `skipped` (Redis is left alone for a while).
- `outcome` of stores in Redis: `ok`, `failed`, `dropped` (no proof came that the answer is about
  its block, too many were under way, or Redis is left alone).
- `direction`: `sent`, `heard`.
- `transport`: `websocket` or `ipc`.
- `status`: the HTTP status that the request was refused with.
- `version`, `handshake`: `1.2` or `1.3`; `full` or `resumed`.
- `reason` of a TLS handshake: `timeout`, `closed` (the client has gone), `not_tls`,
  `nothing_in_common` (no version, cipher or the like that both speak), `certificate_missing` and
  `certificate_refused` (of the client), `alert` (the client has refused), `other`.
- `reason` of a PROXY header: `untrusted`, `malformed`, `timeout`.
- `reason` of a denial: `no_key`, `bad_key`, `expired`, `two_keys`, `address`, `chain` for whole requests;
  `node_method`, `transaction`, `method`, `rule` for calls.
- `key`: name of a key, or of an issuer of tokens; `rule`: name of a rule. Both from the
  configuration.

## Questions and their queries

| question | query |
| --- | --- |
| calls per second | `sum(rate(weir_calls_total[1m]))` |
| share answered from memory | `sum(rate(weir_calls_total{cache=\"hit\"}[5m])) / sum(rate(weir_calls_total[5m]))` |
| p99 by method | `histogram_quantile(0.99, sum by (le, method) (rate(weir_call_duration_seconds_bucket[5m])))` |
| share of calls that no node answered | `sum(rate(weir_call_failures_total[5m])) / sum(rate(weir_calls_total[5m]))` |
| nodes that are out | `weir_node_state{state=~\"ejected\\|foreign\"} == 1` |
| calls per second told to come back later | `sum by (group, class) (rate(weir_group_shed_total[1m]))` |
| a chain that stands still | `weir_chain_head_age_seconds > 60` |
";

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        }
    }

    /// What OpenMetrics appends to the names of samples of this kind.
    fn suffix(self) -> &'static str {
        match self {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        }
    }
}

impl Scrape {
    fn of(shared: &Shared) -> Scrape {
        let tally = Tally::of(&shared.counters);
        Scrape {
            status: Status::with(shared, &tally),
            methods: shared
                .chains
                .iter()
                .map(|chain| status::method_names(chain).collect())
                .collect(),
            keys: shared.config.access.counted_names().map(str::to_owned).collect(),
            rules: shared.config.rules.iter().map(|rule| rule.name.to_string()).collect(),
            log_unwritten: shared.access_log.as_ref().map_or(0, |queues| queues.unwritten()),
            quotas: shared.quotas.as_ref().map(|quotas| QuotaScrape {
                keys: quotas.stands(&shared.config, unix_seconds()),
                refused: quotas.book.refused.load(Ordering::Relaxed),
                alone: quotas.is_alone(),
                write_failures: quotas.book.write_failures.load(Ordering::Relaxed),
            }),
            shared_zones: crate::redis::zones::is_wanted(&shared.config),
            has_index: shared.lineage.index().is_some(),
            redis: shared.redis.as_ref().map(|redis| {
                let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
                (count(&redis.messages_sent), count(&redis.messages_heard))
            }),
            tally,
        }
    }

    /// Every method with calls: its chain, its name and its counts.
    fn methods(&self) -> impl Iterator<Item = (&str, &'static str, &MethodTally)> {
        let chains = self.status.chains.iter().zip(&self.methods).zip(&self.tally.methods);
        chains.flat_map(|((chain, names), tallies)| {
            let called = names.iter().zip(tallies).filter(|(_, tally)| tally.calls() > 0);
            called.map(|(name, tally)| (&*chain.name, *name, tally))
        })
    }

    /// Every group with the name of its chain and its counts.
    fn groups(&self) -> impl Iterator<Item = (&str, &status::GroupStatus, &GroupTally)> {
        let chains = self.status.chains.iter();
        chains.flat_map(|chain| {
            let groups = chain.groups.iter();
            groups.map(|group| (&*chain.name, group, &self.tally.groups[group.index]))
        })
    }

    /// Every node with the name of its chain.
    fn nodes(&self) -> impl Iterator<Item = (&str, &status::NodeStatus)> {
        let chains = self.status.chains.iter();
        chains.flat_map(|chain| chain.nodes.iter().map(|node| (&*chain.name, node)))
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for metric in METRICS {
            let unit = (!metric.unit.is_empty()).then(|| Unit::Other(metric.unit.to_owned()));
            // The encoder appends the unit to the name by itself.
            let name = metric.name.strip_suffix(metric.unit).unwrap_or(metric.name);
            let name = if metric.unit.is_empty() { name } else { name.trim_end_matches('_') };
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
                Kind::Info => MetricType::Info,
            };
            let encoder = encoder.encode_descriptor(name, metric.help, unit.as_ref(), kind)?;
            (metric.samples)(self, &mut Series { encoder, metric })?;
        }
        Ok(())
    }
}

impl Series<'_> {
    /// A counter's sample.
    fn count(&mut self, labels: &[&str], value: u64) -> fmt::Result {
        self.with(labels, |encoder| {
            encoder.encode_counter(&value, None::<&Exemplar<NoLabelSet, f64>>)
        })
    }

    /// A gauge's sample that is a whole number.
    fn gauge(&mut self, labels: &[&str], value: u64) -> fmt::Result {
        self.with(labels, |encoder| encoder.encode_gauge(&value))
    }

    /// A gauge's sample.
    fn gauge_real(&mut self, labels: &[&str], value: f64) -> fmt::Result {
        self.with(labels, |encoder| encoder.encode_gauge(&value))
    }

    /// A histogram's samples.
    fn spread(&mut self, labels: &[&str], spread: &Spread) -> fmt::Result {
        let bounds = LATENCY_BOUNDS.into_iter().chain(std::iter::once(f64::INFINITY));
        let buckets: Vec<(f64, u64)> = bounds.zip(spread.buckets).collect();
        let sum = spread.sum_micros as f64 / 1e6;
        self.with(labels, |encoder| {
            encoder.encode_histogram::<NoLabelSet>(sum, spread.count(), &buckets, None)
        })
    }

    /// An info's only sample.
    fn info(&mut self, values: &[&str]) -> fmt::Result {
        self.encoder.encode_info(&self.labels(values))
    }

    fn with(
        &mut self,
        values: &[&str],
        sample: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        if values.is_empty() {
            return sample(&mut self.encoder);
        }
        let labels = self.labels(values);
        sample(&mut self.encoder.encode_family(&labels)?)
    }

    fn labels<'v>(&self, values: &[&'v str]) -> Vec<(&'static str, &'v str)> {
        let names = self.metric.labels;
        assert_eq!(names.len(), values.len(), "{} has these labels: {names:?}", self.metric.name);
        names.iter().copied().zip(values.iter().copied()).collect()
    }
}
