//! Counts the load generator's requests in an access log that a server of a study writes.
//!
//! Each line begins with the time in seconds since 1970, the HTTP status and the User-Agent. In the
//! log formats of nginx and of the gateway, these are `$msec $status $http_user_agent`. Only lines
//! with the User-Agent of the load generator are counted. The calls that Weir makes before and
//! after a run have another User-Agent.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab_engine::engine::USER_AGENT;
use lab_model::results::load_study::AccessLogCounts;
use lab_model::results::run::RunResult;

/// Time without growth after which the log is complete. The gateway writes lines from a queue, so
/// the last lines may come after the run.
const QUIET_TIME: Duration = Duration::from_millis(200);
/// Longest wait for the end of the log.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval at which the size of the log is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// HTTP status of requests above a rate limit.
const TOO_MANY_REQUESTS: u16 = 429;

/// An access log, and its size before a run.
#[derive(Debug)]
pub(super) struct AccessLog {
    path: PathBuf,
    /// Size before the run, in bytes.
    start_offset: u64,
}

/// A second of the run, as the load generator counted it.
struct Second {
    /// End in seconds since the start of the run.
    end: f64,
    /// Number of requests that the generator counted in this second.
    requests: u64,
}

impl AccessLog {
    /// Stores the size of the log before a run.
    pub(super) fn before_run(path: &Path) -> AccessLog {
        AccessLog { path: path.to_owned(), start_offset: file_size(path) }
    }

    /// Counts the generator's requests since [`AccessLog::before_run`].
    ///
    /// # Errors
    /// Fails if the log cannot be read, or a line has another format.
    pub(super) fn count(&self, result: &RunResult) -> Result<AccessLogCounts, String> {
        let fault =
            |error: &dyn std::fmt::Display| format!("access log {}: {error}", self.path.display());
        self.wait_until_complete();
        let mut file = File::open(&self.path).map_err(|error| fault(&error))?;
        file.seek(SeekFrom::Start(self.start_offset)).map_err(|error| fault(&error))?;
        let lines = BufReader::new(file).split(b'\n');
        let series = result.series.iter();
        let seconds: Vec<Second> =
            series.map(|point| Second { end: point.at, requests: point.requests }).collect();
        count_lines(lines, result.started_unix, &seconds).map_err(|error| fault(&error))
    }

    /// Waits until the log has stopped growing.
    fn wait_until_complete(&self) {
        let start = Instant::now();
        let (mut last_size, mut last_growth) = (file_size(&self.path), Instant::now());
        while last_growth.elapsed() < QUIET_TIME && start.elapsed() < WAIT_MAX {
            std::thread::park_timeout(POLL_INTERVAL);
            let size = file_size(&self.path);
            if size != last_size {
                (last_size, last_growth) = (size, Instant::now());
            }
        }
    }
}

/// Returns the size of a file in bytes, or 0 if the file does not exist.
fn file_size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Counts the generator's lines in total and for each second of the run. `started` is the start of
/// the run in seconds since 1970.
fn count_lines(
    lines: impl Iterator<Item = io::Result<Vec<u8>>>,
    started: f64,
    seconds: &[Second],
) -> Result<AccessLogCounts, String> {
    let mut counts = AccessLogCounts {
        // The generator's count, and the log's count. The log's count begins at 0.
        seconds: seconds.iter().map(|second| (second.requests, 0)).collect(),
        ..AccessLogCounts::default()
    };
    for line in lines {
        let line = line.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&line);
        let (time, status, user_agent) = parse_line(&text).ok_or_else(|| {
            format!(
                "the line {text:?} does not begin with a time, a status and a User-Agent; set the \
                 format to '$msec $status $http_user_agent'"
            )
        })?;
        if !user_agent.trim_start_matches('"').starts_with(USER_AGENT) {
            continue;
        }
        counts.requests += 1;
        counts.limited += u64::from(status == TOO_MANY_REQUESTS);
        let index = seconds.partition_point(|second| second.end < time - started);
        // A request that the server logs a little after the end of the run counts for the last
        // second.
        let last_index = seconds.len().saturating_sub(1);
        if let Some((_, logged)) = counts.seconds.get_mut(index.min(last_index)) {
            *logged += 1;
        }
    }
    Ok(counts)
}

/// Returns the time, the status, and the rest of the line, which begins with the User-Agent.
fn parse_line(line: &str) -> Option<(f64, u16, &str)> {
    let mut words = line.splitn(3, ' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> Result<AccessLogCounts, String> {
        let lines = text.lines().map(|line| Ok(line.as_bytes().to_vec()));
        let started = 100.0;
        let seconds = [(1.0, 2), (2.0, 1)].map(|(end, requests)| Second { end, requests });
        count_lines(lines, started, &seconds)
    }

    #[test]
    fn requests_are_counted_by_second_without_those_of_other_clients() {
        let text = format!(
            "99.500 200 weir/1\n100.250 200 {USER_AGENT}\n101.000 429 {USER_AGENT}\n\
             101.001 200 \"{USER_AGENT}\" more\n102.003 499 {USER_AGENT}\n102.004 200 curl\n"
        );
        let counts = count(&text).unwrap();
        let expected = AccessLogCounts { requests: 4, limited: 1, seconds: vec![(2, 2), (1, 2)] };
        assert_eq!(counts, expected);
        assert_eq!(counts.second_difference_max(), 1);
    }

    #[test]
    fn a_line_of_another_format_is_an_error() {
        let fault = count("127.0.0.1 - - [x] \"POST / HTTP/1.1\" 200\n").unwrap_err();
        assert!(fault.contains("127.0.0.1") && fault.contains("$msec $status"), "{fault}");
    }
}
