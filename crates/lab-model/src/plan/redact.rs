//! The text of a plan that a result stores. It can be read again and has no secrets.

use settings::url::shown_text;
use settings::{Report, Span};

/// Returns the text with some values replaced. Secrets, and URLs in comments, are masked.
pub(super) fn text(text: &str, report: &Report<'_>, replaced: &[(Span, String)]) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut at = 0;
    for (span, instead) in report.values() {
        kept.push_str(&without_urls(&text[at..span.start]));
        let replaced = replaced.iter().find(|(replaced, _)| replaced == span);
        let value = replaced.map(|(_, value)| value.as_str()).or(instead);
        kept.push_str(value.unwrap_or(&text[span.clone()]));
        at = span.end;
    }
    kept.push_str(&without_urls(&text[at..]));
    kept
}

/// Masks all URLs in the text between values.
fn without_urls(text: &str) -> String {
    if !text.contains("://") {
        return text.to_owned();
    }
    let word = |piece: &str| {
        let end = piece.trim_end_matches(|letter: char| letter.is_whitespace());
        let (word, space) = piece.split_at(end.len());
        let Some(at) = word.find("://") else { return piece.to_owned() };
        let is_scheme = |letter: char| letter.is_ascii_alphanumeric();
        let start = word[..at].trim_end_matches(is_scheme).len();
        let url = word[start..].trim_end_matches(|letter: char| ")]}>,.;:\"'`".contains(letter));
        let rest = &word[start + url.len()..];
        format!("{}{}{rest}{space}", &word[..start], shown_text(url))
    };
    text.split_inclusive(char::is_whitespace).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::without_urls;

    #[test]
    fn urls_in_comments_lose_their_secrets() {
        let comment = "# see https://u:sekrit@h/x, or (http://h/sekrit0123456789).\nkey = ";
        assert_eq!(without_urls(comment), "# see https://***@h/x, or (http://h/***).\nkey = ");
    }
}
