//! Head election: finds the highest head that two witnesses hold, on the branch with the most
//! witnesses.
//!
//! The functions are pure over the upstreams' chains. `heads` decides whether the elected head may
//! replace the present one, because a rollback needs evidence.

use std::cmp::Reverse;
use std::time::Duration;

use crate::policy::heads::Head;
use crate::policy::heads::upstream::UpstreamChain;

/// An elected head, an upstream that holds it, and the number of witnesses that hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Elected {
    pub(super) head: Head,
    pub(super) upstream: usize,
    pub(super) support: usize,
    /// True if the block is the head of an upstream. Otherwise it is a block that upstreams on
    /// different branches share. Such a block is no evidence against a higher head.
    pub(super) own_head: bool,
}

/// The upstreams whose heads count.
#[derive(Debug, Clone)]
pub(super) struct Witnesses {
    /// Their indices.
    pub(super) upstreams: Vec<usize>,
    /// Number of live upstreams. With three or more, the head of only one is not believed.
    pub(super) live: usize,
}

/// Finds the upstreams whose heads count. They respond to polls, have a head, and are neither
/// frozen nor left behind.
///
/// Both states are relative to rising upstreams, which linked new blocks within `fresh`. A frozen
/// upstream has not moved for that long while another rose over `lag_max` above it. An upstream is
/// left behind if at least half of the live upstreams rose over `lag_max` above it. So one slow
/// upstream of two does not hold the head back, and one rogue high head of three does not exclude
/// the others.
pub(super) fn witnesses(
    upstreams: &[UpstreamChain],
    now: Duration,
    missed_max: u32,
    lag_max: u64,
    fresh: Duration,
) -> Witnesses {
    let within = |at: Duration| now.saturating_sub(at) <= fresh;
    let rising = |upstream: &UpstreamChain| {
        upstream.missed < missed_max && upstream.advanced.is_some_and(within)
    };
    let highest = upstreams
        .iter()
        .filter(|upstream| rising(upstream))
        .filter_map(|upstream| upstream.head)
        .max();
    let far_below = |head: u64| highest.is_some_and(|high| high > head.saturating_add(lag_max));
    let live: Vec<(usize, u64)> = upstreams
        .iter()
        .enumerate()
        .filter(|(_, upstream)| upstream.missed < missed_max)
        .filter_map(|(index, upstream)| Some((index, upstream.head?)))
        .filter(|&(index, head)| within(upstreams[index].moved) || !far_below(head))
        .collect();
    let left_behind = |head: u64| {
        let above = live
            .iter()
            .filter(|&&(index, other)| {
                other > head.saturating_add(lag_max) && rising(&upstreams[index])
            })
            .count();
        above > 0 && above * 2 >= live.len()
    };
    let counted = live.iter().filter(|&&(_, head)| !left_behind(head)).map(|&(index, _)| index);
    Witnesses { upstreams: counted.collect(), live: live.len() }
}

/// Elects the head to serve, given the witnesses and the head served now.
pub(super) fn elect(
    upstreams: &[UpstreamChain],
    witnesses: &Witnesses,
    current: Option<Head>,
) -> Option<Elected> {
    let three_live = witnesses.live >= 3;
    let two_wanted = three_live || witnesses.upstreams.len() >= 2;
    let witnesses = &witnesses.upstreams[..];
    let mut best = None;
    let mut best_rank = None;
    let mut current_held = false;
    for &index in witnesses {
        let (Some(number), Some(hash)) = (upstreams[index].head, upstreams[index].head_hash())
        else {
            continue;
        };
        let support =
            witnesses.iter().filter(|&&other| upstreams[other].holds(number, hash)).count();
        let agree =
            witnesses.iter().filter(|&&other| agree(&upstreams[index], &upstreams[other])).count();
        let extends =
            current.is_some_and(|current| upstreams[index].holds(current.number, current.hash));
        current_held |= extends;
        // A head with two witnesses beats any head with one. Ties go to the branch with more
        // witnesses, then the served branch, then the higher head. The hash breaks the last tie, so
        // that all replicas elect alike.
        let backed = !two_wanted || support >= 2;
        let rank = (backed, agree, extends, number, Reverse(hash));
        if best_rank.is_none_or(|best| rank > best) {
            best_rank = Some(rank);
            best = Some(Elected {
                head: Head { number, hash },
                upstream: index,
                support,
                own_head: true,
            });
        }
    }
    // No head has two witnesses. Of three or more upstreams, two still share some block. With two
    // upstreams, the head stays on the served branch.
    let split = two_wanted && best_rank.is_some_and(|rank| !rank.0);
    match current {
        _ if split && three_live => highest_shared(upstreams, witnesses).or(best),
        Some(current) if split && current_held => extension_of(upstreams, witnesses, current),
        _ => best,
    }
}

/// Returns the highest block that two witnesses hold.
fn highest_shared(upstreams: &[UpstreamChain], witnesses: &[usize]) -> Option<Elected> {
    let mut best: Option<Elected> = None;
    for (at, &one) in witnesses.iter().enumerate() {
        for &other in &witnesses[at + 1..] {
            let (Some(a), Some(b)) = (upstreams[one].head, upstreams[other].head) else { continue };
            let shared = upstreams[one].branch.fork(&upstreams[other].branch, a.min(b));
            let Some(number) = shared else { continue };
            let Some(hash) = upstreams[one].branch.get(number) else { continue };
            let head = Head { number, hash };
            let higher = best.is_none_or(|best| {
                (number, Reverse(hash)) > (best.head.number, Reverse(best.head.hash))
            });
            if higher {
                best = Some(Elected { head, upstream: one, support: 2, own_head: false });
            }
        }
    }
    best
}

fn extension_of(
    upstreams: &[UpstreamChain],
    witnesses: &[usize],
    current: Head,
) -> Option<Elected> {
    let holders =
        witnesses.iter().filter(|&&index| upstreams[index].holds(current.number, current.hash));
    let &upstream = holders.max_by_key(|&&index| (upstreams[index].head, Reverse(index)))?;
    let head = Head { number: upstreams[upstream].head?, hash: upstreams[upstream].head_hash()? };
    Some(Elected { head, upstream, support: 1, own_head: true })
}

/// Returns true if two upstreams hold the same block at the lower of their heads.
fn agree(one: &UpstreamChain, other: &UpstreamChain) -> bool {
    let (Some(a), Some(b)) = (one.head, other.head) else {
        return false;
    };
    let lower = a.min(b);
    let hash = one.branch.get(lower);
    hash.is_some() && hash == other.branch.get(lower)
}
