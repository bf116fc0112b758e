//! A validated plan of a load test, ready to run. A plan has scenarios. A scenario starts
//! iterations, and each iteration sends the requests of a mix in order.
//!
//! The plan's file has texts and names; the types of this module have durations, byte templates and
//! indexes instead.
//!
//! `plan/tables.rs` has the plan as written in the file. `plan/validate.rs` converts it to the
//! types of this module.
//!
//! [`read`] reads the text of a file, and [`line::UrlOptions`] reads the options of a command line.
//! The options are first converted to the text of a plan. The result of a run stores the text, so
//! every run can be repeated from its result.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use settings::Diagnostics;
use toml::de::DeTable;
use wire::family::Family;

use self::tables::PlanFile;
use self::transactions::Transactions;
use crate::plan::lint::Warning;
use crate::plan::threshold::Threshold;

pub mod line;
pub mod lint;
pub mod planned;
pub mod reference;
pub mod shipped;
pub mod summary;
pub mod threshold;
pub mod transactions;

mod params;
mod redact;
mod requests;
mod tables;
mod threshold_table;
mod validate;
mod values;

pub use settings::url::NodeUrl;
use settings::url::Transport;
pub use tables::{Batch, Capacity, Inclusion, Reference, Validity, Watch};
pub use validate::whole_seconds;
pub use values::SubscriptionKind;

#[cfg(test)]
mod tests;

/// Reads a plan. `name` is the name of the plan's file in diagnostics. File names in the plan are
/// relative to the folder of that file. `variables` override variables of the plan.
///
/// # Errors
/// Returns all problems of the plan, each with its position and the allowed values.
pub fn read(text: &str, name: &str, variables: &[(String, f64)]) -> Result<Plan, Diagnostics> {
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    read_in(&Environment::of_process(folder, variables), text, name)
}

/// Reads a plan. The text can refer to the files and variables of `environment`.
fn read_in(environment: &Environment<'_>, text: &str, name: &str) -> Result<Plan, Diagnostics> {
    let (file, mut report) = settings::read::<PlanFile>(text, name, &environment.settings());
    let Some(file) = file else { return Err(report.finish()) };
    let Some(mut plan) = validate::check(&file, name, environment, &mut report) else {
        return Err(report.finish());
    };
    let overridden = file.variables.iter().filter(|variable| environment.overrides(&variable.name));
    // The stored text has the overriding values. The format `{:?}` writes large numbers with an
    // exponent, which is valid TOML.
    let toml_number = |value: f64| format!("{value:?}");
    let replacements: Vec<_> = overridden
        .filter_map(|variable| Some((variable.location.span.clone()?, toml_number(variable.value))))
        .collect();
    plan.text = redact::redact_text(text, &report, &replacements);
    Ok(plan)
}

/// Returns true if a text is a plan and not the configuration of a gateway. A plan has at least one
/// table that only plans have.
pub fn is_plan(text: &str) -> bool {
    const PLAN_TABLES: [&str; 9] = [
        "scenario",
        "subscription",
        "target",
        "mix",
        "thresholds",
        "validity",
        "inclusion",
        "capacity",
        "variables",
    ];
    let (table, _) = DeTable::parse_recoverable(text);
    PLAN_TABLES.iter().any(|key| table.get_ref().contains_key(*key))
}

/// The files, environment variables and variables of the command line to which the text of a plan
/// can refer.
struct Environment<'a> {
    /// The folder to which relative file names refer.
    folder: PathBuf,
    /// Returns the value of an environment variable, or `None` if it is not set.
    variable: &'a dyn Fn(&str) -> Option<String>,
    /// Variables that override variables of the plan.
    overrides: &'a [(String, f64)],
    /// True if files can be read.
    can_read_files: bool,
}

impl<'a> Environment<'a> {
    /// Returns the environment of this process.
    fn of_process(folder: &Path, variables: &'a [(String, f64)]) -> Environment<'a> {
        Environment {
            folder: folder.to_owned(),
            variable: &|name| std::env::var(name).ok(),
            overrides: variables,
            can_read_files: true,
        }
    }

    /// Returns an environment without files and variables.
    fn none() -> Environment<'static> {
        Environment {
            folder: PathBuf::new(),
            variable: &|_| None,
            overrides: &[],
            can_read_files: false,
        }
    }

