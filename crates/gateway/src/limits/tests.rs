//! Goal: the right limits apply to a call under the right key. A call is charged to all its zones
//! or to none. Threads neither lose a call nor count it twice. Method: configuration texts, calls
//! in virtual time, and real threads at one instant.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::family::Family;
use wire::method::methods_of;

use super::*;
use crate::metrics::thread::Labels;

const UPSTREAMS: &str = "\
[chain.eth]
paths = [\"/\"]
[chain.side]
[[upstream]]
url = \"http://127.0.0.1:8545\"
chain = \"eth\"
[[upstream]]
url = \"http://127.0.0.1:8546\"
chain = \"side\"
";

/// Limits with their counters.
struct Fixture {
    limits: Limits,
    counters: Counters,
}

fn counters(zones: usize) -> Counters {
    let zones = (0..zones).map(|index| [index.to_string().into()]).collect();
    Counters::new(&Labels { zones, ..Labels::default() })
}

/// Returns the shared number of gateways, for a gateway that runs alone.
fn one_gateway() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(1))
}

fn config(text: &str) -> Config {
    let config = Config::from_text("test", &format!("{UPSTREAMS}{text}"), Path::new(""), &|_| None);
    config.unwrap_or_else(|faults| panic!("{faults}"))
}

impl Fixture {
    fn new(text: &str) -> Fixture {
        let config = config(text);
        let limits = Limits::new(None, &config, &one_gateway()).unwrap();
        Fixture { limits, counters: counters(config.zones.len()) }
    }
    /// Returns the outcome of a call: `.` passes, a number waits that many ms, `x` is rejected.
    fn call(&self, limited_call: &LimitedCall<'_>, now: u64) -> String {
        match self.limits.charge(limited_call, now, &self.counters) {
            Charge::Pass => ".".to_owned(),
            Charge::Wait(wait) => wait.as_millis().to_string(),
            Charge::Refuse(_) => "x".to_owned(),
            Charge::AskRedis(_) => "?".to_owned(),
        }
    }

    /// Returns the outcomes of `count` equal calls at one instant, separated by spaces.
    fn calls(&self, limited_call: &LimitedCall<'_>, now: u64, count: usize) -> String {
        let outcomes: Vec<String> = (0..count).map(|_| self.call(limited_call, now)).collect();
        outcomes.join(" ")
    }

    /// Returns the numbers of calls in a zone that passed, were delayed and were rejected, then the
    /// numbers of calls that a dry run would have delayed and rejected.
    fn outcomes(&self, zone: usize) -> Vec<u64> {
        self.counters.zones[zone].calls.iter().map(|(_, count)| count.get()).collect()
    }
}

const CLIENT_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

fn limited_call(name: &str) -> LimitedCall<'_> {
    let method = methods_of(Family::Ethereum).method(name);
    LimitedCall {
        client: CLIENT_V4,
        chain: 0,
        chain_name: "eth",
        name,
        method,
        headers: &[],
        grant: None,
        prefetched: None,
    }
}

#[test]
fn a_configuration_without_limits_has_none() {
    let config = Config::from_text("test", UPSTREAMS, Path::new(""), &|_| None).unwrap();
    assert!(Limits::new(None, &config, &one_gateway()).is_none());
}

#[test]
fn calls_are_counted_by_key() {
    let fixture = Fixture::new(
        "[zone.z]\nkey = [\"client\", \"method\", \"chain\"]\nrate = \"1r/s\"\n[[limit]]\nzone = \"z\"\n",
    );
    let first = limited_call("eth_call");
    let side = LimitedCall { chain: 1, chain_name: "side", ..first };
    let other = LimitedCall { client: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), ..first };
    for limited_call in [first, side, other, limited_call("eth_chainId")] {
        assert_eq!(fixture.calls(&limited_call, 5, 2), ". x", "{limited_call:?}");
    }
    assert_eq!(fixture.outcomes(0), [4, 0, 4, 0, 0]);
    assert_eq!(fixture.limits.fills(), [ZoneFill { keys: 4, evicted: 0 }]);
}

