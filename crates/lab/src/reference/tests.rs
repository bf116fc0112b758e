//! Goal: wrong responses are found, a moving chain is not reported as wrong, and a slow reference
//! does not delay the run. Method: fake nodes with planted responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lab_model::plan::{Plan, Reference};
use lab_model::results::run::Compared;
use lab_model::samples;

use super::{Comparison, ReferenceFault, SampledCall};
use crate::target::client::tests::{Fake, http};

/// Returns a response with this result.
fn response_with(result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)
}

/// Starts a node. `result_of` returns the result of a request.
fn node(result_of: impl Fn(&str) -> String + Send + 'static) -> Fake {
    Fake::responding(move |request| Some(http("200 OK", &response_with(&result_of(request)))))
}

fn plan(target: &Fake) -> Plan {
    let mut plan = samples::open(1.0, 1, &["eth_call", "eth_getLogs"]);
    plan.target = target.target();
    plan
}

/// Starts a comparison of a target with a reference.
fn start(target: &Fake, reference: &Fake) -> Result<Comparison, ReferenceFault> {
    let mut plan = plan(target);
    plan.reference = Some(Reference {
        url: reference.target().url,
        share: 1.0,
        ignore: Vec::new(),
        tolerance: 0.0,
        sets: Vec::new(),
    });
    Comparison::start(&plan).map(|comparison| comparison.expect("the plan has a reference"))
}

/// Ends a comparison after all samples have been compared.
fn end(comparison: Comparison) -> Compared {
    let Comparison { samples, thread, .. } = comparison;
    drop(samples);
    thread.join().unwrap()
}

/// Compares sampled calls: each has the index of its method and the result that the target
/// returned.
fn compare(target: &Fake, reference: &Fake, calls: &[(usize, &str)]) -> Compared {
    let mut comparison = start(target, reference).unwrap();
    for &(method, result) in calls {
        let request = br#"{"jsonrpc":"2.0","id":1,"method":"eth_call"}"#.to_vec();
        let response = response_with(result).into_bytes();
        comparison.offer(SampledCall { at: Instant::now(), method, request, response });
    }
    end(comparison)
}

#[test]
fn responses_that_stay_different_are_wrong_and_the_first_ones_are_reported() {
    let target = node(|_| "{\"a\":1}".to_owned());
    let reference = node(|_| "{\"a\":2}".to_owned());
    let mut calls = vec![(1, "{\"a\":2}")];
    calls.extend([(0, "{\"a\":1}"); 8]);
    let compared = compare(&target, &reference, &calls);
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
    let target = node(|_| "\"0x2\"".to_owned());
    let reference = node(|_| "\"0x2\"".to_owned());
    let compared = compare(&target, &reference, &[(0, "\"0x1\"")]);
    assert_eq!((compared.compared, compared.wrong, compared.moved), (1, 0, 1));
}

/// The target's sampled response is wrong, but its second response is right.
#[test]
fn a_wrong_response_counts_even_if_the_next_one_is_right() {
    let right_node = || node(|_| "\"0x2\"".to_owned());
    let (target, reference) = (right_node(), right_node());
    let compare_block = |block: &str| {
        let mut comparison = start(&target, &reference).unwrap();
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{{}},"{block}"]}}"#);
        let response = response_with("\"0x1\"").into_bytes();
        let (at, request) = (Instant::now(), request.into_bytes());
        comparison.offer(SampledCall { at, method: 0, request, response });
        let compared = end(comparison);
        (compared.wrong, compared.moved)
    };
    assert_eq!(compare_block("0x10"), (1, 0));
    assert_eq!(compare_block("latest"), (0, 1), "the head was not known long enough to be sure");
}

#[test]
fn calls_without_a_response_of_the_reference_are_not_compared() {
    let calls = Arc::new(AtomicU64::new(0));
    let reference = Fake::responding(move |_| {
        let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        Some(if is_first {
            http("200 OK", &response_with("1"))
        } else {
            http("503 Oops", "<html>")
        })
    });
    let compared = compare(&node(|_| "1".to_owned()), &reference, &[(0, "1"), (0, "2")]);
    assert_eq!((compared.compared, compared.wrong, compared.unanswered), (0, 0, 2));
}

#[test]
fn samples_in_the_queue_at_the_end_are_counted_as_skipped() {
    let reference = node(|_| "1".to_owned());
    let target = node(|_| "1".to_owned());
    let mut comparison = start(&target, &reference).unwrap();
    for _ in 0..2_000 {
        let request = br#"{"method":"eth_call"}"#.to_vec();
        let response = response_with("1").into_bytes();
        comparison.offer(SampledCall { at: Instant::now(), method: 0, request, response });
    }
    let compared = comparison.finish(5);
    assert_eq!(compared.compared + compared.skipped + compared.unanswered, 2_005);
    assert!(compared.skipped > 0);
}

#[test]
fn a_reference_that_is_no_node_is_refused_before_the_run() {
    let reference = Fake::responding(|_| Some(http("200 OK", "<html>")));
    let target = node(|_| "1".to_owned());
    let fault = start(&target, &reference).err().unwrap();
    let url = reference.target().url;
    let expected = format!("the reference: {url}: it is not a JSON-RPC server");
    assert!(fault.to_string().starts_with(&expected), "{fault}");
}

#[test]
fn a_reference_of_another_chain_is_refused_before_the_run() {
    let node = |id: &'static str, hash: &'static str| {
        node(move |request| match () {
            () if request.contains("eth_chainId") => id.to_owned(),
            () if request.contains("eth_getBlockByNumber") => format!("{{\"hash\":\"{hash}\"}}"),
            () => "\"0x1\"".to_owned(),
        })
    };
    for (reference, difference) in [
        (node("\"0x2\"", "0xa"), "the chain id 0x1, and REFERENCE has 0x2"),
        (node("\"0x1\"", "0xb"), "the first block 0xa, and REFERENCE has 0xb"),
    ] {
        let fault = start(&node("\"0x1\"", "0xa"), &reference).err().unwrap();
        assert!(std::error::Error::source(&fault).is_none(), "it would be printed twice");
        let fault = fault.to_string();
        let difference = difference.replace("REFERENCE", &reference.target().url.to_string());
        assert!(fault.ends_with(&difference), "{fault}");
    }
    assert!(start(&node("\"0x1\"", "0xa"), &node("\"0x01\"", "0xA")).is_ok());
}

#[test]
fn writes_and_facts_about_the_node_itself_are_not_compared() {
    for method in ["eth_sendRawTransaction", "web3_clientVersion", "unknown_method"] {
        assert!(!super::is_comparable(method), "{method}");
    }
    for method in ["eth_getBalance", "eth_getLogs", "eth_blockNumber", "hmyv2_getBlockByNumber"] {
        assert!(super::is_comparable(method), "{method}");
    }
}
