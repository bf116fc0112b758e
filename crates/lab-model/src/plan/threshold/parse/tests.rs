//! Goal: selectors and expressions are parsed as in k6, and errors describe the problem. Method: a
//! table of texts.

use super::*;

fn stage(scenario: &str, stage: &str, written: &str) -> StageName {
    StageName {
        scenario: scenario.to_owned(),
        stage: stage.to_owned(),
        written: written.to_owned(),
    }
}

/// Parses a selector for a plan with two methods and four stages. Two of the stages are the steps
/// of the staircase `stairs`.
fn check_selector(text: &str) -> Result<Selector, String> {
    let methods: Vec<Box<str>> = vec!["eth_call".into(), "eth_getLogs".into()];
    let stages = [
        stage("warmup", "flat", "flat"),
        stage("load", "flat", "flat"),
        stage("load", "stairs-1", "stairs"),
        stage("load", "stairs-2", "stairs"),
    ];
    parse_selector(text, Names { methods: &methods, stages: &stages })
        .map_err(|error| error.message)
}

#[test]
fn selectors_name_metrics_methods_and_stages() {
    let selector = |metric, method, stages| Ok(Selector { metric, method, stages });
    let cases = [
        ("latency", selector(Metric::Latency, None, None)),
        ("http_req_duration", selector(Metric::Latency, None, None)),
        ("http_req_failed{}", selector(Metric::Failed, None, None)),
        ("failed{method:eth_getLogs}", selector(Metric::Failed, Some(1), None)),
        (
            "latency{ method: eth_call , stage: flat }",
            selector(Metric::Latency, Some(0), Some(vec![0, 1])),
        ),
        ("latency{stage:stairs}", selector(Metric::Latency, None, Some(vec![2, 3]))),
        ("latency{stage:stairs-2}", selector(Metric::Latency, None, Some(vec![3]))),
        ("dropped{scenario:load,stage:flat}", selector(Metric::Dropped, None, Some(vec![1]))),
    ];
    for (text, expected) in cases {
        assert_eq!(check_selector(text), expected, "{text}");
    }
}

#[test]
fn selectors_with_unknown_names_are_rejected() {
    let cases = [
        ("latancy", "there is no such metric; did you mean latency?"),
        ("checks", "there is no such metric"),
        ("latency{method:eth_cal}", "there is no such method in this plan; did you mean eth_call?"),
        ("latency{stage:flatt}", "there is no such stage; did you mean flat?"),
        ("latency{scenario:laod}", "there is no such scenario; did you mean load?"),
        ("latency{colour:red}", "there is no such tag"),
        ("latency{method}", "a tag is NAME:VALUE"),
        ("latency{method:eth_call", "} is missing"),
        ("latency{scenario:warmup,stage:stairs}", "no stage is in that scenario and has that name"),
        ("iterations{method:eth_call}", "iterations counts iterations, which have no method"),
        (
            "iteration_time{stage:flat}",
            "iteration_time is recorded for the whole run, without stages and scenarios",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(check_selector(text), Err(expected.to_owned()), "{text}");
    }
}

#[test]
fn expressions_are_read_as_k6_reads_them() {
    use Aggregation::{Avg, Count, Max, Percentile, Rate};
    let cases = [
        ("p(95)<300", Metric::Latency, (Percentile(95.0), Operator::Less, 300.0)),
        ("p(99.9) <= 1e3", Metric::Service, (Percentile(99.9), Operator::LessOrEqual, 1000.0)),
        ("avg>=1", Metric::Latency, (Avg, Operator::GreaterOrEqual, 1.0)),
        ("max != 0", Metric::IterationTime, (Max, Operator::NotEqual, 0.0)),
        ("rate<0.01", Metric::Failed, (Rate, Operator::Less, 0.01)),
        ("value>0.99", Metric::Delivered, (Rate, Operator::Greater, 0.99)),
        ("count===0", Metric::Dropped, (Count, Operator::Equal, 0.0)),
        ("rate>100", Metric::Calls, (Rate, Operator::Greater, 100.0)),
    ];
    for (text, metric, (aggregation, operator, limit)) in cases {
        let expected = Expression { aggregation, operator, limit };
        assert_eq!(parse_expression(text, metric), Ok(expected), "{text}");
    }
}

#[test]
fn invalid_expressions_are_rejected() {
    let cases = [
        ("p(95)", Metric::Latency, "there is no operator (<, <=, >, >=, ==, !=)"),
        ("p(101)<300", Metric::Latency, "the percentile 101 is not in 0 to 100"),
        ("p(-1)<300", Metric::Latency, "the percentile -1 is not in 0 to 100"),
        ("p(NaN)<300", Metric::Latency, "the percentile NaN is not in 0 to 100"),
        ("p(x)<300", Metric::Latency, "\"x\" is not a number"),
        ("p95<300", Metric::Latency, "\"p95\" is not an aggregation"),
        ("p(95)<", Metric::Latency, "\"\" is not a number"),
        ("p(95)<300ms", Metric::Latency, "\"300ms\" is not a number"),
        ("p(95)<inf", Metric::Latency, "\"inf\" is not a number"),
        ("p(95)=<300", Metric::Latency, "=< is not an operator"),
        ("rate<0.01", Metric::Latency, "latency has no rate"),
        ("p(95)<1", Metric::Failed, "failed has no p(95)"),
        ("count<1", Metric::Failed, "failed has no count"),
        ("value<1", Metric::Calls, "calls has no value"),
    ];
    for (text, metric, expected) in cases {
        let message = parse_expression(text, metric).map_err(|error| error.message);
        assert_eq!(message, Err(expected.to_owned()), "{text}");
    }
}

#[test]
fn metrics_are_found_by_their_names() {
    for metric in Metric::ALL {
        assert_eq!(Metric::of_name(metric.as_str()), Some(metric));
        assert!(metric.k6().is_none_or(|name| Metric::of_name(name) == Some(metric)));
    }
}
