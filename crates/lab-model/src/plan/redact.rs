//! Removes secrets from the text of a plan, so that a result can store the text. The redacted text
//! can be read as a plan again.

use settings::url::mask_url;
use settings::{Report, Span};

/// Returns the text with all secrets masked, including the secrets of URLs in comments.
/// `replacements` has the position and the new text of each value that an option overrides.
pub(super) fn redact_text(
    text: &str,
    report: &Report<'_>,
    replacements: &[(Span, String)],
) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut value_end = 0;
    // `mask` is the text in place of a secret value, and `None` for all other values.
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

/// Masks all URLs in the text between two values. This text may be a comment.
fn mask_urls(text: &str) -> String {
    if !text.contains("://") {
        return text.to_owned();
    }
    let mask_word = |word_and_space: &str| {
        let word_end = word_and_space.trim_end_matches(|letter: char| letter.is_whitespace()).len();
        let (word, space) = word_and_space.split_at(word_end);
        let Some(separator) = word.find("://") else { return word_and_space.to_owned() };
        let is_scheme = |letter: char| letter.is_ascii_alphanumeric();
        let url_start = word[..separator].trim_end_matches(is_scheme).len();
        let is_punctuation = |letter: char| ")]}>,.;:\"'`".contains(letter);
        let url = word[url_start..].trim_end_matches(is_punctuation);
        let punctuation = &word[url_start + url.len()..];
        format!("{}{}{punctuation}{space}", &word[..url_start], mask_url(url))
    };
    text.split_inclusive(char::is_whitespace).map(mask_word).collect()
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
