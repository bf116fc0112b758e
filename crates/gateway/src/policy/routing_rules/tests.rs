//! Goal: a rule matches exactly what it describes, and the first match decides. Method: one rule
//! with one condition at a time, then several rules in a row.

use super::*;

fn rule(action: Action) -> Rule {
    Rule {
        name: "r".into(),
        hosts: Vec::new(),
        path: None,
        headers: Vec::new(),
        keys: Vec::new(),
        tiers: Vec::new(),
        methods: MethodSet::default(),
        params: None,
        first_param: None,
        share: SHARE_ALL,
        share_of: ShareOf::Client,
        action,
    }
}

fn deny() -> Rule {
    rule(Action::Deny { status: 403, message: "no".into() })
}

fn call<'a>(method: &'a str, params: &'a str) -> RequestFacts<'a> {
    RequestFacts {
        host: "Rpc.example",
        path: "/v1/eth",
        headers: &[],
        key: Some("alice"),
        tier: Some("gold"),
        client: 7,
        call: Some(CallFacts { method, params: params.as_bytes() }),
    }
}

fn decide(rules: &[Rule], facts: &RequestFacts<'_>) -> RouteDecision {
    apply_rules(rules, facts, |_| Some(0)).decision
}

#[test]
fn each_condition_must_hold() {
    let facts = call("eth_getLogs", r#"["0xab",1]"#);
    let matches = |rule: Rule| decide(&[rule], &facts) == RouteDecision::Deny(0);
    assert!(matches(deny()));
    for (host, expected) in
        [("rpc.example", true), ("*.example", true), ("*.rpc.example", false), ("example", false)]
    {
        assert_eq!(matches(Rule { hosts: vec![host.into()], ..deny() }), expected, "{host}");
    }
    for (path, expected) in
        [("/v1", true), ("/", true), ("/v1/eth", true), ("/v", false), ("/v1/eth/x", false)]
    {
        assert_eq!(matches(Rule { path: Some(path.into()), ..deny() }), expected, "{path}");
    }
    for (key, expected) in [("alice", true), ("bob", false)] {
        assert_eq!(matches(Rule { keys: vec![key.into()], ..deny() }), expected, "{key}");
    }
    for (tier, expected) in [("gold", true), ("free", false)] {
        assert_eq!(matches(Rule { tiers: vec![tier.into()], ..deny() }), expected, "{tier}");
    }
    for (method, expected) in [("eth_getLogs", true), ("eth_*", true), ("debug_*", false)] {
        assert_eq!(
            matches(Rule { methods: MethodSet::new([method]), ..deny() }),
            expected,
            "{method}"
        );
    }
    for (start, expected) in [(r#"["0xa"#, true), ("[", true), ("{", false)] {
        assert_eq!(matches(Rule { params: Some(start.into()), ..deny() }), expected, "{start}");
    }
    for (first, expected) in [("0xab", true), ("0xa", false), (r#""0xab""#, false)] {
        assert_eq!(
            matches(Rule { first_param: Some(first.into()), ..deny() }),
            expected,
            "{first}"
        );
    }
}

#[test]
fn headers_match_as_a_whole_or_by_prefix() {
    let headers = [Some(Box::from(&b"mobile/1.2"[..])), None];
    let facts = RequestFacts { headers: &headers, ..call("eth_call", "[]") };
    for (index, value, prefix, expected) in [
        (0, "mobile/1.2", false, true),
        (0, "mobile", false, false),
        (0, "mobile", true, true),
        (0, "desktop", true, false),
        (1, "", true, false),
        (2, "", true, false),
    ] {
        let test = HeaderCondition { index, value: value.into(), prefix };
        let matches = decide(&[Rule { headers: vec![test.clone()], ..deny() }], &facts)
            == RouteDecision::Deny(0);
        assert_eq!(matches, expected, "{test:?}");
    }
}

#[test]
fn the_first_match_decides_and_later_rules_match_the_rewritten_path() {
    let rewrite = Rule { path: Some("/v1".into()), ..rule(Action::Rewrite("/".into())) };
    let group = Rule { path: Some("/eth".into()), ..rule(Action::Group(vec![None, Some(4)])) };
    let rules = [rewrite, group, deny()];
    let facts = call("eth_call", "[]");
    let chain_at = |path: &str| (path == "/eth").then_some(1);
    let result = apply_rules(&rules, &facts, chain_at);
    assert_eq!((&*result.path, result.decision), ("/eth", RouteDecision::Group(4)));
    assert_eq!(result.matched, [0, 1]);
    // The rule skips a chain without such a group.
    assert_eq!(apply_rules(&rules, &facts, |_| Some(0)).decision, RouteDecision::Deny(2));
    let root = RequestFacts { path: "/v1", ..facts };
    assert_eq!(apply_rules(&rules[..1], &root, |_| None).path, "/");
    assert_eq!(apply_rules(&[], &facts, |_| None).decision, RouteDecision::Undecided);
}

#[test]
fn a_rule_about_calls_does_not_match_a_path_alone() {
    let facts = RequestFacts { call: None, ..call("", "") };
    assert_eq!(
        decide(&[Rule { methods: MethodSet::new(["*"]), ..deny() }], &facts),
        RouteDecision::Undecided
    );
    assert_eq!(decide(&[deny()], &facts), RouteDecision::Deny(0));
}

#[test]
fn a_share_has_its_configured_size_and_is_stable() {
    for share_of in [ShareOf::Client, ShareOf::Call] {
        let rules = [Rule { share: 2500, share_of, ..deny() }];
        let mut within = 0;
        for number in 0..4000_u64 {
            let params = format!("[{number}]");
            let facts =
                RequestFacts { client: hash64(&number.to_le_bytes()), ..call("eth_call", &params) };
            let matches = decide(&rules, &facts) == RouteDecision::Deny(0);
            assert_eq!(matches, decide(&rules, &facts) == RouteDecision::Deny(0));
            within += u32::from(matches);
        }
        // Four standard deviations around a quarter of 4,000.
        assert!((890..=1110).contains(&within), "{within} of 4000 by {share_of:?}");
    }
    assert_eq!(
        decide(&[Rule { share: 0, ..deny() }], &call("eth_call", "[]")),
        RouteDecision::Undecided
    );
}
