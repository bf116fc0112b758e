//! Goal: each mismatch has the right severity. Method: pairs of runs that differ in one fact.

use lab_model::results::Fingerprint;
use lab_model::results::compare::Weight;

use super::{Fact, Facts, Tool, find_mismatches};

fn facts() -> Facts {
    Facts {
        plan_hash: Some("aa".to_owned()),
        settings: [("target.url", "\"a\""), ("scenario.0.mix", "\"somnia\"")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        seed: Some(1),
        threads: Some(2),
        connections: Some("HTTP/1.1, reuse".to_owned()),
        schedule: vec!["main/steady: 100/s for 10 s".to_owned()],
        shares: [("eth_call".to_owned(), 0.5), ("eth_getLogs".to_owned(), 0.5)].into(),
        family: Some("ethereum".to_owned()),
        chain_id: Some("1".to_owned()),
        scheme: Some("http".to_owned()),
        client: Some("geth".to_owned()),
        head: Some(1000),
        machine: Some(Fingerprint { host: "one".to_owned(), cores: 8, ..Fingerprint::default() }),
        ..Facts::default()
    }
}

/// Returns the mismatches of two runs. `change` is applied to the facts of the second run.
fn mismatches_after(change: impl FnOnce(&mut Facts)) -> Vec<(String, Weight)> {
    let mut other = facts();
    change(&mut other);
    let all = find_mismatches(&facts(), &other);
    assert!(all.iter().all(|mismatch| mismatch.a != mismatch.b));
    all.into_iter().map(|mismatch| (mismatch.fact.to_string(), mismatch.weight)).collect()
}

/// Returns a list with a single mismatch.
fn single(what: &str, weight: Weight) -> Vec<(String, Weight)> {
    vec![(what.to_owned(), weight)]
}

#[test]
fn equal_runs_have_no_mismatch() {
    assert_eq!(mismatches_after(|_| {}), []);
}

#[test]
fn differences_that_change_the_meaning_of_numbers_are_refused() {
    let refused = |what: &str| single(what, Weight::Refuse);
    assert_eq!(mismatches_after(|b| b.chain_id = Some("5".into())), refused("chain"));
    assert_eq!(mismatches_after(|b| b.family = Some("bitcoin".into())), refused("chain family"));
    assert_eq!(mismatches_after(|b| b.schedule[0].push('0')), refused("schedule"));
    assert_eq!(mismatches_after(|b| b.connections = Some("close".into())), refused("connections"));
}

#[test]
fn possible_causes_of_a_difference_are_warned_about() {
    let warned = |what: &str| single(what, Weight::Warn);
    assert_eq!(mismatches_after(|b| b.seed = Some(2)), warned("seed"));
    assert_eq!(mismatches_after(|b| b.threads = Some(1)), warned("generator threads"));
    assert_eq!(mismatches_after(|b| b.head = Some(5000)), warned("head"));
    let machine =
        |change: fn(&mut Fingerprint)| mismatches_after(|b| change(b.machine.as_mut().unwrap()));
    assert_eq!(machine(|m| m.cores = 4), warned("machine: cores"));
    assert_eq!(machine(|m| m.governor = Some("powersave".into())), warned("machine: governor"));
    assert_eq!(machine(|m| m.target_local = true), warned("machine: target"));
    let shares = mismatches_after(|b| {
        b.shares.insert("eth_call".into(), 0.6);
    });
    assert_eq!(shares, warned("share of eth_call"));
}

/// A published report about Harmony compares a public endpoint over TLS with a local proxy over
/// plain HTTP.
#[test]
fn a_public_endpoint_and_a_nearby_proxy_are_not_equal_targets() {
    let found = mismatches_after(|nearby| {
        nearby.machine.as_mut().unwrap().target_local = true;
        nearby.scheme = Some("https".to_owned());
    });
    let warned = |what: &str| (what.to_owned(), Weight::Warn);
    assert_eq!(found, [warned("target: scheme"), warned("machine: target")]);
}

#[test]
fn a_different_target_is_only_noted() {
    assert_eq!(
        mismatches_after(|b| b.client = Some("erigon".into())),
        single("client", Weight::Note)
    );
    assert_eq!(mismatches_after(|b| b.head = Some(1010)), single("head", Weight::Note));
    let target = mismatches_after(|b| {
        b.plan_hash = Some("bb".into());
        b.settings.insert("target.url".into(), "\"b\"".into());
    });
    assert_eq!(target, single("plan: target.url", Weight::Note));
    let text = mismatches_after(|b| b.plan_hash = Some("bb".into()));
    assert_eq!(text, single("plan text", Weight::Note));
}

#[test]
fn a_bounded_number_of_settings_is_listed() {
    let mix = mismatches_after(|b| {
        b.plan_hash = Some("bb".into());
        b.settings.insert("scenario.0.mix".into(), "\"other\"".into());
    });
    assert_eq!(mix, single("plan: scenario.0.mix", Weight::Warn));
    let many = mismatches_after(|b| {
        b.plan_hash = Some("bb".into());
        b.settings.extend((0..100).map(|key| (format!("k{key}"), "1".to_owned())));
    });
    // Eight settings are listed by name, and one mismatch has the number of further settings.
    assert_eq!(many.len(), 9);
}

/// A fact that a tool does not report is not a mismatch.
#[test]
fn unknown_facts_are_not_compared() {
    let all = find_mismatches(&facts(), &Facts { tool: Tool::K6, ..Facts::default() });
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].fact, Fact::Tool);
}
