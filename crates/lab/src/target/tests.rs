//! Goal: a probe identifies nodes of each family, and fetches only the chain data that a plan
//! needs. Method: fake nodes.

use lab_model::plan::{Draw, Piece, Plan, RecordedRequest, Step, Template, Tls, WeightedCall};
use lab_model::samples;
use serde_json::{Value, json};

use super::client::tests::{Fake, http};
use super::{Reason, detect_family, probe};
use wire::family::Family;

/// Starts a fake node. `result_of` returns the result of a method with parameters. `None` becomes
/// the error -32601.
fn node(result_of: impl Fn(&str, &Value) -> Option<Value> + Send + 'static) -> Fake {
    Fake::responding(move |request| {
        let (_, body) = request.split_once("\r\n\r\n")?;
        let call: Value = serde_json::from_str(body).ok()?;
        let response = match result_of(call["method"].as_str()?, &call["params"]) {
            Some(result) => json!({"jsonrpc": "2.0", "id": 1, "result": result}),
            None => {
                json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "what?"}})
            }
        };
        Some(http("200 OK", &response.to_string()))
    })
}

/// Returns the results of an Ethereum node whose head is block 100.
fn ethereum(method: &str, params: &Value) -> Option<Value> {
    let transaction = |n: u64| json!({"hash": format!("0xt{n}"), "from": "0xaa", "to": null});
    match method {
        "web3_clientVersion" => Some("Geth/v1".into()),
        "eth_chainId" => Some("0x1".into()),
        "eth_blockNumber" => Some("0x64".into()),
        "eth_getBlockByNumber" => {
            let height =
                u64::from_str_radix(params[0].as_str()?.trim_start_matches("0x"), 16).ok()?;
            let full = params[1].as_bool()?;
            let list = if full { json!([transaction(height)]) } else { json!(["0xbad"]) };
            Some(json!({"hash": format!("0xb{height}"), "transactions": list}))
        }
        _ => None,
    }
}

/// Creates a plan with one call whose parameters are drawn.
fn plan(fake: &Fake, draws: Vec<Draw>) -> Plan {
    let mut plan = samples::open(1.0, 1, &["eth_call"]);
    plan.target = fake.target();
    let params = draws.into_iter().map(Piece::Draw).collect();
    let call = WeightedCall { weight: 1.0, template: Template { method: 0, params } };
    plan.mixes[0].steps = vec![Step::Choose(vec![call])];
    plan
}

#[test]
fn an_ethereum_node_is_identified_and_only_drawn_data_is_fetched() {
    let fake = node(ethereum);
    let probed = probe(&plan(&fake, Vec::new())).unwrap();
    let facts = probed.facts;
    assert_eq!((facts.family.as_str(), facts.client.as_deref()), ("ethereum", Some("Geth/v1")));
    assert_eq!((facts.chain_id.as_deref(), facts.head_start), (Some("0x1"), Some(100)));
    assert_eq!(probed.chain.head, 100);
    assert!(probed.chain.block_hashes.is_empty() && !probed.chain.has_decimal_numbers);

    let hashes = probe(&plan(&fake, vec![Draw::BlockHash])).unwrap().chain;
    assert_eq!(hashes.block_hashes.len(), 64);
    assert_eq!(&*hashes.block_hashes[0], "0xb100", "newest first");

    let drawn = vec![Draw::TransactionHash, Draw::Address(Vec::new())];
    let chain = probe(&plan(&fake, drawn)).unwrap().chain;
    assert_eq!((chain.transaction_hashes.len(), chain.addresses.len()), (16, 1));
}

#[test]
fn a_young_chain_and_a_head_of_zero_are_fine() {
    let fake = node(|method, params| match method {
        "eth_blockNumber" => Some("0x0".into()),
        other => ethereum(other, params),
    });
    let chain = probe(&plan(&fake, vec![Draw::BlockHash])).unwrap().chain;
    assert_eq!(chain.block_hashes, [Box::from("0xb0")]);
}

