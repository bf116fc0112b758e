//! Aggregates log lines in bounded memory. A full table counts further names under [`OTHER`], and a
//! time series that gets too long is downsampled.

use std::collections::{BTreeMap, HashMap};

use hdrhistogram::Histogram;

use super::read::LogLine;

/// Maximum number of rows of the time series: two days by second. A longer series is downsampled by
/// a factor of ten.
const STEPS_MAX: usize = 200_000;
/// Maximum number of methods with their own row. Each has a histogram of about 20 kB.
const METHODS_MAX: usize = 500;
/// Maximum number of names with their own row in each table of clients, keys, caches or upstreams.
const NAMES_MAX: usize = 50_000;
/// Maximum number of HTTP statuses, or of JSON-RPC codes, with their own row.
const CODES_MAX: usize = 1000;
/// Longest name that is stored, in characters.
const NAME_CHARS_MAX: usize = 100;
/// Upper bound of the latency histograms: one hour in microseconds.
const MICROS_MAX: u64 = 3_600_000_000;

/// Row that counts all names without their own row, once a table is full.
pub(super) const OTHER: &str = "(other)";

/// Aggregates of all lines.
#[derive(Default)]
pub(super) struct Sums {
    /// Number of lines that were parsed and are within the time range.
    pub(super) lines: u64,
    /// Number of lines that could not be parsed.
    pub(super) faulty_lines: u64,
    /// Earliest time in seconds since 1970.
    pub(super) first_seconds: f64,
    /// Latest time in seconds since 1970.
    pub(super) last_seconds: f64,
    /// Seconds per step: the interval of one row of the time series.
    pub(super) step_seconds: u64,
    /// Line counts by start of the step, then by status.
    pub(super) counts_by_step: BTreeMap<u64, BTreeMap<u16, u64>>,
    /// Line counts by HTTP status.
    pub(super) statuses: BTreeMap<u16, u64>,
    pub(super) methods: HashMap<String, Method>,
    /// Line counts by JSON-RPC code.
    pub(super) errors: BTreeMap<i64, u64>,
    /// Number of lines with a code that has no row in the full table `errors`.
    pub(super) other_errors: u64,
    /// Line counts by the name of the API key.
    pub(super) keys: HashMap<String, u64>,
    /// Line counts by the client's address.
    pub(super) clients: HashMap<String, u64>,
    /// Line counts by cache status.
    pub(super) caches: HashMap<String, u64>,
    /// Line counts by the name of the upstream.
    pub(super) upstreams: HashMap<String, u64>,
    /// Bytes of all responses.
    pub(super) bytes_out: u64,
}

/// Aggregates of one method.
pub(super) struct Method {
    /// Number of lines.
    pub(super) count: u64,
    /// Number of lines with a JSON-RPC error, or a status of 400 and above.
    pub(super) errors: u64,
    /// Durations of the requests in microseconds.
    pub(super) micros: Histogram<u64>,
}

impl Method {
    fn new() -> Method {
        // Values from 1 µs to the maximum, with two significant digits.
        let micros = Histogram::new_with_bounds(1, MICROS_MAX, 2).expect("the bounds are in order");
        Method { count: 0, errors: 0, micros }
    }
}

impl Sums {
    /// Creates empty aggregates with `step_seconds` per step of the time series.
    pub(super) fn new(step_seconds: u64) -> Sums {
        let (first_seconds, last_seconds) = (f64::INFINITY, f64::NEG_INFINITY);
        Sums { first_seconds, last_seconds, step_seconds, ..Sums::default() }
    }

    /// Adds a line.
    pub(super) fn add(&mut self, line: &LogLine<'_>) {
        self.lines += 1;
        self.first_seconds = self.first_seconds.min(line.seconds);
        self.last_seconds = self.last_seconds.max(line.seconds);
        self.bytes_out = self.bytes_out.saturating_add(line.bytes_out.unwrap_or(0));
        self.add_time(line);
        if self.statuses.len() < CODES_MAX || self.statuses.contains_key(&line.status) {
            *self.statuses.entry(line.status).or_default() += 1;
        }
        if let Some(code) = line.error {
            if self.errors.len() < CODES_MAX || self.errors.contains_key(&code) {
                *self.errors.entry(code).or_default() += 1;
            } else {
                self.other_errors += 1;
            }
        }
        count_name(&mut self.keys, line.key.as_deref());
        count_name(&mut self.clients, Some(&*line.client).filter(|client| !client.is_empty()));
        count_name(&mut self.caches, line.cache.as_deref());
        count_name(&mut self.upstreams, line.upstream.as_deref());
        self.add_method(line);
    }

