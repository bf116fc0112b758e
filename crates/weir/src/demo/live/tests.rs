//! Goal: the curve tells fast from slow. Method: values at its ends and between.

use super::spark;

#[test]
fn higher_letters_for_slower_answers() {
    assert_eq!(spark(&[]), "");
    assert_eq!(spark(&[0.0, 0.1, 1.0, 10.0, 100.0, 999.0, 60_000.0]), "▁▁▃▅▇██");
}
