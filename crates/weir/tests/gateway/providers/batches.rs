//! The gateway combines calls into JSON-RPC batches to a node.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use simnode::node::settings::{Fault, FaultRule};

use super::{UNCACHED, ask_all, balance_call};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, chain_polled_once, error,
    result, upstream_toml, wait_until_idle,
};
use test_support::proxy::start_proxy_with_status;

/// The bodies of the requests that a node received, in order.
#[derive(Clone, Default)]
struct NodeRequests(Arc<Mutex<Vec<Value>>>);

impl NodeRequests {
    /// Returns the number of calls in each request that has calls of clients. It is 0 for a call
    /// outside of a batch.
    fn sizes(&self) -> Vec<usize> {
        let requests = self.0.lock();
        requests
            .iter()
            .filter(|body| is_client_request(body))
            .map(|body| calls_of(body).len())
            .collect()
    }

    fn clear(&self) {
        self.0.lock().clear();
    }
}

/// Returns the calls of a batch. Returns none for a single call.
fn calls_of(body: &Value) -> &[Value] {
    body.as_array().map_or(&[], Vec::as_slice)
}

/// Returns true if a request has calls of clients. Returns false for a poll of the gateway.
fn is_client_request(body: &Value) -> bool {
    let is_poll = |call: &Value| {
        let method = call["method"].as_str().unwrap();
        !method.starts_with("eth_getBalance")
            && !method.starts_with("eth_getLogs")
            && !method.starts_with("eth_send")
    };
    !calls_of(body).first().map_or_else(|| is_poll(body), is_poll)
}

/// Starts a proxy in front of a node, and a gateway in front of the proxy. The proxy records
/// requests. `change` gets each batch and its response, and returns the response to send. `keys`
/// are keys of the `[[upstream]]` table.
fn start_batching(
    node: &SimNode,
    keys: &str,
    change: impl Fn(&Value, Value) -> Value + Clone + Send + 'static,
) -> (TestGateway, NodeRequests) {
    start_batching_with_status(node, keys, move |request, response| {
        let response = serde_json::from_str(&response).unwrap();
        (200, change(request, response).to_string())
    })
}

/// As [`start_batching`], but `change` gets and returns raw bodies, and returns the HTTP status too.
fn start_batching_with_status(
    node: &SimNode,
    keys: &str,
    change: impl Fn(&Value, String) -> (u16, String) + Clone + Send + 'static,
) -> (TestGateway, NodeRequests) {
    let requests = NodeRequests::default();
    let recorded = requests.clone();
    let url = start_proxy_with_status(&node.address.to_string(), move |request, response| {
        let request: Value = serde_json::from_str(request).unwrap();
        let response = match request.is_array() {
            true => change(&request, response),
            false => (200, response),
        };
        recorded.0.lock().push(request);
        response
    });
    let upstream = upstream_toml("node", &url, keys);
    let gateway = TestGateway::start(&format!("{}{UNCACHED}{upstream}", chain_polled_once("")));
    gateway.wait_for_candidates(&["node"]);
    wait_until_idle(&[node]);
    requests.clear();
    (gateway, requests)
}

fn unchanged(_: &Value, response: Value) -> Value {
    response
}

#[test]
fn the_calls_of_a_clients_batch_are_sent_as_one_request() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let keys = "batch_calls_max = 100\nbatch_wait = \"0ms\"";
    let (gateway, requests) = start_batching(&node, keys, unchanged);
    ask_all(&mut gateway.client(), &node, 0..60);
    assert_eq!(requests.sizes(), [60]);
    assert_eq!(
        (gateway.upstream(0, "batches"), gateway.upstream(0, "batched_calls")),
        (json!(1), json!(60))
    );
    // A single call is not sent as a batch.
    requests.clear();
    let answer = ask(&mut gateway.client(), GET_BALANCE, &balance_params(7, "0x64"));
    assert_eq!(result(&answer), node.call(GET_BALANCE, &balance_params(7, "0x64")));
    assert_eq!(requests.sizes(), [0]);
    // More calls than the maximum are sent in several batches.
    requests.clear();
    ask_all(&mut gateway.client(), &node, 0..250);
    assert_eq!(requests.sizes().iter().sum::<usize>(), 250, "{:?}", requests.sizes());
    assert!(requests.sizes().iter().all(|size| *size <= 100), "{:?}", requests.sizes());
}

