//! Goal: a block parameter is read exactly as the nodes do, or not at all. Method: tables of
//! values by form, and recorded results.
use super::*;
use crate::method::{FamilyName, family};

const HASH: &str = "0xd226371d0b1551adb03fb52b71f08e3e11247fe9b1af994768af8cdaa8e7dcd7";

fn method(name: &str) -> &'static Method {
    FamilyName::ALL.iter().find_map(|family_name| family(*family_name).method(name)).unwrap()
}

#[test]
fn forms_of_blocks() {
    use BlockForm::{Digits, Harmony, Height, Hex};
    use BlockRef::{CanonicalHash, Hash, Number, Tag};
    let hash = hash_of(HASH.as_bytes()).unwrap();
    assert_eq!((hash[0], hash[31]), (0xd2, 0xd7));
    let upper = format!("\"0x{}\"", HASH[2..].to_uppercase());
    let quoted = format!("\"{HASH}\"");
    let digits = format!("\"{}\"", &HASH[2..]);
    let by_hash = format!(r#"{{"blockHash":"{HASH}"}}"#);
    let canonical = format!(r#"{{"requireCanonical":true,"blockHash":"{HASH}"}}"#);
    let not_canonical = format!(r#"{{"blockHash":"{HASH}", "requireCanonical": false}}"#);
    let both = format!(r#"{{"blockHash":"{HASH}","blockNumber":"0x1"}}"#);
    let stranger = format!(r#"{{"blockHash":"{HASH}","x":1}}"#);
    for (form, raw, expected) in [
        (Hex, "\"0x1b4\"", Some(Number(436))),
        (Hex, "\"0x0\"", Some(Number(0))),
        (Hex, "\"latest\"", Some(Tag(super::Tag::Latest))),
        (Hex, r#""l\u0061test""#, Some(Tag(super::Tag::Latest))),
        (Hex, "\"pending\"", Some(Tag(super::Tag::Pending))),
        (Hex, "\"finalized\"", Some(Tag(super::Tag::Finalized))),
        (Hex, &quoted, Some(Hash(hash))),
        (Hex, &upper, Some(Hash(hash))),
        (Hex, &by_hash, Some(Hash(hash))),
        (Hex, &not_canonical, Some(Hash(hash))),
        (Hex, &canonical, Some(CanonicalHash(hash))),
        (Hex, r#"{"blockNumber":"0x10"}"#, Some(Number(16))),
        (Hex, r#"{"blockNumber":"latest"}"#, Some(Tag(super::Tag::Latest))),
        (Hex, r#"{"blockNumber":"0x10","requireCanonical":true}"#, None),
        (Hex, &both, None),
        (Hex, &stranger, None),
        (Hex, "{}", None),
        (Hex, "\"Latest\"", None),
        (Hex, "\"0x01\"", None),
        (Hex, "\"16\"", None),
        (Hex, "16", None),
        (Hex, "null", None),
        (Hex, "\"\"", None),
        (Hex, "\"0x7fffffffffffffff\"", Some(Number(i64::MAX as u64))),
        (Hex, "\"0x8000000000000000\"", None),
        (Harmony, "16", Some(Number(16))),
        (Harmony, "\"16\"", Some(Number(16))),
        (Harmony, "\"0x10\"", Some(Number(16))),
        (Harmony, "-1", Some(Tag(super::Tag::Latest))),
        (Harmony, "\"-1\"", Some(Tag(super::Tag::Latest))),
        (Harmony, "-2", Some(Tag(super::Tag::Pending))),
        (Harmony, "\"latest\"", Some(Tag(super::Tag::Latest))),
        (Harmony, "\"earliest\"", Some(Tag(super::Tag::Earliest))),
        (Harmony, "\"finalized\"", None),
        (Harmony, "-3", None),
        (Harmony, "1.0", None),
        // The node reads this as decimal 10, not 16.
        (Harmony, "\"0x010\"", None),
        (Harmony, &quoted, None),
        (BlockForm::Hash, &quoted, Some(BlockRef::Hash(hash))),
        (BlockForm::Hash, "\"0x10\"", None),
        (Height, "16", Some(Number(16))),
        (Height, "\"16\"", None),
        (Digits, &digits, Some(BlockRef::Hash(hash))),
        (Digits, &quoted, None),
    ] {
        assert_eq!(parse(raw.as_bytes(), form).ok(), expected, "{form:?} {raw}");
    }
    assert_eq!(hash_of_digits(&[b'g'; 64]), None);
}

/// The block of a call and the call with block 4096 in its place.
fn spliced(name: &str, params: Params<'_>) -> Result<Option<(BlockRef, String)>, NotABlock> {
    let method = method(name);
    Ok(block_ref(method, &params)?.map(|(block, span)| {
        let mut out = Vec::new();
        write_params_at(&mut out, &params, span, method.block.unwrap().form, 4096);
        (block, String::from_utf8(out).unwrap())
    }))
}

#[test]
fn the_block_is_found_and_replaced_in_place() {
    let latest = BlockRef::Tag(Tag::Latest);
    for (name, params, expected) in [
        (
            "eth_getBalance",
            r#"["0xAb" , "latest" ]"#,
            Ok(Some((latest, r#"["0xAb" , "0x1000" ]"#))),
        ),
        ("eth_getBalance", r#"["0xAb"]"#, Ok(None)),
        ("eth_getBalance", "[]", Err(NotABlock::Missing)),
        ("eth_getBalance", r#"["0xAb",null]"#, Err(NotABlock::Form)),
        ("eth_call", r#"[{"to":"]"}]"#, Ok(Some((latest, r#"[{"to":"]"},"0x1000"]"#)))),
        ("eth_call", r#"[{"to":"x"} ]"#, Ok(Some((latest, r#"[{"to":"x"} ,"0x1000"]"#)))),
        (
            "eth_call",
            r#"[{},"0x5",{"0x1":{}}]"#,
            Ok(Some((BlockRef::Number(5), r#"[{},"0x1000",{"0x1":{}}]"#))),
        ),
        ("hmyv2_getBlockByNumber", "[-1,{}]", Ok(Some((latest, "[4096,{}]")))),
        ("hmyv2_getBlocks", "[5, 9 ,{}]", Ok(Some((BlockRef::Number(9), "[5, 4096 ,{}]")))),
        ("eth_chainId", "[1,2]", Ok(None)),
        ("getblockhash", "[7]", Ok(Some((BlockRef::Number(7), "[4096]")))),
    ] {
        let expected = expected.map(|found| found.map(|(block, text)| (block, text.to_owned())));
        assert_eq!(spliced(name, Params::Array(params.as_bytes())), expected, "{name} {params}");
    }
    assert_eq!(spliced("eth_call", Params::Absent), Err(NotABlock::Missing));
    assert_eq!(spliced("eth_call", Params::Object(b"{}")), Err(NotABlock::ByName));
}

#[test]
fn results_name_their_blocks() {
    let block = include_bytes!("../../../../testdata/wire/bodies/helios-block.json");
    let receipt = include_bytes!("../../../../testdata/wire/bodies/helios-receipt.json");
    let logs = include_bytes!("../../../../testdata/wire/bodies/helios-logs.json");
    let expected: serde_json::Value = serde_json::from_slice(block).unwrap();
    let hash = hash_of(expected["hash"].as_str().unwrap().as_bytes()).unwrap();
    let named = NamedBlock { number: 21_925_176, hash };
    assert_eq!(named_blocks(AnswerBlock::Block, block), Some((named, named)));
    assert_eq!(named_blocks(AnswerBlock::Names, receipt), Some((named, named)));
    assert_eq!(named_blocks(AnswerBlock::EachNames, logs), Some((named, named)));
    assert_eq!(named_blocks(AnswerBlock::None, block), None);
    for (kind, raw) in [
        (AnswerBlock::Block, "null"),
        (AnswerBlock::Block, "{}"),
        (AnswerBlock::Names, r#"{"blockHash":null,"blockNumber":null}"#),
        (AnswerBlock::EachNames, "[]"),
        (AnswerBlock::EachNames, "[1]"),
    ] {
        assert_eq!(named_blocks(kind, raw.as_bytes()), None, "{raw}");
    }
    let harmony = format!(r#"{{"number":16,"hash":"{HASH}"}}"#);
    assert_eq!(named_blocks(AnswerBlock::Block, harmony.as_bytes()).unwrap().0.number, 16);
}
