//! Goal: no number is shown as something that it is not. Method: values at the edges of each form.

use std::time::Duration;

use super::*;

#[test]
fn thousands_are_set_apart() {
    for (number, text) in
        [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567"), (12_345, "12,345")]
    {
        assert_eq!(count(number), text);
    }
}

#[test]
fn times_keep_three_digits() {
    for (ms, text) in [
        (0.0, "0.00"),
        (0.042, "0.04"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.96, "100"),
        (9_999.0, "9999"),
        (10_000.0, "10.0s"),
        (f64::NAN, "-"),
    ] {
        assert_eq!(millis(ms), text, "{ms}");
    }
}

#[test]
fn a_share_is_neither_nothing_nor_all_unless_it_is() {
    for (share, text) in [
        (0.0, "0 %"),
        (0.000_001, "<0.01 %"),
        (0.001, "0.10 %"),
        (0.5, "50.0 %"),
        (0.999, "99.90 %"),
        (0.999_999, ">99.99 %"),
        (1.0, "100 %"),
        (f64::NAN, "-"),
    ] {
        assert_eq!(percent(share), text, "{share}");
    }
}

#[test]
fn rates_and_clocks() {
    assert_eq!([rate(0.0), rate(2.5), rate(99.0), rate(1_234.56)], ["0", "2.5", "99", "1,235"]);
    let shown = |seconds| clock(Duration::from_secs(seconds));
    assert_eq!([shown(8), shown(125), shown(3_725)], ["8 s", "2:05", "1:02:05"]);
}
