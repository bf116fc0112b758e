//! Goal: through the gateway a client gets the node's own bytes, whether from the node, from the
//! cache or in a batch. Method: a real geth on the chain of the execution-apis tests. Each request
//! of those tests goes twice to geth and twice through the gateway; the raw texts of result, error
//! and id are compared.
//!
//! Needs geth; see `test_support::programs` for what happens without.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use test_support::geth::{Geth, folder};
use test_support::members::{difference, excerpt, items, members};
use test_support::programs;
use test_support::raw::Client;
use test_support::running::Weir;

/// Calls to which geth's own responses vary: its error names one of several accounts, in the
/// random order of a map.
const VARYING: [&str; 1] =
    ["eth_simulateV1/ethSimulate-move-two-non-precompiles-accounts-to-same.io"];
/// Times that such a call is sent to geth to collect all its responses. With two equally likely
/// responses, one is missed with a probability of 2^-39.
const VARYING_REPEATS: usize = 40;
/// Calls of one batch.
const BATCH_CALLS: usize = 20;

/// Ids of every form that JSON-RPC allows, as a client may write them.
const IDS: [&str; 16] = [
    "0",
    "-1",
    "18446744073709551616",
    "123456789012345678901234567890123456789012345678901234567890",
    "9007199254740993",
    "1.0",
    "1.50",
    "-0",
    "1e3",
    "1E+03",
    "null",
    r#""""#,
    r#""a b""#,
    r#""\u0041\"\\\/\n""#,
    r#""é\ud83d\ude00""#,
    r#""<&>""#,
];

/// A call of the execution-apis tests.
struct TestCall {
    file: String,
    method: String,
    body: String,
}

/// Returns every call of the tests that neither changes the node's state nor depends on its own
/// transaction pool.
fn calls() -> Vec<TestCall> {
    let mut calls = Vec::new();
    let mut left_out = 0;
    for method in sorted(&folder()).into_iter().filter(|path| path.is_dir()) {
        for file in sorted(&method) {
            let text = std::fs::read_to_string(&file).unwrap();
            for body in text.lines().filter_map(|line| line.strip_prefix(">> ")) {
                let method: String = serde_json::from_str(members(body)["method"].get()).unwrap();
                if ["eth_sendRawTransaction", "testing_", "txpool_"]
                    .iter()
                    .any(|state| method.starts_with(state))
                {
                    left_out += 1;
                    continue;
                }
                let file = file.strip_prefix(folder()).unwrap().display().to_string();
                calls.push(TestCall { file, method, body: body.to_owned() });
            }
        }
    }
    assert_eq!((calls.len(), left_out), (168, 9), "the folder holds 177 calls");
    calls
}

/// Returns the paths in a folder, sorted.
fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Sends a request and returns the response's text and cache status.
fn ask(client: &mut Client, body: &str) -> (String, String) {
    let answer = client.call("/", body.as_bytes());
    assert_eq!(answer.status, 200, "{}: {}", excerpt(body), excerpt(answer.text()));
    let cache_status = answer.header("x-weir-cache").unwrap_or("").to_owned();
    (answer.text().to_owned(), cache_status)
}

/// Sorts the storage keys of an eth_createAccessList response, whose order varies between calls.
/// Returns any other response unchanged.
fn normalized(method: &str, answer: &str) -> String {
    if method != "eth_createAccessList" {
        return answer.to_owned();
    }
    let mut value: Value = serde_json::from_str(answer).unwrap();
    let list = value.pointer_mut("/result/accessList").and_then(Value::as_array_mut);
    for entry in list.into_iter().flatten() {
        let keys = entry["storageKeys"].as_array_mut().unwrap();
        keys.sort_by_key(Value::to_string);
    }
    value.to_string()
}

/// Results of one method.
#[derive(Default)]
struct Score {
    answers: usize,
    /// Number of responses by cache status: hit, miss, coalesced or bypass.
    cache_statuses: BTreeMap<String, usize>,
}

/// The number of comparisons, and a description of each difference.
#[derive(Default)]
struct Findings {
    compared: usize,
    differences: Vec<String>,
}

