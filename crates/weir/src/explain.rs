//! `weir explain`: what the gateway would do with a call, without doing it.
//!
//! It asks the same tables and rules as the serving path (`wire`, `gateway::rules`), under a
//! made-up head. The wording is `explain/words.rs`. No upstream is asked, so it cannot say which
//! upstream is well.

use std::fmt::Write as _;
use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use gateway::config::Config;
use gateway::config::group::Group;
use gateway::policy::access::{
    Denial, Grant, MethodCase, is_own_filter, is_subscription, may_call, may_use,
};
use gateway::policy::cacheable::CacheRule;
use gateway::policy::direct;
use gateway::policy::direct::{CallFacts, Facts, RouteDecision, RoutingResult, caller_hash};
use gateway::policy::heads::{ChainView, Head};
use gateway::policy::logs::plan_filter;
use gateway::policy::plan::{Lookup, Plan, Switches, plan};
use gateway::policy::route::Router;

use wire::call::{Body, Call, Limits, Rejection, decode};
use wire::effect::effect_of;
use wire::filter::LogFilter;
use wire::key::{KeyParts, ResolvedBlock, write_key};
use wire::method::{Method, methods_of};

use crate::source::Source;
use crate::{FAULTY, source};

mod words;

/// Explain how the gateway would serve a call
///
/// Prints the chain and group, the upstreams in order, whether and under which key the response is
/// cached and which block it is bound to, whether the call may be repeated, and its cost. A running
/// gateway decides by the same code. No upstream is called, so tags such as latest stand for an
/// assumed head (--head).
#[derive(Args)]
#[command(after_long_help = "\
Examples:
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
            ([file, call], true) => (Source::of_file(file), call),
            ([call], false) => (Source::of_upstreams(&self.upstream), call),
            ([_], true) => return Ok(refused("a configuration file or --upstream is needed")),
            _ => return Ok(refused("either a configuration file or --upstream, not both")),
        };
        let config = match source.read() {
            Ok(config) => config,
            Err(faults) => {
                eprint!("{faults}");
                return Ok(ExitCode::from(FAULTY));
            }
        };
        let text = read_call(text, &config.call_limits)?;
        let router = config.router();
        let sender = match Sender::new(&self, &config) {
            Ok(sender) => sender,
            Err(why) => return Ok(refused(&why)),
        };
        let path = sender.directed(&config, &router, None).path;
        let Some(chain) = router.chain(&self.path).or_else(|| router.chain(&path)) else {
            return Ok(refused(&format!("no chain is at the path {}", self.path)));
        };
        if let Some(why) = sender.refused(&config, chain) {
            println!("refused   {why}");
            return Ok(ExitCode::from(FAULTY));
        }
        let view = view(&config, chain, self.head);
        let (head, sender) = (self.head, &sender);
        let (config, router) = (&config, &router);
        let case = Case { config, router, sender, head, url_chain: chain, chain, view };
        match decode(&text, &config.call_limits) {
            Err(refusal) => Ok(refused(&words::refusal(&refusal))),
            Ok(Body::Single(item)) => Ok(case.print(&[item])),
            Ok(Body::Batch(items)) => Ok(case.print(&items)),
        }
    }
}

fn refused(message: &str) -> ExitCode {
    eprintln!("weir explain: {message}");
    ExitCode::from(FAULTY)
}

/// The call's text; `-` takes it from standard input.
fn read_call(text: &str, limits: &Limits) -> Result<Vec<u8>> {
    if text != "-" {
        return Ok(text.as_bytes().to_vec());
    }
    let mut body = Vec::new();
    // One byte more than allowed, so that too long a body is refused as such.
    let bytes_max = limits.body_bytes_max as u64 + 1;
    let mut input = std::io::stdin().take(bytes_max);
    input.read_to_end(&mut body).context("cannot read standard input")?;
    Ok(body)
}

/// What is assumed of the chain: a head, and what is final at the chain's usual distance.
fn view(config: &Config, chain: usize, head: u64) -> ChainView {
    let mut view = ChainView::default();
    view.head = Some(Head { number: head, hash: [0; 32] });
    view.finalized = Some(head.saturating_sub(config.chains[chain].finality_depth));
    view.finalized_by_upstreams = true;
    view
}

/// Under which circumstances calls are explained.
struct Case<'a> {
    config: &'a Config,
    router: &'a Router,
    sender: &'a Sender<'a>,
    /// Height of the made-up head.
    head: u64,
    /// The chain of the path, whose limits a call is charged to.
    url_chain: usize,
    chain: usize,
    view: ChainView,
}

