//! Goal: each transaction is included once, when a poll first finds it, also after reorgs and
//! faults. Method: a simulated chain with reorgs, several blocks between polls, faults, and
//! malformed blocks.

use std::collections::BTreeMap;

use lab_model::plan::transactions::Transactions;
use serde_json::json;

use super::*;

/// A simulated chain.
#[derive(Default)]
struct Chain {
    /// Blocks by number.
    blocks: BTreeMap<u64, Block>,
    /// Number of fetches so far.
    fetches: usize,
    /// The fetch with this number fails.
    fault_at: Option<usize>,
}

fn hash(number: u8, branch: u8) -> Hash {
    let mut hash = [branch; 32];
    hash[0] = number;
    hash
}

impl Chain {
    /// Replaces the blocks from the first of these numbers on by blocks of a branch.
    fn make(&mut self, branch: u8, numbers: std::ops::RangeInclusive<u8>) {
        self.blocks.retain(|number, _| *number < u64::from(*numbers.start()));
        for number in numbers {
            let parent = self.blocks.get(&(u64::from(number) - 1)).map(|block| block.hash);
            let block = Block {
                number: u64::from(number),
                hash: hash(number, branch),
                parent: parent.unwrap_or_default(),
                transactions: vec![[number; 32]],
            };
            self.blocks.insert(block.number, block);
        }
    }

    fn fetch(&mut self, number: Option<u64>) -> Result<Option<Block>, String> {
        self.fetches += 1;
        if self.fault_at == Some(self.fetches) {
            return Err("a planted fault".to_owned());
        }
        let newest = *self.blocks.keys().next_back().unwrap();
        Ok(self.blocks.get(&number.unwrap_or(newest)).cloned())
    }

    /// Returns the numbers of the blocks that a poll finds.
    fn poll(&mut self, follower: &mut ChainFollower) -> Result<Vec<u64>, String> {
        let mut numbers = Vec::new();
        let count = follower.follow(&mut |number| {
            let block = self.fetch(number)?;
            numbers.extend(block.iter().map(|block| block.number));
            Ok(block)
        })?;
        // The newest block is always fetched, even if it was read before.
        numbers.truncate(usize::try_from(count).unwrap());
        numbers.reverse();
        Ok(numbers)
    }
}

#[test]
fn polls_find_each_block_once() {
    let mut chain = Chain::default();
    chain.make(0, 1..=5);
    let mut follower = ChainFollower::new(5, hash(5, 0));
    assert_eq!(chain.poll(&mut follower), Ok(vec![]));
    chain.make(0, 6..=6);
    assert_eq!(chain.poll(&mut follower), Ok(vec![6]));
    assert_eq!(chain.poll(&mut follower), Ok(vec![]));
    chain.make(0, 7..=10);
    assert_eq!(chain.poll(&mut follower), Ok(vec![7, 8, 9, 10]));
}

#[test]
fn a_reorg_is_read_from_its_first_block() {
    let mut chain = Chain::default();
    chain.make(0, 1..=8);
    let mut follower = ChainFollower::new(5, hash(5, 0));
    assert_eq!(chain.poll(&mut follower), Ok(vec![6, 7, 8]));
    chain.make(1, 7..=9);
    assert_eq!(chain.poll(&mut follower), Ok(vec![7, 8, 9]));
    // A branch of the same height, and then a branch that begins before the start.
    chain.make(2, 9..=9);
    assert_eq!(chain.poll(&mut follower), Ok(vec![9]));
    chain.make(3, 3..=10);
    assert_eq!(chain.poll(&mut follower), Ok(vec![6, 7, 8, 9, 10]));
}

#[test]
fn a_failed_fetch_loses_no_block() {
    let mut chain = Chain::default();
    chain.make(0, 1..=9);
    let mut follower = ChainFollower::new(5, hash(5, 0));
    chain.fault_at = Some(2);
    assert_eq!(chain.poll(&mut follower), Err("a planted fault".to_owned()));
    assert_eq!(chain.poll(&mut follower), Ok(vec![6, 7, 8, 9]));
}

