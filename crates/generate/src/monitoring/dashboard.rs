//! A dashboard as the JSON that Grafana imports or provisions.
//!
//! A TOML file declares a dashboard: rows of panels, each with its title, unit and queries. The
//! description of a panel is the help text of the metrics in its queries. A metric without a declared panel gets a generated panel in the last
//! row.

use serde::Deserialize;
use serde_json::{Value, json};

use super::catalogue::{Catalogue, Kind, Metric};
use super::query::Matcher;

/// Width of Grafana's grid.
const GRID_WIDTH: u64 = 24;

/// Version of the JSON schema of dashboards. Grafana 10.2 and later use it.
const SCHEMA_VERSION: u64 = 39;

/// A dashboard.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dashboard {
    /// Identifies the dashboard in URLs; never change it.
    uid: String,
    title: String,
    description: String,
    /// Start of the period that Grafana displays by default, such as `now-1h`.
    from: String,
    /// Interval at which Grafana repeats the queries, such as `10s`.
    refresh: String,
    #[serde(rename = "variable")]
    variables: Vec<Variable>,
    /// Matchers that every query gets.
    #[serde(rename = "matcher")]
    matchers: Vec<Matcher>,
    #[serde(rename = "row")]
    rows: Vec<Row>,
}

/// A variable of the dashboard, with which a user selects values of a label. By default, all values
/// are selected.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    /// The label, which is also the variable's name.
    label: String,
    title: String,
    /// A metric whose series have all values of the label.
    metric: String,
}

/// Panels below one heading.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    title: String,
    #[serde(rename = "panel")]
    panels: Vec<Panel>,
}

/// A panel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    title: String,
    #[serde(default)]
    shape: Shape,
    unit: Unit,
    /// Legend and query of each set of series.
    queries: Vec<(String, String)>,
}

/// The form in which a panel draws its values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Shape {
    /// The newest value, large.
    Number,
    /// Values over time.
    #[default]
    Lines,
}

/// The unit of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    Count,
    #[serde(rename = "per second")]
    PerSecond,
    Seconds,
    Bytes,
    #[serde(rename = "bytes per second")]
    BytesPerSecond,
    /// 0 to 1, drawn as percent.
    Share,
}

impl Unit {
    /// Returns Grafana's name of the unit.
    fn id(self) -> &'static str {
        match self {
            Unit::Count => "short",
            Unit::PerSecond => "ops",
            Unit::Seconds => "s",
            Unit::Bytes => "bytes",
            Unit::BytesPerSecond => "Bps",
            Unit::Share => "percentunit",
        }
    }
}

impl Shape {
    /// Returns width and height on the grid.
    fn size(self) -> (u64, u64) {
        match self {
            Shape::Number => (4, 4),
            Shape::Lines => (8, 8),
        }
    }
}

/// A panel with complete queries.
struct CompletePanel {
    title: String,
    description: String,
    shape: Shape,
    unit: Unit,
    /// Legend and query of each set of series.
    queries: Vec<(String, String)>,
}

impl Dashboard {
    /// Reads a dashboard.
    ///
    /// # Panics
    /// Panics if the text is not the TOML of a dashboard.
    pub(super) fn read(text: &str) -> Dashboard {
        toml::from_str(text).unwrap_or_else(|error| panic!("a dashboard: {error}"))
    }

