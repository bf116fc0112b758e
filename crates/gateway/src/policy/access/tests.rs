//! Goal: each list takes effect, and no list can be bypassed through another one. Method: one
//! caller and one call at a time, with every list in turn.

use super::*;

fn set(patterns: &[&str]) -> MethodSet {
    MethodSet::new(patterns.iter().copied())
}

fn rules(allow: &[&str], deny: &[&str]) -> MethodRules {
    MethodRules { allow: set(allow), deny: set(deny) }
}

fn networks(list: &[&str]) -> Networks {
    Networks(list.iter().map(|text| text.parse().unwrap()).collect())
}

fn grant() -> Grant {
    Grant {
        name: "k".into(),
        index: 0,
        tier: None,
        is_token: false,
        methods: MethodRules::default(),
        node_methods: MethodSet::default(),
        transactions: None,
        chains: None,
        clients: Networks::default(),
        expires: None,
        rate: None,
        burst: None,
        quota: None,
    }
}

fn open() -> Policy {
    Policy { transactions: true, ..Policy::default() }
}

fn check_method(
    method: &str,
    effect: Effect,
    policy: &Policy,
    grant: Option<&Grant>,
) -> Result<(), MethodRefusal> {
    let (chain, group_deny) = (&MethodRules::default(), &MethodSet::default());
    check_call(&MethodCheck { method, effect, policy, chain, group_deny, grant })
}

#[test]
fn patterns_match_names_and_prefixes() {
    let some = set(&["eth_call", "debug_*"]);
    for (method, expected) in [
        ("eth_call", true),
        ("eth_callMany", false),
        ("eth_cal", false),
        ("debug_", true),
        ("debug_traceCall", true),
        ("Debug_traceCall", true),
        ("ETH_CALL", true),
        ("", false),
    ] {
        assert_eq!(some.has(method), expected, "{method}");
    }
    assert!(set(&["*"]).has("") && set(&["*"]).has("x"));
    assert!(!set(&[]).has("x"));
}

#[test]
fn deny_takes_precedence_over_allow() {
    let both = rules(&["eth_*"], &["eth_call"]);
    assert!(both.allows("eth_chainId") && !both.allows("eth_call") && !both.allows("net_version"));
    assert!(rules(&[], &[]).allows("x") && rules(&[], &["y"]).allows("x"));
}

#[test]
fn addresses_are_allowed_by_network() {
    let both = AddressRules {
        allow: networks(&["10.0.0.0/8", "::1/128"]),
        deny: networks(&["10.1.0.0/16"]),
    };
    for (address, expected) in [
        ("10.2.3.4", true),
        ("10.1.3.4", false),
        ("11.0.0.1", false),
        ("::1", true),
        ("::2", false),
    ] {
        assert_eq!(both.allows(address.parse().unwrap()), expected, "{address}");
    }
    assert!(AddressRules::default().allows("1.2.3.4".parse().unwrap()));
}

#[test]
fn a_key_is_valid_until_it_expires_and_only_in_its_networks() {
    let home = "10.0.0.1".parse().unwrap();
    let key = Grant { expires: Some(100), clients: networks(&["10.0.0.0/8"]), ..grant() };
    assert_eq!(check_grant(&key, home, || 99), Ok(()));
    assert_eq!(check_grant(&key, home, || 100), Err(Denial::Expired));
    assert_eq!(check_grant(&key, "11.0.0.1".parse().unwrap(), || 99), Err(Denial::Address));
    assert_eq!(check_grant(&grant(), home, || panic!("the clock is not needed")), Ok(()));
}

