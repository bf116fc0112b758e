//! Finds words that must not be used again: former public names, and unclear phrases.

use super::Finding;
use super::tree::Tree;

/// Former public names and their replacements.
const NAMES: &[(&str, &str)] = &[
    ("[[node]]", "[[upstream]]"),
    ("x-weir-node", "x-weir-upstream"),
    ("weir_node_", "weir_upstream_"),
    ("[front]", "[downstream]"),
    ("weir_flights", "weir_coalesced_calls"),
    ("weir_zone_away_threads", "weir_limit_redis_fallback_threads"),
    ("weir_quota_alone", "weir_quota_local_only"),
    ("weir_subscription_notices", "weir_subscription_notifications"),
    ("yardstick", "baseline latency"),
    ("lateness_", "scheduling_delay_"),
    ("under_way", "in_flight"),
    ("answer_bytes", "response_bytes"),
    ("kept_headers", "used_headers"),
    ("scenario.late", "scenario.delayed"),
    ("rate_begun", "rate_started"),
    ("objectives_by_default", "thresholds_by_default"),
    ("weir_lab_iterations_begun", "weir_lab_iterations_started"),
    ("weir_lab_iterations_due", "weir_lab_iterations_scheduled"),
    ("tell_reorgs", "redis.messages"),
    ("machine_ms", "calibration_ms"),
];

/// Unclear phrases and their replacements.
const PHRASES: &[(&str, &str)] = &[
    ("for want of", "without, because there is no"),
    ("is gone by", "is used, is applied"),
    ("has it come", "has arrived"),
    ("hearsay", "an unconfirmed report"),
    ("who asks", "the client"),
];

/// Returns true for files that may quote former names: past decisions, the changelog and this
/// check.
fn may_quote(path: &str) -> bool {
    path.starts_with("docs/decisions/")
        || path.starts_with("testdata/")
        || path.starts_with("xtask/src/tidy/words")
        || path == "CHANGELOG.md"
}

/// Finds former public names and unclear phrases in source files, pages and configurations.
pub(crate) fn find_former_words(tree: &Tree) -> Vec<Finding> {
    let read = |ending: &'static str| tree.texts(ending);
    let endings = [".rs", ".md", ".toml", ".txt", ".json", ".lua", ".css", ".js"].into_iter();
    let mut findings = Vec::new();
    for (path, text) in endings.flat_map(read).filter(|(path, _)| !may_quote(path)) {
        for (number, line) in (1..).zip(text.lines()) {
            for (word, instead) in NAMES.iter().chain(PHRASES) {
                if line.contains(word) {
                    let message = format!("{word:?}; write {instead}");
                    findings.push(Finding::new(path, number, "former words", message));
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests;