#[test]
fn calls_of_several_clients_are_sent_together() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let keys = "batch_calls_max = 8\nbatch_wait = \"1s\"";
    let (gateway, requests) = start_batching(&node, keys, unchanged);
    // Eight calls fill the batch long before `batch_wait` ends.
    std::thread::scope(|scope| {
        for account in 0..8 {
            let (gateway, node) = (&gateway, &node);
            scope.spawn(move || {
                let params = balance_params(account, "0x64");
                let answer = ask(&mut gateway.client(), GET_BALANCE, &params);
                assert_eq!(result(&answer), node.call(GET_BALANCE, &params));
            });
        }
    });
    assert_eq!(requests.sizes(), [8]);
}

#[test]
fn a_refused_batch_is_sent_call_by_call_and_the_next_ones_are_smaller() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    // The proxy rejects a batch as Geth does: with an array of one error, which has the id of the
    // first call.
    let refuse = |request: &Value, response: Value| match calls_of(request) {
        calls if calls.len() > 5 => {
            let refusal = json!({"code": -32600, "message": "batch too large"});
            json!([{"jsonrpc": "2.0", "id": calls[0]["id"], "error": refusal}])
        }
        _ => response,
    };
    let keys = "batch_calls_max = 16\nbatch_wait = \"0ms\"";
    let (gateway, requests) = start_batching(&node, keys, refuse);
    let mut client = gateway.client();
    ask_all(&mut client, &node, 0..16);
    let mut expected = vec![16];
    expected.extend([0; 16]);
    assert_eq!(requests.sizes(), expected, "one batch, then each call alone");
    requests.clear();
    ask_all(&mut client, &node, 0..8);
    assert_eq!(requests.sizes()[0], 8);
    requests.clear();
    ask_all(&mut client, &node, 0..16);
    assert_eq!(requests.sizes(), [4; 4], "smaller batches, and no retry");
}

#[test]
fn calls_without_a_response_in_a_batch_are_sent_alone() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let spoil = |_: &Value, response: Value| {
        let Value::Array(mut answers) = response else { return response };
        // The responses get another order. One is missing, one has a duplicate id, one is an error
        // because the response was too large, and one is invalid.
        answers.reverse();
        answers.remove(0);
        answers[1]["id"] = answers[2]["id"].clone();
        answers[5] = json!({"jsonrpc": "2.0", "id": answers[5]["id"],
            "error": {"code": -32003, "message": "response too large"}});
        answers[6] = json!({"jsonrpc": "2.0", "id": answers[6]["id"]});
        Value::Array(answers)
    };
    let keys = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
    let (gateway, requests) = start_batching(&node, keys, spoil);
    ask_all(&mut gateway.client(), &node, 0..10);
    assert_eq!(requests.sizes(), [10, 0, 0, 0, 0, 0]);
}

