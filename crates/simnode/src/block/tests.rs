//! Goal: blocks have true hashes, roots and blooms. Method: recompute each of them from its parts,
//! if possible with other code than the builder's.

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Bloom, keccak256};
use alloy_trie::{HashBuilder, Nibbles};

use super::{
    Block, BlockBuilder, KnownAddresses, PostState, SignedTransaction, encode_receipt, nonce_after,
    sender_of,
};
use crate::schedule::WorldOptions;

fn chain(length: u64) -> Vec<(Block, PostState)> {
    let options = WorldOptions::default();
    let addresses = KnownAddresses::new(options.seed);
    let mut blocks = vec![Block::genesis(&options, &addresses)];
    for number in 1..=length {
        let parent = &blocks[number as usize - 1].1;
        let builder =
            BlockBuilder { options: &options, addresses: &addresses, branch: 0, number, parent };
        let built = builder.build();
        blocks.push(built);
    }
    blocks
}

/// Returns the root of a list. It uses alloy's hash builder with sorted keys, not the function
/// that builds blocks, so that the two can be compared.
fn list_root(items: &[Vec<u8>]) -> alloy_primitives::B256 {
    let mut leaves: Vec<_> = items
        .iter()
        .enumerate()
        .map(|(index, item)| (Nibbles::unpack(alloy_rlp::encode(index)), item.clone()))
        .collect();
    leaves.sort();
    let mut builder = HashBuilder::default();
    for (key, item) in leaves {
        builder.add_leaf(key, &item);
    }
    builder.root()
}

#[test]
fn hashes_roots_and_blooms_recompute() {
    let blocks = chain(20);
    for pair in blocks.windows(2) {
        let (parent, block) = (&pair[0].0, &pair[1].0);
        let header = &block.header;
        assert_eq!(header.parent_hash, parent.hash);
        assert_eq!(keccak256(alloy_rlp::encode(header)), block.hash);
        let encoded: Vec<_> =
            block.transactions.iter().map(|transaction| transaction.signed.encoded()).collect();
        assert!(!encoded.is_empty());
        assert_eq!(list_root(&encoded), header.transactions_root);
        let receipts: Vec<_> = block.transactions.iter().map(encode_receipt).collect();
        assert_eq!(list_root(&receipts), header.receipts_root);
        let mut bloom = Bloom::ZERO;
        for log in block.transactions.iter().flat_map(|transaction| &transaction.logs) {
            bloom.accrue_log(log);
        }
        assert_eq!(bloom, header.logs_bloom);
        assert!(header.gas_used <= header.gas_limit);
        assert!(header.timestamp > parent.header.timestamp);
    }
}

#[test]
fn transactions_encode_validly_and_nonces_follow() {
    let mut total = 0;
    for (block, post_state) in chain(20).iter().skip(1) {
        for transaction in &block.transactions {
            let bytes = transaction.signed.encoded();
            let decoded = TxEnvelope::decode_2718_exact(&bytes).unwrap();
            assert_eq!(decoded.tx_hash(), transaction.hash());
            assert_eq!(keccak256(&bytes), *transaction.hash());
            let nonce = match &transaction.signed {
                SignedTransaction::Legacy(signed) => signed.tx().nonce,
                SignedTransaction::Dynamic(signed) => signed.tx().nonce,
            };
            assert_eq!(sender_of(total).1, nonce);
            total += 1;
            assert_eq!(nonce_after(sender_of(total - 1).0, total), nonce + 1);
        }
        assert_eq!(post_state.transactions_total, total);
    }
}

#[test]
fn only_burnt_fees_reduce_the_sum_of_balances() {
    for pair in chain(20).windows(2) {
        let (before, block, after) = (&pair[0].1, &pair[1].0, &pair[1].1);
        let burnt = u128::from(after.gas_used) * u128::from(after.base_fee);
        let sum = |post_state: &PostState| post_state.balances.iter().sum::<u128>();
        assert_eq!(sum(before), sum(after) + burnt, "block {}", block.header.number);
    }
}

#[test]
fn the_base_fee_stays_near_its_target() {
    let blocks = chain(300);
    for (block, post_state) in &blocks[50..] {
        let fee = post_state.base_fee;
        // From half to twice the target of 1 gwei.
        assert!((500_000_000..2_000_000_000).contains(&fee), "{fee} at {}", block.header.number);
    }
}
