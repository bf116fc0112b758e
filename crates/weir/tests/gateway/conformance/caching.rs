//! The scenarios of nginx's tests of `proxy_cache` that apply to Weir.
//!
//! nginx caches the response to a GET for as long as headers or the configuration allow. A JSON-RPC
//! call is a POST, whose response no HTTP cache may reuse (RFC 9110, section 9.3.3). A cache entry
//! of Weir depends on a block, and is valid while that block is canonical. So the scenarios about
//! keys, misses, hits, locks and errors apply. The scenarios about origin headers, ranges,
//! variants, conditional requests and stale responses do not apply.

use super::{Coverage, Group};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, ask, balance_params, body, cache_status,
    chain_polled_once, result, wait_until_idle,
};
use crate::support::tampering_proxy::{Tampering, TamperingProxy};
use test_support::raw::post_with;
use test_support::wait::wait_until;

const FILES: Coverage = Coverage::NotApplicable(
    "the cache is in memory, or in Redis: there are no files, paths or managers of them",
);
const HEADS: Coverage = Coverage::NotApplicable(
    "HEAD is no call: it is answered as the health check is, and never cached",
);
const RANGES: Coverage = Coverage::NotApplicable(
    "an answer to a call has no ranges (RFC 9110, section 14.2: they are of GET)",
);
const CONDITIONS: Coverage =
    Coverage::NotApplicable("a call cannot be asked on a condition (RFC 9110, section 13.2.1)");
const STALE: Coverage = Coverage::NotApplicable("nothing is served that may not be true any more");
const TIMES: Coverage =
    Coverage::NotApplicable("an answer lasts as long as its block, not for a time by status");

const fn elsewhere(file: &'static str, test: &'static str) -> Coverage {
    Coverage::Elsewhere { file, test }
}

const COALESCING: &str = "crates/weir/tests/gateway/serving/coalescing.rs";