    fn settings(&self) -> settings::ReadContext<'_> {
        settings::ReadContext::new(&self.folder, self.variable).with_formulas(self.overrides)
    }

    /// Returns true if the command line overrides the variable.
    fn overrides(&self, name: &str) -> bool {
        self.overrides.iter().any(|(variable, _)| variable == name)
    }

    /// Reads a file of at most `bytes_max` bytes, or standard input if the name is `-`.
    fn read_bytes(&self, name: &str, bytes_max: usize) -> Result<Vec<u8>, String> {
        use std::io::Read;
        static STDIN: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
        if !self.can_read_files {
            return Err("a shipped mix or a mix file cannot refer to other files".to_owned());
        }
        let path = self.folder.join(name);
        let read = |source: &mut dyn Read| {
            let mut bytes = Vec::new();
            source.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map(|_| bytes)
        };
        let bytes = match name {
            // `UrlOptions::plan` may read the same options twice: before and after it detects the
            // family of the target. Standard input can be read only once, so its content is kept.
            "-" => STDIN
                .get_or_init(|| read(&mut std::io::stdin().lock()).map_err(|e| e.to_string()))
                .clone(),
            _ => std::fs::File::open(&path)
                .and_then(|mut file| read(&mut file))
                .map_err(|e| e.to_string()),
        };
        let bytes = bytes.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        if bytes.len() > bytes_max {
            return Err(format!("{} is larger than {bytes_max} bytes", path.display()));
        }
        Ok(bytes)
    }

    /// Reads a file of UTF-8 text.
    fn read_text(&self, name: &str, bytes_max: usize) -> Result<String, String> {
        let bytes = self.read_bytes(name, bytes_max)?;
        String::from_utf8(bytes).map_err(|_| format!("{name} is not UTF-8 text"))
    }
}

/// A plan: everything that defines a run and its verdict.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name in reports. The default is the file's name.
    pub name: String,
    /// Text of the plan without secrets. The result stores it, so that the run can be repeated.
    pub text: String,
    /// The server under load.
    pub target: Target,
    /// HTTP version, reuse and TLS of connections.
    pub connections: Connections,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of threads that generate the load, at least 1.
    pub threads: usize,
    /// Names of all methods. [`Template::method`] is an index into this list.
    pub methods: Vec<Box<str>>,
    /// All mixes. [`Scenario::mix`] is an index into this list.
    pub mixes: Vec<Mix>,
    /// All scenarios, at least one. Each begins at its own start time, so scenarios can overlap.
    pub scenarios: Vec<Scenario>,
    /// All subscriptions. Their connections stay open during the run.
    pub subscriptions: Vec<Subscription>,
    /// Thresholds. They ignore the warm-up.
    pub thresholds: Vec<Threshold>,
    /// Length of the warm-up. Its calls are recorded, but excluded from the verdict.
    pub warmup: Duration,
    /// Conditions under which the numbers are valid.
    pub validity: Validity,
    /// The server whose responses are compared with the target's; `None` if no responses are
    /// compared.
    pub reference: Option<Reference>,
    /// Hosts and processes to watch during the run.
    pub watch: Watch,
    /// Measurement of the time until transactions are in a block.
    pub inclusion: Inclusion,
    /// Settings of `weir capacity`.
    pub capacity: Capacity,
    /// Likely mistakes in the plan.
    pub warnings: Vec<Warning>,
}

impl Plan {
    /// Returns the planned end of the last scenario. Calls in flight may continue after it.
    pub fn duration(&self) -> Duration {
        let end = |scenario: &Scenario| scenario.start + scenario.duration();
        self.scenarios.iter().map(end).max().unwrap_or_default()
    }

    /// Returns the signed transactions of the plan, or `None` if the plan sends none. At most one
    /// mix has transactions, and only one scenario uses that mix.
    pub fn transactions(&self) -> Option<&Arc<Transactions>> {
        self.mixes.iter().find_map(Mix::transactions)
    }

    /// Replaces the URL of the target. Keeps the headers that the plan sets.
    ///
    /// # Errors
    /// Fails if the URL is invalid or does not fit the plan. The message contains no part of the
    /// URL.
    pub fn point_at(&mut self, url: &str) -> Result<(), String> {
        self.target.point_at(url)?;
        let http = self.connections.http;
        match validate::find_websocket_conflicts(&self.target, http, &self.methods).first() {
            Some(conflict) => Err(format!("{}; allowed: {}", conflict.message, conflict.allowed)),
            None => Ok(()),
        }
    }

