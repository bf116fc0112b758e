//! A plan from the options of a command line: `weir load URL` with what may stand beside it.
//!
//! The options are written down as a plan's text, which then goes the way of every plan: one reader,
//! one set of bounds and defaults, and a text in the result from which the run can be repeated.
//! Faults name the option in place of a line.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use wire::method::FamilyName;

use super::fault::{Faults, Options, Report};
use super::formula;
use super::kind;
use super::nearest::nearest;
use super::{Plan, World, read_in, shipped};

#[cfg(test)]
mod tests;

/// Connections if none are asked for.
const CONNECTIONS: u64 = 50;
/// How long a run takes if nothing is asked for.
const DURATION: &str = "10s";
/// How long a run of so many requests may take.
const DURATION_OF_REQUESTS: &str = "1h";
/// Workers for a rate, if no connections are asked for: enough for answers that take 100 ms.
const WORKERS_BY_RATE: f64 = 0.1;
/// Most workers that a rate brings by itself.
const WORKERS_BY_RATE_MAX: f64 = 5000.0;

/// The options of `weir load URL`, as they were written. What is not set has a plan's default,
/// except for those named here: 50 connections, 10 s, closed model, and the family's mix of reads.
#[derive(Clone, Debug)]
pub struct Line {
    /// Whom to load.
    pub url: String,
    /// What the target was found to understand; decides the mix if none is asked for.
    pub family: FamilyName,
    /// `-c`: workers, each on a connection of its own.
    pub connections: Option<u64>,
    /// `-d`: a duration such as `10s`.
    pub duration: Option<String>,
    /// `-n`: stop after so many requests.
    pub requests: Option<u64>,
    /// `-r`: requests per second, which makes it an open model.
    pub rate: Option<String>,
    /// `--warmup`: a duration that is not judged.
    pub warmup: Option<String>,
    /// `--method`: one method in place of a mix.
    pub method: Option<String>,
    /// `--params`: its parameters as JSON.
    pub params: Option<String>,
    /// `--body`: one request body in place of a mix.
    pub body: Option<String>,
    /// `--mix`: name of a shipped mix, or a file.
    pub mix: Option<String>,
    /// `--requests`: file of bodies, or `-` for standard input.
    pub requests_file: Option<String>,
    /// `--connections`: `reuse`, `close`, or requests per connection.
    pub reuse: Option<String>,
    /// `--tls-resume`: `on` or `off`.
    pub tls_resume: Option<String>,
    /// `--tls-version`: `1.2` or `1.3`.
    pub tls_version: Option<String>,
    /// `--ciphers`: names of cipher suites.
    pub ciphers: Vec<String>,
    /// `--insecure`: certificates are not checked.
    pub insecure: bool,
    /// `--http`: `1.1` or `2`.
    pub http: Option<String>,
    /// `--timeout`: a duration.
    pub timeout: Option<String>,
    /// `-H`: further headers, `NAME: VALUE`.
    pub headers: Vec<String>,
    /// `--seed`.
    pub seed: Option<u64>,
    /// `--threads`.
    pub threads: Option<u64>,
    /// `--threshold`: such as `latency{method:eth_call} p(99)<300`.
    pub thresholds: Vec<String>,
    /// `--pid`: processes to watch.
    pub pids: Vec<u32>,
    /// `--node-exporter`: URL of the target host's exporter.
    pub node_exporter: Option<String>,
}

impl Line {
    /// Nothing but a URL and what was found there.
    pub fn new(url: &str, family: FamilyName) -> Line {
        Line {
            url: url.to_owned(),
            family,
            connections: None,
            duration: None,
            requests: None,
            rate: None,
            warmup: None,
            method: None,
            params: None,
            body: None,
            mix: None,
            requests_file: None,
            reuse: None,
            tls_resume: None,
            tls_version: None,
            ciphers: Vec::new(),
            insecure: false,
            http: None,
            timeout: None,
            headers: Vec::new(),
            seed: None,
            threads: None,
            thresholds: Vec::new(),
            pids: Vec::new(),
            node_exporter: None,
        }
    }

    /// The plan that the options mean.
    ///
    /// # Errors
    /// Every fault of the options at once, each with the option and what is allowed.
    pub fn plan(&self) -> Result<Plan, Faults> {
        self.exclusive()?;
        let plan = self.plan_of(1)?;
        // Options count requests, plans count iterations; only now is known what makes one.
        match plan.mixes[plan.scenarios[0].mix].steps.len() {
            1 => Ok(plan),
            steps => self.plan_of(steps as u64),
        }
    }

    /// The plan if an iteration has so many requests.
    fn plan_of(&self, steps: u64) -> Result<Plan, Faults> {
        let mut writing = Writing { text: String::new(), options: Vec::new() };
        self.target(&mut writing);
        self.connections(&mut writing);
        self.run(&mut writing);
        let own_mix = self.own_mix(&mut writing);
        self.scenario(&mut writing, own_mix, steps);
        self.thresholds(&mut writing)?;
        let report = Report::of_options(&writing.text, writing.options);
        let read = read_in(&World::real(Path::new("")), report, "line", &[]);
        read.map_err(|faults| self.guess_mix(faults))
    }

