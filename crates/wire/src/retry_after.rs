//! The header `Retry-After` of HTTP (RFC 9110, section 10.2.3).

use std::time::{Duration, SystemTime};

/// Parses the value of the header: a number of seconds, or a date. A date in the past gives zero.
/// Returns `None` if the value is invalid.
pub fn parse_retry_after(value: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim();
    // The parser of numbers would accept a plus sign too.
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(Duration::from_secs);
    }
    let until = httpdate::parse_http_date(text).ok()?;
    Some(until.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    //! Goal: both forms of the value are read, and no other.

    use super::*;

    #[test]
    fn the_value_is_a_number_of_seconds_or_a_date() {
        assert_eq!(parse_retry_after(b"7"), Some(Duration::from_secs(7)));
        assert_eq!(parse_retry_after(b" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(parse_retry_after(b"Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let later = parse_retry_after(b"Fri, 31 Dec 9999 23:59:59 GMT").unwrap();
        assert!(later > Duration::from_secs(86_400));
        for invalid in [&b"-1"[..], b"+1", b"soon", b"", b"1.5", b"\xff", b"99999999999999999999"] {
            assert_eq!(parse_retry_after(invalid), None, "{invalid:?}");
        }
    }
}
