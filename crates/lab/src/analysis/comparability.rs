//! Decides if two runs may be compared: lists the facts in which they differ, with a severity.
//!
//! A difference between numbers is meaningful only if both runs sent the same load. If a mismatch
//! changes the meaning of the numbers, the comparison is refused. A mismatch that may explain a
//! difference is a warning. Other mismatches are notes. `compare.rs` and `import.rs` collect the
//! facts.

use std::collections::BTreeMap;

use lab_model::results::compare::Weight;
use lab_model::results::{Fingerprint, Outcome};

/// A load-testing tool that makes runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// `weir load`.
    #[default]
    Weir,
    /// grafana/k6.
    K6,
    /// tsenart/vegeta.
    Vegeta,
    /// erigontech/rpc-tests, which drives vegeta.
    Erigon,
}

impl Tool {
    /// Returns the name of the tool in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Tool::Weir => "weir",
            Tool::K6 => "k6",
            Tool::Vegeta => "vegeta",
            Tool::Erigon => "erigon",
        }
    }
}

/// How a run was made. A fact that the tool does not report is `None` and is not compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The tool that made the run.
    pub tool: Tool,
    /// SHA-256 of the plan.
    pub plan_hash: Option<String>,
    /// Settings of the plan: each flattened key (`scenario.0.mix`) with its value as TOML.
    pub settings: BTreeMap<String, String>,
    /// Seed of all randomness.
    pub seed: Option<u64>,
    /// Engine threads.
    pub threads: Option<usize>,
    /// HTTP version and use of connections, as text.
    pub connections: Option<String>,
    /// Stages with their levels and times, as text.
    pub schedule: Vec<String>,
    /// Methods with their shares of all calls.
    pub shares: BTreeMap<String, f64>,
    /// Other settings of the load, as text (k6's script, vegeta's targets).
    pub load: Option<String>,
    /// Family of the chain's methods, such as Ethereum or Bitcoin.
    pub family: Option<String>,
    /// Chain id.
    pub chain_id: Option<String>,
    /// Scheme of the target's URL.
    pub scheme: Option<String>,
    /// The target's client version (`web3_clientVersion`).
    pub client: Option<String>,
    /// Number of the chain's newest block (the head) at the start of the run.
    pub head: Option<u64>,
    /// The generator's machine.
    pub machine: Option<Fingerprint>,
    /// The outcome of the run's own verdict.
    pub outcome: Option<Outcome>,
    /// True if the run ended before the end of its plan.
    pub partial: bool,
}

/// Top-level keys of a plan that do not change the requests.
const KEYS_WITHOUT_EFFECT: &[&str] =
    &["name", "thresholds", "threshold", "validity", "watch", "capacity"];
/// Top-level keys that name the target. Compared runs are expected to differ in these keys.
const KEYS_OF_TARGET: &[&str] = &["target", "reference"];
/// Maximum distance of two runs' heads, in blocks. Up to this distance, parameters that depend on
/// the head select similar data.
const HEADS_APART_MAX: u64 = 128;
/// A method's shares in two runs may differ by up to this much by chance, if the runs have about a
/// thousand calls.
const SHARES_APART_MAX: f64 = 0.03;
/// Maximum number of differing settings that are listed by name. Further settings are counted.
const LISTED_SETTINGS_MAX: usize = 8;

/// A fact in which two runs differ.
#[derive(Clone, Debug, PartialEq)]
pub struct FactMismatch {
    /// The fact.
    pub fact: Fact,
    /// Value of the fact in the first run.
    pub a: Value,
    /// Value of the fact in the second run.
    pub b: Value,
    /// Severity of the mismatch.
    pub weight: Weight,
}

/// A fact about a run that is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The tool.
    Tool,
    /// The family of the chain's methods.
    Family,
    /// The chain.
    Chain,
    /// Stages with their levels.
    Schedule,
    /// Other settings of the load.
    Load,
    /// HTTP version and use of connections.
    Connections,
    /// A method's share of all calls.
    Share(String),
    /// A setting of the plan.
    Setting(String),
    /// Further settings of the plan, beyond those listed by name.
    MoreSettings,
    /// The plan's text. It is compared only if all settings are equal.
    PlanText,
    /// The seed.
    Seed,
    /// Engine threads.
    Threads,
    /// The number of the chain's newest block.
    Head,
    /// Scheme of the target's URL: `https` includes TLS, `http` does not.
    Scheme,
    /// The target's client version.
    Client,
    /// Host name of the generator's machine.
    Host,
    /// CPU model of the generator's machine.
    Cpu,
    /// Number of cores of the generator's machine.
    Cores,
    /// CPU frequency governor of the generator's machine.
    Governor,
    /// Cores that the generator may use.
    CpuLimit,
    /// True if the target is on the generator's machine.
    TargetLocal,
    /// Kernel version of the generator's machine.
    Kernel,
    /// TCP congestion control of the generator's machine.
    Congestion,
    /// Memory of the generator's machine.
    Memory,
}