    /// Returns the protocol of the calls.
    pub fn protocol(&self) -> &'static str {
        match self.connections.http {
            _ if self.target.is_websocket() => "WebSocket",
            HttpVersion::Http1 => "HTTP/1.1",
            HttpVersion::Http2 => "HTTP/2",
        }
    }

    /// Returns the number of thresholds, including the thresholds of subscriptions.
    pub fn threshold_count(&self) -> usize {
        let count_of = |subscription: &Subscription| subscription.thresholds.len();
        let subscription_thresholds: usize = self.subscriptions.iter().map(count_of).sum();
        self.thresholds.len() + subscription_thresholds
    }

    /// Returns all stages of all scenarios, in the order of their indexes.
    pub fn stages(&self) -> impl Iterator<Item = (&Scenario, &Stage)> {
        self.scenarios
            .iter()
            .flat_map(|scenario| scenario.stages.iter().map(move |stage| (scenario, stage)))
    }

    /// Returns all stages in the order of their indexes, with their times.
    pub fn spans(&self) -> impl Iterator<Item = (&Scenario, &Stage, Span)> {
        self.scenarios.iter().flat_map(|scenario| {
            let mut from = scenario.start;
            scenario.stages.iter().map(move |stage| {
                let span = Span { from, to: from + stage.duration };
                from = span.to;
                (scenario, stage, span)
            })
        })
    }
}

/// Start and end of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Start of the stage, since the start of the run.
    pub from: Duration,
    /// End of the stage, since the start of the run.
    pub to: Duration,
}

impl Span {
    /// Returns the length of the overlap with `from..to`.
    pub fn overlap(self, from: Duration, to: Duration) -> Duration {
        self.to.min(to).saturating_sub(self.from.max(from))
    }
}

/// The server under load.
#[derive(Clone, Debug)]
pub struct Target {
    /// The URL. If it begins with `ws://` or `wss://`, calls are sent over WebSockets.
    pub url: NodeUrl,
    /// Family of the server's methods, such as `ethereum`. `None` if the family must be detected.
    pub family: Option<Family>,
    /// Names and values of additional request headers, such as `authorization`. Values may be
    /// secret. For a WebSocket, the opening request has these headers.
    pub headers: Vec<(String, String)>,
    /// Maximum time from the send of a call to the end of its response. A longer call has the class
    /// timeout.
    pub timeout: Duration,
    /// Maximum time of a connect, including TLS and the opening of a WebSocket.
    pub connect_timeout: Duration,
    /// Maximum size of a response body in bytes. A larger response counts as malformed.
    pub response_bytes_max: usize,
}

impl Target {
    /// Replaces the URL. Keeps the headers that the plan sets.
    ///
    /// # Errors
    /// Fails if the URL is invalid. The message contains no part of the URL.
    pub fn point_at(&mut self, url: &str) -> Result<(), &'static str> {
        self.replace_url(NodeUrl::parse_remote(url)?);
        Ok(())
    }

    /// Returns true if calls are sent over WebSockets.
    pub fn is_websocket(&self) -> bool {
        self.url.transport() == Transport::WebSocket
    }

    /// Replaces the URL, and the authorization header for the user part of the old URL.
    fn replace_url(&mut self, url: NodeUrl) {
        // The old URL's user part must not be sent to the new target.
        let old_authorization = authorization(&self.url);
        self.headers.retain(|header| Some(header) != old_authorization.as_ref());
        self.url = url;
        self.authorize();
    }

    /// Adds the authorization header for the URL's user part, unless the plan sets that header.
    fn authorize(&mut self) {
        if !self.headers.iter().any(|(name, _)| name == "authorization") {
            self.headers.extend(authorization(&self.url));
        }
    }
}

/// Returns the authorization header for the URL's user part, or `None` if the URL has no user part.
fn authorization(url: &NodeUrl) -> Option<(String, String)> {
    let value = url.authorization()?.to_str().expect("base64 is ASCII");
    Some(("authorization".to_owned(), value.to_owned()))
}

/// Connections that subscribe to notifications.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// Name, which is unique in the plan.
    pub name: String,
    /// The server, with the URL of a WebSocket.
    pub target: Target,
    /// What the server notifies about: new blocks or logs.
    pub kind: SubscriptionKind,
    /// Number of connections, at least 1.
    pub connections: usize,
    /// Addresses of the contracts whose logs are requested. Empty for the logs of all contracts.
    pub addresses: Vec<String>,
    /// Thresholds, which are evaluated at the end of the run.
    pub thresholds: Vec<SubscriptionThreshold>,
}

