//! The arithmetic of a row, its table and its JSON.

use super::{Row, RowSpec, format_table, median};

fn row(ours: &[f64], theirs: &[f64], target: f64, problems: &[&str]) -> Row {
    let row_spec = RowSpec { case: "hit", unit: "us", peer: "nginx", target: Some(target) };
    Row::compare(
        &row_spec,
        ours,
        theirs,
        problems.iter().map(|problem| (*problem).to_owned()).collect(),
    )
}

#[test]
fn the_median_is_the_middle() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    assert!(median(&[]).is_nan());
}

#[test]
fn the_ratio_is_of_medians_and_the_spread_of_pairs() {
    let row = row(&[2.0, 4.0, 3.0], &[2.0, 2.0, 3.0], 1.5, &[]);
    assert_eq!((row.ours, row.theirs, row.ratio), (3.0, 2.0, 1.5));
    assert_eq!((row.spread, row.repetitions, row.met), ([1.0, 2.0], 3, true));
}

#[test]
fn a_missed_target_a_problem_and_no_figures_each_fail_the_row() {
    assert!(!row(&[1.6], &[1.0], 1.5, &[]).met);
    assert!(!row(&[1.0], &[1.0], 1.5, &["3 timeouts"]).met);
    assert!(!row(&[], &[], 1.5, &[]).met);
}

#[test]
fn the_json_has_the_documented_keys() {
    let value = serde_json::to_value(row(&[1.0], &[1.0], 1.5, &["x"])).unwrap();
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut promised = [
        "case",
        "unit",
        "ours",
        "peer",
        "theirs",
        "ratio",
        "repetitions",
        "spread",
        "target",
        "met",
    ];
    promised.sort_unstable();
    assert_eq!(keys, promised);
}

#[test]
fn the_table_is_aligned_and_lists_problems() {
    let text = format_table(&[row(&[1.0], &[2.0], 0.4, &["3 timeouts"])]);
    assert_eq!(
        text,
        "case  unit  ours  peer   theirs  ratio  spread       n  target  met\n\
         hit   us    1.00  nginx  2.00    0.500  0.500-0.500  1  0.40    NO\n\
         invalid: hit against nginx: 3 timeouts\n"
    );
}
