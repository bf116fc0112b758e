//! Polls the heads and the health of all upstreams, on one thread for the whole gateway.
//!
//! Each upstream has a task that polls its head, the newest block of the upstream. The task passes
//! the head to the chain's tracker (`policy/heads.rs`). The tracker builds the chain's *view*, an
//! immutable snapshot of the heads. If the view changes, the task publishes it for all threads. An
//! upstream that fails is *ejected*: it gets calls only as a last resort. A successful poll
//! readmits the upstream. Calls of clients never pass through this file. `watch/poller.rs` sends
//! the polls of a task, `watch/new_heads.rs` subscribes to new heads, and `watch/history.rs` finds
//! out which old data an upstream has.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;
use wire::family::Family;
use wire::quantity;

use crate::config;
use crate::io::random::Random;
use crate::policy::heads::{
    Finality, HeadPoll, HeadSettings, HeadTracker, HeaderRequest, ROLLBACK_MAX, Step, UpstreamView,
    WINDOW,
};
use crate::policy::health::HealthEvent;
use crate::upstream::chain::ChainState;
use crate::upstream::topology::Topology;

mod headers;
mod history;
mod new_heads;
mod news;
mod poller;
mod report;
#[cfg(test)]
mod tests;

use new_heads::NewHeads;
use news::News;
use poller::{Poller, QueryError, Recovery};

/// After a failed poll, the poll interval is divided by this number until the upstream responds or
/// is ejected. The upstream gets few calls during this time, so calls alone would detect an outage
/// late.
const SUSPECT_POLL_DIVISOR: u32 = 4;
/// Shortest interval between two polls if a failed call or a suspicion triggers the second poll. A
/// call *suspects* an upstream that has not responded to any call for too long.
const SUSPECT_POLL_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Shortest interval between two polls if a notification of a new head triggers the second poll. An
/// upstream may send notifications at any rate.
const NOTIFIED_POLL_INTERVAL_MIN: Duration = Duration::from_millis(5);
/// One in this many polls also queries the finalized height, the height of the newest final block.
/// The finalized height rises only every few minutes.
const FINALIZED_POLL_PERIOD: u64 = 8;

/// An event of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChainEvent {
    /// The served chain dropped its blocks above the height `fork`.
    Reorg { fork: u64 },
    /// The finalized height fell, so blocks that were taken for final may be wrong.
    FinalizedFell,
}

/// Receives each event of a chain before the view that results from the event is published.
pub(crate) type OnEvent = Rc<dyn Fn(&ChainState, ChainEvent)>;

/// Watches all chains.
#[derive(Default)]
pub(crate) struct Watcher {
    chains: Vec<Rc<WatchedChain>>,
}

impl Watcher {
    /// Polls only the upstreams of this topology from now on. Upstreams of the previous topology
    /// that are also in this one keep their state.
    pub(crate) fn set_topology(&mut self, topology: &Arc<Topology>, on_event: &OnEvent) {
        let mut previous = std::mem::take(&mut self.chains);
        for (index, state) in topology.chains.iter().enumerate() {
            let previous_index =
                previous.iter().position(|watched| Arc::ptr_eq(&watched.state, state));
            let watched = match previous_index {
                Some(previous_index) => previous.swap_remove(previous_index),
                None => WatchedChain::new(topology, index, on_event),
            };
            watched.set_topology(topology, index, on_event);
            self.chains.push(watched);
        }
        previous.iter().for_each(|removed| removed.stop());
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.chains.iter().for_each(|chain| chain.stop());
    }
}

/// A watched chain and the tasks that poll its upstreams.
struct WatchedChain {
    /// The topology of the current configuration.
    topology: RefCell<Arc<Topology>>,
    /// The chain's index in the current configuration.
    chain_index: Cell<usize>,
    /// Receives the chain's events.
    on_event: RefCell<OnEvent>,
    /// The chain's state, which all threads share.
    state: Arc<ChainState>,
    /// Elects the served head, which clients get as `latest`, from the heads of the upstreams.
    tracker: RefCell<HeadTracker>,
    /// The chain id that all upstreams must have: the configured id, or else the first reported id.
    /// `None` before the first report.
    id: Cell<Option<u64>>,
    /// Randomizes the backoffs of upstreams that have failed together.
    random: Random,
    /// The tasks that poll upstreams. The index is the upstream's index in the chain's views;
    /// `None` marks an unused index.
    tasks: RefCell<Vec<Option<PollTask>>>,
    /// The upstreams that the last reload removed. Calls in flight at a removed upstream need its
    /// entry in the view until another upstream takes the index.
    removed: RefCell<Vec<RemovedUpstream>>,
}

