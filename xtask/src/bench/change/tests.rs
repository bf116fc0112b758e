//! A verdict needs enough repetitions, all of which agree.

use super::Comparison;

fn verdict(before: &[f64], after: &[f64]) -> &'static str {
    Comparison::new(before, after).verdict()
}

#[test]
fn a_verdict_needs_all_pairs_on_one_side() {
    let before = [10.0; 6];
    assert_eq!(verdict(&before, &[9.0, 9.5, 9.1, 9.2, 9.9, 9.0]), "cheaper");
    assert_eq!(verdict(&before, &[11.0, 10.5, 10.1, 12.0, 11.0, 10.2]), "dearer");
    assert_eq!(verdict(&before, &[9.0, 9.5, 9.1, 9.2, 10.1, 9.0]), "cannot tell");
}

#[test]
fn few_pairs_and_no_pairs_cannot_tell() {
    assert!(verdict(&[10.0; 5], &[1.0; 5]).starts_with("cannot tell"));
    assert!(verdict(&[], &[]).starts_with("cannot tell"));
}
