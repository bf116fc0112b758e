//! Study files of load runs: the variants, their plans and servers, and the arrangement of the
//! runs.
//!
//! The tables below declare the keys of the file, one per line: `KEY: TYPE = DEFAULT;`. A
//! `required` key must be set. `described "TEXT"` is an optional key, whose absence means TEXT. The
//! tables are also the source of `docs/load-study-file.md`. A `choice!` declares an enum, and the
//! words that stand for its values in the file. `file/check.rs` checks the values, and `runner.rs`
//! runs a study.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use aws_lc_rs::digest;
use lab_model::plan::Plan;
use lab_model::results::compare::Metric;
use lab_model::results::load_study::{Restart, RunOrder, VariantFacts};
use settings::url::{self, NodeUrl};
use settings::value::{
    AnyString, Bool, Duration as Period, File, Integer, List, Listed, Map, Name, NonEmptyString,
    Number, Once,
};
use settings::{Diagnostics, ReadContext};

use crate::analysis::rounds;
use crate::distinct;
use crate::run::RUN_OVERHEAD;
use crate::study::placeholders::{self, PlaceholderValues};
use cases::{Case, CaseTable};
use check::Checker;
pub use ratios::RatioLimit;
use ratios::RatioMaxTable;

pub mod cases;
mod check;
mod ratios;
mod summary;
#[cfg(test)]
mod tests;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Largest value of a plan's variable, in thousandths: the bounds of the type `Number` are in
/// thousandths.
const VARIABLE_MAX: i64 = 1_000_000_000_000_000;

settings::choice! {
    /// Order of the variants within the rounds.
    pub OrderName for RunOrder { "abba" => Abba, "latin-square" => LatinSquare, }
}

settings::choice! {
    /// When the servers of the variants are restarted.
    pub RestartName for Restart { "never" => Never, "round" => Round, "run" => Run, }
}

settings::choice! {
    /// The metric whose intervals decide if a further round is needed.
    pub enum PreciseMetric {
        /// Median latency.
        "latency_p50" => P50,
        /// 95th percentile of the latency.
        "latency_p95" => P95,
        /// 99th percentile of the latency.
        "latency_p99" => P99,
        /// Results per second.
        "goodput" => Goodput,
    }
}

impl PreciseMetric {
    /// The compared metric.
    pub const fn metric(self) -> Metric {
        match self {
            PreciseMetric::P50 => Metric::LatencyP50,
            PreciseMetric::P95 => Metric::LatencyP95,
            PreciseMetric::P99 => Metric::LatencyP99,
            PreciseMetric::Goodput => Metric::Goodput,
        }
    }
}

settings::choice! {
    /// Kind of the study.
    pub enum LoadKind {
        /// Which variant responds faster, holds more, fails less.
        "load" => Load,
    }
}

// Declares a type of values that are written as a string. After the `=` come the function that
// checks a value, the words for messages, an example, and the function that masks secrets.
settings::string_scalar! {
    /// The URL of a target, which may have placeholders.
    pub TargetUrl: String = check_target, "a url",
        "http[s]://host[:port][/path] or ws[s]://…, with {port.NAME} in place of a port",
        "http://127.0.0.1:8545",
        mask |text: &str| Some(format!("\"{}\"", url::mask_around_references(text)));
}

/// Checks a URL, with an arbitrary port in place of each placeholder, and returns the URL.
fn check_target(text: &str) -> Result<String, &'static str> {
    // `Checker::check_target_of_cases` checks such a URL with the values of each case.
    if placeholders::names(text).any(placeholders::is_case_value) {
        return Ok(text.to_owned());
    }
    NodeUrl::parse_remote(&placeholders::replace_by_port(text)).map(|_| text.to_owned())
}