/// The tasks that watch an upstream.
struct PollTask {
    /// Number of the polled upstream (`UpstreamState::instance_id`).
    instance_id: u64,
    /// The task that polls the head, and the one that finds out which old data the upstream has.
    _tasks: [OwnedTask; 2],
}

/// An upstream that a reload has removed.
struct RemovedUpstream {
    /// The upstream's index in the chain's views.
    view_index: usize,
    /// The upstream's entry in the last view before the reload.
    last_view: UpstreamView,
}

/// A task that is aborted when this handle is dropped.
struct OwnedTask(AbortHandle);

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Polls the upstream with this index in the chain's views. Never returns; the owner aborts the
/// task.
async fn poll_upstream(watched: Rc<WatchedChain>, view_index: usize) {
    let mut poller = Poller::new(&watched, view_index);
    // True if the upstream's chain id was checked since its last failed poll.
    let mut is_id_checked = false;
    let mut successful_polls = 0u64;
    // End of the upstream's last pause for its rate limit, as time since the process started.
    let mut paused_until = Duration::ZERO;
    let mut failed_polls: u32 = 0;
    let family = poller.topology.config.chains[watched.chain_index.get()].family;
    let new_heads = NewHeads::subscribe(&poller, family);
    let mut last_polled_hash = None;
    let mut news = News::new(&watched);
    loop {
        let began = Instant::now();
        poller.follow_config(&watched);
        let chain = &poller.topology.config.chains[watched.chain_index.get()];
        // A cordon takes an upstream out of rotation for a time. If the cordon ends before the next
        // regular poll, the next poll is early.
        let cordon_remaining = watched.follow_cordon(view_index);
        let interval = cordon_remaining.map_or(chain.poll_interval, |remaining| {
            chain.poll_interval.min(remaining.max(SUSPECT_POLL_INTERVAL_MIN))
        });
        // An upstream that limits the request rate is not polled until its pause has ended.
        if poller.topology.now() < paused_until {
            watched.record_no_head(view_index);
            tokio::time::sleep_until(began + interval).await;
            continue;
        }
        if !is_id_checked {
            is_id_checked = watched.check_id(&mut poller, family).await;
        }
        let with_finalized = successful_polls.is_multiple_of(FINALIZED_POLL_PERIOD);
        match poller.query_head(family, with_finalized).await {
            Ok(head_poll) => {
                successful_polls += 1;
                failed_polls = 0;
                if let Some(syncing) = poller.query_syncing(family, with_finalized).await {
                    watched.tracker.borrow_mut().set_syncing(view_index, syncing);
                }
                let previous_hash = last_polled_hash.replace(head_poll.hash);
                if previous_hash.is_some_and(|previous| previous != head_poll.hash) {
                    new_heads.record_polled_head();
                }
                if previous_hash != last_polled_hash {
                    news.record_new_head(head_poll.number);
                }
                watched.record_head(&mut poller, family, head_poll).await;
                watched.confirm(view_index, began);
            }
            Err(QueryError::RateLimited { retry_after }) => {
                paused_until = watched.record_rate_limit(view_index, retry_after);
            }
            Err(QueryError::NoResponse | QueryError::ErrorResponse(_)) => {
                is_id_checked = false;
                failed_polls = failed_polls.saturating_add(1);
                watched.record_failed_poll(&mut poller);
            }
        }
        // After a failed poll, the next poll is early until the upstream responds or is ejected.
        let early_poll_at = began + interval / SUSPECT_POLL_DIVISOR;
        if (1..poller.topology.config.health.failures_max).contains(&failed_polls) {
            tokio::time::sleep_until(early_poll_at).await;
            continue;
        }
        let poll_now = Arc::clone(&poller.topology.upstreams[poller.upstream].poll_now);
        tokio::select! {
            // The order is fixed, so that simulations are reproducible.
            biased;
            () = tokio::time::sleep_until(began + interval) => {}
            // A call has failed, the upstream is suspected, or its cordon has changed.
            () = poll_now.notified() => {
                tokio::time::sleep_until(began + SUSPECT_POLL_INTERVAL_MIN).await;
            }
            () = new_heads.notified() => {
                tokio::time::sleep_until(began + NOTIFIED_POLL_INTERVAL_MIN).await;
            }
            () = news.wait() => {
                tokio::time::sleep_until(began + news.next_interval(interval)).await;
            }
        }
    }
}

