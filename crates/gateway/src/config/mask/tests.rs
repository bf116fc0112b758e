//! Lines as they may be shown, with the marked part below: a table of snapshots.

use super::*;

fn check(text: &str, masks: &Masks, marked: &str, expected: &str) {
    let start = text.find(marked).unwrap();
    let (line, marks) = masks.line(text, 0..text.len(), start..start + marked.len());
    let carets = format!("{}{}", " ".repeat(marks.start), "^".repeat(marks.len()));
    assert_eq!(format!("{line}\n{carets}"), expected);
}

#[test]
fn values_are_replaced_and_carets_follow() {
    let text = "url = 'https://x/KEY', n = 5 # KEY";
    let value = |part: &str| {
        let start = text.find(part).unwrap();
        start..start + part.len()
    };
    let masks = Masks::of_values(vec![
        (value("'https://x/KEY'"), Shown::Instead("\"https://x/***\"".to_owned())),
        (value("5"), Shown::Itself),
    ]);
    check(text, &masks, "'https://x/KEY'", "url = \"https://x/***\", n = 5\n      ^^^^^^^^^^^^^^^");
    check(text, &masks, "5", "url = \"https://x/***\", n = 5\n                           ^");
    check(text, &masks, "url", "url = \"https://x/***\", n = 5\n^^^");
    check(text, &masks, "# KEY", "url = \"https://x/***\", n = 5\n                            ");
}

#[test]
fn without_structure_only_keys_are_shown() {
    let masks = Masks::hide_all();
    let cases = [
        ("weight = = 3", "weight = ***"),
        ("[front", "[front"),
        ("[[node]] # KEY", "[[node]]"),
        ("\"KEY = 3\"", "***"),
        ("KEYKEYKEY0123", "***"),
        ("'https://x/KEY?a=b'", "***"),
        ("", "***"),
    ];
    for (text, expected) in cases {
        assert_eq!(masks.line(text, 0..text.len(), 0..0).0, expected, "{text}");
    }
}
