//! Nodes that want rest, and methods that a node does not know.

use std::time::{Duration, Instant};

use simnode::node::settings::{Fault, FaultRule};

use crate::support::scene::{
    READ, Scene, Served, account, ask, by, error, polled_often, polled_once, result,
};
use test_support::wait::{pause, wait_until};

const REST: Duration = Duration::from_secs(2);

fn too_many(method: Option<&str>, times: Option<u64>) -> FaultRule {
    let fault = Fault::TooManyRequests { retry_after_s: REST.as_secs() };
    FaultRule { method: method.map(str::to_owned), times, ..FaultRule::always(fault) }
}

#[test]
fn a_node_that_limits_its_rate_rests_as_long_as_it_says() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = Served::before(
        &[&a, &b],
        &format!("[call]\nbalance = \"weighted\"\nhedge = false\n{}", polled_often("")),
    );
    a.fail(too_many(Some(READ), Some(1)));
    let mut client = served.client();
    let mut number = 0;
    let mut answerer = || {
        number += 1;
        let answer = ask(&mut client, READ, &account(number, "0x10"));
        result(&answer);
        by(&answer).to_owned()
    };
    let began = Instant::now();
    assert_eq!(answerer(), "b", "the refused call was not brought to the other node");
    assert_eq!(served.upstream(0, "state"), "paused");
    let left = served.upstream(0, "state_ends_seconds").as_f64().unwrap();
    assert!(left > 1.0 && left <= REST.as_secs_f64(), "{left}");
    let mut during = 0;
    loop {
        let name = answerer();
        if name == "a" {
            break;
        }
        during += 1;
        pause(Duration::from_millis(2)); // Sleeps: the rate of the client.
        assert!(began.elapsed() < 5 * REST, "it never came back");
    }
    assert!(began.elapsed() >= REST - Duration::from_millis(20), "after {:?}", began.elapsed());
    assert!(during > 100, "only {during} calls during the rest");
    assert_eq!(served.attempts(0), 2, "it was asked while it rested");
    assert_eq!(
        (served.upstream(0, "ejections"), served.upstream(0, "rate_limited")),
        (0.into(), 1.into())
    );
}

#[test]
fn a_node_that_limits_polls_too_rests_and_is_not_ejected() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = Served::before(
        &[&a, &b],
        &format!("[call]\nbalance = \"weighted\"\nhedge = false\n{}", polled_often("")),
    );
    // Far more polls fail than take a node out (`health.failures_max` is 3).
    let polled = a.node.tally().requests;
    a.fail(too_many(None, None));
    wait_until("it rests", || served.upstream(0, "state") == "paused");
    let mut client = served.client();
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() < REST + REST / 2 {
        number += 1;
        let answer = ask(&mut client, READ, &account(number, "0x10"));
        result(&answer);
        assert_eq!(by(&answer), "b");
        pause(Duration::from_millis(10)); // Sleeps: the rate of the client.
    }
    assert_eq!(
        (served.upstream(0, "ejections"), served.upstream(0, "attempts")),
        (0.into(), 0.into())
    );
    // It said how long it wants rest, and the gateway's own polls are requests as well.
    let polls = a.node.tally().requests - polled;
    assert!((1..=8).contains(&polls), "{polls} polls of a node that wants rest");
    a.set(|settings| settings.faults.clear());
    served.wait_for_candidates(&["a", "b"]);
}

#[test]
fn retry_after_names_the_end_of_the_pauses_if_all_nodes_are_paused() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = Served::before(&[&a, &b], &polled_often(""));
    for node in [&a, &b] {
        node.fail(too_many(Some(READ), None));
    }
    let mut client = served.client();
    for number in 0..3 {
        let answer = ask(&mut client, READ, &account(number, "0x10"));
        let (status, code, _) = error(&answer);
        assert_eq!((status, code), (429, -32005));
        let retry_after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=REST.as_secs()).contains(&retry_after), "{retry_after}");
    }
    // The first call reached both; the later ones reached none.
    assert_eq!(served.attempts(0) + served.attempts(1), 2);
}

#[test]
fn a_method_that_a_node_does_not_know_is_learnt_and_forgotten() {
    const METHOD: &str = "eth_getBlockReceipts";
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    a.set(|settings| {
        settings.unsupported.insert(METHOD.to_owned());
    });
    let served = Served::before(
        &[&a, &b],
        &format!(
            "[call]\nbalance = \"weighted\"\nhedge = false\n\
             [health]\nunsupported_age_max = \"2s\"\n{}",
            polled_once("")
        ),
    );
    let before = a.calls();
    let mut client = served.client();
    let began = Instant::now();
    for block in 1..=10 {
        let answer = ask(&mut client, METHOD, &format!("[\"0x{block:x}\"]"));
        result(&answer);
        assert_eq!(by(&answer), "b");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "too slow to prove anything");
    assert_eq!(a.calls(), before + 1, "it was asked again for what it does not know");
    // Only for that.
    let others =
        (0..10).map(|number| by(&ask(&mut client, READ, &account(number, "0x10"))).to_owned());
    assert_eq!(others.filter(|name| name == "a").count(), 5);
    a.set(|settings| settings.unsupported.clear());
    wait_until("it is asked again", || {
        let block = 11 + began.elapsed().as_millis() as u64 % 800;
        by(&ask(&mut served.client(), METHOD, &format!("[\"0x{block:x}\"]"))) == "a"
    });
    assert!(began.elapsed() >= Duration::from_secs(2), "forgotten after {:?}", began.elapsed());
    assert_eq!(served.upstream(0, "ejections"), 0);
}
