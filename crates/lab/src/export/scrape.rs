//! An address at which a run's metrics can be scraped: `GET /metrics`, OpenMetrics text.
//!
//! The thread that displays the run collects the samples every few seconds. The size of requests,
//! their time and the number of connections are limited. So a client can only occupy one of a few
//! threads for a short time.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

use super::distribution::{BOUNDS, Form, Shape};
use super::table::{Kind, Metric, Sample, Value, collect_samples};
use super::{ExportFault, Labels, Names, k6, table};
use crate::run::Progress;

#[cfg(test)]
mod tests;

/// Time between two collections, as in remote write. Each collection takes some of the run's CPU
/// time.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum length of a request head. Scrapers send a few hundred bytes.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of concurrent connections. Further ones are closed at once.
const CONNECTIONS_MAX: usize = 8;
/// Maximum time of a connection, also at the end of a run.
const TIME_MAX: Duration = Duration::from_secs(2);

/// The content type of the text (OpenMetrics 1.0, section "Content Type").
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An HTTP server for scrapes; it runs until it is finished or dropped.
#[derive(Debug)]
pub struct Scrape {
    table: &'static [Metric],
    next: Duration,
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    labels: Labels,
    /// The list is replaced as a whole, so the lock is held only briefly.
    samples: Mutex<Arc<Vec<Sample>>>,
    connections: AtomicUsize,
    stopped: AtomicBool,
}

impl Scrape {
    /// Starts listening; port 0 means any free port.
    ///
    /// # Errors
    /// If it cannot listen on the address.
    pub fn listen(
        address: SocketAddr,
        names: Names,
        labels: Labels,
    ) -> Result<Scrape, ExportFault> {
        let fault = |source| ExportFault::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        let shared = Arc::new(Shared {
            labels,
            samples: Mutex::default(),
            connections: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        });
        let server = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("scrape".to_owned())
            .spawn(move || serve(&listener, &server))
            .map_err(ExportFault::Thread)?;
        let table = match names {
            Names::Weir => table::METRICS,
            Names::K6 => k6::METRICS,
        };
        Ok(Scrape { table, next: Duration::ZERO, address, shared, thread: Some(thread) })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes the progress at the end of a second. Never waits for a scraper.
    pub fn update(&mut self, progress: &Progress<'_>) {
        if progress.elapsed < self.next && progress.elapsed < progress.duration {
            return;
        }
        self.next = progress.elapsed + INTERVAL;
        let samples = collect_samples(self.table, progress, &Form::Classic);
        *self.shared.samples.lock() = Arc::new(samples);
    }

    /// Stops listening.
    pub fn finish(self) {
        drop(self);
    }
}

impl Drop for Scrape {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // The thread waits in `accept`; this connection wakes it.
        let _ = TcpStream::connect_timeout(&reachable(self.address), TIME_MAX);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the loopback address if the address is unspecified, else the address itself.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        if shared.stopped.load(Ordering::Acquire) {
            return;
        }
        // The process has no free file descriptors, or the client is gone. The next connection may
        // work.
        let Ok(connection) = connection else { continue };
        if shared.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let guard = ConnectionGuard(Arc::clone(shared));
        // If the thread cannot be started, the connection is closed and the count is reduced too.
        let _ = std::thread::Builder::new().name("scraped".to_owned()).spawn(move || {
            // An error affects only this scraper.
            let _ = respond(connection, &guard.0);
        });
    }
}

/// Reduces the number of connections when dropped.
struct ConnectionGuard(Arc<Shared>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Answers one request and closes the connection.
fn respond(mut connection: TcpStream, shared: &Shared) -> io::Result<()> {
    let until = Instant::now() + TIME_MAX;
    connection.set_write_timeout(Some(TIME_MAX))?;
    let mut head = Vec::new();
    let (status, body) = loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.unwrap_or_default().split('?').next();
                break match (request.method, path) {
                    (Some("GET"), Some("/metrics")) => ("200 OK", shared.text()),
                    (Some("GET"), _) => {
                        ("404 Not Found", "this address only serves /metrics\n".to_owned())
                    }
                    _ => ("405 Method Not Allowed", "only GET is allowed\n".to_owned()),
                };
            }
            Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => {}
            _ => {
                break (
                    "400 Bad Request",
                    "not an HTTP/1.1 request with a head of at most 8 kB\n".to_owned(),
                );
            }
        }
        let remaining = until.saturating_duration_since(Instant::now());
        // A timeout of zero would mean no timeout.
        connection.set_read_timeout(Some(remaining.max(Duration::from_millis(1))))?;
        let mut chunk = [0; 1024];
        let bytes = connection.read(&mut chunk)?;
        if bytes == 0 || remaining.is_zero() {
            return Ok(());
        }
        head.extend_from_slice(&chunk[..bytes]);
    };
    let kind = if status.starts_with("200") { CONTENT_TYPE } else { "text/plain; charset=utf-8" };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes())?;
    connection.write_all(body.as_bytes())
}

impl Shared {
    fn text(&self) -> String {
        let samples = Arc::clone(&self.samples.lock());
        let labels =
            self.labels.0.iter().map(|(name, value)| (name.clone().into(), value.clone().into()));
        let mut registry = Registry::with_labels(labels);
        registry.register_collector(Box::new(SampleCollector(samples)));
        let mut text = String::with_capacity(64 * 1024);
        prometheus_client::encoding::text::encode(&mut text, &registry)
            .expect("writing into a string cannot fail");
        text
    }
}

/// Samples for the encoder.
#[derive(Debug)]
struct SampleCollector(Arc<Vec<Sample>>);

impl Collector for SampleCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for samples in self.0.chunk_by(|left, right| left.metric.name == right.metric.name) {
            let metric = samples[0].metric;
            let unit = (!metric.unit.is_empty()).then(|| Unit::Other(metric.unit.to_owned()));
            // The encoder appends the unit to the name.
            let name = metric.name.strip_suffix(metric.unit).unwrap_or(metric.name);
            let name = name.trim_end_matches('_');
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
                Kind::Info => MetricType::Info,
            };
            let mut encoder = encoder.encode_descriptor(name, metric.help, unit.as_ref(), kind)?;
            for sample in samples {
                let values = sample.labels.iter().map(String::as_str);
                let labels: Vec<(&str, &str)> = metric.labels.iter().copied().zip(values).collect();
                if metric.kind == Kind::Info {
                    encoder.encode_info(&labels)?;
                } else if labels.is_empty() {
                    encode_value(&mut encoder, sample)?;
                } else {
                    encode_value(&mut encoder.encode_family(&labels)?, sample)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_value(encoder: &mut MetricEncoder<'_>, sample: &Sample) -> fmt::Result {
    match &sample.value {
        Value::Number(value) if sample.metric.kind == Kind::Counter => {
            encoder.encode_counter(value, None::<&Exemplar<NoLabelSet, f64>>)
        }
        Value::Number(value) => encoder.encode_gauge(value),
        Value::Distribution(distribution) => {
            let Shape::Classic(upto) = &distribution.shape else { return Ok(()) };
            // The encoder makes the counts cumulative again.
            let mut previous = 0;
            let mut buckets = Vec::with_capacity(BOUNDS.len() + 1);
            for (bound, count) in BOUNDS.into_iter().zip(upto) {
                buckets.push((bound, count - previous));
                previous = *count;
            }
            buckets.push((f64::INFINITY, distribution.count - previous));
            encoder.encode_histogram::<NoLabelSet>(
                distribution.sum,
                distribution.count,
                &buckets,
                None,
            )
        }
    }
}
