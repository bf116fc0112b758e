//! The world: a deterministic chain with all its branches. The chain can be read at any instant.
//! `schedule.rs` decides when each block exists. `block.rs` builds a block. `world/block_index.rs`
//! stores a record of the block, and `world/block_cache.rs` the complete block.
//!
//! The chain is a function of the options and the instant. Only the transaction pool depends on the
//! clients' calls, and no block includes its transactions. Blocks are built in order when they are
//! first read. Old blocks are evicted and rebuilt, so a long run needs bounded memory. Time is
//! `tokio::time::Instant`, so a paused clock gives virtual time.

mod block_cache;
pub mod block_index;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alloy_consensus::TxEnvelope;
use alloy_primitives::{Address, B256};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use self::block_cache::BlockCache;
use self::block_index::{BlockIndex, BlockPosition};
use crate::block::{ACCOUNTS, Block, BlockBuilder, KnownAddresses, nonce_after};
use crate::schedule::{OptionsError, Schedule, WorldOptions};
use crate::transaction_pool::TransactionPool;

/// The chain with all its branches, and its clock. Share it in an [`Arc`].
///
/// A position is the branch and the number of a block. Methods are of three kinds: **time**
/// (`origin`, `height_at`, `instant_of`), **facts** that never change (`options`, `addresses`,
/// `schedule`) and **reads** (`block_at`, `block_by_hash`, `find_transaction`, `balance`, `nonce`).
/// Many reads take the number of a head: a block that is the newest at some instant. Such a read
/// returns values of the head's view: the chain as it is while this block is the newest. The read
/// first builds missing blocks.
pub struct World {
    options: WorldOptions,
    addresses: KnownAddresses,
    schedule: Schedule,
    origin: Instant,
    pool: Mutex<TransactionPool>,
    /// The highest head whose blocks are built. It is atomic, so that a read of a built head needs
    /// no write lock.
    built_head: AtomicU64,
    /// Every new block is written to the index once, and every call reads the index.
    block_index: RwLock<BlockIndex>,
    /// The cache has its own lock, because a read of an old block writes to the cache.
    block_cache: RwLock<BlockCache>,
}

impl World {
    /// Creates a world whose clock starts now.
    ///
    /// # Errors
    /// Returns the first invalid option.
    pub fn new(options: WorldOptions) -> Result<Self, OptionsError> {
        Self::starting(options, Instant::now())
    }

    /// Creates a world whose head is `height_start` at `origin`, and builds its chain up to there.
    ///
    /// # Errors
    /// Returns the first invalid option.
    pub fn starting(options: WorldOptions, origin: Instant) -> Result<Self, OptionsError> {
        let world = Self::unbuilt(options, origin)?;
        world.build_to(world.options.height_start);
        Ok(world)
    }

    /// Creates a world whose chain has only its genesis block.
    ///
    /// # Errors
    /// Returns the first invalid option.
    pub(crate) fn unbuilt(options: WorldOptions, origin: Instant) -> Result<Self, OptionsError> {
        let schedule = Schedule::new(&options)?;
        let addresses = KnownAddresses::new(options.seed);
        let (block, post_state) = Block::genesis(&options, &addresses);
        let mut block_index = BlockIndex::default();
        block_index.add(&block, post_state);
        let mut block_cache = BlockCache::default();
        block_cache.insert(BlockPosition { branch: 0, number: 0 }, Arc::new(block));
        Ok(Self {
            addresses,
            schedule,
            origin,
            pool: Mutex::default(),
            built_head: AtomicU64::new(0),
            block_index: RwLock::new(block_index),
            block_cache: RwLock::new(block_cache),
            options,
        })
    }

    /// Returns the instant of the world's start.
    #[must_use]
    pub fn origin(&self) -> Instant {
        self.origin
    }

