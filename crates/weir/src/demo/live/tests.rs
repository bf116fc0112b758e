//! Goal: the sparkline distinguishes fast from slow. Method: values at its ends and between.

use super::spark;

#[test]
fn higher_bars_for_slower_responses() {
    assert_eq!(spark(&[]), "");
    assert_eq!(spark(&[0.0, 0.1, 1.0, 10.0, 100.0, 999.0, 60_000.0]), "▁▁▃▅▇██");
}