/// Who sends the calls, and with what.
struct Sender<'a> {
    grant: Option<&'a Grant>,
    address: std::net::IpAddr,
    host: &'a str,
    path: &'a str,
    /// By place among those that the configuration keeps.
    headers: Vec<Option<Box<[u8]>>>,
}

impl<'a> Sender<'a> {
    fn new(explain: &'a Explain, config: &'a Config) -> Result<Sender<'a>, String> {
        let grant = match &explain.key {
            None => None,
            Some(name) => {
                let found = config.access.keys.iter().find(|key| *key.grant.name == **name);
                Some(&*found.ok_or_else(|| format!("there is no key {name}"))?.grant)
            }
        };
        let mut headers = vec![None; config.kept_headers.len()];
        for header in &explain.header {
            let split = header.split_once(':');
            let (name, value) = split.ok_or_else(|| format!("{header} is not NAME: VALUE"))?;
            let mut kept = config.kept_headers.iter();
            let place = kept.position(|kept| kept.eq_ignore_ascii_case(name.trim()));
            if let Some(place) = place {
                headers[place] = Some(value.trim().as_bytes().into());
            }
        }
        let (host, path) = (&*explain.host, &*explain.path);
        Ok(Sender { grant, address: explain.client, host, path, headers })
    }

    /// Where the rules direct a call; without one, where they direct the path.
    fn directed<'b>(
        &'b self,
        config: &Config,
        router: &Router,
        call: Option<CallFacts<'b>>,
    ) -> RoutingResult<'b> {
        let facts = Facts {
            host: self.host,
            path: self.path,
            headers: &self.headers,
            key: self.grant.map(|grant| &*grant.name),
            tier: self.grant.and_then(|grant| grant.tier.as_deref()),
            client: caller_hash(self.grant.map(|grant| &*grant.name), self.address),
            call,
        };
        direct::apply_rules(&config.rules, &facts, |path| router.chain(path))
    }

    /// Why the whole request is refused, if it is.
    fn refused(&self, config: &Config, chain: usize) -> Option<String> {
        let access = &config.access;
        let now = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.map_or(0, |since| since.as_secs())
        };
        if !access.clients.admit(self.address) {
            return Some(words::denial(Denial::Address));
        }
        match self.grant {
            None if access.required => Some(words::denial(Denial::NoKey)),
            None => None,
            Some(grant) => match may_use(grant, self.address, now) {
                Err(why) => Some(words::denial(why)),
                Ok(()) if !grant.leads_to(chain) => Some(words::denial(Denial::Chain)),
                Ok(()) => None,
            },
        }
    }
}

