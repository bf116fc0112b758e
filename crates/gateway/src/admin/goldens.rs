//! Goal: `/metrics`, `/status` and the status page do not change unintentionally. Method: the
//! output of a gateway in which no number is 0 is compared with the files of `goldens/`. Values
//! that depend on the clock or the machine are replaced by constants before.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use expect_test::expect_file;

use super::history::History;
use super::status::Status;
use super::status::tests::{fresh, populated};
use super::{metrics, page};
use crate::cache::memory::Entry;
use crate::io::memory::Reservation;
use crate::limits::{Charge, LimitedCall};
use crate::metrics::thread::{Counters, Labels};
use crate::policy::cacheable::{Binding, ValidityTag};
use crate::policy::cordon::Cordon;
use crate::policy::memory::Purpose;
use crate::process::ReloadOutcome;
use crate::state::snapshot::Snapshot;

/// Returns the snapshot of [`populated`], with nonzero values in the remaining counters.
fn full_snapshot() -> Arc<Snapshot> {
    let snapshot = populated();
    snapshot
        .process
        .record_reload(ReloadOutcome::Applied { changes: vec!["[cache] bytes_max".to_owned()] });
    snapshot.process.record_failed_upgrade("it ended");
    let memory = &snapshot.process.memory;
    memory.set_max(64 << 20);
    for (bytes, purpose) in [1 << 20, 2 << 20, 3 << 20].into_iter().zip(Purpose::ALL) {
        let mut hold = Reservation::new(memory, purpose);
        hold.set(bytes).unwrap();
        std::mem::forget(hold);
        (0..bytes >> 20).for_each(|_| memory.count_refusal(purpose));
    }
    let validity = ValidityTag { binding: Binding::Free, generation: 4, is_null: false };
    let bytes = bytes::Bytes::from_static(b"\"0x1\"");
    let entry = Entry {
        bytes,
        is_error: false,
        upstream: 0,
        validity,
        expires_at: None,
        doubted_since: None,
    };
    assert!(snapshot.cache.as_ref().unwrap().put(b"key", entry));
    let redis = snapshot.redis.as_ref().unwrap();
    redis.messages_sent.store(11, Ordering::Relaxed);
    redis.messages_received.store(12, Ordering::Relaxed);
    let quotas = snapshot.quotas.as_ref().unwrap();
    let grant = &snapshot.config.access.keys[0].grant;
    (0..13).for_each(|_| quotas.charge(grant, None, crate::io::clock::unix_seconds()).unwrap());
    quotas.ledger.refused.store(14, Ordering::Relaxed);
    quotas.ledger.write_failures.store(15, Ordering::Relaxed);
    fill_zone(&snapshot);
    (0..21).for_each(|_| snapshot.process.refusals.record("admin_peers", "access.node_methods"));
    let until = snapshot.now() + Duration::from_secs(3600);
    snapshot.set_cordon(1, Some(Cordon { reason: Some("<upgrade> & resync".to_owned()), until }));
    snapshot.chains[1].reorgs.store(16, Ordering::Relaxed);
    snapshot.chains[1].reorg_depth_max.store(17, Ordering::Relaxed);
    let spans = &snapshot.spans.as_ref().unwrap().counts;
    spans.exported.store(18, Ordering::Relaxed);
    spans.failed.store(19, Ordering::Relaxed);
    spans.dropped.store(20, Ordering::Relaxed);
    snapshot.counters.iter().zip(1..).for_each(|(thread, number)| thread.fill(1000 * number));
    snapshot
}

/// Fills the zone with more clients than it can hold.
fn fill_zone(snapshot: &Snapshot) {
    let limits = snapshot.limits.as_ref().unwrap();
    let counters = Counters::new(&Labels::of(&snapshot.config));
    for client in 0..2000 {
        let limited_call = LimitedCall {
            client: IpAddr::V4(Ipv4Addr::from_bits(client)),
            chain: 0,
            chain_name: "main",
            name: "eth_call",
            method: None,
            headers: &[],
            grant: None,
            prefetched: None,
        };
        let Charge::AskRedis(query) = limits.charge(&limited_call, 0, &counters) else {
            panic!("Redis judges the call");
        };
        // Without a decision of Redis, the gateway decides by its local share.
        assert!(matches!(
            limits.apply_decision(&query, None, &limited_call, 0, &counters),
            Charge::Pass
        ));
    }
}

