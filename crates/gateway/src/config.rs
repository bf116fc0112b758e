//! Reads and validates the configuration. A validated [`Config`] is ready to use. It contains
//! durations, addresses and TLS clients, and refers to its own parts by index instead of by name.
//!
//! The source files in `config/` declare the tables of the configuration file with
//! `settings::table!`: each key with its value type, default, bounds and documentation. The
//! function `check` of a source file validates how the keys depend on each other and on other
//! tables. The configuration opens no socket and starts no task.
//!
//! In `settings::table!`, `key: Type = "default";` declares a key, and its comment becomes a text of
//! `docs/config.md`. `required` and `empty` stand in place of a default. `described "text"` documents
//! a default that depends on something else. Such a key is an `Option`, unless `=> expression`
//! computes its default. A change of a key with `at_start` takes effect at the next start.
//! `struct Table => Values` also declares a struct with only the values. `by key` and `as function`
//! state how messages name one table of a list. `settings::choice!` declares the names that a value
//! has in the file; `for` refers to an existing enum.
//!
//! A field of a table is a [`settings::Key`]. A key dereferences to its value and knows its position
//! in the file. The checks report problems with `report.error(position, message, allowed values)`
//! and `report.warn(position, message, advice)`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use settings::diff::Change;
use settings::url::{self, NodeUrl};
use settings::value::{Listed, Named, Once};
use settings::{Diagnostics, ReadContext, Report, Severity, Table, diff};
use wire::call::Limits;

pub mod access;
pub mod access_log;
pub mod cache;
pub mod chain;
pub mod downstream;
pub mod group;
pub mod health;
pub mod index;
pub mod jwt;
pub mod limits;
pub mod listen_tls;
pub mod log;
pub mod overload;
pub mod provider;
pub mod quota;
pub mod redis;
pub mod redis_url;
pub mod rule;
pub mod server;
pub mod tls;
pub mod tracing;
pub mod upstream;
pub mod values;

mod validate;

#[cfg(test)]
mod tests;

use access::{Access, AccessTable, JwtTable, KeyTable};
use access_log::{AccessLog, AccessLogTable};
use cache::{Cache, CacheTable};
use chain::{Chain, ChainTable};
use downstream::{Downstream, DownstreamTable};
use group::{CallTable, Group, GroupTable, RetryBudget};
use health::{Health, HealthTable};
use index::{Index, IndexTable};
use limits::{Limit, LimitTable, Zone, ZoneTable};
use listen_tls::{CertificateExpiry, CertificateTable, ListenTls, TlsTable};
use log::{Log, LogTable};
use overload::{Overload, OverloadTable};
use provider::ProviderTable;
use quota::{Quota, QuotaTable};
use redis::{Redis, RedisTable};
use rule::RuleTable;
use server::{Server, ServerTable};
use tracing::{Tracing, TracingTable};
use upstream::{Upstream, UpstreamTable};
use validate::TEXT_BYTES_MAX;

use crate::policy::route::{ChainRoutes, Router};
use crate::policy::routing_rules::Rule;

settings::table! {
    /// The configuration of a gateway.
    pub struct GatewayFile {
        /// Listen addresses, threads and memory of the gateway.
        server: Once<ServerTable> = empty;
        /// Chains by name.
        chain: Named<ChainTable> = empty;
        /// Upstreams.
        upstream: Listed<UpstreamTable> = empty;
        /// Providers of nodes.
        provider: Listed<ProviderTable> = empty;
        /// Groups of upstreams that serve certain methods.
        group: Listed<GroupTable> = empty;
        /// Settings for sending a call to an upstream.
        call: Once<CallTable> = empty;
        /// Handling of calls once upstreams are saturated.
        overload: Once<OverloadTable> = empty;
        /// The cache in memory.
        cache: Once<CacheTable> = empty;
        /// State that several gateways share.
        redis: Once<RedisTable> = empty;
        /// An index of a chain.
        index: Once<IndexTable> = empty, at_start;
        /// Conditions for ejecting an upstream.
        health: Once<HealthTable> = empty;
        /// Settings for serving clients.
        downstream: Once<DownstreamTable> = empty;
        /// TLS with clients.
        tls: Once<TlsTable> = empty;
        /// Certificates.
        certificate: Listed<CertificateTable> = empty;
        /// Counters of request limits.
        zone: Named<ZoneTable> = empty;
        /// Request limits.
        limit: Listed<LimitTable> = empty;
        /// Access control.
        access: Once<AccessTable> = empty;
        /// API keys.
        key: Listed<KeyTable> = empty;
        /// Counting of quotas.
        quota: Once<QuotaTable> = empty;
        /// Issuers of JSON web tokens.
        jwt: Listed<JwtTable> = empty;
        /// Routing rules.
        rule: Listed<RuleTable> = empty;
        /// The access log.
        access_log: Once<AccessLogTable> = empty;
        /// Spans of sampled requests.
        tracing: Once<TracingTable> = empty;
        /// The gateway's own log.
        log: Once<LogTable> = empty, at_start;
    }
}

