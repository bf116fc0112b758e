//! Goal: no method that changes something has the effect `Read`. Method: the rows of the method
//! tables, names without a row, and the methods of each client in testdata/wire/effects.tsv.

use super::*;
use crate::method::{Repeat, methods_of};

#[test]
fn methods_that_write_have_an_effect() {
    let mut writing_rows = 0;
    for family in Family::ALL {
        for method in methods_of(family).methods() {
            let effect = method.effect;
            assert_eq!(effect, effect_of(family, method.name));
            if method.write {
                writing_rows += 1;
                assert_ne!(effect, Effect::Read, "{} of {}", method.name, family.as_str());
            }
            if method.repeat == Repeat::Broadcast {
                assert_eq!(effect, Effect::Transaction, "{}", method.name);
            }
        }
    }
    assert!(writing_rows > 30, "only {writing_rows} rows change something");
}

#[test]
fn names_without_a_row_have_an_effect() {
    for (family, name, expected) in [
        (Family::Ethereum, "admin_startHTTP", Effect::Node),
        (Family::Ethereum, "personal_importRawKey", Effect::Node),
        (Family::Ethereum, "eth_signTypedData_v5", Effect::Node),
        (Family::Ethereum, "engine_newPayloadV9", Effect::Node),
        (Family::Ethereum, "debug_setHead", Effect::Node),
        (Family::Ethereum, "debug_traceTransaction", Effect::Read),
        (Family::Ethereum, "eth_sendRawTransactionV9", Effect::Transaction),
        (Family::Ethereum, "eth_call", Effect::Read),
        (Family::Ethereum, "hmy_sendRawTransaction", Effect::Transaction),
        (Family::Harmony, "hmyv2_sendRawStakingTransaction", Effect::Transaction),
        (Family::Harmony, "admin_addPeer", Effect::Node),
        (Family::Bitcoin, "sendrawtransaction", Effect::Transaction),
        (Family::Bitcoin, "sendtoaddress", Effect::Node),
        (Family::Bitcoin, "getblock", Effect::Read),
    ] {
        assert_eq!(effect_of(family, name), expected, "{name}");
    }
}

/// The methods of nine clients, and of relays and bundlers. Some nodes ignore the case of letters.
#[test]
fn methods_of_all_clients_have_their_effect() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/wire/effects.tsv");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = text.lines().skip(2).collect();
    assert!(rows.len() > 700, "only {} methods", rows.len());
    let mut wrong = Vec::new();
    for row in rows {
        let mut columns = row.split('\t');
        let mut next = || columns.next().unwrap();
        let (name, client, expected) = (next(), next(), next());
        let family = match client {
            "harmony" => Family::Harmony,
            "bitcoind" => Family::Bitcoin,
            _ => Family::Ethereum,
        };
        let effect = match expected {
            "reads" => Effect::Read,
            "submits" => Effect::Transaction,
            "changes" | "private" => Effect::Node,
            _ => panic!("{row}"),
        };
        let lower_case = effect_of(family, &name.to_ascii_lowercase());
        if client != "services" && expected != "reads" && lower_case == Effect::Read {
            wrong.push(format!("{name} of {client} {expected}: read in lower case"));
        }
        if effect_of(family, name) != effect {
            wrong.push(format!("{name} of {client} {expected}: {:?}", effect_of(family, name)));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_words_of_an_unknown_name_decide() {
    for (name, expected) in [
        ("foo_setThing", Effect::Node),
        ("foo_delete_thing", Effect::Node),
        ("stop_node", Effect::Node),
        ("admin.lockProfile", Effect::Node),
        ("debug_newThing", Effect::Node),
        ("foo_batchSendRawTransaction", Effect::Transaction),
        ("foo_sendSignedTx", Effect::Transaction),
        ("Filecoin.EthSendRawTransaction", Effect::Transaction),
        ("foo_sendTransaction", Effect::Node),
        ("foo_getSendTransaction", Effect::Read),
        ("foo_settings", Effect::Read),
        ("foo_newThing", Effect::Read),
        ("debug_traceNewThing", Effect::Read),
        ("", Effect::Read),
        ("_", Effect::Read),
        ("é_setÉ", Effect::Node),
    ] {
        assert_eq!(effect_of(Family::Ethereum, name), expected, "{name}");
    }
}
