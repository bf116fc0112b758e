//! Reads the queries of a dashboard file for Grafana and runs them in a real Prometheus.

use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::prometheus::Prometheus;
use crate::wait::{WAIT_TIMEOUT, pause};

/// Interval between two rounds of queries.
const ROUND_INTERVAL: std::time::Duration = std::time::Duration::from_millis(500);

/// A query of a dashboard, with the title of its panel.
pub struct PanelQuery {
    /// Title of the panel or name of the variable.
    pub title: String,
    /// The query, with Grafana's variables.
    pub query: String,
}

impl PanelQuery {
    /// Returns the query with Grafana's variables replaced by these values.
    ///
    /// # Panics
    /// Panics if the query has another variable.
    pub fn complete(&self, variables: &[(&str, &str)]) -> String {
        let mut query = self.query.clone();
        for (name, value) in variables {
            query = query.replace(&format!("${name}"), value);
        }
        assert!(!query.contains('$'), "a variable of {query} is not known");
        query
    }
}

/// Reads the queries of all panels and variables of a dashboard file.
///
/// # Panics
/// Panics if the file is no dashboard, or has too few queries.
pub fn read_queries(file: &Path) -> Vec<PanelQuery> {
    let text = std::fs::read_to_string(file).expect("the file is there");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let inner = panel.get("panels").and_then(Value::as_array).into_iter().flatten();
        for panel in std::iter::once(panel).chain(inner) {
            let targets = panel.get("targets").and_then(Value::as_array).into_iter().flatten();
            queries.extend(targets.map(|target| PanelQuery {
                title: panel["title"].as_str().expect("a title").to_owned(),
                query: target["expr"].as_str().expect("a query").to_owned(),
            }));
        }
    }
    assert!(queries.len() > 20, "{} has only {} queries", file.display(), queries.len());
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        let Some(definition) = variable["definition"].as_str() else { continue };
        let values = definition
            .strip_prefix("label_values(")
            .and_then(|arguments| arguments.split_once(')'));
        let (metric, label) =
            values.and_then(|(values, _)| values.split_once(", ")).expect("label_values");
        queries.push(PanelQuery {
            title: variable["name"].as_str().expect("a name").to_owned(),
            // A label with an empty value counts as missing, so the query excludes it.
            query: format!("count by ({label}) ({metric}{{{label}!=\"\"}})"),
        });
    }
    queries
}

/// Repeats all queries until each has returned a value that is a number. `variables` are the names
/// and values of Grafana's variables. `empty` has the titles of panels whose queries may have no
/// value.
///
/// # Panics
/// Panics if a query has no value after a minute, and names all such queries. Also panics if
/// Prometheus rejects a query, or if a panel in `empty` does not exist.
pub fn wait_for_data(
    prometheus: &Prometheus,
    queries: &[PanelQuery],
    variables: &[(&str, &str)],
    empty: &[&str],
) {
    for title in empty {
        assert!(queries.iter().any(|query| query.title == *title), "there is no panel {title}");
    }
    let queries = queries.iter().map(|query| (query, query.complete(variables)));
    let (optional, mut pending): (Vec<_>, Vec<_>) =
        queries.partition(|(panel, _)| empty.contains(&&*panel.title));
    for (_, query) in optional {
        let _values = prometheus.values(&query);
    }
    let start = Instant::now();
    loop {
        pending.retain(|(_, query)| prometheus.values(query).iter().all(|value| value.is_nan()));
        if pending.is_empty() {
            return;
        }
        let list = || pending.iter().map(|(panel, query)| format!("{}: {query}", panel.title));
        assert!(
            start.elapsed() < WAIT_TIMEOUT,
            "panels without data; the test must make a gateway or run have it:\n{}",
            list().collect::<Vec<_>>().join("\n")
        );
        pause(ROUND_INTERVAL); // Sleeps: new samples arrive each second.
    }
}
