//! An HTTP server from which a run's metrics can be scraped: `GET /metrics` returns them as
//! OpenMetrics text.
//!
//! The thread that displays the run's progress collects the samples every few seconds. The server
//! limits the size of a request, the time of a connection and the number of connections. These
//! limits protect the run from its scrapers.

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
/// Maximum length of a request's header section. hyper accepts no smaller maximum. Scrapers send
/// only a few hundred bytes.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of concurrent connections. Further connections are closed at once.
const CONNECTIONS_MAX: usize = 8;
/// Maximum time of a connection.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(2);
/// Pause after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The content type of the text (OpenMetrics 1.0, section "Content Type").
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An HTTP server for scrapes. It runs in its own thread until it is finished or dropped.
#[derive(Debug)]
pub struct Scrape {
    /// The metrics of a run, under the names that the user chose. A probe has a table of its own.
    table: &'static [RunEntry],
    /// Time of the next collection, since the start of the run.
    next_collection: Duration,
    /// The address on which the server listens.
    address: SocketAddr,
    metrics: Arc<LatestMetrics>,
    /// Stops the thread when the sender is dropped.
    stop: Option<oneshot::Sender<()>>,
    /// The thread of the server; `None` once it has ended.
    thread: Option<JoinHandle<()>>,
}

/// The samples that the next scrape gets.
#[derive(Debug)]
struct LatestMetrics {
    /// Labels that are added to every series.
    labels: Labels,
    /// Each collection replaces the whole list, so the lock is held only briefly.
    samples: Mutex<Arc<Vec<Sample>>>,
}

impl Scrape {
    /// Starts listening. Port 0 means any free port. `names` selects the table of the run's
    /// metrics, and `labels` are added to every series.
    ///
    /// # Errors
    /// Fails if it cannot listen on the address, or if the thread cannot be started.
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
        let metrics = Arc::new(LatestMetrics { labels, samples: Mutex::default() });
        let server = serve(listener, Arc::clone(&metrics));
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
        Ok(Scrape {
            table: names.table(),
            next_collection: Duration::ZERO,
            address,
            metrics,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Collects the metrics of a run if a collection is due or the run has ended. This function is
    /// called at the end of each second, and never waits for a scraper.
    pub fn update(&mut self, progress: &Progress<'_>) {
        if progress.elapsed < self.next_collection && progress.elapsed < progress.duration {
            return;
        }
        self.next_collection = progress.elapsed + INTERVAL;
        self.put(collect_samples(self.table, progress, &Form::Classic));
    }

    /// Collects the metrics of a probe (`weir probe`, which calls targets at intervals to watch
    /// them). This function never waits for a scraper.
    pub fn update_probe(&self, state: &ProbeState) {
        self.put(probe::collect_samples(state));
    }

    /// Replaces the samples that the next scrape gets.
    fn put(&self, samples: Vec<Sample>) {
        *self.metrics.samples.lock() = Arc::new(samples);
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

/// Accepts connections and responds to their requests.
async fn serve(listener: TcpListener, metrics: Arc<LatestMetrics>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        let metrics = Arc::clone(&metrics);
        tokio::spawn(async move {
            let respond =
                |request| std::future::ready(Ok::<_, Infallible>(metrics.respond(&request)));
            let connection = http1::Builder::new()
                .keep_alive(false)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service_fn(respond));
            // An error affects only this scraper.
            let _ = tokio::time::timeout(CONNECTION_TIME_MAX, connection).await;
            drop(permit);
        });
    }
}

impl LatestMetrics {
    /// Responds to a request: the metrics for `GET /metrics`, else an error.
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

    /// Returns the samples as OpenMetrics text.
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

/// Passes the samples to the encoder of `prometheus_client`.
#[derive(Debug)]
struct SampleCollector(Arc<Vec<Sample>>);

impl Collector for SampleCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let by_metric = self.0.chunk_by(|left, right| left.metric.name == right.metric.name);
        for samples in by_metric {
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

/// Encodes a number, or a distribution as a classic histogram. A scrape has only classic
/// histograms, because [`Form::Classic`] was requested.
fn encode_value(encoder: &mut MetricEncoder<'_>, sample: &Sample) -> fmt::Result {
    match &sample.value {
        Value::Number(value) if sample.metric.kind == Kind::Counter => {
            encoder.encode_counter(value, None::<&Exemplar<NoLabelSet, f64>>)
        }
        Value::Number(value) => encoder.encode_gauge(value),
        Value::Distribution(distribution) => {
            let Shape::Classic(cumulative_counts) = &distribution.shape else { return Ok(()) };
            // The encoder expects the count of each bucket and cumulates the counts itself.
            let mut previous = 0;
            let mut buckets = Vec::with_capacity(BOUNDS.len() + 1);
            for (bound, count) in BOUNDS.into_iter().zip(cumulative_counts) {
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
