//! Study files: the variants, which differ in one setting, and the number and order of their runs.
//! A *repeat* is one run of each variant. A *height* is the number of a variant's newest block, and
//! a *bin* is a range of heights for which the analysis reports values.
//!
//! The tables below declare the keys of the file, one per line: `KEY: TYPE = DEFAULT;`. A
//! `required` key must be set. `described "TEXT"` is an optional key, whose absence means TEXT. The
//! tables are also the source of `docs/study-file.md`. A `choice!` declares an enum, and the words
//! that stand for its values in the file. `runner.rs` runs a study.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;

use settings::value::{
    AnyString, Bool, Duration as Period, Integer, List, Listed, Map, Name, NonEmptyString,
};
use settings::{Diagnostics, Location, ReadContext, Report};

use super::placeholders;

#[cfg(test)]
mod tests;

/// Allowed number of variants. The maximum is low, because all variants may run at the same time.
const VARIANTS: RangeInclusive<usize> = 2..=8;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Placeholders that commands may contain, in braces.
const PLACEHOLDERS: [&str; 6] = ["dir", "repeat", "samples", "setting", "variant", "weir"];

settings::choice! {
    /// How the variants of one repeat run.
    pub enum Order {
        /// At the same time, started within one second: they have the same peers at the same time,
        /// but share this machine.
        "side-by-side" => SideBySide,
        /// One after another, in an order that is reversed in each repeat: each has the machine for
        /// itself, and a drift affects all variants.
        "alternate" => Alternate,
    }
}

/// A valid study.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// The keys of the file.
    pub file: StudyFile,
    /// Names of the settings in which the variants differ. Empty if the variants are equal.
    pub differ: Vec<String>,
}

settings::table! {
    /// The runs of a study and the options of its analysis.
    pub struct StudyFile {
        /// Kind of the study.
        study: Kind = required;
        /// Its name, printed in reports.
        name: Name = required;
        /// The question that it answers, printed at the top of the report.
        question: NonEmptyString = described "none";
        /// Default command line of the variants: a list of words.
        command: List<AnyString> = described "each variant has its own";
        /// How often each variant runs.
        repeats: Integer<1, 100> = "5";
        /// True if the first variant runs once before all others without being counted. Then work
        /// that is slow only once, such as a node that computes its blocks, affects no variant.
        warm_up: Bool = "false";
        /// How the variants of one repeat run.
        order: Order = required;
        /// Time between samples of memory, CPU and disk.
        sample: Period<100, 60_000> = "1s";
        /// Longest time of a run. A run that takes longer is stopped.
        timeout: Period<1000, { 30 * DAY_MS }> = "1h";
        /// Time between runs.
        pause: Period<0, HOUR_MS> = "1s";
        /// Heights to which times are compared.
        targets: List<Integer<0, { u64::MAX }>> = empty;
        /// Blocks per bin.
        bin: Integer<1, { u64::MAX }> = described "chosen from the heights";
        /// Block time of the chain.
        block_time: Period<10, HOUR_MS> = described "measured at the ends of the runs, else 1m";
        /// The settings in which the variants differ. Must be set unless they differ in exactly
        /// one setting. `[]` declares equal variants.
        differ: List<NonEmptyString> = described "one setting";
        /// Processes that run during the whole study.
        setup: Listed<Setup> = empty;
        /// The variants that are compared, 2 to 8.
        variant: Listed<VariantTable> = required;
    }
}

settings::table! {
    /// A process that starts before the first run and is stopped after the last.
    pub struct Setup {
        /// Its name, for messages.
        name: Name = required;
        /// Its command line: a list of words.
        command: List<AnyString> = required;
        /// `HOST:PORT` that accepts connections once the process is ready.
        ready: NonEmptyString = described "ready at once";
        /// Longest wait for `ready`.
        ready_timeout: Period<100, HOUR_MS> = "1m";
    }
}

settings::table! {
    /// One variant. The others are compared with the first.
    pub struct VariantTable {
        /// Its name, also that of its folder of results.
        name: Name = required;
        /// Replaces `{setting}` in its command.
        setting: NonEmptyString = described "none";
        /// Its command line: a list of words.
        command: List<AnyString> = described "the study's";
        /// Additional environment variables.
        env: Map<AnyString> = empty;
    }
}

settings::choice! {
    /// Kind of a study.
    pub enum Kind {
        /// Which variant syncs faster, since when, and why.
        "sync" => Sync,
    }
}

/// Returns true if a text is a study file: it has a top-level key `study`.
pub fn is_study(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("study"))
}