impl WatchedChain {
    fn new(topology: &Arc<Topology>, index: usize, on_event: &OnEvent) -> Rc<WatchedChain> {
        let chain = &topology.config.chains[index];
        // `set_topology` adds the upstreams.
        let (upstream_count, seed) = (0, 0);
        Rc::new(WatchedChain {
            topology: RefCell::new(Arc::clone(topology)),
            chain_index: Cell::new(index),
            on_event: RefCell::new(Rc::clone(on_event)),
            state: Arc::clone(&topology.chains[index]),
            tracker: RefCell::new(HeadTracker::new(build_head_settings(chain), upstream_count)),
            id: Cell::new(chain.id),
            random: Random::new(seed, index),
            tasks: RefCell::default(),
            removed: RefCell::default(),
        })
    }

    /// Polls the chain's upstreams of a new topology: starts the tasks of new upstreams and stops
    /// the tasks of removed upstreams. `index` is the chain's index in the topology.
    fn set_topology(
        self: &Rc<WatchedChain>,
        topology: &Arc<Topology>,
        index: usize,
        on_event: &OnEvent,
    ) {
        self.on_event.replace(Rc::clone(on_event));
        let previous = self.topology.replace(Arc::clone(topology));
        let previous_chain = &previous.config.chains[self.chain_index.replace(index)];
        let chain = &topology.config.chains[index];
        // Tasks restart if the interval changes. A running task would use a shorter interval only
        // after its current sleep.
        let has_same_interval = previous_chain.poll_interval == chain.poll_interval;
        // The instance ids of the new upstreams, by their index in views.
        let mut instance_ids: Vec<Option<u64>> = Vec::new();
        for upstream in &chain.upstreams {
            let upstream = &topology.upstreams[*upstream];
            instance_ids.resize(instance_ids.len().max(upstream.view_index + 1), None);
            instance_ids[upstream.view_index] = Some(upstream.instance_id);
        }
        let old_view = self.state.view.load();
        let mut removed = Vec::new();
        let mut tasks = self.tasks.borrow_mut();
        let index_count = tasks.len().max(instance_ids.len());
        instance_ids.resize(index_count, None);
        tasks.resize_with(index_count, || None);
        self.tracker.borrow_mut().reconfigure(build_head_settings(chain), index_count);
        for (view_index, (task, instance_id)) in tasks.iter_mut().zip(instance_ids).enumerate() {
            let is_same = task.as_ref().map(|task| task.instance_id) == instance_id;
            if is_same && has_same_interval {
                continue;
            }
            let was_polled = task.take().is_some();
            if was_polled && instance_id.is_none() {
                let last_view = old_view.upstreams.get(view_index).copied().unwrap_or_default();
                removed.push(RemovedUpstream { view_index, last_view });
            }
            if !is_same {
                self.tracker
                    .borrow_mut()
                    .replace_upstream(view_index, instance_id.unwrap_or_default());
            }
            *task = instance_id.map(|instance_id| {
                let poll = tokio::task::spawn_local(poll_upstream(Rc::clone(self), view_index));
                let history = history::watch_history(Rc::clone(self), view_index);
                let history = tokio::task::spawn_local(history);
                let tasks = [poll, history].map(|task| OwnedTask(task.abort_handle()));
                PollTask { instance_id, _tasks: tasks }
            });
        }
        // The published view must have the upstreams that this reload removed. It must not have the
        // upstreams that the previous reload removed.
        let removed_changed = !removed.is_empty() || !self.removed.borrow().is_empty();
        self.removed.replace(removed);
        if removed_changed {
            self.publish();
        }
    }

    /// Stops polling.
    fn stop(&self) {
        self.tasks.borrow_mut().clear();
        self.state.end();
    }

