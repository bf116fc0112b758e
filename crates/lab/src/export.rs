//! What other programs see of a run while it goes on: Prometheus remote write, and an address to
//! scrape.
//!
//! One table of metrics, `export/table.rs`, feeds both and the page that lists them; `export/k6.rs`
//! is the same under k6's names. What people see is in `live`, what a run leaves behind in
//! `report`.

use std::net::SocketAddr;
use std::str::FromStr;

use thiserror::Error;

/// The same metrics under the names that k6 gives them.
mod k6;
/// The generated page.
mod page;
/// Messages of remote write.
mod proto;
/// What waits to be pushed, and when it is tried again.
mod queue;
/// A distribution in the form in which it is exported.
mod spread;
/// Every metric under its own name.
mod table;

/// Pushing to a receiver of remote write.
pub mod remote;
/// Waiting to be scraped.
pub mod scrape;

#[cfg(test)]
mod tests;

pub use page::reference;

/// Which names metrics have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// `weir_lab_…`, with units.
    #[default]
    Weir,
    /// Those of k6's Prometheus output, so that dashboards made for it work:
    /// <https://grafana.com/docs/k6/latest/results-output/real-time/prometheus-remote-write/>.
    K6,
}

/// How distributions are pushed.
#[derive(Clone, Debug, PartialEq)]
pub enum Trends {
    /// As native histograms, which can be added up and queried for any quantile.
    Native {
        /// Buckets for each doubling are 2 to the power of this; [`SCHEMA_MIN`] to [`SCHEMA_MAX`].
        schema: i32,
    },
    /// As one gauge for each of these, over the whole run so far. They cannot be added up.
    Stats(Vec<Stat>),
}

/// Least schema of native histograms that is allowed: buckets 2.2 % wide. A coarser one says less
/// of a latency than the run measured.
pub const SCHEMA_MIN: i32 = 5;
/// Largest schema that Prometheus knows: buckets 0.27 % wide.
pub const SCHEMA_MAX: i32 = 8;

impl Default for Trends {
    /// What k6's users look at, and what every receiver understands.
    fn default() -> Trends {
        let percentiles = [50.0, 95.0, 99.0].map(Stat::Percentile);
        Trends::Stats([vec![Stat::Avg, Stat::Max], percentiles.to_vec()].concat())
    }
}

/// One number of a distribution, written as k6 writes it: `avg`, `p(99)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stat {
    /// How many.
    Count,
    /// All added up, in seconds.
    Sum,
    /// Smallest.
    Min,
    /// Largest.
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
    /// The last part of a metric's name: `p99` for `p(99)`, `p999` for `p(99.9)`, as in k6.
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

/// Labels that every series gets beside its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Vec<(String, String)>);

impl Labels {
    /// Labels as they were asked for, each `name=value`.
    ///
    /// # Errors
    /// If a name is none by Prometheus's rules
    /// (<https://prometheus.io/docs/concepts/data_model/>), is given twice, is one that metrics
    /// have by themselves, or has no value.
    pub fn of<S: AsRef<str>>(written: &[S]) -> Result<Labels, ExportFault> {
        let mut labels: Vec<(String, String)> = Vec::new();
        for text in written.iter().map(AsRef::as_ref) {
            let fault = |reason| ExportFault::Label { text: text.to_owned(), reason };
            let (name, value) = text.split_once('=').ok_or_else(|| fault("has no ="))?;
            let legal = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
            let starts = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
            if !starts || !name.bytes().all(legal) || name.starts_with("__") {
                return Err(fault("its name is not letters, digits and _, from a letter on"));
            }
            if value.is_empty() {
                return Err(fault("has no value"));
            }
            if labels.iter().any(|(known, _)| known == name) {
                return Err(fault("its name is given twice"));
            }
            let metrics = table::METRICS.iter().chain(k6::METRICS);
            if metrics.flat_map(|metric| metric.labels).any(|own| *own == name) {
                return Err(fault("metrics have a label of this name by themselves"));
            }
            labels.push((name.to_owned(), value.to_owned()));
        }
        Ok(Labels(labels))
    }
}

/// Why something cannot be exported as it was asked for.
#[derive(Debug, Error)]
pub enum ExportFault {
    /// A label that cannot be.
    #[error(
        "label {text:?}: {reason}; allowed is name=value with a name of letters, digits and _ that \
         no metric has already"
    )]
    Label {
        /// As written.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A statistic that is none.
    #[error("trend statistic {0:?}; allowed are count, sum, min, max, avg, med and p(0) to p(100)")]
    Stat(String),
    /// No statistic at all.
    #[error("no trend statistic is given, at least one is needed")]
    NoStats,
    /// A schema that is too coarse, or that nobody knows.
    #[error("native histogram schema {0}; allowed are {SCHEMA_MIN} to {SCHEMA_MAX}")]
    Schema(i32),
    /// A URL that cannot be pushed to.
    #[error("remote write to {shown}: {reason}; allowed is http:// or https:// with a host")]
    Url {
        /// The URL without what may be secret.
        shown: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A header that cannot be sent.
    #[error("remote write header {name:?} cannot be sent: {reason}")]
    Header {
        /// Its name; the value may be secret.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An interval that is none.
    #[error("remote write interval of {0} s; allowed are 1 s and more")]
    Interval(f64),
    /// An address that cannot be listened on.
    #[error("cannot listen for scrapes on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A thread that cannot be started.
    #[error("cannot start a thread to export from")]
    Thread(#[source] std::io::Error),
}
