//! Head election: finds the highest head that two witnesses hold, on the branch with the most
//! witnesses.
//!
//! A *witness* is an upstream whose head counts in the election. An upstream *holds* a block if the
//! block is on its branch, at or below its head. `heads` then decides whether the elected head may
//! replace the served one, because dropping served blocks requires evidence.

use std::cmp::Reverse;
use std::time::Duration;

use crate::policy::branch::Hash;
use crate::policy::heads::upstream::UpstreamChain;
use crate::policy::heads::{Head, MISSED_MAX};

/// The result of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Elected {
    pub(super) head: Head,
    /// Index of an upstream that holds the head.
    pub(super) upstream: usize,
    /// Number of witnesses that hold the head.
    pub(super) support: usize,
    /// True if the block is the head of an upstream. False if it is the highest block that two
    /// upstreams on different branches share. Such a block is no evidence against a higher head.
    pub(super) is_upstream_head: bool,
}

/// The upstreams whose heads count.
#[derive(Debug, Clone)]
pub(super) struct Witnesses {
    /// Indices of the witnesses.
    pub(super) upstreams: Vec<usize>,
    /// Number of live upstreams, including those that are left behind ([`find_witnesses`]). With
    /// three or more live upstreams, a head needs two witnesses.
    pub(super) live: usize,
}

/// Finds the witnesses: upstreams that respond to polls, have a head, and are neither excluded
/// (`UpstreamChain::excluded`), syncing, frozen nor left behind. A *live* upstream meets the same
/// conditions, but may be left behind.
///
/// - A *syncing* upstream says so, or has only block 0. Another upstream that does not sync has a
///   head more than `lag_max` blocks above it, even if it does not respond any more.
/// - A *rising* upstream has linked new blocks within `fresh_for`.
/// - A *frozen* upstream's head has not changed within `fresh_for`, and a rising upstream is more
///   than `lag_max` blocks above that head. Frozen upstreams do not count as live.
/// - An upstream is *left behind* if at least half of the live upstreams are rising and more than
///   `lag_max` blocks above it.
///
/// So one slow upstream of two does not hold the head back, and one upstream of three with a false
/// high head does not exclude the other two.
pub(super) fn find_witnesses(
    upstreams: &[UpstreamChain],
    now: Duration,
    lag_max: u64,
    fresh_for: Duration,
) -> Witnesses {
    let is_recent = |time: Duration| now.saturating_sub(time) <= fresh_for;
    let is_live =
        |upstream: &UpstreamChain| upstream.missed_polls < MISSED_MAX && !upstream.excluded;
    let is_rising =
        |upstream: &UpstreamChain| is_live(upstream) && upstream.advanced_at.is_some_and(is_recent);
    let highest = upstreams
        .iter()
        .filter(|upstream| is_rising(upstream))
        .filter_map(|upstream| upstream.head)
        .max();
    let is_far_below_highest =
        |head: u64| highest.is_some_and(|highest| highest > head.saturating_add(lag_max));
    let live: Vec<(usize, u64)> = upstreams
        .iter()
        .enumerate()
        .filter(|(_, upstream)| is_live(upstream) && !is_syncing(upstreams, upstream, lag_max))
        .filter_map(|(index, upstream)| Some((index, upstream.head?)))
        .filter(|&(index, head)| {
            is_recent(upstreams[index].head_changed_at) || !is_far_below_highest(head)
        })
        .collect();
    let is_left_behind = |head: u64| {
        let rising_above = live
            .iter()
            .filter(|&&(index, other)| {
                other > head.saturating_add(lag_max) && is_rising(&upstreams[index])
            })
            .count();
        rising_above > 0 && rising_above * 2 >= live.len()
    };
    let witness_indices =
        live.iter().filter(|&&(_, head)| !is_left_behind(head)).map(|&(index, _)| index);
    Witnesses { upstreams: witness_indices.collect(), live: live.len() }
}

/// Returns true if an upstream syncs, compared with the other upstreams of its chain.
fn is_syncing(upstreams: &[UpstreamChain], upstream: &UpstreamChain, lag_max: u64) -> bool {
    let is_synced_above = |other: &UpstreamChain| {
        other.sync_rank() > upstream.sync_rank()
            && other.head > upstream.head.map(|head| head.saturating_add(lag_max))
    };
    upstream.head.is_some() && upstreams.iter().any(is_synced_above)
}