/// Returns the text of `/metrics` sorted by metric family, with `~` in place of numbers that vary
/// between runs.
fn sort_families(text: &str) -> String {
    const VARYING: [&str; 6] = [
        "weir_uptime_seconds ",
        "weir_chain_head_age_seconds{",
        "weir_reload_last_timestamp_seconds ",
        "weir_zone_keys{",
        "weir_zone_evictions_total{",
        "weir_build_info{",
    ];
    let text = text.strip_suffix("# EOF\n").expect("an end mark");
    let mut families: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with("# HELP ") {
            families.push(String::new());
        }
        let varies = VARYING.iter().any(|start| line.starts_with(start));
        let line = match line.rsplit_once(' ') {
            Some((series, value)) if varies => {
                assert!(value.parse::<f64>().is_ok(), "{line}");
                format!("{} ~", series.replace(env!("CARGO_PKG_VERSION"), "~"))
            }
            _ => line.to_owned(),
        };
        *families.last_mut().expect("a family begins with its help") += &(line + "\n");
    }
    families.sort();
    families.concat()
}

/// Returns a status without values that vary between runs.
fn read_stable_status(snapshot: &Snapshot) -> Status {
    let mut status = Status::of(snapshot);
    status.version = "0.0.0";
    status.uptime_seconds = 93_784.5;
    status.process.id = 1;
    status.process.start_ticks = Some(2);
    status.process.control_socket = Some("weir-3".to_owned());
    status.config.last_reload.as_mut().unwrap().unix_seconds = 1_795_000_000.25;
    let zone = &mut status.zones[0];
    assert!(zone.keys > 0 && zone.evicted > 0, "{zone:?}");
    (zone.keys, zone.evicted) = (3, 4);
    status.chains[0].head_age_seconds = Some(12.5);
    status.chains[0].upstreams[1].state_ends_seconds = Some(30.25);
    status.chains[0].upstreams[1].cordon.as_mut().unwrap().ends_seconds = 3599.5;
    status
}

/// Returns a page with one tag per line, without its style and script, and with a closing tag for
/// each self-closing tag.
fn split_tags(html: &str) -> String {
    let mut html = html.replace(page::STYLE, "STYLE").replace(page::SCRIPT, "SCRIPT");
    while let Some(end) = html.find("/>") {
        let start = html[..end].rfind('<').expect("a tag begins");
        let name = html[start + 1..end].split(' ').next().unwrap_or_default().to_owned();
        html.replace_range(end..end + 2, &format!("></{name}>"));
    }
    let lines = html.split_inclusive('>').flat_map(|part| {
        part.split_once('<').map(|(text, tag)| {
            // Line ends between tags are dropped; other spaces are kept.
            let text = text
                .split('\n')
                .map(|line| if line.trim().is_empty() && text.contains('\n') { "" } else { line });
            let text: String = text.collect();
            let text = if text.is_empty() { text } else { format!("  [{text}]\n") };
            format!("{text}<{tag}\n")
        })
    });
    lines.collect()
}

#[test]
fn metrics_are_as_in_the_golden_file() {
    let text = sort_families(&metrics::render_openmetrics(&full_snapshot()));
    expect_file!["goldens/metrics.txt"].assert_eq(&text);
    // Only connections of slow clients increase this metric.
    const ZERO: [&str; 1] = ["weir_memory_connections_closed"];
    for family in text.split("# HELP ").skip(1) {
        let name = family.split(' ').next().unwrap_or_default();
        let samples = family.lines().skip(1).filter(|line| line.starts_with("weir_"));
        let values = samples.filter_map(|line| line.rsplit(' ').next());
        let is_zero =
            values.into_iter().all(|value| value.parse::<f64>().is_ok_and(|value| value == 0.0));
        assert_eq!(is_zero, ZERO.contains(&name), "{name}");
    }
}

#[test]
fn the_status_is_as_in_the_golden_file() {
    let json = serde_json::to_string_pretty(&read_stable_status(&full_snapshot())).unwrap() + "\n";
    expect_file!["goldens/status.json"].assert_eq(&json);
}

#[test]
fn the_status_keeps_its_schema() {
    let schema = serde_json::from_str(&super::status::render_schema()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    for snapshot in [full_snapshot(), fresh()] {
        let mut status = serde_json::to_value(Status::of(&snapshot)).unwrap();
        schema.validate(&status).unwrap();
        status["chains"][0]["upstreams"][0]["state"] = "tired".into();
        assert!(schema.validate(&status).is_err());
    }
}

#[test]
fn the_page_is_as_in_the_golden_file() {
    let snapshot = full_snapshot();
    let status = read_stable_status(&snapshot);
    let mut history = History::default();
    history.take_sample(Duration::ZERO, 1, &Counters::default());
    history.take_sample(Duration::from_secs(1), 1, &Counters::sum(&snapshot.counters));
    let html = page::render_page(&status, &history, &status.unready_reasons(), "n0");
    expect_file!["goldens/page.txt"].assert_eq(&split_tags(&html));
}

#[test]
fn the_page_of_an_idle_gateway_is_as_in_the_golden_file() {
    let status = Status { version: "0.0.0", uptime_seconds: 7.25, ..Status::of(&fresh()) };
    let html = page::render_page(&status, &History::default(), &[], "n0");
    expect_file!["goldens/page_idle.txt"].assert_eq(&split_tags(&html));
}
