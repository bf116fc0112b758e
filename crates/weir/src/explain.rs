//! `weir explain`: prints how the gateway would serve a call, without serving it.
//!
//! `gateway::explain` runs the steps of serving and records their decisions. The decisions depend on
//! a *view* of the chain: its head and its finalized block. The command assumes a view. It calls no
//! upstream, so it does not know the health of the upstreams. This file prints the decisions, and
//! `explain/describe.rs` has the wording.

use std::fmt::Write as _;
use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use gateway::config::Config;
use gateway::config::chain::Chain;
use gateway::config::group::Group;
use gateway::explain::{CallExplanation, Explainer, Resolution};
use gateway::policy::access::{is_own_filter_method, is_subscription_method};
use gateway::policy::cacheable::CacheRule;
use gateway::policy::heads::ChainView;
use gateway::policy::logs::plan_filter;
use gateway::policy::plan::{Lookup, Plan};
use wire::call::{Call, Limits};
use wire::filter::LogFilter;
use wire::key::{KeyParts, ResolvedBlock, write_key};
use wire::method::{History, Method, methods_of};

use crate::exit_code::EXIT_FAULTY;
use crate::source;
use crate::source::ConfigSource;

mod describe;

/// Explain how the gateway would serve a call
///
/// Prints the limits, rules, chain and group of the call, the upstreams in order, whether the
/// response is cached, its cache key and the block that it is bound to, whether the call may be
/// repeated, and its cost. The command runs the code of serving, as a gateway that has just started,
/// up to the cache. No upstream is called, so tags such as latest stand for an assumed head
/// (--head).
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir explain examples/archive.toml eth_blockNumber
  weir explain examples/archive.toml '{\"method\":\"trace_block\",\"params\":[\"0x10\"]}'
  weir explain examples/harmony.toml '{\"method\":\"hmyv2_blockNumber\"}' --path /harmony
  weir explain '{\"method\":\"eth_gasPrice\"}' --upstream http://127.0.0.1:8545
  PROVIDER_KEY=secret weir explain examples/backup.toml \\
    '[{\"method\":\"eth_chainId\"},{\"method\":\"eth_sendRawTransaction\"}]'

Exit codes: 0 explained; 2 faulty configuration, the text is not a call, or the gateway refuses the
client.")]
pub(crate) struct Explain {
    /// Configuration file and call; only the call with --upstream
    #[arg(value_names = ["GATEWAY.TOML", "CALL"], num_args = 1..=2, required = true)]
    words: Vec<String>,

    /// URL of an upstream, instead of a file; may be repeated
    #[arg(long, value_name = "URL")]
    upstream: Vec<String>,

    /// Path of the request's URL
    #[arg(long, default_value = "/")]
    path: String,

    /// Name of the client's API key
    #[arg(long, value_name = "NAME")]
    key: Option<String>,

    /// Address of the client
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    client: std::net::IpAddr,

    /// Host header of the request
    #[arg(long, value_name = "HOST", default_value = "localhost")]
    host: String,

    /// Header of the request; may be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,

    /// Block number of latest; the finalized block follows from the chain's finality_depth
    #[arg(long, value_name = "N", default_value_t = 20_000_000)]
    head: u64,
}

impl Explain {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (source, text) = match (self.words.as_slice(), self.upstream.is_empty()) {
            ([file, call], true) => (ConfigSource::of_file(file), call),
            ([call], false) => (ConfigSource::of_upstreams(&self.upstream), call),
            ([_], true) => {
                return Ok(argument_error("a configuration file or --upstream is needed"));
            }
            _ => return Ok(argument_error("either a configuration file or --upstream, not both")),
        };
        let config = match source.read() {
            Ok(config) => config,
            Err(faults) => {
                eprint!("{faults}");
                return Ok(ExitCode::from(EXIT_FAULTY));
            }
        };
        let text = read_call(text, &config.call_limits)?;
        let key = match self.key.as_ref().map(|name| (name, find_key(&config, name))) {
            Some((name, None)) => return Ok(argument_error(&format!("there is no key {name}"))),
            key => key.and_then(|(_, index)| index),
        };
        let explainer = Explainer::new(config.clone(), self.head);
        let headers: String = self.header.iter().map(|line| format!("{line}\r\n")).collect();
        let (path, host) = (&self.path, &self.host);
        let head = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
        let explanation = explainer.explain(self.client, key, &head, &text);
        match explanation.as_deref() {
            Err(refusal) => {
                let (status, message) = (refusal.status, &refusal.message);
                println!("refused   the gateway responds {status}: {message}");
                Ok(ExitCode::from(EXIT_FAULTY))
            }
            Ok([CallExplanation { call: None, decision: Err(refusal), .. }]) => {
                Ok(argument_error(&describe::refusal(refusal)))
            }
            Ok(calls) => Ok(print(&config, &explainer, calls)),
        }
    }
}