settings::table! {
    /// The variants of a study and the arrangement of their runs.
    pub struct LoadStudyFile {
        /// Kind of the study.
        study: LoadKind = required;
        /// Its name, printed in reports.
        name: Name = required;
        /// The question that it answers, printed at the top of the report.
        question: NonEmptyString = described "none";
        /// Load plans. In each round every variant runs under each of them.
        plans: List<File> = described "each variant has its own";
        /// Values of the plans' variables.
        variables: Map<Number<{ -VARIABLE_MAX }, VARIABLE_MAX>> = empty;
        /// Order of the variants: `abba` reverses every second round; `latin-square` gives each
        /// variant each position and each predecessor equally often.
        order: OrderName = "abba";
        /// True if the first variant runs a second time in each round, as the A/A control. The
        /// difference between the two is the smallest difference that counts.
        control: Bool = "true";
        /// Rounds before the first counted one, whose results are discarded. An interrupted study
        /// runs them again when it continues.
        warm_up_rounds: Integer<0, 100, usize> = "1";
        /// Smallest number of counted rounds before `precision` can end the study.
        rounds_min: Integer<1, 1000, usize> = "6";
        /// Largest number of counted rounds.
        rounds_max: Integer<1, 1000, usize> = "40";
        /// The study ends once the 95 % intervals of all methods and variants are at most this
        /// share wide on each side: 0.05 is ±5 %.
        precision: Number<1, 1000> = "0.05";
        /// The metric to which `precision` applies.
        precision_of: PreciseMetric = "latency_p50";
        /// Time limit. No round starts that would exceed it, except the first.
        time_max: Period<1000, { 30 * DAY_MS }> = "1h";
        /// When the servers of the variants are restarted: `never`, before each `round`, or before
        /// each `run`. With `run`, only the servers of one variant run at a time.
        restart: RestartName = "never";
        /// Pause before each run.
        pause: Period<0, HOUR_MS> = "1s";
        /// Cases: each is a load, with values for the texts of the variants. In each round every
        /// variant runs in each case.
        case: Listed<CaseTable> = empty;
        /// Servers that all variants share. They start before the first round and are stopped after
        /// the last one.
        server: Listed<ServerTable> = empty;
        /// The variants. The others are compared with the first.
        variant: Listed<VariantTable> = required;
    }
}

settings::table! {
    /// One variant: a target, with the servers that the study starts for it. Its commands, files
    /// and URLs may contain placeholders: `{weir}` is this program, `{dir}` the folder of the
    /// variant's files, `{variant}` the variant's name, and `{port.NAME}` a free port, which is the
    /// same in all texts of the variant. A port that a shared server uses is the same in all
    /// variants.
    pub struct VariantTable {
        /// Its name, also that of its folder of results.
        name: Name = required;
        /// URL that is load-tested.
        target: TargetUrl = described "the plan's target";
        /// Load plans in place of the study's: as many as the other variants have, in the same
        /// order. The first plan of one variant is compared with the first plan of the others.
        plans: List<File> = described "the study's";
        /// Values of the plans' variables. Each replaces the study's value of that variable.
        variables: Map<Number<{ -VARIABLE_MAX }, VARIABLE_MAX>> = empty;
        /// Largest ratios to the first variant.
        ratio_max: Once<RatioMaxTable> = empty;
        /// Its servers, in the order of their start.
        server: Listed<ServerTable> = empty;
    }
}

settings::table! {
    /// A server that the study starts: a gateway, nginx, a node.
    pub struct ServerTable {
        /// Its name, for messages.
        name: Name = required;
        /// Its command line: a list of words with placeholders.
        command: List<AnyString> = required;
        /// Texts of files by name, with placeholders. They are written to `{dir}` before each
        /// start, which empties the folder.
        files: Map<AnyString> = empty;
        /// Additional environment variables.
        env: Map<AnyString> = empty;
        /// `HOST:PORT` that accepts connections once the server is ready.
        ready: NonEmptyString = described "the port of the variant's target, after the last server";
        /// Longest wait for `ready`.
        ready_timeout: Period<100, HOUR_MS> = "1m";
        /// Path of its access log, with placeholders. Weir compares the number of requests in it
        /// with the number that the load generator counted. Each line must begin with
        /// `$msec $status $http_user_agent`; nginx and the gateway have these variables.
        access_log: NonEmptyString = described "none";
    }
}

/// A valid study.
#[derive(Clone, Debug)]
pub struct LoadStudy {
    /// The keys of the file.
    pub file: LoadStudyFile,
    /// Names of the plans, or of the cases.
    pub plans: Vec<String>,
    /// The cases, one for each of [`LoadStudy::plans`]; empty if the study has no cases.
    pub cases: Vec<Case>,
    /// Cases that need more CPUs than this machine has, each with the reason.
    pub cases_left_out: Vec<String>,
    /// The variants in the order of the file. The A/A control is the last one.
    pub variants: Vec<StudyVariant>,
    /// The largest allowed ratios to the first variant.
    pub ratio_limits: Vec<RatioLimit>,
    /// SHA-256, in hexadecimal, of everything that defines the runs. Runs of studies with equal
    /// hashes belong together.
    pub hash: String,
}

