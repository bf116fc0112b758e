//! The state of an upstream that all threads share: its health, its avoided methods, and how to
//! connect to it.
//!
//! An upstream that fails is *ejected*: it gets calls only as a last resort until it is
//! *readmitted*. The *served chain* is the branch of blocks that clients see. A chain's *view* is a
//! snapshot of the newest blocks of its upstreams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config;
use crate::config::Config;
use crate::policy::avoided_methods::AvoidedMethods;
use crate::policy::complete::Depth;
use crate::policy::cordon::Cordon;
use crate::policy::heads::{ChainView, UpstreamView};
use crate::policy::health::{HealthSettings, UpstreamHealth};
use crate::policy::history::UpstreamHistory;
use crate::policy::log_range::LogRangeLimit;
use crate::upstream::connector::Connector;
use crate::upstream::fault::UpstreamFault;

/// The state of one upstream. A reload that does not change the upstream's address or protocol
/// keeps the fields in an [`Arc`]. A reload keeps `cordon`, `ejections` and `readmissions` if the
/// new configuration has an upstream of the same name.
pub(crate) struct UpstreamState {
    pub(crate) config: config::upstream::Upstream,
    /// Index of the upstream in [`ChainView::upstreams`]. Reloads do not change it.
    pub(crate) view_index: usize,
    /// Unique number that distinguishes the upstream from earlier upstreams with the same
    /// `view_index`.
    pub(crate) instance_id: u64,
    /// Identifies the upstream in cache entries, which outlive reloads. `NO_UPSTREAM` if all
    /// numbers are used.
    pub(crate) cache_number: u16,
    pub(crate) connector: Connector,
    /// The health, which decides when the upstream is ejected and readmitted.
    pub(crate) health: Arc<Mutex<UpstreamHealth>>,
    /// Notified when a call fails, the upstream stops responding, or its cordon changes. The
    /// upstream is then polled at once.
    pub(crate) poll_now: Arc<Notify>,
    /// Methods for which the balancer avoids the upstream.
    pub(crate) avoided_methods: Arc<Mutex<AvoidedMethods>>,
    /// What is known of the data that the upstream has of old blocks.
    pub(crate) history: Arc<UpstreamHistory>,
    /// Notified when the upstream has refused a call because it lacks data of an old block, although
    /// it was not known to lack it.
    pub(crate) history_refused: Arc<Notify>,
    /// The longest range of blocks whose logs the upstream returns in one call.
    pub(crate) log_range: Arc<LogRangeLimit>,
    /// Greatest distance below the newest block at which the upstream has returned logs, in blocks.
    pub(crate) logs_depth: Arc<Mutex<Depth>>,
    /// True if the upstream serves another chain than configured.
    pub(crate) serves_other_chain: Arc<AtomicBool>,
    /// The last cordon, which may have expired; `None` if there was no cordon or it was removed. A
    /// cordon takes the upstream out of rotation until a time that an operator has set.
    pub(super) cordon: Arc<Mutex<Option<Cordon>>>,
    /// The last fault; `None` while the upstream responds to polls and is in service.
    pub(super) fault: Arc<Mutex<Option<UpstreamFault>>>,
    /// Number of ejections, for metrics.
    pub(crate) ejections: Arc<AtomicU64>,
    /// Number of readmissions, for metrics.
    pub(crate) readmissions: Arc<AtomicU64>,
    /// Time of the last confirmation by [`UpstreamState::confirm`], in microseconds since the
    /// process started; 0 if there was none.
    confirmed_micros: AtomicU64,
}

impl UpstreamState {
    pub(super) fn new(
        config: &Config,
        upstream: &config::upstream::Upstream,
        view_index: usize,
        instance_id: u64,
        cache_number: u16,
        connector: Connector,
    ) -> UpstreamState {
        let health = UpstreamHealth::new(build_health_settings(&config.health));
        UpstreamState {
            config: upstream.clone(),
            view_index,
            instance_id,
            cache_number,
            connector,
            poll_now: Arc::default(),
            health: Arc::new(Mutex::new(health)),
            avoided_methods: Arc::default(),
            history: Arc::new(UpstreamHistory::new(upstream.history)),
            history_refused: Arc::default(),
            log_range: Arc::default(),
            logs_depth: Arc::default(),
            serves_other_chain: Arc::default(),
            cordon: Arc::default(),
            fault: Arc::default(),
            ejections: Arc::default(),
            readmissions: Arc::default(),
            confirmed_micros: AtomicU64::new(0),
        }
    }

