//! Goal: no method that changes something counts as reading. Method: the rows of the method tables
//! that say so, and names that no table has.

use super::*;
use crate::method::{Repeat, family};

#[test]
fn what_changes_something_is_no_reading() {
    let mut seen = 0;
    for name in FamilyName::ALL {
        for method in family(name).methods() {
            let reach = method.reach;
            assert_eq!(reach, super::reach(name, method.name));
            if method.write {
                seen += 1;
                assert_ne!(reach, Reach::Read, "{} of {}", method.name, name.as_str());
            }
            if method.repeat == Repeat::Broadcast {
                assert_eq!(reach, Reach::Transaction, "{}", method.name);
            }
        }
    }
    assert!(seen > 30, "only {seen} rows change something");
}

#[test]
fn namespaces_of_the_node_are_known_beyond_the_tables() {
    for (family, name, due) in [
        (FamilyName::Ethereum, "admin_startHTTP", Reach::Node),
        (FamilyName::Ethereum, "personal_importRawKey", Reach::Node),
        (FamilyName::Ethereum, "eth_signTypedData_v5", Reach::Node),
        (FamilyName::Ethereum, "engine_newPayloadV9", Reach::Node),
        (FamilyName::Ethereum, "debug_setHead", Reach::Node),
        (FamilyName::Ethereum, "debug_traceTransaction", Reach::Read),
        (FamilyName::Ethereum, "eth_sendRawTransactionV9", Reach::Transaction),
        (FamilyName::Ethereum, "eth_call", Reach::Read),
        (FamilyName::Ethereum, "hmy_sendRawTransaction", Reach::Read),
        (FamilyName::Harmony, "hmyv2_sendRawStakingTransaction", Reach::Transaction),
        (FamilyName::Harmony, "admin_addPeer", Reach::Node),
        (FamilyName::Bitcoin, "sendrawtransaction", Reach::Transaction),
        (FamilyName::Bitcoin, "sendtoaddress", Reach::Node),
        (FamilyName::Bitcoin, "getblock", Reach::Read),
    ] {
        assert_eq!(super::reach(family, name), due, "{name}");
    }
}
