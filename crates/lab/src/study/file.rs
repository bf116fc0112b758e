//! Study files: arms that differ in one setting, how often and in which order they run.
//!
//! A file is read in two stages, as written and as checked; unknown keys are refused, and all faults
//! of the second stage are told at once. Running it is `runner.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;

use crate::plan::line::duration;

#[cfg(test)]
mod tests;

/// Repeats at most.
const REPEATS_MAX: u32 = 100;
/// Arms at most: those of one repeat may run at the same time.
const ARMS_MAX: usize = 8;
/// Words in braces that commands may hold.
const PLACEHOLDERS: [&str; 6] = ["arm", "dir", "repeat", "samples", "setting", "weir"];

/// How arms of one repeat run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// At the same time, started within one second: they meet the same node and the same hour, and
    /// share this machine.
    SideBySide,
    /// One after another, in an order that turns round with each repeat: each has the machine for
    /// itself, and a drift falls on both.
    Alternate,
}

/// A study that may run.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Its name.
    pub name: String,
    /// What it is to answer.
    pub question: Option<String>,
    /// How often each arm runs.
    pub repeats: u32,
    /// Whether the first arm runs once before all, uncounted.
    pub warm_up: bool,
    /// How arms of one repeat run.
    pub order: Order,
    /// Time between samples.
    pub sample: Duration,
    /// Longest time of a run.
    pub timeout: Duration,
    /// Time between runs.
    pub pause: Duration,
    /// Heights to which times are compared; empty: chosen.
    pub targets: Vec<u64>,
    /// Blocks in a bin; none: chosen.
    pub bin: Option<u64>,
    /// Time in which a block of the chain is made.
    pub block_time: Duration,
    /// What is started before the first run and ended after the last.
    pub setup: Vec<Setup>,
    /// What is compared.
    pub arms: Vec<Arm>,
    /// In what the arms differ.
    pub differ: Vec<String>,
}

/// Something that runs during the whole study.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// Its command line.
    pub command: Vec<String>,
    /// `HOST:PORT` that takes connections once it is ready.
    pub ready: Option<String>,
    /// How long that may take.
    pub ready_timeout: Duration,
}

