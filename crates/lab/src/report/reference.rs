//! Documentation pages that are generated from tables in the code.

use lab_model::metrics::host::METRICS;

/// `docs/host-metrics.md`.
pub(super) fn host_metrics() -> String {
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