    /// Counts a line in its step of the time series. Merges steps if the series gets too long.
    fn add_time(&mut self, line: &LogLine<'_>) {
        let start = line.seconds as u64 / self.step_seconds * self.step_seconds;
        *self.counts_by_step.entry(start).or_default().entry(line.status).or_default() += 1;
        while self.counts_by_step.len() > STEPS_MAX {
            self.step_seconds *= 10;
            let old_counts = std::mem::take(&mut self.counts_by_step);
            for (old_start, statuses) in old_counts {
                let start = old_start / self.step_seconds * self.step_seconds;
                let counts = self.counts_by_step.entry(start).or_default();
                for (status, count) in statuses {
                    *counts.entry(status).or_default() += count;
                }
            }
        }
    }

    fn add_method(&mut self, line: &LogLine<'_>) {
        let name = sanitize(line.method.as_deref().unwrap_or("-"));
        let has_row = self.methods.len() < METHODS_MAX || self.methods.contains_key(&name);
        let name = if has_row { name } else { OTHER.to_owned() };
        let method = self.methods.entry(name).or_insert_with(Method::new);
        method.count += 1;
        method.errors += u64::from(line.error.is_some() || line.status >= 400);
        if let Some(seconds) = line.request_seconds {
            method.micros.saturating_record(((seconds * 1e6) as u64).clamp(1, MICROS_MAX));
        }
    }

    /// Returns the seconds from the earliest line to the latest, at least one.
    pub(super) fn duration_seconds(&self) -> f64 {
        (self.last_seconds - self.first_seconds).max(1.0)
    }
}

/// Increments the count of a name. Does nothing for `None`.
fn count_name(table: &mut HashMap<String, u64>, name: Option<&str>) {
    let Some(name) = name else { return };
    let name = sanitize(name);
    let has_row = table.len() < NAMES_MAX || table.contains_key(&name);
    *table.entry(if has_row { name } else { OTHER.to_owned() }).or_default() += 1;
}

/// Makes a name printable: replaces control characters and limits its length.
fn sanitize(name: &str) -> String {
    let make_printable = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    name.chars().take(NAME_CHARS_MAX).map(make_printable).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: aggregates are right, and their size is bounded for any input.

    use super::*;

    fn line(seconds: f64, status: u16, method: &str) -> LogLine<'_> {
        let client = "::1".into();
        LogLine { seconds, status, client, method: Some(method.into()), ..LogLine::default() }
    }

    #[test]
    fn lines_are_counted_by_time_status_and_method() {
        let mut sums = Sums::new(60);
        sums.add(&LogLine { request_seconds: Some(0.5), ..line(120.0, 200, "a") });
        sums.add(&LogLine {
            request_seconds: Some(0.1),
            error: Some(-32000),
            ..line(179.9, 200, "a")
        });
        sums.add(&line(180.0, 429, "b"));
        let times: Vec<_> = sums
            .counts_by_step
            .iter()
            .map(|(start, by_status)| (*start, by_status.clone()))
            .collect();
        assert_eq!(times, [(120, BTreeMap::from([(200, 2)])), (180, BTreeMap::from([(429, 1)]))]);
        let method = &sums.methods["a"];
        assert_eq!((method.count, method.errors, method.micros.len()), (2, 1, 2));
        assert!((495_000..=505_000).contains(&method.micros.max()));
        assert_eq!(
            (sums.methods["b"].errors, sums.errors[&-32000], sums.clients["::1"]),
            (1, 1, 3)
        );
    }

    #[test]
    fn nothing_grows_without_bound() {
        let mut sums = Sums::new(1);
        for number in 0..STEPS_MAX as u64 + 10 {
            let name = format!("name-{number}");
            let line = line(number as f64, (number % 3000) as u16, &name);
            let (key, error) = (Some(name.clone().into()), Some(number as i64));
            sums.add(&LogLine { key, error, client: name.clone().into(), ..line });
        }
        assert_eq!(sums.step_seconds, 10);
        assert!(sums.counts_by_step.len() <= STEPS_MAX && sums.methods.len() <= METHODS_MAX + 1);
        assert!(sums.keys.len() <= NAMES_MAX + 1 && sums.clients.len() <= NAMES_MAX + 1);
        assert!(sums.errors.len() <= CODES_MAX && sums.statuses.len() <= CODES_MAX);
        let counted: u64 =
            sums.counts_by_step.values().flat_map(|by_status| by_status.values()).sum();
        assert_eq!(counted, sums.lines);
        assert_eq!(sums.methods.values().map(|method| method.count).sum::<u64>(), sums.lines);
        assert_eq!(sanitize("a\u{1b}[2J\n"), "a\u{fffd}[2J\u{fffd}");
    }
}
