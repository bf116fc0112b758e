//! No output of the gateway contains a secret. The test puts secrets wherever a request or the
//! configuration can have one. It then searches all outputs for them: the log at level `trace`,
//! admin pages, responses, and the access log in each format.

use std::io::Write as _;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use crate::support::harness::{NodeRuntime, body};
use test_support::raw::{Client, post_with};
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// A text that every planted secret contains, except signed tokens.
const MARK: &str = "s3kr1t";

/// An API key that contains [`MARK`].
fn key(name: &str) -> String {
    format!("weir_{MARK}_{name}_0123456789abcdef")
}

#[test]
fn no_output_holds_a_secret() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let folder = tempfile::tempdir().unwrap();
    for (format, per) in [
        ("json", "request"),
        ("combined", "request"),
        ("$request $uri $host $http_user_agent $rpc_method $key $tier", "call"),
    ] {
        let log = folder.path().join("access.log");
        let _ = std::fs::remove_file(&log);
        let secret = format!("{MARK}-shared-secret-of-more-than-32-bytes");
        let keys_file = folder.path().join("keys.toml");
        let in_file = key("file");
        std::fs::write(&keys_file, format!("[[key]]\nname = \"f\"\nsecret = \"{in_file}\"\n"))
            .unwrap();
        let text = format!(
            "[log]\nlevel = \"trace\"\n[access]\nkeys_file = \"{}\"\n\
             [access_log]\nfile = \"{}\"\nformat = '{format}'\nper = \"{per}\"\n\
             [[key]]\nname = \"alice\"\nsecret = \"{}\"\n\
             [[key]]\nname = \"old\"\nsecret = \"{}\"\nexpires = \"2020-01-01T00:00:00Z\"\n\
             [[jwt]]\nname = \"us\"\nsecret = \"{secret}\"\n\
             [[upstream]]\nname = \"good\"\nurl = \"http://user:{MARK}pass@{}/v3/{MARK}0123456789012345678901234567890?key={MARK}-query\"\n\
             headers = {{ x-plain = \"{MARK}-header\" }}\n\
             [[upstream]]\nname = \"token\"\nurl = \"http://{}/\"\n\
             headers = {{ authorization = \"Bearer {MARK}-node-token\" }}\n\
             [[upstream]]\nname = \"dead\"\nurl = \"http://{MARK}user@127.0.0.1:1/{MARK}0123456789012345678901234567890\"\n\
             [[upstream]]\nname = \"https\"\nurl = \"https://{MARK}user@{}/{MARK}0123456789012345678901234567890\"\n",
            keys_file.display(),
            log.display(),
            key("alice"),
            key("old"),
            a.address,
            a.address,
            a.address,
        );
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let gateway = Weir::serve().admin().config(&text).start();
        let mut outputs = send_requests(&gateway, &secret);
        wait_until("the access log has its lines", || {
            std::fs::read_to_string(&log).unwrap_or_default().lines().count() >= 15
        });
        outputs.push(("access log", std::fs::read_to_string(&log).unwrap()));
        let admin = gateway.admin.clone().unwrap();
        for path in ["/metrics", "/status", "/", "/healthz", "/readyz"] {
            let mut client = Client::connect(&admin);
            client.send(format!("GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes());
            outputs.push(("admin", client.read_response().unwrap().text().to_owned()));
        }
        // Other commands that read the configuration must not print secrets either.
        for command in [&["check"][..], &["explain"][..]] {
            let call = r#"{"method":"eth_chainId"}"#;
            let mut arguments = command.to_vec();
            arguments.push(file.path().to_str().unwrap());
            if command == ["explain"] {
                arguments.extend([call, "--key", "alice"]);
            }
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
                .args(&arguments)
                .output()
                .unwrap();
            outputs.push(("command", String::from_utf8(output.stdout).unwrap()));
            outputs.push(("command", String::from_utf8(output.stderr).unwrap()));
        }
        let log = gateway.log();
        assert!(log.contains("TRACE") || log.contains("DEBUG"), "no trace or debug lines: {log}");
        outputs.push(("log", log));
        for (source, text) in &outputs {
            assert!(!text.to_lowercase().contains(MARK), "{source} ({format}) has it:\n{text}");
        }
        assert!(outputs.len() > 20, "only {} texts were searched", outputs.len());
    }
}

/// Sends requests with keys and tokens, valid and invalid ones, and returns the responses.
fn send_requests(gateway: &Running, secret: &str) -> Vec<(&'static str, String)> {
    let sign = |secret: &str, expires: u64| {
        let key = EncodingKey::from_secret(secret.as_bytes());
        let claims = json!({"exp": expires, "sub": "carol"});
        encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap()
    };
    let (alice, old, wrong) = (key("alice"), key("old"), key("wrong"));
    let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
    let token = sign(secret, 4_000_000_000);
    let marked = format!("{MARK}.{MARK}.{MARK}");
    let call = body("eth_chainId", "[]");
    let mut responses = Vec::new();
    for (path, lines) in [
        ("/".to_owned(), format!("x-api-key: {alice}\r\n")),
        ("/".to_owned(), format!("x-api-key: {wrong}\r\n")),
        ("/".to_owned(), format!("x-api-key: {old}\r\n")),
        ("/".to_owned(), bearer(&alice)),
        ("/".to_owned(), bearer(&wrong)),
        ("/".to_owned(), bearer(&token)),
        ("/".to_owned(), bearer(&marked)),
        ("/".to_owned(), bearer(&sign(&wrong, 4_000_000_000))),
        ("/".to_owned(), bearer(&sign(secret, 1))),
        (format!("/{alice}"), String::new()),
        (format!("/{alice}/ethereum"), String::new()),
        (format!("/ethereum/{wrong}"), String::new()),
        (format!("/{old}"), String::new()),
        (format!("/?key={alice}"), String::new()),
        (format!("/?key={wrong}"), format!("cookie: {MARK}=1\r\n")),
        (format!("/nowhere/{alice}?{MARK}"), String::new()),
    ] {
        let mut client = Client::connect(&gateway.address);
        client.send(&post_with(&path, &lines, &call));
        let answer = client.read_response().unwrap();
        responses.push(("answer", format!("{:?} {}", answer.headers, answer.text())));
    }
    // A signed token does not contain `MARK`, so search for its signature.
    let signature = token.rsplit('.').next().unwrap();
    assert!(!gateway.log().contains(signature), "the log holds a token");
    for (source, text) in &responses {
        assert!(!text.contains(signature), "{source} holds a token");
    }
    responses
}
