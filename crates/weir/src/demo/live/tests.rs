//! Goal: the sparkline distinguishes fast from slow. Method: values at its ends and between.

use super::sparkline;

#[test]
fn higher_bars_for_slower_responses() {
    assert_eq!(sparkline(&[]), "");
    assert_eq!(sparkline(&[0.0, 0.1, 1.0, 10.0, 100.0, 999.0, 60_000.0]), "▁▁▃▅▇██");
}
