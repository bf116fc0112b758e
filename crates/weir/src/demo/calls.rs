//! Generates a demo's calls: head reads, like those of a wallet, and history reads, like those of
//! an explorer. The seed and the call's number determine each call. `traffic.rs` sends the calls.
//!
//! The [`World`] is the simulated chain, which all nodes of the demo serve.

use serde::Serialize;
use simnode::block::Block;
use simnode::seed::SeedStream;
use simnode::world::World;

#[cfg(test)]
mod tests;

/// Age in blocks of the oldest block that a history read names. Newer blocks are read more often.
const HISTORY_BLOCKS: u64 = 300;
/// Number of blocks in the range of one `eth_getLogs`. Each range starts at a multiple of this
/// number, like the ranges of indexers.
const LOGS_BLOCKS: u64 = 16;
/// First word of the position that selects the random stream of a call (`SeedStream::at`). The
/// positions of the chain's streams begin with other words, so calls and chain share no stream.
const RNG_DOMAIN: u64 = 0xde_0001;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CallKind {
    /// Reads the newest block.
    Head,
    /// Reads a named block, transaction or block range.
    History,
}

impl CallKind {
    pub(super) const ALL: [CallKind; 2] = [CallKind::Head, CallKind::History];

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// One JSON-RPC call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) kind: CallKind,
    pub(super) method: &'static str,
    pub(super) params: String,
}

/// Generates call number `index` of a random stream, with `head` as the newest block. The kinds
/// alternate.
pub(super) fn generate(world: &World, head: u64, stream: u64, index: u64) -> Call {
    let seed = world.options().seed;
    let mut rng = SeedStream::at(seed, &[RNG_DOMAIN, stream, index]);
    let kind = CallKind::ALL[(index % 2) as usize];
    let (method, params) = match kind {
        CallKind::Head => generate_head_read(world, &mut rng),
        CallKind::History => generate_history_read(world, head, &mut rng),
    };
    Call { kind, method, params }
}

fn generate_head_read(world: &World, rng: &mut SeedStream) -> (&'static str, String) {
    let addresses = world.addresses();
    match rng.within(0, 4) {
        0 => ("eth_blockNumber", "[]".to_owned()),
        1 => ("eth_getBlockByNumber", "[\"latest\",false]".to_owned()),
        2 => {
            let account = draw_item(&addresses.accounts, rng);
            ("eth_getBalance", format!("[\"{account:#x}\",\"latest\"]"))
        }
        3 => {
            let contract = draw_item(&addresses.contracts, rng);
            // 0x18160ddd is the selector of ERC-20's totalSupply().
            let call = format!("{{\"to\":\"{contract:#x}\",\"data\":\"0x18160ddd\"}}");
            ("eth_call", format!("[{call},\"latest\"]"))
        }
        _ => ("eth_gasPrice", "[]".to_owned()),
    }
}

fn generate_history_read(world: &World, head: u64, rng: &mut SeedStream) -> (&'static str, String) {
    let number = head - draw_age(rng).min(head);
    let block = world.block_at(head, number);
    let block = block.expect("the chain remembers far more blocks than history reads go back");
    match rng.within(0, 5) {
        0 => ("eth_getBlockByNumber", format!("[\"{number:#x}\",false]")),
        1 => ("eth_getBlockByHash", format!("[\"{}\",true]", block.hash)),
        2 => ("eth_getBlockReceipts", format!("[\"{number:#x}\"]")),
        3 => ("eth_getTransactionByHash", format!("[\"{}\"]", draw_transaction_hash(&block, rng))),
        4 => ("eth_getTransactionReceipt", format!("[\"{}\"]", draw_transaction_hash(&block, rng))),
        _ => {
            // The range ends below block `number`, unless `number` is less than `LOGS_BLOCKS`.
            let from = number.saturating_sub(LOGS_BLOCKS) / LOGS_BLOCKS * LOGS_BLOCKS;
            let (to, contract) =
                (from + LOGS_BLOCKS - 1, draw_item(&world.addresses().contracts, rng));
            let range = format!("\"fromBlock\":\"{from:#x}\",\"toBlock\":\"{to:#x}\"");
            ("eth_getLogs", format!("[{{{range},\"address\":\"{contract:#x}\"}}]"))
        }
    }
}

/// Draws the age of a block, at least 1. The age follows the cube of a uniform draw, so that half
/// of the calls read the newest eighth of [`HISTORY_BLOCKS`].
fn draw_age(rng: &mut SeedStream) -> u64 {
    const STEPS: u64 = 1 << 20;
    let uniform = rng.within(0, STEPS - 1) as f64 / STEPS as f64;
    1 + (uniform.powi(3) * HISTORY_BLOCKS as f64) as u64
}

fn draw_transaction_hash(block: &Block, rng: &mut SeedStream) -> String {
    let last = block.transactions.len() - 1; // The demo's chain has no empty blocks.
    block.transactions[rng.within(0, last as u64) as usize].hash().to_string()
}

fn draw_item<'a, T>(items: &'a [T], rng: &mut SeedStream) -> &'a T {
    &items[rng.within(0, items.len() as u64 - 1) as usize]
}
