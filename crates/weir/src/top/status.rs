//! The values of `/status` that `weir top` shows. Other values are ignored.
//!
//! `gateway::admin::status` documents the values. This file parses the JSON with types of its own,
//! because the gateway may be of another version.

use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Status {
    pub(super) version: String,
    pub(super) uptime_seconds: f64,
    pub(super) process: Process,
    pub(super) config: Config,
    pub(super) chains: Vec<Chain>,
    pub(super) cache: Cache,
    pub(super) memory: Memory,
    pub(super) totals: Totals,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Process {
    pub(super) id: u32,
    pub(super) start_ticks: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Config {
    pub(super) generation: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) head: Option<Head>,
    pub(super) head_age_seconds: Option<f64>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) groups: Vec<Group>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Head {
    pub(super) number: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Upstream {
    pub(super) name: String,
    pub(super) state: String,
    pub(super) state_ends_seconds: Option<f64>,
    pub(super) fault: Option<Fault>,
    pub(super) cordon: Option<Cordon>,
    pub(super) head: Option<u64>,
    pub(super) lag: Option<u64>,
    pub(super) in_flight: u64,
    pub(super) attempts: u64,
    pub(super) failed: u64,
    pub(super) rate_limited: u64,
    pub(super) latency_p50_ms: Option<f64>,
    pub(super) latency_p99_ms: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Fault {
    pub(super) reason: String,
    pub(super) since_seconds: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Cordon {
    pub(super) reason: Option<String>,
    pub(super) ends_seconds: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) balance: String,
    pub(super) candidates: Vec<String>,
    pub(super) in_flight: u64,
    pub(super) in_flight_limit: Option<u32>,
    pub(super) queued: u64,
    pub(super) shed: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Cache {
    pub(super) enabled: bool,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) coalesced: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Memory {
    pub(super) bytes_max: u64,
    pub(super) purposes: Vec<MemoryPurpose>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct MemoryPurpose {
    pub(super) bytes: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Totals {
    pub(super) connections_open: u64,
    pub(super) calls: u64,
    pub(super) errors: u64,
    pub(super) failed: u64,
    pub(super) retries: u64,
    pub(super) in_flight: u64,
    pub(super) waiting: u64,
    pub(super) refused: Vec<Refused>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Refused {
    pub(super) requests: u64,
}