/// One arm.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// What stands for `{setting}`.
    pub setting: Option<String>,
    /// Its command line, placeholders not yet replaced.
    pub command: Vec<String>,
    /// Further variables of its environment.
    pub env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    study: String,
    name: String,
    question: Option<String>,
    command: Option<Vec<String>>,
    #[serde(default = "five")]
    repeats: u32,
    #[serde(default)]
    warm_up: bool,
    order: Order,
    #[serde(default = "second")]
    sample: String,
    #[serde(default = "hour")]
    timeout: String,
    #[serde(default = "second")]
    pause: String,
    #[serde(default)]
    targets: Vec<u64>,
    bin: Option<u64>,
    #[serde(default = "minute")]
    block_time: String,
    differ: Option<Vec<String>>,
    #[serde(default)]
    setup: Vec<WrittenSetup>,
    arm: Vec<WrittenArm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSetup {
    name: String,
    command: Vec<String>,
    ready: Option<String>,
    #[serde(default = "minute")]
    ready_timeout: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenArm {
    name: String,
    setting: Option<String>,
    command: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

fn five() -> u32 {
    5
}
fn second() -> String {
    "1s".to_owned()
}
fn minute() -> String {
    "1m".to_owned()
}
fn hour() -> String {
    "1h".to_owned()
}

/// Whether a text is meant as a study of this kind: it has a key `study` at its top.
pub fn is_study(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("study"))
}

/// Reads a study; `file` is told in faults.
///
/// # Errors
/// Every fault, one a line.
pub fn read(text: &str, file: &str) -> Result<Study, Vec<String>> {
    let written: Written = toml::from_str(text)
        .map_err(|error| vec![format!("{file}: {}", error.to_string().trim_end())])?;
    let mut faults = Vec::new();
    let study = check(written, &mut faults);
    match faults.is_empty() {
        true => Ok(study),
        false => Err(faults.into_iter().map(|fault| format!("{file}: {fault}")).collect()),
    }
}

fn check(written: Written, faults: &mut Vec<String>) -> Study {
    if written.study != "sync" {
        faults.push(format!("study = {:?}: allowed: \"sync\"", written.study));
    }
    if !(1..=REPEATS_MAX).contains(&written.repeats) {
        faults.push(format!("repeats = {}: allowed: 1 to {REPEATS_MAX}", written.repeats));
    }
    let mut time = |key: &str, text: &str, (least, most): (u64, u64)| -> Duration {
        let bounds = Duration::from_millis(least)..=Duration::from_millis(most);
        let told = format!("allowed: \"{:?}\" to \"{:?}\"", bounds.start(), bounds.end());
        match duration(text) {
            Ok(time) if bounds.contains(&time) => return time,
            Ok(_) => faults.push(format!("{key} = {text:?}: {told}")),
            Err(what) => faults.push(format!("{key} = {text:?}: {what}; {told}")),
        }
        *bounds.start()
    };
    let sample = time("sample", &written.sample, (100, 60_000));
    let timeout = time("timeout", &written.timeout, (1_000, 30 * 86_400_000));
    let pause = time("pause", &written.pause, (0, 3_600_000));
    let block_time = time("block_time", &written.block_time, (10, 3_600_000));
    let setup: Vec<Setup> = written
        .setup
        .into_iter()
        .map(|one| Setup {
            ready_timeout: time("setup.ready_timeout", &one.ready_timeout, (100, 3_600_000)),
            name: one.name,
            command: one.command,
            ready: one.ready,
        })
        .collect();
    let shared = written.command;
    let arms: Vec<Arm> = written
        .arm
        .into_iter()
        .map(|one| Arm {
            name: one.name,
            setting: one.setting,
            command: one.command.or_else(|| shared.clone()).unwrap_or_default(),
            env: one.env,
        })
        .collect();
    for one in &setup {
        commands(&format!("setup {:?}", one.name), &one.command, false, faults);
    }
    check_arms(&arms, faults);
    let differ = differ(&arms, written.differ.as_deref(), faults);
    Study {
        name: written.name,
        question: written.question,
        repeats: written.repeats,
        warm_up: written.warm_up,
        order: written.order,
        sample,
        timeout,
        pause,
        targets: written.targets,
        bin: written.bin,
        block_time,
        setup,
        arms,
        differ,
    }
}

fn check_arms(arms: &[Arm], faults: &mut Vec<String>) {
    if !(2..=ARMS_MAX).contains(&arms.len()) {
        faults.push(format!("{} arms: a study compares 2 to {ARMS_MAX}", arms.len()));
    }
    let mut names = BTreeSet::new();
    for arm in arms {
        if !names.insert(arm.name.as_str()) {
            faults.push(format!("arm {:?} stands twice", arm.name));
        }
        // The name becomes that of a folder.
        let plain = |c: char| c.is_alphanumeric() || "-_. ".contains(c);
        if arm.name.is_empty() || !arm.name.chars().all(plain) || arm.name.starts_with('.') {
            faults.push(format!(
                "arm {:?}: allowed in a name: letters, digits, - _ . and space",
                arm.name
            ));
        }
        let whose = format!("arm {:?}", arm.name);
        commands(&whose, &arm.command, true, faults);
        let wants = arm.command.iter().any(|word| word.contains("{setting}"));
        if wants && arm.setting.is_none() {
            faults.push(format!("{whose}: its command has {{setting}}, but it has no setting"));
        }
    }
}

fn commands(whose: &str, command: &[String], is_arm: bool, faults: &mut Vec<String>) {
    if command.is_empty() {
        faults.push(format!("{whose}: there is no command"));
        return;
    }
    for word in command {
        for name in placeholders(word) {
            if !PLACEHOLDERS.contains(&name.as_str()) {
                faults.push(format!(
                    "{whose}: {{{name}}} is not known; allowed: {{{}}}",
                    PLACEHOLDERS.join("}, {")
                ));
            }
        }
    }
    if is_arm && !command.iter().any(|word| word.contains("{samples}")) {
        faults.push(format!(
            "{whose}: no part of its command is {{samples}}, the file in which it is to say its height"
        ));
    }
}

/// Words in braces of lower-case letters; other braces are the command's own.
fn placeholders(word: &str) -> Vec<String> {
    let parts = word.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let named = parts.map(|(name, _)| name);
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase());
    named.filter(is_name).map(str::to_owned).collect()
}

