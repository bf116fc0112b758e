//! Goal: through the gateway, a client gets exactly the bytes of the node's response, whether they
//! come from the node or from the cache, in a batch or alone.
//!
//! Method: a real geth with the chain of the execution-apis tests. The test sends each request of
//! those tests twice to geth and twice to the gateway. It compares the raw texts of result, error
//! and id.
//!
//! Needs geth. `test_support::programs` documents what happens if it is not installed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use test_support::geth::{Geth, folder};
use test_support::members::{difference, excerpt, items, members};
use test_support::programs;
use test_support::raw::Client;
use test_support::running::Weir;

/// Calls to which geth's own responses vary, because its error names the first of several accounts
/// in the random order of a map.
const VARYING: [&str; 1] =
    ["eth_simulateV1/ethSimulate-move-two-non-precompiles-accounts-to-same.io"];
/// How often the test sends such a call to geth to collect all its responses. If two responses are
/// equally likely, the test misses one with a probability of 2^-39.
const VARYING_REPEATS: usize = 40;
/// Number of calls in a batch.
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

/// Returns the calls of the execution-apis tests. Omits those that change the node's state, or
/// whose responses depend on its transaction pool.
fn calls() -> Vec<TestCall> {
    let mut calls = Vec::new();
    let mut omitted = 0;
    for method in sorted(&folder()).into_iter().filter(|path| path.is_dir()) {
        for file in sorted(&method) {
            let text = std::fs::read_to_string(&file).unwrap();
            for body in text.lines().filter_map(|line| line.strip_prefix(">> ")) {
                let method: String = serde_json::from_str(members(body)["method"].get()).unwrap();
                if ["eth_sendRawTransaction", "testing_", "txpool_"]
                    .iter()
                    .any(|prefix| method.starts_with(prefix))
                {
                    omitted += 1;
                    continue;
                }
                let file = file.strip_prefix(folder()).unwrap().display().to_string();
                calls.push(TestCall { file, method, body: body.to_owned() });
            }
        }
    }
    assert_eq!((calls.len(), omitted), (168, 9), "the folder holds 177 calls");
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

/// Sorts the storage keys in a response of `eth_createAccessList`, because their order varies
/// between calls. Returns any other response unchanged.
fn normalize(method: &str, answer: &str) -> String {
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

/// Numbers of the gateway's responses to calls of one method.
#[derive(Default)]
struct ResponseCounts {
    total: usize,
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
    /// Compares the gateway's response with the node's possible responses. If it equals none of
    /// them, records its difference from the first.
    fn compare(&mut self, call: &TestCall, node_responses: &[String], gateway_response: &str) {
        self.compared += 1;
        let gateway_response = normalize(&call.method, gateway_response);
        let mut differences = node_responses
            .iter()
            .map(|response| difference(&normalize(&call.method, response), &gateway_response));
        let first = differences.next().expect("the node has answered");
        if let Some(first) = first
            && differences.all(|other| other.is_some())
        {
            self.differences.push(format!("{}: {first}", call.file));
        }
    }

    /// Asserts that there is no difference and that at least this many responses were compared.
    fn assert_none(&self, compared_min: usize) {
        assert!(self.compared >= compared_min, "only {} were compared", self.compared);
        assert!(self.differences.is_empty(), "\n{}", self.differences.join("\n"));
    }
}

/// Returns all possible responses of the node to a call. If the call is not in [`VARYING`], there
/// is only one, and a second request checks this. Its result goes into `node_findings`.
fn node_responses(call: &TestCall, node: &mut Client, node_findings: &mut Findings) -> Vec<String> {
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

/// Sends every call twice to the node and twice to the gateway, and compares the responses. Returns
/// the node's possible responses to each call, and the number of the gateway's by method.
fn compare_single_calls(
    calls: &[TestCall],
    node: &mut Client,
    gateway: &mut Client,
) -> (Vec<Vec<String>>, BTreeMap<String, ResponseCounts>) {
    let mut findings = Findings::default();
    let mut node_findings = Findings::default();
    let mut counts_by_method: BTreeMap<String, ResponseCounts> = BTreeMap::new();
    let mut all_expected = Vec::new();
    for call in calls {
        let expected = node_responses(call, node, &mut node_findings);
        let counts = counts_by_method.entry(call.method.clone()).or_default();
        for _ in 0..2 {
            let (gateway_response, cache_status) = ask(gateway, &call.body);
            findings.compare(call, &expected, &gateway_response);
            counts.total += 1;
            *counts.cache_statuses.entry(cache_status).or_default() += 1;
        }
        all_expected.push(expected);
    }
    node_findings.assert_none(calls.len() - VARYING.len());
    findings.assert_none(2 * calls.len());
    (all_expected, counts_by_method)
}

/// Prints a table of the counts.
fn print(counts_by_method: &BTreeMap<String, ResponseCounts>) {
    let mut sum = ResponseCounts::default();
    println!("{:<45} answers  cache status", "method");
    for (method, counts) in counts_by_method {
        println!("{method:<45} {:>7}  {:?}", counts.total, counts.cache_statuses);
        sum.total += counts.total;
        for (cache_status, count) in &counts.cache_statuses {
            *sum.cache_statuses.entry(cache_status.clone()).or_default() += count;
        }
    }
    println!("{:<45} {:>7}  {:?}", "all", sum.total, sum.cache_statuses);
}

/// Sends the calls in batches. Each response must equal the node's response to the single call.
fn compare_batches(calls: &[TestCall], expected: &[Vec<String>], gateway: &mut Client) {
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
/// repeat the id's bytes, and its other members must not change.
fn compare_other_ids(calls: &[TestCall], expected: &[Vec<String>], gateway: &mut Client) {
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

    let (expected, counts_by_method) = compare_single_calls(&calls, &mut node, &mut gateway);
    print(&counts_by_method);
    let count = |cache_status: &str| -> usize {
        counts_by_method
            .values()
            .map(|counts| counts.cache_statuses.get(cache_status).copied().unwrap_or(0))
            .sum()
    };
    // The comparison is meaningful only if many responses come from the cache, and many do not.
    assert!(count("hit") >= calls.len() / 2, "only {} from the cache", count("hit"));
    assert!(count("miss") >= calls.len() / 2, "only {} misses", count("miss"));

    compare_batches(&calls, &expected, &mut gateway);
    compare_other_ids(&calls, &expected, &mut gateway);
    gateway_process.assert_sound();

    let mut uncached = Weir::serve()
        .upstreams(&[format!("http://{}", geth.address)])
        .args(&["--no-cache"])
        .start();
    let mut uncached_client = Client::connect(&uncached.address);
    let (_, counts_by_method) = compare_single_calls(&calls, &mut node, &mut uncached_client);
    assert!(
        counts_by_method.values().all(|counts| !counts.cache_statuses.contains_key("hit")),
        "a gateway without a cache has no hits"
    );
    uncached.assert_sound();
}

#[test]
fn the_comparison_detects_one_changed_byte() {
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x1"],"b":null}}"#;
    assert_eq!(difference(answer, answer), None);
    // The members of a JSON-RPC response may change their order, but those within a result may not.
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
    let normalized_list = |keys: &str| normalize("eth_createAccessList", &access_list(keys));
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
