//! The text of a plan that a result stores. It can be read again and has no secrets.

use settings::url::mask_url;
use settings::{Report, Span};

/// Returns the text with these values replaced. Secrets, and URLs in comments, are masked.
pub(super) fn redact_text(
    text: &str,
    report: &Report<'_>,
    replacements: &[(Span, String)],
) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut value_end = 0;
    for (span, mask) in report.values() {
        redacted.push_str(&mask_urls(&text[value_end..span.start]));
        let replacement = replacements.iter().find(|(replaced, _)| replaced == span);
        let value = replacement.map(|(_, value)| value.as_str()).or(mask);
        redacted.push_str(value.unwrap_or(&text[span.clone()]));
        value_end = span.end;
    }
    redacted.push_str(&mask_urls(&text[value_end..]));
    redacted
}

/// Masks all URLs in the text between values.
fn mask_urls(text: &str) -> String {
    if !text.contains("://") {
        return text.to_owned();
    }
    let word = |piece: &str| {
        let end = piece.trim_end_matches(|letter: char| letter.is_whitespace());
        let (word, space) = piece.split_at(end.len());
        let Some(separator) = word.find("://") else { return piece.to_owned() };
        let is_scheme = |letter: char| letter.is_ascii_alphanumeric();
        let start = word[..separator].trim_end_matches(is_scheme).len();
        let url = word[start..].trim_end_matches(|letter: char| ")]}>,.;:\"'`".contains(letter));
        let rest = &word[start + url.len()..];
        format!("{}{}{rest}{space}", &word[..start], mask_url(url))
    };
    text.split_inclusive(char::is_whitespace).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::mask_urls;

    #[test]
    fn urls_in_comments_lose_their_secrets() {
        let comment = "# see https://u:sekrit@h/x, or (http://h/sekrit0123456789).\nkey = ";
        assert_eq!(mask_urls(comment), "# see https://***@h/x, or (http://h/***).\nkey = ");
    }
}
