//! From what was written to what is wanted: whether the values fit each other.
//!
//! Each value by itself was judged when it was read (`config/file.rs`). Here names are looked up,
//! defaults that follow from elsewhere are drawn, bounds between keys are held, and what looks
//! like a mistake is noted as a warning. Faults are gathered to the end, so that a name that is
//! misspelt does not hide the next one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use wire::call::Limits;

use super::access::{AccessLog, LogTarget};
use super::diff::Keys;
use super::expand::World;
use super::fault::{Faults, Report, Severity};
use super::field::{ACCESS, ACCESS_LOG, CACHE, CALL, FRONT, HEALTH, LOG, OVERLOAD, SERVER};
use super::file::{Entry, Written, nearest};
use super::kind::{ShownBytes, ShownDuration};
use super::{
    Cache, Config, ContentType, Cors, Filters, Front, Health, Log, LogFormat, Overload,
    RetryBudget, WebSocket,
};
use crate::access_log::format::Format;
use crate::rules::overload::Priorities;

mod access;
mod chains;
mod clients;
mod direct;
mod groups;
mod index;
mod limits;
mod nodes;
mod quota;
mod redis;
mod tls;

/// The configuration, or every fault of it.
pub(super) fn check(
    written: &Written,
    world: &World<'_>,
    mut report: Report<'_>,
) -> Result<Config, Faults> {
    let folder = world.folder;
    let mut chains = chains::check(written, &mut report);
    let nodes = nodes::check(written, folder, &mut chains, &mut report);
    let groups = groups::check(written, &mut chains, &nodes, &mut report);
    let access = access::check(written, world, &chains, &mut report);
    let mut kept_headers = Vec::new();
    let rules = direct::check(written, &chains, &groups, &access, &mut kept_headers, &mut report);
    let access_log = access_log(&written.once(&ACCESS_LOG), world, &mut kept_headers, &mut report);
    if let Some(header) = access.places.header.as_ref().filter(|own| kept_headers.contains(own)) {
        let message = format!("a rule or the access log looks at {header}, which holds keys");
        refuse(&mut report, &written.once(&ACCESS), "key_header", &message, "another header there");
    }
    let (zones, limits) = limits::check(written, &chains, &access, &mut report);
    let server = written.once(&SERVER);
    let (listen, listen_tls, admin) = addresses(&server, &mut report);
    let listen_tls = tls::check(written, folder, listen_tls, &server, &mut report).map(Arc::new);
    let call = written.once(&CALL);
    let cache = cache(&written.once(&CACHE), &mut report);
    let quota = quota::check(written, folder, &access, &mut report);
    let quotas_shared = quota.as_ref().is_some_and(|quota| quota.shared);
    let uses = redis::Uses { cache: &cache, zones: &zones, limits: &limits, quotas_shared };
    let redis = redis::check(written, folder, &uses, &mut report);
    let index = index::check(written, folder, &chains, &mut report);
    let config = Config {
        listen,
        listen_tls,
        admin,
        threads: threads(&server, &mut report),
        memory_max: server.set("memory_max").map(|_| server.value("memory_max").size()),
        drain_delay: server.value("drain_delay").duration(),
        drain_linger: server.value("drain_linger").duration(),
        drain_deadline: server.value("drain_deadline").duration(),
        reload_on_change: server.value("reload_on_change").switch(),
        files: world.files(),
        front: front(&written.once(&FRONT), &written.once(&ACCESS), &mut report),
        access,
        quota,
        rules,
        access_log,
        kept_headers,
        zones,
        limits,
        cache,
        redis,
        index,
        health: health(&written.once(&HEALTH), &mut report),
        retry: RetryBudget {
            share_max: call.value("retry_share_max").number(),
            rate_min: call.value("retry_rate_min").count() as u32,
        },
        overload: overload(&written.once(&OVERLOAD), &mut report),
        log: log(&written.once(&LOG)),
        chains,
        nodes,
        groups,
        warnings: Faults { file: None, list: Vec::new() },
        keys: Keys::of(written).into(),
    };
    // Beside faults warnings are noise: a node that could not be read looks like a missing one.
    let faulty = report.has_faults();
    let mut found = report.finish();
    if faulty {
        found.list.retain(|fault| fault.severity == Severity::Fault);
        return Err(found);
    }
    Ok(Config { warnings: found, ..config })
}

type Address = Option<SocketAddr>;

