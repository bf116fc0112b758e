//! Goal: access control rejects unauthorized calls, allows authorized ones, and returns errors that
//! common clients understand. Method: simulated nodes and the gateway in this process, over real
//! sockets. The tests read the nodes' call counters to prove that no denied call reached a node.

mod spellings;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::support::harness::{
    self, NEWEST_BLOCK, NodeRuntime, SimNode, TestGateway, body, chain_polled_once,
};
use test_support::raw::{Client, Response, post_with};
use test_support::running::Weir;
use test_support::wait::wait_until;

const ALICE: &str = "weir_alice_0123456789abcdef";
const BOB: &str = "weir_bob_0123456789abcdef01";
const OLD: &str = "weir_old_0123456789abcdef01";
const AWAY: &str = "weir_away_0123456789abcdef0";
const SECRET: &str = "a-shared-secret-of-more-than-32-bytes";

/// `[[key]]` tables. Alice's key allows an extra method. Bob's key allows only one chain and some
/// methods. The key `old` has expired. The key `away` is valid only from other client addresses.
fn keys() -> String {
    let key = |name: &str, secret: &str, more: &str| {
        format!("[[key]]\nname = \"{name}\"\nsecret = \"{secret}\"\n{more}\n")
    };
    [
        key("alice", ALICE, "tier = \"gold\"\nnode_methods = [\"admin_peers\"]"),
        key("bob", BOB, "chains = [\"sim\"]\nmethods_allow = [\"eth_*\"]\ntransactions = false"),
        key("old", OLD, "expires = \"2020-01-01T00:00:00Z\""),
        key("away", AWAY, "clients = [\"203.0.113.0/24\"]"),
    ]
    .concat()
}

/// Starts a gateway with two chains. Node `a` serves the chain `sim`, which is the default, and
/// node `b` the chain `other`.
fn start_gateway(runtime: &NodeRuntime, more: &str) -> ([SimNode; 2], TestGateway) {
    let nodes = runtime.nodes(["a", "b"]);
    let [a, b] = &nodes;
    let text = format!(
        "[chain.other]\npoll_interval = \"1h\"\npaths = [\"/other\"]\n{}\n{more}\n{}\n{}",
        chain_polled_once("default = true"),
        a.to_toml("chain = \"sim\""),
        b.to_toml("chain = \"other\"")
    );
    let gateway = TestGateway::start(&text);
    gateway.wait_for_head(Some(NEWEST_BLOCK));
    wait_until("both chains have heads", || {
        (0..2).all(|chain| gateway.status(&format!("/chains/{chain}/head")) != Value::Null)
    });
    harness::wait_until_idle(&[a, b]);
    (nodes, gateway)
}

/// Posts a body with further header lines and returns the response.
fn ask(gateway: &TestGateway, path: &str, headers: &str, body: &[u8]) -> Response {
    let mut client = gateway.client();
    client.send(&post_with(path, headers, body));
    client.read_response().unwrap()
}

fn call(method: &str) -> Vec<u8> {
    body(method, "[]")
}

