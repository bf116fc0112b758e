//! The chains, groups and upstreams of one configuration, with their state.
//!
//! All threads share a topology. A chain's view is a snapshot of its heads, the newest blocks of
//! its upstreams. Readers load the view without waiting, and the poller (`watch.rs`) replaces the
//! view as a whole. The health of an upstream changes under a short lock. An upstream is *ejected*
//! for a time after failures, *suspected* while it does not respond, and *paused* while it limits
//! the request rate. A reload builds a new topology (`topology/build.rs`), while calls in flight
//! still use the old one.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::config::Config;
use crate::policy::choose::TierOrder;
use crate::policy::cordon::{Cordon, Member};
use crate::policy::heads::ChainView;
use crate::policy::health::{EjectReason, HealthEvent, HealthState, UpstreamHealth, select_usable};
use crate::process::Process;
use crate::upstream::chain::ChainState;
use crate::upstream::overload::ConcurrencyLimit;
use crate::upstream::state::UpstreamState;

mod build;

#[cfg(test)]
mod tests;

/// The cache number that stands for no upstream; see [`UpstreamState::cache_number`].
pub(crate) const NO_UPSTREAM: u16 = u16::MAX;

/// The chains, groups and upstreams of one configuration.
pub(crate) struct Topology {
    pub(crate) config: Arc<Config>,
    /// The chains, in the order of the configuration.
    pub(crate) chains: Vec<Arc<ChainState>>,
    /// The upstreams, in the order of the configuration.
    pub(crate) upstreams: Vec<UpstreamState>,
    /// The groups, in the order of the configuration.
    pub(crate) groups: Vec<GroupState>,
    /// The state that all configurations of the process share.
    pub(crate) process: Arc<Process>,
    /// The index of each upstream in the configuration, by its `cache_number`; `None` for removed
    /// upstreams.
    by_number: Vec<Option<usize>>,
    /// The topologies in use, which all topologies of the process share.
    in_use: Arc<TopologiesInUse>,
}

/// The topologies in use: the newest topology, and older topologies that calls in flight still use.
/// Locked briefly, and never on the path of a call.
#[derive(Default)]
struct TopologiesInUse(Mutex<Vec<Weak<Topology>>>);

impl TopologiesInUse {
    /// Adds a topology and removes unused topologies.
    fn add(&self, topology: &Arc<Topology>) {
        let mut in_use = self.0.lock();
        in_use.retain(|topology| topology.strong_count() > 0);
        in_use.push(Arc::downgrade(topology));
    }

    fn list(&self) -> Vec<Arc<Topology>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// The state of one group.
pub(crate) struct GroupState {
    /// The upstreams that may be called now.
    pub(crate) candidates: ArcSwap<Candidates>,
    /// The tiers of the group's upstreams: primary upstreams first, then backups.
    tier_order: TierOrder,
    /// Limit of calls in flight at the group's upstreams; `None` if calls are not limited.
    pub(crate) concurrency_limit: Option<Arc<ConcurrencyLimit>>,
}

/// The upstreams of a group that may be called now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Candidates {
    /// Indices in the group's list of upstreams. They refer to the healthy upstreams of the first
    /// tier that has a healthy upstream. If no upstream is healthy, they refer to the upstreams in
    /// the best state.
    pub(crate) group_indices: Vec<u16>,
    /// If all upstreams are paused, the time at which the first pause ends; otherwise `None`.
    pub(crate) paused_until: Option<Duration>,
}

impl Topology {
    /// Returns the index of the upstream with this cache number; `None` if a reload has removed the
    /// upstream.
    pub(crate) fn find_upstream_by_number(&self, number: u16) -> Option<usize> {
        self.by_number.get(usize::from(number)).copied().flatten()
    }

    /// Returns the index of a chain; `None` if a reload has removed the chain.
    pub(crate) fn chain_index(&self, chain: &Arc<ChainState>) -> Option<usize> {
        self.chains.iter().position(|configured| Arc::ptr_eq(configured, chain))
    }

    /// Returns the time since the process started. All policies use this clock.
    pub(crate) fn now(&self) -> Duration {
        self.process.now()
    }

    /// Changes the health of an upstream, logs the resulting event and acts on it. Returns the
    /// event; `None` if the state has not changed. A readmission is not logged here: the poller
    /// logs the readmission once the lag of the upstream is known.
    pub(crate) fn update_health(
        &self,
        upstream: usize,
        change: impl FnOnce(&mut UpstreamHealth, Duration) -> Option<HealthEvent>,
    ) -> Option<HealthEvent> {
        let state = &self.upstreams[upstream];
        let event = change(&mut state.health.lock(), self.now())?;
        let name = &*state.config.name;
        match event {
            HealthEvent::Ejected { backoff, reason } => {
                state.ejections.fetch_add(1, Ordering::Relaxed);
                // A long outage causes many failed probes. Only the start of the outage is logged
                // as a warning.
                if reason == EjectReason::FailedProbe {
                    tracing::debug!(upstream = name, ?backoff, "upstream fails its probe");
                } else {
                    let why = match reason {
                        // The poller has recorded why the polls fail.
                        EjectReason::FailedPolls => state.fault().map(|fault| fault.reason),
                        _ => None,
                    };
                    let why = why.unwrap_or_else(|| reason.to_string());
                    tracing::warn!(upstream = name, ?backoff, why, "upstream ejected");
                    state.record_fault(why, self.now());
                }
            }
            HealthEvent::Suspected => {
                tracing::info!(
                    upstream = name,
                    "upstream does not respond; calls go to other upstreams"
                );
                state.poll_now.notify_one();
            }
            HealthEvent::Cleared => tracing::info!(upstream = name, "upstream responds again"),
            HealthEvent::Readmitted => {
                state.readmissions.fetch_add(1, Ordering::Relaxed);
            }
            HealthEvent::Paused { until } => {
                let pause = until.saturating_sub(self.now());
                tracing::info!(upstream = name, ?pause, "upstream limits the request rate; paused");
            }
        }
        self.renew_candidates(state.config.chain);
        if matches!(event, HealthEvent::Suspected | HealthEvent::Ejected { .. }) {
            // This makes calls that wait at this upstream start another attempt.
            self.process.lost_upstream.notify_waiters();
        }
        Some(event)
    }