/// The value of a fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// The plan does not have the setting.
    NotSet,
    /// The machine does not have this property, for example a CPU limit.
    Absent,
    /// A share of all calls.
    Share(f64),
    /// The number of further settings that differ.
    Settings(usize),
    /// The second run's value of [`Fact::MoreSettings`]. The first run's value is
    /// [`Value::Settings`].
    Differ,
    /// True if the target is on the generator's machine.
    TargetLocal(bool),
    /// Memory in GiB.
    Gibibytes(f64),
}

impl Value {
    /// Converts a value to text.
    fn text(value: &(impl ToString + ?Sized)) -> Value {
        Value::Text(value.to_string())
    }

    /// Converts a value to text; `None` becomes [`Value::Absent`].
    fn or_absent<T: ToString>(value: Option<&T>) -> Value {
        value.map_or(Value::Absent, |value| Value::text(value))
    }
}

/// Returns all mismatches of two runs, the most severe first.
pub fn find_mismatches(a: &Facts, b: &Facts) -> Vec<FactMismatch> {
    let mut mismatches = Vec::new();
    let mut add = |fact, a, b, weight| {
        if a != b {
            mismatches.push(FactMismatch { fact, a, b, weight });
        }
    };
    add(Fact::Tool, Value::text(a.tool.as_str()), Value::text(b.tool.as_str()), Weight::Warn);
    add_if_known(&mut add, Fact::Family, &a.family, &b.family, Weight::Refuse);
    add_if_known(&mut add, Fact::Chain, &a.chain_id, &b.chain_id, Weight::Refuse);
    if !a.schedule.is_empty() && !b.schedule.is_empty() {
        let stages = |facts: &Facts| Value::Text(facts.schedule.join("; "));
        add(Fact::Schedule, stages(a), stages(b), Weight::Refuse);
    }
    add_if_known(&mut add, Fact::Load, &a.load, &b.load, Weight::Warn);
    add_if_known(&mut add, Fact::Connections, &a.connections, &b.connections, Weight::Refuse);
    add_shares(&mut add, a, b);
    add_settings(&mut add, a, b);
    add_if_known(&mut add, Fact::Seed, &a.seed, &b.seed, Weight::Warn);
    add_if_known(&mut add, Fact::Threads, &a.threads, &b.threads, Weight::Warn);
    let heads_apart = a.head.zip(b.head).is_some_and(|(x, y)| x.abs_diff(y) > HEADS_APART_MAX);
    let head_weight = if heads_apart { Weight::Warn } else { Weight::Note };
    add_if_known(&mut add, Fact::Head, &a.head, &b.head, head_weight);
    add_if_known(&mut add, Fact::Scheme, &a.scheme, &b.scheme, Weight::Warn);
    add_if_known(&mut add, Fact::Client, &a.client, &b.client, Weight::Note);
    if let Some((machine_a, machine_b)) = a.machine.as_ref().zip(b.machine.as_ref()) {
        let pairs = machine_facts(machine_a).into_iter().zip(machine_facts(machine_b));
        for ((fact, value_a), (_, value_b)) in pairs {
            add(fact, value_a, value_b, Weight::Warn);
        }
    }
    mismatches.sort_by_key(|mismatch| std::cmp::Reverse(mismatch.weight));
    mismatches
}

/// Returns the settings of the load in which two runs differ, the most severe first. Empty if both
/// runs have the same plan, apart from its target and seed.
pub fn plan_differences(a: &Facts, b: &Facts) -> Vec<Fact> {
    let is_of_load = |mismatch: &FactMismatch| match &mismatch.fact {
        Fact::Schedule | Fact::Load | Fact::Connections | Fact::Setting(_) | Fact::MoreSettings => {
            mismatch.weight > Weight::Note
        }
        // The settings contain the planned shares. The measured shares replace them if a run has no
        // settings.
        Fact::Share(_) => a.settings.is_empty() || b.settings.is_empty(),
        _ => false,
    };
    find_mismatches(a, b).into_iter().filter(is_of_load).map(|mismatch| mismatch.fact).collect()
}