#[test]
fn methods_that_administer_the_node_must_be_named() {
    let admin_call = |policy: &Policy, grant: Option<&Grant>| {
        check_method("admin_peers", Effect::Node, policy, grant)
    };
    assert_eq!(admin_call(&open(), None), Err(MethodRefusal::NodeMethods));
    // A list that allows everything does not name the method.
    let all = Policy { methods: rules(&["*"], &[]), ..open() };
    assert_eq!(admin_call(&all, None), Err(MethodRefusal::NodeMethods));
    let named = Policy { node_methods: set(&["admin_peers"]), ..open() };
    assert_eq!(admin_call(&named, None), Ok(()));
    let key = Grant { node_methods: set(&["admin_*"]), ..grant() };
    assert_eq!(admin_call(&open(), Some(&key)), Ok(()));
    assert_eq!(admin_call(&open(), Some(&grant())), Err(MethodRefusal::NodeMethods));
    // The method is named, but another list denies it.
    let denied = Policy { methods: rules(&[], &["admin_*"]), ..named };
    assert_eq!(admin_call(&denied, None), Err(MethodRefusal::Deny));
}

#[test]
fn a_key_may_allow_or_deny_transactions() {
    let send = |policy: &Policy, transactions: Option<bool>| {
        let key = Grant { transactions, ..grant() };
        check_method("eth_sendRawTransaction", Effect::Transaction, policy, Some(&key))
    };
    let off = Policy { transactions: false, ..open() };
    assert_eq!(send(&open(), None), Ok(()));
    assert_eq!(send(&open(), Some(false)), Err(MethodRefusal::KeyTransactions));
    assert_eq!(send(&off, None), Err(MethodRefusal::Transactions));
    assert_eq!(send(&off, Some(true)), Ok(()));
}

#[test]
fn every_list_must_allow_a_method() {
    let (method, effect) = ("eth_call", Effect::Read);
    let (open, none, deny) = (MethodRules::default(), MethodSet::default(), set(&["eth_call"]));
    let other = rules(&["eth_chainId"], &[]);
    let policy = self::open();
    let check = MethodCheck {
        method,
        effect,
        policy: &policy,
        chain: &open,
        group_deny: &none,
        grant: None,
    };
    assert_eq!(check_call(&check), Ok(()));
    let denying = rules(&[], &["eth_call"]);
    let with_chain = |chain| check_call(&MethodCheck { chain, ..check });
    assert_eq!(with_chain(&other), Err(MethodRefusal::ChainAllow));
    assert_eq!(with_chain(&denying), Err(MethodRefusal::ChainDeny));
    let refusal = check_call(&MethodCheck { group_deny: &deny, ..check });
    assert_eq!(refusal, Err(MethodRefusal::GroupDeny));
    let with_policy = |methods: &MethodRules| {
        let policy = Policy { methods: methods.clone(), ..self::open() };
        check_call(&MethodCheck { policy: &policy, ..check })
    };
    assert_eq!(with_policy(&other), Err(MethodRefusal::Allow));
    assert_eq!(with_policy(&denying), Err(MethodRefusal::Deny));
    let with_grant = |methods: &MethodRules, is_token| {
        let grant = Grant { methods: methods.clone(), is_token, ..grant() };
        check_call(&MethodCheck { grant: Some(&grant), ..check })
    };
    assert_eq!(with_grant(&other, false), Err(MethodRefusal::KeyAllow));
    assert_eq!(with_grant(&denying, false), Err(MethodRefusal::KeyDeny));
    assert_eq!(with_grant(&other, true), Err(MethodRefusal::TokenClaim));
}

#[test]
fn subscriptions_are_known_by_their_names() {
    for name in ["eth_subscribe", "eth_unsubscribe", "hmy_subscribe"] {
        assert!(is_subscription_method(name), "{name}");
    }
    for name in ["eth_subscribed", "subscribe", "eth_newFilter", ""] {
        assert!(!is_subscription_method(name), "{name}");
    }
}

#[test]
fn only_some_ethereum_filters_can_be_the_gateways_own() {
    let is_gateways = |family, method| is_own_filter_method(family, method);
    assert!(is_gateways(Family::Ethereum, "eth_newFilter"));
    assert!(is_gateways(Family::Ethereum, "eth_getFilterChanges"));
    assert!(
        !is_gateways(Family::Ethereum, "eth_newPendingTransactionFilter"),
        "only upstreams know"
    );
    assert!(!is_gateways(Family::Harmony, "hmy_newFilter"));
}
