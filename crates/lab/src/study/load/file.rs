//! Study files of load runs: the variants, their plans and servers, and how their runs are
//! arranged.
//!
//! The tables below declare the keys of the file; `docs/load-study-file.md` is generated from them.
//! `runner.rs` runs a study.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest;
use lab_model::plan::{self, Plan};
use lab_model::results::compare::Metric;
use lab_model::results::load_study::{Restart, RunOrder, VariantFacts};
use settings::url::{self, NodeUrl};
use settings::value::{
    Bool, Count, Duration as Period, File, List, Listed, Map, Name, Number, Text, Word,
};
use settings::{Diagnostics, Key, Location, ReadContext, Report};

use super::placeholders::{self, PlaceholderValues};
use crate::analysis::rounds;
use crate::wording::number::{plural, span};
use cases::{Case, CaseTable};

pub mod cases;
#[cfg(test)]
mod tests;

/// Number of variants without the A/A control.
const VARIANTS: RangeInclusive<usize> = 1..=16;
/// Number of plans of a variant.
const PLANS: RangeInclusive<usize> = 1..=16;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Largest value of a plan's variable, in thousandths.
const VARIABLE_MAX: i64 = 1_000_000_000_000_000;
/// Time of a run without load: the calls to the target before and after it, and samples of the idle
/// hosts.
const RUN_OVERHEAD: Duration = Duration::from_secs(2);
/// Rounds that a summary lists.
const LISTED_MAX: usize = 12;
/// A port in place of the placeholder of a port, while a URL is checked.
const ANY_PORT: &str = "1";

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
    pub PreciseMetric for PreciseOf {
        "latency_p50" => P50,
        "latency_p95" => P95,
        "latency_p99" => P99,
        "goodput" => Goodput,
    }
}

/// The metric whose intervals decide if a further round is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreciseOf {
    /// Median latency.
    P50,
    /// 95th percentile of the latency.
    P95,
    /// 99th percentile of the latency.
    P99,
    /// Results per second.
    Goodput,
}

