//! Goal: valid options are parsed, invalid ones are rejected with a precise message, and the tables
//! are consistent. Method: options at the limits, and a walk over all tables.

use std::collections::BTreeSet;
use std::time::Duration;

use lab_model::record::Class;
use lab_model::results::TargetFacts;

use super::distribution::Form;
use super::table::{Kind, Metric, RunEntry, Sample, Value, collect_samples};
use super::*;
use crate::analysis::probe::{FinishedCall, ProbeState, Rules};
use crate::live::scene::Scene;

#[test]
fn statistics_are_read_as_k6_writes_them() {
    for (text, suffix) in [
        ("count", "count"),
        ("med", "med"),
        ("p(99)", "p99"),
        ("p(99.9)", "p999"),
        ("p(0)", "p0"),
        ("p(100)", "p100"),
    ] {
        assert_eq!(text.parse::<Stat>().unwrap().suffix(), suffix);
    }
    for text in ["", "p99", "p()", "p(-1)", "p(100.1)", "p(NaN)", "p(inf)", "mean", "p(99"] {
        let fault = text.parse::<Stat>().unwrap_err().to_string();
        assert!(fault.contains(&format!("{text:?}")), "{fault}");
    }
}

#[test]
fn invalid_labels_are_rejected_with_a_reason() {
    assert_eq!(Labels::parse(&["testid=a=b", "Env=x"]).unwrap().0[0].1, "a=b");
    for (written, reason) in [
        (&["testid"][..], "the = is missing"),
        (&["=x"], "must consist of letters"),
        (&["1a=x"], "must consist of letters"),
        (&["a-b=x"], "must consist of letters"),
        (&["__name__=x"], "must consist of letters"),
        (&["a="], "the value is missing"),
        (&["a=1", "a=2"], "twice"),
        (&["method=x"], "already has a label"),
        (&["expected_response=x"], "already has a label"),
    ] {
        let fault = Labels::parse(written).unwrap_err().to_string();
        assert!(fault.contains(reason), "{written:?}: {fault}");
    }
}

fn both() -> [(&'static str, &'static [RunEntry]); 2] {
    [("weir_lab_", table::METRICS), ("k6_", k6::METRICS)]
}

/// Returns all metrics, each with the prefix of its name.
fn all_metrics() -> impl Iterator<Item = (&'static str, &'static Metric)> {
    let run = both()
        .into_iter()
        .flat_map(|(prefix, table)| table.iter().map(move |entry| (prefix, entry.metric)));
    run.chain(probe::METRICS.iter().map(|entry| ("weir_probe_", entry.metric)))
}

#[test]
fn names_are_unique_prefixed_and_end_in_their_unit() {
    let mut names = BTreeSet::new();
    for (prefix, metric) in all_metrics() {
        assert!(names.insert(metric.name), "{} is there twice", metric.name);
        assert!(metric.name.starts_with(prefix), "{}", metric.name);
        assert!(metric.help.ends_with('.'), "{}", metric.name);
        let ends = metric.name.ends_with(metric.unit);
        assert!(prefix == "k6_" || ends, "{} is in {}", metric.name, metric.unit);
        assert!(metric.kind != Kind::Histogram || metric.unit == "seconds", "{}", metric.name);
    }
}

#[test]
fn each_sample_has_its_own_series_and_a_finite_value() {
    let scene = Scene::new();
    for (_, table) in both() {
        let samples = collect_samples(table, &scene.progress(), &Form::Classic);
        assert!(samples.len() > 20);
        let mut seen = BTreeSet::new();
        for sample in samples {
            let name = sample.metric.name;
            assert!(seen.insert((name, sample.labels.clone())), "{name} {:?}", sample.labels);
            if let Value::Number(value) = sample.value {
                assert!(value.is_finite(), "{name} is {value}");
            }
        }
    }
}