/// The code and message of a response's JSON-RPC error.
fn error(answer: &Response) -> (i64, String) {
    let parsed: Value = serde_json::from_str(answer.text()).unwrap();
    let error = &parsed["error"];
    (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
}

fn is_result(answer: &Response) -> bool {
    answer.status == 200 && answer.text().contains("\"result\":")
}

fn key_line(key: &str) -> String {
    format!("x-api-key: {key}\r\n")
}

#[test]
fn a_key_is_accepted_in_every_supported_place_and_nothing_else_is() {
    let runtime = NodeRuntime::start();
    let ([a, _b], gateway) = start_gateway(&runtime, &keys());
    let before = a.calls();
    for (path, lines, expected) in [
        ("/", String::new(), "an API key or token is required"),
        ("/", key_line("weir_wrong_0123456789abcdef"), "the API key or token is not valid"),
        ("/", "authorization: Bearer nonsense\r\n".into(), "the API key or token is not valid"),
        ("/", "authorization: Basic YTpi\r\n".into(), "an API key or token is required"),
        ("/?key=weir_wrong", String::new(), "the API key or token is not valid"),
        ("/", key_line(OLD), "the API key or token has expired"),
        (
            "/",
            format!("{}{}", key_line(ALICE), key_line(BOB)),
            "request contains more than one API key",
        ),
    ] {
        let answer = ask(&gateway, path, &lines, &call("eth_getBalance"));
        assert_eq!(answer.status, 401, "{path} {lines}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"weir\""));
        assert_eq!(error(&answer), (-32600, expected.to_owned()));
    }
    let answer = ask(&gateway, "/", &key_line(AWAY), &call("eth_chainId"));
    assert_eq!((answer.status, error(&answer).0), (403, -32600));
    assert_eq!(a.calls(), before, "a call without a key reached a node");
    for (path, lines) in [
        ("/".to_owned(), key_line(ALICE)),
        ("/".to_owned(), format!("Authorization: Bearer {ALICE}\r\n")),
        (format!("/{ALICE}"), String::new()),
        (format!("/other/{ALICE}"), String::new()),
        (format!("/{ALICE}/other"), String::new()),
        (format!("/other?key={ALICE}"), String::new()),
    ] {
        assert!(is_result(&ask(&gateway, &path, &lines, &call("eth_chainId"))), "{path} {lines}");
    }
    // Health checks and CORS preflights need no key.
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.read_response().unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("POST a JSON-RPC call"), "{}", answer.text());
    client.send(b"OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: http://app.example\r\n\r\n");
    let answer = client.read_response().unwrap();
    assert_eq!(answer.status, 204);
    assert!(answer.header("access-control-allow-headers").unwrap().contains("x-api-key"));
    let metrics = gateway.get_admin("/metrics");
    for line in [
        "weir_access_denied_total{reason=\"no_key\"} 2",
        "weir_access_denied_total{reason=\"bad_key\"} 3",
        "weir_access_denied_total{reason=\"expired\"} 1",
        "weir_access_denied_total{reason=\"two_keys\"} 1",
        "weir_access_denied_total{reason=\"address\"} 1",
        "weir_key_calls_total{key=\"alice\"} 6",
        "weir_requests_refused_total{status=\"401\"} 7",
        "weir_requests_refused_total{status=\"403\"} 1",
    ] {
        assert!(metrics.text().contains(line), "{line} is not in {}", metrics.text());
    }
}

#[test]
fn a_key_is_held_to_its_chains_and_methods() {
    let runtime = NodeRuntime::start();
    let ([a, b], gateway) = start_gateway(&runtime, &keys());
    let (before_a, before_b) = (a.calls(), b.calls());
    let unavailable = (-32601, "the method does not exist/is not available".to_owned());
    let bob = key_line(BOB);
    assert!(is_result(&ask(&gateway, "/", &bob, &call("eth_chainId"))));
    let answer = ask(&gateway, "/other", &bob, &call("eth_chainId"));
    assert_eq!((answer.status, error(&answer).0), (403, -32600));
    for method in ["net_version", "eth_sendRawTransaction", "eth_sign", "admin_peers", "x_y"] {
        let answer = ask(&gateway, "/", &bob, &call(method));
        assert_eq!((answer.status, error(&answer)), (200, unavailable.clone()), "{method}");
    }
    // Each call of a batch is checked by itself.
    let batch = format!(
        "[{},{}]",
        r#"{"id":1,"method":"eth_chainId"}"#, r#"{"id":2,"method":"net_version"}"#
    );
    let answer = ask(&gateway, "/", &bob, batch.as_bytes());
    let parsed: Value = serde_json::from_str(answer.text()).unwrap();
    assert!(parsed[0]["result"].is_string(), "{parsed}");
    assert_eq!((&parsed[1]["id"], &parsed[1]["error"]["code"]), (&json!(2), &json!(-32601)));
    assert_eq!(b.calls(), before_b);
    // The list also denies a name that is written with JSON escapes.
    let escaped = r#"{"id":7,"method":"admi\u006e_peers","params":[]}"#;
    assert_eq!(error(&ask(&gateway, "/", &bob, escaped.as_bytes())), unavailable);
    assert!(a.calls() <= before_a + 2, "a denied method reached the node");
    // Alice's key allows this method by `node_methods`, so the call reaches the node.
    let before = a.calls();
    ask(&gateway, "/", &key_line(ALICE), &call("admin_peers"));
    assert_eq!(a.calls(), before + 1);
}

