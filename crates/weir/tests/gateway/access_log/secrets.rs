//! Plants secrets in every place that can have one and searches all output of the gateway: logs at
//! the finest level, metrics, status, page, errors, responses, the access log in each format.

use std::io::Write as _;

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use crate::support::scene::{Scene, body};
use test_support::raw::{Client, post_with};
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// What every planted secret holds.
const MARK: &str = "s3kr1t";

/// As a key.
fn key(name: &str) -> String {
    format!("weir_{MARK}_{name}_0123456789abcdef")
}

#[test]
fn no_output_holds_a_secret() {
    let scene = Scene::set();
    let [a] = scene.nodes(["a"]);
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
        let mut said = asked(&gateway, &secret);
        wait_until("the access log has its lines", || {
            std::fs::read_to_string(&log).unwrap_or_default().lines().count() >= 15
        });
        said.push(("access log", std::fs::read_to_string(&log).unwrap()));
        let admin = gateway.admin.clone().unwrap();
        for path in ["/metrics", "/status", "/", "/healthz", "/readyz"] {
            let mut client = Client::connect(&admin);
            client.send(format!("GET {path} HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes());
            said.push(("admin", client.answer().unwrap().text().to_owned()));
        }
        // Nothing else that looks at the configuration may spill either.
        for command in [&["check"][..], &["explain"][..]] {
            let call = r#"{"method":"eth_chainId"}"#;
            let mut arguments = command.to_vec();
            arguments.push(file.path().to_str().unwrap());
            if command == ["explain"] {
                arguments.extend([call, "--key", "alice"]);
            }
            let done = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
                .args(&arguments)
                .output()
                .unwrap();
            said.push(("command", String::from_utf8(done.stdout).unwrap()));
            said.push(("command", String::from_utf8(done.stderr).unwrap()));
        }
        let told = gateway.log();
        assert!(told.contains("TRACE") || told.contains("DEBUG"), "the log is not fine: {told}");
        said.push(("log", told));
        for (what, text) in &said {
            assert!(!text.to_lowercase().contains(MARK), "{what} ({format}) holds it:\n{text}");
        }
        assert!(said.len() > 20, "only {} texts were searched", said.len());
    }
}

/// Sends requests with secrets of every kind, valid and invalid, and returns the responses.
fn asked(gateway: &Running, secret: &str) -> Vec<(&'static str, String)> {
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
    let mut said = Vec::new();
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
        let answer = client.answer().unwrap();
        said.push(("answer", format!("{:?} {}", answer.headers, answer.text())));
    }
    // A real token does not hold the mark.
    let signature = token.rsplit('.').next().unwrap();
    assert!(!gateway.log().contains(signature), "the log holds a token");
    for (what, text) in &said {
        assert!(!text.contains(signature), "{what} holds a token");
    }
    said
}
