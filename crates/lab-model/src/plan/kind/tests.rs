//! Values in, what they mean or what is wrong out.

use super::*;

#[test]
fn durations_have_units_and_fractions() {
    let cases = [
        ("250ms", Some(Duration::from_millis(250))),
        ("1.5s", Some(Duration::from_millis(1500))),
        ("0s", Some(Duration::ZERO)),
        ("2m", Some(Duration::from_secs(120))),
        ("14 m", Some(Duration::from_secs(840))),
        ("10", None),
        ("s", None),
        ("-1s", None),
        ("1e9s", None),
        ("9999999999999999999999d", None),
        ("1.2.3s", None),
    ];
    for (text, expected) in cases {
        assert_eq!(duration(text).ok(), expected, "{text}");
    }
}

#[test]
fn durations_are_shown_in_their_largest_unit() {
    for text in ["250ms", "90s", "2m", "1h", "7d", "0s", "1us"] {
        let shown = ShownDuration(duration(text).unwrap()).to_string();
        assert_eq!(shown, text);
    }
}

#[test]
fn counts_forgive_rounding_and_nothing_else() {
    let kind = Kind::Count { min: 1, max: 10 };
    let read = |number| kind.of_number(number).map(|value| format!("{value:?}"));
    assert_eq!(read(2.999_999_999), Ok("Count(3)".to_owned()));
    assert!(read(2.5).is_err());
    assert!(read(0.0).is_err());
    assert!(read(11.0).is_err());
    assert!(read(f64::NAN).is_err());
    assert!(read(f64::INFINITY).is_err());
}

#[test]
fn reuse_takes_words_and_numbers() {
    let read = |text| match Kind::Reuse.of_text(text) {
        Ok(Value::Reuse(reuse)) => Some(reuse),
        _ => None,
    };
    assert_eq!(read("always"), Some(Reuse::Always));
    assert_eq!(read("0"), Some(Reuse::Always));
    assert_eq!(read("never"), Some(Reuse::Never));
    assert_eq!(read("1"), Some(Reuse::Never));
    assert_eq!(read("100"), Some(Reuse::Requests(100)));
    assert_eq!(read("sometimes"), None);
}

#[test]
fn headers_that_the_load_sets_itself_are_refused() {
    assert!(Kind::of_header("Authorization", "Bearer x").is_ok());
    assert!(Kind::of_header("Content-Length", "3").is_err());
    assert!(Kind::of_header("a b", "3").is_err());
    assert!(Kind::of_header("a", "x\r\ny: z").is_err());
}
