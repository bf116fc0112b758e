//! Goal: the sparkline distinguishes fast from slow. Method: values at its ends and between.

use super::draw_sparkline;

#[test]
fn higher_bars_for_slower_responses() {
    assert_eq!(draw_sparkline(&[]), "");
    assert_eq!(draw_sparkline(&[0.0, 0.1, 1.0, 10.0, 100.0, 999.0, 60_000.0]), "▁▁▃▅▇██");
}
