//! The thread that sends spans to a collector by OTLP over HTTP.
//!
//! The HTTP client blocks this thread while the collector is slow. Meanwhile the queues fill up,
//! and a full queue drops spans. Serving threads never wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::otlp;
use super::span::{Span, SpanQueues};
use crate::config::tracing::Tracing;
use crate::io::background::BackgroundThread;

/// Interval at which spans are sent.
const EXPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of spans in one request. A span has some hundred bytes, and collectors accept
/// requests of 20 MiB by default.
const BATCH_SPANS_MAX: usize = 2048;
/// Maximum number of times that a request is sent.
const ATTEMPTS_MAX: u32 = 3;
/// Pause after the first failed attempt. The pause doubles after each further attempt.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Maximum bytes of a collector's response.
const RESPONSE_BYTES_MAX: u64 = 64 * 1024;

/// Starts the thread. The thread ends when it is stopped, or when no other owner of the queues is
/// left.
///
/// # Errors
/// Errors of starting the thread.
pub(crate) fn start(queues: Arc<SpanQueues>) -> io::Result<BackgroundThread> {
    let unfinished = "the last spans were not sent to the collector";
    BackgroundThread::start("weir-tracing", unfinished, move |stop| {
        SpanSender { agent: build_agent(&queues.config), queues, stop, is_failing: false }.run();
    })
}

/// The state of the thread.
struct SpanSender<'a> {
    agent: ureq::Agent,
    queues: Arc<SpanQueues>,
    /// True once the thread must end.
    stop: &'a AtomicBool,
    /// True if the last request failed. Further failures are then not logged.
    is_failing: bool,
}

/// Reason why a request failed.
struct ExportError {
    reason: String,
    /// True if a later attempt may succeed.
    may_retry: bool,
}

impl SpanSender<'_> {
    fn run(mut self) {
        loop {
            // The flag is read before the queues, so all spans from before the stop are sent. If
            // only this thread holds the queues, a reload has replaced them, and no request uses
            // them.
            let stopping = self.is_stopping() || Arc::strong_count(&self.queues) == 1;
            for batch in self.queues.take().chunks(BATCH_SPANS_MAX) {
                self.send(batch);
            }
            if stopping {
                return;
            }
            std::thread::park_timeout(EXPORT_INTERVAL);
        }
    }

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sends a batch, with several attempts if needed. Counts its spans by outcome.
    fn send(&mut self, batch: &[Span]) {
        let body = otlp::encode(&self.queues.config.service_name, batch);
        let counts = Arc::clone(&self.queues.counts);
        let span_count = batch.len() as u64;
        let mut backoff = BACKOFF_MIN;
        for attempt in 1.. {
            match post(&self.agent, &self.queues.config, &body) {
                Ok(rejected) => {
                    self.is_failing = false;
                    let rejected = rejected.min(span_count);
                    counts.failed.fetch_add(rejected, Ordering::Relaxed);
                    counts.exported.fetch_add(span_count - rejected, Ordering::Relaxed);
                    return;
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        let endpoint = &self.queues.config.endpoint;
                        tracing::warn!(%endpoint, reason = error.reason, "cannot send spans");
                    }
                    if !error.may_retry || attempt >= ATTEMPTS_MAX || self.is_stopping() {
                        counts.failed.fetch_add(span_count, Ordering::Relaxed);
                        return;
                    }
                }
            }
            std::thread::park_timeout(backoff);
            backoff *= 2;
        }
    }
}

/// Sends a request once. Returns the number of spans that the collector rejected.
fn post(agent: &ureq::Agent, config: &Tracing, body: &[u8]) -> Result<u64, ExportError> {
    let request = agent.post(build_url(config));
    let mut request = request.header("content-type", "application/x-protobuf");
    if let Some(authorization) = config.endpoint.authorization() {
        request = request.header("authorization", authorization);
    }
    for (name, value) in &config.headers {
        request = request.header(name, value);
    }
    let to_error = |error: ureq::Error| ExportError { reason: error.to_string(), may_retry: true };
    let mut response = request.send(body).map_err(to_error)?;
    let status = response.status().as_u16();
    let reader = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX);
    let response_body = reader.read_to_vec().map_err(to_error)?;
    match status {
        200..=299 => Ok(otlp::rejected_spans(&response_body)),
        _ => Err(ExportError {
            reason: format!("the collector responded with status {status}"),
            // OTLP/HTTP allows a retry after these statuses.
            may_retry: matches!(status, 429 | 502 | 503 | 504),
        }),
    }
}

/// Sends a request without spans to the collector.
///
/// # Errors
/// The reason why the collector cannot be reached, or its status.
pub fn check_collector(config: &Tracing) -> Result<(), String> {
    let body = otlp::encode(&config.service_name, &[]);
    let rejected = post(&build_agent(config), config, &body);
    rejected.map(drop).map_err(|error| error.reason)
}

/// Returns the URL to which spans are sent. An endpoint without a path gets OTLP's path for spans.
fn build_url(config: &Tracing) -> String {
    let endpoint = &config.endpoint;
    let scheme = if endpoint.tls() { "https" } else { "http" };
    let target = if endpoint.target() == "/" { "/v1/traces" } else { endpoint.target() };
    format!("{scheme}://{}{target}", endpoint.authority())
}

/// Builds the HTTP client for the collector.
fn build_agent(config: &Tracing) -> ureq::Agent {
    let to_root_certs = |pem: &Arc<[u8]>| {
        let items = parse_pem(pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        RootCerts::from(items.collect::<Vec<_>>())
    };
    let tls = TlsConfig::builder()
        .root_certs(config.ca_pem.as_ref().map_or(RootCerts::WebPki, to_root_certs))
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
        .build();
    ureq::Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
        .timeout_global(Some(config.timeout))
        .build()
        .new_agent()
}