#[test]
fn harmony_is_distinguished_from_a_node_that_has_both_kinds_of_methods() {
    // A node with the methods of Ethereum and of Harmony.
    let node_with_both = |client: &'static str, id: &'static str| {
        node(move |method, params| match method {
            "web3_clientVersion" => Some(client.into()),
            "eth_chainId" => Some(id.into()),
            "hmyv2_blockNumber" => Some(77.into()),
            "hmyv2_getBlockByNumber" => {
                let transactions = json!([{"hash": "0xt", "from": "one1a", "to": "one1b"}]);
                Some(json!({"hash": format!("0xb{}", params[0]), "transactions": transactions}))
            }
            other => ethereum(other, params),
        })
    };
    let family_of = |fake: &Fake| detect_family(&fake.target(), &Tls::default()).unwrap();
    assert_eq!(family_of(&node_with_both("Harmony/v1", "0x1")), Family::Harmony);
    let by_chain_id = family_of(&node_with_both("Geth/v1", "0x63564c40"));
    assert_eq!(by_chain_id, Family::Harmony, "by its chain id");
    assert_eq!(family_of(&node_with_both("Geth/v1", "0x1")), Family::Ethereum);
    let fake = node_with_both("Harmony/v1", "0x63564c40");
    let chain = probe(&plan(&fake, vec![Draw::Address(Vec::new())])).unwrap().chain;
    assert_eq!((chain.head, chain.has_decimal_numbers), (77, true));
    assert_eq!(chain.addresses, [Box::from("one1a"), "one1b".into()]);
}

#[test]
fn bitcoin_is_known_by_its_block_count() {
    let fake = node(|method, params| match method {
        "getblockcount" => Some(3.into()),
        "getnetworkinfo" => Some(json!({"subversion": "/Satoshi:27/"})),
        "getblockhash" => Some(format!("00{}", params[0]).into()),
        "getblock" => Some(json!({"hash": params[0], "tx": [format!("f{}", params[0].as_str()?)]})),
        _ => None,
    });
    let probed = probe(&plan(&fake, vec![Draw::BlockHash, Draw::TransactionHash])).unwrap();
    assert_eq!(probed.facts.family, "bitcoin");
    assert_eq!(probed.facts.client.as_deref(), Some("/Satoshi:27/"));
    assert_eq!(probed.chain.block_hashes.len(), 4);
    assert_eq!(&*probed.chain.transaction_hashes[0], "f003");
}

#[test]
fn a_server_of_unknown_family_is_refused_only_if_the_plan_needs_chain_data() {
    let fake = node(|method, _| (method == "custom").then(|| true.into()));
    let fault = detect_family(&fake.target(), &Tls::default()).unwrap_err();
    let output = fault.to_string();
    assert!(output.contains("eth_chainId returned error -32601 (what?)"), "{output}");
    assert!(output.contains("--family"), "{output}");
    let fault = probe(&plan(&fake, vec![Draw::BlockHash])).unwrap_err();
    assert!(matches!(fault.reason, Reason::NoFamily { .. }), "{fault:?}");
    assert_eq!(probe(&plan(&fake, Vec::new())).unwrap().facts.family, "unknown");
}

#[test]
fn recorded_requests_run_against_any_http_server_with_a_warning() {
    let fake = Fake::responding(|_| Some(http("403 Forbidden", "not on the list")));
    let fault = probe(&plan(&fake, Vec::new())).unwrap_err();
    assert!(matches!(fault.reason, Reason::NotJsonRpc { status: 403, .. }), "{fault:?}");
    let mut replay = plan(&fake, Vec::new());
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"eth_call"}"#.to_vec().into();
    let recorded = RecordedRequest { method: 0, calls: 1, body, id: b"1".to_vec().into() };
    replay.mixes[0].steps = vec![Step::Replay(vec![recorded])];
    let probed = probe(&replay).unwrap();
    assert!(probed.warnings[0].contains("HTTP status 403"), "{:?}", probed.warnings);
    assert_eq!(probed.addresses.len(), 1);
}

#[test]
fn missing_chain_data_is_named() {
    let fake = node(|method, params| match method {
        "eth_getBlockByNumber" => Some(Value::Null),
        other => ethereum(other, params),
    });
    let fault = probe(&plan(&fake, vec![Draw::BlockHash])).unwrap_err();
    assert!(
        fault.to_string().ends_with(
            "the plan needs block hashes of its chain, but eth_getBlockByNumber returned null"
        ),
        "{fault}"
    );
}

#[test]
fn a_name_without_an_address_is_reported() {
    let mut target = node(ethereum).target();
    target.point_at("http://nowhere.invalid").unwrap();
    let fault = detect_family(&target, &Tls::default()).unwrap_err();
    assert_eq!(fault.reason, Reason::Resolve { host: "nowhere.invalid".to_owned() });
}

#[test]
fn values_that_need_escaping_in_json_are_dropped() {
    let fake = node(|method, params| match method {
        "eth_getBlockByNumber" => Some(json!({"hash": "\",\"x\":\"", "transactions": []})),
        other => ethereum(other, params),
    });
    assert!(probe(&plan(&fake, vec![Draw::BlockHash])).is_err());
}

