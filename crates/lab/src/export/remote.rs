//! Pushes the metrics of a run or probe to a receiver of Prometheus remote write 1.0.
//!
//! The thread that displays the run's progress collects the samples every few seconds. Another
//! thread encodes, sends and retries, so a slow or dead receiver never slows a run. Samples wait in
//! a bounded queue (`queue.rs`). Samples that do not fit are discarded and counted.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use parking_lot::Mutex;
use settings::url::{NodeUrl, mask_url};
use ureq::http::Uri;
use ureq::http::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER};
use ureq::tls::RootCerts;
use wire::retry_after::parse_retry_after;

use super::distribution::Form;
use super::proto::{Identity, TimeSeries, body, series};
use super::queue::{Outcome, Push, Queue};
use super::table::{RunEntry, Sample, collect_samples};
use super::{ExportFault, Labels, Names, SCHEMA_MAX, SCHEMA_MIN, Trends, probe};
use crate::analysis::probe::ProbeState;
use crate::run::Progress;
use crate::target::client::agent_config;

pub use super::queue::PushSummary;

#[cfg(test)]
mod tests;

/// Time between pushes, as in k6 and in Prometheus's own sender.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time of one attempt, as in k6.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of series in one request, each with one sample. Prometheus's own sender also
/// sends up to 2,000 samples.
const SERIES_MAX: usize = 2_000;
/// Maximum number of batches that wait for the sending thread. A batch has the samples of one
/// instant. Four batches cover 20 seconds. That suffices, because the thread takes no batches only
/// during an attempt to send, for at most [`TIMEOUT`].
const PENDING_BATCHES_MAX: usize = 4;
/// Maximum number of bytes that are read from an error response.
const ERROR_BYTES_MAX: u64 = 64 * 1024;
/// Maximum time that the end of a run waits for the remaining pushes.
const END_MAX: Duration = Duration::from_secs(10);

/// Where to push and what to push.
#[derive(Clone, PartialEq)]
pub struct Settings {
    /// `http://HOST:9090/api/v1/write`; may contain credentials, `http://USER:PASSWORD@HOST…`.
    pub url: String,
    /// The naming scheme of the metrics.
    pub names: Names,
    /// How distributions are pushed: as statistics, or as native histograms, whose resolution is
    /// the `schema`.
    pub trends: Trends,
    /// Labels that are added to every series.
    pub labels: Labels,
}

impl Settings {
    /// Returns the default settings: names of Weir, and distributions as statistics.
    pub fn new(url: &str) -> Settings {
        Settings {
            url: url.to_owned(),
            names: Names::default(),
            trends: Trends::default(),
            labels: Labels::default(),
        }
    }
}

impl fmt::Debug for Settings {
    /// Leaves out everything that may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { url, names, trends, labels } = self;
        f.debug_struct("Settings")
            .field("url", &mask_url(url))
            .field("names", names)
            .field("trends", trends)
            .field("labels", labels)
            .finish()
    }
}

/// A running export by remote write.
#[derive(Debug)]
pub struct RemoteWrite {
    /// The requested format of distributions.
    form: Form,
    /// The metrics of a run, under the names that the user chose.
    table: &'static [RunEntry],
    /// Time of the next push, since the start of the run.
    next_push: Duration,
    /// Number of batches that did not fit into the channel.
    skipped: u64,
    /// The channel to the sending thread.
    batches: SyncSender<Batch>,
    /// The error of the last attempt to send a push. `None` if that attempt succeeded, or if there
    /// was none yet.
    error: Arc<Mutex<Option<String>>>,
    /// The sending thread.
    thread: JoinHandle<PushSummary>,
}

/// The samples of one instant.
type Batch = (Vec<Sample>, Instant);

