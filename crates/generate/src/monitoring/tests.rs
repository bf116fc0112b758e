//! Goal: no rule and no panel names what does not exist, Prometheus accepts the rules, and each
//! alert has cases in which it fires and in which it does not. Method: queries with planted
//! mistakes; promtool with the files of `deploy/prometheus`; a walk over the dashboards.
//!
//! Needs promtool. `test_support::programs` documents what happens if it is not installed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use test_support::programs;

use super::query::Matcher;
use super::rules::RULES;
use super::{DEFAULT_RUNBOOK_URL, catalogue, gateway_dashboard, lab_dashboard, rules};

fn matchers() -> [Matcher; 2] {
    [("instance", true), ("chain", false)].map(|(label, on_every_series)| Matcher {
        label: label.to_owned(),
        text: format!("{label}=~\"${label}\""),
        on_every_series,
    })
}

fn deploy_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

#[test]
fn queries_get_the_matchers_of_their_metrics() {
    let catalogue = catalogue::gateway();
    for (query, completed) in [
        ("weir_uptime_seconds", r#"weir_uptime_seconds{instance=~"$instance"}"#),
        ("weir_chain_head", r#"weir_chain_head{instance=~"$instance", chain=~"$chain"}"#),
        (
            r#"sum by (cache) (rate(weir_calls_total{cache!="hit"}[5m])) > 5e3"#,
            r#"sum by (cache) (rate(weir_calls_total{cache!="hit", instance=~"$instance", chain=~"$chain"}[5m])) > 5e3"#,
        ),
        (
            r#"weir_call_duration_seconds_bucket{le="0.1",method=~"a}|b"}"#,
            r#"weir_call_duration_seconds_bucket{le="0.1",method=~"a}|b", instance=~"$instance", chain=~"$chain"}"#,
        ),
        (r#""weir_no" + up"#, r#""weir_no" + up{instance=~"$instance"}"#),
    ] {
        assert_eq!(catalogue.complete(query, &matchers()).unwrap().text, completed);
        assert_eq!(catalogue.complete(query, &[]).unwrap().text, query, "nothing else changes");
    }
}

#[test]
fn queries_with_unknown_names_are_refused() {
    let catalogue = catalogue::gateway();
    for (query, fault) in [
        ("weir_calls", "no metric weir_calls is declared"),
        (
            "rate(weir_uptime_seconds_bucket[5m])",
            "no metric weir_uptime_seconds_bucket is declared",
        ),
        ("chain:nothing:rate5m", "no metric chain:nothing:rate5m is declared"),
        (r#"weir_calls_total{tier="a"}"#, "weir_calls_total has no label tier"),
        (r#"weir_calls_total{cache="a,tier=", tier=~"b"}"#, "weir_calls_total has no label tier"),
        ("sum by (chain, tier) (weir_calls_total)", "has the label tier"),
        ("sum without (tier) (weir_calls_total)", "has the label tier"),
        (r#"weir_calls_total{cache="hit""#, "} is missing"),
    ] {
        let error = catalogue.complete(query, &[]).unwrap_err().to_string();
        assert!(error.contains(fault), "{query}: {error}");
    }
}

fn promtool(arguments: &[&str]) {
    let Some(program) = programs::require("promtool") else { return };
    let mut command = Command::new(program);
    let output =
        command.args(arguments).current_dir(deploy_folder().join("prometheus")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {printed}");
}

#[test]
fn prometheus_accepts_the_rules_and_the_example() {
    promtool(&["check", "rules", "weir.rules.yml"]);
    promtool(&["check", "config", "prometheus.yml"]);
}

#[test]
fn alerts_fire_and_stay_silent_as_the_cases_say() {
    promtool(&["test", "rules", "weir.rules.test.yml"]);
}

#[test]
fn each_alert_links_to_its_section() {
    let address = "https://wiki.example/weir/alerts";
    let [rules, page] = [rules::render_rules(address), rules::render_alerts_page()];
    for alert in &RULES.alerts {
        let anchor = alert.name.to_ascii_lowercase();
        assert!(rules.contains(&format!("runbook_url: '{address}#{anchor}'\n")), "{}", alert.name);
        assert!(page.contains(&format!("(#{anchor})")), "{}", alert.name);
    }
    assert_eq!(rules.matches("runbook_url: ").count(), RULES.alerts.len());
    // The chart replaces the default by its own value, which has the same default.
    let values = std::fs::read_to_string(deploy_folder().join("helm/weir/values.yaml")).unwrap();
    assert!(values.contains(&format!("\n  runbookUrl: {DEFAULT_RUNBOOK_URL}\n")), "{values}");
}

/// Returns the alerts that fire, and those that stay silent, in the cases of the file.
fn cases(text: &str) -> [BTreeSet<&str>; 2] {
    let mut alerts = [BTreeSet::new(), BTreeSet::new()];
    let mut alert = "";
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("alertname: ") {
            alert = name;
        }
        match line {
            "exp_alerts:" => alerts[0].insert(alert),
            "exp_alerts: []" => alerts[1].insert(alert),
            _ => false,
        };
    }
    alerts
}

#[test]
fn each_alert_has_cases_of_both_kinds_and_a_section() {
    let text =
        std::fs::read_to_string(deploy_folder().join("prometheus/weir.rules.test.yml")).unwrap();
    let declared: BTreeSet<&str> = RULES.alerts.iter().map(|alert| &*alert.name).collect();
    assert_eq!(declared.len(), RULES.alerts.len(), "no name occurs twice");
    let [firing, silent] = cases(&text);
    assert_eq!(firing, declared);
    assert_eq!(silent, declared);
    let page = rules::render_alerts_page();
    for alert in &RULES.alerts {
        assert!(page.contains(&format!("\n## {}\n", alert.name)), "{}", alert.name);
        assert!(!alert.look.is_empty() && !alert.act.is_empty(), "{}", alert.name);
        // The file of rules quotes texts with apostrophes.
        assert!(!alert.summary.contains('\'') && !alert.description.contains('\''));
    }
}

#[test]
fn matchers_name_values_that_the_page_of_metrics_lists() {
    let metrics = gateway::admin::metrics::render_reference();
    let mut values = 0;
    for text in
        [rules::render_rules(DEFAULT_RUNBOOK_URL), gateway_dashboard().replace("\\\"", "\"")]
    {
        for part in text.split(['{', ',']) {
            let matcher = part.split(['}', '\n']).next().unwrap_or_default();
            let Some((label, operator_and_value)) = matcher.split_once(['=', '!']) else {
                continue;
            };
            let value = operator_and_value.trim_start_matches(['=', '~']);
            let Some((value, _)) = value.strip_prefix('"').and_then(|rest| rest.split_once('"'))
            else {
                continue;
            };
            if value.starts_with('$') || label.trim() == "job" {
                continue;
            }
            for value in value.split('|') {
                values += 1;
                assert!(metrics.contains(&format!("`{value}`")), "{label} is never {value}");
            }
        }
    }
    assert!(values > 15, "only {values} values were found");
}

/// Returns a dashboard with a planted mistake: a name that Grafana does not know.
fn plant_mistake(dashboard: &str) -> String {
    let planted = dashboard.replace("\"graphMode\"", "\"graphMod\"");
    assert_ne!(planted, dashboard);
    planted
}

#[test]
fn dashboards_are_valid_by_the_recorded_schema() {
    let schema =
        serde_json::from_str(include_str!("../../../../testdata/grafana/dashboard.schema.json"));
    let schema = jsonschema::validator_for(&schema.unwrap()).unwrap();
    let find_faults = |text: &str| -> Vec<String> {
        let dashboard: Value = serde_json::from_str(text).unwrap();
        let errors = schema.iter_errors(&dashboard);
        errors.map(|error| format!("{}: {error:?}", error.instance_path())).collect()
    };
    for text in [gateway_dashboard(), lab_dashboard()] {
        assert!(find_faults(&text).is_empty(), "{:#?}", find_faults(&text));
        let faults = find_faults(&plant_mistake(&text));
        assert!(faults.iter().any(|fault| fault.contains("graphMod")), "{faults:#?}");
        let faults = find_faults(&text.replace("\"schemaVersion\": ", "\"schemaVersion\": -"));
        assert!(faults.iter().any(|fault| fault.starts_with("/schemaVersion")), "{faults:#?}");
    }
}

/// `cargo xtask check --full` builds the program from `xtask/grafana`, which has Grafana's own types.
#[test]
fn dashboards_are_valid_by_grafanas_own_types_and_the_recorded_schema_is_theirs() {
    let folder_of_program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/grafana");
    if !programs::require_folder(&folder_of_program) {
        return;
    }
    let program = || Command::new(folder_of_program.join("grafana"));
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let file = folder.path().join("dashboard.json");
        std::fs::write(&file, text).unwrap();
        let output = program().arg(&file).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    for text in [gateway_dashboard(), lab_dashboard()] {
        let (is_valid, faults) = check(&text);
        assert!(is_valid, "{faults}");
        let (is_valid, faults) = check(&plant_mistake(&text));
        assert!(!is_valid && faults.contains("graphMod"), "{faults}");
    }
    let schema = String::from_utf8(program().output().unwrap().stdout).unwrap();
    expect_test::expect_file!["../../../../testdata/grafana/dashboard.schema.json"]
        .assert_eq(&schema);
}

/// Returns all panels of a dashboard, those of collapsed rows too.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let top = dashboard["panels"].as_array().unwrap().iter();
    top.flat_map(|panel| {
        let inner = panel.get("panels").and_then(Value::as_array).into_iter().flatten();
        std::iter::once(panel).chain(inner)
    })
    .collect()
}

#[test]
fn dashboards_show_every_metric_and_no_panel_covers_another() {
    let dashboards =
        [(gateway_dashboard(), catalogue::gateway()), (lab_dashboard(), catalogue::lab())];
    for (text, catalogue) in dashboards {
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        for metric in catalogue.metrics() {
            assert!(text.contains(&metric.name), "no panel has {}", metric.name);
        }
        let panels = panels(&dashboard);
        let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "no id occurs twice");
        let mut cells = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let [x, y, width, height] =
                ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
            assert!(x + width <= 24, "{}", panel["title"]);
            for cell in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
                assert!(cells.insert(cell), "{} covers another panel", panel["title"]);
            }
        }
        for panel in panels.iter().filter(|panel| panel["type"] != "row") {
            assert!(!panel["targets"].as_array().unwrap().is_empty(), "{}", panel["title"]);
            assert!(!panel["description"].as_str().unwrap().is_empty(), "{}", panel["title"]);
        }
    }
}
