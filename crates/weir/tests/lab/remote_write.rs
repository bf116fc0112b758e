//! Goal: a real Prometheus accepts a run's pushed and scraped metrics, under Weir's and under k6's
//! names, and marks its series as stale at the end. Method: Debian's Prometheus, a run with known
//! counts, and queries in PromQL, including those of k6's dashboards.
//!
//! These tests need prometheus; `test_support::programs` decides what happens without it.

mod run;

use std::time::Duration;

use lab::export::remote::{PushSummary, RemoteWrite, Settings};
use lab::export::scrape::Scrape;
use lab::export::{Labels, Names, Trends};

use run::Run;
use test_support::prometheus::{Prometheus, now};

fn settings(prometheus: &Prometheus, names: Names, trends: Trends) -> Settings {
    let labels = Labels::parse(&["testid=t1"]).expect("it is one");
    Settings { names, trends, labels, ..Settings::new(&prometheus.write_url()) }
}

/// Asserts that a value differs from the expected one by at most this share.
fn assert_near(value: f64, expected: f64, share: f64) {
    assert!((value / expected - 1.0).abs() <= share, "{value} is not {expected}");
}

/// Asserts that Prometheus stored all samples, without retries or errors.
fn assert_all_stored(summary: &PushSummary) {
    let stored = summary.stored;
    assert!(stored > 50);
    assert_eq!(*summary, PushSummary { stored, ..PushSummary::default() });
}