/// Where clients connect in clear text and over TLS, and the admin address.
fn addresses(server: &Entry, report: &mut Report<'_>) -> (Address, Address, Address) {
    let listen = server.value("listen").address();
    let listen_tls = server.value("listen_tls").address();
    let admin = server.value("admin").address();
    if listen.is_none() && listen_tls.is_none() {
        let allowed = "an address here or in listen_tls";
        refuse(report, server, "listen", "clients cannot connect anywhere", allowed);
    }
    let same =
        |one: Address, other: Address| one.is_some_and(|one| one.port() != 0 && other == Some(one));
    if same(listen, listen_tls) {
        let message = "clear text and tls cannot share an address";
        refuse(report, server, "listen_tls", message, "two different ports");
    }
    if let Some(admin) = admin {
        if same(Some(admin), listen) || same(Some(admin), listen_tls) {
            let message = "clients and admin cannot share an address";
            let key = if server.set("admin").is_some() { "admin" } else { "listen" };
            refuse(report, server, key, message, "two different ports");
        } else if !admin.ip().is_loopback() {
            let span = server.set("admin").and_then(|set| set.span.clone());
            let message = "metrics and status have no password and are open to other machines";
            let advice = "127.0.0.1, or a firewall before it";
            report.warn(span.as_ref(), server.key("admin"), message, advice);
        }
    }
    (listen, listen_tls, admin)
}

fn threads(server: &Entry, report: &mut Report<'_>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let Some(set) = server.set("threads") else { return cores };
    let threads = server.value("threads").size();
    if threads > cores {
        let message = "more threads than this machine has cores";
        report.warn(set.span.as_ref(), server.key("threads"), message, "as many as cores");
    }
    threads
}

fn front(front: &Entry, access: &Entry, report: &mut Report<'_>) -> Front {
    let (client_address, trusted_proxies) = clients::check(front, report);
    let origins = front.value("cors_origins").texts();
    let cors = if origins.iter().any(|origin| origin == "*") {
        Cors::Any
    } else {
        Cors::Origins(origins.into_iter().map(String::into_boxed_str).collect())
    };
    Front {
        connections_max: front.value("connections_max").size(),
        connections_per_client_max: front
            .chosen("connections_per_client_max")
            .map(|count| count.size()),
        limits: Limits {
            body_bytes_max: front.value("body_bytes_max").size(),
            depth_max: front.value("depth_max").size(),
            batch_calls_max: front.value("batch_calls_max").size(),
            method_bytes_max: front.value("method_bytes_max").size(),
            id_bytes_max: front.value("id_bytes_max").size(),
        },
        header_bytes_max: front.value("header_bytes_max").size(),
        batch_answer_bytes_max: front.value("batch_answer_bytes_max").size(),
        header_timeout: front.value("header_timeout").duration(),
        body_timeout: front.value("body_timeout").duration(),
        write_timeout: front.value("write_timeout").duration(),
        idle_timeout: front.value("idle_timeout").duration(),
        cors,
        key_header: access.value("key_header").text().into(),
        compression: front.value("compression").switch(),
        compression_bytes_min: front.value("compression_bytes_min").size(),
        content_type: match front.value("content_type").choice() {
            "strict" => ContentType::Strict,
            _ => ContentType::Lenient,
        },
        answer_headers: front.value("answer_headers").switch(),
        keep_alive_requests_max: front
            .chosen("keep_alive_requests_max")
            .map_or(u64::MAX, |requests| requests.count()),
        websocket: WebSocket {
            enabled: front.value("websocket").switch(),
            compression: front.value("websocket_compression").switch(),
            messages_max: front.value("websocket_messages_max").size(),
            queue_bytes_max: front.value("websocket_queue_bytes_max").size(),
            subscriptions_max: front.value("websocket_subscriptions_max").size(),
            ping: front.value("websocket_ping").duration(),
        },
        filters: Filters {
            filters_max: front.value("filters_max").size(),
            per_client_max: front.value("filters_per_client_max").size(),
            timeout: front.value("filter_timeout").duration(),
        },
        client_address,
        trusted_proxies,
    }
}

fn cache(cache: &Entry, report: &mut Report<'_>) -> Cache {
    let bytes_max = cache.value("bytes_max").size();
    let entry_bytes_max = cache.value("entry_bytes_max").size();
    // An entry that is nearly the whole cache would push everything else out at once.
    if cache.set("entry_bytes_max").is_some() && entry_bytes_max > bytes_max {
        let allowed = format!("at most cache.bytes_max, {}", ShownBytes(bytes_max as u64));
        refuse(report, cache, "entry_bytes_max", "one entry is larger than the cache", &allowed);
    }
    Cache {
        enabled: cache.value("enabled").switch(),
        coalesce: cache.value("coalesce").switch(),
        bytes_max,
        entry_bytes_max: entry_bytes_max.min(bytes_max),
        head_age_max: cache.value("head_age_max").duration(),
        null_age_max: cache.value("null_age_max").duration(),
        error_age_max: cache.value("error_age_max").duration(),
        logs_chunk_blocks: cache.value("logs_chunk_blocks").count(),
        logs_parts_max: cache.value("logs_parts_max").size(),
    }
}

fn health(health: &Entry, report: &mut Report<'_>) -> Health {
    not_above(report, health, "backoff_min", "backoff_max");
    not_above(report, health, "pause", "pause_max");
    Health {
        failures_max: health.value("failures_max").count() as u32,
        window: health.value("window").duration(),
        window_calls_min: health.value("window_calls_min").count() as u32,
        failure_share_max: health.value("failure_share_max").number(),
        backoff_min: health.value("backoff_min").duration(),
        backoff_max: health.value("backoff_max").duration(),
        pause: health.value("pause").duration(),
        pause_max: health.value("pause_max").duration(),
        unsupported_age_max: health.value("unsupported_age_max").duration(),
    }
}