    /// Returns the dashboard as JSON with a line break at its end.
    ///
    /// # Panics
    /// Panics if a query names a metric or a label that is not declared.
    pub(super) fn json(&self, catalogue: &Catalogue) -> String {
        let mut used_metrics: Vec<&str> = Vec::new();
        let mut rows: Vec<(&str, Vec<CompletePanel>)> = Vec::new();
        for row in &self.rows {
            let complete_panels = row.panels.iter().map(|panel| {
                let (complete_panel, metrics) = self.complete_panel(catalogue, panel);
                used_metrics.extend(metrics.iter().map(|metric| metric.name.as_str()));
                complete_panel
            });
            rows.push((&row.title, complete_panels.collect()));
        }
        let generated_panels: Vec<CompletePanel> = catalogue
            .metrics()
            .filter(|metric| !used_metrics.contains(&metric.name.as_str()))
            .map(|metric| self.generate_panel(catalogue, metric))
            .collect();
        let mut panels = Vec::new();
        let mut top = 0;
        let collapsed = true;
        for (title, row_panels) in rows {
            push_row(&mut panels, &mut top, title, row_panels, !collapsed);
        }
        if !generated_panels.is_empty() {
            push_row(&mut panels, &mut top, "Further metrics", generated_panels, collapsed);
        }
        // Every panel needs a unique id. The factor leaves 999 ids for the panels inside of a row.
        for (index, panel) in panels.iter_mut().enumerate() {
            panel["id"] = json!(1000 * (index + 1));
            let inner = panel.get_mut("panels").and_then(Value::as_array_mut).into_iter().flatten();
            for (inner_index, inner) in inner.enumerate() {
                inner["id"] = json!(1000 * (index + 1) + inner_index + 1);
            }
        }
        let dashboard = json!({
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["weir"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": true,
            "graphTooltip": 1,
            "refresh": self.refresh,
            "time": { "from": self.from, "to": "now" },
            "timezone": "browser",
            "annotations": { "list": [] },
            "links": [],
            "templating": { "list": self.templating(catalogue) },
            "panels": panels,
        });
        let text = serde_json::to_string_pretty(&dashboard).expect("JSON of text and numbers");
        text + "\n"
    }

    /// Returns the variables of the dashboard: the data source, and the selected labels.
    fn templating(&self, catalogue: &Catalogue) -> Vec<Value> {
        // Grafana's codes: `hide` 0 shows a variable. `refresh` 1 loads its values with the
        // dashboard, 2 also after a change of the time range. `sort` 1 is alphabetical.
        let source = json!({
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "hide": 0,
            "refresh": 1,
        });
        let variables = self.variables.iter().map(|variable| {
            let Variable { label, title, metric } = variable;
            catalogue.find(metric).unwrap_or_else(|| panic!("{metric} is not declared"));
            let query = format!("label_values({metric}, {label})");
            json!({
                "name": label,
                "label": title,
                "type": "query",
                "datasource": datasource(),
                "definition": query,
                "query": { "query": query, "refId": "variable" },
                "refresh": 2,
                "sort": 1,
                "multi": true,
                "includeAll": true,
                "allValue": ".*",
                "current": { "selected": true, "text": ["All"], "value": ["$__all"] },
                "hide": 0,
            })
        });
        std::iter::once(source).chain(variables).collect()
    }

    /// Completes the queries of a panel. Returns the panel and the metrics that its queries name.
    fn complete_panel<'c>(
        &self,
        catalogue: &'c Catalogue,
        panel: &Panel,
    ) -> (CompletePanel, Vec<&'c Metric>) {
        let mut metrics: Vec<&Metric> = Vec::new();
        let mut queries = Vec::new();
        for (legend, query) in &panel.queries {
            let completed = catalogue.complete(query, &self.matchers);
            let completed =
                completed.unwrap_or_else(|error| panic!("panel {:?}: {error}", panel.title));
            queries.push((legend.clone(), completed.text));
            for metric in completed.metrics {
                if !metrics.iter().any(|added| added.name == metric.name) {
                    metrics.push(metric);
                }
            }
        }
        let help: Vec<String> =
            metrics.iter().map(|metric| format!("`{}`: {}", metric.name, metric.help)).collect();
        let complete_panel = CompletePanel {
            title: panel.title.clone(),
            description: help.join("\n\n"),
            shape: panel.shape,
            unit: panel.unit,
            queries,
        };
        (complete_panel, metrics)
    }

