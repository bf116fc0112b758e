//! The source of a command's gateway configuration: a file, or URLs on the command line. Also
//! describes a configuration in sentences.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use gateway::config::Config;
use gateway::config::access_log::LogTarget;
use gateway::config::group::{Balance, Group, HashKey};
use gateway::config::limits::{KeyPart, LimitKind, Zone};
use gateway::config::upstream::Upstream;
use gateway::policy::limit::CALL;
use settings::Diagnostics;

/// Arguments that give the configuration: a file, or URLs of upstreams.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ConfigSource {
    /// Configuration file (docs/config.md lists all keys)
    #[arg(value_name = "GATEWAY.TOML")]
    file: Option<PathBuf>,

    /// URL of an upstream, instead of a file; may be repeated
    #[arg(long, value_name = "URL")]
    upstream: Vec<String>,
}

impl ConfigSource {
    /// Creates the source for a path.
    pub(crate) fn of_file(file: &str) -> ConfigSource {
        ConfigSource { file: Some(file.into()), upstream: Vec::new() }
    }

    /// Creates the source for URLs of upstreams.
    pub(crate) fn of_upstreams(upstreams: &[String]) -> ConfigSource {
        ConfigSource { file: None, upstream: upstreams.to_vec() }
    }

    /// Returns the configuration file. `None` means that the configuration comes from URLs.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads and validates the configuration.
    pub(crate) fn read(&self) -> Result<Config, Diagnostics> {
        match &self.file {
            Some(file) => Config::from_file(file),
            None => {
                // `weir serve` overrides these defaults by its arguments.
                let (listen, threads, no_cache) = (None, None, false);
                Config::from_upstreams(&self.upstream, listen, threads, no_cache)
            }
        }
    }
}

/// Summarizes a configuration: chains with their paths, upstreams, groups, access and limits.
pub(crate) fn summarize(config: &Config) -> String {
    let mut text = String::new();
    for chain in &config.chains {
        let id = chain.id.map_or_else(String::new, |id| format!(", id {id}"));
        let paths = chain.paths.join(" ");
        let other_paths = if chain.default { " and every other path" } else { "" };
        let family = chain.family.as_str();
        let _ = writeln!(text, "chain {} ({family}{id}) at {paths}{other_paths}", chain.name);
        for upstream in &chain.upstreams {
            let _ =
                writeln!(text, "  upstream {}", describe_upstream(&config.upstreams[*upstream]));
        }
        for group in &chain.groups {
            let group = &config.groups[*group];
            let methods = group.methods.join(" ");
            let balance = describe_balance(group);
            let upstreams: Vec<_> =
                group.upstreams.iter().map(|upstream| &*config.upstreams[*upstream].name).collect();
            let upstreams = upstreams.join(" ");
            let _ = writeln!(text, "  group {}: {methods} -> {upstreams}, {balance}", group.name);
        }
    }
    text.push_str(&describe_access(config));
    for limit in &config.limits {
        let zone = &config.zones[limit.zone];
        let chain = limit.chain.map(|chain| format!("{}: ", config.chains[chain].name));
        let methods = match limit.methods.as_slice() {
            [] if limit.failures => "failed authentications: ".to_owned(),
            [] => String::new(),
            methods => format!("{}: ", methods.join(" ")),
        };
        let dry_run = if limit.dry_run { ", in dry run" } else { "" };
        let _ = writeln!(
            text,
            "limit {}{methods}{}{dry_run}",
            chain.unwrap_or_default(),
            describe_limit(&limit.kind, zone)
        );
    }
    let megabytes = config.cache.bytes_max >> 20;
    let _ = match config.cache.enabled {
        true => writeln!(text, "cache {megabytes} MiB"),
        false => writeln!(text, "cache off"),
    };
    text.push_str(&describe_tiers(config));
    text
}

/// Summarizes Redis, the index and quotas, one line each; empty if none is configured.
fn describe_tiers(config: &Config) -> String {
    let mut text = String::new();
    if let Some(redis) = &config.redis {
        let shared = if redis.responses { "responses and limits" } else { "limits" };
        let _ = writeln!(text, "redis {}: shares {shared} with other gateways", redis.url);
    }
    if let Some(index) = &config.index {
        let chain = &config.chains[index.chain].name;
        let synced =
            if index.follow { "synced by this gateway" } else { "synced by another process" };
        let _ = writeln!(text, "index {} of {chain}, {synced}", index.db);
    }
    if let Some(quota) = &config.quota {
        let shared = if quota.shared { ", counted together with other gateways" } else { "" };
        let _ = writeln!(text, "quotas by month in {}{shared}", quota.file.display());
    }
    text
}

