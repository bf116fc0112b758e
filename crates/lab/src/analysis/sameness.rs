//! Whether arms may be compared: what they do not have in common, and how grave that is.
//!
//! A difference between numbers means something only if what was asked was the same. What makes the
//! numbers mean different things is refused; what a difference may come from is warned of; the rest
//! is noted. Pure; facts are gathered by `compare.rs` and `import.rs`.

use std::collections::BTreeMap;

use lab_model::results::compare::Weight;
use lab_model::results::{Fingerprint, Outcome};

/// Which tool measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// This one.
    Weir,
    /// grafana/k6.
    K6,
    /// tsenart/vegeta.
    Vegeta,
    /// erigontech/rpc-tests, which drives vegeta.
    Erigon,
}

impl Tool {
    /// The name used in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Tool::Weir => "weir",
            Tool::K6 => "k6",
            Tool::Vegeta => "vegeta",
            Tool::Erigon => "erigon",
        }
    }
}

/// What is known of how a run was made. What a tool does not tell is none, and is not compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Which tool measured.
    pub tool: Tool,
    /// SHA-256 of the plan.
    pub plan_hash: Option<String>,
    /// Settings of the plan, flattened: `scenario.0.mix` and its value as TOML.
    pub settings: BTreeMap<String, String>,
    /// Seed of all randomness.
    pub seed: Option<u64>,
    /// Engine threads.
    pub threads: Option<usize>,
    /// HTTP version and use of connections, in words.
    pub connections: Option<String>,
    /// Stages with their levels and times, in words.
    pub schedule: Vec<String>,
    /// Methods with their shares of all calls.
    pub shares: BTreeMap<String, f64>,
    /// What was asked for beside the above, in words (k6's script, vegeta's targets).
    pub load: Option<String>,
    /// Chain family.
    pub family: Option<String>,
    /// Chain id.
    pub chain_id: Option<String>,
    /// What the target says it is.
    pub client: Option<String>,
    /// Head at the start.
    pub head: Option<u64>,
    /// The machine of the generator.
    pub machine: Option<Fingerprint>,
    /// What the run itself said.
    pub outcome: Option<Outcome>,
    /// Whether it ended before its plan.
    pub partial: bool,
}

impl Facts {
    /// Nothing known but the tool.
    pub fn of(tool: Tool) -> Facts {
        Facts {
            tool,
            plan_hash: None,
            settings: BTreeMap::new(),
            seed: None,
            threads: None,
            connections: None,
            schedule: Vec::new(),
            shares: BTreeMap::new(),
            load: None,
            family: None,
            chain_id: None,
            client: None,
            head: None,
            machine: None,
            outcome: None,
            partial: false,
        }
    }
}

/// Settings of a plan that do not change what is sent, by their first word.
const SILENT: &[&str] = &["name", "thresholds", "threshold", "validity", "watch", "capacity"];
/// Settings that say who is asked, which is what arms may differ in.
const WHO: &[&str] = &["target", "reference"];
/// Blocks by which heads may differ before parameters drawn from them are other data.
const HEADS: u64 = 128;
/// Difference of a method's share of all calls from which the mix is another one: more than chance
/// makes of a thousand calls.
const SHARES: f64 = 0.03;
/// Settings listed by name at most.
const LISTED_MAX: usize = 8;

/// Something that two runs do not have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// What.
    pub what: Fact,
    /// How it is in the first run.
    pub a: Value,
    /// How it is in the second.
    pub b: Value,
    /// How grave it is.
    pub weight: Weight,
}

/// A fact of a run that another run may not share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The tool.
    Tool,
    /// The chain family.
    Family,
    /// The chain.
    Chain,
    /// Stages with their levels.
    Schedule,
    /// What was asked for beside the stages.
    Load,
    /// HTTP version and use of connections.
    Connections,
    /// A method's share of all calls.
    Share(String),
    /// A setting of the plan.
    Setting(String),
    /// Settings of the plan that are too many to list.
    MoreSettings,
    /// The plan's text, where its settings are equal.
    PlanText,
    /// The seed.
    Seed,
    /// Engine threads.
    Threads,
    /// The chain's head.
    Head,
    /// What the target says it is.
    Client,
    /// The generator's machine.
    Machine(Part),
}

/// A part of the generator's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its host name.
    Host,
    /// Its kind of CPU.
    Cpu,
    /// Its cores.
    Cores,
    /// Its frequency governor.
    Governor,
    /// The cores that the generator may use.
    CpuLimit,
    /// Where the target is.
    Target,
    /// Its kernel.
    Kernel,
    /// Its congestion control.
    Congestion,
    /// Its memory.
    Memory,
}

/// How a fact is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// As it is written.
    Text(String),
    /// A setting that the plan does not have.
    NotSet,
    /// A limit or a name that the machine does not have.
    Absent,
    /// A share of all calls.
    Share(f64),
    /// So many settings.
    Settings(usize),
    /// They differ; the other value says how many do.
    Differ,
    /// Whether the target is on the generator's machine.
    TargetLocal(bool),
    /// Memory in GiB.
    Gibibytes(f64),
}

impl Value {
    fn text(value: &(impl ToString + ?Sized)) -> Value {
        Value::Text(value.to_string())
    }

    fn or_absent<T: ToString>(value: Option<&T>) -> Value {
        value.map_or(Value::Absent, |value| Value::text(value))
    }
}