#[test]
fn without_access_control_only_methods_that_act_on_the_node_are_denied() {
    let runtime = NodeRuntime::start();
    let ([a, _b], gateway) = start_gateway(&runtime, "");
    let before = a.calls();
    for method in [
        "admin_addPeer",
        "personal_unlockAccount",
        "miner_start",
        "engine_forkchoiceUpdatedV3",
        "debug_setHead",
        "eth_sign",
        "eth_signTransaction",
        "eth_sendTransaction",
        "admin_unheardOf",
    ] {
        let answer = ask(&gateway, "/", "", &call(method));
        assert_eq!((answer.status, error(&answer).0), (200, -32601), "{method}");
    }
    assert_eq!(a.calls(), before);
    for method in ["eth_sendRawTransaction", "debug_traceTransaction", "x_unknown"] {
        ask(&gateway, "/", "", &call(method));
    }
    assert!(a.calls() >= before + 3, "a read or a signed transaction did not reach the node");
    let metrics = gateway.get_admin("/metrics");
    assert!(metrics.text().contains("weir_access_denied_total{reason=\"node_method\"} 9"));
    // The error, the status and the page name the key that decides.
    let answer = ask(&gateway, "/", "", &call("eth_sign"));
    let parsed: Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(parsed["error"]["data"], json!({"refused_by": "access.node_methods"}));
    let status: Value = serde_json::from_str(gateway.get_admin("/status").text()).unwrap();
    let refused = status["refused_methods"].as_array().unwrap();
    assert_eq!(refused.len(), 9, "{refused:?}");
    let most_called =
        json!({"method": "eth_sign", "refused_by": "access.node_methods", "calls": 2});
    assert_eq!(refused[0], most_called);
    let page = gateway.get_admin("/");
    assert!(page.text().contains("Refused methods"), "{}", page.text());
}

#[test]
fn a_refused_method_is_logged_once_with_the_key_that_refuses_it() {
    let gateway =
        Weir::serve().config("[[upstream]]\nname = \"a\"\nurl = \"http://127.0.0.1:9\"\n").start();
    let mut client = Client::connect(&gateway.address);
    for _ in 0..3 {
        client.send(&post_with("/", "", &call("eth_sign")));
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    wait_until("the log names the method", || gateway.log().contains("eth_sign"));
    let log = gateway.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("eth_sign")).collect();
    assert!(lines.len() == 1 && lines[0].contains("access.node_methods"), "{log}");
}

#[test]
fn method_lists_of_chain_and_group_and_client_networks_are_enforced() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let start = |more: &str| {
        let text = format!(
            "{}\n[[group]]\nname = \"logs\"\nmethods = [\"eth_getLogs\", \"eth_call\"]\n\
             methods_deny = [\"eth_call\"]\n{more}",
            chain_polled_once("methods_deny = [\"eth_gasPrice\"]")
        );
        TestGateway::in_front_of(&[&a], &text)
    };
    let open = start("[access]\nmethods_deny = [\"net_*\"]\nnode_methods = [\"admin_peers\"]\n");
    for (method, refused_by) in [
        ("eth_gasPrice", "chain.methods_deny"),
        ("eth_call", "group.methods_deny"),
        ("net_version", "access.methods_deny"),
        ("eth_chainId", ""),
        ("eth_getLogs", ""),
    ] {
        let answer = ask(&open, "/", "", &call(method));
        assert_eq!(answer.text().contains("is not available"), !refused_by.is_empty(), "{method}");
        let data = format!(r#""data":{{"refused_by":"{refused_by}"}}"#);
        assert_eq!(answer.text().contains(&data), !refused_by.is_empty(), "{}", answer.text());
    }
    let denied = start("[access]\nclients_deny = [\"127.0.0.0/8\"]\n");
    let answer = ask(&denied, "/", "", &call("eth_chainId"));
    assert_eq!((answer.status, error(&answer).0), (403, -32600));
    let elsewhere = start("[access]\nclients_allow = [\"10.0.0.0/8\"]\n");
    assert_eq!(ask(&elsewhere, "/", "", &call("eth_chainId")).status, 403);
    let here = start("[access]\nclients_allow = [\"127.0.0.1\"]\n");
    assert!(is_result(&ask(&here, "/", "", &call("eth_chainId"))));
}