/// Returns the index of the API key with this name; `None` if there is none.
fn find_key(config: &Config, name: &str) -> Option<usize> {
    config.access.keys.iter().position(|key| *key.grant.name == *name)
}

fn argument_error(message: &str) -> ExitCode {
    eprintln!("weir explain: {message}");
    ExitCode::from(EXIT_FAULTY)
}

/// Returns the text of the call: `text` itself, a call of the method that `text` names, or standard
/// input if `text` is `-`.
fn read_call(text: &str, limits: &Limits) -> Result<Vec<u8>> {
    if text != "-" {
        let is_name = |c: char| c.is_ascii_alphanumeric() || ['_', '-', '.', '/'].contains(&c);
        let call = if !text.is_empty() && text.chars().all(is_name) {
            format!("{{\"method\":\"{text}\"}}")
        } else {
            text.to_owned()
        };
        return Ok(call.into_bytes());
    }
    let mut body = Vec::new();
    // The read limit is one byte above the body limit. So the decoder sees and rejects a body that
    // is too long.
    let bytes_max = limits.body_bytes_max as u64 + 1;
    let mut input = std::io::stdin().take(bytes_max);
    input.read_to_end(&mut body).context("cannot read standard input")?;
    Ok(body)
}

/// Prints the explanation of each call. Returns exit code 2 if a call cannot be decoded.
fn print(config: &Config, explainer: &Explainer, calls: &[CallExplanation<'_>]) -> ExitCode {
    for (index, explanation) in calls.iter().enumerate() {
        if calls.len() > 1 {
            let gap = if index > 0 { "\n" } else { "" };
            println!("{gap}call {} of {}", index + 1, calls.len());
        }
        print!("{}", describe_call(config, explainer, explanation));
    }
    let has_rejection = calls.iter().any(|explanation| explanation.call.is_none());
    if has_rejection { ExitCode::from(EXIT_FAULTY) } else { ExitCode::SUCCESS }
}

/// Describes the decisions about a call, in the order of the gateway's steps.
fn describe_call(
    config: &Config,
    explainer: &Explainer,
    explanation: &CallExplanation<'_>,
) -> String {
    let mut lines = Lines::default();
    for applied in &explanation.steps.limits {
        let limit = &config.limits[applied.index];
        lines.add("limited", &describe::limit(applied, limit, &config.zones[limit.zone]));
    }
    if let Some(delay) = explanation.steps.delay {
        lines.add("delayed", &format!("by {delay:?}"));
    }
    for rule in &explanation.steps.rules {
        lines.add("rule", &describe::rule(&config.rules[*rule]));
    }
    let chain = &config.chains[explanation.chain];
    if let Some(call) = &explanation.call {
        let family = chain.family.as_str();
        let unknown_note = if method_of(chain, call).is_some() { "" } else { ", method unknown" };
        lines.add("method", &format!("{} (family {family}{unknown_note})", call.method));
        lines.add("chain", &chain.name);
    }
    match (&explanation.call, &explanation.decision) {
        (_, Err(refusal)) => lines.add("refused", &describe::refusal(refusal)),
        (Some(call), Ok(resolution)) => {
            let view = &*explainer.view(explanation.chain);
            let chain = explanation.chain;
            Served { config, call, chain, resolution, view }.describe(&mut lines);
        }
        (None, Ok(_)) => {}
    }
    lines.text
}

/// Returns the row of the call's method in the method table; `None` for an unknown method.
fn method_of(chain: &Chain, call: &Call<'_>) -> Option<&'static Method> {
    methods_of(chain.family).method(&call.method)
}

/// A call that is not refused.
struct Served<'a> {
    config: &'a Config,
    call: &'a Call<'a>,
    /// Index of the chain that serves the call.
    chain: usize,
    resolution: &'a Resolution,
    /// The assumed state of the chain.
    view: &'a ChainView,
}

impl Served<'_> {
    /// Describes how the call is served.
    fn describe(&self, lines: &mut Lines) {
        let Served { config, call, resolution, .. } = *self;
        if resolution.is_sticky && is_subscription_method(&call.method) {
            lines.add("served", describe::SUBSCRIPTION);
            return;
        }
        if is_own_filter_method(config.chains[self.chain].family, &call.method) {
            lines.add("served", describe::FILTER);
        }
        let group = &config.groups[resolution.group];
        lines.add("group", &describe::group(group));
        for line in describe_upstreams(config, group) {
            lines.add("upstreams", &line);
        }
        match method_of(&config.chains[self.chain], call) {
            None => {
                lines.add("cached", describe::UNKNOWN_METHOD);
                lines.add("repeated", describe::REPEAT_IF_UNSENT);
            }
            Some(method) => self.describe_plan(method, group, lines),
        }
        if let Some(class) = resolution.class {
            lines.add("class", describe::class(class));
        }
        lines.add("deadline", &describe::deadline(group));
    }

    /// Describes caching, coalescing and repetition of a call of a known method. The plan
    /// (`gateway::policy::plan`) is the gateway's decision about how to find the response.
    fn describe_plan(&self, method: &'static Method, group: &Group, lines: &mut Lines) {
        let cache = &self.config.cache;
        match &self.resolution.plan {
            Plan::Logs(_) => {
                for line in self.describe_logs() {
                    lines.add("cached", &line);
                }
                let is_logs = true;
                if cache.enabled
                    && let Some(tiers) = self.describe_tiers(is_logs)
                {
                    lines.add("tiers", &tiers);
                }
                let method_coalesces = true;
                let coalescing = describe::coalescing(cache.coalesce, method_coalesces, cache);
                lines.add("coalesced", coalescing);
            }
            Plan::Head(_) => {
                self.add_block(method, lines);
                lines.add("response", "the gateway itself returns the number of the head");
                lines.add("cached", "not needed");
            }
            Plan::Lookup(lookup) => self.describe_lookup(lookup, lines),
            // This variant is for unknown methods only.
            Plan::Forward => {}
        }
        lines.add("repeated", describe::repeat(method.repeat, group));
        lines.add("weight", &method.weight.to_string());
    }

    /// Describes how the response to a log filter is cached.
    fn describe_logs(&self) -> Vec<String> {
        let cache = &self.config.cache;
        match LogFilter::from_params(&self.call.params) {
            Err(reason) => vec![format!("no: the filter is forwarded unchanged: {reason}")],
            Ok(_) if !cache.enabled => vec![describe::CACHE_OFF.to_owned()],
            Ok(filter) => {
                let (chunk, parts_max) = (cache.logs_chunk_blocks, cache.logs_parts_max);
                describe::logs(&plan_filter(&filter, self.view, chunk, parts_max))
            }
        }
    }

    /// Adds the block that the call names, if its method has a block parameter.
    fn add_block(&self, method: &'static Method, lines: &mut Lines) {
        if let Some(parameter) = method.block {
            let block =
                method.block_ref(&self.call.params).map(|block| block.map(|(block, _)| block));
            lines.add("block", &describe::block(parameter, block, self.view));
        }
    }

    /// Describes a call whose response is looked up in the cache.
    fn describe_lookup(&self, lookup: &Lookup, lines: &mut Lines) {
        let method = lookup.method;
        self.add_block(method, lines);
        let (caching, cache) = (&lookup.caching, &self.config.cache);
        if let Some(number) = caching.resolved_height {
            lines.add("sent", &format!("with the number {number} in place of the tag"));
        }
        if caching.min_head > 0 {
            let height = caching.min_head;
            lines.add("sent to", &format!("upstreams whose head is at {height} or above"));
        }
        if let (Some(history), Some(oldest)) = (method.history, caching.oldest) {
            let data = match history {
                History::Blocks => "data",
                history => history.as_str(),
            };
            let text = format!("upstreams that have the {data} of block {oldest}, if any has");
            lines.add("sent to", &text);
        }
        lines.add("cached", &describe::caching(lookup, cache, self.view));
        let is_coalesced = lookup.coalesce && lookup.block.is_ok();
        lines.add("coalesced", describe::coalescing(is_coalesced, method.coalesces(), cache));
        let is_logs = false;
        if caching.rule != CacheRule::Never
            && let Some(tiers) = self.describe_tiers(is_logs)
        {
            lines.add("tiers", &tiers);
        }
        if caching.rule != CacheRule::Never || is_coalesced {
            self.add_key(method, caching.resolved_height, lines);
        }
    }

    /// Lists the tiers of the cache in the order of lookups, or returns `None` if memory is the
    /// only tier. A lookup of logs begins with the index; other lookups end with the index.
    fn describe_tiers(&self, is_logs: bool) -> Option<String> {
        let (memory, redis) = (Some("memory".to_owned()), self.redis_tier());
        let index = self.index_tier();
        let tiers = if is_logs { [index, memory, redis] } else { [memory, redis, index] };
        let tiers: Vec<String> = tiers.into_iter().flatten().collect();
        (tiers.len() > 1).then(|| tiers.join(", then "))
    }

    fn redis_tier(&self) -> Option<String> {
        let redis = self.config.redis.as_ref().filter(|redis| redis.responses)?;
        Some(format!("Redis {}", redis.url))
    }

    fn index_tier(&self) -> Option<String> {
        let index = self.config.index.as_ref().filter(|index| index.chain == self.chain)?;
        Some(format!("the index {}", index.db))
    }

    /// Adds the cache key of the call.
    fn add_key(&self, method: &'static Method, resolved_height: Option<u64>, lines: &mut Lines) {
        let chain = &self.config.chains[self.chain];
        let block = resolved_height.map(ResolvedBlock::Number);
        let parts = KeyParts { chain: &chain.name, method, params: &self.call.params, block };
        let mut key = Vec::new();
        match write_key(&mut key, &parts) {
            Ok(()) => {
                lines.add("key", &describe::key(&parts));
                lines.add("key", &describe::hex(&key));
            }
            Err(reason) => {
                lines.add("key", &format!("none, so neither cached nor coalesced: {reason}"));
            }
        }
    }
}

