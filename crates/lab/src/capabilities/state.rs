//! Measures how far back a node has the state of accounts.

use wire::node_error::ErrorKind;

use super::Measured;
use super::caller::{CallFault, Caller};

/// Maximum number of calls of the measurement.
const CALLS_MAX: u32 = 16;

/// The blocks whose state a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDepth {
    /// All blocks.
    All,
    /// About this number of blocks below the head.
    Last(u64),
}

/// Reads the balance of the zero address at the oldest block, and then at other blocks, by
/// bisection. The bisection takes geometric means of depths, so its relative precision is the same
/// for short and long histories.
///
/// The oldest block is block 1, because some nodes without history keep the state of block 0.
pub(super) fn measure(caller: &Caller<'_>, head: u64) -> Measured<StateDepth> {
    let oldest = head.min(1);
    if has_state(caller, oldest)? {
        return Ok(StateDepth::All);
    }
    let depth_of_oldest = head - oldest;
    if depth_of_oldest < 2 || !has_state(caller, head - 1)? {
        return Err("the node has no state of the newest blocks".to_owned());
    }
    // The node has the state at the first depth and lacks it at the second.
    let (mut present, mut missing) = (1, depth_of_oldest);
    for _ in 2..CALLS_MAX {
        if missing - present <= 1 {
            break;
        }
        let middle =
            ((present as f64 * missing as f64).sqrt() as u64).clamp(present + 1, missing - 1);
        if has_state(caller, head - middle)? {
            present = middle;
        } else {
            missing = middle;
        }
    }
    Ok(StateDepth::Last(present))
}

/// Returns true if the node has the state of a block.
fn has_state(caller: &Caller<'_>, block: u64) -> Measured<bool> {
    let params = format!(r#"["0x0000000000000000000000000000000000000000","{block:#x}"]"#);
    match caller.call("eth_getBalance", &params) {
        Ok(balance) if balance.is_string() => Ok(true),
        Ok(other) => Err(format!("eth_getBalance returned {other}")),
        Err(CallFault::Error {
            kind: ErrorKind::HistoryMissing | ErrorKind::BlockUnknown, ..
        }) => Ok(false),
        Err(fault) => Err(format!("eth_getBalance at block {block}: {fault}")),
    }
}
