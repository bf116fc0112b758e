//! Goal: two calls have the same key if and only if they have the same meaning. Method: tables, and
//! random calls. A second, naive implementation describes the meaning of each random call as text.
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::call::{Body, Limits, decode};
use crate::family::Family;
use crate::json;
use crate::method::{Validity, methods_of};

fn row(name: &str) -> &'static Method {
    Family::ALL.iter().find_map(|family| methods_of(*family).method(name)).unwrap()
}

/// Returns the key of a call. `block` replaces the block that the call names.
fn key_at(name: &str, params: &str, block: Option<ResolvedBlock>) -> Result<Vec<u8>, KeyError> {
    let body = format!(r#"{{"method":"{name}","params":{params}}}"#);
    let Ok(Body::Single(Ok(call))) = decode(body.as_bytes(), &Limits::DEFAULT) else {
        panic!("{body}")
    };
    let mut out = Vec::new();
    let parts = KeyParts { chain: "one", method: row(name), params: &call.params, block };
    write_key(&mut out, &parts).map(|()| out)
}

fn key(name: &str, params: &str) -> Vec<u8> {
    key_at(name, params, None).unwrap()
}

const HASH: &str = "0xd226371d0b1551adb03fb52b71f08e3e11247fe9b1af994768af8cdaa8e7dcd7";

#[test]
fn calls_that_mean_the_same_share_a_key() {
    let by_hash = format!(r#"["0xab",{{"blockHash":"{HASH}"}}]"#);
    let bare = format!(r#"["0xab","{HASH}"]"#);
    for (name, a, b) in [
        ("eth_chainId", "[]", "null"),
        ("eth_chainId", "[ ]", "[]"),
        ("eth_getBalance", r#"["0xAB","0x10"]"#, r#"[ "0xab" , "\u0030x10" ]"#),
        ("eth_getBalance", r#"["0xab","0x10"]"#, r#"["0xab",{"blockNumber":"0x10"}]"#),
        ("eth_getBalance", &by_hash, &bare),
        (
            "eth_call",
            r#"[{"to":"0xAb","data":"0xCD"}]"#,
            r#"[{"data":"0xcd","t\u006f":"0xab"},"latest"]"#,
        ),
        ("eth_simulateV1", r#"[{"a":{"c":1,"b":[]}}]"#, r#"[{"a":{"b":[ ],"c":1}},"latest"]"#),
        ("hmyv2_getBlockByNumber", "[16,{}]", r#"["0x10",{}]"#),
        ("hmyv2_getBlockByNumber", r#"["16",{}]"#, "[16,{}]"),
        ("hmyv2_getBlockByNumber", "[-1,{}]", r#"["latest",{}]"#),
        ("eth_getLogs", r#"[{"address":["0xA","0xB"]}]"#, r#"[{"address":["0xb","0xa","0xB"]}]"#),
        ("eth_getLogs", r#"[{"address":"0xa"}]"#, r#"[{"address":["0xa"]}]"#),
        ("eth_getLogs", r#"[{"address":"0xa"}]"#, r#"[{"\u0061ddress":"0\u0078a"}]"#),
        ("eth_getLogs", r#"[{"topics":["0xa"]}]"#, r#"[{"topics":[["0xA"]]}]"#),
        (
            "eth_getLogs",
            r#"[{"topics":[null,["0xa","0xb"]]}]"#,
            r#"[{"topics":[null,["0xb","0xa"]]}]"#,
        ),
    ] {
        assert_eq!(key(name, a), key(name, b), "{name} {a} {b}");
    }
}

#[test]
fn calls_that_differ_have_their_own_keys() {
    let canonical = format!(r#"["0xab",{{"blockHash":"{HASH}","requireCanonical":true}}]"#);
    let bare = format!(r#"["0xab","{HASH}"]"#);
    let calls = [
        ("eth_chainId", "[]"),
        ("eth_chainId", "{}"),
        ("eth_chainId", "[[]]"),
        ("eth_chainId", "[null]"),
        ("net_version", "[]"),
        ("eth_getBalance", r#"["0xab","0x10"]"#),
        ("eth_getBalance", r#"["0xab","0x11"]"#),
        ("eth_getBalance", r#"["0xab","latest"]"#),
        ("eth_getBalance", r#"["0xab","safe"]"#),
        // The method has no default block.
        ("eth_getBalance", r#"["0xab"]"#),
        ("eth_getBalance", r#"["0xab",null]"#),
        ("eth_getBalance", r#"["0xab","0x010"]"#),
        ("eth_getBalance", &bare),
        ("eth_getBalance", &canonical),
        ("eth_call", r#"[{"to":"0xab"}]"#),
        ("eth_call", r#"[{"to":"0xab"},"latest",{}]"#),
        ("eth_call", r#"[{"to":"0xab"},null]"#),
        ("eth_getBlockByNumber", r#"["0x10",true]"#),
        ("eth_getBlockByNumber", r#"["0x10",false]"#),
        ("eth_getBlockByNumber", r#"["0x10","true"]"#),
        ("hmy_getBlockByNumber", "[16,true]"),
        ("hmyv2_getBlockByNumber", "[16,true]"),
        // The letter case of a bech32 address is significant.
        ("hmyv2_getBalance", r#"["one1AB"]"#),
        ("hmyv2_getBalance", r#"["one1ab"]"#),
        ("hmyv2_getBalance", r#"[1]"#),
        ("hmyv2_getBalance", r#"[1.0]"#),
        ("hmyv2_getBalance", r#"["1"]"#),
        ("eth_getLogs", r#"[{"topics":["0xa","0xb"]}]"#),
        ("eth_getLogs", r#"[{"topics":[["0xa","0xb"]]}]"#),
        ("eth_getLogs", r#"[{"topics":[["0xa"],["0xb"]],"x":1}]"#),
        ("eth_getLogs", r#"[{"topics":["0xb","0xa"]}]"#),
        ("eth_getLogs", r#"[{"topics":["0xa"]}]"#),
        ("eth_getLogs", r#"[{"topics":["0xa",null]}]"#),
        ("eth_getLogs", r#"[{"topics":[null]}]"#),
        ("eth_getLogs", r#"[{"topics":[[]]}]"#),
        ("eth_getLogs", r#"[{"topics":[]}]"#),
        ("eth_getLogs", r#"[{"address":"0xa"}]"#),
        ("eth_getLogs", r#"[{"address":["0xa","0xb"]}]"#),
        ("eth_getLogs", r#"[{"address":[]}]"#),
        ("eth_getLogs", "[{}]"),
        ("eth_getLogs", r#"[{"fromBlock":"0x1"}]"#),
        ("eth_getLogs", r#"[{"toBlock":"0x1"}]"#),
        // The end of each value is part of the key.
        ("web3_clientVersion", "[[1],2]"),
        ("web3_clientVersion", "[[1,2]]"),
        ("web3_clientVersion", "[1,2]"),
        ("web3_clientVersion", "[12]"),
        ("web3_clientVersion", r#"[{"a":1,"b":2}]"#),
        ("web3_clientVersion", r#"[{"a":1},"b",2]"#),
        ("web3_clientVersion", r#"[{"a":{"b":2}}]"#),
        ("web3_clientVersion", r#"[{"a":{},"b":2}]"#),
        ("web3_clientVersion", r#"["ab","c"]"#),
        ("web3_clientVersion", r#"["a","bc"]"#),
        ("web3_clientVersion", r#"["as\u0001b"]"#),
        ("web3_clientVersion", r#"["a","b"]"#),
        ("web3_clientVersion", r#"["asb"]"#),
        ("web3_clientVersion", "[1,null]"),
        ("web3_clientVersion", r#"[{"ana":1}]"#),
        ("eth_getLogs", r#"[{"topics":["0xa"],"x":["0xb"]}]"#),
        // The letter case of other parameters is significant.
        ("eth_simulateV1", r#"["0xAB"]"#),
        ("eth_simulateV1", r#"["0xab"]"#),
    ];
    let keys: BTreeSet<Vec<u8>> = calls.iter().map(|(name, params)| key(name, params)).collect();
    assert_eq!(keys.len(), calls.len());
}

#[test]
fn the_chain_is_in_the_key() {
    let key_of_chain = |chain: &str| {
        let mut out = Vec::new();
        let parts =
            KeyParts { chain, method: row("eth_chainId"), params: &Params::Absent, block: None };
        write_key(&mut out, &parts).unwrap();
        out
    };
    assert_ne!(key_of_chain("a"), key_of_chain("b"));
    assert_ne!(key_of_chain(""), key_of_chain("a"));
}

#[test]
fn a_resolved_block_takes_the_place_of_the_named_one() {
    let resolved_key = |name, params, block| key_at(name, params, Some(block));
    let sixteen = ResolvedBlock::Number(16);
    let key_of_block_16 = key("eth_call", r#"[{"to":"0xab"},"0x10"]"#);
    assert_eq!(
        resolved_key("eth_call", r#"[{"to":"0xab"},"latest"]"#, sixteen).unwrap(),
        key_of_block_16
    );
    assert_eq!(resolved_key("eth_call", r#"[{"to":"0xab"}]"#, sixteen).unwrap(), key_of_block_16);
    let hash = crate::hex::parse_hash(HASH.as_bytes()).unwrap();
    assert_eq!(
        resolved_key("eth_getBalance", r#"["0xab","latest"]"#, ResolvedBlock::Hash(hash)).unwrap(),
        key("eth_getBalance", &format!(r#"["0xab","{HASH}"]"#))
    );
    assert_eq!(resolved_key("eth_getBalance", r#"["0xab"]"#, sixteen), Err(KeyError::NoBlockParam));
    assert_eq!(resolved_key("eth_chainId", "[]", sixteen), Err(KeyError::NoBlockParam));
    assert_eq!(resolved_key("eth_call", "{}", sixteen), Err(KeyError::NoBlockParam));
    let range = |from, to| ResolvedBlock::Range { from, to };
    let a = resolved_key("eth_getLogs", r#"[{"fromBlock":"0x1","address":"0xa"}]"#, range(0, 99))
        .unwrap();
    let b = resolved_key("eth_getLogs", r#"[{"toBlock":"latest","address":"0xA"}]"#, range(0, 99))
        .unwrap();
    let c = resolved_key("eth_getLogs", r#"[{"address":"0xa"}]"#, range(0, 98)).unwrap();
    assert_eq!(a, b);
    assert_ne!(a, c);
    assert_eq!(
        resolved_key("eth_getBalance", r#"["0xab","0x1"]"#, sixteen).unwrap(),
        key("eth_getBalance", r#"["0xab","0x10"]"#)
    );
}

#[test]
fn long_parameters_have_no_key() {
    let long = format!(r#"[{{"data":"0x{}"}}]"#, "00".repeat(PARAMS_BYTES_MAX));
    assert_eq!(key_at("eth_call", &long, None), Err(KeyError::TooLong(long.len())));
}

/// A JSON value as a tree, independent of the crate's parser.
#[derive(Debug, Clone, PartialEq)]
enum Tree {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Tree>),
    Object(BTreeMap<String, Tree>),
}

/// Returns the meaning of a call as text. This function is the specification of the key, written
/// for clarity and not for speed.
fn meaning(name: &str, params: &Tree) -> String {
    let method = row(name);
    let Tree::List(list) = params else { return format!("{name} by name {params:?}") };
    let mut parts: Vec<String> = list
        .iter()
        .enumerate()
        .map(|(index, value)| {
            let param_type = method.params.get(index).copied().unwrap_or(ParamType::Any);
            match method.block {
                Some(block) if block.at == index => block_meaning(value, block.format),
                _ => param_meaning(value, param_type),
            }
        })
        .collect();
    if let Some(block) = method.block
        && let (Some(_), true) = (block.default, block.at == list.len())
    {
        parts.push(block_meaning(&Tree::Text("latest".into()), block.format));
    }
    format!("{name} {parts:?}")
}

fn fold_hex(text: &str) -> String {
    match text.strip_prefix("0x") {
        Some(digits) if digits.chars().all(|c| c.is_ascii_hexdigit()) => text.to_lowercase(),
        _ => text.to_owned(),
    }
}

fn param_meaning(value: &Tree, param_type: ParamType) -> String {
    match (param_type, value) {
        (
            ParamType::Address | ParamType::Hash | ParamType::Data | ParamType::Quantity,
            Tree::Text(text),
        ) => format!("{:?}", Tree::Text(fold_hex(text))),
        (ParamType::CallObject, Tree::Object(members)) => {
            let fold = |value: &Tree| match value {
                Tree::Text(text) => Tree::Text(fold_hex(text)),
                other => other.clone(),
            };
            let members: BTreeMap<_, _> =
                members.iter().map(|(name, value)| (name, fold(value))).collect();
            format!("{members:?}")
        }
        (ParamType::Filter, Tree::Object(members)) => {
            let meanings: BTreeMap<_, _> = members
                .iter()
                .map(|(name, value)| {
                    let text = match (name.as_str(), value) {
                        ("fromBlock" | "toBlock", value) => block_meaning(value, BlockFormat::Hex),
                        ("blockHash", value) => param_meaning(value, ParamType::Hash),
                        ("address", value) => set_meaning(value),
                        ("topics", Tree::List(topics)) => {
                            format!("{:?}", topics.iter().map(set_meaning).collect::<Vec<_>>())
                        }
                        (_, value) => format!("{value:?}"),
                    };
                    (name, text)
                })
                .collect();
            format!("filter {meanings:?}")
        }
        _ => format!("{value:?}"),
    }
}

fn set_meaning(value: &Tree) -> String {
    let texts: Option<BTreeSet<String>> = match value {
        Tree::List(list) => list.iter().map(hex_text).collect(),
        single => hex_text(single).map(|text| BTreeSet::from([text])),
    };
    texts.map_or_else(|| format!("{value:?}"), |texts| format!("set {texts:?}"))
}

fn hex_text(value: &Tree) -> Option<String> {
    match value {
        Tree::Text(text) => {
            let digits = text.strip_prefix("0x")?;
            digits.chars().all(|c| c.is_ascii_hexdigit()).then(|| text.to_lowercase())
        }
        _ => None,
    }
}

fn block_meaning(value: &Tree, format: BlockFormat) -> String {
    let tags: &[&str] = match format {
        BlockFormat::Hex => &["latest", "earliest", "pending", "safe", "finalized"],
        BlockFormat::Harmony => &["latest", "earliest", "pending"],
        _ => &[],
    };
    let is_hash = |text: &str| text.len() == 66 && hex_text(&Tree::Text(text.into())).is_some();
    let parse_hex = |text: &str| {
        let digits = text.strip_prefix("0x")?;
        let is_canonical = digits == "0" || !digits.starts_with('0');
        let number = u64::from_str_radix(digits, 16).ok()?;
        (is_canonical && !digits.starts_with('+') && number <= i64::MAX as u64).then_some(number)
    };
    let parse_decimal = |text: &str| {
        let is_canonical = text == "0" || !text.starts_with('0');
        let number = text.parse::<u64>().ok()?;
        (is_canonical && !text.starts_with('+') && number <= i64::MAX as u64).then_some(number)
    };
    let meaning = match (format, value) {
        (BlockFormat::Hex | BlockFormat::Hash, Tree::Text(text)) if is_hash(text) => {
            Some(format!("hash {}", text.to_lowercase()))
        }
        (BlockFormat::Hex | BlockFormat::Harmony, Tree::Text(text)) if tags.contains(&&**text) => {
            Some(format!("tag {text}"))
        }
        (BlockFormat::Hex, Tree::Text(text)) => {
            parse_hex(text).map(|number| format!("number {number}"))
        }
        (BlockFormat::Hex, Tree::Object(members)) => {
            let names: Vec<&str> = members.keys().map(String::as_str).collect();
            match (&names[..], members.get("blockNumber"), members.get("blockHash")) {
                (["blockNumber"], Some(inner @ Tree::Text(text)), _) if !is_hash(text) => {
                    Some(block_meaning(inner, BlockFormat::Hex))
                        .filter(|meaning| !meaning.starts_with("raw"))
                }
                (["blockHash"] | ["blockHash", "requireCanonical"], _, Some(Tree::Text(text)))
                    if is_hash(text) =>
                {
                    match members.get("requireCanonical") {
                        None | Some(Tree::Bool(false)) => {
                            Some(format!("hash {}", text.to_lowercase()))
                        }
                        Some(Tree::Bool(true)) => {
                            Some(format!("canonical {}", text.to_lowercase()))
                        }
                        Some(_) => None,
                    }
                }
                _ => None,
            }
        }
        (BlockFormat::Harmony, Tree::Text(text) | Tree::Number(text)) => match text.as_str() {
            "-1" => Some("tag latest".into()),
            "-2" => Some("tag pending".into()),
            text => {
                let number = if matches!(value, Tree::Text(_)) { parse_hex(text) } else { None };
                number.or_else(|| parse_decimal(text)).map(|number| format!("number {number}"))
            }
        },
        (BlockFormat::Height, Tree::Number(text)) => {
            parse_decimal(text).map(|number| format!("number {number}"))
        }
        _ => None,
    };
    meaning.unwrap_or_else(|| format!("raw {value:?}"))
}

/// Writes a tree with random whitespace, escapes and member order. `random_state` is the state of
/// the random number generator.
fn write_tree(out: &mut String, tree: &Tree, random_state: &mut u64) {
    let mut random_below = |bound: u64| {
        // The linear congruential generator of Knuth's MMIX is good enough to vary a layout.
        *random_state = random_state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*random_state >> 33) % bound
    };
    let space = [" ", "", "", "\n\t"][random_below(4) as usize];
    out.push_str(space);
    match tree {
        Tree::Null => out.push_str("null"),
        Tree::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Tree::Number(text) => out.push_str(text),
        Tree::Text(text) => {
            let escape_one_in = [3, 1000][random_below(2) as usize];
            out.push('"');
            for character in text.chars() {
                if random_below(escape_one_in) == 0 {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                } else {
                    out.push(character);
                }
            }
            out.push('"');
        }
        Tree::List(list) => {
            out.push('[');
            for (index, value) in list.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write_tree(out, value, random_state);
            }
            out.push(']');
        }
        Tree::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            if random_below(2) == 0 {
                members.reverse();
            }
            out.push('{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write_tree(out, &Tree::Text(name.clone()), random_state);
                out.push(':');
                write_tree(out, value, random_state);
            }
            out.push('}');
        }
    }
    out.push_str(space);
}

/// Generates values from a small set. Equal and nearly equal calls are therefore frequent.
fn trees() -> impl Strategy<Value = Tree> {
    let texts = [
        "",
        "0xab",
        "0xAB",
        "0xabc",
        "0xAg",
        "0x",
        "0x0",
        "0x1",
        "0x01",
        "0x10",
        "16",
        "1",
        "-1",
        "-2",
        "latest",
        "pending",
        "safe",
        "Latest",
        "one1ab",
        "one1AB",
        "é",
        HASH,
        "0xD226371D0B1551ADB03FB52B71F08E3E11247FE9B1AF994768AF8CDAA8E7DCD7",
    ];
    let leaf = prop_oneof![
        1 => Just(Tree::Null),
        1 => any::<bool>().prop_map(Tree::Bool),
        2 => prop::sample::select(vec!["0", "1", "16", "-1", "-2", "1.0", "1e1", "9223372036854775808"])
            .prop_map(|text| Tree::Number(text.into())),
        6 => prop::sample::select(texts.to_vec()).prop_map(|text| Tree::Text(text.into())),
    ];
    let names = [
        "to",
        "data",
        "address",
        "topics",
        "fromBlock",
        "toBlock",
        "blockHash",
        "blockNumber",
        "requireCanonical",
        "x",
    ];
    leaf.prop_recursive(3, 12, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Tree::List),
            prop::collection::btree_map(
                prop::sample::select(names.to_vec()).prop_map(str::to_owned),
                inner,
                0..3
            )
            .prop_map(Tree::Object),
        ]
    })
}

fn calls() -> impl Strategy<Value = (&'static str, Tree)> {
    let names = vec![
        "eth_getBalance",
        "eth_call",
        "eth_getLogs",
        "eth_getBlockByHash",
        "eth_simulateV1",
        "hmyv2_getBlockByNumber",
        "hmyv2_getBlocks",
        "getblockhash",
        "eth_chainId",
    ];
    let params = prop_oneof![
        8 => prop::collection::vec(trees(), 0..3).prop_map(Tree::List),
        1 => prop::collection::btree_map("[ab]", trees(), 0..2).prop_map(Tree::Object),
    ];
    (prop::sample::select(names), params)
}

/// Generates two calls: they are equal, differ in one place, or are independent.
fn pairs() -> impl Strategy<Value = ((&'static str, Tree), (&'static str, Tree))> {
    (calls(), calls(), trees(), 0..6u8, any::<prop::sample::Index>()).prop_map(
        |(a, independent, value, change, position)| {
            let similar = match (change, &a.1) {
                (0, _) => independent,
                (1..=4, Tree::List(list)) if !list.is_empty() => {
                    let mut list = list.clone();
                    let index = position.index(list.len());
                    match (change, &mut list[index]) {
                        (1, Tree::List(inner)) => inner.reverse(),
                        // The last value moves out of the inner list.
                        (4, Tree::List(inner)) => {
                            let last = inner.pop();
                            list.splice(index + 1..index + 1, last);
                        }
                        (1, Tree::Object(inner)) => {
                            inner.insert("topics".into(), value);
                        }
                        (2, slot) => *slot = Tree::List(vec![slot.clone()]),
                        (_, slot) => *slot = value,
                    }
                    (a.0, Tree::List(list))
                }
                _ => a.clone(),
            };
            (a, similar)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn keys_are_equal_exactly_for_equal_meanings((a, b) in pairs(), layout: u64) {
        let text = |tree: &Tree, mut random_state: u64| {
            let mut out = String::new();
            write_tree(&mut out, tree, &mut random_state);
            out
        };
        let (first_text, second_text) = (text(&a.1, layout), text(&b.1, !layout));
        prop_assert!(json::validate(first_text.as_bytes(), 64).unwrap().1.is_none());
        prop_assert_eq!(
            key(a.0, &first_text) == key(b.0, &second_text),
            meaning(a.0, &a.1) == meaning(b.0, &b.1),
            "{} {} / {} {}", a.0, first_text, b.0, second_text
        );
    }
}

#[test]
fn every_row_has_a_key() {
    for family in Family::ALL {
        for method in methods_of(family).methods() {
            let mut out = Vec::new();
            let parts = KeyParts { chain: "c", method, params: &Params::Array(b"[]"), block: None };
            assert_eq!(write_key(&mut out, &parts), Ok(()), "{}", method.name);
            assert!(method.validity != Validity::Logs || method.params == [ParamType::Filter]);
        }
    }
}