    /// Returns true if an upstream is ejected, suspected or being probed.
    pub(crate) fn is_lost(&self, upstream: usize) -> bool {
        let state = self.upstreams[upstream].health.lock().state(self.now());
        // A suspected upstream also has the state `Probing`.
        matches!(state, HealthState::Ejected { .. } | HealthState::Probing)
    }

    /// Returns the state of an upstream: its health, or `Lagging` if it is healthy but not at the
    /// served head.
    pub(crate) fn upstream_state(&self, upstream: usize, view: &ChainView) -> HealthState {
        let state = &self.upstreams[upstream];
        let health = state.health.lock().state(self.now());
        let upstream_view = state.in_view(view).unwrap_or_default();
        // If no head is served, only upstreams that sync count as lagging.
        let is_at_head = match view.head {
            Some(_) => upstream_view.at_head,
            None => !upstream_view.syncing,
        };
        if health == HealthState::Healthy && !is_at_head { HealthState::Lagging } else { health }
    }

    /// Takes an upstream out of rotation, or returns it to rotation if `cordon` is `None`. Calls in
    /// flight end as usual.
    pub(crate) fn set_cordon(&self, upstream: usize, cordon: Option<Cordon>) {
        let state = &self.upstreams[upstream];
        let name = &*state.config.name;
        match &cordon {
            Some(Cordon { reason, until }) => {
                let reason = reason.as_deref().unwrap_or_default();
                let seconds = until.saturating_sub(self.now()).as_secs_f64().round();
                tracing::warn!(upstream = name, seconds, reason, "upstream cordoned");
            }
            None => tracing::info!(upstream = name, "upstream uncordoned"),
        }
        *state.cordon.lock() = cordon;
        self.renew_candidates(state.config.chain);
        // The next poll excludes the upstream from the election of the served head, or includes it
        // again.
        state.poll_now.notify_one();
    }

    /// Returns the indices of the groups that would have no usable upstream without this upstream.
    pub(crate) fn groups_without(&self, upstream: usize) -> Vec<usize> {
        let chain = self.upstreams[upstream].config.chain;
        let (view, now) = (self.chains[chain].view.load(), self.now());
        let describe_member = |index: &usize| {
            let state = &self.upstreams[*index];
            Member {
                health: self.upstream_state(*index, &view),
                serves_other_chain: state.serves_other_chain.load(Ordering::Relaxed),
                cordoned: state.is_cordoned(now),
            }
        };
        let depends_on_upstream = |group: &&usize| {
            let members = &self.config.groups[**group].upstreams;
            let mut others =
                members.iter().filter(|index| **index != upstream).map(describe_member);
            members.contains(&upstream) && !others.any(Member::is_usable)
        };
        self.config.chains[chain].groups.iter().filter(depends_on_upstream).copied().collect()
    }

    /// Returns true if at least one upstream of a chain is healthy and in rotation.
    pub(crate) fn any_healthy(&self, chain: usize) -> bool {
        let view = self.chains[chain].view.load();
        let now = self.now();
        let is_in_rotation = |upstream: &&usize| self.upstreams[**upstream].is_in_rotation(now);
        let mut upstreams = self.config.chains[chain].upstreams.iter().filter(is_in_rotation);
        upstreams.any(|upstream| self.upstream_state(*upstream, &view) == HealthState::Healthy)
    }

    /// Updates the candidates of all groups of a chain, in every topology in use. Called when a
    /// state changes. Also called with each poll, because nothing reports the end of a pause.
    pub(crate) fn renew_candidates(&self, chain: usize) {
        let chain = &self.chains[chain];
        for topology in self.in_use.list() {
            if let Some(chain_index) = topology.chain_index(chain) {
                topology.renew_own_candidates(chain_index);
            }
        }
    }

    /// Updates the candidates of a chain's groups in this topology.
    fn renew_own_candidates(&self, chain: usize) {
        let view = self.chains[chain].view.load();
        let now = self.now();
        for &group in &self.config.chains[chain].groups {
            let members = &self.config.groups[group].upstreams;
            let in_rotation: Vec<u16> = (0..members.len() as u16)
                .filter(|group_index| {
                    self.upstreams[members[usize::from(*group_index)]].is_in_rotation(now)
                })
                .collect();
            let state_of =
                |group_index: &u16| self.upstream_state(members[usize::from(*group_index)], &view);
            let states: Vec<HealthState> = in_rotation.iter().map(state_of).collect();
            let is_healthy = |group_index: u16| {
                let mut indices_with_states = in_rotation.iter().zip(&states);
                indices_with_states
                    .any(|(index, state)| *index == group_index && *state == HealthState::Healthy)
            };
            let group = &self.groups[group];
            let mut candidates = Candidates::default();
            let group_indices = &mut candidates.group_indices;
            group.tier_order.fill_candidates(is_healthy, group_indices);
            if group_indices.is_empty() {
                // `select_usable` returns indices in `states`. The loop converts them to indices in
                // the group.
                candidates.paused_until = select_usable(&states, group_indices);
                for group_index in group_indices {
                    *group_index = in_rotation[usize::from(*group_index)];
                }
            }
            group.candidates.store(Arc::new(candidates));
        }
    }
}
