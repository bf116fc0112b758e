//! The declared metrics, by the names under which Prometheus stores their series.

use std::collections::BTreeMap;

/// The form in which the values of a metric are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    /// Buckets, their sum and their count.
    Histogram,
    /// Values of a load run: a native histogram, or one gauge for each statistic, such as `p99`.
    Distribution,
    /// Always 1; the information is in the labels.
    Info,
}

/// A metric, or a series that a recording rule stores.
#[derive(Clone, Debug)]
pub(super) struct Metric {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// The unit in the name, such as `seconds`. Empty if the name has no unit.
    pub(super) unit: &'static str,
    pub(super) labels: Vec<&'static str>,
    pub(super) help: &'static str,
}

/// All metrics that a query may name.
#[derive(Debug)]
pub(super) struct Catalogue {
    metrics: BTreeMap<String, Metric>,
}

/// Returns the metrics of the gateway.
pub(super) fn gateway() -> Catalogue {
    let declarations = gateway::admin::metrics::list_declarations().into_iter();
    Catalogue::new(declarations.map(|metric| Metric {
        name: metric.name,
        kind: parse_kind(&metric.kind),
        unit: metric.unit,
        labels: metric.labels,
        help: metric.help,
    }))
}

/// Returns the metrics of a load run.
pub(super) fn lab() -> Catalogue {
    let declarations = lab::export::declarations().into_iter();
    Catalogue::new(declarations.map(|metric| Metric {
        name: metric.name,
        kind: parse_kind(metric.kind),
        unit: metric.unit,
        labels: metric.labels.to_vec(),
        help: metric.help,
    }))
}

fn parse_kind(word: &str) -> Kind {
    match word {
        "counter" => Kind::Counter,
        "gauge" => Kind::Gauge,
        "histogram" => Kind::Histogram,
        "distribution" => Kind::Distribution,
        "info" => Kind::Info,
        _ => panic!("{word} is no type of a metric"),
    }
}

impl Catalogue {
    fn new(metrics: impl Iterator<Item = Metric>) -> Catalogue {
        Catalogue { metrics: metrics.map(|metric| (metric.name.clone(), metric)).collect() }
    }

    /// Adds a series that a recording rule stores.
    pub(super) fn add(&mut self, metric: Metric) {
        self.metrics.insert(metric.name.clone(), metric);
    }

    /// Returns all metrics, sorted by name.
    pub(super) fn metrics(&self) -> impl Iterator<Item = &Metric> {
        self.metrics.values()
    }

    /// Finds the metric of a series. For example, `NAME_bucket` is a series of the histogram
    /// `NAME`.
    pub(super) fn find(&self, series: &str) -> Option<&Metric> {
        self.metrics.get(series).or_else(|| {
            let (name, suffix) = series.rsplit_once('_')?;
            let metric = self.metrics.get(name)?;
            let suffixes: &[&str] = match metric.kind {
                Kind::Histogram => &["bucket", "sum", "count"],
                // The default of `weir load --metric-trends`.
                Kind::Distribution => &["avg", "max", "p50", "p95", "p99"],
                Kind::Counter | Kind::Gauge | Kind::Info => &[],
            };
            suffixes.contains(&suffix).then_some(metric)
        })
    }
}
