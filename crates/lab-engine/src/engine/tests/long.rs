//! Goal: a long response is classified like a short one, and reading it delays no other call.
//! Method: one worker gets responses of megabytes, while another scenario sends calls with short
//! responses on schedule.

use std::sync::Arc;

use lab_model::plan::{Mix, Model, Step, Template, WeightedCall};

use super::server::{Reply, Request, Server, http};
use super::{Class, Plan, SECOND, open, plan, run};

/// Returns a result of this length that ends with `end`.
fn logs(bytes: usize, end: &str) -> String {
    let log = r#"{"address":"0x00","topics":["0x01","0x02"],"data":"0x","removed":false},"#;
    format!("\"result\":[{}{end}", log.repeat(bytes / log.len()))
}

/// Returns a server that responds to the method `logs` with this member, and to all other methods
/// with the default response.
fn server(member: String) -> Server {
    let member = Arc::new(member);
    Server::new(move |request: &Request| match request.body.contains("\"logs\"") {
        true => Reply::body(200, "", &request.response_with(&member)),
        false => request.ok(),
    })
}

/// Returns a plan of one worker that calls `logs`.
fn greedy(server: &Server, iterations: u64) -> Plan {
    let mut plan = plan(server, iterations);
    plan.target.response_bytes_max = 64 << 20;
    plan.methods.push("logs".into());
    let template = Template { method: 1, params: Vec::new() };
    let steps = vec![Step::Choose(vec![WeightedCall { weight: 1.0, template }])];
    plan.mixes.push(Mix { name: "greedy".to_owned(), steps });
    plan.scenarios[0].mix = 1;
    plan
}

#[test]
fn long_responses_are_classified_and_their_bytes_counted() {
    let cases = [
        ("1]", Class::Ok),
        ("1},\"x\":1", Class::Malformed),
        ("01]", Class::Malformed),
        ("\"\\q\"]", Class::Malformed),
        ("1],\"error\":{\"code\":5}", Class::Malformed),
        ("1],\"id\":1", Class::Malformed),
    ];
    for (end, class) in cases {
        let server = server(logs(3 << 20, end));
        let outcome = run(greedy(&server, 2), &server);
        outcome.check_all(class, 2);
        assert!(
            outcome.totals.response_bytes[1] > 6_000_000,
            "{:?}",
            outcome.totals.response_bytes
        );
    }
}

#[test]
fn a_long_response_that_is_cut_off_is_invalid() {
    let server = Server::new(|request: &Request| {
        let mut response = http(200, "", &request.response_with(&logs(3 << 20, "1]")));
        response.truncate(2 << 20);
        Reply::Last(response)
    });
    let outcome = run(greedy(&server, 2), &server);
    outcome.check_all(Class::Reset, 2);
}

#[test]
fn long_responses_delay_no_other_call() {
    let server = server(logs(20 << 20, "1]"));
    // 500 calls per second for two seconds, from 50 workers and a queue of up to 1,000 calls.
    let small = open(plan(&server, 0), 500.0, SECOND * 2, 50, 1000);
    let mut both = greedy(&server, 1_000_000);
    both.scenarios[0].name = "greedy".to_owned();
    both.scenarios[0].model = Model::Closed;
    both.scenarios[0].stages[0].duration = SECOND * 2;
    both.scenarios[0].stages[0].index = 1;
    both.scenarios.insert(0, small.scenarios[0].clone());
    let outcome = run(both, &server);
    assert_eq!(outcome.count(Class::Ok), outcome.totals.count(|_| true));
    let long = outcome.totals.count(|slot| slot.method == 1);
    assert!(long >= 5, "only {long} long answers");
    // The test checks only the median, because other work on the test machine delays single calls.
    // If the engine read and classified a long response at once, this would take tens of
    // milliseconds and delay most calls.
    let median = outcome.totals.scheduling_delay.value_at_quantile(0.5) as f64 / 1e6;
    assert!(median < 1.0, "half of the calls were {median} ms late and more");
}