impl Findings {
    /// Compares the gateway's response with the node's possible responses. Records a difference if
    /// it equals none of them.
    fn compare(&mut self, call: &TestCall, node_responses: &[String], gateway_response: &str) {
        self.compared += 1;
        let gateway_response = normalized(&call.method, gateway_response);
        let mut differences = node_responses
            .iter()
            .map(|response| difference(&normalized(&call.method, response), &gateway_response));
        let first = differences.next().expect("the node has answered");
        if let Some(first) = first
            && differences.all(|other| other.is_some())
        {
            self.differences.push(format!("{}: {first}", call.file));
        }
    }

    fn assert_none(&self, at_least: usize) {
        assert!(self.compared >= at_least, "only {} were compared", self.compared);
        assert!(self.differences.is_empty(), "\n{}", self.differences.join("\n"));
    }
}

/// Returns all possible responses of the node to a call: one, unless the call is in [`VARYING`].
/// Differences between two responses of the node itself go into `node_findings`.
fn direct(call: &TestCall, node: &mut Client, node_findings: &mut Findings) -> Vec<String> {
    let (first, _) = ask(node, &call.body);
    if VARYING.contains(&&*call.file) {
        let again = (1..VARYING_REPEATS).map(|_| ask(node, &call.body).0);
        let all: BTreeSet<_> = again.chain([first]).collect();
        println!("{}: geth gives {} answers", call.file, all.len());
        return all.into_iter().collect();
    }
    let (second, _) = ask(node, &call.body);
    let answers = vec![first];
    node_findings.compare(call, &answers, &second);
    answers
}

/// Sends every call twice to the node and to the gateway. Returns the node's possible responses to
/// each call, and the results by method.
fn one_by_one(
    calls: &[TestCall],
    node: &mut Client,
    gateway: &mut Client,
) -> (Vec<Vec<String>>, BTreeMap<String, Score>) {
    let mut findings = Findings::default();
    let mut node_findings = Findings::default();
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    let mut answers = Vec::new();
    for call in calls {
        let node_responses = direct(call, node, &mut node_findings);
        let score = scores.entry(call.method.clone()).or_default();
        for _ in 0..2 {
            let (gateway_response, cache_status) = ask(gateway, &call.body);
            findings.compare(call, &node_responses, &gateway_response);
            score.answers += 1;
            *score.cache_statuses.entry(cache_status).or_default() += 1;
        }
        answers.push(node_responses);
    }
    node_findings.assert_none(calls.len() - VARYING.len());
    findings.assert_none(2 * calls.len());
    (answers, scores)
}

fn print(scores: &BTreeMap<String, Score>) {
    let mut total = Score::default();
    println!("{:<45} answers  cache status", "method");
    for (method, score) in scores {
        println!("{method:<45} {:>7}  {:?}", score.answers, score.cache_statuses);
        total.answers += score.answers;
        for (cache_status, count) in &score.cache_statuses {
            *total.cache_statuses.entry(cache_status.clone()).or_default() += count;
        }
    }
    println!("{:<45} {:>7}  {:?}", "all", total.answers, total.cache_statuses);
}

/// Sends the calls in batches. Each response must be the one that the call gets alone.
fn in_batches(calls: &[TestCall], expected: &[Vec<String>], gateway: &mut Client) {
    let mut findings = Findings::default();
    for (calls, expected) in calls.chunks(BATCH_CALLS).zip(expected.chunks(BATCH_CALLS)) {
        let bodies: Vec<_> = calls.iter().map(|call| call.body.as_str()).collect();
        let (answer, _) = ask(gateway, &format!("[{}]", bodies.join(",")));
        let answers = items(&answer);
        assert_eq!(answers.len(), calls.len());
        for ((call, expected), gateway_response) in calls.iter().zip(expected).zip(answers) {
            findings.compare(call, expected, gateway_response.get());
        }
    }
    findings.assert_none(calls.len());
}