impl PreciseOf {
    /// The compared metric.
    pub const fn metric(self) -> Metric {
        match self {
            PreciseOf::P50 => Metric::LatencyP50,
            PreciseOf::P95 => Metric::LatencyP95,
            PreciseOf::P99 => Metric::LatencyP99,
            PreciseOf::Goodput => Metric::Goodput,
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

settings::text! {
    /// The URL of a target, which may have placeholders.
    pub TargetUrl: String = target, "a url",
        "http://host[:port][/path] or https://…, with {port.NAME} in place of a port",
        "http://127.0.0.1:8545",
        mask |text: &str| Some(format!("\"{}\"", url::mask_around_references(text)));
}

/// Checks a URL with any values in place of its placeholders.
fn target(text: &str) -> Result<String, &'static str> {
    // It is checked with the values of each case.
    if placeholders::names(text).any(placeholders::is_of_case) {
        return Ok(text.to_owned());
    }
    let values: PlaceholderValues =
        placeholders::names(text).map(|name| (name.to_owned(), ANY_PORT.to_owned())).collect();
    NodeUrl::parse_http(&placeholders::replace(text, &values)).map(|_| text.to_owned())
}

settings::table! {
    /// The variants of a study and the arrangement of their runs.
    pub struct LoadStudyFile {
        /// Kind of the study.
        study: LoadKind = required;
        /// Its name, printed in reports.
        name: Name = required;
        /// The question that it answers, printed at the top of the report.
        question: Text = described "none";
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
        warm_up_rounds: Count<0, 100, usize> = "1";
        /// Smallest number of counted rounds before `precision` can end the study.
        rounds_min: Count<1, 1000, usize> = "6";
        /// Largest number of counted rounds.
        rounds_max: Count<1, 1000, usize> = "40";
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
    /// One variant: a target, with the servers that the study starts for it. Its commands, files and
    /// URLs may contain placeholders: `{weir}` is this program, `{dir}` the folder of the variant's
    /// files, `{variant}` the variant's name, and `{port.NAME}` a free port, which is the same in all
    /// texts of the variant. A port that a shared server uses is the same in all variants.
    pub struct VariantTable {
        /// Its name, also that of its folder of results.
        name: Name = required;
        /// URL that is load-tested.
        target: TargetUrl = described "the plan's target";
        /// Load plans in place of the study's: as many as the other variants have, in the same
        /// order. The first plan of one variant is compared with the first plan of the others.
        plans: List<File> = described "the study's";
        /// Values of the plans' variables, besides the study's.
        variables: Map<Number<{ -VARIABLE_MAX }, VARIABLE_MAX>> = empty;
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
        command: List<Word> = required;
        /// Texts of files by name, with placeholders. They are written to `{dir}` before each start,
        /// which empties the folder.
        files: Map<Word> = empty;
        /// Additional environment variables.
        env: Map<Word> = empty;
        /// `HOST:PORT` that accepts connections once the server is ready.
        ready: Text = described "the port of the variant's target, after the last server";
        /// Longest wait for `ready`.
        ready_timeout: Period<100, HOUR_MS> = "1m";
        /// Its access log, with placeholders. Weir compares the number of requests in it with the
        /// number that the load generator counted. Each line begins with
        /// `$msec $status $http_user_agent`, in the words of nginx and of the gateway.
        access_log: Text = described "none";
    }
}

/// A valid study.
#[derive(Clone, Debug)]
pub struct LoadStudy {
    /// The keys of the file.
    pub file: LoadStudyFile,
    /// The servers that all variants share.
    pub servers: Vec<Server>,
    /// Names of the plans, or of the cases.
    pub plans: Vec<String>,
    /// The cases, one for each of [`LoadStudy::plans`]; empty if the study has no cases.
    pub cases: Vec<Case>,
    /// Cases that need more CPUs than this machine has, each with the reason.
    pub cases_left_out: Vec<String>,
    /// The variants in the order of the file. The A/A control is the last one.
    pub variants: Vec<StudyVariant>,
    /// SHA-256, in hexadecimal, of everything that defines the runs. Runs of studies with equal
    /// hashes belong together.
    pub hash: String,
}

/// One variant.
#[derive(Clone, Debug)]
pub struct StudyVariant {
    /// Its name.
    pub name: String,
    /// Index of the variant that it repeats, for the A/A control.
    pub control_of: Option<usize>,
    /// URL of the target with placeholders; none if the plan's target is used.
    pub target: Option<String>,
    /// File names of the plans.
    pub plan_files: Vec<String>,
    /// Values of the plans' variables.
    pub variables: Vec<(String, f64)>,
    /// Its plans, one for each of [`LoadStudy::plans`].
    pub plans: Vec<Plan>,
    /// Its servers.
    pub servers: Vec<Server>,
}

/// A server that the study starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Command line with placeholders.
    pub command: Vec<String>,
    /// Texts of files by name, with placeholders.
    pub files: BTreeMap<String, String>,
    /// Additional environment variables, with placeholders.
    pub env: BTreeMap<String, String>,
    /// Address that accepts connections once it is ready, with placeholders.
    pub ready: Option<String>,
    /// Longest wait for it.
    pub ready_timeout: Duration,
    /// Its access log, with placeholders.
    pub access_log: Option<String>,
}

/// Returns true if a text is a study of load runs: its top-level key `study` is `load`.
pub fn is_load_study(text: &str) -> bool {
    let table = text.parse::<toml::Table>();
    table.is_ok_and(|table| table.get("study").and_then(toml::Value::as_str) == Some("load"))
}

/// The text of `docs/load-study-file.md`.
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

/// The text of `docs/load-study-file.schema.json`.
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
    let world = ReadContext::new(folder, &environment);
    let (file, mut report) = settings::read::<LoadStudyFile>(text, name, &world);
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

struct Checker<'c, 'r> {
    folder: &'c Path,
    overrides: &'c [(String, f64)],
    report: &'c mut Report<'r>,
    /// Plans whose problems are in the report.
    faulty_plans: BTreeSet<PathBuf>,
    /// The cases that this machine can run.
    cases: Vec<Case>,
}

/// A plan that a variant runs under.
struct PlanUse {
    file: String,
    location: Location,
    /// Values of the case for the plan's variables.
    variables: Vec<(String, f64)>,
}

impl Checker<'_, '_> {
    fn check(&mut self, file: LoadStudyFile) -> LoadStudy {
        let cases_left_out = self.read_cases(&file);
        let servers: Vec<Server> = file.server.iter().map(|table| self.server(table)).collect();
        let mut variants: Vec<StudyVariant> =
            file.variant.iter().map(|table| self.variant(table, &file)).collect();
        self.check_count(&file);
        self.check_names(&file);
        self.check_plans(&file, &variants);
        self.check_ports(&file, &servers, &variants);
        self.check_limits(&file);
        let cases = std::mem::take(&mut self.cases);
        let plans = match (cases.is_empty(), variants.first()) {
            (false, _) => cases.iter().map(|case| case.name.clone()).collect(),
            (true, Some(first)) => plan_names(&first.plan_files),
            (true, None) => Vec::new(),
        };
        if let Some(first) = variants.first().cloned().filter(|_| *file.control) {
            let name = control_name(&first.name);
            variants.push(StudyVariant { name, control_of: Some(0), ..first });
        }
        let hash = hash(&file, &servers, &cases, &variants);
        LoadStudy { file, servers, plans, cases, cases_left_out, variants, hash }
    }

    fn server(&mut self, table: &ServerTable) -> Server {
        if table.command.is_empty() && table.command.is_set() {
            self.report.error(&table.command, "the command is empty", "at least one word");
        }
        self.check_placeholders(&table.command.location, table.command.iter());
        self.check_placeholders(&table.env.location, table.env.values());
        self.check_placeholders(&table.ready.location, table.ready.iter());
        self.check_placeholders(&table.access_log.location, table.access_log.iter());
        for name in table.files.keys() {
            if !is_file_name(name) {
                let message = format!("{name:?} is not the name of a file in {{dir}}");
                self.report.missing(
                    &table.files.location,
                    message,
                    "letters, digits, `-`, `_` and `.`",
                );
            }
        }
        if let Some(address) = table.ready.as_ref() {
            let any = |name: &str| (name.to_owned(), ANY_PORT.to_owned());
            let values: PlaceholderValues = placeholders::names(address).map(any).collect();
            let replaced = placeholders::replace(address, &values);
            let port = replaced.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none() {
                let allowed = "HOST:PORT, such as 127.0.0.1:{port.NAME}";
                self.report.error(&table.ready, "not an address with a port", allowed);
            }
        }
        Server {
            name: table.name.to_string(),
            command: (*table.command).clone(),
            files: (*table.files).clone(),
            env: (*table.env).clone(),
            ready: (*table.ready).clone(),
            ready_timeout: *table.ready_timeout,
            access_log: (*table.access_log).clone(),
        }
    }

    fn check_placeholders<'t>(
        &mut self,
        location: &Location,
        texts: impl Iterator<Item = &'t String>,
    ) {
        let names = texts.flat_map(|text| placeholders::names(text));
        let is_known = |name: &str| match placeholders::is_of_case(name) {
            true => {
                let has = |case: &Case| case.values.contains_key(name);
                !self.cases.is_empty() && self.cases.iter().all(has)
            }
            false => placeholders::is_known(name),
        };
        let unknown: Vec<&str> = names.filter(|name| !is_known(name)).collect();
        for name in unknown {
            let names = placeholders::NAMES.join("}, {");
            let message = format!("unknown placeholder {{{name}}}");
            let of_case = if self.cases.is_empty() { "" } else { ", {case.NAME} of all cases" };
            self.report.error(location, message, format!("{{{names}}}, {{port.NAME}}{of_case}"));
        }
    }

    fn variant(&mut self, table: &VariantTable, study: &LoadStudyFile) -> StudyVariant {
        self.check_placeholders(&table.target.location, table.target.iter());
        self.check_target_of_cases(table);
        let uses = self.plan_uses(table, study);
        let mut variables: BTreeMap<String, f64> = (*study.variables).clone();
        variables.extend((*table.variables).clone());
        variables.extend(self.overrides.iter().cloned());
        let plans: Vec<Plan> = uses
            .iter()
            .filter_map(|plan| {
                // Values of the command line come before those of the case.
                let mut of_plan: BTreeMap<String, f64> = variables.clone();
                of_plan.extend(plan.variables.iter().cloned());
                of_plan.extend(self.overrides.iter().cloned());
                let of_plan: Vec<(String, f64)> = of_plan.into_iter().collect();
                self.plan(&plan.file, &plan.location, &of_plan)
            })
            .collect();
        StudyVariant {
            name: table.name.to_string(),
            control_of: None,
            target: (*table.target).clone(),
            plan_files: uses.into_iter().map(|plan| plan.file).collect(),
            variables: variables.into_iter().collect(),
            plans,
            servers: table.server.iter().map(|server| self.server(server)).collect(),
        }
    }

    /// Reads a plan. Problems of a plan that several variants have are reported once.
    fn plan(
        &mut self,
        file: &str,
        location: &Location,
        variables: &[(String, f64)],
    ) -> Option<Plan> {
        let path = self.folder.join(file);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                if self.faulty_plans.insert(path) {
                    let message = format!("cannot read the plan: {error}");
                    let allowed = "name of a plan, from the folder of this file";
                    self.report.error(location, message, allowed);
                }
                return None;
            }
        };
        match plan::read(&text, &path.display().to_string(), variables) {
            Ok(plan) => Some(plan),
            Err(problems) => {
                if self.faulty_plans.insert(path) {
                    self.report.absorb(problems);
                }
                None
            }
        }
    }

    fn check_count(&mut self, file: &LoadStudyFile) {
        let count = file.variant.len();
        if file.variant.is_set() && !VARIANTS.contains(&count) {
            let message = format!("there are {count} variants");
            let allowed = format!("{} to {} variants", VARIANTS.start(), VARIANTS.end());
            self.report.missing(&file.variant.location, message, allowed);
        }
        if count == 1 && !*file.control {
            let message = "there is one variant, and no control to compare it with";
            self.report.missing(&file.variant.location, message, "two variants, or control = true");
        }
    }

    /// Checks that variants have different names, and none that of the A/A control.
    fn check_names(&mut self, file: &LoadStudyFile) {
        let mut names = BTreeSet::new();
        if let Some(first) = file.variant.first().filter(|_| *file.control) {
            names.insert(control_name(&first.name));
        }
        for table in file.variant.iter() {
            if !names.insert(table.name.to_string()) {
                let message = "another variant, or the A/A control, has this name";
                self.report.error(&table.name, message, "each name once");
            }
            self.check_server_names(&table.server);
        }
        self.check_server_names(&file.server);
    }

    fn check_server_names(&mut self, servers: &Key<Vec<ServerTable>>) {
        let mut names = BTreeSet::new();
        for server in servers.iter() {
            if !names.insert(server.name.to_string()) {
                let message = "another server of the same variant has this name";
                self.report.error(&server.name, message, "each name once");
            }
        }
    }

    /// Checks that all variants have the same number of plans, and that plans have different names.
    fn check_plans(&mut self, file: &LoadStudyFile, variants: &[StudyVariant]) {
        let Some(first) = variants.first().filter(|_| self.cases.is_empty()) else { return };
        let expected = first.plan_files.len();
        for (table, variant) in file.variant.iter().zip(variants) {
            let count = variant.plan_files.len();
            let keys = if table.plans.is_set() { &table.plans } else { &file.plans };
            if keys.is_set() && !PLANS.contains(&count) {
                let allowed = format!("{} to {} plans", PLANS.start(), PLANS.end());
                self.report.error(keys, format!("there are {count} plans"), allowed);
            } else if count != expected && count > 0 && expected > 0 {
                let message = format!("{count} plans, but {:?} has {expected}", first.name);
                self.report.error(keys, message, format!("{expected} plans, in the same order"));
            }
        }
        let names = plan_names(&first.plan_files);
        let unique: BTreeSet<&String> = names.iter().collect();
        if unique.len() < names.len() {
            let keys = file.variant.first().map(|table| &table.plans).filter(|own| own.is_set());
            let message = "two plans have the same file name without folder and extension";
            self.report.error(keys.unwrap_or(&file.plans), message, "distinct file names");
        }
    }

    /// Checks that a port is used at least twice: by its server, and by a client or the check for
    /// readiness.
    fn check_ports(&mut self, file: &LoadStudyFile, shared: &[Server], variants: &[StudyVariant]) {
        let shared_ports = ports(shared, None, &[]);
        let mut uses: BTreeMap<String, usize> = shared_ports.clone();
        for (table, variant) in file.variant.iter().zip(variants) {
            for (port, count) in ports(&variant.servers, variant.target.as_deref(), &self.cases) {
                if shared_ports.contains_key(&port) {
                    *uses.entry(port).or_default() += count;
                } else if count < 2 {
                    let message = format!("the port {{port.{port}}} is used only once");
                    let allowed = "each port at its server and at what connects to it";
                    self.report.missing(&table.location, message, allowed);
                }
            }
        }
        for (port, _) in uses.into_iter().filter(|(_, count)| *count < 2) {
            let message = format!("the port {{port.{port}}} is used only once");
            let allowed = "each port at its server and at what connects to it";
            self.report.missing(&file.server.location, message, allowed);
        }
    }

    fn check_limits(&mut self, file: &LoadStudyFile) {
        if *file.rounds_max < *file.rounds_min {
            let message = format!("rounds_max is below rounds_min, which is {}", *file.rounds_min);
            let keys = if file.rounds_max.is_set() { &file.rounds_max } else { &file.rounds_min };
            self.report.error(keys, message, "rounds_min at most rounds_max");
        }
    }
}

