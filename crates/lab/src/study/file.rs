//! Study files: the arms, which differ in one setting, and how often and in which order they run.
//!
//! The tables below declare the keys of the file; `docs/study-file.md` is generated from them.
//! `runner.rs` runs a study.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;

use settings::value::{Bool, Count, Duration as Period, List, Listed, Map, Name, Text, Word};
use settings::{At, Diagnostics, Report, World};

#[cfg(test)]
mod tests;

/// Number of arms; all arms of a repeat may run at the same time.
const ARMS: RangeInclusive<usize> = 2..=8;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Placeholders that commands may contain, in braces.
const PLACEHOLDERS: [&str; 6] = ["arm", "dir", "repeat", "samples", "setting", "weir"];

settings::choice! {
    /// How the arms of one repeat run.
    pub enum Order {
        /// At the same time, started within one second: they have the same peers at the same time,
        /// but share this machine.
        "side-by-side" => SideBySide,
        /// One after another, in an order that is reversed in each repeat: each has the machine for
        /// itself, and a drift affects all arms.
        "alternate" => Alternate,
    }
}

/// A valid study.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// The keys of the file.
    pub file: StudyFile,
    /// The arms in the order of the file.
    pub arms: Vec<Arm>,
    /// The settings in which the arms differ.
    pub differ: Vec<String>,
}

/// One arm.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// The value of `{setting}`.
    pub setting: Option<String>,
    /// Its command line with placeholders.
    pub command: Vec<String>,
    /// Additional environment variables.
    pub env: BTreeMap<String, String>,
}

settings::table! {
    /// The runs of a study and the options of its analysis.
    pub struct StudyFile {
        /// Kind of the study.
        study: Kind = required;
        /// Its name, printed in reports.
        name: Name = required;
        /// The question that it answers, printed at the top of the report.
        question: Text = follows "none";
        /// Default command line of the arms: a list of words.
        command: List<Word> = follows "each arm has its own";
        /// How often each arm runs.
        repeats: Count<1, 100> = "5";
        /// True if the first arm runs once before all others without being counted. Then work that
        /// is slow only once, such as a node that computes its blocks, affects no arm.
        warm_up: Bool = "false";
        /// How the arms of one repeat run.
        order: Order = required;
        /// Time between samples of memory, CPU and disk.
        sample: Period<100, 60_000> = "1s";
        /// Longest time of a run; then it is stopped.
        timeout: Period<1000, { 30 * DAY_MS }> = "1h";
        /// Time between runs.
        pause: Period<0, HOUR_MS> = "1s";
        /// Heights to which times are compared.
        targets: List<Count<0, { u64::MAX }>> = empty;
        /// Blocks per bin.
        bin: Count<1, { u64::MAX }> = follows "chosen from the heights";
        /// Block time of the chain.
        block_time: Period<10, HOUR_MS> = "1m";
        /// The settings in which the arms differ, unless it is one; `[]` for equal arms.
        differ: List<Text> = follows "one setting";
        /// Processes that run during the whole study.
        setup: Listed<Setup> = empty;
        /// The arms that are compared, 2 to 8.
        arm: Listed<ArmTable> = required;
    }
}

settings::table! {
    /// A process that starts before the first run and is stopped after the last.
    pub struct Setup {
        /// Its name, for messages.
        name: Name = required;
        /// Its command line: a list of words.
        command: List<Word> = required;
        /// `HOST:PORT` that accepts connections once the process is ready.
        ready: Text = follows "ready at once";
        /// Longest wait for `ready`.
        ready_timeout: Period<100, HOUR_MS> = "1m";
    }
}

settings::table! {
    /// One arm. The others are compared with the first.
    pub struct ArmTable {
        /// Its name, also that of its folder of results.
        name: Name = required;
        /// Replaces `{setting}` in its command.
        setting: Text = follows "none";
        /// Its command line: a list of words.
        command: List<Word> = follows "the study's";
        /// Additional environment variables.
        env: Map<Word> = empty;
    }
}

settings::choice! {
    /// Kind of a study.
    pub enum Kind {
        /// Which arm syncs faster, since when, and why.
        "sync" => Sync,
    }
}

/// Returns true if a text is a study file: it has a top-level key `study`.
pub fn is_study(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("study"))
}

