//! What is to be measured, checked: the second of the two stages of a plan.
//!
//! Everything here is ready to run: durations, byte templates, indexes into lists that exist.
//! Nothing is optional where a default exists. The first stage, what was written and where, is
//! `plan/tables.rs`, which alone knows the written form; the step from the first to the second is
//! `plan/checked.rs`. Nothing here opens a socket or reads a clock.
//!
//! [`read`] takes a file's text, [`line::UrlOptions`] the options of a command line, and both take the
//! same way: options are written down as a plan's text first, so that every run can be repeated from
//! the text that its result keeps.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use settings::Diagnostics;
use toml::de::DeTable;
use wire::family::Family;

use self::tables::PlanFile;
use crate::plan::threshold::Threshold;

pub mod line;
pub mod lint;
pub mod planned;
pub mod reference;
pub mod shipped;
pub mod summary;
pub mod threshold;

mod checked;
mod kept;
mod objectives;
mod params;
mod requests;
mod tables;
mod values;

pub use checked::whole_seconds;
pub use settings::url::NodeUrl;
pub use tables::{Batch, Capacity, Reference, Validity, Watch};

#[cfg(test)]
mod tests;

/// Reads a plan. `name` is the file's name as diagnostics show it, and files that the plan names are
/// looked for in its folder; `variables` replace the plan's own of the same name.
///
/// # Errors
/// Every problem of the plan at once, each with its place and what is allowed.
pub fn read(text: &str, name: &str, variables: &[(String, f64)]) -> Result<Plan, Diagnostics> {
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    read_in(&World::real(folder, variables), text, name)
}

fn read_in(world: &World<'_>, text: &str, name: &str) -> Result<Plan, Diagnostics> {
    let (file, mut report) = settings::read::<PlanFile>(text, name, &world.settings());
    let Some(file) = file else { return Err(report.finish()) };
    let Some(mut plan) = checked::check(&file, name, world, &mut report) else {
        return Err(report.finish());
    };
    let given = file.variables.iter().filter(|variable| world.gives(&variable.name));
    // The form with an exponent keeps large numbers within TOML's.
    let number = |value: f64| format!("{value:?}");
    let replaced: Vec<_> =
        given.filter_map(|one| Some((one.at.span.clone()?, number(one.value)))).collect();
    plan.text = kept::text(text, &report, &replaced);
    Ok(plan)
}

/// Returns true if a text is meant as a plan, and not as a gateway's configuration: it has a table
/// that only plans have.
pub fn is_plan(text: &str) -> bool {
    const OWN: [&str; 7] =
        ["scenario", "target", "mix", "thresholds", "validity", "capacity", "variables"];
    let (table, _) = DeTable::parse_recoverable(text);
    OWN.iter().any(|key| table.get_ref().contains_key(*key))
}

/// What a plan may look at outside of its text, once, while it is read.
struct World<'a> {
    /// Where relative file names begin.
    folder: PathBuf,
    /// The environment.
    environment: &'a dyn Fn(&str) -> Option<String>,
    /// Variables whose values hold in place of the plan's.
    variables: &'a [(String, f64)],
    /// Whether there are files at all.
    files: bool,
}

impl<'a> World<'a> {
    fn real(folder: &Path, variables: &'a [(String, f64)]) -> World<'a> {
        World {
            folder: folder.to_owned(),
            environment: &|name| std::env::var(name).ok(),
            variables,
            files: true,
        }
    }

    /// Without files, environment and variables.
    fn closed() -> World<'static> {
        World { folder: PathBuf::new(), environment: &|_| None, variables: &[], files: false }
    }

    fn settings(&self) -> settings::World<'_> {
        settings::World::new(&self.folder, self.environment).with_formulas(self.variables)
    }

    /// Returns true if a variable's value is given.
    fn gives(&self, name: &str) -> bool {
        self.variables.iter().any(|(given, _)| given == name)
    }

    /// The bytes of a file, or of standard input for `-`.
    fn bytes(&self, name: &str, bytes_max: usize) -> Result<Vec<u8>, String> {
        use std::io::Read;
        static INPUT: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
        if !self.files {
            return Err("no file can be named here".to_owned());
        }
        let path = self.folder.join(name);
        let read = |source: &mut dyn Read| {
            let mut bytes = Vec::new();
            source.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map(|_| bytes)
        };
        let bytes = match name {
            // Once: options are read again when the target's family is known.
            "-" => INPUT
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

    fn text(&self, name: &str, bytes_max: usize) -> Result<String, String> {
        let bytes = self.bytes(name, bytes_max)?;
        String::from_utf8(bytes).map_err(|_| format!("{name} is not text in utf-8"))
    }
}

/// One plan: everything that a run does and is judged by.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Shown in reports; from the file's name if it has none of its own.
    pub name: String,
    /// The plan as it was written, kept in the result so that a run can be repeated.
    pub text: String,
    /// Who is loaded, and how it is reached.
    pub target: Target,
    /// How connections are made and used.
    pub connections: Connections,
    /// All randomness of the run comes from this.
    pub seed: u64,
    /// Engine threads; at least 1.
    pub threads: usize,
    /// Names of all methods that the run may call; a [`Template`]'s `method` is an index into it.
    pub methods: Vec<Box<str>>,
    /// All mixes; a [`Scenario`]'s `mix` is an index into it.
    pub mixes: Vec<Mix>,
    /// At least one. They run at the same time, each from its own start.
    pub scenarios: Vec<Scenario>,
    /// What the run must keep; judged over everything after [`Plan::warmup`].
    pub thresholds: Vec<Threshold>,
    /// From the start of the run, measured and shown but not judged.
    pub warmup: Duration,
    /// When the numbers may be believed.
    pub validity: Validity,
    /// Whom answers are compared with, if with anyone.
    pub reference: Option<Reference>,
    /// What is watched on hosts during the run.
    pub watch: Watch,
    /// How `weir capacity` searches.
    pub capacity: Capacity,
    /// What is allowed but looks like a mistake.
    pub warnings: Vec<String>,
}