/// A threshold of a subscription: the maximum of one of its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionThreshold {
    /// The figure that is limited.
    pub figure: SubscriptionFigure,
    /// Maximum: a count, or milliseconds for a time.
    pub max: f64,
    /// Selector and expression, in the form of [`Threshold::text`].
    pub text: String,
}

/// A figure of a subscription that a threshold can limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionFigure {
    /// Number of connections that failed or ended.
    Ended,
    /// Number of missing notifications.
    Missing,
    /// Number of duplicate notifications.
    Duplicates,
    /// 99th percentile of the delay of notifications.
    DelayP99,
}

/// HTTP version, reuse and TLS of connections.
#[derive(Clone, Debug)]
pub struct Connections {
    /// HTTP version.
    pub http: HttpVersion,
    /// How often a connection is reused.
    pub reuse: Reuse,
    /// TLS settings. They have no effect on a target without TLS.
    pub tls: Tls,
}

// `settings::choice!` declares an enum with the name of each variant in the plan.
settings::choice! {
    /// HTTP version.
    pub enum HttpVersion {
        /// HTTP/1.1, one request at a time on a connection.
        "1.1" => Http1,
        /// HTTP/2, one request at a time on a stream. All workers of a thread share its
        /// connections.
        "2" => Http2,
    }
}

/// How often a connection is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// A connection is reused until the server closes it.
    Always,
    /// Each request asks the server to close the connection (`connection: close`).
    Never,
    /// The client closes a connection after this many requests, at least 1.
    Requests(u32),
}

/// TLS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// True if new connections resume TLS sessions.
    pub resume: bool,
    /// The only version to offer. `None` offers both versions.
    pub version: Option<TlsVersion>,
    /// The only cipher suites to offer, by IANA or OpenSSL name. An empty list offers the library's
    /// defaults.
    pub ciphers: Vec<String>,
    /// True if certificates are not verified.
    pub insecure: bool,
    /// PEM file of additional trust anchors; `None` if there are no additional ones.
    pub ca: Option<std::path::PathBuf>,
}

settings::choice! {
    /// A TLS version.
    pub enum TlsVersion {
        /// 1.2
        "1.2" => Tls12,
        /// 1.3
        "1.3" => Tls13,
    }
}

/// A series of iterations. An iteration sends the requests of a mix in order.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name, which is unique in the plan.
    pub name: String,
    /// Start of the first stage, since the start of the run.
    pub start: Duration,
    /// Open or closed model.
    pub model: Model,
    /// Stages in order of time, at least one.
    pub stages: Vec<Stage>,
    /// Index into [`Plan::mixes`].
    pub mix: usize,
    /// Maximum number of workers. A worker runs one iteration at a time on its own connection (k6:
    /// VU).
    pub workers_max: usize,
    /// Maximum number of queued iterations, over all threads (open model only). A scheduled
    /// iteration is queued if no worker is free, and its latency counts from the scheduled time. If
    /// the queue is full, the iteration is dropped (k6: dropped_iterations). With 0 there is no
    /// queue.
    pub queue_max: usize,
    /// Pause of a worker after each iteration (closed model only).
    pub pause: Duration,
    /// How calls are sent as batches; `None` if every call is sent by itself.
    pub batch: Option<Batch>,
    /// Maximum number of iterations, after which the scenario ends early. `None` if unlimited.
    pub iterations_max: Option<u64>,
    /// Number of signed transactions of the mix, or `None` if the mix has none. Each transaction is
    /// sent once, and the scenario ends early once all are sent.
    pub transactions: Option<u64>,
    /// Maximum time that iterations in flight or in the queue may continue after the scenario's end
    /// (k6: gracefulStop).
    pub grace: Duration,
}

impl Scenario {
    /// Returns the duration of all stages together.
    pub fn duration(&self) -> Duration {
        self.stages.iter().map(|stage| stage.duration).sum()
    }

    /// Returns the number of iterations after which the scenario ends early, or `None` without a
    /// limit.
    pub fn iterations_limit(&self) -> Option<u64> {
        self.iterations_max.into_iter().chain(self.transactions).min()
    }
}

settings::choice! {
    /// When iterations start.
    pub enum Model {
        /// Iterations start on schedule. The level of a stage is the number of iterations per
        /// second.
        "open" => Open,
        /// An iteration starts when a worker has ended its previous iteration. The level of a stage
        /// is the number of workers.
        "closed" => Closed,
    }
}

