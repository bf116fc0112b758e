//! Polls the gateway's `/status` several times a second and adds the changes between two polls to
//! the timeline.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::nodes::NAMES;
use crate::control;

#[cfg(test)]
mod tests;

/// Maximum number of events of a timeline. A run of the default length has about ten.
const EVENTS_MAX: usize = 200;

/// An event of the timeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Event {
    /// Seconds since the first call.
    pub(super) seconds: f64,
    pub(super) cause: Cause,
    pub(super) text: String,
}

/// The cause of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Cause {
    /// The simulation: a fault of a node, or a reorg of the chain.
    Simulation,
    /// The gateway's reaction.
    Weir,
}

/// The part of `/status` that the demo uses. Field names are the gateway's.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Status {
    pub(super) chains: Vec<Chain>,
    pub(super) cache: Cache,
    pub(super) totals: Totals,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Chain {
    pub(super) head: Option<Head>,
    pub(super) reorgs: u64,
    pub(super) reorg_depth_max: u64,
    pub(super) upstreams: Vec<Node>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Head {
    pub(super) number: u64,
}

/// The gateway's state of a node, as in its `/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NodeState {
    Healthy,
    Lagging,
    Probing,
    Paused,
    Ejected,
    Foreign,
}

impl NodeState {
    /// Returns the state as the gateway's `/status` writes it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            NodeState::Healthy => "healthy",
            NodeState::Lagging => "lagging",
            NodeState::Probing => "probing",
            NodeState::Paused => "paused",
            NodeState::Ejected => "ejected",
            NodeState::Foreign => "foreign",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Node {
    pub(super) state: NodeState,
    pub(super) head: Option<u64>,
    pub(super) attempts: u64,
    pub(super) failed: u64,
    pub(super) in_flight: u64,
    pub(super) readmissions: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Cache {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) coalesced: u64,
    pub(super) hit_ratio: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Totals {
    pub(super) retries: u64,
    pub(super) hedges: u64,
    pub(super) hedges_won: u64,
}

impl Node {
    /// Returns true if the gateway has ejected the node, or probes the node before the node gets
    /// calls again.
    pub(super) fn is_ejected(&self) -> bool {
        matches!(self.state, NodeState::Ejected | NodeState::Probing)
    }
}

impl Chain {
    /// Returns the number of ejections: the readmissions plus the nodes that are ejected now. The
    /// gateway's own count of ejections also includes failed probes.
    pub(super) fn ejections(&self) -> u64 {
        self.upstreams.iter().map(|node| node.readmissions + u64::from(node.is_ejected())).sum()
    }

    /// Returns the number of readmissions.
    pub(super) fn readmissions(&self) -> u64 {
        self.upstreams.iter().map(|node| node.readmissions).sum()
    }
}

/// Watches one gateway.
pub(super) struct Watch {
    admin: SocketAddr,
    /// Number of the gateway's head at the start. `None` if the gateway had no head.
    first_head: Option<u64>,
    pub(super) status: Status,
    pub(super) events: Vec<Event>,
}

impl Watch {
    /// Reads the status for the first time.
    pub(super) fn start(admin: SocketAddr) -> Result<Watch> {
        let status = read_status(admin)?;
        let first_head = status.chains[0].head.map(|head| head.number);
        Ok(Watch { admin, first_head, status, events: Vec::new() })
    }

    /// Reads the status and adds the changes to the timeline.
    pub(super) fn poll(&mut self, since_start: Duration) -> Result<()> {
        let status = read_status(self.admin)?;
        for text in describe_changes(&self.status.chains[0], &status.chains[0]) {
            self.add_event(since_start, Cause::Weir, text);
        }
        self.status = status;
        Ok(())
    }

    /// Adds an event to the timeline, unless it has [`EVENTS_MAX`] events.
    pub(super) fn add_event(&mut self, since_start: Duration, cause: Cause, text: String) {
        if self.events.len() < EVENTS_MAX {
            let seconds = (since_start.as_secs_f64() * 100.0).round() / 100.0;
            self.events.push(Event { seconds, cause, text });
        }
    }

    /// Returns the number of blocks by which the gateway's head has advanced since the start.
    pub(super) fn blocks_followed(&self) -> u64 {
        let head = self.status.chains[0].head.map(|head| head.number);
        head.zip(self.first_head).map_or(0, |(head, first)| head.saturating_sub(first))
    }
}

fn read_status(admin: SocketAddr) -> Result<Status> {
    let status = control::read_status(admin).context("cannot read the gateway's status")?;
    let status: Status = serde_json::from_value(status)
        .context("the gateway's status does not have the expected form")?;
    ensure!(
        status.chains.len() == 1 && status.chains[0].upstreams.len() == NAMES.len(),
        "the gateway's status has other nodes than the demo"
    );
    Ok(status)
}

/// Describes the gateway's reactions between two polls, one text each.
fn describe_changes(old_chain: &Chain, new_chain: &Chain) -> Vec<String> {
    let mut texts = Vec::new();
    let nodes = old_chain.upstreams.iter().zip(&new_chain.upstreams);
    for (name, (old, new)) in NAMES.iter().zip(nodes) {
        if new.readmissions > old.readmissions {
            texts.push(format!("readmits {name}"));
        }
        // Between two polls, a node may have been readmitted and ejected again.
        let was_in_rotation = !old.is_ejected() || new.readmissions != old.readmissions;
        if was_in_rotation && new.is_ejected() {
            texts.push(format!("ejects {name}"));
        }
        if new.state == NodeState::Lagging && old.state != NodeState::Lagging {
            texts.push(format!("sends {name} no calls at the head: it lags"));
        }
        if new.state == NodeState::Healthy && old.state == NodeState::Lagging {
            texts.push(format!("sends {name} all calls again"));
        }
    }
    if new_chain.reorgs > old_chain.reorgs {
        texts.push("follows the reorg and drops the old branch from the cache".to_owned());
    }
    texts
}