    /// Returns the upstream's entry in a view. `None` if the view does not have the upstream yet.
    pub(crate) fn in_view(&self, view: &ChainView) -> Option<UpstreamView> {
        view.upstream(self.view_index, self.instance_id)
    }

    /// Returns the cordon of the upstream; `None` if the upstream is not cordoned.
    pub(crate) fn cordon(&self, now: Duration) -> Option<Cordon> {
        self.cordon.lock().clone().filter(|cordon| cordon.is_active(now))
    }

    /// Returns true if an operator has taken the upstream out of rotation.
    pub(crate) fn is_cordoned(&self, now: Duration) -> bool {
        self.cordon.lock().as_ref().is_some_and(|cordon| cordon.is_active(now))
    }

    /// Returns the last fault; `None` while the upstream responds to polls and is in service.
    pub(crate) fn fault(&self) -> Option<UpstreamFault> {
        self.fault.lock().clone()
    }

    /// Records why the upstream fails.
    pub(crate) fn record_fault(&self, reason: String, now: Duration) {
        let mut fault = self.fault.lock();
        let since = fault.as_ref().map_or(now, |fault| fault.since);
        *fault = Some(UpstreamFault { reason, since });
    }

    /// Returns true if the upstream may be called: it serves the chain and is not cordoned.
    pub(crate) fn is_in_rotation(&self, now: Duration) -> bool {
        !self.serves_other_chain.load(Ordering::Relaxed) && !self.is_cordoned(now)
    }

    /// Removes an expired cordon. Returns true if a cordon was removed.
    pub(super) fn remove_expired_cordon(&self, now: Duration) -> bool {
        self.cordon.lock().take_if(|cordon| !cordon.is_active(now)).is_some()
    }

    /// Records that a poll has confirmed that the upstream is on the served chain. The poll started
    /// at `began`. Called after the view is published.
    pub(crate) fn confirm(&self, began: Duration) {
        self.confirmed_micros.store(began.as_micros() as u64, Ordering::Release);
    }

    /// Returns the time of the last confirmation by [`UpstreamState::confirm`], counted from the
    /// start of the process. Zero if there was none.
    pub(crate) fn confirmed_at(&self) -> Duration {
        Duration::from_micros(self.confirmed_micros.load(Ordering::Acquire))
    }

    /// Takes over the state of the upstream of the same name in the previous configuration. If
    /// `is_same` is false, takes over only the counters and the cordon, because the upstream has
    /// another address or protocol.
    pub(super) fn inherit(&mut self, previous: &UpstreamState, is_same: bool, config: &Config) {
        self.cordon = Arc::clone(&previous.cordon);
        self.ejections = Arc::clone(&previous.ejections);
        self.readmissions = Arc::clone(&previous.readmissions);
        if !is_same {
            return;
        }
        self.instance_id = previous.instance_id;
        self.connector = previous.connector.clone();
        // The TLS client holds sessions that can be resumed.
        self.config.tls.clone_from(&previous.config.tls);
        self.health = Arc::clone(&previous.health);
        self.health.lock().reconfigure(build_health_settings(&config.health));
        self.poll_now = Arc::clone(&previous.poll_now);
        self.avoided_methods = Arc::clone(&previous.avoided_methods);
        if self.config.history == previous.config.history {
            self.history = Arc::clone(&previous.history);
        }
        self.history_refused = Arc::clone(&previous.history_refused);
        self.log_range = Arc::clone(&previous.log_range);
        self.logs_depth = Arc::clone(&previous.logs_depth);
        self.serves_other_chain = Arc::clone(&previous.serves_other_chain);
        self.fault = Arc::clone(&previous.fault);
    }

    /// Returns true if `previous` is this upstream before a reload.
    pub(crate) fn is_same_as(&self, previous: &UpstreamState) -> bool {
        self.instance_id == previous.instance_id
    }
}

fn build_health_settings(config: &config::health::Health) -> HealthSettings {
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