/// Returns the text of `docs/study-file.md`.
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

/// Returns the text of `docs/study-file.schema.json`.
pub fn schema() -> String {
    let schema =
        settings::schema::document::<StudyFile>("study-file.schema.json", "Weir study file");
    format!("{schema:#}\n")
}

/// Reads a study file; `file` is its name in diagnostics.
///
/// # Errors
/// Returns all problems, in the order of the text.
pub fn read(text: &str, file: &str) -> Result<Study, Diagnostics> {
    let environment = |name: &str| std::env::var(name).ok();
    let context = ReadContext::new(Path::new("."), &environment);
    let (study_file, mut report) = settings::read::<StudyFile>(text, file, &context);
    let study = study_file.map(|study_file| check(study_file, &mut report));
    match study {
        Some(study) if !report.has_errors() => Ok(study),
        _ => Err(report.finish()),
    }
}

/// Checks the values of a file and returns the study. The study may be used only if the report has
/// no error.
fn check(file: StudyFile, report: &mut Report<'_>) -> Study {
    for setup in file.setup.iter() {
        check_command(&setup.command.location, &setup.command, report);
    }
    check_variants(&file, report);
    let differ = differing_settings(&file, report);
    Study { file, differ }
}

impl StudyFile {
    /// Returns the command of a variant, or the study's command if the variant has none. Empty if
    /// both have none.
    pub(super) fn command_of<'a>(&'a self, variant: &'a VariantTable) -> &'a [String] {
        variant.command.as_ref().or(self.command.as_ref()).map_or(&[], Vec::as_slice)
    }
}

/// Checks the number, the names and the commands of the variants.
fn check_variants(study_file: &StudyFile, report: &mut Report<'_>) {
    let count = study_file.variant.len();
    if study_file.variant.is_set() && !VARIANTS.contains(&count) {
        let message = format!("there are {count} variants");
        let allowed = format!("{} to {} variants", VARIANTS.start(), VARIANTS.end());
        report.error_without_value(&study_file.variant.location, message, allowed);
    }
    let mut names = BTreeSet::new();
    for table in study_file.variant.iter() {
        if !names.insert(table.name.as_str()) {
            report.error(&table.name.location, "another variant has this name", "each name once");
        }
        let command_position = [&table.command.location, &study_file.command.location]
            .into_iter()
            .find(|position| position.span.is_some());
        let Some(command_position) = command_position else {
            report.error_without_value(
                &table.location,
                "the variant has no command",
                "command here or in the study",
            );
            continue;
        };
        let command = study_file.command_of(table);
        check_command(command_position, command, report);
        if !command.iter().any(|word| word.contains("{samples}")) {
            let message =
                "the command lacks {samples}, the file to which a variant writes its height";
            report.error(command_position, message, "a command with {samples}");
        }
        let uses_setting = command.iter().any(|word| word.contains("{setting}"));
        if uses_setting && table.setting.is_none() {
            let message = "the variant's command has {setting}, but the variant has no setting";
            report.error_without_value(&table.location, message, "setting = \"…\"");
        }
    }
}

/// Checks that a command is not empty and has only known placeholders.
fn check_command(location: &Location, command: &[String], report: &mut Report<'_>) {
    if command.is_empty() && location.span.is_some() {
        report.error(location, "the command is empty", "at least one word");
    }
    // Other texts in braces, such as those of shells, are no placeholders.
    let is_placeholder = |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase());
    let names = command.iter().flat_map(|word| placeholders::names(word));
    for name in names.filter(is_placeholder) {
        if !PLACEHOLDERS.contains(&name) {
            let message = format!("unknown placeholder {{{name}}}");
            report.error(location, message, format!("{{{}}}", PLACEHOLDERS.join("}, {")));
        }
    }
}