/// The whole configuration of one gateway. A reload replaces it as one value.
#[derive(Clone, Debug)]
pub struct Config {
    /// Listen addresses, threads and memory of the gateway.
    pub server: Server,
    /// The TLS listener and its settings; `None` if TLS is off.
    pub listen_tls: Option<Arc<ListenTls>>,
    /// When the certificates of the TLS listener expire.
    pub(crate) certificate_expiries: Vec<CertificateExpiry>,
    /// The files that the configuration names and that were read: certificates, keys, secrets.
    pub files: Vec<PathBuf>,
    /// Limits and settings for clients.
    pub downstream: Downstream,
    /// Bounds for the decoder of calls: body, depth, batch, method name, id.
    pub call_limits: Limits,
    /// Counters of request limits, in the order of the file.
    pub zones: Vec<Zone>,
    /// Request limits, in the order of the file.
    pub limits: Vec<Limit>,
    /// The cache in memory and coalescing.
    pub cache: Cache,
    /// The Redis that gateways share; `None` if no Redis is configured or nothing uses it.
    pub redis: Option<Redis>,
    /// The index of a chain; `None` if no index is configured.
    pub index: Option<Index>,
    /// Conditions for ejecting and readmitting an upstream.
    pub health: Health,
    /// The retry budget.
    pub retry: RetryBudget,
    /// Handling of calls once upstreams are saturated; `None` if calls are not limited.
    pub overload: Option<Overload>,
    /// The gateway's own log.
    pub log: Log,
    /// Access control.
    pub access: Access,
    /// Routing rules, in the order in which they are tried.
    pub rules: Vec<Rule>,
    /// Counting of quotas; `None` if no API key has a quota.
    pub quota: Option<Quota>,
    /// The access log; `None` if it is off.
    pub access_log: Option<AccessLog>,
    /// Spans of sampled requests; `None` if no request is sampled.
    pub tracing: Option<Tracing>,
    /// Lower-case names of the headers that are stored with each request, for rules and the access
    /// log.
    pub used_headers: Vec<Box<str>>,
    /// The chains, at least one. Their names and paths are unique.
    pub chains: Vec<Chain>,
    /// At least one upstream for each chain, in the order of the file. The upstreams of providers
    /// are last.
    pub upstreams: Vec<Upstream>,
    /// The groups, at least one for each chain. [`Chain::groups`] lists those of a chain.
    pub groups: Vec<Group>,
    /// Valid settings that look like mistakes. `weir check` and the start of the gateway print
    /// them.
    pub warnings: Diagnostics,
    /// The keys that the file sets. [`Config::changes_to`] compares them.
    keys: Arc<diff::Keys>,
}

/// Settings from the command line. `None` keeps the file's value or the default.
#[derive(Clone, Debug)]
pub struct Overrides {
    /// Replaces `server.listen`.
    pub listen: Option<SocketAddr>,
    /// Replaces `server.admin`.
    pub admin: AdminOverride,
    /// Replaces `server.threads`; at least 1.
    pub threads: Option<usize>,
    /// Turns cache and coalescing off, so that every call reaches an upstream.
    pub no_cache: bool,
}

/// The setting of `server.admin` from the command line.
#[derive(Clone, Copy, Debug)]
pub enum AdminOverride {
    /// Keeps the file's value or the default.
    Keep,
    /// Turns the admin listener off.
    Off,
    /// Listens on this address.
    Listen(SocketAddr),
}

impl Config {
    /// Builds the router, which finds the chain of a path and the group of a method.
    pub fn build_router(&self) -> Router {
        let routes: Vec<_> = self.chains.iter().map(|chain| self.list_routes(chain)).collect();
        Router::new(&routes, self.chains.iter().position(|chain| chain.default))
            .expect("a checked configuration has no path or pattern twice")
    }

    /// Lists the paths and method patterns of a chain, for the router.
    fn list_routes<'a>(&'a self, chain: &'a Chain) -> ChainRoutes<'a> {
        let methods = chain.groups.iter().flat_map(|&group| {
            self.groups[group].methods.iter().map(move |pattern| (&**pattern, group))
        });
        ChainRoutes {
            paths: chain.paths.iter().map(|path| &**path).collect(),
            methods: methods.collect(),
            default_group: *chain.groups.last().expect("a chain has at least one group"),
        }
    }

