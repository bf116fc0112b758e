//! `weir explain`: prints how the gateway would serve a call, without serving it.
//!
//! The command uses the tables and decisions of the serving path (`wire`, `gateway::policy`). These
//! decisions depend on a *view* of the chain: its head and its finalized block. The command assumes
//! a view. It calls no upstream, so it does not know the health of the upstreams.
//! `explain/describe.rs` has the wording.

use std::fmt::Write as _;
use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use gateway::config::Config;
use gateway::config::group::Group;
use gateway::policy::access::{
    Denial, Grant, MethodCheck, check_call, check_grant, is_own_filter_method,
    is_subscription_method,
};
use gateway::policy::cacheable::CacheRule;
use gateway::policy::heads::{ChainView, Head};
use gateway::policy::logs::plan_filter;
use gateway::policy::plan::{CacheFeatures, Lookup, Plan, plan};
use gateway::policy::route::Router;
use gateway::policy::routing_rules;
use gateway::policy::routing_rules::{
    CallFacts, RequestFacts, RouteDecision, RoutingResult, hash_caller,
};

use wire::call::{Body, Call, Limits, Rejection, decode};
use wire::effect::effect_of;
use wire::filter::LogFilter;
use wire::key::{KeyParts, ResolvedBlock, write_key};
use wire::method::{Method, methods_of};

use crate::source::ConfigSource;
use crate::{EXIT_FAULTY, source};

mod describe;

/// Explain how the gateway would serve a call
///
/// Prints the chain and the group, the upstreams in order, whether the response is cached, its
/// cache key and the block that it is bound to, whether the call may be repeated, and its cost. A
/// running gateway decides by the same code. No upstream is called, so tags such as latest stand
/// for an assumed head (--head).
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
        let router = config.build_router();
        let request = match HttpRequest::new(&self, &config) {
            Ok(request) => request,
            Err(reason) => return Ok(argument_error(&reason)),
        };
        let path = request.apply_rules(&config, &router, None).path;
        let Some(chain) = router.find_chain(&self.path).or_else(|| router.find_chain(&path)) else {
            return Ok(argument_error(&format!("no chain is at the path {}", self.path)));
        };
        if let Some(reason) = request.find_denial(&config, chain) {
            println!("refused   {reason}");
            return Ok(ExitCode::from(EXIT_FAULTY));
        }
        let view = assumed_view(&config, chain, self.head);
        let (head, request) = (self.head, &request);
        let (config, router) = (&config, &router);
        let explainer = Explainer { config, router, request, head, url_chain: chain, chain, view };
        match decode(&text, &config.call_limits) {
            Err(rejection) => Ok(argument_error(&describe::rejection(&rejection))),
            Ok(Body::Single(item)) => Ok(explainer.print(&[item])),
            Ok(Body::Batch(items)) => Ok(explainer.print(&items)),
        }
    }
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

/// Returns the assumed state of a chain, in place of the state that the gateway polls from
/// upstreams. The finalized block is below the head by the configured finality depth.
fn assumed_view(config: &Config, chain: usize, head: u64) -> ChainView {
    let mut view = ChainView::default();
    view.head = Some(Head { number: head, hash: [0; 32] });
    view.finalized = Some(head.saturating_sub(config.chains[chain].finality_depth));
    view.settled = view.finalized;
    // The gateway replaces a client's `finalized` tag only with a height from the upstreams.
    view.finalized_by_upstreams = true;
    view
}

/// Explains calls of one request at an assumed head.
struct Explainer<'a> {
    config: &'a Config,
    router: &'a Router,
    request: &'a HttpRequest<'a>,
    /// Number of the assumed head.
    head: u64,
    /// Index of the chain at the request's path. The limits of this chain apply to the call.
    url_chain: usize,
    /// Index of the chain that serves the call. It differs from `url_chain` if a rule has rewritten
    /// the path.
    chain: usize,
    /// The assumed state of the chain that serves the call.
    view: ChainView,
}

/// The assumed HTTP request that carries the calls.
struct HttpRequest<'a> {
    /// Permissions of the API key, if one is given.
    grant: Option<&'a Grant>,
    address: std::net::IpAddr,
    host: &'a str,
    path: &'a str,
    /// Header values by index in `Config::used_headers`.
    headers: Vec<Option<Box<[u8]>>>,
}

