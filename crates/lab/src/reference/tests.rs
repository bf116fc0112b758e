//! Planted wrong answers are found, a chain that moves is not called wrong, and a slow reference
//! holds up nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lab_model::plan::{Plan, Reference};
use lab_model::results::run::Compared;
use lab_model::samples;

use super::{Comparison, ReferenceFault, SampledCall};
use crate::target::client::tests::{Fake, http};

fn answer(result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)
}

fn saying(result: impl Fn(&str) -> String + Send + 'static) -> Fake {
    Fake::saying(move |request| Some(http("200 OK", &answer(&result(request)))))
}

fn plan(target: &Fake) -> Plan {
    let mut plan = samples::open(1.0, 1, &["eth_call", "eth_getLogs"]);
    plan.target = target.target();
    plan
}

/// Starts a comparison of `target` with the reference `believed`.
fn start(target: &Fake, believed: &Fake) -> Result<Comparison, ReferenceFault> {
    let mut plan = plan(target);
    plan.reference = Some(Reference {
        url: believed.target().url,
        share: 1.0,
        ignore: Vec::new(),
        tolerance: 0.0,
        sets: Vec::new(),
    });
    Comparison::start(&plan).map(|comparison| comparison.expect("the plan has a reference"))
}

/// Ends a comparison when all samples have been compared, not after the current one.
fn end(comparison: Comparison) -> Compared {
    let Comparison { samples, thread, .. } = comparison;
    drop(samples);
    thread.join().unwrap()
}

fn compare(target: &Fake, believed: &Fake, calls: &[(usize, &str)]) -> Compared {
    let mut comparison = start(target, believed).unwrap();
    for &(method, result) in calls {
        let request = br#"{"jsonrpc":"2.0","id":1,"method":"eth_call"}"#.to_vec();
        let response = answer(result).into_bytes();
        comparison.offer(SampledCall { at: Instant::now(), method, request, response });
    }
    end(comparison)
}

#[test]
fn responses_that_stay_different_are_wrong_and_the_first_few_are_kept() {
    let target = saying(|_| "{\"a\":1}".to_owned());
    let believed = saying(|_| "{\"a\":2}".to_owned());
    let mut calls = vec![(1, "{\"a\":2}")];
    calls.extend([(0, "{\"a\":1}"); 8]);
    let compared = compare(&target, &believed, &calls);
    assert_eq!((compared.compared, compared.wrong, compared.moved), (9, 8, 0));
    assert_eq!(compared.methods, [("eth_call".to_owned(), 8, 8), ("eth_getLogs".to_owned(), 1, 0)]);
    assert_eq!(compared.examples.len(), 5);
    let first = &compared.examples[0];
    assert_eq!(
        (first.pointer.as_str(), first.target.as_str(), first.reference.as_str()),
        ("/a", "1", "2")
    );
    assert!(first.request.contains("eth_call"));
}

#[test]
fn a_chain_that_moved_between_two_calls_is_not_wrong() {
    let target = saying(|_| "\"0x2\"".to_owned());
    let believed = saying(|_| "\"0x2\"".to_owned());
    let compared = compare(&target, &believed, &[(0, "\"0x1\"")]);
    assert_eq!((compared.compared, compared.wrong, compared.moved), (1, 0, 1));
}

/// The target answers wrongly now and then: asked again it is right, and the reference never moved.
#[test]
fn a_wrong_response_of_a_named_block_is_wrong_though_the_next_one_is_right() {
    let right = || saying(|_| "\"0x2\"".to_owned());
    let (target, believed) = (right(), right());
    let compare_block = |block: &str| {
        let mut comparison = start(&target, &believed).unwrap();
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{{}},"{block}"]}}"#);
        let response = answer("\"0x1\"").into_bytes();
        let (at, request) = (Instant::now(), request.into_bytes());
        comparison.offer(SampledCall { at, method: 0, request, response });
        let compared = end(comparison);
        (compared.wrong, compared.moved)
    };
    assert_eq!(compare_block("0x10"), (1, 0));
    assert_eq!(compare_block("latest"), (0, 1), "the head was not known long enough to be sure");
}

#[test]
fn a_reference_that_does_not_answer_says_nothing_about_the_target() {
    let calls = Arc::new(AtomicU64::new(0));
    let believed = Fake::saying(move |_| {
        let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        Some(if first { http("200 OK", &answer("1")) } else { http("503 Oops", "<html>") })
    });
    let compared = compare(&saying(|_| "1".to_owned()), &believed, &[(0, "1"), (0, "2")]);
    assert_eq!((compared.compared, compared.wrong, compared.unanswered), (0, 0, 2));
}

#[test]
fn what_waits_at_the_end_is_skipped_and_counted() {
    let believed = saying(|_| "1".to_owned());
    let target = saying(|_| "1".to_owned());
    let mut comparison = start(&target, &believed).unwrap();
    for _ in 0..2_000 {
        let request = br#"{"method":"eth_call"}"#.to_vec();
        let response = answer("1").into_bytes();
        comparison.offer(SampledCall { at: Instant::now(), method: 0, request, response });
    }
    let compared = comparison.finish(5);
    assert_eq!(compared.compared + compared.skipped + compared.unanswered, 2_005);
    assert!(compared.skipped > 0);
}

#[test]
fn a_reference_that_is_no_node_is_refused_before_the_run() {
    let believed = Fake::saying(|_| Some(http("200 OK", "<html>")));
    let target = saying(|_| "1".to_owned());
    let fault = start(&target, &believed).err().unwrap();
    let url = believed.target().url;
    let expected = format!("the reference: {url}: it is not a JSON-RPC server");
    assert!(fault.to_string().starts_with(&expected), "{fault}");
}

#[test]
fn writes_and_what_nodes_say_of_themselves_are_not_compared() {
    for method in ["eth_sendRawTransaction", "web3_clientVersion", "unknown_method"] {
        assert!(!super::is_comparable(method), "{method}");
    }
    for method in ["eth_getBalance", "eth_getLogs", "eth_blockNumber", "hmyv2_getBlockByNumber"] {
        assert!(super::is_comparable(method), "{method}");
    }
}