/// Summarizes access, rules and the access log, one line each; empty if none is configured.
fn describe_access(config: &Config) -> String {
    let mut text = String::new();
    let access = &config.access;
    if access.is_on() {
        let keys = count_text(access.keys.len(), "key");
        let issuers = count_text(access.issuers.len(), "token issuer");
        let required = if access.required { "a key is required" } else { "no key is required" };
        let _ = writeln!(text, "access {keys}, {issuers}, {required}");
    }
    if !config.rules.is_empty() {
        let names: Vec<_> = config.rules.iter().map(|rule| &*rule.name).collect();
        let _ = writeln!(text, "rules {}", names.join(" "));
    }
    if let Some(log) = &config.access_log {
        let unit = if log.per_call { "call" } else { "request" };
        let target = match &log.target {
            LogTarget::Stdout => "standard output".to_owned(),
            LogTarget::File(file) => file.display().to_string(),
        };
        let share = match (log.sample, log.errors_always) {
            (sample, _) if sample >= 1.0 => format!("of each {unit}"),
            (sample, true) => format!("of {} % of {unit}s, and all with an error,", sample * 100.0),
            (sample, false) => format!("of {} % of {unit}s", sample * 100.0),
        };
        let _ = writeln!(text, "access log {share} to {target}");
    }
    text
}

/// Formats a count with its noun, and adds the plural `s`. `noun` is in the singular.
pub(crate) fn count_text(count: usize, noun: &str) -> String {
    let plural_suffix = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural_suffix}")
}

/// Formats an upstream: name, URLs without secrets, weight and backup role.
pub(crate) fn describe_upstream(upstream: &Upstream) -> String {
    let backup = if upstream.backup { ", backup" } else { "" };
    let weight =
        if upstream.weight == 1 { String::new() } else { format!(", weight {}", upstream.weight) };
    let ws_url = upstream.ws_url.as_ref().map_or_else(String::new, |url| format!(", {url}"));
    format!("{} {}{ws_url}{weight}{backup}", upstream.name, upstream.url)
}

/// Formats a limit and its key.
pub(crate) fn describe_limit(kind: &LimitKind, zone: &Zone) -> String {
    let parts: Vec<String> = zone.key.iter().map(describe_key_part).collect();
    let (name, key) = (&zone.name, parts.join(" + "));
    match kind {
        LimitKind::Concurrent(max) => format!("zone {name}, at most {max} in flight by {key}"),
        LimitKind::Rate(terms) => {
            // The rate is in thousandths of a call per second.
            let rate = terms.rate.thousandths() as f64 / 1000.0;
            let burst = terms.burst / CALL;
            // Calls of the burst beyond `delay` wait. With `None`, all calls of the burst pass at
            // once.
            let burst_text = match terms.delay {
                _ if burst == 0 => "none ahead".to_owned(),
                None => format!("burst {burst} without delay"),
                Some(0) => format!("burst {burst} that waits"),
                Some(delay) => format!("burst {burst} that waits from {} on", delay / CALL),
            };
            let shared = if zone.shared { ", shared by all gateways" } else { "" };
            format!("zone {name}, {rate} a second by {key}, {burst_text}{shared}")
        }
    }
}

fn describe_key_part(part: &KeyPart) -> String {
    match part {
        KeyPart::Client => "client address".to_owned(),
        KeyPart::ClientNet => "client network".to_owned(),
        KeyPart::Key => "API key".to_owned(),
        KeyPart::Header(name) => format!("header {name}"),
        KeyPart::Method => "method".to_owned(),
        KeyPart::Chain => "chain".to_owned(),
    }
}

/// Formats a group's load-balancing policy.
pub(crate) fn describe_balance(group: &Group) -> String {
    match &group.balance {
        Balance::LeastLoaded => "the less loaded of two".to_owned(),
        Balance::Weighted => "in turn by weight".to_owned(),
        Balance::Hash { key, load_factor } => {
            let key = match key {
                HashKey::Call => "method and params".to_owned(),
                HashKey::Client => "the client's address".to_owned(),
                HashKey::Header(name) => format!("the header {name}"),
            };
            format!("by hash of {key}, at most {load_factor} times the mean load")
        }
    }
}
