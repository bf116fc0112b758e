//! Options in, plans or faults out.

use std::convert::Infallible;
use std::io::Write;

use clap::{Command, FromArgMatches as _};

use super::*;
use crate::plan::{HttpVersion, Late, Model, Reuse, Step, TlsVersion, read};

const URL: &str = "http://127.0.0.1:8545";

/// The options of a command line, as clap reads them.
fn given(line: &[&str]) -> Result<UrlOptions, clap::Error> {
    let command = UrlOptions::augment_args(Command::new("load").no_binary_name(true));
    UrlOptions::from_arg_matches(&command.try_get_matches_from(line)?)
}

/// The plan of options at a target that is what its family is asked to be.
fn planned(url: &str, family: Family, line: &[&str]) -> Result<Plan, Diagnostics> {
    let options = given(line).unwrap_or_else(|error| panic!("{error}"));
    options.plan(url, |_, _| Ok::<_, Infallible>(Some(family))).unwrap()
}

/// The plan of a line, which must be the same again when it is read from its own text.
fn plan(line: &[&str]) -> Plan {
    let plan = planned(URL, Family::Ethereum, line).unwrap_or_else(|faults| panic!("{faults}"));
    let mut again = read(&plan.text, "again", &[]).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!((&*again.name, &*plan.name), ("again", "127.0.0.1:8545"));
    again.name.clone_from(&plan.name);
    assert_eq!(format!("{again:#?}"), format!("{plan:#?}"));
    plan
}

fn fault(url: &str, line: &[&str]) -> String {
    planned(url, Family::Ethereum, line).expect_err("a faulty line passed").to_string()
}

#[test]
fn nothing_but_a_url_is_ten_seconds_of_fifty_connections() {
    let plan = plan(&[]);
    let scenario = &plan.scenarios[0];
    assert_eq!(scenario.model, Model::Closed);
    assert_eq!((scenario.workers_max, scenario.level_max()), (50, 50.0));
    assert_eq!(plan.duration().as_secs(), 10);
    assert_eq!(plan.mixes[0].name, "ethereum");
}

#[test]
fn the_target_is_asked_for_its_family_unless_that_is_given() {
    let other = planned(URL, Family::Bitcoin, &[]).unwrap();
    assert_eq!((&*other.mixes[0].name, other.target.family), ("bitcoin", Some(Family::Bitcoin)));
    let given = planned(URL, Family::Bitcoin, &["--family", "harmony"]).unwrap();
    assert_eq!((&*given.mixes[0].name, given.target.family), ("harmony", Some(Family::Harmony)));
    let asked = given_options(&["--method", "x"]).plan(URL, |_, _| Ok::<_, Infallible>(None));
    assert_eq!(asked.unwrap().unwrap().target.family, None, "what is sent does not depend on it");
    let failed = given_options(&[]).plan(URL, |_, _| Err("nobody there"));
    assert_eq!(failed.err(), Some("nobody there"));
    let faulty = given_options(&["-d", "x"]).plan(URL, |_, _| -> Result<_, Infallible> {
        panic!("asked before the options were right")
    });
    assert!(faulty.unwrap().is_err());
}

