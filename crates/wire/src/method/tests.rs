//! Goal: the tables have a row for every method in the sources, and no row contradicts itself.
//! Method: lists of method names, and rules that each row must obey.
use std::path::Path;

use super::*;
use crate::block::{BlockFormat, BlockTag};

#[test]
fn tables_are_read_and_not_empty() {
    for family in Family::ALL {
        let rows = methods_of(family);
        assert!(rows.methods().count() > 50, "{family:?}");
        assert_eq!(rows.family, family);
        assert_eq!(family.as_str().parse(), Ok(family));
        for row in rows.methods() {
            assert!(std::ptr::eq(row, rows.method(row.name).unwrap()), "{} stands twice", row.name);
        }
    }
    assert!("solana".parse::<Family>().is_err());
    assert!(methods_of(Family::Ethereum).method("eth_ChainId").is_none());
}

#[test]
fn every_named_method_has_a_row() {
    for (family, text, rows_min) in [
        (
            Family::Ethereum,
            include_str!("../../../../testdata/wire/methods/execution-apis.txt"),
            37,
        ),
        (
            Family::Ethereum,
            include_str!("../../../../testdata/wire/methods/erigon-rpc-tests.txt"),
            20,
        ),
        (
            Family::Ethereum,
            include_str!("../../../../testdata/wire/methods/published-mixes.txt"),
            26,
        ),
        (Family::Harmony, include_str!("../../../../testdata/wire/methods/harmony-docs.txt"), 70),
        (Family::Harmony, include_str!("../../../../testdata/wire/methods/harmony-node.txt"), 214),
    ] {
        let missing: Vec<&str> =
            text.lines().filter(|method| methods_of(family).method(method).is_none()).collect();
        assert!(missing.is_empty(), "{family:?} has no row for {missing:?}");
        assert!(text.lines().count() >= rows_min, "a list of {family:?} got shorter");
    }
}

/// Compares the fields of each row with each other and with the verb in the method's name.
#[test]
fn rows_do_not_contradict_themselves() {
    for family in Family::ALL {
        for row in methods_of(family).methods() {
            let name = row.name;
            let must_not_be_stored = matches!(row.validity, Validity::Never | Validity::Mempool);
            if row.write || row.sticky || row.repeat != Repeat::Safe {
                assert!(
                    must_not_be_stored && !row.coalesces(),
                    "{name} must be neither stored nor coalesced"
                );
            }
            if row.repeat == Repeat::Broadcast {
                assert!(row.write, "{name} changes the pool");
            }
            match (row.validity, row.block) {
                (Validity::Number, Some(block)) => {
                    assert!(block.format != BlockFormat::Hash, "{name}")
                }
                (Validity::Hash, Some(block)) => {
                    assert!(
                        matches!(block.format, BlockFormat::Hash | BlockFormat::Digits),
                        "{name}"
                    );
                }
                (Validity::Number | Validity::Hash, None) => {
                    panic!("{name} has no block parameter")
                }
                (_, Some(_)) => panic!("{name} has a block but does not depend on it"),
                (_, None) => {}
            }
            if let Some(block) = row.block
                && !row.params.is_empty()
            {
                let expected_type = match block.format {
                    BlockFormat::Hash => ParamType::Hash,
                    _ => ParamType::Block,
                };
                assert_eq!(row.params.get(block.at), Some(&expected_type), "{name}");
            }
            assert_eq!(row.validity == Validity::Logs, row.params == [ParamType::Filter], "{name}");
            let names_height = matches!(row.validity, Validity::Number | Validity::Logs);
            let has_history = row.history.is_some() || family == Family::Bitcoin;
            assert!(!names_height || has_history, "{name} reads data of a block");
            assert!(names_height || row.history.is_none(), "{name} names no height");
            assert!(row.weight > 0, "{name}");
            assert!(
                row.nullable == Nullable::Never || row.allows(ResultForm::Null),
                "{name} is null in some cases"
            );
            assert!(!row.head_value || row.validity == Validity::Head, "{name}");
            let verb = name.split_once('_').map_or(name, |(_, local)| local);
            let changes = ["send", "sign", "submit", "resend", "set", "unlock", "build"];
            if changes.iter().any(|word| verb.starts_with(word)) {
                assert!(row.repeat != Repeat::Safe, "{name} is safe to repeat?");
            }
        }
    }
}