#[test]
fn a_server_with_endless_blocks_cannot_block_a_poll() {
    let mut follower = ChainFollower::new(0, [0; 32]);
    let mut fetches = 0_u64;
    let mut endless = |number: Option<u64>| {
        fetches += 1;
        let number = number.unwrap_or(1 << 40);
        let mut parent = [7; 32];
        parent[..8].copy_from_slice(&fetches.to_le_bytes());
        Ok(Some(Block { number, hash: [9; 32], parent, transactions: Vec::new() }))
    };
    assert_eq!(follower.follow(&mut endless), Ok(1_000));
    assert_eq!(fetches, 1_000);
    let mut wrong_number = |_: Option<u64>| {
        Ok(Some(Block { number: 5, hash: [1; 32], parent: [2; 32], transactions: Vec::new() }))
    };
    let mut follower = ChainFollower::new(0, [0; 32]);
    assert!(follower.follow(&mut wrong_number).is_err(), "block 4 has another number");
}

#[test]
fn blocks_without_their_members_are_rejected() {
    let hash_text = |digit: char| format!("0x{}", digit.to_string().repeat(64));
    let valid = json!({
        "number": "0x10", "hash": hash_text('a'), "parentHash": hash_text('b'),
        "transactions": [hash_text('c'), { "hash": hash_text('d') }],
    });
    let block = Block::read(&valid).unwrap();
    assert_eq!((block.number, block.hash, block.parent), (16, [0xaa; 32], [0xbb; 32]));
    assert_eq!(block.transactions, [[0xcc; 32], [0xdd; 32]]);
    for member in ["number", "hash", "parentHash", "transactions"] {
        let mut invalid = valid.clone();
        invalid[member] = json!("0xzz");
        let message = Block::read(&invalid).unwrap_err();
        assert!(message.contains(member), "{message}");
    }
    let mut invalid = valid;
    invalid["transactions"] = json!([1]);
    assert!(Block::read(&invalid).is_err());
    assert!(Block::read(&json!("0x1")).is_err());
}

fn log(hashes: &[Hash]) -> Arc<TransactionLog> {
    TransactionLog::new(&Arc::new(Transactions {
        hashes: hashes.to_vec(),
        next: vec![None; hashes.len()],
        ..Transactions::default()
    }))
}

#[test]
fn only_sent_transactions_are_included_and_only_once() {
    let log = log(&[[1; 32], [2; 32]]);
    let mut included = IncludedTransactions::new(Arc::clone(&log));
    assert_eq!(included.add(&[1; 32]), None, "it was not sent");
    assert_eq!(included.count_pending(), 0);
    log.start(0, 500);
    assert_eq!(included.count_pending(), 1);
    assert_eq!(included.add(&[9; 32]), None, "another transaction of the chain");
    assert_eq!((included.add(&[1; 32]), included.add(&[1; 32])), (Some(500), None));
    assert_eq!(included.count_pending(), 0);
}

/// Each block of the chain has one transaction. Blocks 1 to 5 exist before the first poll.
#[test]
fn a_transaction_of_a_block_before_the_start_is_not_included() {
    let mut chain = Chain::default();
    chain.make(0, 1..=5);
    let log = log(&[[5; 32], [6; 32], [7; 32]]);
    (0..3).for_each(|index| log.start(index, 1_000));
    let (times_sender, times) = sync_channel(3);
    let mut poller = Poller {
        included: IncludedTransactions::new(log),
        follower: ChainFollower::new(5, hash(5, 0)),
        times: times_sender,
        inclusions: Inclusions::default(),
        origin: Instant::now() - Duration::from_secs(2),
    };
    poller.poll(&mut |number| chain.fetch(number));
    assert_eq!((poller.inclusions.included, poller.included.count_pending()), (0, 3));
    chain.make(0, 6..=7);
    chain.fault_at = Some(chain.fetches + 2);
    poller.poll(&mut |number| chain.fetch(number));
    assert_eq!((poller.inclusions.included, poller.inclusions.polls_failed), (1, 1));
    poller.poll(&mut |number| chain.fetch(number));
    let inclusions = &poller.inclusions;
    assert_eq!((inclusions.included, inclusions.blocks), (2, 2));
    assert_eq!(poller.included.count_pending(), 1);
    let times: Vec<u64> = times.try_iter().collect();
    assert!(times.len() == 2 && times.iter().all(|time| *time >= 1_999_999_000), "{times:?}");
}