impl RemoteWrite {
    /// Starts the sending thread; nothing is sent before the first [`RemoteWrite::update`].
    ///
    /// # Errors
    /// Fails if the URL or the schema is invalid, if no statistic is given, or if the thread cannot
    /// be started.
    pub fn start(settings: &Settings) -> Result<RemoteWrite, ExportFault> {
        match &settings.trends {
            Trends::Native { schema } if !(SCHEMA_MIN..=SCHEMA_MAX).contains(schema) => {
                return Err(ExportFault::Schema(*schema));
            }
            Trends::Stats(stats) if stats.is_empty() => return Err(ExportFault::NoStats),
            Trends::Native { .. } | Trends::Stats(_) => {}
        }
        let receiver = Endpoint::of(settings)?;
        let (batches, received_batches) = sync_channel(PENDING_BATCHES_MAX);
        let error = Arc::<Mutex<Option<String>>>::default();
        let sender = Sender {
            receiver,
            error: Arc::clone(&error),
            names: settings.names,
            labels: settings.labels.clone(),
            queue: Queue::default(),
            last_series: BTreeSet::new(),
            origin: Instant::now(),
            origin_unix: UNIX_EPOCH.elapsed().unwrap_or_default(),
            timestamp: 0,
            random: RandomState::new(),
        };
        let thread = std::thread::Builder::new()
            .name("remote write".to_owned())
            .spawn(move || sender.run(&received_batches))
            .map_err(ExportFault::Thread)?;
        Ok(RemoteWrite {
            form: Form::Trends(settings.trends.clone()),
            table: settings.names.table(),
            next_push: Duration::ZERO,
            skipped: 0,
            batches,
            error,
            thread,
        })
    }

    /// Passes the metrics of a run to the sending thread if a push is due. It is called at the end
    /// of each second and never blocks.
    pub fn update(&mut self, progress: &Progress<'_>) {
        if progress.elapsed < self.next_push && progress.elapsed < progress.duration {
            return;
        }
        self.next_push = progress.elapsed + INTERVAL;
        self.put(collect_samples(self.table, progress, &self.form));
    }

    /// Passes the metrics of a probe to the sending thread if a push is due, or if `has_changed` is
    /// true. `elapsed` is the time since the start of the probe. Distributions are pushed as
    /// classic histograms, which stay useful in a process that never ends. Never blocks.
    pub fn update_probe(&mut self, state: &ProbeState, elapsed: Duration, has_changed: bool) {
        if elapsed < self.next_push && !has_changed {
            return;
        }
        self.next_push = elapsed + INTERVAL;
        self.put(probe::collect_samples(state));
    }

    /// Returns the error of the last attempt to send a push. `None` if that attempt succeeded, or
    /// if there was none yet.
    pub fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    /// Passes samples to the sending thread, or counts them as skipped.
    fn put(&mut self, samples: Vec<Sample>) {
        match self.batches.try_send((samples, Instant::now())) {
            Ok(()) => {}
            // The channel is disconnected only if the thread has panicked. `finish` then returns a
            // summary without the thread's counts.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.skipped += 1,
        }
    }

    /// Ends every series, and sends the remaining pushes for ten seconds at most. Returns the counts
    /// of samples.
    pub fn finish(self) -> PushSummary {
        drop(self.batches);
        let summary = self.thread.join().unwrap_or_default();
        PushSummary { skipped: self.skipped, ..summary }
    }
}

/// The state of the sending thread.
struct Sender {
    /// Where the pushes are sent.
    receiver: Endpoint,
    /// The error of the last attempt to send a push. `None` if that attempt succeeded, or if there
    /// was none yet.
    error: Arc<Mutex<Option<String>>>,
    /// The naming scheme of the metrics.
    names: Names,
    labels: Labels,
    queue: Queue,
    /// Series of the last push. A series that is missing in the next push has ended.
    last_series: BTreeSet<Identity>,
    /// Start of the thread.
    origin: Instant,
    /// `origin` as time since 1970. The wall clock is read only once, because it may be set back,
    /// and the samples of a series must be in order of time.
    origin_unix: Duration,
    /// The time of the last push in milliseconds since 1970.
    timestamp: i64,
    /// Source of the randomness that spreads retries over time.
    random: RandomState,
}

