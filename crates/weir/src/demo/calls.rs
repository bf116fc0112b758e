//! Which calls a demo makes: head reads as of a wallet, history reads as of an explorer. Every one
//! follows from the seed and its number; sending is `traffic.rs`.

use serde::Serialize;
use simnode::block::Block;
use simnode::seed::SeedStream;
use simnode::world::World;

#[cfg(test)]
mod tests;

/// History reads go back so many blocks; newer ones are asked for more often.
const HISTORY_BLOCKS: u64 = 300;
/// Blocks of one `eth_getLogs`, aligned, as indexers cut ranges.
const LOGS_BLOCKS: u64 = 16;
/// Names the stream of draws, so that it is none of the chain's own.
const DRAW_CALLS: u64 = 0xde_0001;

/// The two kinds of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// About the newest block.
    Head,
    /// About a block, transaction or range that is named.
    History,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Head, Kind::History];

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) kind: Kind,
    pub(super) method: &'static str,
    pub(super) params: String,
}

/// Call number `index` of a stream, made when `head` is the newest block. Kinds take turns.
pub(super) fn draw(world: &World, head: u64, stream: u64, index: u64) -> Asked {
    let seed = world.options().seed;
    let mut draws = SeedStream::at(seed, &[DRAW_CALLS, stream, index]);
    let kind = Kind::ALL[(index % 2) as usize];
    let (method, params) = match kind {
        Kind::Head => head_read(world, &mut draws),
        Kind::History => history_read(world, head, &mut draws),
    };
    Asked { kind, method, params }
}

fn head_read(world: &World, draws: &mut SeedStream) -> (&'static str, String) {
    let cast = world.addresses();
    match draws.within(0, 4) {
        0 => ("eth_blockNumber", "[]".to_owned()),
        1 => ("eth_getBlockByNumber", "[\"latest\",false]".to_owned()),
        2 => {
            let account = pick(&cast.accounts, draws);
            ("eth_getBalance", format!("[\"{account:#x}\",\"latest\"]"))
        }
        3 => {
            let contract = pick(&cast.contracts, draws);
            // The selector of ERC-20's totalSupply().
            let call = format!("{{\"to\":\"{contract:#x}\",\"data\":\"0x18160ddd\"}}");
            ("eth_call", format!("[{call},\"latest\"]"))
        }
        _ => ("eth_gasPrice", "[]".to_owned()),
    }
}

fn history_read(world: &World, head: u64, draws: &mut SeedStream) -> (&'static str, String) {
    let number = head - age(draws).min(head);
    let block = world.block_at(head, number);
    let block = block.expect("the chain remembers far more blocks than history reads go back");
    match draws.within(0, 5) {
        0 => ("eth_getBlockByNumber", format!("[\"{number:#x}\",false]")),
        1 => ("eth_getBlockByHash", format!("[\"{}\",true]", block.hash)),
        2 => ("eth_getBlockReceipts", format!("[\"{number:#x}\"]")),
        3 => ("eth_getTransactionByHash", format!("[\"{}\"]", transaction(&block, draws))),
        4 => ("eth_getTransactionReceipt", format!("[\"{}\"]", transaction(&block, draws))),
        _ => {
            let from = number.saturating_sub(LOGS_BLOCKS) / LOGS_BLOCKS * LOGS_BLOCKS;
            let (to, contract) =
                (from + LOGS_BLOCKS - 1, pick(&world.addresses().contracts, draws));
            let range = format!("\"fromBlock\":\"{from:#x}\",\"toBlock\":\"{to:#x}\"");
            ("eth_getLogs", format!("[{{{range},\"address\":\"{contract:#x}\"}}]"))
        }
    }
}

/// How old a block is asked for, from 1 block on: the cube of an even draw, so that half of the
/// calls fall on the newest eighth.
fn age(draws: &mut SeedStream) -> u64 {
    const STEPS: u64 = 1 << 20;
    let even = draws.within(0, STEPS - 1) as f64 / STEPS as f64;
    1 + (even.powi(3) * HISTORY_BLOCKS as f64) as u64
}

fn transaction(block: &Block, draws: &mut SeedStream) -> String {
    let last = block.transactions.len() - 1; // the demo's chain has no empty blocks
    block.transactions[draws.within(0, last as u64) as usize].hash().to_string()
}

fn pick<'a, T>(of: &'a [T], draws: &mut SeedStream) -> &'a T {
    &of[draws.within(0, of.len() as u64 - 1) as usize]
}
