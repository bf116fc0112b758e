//! The world: one deterministic chain with all its branches, read at any instant. It knows nothing
//! of nodes, requests or sockets. `schedule.rs` says which block exists when, `block.rs` builds
//! one, `world/ledger.rs` remembers.
//!
//! Everything is a function of (options, instant). Blocks are built when first asked for, in order;
//! old bodies are dropped and rebuilt, so that a long run needs bounded memory. Time is
//! `tokio::time::Instant`, so a paused clock gives virtual time.

mod bodies;
pub mod ledger;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alloy_consensus::TxEnvelope;
use alloy_primitives::{Address, B256};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use self::bodies::Bodies;
use self::ledger::{Ledger, Place};
use crate::block::{ACCOUNTS, Block, Cast, Site, nonce_after};
use crate::pool::Pool;
use crate::schedule::{OptionsFault, Schedule, WorldOptions};

/// The chain tree and its clock. Share it in an [`Arc`].
///
/// Methods are of three kinds: **time** (`origin`, `height_at`, `instant_of`), **facts** that never
/// change (`options`, `cast`, `schedule`) and **reads** of one view, named by its head's number
/// (`block_at`, `block_by_hash`, `find_transaction`, `balance`, `nonce`). A read builds what is
/// missing first.
pub struct World {
    options: WorldOptions,
    cast: Cast,
    schedule: Schedule,
    origin: Instant,
    pool: Mutex<Pool>,
    /// The highest head that has been built, beside the lock so that reads need no write.
    built: AtomicU64,
    /// Written once per new block, read by every call.
    ledger: RwLock<Ledger>,
    /// Apart from the ledger, because reads of old blocks write here.
    bodies: RwLock<Bodies>,
}

impl World {
    /// A world whose clock starts now.
    ///
    /// # Errors
    /// The first of the options that cannot be.
    pub fn new(options: WorldOptions) -> Result<Self, OptionsFault> {
        Self::starting(options, Instant::now())
    }

    /// A world whose head is `height_start` at `origin`. Builds the chain up to there.
    ///
    /// # Errors
    /// The first of the options that cannot be.
    pub fn starting(options: WorldOptions, origin: Instant) -> Result<Self, OptionsFault> {
        let schedule = Schedule::new(&options)?;
        let cast = Cast::new(options.seed);
        let (block, standing) = Block::genesis(&options, &cast);
        let mut ledger = Ledger::default();
        ledger.add(&block, standing);
        let mut bodies = Bodies::default();
        bodies.keep(Place { branch: 0, number: 0 }, Arc::new(block));
        let world = Self {
            cast,
            schedule,
            origin,
            pool: Mutex::default(),
            built: AtomicU64::new(0),
            ledger: RwLock::new(ledger),
            bodies: RwLock::new(bodies),
            options,
        };
        world.build_to(world.options.height_start);
        Ok(world)
    }

    /// The instant of the world's start.
    #[must_use]
    pub fn origin(&self) -> Instant {
        self.origin
    }