/// A part of a scenario in which the level (iterations per second, or workers) changes linearly.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Index among all stages of the plan. [`crate::record`] counts calls by this index.
    pub index: usize,
    /// Name, which is unique in its scenario.
    pub name: String,
    /// Duration of the stage. If it is zero, the level jumps from `from` to `to`.
    pub duration: Duration,
    /// Level at the start of the stage.
    pub from: f64,
    /// Level at the end of the stage.
    pub to: f64,
}

/// Interpolates linearly between the levels `from` and `to`. `elapsed` and `duration` have the same
/// unit. Returns `to` if `duration` is zero.
pub fn level_at(from: f64, to: f64, elapsed: f64, duration: f64) -> f64 {
    if duration > 0.0 { from + (to - from) * (elapsed / duration) } else { to }
}

impl Stage {
    /// Returns the planned level. `elapsed` is the time since the start of the stage.
    pub fn level(&self, elapsed: Duration) -> f64 {
        level_at(self.from, self.to, elapsed.as_secs_f64(), self.duration.as_secs_f64())
    }
}

/// The requests of one iteration.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Name, which is unique in the plan.
    pub name: String,
    /// The requests of an iteration in order, at least one.
    pub steps: Vec<Step>,
}

impl Mix {
    /// Returns the signed transactions of the mix, or `None` if it has none. A mix with
    /// transactions has no other step.
    pub fn transactions(&self) -> Option<&Arc<Transactions>> {
        self.steps.iter().find_map(|step| match step {
            Step::Transactions(transactions) => Some(transactions),
            Step::Choose(_) | Step::Replay(_) => None,
        })
    }
}

/// A step of an iteration, which sends one request.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends one of these calls, chosen by weight.
    Choose(Vec<WeightedCall>),
    /// Sends the next request of this list. After the last request, the first one follows.
    Replay(Vec<RecordedRequest>),
    /// Sends the next one of these transactions. Each is sent once.
    Transactions(Arc<Transactions>),
}

/// A call with its weight.
#[derive(Clone, Debug)]
pub struct WeightedCall {
    /// Weight of the call, above 0. The share of the call is its weight divided by the sum of the
    /// weights of the step.
    pub weight: f64,
    /// The call that is sent.
    pub template: Template,
}

/// A call. Its parameters may have random parts.
#[derive(Clone, Debug)]
pub struct Template {
    /// Index into [`Plan::methods`].
    pub method: usize,
    /// The JSON text of the parameters, in pieces. Empty for a call without parameters.
    pub params: Vec<Piece>,
}

/// A piece of a parameter text.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Constant text.
    Text(Box<[u8]>),
    /// A value that the engine draws at random for each call.
    Draw(Draw),
}

/// A random value. Blocks, hashes and addresses come from the chain at the start of the run. The
/// head is the chain's newest block at that time, and the recent blocks precede it.
#[derive(Clone, Debug, PartialEq)]
pub enum Draw {
    /// A block number: the number of the head minus a number from the range `behind`. It is written
    /// as `"0x…"`, or as a decimal number for families with decimal block numbers.
    BlockBehind {
        /// Smallest and largest distance from the head, in blocks.
        behind: (u64, u64),
    },
    /// A range of blocks for a log filter, as `"fromBlock":"0x…","toBlock":"0x…"`.
    LogRange {
        /// Number of blocks in the range, at least 1.
        blocks: u64,
        /// Smallest and largest distance of the range's end from the head, in blocks.
        behind: (u64, u64),
    },
    /// Hash of one of the recent blocks, in quotes.
    BlockHash,
    /// Hash of a transaction in one of the recent blocks, in quotes.
    TransactionHash,
    /// One of these addresses, in quotes. If the list is empty, an address from the recent blocks.
    Address(Vec<Box<str>>),
    /// This many random bytes, as `"0x…"`.
    RandomBytes(usize),
    /// One of these JSON texts.
    OneOf(Vec<Box<[u8]>>),
}

/// A recorded request body.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// Method of the first call, as an index into [`Plan::methods`].
    pub method: usize,
    /// Number of calls. It is 1 if the body is not a batch.
    pub calls: usize,
    /// The body, which is sent unchanged.
    pub body: Box<[u8]>,
    /// The id of a single call as JSON text. The response must repeat it. Empty for a batch.
    pub id: Box<[u8]>,
}

impl Reference {
    /// Returns the reference server as a target. It has the timeouts and limits of `target`, but
    /// not its headers.
    pub fn target(&self, target: &Target) -> Target {
        Target {
            url: self.url.clone(),
            family: None,
            headers: authorization(&self.url).into_iter().collect(),
            ..target.clone()
        }
    }
}
