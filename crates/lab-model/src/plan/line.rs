//! Builds a plan from the options of `weir load URL`.
//!
//! The options are first written as the text of a plan, which is then read like every plan. So all
//! plans have the same reader, limits and defaults. The result of the run stores the text, so the
//! run can be repeated from it. Diagnostics name the option instead of a line of the text.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use settings::value::Name;
use settings::{Diagnostics, Input, Report, Scalar, find_nearest_name, formula};
use wire::family::Family;

use super::{Environment, Plan, Target, Tls, read_in, shipped};

#[cfg(test)]
mod tests;

/// Default number of connections.
const CONNECTIONS: u64 = 50;
/// Default duration.
const DURATION: &str = "10s";
/// Maximum duration of a run that stops after a number of requests.
const DURATION_WITH_COUNT: &str = "1h";
/// Default number of workers in the open model, divided by the rate in iterations per second. With
/// this ratio, workers do not run out while iterations take at most 100 ms.
const WORKERS_PER_RATE: f64 = 0.1;
/// The default number of workers in the open model is at most this.
const DEFAULT_WORKERS_MAX: f64 = 5000.0;

/// Options of a load test of a URL. Most options that are not set have the default of a plan. The
/// other defaults are 50 connections, 10 s, the closed model, and the family's mix of reads. The
/// reader of plans validates values, so most options are stored as text.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for a URL")]
pub struct UrlOptions {
    /// Use this many workers, each on its own connection [default: 50]
    #[arg(short = 'c', long, value_name = "N")]
    pub concurrency: Option<u64>,

    /// Run for this long [default: 10s]
    #[arg(short = 'd', long, value_name = "DURATION")]
    pub duration: Option<String>,

    /// Stop after this many requests
    #[arg(short = 'n', long, value_name = "N")]
    pub count: Option<u64>,

    /// Send this many requests per second on schedule, whatever the responses (open model); without
    /// it each worker sends its next request after the response (closed model)
    #[arg(short = 'r', long, value_name = "PER SECOND")]
    pub rate: Option<String>,

    /// Record a warm-up of this length, but exclude it from the verdict
    #[arg(long, value_name = "DURATION")]
    pub warmup: Option<String>,

    /// Set the family of methods: ethereum, harmony or bitcoin [default: detected]
    #[arg(long, value_name = "FAMILY")]
    pub family: Option<Family>,

    /// Call one method
    #[arg(long, value_name = "NAME", group = "sent")]
    pub method: Option<String>,

    /// Set the parameters of --method as JSON; generators work as in a plan
    #[arg(long, value_name = "JSON", requires = "method")]
    pub params: Option<String>,

    /// Send one request body
    #[arg(long, value_name = "JSON", group = "sent")]
    pub body: Option<String>,

    /// Send a mix: somnia, ethspam, chainbench-eth, json-bench, ethereum, harmony, bitcoin, or a
    /// file
    #[arg(long, value_name = "NAME|FILE", group = "sent")]
    pub mix: Option<String>,

    /// Send recorded requests: JSON lines or vegeta's JSON targets; - is standard input
    #[arg(long, value_name = "FILE", group = "sent")]
    pub requests: Option<String>,

    /// Keep connections, close each after one request, or after N of them [default: reuse]
    #[arg(long, value_name = "reuse|close|N")]
    pub connections: Option<String>,

    /// Resume TLS sessions on new connections [default: on]
    #[arg(long, value_name = "on|off")]
    pub tls_resume: Option<String>,

    /// Offer one version of TLS only
    #[arg(long, value_name = "1.2|1.3")]
    pub tls_version: Option<String>,

    /// Offer these cipher suites only, by IANA or OpenSSL name, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub ciphers: Vec<String>,

    /// Skip the check of the target's certificate; also for a plan
    #[arg(long)]
    pub insecure: bool,

    /// Set the HTTP version
    #[arg(long, value_name = "1.1|2")]
    pub http: Option<String>,

    /// Set the timeout of a response [default: 10s]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<String>,

    /// Add a request header; may be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub header: Vec<String>,

