//! An address at which a run's metrics can be scraped: `GET /metrics`, OpenMetrics text.
//!
//! What is answered is gathered where the run is seen, each few seconds. Whoever connects can hold
//! one of a few threads for a moment, and nothing else: heads and times have limits.

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

use super::spread::{BOUNDS, Form, Shape};
use super::table::{Kind, Metric, Sample, Value, gather};
use super::{ExportFault, Labels, Names, k6, table};
use crate::run::Progress;

#[cfg(test)]
mod tests;

/// Time between two gatherings, so that they cost a run little; as often as remote write pushes.
const INTERVAL: Duration = Duration::from_secs(5);
/// A scraper's head is some hundred bytes.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Connections at a time; one more is closed at once.
const CONNECTIONS_MAX: usize = 8;
/// How long one connection may take, and how long the end of a run waits for one.
const TIME_MAX: Duration = Duration::from_secs(2);

/// The content type of the text (OpenMetrics 1.0, section "Content Type").
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An address that is answered at until it is finished or dropped.
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
    /// Replaced whole; held for as long as a pointer takes.
    samples: Mutex<Arc<Vec<Sample>>>,
    connections: AtomicUsize,
    over: AtomicBool,
}

impl Scrape {
    /// Listens; port 0 is any that is free.
    ///
    /// # Errors
    /// If the address cannot be listened on.
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
            over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("scrape".to_owned())
            .spawn(move || serve(&listener, &serving))
            .map_err(ExportFault::Thread)?;
        let table = match names {
            Names::Weir => table::METRICS,
            Names::K6 => k6::METRICS,
        };
        Ok(Scrape { table, next: Duration::ZERO, address, shared, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes what is known at the end of a second. Never waits for a scraper.
    pub fn update(&mut self, progress: &Progress<'_>) {
        if progress.at < self.next && progress.at < progress.of {
            return;
        }
        self.next = progress.at + INTERVAL;
        let samples = gather(self.table, progress, &Form::Classic);
        *self.shared.samples.lock() = Arc::new(samples);
    }

    /// Ends listening.
    pub fn finish(self) {
        drop(self);
    }
}

impl Drop for Scrape {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        // The thread waits for a connection: this is one.
        let _ = TcpStream::connect_timeout(&reachable(self.address), TIME_MAX);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An address of this host for one that stands for all of them.
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
        if shared.over.load(Ordering::Acquire) {
            return;
        }
        // Out of descriptors or gone already: the next may come.
        let Ok(connection) = connection else { continue };
        if shared.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let counted = Counted(Arc::clone(shared));
        // Without a thread the connection is closed, and counted down all the same.
        let _ = std::thread::Builder::new().name("scraped".to_owned()).spawn(move || {
            // A scraper that went away misses its answer, nobody else does.
            let _ = answer(connection, &counted.0);
        });
    }
}

/// Counts a connection down at its end.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Answers one request and closes.
fn answer(mut connection: TcpStream, shared: &Shared) -> io::Result<()> {
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
                    (Some("GET"), _) => ("404 Not Found", "only /metrics is here\n".to_owned()),
                    _ => ("405 Method Not Allowed", "only GET is answered\n".to_owned()),
                };
            }
            Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => {}
            _ => break ("400 Bad Request", "no HTTP/1.1 request of 8 kB at most\n".to_owned()),
        }
        let rest = until.saturating_duration_since(Instant::now());
        // A timeout of zero would be none at all.
        connection.set_read_timeout(Some(rest.max(Duration::from_millis(1))))?;
        let mut part = [0; 1024];
        let bytes = connection.read(&mut part)?;
        if bytes == 0 || rest.is_zero() {
            return Ok(());
        }
        head.extend_from_slice(&part[..bytes]);
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
        registry.register_collector(Box::new(Scraped(samples)));
        let mut text = String::with_capacity(64 * 1024);
        prometheus_client::encoding::text::encode(&mut text, &registry)
            .expect("writing into a string cannot fail");
        text
    }
}

/// Samples as the encoder takes them.
#[derive(Debug)]
struct Scraped(Arc<Vec<Sample>>);

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for samples in self.0.chunk_by(|left, right| left.metric.name == right.metric.name) {
            let metric = samples[0].metric;
            let unit = (!metric.unit.is_empty()).then(|| Unit::Other(metric.unit.to_owned()));
            // The encoder appends the unit to the name by itself.
            let name = metric.name.strip_suffix(metric.unit).unwrap_or(metric.name);
            let name = name.trim_end_matches('_');
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Spreads => MetricType::Histogram,
                Kind::Info => MetricType::Info,
            };
            let mut encoder = encoder.encode_descriptor(name, metric.help, unit.as_ref(), kind)?;
            for sample in samples {
                let values = sample.labels.iter().map(String::as_str);
                let labels: Vec<(&str, &str)> = metric.labels.iter().copied().zip(values).collect();
                if metric.kind == Kind::Info {
                    encoder.encode_info(&labels)?;
                } else if labels.is_empty() {
                    one(&mut encoder, sample)?;
                } else {
                    one(&mut encoder.encode_family(&labels)?, sample)?;
                }
            }
        }
        Ok(())
    }
}

fn one(encoder: &mut MetricEncoder<'_>, sample: &Sample) -> fmt::Result {
    match &sample.value {
        Value::Number(value) if sample.metric.kind == Kind::Counter => {
            encoder.encode_counter(value, None::<&Exemplar<NoLabelSet, f64>>)
        }
        Value::Number(value) => encoder.encode_gauge(value),
        Value::Spread(spread) => {
            let Shape::Classic(upto) = &spread.shape else { return Ok(()) };
            // The encoder adds them up again.
            let mut before = 0;
            let mut buckets = Vec::with_capacity(BOUNDS.len() + 1);
            for (bound, count) in BOUNDS.into_iter().zip(upto) {
                buckets.push((bound, count - before));
                before = *count;
            }
            buckets.push((f64::INFINITY, spread.count - before));
            encoder.encode_histogram::<NoLabelSet>(spread.sum, spread.count, &buckets, None)
        }
    }
}