    /// The newest head at an instant; the starting one before the world's start.
    #[must_use]
    pub fn height_at(&self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.origin);
        let blocks = elapsed.as_nanos() / self.options.block_time.as_nanos();
        self.options.height_start + blocks as u64
    }

    /// The instant at which a head appears.
    #[must_use]
    pub fn instant_of(&self, head: u64) -> Instant {
        let blocks = head.saturating_sub(self.options.height_start);
        let nanos = self.options.block_time.as_nanos().saturating_mul(u128::from(blocks));
        self.origin + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// What the world was made of.
    #[must_use]
    pub fn options(&self) -> &WorldOptions {
        &self.options
    }

    /// The addresses that appear on the chain.
    #[must_use]
    pub fn cast(&self) -> &Cast {
        &self.cast
    }

    /// Where branches begin and end.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The number of the finalized block in the view of a head.
    #[must_use]
    pub fn finalized(&self, head: u64) -> u64 {
        head.saturating_sub(self.options.finality_depth)
    }

    /// The number of the safe block in the view of a head: one epoch where final means two.
    #[must_use]
    pub fn safe(&self, head: u64) -> u64 {
        head.saturating_sub(self.options.finality_depth / 2)
    }

    /// The lowest block that is still remembered.
    #[must_use]
    pub fn floor(&self) -> u64 {
        let floor = self.ledger.read().floor();
        // The lowest record is only the parent that the next body is built from.
        if floor == 0 { 0 } else { floor + 1 }
    }

    /// The place of block `number` in the view of a head.
    #[must_use]
    pub fn place(&self, head: u64, number: u64) -> Option<Place> {
        if number > head {
            return None;
        }
        Some(Place { branch: self.schedule.branch_of_block(head, number), number })
    }

    /// Block `number` in the view of a head.
    #[must_use]
    pub fn block_at(&self, head: u64, number: u64) -> Option<Arc<Block>> {
        let place = self.place(head, number)?;
        self.build_to(head);
        self.body(place)
    }

    /// The hash of block `number` in the view of a head.
    #[must_use]
    pub fn hash_at(&self, head: u64, number: u64) -> Option<B256> {
        let place = self.place(head, number)?;
        self.build_to(head);
        self.ledger.read().standing(place).map(|standing| standing.hash)
    }

    /// The block with a hash, if the view of a head has ever held it.
    #[must_use]
    pub fn block_by_hash(&self, head: u64, hash: &B256) -> Option<Arc<Block>> {
        self.build_to(head);
        let place = self.place_of(hash)?;
        let (appeared, _) = self.schedule.heads_with(place.branch, place.number);
        if appeared > head { None } else { self.body(place) }
    }

    /// The place of a block that the world has built so far, whatever the view.
    #[must_use]
    pub fn place_of(&self, hash: &B256) -> Option<Place> {
        self.ledger.read().block(hash)
    }

    /// All places of a transaction that the world has built so far, whatever the view.
    #[must_use]
    pub fn places_of(&self, transaction: &B256) -> Vec<(Place, usize)> {
        let ledger = self.ledger.read();
        let single = ledger.transaction_single(transaction);
        let places = single.as_slice().iter().chain(ledger.transaction(transaction));
        places.map(|(place, at)| (*place, *at as usize)).collect()
    }

    /// Whether a place is on the chain of a head.
    #[must_use]
    pub fn holds(&self, head: u64, place: Place) -> bool {
        self.place(head, place.number) == Some(place)
    }

    /// The block and index of a transaction in the view of a head.
    #[must_use]
    pub fn find_transaction(&self, head: u64, hash: &B256) -> Option<(Arc<Block>, usize)> {
        self.build_to(head);
        let found = {
            let ledger = self.ledger.read();
            let single = ledger.transaction_single(hash);
            let mut places = single.as_slice().iter().chain(ledger.transaction(hash));
            places.find(|(place, _)| self.holds(head, *place)).copied()
        };
        let (place, at) = found?;
        Some((self.body(place)?, at as usize))
    }

    /// The balance of an account after the block at a place, zero for one that never appears;
    /// nothing if the block is forgotten.
    #[must_use]
    pub fn balance(&self, place: Place, address: Address) -> Option<u128> {
        let ledger = self.ledger.read();
        let standing = ledger.standing(place)?;
        Some(self.account(address).map_or(0, |account| standing.balances[account]))
    }

    /// How many transactions an account has sent up to and including the block at a place.
    #[must_use]
    pub fn nonce(&self, place: Place, address: Address) -> Option<u64> {
        let ledger = self.ledger.read();
        let total = ledger.standing(place)?.transactions_total;
        Some(self.account(address).map_or(0, |account| nonce_after(account, total)))
    }

    /// How many transactions an account has received up to and including the block at a place.
    #[must_use]
    pub fn received(&self, place: Place, address: Address) -> Option<u64> {
        let ledger = self.ledger.read();
        let standing = ledger.standing(place)?;
        Some(self.account(address).map_or(0, |account| standing.received[account]))
    }

    /// The hash of the block at a place.
    #[must_use]
    pub fn hash_of(&self, place: Place) -> Option<B256> {
        self.ledger.read().standing(place).map(|standing| standing.hash)
    }

    /// Whether an address is one of the contracts.
    #[must_use]
    pub fn is_contract(&self, address: Address) -> bool {
        self.cast.contracts.contains(&address)
    }

    /// Adds a transaction to the pool that all nodes share. False if it was there already.
    pub(crate) fn pool_add(&self, envelope: TxEnvelope) -> bool {
        self.pool.lock().add(envelope)
    }

    /// A transaction of the pool.
    pub(crate) fn pool_get(&self, hash: &B256) -> Option<TxEnvelope> {
        self.pool.lock().get(hash).cloned()
    }

    /// How many transactions were ever sent.
    pub(crate) fn pooled(&self) -> u64 {
        self.pool.lock().added()
    }

    /// How many were sent by now, and those of them that came after so many.
    pub(crate) fn pooled_since(&self, added: u64) -> (u64, Vec<B256>) {
        let pool = self.pool.lock();
        (pool.added(), pool.since(added))
    }

    /// How many transactions the pool holds.
    pub(crate) fn pool_len(&self) -> usize {
        self.pool.lock().len()
    }

    /// Builds every block that a head's view holds or has dropped.
    pub(crate) fn build_to(&self, head: u64) {
        if head <= self.built.load(Ordering::Acquire) {
            return;
        }
        let mut ledger = self.ledger.write();
        for next in self.built.load(Ordering::Acquire) + 1..=head {
            let branch = self.schedule.branch_of_head(next);
            let first = match self.schedule.fork_of(branch) {
                Some(fork) if self.schedule.branch_of_head(next - 1) != branch => fork + 1,
                _ => next,
            };
            for number in first..=next {
                self.build_one(&mut ledger, Place { branch, number });
            }
            ledger.trim();
            self.built.store(next, Ordering::Release);
        }
    }

    fn build_one(&self, ledger: &mut Ledger, place: Place) {
        let Some((block, standing)) = self.construct(ledger, place) else {
            debug_assert!(false, "parent of {place:?} is not remembered");
            return;
        };
        ledger.add(&block, standing);
        self.bodies.write().keep(place, Arc::new(block));
    }

    fn construct(&self, ledger: &Ledger, place: Place) -> Option<(Block, crate::block::Standing)> {
        let Place { branch, number } = place;
        let before = number.checked_sub(1)?;
        // The parent is on the same branch unless the block is the first above the fork.
        let parent_branch = match self.schedule.fork_of(branch) {
            Some(fork) if before <= fork => {
                let maker = &self.schedule.reorgs()[branch - 1];
                self.schedule.branch_of_block(maker.at_height, before)
            }
            _ => branch,
        };
        let parent = ledger.standing(Place { branch: parent_branch, number: before })?;
        let (options, cast) = (&self.options, &self.cast);
        Some(Site { options, cast, branch, number, parent }.build())
    }

    fn body(&self, place: Place) -> Option<Arc<Block>> {
        if let Some(block) = self.bodies.read().get(place) {
            return Some(Arc::clone(block));
        }
        let block = {
            let ledger = self.ledger.read();
            ledger.standing(place)?;
            if place.number == 0 {
                Block::genesis(&self.options, &self.cast).0
            } else {
                self.construct(&ledger, place)?.0
            }
        };
        let block = Arc::new(block);
        self.bodies.write().keep(place, Arc::clone(&block));
        Some(block)
    }

    fn account(&self, address: Address) -> Option<usize> {
        (0..ACCOUNTS).find(|account| self.cast.accounts[*account] == address)
    }
}

#[cfg(test)]
mod tests;
