//! Options in, plans or faults out.

use std::io::Write;

use super::*;
use crate::plan::{HttpVersion, Late, Model, Reuse, Step, TlsVersion, read};

fn line() -> Line {
    Line::new("http://127.0.0.1:8545", FamilyName::Ethereum)
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// The plan of a line, which must be the same again when it is read from its own text.
fn plan(line: &Line) -> Plan {
    let plan = line.plan().unwrap_or_else(|faults| panic!("{faults}"));
    let again = read(&plan.text, "line", &[]).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(format!("{again:#?}"), format!("{plan:#?}"));
    plan
}

fn fault(line: &Line) -> String {
    line.plan().expect_err("a faulty line passed").to_string()
}

#[test]
fn nothing_but_a_url_is_ten_seconds_of_fifty_connections() {
    let plan = plan(&line());
    let scenario = &plan.scenarios[0];
    assert_eq!(scenario.model, Model::Closed);
    assert_eq!((scenario.workers_max, scenario.level_max()), (50, 50.0));
    assert_eq!(plan.duration().as_secs(), 10);
    assert_eq!(plan.mixes[0].name, "ethereum");
    let other = Line::new("http://h", FamilyName::Bitcoin).plan().unwrap();
    assert_eq!(other.mixes[0].name, "bitcoin");
}

#[test]
fn a_rate_makes_it_open_and_brings_workers_for_it() {
    let rated = Line { rate: text("20000"), ..line() };
    let plan_of = plan(&rated);
    let scenario = &plan_of.scenarios[0];
    assert!(matches!(scenario.model, Model::Open { late: Late::Queue { .. } }));
    assert_eq!((scenario.workers_max, scenario.level_max()), (2000, 20_000.0));
    let workers = |rate: &str, connections| {
        let line = Line { rate: text(rate), connections, ..line() };
        plan(&line).scenarios[0].workers_max
    };
    assert_eq!(workers("10", None), 50);
    assert_eq!(workers("1000000", None), 5000);
    assert_eq!(workers("1000", Some(7)), 7);
}

#[test]
fn so_many_requests_end_it() {
    let plan_of = plan(&Line { requests: Some(1000), ..line() });
    assert_eq!(plan_of.scenarios[0].iterations_max, Some(1000));
    assert_eq!(plan_of.duration().as_secs(), 3600);
    let both =
        plan(&Line { requests: Some(1000), duration: text("1m"), rate: text("10"), ..line() });
    assert_eq!((both.scenarios[0].iterations_max, both.duration().as_secs()), (Some(1000), 60));
}

#[test]
fn options_count_requests_where_a_plan_counts_iterations() {
    let somnia = Line { mix: text("somnia"), rate: text("200"), requests: Some(1001), ..line() };
    let plan = plan(&somnia);
    assert_eq!(plan.peak(), Some(200.0));
    assert_eq!(plan.scenarios[0].level_max(), 100.0);
    assert_eq!(plan.scenarios[0].iterations_max, Some(501));
}

#[test]
fn one_method_one_body_and_files_take_the_place_of_a_mix() {
    let method =
        plan(&Line { method: text("eth_call"), params: text("[{\"to\":\"0x\\\"\"}]"), ..line() });
    assert_eq!(*method.methods, ["eth_call".into()]);
    let body = r#"{"jsonrpc":"2.0","id":5,"method":"net_version","params":["\n"]}"#;
    let body = plan(&Line { body: text(body), ..line() });
    assert!(matches!(&body.mixes[0].steps[0], Step::Replay(bodies) if &*bodies[0].id == b"5"));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "calls = [{{ method = \"eth_syncing\" }}]").unwrap();
    let mix = plan(&Line { mix: text(file.path().to_str().unwrap()), ..line() });
    assert_eq!(*mix.methods, ["eth_syncing".into()]);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{{\"id\":1,\"method\":\"a\"}}").unwrap();
    let requests = plan(&Line { requests_file: text(file.path().to_str().unwrap()), ..line() });
    assert_eq!(*requests.methods, ["a".into()]);
    assert_eq!(plan(&Line { mix: text("somnia"), ..line() }).mixes[0].steps.len(), 2);
}

#[test]
fn every_option_arrives() {
    let line_of_all = Line {
        reuse: text("100"),
        tls_resume: text("off"),
        tls_version: text("1.3"),
        ciphers: vec!["TLS_AES_128_GCM_SHA256".to_owned()],
        insecure: true,
        http: text("2"),
        timeout: text("3s"),
        warmup: text("1500ms"),
        headers: vec!["X-Key: a: \"b\"".to_owned()],
        seed: Some(9),
        threads: Some(2),
        thresholds: vec![
            "latency{method:eth_call} p(99)<300".to_owned(),
            "failed: rate < 0.01".to_owned(),
            "latency{method:eth_call} p(95)<100".to_owned(),
        ],
        pids: vec![1, 2],
        node_exporter: text("http://h:9100/metrics"),
        ..Line::new("https://h/rpc", FamilyName::Ethereum)
    };
    let plan = line_of_all.plan().unwrap_or_else(|faults| panic!("{faults}"));
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
    assert_eq!(plan.target.path, "/rpc");
    assert_eq!(plan.watch.pids, [1, 2]);
    let texts: Vec<_> = plan.thresholds.iter().map(|threshold| &*threshold.text).collect();
    let failed = "failed rate < 0.01";
    let calls = ["latency{method:eth_call} p(99)<300", "latency{method:eth_call} p(95)<100"];
    assert_eq!(texts, [calls[0], calls[1], failed]);
    let words = |word: &str| super::Line { reuse: text(word), ..line() }.plan().unwrap();
    assert_eq!(words("reuse").connections.reuse, Reuse::Always);
    assert_eq!(words("close").connections.reuse, Reuse::Never);
}

#[test]
fn headers_and_urls_reach_the_target_and_no_text() {
    let line = Line {
        headers: vec!["authorization: Bearer sekrit".to_owned()],
        ..Line::new("https://u:sekrit@h/sekrit0123456789abcdef", FamilyName::Ethereum)
    };
    let plan = line.plan().unwrap();
    assert_eq!(plan.target.headers, [("authorization".to_owned(), "Bearer sekrit".to_owned())]);
    assert_eq!(plan.target.path, "/sekrit0123456789abcdef");
    assert!(!plan.text.contains("sekrit"), "{}", plan.text);
    assert_eq!(plan.target.shown, "https://***@h/***");
}

#[test]
fn faults_name_the_option() {
    let line = Line {
        connections: Some(2_000_000),
        duration: text("10"),
        timeout: text("never"),
        http: text("3"),
        tls_version: text("1.1"),
        headers: vec!["host: x".to_owned()],
        ..Line::new("nonsense", FamilyName::Ethereum)
    };
    let told = fault(&line);
    for option in ["URL", "-c", "-d", "--timeout", "--http", "--tls-version"] {
        assert!(
            told.lines().any(|line| line.starts_with(&format!("{option} = "))),
            "{option}: {told}"
        );
    }
    assert!(told.contains("-H: this header is set by the load itself"), "{told}");
    assert!(!told.contains("line:"), "{told}");
    let rate = fault(&Line { rate: text("-3"), ..self::line() });
    assert!(rate.starts_with("-r = \"-3\": out of range"), "{rate}");
    let mix = fault(&Line { mix: text("somnai"), ..self::line() });
    assert!(mix.starts_with("--mix = \"somnai\": cannot read somnai"), "{mix}");
    assert!(mix.contains("did you mean somnia?"), "{mix}");
    let none = fault(&Line { requests: Some(0), ..self::line() });
    assert!(none.starts_with("-n = 0: out of range"), "{none}");
}

#[test]
fn options_that_say_the_same_in_two_ways_are_refused() {
    let two = fault(&Line { mix: text("somnia"), body: text("{}"), ..line() });
    assert!(two.starts_with("--mix: says what is sent, and so does --body"), "{two}");
    let params = fault(&Line { params: text("[]"), ..line() });
    assert!(params.starts_with("--params: of which method?"), "{params}");
    let threshold = fault(&Line { thresholds: vec!["p(99)<3".to_owned()], ..line() });
    assert!(threshold.starts_with("--threshold = \"p(99)<3\": has no expression"), "{threshold}");
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
            let line = Line {
                method: Some(word.clone()),
                params: Some(word.clone()),
                duration: Some(word.clone()),
                thresholds: vec![format!("{word} {word}")],
                headers: vec![word.clone()],
                ..Line::new(&word, FamilyName::Ethereum)
            };
            if let Ok(plan) = line.plan() {
                prop_assert_eq!(&*plan.methods[0], &*word);
                prop_assert_eq!(plan.scenarios.len(), 1);
            }
        }
    }
}
