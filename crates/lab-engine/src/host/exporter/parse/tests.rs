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

/// Each cut of a line is invalid or has the value that it still shows.
#[test]
fn a_line_that_is_cut_off_before_its_value_is_skipped() {
    let whole = "node_x{a=\"b\\\\\",device=\"n\u{e9}\"} 72 17";
    let value_start = whole.find("72").unwrap();
    for (end, _) in whole.char_indices() {
        let lines: Vec<ParsedSample<'_>> = samples(&whole[..end]).collect();
        if end <= value_start {
            assert_eq!(lines, [], "{}", &whole[..end]);
        } else {
            let [line] = lines[..] else { panic!("{lines:?}") };
            let value = if end == value_start + 1 { 7.0 } else { 72.0 };
            assert_eq!((line.name, line.value), ("node_x", value));
            assert_eq!(line.label("a"), Some("b\\\\"));
            assert_eq!(line.label("device"), Some("n\u{e9}"));
        }
    }
}

#[test]
fn invalid_lines_are_skipped() {
    for line in ["# HELP x y", "", "x", "x y", "x{a=\"b\" 1", "x{a=\"b} 1", "x{a=\"b\"}", " 1"] {
        assert_eq!(samples(line).next(), None, "{line:?}");
    }
}