    /// A mix that is neither shipped nor a file was perhaps meant to be a shipped one.
    fn guess_mix(&self, mut faults: Faults) -> Faults {
        let names: Vec<_> = shipped::names().collect();
        let Some(near) = self.mix.as_deref().and_then(|mix| nearest(mix, &names)) else {
            return faults;
        };
        for fault in faults.list.iter_mut().filter(|fault| fault.key == "--mix") {
            fault.message = format!("{}; did you mean {near}?", fault.message);
        }
        faults
    }

    /// Options that say the same thing in different ways.
    fn exclusive(&self) -> Result<(), Faults> {
        let ways = [
            ("--method", self.method.is_some()),
            ("--body", self.body.is_some()),
            ("--mix", self.mix.is_some()),
            ("--requests", self.requests_file.is_some()),
        ];
        let given: Vec<_> =
            ways.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        if let [first, second, ..] = given.as_slice() {
            let message = format!("says what is sent, and so does {first}");
            return Err(Faults::one(*second, None, message, "one of them"));
        }
        if self.params.is_some() && self.method.is_none() {
            return Err(Faults::one("--params", None, "of which method?", "with --method"));
        }
        Ok(())
    }

    fn target(&self, writing: &mut Writing) {
        writing.plain("[target]");
        writing.key("URL", "url", &quoted(&self.url));
        writing.plain(&format!("family = {}", quoted(self.family.as_str())));
        writing.text("--timeout", "timeout", self.timeout.as_deref());
        let pair = |header: &String| {
            let (name, value) = header.split_once(':').unwrap_or((header, ""));
            format!("{} = {}", quoted(name.trim()), quoted(value.trim()))
        };
        if !self.headers.is_empty() {
            let pairs: Vec<_> = self.headers.iter().map(pair).collect();
            writing.key("-H", "headers", &format!("{{ {} }}", pairs.join(", ")));
        }
    }

    fn connections(&self, writing: &mut Writing) {
        writing.plain("\n[connections]");
        let reuse = self.reuse.as_deref().map(|word| match word {
            "reuse" => "always",
            "close" => "never",
            other => other,
        });
        writing.text("--connections", "reuse", reuse);
        writing.text("--http", "http", self.http.as_deref());
        writing.text("--tls-resume", "tls_resume", self.tls_resume.as_deref());
        writing.text("--tls-version", "tls_version", self.tls_version.as_deref());
        if !self.ciphers.is_empty() {
            writing.key(
                "--ciphers",
                "ciphers",
                &list(self.ciphers.iter().map(|name| quoted(name))),
            );
        }
        if self.insecure {
            writing.key("--insecure", "tls_insecure", "true");
        }
    }

    fn run(&self, writing: &mut Writing) {
        writing.plain("\n[run]");
        writing.number("--seed", "seed", self.seed);
        writing.number("--threads", "threads", self.threads);
        writing.text("--warmup", "warmup", self.warmup.as_deref());
        if !self.pids.is_empty() || self.node_exporter.is_some() {
            writing.plain("\n[watch]");
        }
        if !self.pids.is_empty() {
            writing.key("--pid", "pids", &list(self.pids.iter().map(u32::to_string)));
        }
        writing.text("--node-exporter", "node_exporter", self.node_exporter.as_deref());
    }

    /// Writes the mix that the options make up, if they name no shipped one.
    fn own_mix(&self, writing: &mut Writing) -> bool {
        let file = self.mix.as_deref().filter(|mix| shipped::text(mix).is_none());
        let parts = [&self.method, &self.body, &self.requests_file];
        if file.is_none() && parts.iter().all(|part| part.is_none()) {
            return false;
        }
        writing.plain("\n[mix.line]");
        writing.text("--mix", "file", file);
        writing.text("--requests", "requests", self.requests_file.as_deref());
        if let Some(body) = &self.body {
            writing.key("--body", "bodies", &format!("[{}]", quoted(body)));
        }
        if let Some(method) = &self.method {
            writing.plain("[[mix.line.calls]]");
            writing.key("--method", "method", &quoted(method));
            writing.text("--params", "params", self.params.as_deref());
        }
        true
    }

