//! An address at which a run's metrics can be scraped: `GET /metrics`, OpenMetrics text.
//!
//! The thread that displays the run collects the samples every few seconds. The size of requests,
//! their time and the number of connections are limited. So a client can only occupy one of a few
//! connections for a short time.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};

use super::distribution::{BOUNDS, Form, Shape};
use super::table::{Kind, RunEntry, Sample, Value, collect_samples};
use super::{ExportFault, Labels, Names, probe};
use crate::analysis::probe::ProbeState;
use crate::run::Progress;

#[cfg(test)]
mod tests;

/// Time between two collections, as in remote write. Each collection takes some of the run's CPU
/// time.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum length of a request head. Scrapers send a few hundred bytes; hyper accepts no lower
/// limit.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of concurrent connections. Further ones are closed at once.
const CONNECTIONS_MAX: usize = 8;
/// Maximum time of a connection.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Pause after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The content type of the text (OpenMetrics 1.0, section "Content Type").
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An HTTP server for scrapes; it runs until it is finished or dropped.
#[derive(Debug)]
pub struct Scrape {
    table: &'static [RunEntry],
    next: Duration,
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Dropped to stop the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    labels: Labels,
    /// The list is replaced as a whole, so the lock is held only briefly.
    samples: Mutex<Arc<Vec<Sample>>>,
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
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ExportFault::Thread)?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        let shared = Arc::new(Shared { labels, samples: Mutex::default() });
        let server = serve(listener, Arc::clone(&shared));
        let (stop, stopped) = oneshot::channel();
        let run = async {
            tokio::select! {
                _ = stopped => {}
                () = server => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("scrape".to_owned())
            .spawn(move || runtime.block_on(run))
            .map_err(ExportFault::Thread)?;
        let (table, next) = (names.table(), Duration::ZERO);
        Ok(Scrape { table, next, address, shared, stop: Some(stop), thread: Some(thread) })
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
        self.put(collect_samples(self.table, progress, &Form::Classic));
    }

    /// Takes the state of a probe. Never waits for a scraper.
    pub fn update_probe(&self, state: &ProbeState) {
        self.put(probe::collect_samples(state));
    }

    fn put(&self, samples: Vec<Sample>) {
        *self.shared.samples.lock() = Arc::new(samples);
    }

    /// Stops listening.
    pub fn finish(self) {
        drop(self);
    }
}

impl Drop for Scrape {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let respond =
                |request| std::future::ready(Ok::<_, Infallible>(shared.respond(&request)));
            let connection = http1::Builder::new()
                .keep_alive(false)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service_fn(respond));
            // An error affects only this scraper.
            let _ = tokio::time::timeout(TIME_MAX, connection).await;
            drop(permit);
        });
    }
}

impl Shared {
    fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        const PLAIN: &str = "text/plain; charset=utf-8";
        let (status, content_type, body) = match (request.method(), request.uri().path()) {
            (&Method::GET, "/metrics") => (StatusCode::OK, OPEN_METRICS, self.text()),
            (&Method::GET, _) => {
                (StatusCode::NOT_FOUND, PLAIN, "this address only serves /metrics\n".to_owned())
            }
            _ => (StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET is allowed\n".to_owned()),
        };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }

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