/// The text of `docs/study-file.md`.
pub fn reference() -> String {
    format!(
        "# Study files\n\n<!-- Printed by `cargo xtask generate` from \
         crates/lab/src/study/file.rs. Do not edit. -->\n\n`weir study sync STUDY.toml` runs a \
         study file; `weir check STUDY.toml` validates it. \
         [study-file.schema.json](study-file.schema.json) lets editors complete its keys. \
         [studies.md](studies.md) explains how to use study files.\n{}",
        settings::reference::markdown::<StudyFile>()
    )
}

/// The text of `docs/study-file.schema.json`.
pub fn schema() -> String {
    let schema =
        settings::schema::document::<StudyFile>("study-file.schema.json", "Weir study file");
    format!("{schema:#}\n")
}

/// Reads a study file; `file` is its name in diagnostics.
///
/// # Errors
/// All problems, in the order of the text.
pub fn read(text: &str, file: &str) -> Result<Study, Diagnostics> {
    let environment = |name: &str| std::env::var(name).ok();
    let world = World::new(Path::new("."), &environment);
    let (written, mut report) = settings::read::<StudyFile>(text, file, &world);
    let study = written.map(|written| check(written, &mut report));
    match study {
        Some(study) if !report.has_errors() => Ok(study),
        _ => Err(report.finish()),
    }
}

fn check(file: StudyFile, report: &mut Report<'_>) -> Study {
    for setup in file.setup.iter() {
        commands(&setup.command.at, &setup.command, report);
    }
    let arms: Vec<Arm> = file.arm.iter().map(|arm| Arm::of(arm, &file)).collect();
    check_arms(&file, &arms, report);
    let differ = differ(&file, &arms, report);
    Study { file, arms, differ }
}

impl Arm {
    fn of(table: &ArmTable, study: &StudyFile) -> Arm {
        let command = table.command.as_ref().or(study.command.as_ref());
        Arm {
            name: table.name.to_string(),
            setting: table.setting.as_ref().cloned(),
            command: command.cloned().unwrap_or_default(),
            env: (*table.env).clone(),
        }
    }
}

fn check_arms(written: &StudyFile, arms: &[Arm], report: &mut Report<'_>) {
    if written.arm.is_set() && !ARMS.contains(&arms.len()) {
        let message = format!("there are {} arms", arms.len());
        let allowed = format!("{} to {} arms", ARMS.start(), ARMS.end());
        report.missing(&written.arm.at, message, allowed);
    }
    let mut names = BTreeSet::new();
    for (table, arm) in written.arm.iter().zip(arms) {
        if !names.insert(arm.name.as_str()) {
            report.error(&table.name.at, "another arm has this name", "each name once");
        }
        let at = [&table.command.at, &written.command.at].into_iter().find(|at| at.span.is_some());
        let Some(at) = at else {
            report.missing(&table.at, "the arm has no command", "command here or in the study");
            continue;
        };
        commands(at, &arm.command, report);
        if !arm.command.iter().any(|word| word.contains("{samples}")) {
            let message = "the command lacks {samples}, the file to which an arm writes its height";
            report.error(at, message, "a command with {samples}");
        }
        let uses_setting = arm.command.iter().any(|word| word.contains("{setting}"));
        if uses_setting && arm.setting.is_none() {
            let message = "the arm's command has {setting}, but the arm has no setting";
            report.missing(&table.at, message, "setting = \"…\"");
        }
    }
}

fn commands(at: &At, command: &[String], report: &mut Report<'_>) {
    if command.is_empty() && at.span.is_some() {
        report.error(at, "the command is empty", "at least one word");
    }
    for name in command.iter().flat_map(|word| placeholders(word)) {
        if !PLACEHOLDERS.contains(&name.as_str()) {
            let message = format!("unknown placeholder {{{name}}}");
            report.error(at, message, format!("{{{}}}", PLACEHOLDERS.join("}, {")));
        }
    }
}

/// Placeholders of a word: names in braces of lower-case letters. Other braces are left as they
/// are.
fn placeholders(word: &str) -> Vec<String> {
    let parts = word.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let named = parts.map(|(name, _)| name);
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase());
    named.filter(is_name).map(str::to_owned).collect()
}