pub(super) const GROUPS: [Group; 38] = [
    Group::new(
        "proxy_cache.t",
        2,
        "a miss, then a hit",
        Coverage::here("caching", "a_miss_is_followed_by_hits_of_the_same_bytes"),
    ),
    Group::new(
        "proxy_cache.t",
        2,
        "an empty answer",
        Coverage::here("caching", "an_empty_answer_is_kept_as_any_other"),
    ),
    Group::new(
        "proxy_cache.t",
        2,
        "a HEAD leaves its connection as it was",
        Coverage::here("caching", "a_head_leaves_its_connection_as_it_was"),
    ),
    Group::new("proxy_cache.t", 5, "HEAD and GET share entries", HEADS),
    Group::new("proxy_cache.t", 2, "ranges of entries", RANGES),
    Group::new("proxy_cache.t", 2, "stale answers, packed", STALE),
    Group::new(
        "proxy_cache_bypass.t",
        4,
        "a bypass, and entries behind it",
        Coverage::here("caching", "bypassing_calls_do_not_change_entries"),
    ),
    Group::new(
        "proxy_cache_bypass.t",
        4,
        "errors that were kept",
        elsewhere(
            "crates/weir/tests/gateway/serving/caching.rs",
            "reverts_are_the_only_cached_errors",
        ),
    ),
    Group::new(
        "proxy_cache_chunked.t",
        2,
        "an answer in chunks",
        Coverage::here("caching", "a_response_in_chunks_is_kept"),
    ),
    Group::new(
        "proxy_cache_control.t",
        22,
        "what nodes' headers say of keeping",
        Coverage::here("caching", "headers_of_nodes_decide_nothing"),
    ),
    Group::new("proxy_cache_convert_head.t", 8, "HEAD asked as GET", HEADS),
    Group::new("proxy_cache_error.t", 1, "a HEAD whose GET takes too long", HEADS),
    Group::new(
        "proxy_cache_lock.t",
        5,
        "one after the other",
        Coverage::here("caching", "a_miss_is_followed_by_hits_of_the_same_bytes"),
    ),
    Group::new(
        "proxy_cache_lock.t",
        6,
        "at the same time",
        elsewhere(COALESCING, "fifty_equal_calls_reach_the_node_once"),
    ),
    Group::new(
        "proxy_cache_lock.t",
        3,
        "without a lock",
        elsewhere(COALESCING, "without_coalescing_each_call_reaches_the_node"),
    ),
    Group::new(
        "proxy_cache_lock.t",
        3,
        "a lock that ends before the call",
        elsewhere(COALESCING, "a_follower_has_a_deadline_of_its_own"),
    ),
    Group::new(
        "proxy_cache_lock_age.t",
        4,
        "a second request beside an old one",
        Coverage::NotApplicable(
            "a call that takes long is hedged, whoever waits for it; a lock has no age",
        ),
    ),
    Group::new(
        "proxy_cache_lock_ssi.t",
        2,
        "locks of subrequests",
        Coverage::NotApplicable("there are no subrequests"),
    ),
    Group::new("proxy_cache_manager.t", 3, "how files are deleted", FILES),
    Group::new("proxy_cache_max_range_offset.t", 6, "ranges beyond an offset", RANGES),
    Group::new(
        "proxy_cache_max_range_offset.t",
        2,
        "a miss, then a hit",
        Coverage::here("caching", "a_miss_is_followed_by_hits_of_the_same_bytes"),
    ),
    Group::new("proxy_cache_min_free.t", 2, "space on a disk", FILES),
    Group::new("proxy_cache_path.t", 6, "where files are", FILES),
    Group::new("proxy_cache_range.t", 7, "ranges", RANGES),
    Group::new("proxy_cache_revalidate.t", 23, "conditional requests", CONDITIONS),
    Group::new("proxy_cache_use_stale.t", 34, "stale answers and background updates", STALE),
    Group::new("proxy_cache_valid.t", 8, "times by status and header", TIMES),
    Group::new(
        "proxy_cache_valid.t",
        4,
        "errors that are kept",
        elsewhere(
            "crates/weir/tests/gateway/serving/caching.rs",
            "reverts_are_the_only_cached_errors",
        ),
    ),
    Group::new(
        "proxy_cache_variables.t",
        4,
        "two caches",
        Coverage::here("caching", "chains_share_no_entries"),
    ),
    Group::new("proxy_cache_variables.t", 1, "HEAD", HEADS),
    Group::new(
        "proxy_cache_variables.t",
        1,
        "a cache that is not there",
        elsewhere(
            "crates/weir/tests/gateway/serving/chains.rs",
            "a_path_without_a_chain_is_rejected",
        ),
    ),
    Group::new(
        "proxy_cache_variables.t",
        2,
        "no cache",
        Coverage::here("caching", "without_a_cache_each_call_is_asked"),
    ),
    Group::new(
        "proxy_cache_vary.t",
        2,
        "`Vary` that is ignored",
        Coverage::here("caching", "codings_share_an_entry"),
    ),
    Group::new(
        "proxy_cache_vary.t",
        24,
        "variants by request header",
        Coverage::NotApplicable(
            "an answer is kept unpacked, once, and packed for each client: there are no variants",
        ),
    ),
    Group::new("proxy_cache_vary.t", 6, "variants that are asked for again", CONDITIONS),
    Group::new("proxy_cache_vary.t", 10, "variants that replace each other, and age", TIMES),
    // From the documentation: the parts of a key.
    Group::new(
        "proxy_cache_key",
        6,
        "calls of the same meaning, and others",
        Coverage::here("caching", "a_key_is_the_meaning_of_a_call"),
    ),
    Group::new(
        "proxy_cache, stale while all are down",
        1,
        "what is final is true for ever",
        elsewhere(
            "crates/weir/tests/gateway/serving/outage.rs",
            "final_data_is_served_while_all_nodes_are_down",
        ),
    ),
];

#[test]
fn a_miss_is_followed_by_hits_of_the_same_bytes() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let before = node.calls();
    let mut answers = Vec::new();
    for expected in ["miss", "hit", "hit", "hit", "hit"] {
        let answer = ask(&mut gateway.client(), GET_BALANCE, &balance_params(1, "0x10"));
        assert_eq!(cache_status(&answer), expected);
        answers.push(answer.body);
    }
    assert_eq!(node.calls() - before, 1);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

#[test]
fn an_empty_answer_is_kept_as_any_other() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let nobody = format!(r#"[{{"fromBlock":"0x10","toBlock":"0x10","address":"0x{:040x}"}}]"#, 1);
    for expected in ["miss", "hit"] {
        let answer = ask(&mut gateway.client(), "eth_getLogs", &nobody);
        assert_eq!((result(&answer).as_str(), cache_status(&answer)), ("[]", expected));
    }
}