/// One variant.
#[derive(Clone, Debug)]
pub struct StudyVariant {
    /// Name of the variant.
    pub name: String,
    /// Index of the variant that the A/A control repeats. `None` for other variants.
    pub control_of: Option<usize>,
    /// URL of the target with placeholders. `None` if the plan's target is used.
    pub target: Option<String>,
    /// File names of the plans.
    pub plan_files: Vec<String>,
    /// Values of the plans' variables.
    pub variables: Vec<(String, f64)>,
    /// The variant's plans, one for each of [`LoadStudy::plans`].
    pub plans: Vec<Plan>,
    /// The variant's servers, in the order of their start.
    pub servers: Vec<ServerTable>,
}

/// Returns true if a text is a study of load runs: its top-level key `study` is `load`.
pub fn is_load_study(text: &str) -> bool {
    let table = text.parse::<toml::Table>();
    table.is_ok_and(|table| table.get("study").and_then(toml::Value::as_str) == Some("load"))
}

/// Returns the text of `docs/load-study-file.md`.
pub fn reference() -> String {
    format!(
        "# Load study files\n\n<!-- Printed by `cargo xtask generate` from \
         crates/lab/src/study/load/file.rs. Do not edit. -->\n\n`weir study load STUDY.toml` runs a \
         study of load runs; `weir check STUDY.toml` validates it, and `weir study load --dry-run \
         STUDY.toml` prints the order of its runs. \
         [load-study-file.schema.json](load-study-file.schema.json) lets editors complete its keys. \
         [load-studies.md](load-studies.md) explains how to use study files.\n{}",
        settings::reference::markdown::<LoadStudyFile>()
    )
}

/// Returns the text of `docs/load-study-file.schema.json`.
pub fn schema() -> String {
    let schema = settings::schema::document::<LoadStudyFile>(
        "load-study-file.schema.json",
        "Weir load study file",
    );
    format!("{schema:#}\n")
}

/// Reads a study file and its plans. `name` is the file's name in diagnostics; relative file names
/// start at its folder. `overrides` replace values of the plans' variables in all variants.
///
/// # Errors
/// Returns all problems of the file and of its plans, in the order of the text.
pub fn read(text: &str, name: &str, overrides: &[(String, f64)]) -> Result<LoadStudy, Diagnostics> {
    let environment = |name: &str| std::env::var(name).ok();
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let context = ReadContext::new(folder, &environment);
    let (file, mut report) = settings::read::<LoadStudyFile>(text, name, &context);
    let study = file.map(|file| {
        let faulty_plans = BTreeSet::new();
        let cases = Vec::new();
        Checker { folder, overrides, report: &mut report, faulty_plans, cases }.check(file)
    });
    match study {
        Some(study) if !report.has_errors() => Ok(study),
        _ => Err(report.finish()),
    }
}

impl ServerTable {
    /// Returns all texts that may contain placeholders.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let texts = self.command.iter().chain(self.files.values()).chain(self.env.values());
        let optional = self.ready.iter().chain(self.access_log.iter());
        texts.chain(optional).map(String::as_str)
    }

    /// Appends the settings that define the server to the input of a hash.
    fn write(&self, hash_input: &mut String) {
        hash_input.push_str(&format!("{:?}", (&self.name, &self.command, &self.files, &self.env)));
        self.access_log.iter().for_each(|path| hash_input.push_str(path));
    }
}

/// Returns the name of the A/A control, which repeats the first variant.
fn control_name(first_variant: &str) -> String {
    format!("{first_variant}-control")
}

/// Returns the file names of plans without folder and extension.
fn plan_names(files: &[String]) -> Vec<String> {
    let name = |file: &String| {
        let stem = Path::new(file).file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    };
    files.iter().map(name).collect()
}

