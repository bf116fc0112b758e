//! Alert rules, recording rules and dashboards for Prometheus and Grafana: for the gateway, and for
//! load runs of the lab. The lab is the part of Weir that load-tests nodes and gateways.
//!
//! `cargo xtask generate` writes the rules and dashboards into `deploy/` and `docs/alerts.md`.
//! Every query is checked against the declared metrics, so a rule or panel can name only metrics
//! and labels that exist.
//!
//! In reading order: `catalogue` (the declared metrics), `query` (checks and completes PromQL),
//! `rules` (the file of rules and the page about alerts, from `rules.toml`) and `dashboard` (the
//! JSON of Grafana, from `gateway.toml` and `lab.toml`).

mod catalogue;
mod dashboard;
mod query;
mod rules;

use dashboard::Dashboard;

pub(crate) use rules::{DEFAULT_RUNBOOK_URL, render_alerts_page, render_rules};

/// Returns the JSON of the gateway's dashboard.
pub(crate) fn gateway_dashboard() -> String {
    Dashboard::read(include_str!("monitoring/gateway.toml")).json(&catalogue::gateway())
}

/// Returns the JSON of the dashboard of a load run.
pub(crate) fn lab_dashboard() -> String {
    Dashboard::read(include_str!("monitoring/lab.toml")).json(&catalogue::lab())
}

#[cfg(test)]
mod tests;