/// Returns the properties in which two targets and the machines of their generators differ, without
/// the host name.
pub fn system_differences(a: &Facts, b: &Facts) -> Vec<Fact> {
    use Fact::*;
    let is_of_system = |fact: &Fact| {
        matches!(
            fact,
            Client
                | Scheme
                | Cpu
                | Cores
                | Governor
                | CpuLimit
                | TargetLocal
                | Kernel
                | Congestion
                | Memory
        )
    };
    find_mismatches(a, b).into_iter().map(|mismatch| mismatch.fact).filter(is_of_system).collect()
}

/// Adds a mismatch if the values of a fact differ. The arguments are the fact, its values in both
/// runs, and the severity.
type Add<'a> = dyn FnMut(Fact, Value, Value, Weight) + 'a;

/// Adds a mismatch if the fact is known for both runs and differs.
fn add_if_known<T: ToString>(
    add: &mut Add<'_>,
    fact: Fact,
    a: &Option<T>,
    b: &Option<T>,
    weight: Weight,
) {
    if let Some((a, b)) = a.as_ref().zip(b.as_ref()) {
        add(fact, Value::text(a), Value::text(b), weight);
    }
}

/// Adds the methods whose shares of the sent calls differ by more than chance.
fn add_shares(add: &mut Add<'_>, a: &Facts, b: &Facts) {
    if a.shares.is_empty() || b.shares.is_empty() {
        return;
    }
    let share = |facts: &Facts, method: &str| facts.shares.get(method).copied().unwrap_or(0.0);
    let mut methods: Vec<&String> = a.shares.keys().chain(b.shares.keys()).collect();
    methods.sort();
    methods.dedup();
    for method in methods {
        let (share_a, share_b) = (share(a, method), share(b, method));
        if (share_a - share_b).abs() > SHARES_APART_MAX {
            let fact = Fact::Share(method.clone());
            add(fact, Value::Share(share_a), Value::Share(share_b), Weight::Warn);
        }
    }
}

/// Adds the settings in which two plans differ. If all settings are equal, adds the plan's text.
fn add_settings(add: &mut Add<'_>, a: &Facts, b: &Facts) {
    let (Some(hash_a), Some(hash_b)) = (&a.plan_hash, &b.plan_hash) else { return };
    if hash_a == hash_b {
        return;
    }
    let mut keys: Vec<&String> = a.settings.keys().chain(b.settings.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.retain(|key| a.settings.get(*key) != b.settings.get(*key));
    let weight_of = |key: &str| match key.split('.').next().unwrap_or(key) {
        first if KEYS_WITHOUT_EFFECT.contains(&first) => Weight::Note,
        first if KEYS_OF_TARGET.contains(&first) => Weight::Note,
        _ => Weight::Warn,
    };
    for key in keys.iter().take(LISTED_SETTINGS_MAX) {
        let value = |facts: &Facts| facts.settings.get(*key).map_or(Value::NotSet, Value::text);
        add(Fact::Setting((*key).clone()), value(a), value(b), weight_of(key));
    }
    let unlisted_keys = keys.get(LISTED_SETTINGS_MAX..).unwrap_or_default();
    if !unlisted_keys.is_empty() {
        let weight = unlisted_keys.iter().map(|key| weight_of(key)).max().unwrap_or(Weight::Note);
        add(Fact::MoreSettings, Value::Settings(unlisted_keys.len()), Value::Differ, weight);
    }
    if keys.is_empty() {
        let prefix = |hash: &String| Value::Text(hash.chars().take(12).collect());
        add(Fact::PlanText, prefix(hash_a), prefix(hash_b), Weight::Note);
    }
}

/// Returns the facts about a machine that are compared.
fn machine_facts(fingerprint: &Fingerprint) -> [(Fact, Value); 9] {
    // The memory is rounded to whole GiB, because firmware reserves a varying part of equal memory
    // modules.
    let gibibytes = (fingerprint.memory_bytes as f64 / f64::from(1 << 30)).round_ties_even();
    [
        (Fact::Host, Value::text(&fingerprint.host)),
        (Fact::Cpu, Value::text(&fingerprint.cpu)),
        (Fact::Cores, Value::text(&fingerprint.cores)),
        (Fact::Governor, Value::or_absent(fingerprint.governor.as_ref())),
        (Fact::CpuLimit, Value::or_absent(fingerprint.cpu_limit.as_ref())),
        (Fact::TargetLocal, Value::TargetLocal(fingerprint.target_local)),
        (Fact::Kernel, Value::text(&fingerprint.kernel)),
        (Fact::Congestion, Value::or_absent(fingerprint.congestion.as_ref())),
        (Fact::Memory, Value::Gibibytes(gibibytes)),
    ]
}

#[cfg(test)]
mod tests;
