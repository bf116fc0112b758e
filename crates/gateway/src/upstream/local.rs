//! The state of one upstream in one thread: connections, batches, and the load and latency that the
//! thread has measured.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Config;
use crate::metrics::counters::UpstreamCounters;
use crate::policy::choose::{EWMA_READMITTED, PeakEwma};
use crate::policy::stall::Silence;
use crate::upstream::batcher::Batcher;
use crate::upstream::http::HttpClient;
use crate::upstream::multiplexed_pool::MultiplexedPool;
use crate::upstream::resources::ThreadResources;
use crate::upstream::state::UpstreamState;

/// One thread's state of an upstream.
pub(crate) struct LocalUpstream {
    /// Sends HTTP requests.
    pub(crate) http: Rc<HttpClient>,
    /// Multiplexed connections; `None` if the upstream has no address for them.
    pub(crate) multiplexed: Option<Rc<MultiplexedPool>>,
    /// Batches of calls; `None` if batches are off.
    pub(crate) batcher: Option<Rc<Batcher>>,
    /// Moving average of the latency of attempts, for load balancing.
    pub(crate) latency: Cell<PeakEwma>,
    /// Number of readmissions of the upstream when `latency` was last reset.
    readmissions: Cell<u64>,
    /// Number of this thread's attempts in flight at the upstream.
    pub(crate) in_flight: Cell<u32>,
    /// Measures how long attempts have waited without any response.
    pub(crate) silence: Cell<Silence>,
}

impl LocalUpstream {
    /// Returns the state of an upstream that this thread has not called yet. `method_count` is the
    /// number of rows in the chain's method table. `latency` is the initial average.
    pub(super) fn new(
        thread: &Rc<ThreadResources>,
        config: &Config,
        upstream: &UpstreamState,
        method_count: usize,
        counts: &Arc<UpstreamCounters>,
        latency: PeakEwma,
    ) -> LocalUpstream {
        let (keys, connector) = (&upstream.config, &upstream.connector);
        let http = Rc::new(HttpClient::new(thread, config, keys, connector, counts));
        LocalUpstream {
            batcher: Batcher::new(thread, keys, &http, counts),
            http,
            multiplexed: MultiplexedPool::new(config, keys, connector, method_count, counts),
            latency: Cell::new(latency),
            readmissions: Cell::new(upstream.readmissions.load(Ordering::Relaxed)),
            in_flight: Cell::new(0),
            silence: Cell::default(),
        }
    }

    /// Closes idle connections now, and connections in use after their calls.
    pub(super) fn close(&self) {
        self.http.close();
        if let Some(multiplexed) = &self.multiplexed {
            multiplexed.close();
        }
    }

    /// Closes connections that have been idle for too long.
    pub(super) fn sweep(&self, now: Instant) {
        self.http.sweep(now);
        if let Some(multiplexed) = &self.multiplexed {
            multiplexed.sweep(now);
        }
    }

    /// Counts an attempt that starts.
    pub(super) fn record_start(&self, now: Duration) {
        let mut silence = self.silence.get();
        let is_idle = self.in_flight.get() == 0;
        silence.record_call(now, is_idle);
        self.silence.set(silence);
        self.in_flight.update(|calls| calls + 1);
    }

    /// Counts an attempt that ends.
    pub(super) fn record_end(&self) {
        self.in_flight.update(|calls| calls - 1);
    }

    /// Returns the cost of one more call to the upstream; the balancer prefers a low cost. After a
    /// readmission the average latency restarts from a default.
    pub(crate) fn cost(&self, upstream: &UpstreamState, now: Duration) -> f64 {
        let readmissions = upstream.readmissions.load(Ordering::Relaxed);
        if self.readmissions.replace(readmissions) != readmissions {
            self.latency.set(PeakEwma::new(now, EWMA_READMITTED));
        }
        let in_flight = self.in_flight.get();
        self.latency.get().cost(now, in_flight, self.silence(now))
            / f64::from(upstream.config.weight)
    }

    /// Returns how long calls have waited without any response; zero if no call is in flight.
    pub(crate) fn silence(&self, now: Duration) -> Duration {
        if self.in_flight.get() == 0 { Duration::ZERO } else { self.silence.get().age(now) }
    }

    /// Records that the upstream has responded to a call.
    pub(crate) fn record_response(&self, now: Duration) {
        let mut silence = self.silence.get();
        silence.record_response(now);
        self.silence.set(silence);
    }

    /// Records the latency of an attempt.
    pub(crate) fn observe_latency(&self, now: Duration, observed: Duration) {
        let mut latency = self.latency.get();
        latency.observe(now, observed);
        self.latency.set(latency);
    }
}
