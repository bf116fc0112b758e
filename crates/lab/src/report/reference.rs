//! Documentation pages that are generated from tables in the code.

use lab_model::metrics::host::METRICS;

use crate::analysis::habits;
use crate::analysis::habits::Habit;

/// Returns `docs/host-metrics.md`, the page about host metrics.
pub fn host_metrics() -> String {
    let mut text = String::from(
        "# Host metrics\n\n<!-- Printed by `cargo xtask generate` from the table in \
         crates/lab-model/src/metrics/host.rs. Do not edit. -->\n\nThe metrics that the lab samples \
         during a run, with their names in `result.json`. A `*` stands for the name of a device, \
         process or thread. [Measuring](measuring.md) explains how to read them.\n\n\
         | metric | unit | meaning |\n| --- | --- | --- |\n",
    );
    for fact in METRICS {
        text += &format!("| `{}` | {} | {} |\n", fact.name, fact.unit.as_str(), fact.meaning);
    }
    text
}

/// Returns `docs/client-habits.md`, the page about the known habits of clients.
pub fn client_habits() -> String {
    let mut text = String::from(
        "# Known habits of clients\n\n<!-- Printed by `cargo xtask generate` from \
         crates/lab/habits.toml. Do not edit. -->\n\nDifferences between the responses of correct \
         nodes, which [`weir equal`](equal.md) allows. They count with `--strict`, and if both \
         servers report the same client version.\n\n\
         | habit | class | what clients do | source |\n| --- | --- | --- | --- |\n",
    );
    for Habit { name, note, source, class, .. } in habits::all() {
        let source = source.split("; ").map(link).collect::<Vec<_>>().join("; ");
        text += &format!("| {name} | {} | {note} | {source} |\n", class.as_str());
    }
    text
}

/// Returns a source as Markdown. A URL at its start becomes a link; `URL: REMARK` keeps the remark.
fn link(source: &str) -> String {
    match source.split_once(": ") {
        Some((url, remark)) if url.starts_with("https://") => format!("<{url}>: {remark}"),
        None if source.starts_with("https://") => format!("<{source}>"),
        _ => source.to_owned(),
    }
}