/// Returns the ports of servers and of a target, with the number of their uses. Values of the cases
/// count for a variant that uses any of them.
fn ports(servers: &[Server], target: Option<&str>, cases: &[Case]) -> BTreeMap<String, usize> {
    let mut uses = BTreeMap::new();
    let texts: Vec<&str> = servers.iter().flat_map(Server::texts).chain(target).collect();
    let uses_case =
        texts.iter().flat_map(|text| placeholders::names(text)).any(placeholders::is_of_case);
    let of_cases = cases.iter().filter(|_| uses_case).flat_map(|case| case.values.values());
    let texts = texts.into_iter().chain(of_cases.map(String::as_str));
    for port in texts.flat_map(placeholders::names).filter_map(placeholders::port) {
        *uses.entry(port.to_owned()).or_default() += 1;
    }
    uses
}

impl Server {
    /// Returns all texts that may contain placeholders.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let texts = self.command.iter().chain(self.files.values()).chain(self.env.values());
        let optional = self.ready.iter().chain(&self.access_log);
        texts.chain(optional).map(String::as_str)
    }

    /// Appends everything that defines the server.
    fn write(&self, to: &mut String) {
        to.push_str(&format!("{:?}", (&self.name, &self.command, &self.files, &self.env)));
        self.access_log.iter().for_each(|path| to.push_str(path));
    }
}

