//! The scenarios of nginx's tests of `realip`: which address the gateway uses as the client's. The
//! tests read it from `$remote_addr` in the access log. Tests with the PROXY protocol, TLS and
//! HTTP/2 are in `crates/weir/tests/gateway/client_address.rs`. Tests with unusual headers are in
//! `crates/gateway/src/policy/client/tests.rs`.

use super::{Coverage, Group};
use crate::support::harness::{NodeRuntime, SimNode, TestGateway, body, chain_polled_once};
use test_support::raw::post_with;
use test_support::wait::wait_until;

const HEADER_LISTS: Coverage = Coverage::here("addresses", "lists_are_walked_from_the_right");

pub(super) const GROUPS: [Group; 10] = [
    Group::new("realip.t", 4, "one address, several, several lines, from the right", HEADER_LISTS),
    Group::new(
        "realip.t",
        1,
        "a header of one's own",
        Coverage::NotApplicable(
            "the two headers that proxies append to are read, and no header that one value replaces: such a one is the client's where a proxy forgets it",
        ),
    ),
    Group::new(
        "realip.t",
        2,
        "only the last address, whoever it is",
        Coverage::NotApplicable(
            "the walk over trusted proxies cannot be turned off; where there is one proxy it makes no difference",
        ),
    ),
    Group::new(
        "realip.t",
        1,
        "it counts before anything is decided",
        Coverage::here("addresses", "it_counts_before_anything_is_decided"),
    ),
    Group::new(
        "realip_hostname.t",
        2,
        "a peer over a unix socket",
        Coverage::NotApplicable("clients connect over TCP only"),
    ),
    Group::new(
        "realip_hostname.t",
        2,
        "a trusted peer by its name",
        Coverage::NotApplicable(
            "trusted peers are networks: a name can be another's by the next answer of a resolver",
        ),
    ),
    Group::new(
        "realip_remote_addr.t",
        4,
        "the peer's own address as a variable",
        Coverage::NotApplicable("the access log has the client's address alone"),
    ),
    Group::new("realip_remote_port.t", 2, "a port behind an address", HEADER_LISTS),
    Group::new(
        "realip_remote_port.t",
        2,
        "the peer's own port as a variable",
        Coverage::NotApplicable("the access log has the client's address alone"),
    ),
    // This scenario is from the documentation of the directive.
    Group::new(
        "realip, PROXY protocol",
        1,
        "versions 1 and 2",
        Coverage::Elsewhere {
            file: "crates/weir/tests/gateway/client_address.rs",
            test: "the_proxy_protocol_says_it_for_a_connection",
        },
    ),
];

const TRUSTED: &str = "[downstream]\ntrusted_proxies = [\"127.0.0.1/32\", \"10.0.1.0/24\", \"2001:db8::/32\"]\n\
                       client_address = \"x-forwarded-for\"\n";

fn start_gateway(node: &SimNode, folder: &std::path::Path, more: &str) -> TestGateway {
    let file = folder.join("access.log");
    let log =
        format!("[access_log]\nfile = \"{}\"\nformat = \"$remote_addr $status\"\n", file.display());
    TestGateway::in_front_of(&[node], &format!("{TRUSTED}{log}{more}{}", chain_polled_once("")))
}

#[test]
fn lists_are_walked_from_the_right() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, folder.path(), "");
    // The values of `X-Forwarded-For`, one for each header line, and the expected client address.
    let cases: [(&[&str], &str); 12] = [
        (&[], "127.0.0.1"),
        (&["192.0.2.1"], "192.0.2.1"),
        (&["10.0.0.1, 192.0.2.1"], "192.0.2.1"),
        (&["10.0.1.1, 192.0.2.1, 127.0.0.1"], "192.0.2.1"),
        (&["10.0.1.1", "192.0.2.1", "127.0.0.1"], "192.0.2.1"),
        (&["192.0.2.1", "127.0.0.1, 10.0.1.1"], "192.0.2.1"),
        (&["127.0.0.1:123"], "127.0.0.1"),
        (&["192.0.2.1:4711, 10.0.1.1:80"], "192.0.2.1"),
        (&["[2a00::1]:443, [2001:db8::7]:80"], "2a00::1"),
        (&["2a00::1, 2001:db8::7"], "2a00::1"),
        (&["::ffff:192.0.2.1, 10.0.1.1"], "192.0.2.1"),
        (&["192.0.2.1, unknown, 10.0.1.1"], "10.0.1.1"),
    ];
    let mut client = gateway.client();
    for (values, _) in cases {
        let lines: String =
            values.iter().map(|value| format!("X-Forwarded-For: {value}\r\n")).collect();
        client.send(&post_with("/", &lines, &body("eth_chainId", "[]")));
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    let logged = || std::fs::read_to_string(folder.path().join("access.log")).unwrap_or_default();
    wait_until("all requests are logged", || logged().lines().count() >= cases.len());
    let logged = logged();
    let found: Vec<&str> = logged.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(found, cases.map(|(_, expected)| expected));
}

#[test]
fn it_counts_before_anything_is_decided() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = NodeRuntime::start();
    let limit = "[zone.z]\nkey = [\"client\"]\nrate = \"1r/m\"\n[[limit]]\nzone = \"z\"\n";
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, folder.path(), limit);
    let mut client = gateway.client();
    let mut status_for = |address: &str| {
        let line = format!("X-Forwarded-For: {address}\r\n");
        client.send(&post_with("/", &line, &body("eth_chainId", "[]")));
        client.read_response().unwrap().status
    };
    // The limit counts calls by the client's address, not by the proxy's. So the rejection of one
    // client does not affect another client of the same proxy.
    assert_eq!(
        ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"].map(&mut status_for),
        [200, 429, 200, 429]
    );
}
