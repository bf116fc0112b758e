//! Goal: a reference to a block is parsed as nodes parse it, or rejected. Method: tables of values
//! by format, and recorded results.
use super::*;

const HASH: &str = "0xd226371d0b1551adb03fb52b71f08e3e11247fe9b1af994768af8cdaa8e7dcd7";

#[test]
fn formats_of_blocks() {
    use BlockFormat::{Digits, Harmony, Height, Hex};
    use BlockRef::{CanonicalHash, Hash, Number, Tag};
    let hash = parse_hash(HASH.as_bytes()).unwrap();
    assert_eq!((hash[0], hash[31]), (0xd2, 0xd7));
    let upper = format!("\"0x{}\"", HASH[2..].to_uppercase());
    let quoted = format!("\"{HASH}\"");
    let digits = format!("\"{}\"", &HASH[2..]);
    let by_hash = format!(r#"{{"blockHash":"{HASH}"}}"#);
    let canonical = format!(r#"{{"requireCanonical":true,"blockHash":"{HASH}"}}"#);
    let not_canonical = format!(r#"{{"blockHash":"{HASH}", "requireCanonical": false}}"#);
    let with_number_and_hash = format!(r#"{{"blockHash":"{HASH}","blockNumber":"0x1"}}"#);
    let with_unknown_member = format!(r#"{{"blockHash":"{HASH}","x":1}}"#);
    for (format, raw, expected) in [
        (Hex, "\"0x1b4\"", Some(Number(436))),
        (Hex, "\"0x0\"", Some(Number(0))),
        (Hex, "\"latest\"", Some(Tag(BlockTag::Latest))),
        (Hex, r#""l\u0061test""#, Some(Tag(BlockTag::Latest))),
        (Hex, "\"pending\"", Some(Tag(BlockTag::Pending))),
        (Hex, "\"finalized\"", Some(Tag(BlockTag::Finalized))),
        (Hex, &quoted, Some(Hash(hash))),
        (Hex, &upper, Some(Hash(hash))),
        (Hex, &by_hash, Some(Hash(hash))),
        (Hex, &not_canonical, Some(Hash(hash))),
        (Hex, &canonical, Some(CanonicalHash(hash))),
        (Hex, r#"{"blockNumber":"0x10"}"#, Some(Number(16))),
        (Hex, r#"{"blockNumber":"latest"}"#, Some(Tag(BlockTag::Latest))),
        (Hex, r#"{"blockNumber":"0x10","requireCanonical":true}"#, None),
        (Hex, &with_number_and_hash, None),
        (Hex, &with_unknown_member, None),
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
        (Harmony, "-1", Some(Tag(BlockTag::Latest))),
        (Harmony, "\"-1\"", Some(Tag(BlockTag::Latest))),
        (Harmony, "-2", Some(Tag(BlockTag::Pending))),
        (Harmony, "\"latest\"", Some(Tag(BlockTag::Latest))),
        (Harmony, "\"earliest\"", Some(Tag(BlockTag::Earliest))),
        (Harmony, "\"finalized\"", None),
        (Harmony, "-3", None),
        (Harmony, "1.0", None),
        // The node reads this as decimal 10, not 16.
        (Harmony, "\"0x010\"", None),
        (Harmony, &quoted, None),
        (BlockFormat::Hash, &quoted, Some(BlockRef::Hash(hash))),
        (BlockFormat::Hash, "\"0x10\"", None),
        (Height, "16", Some(Number(16))),
        (Height, "\"16\"", None),
        (Digits, &digits, Some(BlockRef::Hash(hash))),
        (Digits, &quoted, None),
    ] {
        assert_eq!(parse(raw.as_bytes(), format).ok(), expected, "{format:?} {raw}");
    }
    assert_eq!(parse_digits::<32>(&[b'g'; 64]), None);
}

#[test]
fn results_name_their_blocks() {
    let block = include_bytes!("../../../../testdata/wire/bodies/helios-block.json");
    let receipt = include_bytes!("../../../../testdata/wire/bodies/helios-receipt.json");
    let logs = include_bytes!("../../../../testdata/wire/bodies/helios-logs.json");
    let expected: serde_json::Value = serde_json::from_slice(block).unwrap();
    let hash = parse_hash(expected["hash"].as_str().unwrap().as_bytes()).unwrap();
    let block_id = BlockId { number: 21_925_176, hash };
    assert_eq!(read_response_blocks(ResponseBlock::Itself, block), Some((block_id, block_id)));
    assert_eq!(read_response_blocks(ResponseBlock::Members, receipt), Some((block_id, block_id)));
    assert_eq!(
        read_response_blocks(ResponseBlock::ElementMembers, logs),
        Some((block_id, block_id))
    );
    assert_eq!(read_response_blocks(ResponseBlock::None, block), None);
    for (kind, raw) in [
        (ResponseBlock::Itself, "null"),
        (ResponseBlock::Itself, "{}"),
        (ResponseBlock::Members, r#"{"blockHash":null,"blockNumber":null}"#),
        (ResponseBlock::ElementMembers, "[]"),
        (ResponseBlock::ElementMembers, "[1]"),
    ] {
        assert_eq!(read_response_blocks(kind, raw.as_bytes()), None, "{raw}");
    }
    let harmony = format!(r#"{{"number":16,"hash":"{HASH}"}}"#);
    assert_eq!(
        read_response_blocks(ResponseBlock::Itself, harmony.as_bytes()).unwrap().0.number,
        16
    );
}