    /// Reads and validates a file. Relative file names in the file start from its folder. The
    /// environment of this process provides the values of `${VAR}`.
    ///
    /// # Errors
    ///
    /// All errors of the file at once, each with its position, ready to print. If the file cannot
    /// be read, the only error states the reason.
    pub fn from_file(path: &Path) -> Result<Config, Diagnostics> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Diagnostics::unreadable(&name, &error))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Config::from_text(&name, &text, folder, &|name| std::env::var(name).ok())
    }

    /// Validates the text of a file. `name` is the name of the file in diagnostics, and `folder` is
    /// the base of relative file names. `environment` returns the value of a variable for `${VAR}`.
    ///
    /// # Errors
    ///
    /// All errors of the text at once, each with its position. If the text is not TOML, the list
    /// holds only its syntax errors.
    pub fn from_text(
        name: &str,
        text: &str,
        folder: &Path,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Config, Diagnostics> {
        let mut context = ReadContext::new(folder, environment);
        context.text_bytes_max = TEXT_BYTES_MAX;
        match settings::read::<GatewayFile>(text, name, &context) {
            (Some(file), report) => check(&file, &context, report),
            (None, report) => Err(report.finish()),
        }
    }

    /// Builds the configuration of `weir serve --upstream URL…`. The configuration has one chain of
    /// the `ethereum` family on every path. All its upstreams have equal settings, and all other
    /// keys have their defaults.
    ///
    /// # Errors
    ///
    /// All errors of the URLs at once, each with its position.
    pub fn from_upstreams(
        upstreams: &[String],
        listen: Option<SocketAddr>,
        threads: Option<usize>,
        no_cache: bool,
    ) -> Result<Config, Diagnostics> {
        let mut report = Report::of_arguments();
        let file = build_upstream_tables(upstreams, &mut report);
        let context = ReadContext::new(Path::new(""), &|_| None);
        let config = check(&file, &context, report)?;
        let admin = AdminOverride::Keep;
        Ok(config.with_overrides(&Overrides { listen, admin, threads, no_cache }))
    }

    /// Applies the settings from the command line.
    #[must_use]
    pub fn with_overrides(mut self, overrides: &Overrides) -> Config {
        let server = &mut self.server;
        server.listen = overrides.listen.or(server.listen);
        match overrides.admin {
            AdminOverride::Keep => {}
            AdminOverride::Off => server.admin = None,
            AdminOverride::Listen(address) => server.admin = Some(address),
        }
        server.threads = overrides.threads.map_or(server.threads, |threads| threads.max(1));
        if overrides.no_cache {
            self.cache.enabled = false;
            self.cache.coalesce = false;
        }
        self
    }

    /// Lists the keys that differ in another configuration, with masked secrets.
    /// `upstream/topology/build.rs` applies the changes in a reload.
    pub fn changes_to(&self, other: &Config) -> Vec<Change> {
        diff::list_changes(&self.keys, &other.keys)
    }
}

/// Builds the tables for the arguments `--upstream URL…`.
fn build_upstream_tables(urls: &[String], report: &mut Report<'_>) -> GatewayFile {
    let mut file = GatewayFile::defaults("");
    let mut upstreams = Vec::with_capacity(urls.len());
    let allowed = <values::UpstreamAddress as settings::Scalar>::allowed();
    if urls.is_empty() {
        let message = "at least one upstream url is required";
        report.argument_error("--upstream", None, message, &allowed);
    }
    for (index, text) in urls.iter().enumerate() {
        match NodeUrl::parse(text) {
            Ok(url) => {
                let mut upstream = UpstreamTable::defaults("upstream");
                let printed = format!("\"{url}\"");
                // `printed` is the value that messages show.
                upstream.url.set(url, printed);
                upstreams.push(upstream);
            }
            Err(message) => {
                let (key, masked_url) = (format!("--upstream {}", index + 1), url::mask_url(text));
                report.argument_error(key, Some(masked_url), message, &allowed);
            }
        }
    }
    file.upstream.set(upstreams, String::new());
    file
}

