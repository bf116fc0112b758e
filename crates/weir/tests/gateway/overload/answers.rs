//! Calls to a group whose nodes are at their concurrency limit: queueing, priority and shedding.
//! The limit is one call, which a slow method occupies.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::scene::{
    READ, Scene, Served, SimNode, account, ask, body, error, polled_once, result, send,
};
use test_support::raw::{Client, post};
use test_support::wait::wait_until;

/// The method whose calls occupy the node's only permit.
const SLOW: &str = "eth_call";
/// JSON pointer of the group in `/status`.
const GROUP: &str = "/chains/0/groups/0";

/// Starts a gateway with these additional keys of `[overload]`.
fn served(node: &SimNode, overload: &str) -> Served {
    node.slow(SLOW, 400.0);
    Served::before(
        &[node],
        &format!(
            "{}[overload]\nin_flight_min = 1\nin_flight_max = 1\nhigh_tiers = [\"gold\"]\n{overload}\n\
             [cache]\nenabled = false\n[access]\nrequired = false\n\
             [[key]]\nname = \"paid\"\nsecret = \"0123456789abcdef\"\ntier = \"gold\"\n",
            polled_once("")
        ),
    )
}

/// Returns a number of the group from `/status`.
fn group_count(served: &Served, field: &str) -> u64 {
    served.count(&format!("{GROUP}/{field}"))
}

/// Sends a slow call, which holds the only permit for 400 ms.
fn hold_permit(served: &Served) -> Client {
    let mut client = served.client();
    send(&mut client, SLOW, r#"[{}, "latest"]"#);
    wait_until("the permit is held", || group_count(served, "in_flight") == 1);
    client
}

#[test]
fn a_call_waits_for_a_permit() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, "");
    assert_eq!(group_count(&served, "in_flight_limit"), 1);
    let mut holding = hold_permit(&served);
    let mut waiting = served.client();
    send(&mut waiting, READ, &account(1, "latest"));
    wait_until("the call waits", || group_count(&served, "queued") == 1);
    result(&holding.read_response().unwrap());
    result(&waiting.read_response().unwrap());
    assert_eq!((group_count(&served, "queued"), group_count(&served, "in_flight")), (0, 0));
    assert_eq!(group_count(&served, "shed"), 0);
}

#[test]
fn calls_that_waited_too_long_or_find_a_full_queue_are_shed() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, "queue_max = 1\nqueue_timeout = \"50ms\"");
    let _holding = hold_permit(&served);
    let (mut first, mut second) = (served.client(), served.client());
    send(&mut first, READ, &account(1, "latest"));
    wait_until("the call waits", || group_count(&served, "queued") == 1);
    send(&mut second, READ, &account(2, "latest"));
    // The full queue sheds the older call at once, and the newer one after `queue_timeout`.
    for client in [&mut first, &mut second] {
        let answer = client.read_response().unwrap();
        let expected = (503, -32_005, "upstreams are overloaded, retry later".to_owned());
        assert_eq!(error(&answer), expected);
        let retry_after_seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=3).contains(&retry_after_seconds), "{retry_after_seconds}");
    }
    let text = served.look("/metrics");
    let series = |reason: &str| format!("group=\"all\",class=\"normal\",reason=\"{reason}\"}} 1\n");
    for reason in ["displaced", "late"] {
        assert!(text.text().contains(&series(reason)), "{reason}: {}", text.text());
    }
    assert_eq!(group_count(&served, "queued"), 0);
}

#[test]
fn the_higher_class_is_served_first_and_heavy_calls_last() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, "share_kept = 0.0");
    node.slow(READ, 30.0);
    node.slow("eth_estimateGas", 30.0);
    let mut holding = hold_permit(&served);
    let (mut heavy, mut plain, mut paid) = (served.client(), served.client(), served.client());
    send(&mut heavy, "eth_estimateGas", r#"[{}, "latest"]"#);
    wait_until("the call waits", || group_count(&served, "queued") == 1);
    send(&mut plain, READ, &account(1, "latest"));
    wait_until("two calls wait", || group_count(&served, "queued") == 2);
    let key = "Authorization: Bearer 0123456789abcdef\r\n";
    paid.send(&test_support::raw::post_with("/", key, &body(READ, &account(2, "latest"))));
    wait_until("three calls wait", || group_count(&served, "queued") == 3);
    result(&holding.read_response().unwrap());
    result(&paid.read_response().unwrap());
    assert_eq!(group_count(&served, "in_flight") + group_count(&served, "queued"), 2);
    result(&plain.read_response().unwrap());
    heavy.read_response().unwrap();
}

