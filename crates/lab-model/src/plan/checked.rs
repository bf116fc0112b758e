//! From what was written to what is wanted: whether the values fit each other.
//!
//! Each value by itself was judged when it was read (`plan/file.rs`). Here names are looked up,
//! defaults that follow from elsewhere are drawn, and bounds between keys are held. Faults are
//! gathered to the end, so that one does not hide the next. What is allowed but looks like a mistake
//! is for `plan/lint.rs`.

use std::time::Duration;

use super::fault::Report;
use super::field::{CAPACITY, CONNECTIONS, REFERENCE, RUN, TARGET, VALIDITY, WATCH};
use super::file::{Entry, Written};
use super::kind::{ShownDuration, Value};
use super::requests::Methods;
use super::{
    Capacity, Connections, HttpVersion, Plan, Reference, Target, Tls, TlsVersion, Validity, Watch,
    World,
};
use crate::plan::lint;
use crate::record::Class;

mod ciphers;
pub(super) mod mixes;
mod scenarios;
mod thresholds;

/// Histogram slots that the recorder can tell apart (`record::Interval`), with some to spare.
const SLOTS_MAX: usize = 65_000;

/// The plan; none if the report has faults.
pub(super) fn check(
    written: &Written,
    name: &str,
    world: &World<'_>,
    report: &mut Report<'_>,
) -> Option<Plan> {
    let mut methods = Methods::default();
    let mut mixes = mixes::Mixes::read(written, world, &mut methods, report);
    let (scenarios, stage_names) = scenarios::check(written, &mut mixes, &mut methods, report);
    slots(stage_names.len(), &methods, written, report);
    let thresholds = thresholds::check(written, methods.names(), &stage_names, report);
    let target = target(&written.once(&TARGET));
    let connections = connections(&written.once(&CONNECTIONS), world, report);
    let run = written.once(&RUN);
    let reference = written.all(&REFERENCE).next().and_then(reference);
    let watch = watch(&written.once(&WATCH));
    let capacity = capacity(&written.once(&CAPACITY), report);
    let mut plan = Plan {
        name: written.plan.chosen("name").map_or_else(|| stem(name), Value::text),
        text: written.kept.clone(),
        target: target?,
        connections,
        seed: run.value("seed").count(),
        threads: run.value("threads").size(),
        methods: methods.into_names(),
        mixes: mixes.used,
        scenarios,
        thresholds,
        warmup: whole_seconds(run.value("warmup").duration()),
        validity: validity(&written.once(&VALIDITY)),
        reference,
        watch,
        capacity,
        warnings: mixes.warnings,
    };
    if !plan.scenarios.is_empty() && plan.warmup >= plan.duration() && !plan.warmup.is_zero() {
        let all = ShownDuration(plan.duration());
        let message = "nothing is left to be judged";
        refuse(report, &run, "warmup", message, &format!("less than the plan's \"{all}\""));
    }
    if report.has_faults() {
        return None;
    }
    plan.warnings.extend(lint::find(&plan));
    Some(plan)
}

/// Rounded up: what is judged begins with a second, as counts are kept by second.
pub fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

/// A plan's name from its file's.
fn stem(name: &str) -> String {
    let stem = std::path::Path::new(name).file_stem().and_then(|stem| stem.to_str());
    stem.filter(|stem| !stem.is_empty()).unwrap_or("plan").to_owned()
}

fn slots(stages: usize, methods: &Methods, written: &Written, report: &mut Report<'_>) {
    let slots = stages * methods.names().len() * Class::ALL.len();
    if slots > SLOTS_MAX {
        let message = format!(
            "{stages} stages, {} methods and {} classes are {slots} histograms to keep apart",
            methods.names().len(),
            Class::ALL.len()
        );
        let span = written.entries.first().and_then(|entry| entry.span.as_ref());
        let allowed = Some(format!("at most {SLOTS_MAX}: fewer stages or fewer methods"));
        report.fault(span, "", None, message, allowed);
    }
}