/// In what the arms differ: options, positions and variables, by name.
fn differ(arms: &[Arm], allowed: Option<&[String]>, faults: &mut Vec<String>) -> Vec<String> {
    let all: Vec<BTreeMap<String, String>> = arms.iter().map(settings).collect();
    let keys: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let apart = |key: &&&String| {
        let mut values = all.iter().map(|one| one.get(**key));
        let first = values.next().flatten();
        values.any(|value| value != first)
    };
    let found: Vec<String> = keys.iter().filter(apart).map(|key| (**key).clone()).collect();
    let names = || if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
    match allowed {
        None if found.len() == 1 => {}
        None if found.is_empty() => faults.push(
            "the arms are equal: what a study finds between them is chance; if that is meant, say \
             differ = []"
                .to_owned(),
        ),
        None => faults.push(format!(
            "the arms differ in {}: in {}; whatever comes out could be from any of them. Make them differ \
             in one, or say differ = {:?}",
            found.len(),
            names(),
            found
        )),
        Some(allowed) => {
            let (wanted, real): (BTreeSet<_>, BTreeSet<_>) = (allowed.iter().collect(), found.iter().collect());
            if wanted != real {
                faults.push(format!("differ = {allowed:?}: the arms differ in {}", names()));
            }
        }
    }
    found
}

/// What an arm is set to: options by name with their values, other words by their place, variables
/// of the environment.
fn settings(arm: &Arm) -> BTreeMap<String, String> {
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
        // An option may stand several times; all of its values count.
        let known: &mut String = found.entry(name).or_default();
        known.push_str(&value);
        known.push('\n');
    }
    found.extend(arm.env.iter().map(|(name, value)| (format!("${name}"), value.clone())));
    found
}

impl Study {
    /// What it would do, in lines, for `weir check`.
    pub fn summary(&self) -> String {
        let arms: Vec<String> = self
            .arms
            .iter()
            .map(|arm| match &arm.setting {
                Some(setting) if *setting != arm.name => format!("{} ({setting})", arm.name),
                _ => arm.name.clone(),
            })
            .collect();
        let together = match self.order {
            Order::SideBySide => 1,
            Order::Alternate => self.arms.len(),
        };
        let turns = u32::try_from(together).unwrap_or(1) * self.repeats + u32::from(self.warm_up);
        let longest = (self.timeout + self.pause) * turns;
        let differ = if self.differ.is_empty() {
            "nothing (A/A)".to_owned()
        } else {
            self.differ.join(", ")
        };
        format!(
            "  arms      {}\n  differ in {differ}\n  runs      {} of each, {}{}\n  at most   {}\n",
            arms.join(", "),
            self.repeats,
            self.order.as_words(),
            if self.warm_up { ", after one to warm up" } else { "" },
            crate::report::number::span(longest.as_secs_f64()),
        )
    }
}

impl Order {
    /// In words.
    pub const fn as_words(self) -> &'static str {
        match self {
            Order::SideBySide => "arms of a repeat side by side, sharing this machine",
            Order::Alternate => "one after another, the order turned round with each repeat",
        }
    }
}
