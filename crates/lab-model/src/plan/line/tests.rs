//! Goal: options give the expected plan, or problems that name the option. Method: command lines,
//! and random text in options.

use std::convert::Infallible;
use std::io::Write;

use clap::{Command, FromArgMatches as _};

use super::*;
use crate::plan::{HttpVersion, Model, Reuse, Step, TlsVersion, read};

const URL: &str = "http://127.0.0.1:8545";

/// Parses a command line with clap.
fn parse_options(line: &[&str]) -> Result<UrlOptions, clap::Error> {
    let command = UrlOptions::augment_args(Command::new("load").no_binary_name(true));
    UrlOptions::from_arg_matches(&command.try_get_matches_from(line)?)
}

/// Returns the plan of a command line for a target of this family.
fn plan_for(url: &str, family: Family, line: &[&str]) -> Result<Plan, Diagnostics> {
    let options = parse_options(line).unwrap_or_else(|error| panic!("{error}"));
    options.plan(url, |_, _| Ok::<_, Infallible>(Some(family))).unwrap()
}

/// Returns the plan of a command line. Checks that reading the plan's text gives the same plan.
fn plan(line: &[&str]) -> Plan {
    let plan =
        plan_for(URL, Family::Ethereum, line).unwrap_or_else(|problems| panic!("{problems}"));
    let mut again = read(&plan.text, "again", &[]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!((&*again.name, &*plan.name), ("again", "127.0.0.1:8545"));
    again.name.clone_from(&plan.name);
    assert_eq!(format!("{again:#?}"), format!("{plan:#?}"));
    plan
}

fn problems_of(url: &str, line: &[&str]) -> String {
    plan_for(url, Family::Ethereum, line)
        .expect_err("an invalid command line was accepted")
        .to_string()
}

#[test]
fn the_default_is_ten_seconds_of_fifty_connections() {
    let plan = plan(&[]);
    let scenario = &plan.scenarios[0];
    assert_eq!(scenario.model, Model::Closed);
    assert_eq!((scenario.workers_max, scenario.level_max()), (50, 50.0));
    assert_eq!(plan.duration().as_secs(), 10);
    assert_eq!(plan.mixes[0].name, "ethereum");
}

#[test]
fn the_family_is_detected_unless_it_is_set() {
    let other = plan_for(URL, Family::Bitcoin, &[]).unwrap();
    assert_eq!((&*other.mixes[0].name, other.target.family), ("bitcoin", Some(Family::Bitcoin)));
    let configured = plan_for(URL, Family::Bitcoin, &["--family", "harmony"]).unwrap();
    assert_eq!(
        (&*configured.mixes[0].name, configured.target.family),
        ("harmony", Some(Family::Harmony))
    );
    let undetected = given_options(&["--method", "x"]).plan(URL, |_, _| Ok::<_, Infallible>(None));
    assert_eq!(
        undetected.unwrap().unwrap().target.family,
        None,
        "what is sent does not depend on it"
    );
    let failed = given_options(&[]).plan(URL, |_, _| Err("nobody there"));
    assert_eq!(failed.err(), Some("nobody there"));
    let faulty = given_options(&["-d", "x"]).plan(URL, |_, _| -> Result<_, Infallible> {
        panic!("asked before the options were right")
    });
    assert!(faulty.unwrap().is_err());
}

/// Parses a command line that must be valid.
fn given_options(line: &[&str]) -> UrlOptions {
    parse_options(line).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_rate_selects_the_open_model_and_the_number_of_workers() {
    let plan_of = plan(&["-r", "20000"]);
    let scenario = &plan_of.scenarios[0];
    assert!(scenario.model == Model::Open && scenario.queue_max > 0);
    assert_eq!((scenario.workers_max, scenario.level_max()), (2000, 20_000.0));
    let workers = |line: &[&str]| plan(line).scenarios[0].workers_max;
    assert_eq!(workers(&["-r", "10"]), 50);
    assert_eq!(workers(&["-r", "1000000"]), 5000);
    assert_eq!(workers(&["-r", "1000", "-c", "7"]), 7);
}

#[test]
fn a_number_of_requests_ends_the_run() {
    let plan_of = plan(&["-n", "1000"]);
    assert_eq!(plan_of.scenarios[0].iterations_max, Some(1000));
    assert_eq!(plan_of.duration().as_secs(), 3600);
    let both = plan(&["-n", "1000", "-d", "1m", "-r", "10"]);
    assert_eq!((both.scenarios[0].iterations_max, both.duration().as_secs()), (Some(1000), 60));
}

#[test]
fn options_count_requests_where_a_plan_counts_iterations() {
    // An iteration of the mix `somnia` sends two requests.
    let plan = plan(&["--mix", "somnia", "-r", "200", "-n", "1001"]);
    assert_eq!(plan.peak(), Some(200.0));
    assert_eq!(plan.scenarios[0].level_max(), 100.0);
    assert_eq!(plan.scenarios[0].iterations_max, Some(501));
}

#[test]
fn one_method_one_body_and_files_replace_a_mix() {
    let method = plan(&["--method", "eth_call", "--params", "[{\"to\":\"0x\\\"\"}]"]);
    assert_eq!(*method.methods, ["eth_call".into()]);
    let body = r#"{"jsonrpc":"2.0","id":5,"method":"net_version","params":["\n"]}"#;
    let body = plan(&["--body", body]);
    assert!(matches!(&body.mixes[0].steps[0], Step::Replay(bodies) if &*bodies[0].id == b"5"));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "calls = [{{ method = \"eth_syncing\" }}]").unwrap();
    let mix = plan(&["--mix", file.path().to_str().unwrap()]);
    assert_eq!(*mix.methods, ["eth_syncing".into()]);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{{\"id\":1,\"method\":\"a\"}}").unwrap();
    let requests = plan(&["--requests", file.path().to_str().unwrap()]);
    assert_eq!(*requests.methods, ["a".into()]);
    assert_eq!(plan(&["--mix", "somnia"]).mixes[0].steps.len(), 2);
}

#[test]
fn every_option_has_an_effect() {
    let line = "--connections 100 --tls-resume off --tls-version 1.3 --insecure --http 2 \
                --ciphers TLS_AES_128_GCM_SHA256 --timeout 3s --warmup 1500ms --seed 9 --threads 2 \
                --pid 1 --pid 2 --node-exporter http://h:9100/metrics";
    let mut line: Vec<_> = line.split_whitespace().collect();
    let of_calls = ["latency{method:eth_call} p(99)<300", "latency{method:eth_call} p(95)<100"];
    line.extend(["-H", "X-Key: a: \"b\"", "--threshold", of_calls[0]]);
    line.extend(["--threshold", "failed: rate < 0.01", "--threshold", of_calls[1]]);
    let plan = plan_for("https://h/rpc", Family::Ethereum, &line);
    let plan = plan.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(plan.target.headers, [("x-key".to_owned(), "a: \"b\"".to_owned())]);
    assert_eq!(plan.connections.reuse, Reuse::Requests(100));
    assert_eq!(plan.connections.http, HttpVersion::Http2);
    let tls = &plan.connections.tls;
    assert_eq!((tls.resume, tls.insecure, tls.version), (false, true, Some(TlsVersion::Tls13)));
    assert_eq!(tls.ciphers, ["TLS_AES_128_GCM_SHA256"]);
    assert_eq!(
        (plan.seed, plan.threads, plan.warmup),
        (9, 2, Duration::from_secs(2)),
        "whole seconds"
    );
    assert_eq!(plan.target.timeout.as_secs(), 3);
    assert_eq!(plan.target.url.target(), "/rpc");
    assert_eq!(plan.watch.pids, [1, 2]);
    let texts: Vec<_> = plan.thresholds.iter().map(|threshold| &*threshold.text).collect();
    assert_eq!(texts, [of_calls[0], of_calls[1], "failed rate < 0.01"]);
    let reuse = |word| self::plan(&["--connections", word]).connections.reuse;
    assert_eq!((reuse("reuse"), reuse("close")), (Reuse::Always, Reuse::Never));
}

#[test]
fn secrets_of_headers_and_urls_are_not_in_the_text() {
    let url = "https://u:sekrit@h/sekrit0123456789abcdef";
    let header = ["-H", "authorization: Bearer sekrit"];
    let plan = plan_for(url, Family::Ethereum, &header).unwrap();
    assert_eq!(plan.target.headers, [("authorization".to_owned(), "Bearer sekrit".to_owned())]);
    assert_eq!(plan.target.url.target(), "/sekrit0123456789abcdef");
    assert!(!plan.text.contains("sekrit"), "{}", plan.text);
    assert_eq!(plan.target.url.to_string(), "https://***@h/***");
}

#[test]
fn problems_name_the_option() {
    let line = "-c 2000000 -d 10 --timeout never --http 3 --tls-version 1.1 -H host:x";
    let output = problems_of("nonsense", &line.split(' ').collect::<Vec<_>>());
    for option in ["URL", "-c", "-d", "--timeout", "--http", "--tls-version"] {
        assert!(
            output.lines().any(|line| line.starts_with(&format!("{option} = "))),
            "{option}: {output}"
        );
    }
    assert!(output.contains("-H: the load generator sets this header itself"), "{output}");
    assert!(!output.contains("line:"), "{output}");
    let rate = problems_of(URL, &["-r=-3"]);
    assert!(rate.starts_with("-r = \"-3\": out of range"), "{rate}");
    let mix = problems_of(URL, &["--mix", "somnai"]);
    assert!(mix.starts_with("--mix = \"somnai\": cannot read somnai"), "{mix}");
    assert!(mix.contains("did you mean somnia? Shipped mixes: ethereum, harmony"), "{mix}");
    let none = problems_of(URL, &["-n", "0"]);
    assert!(none.starts_with("-n = 0: out of range"), "{none}");
    let threshold = problems_of(URL, &["--threshold", "p(99)<3"]);
    assert!(threshold.starts_with("--threshold = \"p(99)<3\": has no expression"), "{threshold}");
}

#[test]
fn conflicting_options_are_rejected() {
    let output = |line: &[&str]| parse_options(line).unwrap_err().to_string();
    let two = output(&["--mix", "somnia", "--body", "{}"]);
    assert!(two.contains("'--mix <NAME|FILE>' cannot be used with"), "{two}");
    let params = output(&["--params", "[]"]);
    assert!(params.contains("--method <NAME>"), "{params}");
}

#[test]
fn variables_are_set_by_name() {
    assert_eq!(parse_variable("load_percent=11"), Ok(("load_percent".to_owned(), 11.0)));
    assert_eq!(parse_variable(" x = 2 * 3"), Ok(("x".to_owned(), 6.0)));
    for text in ["x", "=3", "x=y", "x="] {
        assert!(parse_variable(text).is_err(), "{text}");
    }
}

mod noise {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Text in an option changes no other part of the plan.
        #[test]
        fn no_option_panics_or_breaks_out(word in "\\PC{0,20}|[\\x00-\\x7f]{0,20}") {
            let options = UrlOptions {
                method: Some(word.clone()),
                params: Some(word.clone()),
                duration: Some(word.clone()),
                threshold: vec![format!("{word} {word}")],
                header: vec![word.clone()],
                ..UrlOptions::default()
            };
            let plan = options.plan(&word, |_, _| Ok::<_, Infallible>(None)).unwrap();
            if let Ok(plan) = plan {
                prop_assert_eq!(&*plan.methods[0], &*word);
                prop_assert_eq!(plan.scenarios.len(), 1);
            }
        }
    }
}

#[test]
fn a_websocket_is_a_target_for_the_same_options() {
    let url = "ws://127.0.0.1:8546/ws";
    let plan = plan_for(url, Family::Ethereum, &["-c", "3", "-r", "100"]).unwrap();
    assert!(plan.target.is_websocket());
    assert_eq!((&*plan.name, plan.protocol()), ("127.0.0.1:8546", "WebSocket"));
    let again = read(&plan.text, "again", &[]).unwrap();
    assert_eq!(again.target.url, plan.target.url);
    let problems = problems_of(url, &["--http", "2"]);
    assert!(problems.starts_with("--http"), "{problems}");
    assert!(problems.contains("are opened by HTTP/1.1"), "{problems}");
    let problems = problems_of(url, &["--method", "eth_subscribe", "--params", "[\"newHeads\"]"]);
    assert!(problems.contains("calls over WebSockets cannot subscribe"), "{problems}");
}

#[test]
fn another_target_must_fit_the_plan() {
    let mut plan = plan(&["--http", "2"]);
    plan.point_at("https://h").unwrap();
    let error = plan.point_at("ws://h").unwrap_err();
    assert!(error.contains("are opened by HTTP/1.1; allowed: \"1.1\""), "{error}");
    assert_eq!(
        plan.point_at("ipc:/a"),
        Err("a url begins with http://, https://, ws:// or wss://".to_owned())
    );
}
