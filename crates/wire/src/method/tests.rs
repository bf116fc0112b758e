//! Goal: the tables say something about every method that is named in the sources, and nothing
//! that contradicts itself. Method: lists of names as data, and rules over all rows.
use super::*;

#[test]
fn tables_are_read_and_not_empty() {
    for name in FamilyName::ALL {
        let rows = family(name);
        assert!(rows.methods().count() > 50, "{name:?}");
        assert_eq!(rows.name(), name);
        assert_eq!(name.as_str().parse(), Ok(name));
        for row in rows.methods() {
            assert!(std::ptr::eq(row, rows.method(row.name).unwrap()), "{} stands twice", row.name);
        }
    }
    assert!("solana".parse::<FamilyName>().is_err());
    assert!(family(FamilyName::Ethereum).method("eth_ChainId").is_none());
}

#[test]
fn every_named_method_has_a_row() {
    for (name, text, least) in [
        (
            FamilyName::Ethereum,
            include_str!("../../../../testdata/wire/methods/execution-apis.txt"),
            37,
        ),
        (
            FamilyName::Ethereum,
            include_str!("../../../../testdata/wire/methods/erigon-rpc-tests.txt"),
            20,
        ),
        (
            FamilyName::Ethereum,
            include_str!("../../../../testdata/wire/methods/published-mixes.txt"),
            26,
        ),
        (
            FamilyName::Harmony,
            include_str!("../../../../testdata/wire/methods/harmony-docs.txt"),
            70,
        ),
        (
            FamilyName::Harmony,
            include_str!("../../../../testdata/wire/methods/harmony-node.txt"),
            214,
        ),
    ] {
        let missing: Vec<&str> =
            text.lines().filter(|method| family(name).method(method).is_none()).collect();
        assert!(missing.is_empty(), "{name:?} has no row for {missing:?}");
        assert!(text.lines().count() >= least, "a list of {name:?} got shorter");
    }
}

/// Words in a name that a reader would take as a promise, against what the row says.
#[test]
fn rows_do_not_contradict_themselves() {
    for name in FamilyName::ALL {
        for row in family(name).methods() {
            let at = row.name;
            let never = matches!(row.bound, Bound::Never | Bound::Mempool);
            if row.write || row.sticky || row.repeat != Repeat::Safe {
                assert!(never && !row.coalesce, "{at} must be neither stored nor joined");
            }
            if row.repeat == Repeat::Broadcast {
                assert!(row.write, "{at} changes the pool");
            }
            match (row.bound, row.block) {
                (Bound::Number, Some(block)) => assert!(block.form != BlockForm::Hash, "{at}"),
                (Bound::Hash, Some(block)) => {
                    assert!(matches!(block.form, BlockForm::Hash | BlockForm::Digits), "{at}");
                }
                (Bound::Number | Bound::Hash, None) => {
                    panic!("{at} does not say where its block is")
                }
                (_, Some(_)) => panic!("{at} has a block but is not bound to it"),
                (_, None) => {}
            }
            if let Some(block) = row.block
                && !row.params.is_empty()
            {
                let wanted = match block.form {
                    BlockForm::Hash => ParamKind::Hash,
                    _ => ParamKind::Block,
                };
                assert_eq!(row.params.get(block.at), Some(&wanted), "{at}");
            }
            assert_eq!(row.bound == Bound::Logs, row.params == [ParamKind::Filter], "{at}");
            assert!(row.weight > 0, "{at}");
            assert!(!row.head_value || row.bound == Bound::Head, "{at}");
            let verb = at.split_once('_').map_or(at, |(_, local)| local);
            let changes = ["send", "sign", "submit", "resend", "set", "unlock", "build"];
            if changes.iter().any(|word| verb.starts_with(word)) {
                assert!(row.repeat != Repeat::Safe, "{at} is safe to repeat?");
            }
        }
    }
}

#[test]
fn rows_that_the_rules_lean_on() {
    let row = |name: FamilyName, method: &str| family(name).method(method).unwrap();
    let call = row(FamilyName::Ethereum, "eth_call");
    assert_eq!(call.bound, Bound::Number);
    assert_eq!(
        call.block,
        Some(BlockParam { at: 1, form: BlockForm::Hex, default: Some(Tag::Latest) })
    );
    // Rule 16: by hash, yet bound to the block that the answer names.
    let receipt = row(FamilyName::Ethereum, "eth_getTransactionReceipt");
    assert_eq!((receipt.bound, receipt.answer_block), (Bound::Transaction, AnswerBlock::Names));
    // Rule 37.
    let send = row(FamilyName::Harmony, "hmy_sendRawStakingTransaction");
    assert_eq!(send.repeat, Repeat::Broadcast);
    // Harmony's newest block has no signers yet.
    assert_eq!(row(FamilyName::Harmony, "hmyv2_getBlockSigners").behind_head, 1);
    // The namespaces differ in number form, so they are different methods.
    let heads = ["eth_blockNumber", "hmy_blockNumber", "hmyv2_blockNumber"];
    assert!(heads.iter().all(|name| row(FamilyName::Harmony, name).head_value));
    // Rule 46: confirmations move.
    assert_eq!(row(FamilyName::Bitcoin, "getblock").bound, Bound::Head);
    assert_eq!(row(FamilyName::Bitcoin, "getrawmempool").bound, Bound::Mempool);
}
