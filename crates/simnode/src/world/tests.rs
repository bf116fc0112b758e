//! Goal: a world (the simulated chain) is a function of its options and the instant, and reorgs
//! follow the schedule. Method: small worlds are read at chosen heads, and in virtual time if a
//! clock is needed.

use std::time::Duration;

use tokio::time::Instant;

use super::World;
use super::block_index::BlockPosition;
use crate::schedule::{OptionsError, Reorg, ReorgEvery, Schedule, WorldOptions};

fn small_options() -> WorldOptions {
    WorldOptions { height_start: 20, finality_depth: 8, ..WorldOptions::default() }
}

/// Returns a world with two reorgs. The second reorg replaces blocks of the first one's new branch.
fn world_with_reorgs() -> World {
    let reorgs = vec![Reorg { at_height: 30, depth: 3 }, Reorg { at_height: 32, depth: 4 }];
    World::starting(WorldOptions { reorgs, ..small_options() }, Instant::now()).unwrap()
}

#[test]
fn equal_seeds_give_equal_chains_and_others_do_not() {
    let hash_of_seed = |seed| {
        let options = WorldOptions { seed, ..small_options() };
        World::starting(options, Instant::now()).unwrap().hash_at(20, 20).unwrap()
    };
    assert_eq!(hash_of_seed(1), hash_of_seed(1));
    assert_ne!(hash_of_seed(1), hash_of_seed(2));
}

#[test]
fn a_reorg_replaces_exactly_its_depth() {
    let world = world_with_reorgs();
    // The reorg after head 30 replaces blocks 28 to 30.
    let (old_head, new_head) = (30, 31);
    for number in 0..=30 {
        let is_same = world.hash_at(old_head, number) == world.hash_at(new_head, number);
        assert_eq!(is_same, number <= 27, "block {number}");
    }
    assert!(world.hash_at(old_head, 31).is_none());
    for number in 1..=31 {
        let block = world.block_at(new_head, number).unwrap();
        assert_eq!(Some(block.header.parent_hash), world.hash_at(new_head, number - 1));
    }
    let dropped = world.hash_at(old_head, 30).unwrap();
    assert!(world.block_by_hash(29, &dropped).is_none(), "not yet known");
    assert!(world.block_by_hash(new_head, &dropped).is_some(), "dropped blocks stay known by hash");
    let position = world.position_of(&dropped).unwrap();
    assert_eq!(world.schedule().heads_with(position.branch, position.number), (30, Some(30)));
    assert!(!world.contains(new_head, position));
}

#[test]
fn overlapping_reorgs_link_up() {
    let world = world_with_reorgs();
    for head in 20..45 {
        for number in 1..=head {
            let block = world.block_at(head, number).unwrap();
            assert_eq!(Some(block.header.parent_hash), world.hash_at(head, number - 1));
            let position = BlockPosition { branch: block.branch, number };
            let (first, last) = world.schedule().heads_with(position.branch, number);
            assert!(
                first <= head && last.is_none_or(|last| head <= last),
                "{position:?} at {head}"
            );
        }
    }
}

#[test]
fn a_reorg_moves_some_transactions_and_drops_others() {
    let world = world_with_reorgs();
    let (mut moved, mut dropped) = (0, 0);
    for number in 28..=30 {
        for transaction in &world.block_at(30, number).unwrap().transactions {
            let (block, index) = world.find_transaction(30, transaction.hash()).unwrap();
            assert_eq!(block.header.number, number);
            assert_eq!(block.transactions[index].hash(), transaction.hash());
            match world.find_transaction(34, transaction.hash()) {
                Some((new_block, _)) => moved += u32::from(new_block.hash != block.hash),
                None => dropped += 1,
            }
        }
    }
    assert!(moved > 0 && dropped > 0, "moved {moved}, dropped {dropped}");
}

#[test]
fn an_evicted_block_is_rebuilt_the_same() {
    let world = world_with_reorgs();
    let first_read = world.block_at(40, 29).unwrap();
    *world.block_cache.write() = super::BlockCache::default();
    let second_read = world.block_at(40, 29).unwrap();
    assert_eq!((first_read.hash, &first_read.header), (second_read.hash, &second_read.header));
    assert_eq!(second_read.hash, second_read.header.hash_slow());
    assert!(world.block_at(40, 0).is_some());
}

