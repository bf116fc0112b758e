//! Goal: the text of `/metrics` is valid OpenMetrics, has every metric of the sets, and has no
//! free-form labels. The page `docs/metrics.md` lists the same metrics. Method: a parser of the
//! text format that is as strict as Prometheus. A test with malformed texts checks the parser.

use std::collections::{HashMap, HashSet};

use super::{list_sets, render_openmetrics, render_reference};
use crate::admin::status::tests::{fresh, populated};
use crate::metrics::export::Description;

/// The metric families of a text by name. Each holds its type, and its samples as (name, labels,
/// value).
type Families = HashMap<String, (String, Vec<(String, String, f64)>)>;

fn read(text: &str) -> Result<Families, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("no end mark")?;
    let mut families = Families::new();
    let mut current = String::new();
    let mut series = HashSet::new();
    for line in body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let [word, name, rest] = comment.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                return Err(format!("short comment: {line}"));
            };
            match word {
                "TYPE" => {
                    current = name.to_owned();
                    if families.insert(current.clone(), (rest.to_owned(), Vec::new())).is_some() {
                        return Err(format!("family twice: {line}"));
                    }
                }
                "UNIT" if !name.ends_with(&format!("_{rest}")) => {
                    return Err(format!("unit is not in the name: {line}"));
                }
                "HELP" | "UNIT" => {}
                _ => return Err(format!("unknown comment: {line}")),
            }
            continue;
        }
        let (name, labels, value) = sample(line)?;
        if !series.insert((name.clone(), labels.clone())) {
            return Err(format!("series twice: {line}"));
        }
        let (kind, samples) = families.get_mut(&current).ok_or("sample before its family")?;
        let suffixes: &[&str] = match &**kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => return Err(format!("unknown type {kind}")),
        };
        if !suffixes.iter().any(|suffix| name == format!("{current}{suffix}")) {
            return Err(format!("sample of no family: {line}"));
        }
        samples.push((name, labels, value));
    }
    Ok(families)
}

fn sample(line: &str) -> Result<(String, String, f64), String> {
    let fault = || format!("not a sample: {line}");
    let end = line.find(['{', ' ']).ok_or_else(fault)?;
    let (name, rest) = line.split_at(end);
    let mut labels = String::new();
    let mut rest = rest.trim_start_matches(' ');
    if let Some(open) = rest.strip_prefix('{') {
        let end = end_of_labels(open).ok_or_else(fault)?;
        labels = open[..end].to_owned();
        rest = open[end + 1..].strip_prefix(' ').ok_or_else(fault)?;
    }
    Ok((name.to_owned(), labels, rest.parse().map_err(|_| fault())?))
}

/// Returns the index of the closing brace of `a="b",c="d"}`; `None` if the text has another form.
fn end_of_labels(text: &str) -> Option<usize> {
    let mut index = 0;
    loop {
        let (name, value) = text[index..].split_once("=\"")?;
        let is_word_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(is_word_char) {
            return None;
        }
        let mut chars = value.char_indices();
        let end = loop {
            match chars.next()? {
                (_, '\\') => {
                    chars.next().filter(|next| ['\\', '"', 'n'].contains(&next.1))?;
                }
                (end, '"') => break end,
                _ => {}
            }
        };
        index += name.len() + 2 + end + 1;
        match text[index..].chars().next()? {
            '}' => return Some(index),
            ',' => index += 1,
            _ => return None,
        }
    }
}

#[test]
fn the_reader_refuses_bad_texts() {
    let good = "# HELP a b\n# TYPE a counter\na_total{x=\"y\\\"\"} 1\n# EOF\n";
    assert_eq!(read(good).unwrap()["a"].1, [("a_total".into(), "x=\"y\\\"\"".into(), 1.0)]);
    for bad in [
        "# TYPE a counter\na_total 1\n",
        "# TYPE a counter\na 1\n# EOF\n",
        "# TYPE a gauge\na 1\na 2\n# EOF\n",
        "# TYPE a gauge\na 1\n# TYPE a gauge\n# EOF\n",
        "# TYPE a gauge\na{x=\"y\"z\"} 1\n# EOF\n",
        "# TYPE a gauge\na{x=\"\\y\"} 1\n# EOF\n",
        "# TYPE a gauge\na one\n# EOF\n",
        "# TYPE a gauge\n# UNIT a seconds\n# EOF\n",
        "a 1\n# EOF\n",
    ] {
        assert!(read(bad).is_err(), "{bad:?} was accepted");
    }
}

fn descriptions() -> Vec<Description> {
    list_sets().into_iter().flat_map(|set| set.descriptions).collect()
}