/// Validates the tables. Returns the configuration, or all errors at once.
fn check(
    file: &GatewayFile,
    context: &ReadContext<'_>,
    mut report: Report<'_>,
) -> Result<Config, Diagnostics> {
    let folder = context.folder;
    let mut chains = chain::check(&file.chain, &mut report);
    let mut upstream_tables = (*file.upstream).clone();
    upstream_tables.extend(provider::expand(&file.provider, &chains, &mut report));
    let upstreams =
        upstream::check(&upstream_tables, folder, &mut chains, &file.chain, &mut report);
    let group_defaults = group::GroupDefaults { call: &file.call, overload: &file.overload };
    let groups = group::check(&file.group, &group_defaults, &mut chains, &upstreams, &mut report);
    let tables = access::AccessTables {
        access: &file.access,
        keys: &file.key,
        issuers: &file.jwt,
        has_client_ca: file.tls.client_ca.is_some(),
    };
    let (access, keys_file_settings) = access::check(&tables, context, &chains, &mut report);
    let mut used_headers = Vec::new();
    let rules = rule::check(&file.rule, &chains, &groups, &access, &mut used_headers, &mut report);
    let access_log = access_log::check(&file.access_log, folder, &mut used_headers, &mut report);
    if let Some(header) = access.places.header.as_ref().filter(|name| used_headers.contains(name)) {
        let message = format!("a rule or the access log uses {header}, which contains keys");
        report.error(&file.access.key_header, message, "another header");
    }
    let (zones, limits) = limits::check(&file.zone, &file.limit, &chains, &access, &mut report);
    let server = server::check(&file.server, &mut report);
    let tls_address = &file.server.listen_tls;
    let listen_tls =
        listen_tls::check(&file.tls, &file.certificate, tls_address, folder, &mut report);
    let cache = cache::check(&file.cache, &mut report);
    let quota = quota::check(&file.quota, &file.redis, folder, &access, &mut report);
    let uses = redis::RedisUses {
        cache: &cache,
        zone_tables: &file.zone,
        zones: &zones,
        limits: &limits,
        quotas_shared: quota.as_ref().is_some_and(|quota| quota.shared),
    };
    let redis = redis::check(&file.redis, folder, &uses, &mut report);
    let index = index::check(&file.index, &upstream_tables, folder, &chains, &mut report);
    let downstream = downstream::check(&file.downstream, &mut report);
    let config = Config {
        server,
        certificate_expiries: listen_tls.as_ref().map_or_else(Vec::new, |tls| tls.expiries.clone()),
        listen_tls: listen_tls.map(Arc::new),
        files: context.files(),
        call_limits: downstream.call_limits(),
        downstream,
        zones,
        limits,
        cache,
        redis,
        index,
        health: health::check(&file.health, &mut report),
        retry: file.call.retry_budget(),
        overload: overload::check(&file.overload, &mut report),
        log: file.log.values(),
        access,
        rules,
        quota,
        access_log,
        tracing: tracing::check(&file.tracing, folder, &mut report),
        used_headers,
        chains,
        upstreams,
        groups,
        warnings: Diagnostics::default(),
        keys: Arc::new(diff::Keys::of(file).merge(keys_file_settings)),
    };
    // If there are errors, the warnings are dropped. Warnings could mislead, because an invalid
    // upstream looks like a missing one.
    let has_errors = report.has_errors();
    let mut diagnostics = report.finish();
    if has_errors {
        diagnostics.list.retain(|diagnostic| diagnostic.severity == Severity::Error);
        return Err(diagnostics);
    }
    Ok(Config { warnings: diagnostics, ..config })
}

/// Returns the text of `docs/config.md`.
pub fn render_reference() -> String {
    format!("{REFERENCE_HEAD}{}", settings::reference::markdown::<GatewayFile>())
}

/// Returns the text of `docs/gateway.schema.json`.
pub fn render_schema() -> String {
    let title = "Configuration of a Weir gateway";
    format!("{:#}\n", settings::schema::document::<GatewayFile>("gateway.schema.json", title))
}

const REFERENCE_HEAD: &str = "\
# Configuration

<!-- Printed by `cargo xtask generate` from the declarations in crates/gateway/src/config/. Do not edit. -->

`weir serve gateway.toml` reads one TOML file; `weir check gateway.toml` checks it. A key that is not
listed here is an error, and the gateway does not start with a file that has errors. All errors are
reported at once, each with its position and the allowed values.

The smallest working file:

```toml
[[upstream]]
url = \"http://127.0.0.1:8545\"
```

- A file has `[server]` at most once, `[chain.NAME]` once per name, and `[[upstream]]` any number of
  times.
- Durations are strings with a unit: `\"250ms\"`, `\"10s\"`, `\"5m\"`, `\"1h\"`, `\"1d\"`.
- Sizes are strings with a unit, `\"64MiB\"` or `\"25MB\"`, or a number of bytes.
- In a string, `${VAR}` is replaced by an environment variable, `${VAR:-default}` by the variable or
  the default, and `${file:PATH}` by the content of a file without its last line break. `$${` is
  replaced by `${`. Relative file names start at the folder of the configuration file.
- URLs of upstreams, keys of providers and values of headers are secrets: no log, page, metric or
  message shows them.
- `--listen`, `--admin`, `--threads` and `--no-cache` of `weir serve` override the file.
- `weir reload` applies a changed file to a running gateway. `docs/operating.md` lists what a reload
  keeps.
- Editors complete and check keys with [gateway.schema.json](gateway.schema.json): begin the file with
  `#:schema PATH/gateway.schema.json`.

More examples are in `examples/`.
";
