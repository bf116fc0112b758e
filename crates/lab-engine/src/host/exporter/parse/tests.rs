//! Goal: names, labels and values are parsed. Method: lines of exporters, and incomplete lines.

use super::*;

#[test]
fn samples_with_and_without_labels() {
    let page = "# HELP node_load1 1m load average.\n# TYPE node_load1 gauge\nnode_load1 0.62\n\
                node_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} 2.45e+06\n\
                node_x{a=\"b\\\"}c\",device=\"nvme0n1\"} 7 1700000000000\n\nbroken{ 1\n";
    let lines: Vec<ParsedSample<'_>> = samples(page).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!((lines[0].name, lines[0].value), ("node_load1", 0.62));
    assert_eq!(lines[1].label("mode"), Some("idle"));
    assert_eq!(lines[1].label("cpu"), Some("0"));
    assert_eq!(lines[1].label("pu"), None);
    assert_eq!(lines[1].value, 2_450_000.0);
    assert_eq!(lines[2].label("device"), Some("nvme0n1"), "after a quoted brace");
    assert_eq!(lines[2].value, 7.0);
}

#[test]
fn invalid_lines_are_skipped() {
    let whole = "node_x{a=\"b\\\\\",device=\"n\u{e9}\"} 7 17";
    for (end, _) in whole.char_indices() {
        for line in samples(&whole[..end]) {
            let _ = (line.label("a"), line.label("device"));
        }
    }
}
