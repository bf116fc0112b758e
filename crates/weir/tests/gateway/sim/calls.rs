//! Random calls of every read method of the simulated chain. Their blocks are near the head (the
//! chain's newest block), beyond it, on both sides of the newest finalized block, or on branches
//! that a reorg dropped.

use rand::Rng;
use rand::rngs::SmallRng;
use simnode::world::World;
use tokio::time::Instant;

/// Maximum number of blocks that a requested block is below the head. It is deeper than any reorg
/// and reaches finalized blocks.
const DEPTH_MAX: u64 = 40;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) params: String,
}

/// Generates random calls for one instant.
struct CallGenerator<'a> {
    world: &'a World,
    rng: &'a mut SmallRng,
    /// The block number of the head.
    head: u64,
}

/// Returns a random call for the current head.
pub(crate) fn random_call(world: &World, rng: &mut SmallRng) -> Call {
    let head = world.height_at(Instant::now());
    let mut generator = CallGenerator { world, rng, head };
    let (method, params) = match generator.rng.random_range(0..100) {
        0..30 => generator.head_call(),
        30..55 => generator.block_call(),
        55..70 => generator.transaction_call(),
        70..88 => generator.state_call(),
        88..97 => ("eth_getLogs", generator.log_filter()),
        _ => generator.other_call(),
    };
    Call { method, params }
}

/// Returns a random call about the head, for a client that follows the chain.
pub(crate) fn random_head_call(world: &World, rng: &mut SmallRng) -> Call {
    let head = world.height_at(Instant::now());
    let (method, params) = CallGenerator { world, rng, head }.head_call();
    Call { method, params }
}