fn is_file_name(name: &str) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(allowed)
}

fn control_name(first: &str) -> String {
    format!("{first}-control")
}

/// The file names of plans without folder and extension.
fn plan_names(files: &[String]) -> Vec<String> {
    let name = |file: &String| {
        let stem = Path::new(file).file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    };
    files.iter().map(name).collect()
}

/// Hashes everything that defines the runs. The limits, the name and the question of the study may
/// change in between.
fn hash(
    file: &LoadStudyFile,
    servers: &[Server],
    cases: &[Case],
    variants: &[StudyVariant],
) -> String {
    let mut text = format!("{:?} {:?} ", file.order, file.restart);
    cases.iter().for_each(|case| text.push_str(&format!("{case:?}")));
    servers.iter().for_each(|server| server.write(&mut text));
    for variant in variants {
        let StudyVariant { name, target, variables, plans, servers, .. } = variant;
        text.push_str(&format!("{:?}", (name, target, variables)));
        plans.iter().for_each(|plan| text.push_str(&plan.text));
        servers.iter().for_each(|server| server.write(&mut text));
    }
    sha256(&text)
}

fn sha256(text: &str) -> String {
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl StudyVariant {
    /// Returns the URL of the target with placeholders, and with secrets masked.
    fn shown_target(&self) -> Option<String> {
        let target = self.target.as_deref()?;
        if placeholders::names(target).any(placeholders::is_of_case) {
            // A path after the placeholder may be a secret.
            let end = target.find('}').map_or(target.len(), |end| end + 1);
            return Some(target[..end].to_owned());
        }
        // Only a number can stand in place of a port while the URL is masked.
        let stand_ins: PlaceholderValues = placeholders::names(target)
            .zip((1..=u16::MAX).rev())
            .map(|(name, port)| (name.to_owned(), port.to_string()))
            .collect();
        let shown = url::mask_url(&placeholders::replace(target, &stand_ins));
        let restore = |shown: String, (name, port): (&String, &String)| {
            shown.replacen(&format!(":{port}"), &format!(":{{{name}}}"), 1)
        };
        Some(stand_ins.iter().fold(shown, restore))
    }

    /// Describes the variant for the result.
    pub(super) fn facts(&self, variants: &[StudyVariant]) -> VariantFacts {
        let mut text = String::new();
        self.servers.iter().for_each(|server| server.write(&mut text));
        VariantFacts {
            name: self.name.clone(),
            control_of: self.control_of.map(|index| variants[index].name.clone()),
            target: self.shown_target(),
            plans: self.plan_files.iter().fold(Vec::new(), |mut files, file| {
                if !files.contains(file) {
                    files.push(file.clone());
                }
                files
            }),
            variables: self.variables.clone(),
            servers: self.servers.iter().map(|server| server.name.clone()).collect(),
            servers_hash: (!self.servers.is_empty()).then(|| sha256(&text)),
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
            block: rounds::block(*self.file.order, self.variants.len()),
        }
    }

    /// Returns the variants of a round in their order. Rounds count from 0.
    pub fn order(&self, round: usize) -> Vec<usize> {
        rounds::order(*self.file.order, self.variants.len(), round)
    }

    /// Returns the time of a round as planned, without the start of servers.
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

    /// Returns true if the variants differ in their load: in plans or in the values of variables.
    pub fn loads_differ(&self) -> bool {
        let load = |variant: &StudyVariant| {
            let texts = variant.plans.iter().map(|plan| plan.text.clone());
            (texts.collect::<Vec<_>>(), variant.variables.clone())
        };
        self.variants.windows(2).any(|pair| load(&pair[0]) != load(&pair[1]))
    }

    /// Returns the warnings of all plans, each once, with the plan's name.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (plan, variant) in self.pairs() {
            for warning in &self.variants[variant].plans[plan].warnings {
                let warning = format!("{}: {warning}", self.plans[plan]);
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
        }
        warnings
    }

    /// Returns a summary of the study for `weir check` and `--dry-run`, in several lines.
    pub fn summary(&self) -> String {
        let file = &self.file;
        let mut text = String::new();
        let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<11}{value}\n"));
        for (index, variant) in self.variants.iter().enumerate() {
            let servers: Vec<&str> =
                variant.servers.iter().map(|server| server.name.as_str()).collect();
            let target = variant.shown_target();
            let target = target.unwrap_or_else(|| "the plan's target".to_owned());
            let name = if index == 0 { "variants" } else { "" };
            let described = match variant.control_of {
                Some(_) => "the A/A control".to_owned(),
                None if servers.is_empty() => target,
                None => format!("{target}, starts {}", servers.join(", ")),
            };
            line(name, &format!("{}: {described}", variant.name));
        }
        let label = if self.cases.is_empty() { "plans" } else { "cases" };
        line(label, &self.plans.join(", "));
        self.cases_left_out.iter().for_each(|case| line("left out", case));
        line("one round", &self.described_round());
        line("rounds", &self.described_rounds());
        let (shortest, longest) = self.time();
        let times = match shortest == longest {
            true => span(shortest.as_secs_f64()),
            false => {
                format!("{} to {}", span(shortest.as_secs_f64()), span(longest.as_secs_f64()))
            }
        };
        line("time", &format!("{times}, and the start of servers"));
        let restart = *file.restart;
        if self.variants.iter().any(|variant| !variant.servers.is_empty()) {
            line("restarts", restart.as_str());
        }
        text
    }

    fn described_round(&self) -> String {
        let runs = self.variants.len() * self.plans.len();
        let time = span(self.round_time().as_secs_f64().ceil());
        format!("{}, {time}", plural(runs as u64, "run"))
    }

    fn described_rounds(&self) -> String {
        let file = &self.file;
        let warm_up = match *file.warm_up_rounds {
            0 => String::new(),
            count => format!("{} for warm-up, then ", plural(count as u64, "round")),
        };
        format!(
            "{warm_up}{} to {}, {}, until the intervals of {} are ±{} % or {} have passed",
            *file.rounds_min,
            *file.rounds_max,
            file.order.as_str(),
            file.precision_of.metric().as_str().split(',').next().unwrap_or_default(),
            (*file.precision * 1000.0).round() / 10.0,
            span(file.time_max.as_secs_f64()),
        )
    }

    /// Returns the shortest and the longest time of the study as planned.
    pub fn time(&self) -> (Duration, Duration) {
        let round = self.round_time();
        let rounds = |count: usize| {
            let count = u32::try_from(count + *self.file.warm_up_rounds).unwrap_or(u32::MAX);
            round.saturating_mul(count)
        };
        let limit = (*self.file.time_max).max(rounds(1));
        let longest = rounds(*self.file.rounds_max).min(limit);
        (rounds(*self.file.rounds_min).min(longest), longest)
    }

    /// Returns the order of the runs, one line for each round.
    pub fn described_order(&self) -> String {
        let names = |round: usize| -> String {
            let order = self.order(round).into_iter();
            order.map(|variant| self.variants[variant].name.clone()).collect::<Vec<_>>().join(", ")
        };
        let mut text = String::new();
        if *self.file.warm_up_rounds > 0 {
            text.push_str(&format!("  warm-up    {}\n", names(0)));
        }
        let block = self.limits().block;
        let listed = (*self.file.rounds_max).min(block.max(LISTED_MAX));
        for round in 0..listed {
            text.push_str(&format!("  round {:<5}{}\n", round + 1, names(round)));
        }
        if listed < *self.file.rounds_max {
            text.push_str(&format!("  …          the same {block} orders again\n"));
        }
        text
    }
}