fn target(entry: &Entry) -> Option<Target> {
    let url = entry.value("url").text();
    let headers = match entry.value("headers") {
        Value::Pairs(pairs) => pairs,
        other => unreachable!("{other:?} is not headers"),
    };
    let family = entry.chosen("family").map(Value::choice);
    let mut target = Target {
        url: String::new(),
        shown: String::new(),
        tls: false,
        host: String::new(),
        port: 0,
        path: String::new(),
        family: family.map(|name| name.parse().expect("the choices are the families")),
        headers,
        timeout: entry.value("timeout").duration(),
        connect_timeout: entry.value("connect_timeout").duration(),
        answer_bytes_max: entry.value("answer_bytes_max").size(),
    };
    // A URL that could not be read is in the report already.
    target.point_at(&url).ok()?;
    Some(target)
}

fn connections(entry: &Entry, world: &World<'_>, report: &mut Report<'_>) -> Connections {
    let version = match entry.chosen("tls_version").map(Value::choice) {
        Some("1.2") => Some(TlsVersion::Tls12),
        Some(_) => Some(TlsVersion::Tls13),
        None => None,
    };
    let ciphers = ciphers::check(entry, version, report);
    let ca = entry.chosen("tls_ca").map(|file| world.folder.join(file.text()));
    if let Some(ca) = ca.as_ref().filter(|ca| !ca.is_file()) {
        let message = format!("there is no file {}", ca.display());
        refuse(report, entry, "tls_ca", &message, "a PEM file");
    }
    let reuse = match entry.value("reuse") {
        Value::Reuse(reuse) => reuse,
        other => unreachable!("{other:?} is not a reuse"),
    };
    Connections {
        http: match entry.value("http").choice() {
            "2" => HttpVersion::Http2,
            _ => HttpVersion::Http1,
        },
        reuse,
        tls: Tls {
            resume: entry.value("tls_resume").switch(),
            version,
            ciphers,
            insecure: entry.value("tls_insecure").switch(),
            ca,
        },
    }
}

fn validity(entry: &Entry) -> Validity {
    Validity {
        delivered_share_min: entry.value("delivered_share_min").number(),
        lateness_p99_max: entry.value("lateness_p99_max").duration(),
        lateness_share_max: entry.value("lateness_share_max").number(),
        waited_share_max: entry.value("waited_share_max").number(),
    }
}

fn reference(entry: &Entry) -> Option<Reference> {
    Some(Reference {
        url: entry.chosen("url")?.text(),
        share: entry.value("share").number(),
        ignore: entry.value("ignore").texts(),
        tolerance: entry.value("tolerance").number(),
        sets: entry.value("sets").texts(),
    })
}

fn watch(entry: &Entry) -> Watch {
    let pids = match entry.value("pids") {
        Value::Counts(pids) => pids,
        other => unreachable!("{other:?} is not a list of counts"),
    };
    Watch {
        interval: entry.value("interval").duration(),
        pids: pids.into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect(),
        node_exporter: entry.chosen("node_exporter").map(Value::text),
    }
}

fn capacity(entry: &Entry, report: &mut Report<'_>) -> Capacity {
    let capacity = Capacity {
        rate_start: entry.value("rate_start").number(),
        rate_max: entry.value("rate_max").number(),
        precision: entry.value("precision").number(),
        probe: entry.value("probe").duration(),
        probe_warmup: whole_seconds(entry.value("probe_warmup").duration()),
        repeats: entry.value("repeats").size(),
        drain: entry.value("drain").duration(),
        soak: entry.value("soak").duration(),
    };
    if capacity.rate_start > capacity.rate_max {
        let key = if entry.set("rate_start").is_some() { "rate_start" } else { "rate_max" };
        refuse(report, entry, key, "rate_start is above rate_max", "rate_start up to rate_max");
    }
    if capacity.probe_warmup >= capacity.probe {
        let key = if entry.set("probe_warmup").is_some() { "probe_warmup" } else { "probe" };
        let allowed = "probe_warmup shorter than probe";
        refuse(report, entry, key, "nothing of a probe is left to be judged", allowed);
    }
    if !capacity.soak.is_zero() && capacity.soak < Duration::from_secs(1) {
        refuse(report, entry, "soak", "too short to show anything", "\"0s\", or \"1s\" or more");
    }
    capacity
}

/// Faults a key's value: at the value if it was set, else at its table.
fn refuse(report: &mut Report<'_>, entry: &Entry, key: &str, message: &str, allowed: &str) {
    let value = entry.set(key).map(|set| set.shown.clone());
    report.fault(entry.span_of(key), entry.key(key), value, message, Some(allowed.to_owned()));
}
