//! What the world remembers of each block: a short record by branch and number, and indexes from
//! hashes to places. Bodies are not kept here but rebuilt from the seed (`world/bodies.rs`).

use std::collections::{HashMap, VecDeque};

use alloy_primitives::B256;
use foldhash::fast::RandomState;

use crate::block::{Block, Standing};

/// The most blocks that are remembered; the oldest are forgotten first, and nodes then answer as
/// though they never had them. Measured with 8 transactions per block it takes about 2.5 kB each, so
/// 125 MB in all, after 14 hours of one block a second.
pub(super) const RECORDS_MAX: usize = 50_000;
/// The most transactions that are remembered, for worlds with large blocks: about 100 MB.
pub(super) const TRANSACTIONS_MAX: usize = 1_000_000;

/// Where a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The branch that holds it.
    pub branch: usize,
    /// Its number.
    pub number: u64,
}

struct Record {
    standing: Standing,
    transactions: Box<[B256]>,
}

/// The places of one transaction: nearly always one, more after a reorg.
enum Places {
    One(Place, u32),
    Many(Vec<(Place, u32)>),
}

#[derive(Default)]
struct Branch {
    first: u64,
    records: VecDeque<Record>,
}

/// Records and indexes.
#[derive(Default)]
pub(super) struct Ledger {
    branches: Vec<Branch>,
    blocks: HashMap<B256, Place, RandomState>,
    transactions: HashMap<B256, Places, RandomState>,
    records: usize,
    places: usize,
    floor: u64,
}

impl Ledger {
    /// The lowest number that is remembered.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// What the block at a place left, if it is remembered.
    pub(super) fn standing(&self, place: Place) -> Option<&Standing> {
        let branch = self.branches.get(place.branch)?;
        let at = usize::try_from(place.number.checked_sub(branch.first)?).ok()?;
        Some(&branch.records.get(at)?.standing)
    }

    /// The place of a block.
    pub(super) fn block(&self, hash: &B256) -> Option<Place> {
        self.blocks.get(hash).copied()
    }

    /// The places of a transaction: block and index in it.
    pub(super) fn transaction(&self, hash: &B256) -> &[(Place, u32)] {
        match self.transactions.get(hash) {
            None => &[],
            Some(Places::One(..)) => &[],
            Some(Places::Many(places)) => places,
        }
    }

    /// The only place of a transaction that stands in one block.
    pub(super) fn transaction_single(&self, hash: &B256) -> Option<(Place, u32)> {
        match self.transactions.get(hash)? {
            Places::One(place, at) => Some((*place, *at)),
            Places::Many(_) => None,
        }
    }

    /// Adds the next block of its branch, which must be the newest branch.
    pub(super) fn add(&mut self, block: &Block, standing: Standing) {
        let place = Place { branch: block.branch, number: block.header.number };
        if self.branches.len() <= place.branch {
            self.branches.resize_with(place.branch + 1, Branch::default);
            self.branches[place.branch].first = place.number;
        }
        let hashes: Box<[B256]> = block.transactions.iter().map(|t| *t.hash()).collect();
        for (at, hash) in hashes.iter().enumerate() {
            self.places += 1;
            let new = (place, at as u32);
            self.transactions
                .entry(*hash)
                .and_modify(|places| match places {
                    Places::One(place, at) => *places = Places::Many(vec![(*place, *at), new]),
                    Places::Many(all) => all.push(new),
                })
                .or_insert(Places::One(place, at as u32));
        }
        self.blocks.insert(block.hash, place);
        self.records += 1;
        let record = Record { standing, transactions: hashes };
        self.branches[place.branch].records.push_back(record);
    }

    /// Forgets the oldest blocks until the caps hold.
    pub(super) fn trim(&mut self) {
        while self.records > RECORDS_MAX || self.places > TRANSACTIONS_MAX {
            self.forget_floor();
        }
    }

    pub(super) fn forget_floor(&mut self) {
        let number = self.floor;
        self.floor += 1;
        for at in 0..self.branches.len() {
            let branch = &mut self.branches[at];
            if branch.records.is_empty() || branch.first != number {
                continue;
            }
            let Some(record) = branch.records.pop_front() else { continue };
            branch.first += 1;
            self.records -= 1;
            self.places -= record.transactions.len();
            self.blocks.remove(&record.standing.hash);
            let place = Place { branch: at, number };
            for hash in &record.transactions {
                self.forget_transaction(hash, place);
            }
        }
    }

    fn forget_transaction(&mut self, hash: &B256, place: Place) {
        match self.transactions.get_mut(hash) {
            Some(Places::Many(places)) => {
                places.retain(|(held, _)| *held != place);
                if places.is_empty() {
                    self.transactions.remove(hash);
                }
            }
            Some(Places::One(held, _)) if *held == place => {
                self.transactions.remove(hash);
            }
            _ => {}
        }
    }
}