impl<'a> HttpRequest<'a> {
    fn new(explain: &'a Explain, config: &'a Config) -> Result<HttpRequest<'a>, String> {
        let grant = match &explain.key {
            None => None,
            Some(name) => {
                let key = config.access.keys.iter().find(|key| *key.grant.name == **name);
                Some(&*key.ok_or_else(|| format!("there is no key {name}"))?.grant)
            }
        };
        let mut headers = vec![None; config.used_headers.len()];
        for header in &explain.header {
            let (name, value) = header
                .split_once(':')
                .ok_or_else(|| format!("{header} is not of the form NAME: VALUE"))?;
            let mut used_headers = config.used_headers.iter();
            let index =
                used_headers.position(|used_name| used_name.eq_ignore_ascii_case(name.trim()));
            if let Some(index) = index {
                headers[index] = Some(value.trim().as_bytes().into());
            }
        }
        let (host, path) = (&*explain.host, &*explain.path);
        Ok(HttpRequest { grant, address: explain.client, host, path, headers })
    }

    /// Applies the routing rules to a call, or to the request's path if `call` is `None`.
    fn apply_rules<'b>(
        &'b self,
        config: &Config,
        router: &Router,
        call: Option<CallFacts<'b>>,
    ) -> RoutingResult<'b> {
        let facts = RequestFacts {
            host: self.host,
            path: self.path,
            headers: &self.headers,
            key: self.grant.map(|grant| &*grant.name),
            tier: self.grant.and_then(|grant| grant.tier.as_deref()),
            client: hash_caller(self.grant.map(|grant| &*grant.name), self.address),
            call,
        };
        routing_rules::apply_rules(&config.rules, &facts, |path| router.find_chain(path))
    }

    /// Returns the reason why the whole request is denied, or `None` if it is allowed.
    fn find_denial(&self, config: &Config, chain: usize) -> Option<String> {
        let access = &config.access;
        let now = || {
            let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since_epoch.map_or(0, |since_epoch| since_epoch.as_secs())
        };
        if !access.clients.allows(self.address) {
            return Some(describe::denial(Denial::Address));
        }
        match self.grant {
            None if access.required => Some(describe::denial(Denial::NoKey)),
            None => None,
            Some(grant) => match check_grant(grant, self.address, now) {
                Err(reason) => Some(describe::denial(reason)),
                Ok(()) if !grant.allows_chain(chain) => Some(describe::denial(Denial::Chain)),
                Ok(()) => None,
            },
        }
    }
}