impl Plan {
    /// When the last scenario ends, without the grace for calls under way.
    pub fn duration(&self) -> Duration {
        let end = |scenario: &Scenario| scenario.start + scenario.duration();
        self.scenarios.iter().map(end).max().unwrap_or_default()
    }

    /// All stages of all scenarios, in the order of their indexes.
    pub fn stages(&self) -> impl Iterator<Item = (&Scenario, &Stage)> {
        self.scenarios
            .iter()
            .flat_map(|scenario| scenario.stages.iter().map(move |s| (scenario, s)))
    }

    /// All stages in the order of their indexes, with when they last.
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

/// When a stage lasts, since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its start.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
}

impl Span {
    /// Time that it shares with `from..to`.
    pub fn overlap(self, from: Duration, to: Duration) -> Duration {
        self.to.min(to).saturating_sub(self.from.max(from))
    }
}

/// Who is loaded.
#[derive(Clone, Debug)]
pub struct Target {
    /// An `http://` or `https://` URL.
    pub url: NodeUrl,
    /// Which methods it understands; none if that is to be found out.
    pub family: Option<Family>,
    /// Further request headers, such as `authorization`; values may be secret.
    pub headers: Vec<(String, String)>,
    /// How long an answer may take from the real send; a call past it is of class timeout.
    pub timeout: Duration,
    /// How long making a connection, TLS included, may take.
    pub connect_timeout: Duration,
    /// Bytes of one answer; a longer one is malformed.
    pub answer_bytes_max: usize,
}

impl Target {
    /// Puts another URL in the place of the plan's; headers that the plan sets stay.
    ///
    /// # Errors
    /// What is wrong with the URL, in words that hold no part of it.
    pub fn point_at(&mut self, url: &str) -> Result<(), &'static str> {
        let url = NodeUrl::parse_http(url)?;
        // The user part of the old URL is for the old target alone.
        let old = authorization(&self.url);
        self.headers.retain(|header| Some(header) != old.as_ref());
        self.url = url;
        self.authorize();
        Ok(())
    }

    /// Adds the header that the URL's user part stands for, unless the plan sets it.
    fn authorize(&mut self) {
        if !self.headers.iter().any(|(name, _)| name == "authorization") {
            self.headers.extend(authorization(&self.url));
        }
    }
}

/// The header that the user part of a URL stands for.
fn authorization(url: &NodeUrl) -> Option<(String, String)> {
    let value = url.authorization()?.to_str().expect("it is base64");
    Some(("authorization".to_owned(), value.to_owned()))
}

/// How connections are made and used.
#[derive(Clone, Debug)]
pub struct Connections {
    /// HTTP version.
    pub http: HttpVersion,
    /// How often a connection is used.
    pub reuse: Reuse,
    /// TLS settings; without meaning for plain targets.
    pub tls: Tls,
}

settings::choice! {
    /// HTTP version.
    pub enum HttpVersion {
        /// HTTP/1.1, one request at a time on a connection.
        "1.1" => Http1,
        /// HTTP/2, one request at a time on a stream, all workers of a thread share its connections.
        "2" => Http2,
    }
}

/// How often a connection is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Until the server closes it.
    Always,
    /// Once: `connection: close`.
    Never,
    /// This many requests, at least 1; then it is closed by us.
    Requests(u32),
}

/// TLS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whether sessions are resumed on new connections.
    pub resume: bool,
    /// The only version to offer, if not both.
    pub version: Option<TlsVersion>,
    /// The only cipher suites to offer, by IANA or OpenSSL name; empty for the library's choice.
    pub ciphers: Vec<String>,
    /// Whether certificates are not checked.
    pub insecure: bool,
    /// PEM file of further trust anchors.
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

