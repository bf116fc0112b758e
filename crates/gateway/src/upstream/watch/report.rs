//! Logs and counts the events of a chain's heads.

use std::sync::atomic::Ordering;

use crate::policy::heads::{HeadEvent, Stall};
use crate::policy::health::HealthState;
use crate::upstream::watch::poller::{Poller, Recovery};
use crate::upstream::watch::{ChainEvent, WatchedChain};

impl WatchedChain {
    /// Logs that an upstream is readmitted, or that the upstream responds but lags. Called after
    /// the headers of the upstream's branch were fetched; the lag is unknown until then.
    pub(super) fn log_recovery(&self, poller: &mut Poller) {
        let topology = self.topology();
        let index = self.find_upstream(&topology, poller.view_index);
        let view = self.state.view.load();
        let upstream = &topology.upstreams[index];
        let name = &*upstream.config.name;
        poller.recovery = match topology.upstream_state(index, &view) {
            HealthState::Healthy => {
                tracing::info!(upstream = name, "upstream readmitted");
                Recovery::Done
            }
            HealthState::Lagging => {
                if poller.recovery == Recovery::Probed {
                    let lag = upstream.in_view(&view).map(|upstream_view| upstream_view.lag);
                    tracing::info!(
                        upstream = name,
                        lag,
                        "upstream responds again but lags; it gets calls only while no upstream is \
                         healthy"
                    );
                }
                Recovery::Lagging
            }
            HealthState::Ejected { .. } => Recovery::Done,
            HealthState::Probing | HealthState::Paused { .. } => poller.recovery,
        };
    }

    /// Counts and logs an event of the tracker, and emits the chain event that follows from it.
    pub(super) fn on_head_event(&self, event: &HeadEvent) {
        let (topology, state) = (self.topology(), &self.state);
        let chain = &*state.name;
        let name = |view_index: usize| {
            &*topology.upstreams[self.find_upstream(&topology, view_index)].config.name
        };
        match *event {
            HeadEvent::Reorg { fork, depth } => {
                state.reorgs.fetch_add(1, Ordering::Relaxed);
                state.reorg_depth_max.fetch_max(depth, Ordering::Relaxed);
                self.emit(ChainEvent::Reorg { fork });
                tracing::info!(chain, fork, depth, "chain reorganised");
            }
            HeadEvent::UpstreamReorg { upstream, fork, depth } => {
                tracing::debug!(
                    chain,
                    upstream = name(upstream),
                    fork,
                    depth,
                    "upstream changed its branch"
                );
            }
            HeadEvent::UpstreamLagging { upstream, lag } => {
                tracing::warn!(chain, upstream = name(upstream), lag, "upstream lags behind");
            }
            HeadEvent::HeadStalled(Stall { upstream, number, reason }) => {
                let head = state.view.load().head.map(|head| head.number);
                let (upstream, why) = (name(upstream), reason.describe());
                tracing::warn!(
                    chain,
                    head,
                    upstream,
                    number,
                    why,
                    "the head stands still although an upstream reports new blocks"
                );
            }
            HeadEvent::HeadResumed => tracing::info!(chain, "the head moves again"),
            HeadEvent::FinalizedFell { from, to } => {
                self.emit(ChainEvent::FinalizedFell);
                tracing::error!(chain, from, to, "finalized height fell; cache cleared");
            }
            HeadEvent::HeadImplausible { upstream, number } => {
                tracing::warn!(
                    chain,
                    upstream = name(upstream),
                    number,
                    "upstream reports an implausible head"
                );
            }
        }
    }
}
