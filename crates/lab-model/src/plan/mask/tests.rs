//! Texts with ranges in, what may be shown of them out.

use super::*;

#[test]
fn kept_texts_lose_what_is_replaced_and_urls_in_comments() {
    let text = "a = 1 # see https://u:sekrit@h/x for it\nb = 'sekrit' # c\nc = 'sekrit'";
    let range = |needle: &str, from: usize| {
        let at = from + text[from..].find(needle).unwrap();
        at..at + needle.len()
    };
    let (one, b) = (range("1", 0), range("'sekrit'", 0));
    let c = range("'sekrit'", b.end);
    // A value may be replaced for two reasons; what follows it is replaced all the same.
    let instead = [
        (one.clone(), "2".to_owned()),
        (one.clone(), "3".to_owned()),
        (b.clone(), "***".to_owned()),
        (c.clone(), "***".to_owned()),
    ];
    let kept = kept(text, &instead, &[one, b, c]);
    assert_eq!(kept, "a = 2 # see https://***@h/x for it\nb = *** # c\nc = ***");
}

#[test]
fn lines_show_known_values_and_no_comments() {
    let text = "k = 'v', s = 'sekrit' # sekrit";
    let masks =
        Masks::of_values(vec![(13..21, Shown::Instead("***".to_owned())), (4..7, Shown::Itself)]);
    let (line, marked) = masks.line(text, 0..text.len(), 13..21);
    assert_eq!((line.as_str(), marked), ("k = 'v', s = ***", 13..16));
    let (line, _) = Masks::hide_all().line(text, 0..text.len(), 0..1);
    assert_eq!(line, "k = ***");
}