fn overload(overload: &Entry, report: &mut Report<'_>) -> Option<Overload> {
    let tiers = |key: &str| -> Vec<Box<str>> {
        overload.value(key).texts().into_iter().map(String::into_boxed_str).collect()
    };
    let (high_tiers, low_tiers) = (tiers("high_tiers"), tiers("low_tiers"));
    for (at, tier) in low_tiers.iter().enumerate() {
        if high_tiers.contains(tier) {
            let message = "this tier is among high_tiers too";
            refuse_element(report, overload, "low_tiers", at, message, "each tier in one list");
        }
    }
    overload.value("enabled").switch().then(|| Overload {
        queue_max: overload.value("queue_max").size(),
        queue_timeout: overload.value("queue_timeout").duration(),
        priorities: Priorities {
            high_tiers,
            low_tiers,
            heavy_weight: overload.value("heavy_weight").count() as u32,
        },
        share_kept: overload.value("share_kept").number(),
        status: overload.value("status").count() as u16,
    })
}

fn access_log(
    log: &Entry,
    world: &World<'_>,
    kept_headers: &mut Vec<Box<str>>,
    report: &mut Report<'_>,
) -> Option<AccessLog> {
    let Some(file) = log.chosen("file") else {
        if let Some(span) = &log.span {
            let advice = "file = \"access.log\", or \"-\" for standard output";
            report.warn(Some(span), log.key("file"), "without a file nothing is written", advice);
        }
        return None;
    };
    let file = file.text();
    let format = Format::parse(&log.value("format").text()).expect("its kind has read it");
    for name in format.headers() {
        direct::kept(kept_headers, name);
    }
    Some(AccessLog {
        to: if file == "-" { LogTarget::Stdout } else { LogTarget::File(world.folder.join(file)) },
        format: format.placed(|name| kept_headers.iter().position(|kept| **kept == *name)),
        per_call: log.value("per").choice() == "call",
        sample: log.value("sample").number(),
        errors_always: log.value("errors_always").switch(),
        queue_lines: log.value("queue_lines").size(),
    })
}

fn log(log: &Entry) -> Log {
    Log {
        format: match log.value("format").choice() {
            "json" => LogFormat::Json,
            _ => LogFormat::Text,
        },
        level: match log.value("level").choice() {
            "error" => tracing::Level::ERROR,
            "warn" => tracing::Level::WARN,
            "debug" => tracing::Level::DEBUG,
            "trace" => tracing::Level::TRACE,
            _ => tracing::Level::INFO,
        },
    }
}

/// Faults the first of two durations if it is above the second. Where only the second was set,
/// the fault stands there.
fn not_above(report: &mut Report<'_>, entry: &Entry, low: &str, high: &str) {
    let (least, most) = (entry.value(low).duration(), entry.value(high).duration());
    if least <= most {
        return;
    }
    if entry.set(low).is_some() {
        let allowed = format!("at most {high}, {}", shown(most));
        refuse(report, entry, low, &format!("longer than {high}"), &allowed);
    } else {
        let allowed = format!("at least {low}, {}", shown(least));
        refuse(report, entry, high, &format!("shorter than {low}"), &allowed);
    }
}

fn shown(duration: Duration) -> String {
    format!("\"{}\"", ShownDuration(duration))
}

/// Faults a key's value: at the value if it was set, else at its table.
fn refuse(report: &mut Report<'_>, entry: &Entry, key: &str, message: &str, allowed: &str) {
    let set = entry.set(key);
    let span = set.and_then(|set| set.span.as_ref()).or(entry.span.as_ref());
    let value = set.map(|set| set.shown.clone());
    report.fault(span, entry.key(key), value, message, Some(allowed.to_owned()));
}

/// Faults one element of a list.
fn refuse_element(
    report: &mut Report<'_>,
    entry: &Entry,
    key: &str,
    at: usize,
    message: &str,
    allowed: &str,
) {
    let Some((span, shown)) = entry.set(key).and_then(|set| set.elements.get(at)) else {
        return refuse(report, entry, key, message, allowed);
    };
    let allowed = Some(allowed.to_owned());
    report.fault(Some(span), entry.key(key), Some(shown.clone()), message, allowed);
}

/// A name that was looked up and not found: what to say, and what there is.
fn not_found(what: &str, name: &str, known: &[&str]) -> (String, String) {
    let message = match nearest(name, known) {
        Some(near) => format!("there is no such {what}; did you mean {near}?"),
        None => format!("there is no such {what}"),
    };
    let allowed = if known.is_empty() { format!("no {what} is defined") } else { known.join(", ") };
    (message, allowed)
}

/// Whether an address is this machine or a private network, where clear text is usual.
fn is_near(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.is_unique_local(),
        // A name without a dot is one of the local network's, as in a compose file.
        Err(_) => !host.contains('.') || host.ends_with(".local") || host.ends_with(".internal"),
    }
}
