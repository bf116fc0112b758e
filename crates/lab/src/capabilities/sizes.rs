//! Measures the largest range of `eth_getLogs` and the largest batch that a node accepts.

use wire::node_error::{read_batch_limit, read_range_limits};

use super::Measured;
use super::caller::{CallFault, Caller};

/// The first range in blocks. Each further range is twice as long.
const RANGE_FIRST: u64 = 16;
/// The longest range in blocks that is tried.
pub(super) const RANGE_MAX: u64 = 10_000;
/// Maximum number of ranges that are tried between an accepted and a refused one.
const BISECTION_STEPS: u32 = 5;
/// Maximum number of limits in the words of a refusal that are tried.
const STATED_LIMITS_MAX: usize = 2;
/// The sizes of the batches that are tried, in calls.
const BATCH_SIZES: [u32; 5] = [1, 2, 10, 50, 100];
/// An address without code, which has no logs.
const ADDRESS_WITHOUT_LOGS: &str = "0x000000000000000000000000000000000000dead";

/// A limit of a node on the size of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeLimit {
    /// The largest size that the node accepted; 0 if it accepted none.
    pub accepted: u64,
    /// The smallest size that failed, and the words of the failure. `None` if no size failed.
    pub failed: Option<(u64, String)>,
}

/// Measures the longest range of `eth_getLogs`, up to [`RANGE_MAX`] blocks.
pub(super) fn measure_log_range(caller: &Caller<'_>, head: u64) -> Measured<SizeLimit> {
    let range_max = RANGE_MAX.min(head + 1);
    let read = |blocks: u64| -> Result<(), CallFault> {
        let from = head + 1 - blocks;
        let params = format!(
            r#"[{{"address":"{ADDRESS_WITHOUT_LOGS}","fromBlock":"{from:#x}","toBlock":"{head:#x}"}}]"#
        );
        caller.call("eth_getLogs", &params).map(drop)
    };
    let doubled = std::iter::successors(Some(RANGE_FIRST.min(range_max)), |range| {
        (*range < range_max).then(|| (range * 2).min(range_max))
    });
    let mut limit = try_sizes(doubled, read);
    let Some((_, message)) = &limit.failed else { return Ok(limit) };
    for stated in read_range_limits(message).into_iter().take(STATED_LIMITS_MAX) {
        limit.try_between(stated, read);
        if limit.accepted == stated {
            return Ok(limit);
        }
    }
    for _ in 0..BISECTION_STEPS {
        let refused = limit.failed.as_ref().map_or(range_max, |(size, _)| *size);
        limit.try_between(limit.accepted.midpoint(refused), read);
    }
    Ok(limit)
}

/// Measures the largest batch of calls of a method without parameters.
pub(super) fn measure_batch(caller: &Caller<'_>, method: &str) -> Measured<SizeLimit> {
    let send = |calls: u64| caller.call_batch(method, calls as u32);
    let mut limit = try_sizes(BATCH_SIZES.into_iter().map(u64::from), send);
    let stated = limit.failed.as_ref().and_then(|(_, message)| read_batch_limit(message));
    if let Some(stated) = stated {
        limit.try_between(stated as u64, send);
    }
    Ok(limit)
}

/// Tries rising sizes until one fails.
fn try_sizes(
    sizes: impl Iterator<Item = u64>,
    send: impl Fn(u64) -> Result<(), CallFault>,
) -> SizeLimit {
    let mut limit = SizeLimit { accepted: 0, failed: None };
    for size in sizes {
        match send(size) {
            Ok(()) => limit.accepted = size,
            Err(fault) => {
                limit.failed = Some((size, fault.to_string()));
                break;
            }
        }
    }
    limit
}

impl SizeLimit {
    /// Tries a size if it is between the accepted one and the one that failed.
    fn try_between(&mut self, size: u64, send: impl Fn(u64) -> Result<(), CallFault>) {
        let failed_size = self.failed.as_ref().map_or(0, |(size, _)| *size);
        if size <= self.accepted || size >= failed_size {
            return;
        }
        match send(size) {
            Ok(()) => self.accepted = size,
            Err(fault) => self.failed = Some((size, fault.to_string())),
        }
    }
}