#[test]
fn equal_bytes_in_different_parts_give_different_keys() {
    let fixture = Fixture::new(
        "[zone.z]\nkey = [\"header:a\", \"header:b\"]\nrate = \"1r/s\"\n[[limit]]\nzone = \"z\"\n",
    );
    let long = "x".repeat(70_000);
    let pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), (&long[..60], "c")];
    for (a, b) in pairs {
        let headers = [a, b].map(|value| Some(SmallVec::from_slice(value.as_bytes())));
        let limited_call = LimitedCall { headers: &headers, ..limited_call("eth_call") };
        assert_eq!(fixture.calls(&limited_call, 5, 2), ". x", "{a:?} {b:?}");
    }
    for first in [None, Some(&b""[..]), Some(long.as_bytes())] {
        let headers = [first.map(SmallVec::from_slice), None];
        let limited_call = LimitedCall { headers: &headers, ..limited_call("eth_call") };
        assert_eq!(fixture.calls(&limited_call, 5, 3), ". . .", "without a key nothing is limited");
    }
}

#[test]
fn a_prefetched_key_is_the_key_of_the_call() {
    for key in ["\"client\"", "\"header:a\"", "\"method\"", "\"client\", \"chain\""] {
        let fixture = Fixture::new(&format!(
            "[zone.z]\nkey = [{key}]\nrate = \"1r/s\"\n[[limit]]\nzone = \"z\"\nburst = 1\nnodelay = true\n"
        ));
        let headers = [Some(SmallVec::from_slice(b"one"))];
        let limited_call = LimitedCall { headers: &headers, ..limited_call("eth_call") };
        let prefetched =
            fixture.limits.prefetch_key(&LimitedCall { name: "", method: None, ..limited_call });
        let depends_on_caller = !key.contains("method") && !key.contains("chain");
        assert_eq!(prefetched.is_some(), depends_on_caller, "{key}");
        assert_eq!(fixture.calls(&LimitedCall { prefetched, ..limited_call }, 5, 1), ".", "{key}");
        assert_eq!(fixture.calls(&limited_call, 5, 2), ". x", "{key}: it counts for the same key");
    }
}

#[test]
fn long_keys_that_differ_in_the_last_byte_are_different_keys() {
    let fixture =
        Fixture::new("[zone.z]\nkey = [\"header:a\"]\nrate = \"1r/s\"\n[[limit]]\nzone = \"z\"\n");
    for length in [1, 7, 8, 22, 23, 24, 25, 500, 65_535] {
        for last in [b'x', b'y'] {
            let mut value = vec![b'x'; length];
            value[length - 1] = last;
            let headers = [Some(SmallVec::from_vec(value))];
            let limited_call = LimitedCall { headers: &headers, ..limited_call("eth_call") };
            assert_eq!(fixture.calls(&limited_call, 5, 2), ". x", "{length} bytes");
        }
    }
    assert_eq!(fixture.limits.fills()[0].keys, 18);
}

#[test]
fn client_net_is_the_network_of_an_ipv6_client() {
    let zone = |key: &str| {
        Fixture::new(&format!(
            "[zone.z]\nkey = [\"{key}\"]\nrate = \"1r/s\"\n[[limit]]\nzone = \"z\"\n"
        ))
    };
    let call_at = |low: u16, net: u16| {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, net, 0, 0, 0, low);
        LimitedCall { client: IpAddr::V6(address), ..limited_call("eth_call") }
    };
    let (by_address, by_network) = (zone("client"), zone("client-net"));
    let outcomes = |fixture: &Fixture| {
        [call_at(1, 1), call_at(2, 1), call_at(1, 2)]
            .map(|limited_call| fixture.call(&limited_call, 5))
            .join(" ")
    };
    assert_eq!(outcomes(&by_address), ". . .");
    assert_eq!(outcomes(&by_network), ". x .");
    assert_eq!(by_network.calls(&limited_call("eth_call"), 5, 2), ". x");
}

#[test]
fn limits_apply_by_chain_and_method_and_only_the_first_limit_of_a_zone_applies() {
    let fixture = Fixture::new(
        "[zone.z]\nkey = [\"client\"]\nrate = \"1r/s\"\n\
         [[limit]]\nzone = \"z\"\nmethods = [\"eth_getLogs\", \"debug_*\"]\nburst = 1\nnodelay = true\n\
         [[limit]]\nzone = \"z\"\nchain = \"eth\"\nburst = 3\nnodelay = true\n",
    );
    assert_eq!(fixture.calls(&limited_call("eth_getLogs"), 0, 3), ". . x");
    assert_eq!(fixture.calls(&limited_call("debug_any"), 0, 1), "x");
    // The second limit counts in the same zone and key. Its burst allows four calls at once, and
    // the first limit has already let two pass.
    assert_eq!(fixture.calls(&limited_call("eth_call"), 0, 3), ". . x");
    let side = LimitedCall { chain: 1, chain_name: "side", ..limited_call("eth_call") };
    assert_eq!(fixture.calls(&side, 0, 9), ". . . . . . . . .", "no limit applies to this chain");
}

