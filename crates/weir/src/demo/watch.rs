//! What a demo reads of the gateway: its `/status`, looked at some times a second, and what changed
//! between two looks as lines of the timeline.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::nodes::NAMES;

#[cfg(test)]
mod tests;

/// The most lines of a timeline; a run of usual length has about ten.
const EVENTS_MAX: usize = 200;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Event {
    /// Since the first call.
    pub(super) seconds: f64,
    /// Who did it.
    pub(super) by: By,
    pub(super) text: String,
}

/// Who did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum By {
    /// The demo: a node's trouble, a reorg of the chain.
    World,
    /// The gateway: what it noticed and did.
    Weir,
}

/// The part of `/status` that a demo shows. Field names are the gateway's.
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

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Node {
    pub(super) state: String,
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
    /// Whether it is out for ill health.
    pub(super) fn is_out(&self) -> bool {
        matches!(&*self.state, "ejected" | "probing")
    }
}

impl Chain {
    /// How often nodes were taken out: every time ended with a return, or has not ended. The
    /// gateway's own count of ejections also has every failed probe.
    pub(super) fn times_out(&self) -> u64 {
        self.upstreams.iter().map(|node| node.readmissions + u64::from(node.is_out())).sum()
    }

    /// How often nodes were taken back.
    pub(super) fn times_back(&self) -> u64 {
        self.upstreams.iter().map(|node| node.readmissions).sum()
    }
}

/// Follows one gateway.
pub(super) struct Watch {
    client: Client,
    first_head: Option<u64>,
    pub(super) status: Status,
    pub(super) events: Vec<Event>,
}

impl Watch {
    /// Reads the status for the first time.
    pub(super) fn start(admin: SocketAddr) -> Result<Watch> {
        let mut client = Client::new(admin);
        let status = read(&mut client)?;
        let first_head = status.chains[0].head.map(|head| head.number);
        Ok(Watch { client, first_head, status, events: Vec::new() })
    }

    /// Reads the status anew. Gives the lines that it added to the timeline.
    pub(super) fn look(&mut self, since_start: Duration) -> Result<&[Event]> {
        let before = self.events.len();
        let status = read(&mut self.client)?;
        for text in changes(&self.status.chains[0], &status.chains[0]) {
            self.note(since_start, By::Weir, text);
        }
        self.status = status;
        Ok(&self.events[before..])
    }

    /// Adds a line to the timeline.
    pub(super) fn note(&mut self, since_start: Duration, by: By, text: String) {
        if self.events.len() < EVENTS_MAX {
            let seconds = (since_start.as_secs_f64() * 100.0).round() / 100.0;
            self.events.push(Event { seconds, by, text });
        }
    }

    /// Blocks that the gateway's head has gone since the start.
    pub(super) fn heads(&self) -> u64 {
        let head = self.status.chains[0].head.map(|head| head.number);
        head.zip(self.first_head).map_or(0, |(head, first)| head.saturating_sub(first))
    }
}

fn read(client: &mut Client) -> Result<Status> {
    let response = client.get("/status").context("cannot read the gateway's status")?;
    ensure!(response.status == 200, "the gateway's status answers {}", response.status);
    let status: Status = serde_json::from_slice(&response.body)
        .context("the gateway's status has not the expected form")?;
    ensure!(
        status.chains.len() == 1 && status.chains[0].upstreams.len() == NAMES.len(),
        "the gateway's status shows other nodes than the demo's"
    );
    Ok(status)
}

/// What the gateway noticed and did between two looks.
fn changes(before: &Chain, after: &Chain) -> Vec<String> {
    let mut texts = Vec::new();
    for (name, (before, after)) in NAMES.iter().zip(before.upstreams.iter().zip(&after.upstreams)) {
        if after.readmissions > before.readmissions {
            texts.push(format!("takes {name} back"));
        }
        if after.is_out() && !(before.is_out() && after.readmissions == before.readmissions) {
            texts.push(format!("takes {name} out"));
        }
        if after.state == "lagging" && before.state != "lagging" {
            texts.push(format!("asks {name} nothing about the head: it is behind"));
        }
        if after.state == "healthy" && before.state == "lagging" {
            texts.push(format!("asks {name} everything again"));
        }
    }
    if after.reorgs > before.reorgs {
        texts.push("follows the reorg and drops what it had kept of the old branch".to_owned());
    }
    texts
}
