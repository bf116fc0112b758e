//! Goal: through the gateway a client gets the node's own bytes, whether from the node, from the
//! cache or out of a batch. Method: a real geth on the chain of the execution-apis tests; every
//! request of those tests goes to it directly and through the gateway, twice each, and the raw
//! text of result, error and id is compared.
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

/// Calls that geth itself answers in different ways: it finds fault with one of several accounts,
/// whichever comes first as it walks over a map.
const VARYING: [&str; 1] =
    ["eth_simulateV1/ethSimulate-move-two-non-precompiles-accounts-to-same.io"];
/// How often such a call is put to geth to know all its answers: one of two is missed once in 2^39.
const VARYING_ASKED: usize = 40;
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

/// A call of the tests.
struct Asked {
    file: String,
    method: String,
    body: String,
}

/// Every call of the tests that neither changes nor depends on the node's own state.
fn calls() -> Vec<Asked> {
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
                calls.push(Asked { file, method, body: body.to_owned() });
            }
        }
    }
    assert_eq!((calls.len(), left_out), (168, 9), "the folder holds 177 calls");
    calls
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// A response as text, and its cache status.
fn ask(client: &mut Client, body: &str) -> (String, String) {
    let answer = client.call("/", body.as_bytes());
    assert_eq!(answer.status, 200, "{}: {}", excerpt(body), excerpt(answer.text()));
    let mark = answer.header("x-weir-cache").unwrap_or("").to_owned();
    (answer.text().to_owned(), mark)
}