/// Sends each call with one of [`IDS`] in turn, and the first call with every id. The response must
/// repeat the id as sent, and nothing else may change.
fn under_other_ids(calls: &[TestCall], expected: &[Vec<String>], gateway: &mut Client) {
    let mut findings = Findings::default();
    let mut check = |call: &TestCall, expected: &[String], id: &str| {
        let with_id = |text: &str| {
            let fields = members(text).into_iter().map(|(name, raw)| {
                let raw = if name == "id" { id } else { raw.get() };
                format!("\"{name}\":{raw}")
            });
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        };
        let (gateway_response, _) = ask(gateway, &with_id(&call.body));
        let expected: Vec<_> = expected.iter().map(|text| with_id(text)).collect();
        findings.compare(call, &expected, &gateway_response);
    };
    for (index, (call, expected)) in calls.iter().zip(expected).enumerate() {
        check(call, expected, IDS[index % IDS.len()]);
    }
    for id in IDS {
        check(&calls[0], &expected[0], id);
    }
    findings.assert_none(calls.len() + IDS.len());
}

#[test]
fn answers_through_the_gateway_are_the_nodes_own() {
    let Some(geth) = programs::require("geth") else { return };
    let calls = calls();
    let geth = Geth::start(&geth);
    let mut gateway_process =
        Weir::serve().upstreams(&[format!("http://{}", geth.address)]).start();
    let mut node = Client::connect(&geth.address);
    let mut gateway = Client::connect(&gateway_process.address);

    let (node_responses, scores) = one_by_one(&calls, &mut node, &mut gateway);
    print(&scores);
    let count = |cache_status: &str| -> usize {
        scores
            .values()
            .map(|score| score.cache_statuses.get(cache_status).copied().unwrap_or(0))
            .sum()
    };
    // Comparing cached responses is meaningful only with many hits.
    assert!(count("hit") >= calls.len() / 2, "only {} from the cache", count("hit"));
    assert!(count("miss") >= calls.len() / 2, "only {} misses", count("miss"));

    in_batches(&calls, &node_responses, &mut gateway);
    under_other_ids(&calls, &node_responses, &mut gateway);
    gateway_process.assert_sound();

    let mut uncached = Weir::serve()
        .upstreams(&[format!("http://{}", geth.address)])
        .args(&["--no-cache"])
        .start();
    let (_, scores) = one_by_one(&calls, &mut node, &mut Client::connect(&uncached.address));
    assert!(
        scores.values().all(|score| !score.cache_statuses.contains_key("hit")),
        "a gateway without a cache has no hits"
    );
    uncached.assert_sound();
}

#[test]
fn the_comparison_detects_one_changed_byte() {
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x1"],"b":null}}"#;
    assert_eq!(difference(answer, answer), None);
    // The order of the envelope's members is irrelevant. The order within a result must be kept.
    let reordered = r#"{"result":{"a":[1.0,"0x1"],"b":null}, "id":1,"jsonrpc":"2.0"}"#;
    assert_eq!(difference(answer, reordered), None);
    let changed = [
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x2"],"b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1,"0x1"],"b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x1"], "b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"b":null,"a":[1.0,"0x1"]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x1"]}}"#,
        r#"{"jsonrpc":"2.0","id":1.0,"result":{"a":[1.0,"0x1"],"b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"a":[1.0,"0x1"],"b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x1"],"b":null},"more":1}"#,
    ];
    for other in changed {
        assert!(difference(answer, other).is_some(), "{other}");
    }
    let access_list = |keys: &str| {
        format!(r#"{{"id":1,"result":{{"accessList":[{{"storageKeys":[{keys}]}}]}}}}"#)
    };
    let normalized_list = |keys: &str| normalized("eth_createAccessList", &access_list(keys));
    assert_eq!(difference(&normalized_list(r#""1","2""#), &normalized_list(r#""2","1""#)), None);
    assert!(difference(&normalized_list(r#""1","2""#), &normalized_list(r#""1","3""#)).is_some());
    assert!(difference(&normalized_list(r#""1","2""#), &normalized_list(r#""1""#)).is_some());
}

#[test]
fn the_comparison_detects_a_response_that_the_node_never_sends() {
    let call = TestCall { file: "f".to_owned(), method: "m".to_owned(), body: String::new() };
    let theirs = [r#"{"id":1,"result":1}"#.to_owned(), r#"{"id":1,"result":2}"#.to_owned()];
    for (result, differences) in [("1", 0), ("2", 0), ("3", 1)] {
        let mut findings = Findings::default();
        findings.compare(&call, &theirs, &format!("{{\"id\":1,\"result\":{result}}}"));
        assert_eq!((findings.compared, findings.differences.len()), (1, differences));
    }
}