    /// Returns the topology of the current configuration.
    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.borrow())
    }

    /// Converts an upstream's index in views to its index in the configuration of `topology`.
    fn find_upstream(&self, topology: &Topology, view_index: usize) -> usize {
        let mut upstreams = topology.config.chains[self.chain_index.get()].upstreams.iter();
        let index =
            upstreams.find(|upstream| topology.upstreams[**upstream].view_index == view_index);
        *index.expect("a removed upstream is not polled")
    }

    /// Excludes the head of a cordoned upstream from the election of the served head. Puts the
    /// upstream back into rotation once its cordon has expired. Returns the remaining time of the
    /// cordon; `None` if the upstream is not cordoned.
    fn follow_cordon(&self, view_index: usize) -> Option<Duration> {
        let topology = self.topology();
        let upstream = &topology.upstreams[self.find_upstream(&topology, view_index)];
        let now = topology.now();
        if upstream.remove_expired_cordon(now) {
            let name = &*upstream.config.name;
            tracing::info!(upstream = name, "cordon expired; upstream is in rotation again");
            self.renew_candidates();
        }
        let cordon = upstream.cordon(now);
        let step = self.tracker.borrow_mut().set_excluded(view_index, now, cordon.is_some());
        self.apply(step);
        cordon.map(|cordon| cordon.until.saturating_sub(now))
    }

    /// Updates the chain's candidates: the upstreams of each group that may be called now.
    fn renew_candidates(&self) {
        self.topology().renew_candidates(self.chain_index.get());
    }

    /// Publishes the tracker's view. Upstreams that the last reload removed keep their last view.
    fn publish(&self) {
        let mut view = self.tracker.borrow().view();
        for removed in &*self.removed.borrow() {
            view.upstreams[removed.view_index] = removed.last_view;
        }
        self.state.publish(view, self.topology().now());
        self.renew_candidates();
    }

    /// Returns true if the upstream serves this chain or has no chain id. Returns false if the
    /// query failed or the upstream serves another chain. Updates `serves_other_chain` of the
    /// upstream.
    async fn check_id(&self, poller: &mut Poller, family: Family) -> bool {
        if family == Family::Bitcoin {
            self.state.set_id(None);
            return true;
        }
        let id = match poller.query("eth_chainId", b"[]").await {
            Ok(result) => quantity::from_value(&result),
            // An upstream without the method is assumed to serve this chain.
            Err(QueryError::ErrorResponse(_)) => None,
            Err(_) => return false,
        };
        let Some(id) = id else {
            self.state.set_id(None);
            return true;
        };
        let expected = self.id.get().unwrap_or(id);
        self.id.set(Some(expected));
        let topology = self.topology();
        self.state.set_id(Some(expected));
        let state = &topology.upstreams[self.find_upstream(&topology, poller.view_index)];
        let serves_other_chain = id != expected;
        if serves_other_chain {
            let fault = format!("it serves the chain with id {id}, not {expected}");
            poller.fault.replace(fault);
        }
        let was_on_other_chain =
            state.serves_other_chain.swap(serves_other_chain, Ordering::Relaxed);
        if serves_other_chain != was_on_other_chain {
            if serves_other_chain {
                let name = &*state.config.name;
                tracing::error!(
                    upstream = name,
                    id,
                    expected,
                    "upstream is on another chain; not used"
                );
            }
            self.renew_candidates();
        }
        !serves_other_chain
    }

    /// Records a successful poll in the health of the upstream and in the tracker. Then fetches the
    /// headers that the tracker requests.
    async fn record_head(&self, poller: &mut Poller, family: Family, head_poll: HeadPoll) {
        let (topology, view_index) = (self.topology(), poller.view_index);
        let upstream = self.find_upstream(&topology, view_index);
        let now = topology.now();
        let no_healthy_upstream = !topology.any_healthy(self.chain_index.get());
        let event = topology.update_health(upstream, |health, now| {
            // `record_poll` returns an event if the poll clears a suspicion.
            if let Some(cleared) = health.record_poll() {
                return Some(cleared);
            }
            // A successful poll of an ejected upstream is also its probe. The probe is early if no
            // upstream of the chain is healthy.
            let is_probe = health.begin_due_probe(now)
                || (no_healthy_upstream && health.begin_early_probe(now));
            if is_probe { health.record_probe(now) } else { None }
        });
        if event == Some(HealthEvent::Readmitted) {
            poller.recovery = Recovery::Probed;
        }
        // Each poll updates the candidates, because nothing reports the end of a pause.
        self.renew_candidates();
        let state = &topology.upstreams[upstream];
        if state.serves_other_chain.load(Ordering::Relaxed) {
            state.record_fault(poller.fault.take(), now);
            return;
        }
        if !topology.is_lost(upstream) {
            *state.fault.lock() = None;
        }
        let step = self.tracker.borrow_mut().observe(view_index, now, head_poll);
        let header_requests = self.apply(step);
        self.fetch_headers(poller, family, header_requests).await;
        // After the next poll, the tracker requests the missing headers again.
        self.tracker.borrow_mut().forget_header_requests(view_index);
        if poller.recovery != Recovery::Done {
            self.log_recovery(poller);
        }
    }

    /// Records in the upstream's state that all its responses before `began` were about the served
    /// chain. Called after a successful poll, which started at `began`. Records nothing if the
    /// upstream is no longer on the served chain.
    fn confirm(&self, view_index: usize, began: Instant) {
        let view = self.state.view.load();
        let topology = self.topology();
        let upstream = &topology.upstreams[self.find_upstream(&topology, view_index)];
        if upstream.in_view(&view).is_some_and(|upstream_view| upstream_view.consistent) {
            upstream.confirm(began.saturating_duration_since(topology.process.started));
        }
    }

    /// Records a poll without a response, or with an error, in the health of the upstream.
    fn record_failed_poll(&self, poller: &mut Poller) {
        let view_index = poller.view_index;
        let random = self.random.next();
        let topology = self.topology();
        let upstream = self.find_upstream(&topology, view_index);
        let reason = poller.fault.take();
        topology.upstreams[upstream].record_fault(reason, topology.now());
        topology.update_health(upstream, |health, now| {
            if health.begin_due_probe(now) {
                health.record_failed_probe(now, random)
            } else {
                health.record_failed_poll(now, random)
            }
        });
        self.record_no_head(view_index);
    }

    /// Records that the upstream's rate limit rejected a poll. Such a rejection is no failure.
    /// Returns the end of the pause, as time since the process started. Polls stop until then.
    fn record_rate_limit(&self, view_index: usize, retry_after: Option<Duration>) -> Duration {
        let topology = self.topology();
        let mut until = Duration::ZERO;
        topology.update_health(self.find_upstream(&topology, view_index), |health, now| {
            let event = health.record_rate_limit(now, retry_after);
            until = health.paused_until();
            event
        });
        self.record_no_head(view_index);
        until
    }

    /// Records a poll without a head. The tracker uses the upstream's last head only for a few more
    /// polls.
    fn record_no_head(&self, view_index: usize) {
        let step = self.tracker.borrow_mut().record_missed_poll(view_index, self.topology().now());
        self.apply(step);
    }

    /// Handles a [`Step`], the tracker's output for one input: reports its events and publishes a
    /// changed view. Returns the headers that the tracker requests.
    fn apply(&self, step: Step) -> Vec<HeaderRequest> {
        for event in &step.events {
            self.on_head_event(event);
        }
        if step.changed {
            self.publish();
        }
        step.requests
    }

    /// Calls the current `on_event`.
    fn emit(&self, event: ChainEvent) {
        let on_event = Rc::clone(&self.on_event.borrow());
        on_event(&self.state, event);
    }
}

/// Converts the configuration of a chain to the settings of its tracker.
fn build_head_settings(chain: &config::chain::Chain) -> HeadSettings {
    // Number of blocks below the head after which a block counts as final.
    let depth = chain.finality_depth;
    let finality = match chain.family {
        // The depth applies only if no upstream reports a finalized height.
        Family::Ethereum => Finality::FromUpstreamsOr(depth),
        Family::Harmony | Family::Bitcoin => Finality::Depth(depth),
    };
    HeadSettings {
        window: WINDOW.max(chain.finality_depth.try_into().unwrap_or(WINDOW)),
        finality,
        lag_max: chain.lag_max,
        jump_max: chain.jump_max,
        rollback_max: ROLLBACK_MAX,
        block_time: chain.block_time,
    }
}
