//! Samples of the target's host from a prometheus-node-exporter, under the same metric names as
//! those of this host. It requests `/metrics` every second over plain HTTP.

mod counters;
mod parse;

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lab_model::plan::NodeUrl;
use parking_lot::Mutex;

use super::values::Values;
use super::{Waiting, push, seconds_since};

use counters::Scrape;

/// Interval between two scrapes. The exporter needs a few milliseconds for each.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
/// The exporter's default port.
const DEFAULT_PORT: u16 = 9_100;
/// Timeout of a connect, and of each read and write.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a page. The page of a host with many devices has about 500 kB.
const PAGE_BYTES_MAX: u64 = 16 << 20;

/// A node-exporter.
#[derive(Clone, Debug)]
pub(super) struct Exporter {
    url: NodeUrl,
    port: u16,
}

/// Why a scrape failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The URL is not `http://HOST[:PORT][/PATH]`.
    #[error("use http://HOST:PORT/metrics")]
    Url,
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The status is not 200.
    #[error("the response has HTTP status {0}")]
    Status(u16),
    /// The response is not HTTP.
    #[error("the response is not HTTP")]
    NotHttp,
    /// The page has no CPU metrics.
    #[error("the page has no metric node_cpu_seconds_total")]
    NotMetrics,
}

/// Counts of scrapes.
#[derive(Debug, Default)]
pub(super) struct ScrapeCounts {
    pub(super) total: u64,
    pub(super) failed: u64,
    pub(super) last_fault: Option<String>,
}

impl Exporter {
    /// Creates an exporter. The default port is 9100, the default path `/metrics`.
    ///
    /// # Errors
    /// Fails if the URL is not plain HTTP, or has a user part.
    pub(super) fn new(url: &NodeUrl) -> Result<Exporter, Fault> {
        if url.tls() || url.authorization().is_some() {
            return Err(Fault::Url);
        }
        let has_port = url.authority().ends_with(&format!(":{}", url.port()));
        let port = if has_port { url.port() } else { DEFAULT_PORT };
        Ok(Exporter { url: url.clone(), port })
    }

    /// Scrapes once.
    ///
    /// # Errors
    /// Fails if there is no response, or no page of node metrics.
    pub(super) fn scrape(&self) -> Result<Scrape, Fault> {
        let path = if self.url.target() == "/" { "/metrics" } else { self.url.target() };
        let mut addresses = (self.url.host(), self.port).to_socket_addrs()?;
        let address = addresses.next().ok_or(io::ErrorKind::NotFound).map_err(io::Error::from)?;
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        // HTTP/1.0 gives an unchunked page that ends with the connection.
        let head = format!(
            "GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: text/plain;version=0.0.4\r\n\r\n",
            self.url.authority()
        );
        stream.write_all(head.as_bytes())?;
        let mut response = Vec::new();
        stream.take(PAGE_BYTES_MAX).read_to_end(&mut response)?;
        let scrape = Scrape::parse(page(&response)?);
        if scrape.cores == 0.0 { Err(Fault::NotMetrics) } else { Ok(scrape) }
    }

    /// Scrapes until `stop` is closed. Sends the samples to `waiting`.
    pub(super) fn run(
        &self,
        origin: Instant,
        first_sample: (Instant, Scrape),
        waiting: &Arc<Waiting>,
        stop: &Receiver<()>,
        scrapes: &Mutex<ScrapeCounts>,
    ) {
        let (mut last_time, mut previous) = first_sample;
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
                    let time = now.saturating_duration_since(last_time);
                    scrape.add_values(&previous, time, &mut values);
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

/// Returns the body of a response with status 200.
fn page(response: &[u8]) -> Result<&str, Fault> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = head.parse(response) else {
        return Err(Fault::NotHttp);
    };
    match head.code {
        Some(200) => std::str::from_utf8(&response[length..]).map_err(|_| Fault::NotMetrics),
        Some(status) => Err(Fault::Status(status)),
        None => Err(Fault::NotHttp),
    }
}

#[cfg(test)]
mod tests;