    /// Set the random seed: the same seed on the same chain sends the same calls; also for a plan
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1 << 53))]
    pub seed: Option<u64>,

    /// Use this many engine threads [default: 1]
    #[arg(long, value_name = "N")]
    pub threads: Option<u64>,

    /// Set a threshold, such as 'latency p(99)<300', 'failed rate<0.01' or
    /// 'latency{method:eth_call} p(95)<50'; may be repeated
    #[arg(long, value_name = "THRESHOLD")]
    pub threshold: Vec<String>,

    /// Watch a process; may be repeated. The listener of a local target is watched by default
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,

    /// Watch the target's host through its prometheus-node-exporter
    #[arg(long, value_name = "URL")]
    pub node_exporter: Option<String>,
}

impl UrlOptions {
    /// Builds the plan for a URL. `detect` detects the target's family by calling the target. It is
    /// called only if the family is not set and the options have no problem.
    ///
    /// # Errors
    /// The outer error is the error of `detect`. The inner error has all problems of the options,
    /// each with the option and the allowed values.
    pub fn plan<E>(
        &self,
        url: &str,
        detect: impl FnOnce(&Target, &Tls) -> Result<Option<Family>, E>,
    ) -> Result<Result<Plan, Diagnostics>, E> {
        let assumed_family = self.family.unwrap_or(Family::Ethereum);
        let mut plan = match self.plan_for(url, assumed_family) {
            Ok(plan) => plan,
            Err(problems) => return Ok(Err(problems)),
        };
        if self.family.is_none() {
            match detect(&plan.target, &plan.connections.tls)? {
                Some(family) if family != assumed_family => return Ok(self.plan_for(url, family)),
                family => plan.target.family = family,
            }
        }
        Ok(Ok(plan))
    }

    /// Returns true if the options set the requests, so that the requests do not depend on the
    /// family.
    pub fn sets_requests(&self) -> bool {
        self.method.is_some() || self.body.is_some() || self.requests.is_some()
    }

    /// Builds the plan for a URL and a family.
    fn plan_for(&self, url: &str, family: Family) -> Result<Plan, Diagnostics> {
        let read_plan = |steps| {
            let plan_text = self.write_plan(url, family, steps)?;
            let mut plan =
                read_in(&Environment::of_process(Path::new(""), &[]), &plan_text.text, "options")
                    .map_err(|problems| self.suggest_mix(plan_text.name_options(problems)))?;
            // There is no file whose name reports could use, so they use the target.
            plan.name = plan.target.url.default_name();
            Ok(plan)
        };
        // Options count requests, but a plan counts iterations. The number of requests per
        // iteration is the number of the mix's steps, which is known only after the mix was read.
        // If this number is not the assumed one, the plan is built again.
        let assumed_steps = 1;
        let plan = read_plan(assumed_steps)?;
        match plan.mixes[plan.scenarios[0].mix].steps.len() {
            1 => Ok(plan),
            steps => read_plan(steps as u64),
        }
    }

    /// Lists the shipped mixes if `--mix` names neither a shipped mix nor a file.
    fn suggest_mix(&self, mut problems: Diagnostics) -> Diagnostics {
        let names: Vec<_> = shipped::names().collect();
        let Some(mix) = self.mix.as_deref() else { return problems };
        let suggestion = match find_nearest_name(mix, &names) {
            Some(nearest_name) => format!("did you mean {nearest_name}? Shipped mixes"),
            None => "shipped mixes".to_owned(),
        };
        let known = names.join(", ");
        for problem in problems.list.iter_mut().filter(|problem| problem.key == "--mix") {
            let message = &problem.message;
            problem.message = format!("{message}; {suggestion}: {known}");
        }
        problems
    }