fn given_options(line: &[&str]) -> UrlOptions {
    given(line).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_rate_makes_it_open_and_brings_workers_for_it() {
    let plan_of = plan(&["-r", "20000"]);
    let scenario = &plan_of.scenarios[0];
    assert!(matches!(scenario.model, Model::Open { late: Late::Queue { .. } }));
    assert_eq!((scenario.workers_max, scenario.level_max()), (2000, 20_000.0));
    let workers = |line: &[&str]| plan(line).scenarios[0].workers_max;
    assert_eq!(workers(&["-r", "10"]), 50);
    assert_eq!(workers(&["-r", "1000000"]), 5000);
    assert_eq!(workers(&["-r", "1000", "-c", "7"]), 7);
}

#[test]
fn so_many_requests_end_it() {
    let plan_of = plan(&["-n", "1000"]);
    assert_eq!(plan_of.scenarios[0].iterations_max, Some(1000));
    assert_eq!(plan_of.duration().as_secs(), 3600);
    let both = plan(&["-n", "1000", "-d", "1m", "-r", "10"]);
    assert_eq!((both.scenarios[0].iterations_max, both.duration().as_secs()), (Some(1000), 60));
}

#[test]
fn options_count_requests_where_a_plan_counts_iterations() {
    let plan = plan(&["--mix", "somnia", "-r", "200", "-n", "1001"]);
    assert_eq!(plan.peak(), Some(200.0));
    assert_eq!(plan.scenarios[0].level_max(), 100.0);
    assert_eq!(plan.scenarios[0].iterations_max, Some(501));
}

#[test]
fn one_method_one_body_and_files_take_the_place_of_a_mix() {
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
fn every_option_arrives() {
    let line = "--connections 100 --tls-resume off --tls-version 1.3 --insecure --http 2 \
                --ciphers TLS_AES_128_GCM_SHA256 --timeout 3s --warmup 1500ms --seed 9 --threads 2 \
                --pid 1 --pid 2 --node-exporter http://h:9100/metrics";
    let mut line: Vec<_> = line.split_whitespace().collect();
    let of_calls = ["latency{method:eth_call} p(99)<300", "latency{method:eth_call} p(95)<100"];
    line.extend(["-H", "X-Key: a: \"b\"", "--threshold", of_calls[0]]);
    line.extend(["--threshold", "failed: rate < 0.01", "--threshold", of_calls[1]]);
    let plan = planned("https://h/rpc", Family::Ethereum, &line);
    let plan = plan.unwrap_or_else(|faults| panic!("{faults}"));
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
fn headers_and_urls_reach_the_target_and_no_text() {
    let url = "https://u:sekrit@h/sekrit0123456789abcdef";
    let header = ["-H", "authorization: Bearer sekrit"];
    let plan = planned(url, Family::Ethereum, &header).unwrap();
    assert_eq!(plan.target.headers, [("authorization".to_owned(), "Bearer sekrit".to_owned())]);
    assert_eq!(plan.target.url.target(), "/sekrit0123456789abcdef");
    assert!(!plan.text.contains("sekrit"), "{}", plan.text);
    assert_eq!(plan.target.url.to_string(), "https://***@h/***");
}

#[test]
fn faults_name_the_option() {
    let line = "-c 2000000 -d 10 --timeout never --http 3 --tls-version 1.1 -H host:x";
    let told = fault("nonsense", &line.split(' ').collect::<Vec<_>>());
    for option in ["URL", "-c", "-d", "--timeout", "--http", "--tls-version"] {
        assert!(
            told.lines().any(|line| line.starts_with(&format!("{option} = "))),
            "{option}: {told}"
        );
    }
    assert!(told.contains("-H: this header is set by the load itself"), "{told}");
    assert!(!told.contains("line:"), "{told}");
    let rate = fault(URL, &["-r=-3"]);
    assert!(rate.starts_with("-r = \"-3\": out of range"), "{rate}");
    let mix = fault(URL, &["--mix", "somnai"]);
    assert!(mix.starts_with("--mix = \"somnai\": cannot read somnai"), "{mix}");
    assert!(mix.contains("did you mean somnia?"), "{mix}");
    let none = fault(URL, &["-n", "0"]);
    assert!(none.starts_with("-n = 0: out of range"), "{none}");
    let threshold = fault(URL, &["--threshold", "p(99)<3"]);
    assert!(threshold.starts_with("--threshold = \"p(99)<3\": has no expression"), "{threshold}");
}

#[test]
fn options_that_say_the_same_in_two_ways_are_refused() {
    let told = |line: &[&str]| given(line).unwrap_err().to_string();
    let two = told(&["--mix", "somnia", "--body", "{}"]);
    assert!(two.contains("'--mix <NAME|FILE>' cannot be used with"), "{two}");
    let params = told(&["--params", "[]"]);
    assert!(params.contains("--method <NAME>"), "{params}");
}

#[test]
fn variables_are_set_by_name() {
    assert_eq!(variable("load_percent=11"), Ok(("load_percent".to_owned(), 11.0)));
    assert_eq!(variable(" x = 2 * 3"), Ok(("x".to_owned(), 6.0)));
    for text in ["x", "=3", "x=y", "x="] {
        assert!(variable(text).is_err(), "{text}");
    }
}

mod noise {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever stands in an option stays in its option.
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
