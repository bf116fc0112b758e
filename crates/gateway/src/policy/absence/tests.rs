//! Goal: every method of every table that names a block is compared with the view, in each form of
//! the block. Method: calls are made from the rows of the tables, for a chain of 21 blocks.

use std::time::Duration;

use wire::block::BlockFormat;
use wire::call::Params;
use wire::family::Family;
use wire::method::{Method, Nullable, methods_of};

use super::*;
use crate::policy::branch::Hash;
use crate::policy::heads::{Finality, HeadPoll, HeadSettings, HeadTracker};

const BOTTOM: u64 = 1_000;
const HEAD: u64 = 1_020;

fn hash(number: u64) -> Hash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    hash
}

/// The served chain from [`BOTTOM`] to [`HEAD`].
fn view() -> ChainView {
    let settings = HeadSettings {
        window: 256,
        finality: Finality::Depth(8),
        lag_max: 2,
        jump_max: 64,
        rollback_max: 8,
        block_time: Duration::from_secs(1),
    };
    let mut tracker = HeadTracker::new(settings, 1);
    for number in BOTTOM..=HEAD {
        let (hash, parent) = (hash(number), hash(number - 1));
        let poll = HeadPoll { number, hash, parent, finalized: None };
        tracker.observe(0, Duration::from_secs(number - BOTTOM), poll);
    }
    tracker.view()
}

/// Returns the forms in which calls of a format name a block.
fn forms(format: BlockFormat, number: u64) -> Vec<String> {
    let hex = alloy_primitives::hex::encode(hash(number));
    match format {
        BlockFormat::Hex => vec![
            format!("\"{number:#x}\""),
            format!("\"0x{hex}\""),
            format!("{{\"blockNumber\":\"{number:#x}\"}}"),
            format!("{{\"blockHash\":\"0x{hex}\"}}"),
            format!("{{\"blockHash\":\"0x{hex}\",\"requireCanonical\":true}}"),
        ],
        BlockFormat::Harmony => vec![number.to_string(), format!("\"{number:#x}\"")],
        BlockFormat::Hash => vec![format!("\"0x{hex}\"")],
        BlockFormat::Height => vec![number.to_string()],
        BlockFormat::Digits => vec![format!("\"{hex}\"")],
    }
}

/// Returns the absence of a block that a call of the method names by this raw value.
fn absence_in_call(method: &Method, raw_block: &str) -> Option<Absence> {
    let position = method.block.unwrap().at;
    let params = format!("[{}{raw_block}]", "null,".repeat(position));
    let block = method.block_ref(&Params::Array(params.as_bytes()));
    let (block, _) =
        block.unwrap_or_else(|error| panic!("{} {params}: {error}", method.name)).unwrap();
    check_block(&block, method.nullable != Nullable::Never, &view())
}

#[test]
fn every_method_that_names_a_block_is_compared_with_the_view() {
    let mut cases = 0;
    for family in [Family::Ethereum, Family::Harmony, Family::Bitcoin] {
        for method in methods_of(family).methods() {
            let Some(block) = method.block else { continue };
            for number in [BOTTOM + 1, HEAD] {
                for form in forms(block.format, number) {
                    let expected = match method.nullable {
                        Nullable::Never => Absence::Known { is_recent: true },
                        _ => Absence::Possible { is_recent: number == HEAD },
                    };
                    assert_eq!(
                        absence_in_call(method, &form),
                        Some(expected),
                        "{} {form}",
                        method.name
                    );
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 400, "{cases} cases");
}

#[test]
fn blocks_outside_of_the_view_are_judged_by_what_the_chain_must_have() {
    let view = view();
    let check = |block| check_block(&block, false, &view);
    let known = |is_recent| Some(Absence::Known { is_recent });
    assert_eq!(check(BlockRef::Tag(BlockTag::Latest)), known(true));
    assert_eq!(check(BlockRef::Number(BOTTOM - 500)), known(false), "an old block");
    assert_eq!(check(BlockRef::Number(HEAD + 1)), None, "a future block");
    assert_eq!(check(BlockRef::Tag(BlockTag::Pending)), None);
    assert_eq!(check(BlockRef::Hash(hash(7))), Some(Absence::Unknown));
    let finalized = check(BlockRef::Tag(BlockTag::Finalized));
    assert_eq!(finalized, Some(Absence::Possible { is_recent: false }));
    assert_eq!(check_block(&BlockRef::Number(1), false, &ChainView::default()), None, "no head");
}