    fn scenario(&self, writing: &mut Writing, own_mix: bool, steps: u64) {
        let usual = shipped::usual(self.family);
        let mix = if own_mix { "line" } else { self.mix.as_deref().unwrap_or(usual) };
        writing.plain("\n[[scenario]]\nname = \"load\"");
        writing.key("--mix", "mix", &quoted(mix));
        let duration = match (&self.duration, self.requests) {
            (Some(duration), _) => duration,
            (None, Some(_)) => DURATION_OF_REQUESTS,
            (None, None) => DURATION,
        };
        let workers = self.connections.unwrap_or(CONNECTIONS);
        match &self.rate {
            Some(rate) => {
                writing.number(
                    "-c",
                    "workers_max",
                    Some(self.connections.unwrap_or_else(|| workers_for(rate, steps))),
                );
                writing.plain("[[scenario.stages]]\nname = \"load\"");
                let rate = match steps {
                    1 => number_or_quoted(rate),
                    steps => quoted(&format!("({rate}) / {steps}")),
                };
                writing.key("-r", "rate", &rate);
            }
            None => {
                writing.plain("model = \"closed\"");
                writing.plain("[[scenario.stages]]\nname = \"load\"");
                writing.number("-c", "workers", Some(workers));
            }
        }
        writing.key("-d", "duration", &quoted(duration));
        if let Some(requests) = self.requests {
            // A table's own keys stand before its tables of tables, so this one is put in there.
            let at = writing.text.rfind("[[scenario.stages]]").unwrap_or(writing.text.len());
            let iterations = requests.div_ceil(steps);
            writing.insert(at, "-n", &format!("iterations = {iterations}\n"));
        }
    }

    fn thresholds(&self, writing: &mut Writing) -> Result<(), Faults> {
        if self.thresholds.is_empty() {
            return Ok(());
        }
        writing.plain("\n[thresholds]");
        let mut by_selector: Vec<(String, Vec<String>)> = Vec::new();
        for threshold in &self.thresholds {
            let Some((selector, expression)) = split_threshold(threshold) else {
                let allowed = "METRIC EXPRESSION, such as \"latency{method:eth_call} p(99)<300\"";
                let shown = Some(quoted(threshold));
                return Err(Faults::one("--threshold", shown, "has no expression", allowed));
            };
            match by_selector.iter_mut().find(|(known, _)| known == selector) {
                Some((_, expressions)) => expressions.push(quoted(expression)),
                None => by_selector.push((selector.to_owned(), vec![quoted(expression)])),
            }
        }
        for (selector, expressions) in by_selector {
            writing.key("--threshold", &quoted(&selector), &list(expressions.into_iter()));
        }
        Ok(())
    }
}

/// `latency{method:eth_call} p(99)<300` at the blank between its two parts.
fn split_threshold(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let from = text.find('}').map_or(0, |at| at + 1);
    let at = from + text[from..].find([' ', ':'])?;
    let (selector, expression) = (text[..at].trim(), text[at + 1..].trim());
    (!selector.is_empty() && !expression.is_empty()).then_some((selector, expression))
}

/// Workers for a rate; what is no rate is faulted where it stands.
fn workers_for(rate: &str, steps: u64) -> u64 {
    let rate = formula::value(rate, &[]).unwrap_or_default() / steps as f64;
    let workers = (rate * WORKERS_BY_RATE).clamp(CONNECTIONS as f64, WORKERS_BY_RATE_MAX);
    workers.ceil() as u64
}

/// A number as it stands, anything else as a text, which is then refused as no number.
fn number_or_quoted(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(number) => number.to_string(),
        Err(_) => quoted(text),
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// A text as TOML, on one line.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            letter if letter.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(letter)));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// A plan's text while it is written, and which option wrote which part of it.
struct Writing {
    text: String,
    options: Options,
}

impl Writing {
    fn plain(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn key(&mut self, option: &'static str, key: &str, value: &str) {
        let start = self.text.len();
        self.plain(&format!("{key} = {value}"));
        self.options.push((start..self.text.len(), option));
    }

    fn text(&mut self, option: &'static str, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.key(option, key, &quoted(value));
        }
    }

    fn number(&mut self, option: &'static str, key: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.key(option, key, &value.to_string());
        }
    }

    fn insert(&mut self, at: usize, option: &'static str, line: &str) {
        self.text.insert_str(at, line);
        let moved = |range: &mut Range<usize>| {
            if range.start >= at {
                *range = range.start + line.len()..range.end + line.len();
            }
        };
        self.options.iter_mut().for_each(|(range, _)| moved(range));
        self.options.push((at..at + line.len(), option));
    }
}

/// Reads `NAME=NUMBER` of `--set`; the number may be a formula without variables.
///
/// # Errors
/// What is wrong with it.
pub fn variable(text: &str) -> Result<(String, f64), String> {
    const FORM: &str = "a variable is set as NAME=NUMBER";
    let (name, value) = text.split_once('=').ok_or(FORM)?;
    kind::check_name(name.trim()).map_err(|_| FORM)?;
    let value = formula::value(value, &[]).map_err(|message| format!("{FORM}: {message}"))?;
    Ok((name.trim().to_owned(), value))
}

/// Reads a duration as plans write it, a number and a unit such as `30s`.
///
/// # Errors
/// What is wrong with it.
pub fn duration(text: &str) -> Result<Duration, String> {
    kind::duration(text).map_err(str::to_owned)
}