impl Case<'_> {
    /// Prints what becomes of each call; a call that is refused makes the exit code 2.
    fn print(&self, items: &[Result<Call<'_>, Rejection<'_>>]) -> ExitCode {
        let mut refused = false;
        for (at, item) in items.iter().enumerate() {
            if items.len() > 1 {
                println!("{}call {} of {}", if at > 0 { "\n" } else { "" }, at + 1, items.len());
            }
            match item {
                Ok(call) => print!("{}", self.explained(call)),
                Err(refusal) => {
                    refused = true;
                    println!("refused   {}", words::refusal(refusal));
                }
            }
        }
        if refused { ExitCode::from(FAULTY) } else { ExitCode::SUCCESS }
    }

    fn explained(&self, call: &Call<'_>) -> String {
        let mut lines = Lines::default();
        let params = call.params.raw().unwrap_or(b"");
        let facts = CallFacts { method: &call.method, params };
        let directed = self.sender.directed(self.config, self.router, Some(facts));
        for place in &directed.matched {
            lines.add("rule", &words::rule(&self.config.rules[*place]));
        }
        match (self.router.chain(&directed.path), directed.decision) {
            (_, RouteDecision::Deny(_)) => lines.text,
            (None, _) => {
                lines.add("refused", &format!("no chain is at the path {}", directed.path));
                lines.text
            }
            (Some(chain), end) if chain != self.chain => {
                let view = view(self.config, chain, self.head);
                Case { chain, view, ..*self }.served(call, end, lines)
            }
            (Some(_), end) => self.served(call, end, lines),
        }
    }

    /// What becomes of a call that no rule refuses.
    fn served(&self, call: &Call<'_>, end: RouteDecision, mut lines: Lines) -> String {
        let chain = &self.config.chains[self.chain];
        let group = match end {
            RouteDecision::Group(group) => group,
            _ => self.router.group(self.chain, &call.method),
        };
        let group = &self.config.groups[group];
        let method = methods_of(chain.family).method(&call.method);
        let known = if method.is_some() { "" } else { ", unknown to it" };
        lines.add("method", &format!("{} (family {}{known})", call.method, chain.family.as_str()));
        lines.add("chain", &chain.name);
        for line in self.limits(&call.method) {
            lines.add("limited", &line);
        }
        let case = MethodCase {
            method: &call.method,
            reach: effect_of(chain.family, &call.method),
            policy: &self.config.access.policy,
            chain: &chain.methods,
            group_deny: &group.methods_deny,
            grant: self.sender.grant,
        };
        if let Err(why) = may_call(&case) {
            lines.add("refused", &words::denial(why));
            return lines.text;
        }
        if is_subscription(&call.method) {
            lines.add("answered", words::SUBSCRIPTION);
            return lines.text;
        }
        if is_own_filter(chain.family, &call.method) {
            lines.add("answered", words::FILTER);
        }
        lines.add("group", &words::group(group));
        for line in upstreams(self.config, group) {
            lines.add("upstreams", &line);
        }
        match method {
            None => {
                lines.add("cached", words::UNKNOWN);
                lines.add("repeated", words::UNKNOWN_REPEAT);
            }
            Some(method) => self.decided(call, method, group, &mut lines),
        }
        if let Some(overload) = &self.config.overload {
            let tier = self.sender.grant.and_then(|grant| grant.tier.as_deref());
            let weight = method.map_or(1, |method| method.weight);
            let class = overload.priorities.class(tier, weight);
            lines.add("class", words::class(class));
        }
        lines.add("deadline", &words::deadline(group));
        lines.text
    }

    /// The limits that apply to a call of this method, in their order. A call is charged before the
    /// rules direct it, so to the limits of the chain in its URL.
    fn limits(&self, name: &str) -> Vec<String> {
        let family = methods_of(self.config.chains[self.url_chain].family);
        let method = family.method(name).or_else(|| family.method_ignoring_case(name));
        let mut zones = Vec::new();
        let mut lines = Vec::new();
        for limit in &self.config.limits {
            let fits = limit.chain.is_none_or(|chain| chain == self.url_chain)
                && gateway::policy::limit::fits(&limit.methods, name);
            // Limits in dry run are judged apart from the others.
            if fits && !zones.contains(&(limit.zone, limit.dry_run)) {
                zones.push((limit.zone, limit.dry_run));
                lines.push(words::limit(
                    limit,
                    &self.config.zones[limit.zone],
                    method,
                    self.sender.grant,
                ));
            }
        }
        lines
    }

    fn decided(&self, call: &Call<'_>, method: &'static Method, group: &Group, lines: &mut Lines) {
        let cache = &self.config.cache;
        let on = Switches { cache: cache.enabled, coalesce: cache.coalesce };
        match plan(Some(method), &call.params, &self.view, on) {
            Plan::Logs(_) => {
                for line in self.logs(call) {
                    lines.add("cached", &line);
                }
                if cache.enabled
                    && let Some(tiers) = self.tiers_of_logs()
                {
                    lines.add("tiers", &tiers);
                }
                lines.add("joined", words::joined(cache.coalesce, true, cache));
            }
            Plan::Head(_) => {
                self.block(call, method, lines);
                lines.add("answer", "the gateway itself gives the number of the head");
                lines.add("cached", "not needed");
            }
            Plan::Lookup(lookup) => self.looked_up(call, &lookup, lines),
            Plan::Forward => {}
        }
        lines.add("repeated", words::repeat(method.repeat, group));
        lines.add("weight", &method.weight.to_string());
    }

    /// What becomes of a log filter.
    fn logs(&self, call: &Call<'_>) -> Vec<String> {
        let cache = &self.config.cache;
        match LogFilter::from_params(&call.params) {
            Err(why) => vec![format!("no: the filter is passed on as it is: {why}")],
            Ok(_) if !cache.enabled => vec![words::CACHE_OFF.to_owned()],
            Ok(filter) => {
                let (chunk, parts_max) = (cache.logs_chunk_blocks, cache.logs_parts_max);
                words::logs(&plan_filter(&filter, &self.view, chunk, parts_max))
            }
        }
    }

    fn block(&self, call: &Call<'_>, method: &'static Method, lines: &mut Lines) {
        if let Some(at) = method.block {
            let block = method.block_ref(&call.params).map(|found| found.map(|(block, _)| block));
            lines.add("block", &words::block(at, block, &self.view));
        }
    }

    fn looked_up(&self, call: &Call<'_>, lookup: &Lookup, lines: &mut Lines) {
        let method = lookup.method;
        self.block(call, method, lines);
        let (caching, cache) = (&lookup.caching, &self.config.cache);
        if let Some(number) = caching.resolved {
            lines.add("sent", &format!("with the number {number} in place of the tag"));
        }
        if caching.min_head > 0 {
            let height = caching.min_head;
            lines.add("asked", &format!("only upstreams whose head is at {height} or above"));
        }
        lines.add("cached", &words::cached(lookup, cache, &self.view));
        let joined = lookup.coalesce && lookup.block.is_ok();
        lines.add("joined", words::joined(joined, method.coalesce, cache));
        if caching.rule != CacheRule::Never
            && let Some(tiers) = self.tiers()
        {
            lines.add("tiers", &tiers);
        }
        if caching.rule != CacheRule::Never || joined {
            self.key(call, method, caching.resolved, lines);
        }
    }

    /// The tiers of the cache in the order of the look-ups, if there are others than memory.
    fn tiers(&self) -> Option<String> {
        let memory = Some("memory".to_owned());
        let tiers: Vec<String> =
            [memory, self.redis(), self.index()].into_iter().flatten().collect();
        (tiers.len() > 1).then(|| tiers.join(", then "))
    }

    /// The same for a range of logs, for which the index comes first.
    fn tiers_of_logs(&self) -> Option<String> {
        let memory = Some("memory".to_owned());
        let tiers: Vec<String> =
            [self.index(), memory, self.redis()].into_iter().flatten().collect();
        (tiers.len() > 1).then(|| tiers.join(", then "))
    }

    fn redis(&self) -> Option<String> {
        let redis = self.config.redis.as_ref().filter(|redis| redis.responses)?;
        Some(format!("Redis {}", redis.url))
    }

    fn index(&self) -> Option<String> {
        let index = self.config.index.as_ref().filter(|index| index.chain == self.chain)?;
        Some(format!("the index {}", index.db))
    }

    fn key(
        &self,
        call: &Call<'_>,
        method: &'static Method,
        resolved: Option<u64>,
        lines: &mut Lines,
    ) {
        let chain = &self.config.chains[self.chain];
        let block = resolved.map(ResolvedBlock::Number);
        let parts = KeyParts { chain: &chain.name, method, params: &call.params, block };
        let mut key = Vec::new();
        match write_key(&mut key, &parts) {
            Ok(()) => {
                lines.add("key", &words::key(&parts));
                lines.add("key", &words::hex(&key));
            }
            Err(why) => lines.add("key", &format!("none, so neither cached nor joined: {why}")),
        }
    }
}