impl Explainer<'_> {
    /// Prints the explanation of each call. Returns exit code 2 if a call cannot be decoded.
    fn print(&self, items: &[Result<Call<'_>, Rejection<'_>>]) -> ExitCode {
        let mut has_rejection = false;
        for (index, item) in items.iter().enumerate() {
            if items.len() > 1 {
                let gap = if index > 0 { "\n" } else { "" };
                println!("{gap}call {} of {}", index + 1, items.len());
            }
            match item {
                Ok(call) => print!("{}", self.explain(call)),
                Err(rejection) => {
                    has_rejection = true;
                    println!("refused   {}", describe::rejection(rejection));
                }
            }
        }
        if has_rejection { ExitCode::from(EXIT_FAULTY) } else { ExitCode::SUCCESS }
    }

    /// Explains one call. The routing rules come first, because they may deny the call, or rewrite
    /// its path to the path of another chain.
    fn explain(&self, call: &Call<'_>) -> String {
        let mut lines = Lines::default();
        let params = call.params.raw().unwrap_or(b"");
        let facts = CallFacts { method: &call.method, params };
        let routing = self.request.apply_rules(self.config, self.router, Some(facts));
        for rule in &routing.matched {
            lines.add("rule", &describe::rule(&self.config.rules[*rule]));
        }
        match (self.router.find_chain(&routing.path), routing.decision) {
            (_, RouteDecision::Deny(_)) => lines.text,
            (None, _) => {
                lines.add("refused", &format!("no chain is at the path {}", routing.path));
                lines.text
            }
            (Some(chain), decision) if chain != self.chain => {
                let view = assumed_view(self.config, chain, self.head);
                Explainer { chain, view, ..*self }.explain_routed(call, decision, lines)
            }
            (Some(_), decision) => self.explain_routed(call, decision, lines),
        }
    }

    /// Explains a call that the routing rules do not deny.
    fn explain_routed(&self, call: &Call<'_>, decision: RouteDecision, mut lines: Lines) -> String {
        let chain = &self.config.chains[self.chain];
        let group = match decision {
            RouteDecision::Group(group) => group,
            _ => self.router.find_group(self.chain, &call.method),
        };
        let group = &self.config.groups[group];
        let method = methods_of(chain.family).method(&call.method);
        let unknown_note = if method.is_some() { "" } else { ", method unknown" };
        lines.add(
            "method",
            &format!("{} (family {}{unknown_note})", call.method, chain.family.as_str()),
        );
        lines.add("chain", &chain.name);
        for line in self.describe_limits(&call.method) {
            lines.add("limited", &line);
        }
        let method_check = MethodCheck {
            method: &call.method,
            effect: effect_of(chain.family, &call.method),
            policy: &self.config.access.policy,
            chain: &chain.methods,
            group_deny: &group.methods_deny,
            grant: self.request.grant,
        };
        if let Err(reason) = check_call(&method_check) {
            lines.add("refused", &describe::refusal(reason));
            return lines.text;
        }
        if is_subscription_method(&call.method) {
            lines.add("served", describe::SUBSCRIPTION);
            return lines.text;
        }
        if is_own_filter_method(chain.family, &call.method) {
            lines.add("served", describe::FILTER);
        }
        lines.add("group", &describe::group(group));
        for line in describe_upstreams(self.config, group) {
            lines.add("upstreams", &line);
        }
        match method {
            None => {
                lines.add("cached", describe::UNKNOWN_METHOD);
                lines.add("repeated", describe::REPEAT_IF_UNSENT);
            }
            Some(method) => self.explain_plan(call, method, group, &mut lines),
        }
        if let Some(overload) = &self.config.overload {
            let tier = self.request.grant.and_then(|grant| grant.tier.as_deref());
            let weight = method.map_or(1, |method| method.weight);
            let class = overload.priorities.find_class(tier, weight);
            lines.add("class", describe::class(class));
        }
        lines.add("deadline", &describe::deadline(group));
        lines.text
    }

    /// Describes the limits that apply to a call of this method, in their order. The gateway
    /// charges a call before the rules rewrite its path, so the limits of `url_chain` apply.
    fn describe_limits(&self, method_name: &str) -> Vec<String> {
        let family = methods_of(self.config.chains[self.url_chain].family);
        let method =
            family.method(method_name).or_else(|| family.method_ignoring_case(method_name));
        // A zone holds the counters of its limits. It charges a call once, even if several limits
        // use the zone. Limits in dry run are charged separately.
        let mut charged_zones = Vec::new();
        let mut lines = Vec::new();
        // Limits of failed authentications charge requests, not calls.
        for limit in self.config.limits.iter().filter(|limit| !limit.failures) {
            let applies = limit.chain.is_none_or(|chain| chain == self.url_chain)
                && gateway::policy::limit::matches_method(&limit.methods, method_name);
            if applies && !charged_zones.contains(&(limit.zone, limit.dry_run)) {
                charged_zones.push((limit.zone, limit.dry_run));
                let zone = &self.config.zones[limit.zone];
                lines.push(describe::limit(limit, zone, method, self.request.grant));
            }
        }
        lines
    }

    /// Explains caching, coalescing and repetition of a call of a known method. The plan
    /// (`gateway::policy::plan`) is the gateway's decision about how to find the response.
    fn explain_plan(
        &self,
        call: &Call<'_>,
        method: &'static Method,
        group: &Group,
        lines: &mut Lines,
    ) {
        let cache = &self.config.cache;
        let features = CacheFeatures { cache: cache.enabled, coalesce: cache.coalesce };
        match plan(Some(method), &call.params, &self.view, features) {
            Plan::Logs(_) => {
                for line in self.describe_logs(call) {
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
                self.add_block(call, method, lines);
                lines.add("response", "the gateway itself returns the number of the head");
                lines.add("cached", "not needed");
            }
            Plan::Lookup(lookup) => self.explain_lookup(call, &lookup, lines),
            // This variant is for unknown methods only.
            Plan::Forward => {}
        }
        lines.add("repeated", describe::repeat(method.repeat, group));
        lines.add("weight", &method.weight.to_string());
    }

    /// Describes how the response to a log filter is cached.
    fn describe_logs(&self, call: &Call<'_>) -> Vec<String> {
        let cache = &self.config.cache;
        match LogFilter::from_params(&call.params) {
            Err(reason) => vec![format!("no: the filter is forwarded unchanged: {reason}")],
            Ok(_) if !cache.enabled => vec![describe::CACHE_OFF.to_owned()],
            Ok(filter) => {
                let (chunk, parts_max) = (cache.logs_chunk_blocks, cache.logs_parts_max);
                describe::logs(&plan_filter(&filter, &self.view, chunk, parts_max))
            }
        }
    }

    /// Adds the block that the call names, if its method has a block parameter.
    fn add_block(&self, call: &Call<'_>, method: &'static Method, lines: &mut Lines) {
        if let Some(parameter) = method.block {
            let block = method.block_ref(&call.params).map(|block| block.map(|(block, _)| block));
            lines.add("block", &describe::block(parameter, block, &self.view));
        }
    }

    /// Explains a call whose response is looked up in the cache.
    fn explain_lookup(&self, call: &Call<'_>, lookup: &Lookup, lines: &mut Lines) {
        let method = lookup.method;
        self.add_block(call, method, lines);
        let (caching, cache) = (&lookup.caching, &self.config.cache);
        if let Some(number) = caching.resolved_height {
            lines.add("sent", &format!("with the number {number} in place of the tag"));
        }
        if caching.min_head > 0 {
            let height = caching.min_head;
            lines.add("sent to", &format!("upstreams whose head is at {height} or above"));
        }
        lines.add("cached", &describe::caching(lookup, cache, &self.view));
        let is_coalesced = lookup.coalesce && lookup.block.is_ok();
        lines.add("coalesced", describe::coalescing(is_coalesced, method.coalesces(), cache));
        let is_logs = false;
        if caching.rule != CacheRule::Never
            && let Some(tiers) = self.describe_tiers(is_logs)
        {
            lines.add("tiers", &tiers);
        }
        if caching.rule != CacheRule::Never || is_coalesced {
            self.add_key(call, method, caching.resolved_height, lines);
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
    fn add_key(
        &self,
        call: &Call<'_>,
        method: &'static Method,
        resolved_height: Option<u64>,
        lines: &mut Lines,
    ) {
        let chain = &self.config.chains[self.chain];
        let block = resolved_height.map(ResolvedBlock::Number);
        let parts = KeyParts { chain: &chain.name, method, params: &call.params, block };
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