#[test]
fn a_malformed_response_to_a_batch_is_replaced_by_single_calls() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let one_too_many = |response: Value| {
        let mut answers = response.as_array().unwrap().clone();
        answers.push(json!({"jsonrpc": "2.0", "id": "more", "result": 1}));
        Value::Array(answers)
    };
    let doubled = |response: Value| {
        let mut answers = response.as_array().unwrap().clone();
        answers.push(answers[0].clone());
        Value::Array(answers)
    };
    let no_response = |_: Value| json!("<html>");
    let plain_refusal = |_: Value| json!({"message": "Batch of more than 3 requests are not allowed on free tier", "code": 31});
    let changes: [fn(Value) -> Value; 4] = [one_too_many, doubled, no_response, plain_refusal];
    for change in changes {
        let keys = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
        let (gateway, requests) = start_batching(&node, keys, move |_, response| change(response));
        ask_all(&mut gateway.client(), &node, 0..10);
        assert_eq!(requests.sizes(), [10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}

/// The status of testdata/public-faults/batch-refused-by-status-or-close.json, others that providers
/// send, and bodies that are no JSON.
#[test]
fn a_batch_that_is_refused_by_its_status_or_no_json_is_replaced_by_single_calls() {
    const FREE_TIER: &str =
        r#"{"message":"Batch of more than 3 requests are not allowed on free tier","code":31}"#;
    const HTML: &str = "<html><body>Bad Request</body></html>";
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let refusals: [(u16, &str); 9] = [
        (500, FREE_TIER),
        (400, FREE_TIER),
        (403, FREE_TIER),
        (413, FREE_TIER),
        (429, FREE_TIER),
        (400, HTML),
        (500, HTML),
        (200, HTML),
        (200, r#"[{"jsonrpc":"2.0","id":1,"result":"0x"#),
    ];
    for (status, body) in refusals {
        let refuse = move |request: &Value, response| match calls_of(request) {
            calls if calls.len() > 3 => (status, body.to_owned()),
            _ => (200, response),
        };
        let keys = "batch_calls_max = 16\nbatch_wait = \"0ms\"";
        let (gateway, requests) = start_batching_with_status(&node, keys, refuse);
        let mut client = gateway.client();
        ask_all(&mut client, &node, 0..16);
        assert_eq!(requests.sizes(), [vec![16], vec![0; 16]].concat(), "{status} {body}");
        for _ in 0..3 {
            ask_all(&mut client, &node, 0..16);
        }
        requests.clear();
        ask_all(&mut client, &node, 0..16);
        let sizes = requests.sizes();
        assert!(sizes.iter().all(|size| (2..=3).contains(size)), "{status} {body}: {sizes:?}");
        assert_eq!(gateway.upstream(0, "ejections"), json!(0), "{status} {body}");
    }
}

/// A status 429 that does not name batches is a rate limit: single calls would exceed it further.
#[test]
fn a_batch_that_is_refused_by_a_rate_limit_is_not_sent_call_by_call() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let limit = |_: &Value, _| (429, r#"{"message":"Too many requests"}"#.to_owned());
    let keys = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
    let (gateway, requests) = start_batching_with_status(&node, keys, limit);
    let calls: Vec<String> = (0..10).map(|account| balance_call(account, account)).collect();
    let answer = gateway.client().call("/", format!("[{}]", calls.join(",")).as_bytes());
    let answers: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    assert!(answers.iter().all(|answer| answer["error"]["code"] == -32005), "{answers:?}");
    assert!(!requests.sizes().contains(&0), "{:?}", requests.sizes());
    assert_eq!(gateway.upstream(0, "ejections"), json!(0));
}

/// The closed connection of testdata/public-faults/batch-refused-by-status-or-close.json.
#[test]
fn a_batch_that_closes_the_connection_is_replaced_by_single_calls() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    // A panic of the proxy's thread closes the connection.
    let close = |request: &Value, response: Value| {
        assert!(calls_of(request).len() <= 3, "the proxy closes the connection");
        response
    };
    let keys = "batch_calls_max = 16\nbatch_wait = \"0ms\"";
    let (gateway, requests) = start_batching(&node, keys, close);
    let mut client = gateway.client();
    for _ in 0..4 {
        ask_all(&mut client, &node, 0..16);
    }
    requests.clear();
    ask_all(&mut client, &node, 0..16);
    assert!(requests.sizes().iter().all(|size| (2..=3).contains(size)), "{:?}", requests.sizes());
}

#[test]
fn a_rate_limit_of_a_batch_applies_to_each_call() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let limit = |_: &Value, _: Value| {
        let refusal = json!({"code": -32005, "message": "daily request count exceeded"});
        json!({"jsonrpc": "2.0", "id": null, "error": refusal})
    };
    let keys = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
    let (gateway, requests) = start_batching(&node, keys, limit);
    let calls: Vec<String> = (0..10).map(|account| balance_call(account, account)).collect();
    let answer = gateway.client().call("/", format!("[{}]", calls.join(",")).as_bytes());
    let answers: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(answers.len(), 10);
    for (id, answer) in answers.iter().enumerate() {
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(-32005)));
    }
    assert_eq!(requests.sizes(), [10], "a rate-limited batch is not retried");
    assert_eq!(gateway.upstream(0, "rate_limited"), json!(10));
}