#[test]
fn every_metric_has_samples_and_a_row() {
    let families = read(&render_openmetrics(&populated())).unwrap();
    let page = render_reference();
    let descriptions = descriptions();
    assert_eq!(families.len(), descriptions.len(), "the text has only the metrics of the sets");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `weir_")).collect();
    assert_eq!(rows.len(), descriptions.len());
    assert!(rows.is_sorted(), "rows are sorted by name");
    for metric in descriptions {
        let (kind, samples) = &families[metric.name];
        assert_eq!(kind, metric.kind.as_str());
        assert!(!samples.is_empty(), "{} has no sample", metric.name);
        for (_, labels, _) in samples {
            for label in &metric.labels {
                assert!(labels.contains(&format!("{label}=\"")), "{} lacks {label}", metric.name);
            }
        }
        let start = format!("| `{}` | {kind} |", metric.sample_name());
        let row = rows.iter().find(|row| row.starts_with(&start));
        assert!(row.unwrap().contains(metric.help), "{row:?}");
    }
}

#[test]
fn the_page_explains_every_label_and_each_of_its_closed_values() {
    let page = render_reference();
    let (_, label_docs) = page.split_once("## Labels").unwrap();
    let open = ["certificate", "chain", "group", "key", "le", "method", "upstream", "rule", "zone"];
    let families = read(&render_openmetrics(&populated())).unwrap();
    for (_, labels, _) in families.values().flat_map(|(_, samples)| samples) {
        for pair in labels.split(',').filter(|pair| !pair.is_empty()) {
            let (label, value) = pair.split_once('=').unwrap();
            assert!(label == "le" || label_docs.contains(&format!("`{label}`")), "{pair}");
            let value = format!("`{}`", value.trim_matches('"'));
            let is_free =
                open.contains(&label) || label == "status" || pair.starts_with("version=\"0");
            assert!(is_free || label_docs.contains(&value), "{pair}");
        }
    }
}

#[test]
fn names_keep_the_conventions() {
    for metric in descriptions() {
        let name = metric.name;
        assert!(name.starts_with("weir_"), "{name}");
        assert!(!name.ends_with("_total") && !name.ends_with("_info"), "{name}: added by kind");
        assert!(metric.help.ends_with('.'), "{name}: {}", metric.help);
        assert!(!metric.help.contains(['|', '\n', '"']), "{name}: {}", metric.help);
        assert!(!metric.help.contains("  "), "{name}: {}", metric.help);
        assert!(metric.kind.as_str() != "histogram" || metric.unit() == "seconds", "{name}");
    }
}

#[test]
fn numbers_are_those_of_the_status() {
    let families = read(&render_openmetrics(&populated())).unwrap();
    let value = |family: &str, labels: &str| {
        let sample = families[family].1.iter().find(|sample| sample.1 == labels);
        sample.unwrap_or_else(|| panic!("{family}{{{labels}}} is not there")).2
    };
    let call = "chain=\"main\",method=\"eth_call\"";
    assert_eq!(value("weir_calls", &format!("{call},cache=\"hit\"")), 6.0);
    assert_eq!(value("weir_calls", "chain=\"main\",method=\"other\",cache=\"bypass\""), 2.0);
    assert_eq!(value("weir_chain_head", "chain=\"main\""), 22_431_084.0);
    assert_eq!(value("weir_upstream_lag_blocks", "chain=\"main\",upstream=\"second\""), 4.0);
    let second = "chain=\"main\",upstream=\"second\"";
    assert_eq!(value("weir_upstream_state", &format!("{second},state=\"ejected\"")), 1.0);
    assert_eq!(value("weir_upstream_state", &format!("{second},state=\"healthy\"")), 0.0);
    assert_eq!(value("weir_requests_refused", "status=\"413\""), 2.0);
    let duration = &families["weir_call_duration_seconds"].1;
    let bucket = |le: &str| {
        let labels = format!("le=\"{le}\",{call}");
        duration.iter().find(|sample| sample.1 == labels).map(|sample| sample.2)
    };
    assert_eq!(
        (bucket("0.0002"), bucket("0.0004"), bucket("+Inf")),
        (Some(0.0), Some(10.0), Some(10.0))
    );
}

#[test]
fn methods_without_calls_and_secrets_are_not_printed() {
    let families = read(&render_openmetrics(&fresh())).unwrap();
    assert!(families["weir_calls"].1.is_empty());
    assert!(families["weir_chain_head"].1.is_empty(), "a chain without a head has no height");
    let text = render_openmetrics(&populated());
    assert!(!text.contains("sekrit"), "the text holds a secret");
    assert!(!text.contains("eth_getLogs"), "the text has a method without calls");
}