#[test]
fn a_head_leaves_its_connection_as_it_was() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let mut client = gateway.client();
    client.send(b"HEAD /big.html?e=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = client.read_head_response().unwrap();
    assert_eq!((head.status, head.header("connection")), (200, None));
    assert_eq!(cache_status(&ask(&mut client, GET_BALANCE, &balance_params(1, "0x10"))), "miss");
}

#[test]
fn bypassing_calls_do_not_change_entries() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let mut client = gateway.client();
    let before = node.calls();
    // Pending state belongs to no block yet, so the gateway sends each such call to the node and
    // caches no response.
    for (block, expected) in [
        ("0x10", "miss"),
        ("0x10", "hit"),
        ("pending", "bypass"),
        ("pending", "bypass"),
        ("0x10", "hit"),
    ] {
        let answer = ask(&mut client, GET_BALANCE, &balance_params(1, block));
        assert_eq!(cache_status(&answer), expected, "{block}");
        result(&answer);
    }
    assert_eq!(node.calls() - before, 3);
}

#[test]
fn a_response_in_chunks_is_kept() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let proxy = TamperingProxy::in_front_of(&node, GET_BALANCE, Tampering::RespondInChunks);
    let gateway = TestGateway::start(&format!("{}{}", chain_polled_once(""), proxy.to_toml("")));
    gateway.wait_for_candidates(&["a"]);
    wait_until_idle(&[&node]);
    for expected in ["miss", "hit"] {
        let answer = ask(&mut gateway.client(), GET_BALANCE, &balance_params(1, "0x10"));
        assert_eq!(
            (result(&answer), cache_status(&answer)),
            (node.call(GET_BALANCE, &balance_params(1, "0x10")), expected)
        );
    }
    assert_eq!(proxy.matching_calls(), 1);
}

/// Header lines that a node adds to its response, one item for each scenario of nginx.
const CACHE_HEADERS: [&str; 22] = [
    "Expires: Thu, 31 Dec 2037 23:55:55 GMT\r\n",
    "Cache-Control: max-age=60\r\n",
    "Cache-Control: max-age=9223372036854775808\r\n",
    "X-Accel-Expires: 60\r\n",
    "X-Accel-Expires: @60\r\n",
    "X-Accel-Expires: 60\r\nX-Accel-Expires: 0\r\n",
    "Expires: Thu, 31 Dec 2037 23:55:55 GMT\r\nCache-Control: max-age=60\r\nX-Accel-Expires: 60\r\n",
    "Cache-Control: max-age=60\r\nExpires: Thu, 01 Jan 1970 00:00:01 GMT\r\n",
    "Expires: Thu, 01 Jan 1970 00:00:01 GMT\r\nCache-Control: max-age=60\r\n",
    "Cache-Control: no-cache\r\nExpires: Thu, 31 Dec 2037 23:55:55 GMT\r\n",
    "Expires: Thu, 31 Dec 2037 23:55:55 GMT\r\nCache-Control: no-cache\r\n",
    "X-Accel-Expires: 60\r\nExpires: Thu, 01 Jan 1970 00:00:01 GMT\r\nCache-Control: no-cache\r\n",
    "Expires: Thu, 01 Jan 1970 00:00:01 GMT\r\nCache-Control: no-cache\r\nX-Accel-Expires: 60\r\n",
    "X-Accel-Expires: 0\r\nCache-Control: max-age=60\r\nExpires: Thu, 31 Dec 2037 23:55:55 GMT\r\n",
    "Cache-Control: max-age=60\r\nExpires: Thu, 31 Dec 2037 23:55:55 GMT\r\nX-Accel-Expires: 0\r\n",
    "Cache-Control: no-cache, max-age=60\r\n",
    "Cache-Control: no-cache\r\nCache-Control: max-age=60\r\n",
    "Cache-Control: stale-while-revalidate=2145902155\r\nX-Accel-Expires: @1\r\n",
    "X-Accel-Expires: @1\r\nCache-Control: stale-while-revalidate=2145902155\r\n",
    "Set-Cookie: foo\r\nExpires: Thu, 01 Jan 1970 00:00:01 GMT\r\nCache-Control: max-age=60\r\n",
    "Cache-Control: x-max-age=60\r\n",
    "Cache-Control: foo-s-maxage=60\r\n",
];