#[test]
fn rows_that_other_code_relies_on() {
    let row = |family: Family, method: &str| methods_of(family).method(method).unwrap();
    let call = row(Family::Ethereum, "eth_call");
    assert_eq!(call.validity, Validity::Number);
    assert_eq!(
        call.block,
        Some(BlockParam { at: 1, format: BlockFormat::Hex, default: Some(BlockTag::Latest) })
    );
    // The parameter is the hash of a transaction. The response depends on the block that the result
    // names.
    let receipt = row(Family::Ethereum, "eth_getTransactionReceipt");
    assert_eq!(
        (receipt.validity, receipt.response_block),
        (Validity::Transaction, ResponseBlock::Members)
    );
    // A signed transaction may be sent to several nodes.
    let send = row(Family::Harmony, "hmy_sendRawStakingTransaction");
    assert_eq!(send.repeat, Repeat::Broadcast);
    // Harmony's newest block has no signers yet.
    assert_eq!(row(Family::Harmony, "hmyv2_getBlockSigners").blocks_behind_head, 1);
    // The methods of the three namespaces write the number in different formats.
    let heads = ["eth_blockNumber", "hmy_blockNumber", "hmyv2_blockNumber"];
    assert!(heads.iter().all(|name| row(Family::Harmony, name).head_value));
    // The response changes with each new block, because it has the number of confirmations.
    assert_eq!(row(Family::Bitcoin, "getblock").validity, Validity::Head);
    assert_eq!(row(Family::Bitcoin, "getrawmempool").validity, Validity::Mempool);
}

#[test]
fn forms_of_results_are_checked_against_the_row() {
    let allows = |family, name, raw: &str| {
        methods_of(family).method(name).unwrap().allows(ResultForm::of(raw.as_bytes()))
    };
    use Family::{Bitcoin, Ethereum, Harmony};
    let word = format!("\"0x{}\"", "ab".repeat(32));
    for (family, name, allowed, refused) in [
        (Ethereum, "eth_getBalance", &["\"0x0\"", &word][..], &["\"0x\"", "null", "{}", "1"][..]),
        (Ethereum, "eth_getCode", &["\"0x\"", "\"0x00\""], &["\"0x0\"", "null", "[]", "\"\""]),
        (Ethereum, "eth_getStorageAt", &["\"0x0\"", "\"0x00\""], &["null", "\"\"", "0"]),
        (Ethereum, "eth_getBlockByNumber", &["{\"a\":1}", "null"], &["[]", "\"0x1\"", "true"]),
        (Ethereum, "eth_getLogs", &["[]", "[{}]"], &["null", "{}"]),
        (Ethereum, "net_listening", &["true", "false"], &["null", "\"true\""]),
        (Ethereum, "eth_syncing", &["false", "{}", "null"], &[]),
        (Harmony, "hmyv2_getBalance", &["0", "123456789012345678901"], &["\"0x0\"", "null"]),
        (Harmony, "hmy_getBalance", &["\"0x0\""], &["0"]),
        (Bitcoin, "getblockhash", &["\"00ab\""], &["{}", "7", "null"]),
    ] {
        let is_allowed = |raw: &&str| allows(family, name, raw);
        assert!(allowed.iter().all(is_allowed), "{name}");
        assert!(!refused.iter().any(is_allowed), "{name}");
    }
    assert!(find_in_any_family("getblockhash").is_some() && find_in_any_family("x_y").is_none());
}

/// Returns the method and the raw result of each recorded call in `testdata`.
fn recorded_results() -> Vec<(String, String)> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let mut results = Vec::new();
    let mut add = |method: &serde_json::Value, response: &serde_json::Value| {
        if let Some(result) = response.get("result") {
            results.push((method.as_str().unwrap().to_owned(), result.to_string()));
        }
    };
    let folders = std::fs::read_dir(testdata.join("execution-apis")).unwrap();
    let folders = folders.map(|folder| folder.unwrap().path()).filter(|path| path.is_dir());
    for file in folders.flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "io") {
            continue;
        }
        let mut method = serde_json::Value::Null;
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let parse = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
            if let Some(request) = line.strip_prefix(">> ") {
                method = parse(request)["method"].clone();
            } else if let Some(response) = line.strip_prefix("<< ") {
                add(&method, &parse(response));
            }
        }
    }
    let samples = std::fs::read(testdata.join("harmony/docs-samples.json")).unwrap();
    let samples: serde_json::Value = serde_json::from_slice(&samples).unwrap();
    for sample in samples.as_array().unwrap() {
        add(&sample["request"]["method"], &sample["response"]);
    }
    results
}

#[test]
fn recorded_results_have_the_form_of_their_rows() {
    let results = recorded_results();
    assert!(results.len() > 200, "{} results", results.len());
    let mut typed = std::collections::BTreeSet::new();
    for (name, result) in &results {
        // The documentation has this number as text, unlike the nodes.
        if name == "hmyv2_getBalance" {
            continue;
        }
        let Some(method) = find_in_any_family(name) else { continue };
        let form = ResultForm::of(result.as_bytes());
        assert!(method.allows(form), "{name}: {result} is {form:?}, not {:?}", method.result);
        if method.result != ResultType::Any {
            typed.insert(name);
        }
    }
    assert!(typed.len() >= 60, "{} methods with a form", typed.len());
}