#[test]
fn a_call_is_charged_to_all_zones_or_to_none() {
    let fixture = Fixture::new(
        "[zone.a]\nkey = [\"client\"]\nrate = \"1r/s\"\n[zone.b]\nkey = [\"client\"]\nrate = \"10r/s\"\n\
         [[limit]]\nzone = \"a\"\nburst = 10\nnodelay = true\n[[limit]]\nzone = \"b\"\n",
    );
    let client = limited_call("eth_call");
    // The second zone rejects most calls; the first must not be charged for them.
    for now in 0..1000 {
        fixture.call(&client, now);
    }
    assert_eq!(fixture.outcomes(0), [10, 0, 0, 0, 0]);
    assert_eq!(fixture.outcomes(1), [10, 0, 990, 0, 0]);
}

#[test]
fn a_dry_run_counts_outcomes_and_rejects_no_call() {
    let fixture = Fixture::new(
        "[zone.a]\nkey = [\"client\"]\nrate = \"1r/s\"\n[zone.b]\nkey = [\"client\"]\nrate = \"1r/s\"\n\
         [[limit]]\nzone = \"a\"\nburst = 5\n\
         [[limit]]\nzone = \"b\"\nburst = 1\ndry_run = true\n",
    );
    assert_eq!(fixture.calls(&limited_call("eth_call"), 0, 7), ". 1000 2000 3000 4000 5000 x");
    assert_eq!(fixture.outcomes(0), [1, 5, 1, 0, 0]);
    assert_eq!(fixture.outcomes(1), [1, 0, 0, 1, 4]);
    assert!(fixture.limits.delays);
}

#[test]
fn a_call_may_count_as_its_weight() {
    let fixture = Fixture::new(
        "[zone.z]\nkey = [\"client\"]\nrate = \"10r/s\"\ncost = \"weight\"\n\
         [[limit]]\nzone = \"z\"\nburst = 1000\nnodelay = true\n",
    );
    let heavy = limited_call("eth_getLogs");
    let weight = u64::from(heavy.method.unwrap().weight);
    assert!(weight > 1);
    let calls = 1001 / weight;
    for _ in 0..calls {
        assert_eq!(fixture.call(&heavy, 0), ".");
    }
    assert_eq!(fixture.call(&heavy, 0), "x");
    let Charge::Refuse(failure) = fixture.limits.charge(&heavy, 0, &fixture.counters) else {
        panic!("it passed")
    };
    let expected = calls * weight + weight - 1001;
    assert_eq!(failure.retry_after, Some(Duration::from_millis(expected * 100)));
    assert_eq!(fixture.call(&heavy, expected * 100), ".");
}

#[test]
fn calls_in_flight_count_until_their_guard_is_dropped() {
    let fixture = Fixture::new(
        "[zone.a]\nkey = [\"client\"]\n[zone.b]\nkey = [\"method\"]\n[zone.c]\nkey = [\"client\"]\n\
         [[limit]]\nzone = \"a\"\nconcurrent = 3\n\
         [[limit]]\nzone = \"b\"\nconcurrent = 2\nmethods = [\"eth_call\"]\nstatus = 503\n\
         [[limit]]\nzone = \"c\"\nconcurrent = 1\ndry_run = true\n",
    );
    let enter = |name| fixture.limits.count_in_flight(&limited_call(name), &fixture.counters);
    let first = enter("eth_call").unwrap();
    let second = enter("eth_call").unwrap();
    let refused = enter("eth_call").unwrap_err();
    assert_eq!(refused.kind, FailureKind::OverConcurrency { status: 503 });
    // The rejected call does not stay counted in zone a, which had accepted it.
    let third = enter("eth_chainId").unwrap();
    assert!(enter("eth_chainId").is_err());
    drop(second);
    let fourth = enter("eth_call").unwrap();
    assert!(enter("eth_chainId").is_err());
    drop((first, third, fourth));
    let keys: Vec<u64> = fixture.limits.fills().iter().map(|fill| fill.keys).collect();
    assert_eq!(keys, [0, 0, 0], "a key was not removed");
    assert_eq!(fixture.outcomes(2), [1, 0, 0, 0, 3]);
}

