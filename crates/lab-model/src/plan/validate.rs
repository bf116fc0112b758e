//! Checks the values of a plan's file against each other, and builds the [`Plan`].
//!
//! The reader of `plan/tables.rs` has already checked each value by itself. This module resolves
//! names, computes defaults that depend on other keys, and checks limits between keys. It collects
//! all problems before it returns. `plan/lint.rs` finds likely mistakes.
//!
//! `report.error(key, message, allowed)` reports a problem of a key, with the values that would be
//! allowed.

use std::time::Duration;

use settings::value::format_duration;
use settings::{Key, Report, not_found_message};

use super::requests::Methods;
use super::tables::{CapacityTable, ConnectionsTable, PlanFile, RunTable, TargetTable};
use super::{Capacity, Connections, Environment, HttpVersion, Plan, Target, Tls};
use crate::plan::lint;
use crate::record::Class;

pub(super) mod mixes;
mod scenarios;
mod subscriptions;
mod thresholds;
mod transactions;

/// Maximum number of slots of a plan. A slot is a combination of stage, method and class, and its
/// position must fit into a `u16` (`record::Interval`).
const SLOTS_MAX: usize = 65_000;

/// Checks the file and builds the plan. `name` is the name of the file. Returns `None` if the
/// report has errors.
pub(super) fn check(
    file: &PlanFile,
    name: &str,
    environment: &Environment<'_>,
    report: &mut Report<'_>,
) -> Option<Plan> {
    let mut methods = Methods::default();
    let mut mixes = mixes::Mixes::read(file, environment, &mut methods, report);
    let (scenarios, stage_names) = scenarios::check(file, &mut mixes, &mut methods, report);
    check_slots(stage_names.list.len(), &methods, file, report);
    check_overrides(file, environment, report);
    // A mix that could not be read may have transactions.
    let sends_transactions =
        methods.is_incomplete || scenarios.iter().any(|scenario| scenario.transactions.is_some());
    let thresholds = thresholds::check(file, &methods, &stage_names, sends_transactions, report);
    let target = read_target(&file.target);
    check_websocket(file, &target, &methods.names, report);
    let subscriptions = subscriptions::check(file, &target, report);
    let connections = read_connections(&file.connections, environment, report);
    let capacity = read_capacity(&file.capacity, report);
    let mut plan = Plan {
        name: file.name.as_ref().map_or_else(|| name_of_file(name), Clone::clone),
        text: String::new(),
        target,
        connections,
        seed: *file.run.seed,
        threads: *file.run.threads,
        methods: methods.names,
        mixes: mixes.used,
        scenarios,
        subscriptions,
        thresholds,
        warmup: whole_seconds(*file.run.warmup),
        validity: file.validity.values(),
        reference: file.reference.is_set().then(|| file.reference.values()),
        watch: file.watch.values(),
        inclusion: file.inclusion.values(),
        capacity,
        warnings: mixes.warnings,
    };
    check_warmup(&file.run, &plan, report);
    transactions::check(file, &plan, report);
    if report.has_errors() {
        return None;
    }
    plan.warnings.extend(lint::find_warnings(&plan));
    Some(plan)
}

/// Rounds up to whole seconds, because counts are stored by second.
pub fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

/// Returns a plan's name from its file's name.
fn name_of_file(name: &str) -> String {
    let stem = std::path::Path::new(name).file_stem().and_then(|stem| stem.to_str());
    stem.filter(|stem| !stem.is_empty()).unwrap_or("plan").to_owned()
}

/// Rejects a warm-up that is as long as the plan.
fn check_warmup(run: &RunTable, plan: &Plan, report: &mut Report<'_>) {
    let duration = plan.duration();
    if !plan.scenarios.is_empty() && plan.warmup >= duration && !plan.warmup.is_zero() {
        let allowed = format!("less than the plan's \"{}\"", format_duration(duration));
        report.error(&run.warmup, "nothing is left to be judged", allowed);
    }
}

/// Rejects plans with more slots than [`SLOTS_MAX`].
fn check_slots(stages: usize, methods: &Methods, file: &PlanFile, report: &mut Report<'_>) {
    let methods = methods.names.len();
    let slots = stages * methods * Class::ALL.len();
    if slots > SLOTS_MAX {
        let message = format!(
            "{stages} stages, {methods} methods and {} classes need {slots} histograms",
            Class::ALL.len()
        );
        let allowed = format!("at most {SLOTS_MAX}: fewer stages or fewer methods");
        report.error(&file.scenario, message, allowed);
    }
}

/// Reports each argument of `--set` whose variable the plan does not have, or whose value is not
/// finite.
fn check_overrides(file: &PlanFile, environment: &Environment<'_>, report: &mut Report<'_>) {
    let known: Vec<_> = file.variables.iter().map(|variable| variable.name.as_str()).collect();
    for (name, value) in environment.overrides {
        let (message, allowed) = match known.contains(&name.as_str()) {
            false => not_found_message("variable", name, &known),
            true if !value.is_finite() => ("not a finite number".to_owned(), "a number".to_owned()),
            true => continue,
        };
        report.argument_error(format!("--set {name}"), Some(value.to_string()), message, allowed);
    }
}

