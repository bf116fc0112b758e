//! Pages of the documentation that are printed from tables in the code.

use lab_model::metrics::host::METRICS;

/// `docs/host-metrics.md`.
pub(super) fn host_metrics() -> String {
    let mut text = String::from(
        "# Host metrics\n\n<!-- Printed by `cargo xtask generate` from the table in \
         crates/lab-model/src/metrics/host.rs. Do not edit. -->\n\nWhat the lab samples during a run, by the \
         names that stand in `result.json`. A `*` stands for the name of a device, process or \
         thread. How to read them is told in [Measuring](measuring.md).\n\n\
         | metric | unit | meaning |\n| --- | --- | --- |\n",
    );
    for fact in METRICS {
        text += &format!("| `{}` | {} | {} |\n", fact.name, fact.unit.as_str(), fact.meaning);
    }
    text
}
