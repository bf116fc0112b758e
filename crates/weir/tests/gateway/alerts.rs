//! Goal: each alert of `deploy/prometheus` fires for a gateway with the matching fault, and no
//! alert fires for a healthy gateway. Method: one gateway for each kind of fault, and a real
//! Prometheus with the rules. When Prometheus has scraped all gateways, the test causes the faults.
//! It scales the times in the rules from minutes to seconds.
//!
//! Needs prometheus, redis-server and PostgreSQL. `test_support::programs` says what happens if one
//! is missing.

mod clients;
mod faults;
mod processes;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use test_support::prometheus::Prometheus;
use test_support::wait::{pause, wait_until};

use crate::support::harness::NodeRuntime;

/// Time for all alerts to fire. It is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// A gateway with a fault.
pub(crate) struct FaultyGateway {
    name: &'static str,
    /// Admin address of the gateway.
    admin: String,
    /// The alerts that must fire.
    alerts: &'static [&'static str],
    /// Causes the fault. The closure owns the gateway, its upstreams and its clients, so the test
    /// must keep it until the end.
    cause_fault: Box<dyn FnMut(&Prometheus)>,
}

impl FaultyGateway {
    pub(crate) fn new(
        name: &'static str,
        admin: &str,
        alerts: &'static [&'static str],
        cause_fault: impl FnMut(&Prometheus) + 'static,
    ) -> FaultyGateway {
        FaultyGateway { name, admin: admin.to_owned(), alerts, cause_fault: Box::new(cause_fault) }
    }
}

/// Scales the times in alert rules. Each minute of a range becomes two seconds, and a range in
/// hours or days becomes 30 seconds. A `for` of zero stays, and any other becomes one second.
fn scale_times(rules: &str) -> String {
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
        // The two thresholds for the age of the newest block: a minute, and two hours.
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

/// The alerts that have fired so far. Each has the alert's name and the gateway's admin address.
fn fired_alerts(prometheus: &Prometheus) -> BTreeSet<(String, String)> {
    let query = "count_over_time(ALERTS{alertstate=\"firing\"}[10m])";
    let series = prometheus.series(query).into_iter();
    series.map(|(labels, _)| (labels["alertname"].clone(), labels["instance"].clone())).collect()
}

#[test]
fn each_alert_fires_from_its_fault_and_none_from_a_healthy_gateway() {
    let runtime = NodeRuntime::start();
    let (healthy, _nodes, _clients) = faults::healthy(&runtime);
    let mut faulty = faults::all(&runtime);
    let Some(processes) = processes::all(&runtime) else { return };
    faulty.extend(processes);
    let declared = rules();
    let declared: BTreeSet<&str> =
        declared.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let expected: BTreeSet<&str> =
        faulty.iter().flat_map(|gateway| gateway.alerts).copied().collect();
    assert_eq!(expected, declared, "the faults do not cover exactly the declared alerts");

    let mut scraped = vec![healthy.admin.clone()];
    scraped.extend(faulty.iter().map(|gateway| gateway.admin.clone()));
    let rules = scale_times(&rules());
    let Some(prometheus) = Prometheus::with_rules(&scraped, &rules) else { return };
    let counted = format!("sum(count_over_time(up[1m]) >= bool 3) == {}", scraped.len());
    wait_until("each gateway has been scraped three times", || {
        !prometheus.values(&counted).is_empty()
    });
    for gateway in &mut faulty {
        (gateway.cause_fault)(&prometheus);
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
        for alert in fired_alerts(&prometheus) {
            pending.remove(&alert);
        }
        pause(Duration::from_millis(200)); // Sleeps: the rules are evaluated each second.
    }
    let any = format!("count_over_time(ALERTS{{instance=\"{}\"}}[10m])", healthy.admin);
    let series = prometheus.series(&any);
    assert!(series.is_empty(), "a healthy gateway has alerts: {series:?}");
}
