//! Goal: each alert of `deploy/prometheus` fires for a gateway with the matching fault, and no
//! alert fires for a healthy gateway. Method: one gateway for each kind of fault, and a real
//! Prometheus with the rules. The faults are planted once Prometheus has scraped all gateways. The
//! test scales the times in the rules from minutes to seconds.
//!
//! Needs prometheus, redis-server and PostgreSQL; `test_support::programs` says what happens if one
//! is missing.

mod clients;
mod faults;
mod processes;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use test_support::prometheus::Prometheus;
use test_support::wait::{pause, wait_until};

use crate::support::scene::Scene;

/// Longer than all alerts need to fire on a busy machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// A gateway, and the fault that is planted in it.
pub(crate) struct Faulty {
    name: &'static str,
    /// Admin address of the gateway.
    admin: String,
    /// The alerts that must fire.
    alerts: &'static [&'static str],
    /// Plants the fault. It owns the gateway, its upstreams and its clients, so it is kept until
    /// the test ends.
    plant: Box<dyn FnMut(&Prometheus)>,
}

impl Faulty {
    pub(crate) fn new(
        name: &'static str,
        admin: &str,
        alerts: &'static [&'static str],
        plant: impl FnMut(&Prometheus) + 'static,
    ) -> Faulty {
        Faulty { name, admin: admin.to_owned(), alerts, plant: Box::new(plant) }
    }
}

/// Scales the times of rules. A minute of a range becomes two seconds, and a range in hours or days
/// becomes 30 seconds. A `for` becomes one second, unless it is zero.
fn scaled(rules: &str) -> String {
    let mut text = String::new();
    for line in rules.lines() {
        if let Some((start, hold)) = line.split_once("for: ") {
            let hold = if hold == "0m" { "0s" } else { "1s" };
            text.push_str(&format!("{start}for: {hold}\n"));
            continue;
        }
        let mut unread = line;
        while let Some((before, after)) = unread.split_once('[') {
            let (range, after) = after.split_once(']').unwrap();
            let minutes = range.strip_suffix('m').map(|minutes| minutes.parse::<u32>().unwrap());
            let seconds = minutes.map_or(30, |minutes| 2 * minutes);
            text.push_str(&format!("{before}[{seconds}s]"));
            unread = after;
        }
        // The thresholds for a stale head: a minute at least, and two hours for every chain.
        let unread = unread.replace("age_seconds > 60", "age_seconds > 3");
        text.push_str(&unread.replace("age_seconds > 7200", "age_seconds > 6"));
        text.push('\n');
    }
    assert!(
        text.contains("[10s]")
            && text.contains("age_seconds > 3\n")
            && text.contains("age_seconds > 6\n"),
        "{text}"
    );
    text
}

fn rules() -> String {
    let file = "../../deploy/prometheus/weir.rules.yml";
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The pairs of alert and gateway that have fired so far.
fn fired(prometheus: &Prometheus) -> BTreeSet<(String, String)> {
    let query = "count_over_time(ALERTS{alertstate=\"firing\"}[10m])";
    let series = prometheus.series(query).into_iter();
    series.map(|(labels, _)| (labels["alertname"].clone(), labels["instance"].clone())).collect()
}

#[test]
fn each_alert_fires_from_its_fault_and_none_from_a_healthy_gateway() {
    let scene = Scene::set();
    let (healthy, _nodes, _clients) = faults::healthy(&scene);
    let mut faulty = faults::all(&scene);
    let Some(processes) = processes::all(&scene) else { return };
    faulty.extend(processes);
    let declared = rules();
    let declared: BTreeSet<&str> =
        declared.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let expected: BTreeSet<&str> =
        faulty.iter().flat_map(|gateway| gateway.alerts).copied().collect();
    assert_eq!(expected, declared, "the faults do not cover exactly the declared alerts");

    let mut scraped = vec![healthy.admin.clone()];
    scraped.extend(faulty.iter().map(|gateway| gateway.admin.clone()));
    let Some(prometheus) = Prometheus::with_rules(&scraped, &scaled(&rules())) else { return };
    let counted = format!("sum(count_over_time(up[1m]) >= bool 3) == {}", scraped.len());
    wait_until("each gateway has been scraped three times", || {
        !prometheus.values(&counted).is_empty()
    });
    for gateway in &mut faulty {
        (gateway.plant)(&prometheus);
    }
    let mut pending: BTreeSet<(String, String)> = faulty
        .iter()
        .flat_map(|gateway| {
            let admin = &gateway.admin;
            gateway.alerts.iter().map(move |alert| ((*alert).to_owned(), admin.clone()))
        })
        .collect();
    let start = Instant::now();
    while !pending.is_empty() {
        let name =
            |admin: &String| faulty.iter().find(|gateway| gateway.admin == *admin).unwrap().name;
        let list: Vec<_> = pending.iter().map(|(alert, admin)| (alert, name(admin))).collect();
        assert!(start.elapsed() < PATIENCE, "these did not fire: {list:?}");
        for pair in fired(&prometheus) {
            pending.remove(&pair);
        }
        pause(Duration::from_millis(200)); // Sleeps: the rules are evaluated each second.
    }
    let any = format!("count_over_time(ALERTS{{instance=\"{}\"}}[10m])", healthy.admin);
    let series = prometheus.series(&any);
    assert!(series.is_empty(), "a healthy gateway has alerts: {series:?}");
}