/// Hashes the settings that define the runs. Omits the limits, the name and the question, because
/// they may change before an interrupted study continues.
fn hash_runs(file: &LoadStudyFile, cases: &[Case], variants: &[StudyVariant]) -> String {
    let mut hash_input = format!("{:?} {:?} ", file.order, file.restart);
    cases.iter().for_each(|case| hash_input.push_str(&format!("{case:?}")));
    file.server.iter().for_each(|server| server.write(&mut hash_input));
    for variant in variants {
        let StudyVariant { name, target, variables, plans, servers, .. } = variant;
        hash_input.push_str(&format!("{:?}", (name, target, variables)));
        plans.iter().for_each(|plan| hash_input.push_str(&plan.text));
        servers.iter().for_each(|server| server.write(&mut hash_input));
    }
    sha256(&hash_input)
}

/// Returns the SHA-256 of a text in hexadecimal.
fn sha256(text: &str) -> String {
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl StudyVariant {
    /// Returns the URL of the target with placeholders, and with secrets masked.
    fn masked_target(&self) -> Option<String> {
        let target = self.target.as_deref()?;
        if placeholders::names(target).any(placeholders::is_case_value) {
            // The text after the first placeholder may contain a secret.
            let end = target.find('}').map_or(target.len(), |end| end + 1);
            return Some(target[..end].to_owned());
        }
        // `mask_url` needs a valid URL. A distinct number therefore replaces each placeholder of a
        // port while the URL is masked.
        let port_numbers: PlaceholderValues = placeholders::names(target)
            .zip((1..=u16::MAX).rev())
            .map(|(name, port)| (name.to_owned(), port.to_string()))
            .collect();
        let masked = url::mask_url(&placeholders::replace(target, &port_numbers));
        let restore_placeholder = |masked: String, (name, port): (&String, &String)| {
            masked.replacen(&format!(":{port}"), &format!(":{{{name}}}"), 1)
        };
        Some(port_numbers.iter().fold(masked, restore_placeholder))
    }

    /// Describes the variant for the result.
    pub(super) fn facts(&self, variants: &[StudyVariant]) -> VariantFacts {
        let mut hash_input = String::new();
        self.servers.iter().for_each(|server| server.write(&mut hash_input));
        VariantFacts {
            name: self.name.clone(),
            control_of: self.control_of.map(|index| variants[index].name.clone()),
            target: self.masked_target(),
            plans: distinct(self.plan_files.iter().cloned()),
            variables: self.variables.clone(),
            servers: self.servers.iter().map(|server| server.name.to_string()).collect(),
            servers_hash: (!self.servers.is_empty()).then(|| sha256(&hash_input)),
        }
    }
}

impl LoadStudy {
    /// Returns the limits of the study.
    pub fn limits(&self) -> rounds::Limits {
        rounds::Limits {
            rounds_min: *self.file.rounds_min,
            rounds_max: *self.file.rounds_max,
            time_max: *self.file.time_max,
            block: rounds::rounds_per_balanced_order(*self.file.order, self.variants.len()),
        }
    }

    /// Returns the indexes of the variants in their order in a round. Rounds count from 0.
    pub fn order(&self, round: usize) -> Vec<usize> {
        rounds::order(*self.file.order, self.variants.len(), round)
    }

    /// Returns the planned time of a round, without the start of servers.
    pub fn round_time(&self) -> Duration {
        let plans = self.variants.iter().flat_map(|variant| &variant.plans);
        plans.map(|plan| plan.duration() + RUN_OVERHEAD + *self.file.pause).sum()
    }

    /// Returns all pairs of a plan and a variant, by index.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let variants = self.variants.len();
        (0..self.plans.len())
            .flat_map(move |plan| (0..variants).map(move |variant| (plan, variant)))
    }

    /// Returns true if the variants differ in their plans or in the values of variables.
    pub fn loads_differ(&self) -> bool {
        let load = |variant: &StudyVariant| {
            let texts = variant.plans.iter().map(|plan| plan.text.clone());
            (texts.collect::<Vec<_>>(), variant.variables.clone())
        };
        self.variants.windows(2).any(|pair| load(&pair[0]) != load(&pair[1]))
    }

    /// Returns the distinct warnings of all plans, each with the plan's name.
    pub fn warnings(&self) -> Vec<String> {
        distinct(self.pairs().flat_map(|(plan, variant)| {
            let warnings = self.variants[variant].plans[plan].warnings.iter();
            warnings.map(move |warning| format!("{}: {warning}", self.plans[plan]))
        }))
    }
}