/// Everything that two runs do not have in common, gravest first.
pub fn mismatches(a: &Facts, b: &Facts) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let mut add = |what, a, b, weight| {
        if a != b {
            found.push(Mismatch { what, a, b, weight });
        }
    };
    add(Fact::Tool, Value::text(a.tool.as_str()), Value::text(b.tool.as_str()), Weight::Warn);
    both(&mut add, Fact::Family, &a.family, &b.family, Weight::Refuse);
    both(&mut add, Fact::Chain, &a.chain_id, &b.chain_id, Weight::Refuse);
    if !a.schedule.is_empty() && !b.schedule.is_empty() {
        let stages = |facts: &Facts| Value::Text(facts.schedule.join("; "));
        add(Fact::Schedule, stages(a), stages(b), Weight::Refuse);
    }
    both(&mut add, Fact::Load, &a.load, &b.load, Weight::Warn);
    both(&mut add, Fact::Connections, &a.connections, &b.connections, Weight::Refuse);
    mix(&mut add, a, b);
    plan(&mut add, a, b);
    both(&mut add, Fact::Seed, &a.seed, &b.seed, Weight::Warn);
    both(&mut add, Fact::Threads, &a.threads, &b.threads, Weight::Warn);
    let apart = a.head.zip(b.head).is_some_and(|(x, y)| x.abs_diff(y) > HEADS);
    let weight = if apart { Weight::Warn } else { Weight::Note };
    both(&mut add, Fact::Head, &a.head, &b.head, weight);
    both(&mut add, Fact::Client, &a.client, &b.client, Weight::Note);
    if let Some((x, y)) = a.machine.as_ref().zip(b.machine.as_ref()) {
        let parts = machine(x).into_iter().zip(machine(y));
        parts.for_each(|((part, x), (_, y))| add(Fact::Machine(part), x, y, Weight::Warn));
    }
    found.sort_by_key(|mismatch| std::cmp::Reverse(mismatch.weight));
    found
}

type Add<'a> = dyn FnMut(Fact, Value, Value, Weight) + 'a;

/// Compares a fact that both runs must know.
fn both<T: ToString>(add: &mut Add<'_>, what: Fact, a: &Option<T>, b: &Option<T>, weight: Weight) {
    if let Some((a, b)) = a.as_ref().zip(b.as_ref()) {
        add(what, Value::text(a), Value::text(b), weight);
    }
}

/// Methods by what was really sent, whatever the plan says.
fn mix(add: &mut Add<'_>, a: &Facts, b: &Facts) {
    if a.shares.is_empty() || b.shares.is_empty() {
        return;
    }
    let share = |facts: &Facts, method: &str| facts.shares.get(method).copied().unwrap_or(0.0);
    let mut methods: Vec<&String> = a.shares.keys().chain(b.shares.keys()).collect();
    methods.sort();
    methods.dedup();
    for method in methods {
        let (x, y) = (share(a, method), share(b, method));
        if (x - y).abs() > SHARES {
            add(Fact::Share(method.clone()), Value::Share(x), Value::Share(y), Weight::Warn);
        }
    }
}

fn plan(add: &mut Add<'_>, a: &Facts, b: &Facts) {
    let (Some(hash_a), Some(hash_b)) = (&a.plan_hash, &b.plan_hash) else { return };
    if hash_a == hash_b {
        return;
    }
    let mut keys: Vec<&String> = a.settings.keys().chain(b.settings.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.retain(|key| a.settings.get(*key) != b.settings.get(*key));
    let weight_of = |key: &str| match key.split('.').next().unwrap_or(key) {
        first if SILENT.contains(&first) || WHO.contains(&first) => Weight::Note,
        _ => Weight::Warn,
    };
    for key in keys.iter().take(LISTED_MAX) {
        let value = |facts: &Facts| facts.settings.get(*key).map_or(Value::NotSet, Value::text);
        add(Fact::Setting((*key).clone()), value(a), value(b), weight_of(key));
    }
    if let Some(more) = keys.get(LISTED_MAX..).filter(|more| !more.is_empty()) {
        let weight = more.iter().map(|key| weight_of(key)).max().unwrap_or(Weight::Note);
        add(Fact::MoreSettings, Value::Settings(more.len()), Value::Differ, weight);
    }
    if keys.is_empty() {
        let short = |hash: &String| Value::Text(hash.chars().take(12).collect());
        add(Fact::PlanText, short(hash_a), short(hash_b), Weight::Note);
    }
}

/// The parts of a machine that are compared.
fn machine(of: &Fingerprint) -> [(Part, Value); 9] {
    // Firmware takes a little more or less of the same modules.
    let gibibytes = (of.memory_bytes as f64 / f64::from(1 << 30)).round_ties_even();
    [
        (Part::Host, Value::text(&of.host)),
        (Part::Cpu, Value::text(&of.cpu)),
        (Part::Cores, Value::text(&of.cores)),
        (Part::Governor, Value::or_absent(of.governor.as_ref())),
        (Part::CpuLimit, Value::or_absent(of.cpu_limit.as_ref())),
        (Part::Target, Value::TargetLocal(of.target_local)),
        (Part::Kernel, Value::text(&of.kernel)),
        (Part::Congestion, Value::or_absent(of.congestion.as_ref())),
        (Part::Memory, Value::Gibibytes(gibibytes)),
    ]
}

#[cfg(test)]
mod tests;