#[test]
fn evicted_blocks_are_gone_and_the_rest_stays() {
    let world = world_with_reorgs();
    world.build_to(40);
    for _ in 0..25 {
        world.block_index.write().evict_floor();
    }
    *world.block_cache.write() = super::BlockCache::default();
    assert_eq!(world.block_index.read().floor, 25);
    assert!(world.block_at(40, 24).is_none());
    assert!(world.block_at(40, 26).is_some());
    let hash = *world.block_at(30, 30).unwrap().transactions[0].hash();
    assert!(!world.positions_of(&hash).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_head_follows_the_clock() {
    let world = World::new(small_options()).unwrap();
    assert_eq!(world.height_at(Instant::now()), 20);
    tokio::time::advance(Duration::from_millis(2_999)).await;
    assert_eq!(world.height_at(Instant::now()), 22);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(world.height_at(Instant::now()), 23);
    assert_eq!(world.instant_of(23), Instant::now());
}

#[test]
fn invalid_options_are_rejected() {
    let check = |options: WorldOptions| Schedule::new(&options).unwrap_err();
    let reorg = |at_height, depth| Reorg { at_height, depth };
    let options_with = |reorgs| WorldOptions { reorgs, ..small_options() };
    assert!(matches!(
        check(options_with(vec![reorg(30, 9)])),
        OptionsError::Depth { depth: 9, .. }
    ));
    assert!(matches!(check(options_with(vec![reorg(30, 0)])), OptionsError::Depth { .. }));
    let falling_height = options_with(vec![reorg(30, 2), reorg(30, 1)]);
    assert!(matches!(check(falling_height), OptionsError::Order { at_height: 30 }));
    let too_deep = options_with(vec![reorg(30, 2), reorg(31, 8)]);
    assert!(matches!(check(too_deep), OptionsError::Order { at_height: 31 }));
    let every = Some(ReorgEvery { blocks: 3, depth_max: 3 });
    assert!(matches!(
        check(WorldOptions { reorg_every: every, ..small_options() }),
        OptionsError::Every { .. }
    ));
    let no_block_time = WorldOptions { block_time: Duration::ZERO, ..small_options() };
    assert_eq!(check(no_block_time), OptionsError::BlockTime);
    let reversed_range =
        WorldOptions { transactions_min: 5, transactions_max: 4, ..small_options() };
    assert_eq!(check(reversed_range), OptionsError::Transactions { min: 5, max: 4 });
}

#[test]
fn repeating_reorgs_come_at_their_distance() {
    let every = Some(ReorgEvery { blocks: 10, depth_max: 5 });
    let schedule = Schedule::new(&WorldOptions { reorg_every: every, ..small_options() }).unwrap();
    let heights: Vec<_> = schedule.reorgs()[..3].iter().map(|reorg| reorg.at_height).collect();
    assert_eq!(heights, [30, 40, 50]);
    assert!(schedule.reorgs().iter().all(|reorg| (1..=5).contains(&reorg.depth)));
}

#[test]
fn the_child_of_a_skipped_height_builds_on_the_block_below() {
    let reorgs = vec![Reorg { at_height: 22, depth: 4 }];
    let options =
        WorldOptions { skip_every: Some(10), height_start: 30, reorgs, ..small_options() };
    let world = World::starting(options, Instant::now()).unwrap();
    for head in [22, 28, 30] {
        assert!(world.block_at(head, 19).is_none(), "19 is skipped on both branches");
        let blocks = [18, 20].map(|number| world.block_at(head, number).unwrap());
        assert_eq!(blocks[1].header.parent_hash, blocks[0].hash, "head {head}");
    }
    assert_eq!((world.block_at_or_below(29), world.block_at_or_below(30)), (28, 30));
    assert_ne!(world.hash_at(22, 20), world.hash_at(28, 20), "the reorg replaces block 20");
    let invalid = WorldOptions { skip_every: Some(1), ..small_options() };
    assert_eq!(Schedule::new(&invalid).err(), Some(OptionsError::Skipped { every: 1 }));
}