#[test]
fn slow_calls_of_one_client_do_not_block_another_client() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    node.slow(SLOW, 1000.0);
    let served = Served::before(
        &[&node],
        &format!(
            "{}[overload]\nin_flight_min = 4\nin_flight_max = 4\n[cache]\nenabled = false\n\
             [access]\nrequired = false\n[[key]]\nname = \"other\"\nsecret = \"0123456789abcdef\"\n",
            polled_once("")
        ),
    );
    let mut slow: Vec<Client> = (0..12).map(|_| served.client()).collect();
    for (index, client) in slow.iter_mut().enumerate() {
        // Different parameters prevent coalescing.
        send(client, SLOW, &format!(r#"[{{"gas": "0x{:x}"}}, "latest"]"#, 100_000 + index));
    }
    wait_until("the slow calls wait", || group_count(&served, "queued") == 8);
    // The other client gets the next free permit for each call.
    let mut other = served.client();
    let key = "Authorization: Bearer 0123456789abcdef\r\n";
    let began = Instant::now();
    for number in 0..20 {
        other.send(&test_support::raw::post_with(
            "/",
            key,
            &body(READ, &account(number, "latest")),
        ));
        result(&other.read_response().unwrap());
    }
    assert!(began.elapsed() < Duration::from_millis(1_800), "{:?}", began.elapsed());
}

#[test]
fn a_client_that_disconnects_leaves_the_queue() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, "");
    let mut holding = hold_permit(&served);
    let (mut first, mut leaver) = (served.client(), served.client());
    send(&mut first, READ, &account(1, "latest"));
    wait_until("one waits", || group_count(&served, "queued") == 1);
    send(&mut leaver, READ, &account(2, "latest"));
    wait_until("two wait", || group_count(&served, "queued") == 2);
    drop(leaver);
    wait_until("one has left", || group_count(&served, "queued") == 1);
    assert_eq!(group_count(&served, "in_flight"), 1, "the permit is still held");
    result(&holding.read_response().unwrap());
    result(&first.read_response().unwrap());
}

#[test]
fn equal_calls_wait_once_and_are_shed_together() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, "queue_timeout = \"60ms\"");
    let _holding = hold_permit(&served);
    let mut clients: Vec<Client> = (0..5).map(|_| served.client()).collect();
    for client in &mut clients {
        send(client, READ, &account(1, "latest"));
    }
    wait_until("one of them waits", || group_count(&served, "queued") == 1);
    for client in &mut clients {
        assert_eq!(error(&client.read_response().unwrap()).0, 503);
    }
    assert_eq!(group_count(&served, "shed"), 1);
}

#[test]
fn a_batch_that_is_shed_whole_has_the_status_of_its_calls() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, "queue_max = 0\nstatus = 429");
    let _holding = hold_permit(&served);
    let call = String::from_utf8(body(READ, &account(1, "latest"))).unwrap();
    let mut client = served.client();
    client.send(&post("/", format!("[{call},{call}]").as_bytes()));
    let answer = client.read_response().unwrap();
    assert_eq!(answer.status, 429);
    assert!(answer.header("retry-after").is_some());
    let items: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    assert!(items.iter().all(|item| item["error"]["code"] == -32_005), "{items:?}");
}

#[test]
fn a_reload_keeps_permits_and_the_queue() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, "");
    let mut holding = hold_permit(&served);
    let mut waiting = served.client();
    send(&mut waiting, READ, &account(1, "latest"));
    wait_until("the call waits", || group_count(&served, "queued") == 1);
    let text = format!(
        "{}[overload]\nin_flight_min = 1\nin_flight_max = 1\nhigh_tiers = [\"gold\"]\n\
         [cache]\nenabled = false\n[downstream]\nbatch_calls_max = 7\n[access]\nrequired = false\n\
         [[key]]\nname = \"paid\"\nsecret = \"0123456789abcdef\"\ntier = \"gold\"\n{}",
        polled_once(""),
        node.entry("")
    );
    served.reload(&text);
    assert_eq!((group_count(&served, "in_flight"), group_count(&served, "queued")), (1, 1));
    result(&holding.read_response().unwrap());
    result(&waiting.read_response().unwrap());
    let mut client = served.client();
    result(&ask(&mut client, READ, &account(3, "latest")));
    assert_eq!((group_count(&served, "in_flight"), group_count(&served, "queued")), (0, 0));
}