/// The upstreams of a group in the order in which they come into question.
fn upstreams(config: &Config, group: &Group) -> Vec<String> {
    let (mut primary, mut backup) = (Vec::new(), Vec::new());
    for upstream in &group.upstreams {
        let upstream = &config.upstreams[*upstream];
        let tier = if upstream.backup { &mut backup } else { &mut primary };
        tier.push(source::described_upstream(upstream));
    }
    let balance = source::described_balance(group);
    let primary_count = primary.len();
    let mut lines = vec![match primary_count + backup.len() {
        1 => "one".to_owned(),
        _ => format!("chosen: {balance}"),
    }];
    let numbered = primary.into_iter().chain(backup).enumerate();
    lines.extend(numbered.map(|(at, upstream)| format!("{}. {upstream}", at + 1)));
    if primary_count > 0 && group.upstreams.len() > primary_count {
        lines.push("backups only while no other one can be used".to_owned());
    }
    if group.upstreams.len() > 1 {
        let order = "health, head and load of the moment decide; this is the order of the file";
        lines.push(order.to_owned());
    }
    lines
}

/// Lines with a heading in the first column; a heading is not repeated.
#[derive(Default)]
struct Lines {
    text: String,
    heading: &'static str,
}

impl Lines {
    fn add(&mut self, heading: &'static str, text: &str) {
        let shown = if self.heading == heading { "" } else { heading };
        self.heading = heading;
        let _ = writeln!(self.text, "{shown:<9} {text}");
    }
}