    /// Generates a panel for a metric that no declared panel names.
    fn generate_panel(&self, catalogue: &Catalogue, metric: &Metric) -> CompletePanel {
        let Metric { name, kind, labels, .. } = metric;
        let by_clause = |extra_labels: &[&str]| {
            let by_labels = [labels.as_slice(), extra_labels].concat();
            match by_labels.is_empty() {
                true => String::new(),
                false => format!(" by ({})", by_labels.join(", ")),
            }
        };
        let (query, unit) = match kind {
            Kind::Counter => {
                let unit = match metric.unit {
                    "bytes" => Unit::BytesPerSecond,
                    _ => Unit::PerSecond,
                };
                (format!("sum{} (rate({name}[$__rate_interval]))", by_clause(&[])), unit)
            }
            Kind::Histogram => {
                let rate =
                    format!("sum{} (rate({name}_bucket[$__rate_interval]))", by_clause(&["le"]));
                (format!("histogram_quantile(0.99, {rate})"), Unit::Seconds)
            }
            Kind::Distribution => {
                let native = format!("sum{} (rate({name}[$__rate_interval]))", by_clause(&[]));
                let gauge = format!("max{} ({name}_p99)", by_clause(&[]));
                (format!("histogram_quantile(0.99, {native}) or {gauge}"), Unit::Seconds)
            }
            Kind::Gauge | Kind::Info => {
                let unit = match metric.unit {
                    "bytes" => Unit::Bytes,
                    "seconds" => Unit::Seconds,
                    "ratio" => Unit::Share,
                    _ => Unit::Count,
                };
                (format!("sum{} ({name})", by_clause(&[])), unit)
            }
        };
        let legend = match labels.as_slice() {
            [] => name.clone(),
            labels => {
                labels.iter().map(|label| format!("{{{{{label}}}}}")).collect::<Vec<_>>().join(" ")
            }
        };
        let completed = catalogue.complete(&query, &self.matchers);
        let completed = completed.unwrap_or_else(|error| panic!("panel of {name}: {error}"));
        CompletePanel {
            title: name.clone(),
            description: metric.help.to_owned(),
            shape: Shape::Lines,
            unit,
            queries: vec![(legend, completed.text)],
        }
    }
}

/// Adds a row (a heading and its panels) at the grid line `top`, and moves `top` below the row.
/// `collapsed` is true if the panels are hidden until a user opens the row. Grafana stores the
/// panels of a collapsed row inside of the row, and other panels after it.
fn push_row(
    panels: &mut Vec<Value>,
    top: &mut u64,
    title: &str,
    row_panels: Vec<CompletePanel>,
    collapsed: bool,
) {
    let heading_top = *top;
    *top += 1;
    let (mut left, mut line_height) = (0, 0);
    let mut placed_panels = Vec::new();
    for panel in row_panels {
        let (width, height) = panel.shape.size();
        if left + width > GRID_WIDTH {
            *top += line_height;
            (left, line_height) = (0, 0);
        }
        placed_panels.push(panel.json(left, *top));
        left += width;
        line_height = line_height.max(height);
    }
    *top += line_height;
    let (inner_panels, following_panels) =
        if collapsed { (placed_panels, Vec::new()) } else { (Vec::new(), placed_panels) };
    panels.push(json!({
        "type": "row",
        "title": title,
        "collapsed": collapsed,
        "gridPos": { "x": 0, "y": heading_top, "w": GRID_WIDTH, "h": 1 },
        "panels": inner_panels,
    }));
    panels.extend(following_panels);
    if collapsed {
        *top = heading_top + 1;
    }
}

impl CompletePanel {
    /// Returns the panel as JSON, at this position on the grid.
    fn json(self, left: u64, top: u64) -> Value {
        let (width, height) = self.shape.size();
        let targets = ('A'..).zip(&self.queries).map(|(reference, (legend, query))| {
            json!({
                "refId": reference.to_string(),
                "datasource": datasource(),
                "expr": query,
                "legendFormat": legend,
                "range": true,
                "exemplar": query.contains("_bucket"),
            })
        });
        let targets: Vec<Value> = targets.collect();
        let (kind, options) = match self.shape {
            Shape::Number => (
                "stat",
                json!({
                    "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
                    "colorMode": "value",
                    "graphMode": "area",
                    "justifyMode": "auto",
                    "orientation": "auto",
                    "textMode": "auto",
                    "wideLayout": true,
                    "showPercentChange": false,
                    "percentChangeColorMode": "standard",
                }),
            ),
            Shape::Lines => (
                "timeseries",
                json!({
                    "legend": {
                        "calcs": ["lastNotNull", "max"],
                        "displayMode": "table",
                        "placement": "bottom",
                        "showLegend": true,
                    },
                    "tooltip": { "mode": "multi", "sort": "desc" },
                }),
            ),
        };
        let mut defaults = json!({ "unit": self.unit.id(), "min": 0 });
        if self.shape == Shape::Lines {
            defaults["custom"] =
                json!({ "lineWidth": 1, "fillOpacity": 10, "showPoints": "never" });
        }
        json!({
            "type": kind,
            "title": self.title,
            "description": self.description,
            "datasource": datasource(),
            "gridPos": { "x": left, "y": top, "w": width, "h": height },
            "fieldConfig": { "defaults": defaults, "overrides": [] },
            "options": options,
            "targets": targets,
        })
    }
}

/// Returns the reference to the data source that the dashboard's user selects.
fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}