/// Returns the names of the settings in which the variants differ. Reports an error if these are
/// not the settings that the key `differ` declares; see [`settings_of`] for the names.
fn differing_settings(study_file: &StudyFile, report: &mut Report<'_>) -> Vec<String> {
    let settings: Vec<BTreeMap<String, String>> =
        study_file.variant.iter().map(|variant| settings_of(study_file, variant)).collect();
    let keys: BTreeSet<&String> = settings.iter().flat_map(BTreeMap::keys).collect();
    let differs = |key: &&&String| {
        let mut values = settings.iter().map(|variant_settings| variant_settings.get(**key));
        let first_value = values.next().flatten();
        values.any(|value| value != first_value)
    };
    let differing: Vec<String> = keys.iter().filter(differs).map(|key| (**key).clone()).collect();
    let names = || if differing.is_empty() { "nothing".to_owned() } else { differing.join(", ") };
    match &*study_file.differ {
        None if differing.len() == 1 || settings.len() < *VARIANTS.start() => {}
        None if differing.is_empty() => {
            let message = "the variants are equal, so any difference between them is chance";
            report.error_without_value(
                &study_file.variant.location,
                message,
                "variants that differ, or differ = []",
            );
        }
        None => {
            let message = format!(
                "the variants differ in {} settings: {}; any of them may explain the result",
                differing.len(),
                names()
            );
            let allowed = format!("variants that differ in one setting, or differ = {differing:?}");
            report.error_without_value(&study_file.variant.location, message, allowed);
        }
        Some(allowed) => {
            let (declared, actual): (BTreeSet<_>, BTreeSet<_>) =
                (allowed.iter().collect(), differing.iter().collect());
            if declared != actual {
                let message = format!("the variants differ in {}", names());
                report.error(
                    &study_file.differ.location,
                    message,
                    format!("differ = {differing:?}"),
                );
            }
        }
    }
    differing
}

/// Returns the settings of a variant: the name and value of each. For example, the command
/// `geth --cache 2 run` with the environment variable `A=1` has the settings `word 1` = `geth`,
/// `--cache` = `2`, `word 2` = `run` and `$A` = `1`.
fn settings_of(study_file: &StudyFile, variant: &VariantTable) -> BTreeMap<String, String> {
    let setting = variant.setting.as_deref().unwrap_or_default();
    let words: Vec<String> = study_file
        .command_of(variant)
        .iter()
        .map(|word| word.replace("{setting}", setting).replace("{variant}", &variant.name))
        .collect();
    let mut settings = BTreeMap::new();
    let (mut index, mut position) = (0, 0);
    while let Some(word) = words.get(index) {
        index += 1;
        let is_option = word.starts_with('-') && word.len() > 1;
        let (name, value) = match (is_option, word.split_once('=')) {
            (true, Some((name, value))) => (name.to_owned(), value.to_owned()),
            (true, None) => {
                let next = words.get(index).filter(|next| !next.starts_with('-'));
                index += usize::from(next.is_some());
                (word.clone(), next.cloned().unwrap_or_default())
            }
            (false, _) => {
                position += 1;
                (format!("word {position}"), word.clone())
            }
        };
        // An option may occur several times. The setting then has all values.
        let value_text: &mut String = settings.entry(name).or_default();
        value_text.push_str(&value);
        value_text.push('\n');
    }
    settings.extend(variant.env.iter().map(|(name, value)| (format!("${name}"), value.clone())));
    settings
}

impl Study {
    /// Returns how often each variant runs.
    pub fn repeats(&self) -> u32 {
        u32::try_from(*self.file.repeats).expect("at most 100 repeats")
    }

    /// Returns a summary of the study for `weir check`, in several lines.
    pub fn summary(&self) -> String {
        let variants = self.file.variant.iter();
        let variants: Vec<String> = variants
            .map(|variant| match variant.setting.as_ref() {
                Some(setting) if *setting != *variant.name => {
                    format!("{} ({setting})", variant.name)
                }
                _ => variant.name.to_string(),
            })
            .collect();
        // The number of runs of a repeat that take place one after another. Runs that take place
        // side by side count as one.
        let runs_in_turn = match *self.file.order {
            Order::SideBySide => 1,
            Order::Alternate => u32::try_from(self.file.variant.len()).unwrap_or(1),
        };
        let warm_up = *self.file.warm_up;
        let total_in_turn = runs_in_turn * self.repeats() + u32::from(warm_up);
        let longest = (*self.file.timeout + *self.file.pause) * total_in_turn;
        let differ = if self.differ.is_empty() {
            "nothing (A/A)".to_owned()
        } else {
            self.differ.join(", ")
        };
        format!(
            "  variants  {}\n  differ in {differ}\n  runs      {} of each, {}{}\n  at most   {}\n",
            variants.join(", "),
            self.repeats(),
            self.file.order.as_words(),
            if warm_up { ", after one for warm-up" } else { "" },
            crate::wording::number::span(longest.as_secs_f64()),
        )
    }
}

impl Order {
    /// Describes the order in a summary.
    pub const fn as_words(self) -> &'static str {
        match self {
            Order::SideBySide => "variants of a repeat side by side, sharing this machine",
            Order::Alternate => "one after another, the order reversed in each repeat",
        }
    }
}
