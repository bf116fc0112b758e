//! Goal: formulas have the right values or errors. Method: tables of formulas.

use super::*;

fn variables() -> Vec<(String, f64)> {
    vec![("load_percent".to_owned(), 11.0), ("n".to_owned(), 2.0)]
}

#[test]
fn formulas_follow_the_order_of_operations() {
    let cases = [
        ("30000 * load_percent / 100", 3300.0),
        ("30000*${load_percent}/100", 3300.0),
        ("1 + 2 * 3", 7.0),
        ("(1 + 2) * -3", -9.0),
        ("10 - 2 - 3", 5.0),
        ("8 / 2 / 2", 2.0),
        ("max(100, floor(4000 * 1.5 / 100))", 100.0),
        ("min(n, ceil(1.2))", 2.0),
        ("1_000.5", 1000.5),
        ("${n * 3}", 6.0),
    ];
    for (text, expected) in cases {
        assert_eq!(evaluate(text, &variables()), Ok(expected), "{text}");
    }
}

#[test]
fn invalid_formulas_are_rejected() {
    let cases = [
        ("", "ends where a number or a variable must follow"),
        ("1 +", "ends where a number or a variable must follow"),
        ("1 2", "'2' does not fit here"),
        ("(1", ") is missing"),
        ("load_percant", "load_percant: there is no such variable; did you mean load_percent?"),
        ("1 / (n - 2)", "divides by 0"),
        ("sqrt(2)", "sqrt is not one of floor, ceil, round, min, max"),
        ("1.2.3", "1.2.3 is not a number"),
        ("é", "'é' does not fit here"),
    ];
    for (text, expected) in cases {
        assert_eq!(evaluate(text, &variables()), Err(expected.to_owned()), "{text}");
    }
    let deep = "(".repeat(100_000);
    assert_eq!(evaluate(&deep, &[]), Err("nested deeper than 32".to_owned()));
    let large = format!("1{}", "0".repeat(400));
    assert_eq!(evaluate(&large, &[]), Err("not a finite number".to_owned()));
}
