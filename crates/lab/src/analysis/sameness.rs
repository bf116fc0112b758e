//! Whether arms may be compared: what they do not have in common, and how grave that is.
//!
//! A difference between numbers means something only if what was asked was the same. What makes the
//! numbers mean different things is refused; what a difference may come from is warned of; the rest
//! is noted. Pure; facts are gathered by `compare.rs` and `import.rs`.

use std::collections::BTreeMap;

use lab_model::results::compare::{Mismatch, Weight};
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

/// Everything that two runs do not have in common, gravest first. `arm` is the name of the second.
pub fn mismatches(a: &Facts, b: &Facts, arm: &str) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let mut add = |what: &str, a: String, b: String, weight, why: &str| {
        let (what, why, arm) = (what.to_owned(), why.to_owned(), arm.to_owned());
        found.push(Mismatch { what, a, b, arm, weight, why });
    };
    if a.tool != b.tool {
        let (a, b) = (a.tool.as_str().to_owned(), b.tool.as_str().to_owned());
        add("tool", a, b, Weight::Warn, "tools begin their clocks at different points of a call");
    }
    both(&mut add, "chain family", &a.family, &b.family, Weight::Refuse, "other methods");
    let why = "other data, so other work";
    both(&mut add, "chain", &a.chain_id, &b.chain_id, Weight::Refuse, why);
    let why = "not the same load was asked for";
    if !a.schedule.is_empty() && !b.schedule.is_empty() && a.schedule != b.schedule {
        add("schedule", a.schedule.join("; "), b.schedule.join("; "), Weight::Refuse, why);
    }
    both(&mut add, "load", &a.load, &b.load, Weight::Warn, why);
    let why = "a connection's price is in the one and not in the other";
    both(&mut add, "connections", &a.connections, &b.connections, Weight::Refuse, why);
    mix(&mut add, a, b);
    plan(&mut add, a, b);
    let why = "not the same calls in the same order; of the same kinds, though";
    both(&mut add, "seed", &a.seed, &b.seed, Weight::Warn, why);
    let why = "the generator had other means";
    both(&mut add, "generator threads", &a.threads, &b.threads, Weight::Warn, why);
    if let Some((x, y)) = a.head.zip(b.head) {
        let weight = if x.abs_diff(y) > HEADS { Weight::Warn } else { Weight::Note };
        if x != y {
            let why = "parameters are drawn from blocks below the head";
            add("head", x.to_string(), y.to_string(), weight, why);
        }
    }
    both(&mut add, "client", &a.client, &b.client, Weight::Note, "what is compared, perhaps");
    if let Some((x, y)) = a.machine.as_ref().zip(b.machine.as_ref()) {
        machine(&mut add, x, y);
    }
    found.sort_by_key(|mismatch| std::cmp::Reverse(mismatch.weight));
    found
}

type Add<'a> = dyn FnMut(&str, String, String, Weight, &str) + 'a;

fn both<T: PartialEq + ToString>(
    add: &mut Add<'_>,
    what: &str,
    a: &Option<T>,
    b: &Option<T>,
    weight: Weight,
    why: &str,
) {
    if let Some((a, b)) = a.as_ref().zip(b.as_ref()).filter(|(a, b)| a != b) {
        add(what, a.to_string(), b.to_string(), weight, why);
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
            let shown = |share: f64| format!("{:.1} % of all calls", share * 100.0);
            let what = format!("share of {method}");
            let why = "all methods together are not the same work; each method alone may be";
            add(&what, shown(x), shown(y), Weight::Warn, why);
        }
    }
}

fn plan(add: &mut Add<'_>, a: &Facts, b: &Facts) {
    if a.plan_hash.is_none() || b.plan_hash.is_none() || a.plan_hash == b.plan_hash {
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
        let shown = |facts: &Facts| facts.settings.get(*key).cloned().unwrap_or("not set".into());
        let why = match weight_of(key) {
            Weight::Note => "does not change what is sent",
            _ => "what is sent may differ",
        };
        add(&format!("plan: {key}"), shown(a), shown(b), weight_of(key), why);
    }
    if let Some(more) = keys.get(LISTED_MAX..).filter(|more| !more.is_empty()) {
        let weight = more.iter().map(|key| weight_of(key)).max().unwrap_or(Weight::Note);
        let count = format!("{} further settings", more.len());
        add("plan", count, "differ".to_owned(), weight, "what is sent may differ");
    }
    if keys.is_empty() {
        let hash = |facts: &Facts| {
            facts.plan_hash.as_ref().map(|hash| hash.chars().take(12).collect()).unwrap_or_default()
        };
        add("plan's text", hash(a), hash(b), Weight::Note, "its settings are equal");
    }
}

fn machine(add: &mut Add<'_>, a: &Fingerprint, b: &Fingerprint) {
    let mut differs = |what: &str, x: String, y: String, weight, why: &str| {
        if x != y {
            add(&format!("machine: {what}"), x, y, weight, why);
        }
    };
    let other = "another machine measured: only the figures per core and per request are fair";
    differs("host", a.host.clone(), b.host.clone(), Weight::Warn, other);
    differs("CPU", a.cpu.clone(), b.cpu.clone(), Weight::Warn, other);
    differs("cores", a.cores.to_string(), b.cores.to_string(), Weight::Warn, other);
    let shown = |value: &Option<String>| value.clone().unwrap_or("none".into());
    let speed = "the clock of the CPU may have changed meanwhile";
    differs("governor", shown(&a.governor), shown(&b.governor), Weight::Warn, speed);
    let limit = |limit: Option<f64>| limit.map_or("none".to_owned(), |cores| cores.to_string());
    let why = "the generator had other means";
    differs("CPU limit", limit(a.cpu_limit), limit(b.cpu_limit), Weight::Warn, why);
    let place = |local: bool| if local { "on it" } else { "elsewhere" }.to_owned();
    let why =
        "with the target on the generator's machine both share it, and no network lies between";
    let (x, y) = (place(a.target_local), place(b.target_local));
    differs("target", x, y, Weight::Warn, why);
    let may = "a difference may come from it";
    differs("kernel", a.kernel.clone(), b.kernel.clone(), Weight::Warn, may);
    let congestion = (shown(&a.congestion), shown(&b.congestion));
    differs("congestion control", congestion.0, congestion.1, Weight::Warn, may);
    // Firmware takes a little more or less of the same modules.
    let gibibytes = |bytes: u64| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30));
    let memory = (gibibytes(a.memory_bytes), gibibytes(b.memory_bytes));
    differs("memory", memory.0, memory.1, Weight::Warn, other);
}

#[cfg(test)]
mod tests;