/// Describes the upstreams of a group: the primary ones, then the backups.
fn describe_upstreams(config: &Config, group: &Group) -> Vec<String> {
    let (mut primary, mut backup) = (Vec::new(), Vec::new());
    for upstream in &group.upstreams {
        let upstream = &config.upstreams[*upstream];
        let list = if upstream.backup { &mut backup } else { &mut primary };
        list.push(source::describe_upstream(upstream));
    }
    let balance = source::describe_balance(group);
    let primary_count = primary.len();
    let mut lines = vec![match primary_count + backup.len() {
        1 => "one".to_owned(),
        _ => format!("chosen: {balance}"),
    }];
    let numbered = primary.into_iter().chain(backup).enumerate();
    lines.extend(numbered.map(|(index, upstream)| format!("{}. {upstream}", index + 1)));
    if primary_count > 0 && group.upstreams.len() > primary_count {
        lines.push("backups only while no other upstream is usable".to_owned());
    }
    if group.upstreams.len() > 1 {
        let order = "the order is the file's; at run time health, head and load decide";
        lines.push(order.to_owned());
    }
    lines
}

/// Lines with a heading in the first column. Successive lines with the same heading show it once.
#[derive(Default)]
struct Lines {
    text: String,
    /// Heading of the last line.
    heading: &'static str,
}

impl Lines {
    fn add(&mut self, heading: &'static str, text: &str) {
        let column = if self.heading == heading { "" } else { heading };
        self.heading = heading;
        let _ = writeln!(self.text, "{column:<9} {text}");
    }
}
