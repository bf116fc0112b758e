//! Renders the file of rules for Prometheus, and `docs/alerts.md`, which explains each alert, from
//! `rules.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use super::catalogue::{self, Catalogue, Kind, Metric};

/// Template of the page, with placeholders for its generated parts.
const PAGE: &str = include_str!("alerts.md");

/// Default address of the page about alerts: a placeholder, because the documentation has no public
/// address. The chart's `prometheusRule.runbookUrl` has the same default.
pub(crate) const DEFAULT_RUNBOOK_URL: &str = "https://weir.example/docs/alerts.html";

/// The content of `rules.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rules {
    #[serde(rename = "recording")]
    recordings: Vec<Recording>,
    /// The alerts, in the order of the page.
    #[serde(rename = "alert")]
    pub(super) alerts: Vec<Alert>,
}

/// A recording rule: a share or a rate that several alerts need or that operators often query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    /// The name of the series that Prometheus stores.
    name: String,
    /// The help text of the series.
    meaning: String,
    /// PromQL. Its results are the values of the stored series.
    query: String,
}

/// An alert.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Alert {
    pub(super) name: String,
    /// PromQL. Prometheus raises one alert for each series that the query returns.
    query: String,
    /// Time for which the query must return a series before the alert fires, such as `5m`.
    #[serde(rename = "for")]
    hold: String,
    severity: Severity,
    /// Description of the event that raised the alert, as a template of Prometheus.
    pub(super) summary: String,
    /// Description of the event's consequence, as a template of Prometheus.
    pub(super) description: String,
    /// The explanation on the page about alerts. Its first sentence is also in the page's overview.
    meaning: String,
    /// Places to look for evidence, as noun phrases.
    pub(super) look: Vec<String>,
    /// Actions, as sentences. The most likely action is first.
    pub(super) act: Vec<String>,
}

/// The urgency of an alert: when an operator must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// An operator must act now.
    Critical,
    /// An operator must act today.
    Warning,
    /// An operator may act at a convenient time.
    Info,
}

impl Severity {
    /// Returns the value of the label.
    fn as_str(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// Every rule.
pub(super) static RULES: LazyLock<Rules> = LazyLock::new(|| {
    toml::from_str(include_str!("rules.toml")).unwrap_or_else(|error| panic!("rules.toml: {error}"))
});

/// Builds a catalogue of the gateway's metrics and of the series that recording rules store.
///
/// # Panics
/// Panics if a recording rule names a metric or a label that is not declared.
pub(super) fn build_catalogue() -> Catalogue {
    let mut catalogue = catalogue::gateway();
    for recording in &RULES.recordings {
        let query = catalogue.complete(&recording.query, &[]);
        let query = query.unwrap_or_else(|error| panic!("{}: {error}", recording.name));
        let labels = query.metrics.iter().flat_map(|metric| metric.labels.clone()).collect();
        let name = recording.name.clone();
        catalogue.add(Metric {
            name,
            kind: Kind::Gauge,
            unit: "",
            labels,
            help: &recording.meaning,
        });
    }
    catalogue
}

/// Returns the text of `deploy/prometheus/weir.rules.yml`. `runbook_url` is the address of the page
/// about alerts. Each alert links to its section of that page.
///
/// # Panics
/// Panics if an alert names a metric or a label that is not declared.
pub(crate) fn render_rules(runbook_url: &str) -> String {
    let catalogue = build_catalogue();
    let mut text = String::from(
        "# Rules for Prometheus. Printed by `cargo xtask generate` from the declarations in\n\
         # crates/generate/src/monitoring. Do not edit. docs/alerts.md says what to do about each alert.\n\
         groups:\n  - name: weir_recordings\n    rules:\n",
    );
    for recording in &RULES.recordings {
        text.push_str(&format!("      # {}\n", recording.meaning));
        text.push_str(&format!("      - record: {}\n", recording.name));
        push_query(&mut text, &recording.query);
    }
    text.push_str("  - name: weir_alerts\n    rules:\n");
    for alert in &RULES.alerts {
        if let Err(error) = catalogue.complete(&alert.query, &[]) {
            panic!("{}: {error}", alert.name);
        }
        push_alert(&mut text, alert, runbook_url);
    }
    text
}

fn push_alert(text: &mut String, alert: &Alert, runbook_url: &str) {
    let Alert { name, query, hold, severity, summary, description, .. } = alert;
    text.push_str(&format!("      - alert: {name}\n"));
    push_query(text, query);
    text.push_str(&format!("        for: {hold}\n"));
    text.push_str(&format!("        labels:\n          severity: {}\n", severity.as_str()));
    let anchor = name.to_ascii_lowercase();
    text.push_str(&format!(
        "        annotations:\n          summary: '{summary}'\n          \
         description: '{description}'\n          runbook_url: '{runbook_url}#{anchor}'\n",
    ));
}

fn push_query(text: &mut String, query: &str) {
    text.push_str("        expr: |-\n");
    query.lines().for_each(|line| text.push_str(&format!("          {line}\n")));
}

/// Returns the text of `docs/alerts.md`.
pub(crate) fn render_alerts_page() -> String {
    let recordings = RULES
        .recordings
        .iter()
        .map(|recording| format!("| `{}` | {} |\n", recording.name, recording.meaning));
    let overview = RULES.alerts.iter().map(|alert| {
        let Alert { name, hold, severity, meaning, .. } = alert;
        let anchor = name.to_ascii_lowercase();
        let first_sentence = meaning.split_inclusive(". ").next().unwrap_or(meaning).trim();
        format!("| [{name}](#{anchor}) | {} | {hold} | {first_sentence} |\n", severity.as_str())
    });
    let sections = RULES.alerts.iter().map(|alert| {
        let Alert { name, query, hold, severity, meaning, look, act, .. } = alert;
        let delay_text = match &**hold {
            "0m" => "at once".to_owned(),
            hold => format!("after {hold}"),
        };
        format!(
            "\n## {name}\n\nSeverity {}, {delay_text}.\n\n```text\n{query}\n```\n\n{meaning}\n\n\
             Look at:\n\n{}\nDo:\n\n{}",
            severity.as_str(),
            bullet_list(look),
            bullet_list(act),
        )
    });
    PAGE.replace("{runbook_url}", DEFAULT_RUNBOOK_URL)
        .replace("{recordings}", &recordings.collect::<String>())
        .replace("{overview}", &overview.collect::<String>())
        .replace("{sections}", &sections.collect::<String>())
}

fn bullet_list(items: &[String]) -> String {
    items.iter().map(|item| format!("- {item}\n")).collect()
}
