//! Goal: no method that changes something has the effect `Read`. Method: the rows of the method
//! tables, and names without a row.

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
        (Family::Ethereum, "hmy_sendRawTransaction", Effect::Read),
        (Family::Harmony, "hmyv2_sendRawStakingTransaction", Effect::Transaction),
        (Family::Harmony, "admin_addPeer", Effect::Node),
        (Family::Bitcoin, "sendrawtransaction", Effect::Transaction),
        (Family::Bitcoin, "sendtoaddress", Effect::Node),
        (Family::Bitcoin, "getblock", Effect::Read),
    ] {
        assert_eq!(effect_of(family, name), expected, "{name}");
    }
}