#[test]
fn writes_and_heavy_calls_are_not_batched() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let keys = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
    let (gateway, requests) = start_batching(&node, keys, unchanged);
    let logs = r#"{"jsonrpc":"2.0","id":20,"method":"eth_getLogs","params":[{"fromBlock":"0x1","toBlock":"0x2"}]}"#;
    let sent = r#"{"jsonrpc":"2.0","id":21,"method":"eth_sendRawTransaction","params":["0x00"]}"#;
    let batch = format!("[{},{logs},{},{sent}]", balance_call(1, 1), balance_call(2, 2));
    let answer = gateway.client().call("/", batch.as_bytes());
    let answers: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    let ids: Vec<&Value> = answers.iter().map(|answer| &answer["id"]).collect();
    assert_eq!(ids, [1, 20, 2, 21]);
    let mut sizes = requests.sizes();
    sizes.sort_unstable();
    assert!(
        sizes == [0, 0, 2] || sizes == [0, 2],
        "{sizes:?}: the gateway may reject the write itself"
    );
}

#[test]
fn a_failed_batch_is_retried_at_another_node() {
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(["first", "second"]);
    let keys = "batch_calls_max = 50\nbatch_wait = \"0ms\"";
    let upstreams = nodes.each_ref().map(|node| node.to_toml(keys)).concat();
    let gateway = TestGateway::start(&format!("{}{UNCACHED}{upstreams}", chain_polled_once("")));
    gateway.wait_for_candidates(&["first", "second"]);
    for fault in [Fault::Close, Fault::Truncate, Fault::NotJson, Fault::Html, Fault::WrongId] {
        let method = Some(GET_BALANCE.into());
        nodes[0].set_fault(FaultRule { method, ..FaultRule::always(fault) });
        ask_all(&mut gateway.client(), &nodes[1], 0..20);
    }
}

#[test]
fn each_call_keeps_its_own_deadline() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let keys = "batch_calls_max = 10\nbatch_wait = \"0ms\"";
    let upstream = node.to_toml(keys);
    let call = "[call]\ndeadline = \"300ms\"\nattempt_deadline = \"300ms\"\nretries_max = 0\n";
    let text = format!("{}{UNCACHED}{call}{upstream}", chain_polled_once(""));
    let gateway = TestGateway::start(&text);
    gateway.wait_for_candidates(&["node"]);
    let method = Some(GET_BALANCE.into());
    node.set_fault(FaultRule { method, ..FaultRule::always(Fault::Hang) });
    let batch = format!("[{},{}]", balance_call(1, 1), balance_call(2, 2));
    let answer = gateway.client().call("/", batch.as_bytes());
    let answers: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    assert!(answers.iter().all(|answer| answer["error"]["code"].is_i64()), "{answers:?}");
    // A hanging batch blocks no other call.
    node.set(|settings| settings.faults.clear());
    let params = balance_params(3, "0x64");
    let answer = ask(&mut gateway.client(), GET_BALANCE, &params);
    let expected = node.call(GET_BALANCE, &params);
    assert_eq!(result(&answer), expected, "{:?}", error_of(&answer));
}

fn error_of(answer: &test_support::raw::Response) -> Option<(u16, i64, String)> {
    answer.text().contains("\"error\"").then(|| error(answer))
}