#[test]
fn a_run_is_seen_under_its_own_names_and_ends() {
    let Some(prometheus) = Prometheus::start(&[]) else { return };
    let mut run = Run::new();
    let settings = settings(&prometheus, Names::Weir, Trends::default());
    let mut remote = RemoteWrite::start(&settings).expect("the settings are right");
    remote.update(&run.progress());
    let calls = r#"weir_lab_calls_total{testid="t1",method="eth_getLogs",class="timeout"}"#;
    assert_eq!(prometheus.wait_for_value(calls), 20.0);
    // Prometheus rounds instants to milliseconds. This instant is before the series end.
    let during = now() - 0.001;
    run.pass(Duration::from_secs(10));
    remote.update(&run.progress());
    assert_all_stored(&remote.finish());

    assert_eq!(prometheus.values(calls), [0.0; 0], "the end of the series is visible at once");
    let all = r#"count({testid="t1"})"#;
    assert_eq!(prometheus.values(all), [0.0; 0], "every series has ended");
    let value_during = |query: &str| match prometheus.values_at(query, during)[..] {
        [value] => value,
        ref values => panic!("{query} is {values:?}"),
    };
    assert_eq!(value_during("sum(weir_lab_calls_total)"), 12_000.0);
    assert_eq!(value_during(r#"sum(weir_lab_calls_total{class="ok"})"#), 11_900.0);
    assert_eq!(value_during("sum(weir_lab_iterations_scheduled_total)"), 12_020.0);
    assert_near(
        value_during(r#"weir_lab_latency_seconds_p99{method="eth_blockNumber"}"#),
        0.002,
        0.01,
    );
    assert_near(value_during(r#"weir_lab_latency_seconds_max{class="timeout"}"#), 5.0, 0.01);
    assert_eq!(value_during(r#"weir_lab_run_info{plan="nightly"}"#), 1.0);
}

#[test]
fn native_histograms_are_stored_as_such_and_end() {
    let Some(prometheus) = Prometheus::start(&[]) else { return };
    let mut run = Run::new();
    let settings = settings(&prometheus, Names::Weir, Trends::Native { schema: 5 });
    let mut remote = RemoteWrite::start(&settings).expect("the settings are right");
    remote.update(&run.progress());
    let count = r#"histogram_count(weir_lab_latency_seconds{method="eth_getLogs",class="ok"})"#;
    assert_eq!(prometheus.wait_for_value(count), 2_900.0);
    // A bucket is 2.2 % wide.
    let sum = "sum(weir_lab_latency_seconds)";
    assert_near(prometheus.single_value(&format!("histogram_quantile(0.5, {sum})")), 0.002, 0.03);
    assert_near(prometheus.single_value(&format!("histogram_quantile(0.99, {sum})")), 0.04, 0.03);
    assert_near(prometheus.single_value(&format!("histogram_sum({sum})")), 234.24, 0.01);
    run.pass(Duration::from_secs(10));
    remote.update(&run.progress());
    assert_all_stored(&remote.finish());
    assert_eq!(prometheus.values(count), [0.0; 0]);
    assert_eq!(prometheus.values(r#"count({testid="t1"})"#), [0.0; 0]);
}

#[test]
fn queries_of_k6s_dashboards_have_values() {
    let Some(prometheus) = Prometheus::start(&[]) else { return };
    for (stored, trends) in [(2, Trends::default()), (4, Trends::Native { schema: 5 })] {
        let mut run = Run::new();
        let native = trends != Trends::default();
        let settings = settings(&prometheus, Names::K6, trends);
        let mut remote = RemoteWrite::start(&settings).expect("the settings are right");
        remote.update(&run.progress());
        run.pass(Duration::from_secs(10));
        remote.update(&run.progress());
        let selector = r#"testid=~"t1""#;
        // The query counts two samples of this round, and two of the round before.
        let has_samples = format!("count_over_time(k6_vus{{{selector}}}[1m]) >= {stored}");
        prometheus.wait_for_value(&has_samples);
        assert_eq!(
            prometheus.single_value(&format!("sum(k6_http_reqs_total{{{selector}}})")),
            12_000.0
        );
        let failed = format!(r#"sum(k6_http_reqs_total{{{selector},expected_response="false"}})"#);
        assert_eq!(prometheus.single_value(&failed), 100.0);
        assert_eq!(prometheus.single_value(&format!("avg(k6_vus{{{selector}}})")), 14.0);
        let rate = format!("sum(irate(k6_http_reqs_total{{{selector}}}[1m]))");
        assert_eq!(
            prometheus.single_value(&rate),
            0.0,
            "there are two samples, and nothing was new"
        );
        assert_eq!(
            prometheus.single_value(&format!("sum(k6_dropped_iterations_total{{{selector}}})")),
            20.0
        );
        assert_near(
            prometheus.single_value(&format!("max(k6_http_req_failed_rate{{{selector}}})")),
            70.0 / 3_000.0,
            1e-9,
        );
        assert_eq!(
            prometheus.single_value(&format!("sum(k6_data_sent_total{{{selector}}})")),
            1_200_000.0
        );
        if native {
            let sum = format!("sum(k6_http_req_duration_seconds{{{selector}}})");
            assert_near(
                prometheus.single_value(&format!("histogram_quantile(0.99, {sum})")),
                0.04,
                0.03,
            );
        } else {
            let p99 =
                format!(r#"max(k6_http_req_duration_p99{{{selector},name="eth_blockNumber"}})"#);
            assert_near(prometheus.single_value(&p99), 0.002, 0.01);
            assert_eq!(
                prometheus.values(&format!("k6_iteration_duration_avg{{{selector}}}")).len(),
                1
            );
        }
        assert_all_stored(&remote.finish());
        assert_eq!(prometheus.values(&format!("k6_vus{{{selector}}}")), [0.0; 0]);
    }
}

#[test]
fn prometheus_scrapes_the_offered_metrics() {
    let run = Run::new();
    let labels = || Labels::parse(&["testid=t2"]).expect("it is one");
    let offered = [Names::Weir, Names::K6].map(|names| {
        let any_port = "127.0.0.1:0".parse().expect("an address");
        let mut scrape = Scrape::listen(any_port, names, labels()).expect("a port is free");
        scrape.update(&run.progress());
        scrape
    });
    let targets: Vec<String> = offered.iter().map(|scrape| scrape.address().to_string()).collect();
    let Some(prometheus) = Prometheus::start(&targets) else { return };
    assert_eq!(prometheus.wait_for_value(r#"sum(weir_lab_calls_total{testid="t2"})"#), 12_000.0);
    assert_eq!(prometheus.wait_for_value(r#"sum(k6_http_reqs_total{testid="t2"})"#), 12_000.0);
    assert_eq!(prometheus.single_value(r#"sum(up{job="weir"})"#), 2.0);
    let buckets = "sum by (le) (weir_lab_latency_seconds_bucket)";
    let median = prometheus.single_value(&format!("histogram_quantile(0.5, {buckets})"));
    assert!((0.001..=0.0025).contains(&median), "{median} is in another bucket");
}

#[test]
fn a_refusal_of_prometheus_is_reported() {
    let Some(prometheus) = Prometheus::start(&[]) else { return };
    let run = Run::new();
    let url = prometheus.write_url().replace("/write", "/nothing");
    let settings = Settings { url, ..settings(&prometheus, Names::Weir, Trends::default()) };
    let mut remote = RemoteWrite::start(&settings).expect("the settings are right");
    remote.update(&run.progress());
    let summary = remote.finish();
    assert_eq!((summary.rejected_status, summary.stored, summary.retried), (Some(404), 0, 0));
    assert!(summary.last_error.contains("not found"), "{summary:?}");
    assert!(summary.rejected > 50, "{summary:?}");
}