/// The settings in which the arms differ: options, positions and variables, by name.
fn differ(written: &StudyFile, arms: &[Arm], report: &mut Report<'_>) -> Vec<String> {
    let all: Vec<BTreeMap<String, String>> = arms.iter().map(settings_of).collect();
    let keys: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let apart = |key: &&&String| {
        let mut values = all.iter().map(|one| one.get(**key));
        let first = values.next().flatten();
        values.any(|value| value != first)
    };
    let found: Vec<String> = keys.iter().filter(apart).map(|key| (**key).clone()).collect();
    let names = || if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
    match &*written.differ {
        None if found.len() == 1 || arms.len() < *ARMS.start() => {}
        None if found.is_empty() => {
            let message = "the arms are equal, so any difference between them is chance";
            report.missing(&written.arm.at, message, "arms that differ, or differ = []");
        }
        None => {
            let message = format!(
                "the arms differ in {} settings: {}; any of them may explain the result",
                found.len(),
                names()
            );
            let allowed = format!("arms that differ in one setting, or differ = {found:?}");
            report.missing(&written.arm.at, message, allowed);
        }
        Some(allowed) => {
            let (wanted, real): (BTreeSet<_>, BTreeSet<_>) =
                (allowed.iter().collect(), found.iter().collect());
            if wanted != real {
                let message = format!("the arms differ in {}", names());
                report.error(&written.differ.at, message, format!("differ = {found:?}"));
            }
        }
    }
    found
}

/// The settings of an arm: options by name, other words by position, and environment variables.
fn settings_of(arm: &Arm) -> BTreeMap<String, String> {
    let setting = arm.setting.as_deref().unwrap_or_default();
    let words: Vec<String> = arm
        .command
        .iter()
        .map(|word| word.replace("{setting}", setting).replace("{arm}", &arm.name))
        .collect();
    let mut found = BTreeMap::new();
    let (mut place, mut position) = (0, 0);
    while let Some(word) = words.get(place) {
        place += 1;
        let is_option = word.starts_with('-') && word.len() > 1;
        let (name, value) = match (is_option, word.split_once('=')) {
            (true, Some((name, value))) => (name.to_owned(), value.to_owned()),
            (true, None) => {
                let next = words.get(place).filter(|next| !next.starts_with('-'));
                place += usize::from(next.is_some());
                (word.clone(), next.cloned().unwrap_or_default())
            }
            (false, _) => {
                position += 1;
                (format!("word {position}"), word.clone())
            }
        };
        // An option may occur several times; all of its values count.
        let known: &mut String = found.entry(name).or_default();
        known.push_str(&value);
        known.push('\n');
    }
    found.extend(arm.env.iter().map(|(name, value)| (format!("${name}"), value.clone())));
    found
}

impl Study {
    /// How often each arm runs.
    pub fn repeats(&self) -> u32 {
        u32::try_from(*self.file.repeats).expect("at most 100 repeats")
    }

    /// A summary of the study for `weir check`, in several lines.
    pub fn summary(&self) -> String {
        let arms: Vec<String> = self
            .arms
            .iter()
            .map(|arm| match &arm.setting {
                Some(setting) if *setting != arm.name => format!("{} ({setting})", arm.name),
                _ => arm.name.clone(),
            })
            .collect();
        let together = match *self.file.order {
            Order::SideBySide => 1,
            Order::Alternate => u32::try_from(self.arms.len()).unwrap_or(1),
        };
        let warm_up = *self.file.warm_up;
        let turns = together * self.repeats() + u32::from(warm_up);
        let longest = (*self.file.timeout + *self.file.pause) * turns;
        let differ = if self.differ.is_empty() {
            "nothing (A/A)".to_owned()
        } else {
            self.differ.join(", ")
        };
        format!(
            "  arms      {}\n  differ in {differ}\n  runs      {} of each, {}{}\n  at most   {}\n",
            arms.join(", "),
            self.repeats(),
            self.file.order.as_words(),
            if warm_up { ", after one for warm-up" } else { "" },
            crate::wording::number::span(longest.as_secs_f64()),
        )
    }
}

impl Order {
    /// Description for people.
    pub const fn as_words(self) -> &'static str {
        match self {
            Order::SideBySide => "arms of a repeat side by side, sharing this machine",
            Order::Alternate => "one after another, the order reversed in each repeat",
        }
    }
}