/// One stream of iterations.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Unique in the plan.
    pub name: String,
    /// Offset of its first stage from the start of the run.
    pub start: Duration,
    /// Whether iterations come by the clock or when a worker is free.
    pub model: Model,
    /// At least one; in order of time.
    pub stages: Vec<Stage>,
    /// Index into [`Plan::mixes`].
    pub mix: usize,
    /// A worker runs one iteration at a time on a connection of its own (k6: VU).
    pub workers_max: usize,
    /// Wait of a worker after each iteration (closed model only).
    pub pause: Duration,
    /// Batches, if any.
    pub batch: Option<Batch>,
    /// Stop after this many iterations, if that comes first.
    pub iterations_max: Option<u64>,
    /// How long iterations under way may go on after the end (k6: gracefulStop).
    pub grace: Duration,
}

impl Scenario {
    /// All stages together.
    pub fn duration(&self) -> Duration {
        self.stages.iter().map(|stage| stage.duration).sum()
    }
}

/// Whether iterations come by the clock or when a worker is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// By arrival rate: a stage's level is iterations per second.
    Open {
        /// What happens when an iteration is due and no worker is free.
        late: Late,
    },
    /// By concurrency: a stage's level is workers.
    Closed,
}

/// What happens when an iteration is due and no worker is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It waits, and its latency counts from when it was due. Past this many it is dropped.
    Queue {
        /// Iterations that may wait, over all threads.
        max: usize,
    },
    /// It is dropped and counted (k6: dropped_iterations).
    Drop,
}

/// A part of a scenario with one planned, linear course of its level.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Index over all stages of the plan; what is recorded names it.
    pub index: usize,
    /// Unique in its scenario.
    pub name: String,
    /// May be zero: a step.
    pub duration: Duration,
    /// Level at its start: iterations per second, or workers.
    pub from: f64,
    /// Level at its end.
    pub to: f64,
}

/// The level that changes evenly between two, at a part of the way; at the end of one without length.
pub fn level_at(from: f64, to: f64, passed: f64, whole: f64) -> f64 {
    if whole > 0.0 { from + (to - from) * (passed / whole) } else { to }
}

impl Stage {
    /// Its planned level so long after its start.
    pub fn level(&self, passed: Duration) -> f64 {
        level_at(self.from, self.to, passed.as_secs_f64(), self.duration.as_secs_f64())
    }
}

/// What one iteration does.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Unique in the plan.
    pub name: String,
    /// At least one; in order. Each is one request.
    pub steps: Vec<Step>,
}

/// One request of an iteration.
#[derive(Clone, Debug)]
pub enum Step {
    /// One of several calls by weight; one alone is a fixed call.
    Choose(Vec<Weighted>),
    /// The next body of a list, in order, from the start again at its end.
    Replay(Vec<Recorded>),
}

/// A call with its weight.
#[derive(Clone, Debug)]
pub struct Weighted {
    /// Above 0; shares are weights by their sum.
    pub weight: f64,
    /// The call.
    pub template: Template,
}

/// A call whose parameters may be drawn anew each time.
#[derive(Clone, Debug)]
pub struct Template {
    /// Index into [`Plan::methods`].
    pub method: usize,
    /// The JSON text of the parameters, in pieces; empty for a call without parameters.
    pub params: Vec<Piece>,
}

/// A part of a parameter text.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// As it stands.
    Text(Box<[u8]>),
    /// Drawn for each call.
    Draw(Draw),
}

/// What is drawn for a call. Blocks and hashes come from the chain as it was when the run began.
#[derive(Clone, Debug, PartialEq)]
pub enum Draw {
    /// A block number: head minus a number from this range, as `"0x…"`, or decimal for families that
    /// write numbers so.
    BlockBehind {
        /// Smallest and largest distance from the head.
        behind: (u64, u64),
    },
    /// A range of blocks for a log filter, as `"fromBlock":"0x…","toBlock":"0x…"`.
    LogRange {
        /// Blocks in the range; at least 1.
        blocks: u64,
        /// Smallest and largest distance of the range's end from the head.
        behind: (u64, u64),
    },
    /// Hash of one of the recent blocks, in quotes.
    BlockHash,
    /// Hash of a transaction in one of the recent blocks, in quotes.
    TransactionHash,
    /// One of these addresses, in quotes; if empty, one seen in the recent blocks.
    Address(Vec<Box<str>>),
    /// Random bytes as `"0x…"`.
    RandomBytes(usize),
    /// One of these JSON texts.
    OneOf(Vec<Box<[u8]>>),
}

/// A request body as it was recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Index into [`Plan::methods`], of its first call.
    pub method: usize,
    /// Calls in it; 1 unless it is a batch.
    pub calls: usize,
    /// The body, sent as it is.
    pub body: Box<[u8]>,
    /// The raw id of a single call, by which its answer is checked.
    pub id: Box<[u8]>,
}

impl Reference {
    /// The reference as a target, with the timeouts of `like` but none of its headers.
    pub fn target(&self, like: &Target) -> Target {
        Target {
            url: self.url.clone(),
            family: None,
            headers: authorization(&self.url).into_iter().collect(),
            ..like.clone()
        }
    }
}