/// Builds the target, with the authorization header for the user part of its URL.
fn read_target(table: &TargetTable) -> Target {
    let mut target = Target {
        url: (*table.url).clone(),
        family: *table.family,
        headers: table.headers.to_vec(),
        timeout: *table.timeout,
        connect_timeout: *table.connect_timeout,
        response_bytes_max: *table.response_bytes_max,
    };
    target.authorize();
    target
}

/// A setting of a plan that conflicts with a WebSocket target.
pub(super) struct WebSocketConflict {
    pub(super) message: String,
    /// The settings that such a target allows.
    pub(super) allowed: &'static str,
    /// True if the setting is the HTTP version, and false if it is a call.
    is_version: bool,
}

/// Returns the settings of a plan that conflict with a WebSocket target. Returns an empty list for
/// other targets.
pub(super) fn find_websocket_conflicts(
    target: &Target,
    http: HttpVersion,
    methods: &[Box<str>],
) -> Vec<WebSocketConflict> {
    let mut conflicts = Vec::new();
    if !target.is_websocket() {
        return conflicts;
    }
    if http == HttpVersion::Http2 {
        conflicts.push(WebSocketConflict {
            message: "WebSockets, which a ws:// or wss:// target has, are opened by HTTP/1.1"
                .to_owned(),
            allowed: "\"1.1\", or a target with http:// or https://",
            is_version: true,
        });
    }
    // The engine could mistake a notification for the response to a later call.
    if let Some(method) = methods.iter().find(|method| method.ends_with("_subscribe")) {
        conflicts.push(WebSocketConflict {
            message: format!("calls over WebSockets cannot subscribe, and the plan calls {method}"),
            allowed: "other calls, and [[subscription]] for subscriptions",
            is_version: false,
        });
    }
    conflicts
}

/// Reports the settings that conflict with a WebSocket target.
fn check_websocket(
    file: &PlanFile,
    target: &Target,
    methods: &[Box<str>],
    report: &mut Report<'_>,
) {
    for conflict in find_websocket_conflicts(target, *file.connections.http, methods) {
        match conflict.is_version {
            true => report.error(&file.connections.http, conflict.message, conflict.allowed),
            false => report.error(&file.target.url, conflict.message, conflict.allowed),
        }
    }
}

/// Builds the settings of connections. Checks that the cipher suites belong to the TLS version, and
/// that the file of trust anchors exists.
fn read_connections(
    table: &ConnectionsTable,
    environment: &Environment<'_>,
    report: &mut Report<'_>,
) -> Connections {
    let version = *table.tls_version;
    for (index, suite) in table.ciphers.valid_value().into_iter().flatten().enumerate() {
        if version.is_some_and(|version| version != suite.version) {
            let message = "belongs to another version than tls_version";
            report.error(&table.ciphers.element_location(index), message, "suites of that version");
        }
    }
    let ca = table.tls_ca.as_ref().map(|file| environment.folder.join(file));
    if let Some(ca) = ca.as_ref().filter(|ca| !ca.is_file()) {
        let message = format!("there is no file {}", ca.display());
        report.error(&table.tls_ca, message, "a PEM file");
    }
    Connections {
        http: *table.http,
        reuse: *table.reuse,
        tls: Tls {
            resume: *table.tls_resume,
            version,
            ciphers: table.ciphers.iter().map(|suite| suite.name.to_owned()).collect(),
            insecure: *table.tls_insecure,
            ca,
        },
    }
}

/// Builds the settings of a capacity search, and checks them against each other. A probe is a short
/// run at one rate, and the soak is a long run at the highest rate that passed.
fn read_capacity(table: &CapacityTable, report: &mut Report<'_>) -> Capacity {
    let values = table.values();
    let capacity = Capacity { probe_warmup: whole_seconds(values.probe_warmup), ..values };
    if capacity.rate_start > capacity.rate_max {
        let key = first_set(&table.rate_start, &table.rate_max);
        report.error(key, "rate_start is above rate_max", "rate_start up to rate_max");
    }
    if capacity.probe_warmup >= capacity.probe {
        let key = first_set(&table.probe_warmup, &table.probe);
        let allowed = "probe_warmup shorter than probe";
        report.error(key, "nothing of a probe is left to be judged", allowed);
    }
    if !capacity.soak.is_zero() && capacity.soak < Duration::from_secs(1) {
        report.error(&table.soak, "too short to show anything", "\"0s\", or \"1s\" or more");
    }
    capacity
}

/// Returns the key that an error names: `preferred` if the file sets this key, or else `other`.
fn first_set<'k, T>(preferred: &'k Key<T>, other: &'k Key<T>) -> &'k Key<T> {
    if preferred.is_set() { preferred } else { other }
}
