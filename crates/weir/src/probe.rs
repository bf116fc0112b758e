//! `weir probe`: a small load without end, with metrics for Prometheus. `lab::probe` does the work.
//! This file has the arguments, the terminal output and the exports of metrics.

use std::convert::Infallible;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use lab::analysis::calendar::rfc3339;
use lab::analysis::probe::{Event, ProbeState, Rules};
use lab::export::remote::{RemoteWrite, Settings};
use lab::export::scrape::Scrape;
use lab::export::{Labels, Names};
use lab::probe::{Options, ProbeTarget};
use lab::run::Stop;
use lab::wording::probe as wording;
use lab_model::plan;
use lab_model::plan::Plan;
use lab_model::plan::line::UrlOptions;
use wire::family::Family;

use crate::load::argument_error;
use crate::load::output::push_warnings;
use crate::serve::OptionalAddress;
use crate::stop;

/// Exit code after a second signal.
const EXIT_AT_ONCE: u8 = 1;
/// Maximum number of targets, each of which has a thread.
const TARGETS_MAX: usize = 100;
/// Minimum number of calls per second to a target.
const RATE_MIN: f64 = 0.001;
/// Maximum number of calls per second to a target. A probe must not load its targets.
const RATE_MAX: f64 = 10.0;

/// Observe nodes or gateways with a small load that never ends
///
/// Sends one call per second to each target, never more, and serves latency, errors, head and lag as
/// metrics for Prometheus. A line on standard error reports each change: a target failed or
/// recovered, or it lags or caught up. Lag is counted in blocks behind the highest head of all
/// targets with the same chain id.
///
/// Every other call asks for the head. The remaining calls are cheap reads of the target's family.
/// With --plan they are the calls of a load plan, whose rates and stages are ignored. A target may
/// be down at the start. docs/probe.md lists queries and alerts.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir probe http://127.0.0.1:8545
  weir probe http://127.0.0.1:8545 http://10.0.0.1:8545 --rate 0.5 --lag-max 3
  weir probe geth=http://127.0.0.1:8545 gateway=http://127.0.0.1:8645 --listen 127.0.0.1:9100
  weir probe http://127.0.0.1:8545 --remote-write http://127.0.0.1:9090/api/v1/write --listen off
  weir probe --plan plan.toml

Exit codes: 0 stopped by a signal; 1 an address is taken; 2 faulty arguments.")]
pub(crate) struct Probe {
    /// URL of a target (http://, https://, ws:// or wss://), after an optional name and =; may be repeated
    #[arg(value_name = "[NAME=]URL", required_unless_present = "plan")]
    targets: Vec<String>,

    /// Send the calls of this load plan, to its target if there is no other
    #[arg(long, value_name = "PLAN.TOML", conflicts_with_all = ["family", "header"])]
    plan: Option<String>,

    /// Send at most this many calls per second to each target, from 0.001 to 10
    #[arg(short = 'r', long, value_name = "PER SECOND", default_value_t = 1.0, value_parser = parse_rate)]
    rate: f64,

    /// Set the timeout of a call
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_timeout)]
    timeout: Duration,

    /// Report a target as failed, or as recovered, after this many calls in a row
    #[arg(long, value_name = "CALLS", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    after: u32,

    /// Report a target that lags more blocks than this
    #[arg(long, value_name = "BLOCKS", default_value_t = 10)]
    lag_max: u64,

    /// Set the family of methods: ethereum, harmony or bitcoin [default: detected]
    #[arg(long, value_name = "FAMILY")]
    family: Option<Family>,

    /// Add a request header; may be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    header: Vec<String>,

    /// Skip the check of the targets' certificates
    #[arg(long)]
    insecure: bool,

    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
#[command(next_help_heading = "Metrics")]
struct Output {
    /// Serve /metrics at this address; port 0 picks a free one, off serves nothing
    #[arg(long, value_name = "IP:PORT|off", default_value = "127.0.0.1:8647")]
    listen: OptionalAddress,

    /// Push the metrics to this URL too, by Prometheus remote write
    #[arg(long, value_name = "URL")]
    remote_write: Option<String>,

    /// Label for all metrics; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    metric_label: Vec<String>,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (RATE_MIN..=RATE_MAX).contains(rate));
    rate.ok_or_else(|| {
        format!("a rate is a number from {RATE_MIN} to {RATE_MAX}; weir load makes more load")
    })
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = plan::line::parse_duration(text)?;
    let allowed = Duration::from_millis(10)..=Duration::from_secs(60);
    match allowed.contains(&timeout) {
        true => Ok(timeout),
        false => Err("a timeout is 10ms to 60s long".to_owned()),
    }
}