    /// Returns the number of the newest block at an instant. Before the world's start, this is
    /// `height_start`.
    #[must_use]
    pub fn height_at(&self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.origin);
        let blocks = elapsed.as_nanos() / self.options.block_time.as_nanos();
        self.block_at_or_below(self.options.height_start + blocks as u64)
    }

    /// Returns the number of the newest block at or below a height. Two skipped heights never follow
    /// one another.
    #[must_use]
    pub fn block_at_or_below(&self, number: u64) -> u64 {
        if self.options.is_skipped(number) { number - 1 } else { number }
    }

    /// Returns the instant at which a head appears.
    #[must_use]
    pub fn instant_of(&self, head: u64) -> Instant {
        let blocks = head.saturating_sub(self.options.height_start);
        let nanos = self.options.block_time.as_nanos().saturating_mul(u128::from(blocks));
        self.origin + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the options of the world.
    #[must_use]
    pub fn options(&self) -> &WorldOptions {
        &self.options
    }

    /// Returns the addresses that appear on the chain.
    #[must_use]
    pub fn addresses(&self) -> &KnownAddresses {
        &self.addresses
    }

    /// Returns the schedule of the reorgs, which determine the branches of the world.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Returns the number of the finalized block in the view of a head.
    #[must_use]
    pub fn finalized_number(&self, head: u64) -> u64 {
        self.block_at_or_below(head.saturating_sub(self.options.finality_depth))
    }

    /// Returns the number of the safe block in the view of a head: half the finality depth below
    /// the head.
    #[must_use]
    pub fn safe_number(&self, head: u64) -> u64 {
        self.block_at_or_below(head.saturating_sub(self.options.finality_depth / 2))
    }

    /// Returns the position of block `number` in the view of a head. Returns `None` if the number
    /// is above the head or skipped.
    #[must_use]
    pub fn position(&self, head: u64, number: u64) -> Option<BlockPosition> {
        if number > head || self.options.is_skipped(number) {
            return None;
        }
        Some(BlockPosition { branch: self.schedule.branch_of_block(head, number), number })
    }

    /// Returns block `number` in the view of a head. Returns `None` if the number is above the
    /// head, or if the world no longer has the block.
    #[must_use]
    pub fn block_at(&self, head: u64, number: u64) -> Option<Arc<Block>> {
        let position = self.position(head, number)?;
        self.build_to(head);
        self.load_block(position)
    }

    /// Returns the hash of block `number` in the view of a head. Returns `None` if the number is
    /// above the head, or if the world no longer has the block.
    #[must_use]
    pub fn hash_at(&self, head: u64, number: u64) -> Option<B256> {
        let position = self.position(head, number)?;
        self.build_to(head);
        self.block_index.read().post_state(position).map(|post_state| post_state.hash)
    }

    /// Returns the block with a hash, if it is in the view of a head or in an earlier view. Returns
    /// `None` for any other hash, or if the world no longer has the block.
    #[must_use]
    pub fn block_by_hash(&self, head: u64, hash: &B256) -> Option<Arc<Block>> {
        self.build_to(head);
        let position = self.position_of(hash)?;
        let (appeared, _) = self.schedule.heads_with(position.branch, position.number);
        if appeared > head { None } else { self.load_block(position) }
    }

    /// Returns the position of a block in any view. Returns `None` if the world has not built the
    /// block yet, or no longer has it.
    #[must_use]
    pub fn position_of(&self, hash: &B256) -> Option<BlockPosition> {
        self.block_index.read().block_position(hash)
    }

    /// Returns the position of each block, in any view, that contains this transaction. Also
    /// returns the index of the transaction in this block. Only blocks that the world has built,
    /// and still has, are found.
    #[must_use]
    pub fn positions_of(&self, transaction: &B256) -> Vec<(BlockPosition, usize)> {
        let block_index = self.block_index.read();
        let positions = block_index.transaction_positions(transaction);
        positions.map(|(position, index)| (position, index as usize)).collect()
    }

    /// Returns true if a position is on the chain of a head.
    #[must_use]
    pub fn contains(&self, head: u64, position: BlockPosition) -> bool {
        self.position(head, position.number) == Some(position)
    }

    /// Returns the block and index of a transaction in the view of a head.
    #[must_use]
    pub fn find_transaction(&self, head: u64, hash: &B256) -> Option<(Arc<Block>, usize)> {
        self.build_to(head);
        let canonical = {
            let block_index = self.block_index.read();
            let mut positions = block_index.transaction_positions(hash);
            positions.find(|(position, _)| self.contains(head, *position))
        };
        let (position, index) = canonical?;
        Some((self.load_block(position)?, index as usize))
    }

    /// Returns the balance of an account after the block at a position. Any other address has the
    /// balance 0. Returns `None` if the world no longer has the block.
    #[must_use]
    pub fn balance(&self, position: BlockPosition, address: Address) -> Option<u128> {
        let block_index = self.block_index.read();
        let post_state = block_index.post_state(position)?;
        Some(self.account_index(address).map_or(0, |index| post_state.balances[index]))
    }

    /// Returns the number of transactions that an account has sent up to and including the block at
    /// a position. Returns `None` if the world no longer has the block.
    #[must_use]
    pub fn nonce(&self, position: BlockPosition, address: Address) -> Option<u64> {
        let block_index = self.block_index.read();
        let total = block_index.post_state(position)?.transactions_total;
        Some(self.account_index(address).map_or(0, |index| nonce_after(index, total)))
    }

    /// Returns the number of transactions that an account has received up to and including the
    /// block at a position. Returns `None` if the world no longer has the block.
    #[must_use]
    pub fn received(&self, position: BlockPosition, address: Address) -> Option<u64> {
        let block_index = self.block_index.read();
        let post_state = block_index.post_state(position)?;
        Some(self.account_index(address).map_or(0, |index| post_state.received[index]))
    }

    /// Returns the hash of the block at a position. Returns `None` if the world does not have the
    /// block.
    #[must_use]
    pub fn hash_of(&self, position: BlockPosition) -> Option<B256> {
        self.block_index.read().post_state(position).map(|post_state| post_state.hash)
    }

    /// Returns true if an address is one of the contracts.
    #[must_use]
    pub fn is_contract(&self, address: Address) -> bool {
        self.addresses.contracts.contains(&address)
    }

    /// Adds a transaction to the pool that all nodes share. Returns false if it was in the pool
    /// already.
    pub(crate) fn pool_add(&self, envelope: TxEnvelope) -> bool {
        self.pool.lock().add(envelope)
    }

    /// Returns a transaction of the pool.
    pub(crate) fn pool_get(&self, hash: &B256) -> Option<TxEnvelope> {
        self.pool.lock().get(hash).cloned()
    }

    /// Returns the number of transactions that were ever added to the pool.
    pub(crate) fn pool_added(&self) -> u64 {
        self.pool.lock().added()
    }

    /// Returns the number of transactions that were ever added to the pool, and the hashes of all
    /// but the first `added` of them.
    pub(crate) fn pool_added_since(&self, added: u64) -> (u64, Vec<B256>) {
        let pool = self.pool.lock();
        (pool.added(), pool.added_since(added))
    }

    /// Returns the number of transactions in the pool.
    pub(crate) fn pool_len(&self) -> usize {
        self.pool.lock().len()
    }

    /// Builds the chain up to the newest block. After each built head, passes its number and the
    /// number of the newest block to `on_progress`, and yields to other tasks.
    pub(crate) async fn catch_up(&self, mut on_progress: impl FnMut(u64, u64)) {
        loop {
            let built_head = self.built_head.load(Ordering::Acquire);
            let head = self.height_at(Instant::now());
            if built_head >= head {
                return;
            }
            self.build_to(built_head + 1);
            on_progress(built_head + 1, head);
            tokio::task::yield_now().await;
        }
    }

    /// Builds every missing block of the views up to this head.
    pub(crate) fn build_to(&self, head: u64) {
        if head <= self.built_head.load(Ordering::Acquire) {
            return;
        }
        let mut block_index = self.block_index.write();
        for next in self.built_head.load(Ordering::Acquire) + 1..=head {
            let branch = self.schedule.branch_of_head(next);
            // A reorg replaces all blocks above its fork, so they are built on the new branch.
            let first_number = match self.schedule.fork_of(branch) {
                Some(fork) if self.schedule.branch_of_head(next - 1) != branch => fork + 1,
                _ => next,
            };
            for number in first_number..=next {
                self.build_block(&mut block_index, BlockPosition { branch, number });
            }
            block_index.trim();
            self.built_head.store(next, Ordering::Release);
        }
    }

    /// Builds the block at a position and stores it in the index and in the cache. A skipped height
    /// has the state of its parent.
    fn build_block(&self, block_index: &mut BlockIndex, position: BlockPosition) {
        if self.options.is_skipped(position.number) {
            let parent_position = self.parent_position(position);
            let parent = parent_position.and_then(|parent| block_index.post_state(parent)).cloned();
            let Some(parent) = parent else {
                debug_assert!(false, "parent of {position:?} is not in the index");
                return;
            };
            block_index.add_skipped(position, parent);
            return;
        }
        let Some((block, post_state)) = self.build_from_index(block_index, position) else {
            debug_assert!(false, "parent of {position:?} is not in the index");
            return;
        };
        block_index.add(&block, post_state);
        self.block_cache.write().insert(position, Arc::new(block));
    }

    /// Builds a block and the state after it, without storing them. Returns `None` if the parent is
    /// not in the index.
    fn build_from_index(
        &self,
        block_index: &BlockIndex,
        position: BlockPosition,
    ) -> Option<(Block, crate::block::PostState)> {
        let BlockPosition { branch, number } = position;
        let parent = block_index.post_state(self.parent_position(position)?)?;
        let (options, addresses) = (&self.options, &self.addresses);
        Some(BlockBuilder { options, addresses, branch, number, parent }.build())
    }

    /// Returns the position below a position. Returns `None` for block 0.
    fn parent_position(
        &self,
        BlockPosition { branch, number }: BlockPosition,
    ) -> Option<BlockPosition> {
        let parent_number = number.checked_sub(1)?;
        // The parent of a branch's first block is block `fork`, which is on another branch. That
        // branch is the branch of block `fork` in the view of the last head before the reorg.
        let parent_branch = match self.schedule.fork_of(branch) {
            Some(fork) if parent_number <= fork => {
                let reorg = &self.schedule.reorgs()[branch - 1];
                self.schedule.branch_of_block(reorg.at_height, parent_number)
            }
            _ => branch,
        };
        Some(BlockPosition { branch: parent_branch, number: parent_number })
    }

    /// Returns the block at a position: from the cache, or built again. Returns `None` if the index
    /// no longer has the block.
    fn load_block(&self, position: BlockPosition) -> Option<Arc<Block>> {
        if let Some(block) = self.block_cache.read().get(position) {
            return Some(Arc::clone(block));
        }
        let block = {
            let block_index = self.block_index.read();
            block_index.post_state(position)?;
            if position.number == 0 {
                Block::genesis(&self.options, &self.addresses).0
            } else {
                self.build_from_index(&block_index, position)?.0
            }
        };
        let block = Arc::new(block);
        self.block_cache.write().insert(position, Arc::clone(&block));
        Some(block)
    }

    /// Returns the index of an account, or `None` for any other address.
    fn account_index(&self, address: Address) -> Option<usize> {
        (0..ACCOUNTS).find(|account| self.addresses.accounts[*account] == address)
    }
}

#[cfg(test)]
mod tests;