impl Sender {
    /// Sends batches until the channel is closed, then the remaining pushes until a deadline.
    fn run(mut self, batches: &Receiver<Batch>) -> PushSummary {
        loop {
            let wait = self.queue.wait(self.origin.elapsed()).unwrap_or(Duration::MAX);
            match batches.recv_timeout(wait) {
                Ok((samples, at)) => self.put(&samples, at),
                Err(RecvTimeoutError::Timeout) => self.send_first(TIMEOUT),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.put(&[], Instant::now());
        let deadline = self.origin.elapsed() + END_MAX;
        loop {
            let now = self.origin.elapsed();
            match self.queue.wait(now) {
                Some(wait) if now + wait < deadline => {
                    // An early wake-up is harmless, because nothing is due then.
                    std::thread::park_timeout(wait);
                    self.send_first(TIMEOUT.min(deadline.saturating_sub(self.origin.elapsed())));
                }
                _ => return self.queue.end(),
            }
        }
    }

    /// Queues the samples, and stale markers for series that have no sample in this batch.
    fn put(&mut self, samples: &[Sample], at: Instant) {
        let unix_time = self.origin_unix + at.saturating_duration_since(self.origin);
        // Receivers reject two samples of a series with the same time.
        let timestamp = i64::try_from(unix_time.as_millis()).unwrap_or(0).max(self.timestamp + 1);
        self.timestamp = timestamp;
        let mut series_list = series(samples, self.names, &self.labels, timestamp);
        let current: BTreeSet<Identity> = series_list.iter().map(TimeSeries::identity).collect();
        let previous = std::mem::replace(&mut self.last_series, current);
        let ended = previous.into_iter().filter(|series| !self.last_series.contains(series));
        series_list.extend(ended.map(|series| series.into_stale_marker(timestamp)));
        while !series_list.is_empty() {
            let remaining = series_list.split_off(series_list.len().min(SERIES_MAX));
            let pushed_series = std::mem::replace(&mut series_list, remaining);
            let samples = pushed_series.len() as u64;
            self.queue.put(Push { body: body(pushed_series), samples });
        }
    }

    /// Sends the first push of the queue if it is due, and records the outcome.
    fn send_first(&mut self, timeout: Duration) {
        let Some(push) = self.queue.next_due(self.origin.elapsed()) else { return };
        let (outcome, error) = self.receiver.send(&push.body, timeout);
        let sent_at = self.origin.elapsed();
        let random = self.random.hash_one(sent_at) as u32;
        self.queue.record(sent_at, outcome, &error, random);
        *self.error.lock() = match outcome {
            Outcome::Stored => None,
            Outcome::Status(status, _) => Some(format!("HTTP status {status}")),
            Outcome::Unreachable => Some(error),
        };
    }
}

/// The receiver.
struct Endpoint {
    agent: ureq::Agent,
    /// The URL without credentials.
    url: Uri,
    /// The credentials of the URL, if there are any.
    authorization: Option<HeaderValue>,
}

impl Endpoint {
    /// Parses the URL of the settings.
    fn of(settings: &Settings) -> Result<Endpoint, ExportFault> {
        let fault = |reason: &str| {
            let (shown, reason) = (mask_url(&settings.url), reason.to_owned());
            ExportFault::Url { shown, reason }
        };
        let parts = NodeUrl::parse_http(&settings.url).map_err(fault)?;
        let scheme = if parts.tls() { "https" } else { "http" };
        let url = format!("{scheme}://{}{}", parts.authority(), parts.target());
        let url: Uri = url.parse().map_err(|_| fault("invalid URL"))?;
        let agent = agent_config(RootCerts::WebPki, false).build().new_agent();
        let authorization = parts.authorization().cloned();
        Ok(Endpoint { agent, url, authorization })
    }

    /// Sends one request. Returns the outcome and the error message, which is empty on success.
    fn send(&self, body: &[u8], timeout: Duration) -> (Outcome, String) {
        let mut request = self
            .agent
            .post(&self.url)
            .header("content-encoding", "snappy")
            .header("content-type", "application/x-protobuf")
            .header("x-prometheus-remote-write-version", "0.1.0");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        match request.config().timeout_global(Some(timeout)).build().send(body) {
            Ok(response) if response.status().is_success() => (Outcome::Stored, String::new()),
            Ok(mut response) => {
                let header = response.headers().get(RETRY_AFTER);
                let retry_after = header.and_then(|value| parse_retry_after(value.as_bytes()));
                let status = response.status().as_u16();
                let error_body =
                    response.body_mut().with_config().limit(ERROR_BYTES_MAX).read_to_vec();
                let error = String::from_utf8_lossy(&error_body.unwrap_or_default()).into_owned();
                (Outcome::Status(status, retry_after), error)
            }
            Err(error) => (Outcome::Unreachable, error.to_string()),
        }
    }
}
