//! Samples the target's host through a prometheus-node-exporter. Requests the exporter's `/metrics`
//! page every second over plain HTTP. The values have the same metric names as the values of this
//! host, on which the load generator runs.

mod counters;
mod parse;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lab_model::plan::NodeUrl;
use parking_lot::Mutex;

use super::values::Values;
use super::{Waiting, push, seconds_since};

use counters::Scrape;

/// Interval between two scrapes. The exporter needs a few milliseconds for each scrape.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
/// The exporter's default port.
const DEFAULT_PORT: u16 = 9_100;
/// Timeout of a scrape.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a page in bytes. The page of a host with many devices has about 500 kB.
const PAGE_BYTES_MAX: u64 = 16 << 20;

/// A node-exporter.
#[derive(Clone, Debug)]
pub(super) struct Exporter {
    /// URL of the page, with the port and the path.
    url: String,
    agent: ureq::Agent,
}

/// Why a scrape failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScrapeFault {
    /// The URL is not `http://HOST[:PORT][/PATH]`.
    #[error("use http://HOST:PORT/metrics")]
    Url,
    /// The connection failed, or the response is not HTTP.
    #[error("{0}")]
    Http(#[from] ureq::Error),
    /// The status is not 200.
    #[error("the response has HTTP status {0}")]
    Status(u16),
    /// The page has no CPU metrics.
    #[error("the page has no metric node_cpu_seconds_total")]
    NotMetrics,
}

/// Counts of scrapes.
#[derive(Debug, Default)]
pub(super) struct ScrapeCounts {
    /// Number of scrapes.
    pub(super) total: u64,
    /// Number of scrapes that failed.
    pub(super) failed: u64,
    /// Why the last failed scrape failed; `None` if no scrape failed.
    pub(super) last_fault: Option<String>,
}

impl Exporter {
    /// Creates an exporter. The default port is 9100, the default path `/metrics`.
    ///
    /// # Errors
    /// Fails if the URL is not plain HTTP, or has a user part.
    pub(super) fn new(url: &NodeUrl) -> Result<Exporter, ScrapeFault> {
        if url.tls() || url.authorization().is_some() {
            return Err(ScrapeFault::Url);
        }
        let authority = url.authority();
        let has_port = authority.ends_with(&format!(":{}", url.port()));
        let port = if has_port { String::new() } else { format!(":{DEFAULT_PORT}") };
        let path = if url.target() == "/" { "/metrics" } else { url.target() };
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(0)
            .build()
            .new_agent();
        Ok(Exporter { url: format!("http://{authority}{port}{path}"), agent })
    }

    /// Scrapes once.
    ///
    /// # Errors
    /// Fails if there is no response with status 200, or if the page has no CPU metrics.
    pub(super) fn scrape(&self) -> Result<Scrape, ScrapeFault> {
        let request = self.agent.get(&self.url).header("accept", "text/plain;version=0.0.4");
        let mut response = request.call()?;
        if response.status() != 200 {
            return Err(ScrapeFault::Status(response.status().as_u16()));
        }
        let page = response.body_mut().with_config().limit(PAGE_BYTES_MAX).read_to_string()?;
        let scrape = Scrape::parse(&page);
        if scrape.cores == 0.0 { Err(ScrapeFault::NotMetrics) } else { Ok(scrape) }
    }

    /// Scrapes until `stop` is closed, and appends the samples to `waiting`. `origin` is the start
    /// of the run.
    pub(super) fn run(
        &self,
        origin: Instant,
        first_scrape: (Instant, Scrape),
        waiting: &Arc<Waiting>,
        stop: &Receiver<()>,
        scrapes: &Mutex<ScrapeCounts>,
    ) {
        let (mut last_time, mut previous) = first_scrape;
        let mut next_scrape = Instant::now();
        loop {
            next_scrape = (next_scrape + SCRAPE_INTERVAL).max(Instant::now());
            match stop.recv_timeout(next_scrape.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
            let response = self.scrape();
            let now = Instant::now();
            scrapes.lock().total += 1;
            match response {
                Ok(scrape) => {
                    let mut values = Values::default();
                    let elapsed = now.saturating_duration_since(last_time);
                    scrape.add_values(&previous, elapsed, &mut values);
                    push(waiting, values.sample(seconds_since(origin, now), "target"));
                    (last_time, previous) = (now, scrape);
                }
                Err(fault) => {
                    let mut scrapes = scrapes.lock();
                    scrapes.failed += 1;
                    scrapes.last_fault = Some(fault.to_string());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