#[test]
fn threads_count_in_one_zone_exactly() {
    let fixture = Fixture::new(
        "[zone.a]\nkey = [\"client\"]\nrate = \"1r/s\"\nbytes = \"8MiB\"\n\
         [zone.b]\nkey = [\"client\", \"method\"]\nrate = \"1r/s\"\nbytes = \"8MiB\"\n\
         [[limit]]\nzone = \"b\"\nmethods = [\"eth_*\"]\nburst = 299\nnodelay = true\n\
         [[limit]]\nzone = \"a\"\nburst = 499\nnodelay = true\n\
         [[limit]]\nzone = \"b\"\nburst = 299\nnodelay = true\n",
    );
    let passed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (limits, passed) = (&fixture.limits, &passed);
            scope.spawn(move || {
                let counters = counters(2);
                // Calls use the two zones in both orders, so a deadlock would hang here.
                for call in 0..2000 {
                    let name = ["eth_call", "net_version"][(call + thread) % 2];
                    if matches!(limits.charge(&limited_call(name), 0, &counters), Charge::Pass) {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    // Zone a has one key: its first call passes, and 499 further calls fit into the burst.
    assert_eq!(passed.load(Ordering::Relaxed), 500);
}

#[test]
fn a_zone_evicts_old_keys_when_its_memory_is_full() {
    let fixture = Fixture::new(
        "[zone.z]\nkey = [\"client\"]\nrate = \"1r/m\"\nbytes = \"32KiB\"\n[[limit]]\nzone = \"z\"\n",
    );
    let victim = limited_call("eth_call");
    assert_eq!(fixture.call(&victim, 0), ".");
    for number in 0..2000u64 {
        let client = IpAddr::V4(Ipv4Addr::from(0x0b00_0000 + number as u32));
        assert_eq!(fixture.call(&LimitedCall { client, ..victim }, number), ".");
        // A client that is always rejected stays limited, however many others come.
        assert_eq!(fixture.call(&victim, number), "x", "forgotten after {number}");
    }
    let fill = fixture.limits.fills()[0];
    assert_eq!(fill.keys as usize, (32 << 10) / ZONE_BYTES_PER_KEY);
    assert_eq!(fill.keys + fill.evicted, 2001);
}

#[test]
fn a_reload_keeps_the_state_of_zones() {
    let text = |key: &str, rate: &str, more: &str| {
        format!(
            "[zone.a]\nkey = [\"{key}\"]\n{rate}\n[[limit]]\nzone = \"a\"\n\
             {more}\n[zone.b]\nkey = [\"header:y\"]\n[[limit]]\nzone = \"b\"\nconcurrent = 1\n"
        )
    };
    let first = config(&text("client", "rate = \"1r/s\"", "burst = 1\nnodelay = true"));
    let before = Limits::new(None, &first, &one_gateway()).unwrap();
    let counters = counters(2);
    let headers = [Some(SmallVec::from_slice(b"k")), None];
    let limited_call = LimitedCall { headers: &headers, ..limited_call("eth_call") };
    let pass = |limits: &Limits| matches!(limits.charge(&limited_call, 0, &counters), Charge::Pass);
    assert!(pass(&before) && pass(&before) && !pass(&before));
    let in_flight = before.count_in_flight(&limited_call, &counters).unwrap();
    // The rate and burst change, and another header precedes the key's header in the list.
    let second = text("client", "rate = \"2r/s\"", "burst = 2\nnodelay = true");
    let second = config(&format!(
        "[zone.other]\nkey = [\"header:x\"]\nrate = \"9r/s\"\n[[limit]]\nzone = \"other\"\n{second}"
    ));
    let after = Limits::new(Some((&before, &first)), &second, &one_gateway()).unwrap();
    let headers = [Some(SmallVec::from_slice(b"x")), Some(SmallVec::from_slice(b"k"))];
    let call_after_reload = LimitedCall { headers: &headers, ..limited_call };
    let counts = self::counters(3);
    let pass =
        |limits: &Limits| matches!(limits.charge(&call_after_reload, 0, &counts), Charge::Pass);
    assert!(!after.chains[0].rates.is_empty());
    assert!(pass(&after), "the larger burst has room for one more");
    assert!(!pass(&after), "the reload lost earlier charges");
    assert!(
        after.count_in_flight(&call_after_reload, &counts).is_err(),
        "the reload lost calls in flight"
    );
    drop(in_flight);
    assert!(after.count_in_flight(&call_after_reload, &counts).is_ok());
    // A zone with another key is a new zone.
    let third = config(&text("method", "rate = \"1r/s\"", "burst = 1\nnodelay = true"));
    let after = Limits::new(Some((&before, &first)), &third, &one_gateway()).unwrap();
    assert!(matches!(after.charge(&limited_call, 0, &counters), Charge::Pass));
}

const KEYS: &str = "\
[[key]]
name = \"slow\"
secret = \"a long enough secret\"
[[key]]
name = \"fast\"
secret = \"another long secret\"
rate = \"100r/s\"
burst = 2
";

#[test]
fn calls_count_by_key_and_a_key_may_have_its_own_rate_and_burst() {
    let text = format!(
        "{KEYS}[zone.z]\nkey = [\"key\"]\nrate = \"1r/s\"\n[zone.c]\nkey = [\"client\"]\nrate = \"9r/s\"\n\
         [[limit]]\nzone = \"z\"\nnodelay = true\n[[limit]]\nzone = \"c\"\nburst = 90\nnodelay = true\n"
    );
    let fixture = Fixture::new(&text);
    let config = config(&text);
    let call_with_key = |key_index: usize| LimitedCall {
        grant: Some(&*config.access.keys[key_index].grant),
        ..limited_call("eth_call")
    };
    assert_eq!(fixture.calls(&call_with_key(0), 0, 3), ". x x");
    assert_eq!(fixture.calls(&call_with_key(1), 0, 5), ". . . x x");
    // The key's own rate applies instead of the zone's.
    assert_eq!(fixture.calls(&call_with_key(1), 20, 3), ". . x");
    assert_eq!(fixture.calls(&call_with_key(0), 20, 1), "x");
    let Charge::Refuse(failure) = fixture.limits.charge(&call_with_key(1), 20, &fixture.counters)
    else {
        panic!("it passed")
    };
    assert_eq!(failure.retry_after, Some(Duration::from_millis(10)));
    // A zone that does not count by key keeps its own rate for all.
    assert_eq!(fixture.outcomes(1)[0], 6);
    // A call without a key is not limited.
    assert_eq!(fixture.calls(&limited_call("eth_call"), 20, 5), ". . . . .");
}

#[test]
fn a_call_without_a_key_counts_by_the_other_parts() {
    let fixture = Fixture::new(
        "[zone.z]\nkey = [\"key\", \"method\"]\nrate = \"1r/s\"\n[[limit]]\nzone = \"z\"\n",
    );
    assert_eq!(fixture.calls(&limited_call("eth_call"), 0, 2), ". x");
    assert_eq!(fixture.calls(&limited_call("eth_chainId"), 0, 2), ". x");
}

/// Returns the errors and warnings about limits.
fn diagnostics(text: &str) -> String {
    match Config::from_text("test", &format!("{UPSTREAMS}{text}"), Path::new(""), &|_| None) {
        Ok(config) => config.warnings.to_string(),
        Err(faults) => faults.to_string(),
    }
}

#[test]
fn impossible_shared_zones_are_reported() {
    let zone =
        "[zone.a]\nkey = [\"chain\"]\nrate = \"1r/s\"\nshared = true\n[[limit]]\nzone = \"a\"\n";
    let redis = "[redis]\nurl = \"redis://127.0.0.1\"\n";
    let cluster = "[redis]\nurl = \"redis-cluster://127.0.0.1\"\ngateways = 2\n";
    let second = |methods: &str| {
        format!(
            "[zone.b]\nkey = [\"chain\"]\nrate = \"1r/s\"\nshared = true\n[[limit]]\nzone = \"b\"\n{methods}"
        )
    };
    for (text, expected) in [
        (zone.to_owned(), "there is no redis to share it through"),
        (format!("{cluster}{zone}{}", second("")), "may count in both shared zones a and b"),
        (
            format!(
                "{cluster}{zone}methods = [\"eth_*\"]\n{}",
                second("methods = [\"eth_call\"]\n")
            ),
            "whose keys lie on different nodes",
        ),
        (
            format!("{redis}gateways = 2\n{zone}[[limit]]\nzone = \"a\"\ndry_run = true\n"),
            "one limit of this shared zone is a dry run and another is not",
        ),
        (
            format!(
                "{redis}gateways = 2\n[zone.a]\nkey = [\"chain\"]\nshared = true\n[[limit]]\nzone = \"a\"\nconcurrent = 1\n"
            ),
            "each gateway counts calls in flight on its own",
        ),
        (format!("{redis}responses = false\n"), "so it is not used"),
        (KEYS.to_owned(), "key fast has its own rate or burst, but no limit counts by key"),
    ] {
        let diagnostics = diagnostics(&text);
        assert!(diagnostics.contains(expected), "{text}\n{diagnostics}");
    }
    let fine = [
        format!("{redis}gateways = 2\n{zone}{}", second("")),
        format!("{cluster}{zone}methods = [\"eth_*\"]\n{}", second("methods = [\"net_*\"]\n")),
        format!("{cluster}{zone}chain = \"eth\"\n{}", second("chain = \"side\"\n")),
        format!("{redis}gateways = 2\nresponses = false\n{zone}"),
        format!("{redis}responses = false\n{zone}"),
        format!("{redis}gateways_assumed = 4\nresponses = false\n{zone}"),
    ];
    for text in fine {
        let diagnostics = diagnostics(&text);
        assert!(
            !diagnostics.contains("zone") && !diagnostics.contains("redis"),
            "{text}\n{diagnostics}"
        );
    }
}

#[test]
fn a_client_with_too_many_failures_is_rejected_early() {
    let fixture = Fixture::new(
        "[zone.z]\nkey = [\"client-net\"]\nrate = \"6r/m\"\n\
         [[limit]]\nzone = \"z\"\nfailures = true\nburst = 2\n",
    );
    let check_failures =
        |client, now| fixture.limits.check_failures(client, now, &fixture.counters);
    let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    for _ in 0..3 {
        assert!(check_failures(CLIENT_V4, 0).is_ok(), "a client without failures is not limited");
        assert!(check_failures(CLIENT_V4, 0).is_ok());
        fixture.limits.record_failure(CLIENT_V4, 0, &fixture.counters);
    }
    let refused = check_failures(CLIENT_V4, 0).unwrap_err();
    assert_eq!(refused.retry_after, Some(Duration::from_secs(10)));
    assert!(check_failures(other, 0).is_ok());
    assert!(check_failures(CLIENT_V4, 9_999).is_err());
    assert!(check_failures(CLIENT_V4, 10_000).is_ok());
    assert_eq!(
        fixture.calls(&limited_call("eth_call"), 0, 9),
        ". . . . . . . . .",
        "calls are free"
    );
    assert_eq!(fixture.outcomes(0), [3, 0, 2, 0, 0]);
    for (more, expected) in [
        ("methods = [\"eth_call\"]\n", "no methods"),
        ("chain = \"eth\"\n", "no chain"),
        ("dry_run = true\n", "allowed: false"),
    ] {
        let text = format!(
            "[zone.z]\nkey = [\"client\"]\nrate = \"1r/s\"\n[[limit]]\nzone = \"z\"\nfailures = true\n{more}"
        );
        assert!(diagnostics(&text).contains(expected), "{more}{}", diagnostics(&text));
    }
    let text =
        "[zone.z]\nkey = [\"key\"]\nrate = \"1r/s\"\n[[limit]]\nzone = \"z\"\nfailures = true\n";
    assert!(diagnostics(text).contains("client-net alone"));
    // Failed authentications have no weight, so none of them weighs more than the burst.
    let text = "[zone.z]\nkey = [\"client\"]\nrate = \"1r/s\"\ncost = \"weight\"\n\
                [[limit]]\nzone = \"z\"\nfailures = true\nburst = 1\n";
    assert!(!diagnostics(text).contains("weigh more"), "{}", diagnostics(text));
}
