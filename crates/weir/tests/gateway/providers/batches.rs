//! Calls that are gathered into batches.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use simnode::node::settings::{Fault, FaultRule};

use super::{UNCACHED, ask_all, read};
use crate::support::scene::{
    READ, Scene, Served, SimNode, account, ask, entry, error, polled_once, result, wait_for_quiet,
};
use test_support::proxy::start_proxy;

/// The requests that a node received.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Value>>>);

impl Heard {
    /// Sizes of the requests with calls of a client; 0 for a call by itself.
    fn sizes(&self) -> Vec<usize> {
        let heard = self.0.lock();
        heard.iter().filter(|body| is_ours(body)).map(|body| calls_of(body).len()).collect()
    }

    fn forget(&self) {
        self.0.lock().clear();
    }
}

fn calls_of(body: &Value) -> &[Value] {
    body.as_array().map_or(&[], Vec::as_slice)
}

/// Whether it is no poll.
fn is_ours(body: &Value) -> bool {
    let polled = |call: &Value| {
        let method = call["method"].as_str().unwrap();
        !method.starts_with("eth_getBalance")
            && !method.starts_with("eth_getLogs")
            && !method.starts_with("eth_send")
    };
    !calls_of(body).first().map_or_else(|| polled(body), polled)
}

/// A gateway before a front before a node; `change` is given each batch and its answer.
fn gathering(
    node: &SimNode,
    more: &str,
    change: impl Fn(&Value, Value) -> Value + Clone + Send + 'static,
) -> (Served, Heard) {
    let heard = Heard::default();
    let noted = heard.clone();
    let url = start_proxy(&node.address.to_string(), move |asked, said| {
        let asked: Value = serde_json::from_str(asked).unwrap();
        let said = match asked.is_array() {
            true => change(&asked, serde_json::from_str(&said).unwrap()).to_string(),
            false => said,
        };
        noted.0.lock().push(asked);
        said
    });
    let node_entry = entry("node", &url, more);
    let served = Served::start(&format!("{}{UNCACHED}{node_entry}", polled_once("")));
    served.wait_for_candidates(&["node"]);
    wait_for_quiet(&[node]);
    heard.forget();
    (served, heard)
}

fn unchanged(_: &Value, said: Value) -> Value {
    said
}

#[test]
fn the_calls_of_a_clients_batch_leave_as_one_request() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let more = "batch_calls_max = 100\nbatch_wait = \"0ms\"";
    let (served, heard) = gathering(&node, more, unchanged);
    ask_all(&mut served.client(), &node, 0..60);
    assert_eq!(heard.sizes(), [60]);
    assert_eq!(
        (served.upstream(0, "batches"), served.upstream(0, "batched_calls")),
        (json!(1), json!(60))
    );
    // One that is alone is no batch.
    heard.forget();
    let answer = ask(&mut served.client(), READ, &account(7, "0x64"));
    assert_eq!(result(&answer), node.result(READ, &account(7, "0x64")));
    assert_eq!(heard.sizes(), [0]);
    // More than fit leave as several.
    heard.forget();
    ask_all(&mut served.client(), &node, 0..250);
    assert_eq!(heard.sizes().iter().sum::<usize>(), 250, "{:?}", heard.sizes());
    assert!(heard.sizes().iter().all(|size| *size <= 100), "{:?}", heard.sizes());
}

#[test]
fn calls_of_several_clients_leave_together() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let more = "batch_calls_max = 8\nbatch_wait = \"1s\"";
    let (served, heard) = gathering(&node, more, unchanged);
    // Eight fill a batch, long before its time is over.
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (served, node) = (&served, &node);
            scope.spawn(move || {
                let answer = ask(&mut served.client(), READ, &account(number, "0x64"));
                assert_eq!(result(&answer), node.result(READ, &account(number, "0x64")));
            });
        }
    });
    assert_eq!(heard.sizes(), [8]);
}

#[test]
fn a_refused_batch_is_sent_call_by_call_and_the_next_ones_are_smaller() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    // As geth does it: an array of one error, with the first call's id.
    let refuse = |asked: &Value, said: Value| match calls_of(asked) {
        calls if calls.len() > 5 => {
            let refusal = json!({"code": -32600, "message": "batch too large"});
            json!([{"jsonrpc": "2.0", "id": calls[0]["id"], "error": refusal}])
        }
        _ => said,
    };
    let more = "batch_calls_max = 16\nbatch_wait = \"0ms\"";
    let (served, heard) = gathering(&node, more, refuse);
    let mut client = served.client();
    ask_all(&mut client, &node, 0..16);
    let mut alone = vec![16];
    alone.extend([0; 16]);
    assert_eq!(heard.sizes(), alone, "all at once, then each by itself");
    heard.forget();
    ask_all(&mut client, &node, 0..8);
    assert_eq!(heard.sizes()[0], 8);
    heard.forget();
    ask_all(&mut client, &node, 0..16);
    assert_eq!(heard.sizes(), [4; 4], "as many as it takes, and nothing twice");
}

