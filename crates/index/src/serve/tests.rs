//! Goal: an index responds only about confirmed blocks. Method: a small index that begins with
//! block 0, and callers with different knowledge of the chain.

use super::*;
use crate::fixture::{self, BLOCKS};
use crate::store::test_backends;

/// Looks up the logs and the blocks from block 0 to the last block, for a caller with this
/// finalized block.
fn look_up(reader: &mut Reader, finalized: Option<u64>, is_canonical: bool) -> [Lookup; 2] {
    let context =
        QueryContext { finalized, is_canonical: &|_, _| is_canonical, limits: SearchLimits::NONE };
    let last = BLOCKS - 1;
    let logs = format!(r#"[{{"fromBlock":"0x0","toBlock":"{last:#x}"}}]"#);
    let blocks = format!("[0,{last},{}]", harmony::STORED_OPTIONS);
    [("eth_getLogs", logs), ("hmyv2_getBlocks", blocks)]
        .map(|(method, params)| reader.lookup(method, params.as_bytes(), &context).unwrap())
}

#[test]
fn an_unconfirmed_block_0_is_left_to_nodes() {
    test_backends::each(|backend| {
        let location = backend.location("zero");
        fixture::write_from(0, &location, "blocks,receipts,logs,hmyv2", 2);
        let mut reader = fixture::reader(&location);
        assert_eq!(look_up(&mut reader, None, false), [Lookup::Miss, Lookup::Miss]);
        for lookup in look_up(&mut reader, Some(0), false) {
            assert!(matches!(lookup, Lookup::Partial { from: 0, to: 0, .. }), "{lookup:?}");
        }
        for lookup in look_up(&mut reader, None, true) {
            assert!(matches!(lookup, Lookup::Full(_)), "{lookup:?}");
        }
    });
}
