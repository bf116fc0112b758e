//! The present state of an upstream: its health, what it lacks, and how it is reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config;
use crate::config::Config;
use crate::policy::complete::Depth;
use crate::policy::heads::{ChainView, UpstreamView};
use crate::policy::health::{HealthSettings, Unsupported, UpstreamHealth};
use crate::upstream::dial::Dial;

/// One upstream's present state. What stands behind an [`Arc`] outlives a reload that does not
/// change where the upstream is or how it is spoken to.
pub(crate) struct UpstreamState {
    pub(crate) config: config::upstream::Upstream,
    /// Its place among its chain's upstreams, as in [`ChainView::upstreams`]. It keeps it through
    /// reloads.
    pub(crate) place: usize,
    /// What tells it from all other upstreams that have or had its place.
    pub(crate) mark: u64,
    /// What stands for it in entries of the cache, which outlive reloads.
    pub(crate) number: u16,
    pub(crate) dial: Dial,
    /// Everything of a request's head but the length.
    pub(crate) request_head: Vec<u8>,
    pub(crate) health: Arc<Mutex<UpstreamHealth>>,
    /// Told when a call failed or the upstream is suspected, so that it is polled at once.
    pub(crate) suspected: Arc<Notify>,
    pub(crate) unsupported: Arc<Mutex<Unsupported>>,
    /// How old the logs are that it has shown.
    pub(crate) logs_depth: Arc<Mutex<Depth>>,
    /// Whether it serves another chain than it should.
    pub(crate) foreign: Arc<AtomicBool>,
    pub(crate) ejections: Arc<AtomicU64>,
    pub(crate) readmissions: Arc<AtomicU64>,
    /// When its last poll began that showed it on the served chain, microseconds since the start.
    confirmed_micros: AtomicU64,
}

impl UpstreamState {
    pub(super) fn new(
        config: &Config,
        upstream: &config::upstream::Upstream,
        place: usize,
        mark: u64,
        number: u16,
        dial: Dial,
    ) -> UpstreamState {
        let health = UpstreamHealth::new(health_settings(&config.health));
        UpstreamState {
            config: upstream.clone(),
            place,
            mark,
            number,
            dial,
            request_head: request_head(upstream),
            suspected: Arc::default(),
            health: Arc::new(Mutex::new(health)),
            unsupported: Arc::default(),
            logs_depth: Arc::default(),
            foreign: Arc::default(),
            ejections: Arc::default(),
            readmissions: Arc::default(),
            confirmed_micros: AtomicU64::new(0),
        }
    }
}

impl UpstreamState {
    /// What is known of it.
    pub(crate) fn seen(&self, view: &ChainView) -> Option<UpstreamView> {
        view.of(self.place, self.mark)
    }

    /// Notes that a poll which began then showed it on the served chain; after the view is
    /// published.
    pub(crate) fn confirm(&self, began: Duration) {
        self.confirmed_micros.store(began.as_micros() as u64, Ordering::Release);
    }

    /// When its last poll began that showed it on the served chain.
    pub(crate) fn confirmed(&self) -> Duration {
        Duration::from_micros(self.confirmed_micros.load(Ordering::Acquire))
    }
}

impl UpstreamState {
    pub(super) fn take_over(&mut self, before: &UpstreamState, is_same: bool, config: &Config) {
        self.ejections = Arc::clone(&before.ejections);
        self.readmissions = Arc::clone(&before.readmissions);
        if !is_same {
            return;
        }
        self.mark = before.mark;
        self.dial = before.dial.clone();
        // With it the sessions that can be resumed.
        self.config.tls.clone_from(&before.config.tls);
        self.health = Arc::clone(&before.health);
        self.health.lock().reconfigure(health_settings(&config.health));
        self.suspected = Arc::clone(&before.suspected);
        self.unsupported = Arc::clone(&before.unsupported);
        self.logs_depth = Arc::clone(&before.logs_depth);
        self.foreign = Arc::clone(&before.foreign);
    }

    /// Whether this is the upstream that it was before a reload.
    pub(crate) fn is(&self, before: &UpstreamState) -> bool {
        self.mark == before.mark
    }
}

/// Everything of a request's head up to the digits of the body's length.
pub(super) fn request_head(upstream: &config::upstream::Upstream) -> Vec<u8> {
    let url = &upstream.url;
    let mut head = Vec::with_capacity(256);
    let mut line = |parts: &[&[u8]]| {
        for part in parts {
            head.extend_from_slice(part);
        }
        head.extend_from_slice(b"\r\n");
    };
    line(&[b"POST ", url.target().as_bytes(), b" HTTP/1.1"]);
    line(&[b"Host: ", url.authority().as_bytes()]);
    line(&[b"Content-Type: application/json"]);
    line(&[b"Accept: application/json"]);
    if !upstream.keep_alive {
        line(&[b"Connection: close"]);
    }
    if let Some(authorization) = url.authorization() {
        line(&[b"Authorization: ", authorization.as_bytes()]);
    }
    for (name, value) in &upstream.headers {
        line(&[name.as_str().as_bytes(), b": ", value.as_bytes()]);
    }
    head.extend_from_slice(b"Content-Length: ");
    head
}

fn health_settings(config: &config::health::Health) -> HealthSettings {
    HealthSettings {
        failures_max: config.failures_max,
        window: config.window,
        window_calls_min: config.window_calls_min,
        failure_share_max: config.failure_share_max,
        backoff_min: config.backoff_min,
        backoff_max: config.backoff_max,
        pause: config.pause,
        pause_max: config.pause_max,
    }
}
