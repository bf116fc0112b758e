//! Exports metrics to other programs while a run or `weir probe` is in progress. Prometheus remote
//! write pushes them, or a scraper reads them at an address.
//!
//! Remote write, the scrape address and the page that lists the metrics share one table of a run's
//! metrics, `export/table.rs`. `export/k6.rs` has the metrics of a run under k6's names.
//! `export/probe.rs` has the metrics of `weir probe`, which watches targets with a few calls.
//!
//! `live` prints output for people, and `report` writes the files of a finished run.

use std::net::SocketAddr;
use std::str::FromStr;

use thiserror::Error;

/// Distributions in the formats of exports.
mod distribution;
/// The metrics of a run under the names that k6 gives them.
mod k6;
/// The generated list of metrics in `docs/metrics.md`.
mod page;
/// The metrics of a probe.
mod probe;
/// The protobuf messages of remote write.
mod proto;
/// The queue of pushes, with retries.
mod queue;
/// The metrics of a run under their own names.
mod table;

/// Pushing to a receiver of remote write.
pub mod remote;
/// An HTTP address that can be scraped.
pub mod scrape;

#[cfg(test)]
mod tests;

pub use page::{Declaration, declarations, reference};

/// The naming scheme of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// `weir_lab_…`, with units.
    #[default]
    Weir,
    /// The names of k6's Prometheus output, for which dashboards exist:
    /// <https://grafana.com/docs/k6/latest/results-output/real-time/prometheus-remote-write/>.
    K6,
}

impl Names {
    /// Returns the table of a run's metrics under these names.
    fn table(self) -> &'static [table::RunEntry] {
        match self {
            Names::Weir => table::METRICS,
            Names::K6 => k6::METRICS,
        }
    }
}

/// Format in which distributions are pushed.
#[derive(Clone, Debug, PartialEq)]
pub enum Trends {
    /// As native histograms, which can be aggregated and queried for any quantile.
    Native {
        /// Resolution: each doubling of the value has `2^schema` buckets. From [`SCHEMA_MIN`] to
        /// [`SCHEMA_MAX`].
        schema: i32,
    },
    /// As one gauge for each statistic, over the whole run so far. Such gauges cannot be combined
    /// into a statistic over several series.
    Stats(Vec<Stat>),
}

/// Lowest allowed schema of native histograms. Its buckets are 2.2 % wide; the buckets of the run's
/// own histograms are 0.1 % wide.
pub const SCHEMA_MIN: i32 = 5;
/// Highest schema that Prometheus supports. Its buckets are 0.27 % wide.
pub const SCHEMA_MAX: i32 = 8;

impl Default for Trends {
    /// Returns the statistics that k6's users expect, in a format that every receiver accepts.
    fn default() -> Trends {
        let percentiles = [50.0, 95.0, 99.0].map(Stat::Percentile);
        Trends::Stats([vec![Stat::Avg, Stat::Max], percentiles.to_vec()].concat())
    }
}

/// A statistic of a distribution, in k6's notation: `avg`, `p(99)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stat {
    /// Number of values.
    Count,
    /// Sum in seconds.
    Sum,
    /// Smallest value.
    Min,
    /// Largest value.
    Max,
    /// Mean.
    Avg,
    /// Median.
    Med,
    /// Percentile, 0 to 100.
    Percentile(f64),
}

impl FromStr for Stat {
    type Err = ExportFault;

    fn from_str(text: &str) -> Result<Stat, ExportFault> {
        let percentile = || {
            let number = text.strip_prefix("p(")?.strip_suffix(')')?;
            let number: f64 = number.parse().ok()?;
            (0.0..=100.0).contains(&number).then_some(Stat::Percentile(number))
        };
        match text {
            "count" => Ok(Stat::Count),
            "sum" => Ok(Stat::Sum),
            "min" => Ok(Stat::Min),
            "max" => Ok(Stat::Max),
            "avg" => Ok(Stat::Avg),
            "med" => Ok(Stat::Med),
            _ => percentile().ok_or_else(|| ExportFault::Stat(text.to_owned())),
        }
    }
}

impl Stat {
    /// Returns the last part of a metric's name, as in k6: `p99` for `p(99)`, `p999` for `p(99.9)`.
    fn suffix(self) -> String {
        match self {
            Stat::Count => "count".to_owned(),
            Stat::Sum => "sum".to_owned(),
            Stat::Min => "min".to_owned(),
            Stat::Max => "max".to_owned(),
            Stat::Avg => "avg".to_owned(),
            Stat::Med => "med".to_owned(),
            Stat::Percentile(number) => format!("p{number}").replace('.', ""),
        }
    }
}

/// Labels that are added to every series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Vec<(String, String)>);

impl Labels {
    /// Parses labels of the form `name=value`.
    ///
    /// # Errors
    /// Fails if a value is missing, or if a name is given twice, is used by one of the metrics, or
    /// is not valid in Prometheus (<https://prometheus.io/docs/concepts/data_model/>).
    pub fn parse<S: AsRef<str>>(arguments: &[S]) -> Result<Labels, ExportFault> {
        let mut labels: Vec<(String, String)> = Vec::new();
        for text in arguments.iter().map(AsRef::as_ref) {
            let fault = |reason| ExportFault::Label { text: text.to_owned(), reason };
            let (name, value) = text.split_once('=').ok_or_else(|| fault("the = is missing"))?;
            let is_allowed = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
            let has_valid_start = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
            if !has_valid_start || !name.bytes().all(is_allowed) || name.starts_with("__") {
                return Err(fault(
                    "the name must consist of letters, digits and _ and not begin with a digit or __",
                ));
            }
            if value.is_empty() {
                return Err(fault("the value is missing"));
            }
            if labels.iter().any(|(known, _)| known == name) {
                return Err(fault("the name is given twice"));
            }
            let run_metrics = table::METRICS.iter().chain(k6::METRICS).map(|entry| entry.metric);
            let mut metrics = run_metrics.chain(probe::METRICS.iter().map(|entry| entry.metric));
            if metrics.any(|metric| metric.labels.contains(&name)) {
                return Err(fault("a metric already has a label of this name"));
            }
            labels.push((name.to_owned(), value.to_owned()));
        }
        Ok(Labels(labels))
    }
}

/// Reason why metrics cannot be exported as requested.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each field is a part of the message")]
pub enum ExportFault {
    /// An invalid label.
    #[error(
        "label {text:?}: {reason}; allowed is name=value with a name of letters, digits and _ that \
         no metric uses"
    )]
    Label {
        /// The label as it was written.
        text: String,
        reason: &'static str,
    },
    /// An unknown statistic.
    #[error("trend statistic {0:?}; allowed are count, sum, min, max, avg, med and p(0) to p(100)")]
    Stat(String),
    /// No statistic.
    #[error("no trend statistic is given, at least one is needed")]
    NoStats,
    /// A schema outside the allowed range.
    #[error("native histogram schema {0}; allowed are {SCHEMA_MIN} to {SCHEMA_MAX}")]
    Schema(i32),
    /// An invalid URL.
    #[error("remote write to {shown}: {reason}; allowed is http:// or https:// with a host")]
    Url {
        /// The URL with secrets masked.
        shown: String,
        reason: String,
    },
    /// Listening on an address failed.
    #[error("cannot listen for scrapes on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    /// Starting a thread failed.
    #[error("cannot start the export thread")]
    Thread(#[source] std::io::Error),
}