#[test]
fn a_token_allows_what_it_claims_until_it_expires() {
    let runtime = NodeRuntime::start();
    let more = format!("[[jwt]]\nname = \"us\"\nsecret = \"{SECRET}\"\naudience = [\"rpc\"]\n");
    let ([a, _b], gateway) = start_gateway(&runtime, &more);
    let sign = |secret: &str, claims: Value| {
        let key = EncodingKey::from_secret(secret.as_bytes());
        let token = encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap();
        format!("authorization: Bearer {token}\r\n")
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let good = json!({"exp": now + 600, "aud": "rpc", "sub": "carol", "methods": "eth_* net_*"});
    let lines = sign(SECRET, good.clone());
    for _ in 0..3 {
        assert!(is_result(&ask(&gateway, "/", &lines, &call("eth_chainId"))));
    }
    assert_eq!(error(&ask(&gateway, "/", &lines, &call("debug_traceBlock"))).0, -32601);
    let before = a.calls();
    let forged = sign("another-secret-of-more-than-32-bytes!", good.clone());
    let expired = sign(SECRET, json!({"exp": now - 600, "aud": "rpc"}));
    let other_audience = sign(SECRET, json!({"exp": now + 600, "aud": "them"}));
    for (lines, expected) in [
        (forged, "the API key or token is not valid"),
        (expired, "the API key or token has expired"),
        (other_audience, "the API key or token is not valid"),
    ] {
        let answer = ask(&gateway, "/", &lines, &call("eth_getBalance"));
        assert_eq!((answer.status, error(&answer)), (401, (-32600, expected.to_owned())));
    }
    assert_eq!(a.calls(), before);
    // This token expires while the gateway has it cached: it is 28 s past `exp`, and the leeway is
    // 30 s.
    let expiring = sign(SECRET, json!({"exp": now - 28, "aud": "rpc"}));
    assert!(is_result(&ask(&gateway, "/", &expiring, &call("eth_chainId"))));
    wait_until("the cached token has expired", || {
        ask(&gateway, "/", &expiring, &call("eth_chainId")).status == 401
    });
    let metrics = gateway.get_admin("/metrics");
    assert!(metrics.text().contains("weir_key_calls_total{key=\"us\"} "), "{}", metrics.text());
    assert!(!metrics.text().contains("carol"), "a subject must not become a label");
}

#[test]
fn rules_choose_groups_refuse_calls_and_rewrite_paths() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let text = format!(
        "{}\n{}\n{}\n{}\
         [[group]]\nname = \"side\"\nupstreams = [\"b\"]\nmethods = [\"side_only\"]\n\
         [[group]]\nname = \"main\"\nupstreams = [\"a\"]\nmethods = [\"*\"]\n\
         [[rule]]\nname = \"moved\"\npath = \"/old\"\nrewrite = \"/sim\"\n\
         [[rule]]\nname = \"closed\"\nhosts = [\"closed.example\"]\ndeny = 451\nmessage = \"not here\"\n\
         [[rule]]\nname = \"mobile\"\nheaders = [\"x-client: mobile*\"]\nmethods = [\"eth_getBalance\"]\ngroup = \"side\"\n\
         [[rule]]\nname = \"gold\"\ntiers = [\"gold\"]\nfirst_param = \"0x00000000000000000000000000000000000000aa\"\ngroup = \"side\"\n",
        chain_polled_once("default = false\npaths = [\"/sim\"]"),
        a.to_toml(""),
        b.to_toml(""),
        keys(),
    );
    let gateway = TestGateway::start(&format!(
        "[cache]\nenabled = false\ncoalesce = false\n[access]\nrequired = false\n{text}"
    ));
    gateway.wait_for_candidates(&["a"]);
    harness::wait_until_idle(&[&a, &b]);
    let balance =
        |account: &str| body("eth_getBalance", &format!(r#"["0x{account:0>40}","0x10"]"#));
    let upstream_of = |path: &str, lines: &str, body: &[u8]| {
        let answer = ask(&gateway, path, lines, body);
        assert!(is_result(&answer), "{}", answer.text());
        answer.header("x-weir-upstream").unwrap().to_owned()
    };
    assert_eq!(upstream_of("/sim", "", &balance("1")), "a");
    assert_eq!(upstream_of("/sim", "x-client: mobile/2\r\n", &balance("1")), "b");
    assert_eq!(upstream_of("/sim", "x-client: desktop\r\n", &balance("1")), "a");
    assert_eq!(upstream_of("/old", "X-Client: mobile/2\r\n", &balance("1")), "b");
    assert_eq!(upstream_of("/sim", &key_line(ALICE), &balance("aa")), "b");
    assert_eq!(upstream_of("/sim", &key_line(ALICE), &balance("ab")), "a");
    assert_eq!(upstream_of("/sim", "", &balance("aa")), "a");
    assert_eq!(ask(&gateway, "/nowhere", "", &balance("1")).status, 404);
    // `post_with` sends `Host: localhost`.
    let request = String::from_utf8(post_with("/sim", "", &balance("1"))).unwrap();
    let mut client = gateway.client();
    client.send(request.replace("Host: localhost", "Host: CLOSED.example:80").as_bytes());
    let answer = client.read_response().unwrap();
    assert_eq!((answer.status, error(&answer)), (451, (-32600, "not here".to_owned())));
    let metrics = gateway.get_admin("/metrics");
    for line in [
        "weir_rule_calls_total{rule=\"moved\"} 1",
        "weir_rule_calls_total{rule=\"mobile\"} 2",
        "weir_rule_calls_total{rule=\"gold\"} 1",
        "weir_access_denied_total{reason=\"rule\"} 1",
    ] {
        assert!(metrics.text().contains(line), "{line} is not in {}", metrics.text());
    }
}

/// Runs a `weir` command. Returns its standard output and its exit code.
fn weir(arguments: &[&str], input: &str) -> (String, Option<i32>) {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Not every command reads its standard input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn a_generated_key_is_accepted_and_unique() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let generate = || {
        let (printed, code) = weir(&["key", "carol"], "");
        assert_eq!(code, Some(0));
        let (key, table) = printed.split_once("\n\n").unwrap();
        (key.to_owned(), table.to_owned())
    };
    let (key, table) = generate();
    assert_eq!(key.len(), "weir_".len() + 64);
    assert!(!table.contains(&key));
    assert_ne!(generate().0, key);
    assert_eq!(weir(&["key", "carol", "--stdin"], &format!("{key}\n")).0, table);
    let gateway = TestGateway::in_front_of(&[&a], &format!("{table}\n{}", chain_polled_once("")));
    assert!(is_result(&ask(&gateway, "/", &key_line(&key), &call("eth_chainId"))));
    assert_eq!(ask(&gateway, "/", &key_line(&generate().0), &call("eth_chainId")).status, 401);
    assert_eq!(weir(&["key", "no name"], "").1, Some(2));
    assert_eq!(weir(&["key", "carol", "--stdin"], "short").1, Some(2));
}

#[test]
fn explain_names_the_matching_rule_and_denied_callers() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/public.toml");
    let trace = r#"{"method":"debug_traceCall"}"#;
    let (output, code) = weir(&["explain", file, trace], "");
    assert_eq!((output.contains("401"), code), (true, Some(2)), "{output}");
    let (output, _) = weir(&["explain", file, trace, "--key", "demo"], "");
    assert!(output.contains("rule      traces-are-gold chooses the group"), "{output}");
    assert!(output.contains("group     archive"), "{output}");
    let (output, _) = weir(&["explain", file, trace, "--key", "demo", "--client", "192.0.2.9"], "");
    assert!(output.contains("403: this client address"), "{output}");
    let (output, _) = weir(&["explain", file, r#"{"method":"admin_peers"}"#, "--key", "demo"], "");
    assert!(output.contains("-32601: the method acts on the node itself"), "{output}");
    assert_eq!(weir(&["explain", file, trace, "--key", "nobody"], "").1, Some(2));
}

#[test]
fn explain_charges_the_limits_of_the_chain_in_the_url_as_serving_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let text = r#"
        [chain.a]
        paths = ["/a"]
        default = false
        [chain.b]
        paths = ["/b"]
        default = false
        [[upstream]]
        chain = "a"
        url = "http://127.0.0.1:1"
        [[upstream]]
        chain = "b"
        url = "http://127.0.0.1:2"
        [[rule]]
        name = "move"
        path = "/a"
        rewrite = "/b"
        [zone.of-a]
        key = ["client-net"]
        rate = "1r/s"
        [zone.of-b]
        key = ["client-net"]
        rate = "1r/s"
        [[limit]]
        zone = "of-a"
        chain = "a"
        [[limit]]
        zone = "of-b"
        chain = "b"
    "#;
    std::fs::write(&file, text).unwrap();
    let call = r#"{"method":"eth_chainId"}"#;
    let (output, _) = weir(&["explain", file.to_str().unwrap(), call, "--path", "/a"], "");
    assert!(output.contains("chain     b\n"), "{output}");
    assert!(output.contains("of-a") && !output.contains("of-b"), "{output}");
}

#[test]
fn a_limit_of_failed_authentications_is_not_explained_as_a_limit_of_calls() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.toml");
    let text = "[[upstream]]\nurl = \"http://127.0.0.1:1\"\n\
                [zone.clients]\nkey = [\"client\"]\nrate = \"7r/s\"\n\
                [[limit]]\nzone = \"clients\"\nfailures = true\nburst = 3\n\
                [[limit]]\nzone = \"clients\"\nburst = 1000\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let (explanation, _) = weir(&["explain", file, r#"{"method":"eth_chainId"}"#], "");
    // Both limits share a zone. A call is charged by the second one only.
    assert_eq!(explanation.matches("limited").count(), 1, "{explanation}");
    assert!(explanation.contains("burst 1000"), "{explanation}");
    let (summary, _) = weir(&["check", file], "");
    assert!(summary.contains("limit failed authentications: "), "{summary}");
}

#[test]
fn a_client_that_guesses_keys_is_limited_and_other_clients_are_not() {
    let runtime = NodeRuntime::start();
    let limits = "[downstream]\nclient_address = \"x-forwarded-for\"\ntrusted_proxies = [\"127.0.0.1\"]\n\
                  [zone.guesses]\nkey = [\"client-net\"]\nrate = \"1r/m\"\n\
                  [[limit]]\nzone = \"guesses\"\nfailures = true\nburst = 4\n";
    let (_nodes, gateway) = start_gateway(&runtime, &format!("{limits}{}", keys()));
    let ask_from = |client: &str, key: &str| {
        let lines = format!("x-forwarded-for: {client}\r\n{}", key_line(key));
        ask(&gateway, "/", &lines, &call("eth_blockNumber"))
    };
    for number in 0..5 {
        assert!(
            is_result(&ask_from("198.51.100.1", ALICE)),
            "a valid key was counted as a failure"
        );
        let guess = format!("weir_guess_0123456789abcde{number}");
        assert_eq!(ask_from("198.51.100.1", &guess).status, 401);
    }
    // The client has used up its failures, so even a valid key is refused.
    for key in ["weir_guess_0123456789abcdef", ALICE] {
        let refused = ask_from("198.51.100.1", key);
        assert_eq!((refused.status, error(&refused).0), (429, -32005));
        let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((50..=63).contains(&retry), "{retry}");
    }
    assert!(is_result(&ask_from("198.51.100.2", ALICE)));
    let metrics = gateway.get_admin("/metrics");
    for line in [
        "weir_access_denied_total{reason=\"bad_key\"} 5",
        "weir_requests_refused_total{status=\"429\"} 2",
        "weir_limit_calls_total{zone=\"guesses\",outcome=\"rejected\"} 2",
    ] {
        assert!(metrics.text().contains(line), "{line} is not in {}", metrics.text());
    }
}