    /// Writes the text of the plan. `steps` is the number of requests per iteration.
    fn write_plan(&self, url: &str, family: Family, steps: u64) -> Result<PlanText, Diagnostics> {
        let text = |option: &Option<String>| option.as_deref().map(quoted);
        let name = |option: &Option<String>| option.as_deref().map(quoted_name);
        let number = |option: Option<u64>| option.map(|number| number.to_string());
        let mut plan_text = PlanText::default();
        plan_text.write_line("[target]");
        plan_text.write_key("URL", "url", Some(quoted(url)));
        plan_text.write_line(&format!("family = {}", quoted(family.as_str())));
        plan_text.write_key("--timeout", "timeout", text(&self.timeout));
        let headers = self.header.iter().map(|header| {
            let (name, value) = header.split_once(':').unwrap_or((header, ""));
            format!("{} = {}", quoted(name.trim()), quoted(value.trim()))
        });
        plan_text.write_key("-H", "headers", list("{ ", headers, " }"));

        plan_text.write_line("\n[connections]");
        let reuse = self.connections.as_deref().map(|word| match word {
            "reuse" => "always",
            "close" => "never",
            other => other,
        });
        plan_text.write_key("--connections", "reuse", reuse.map(quoted));
        let tls_resume = self.tls_resume.as_deref().map(|word| match word {
            "on" => "true",
            "off" => "false",
            other => other,
        });
        let tls_resume = tls_resume.map(quoted);
        plan_text.write_key("--http", "http", text(&self.http));
        plan_text.write_key("--tls-resume", "tls_resume", tls_resume);
        plan_text.write_key("--tls-version", "tls_version", text(&self.tls_version));
        let ciphers = self.ciphers.iter().map(|name| quoted(name));
        plan_text.write_key("--ciphers", "ciphers", list("[", ciphers, "]"));
        plan_text.write_key("--insecure", "tls_insecure", self.insecure.then(|| "true".to_owned()));

        plan_text.write_line("\n[run]");
        plan_text.write_key("--seed", "seed", number(self.seed));
        plan_text.write_key("--threads", "threads", number(self.threads));
        plan_text.write_key("--warmup", "warmup", text(&self.warmup));
        if !self.pid.is_empty() || self.node_exporter.is_some() {
            plan_text.write_line("\n[watch]");
        }
        plan_text.write_key("--pid", "pids", list("[", self.pid.iter().map(u32::to_string), "]"));
        plan_text.write_key("--node-exporter", "node_exporter", text(&self.node_exporter));

        let shipped = self.mix.as_deref().filter(|mix| shipped::text(mix).is_some());
        let mut mix = shipped.unwrap_or(shipped::default_mix(family));
        if self.sets_requests() || (self.mix.is_some() && shipped.is_none()) {
            // The plan gets a mix of its own, with the name `line`.
            mix = "line";
            plan_text.write_line("\n[mix.line]");
            plan_text.write_key("--mix", "file", name(&self.mix));
            plan_text.write_key("--requests", "requests", name(&self.requests));
            plan_text.write_key(
                "--body",
                "bodies",
                list("[", self.body.iter().map(|body| quoted(body)), "]"),
            );
            if let Some(method) = &self.method {
                plan_text.write_line("[[mix.line.calls]]");
                plan_text.write_key("--method", "method", Some(quoted_name(method)));
                plan_text.write_key("--params", "params", text(&self.params));
            }
        }

        plan_text.write_line("\n[[scenario]]\nname = \"load\"");
        plan_text.write_key("--mix", "mix", Some(quoted(mix)));
        match &self.rate {
            Some(rate) => {
                let workers = self.concurrency.unwrap_or_else(|| default_workers(rate, steps));
                plan_text.write_key("-c", "workers_max", number(Some(workers)));
            }
            None => plan_text.write_line("model = \"closed\""),
        }
        plan_text.write_key(
            "-n",
            "iterations",
            number(self.count.map(|count| count.div_ceil(steps))),
        );
        plan_text.write_line("[[scenario.stages]]\nname = \"load\"");
        match &self.rate {
            // A value that is not a number is written as text, so that the reader reports it.
            Some(rate) if steps == 1 => {
                let number = rate.parse::<u64>().map(|number| number.to_string());
                plan_text.write_key("-r", "rate", Some(number.unwrap_or_else(|_| quoted(rate))));
            }
            Some(rate) => {
                plan_text.write_key("-r", "rate", Some(quoted(&format!("({rate}) / {steps}"))))
            }
            None => {
                plan_text.write_key("-c", "workers", number(self.concurrency.or(Some(CONNECTIONS))))
            }
        }
        let default = if self.count.is_some() { DURATION_WITH_COUNT } else { DURATION };
        let duration = self.duration.as_deref().unwrap_or(default);
        plan_text.write_key("-d", "duration", Some(quoted(duration)));
        self.write_thresholds(&mut plan_text)?;
        Ok(plan_text)
    }