#[test]
fn calls_without_a_response_in_a_batch_are_sent_alone() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let spoil = |_: &Value, said: Value| {
        let Value::Array(mut answers) = said else { return said };
        // In another order; one missing, two with one id, one that had no room, one broken.
        answers.reverse();
        answers.remove(0);
        answers[1]["id"] = answers[2]["id"].clone();
        answers[5] = json!({"jsonrpc": "2.0", "id": answers[5]["id"],
            "error": {"code": -32003, "message": "response too large"}});
        answers[6] = json!({"jsonrpc": "2.0", "id": answers[6]["id"]});
        Value::Array(answers)
    };
    let more = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
    let (served, heard) = gathering(&node, more, spoil);
    ask_all(&mut served.client(), &node, 0..10);
    assert_eq!(heard.sizes(), [10, 0, 0, 0, 0, 0]);
}

#[test]
fn a_rate_limit_of_a_batch_is_one_of_each_call() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let limit = |_: &Value, _: Value| {
        let refusal = json!({"code": -32005, "message": "daily request count exceeded"});
        json!({"jsonrpc": "2.0", "id": null, "error": refusal})
    };
    let more = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
    let (served, heard) = gathering(&node, more, limit);
    let calls: Vec<String> = (0..10).map(|number| read(number, number)).collect();
    let answer = served.client().call("/", format!("[{}]", calls.join(",")).as_bytes());
    let answers: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(answers.len(), 10);
    for (id, answer) in answers.iter().enumerate() {
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(-32005)));
    }
    assert_eq!(heard.sizes(), [10], "asking again would make it worse");
    assert_eq!(served.upstream(0, "rate_limited"), json!(10));
}

#[test]
fn calls_that_write_or_weigh_much_go_by_themselves() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let more = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
    let (served, heard) = gathering(&node, more, unchanged);
    let logs = r#"{"jsonrpc":"2.0","id":20,"method":"eth_getLogs","params":[{"fromBlock":"0x1","toBlock":"0x2"}]}"#;
    let sent = r#"{"jsonrpc":"2.0","id":21,"method":"eth_sendRawTransaction","params":["0x00"]}"#;
    let batch = format!("[{},{logs},{},{sent}]", read(1, 1), read(2, 2));
    let answer = served.client().call("/", batch.as_bytes());
    let answers: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    let ids: Vec<&Value> = answers.iter().map(|answer| &answer["id"]).collect();
    assert_eq!(ids, [1, 20, 2, 21]);
    let mut sizes = heard.sizes();
    sizes.sort_unstable();
    assert!(sizes == [0, 0, 2] || sizes == [0, 2], "{sizes:?}: a write may be refused here");
}

#[test]
fn a_batch_that_breaks_goes_to_another_node() {
    let scene = Scene::set();
    let nodes = scene.nodes(["first", "second"]);
    let more = "batch_calls_max = 50\nbatch_wait = \"0ms\"";
    let entries = nodes.each_ref().map(|node| node.entry(more)).concat();
    let served = Served::start(&format!("{}{UNCACHED}{entries}", polled_once("")));
    served.wait_for_candidates(&["first", "second"]);
    for fault in [Fault::Close, Fault::Truncate, Fault::NotJson, Fault::Html, Fault::WrongId] {
        nodes[0].fail(FaultRule { method: Some(READ.into()), ..FaultRule::always(fault) });
        ask_all(&mut served.client(), &nodes[1], 0..20);
    }
}

#[test]
fn each_call_keeps_its_own_deadline() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let more = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
    let node_entry = node.entry(more);
    let call = "[call]\ndeadline = \"300ms\"\nattempt_deadline = \"300ms\"\nretries_max = 0\n";
    let served = Served::start(&format!("{}{UNCACHED}{call}{node_entry}", polled_once("")));
    served.wait_for_candidates(&["node"]);
    node.fail(FaultRule { method: Some(READ.into()), ..FaultRule::always(Fault::Hang) });
    let batch = format!("[{},{}]", read(1, 1), read(2, 2));
    let answer = served.client().call("/", batch.as_bytes());
    let answers: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    assert!(answers.iter().all(|answer| answer["error"]["code"].is_i64()), "{answers:?}");
    // What hangs holds up nothing else.
    node.set(|settings| settings.faults.clear());
    let answer = ask(&mut served.client(), READ, &account(3, "0x64"));
    assert_eq!(result(&answer), node.result(READ, &account(3, "0x64")), "{:?}", error_of(&answer));
}

fn error_of(answer: &test_support::raw::Answer) -> Option<(u16, i64, String)> {
    answer.text().contains("\"error\"").then(|| error(answer))
}