/// Starts an Ethereum node with this head, whose blocks have no transactions, except for the block
/// `with_transaction`. `accounts` is the result of `eth_accounts`.
fn quiet_node(head: u64, with_transaction: Option<u64>, accounts: Option<Value>) -> Fake {
    node(move |method, params| match method {
        "eth_blockNumber" => Some(format!("{head:#x}").into()),
        "eth_accounts" => accounts.clone(),
        "eth_getBlockByNumber" => {
            let mut block = ethereum(method, params)?;
            let height = with_transaction.map(|height| format!("{height:#x}"));
            if height.as_deref() != params[0].as_str() {
                block["transactions"] = json!([]);
            }
            Some(block)
        }
        other => ethereum(other, params),
    })
}

#[test]
fn older_blocks_are_searched_if_recent_ones_have_no_transactions() {
    let drawn = || vec![Draw::TransactionHash, Draw::Address(Vec::new())];
    for with_transaction in [5_000 - 64, 5_000 - 1_024, 0] {
        let fake = quiet_node(5_000, Some(with_transaction), None);
        let probed = probe(&plan(&fake, drawn())).unwrap();
        assert_eq!(probed.chain.addresses, [Box::from("0xaa")], "block {with_transaction}");
        let hash = format!("0xt{with_transaction}");
        assert_eq!(probed.chain.transaction_hashes, [hash.into_boxed_str()]);
        assert_eq!(probed.chain.block_hashes.len(), 64, "only recent blocks");
        assert!(probed.reduced_plan.is_none() && probed.warnings.is_empty());
    }
}

#[test]
fn missing_addresses_are_replaced_by_accounts_of_the_node_or_the_zero_address() {
    let drawn = || vec![Draw::Address(Vec::new())];
    let fake = quiet_node(0, None, Some(json!(["0xacc1", "0xacc2"])));
    let probed = probe(&plan(&fake, drawn())).unwrap();
    assert_eq!(probed.chain.addresses, [Box::from("0xacc1"), "0xacc2".into()]);
    let [warning] = &probed.warnings[..] else { panic!("{:?}", probed.warnings) };
    assert!(warning.contains("about 2 accounts of the node itself (eth_accounts)"), "{warning}");

    for accounts in [None, Some(json!([])), Some(Value::Null)] {
        let fake = quiet_node(3, None, accounts);
        let probed = probe(&plan(&fake, drawn())).unwrap();
        let zero = "0x0000000000000000000000000000000000000000";
        assert_eq!(probed.chain.addresses, [Box::from(zero)]);
        assert!(probed.warnings[0].contains("the zero address"), "{:?}", probed.warnings);
    }
}

#[test]
fn calls_without_data_are_dropped_with_a_warning_and_the_others_keep_their_weights() {
    let fake = quiet_node(3, None, None);
    let mut plan = samples::open(1.0, 1, &["eth_chainId", "eth_getTransactionByHash", "eth_x"]);
    plan.target = fake.target();
    let call = |method, weight, draw: Option<Draw>| WeightedCall {
        weight,
        template: Template { method, params: draw.into_iter().map(Piece::Draw).collect() },
    };
    plan.mixes[0].steps = vec![
        Step::Choose(vec![call(1, 1.0, Some(Draw::TransactionHash))]),
        Step::Choose(vec![
            call(0, 2.0, None),
            call(1, 5.0, Some(Draw::TransactionHash)),
            call(2, 3.0, None),
        ]),
    ];
    let probed = probe(&plan).unwrap();
    let [warning] = &probed.warnings[..] else { panic!("{:?}", probed.warnings) };
    assert!(warning.contains("runs without eth_getTransactionByHash"), "{warning}");
    let reduced = probed.reduced_plan.expect("calls lack data");
    assert_eq!(reduced.methods, plan.methods, "the indexes of methods stay");
    assert_eq!(reduced.mixes[0].steps.len(), 1, "a step without calls is dropped");
    assert_eq!(reduced.shares().unwrap(), [0.4, 0.0, 0.6]);
}

#[test]
fn a_mix_that_has_no_call_left_is_refused_with_the_remedy() {
    let fake = quiet_node(3, None, None);
    let fault = probe(&plan(&fake, vec![Draw::TransactionHash])).unwrap_err();
    let message = fault.to_string();
    assert!(message.contains("draws transaction hashes"), "{message}");
    assert!(message.contains("send a transaction to the chain first"), "{message}");
}