/// As the node's answers to eth_createAccessList are compared: its storage keys come in another
/// order with each call. Everything else stays text.
fn in_order(method: &str, answer: &str) -> String {
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

/// How one method fared.
#[derive(Default)]
struct Score {
    answers: usize,
    /// By the gateway's own word: hit, miss, coalesced, bypass.
    marks: BTreeMap<String, usize>,
}

/// What was found to differ, and in what.
#[derive(Default)]
struct Findings {
    compared: usize,
    differences: Vec<String>,
}

impl Findings {
    /// Compares an answer with those that the node gives, of which there is nearly always one.
    fn compare(&mut self, asked: &Asked, theirs: &[String], ours: &str) {
        self.compared += 1;
        let ours = in_order(&asked.method, ours);
        let mut found = theirs.iter().map(|one| difference(&in_order(&asked.method, one), &ours));
        let first = found.next().expect("the node has answered");
        if let Some(first) = first
            && found.all(|other| other.is_some())
        {
            self.differences.push(format!("{}: {first}", asked.file));
        }
    }

    fn assert_none(&self, at_least: usize) {
        assert!(self.compared >= at_least, "only {} were compared", self.compared);
        assert!(self.differences.is_empty(), "\n{}", self.differences.join("\n"));
    }
}

/// All possible responses of the node to a call: one, unless the call is known to vary.
fn direct(asked: &Asked, node: &mut Client, itself: &mut Findings) -> Vec<String> {
    let (first, _) = ask(node, &asked.body);
    if VARYING.contains(&&*asked.file) {
        let again = (1..VARYING_ASKED).map(|_| ask(node, &asked.body).0);
        let all: BTreeSet<_> = again.chain([first]).collect();
        println!("{}: geth gives {} answers", asked.file, all.len());
        return all.into_iter().collect();
    }
    let (second, _) = ask(node, &asked.body);
    let answers = vec![first];
    itself.compare(asked, &answers, &second);
    answers
}

/// Sends every call twice to both; returns the node's responses and the results by method.
fn one_by_one(
    calls: &[Asked],
    node: &mut Client,
    gateway: &mut Client,
) -> (Vec<Vec<String>>, BTreeMap<String, Score>) {
    let mut findings = Findings::default();
    let mut itself = Findings::default();
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    let mut answers = Vec::new();
    for asked in calls {
        let theirs = direct(asked, node, &mut itself);
        let score = scores.entry(asked.method.clone()).or_default();
        for _ in 0..2 {
            let (ours, mark) = ask(gateway, &asked.body);
            findings.compare(asked, &theirs, &ours);
            score.answers += 1;
            *score.marks.entry(mark).or_default() += 1;
        }
        answers.push(theirs);
    }
    itself.assert_none(calls.len() - VARYING.len());
    findings.assert_none(2 * calls.len());
    (answers, scores)
}

fn print(scores: &BTreeMap<String, Score>) {
    let mut total = Score::default();
    println!("{:<45} answers  from where", "method");
    for (method, score) in scores {
        println!("{method:<45} {:>7}  {:?}", score.answers, score.marks);
        total.answers += score.answers;
        for (mark, count) in &score.marks {
            *total.marks.entry(mark.clone()).or_default() += count;
        }
    }
    println!("{:<45} {:>7}  {:?}", "all", total.answers, total.marks);
}

/// The same calls in batches: each answer is the one that the call has alone.
fn in_batches(calls: &[Asked], alone: &[Vec<String>], gateway: &mut Client) {
    let mut findings = Findings::default();
    for (calls, alone) in calls.chunks(BATCH_CALLS).zip(alone.chunks(BATCH_CALLS)) {
        let bodies: Vec<_> = calls.iter().map(|asked| asked.body.as_str()).collect();
        let (answer, _) = ask(gateway, &format!("[{}]", bodies.join(",")));
        let answers = items(&answer);
        assert_eq!(answers.len(), calls.len());
        for ((asked, alone), ours) in calls.iter().zip(alone).zip(answers) {
            findings.compare(asked, alone, ours.get());
        }
    }
    findings.assert_none(calls.len());
}

/// Each call under one form of id in turn, and one call under all: the id comes back as it was
/// sent, and nothing else changes.
fn under_other_ids(calls: &[Asked], alone: &[Vec<String>], gateway: &mut Client) {
    let mut findings = Findings::default();
    let mut check = |asked: &Asked, alone: &[String], id: &str| {
        let with_id = |text: &str| {
            let fields = members(text).into_iter().map(|(name, raw)| {
                let raw = if name == "id" { id } else { raw.get() };
                format!("\"{name}\":{raw}")
            });
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        };
        let (ours, _) = ask(gateway, &with_id(&asked.body));
        let alone: Vec<_> = alone.iter().map(|text| with_id(text)).collect();
        findings.compare(asked, &alone, &ours);
    };
    for (at, (asked, alone)) in calls.iter().zip(alone).enumerate() {
        check(asked, alone, IDS[at % IDS.len()]);
    }
    for id in IDS {
        check(&calls[0], &alone[0], id);
    }
    findings.assert_none(calls.len() + IDS.len());
}

#[test]
fn answers_through_the_gateway_are_the_nodes_own() {
    let Some(geth) = programs::require("geth") else { return };
    let calls = calls();
    let geth = Geth::start(&geth);
    let mut running = Weir::serve().upstreams(&[format!("http://{}", geth.address)]).start();
    let mut node = Client::connect(&geth.address);
    let mut gateway = Client::connect(&running.address);

    let (alone, scores) = one_by_one(&calls, &mut node, &mut gateway);
    print(&scores);
    let count = |mark: &str| -> usize {
        scores.values().map(|score| score.marks.get(mark).copied().unwrap_or(0)).sum()
    };
    // Comparing cached responses is meaningful only with many hits.
    assert!(count("hit") >= calls.len() / 2, "only {} from the cache", count("hit"));
    assert!(count("miss") >= calls.len() / 2, "only {} to be kept", count("miss"));

    in_batches(&calls, &alone, &mut gateway);
    under_other_ids(&calls, &alone, &mut gateway);
    running.assert_sound();

    let mut uncached = Weir::serve()
        .upstreams(&[format!("http://{}", geth.address)])
        .args(&["--no-cache"])
        .start();
    let (_, scores) = one_by_one(&calls, &mut node, &mut Client::connect(&uncached.address));
    assert!(scores.values().all(|score| !score.marks.contains_key("hit")), "nothing is kept");
    uncached.assert_sound();
}

#[test]
fn one_changed_byte_is_a_difference() {
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x1"],"b":null}}"#;
    assert_eq!(difference(answer, answer), None);
    // The order of an envelope's members means nothing; that of a result's is the node's.
    let moved = r#"{"result":{"a":[1.0,"0x1"],"b":null}, "id":1,"jsonrpc":"2.0"}"#;
    assert_eq!(difference(answer, moved), None);
    let others = [
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x2"],"b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1,"0x1"],"b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x1"], "b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"b":null,"a":[1.0,"0x1"]}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x1"]}}"#,
        r#"{"jsonrpc":"2.0","id":1.0,"result":{"a":[1.0,"0x1"],"b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"a":[1.0,"0x1"],"b":null}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":[1.0,"0x1"],"b":null},"more":1}"#,
    ];
    for other in others {
        assert!(difference(answer, other).is_some(), "{other}");
    }
    let listed = |keys: &str| {
        format!(r#"{{"id":1,"result":{{"accessList":[{{"storageKeys":[{keys}]}}]}}}}"#)
    };
    let sets = |keys: &str| in_order("eth_createAccessList", &listed(keys));
    assert_eq!(difference(&sets(r#""1","2""#), &sets(r#""2","1""#)), None);
    assert!(difference(&sets(r#""1","2""#), &sets(r#""1","3""#)).is_some());
    assert!(difference(&sets(r#""1","2""#), &sets(r#""1""#)).is_some());
}

#[test]
fn a_response_that_the_node_never_gives_is_found() {
    let asked = Asked { file: "f".to_owned(), method: "m".to_owned(), body: String::new() };
    let theirs = [r#"{"id":1,"result":1}"#.to_owned(), r#"{"id":1,"result":2}"#.to_owned()];
    for (result, differences) in [("1", 0), ("2", 0), ("3", 1)] {
        let mut findings = Findings::default();
        findings.compare(&asked, &theirs, &format!("{{\"id\":1,\"result\":{result}}}"));
        assert_eq!((findings.compared, findings.differences.len()), (1, differences));
    }
}