impl CallGenerator<'_> {
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.random_range(0..all.len())]
    }

    fn head_call(&mut self) -> (&'static str, String) {
        match self.rng.random_range(0..10) {
            0..3 => ("eth_blockNumber", "[]".to_owned()),
            3..6 => {
                let with_transactions = self.rng.random_bool(0.3);
                ("eth_getBlockByNumber", format!("[\"latest\",{with_transactions}]"))
            }
            6 => ("eth_gasPrice", "[]".to_owned()),
            7 => ("eth_maxPriorityFeePerGas", "[]".to_owned()),
            8 => ("eth_getBlockReceipts", "[\"latest\"]".to_owned()),
            _ => {
                let newest =
                    if self.rng.random_bool(0.5) { self.number() } else { "latest".into() };
                let count = self.rng.random_range(1..5);
                ("eth_feeHistory", format!("[\"{count:#x}\",\"{newest}\",[25,75]]"))
            }
        }
    }

    fn block_call(&mut self) -> (&'static str, String) {
        let (with_transactions, index) = (self.rng.random_bool(0.3), self.rng.random_range(0..6));
        match self.rng.random_range(0..16) {
            0..5 => {
                ("eth_getBlockByNumber", format!("[\"{}\",{with_transactions}]", self.number()))
            }
            5 => {
                let tag = self.one_of(&["finalized", "safe", "earliest"]);
                ("eth_getBlockByNumber", format!("[\"{tag}\",{with_transactions}]"))
            }
            6..9 => ("eth_getBlockByHash", format!("[\"{}\",{with_transactions}]", self.hash())),
            9 => ("eth_getBlockTransactionCountByNumber", format!("[\"{}\"]", self.number())),
            10 => ("eth_getBlockTransactionCountByHash", format!("[\"{}\"]", self.hash())),
            11 => ("eth_getUncleCountByBlockNumber", format!("[\"{}\"]", self.number())),
            12 => ("eth_getBlockReceipts", format!("[\"{}\"]", self.number())),
            13 => ("eth_getBlockReceipts", format!("[\"{}\"]", self.hash())),
            14 => {
                let method = "eth_getTransactionByBlockNumberAndIndex";
                (method, format!("[\"{}\",\"{index:#x}\"]", self.number()))
            }
            _ => {
                let method = "eth_getTransactionByBlockHashAndIndex";
                (method, format!("[\"{}\",\"{index:#x}\"]", self.hash()))
            }
        }
    }

    fn transaction_call(&mut self) -> (&'static str, String) {
        let (head, number) = self.head_and_block();
        let block = self.world.block_at(head, number).expect("the world has built it");
        let transactions = &block.transactions;
        let hash = transactions[self.rng.random_range(0..transactions.len())].hash();
        let method = self.one_of(&["eth_getTransactionByHash", "eth_getTransactionReceipt"]);
        (method, format!("[\"{hash}\"]"))
    }

    fn state_call(&mut self) -> (&'static str, String) {
        let account = self.world.addresses().accounts[self.rng.random_range(0..4)];
        let contract = self.world.addresses().contracts[self.rng.random_range(0..2)];
        let block = self.block_parameter();
        match self.rng.random_range(0..12) {
            0..4 => ("eth_getBalance", format!("[\"{account}\",{block}]")),
            4..6 => ("eth_getTransactionCount", format!("[\"{account}\",{block}]")),
            6 => ("eth_getCode", format!("[\"{contract}\",{block}]")),
            7 => ("eth_getStorageAt", format!("[\"{contract}\",\"0x1\",{block}]")),
            8 => ("eth_estimateGas", format!("[{{\"to\":\"{contract}\"}},{block}]")),
            // Without a block parameter, the call is about the latest block.
            9 => ("eth_call", format!("[{{\"to\":\"{contract}\",\"data\":\"0x01\"}}]")),
            _ => {
                let data = self.one_of(&["0x01", "0x02", "0xdeadbeef"]);
                ("eth_call", format!("[{{\"to\":\"{contract}\",\"data\":\"{data}\"}},{block}]"))
            }
        }
    }

    fn log_filter(&mut self) -> String {
        let contract = self.world.addresses().contracts[self.rng.random_range(0..2)];
        let bounds = match self.rng.random_range(0..12) {
            0 => format!("\"blockHash\":\"{}\"", self.hash()),
            1 => "\"fromBlock\":\"latest\"".to_owned(),
            2 => format!("\"fromBlock\":\"{}\"", self.number()),
            3 => "\"fromBlock\":\"finalized\",\"toBlock\":\"latest\"".to_owned(),
            // In about half of all cases, the range ends before it starts.
            4 => format!("\"fromBlock\":\"{}\",\"toBlock\":\"{}\"", self.number(), self.number()),
            // The range starts at or before the newest finalized block and ends after it.
            5..8 => {
                let finalized = self.world.finalized_number(self.head);
                let from = finalized.saturating_sub(self.rng.random_range(0..24));
                let to = finalized + self.rng.random_range(1..14);
                format!("\"fromBlock\":\"{from:#x}\",\"toBlock\":\"{to:#x}\"")
            }
            _ => {
                let to = self.head - self.rng.random_range(0..4);
                let from = to - self.rng.random_range(0..8);
                format!("\"fromBlock\":\"{from:#x}\",\"toBlock\":\"{to:#x}\"")
            }
        };
        if self.rng.random_bool(0.5) {
            return format!("[{{{bounds}}}]");
        }
        format!("[{{{bounds},\"address\":\"{contract}\"}}]")
    }

    /// Returns a call that depends on no block, or that is invalid.
    fn other_call(&mut self) -> (&'static str, String) {
        match self.rng.random_range(0..6) {
            0 => ("eth_chainId", "[]".to_owned()),
            1 => ("net_version", "[]".to_owned()),
            2 => ("eth_syncing", "[]".to_owned()),
            3 => ("web3_sha3", "[\"0x68656c6c6f\"]".to_owned()),
            4 => ("eth_getBalance", "[\"0x12\",\"latest\"]".to_owned()),
            _ => ("eth_accounts", "[]".to_owned()),
        }
    }

    /// Returns the block parameter of a state call: a tag, a number or a hash.
    fn block_parameter(&mut self) -> String {
        match self.rng.random_range(0..12) {
            0..5 => "\"latest\"".to_owned(),
            5..9 => format!("\"{}\"", self.number()),
            9 => format!("{{\"blockNumber\":\"{}\"}}", self.number()),
            10 => format!("{{\"blockHash\":\"{}\"}}", self.hash()),
            _ => format!("{{\"blockHash\":\"{}\",\"requireCanonical\":true}}", self.hash()),
        }
    }

    /// Returns a block number near the head: mostly just below it, rarely above.
    fn number(&mut self) -> String {
        let number = match self.rng.random_range(0..40) {
            0 => self.head + self.rng.random_range(1..4),
            1..24 => self.head - self.rng.random_range(0..6),
            _ => self.head - self.rng.random_range(0..DEPTH_MAX),
        };
        format!("{number:#x}")
    }

    /// Returns the hash of a recent block, which a reorg may have dropped.
    fn hash(&mut self) -> String {
        let (head, number) = self.head_and_block();
        self.world.hash_at(head, number).expect("the world has built it").to_string()
    }

    /// Returns the block numbers of a recent head and of a block at or below it. A later reorg may
    /// have dropped the block.
    fn head_and_block(&mut self) -> (u64, u64) {
        let head = self.world.block_at_or_below(self.head - self.rng.random_range(0..12));
        (head, self.world.block_at_or_below(head - self.rng.random_range(0..8)))
    }
}