impl Probe {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let targets = match self.build_targets() {
            Ok(targets) => targets,
            Err(fault) => return Ok(argument_error(&fault)),
        };
        let rules = Rules { calls_in_a_row: self.after, lag_max: self.lag_max };
        let options = Options { rate: self.rate, timeout: self.timeout, rules };
        let stop = Arc::new(Stop::new());
        let mut sinks = self.output.start()?;
        let message = match sinks.push {
            Some(_) => "stopping; the last metrics are pushed",
            None => "stopping",
        };
        let stop_on_signal = Arc::clone(&stop);
        stop::on_signals(EXIT_AT_ONCE, message, move || stop_on_signal.request(), || {})?;
        lab::probe::run(targets, &options, &stop, &mut |state, events| {
            sinks.update(state, events);
        })?;
        sinks.finish();
        Ok(ExitCode::SUCCESS)
    }

    /// Builds the targets. Fails if two targets have the same name.
    fn build_targets(&self) -> Result<Vec<ProbeTarget>, String> {
        let targets = match &self.plan {
            Some(plan) => self.build_targets_of_plan(plan)?,
            None => self.build_targets_of_urls()?,
        };
        if targets.len() > TARGETS_MAX {
            return Err(format!("{} targets are too many; at most {TARGETS_MAX}", targets.len()));
        }
        let mut names: Vec<&str> = targets.iter().map(|target| &*target.name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                Err(format!("two targets have the name {}; set other names with NAME=URL", pair[0]))
            }
            None => Ok(targets),
        }
    }

    fn build_targets_of_urls(&self) -> Result<Vec<ProbeTarget>, String> {
        let options = UrlOptions {
            family: self.family,
            header: self.header.clone(),
            timeout: Some(settings::value::format_duration(self.timeout)),
            insecure: self.insecure,
            ..UrlOptions::default()
        };
        let build_target = |text: &String| {
            let (name, url) = split_name(text);
            // A target may be down at the start. So `None` leaves the detection of its family to
            // `lab::probe`.
            let Ok(plan) = options.plan(url, |_, _| Ok::<_, Infallible>(None));
            let plan = plan.map_err(|faults| faults.to_string())?;
            let default_calls = true;
            Ok::<_, String>(create_target(name, plan, default_calls))
        };
        self.targets.iter().map(build_target).collect()
    }

    fn build_targets_of_plan(&self, file: &str) -> Result<Vec<ProbeTarget>, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read the plan {file}: {error}"))?;
        let mut plan = plan::read(&text, file, &[]).map_err(|faults| faults.to_string())?;
        plan.connections.tls.insecure |= self.insecure;
        let default_calls = false;
        if self.targets.is_empty() {
            return Ok(vec![create_target(None, plan, default_calls)]);
        }
        let build_target = |text: &String| {
            let (name, url) = split_name(text);
            let mut plan = plan.clone();
            plan.point_at(url).map_err(|fault| format!("a target of the probe: {fault}"))?;
            Ok::<_, String>(create_target(name, plan, default_calls))
        };
        self.targets.iter().map(build_target).collect()
    }
}

/// Splits `NAME=URL`. A URL may contain = itself.
fn split_name(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((name, url)) if !name.contains("://") && !name.is_empty() => (Some(name), url),
        _ => (None, text),
    }
}

/// Creates a target. Its default name is its URL with masked secrets. `default_calls` is true if
/// the probe sends its default calls instead of the plan's.
fn create_target(name: Option<&str>, plan: Plan, default_calls: bool) -> ProbeTarget {
    let name = name.map_or_else(|| plan.target.url.to_string(), str::to_owned);
    ProbeTarget { name, plan, default_calls }
}

impl Output {
    fn start(&self) -> Result<Sinks> {
        let labels = Labels::parse(&self.metric_label)?;
        let push = self
            .remote_write
            .as_ref()
            .map(|url| Settings { labels: labels.clone(), ..Settings::new(url) });
        let push = push.as_ref().map(RemoteWrite::start).transpose()?;
        let scrape = match self.listen {
            OptionalAddress::Off => None,
            OptionalAddress::Listen(address) => Some(Scrape::listen(address, Names::Weir, labels)?),
        };
        if let Some(scrape) = &scrape {
            println!("weir probe listens on http://{}/metrics", scrape.address());
        }
        Ok(Sinks { scrape, push, push_failed: false })
    }
}

/// Receivers of the state: the terminal, the address for scrapes and remote write.
struct Sinks {
    scrape: Option<Scrape>,
    push: Option<RemoteWrite>,
    /// True if the last attempt to push failed.
    push_failed: bool,
}

impl Sinks {
    /// Prints the events as lines, and passes the state to the exports of metrics.
    fn update(&mut self, state: &ProbeState, events: &[Event]) {
        for event in events {
            let target = &state.targets[event.target];
            print_change(&format!("{} {}", target.name, wording::change(&event.change)));
        }
        if let Some(scrape) = &self.scrape {
            scrape.update_probe(state);
        }
        let Some(push) = &mut self.push else { return };
        push.update_probe(state, state.elapsed, !events.is_empty());
        match push.error() {
            Some(error) if !self.push_failed => {
                print_change(&format!("remote write failed: {error}"));
            }
            None if self.push_failed => print_change("remote write recovered"),
            Some(_) | None => {}
        }
        self.push_failed = push.error().is_some();
    }

    /// Stops listening, ends all pushed series, and waits for the last pushes.
    fn finish(self) {
        self.scrape.into_iter().for_each(Scrape::finish);
        let warnings = self.push.map(|push| push_warnings(push.finish()));
        warnings.iter().flatten().for_each(|warning| eprintln!("{warning}"));
    }
}

/// Prints a line with the time.
fn print_change(text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    eprintln!("{} {text}", rfc3339(now.as_secs_f64()));
}