#[test]
fn headers_of_nodes_decide_nothing() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    for headers in CACHE_HEADERS {
        let proxy = TamperingProxy::in_front_of(&node, GET_BALANCE, Tampering::AddHeaders(headers));
        let text = format!("{}{}", chain_polled_once(""), proxy.to_toml(""));
        let gateway = TestGateway::start(&text);
        gateway.wait_for_candidates(&["a"]);
        for expected in ["miss", "hit"] {
            let answer = ask(&mut gateway.client(), GET_BALANCE, &balance_params(1, "0x10"));
            assert_eq!(cache_status(&answer), expected, "{headers:?}");
            for name in ["cache-control", "expires", "x-accel-expires", "set-cookie"] {
                assert_eq!(answer.header(name), None, "{headers:?} was passed on");
            }
        }
        assert_eq!(proxy.matching_calls(), 1, "{headers:?}");
    }
}

#[test]
fn chains_share_no_entries() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let [b] = runtime.nodes(["b"]);
    let gateway = TestGateway::start(&format!(
        "[chain.one]\npoll_interval = \"1h\"\n[chain.two]\npoll_interval = \"1h\"\n{}{}",
        a.to_toml("chain = \"one\""),
        b.to_toml("chain = \"two\"")
    ));
    for chain in 0..2 {
        wait_until("both heads are seen", || {
            !gateway.status(&format!("/chains/{chain}/head")).is_null()
        });
    }
    let mut client = gateway.client();
    for (path, node) in [("/one", "a"), ("/two", "b")] {
        for expected in ["miss", "hit"] {
            client.send(&post_with(path, "", &body(GET_BALANCE, &balance_params(1, "0x10"))));
            let answer = client.read_response().unwrap();
            assert_eq!(cache_status(&answer), expected, "{path}");
            if expected == "miss" {
                assert_eq!(crate::support::harness::upstream_of(&answer), node);
            }
        }
    }
}

#[test]
fn without_a_cache_each_call_is_asked() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let text = chain_polled_once("[cache]\nenabled = false");
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let before = node.calls();
    for _ in 0..2 {
        result(&ask(&mut gateway.client(), GET_BALANCE, &balance_params(1, "0x10")));
    }
    assert_eq!(node.calls() - before, 2);
    assert_eq!(gateway.status_u64("/cache/entries"), 0);
}

#[test]
fn codings_share_an_entry() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let params = r#"["0x64",true]"#;
    let theirs = node.call("eth_getBlockByNumber", params);
    let mut client = gateway.client();
    for (coding, expected) in
        [("gzip", "miss"), ("zstd", "hit"), ("deflate", "hit"), ("gzip", "hit"), ("*;q=0", "hit")]
    {
        let line = format!("Accept-Encoding: {coding}\r\n");
        client.send(&post_with("/", &line, &body("eth_getBlockByNumber", params)));
        let answer = client.read_response().unwrap();
        assert_eq!(cache_status(&answer), expected, "{coding}");
        let plain = match answer.header("content-encoding") {
            Some("gzip") => {
                let mut plain = Vec::new();
                std::io::Read::read_to_end(
                    &mut flate2::read::GzDecoder::new(&*answer.body),
                    &mut plain,
                )
                .unwrap();
                plain
            }
            Some("zstd") => zstd::decode_all(&*answer.body).unwrap(),
            Some(other) => panic!("{other} was not asked for"),
            None => answer.body.clone(),
        };
        assert!(String::from_utf8(plain).unwrap().contains(&theirs), "{coding}");
    }
}

#[test]
fn a_key_is_the_meaning_of_a_call() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let mut client = gateway.client();
    let one = balance_params(1, "0x10");
    let cases = [
        ("the first", one.clone(), "miss"),
        ("the same bytes", one.clone(), "hit"),
        ("spaces", one.replace(',', " , "), "hit"),
        ("an escape", one.replace("0x10", "\\u0030x10"), "hit"),
        ("another block", balance_params(1, "0x11"), "miss"),
        ("another account", balance_params(2, "0x10"), "miss"),
    ];
    assert_eq!(cases.len(), 6);
    for (name, params, expected) in cases {
        assert_eq!(cache_status(&ask(&mut client, GET_BALANCE, &params)), expected, "{name}");
    }
    // The id is not part of the key.
    client.send(&post_with(
        "/",
        "",
        format!(r#"{{"id":"x","method":"{GET_BALANCE}","params":{one}}}"#).as_bytes(),
    ));
    let answer = client.read_response().unwrap();
    assert_eq!(cache_status(&answer), "hit");
    assert!(answer.text().contains(r#""id":"x""#));
}