/// Rank of a candidate in the election. A candidate is the head of a witness. The fields are
/// compared in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// True if enough witnesses hold the candidate.
    has_witnesses: bool,
    /// Number of witnesses on the candidate's branch, whatever their heights.
    agreeing: usize,
    /// True if the candidate's upstream holds the last served head.
    holds_current: bool,
    /// Height of the candidate.
    number: u64,
    /// The lower hash wins, so that all replicas break a tie alike.
    hash: Reverse<Hash>,
}

/// Elects the head to serve. `current` is the last served head. Returns `None` if there is no
/// witness.
pub(super) fn elect(
    upstreams: &[UpstreamChain],
    witnesses: &Witnesses,
    current: Option<Head>,
) -> Option<Elected> {
    let has_three_live = witnesses.live >= 3;
    let requires_two = has_three_live || witnesses.upstreams.len() >= 2;
    let witnesses = &witnesses.upstreams[..];
    let mut best: Option<(Rank, Elected)> = None;
    let mut has_current_holder = false;
    for &index in witnesses {
        let (Some(number), Some(hash)) = (upstreams[index].head, upstreams[index].head_hash())
        else {
            continue;
        };
        let support =
            witnesses.iter().filter(|&&other| upstreams[other].holds(number, hash)).count();
        let agreeing = witnesses
            .iter()
            .filter(|&&other| have_common_block(&upstreams[index], &upstreams[other]))
            .count();
        let holds_current =
            current.is_some_and(|current| upstreams[index].holds(current.number, current.hash));
        has_current_holder |= holds_current;
        let has_witnesses = !requires_two || support >= 2;
        let rank = Rank { has_witnesses, agreeing, holds_current, number, hash: Reverse(hash) };
        if best.is_none_or(|(best_rank, _)| rank > best_rank) {
            let head = Head { number, hash };
            best = Some((rank, Elected { head, upstream: index, support, is_upstream_head: true }));
        }
    }
    // In a *split*, a head needs two witnesses, but each head is held by only one. With three or
    // more live upstreams, the highest block that two witnesses share is elected. With two live
    // upstreams, the head stays on the served branch.
    let is_split = requires_two && best.is_some_and(|(rank, _)| !rank.has_witnesses);
    let best = best.map(|(_, elected)| elected);
    match current {
        _ if is_split && has_three_live => find_highest_shared(upstreams, witnesses).or(best),
        Some(current) if is_split && has_current_holder => {
            find_extension(upstreams, witnesses, current)
        }
        _ => best,
    }
}

/// Returns the highest block that two witnesses hold; `None` if no two witnesses share a known
/// block.
fn find_highest_shared(upstreams: &[UpstreamChain], witnesses: &[usize]) -> Option<Elected> {
    let pairs = witnesses
        .iter()
        .enumerate()
        .flat_map(|(index, &left)| witnesses[index + 1..].iter().map(move |&right| (left, right)));
    let shared_blocks = pairs.filter_map(|(left, right)| {
        let (left_chain, right_chain) = (&upstreams[left], &upstreams[right]);
        let lower_head = left_chain.head?.min(right_chain.head?);
        let fork = left_chain.branch.find_fork(&right_chain.branch, lower_head)?;
        let hash = left_chain.branch.get(fork)?;
        let head = Head { number: left_chain.branch.find_number(hash)?, hash };
        Some(Elected { head, upstream: left, support: 2, is_upstream_head: false })
    });
    let rank = |elected: &Elected| (elected.head.number, Reverse(elected.head.hash));
    shared_blocks.reduce(|best, next| if rank(&next) > rank(&best) { next } else { best })
}

/// Among the witnesses that hold the current head, finds the one with the highest head, and returns
/// this head. Returns `None` if no witness holds the current head.
fn find_extension(
    upstreams: &[UpstreamChain],
    witnesses: &[usize],
    current: Head,
) -> Option<Elected> {
    let holders =
        witnesses.iter().filter(|&&index| upstreams[index].holds(current.number, current.hash));
    let &upstream = holders.max_by_key(|&&index| (upstreams[index].head, Reverse(index)))?;
    let head = Head { number: upstreams[upstream].head?, hash: upstreams[upstream].head_hash()? };
    Some(Elected { head, upstream, support: 1, is_upstream_head: true })
}

/// Returns true if two upstreams hold the same block at the lower of their heads.
fn have_common_block(left: &UpstreamChain, right: &UpstreamChain) -> bool {
    let Some((left_head, right_head)) = left.head.zip(right.head) else { return false };
    let lower = left_head.min(right_head);
    let hash = left.branch.get(lower);
    hash.is_some() && hash == right.branch.get(lower)
}