    /// Writes the thresholds, with all expressions of a selector under one key.
    fn write_thresholds(&self, plan_text: &mut PlanText) -> Result<(), Diagnostics> {
        if self.threshold.is_empty() {
            return Ok(());
        }
        plan_text.write_line("\n[thresholds]");
        let mut by_selector: Vec<(&str, Vec<String>)> = Vec::new();
        for threshold in &self.threshold {
            let Some((selector, expression)) = split_threshold(threshold) else {
                let allowed = "METRIC EXPRESSION, such as \"latency{method:eth_call} p(99)<300\"";
                let mut report = Report::of_arguments();
                let value = Some(quoted(threshold));
                report.argument_error("--threshold", value, "has no expression", allowed);
                return Err(report.finish());
            };
            match by_selector.iter_mut().find(|(listed, _)| *listed == selector) {
                Some((_, expressions)) => expressions.push(quoted(expression)),
                None => by_selector.push((selector, vec![quoted(expression)])),
            }
        }
        for (selector, expressions) in by_selector {
            plan_text.write_key(
                "--threshold",
                &quoted(selector),
                list("[", expressions.into_iter(), "]"),
            );
        }
        Ok(())
    }
}

/// Splits a text such as `latency{method:eth_call} p(99)<300` into selector and expression, at the
/// first blank or colon after the selector. Returns `None` if one of the two is missing.
fn split_threshold(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let tags_end = text.find('}').map_or(0, |brace| brace + 1);
    let separator = tags_end + text[tags_end..].find([' ', ':'])?;
    let (selector, expression) = (text[..separator].trim(), text[separator + 1..].trim());
    (!selector.is_empty() && !expression.is_empty()).then_some((selector, expression))
}

/// Returns the default number of workers for a rate of requests per second. An invalid rate counts
/// as 0 here, because the reader of the plan reports it.
fn default_workers(rate: &str, steps: u64) -> u64 {
    let iteration_rate = formula::evaluate(rate, &[]).unwrap_or_default() / steps as f64;
    let workers =
        (iteration_rate * WORKERS_PER_RATE).clamp(CONNECTIONS as f64, DEFAULT_WORKERS_MAX);
    workers.ceil() as u64
}

/// Returns the items as a list in brackets, or `None` if there are no items.
fn list(open: &str, items: impl Iterator<Item = String>, close: &str) -> Option<String> {
    let items: Vec<_> = items.collect();
    (!items.is_empty()).then(|| format!("{open}{}{close}", items.join(", ")))
}

/// Quotes a text for TOML, on one line. JSON's quotes are valid in TOML, except that TOML also
/// requires an escape for DEL.
fn quoted(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    json.replace('\u{7f}', "\\u007F")
}

/// Quotes a text for TOML and escapes `${`, so that the reader does not replace a variable in it.
fn quoted_name(text: &str) -> String {
    quoted(&text.replace("${", "$${"))
}

/// The text of a plan. For each line with a key, it also has the option that sets the key.
#[derive(Default)]
struct PlanText {
    text: String,
    /// Numbers of lines, counted from 1, with their options.
    options: Vec<(usize, &'static str)>,
}

impl PlanText {
    fn write_line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Writes a line with a key that comes from this option. Writes nothing if `value` is `None`.
    fn write_key(&mut self, option: &'static str, key: &str, value: Option<String>) {
        if let Some(value) = value {
            self.options.push((self.text.matches('\n').count() + 1, option));
            self.write_line(&format!("{key} = {value}"));
        }
    }

    /// Replaces the keys and positions of the problems by the options that set the keys.
    fn name_options(&self, mut problems: Diagnostics) -> Diagnostics {
        problems.file = None;
        for problem in problems.list.iter_mut().filter(|problem| problem.file.is_none()) {
            let line = problem.position.take().map(|position| position.line);
            let option = self.options.iter().find(|(option_line, _)| Some(*option_line) == line);
            if let Some((_, option)) = option {
                (*option).clone_into(&mut problem.key);
            }
        }
        problems
    }
}

/// Parses the value of `--set`: `NAME=NUMBER`. The number may be a formula without variables.
///
/// # Errors
/// Describes the problem of the text.
pub fn parse_variable(text: &str) -> Result<(String, f64), String> {
    const FORM: &str = "a variable is set as NAME=NUMBER";
    let (name, value) = text.split_once('=').ok_or(FORM)?;
    <Name as Scalar>::parse(Input::String(name.trim())).map_err(|_| FORM)?;
    let value = formula::evaluate(value, &[]).map_err(|message| format!("{FORM}: {message}"))?;
    Ok((name.trim().to_owned(), value))
}

/// Parses a duration in the form of plans: a number and a unit, such as `30s`.
///
/// # Errors
/// Describes the problem of the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    settings::value::parse_duration(text)
}