#[test]
fn exported_values_match_the_counts() {
    let scene = Scene::new();
    let sum = |table: &'static [RunEntry], name: &str, wanted: &[&str]| -> f64 {
        let samples = collect_samples(table, &scene.progress(), &Form::Classic);
        let of_metric = samples.iter().filter(|sample| sample.metric.name == name);
        let has_labels =
            |sample: &&Sample| wanted.iter().all(|value| sample.labels.iter().any(|l| l == value));
        of_metric
            .filter(has_labels)
            .map(|sample| match &sample.value {
                Value::Number(value) => *value,
                Value::Distribution(distribution) => distribution.count as f64,
            })
            .sum()
    };
    let ours = |name, wanted: &[&str]| sum(table::METRICS, name, wanted);
    let k6 = |name, wanted: &[&str]| sum(k6::METRICS, name, wanted);
    assert_eq!(ours("weir_lab_calls", &[]), 12_000.0);
    assert_eq!(ours("weir_lab_calls", &["eth_getLogs", "timeout"]), 20.0);
    assert_eq!(ours("weir_lab_latency_seconds", &["climb"]), 7_000.0);
    assert_eq!(ours("weir_lab_iterations_dropped", &[]), 20.0);
    assert_eq!(ours("weir_lab_rpc_errors", &["-32005"]), 1.0);
    // The load has climbed for two seconds, from 500 to 2,000 in 50 seconds.
    assert_eq!(ours("weir_lab_level", &["climb", "open"]), 560.0);
    assert_eq!(ours("weir_lab_level", &["steady"]), 0.0);
    assert_eq!(k6("k6_http_reqs", &[]), 12_000.0);
    assert_eq!(k6("k6_http_reqs", &["true"]), 11_900.0);
    assert_eq!(k6("k6_http_reqs", &["eth_getLogs", "429", "false"]), 30.0);
    assert_eq!(k6("k6_http_req_duration", &["eth_blockNumber"]), 9_000.0);
    assert_eq!(k6("k6_iterations", &[]), 11_980.0);
    assert_eq!(k6("k6_vus", &[]), 14.0);
    let failed = k6("k6_http_req_failed_rate", &["eth_getLogs"]);
    assert!((failed - 70.0 / 3_000.0).abs() < 1e-12, "{failed}");
}

#[test]
fn the_page_lists_every_metric() {
    let page = reference();
    for (_, metric) in all_metrics() {
        assert!(page.contains(&format!("| `{}", metric.name)), "{}", metric.name);
    }
}

#[test]
fn samples_of_a_probe_are_those_of_its_state() {
    let names = ["a", "b"].map(str::to_owned);
    let mut state = ProbeState::new(names, Rules { calls_in_a_row: 1, lag_max: 1 });
    let call = |class, head| FinishedCall {
        method: "eth_blockNumber",
        class,
        latency: Duration::from_millis(3),
        turn: 0,
        head,
        reason: "it broke",
    };
    let now = Duration::from_secs(2);
    for (index, head) in [(0, 107), (1, 100)] {
        state.targets[index].facts = Some(TargetFacts::default());
        state.record(index, &call(Class::Ok, Some(head)), now);
    }
    state.record(1, &call(Class::Timeout, None), now);
    state.targets[1].calls_skipped += 4;
    state.tick(Duration::from_secs(5));
    let samples = probe::collect_samples(&state);
    let number = |metric: &str, target: &str| {
        let mut found = samples.iter().filter(|sample| {
            sample.metric.name == metric && sample.labels.first().is_some_and(|of| of == target)
        });
        match (&found.next().expect(metric).value, found.next()) {
            (Value::Number(value), None) => *value,
            other => panic!("{metric}: {other:?}"),
        }
    };
    for (metric, first, second) in [
        ("weir_probe_target", 1.0, 1.0),
        ("weir_probe_up", 1.0, 0.0),
        ("weir_probe_outages", 0.0, 1.0),
        ("weir_probe_calls_skipped", 0.0, 4.0),
        ("weir_probe_head", 107.0, 100.0),
        ("weir_probe_head_age_seconds", 3.0, 3.0),
        ("weir_probe_head_lag_blocks", 0.0, 7.0),
    ] {
        assert_eq!((number(metric, "a"), number(metric, "b")), (first, second), "{metric}");
    }
    assert_eq!(number("weir_probe_calls", "a"), 1.0);
    let of_second = |metric: &str| {
        let found = samples.iter().filter(|sample| sample.metric.name == metric);
        found.filter(|sample| sample.labels[0] == "b").collect::<Vec<_>>()
    };
    let classes = of_second("weir_probe_calls").into_iter().map(|sample| &*sample.labels[2]);
    assert_eq!(classes.collect::<Vec<_>>(), ["ok", "timeout"]);
    let latency = &of_second("weir_probe_latency_seconds")[0].value;
    assert!(matches!(latency, Value::Distribution(latency) if latency.count == 1), "{latency:?}");
}
