//! Fuzz target of the log parser. `fuzz/src/access_log.rs` runs it without a time limit, the test
//! below for one second.

use super::format::{COMBINED, Format};
use super::read::LineParser;

/// Parses the first line of the input as a log format and the rest as a line of that format, and
/// both as JSON lines.
///
/// # Panics
/// Panics if a parsed line violates an invariant.
pub(crate) fn logs(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (format, line) = text.split_once('\n').unwrap_or((text, ""));
    if let Ok(parsed) = Format::parse(format) {
        check_line(&parsed, line);
        check_line(&parsed, format);
    }
    check_line(&Format::Json, line);
    check_line(&Format::Json, text);
}

fn check_line(format: &Format, line: &str) {
    let Ok(parser) = LineParser::new(format) else { return };
    if let Ok(parsed) = parser.parse(line) {
        assert!(parsed.seconds.is_finite(), "the time is not finite: {line}");
        let duration = parsed.request_seconds;
        assert!(duration.is_none_or(|seconds| seconds.is_finite() && seconds >= 0.0), "{line}");
    }
}

/// Seed inputs: formats with lines.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let line =
        "203.0.113.7 - alice [21/Nov/2026:22:04:05 +0100] \"POST / HTTP/1.1\" 429 162 \"-\" \"w\"";
    let json = r#"{"time":"2026-11-21T22:04:05.123000Z","client":"10.0.0.1","key":"a\u0009b","method":"eth_call","cache":"miss","upstream":"a","status":200,"calls":1,"error":-32601,"bytes_in":70,"bytes_out":40,"request_time":0.0015,"upstream_time":0.0014}"#;
    [
        format!("{COMBINED}\n{line}"),
        format!("combined\n{line}"),
        format!("json\n{json}"),
        json.to_owned(),
        "$msec|$remote_addr|${key}|$rpc_method|$status|$request_time\n1.5|::1|-|m|200|0.1"
            .to_owned(),
        "$time_iso8601 $status $http_x_team$upstream\n2026-11-21T22:04:05Z 200 a".to_owned(),
    ]
    .map(String::into_bytes)
    .into()
}

#[cfg(test)]
mod tests {
    //! Goal: one second of fuzzing in every test run, from valid seeds.

    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn seeds_are_valid_lines() {
        for seed in seeds().iter().take(3) {
            let (format, line) = std::str::from_utf8(seed).unwrap().split_once('\n').unwrap();
            let parser = LineParser::new(&Format::parse(format).unwrap()).unwrap();
            assert!(parser.parse(line).is_ok(), "{line}");
        }
        seeds().iter().for_each(|seed| logs(seed));
    }

    #[test]
    fn mutations_keep_the_invariants() {
        let start = Instant::now();
        let tried = wire::fuzz::mutate_all(&seeds(), logs, 4, &mut |_| {
            start.elapsed() < Duration::from_secs(1)
        });
        assert!(tried > 100, "only {tried} inputs in a second");
    }
}
