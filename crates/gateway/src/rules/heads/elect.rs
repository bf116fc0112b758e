//! Which head to serve: the highest that two witnesses hold, on the branch that most agree with.
//!
//! Pure over the nodes' chains. Whether the elected head may replace the present one (rollbacks need
//! evidence) is decided in `heads`.

use std::cmp::Reverse;
use std::time::Duration;

use super::Head;
use super::node::NodeChain;

/// An elected head, the node that leads there, and how many witnesses hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Elected {
    pub(super) head: Head,
    pub(super) node: usize,
    pub(super) support: usize,
}

/// Indices of the nodes whose heads count: polled, with a head, and not left behind.
///
/// A node is left behind if at least as many others as not are over `lag_max` above it and have
/// themselves risen within `fresh`. So one frozen node of two does not hold the head back, and one
/// rogue high head of three does not shut the others out.
pub(super) fn witnesses(
    nodes: &[NodeChain],
    now: Duration,
    missed_max: u32,
    lag_max: u64,
    fresh: Duration,
) -> Vec<usize> {
    let live: Vec<(usize, u64)> = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| node.missed < missed_max)
        .filter_map(|(index, node)| Some((index, node.head?)))
        .collect();
    let rising =
        |index: usize| nodes[index].advanced.is_some_and(|at| now.saturating_sub(at) <= fresh);
    let left_behind = |head: u64| {
        let above = live
            .iter()
            .filter(|&&(index, other)| other > head.saturating_add(lag_max) && rising(index))
            .count();
        above > 0 && above * 2 >= live.len()
    };
    live.iter().filter(|&&(_, head)| !left_behind(head)).map(|&(index, _)| index).collect()
}

/// The head to serve, given the witnesses and the head served now.
pub(super) fn elect(
    nodes: &[NodeChain],
    witnesses: &[usize],
    current: Option<Head>,
) -> Option<Elected> {
    let mut best = None;
    let mut best_rank = None;
    let mut current_held = false;
    let two_wanted = witnesses.len() >= 2;
    for &index in witnesses {
        let (Some(number), Some(hash)) = (nodes[index].head, nodes[index].head_hash()) else {
            continue;
        };
        let support = witnesses.iter().filter(|&&other| nodes[other].holds(number, hash)).count();
        let agree = witnesses.iter().filter(|&&other| agree(&nodes[index], &nodes[other])).count();
        let extends =
            current.is_some_and(|current| nodes[index].holds(current.number, current.hash));
        current_held |= extends;
        // A head that two hold beats any that one holds alone. Among equals the branch with more
        // witnesses, then the branch served already, then the higher head; the hash breaks ties so
        // that all replicas elect alike.
        let backed = !two_wanted || support >= 2;
        let rank = (backed, agree, extends, number, Reverse(hash));
        if best_rank.is_none_or(|best| rank > best) {
            best_rank = Some(rank);
            best = Some(Elected { head: Head { number, hash }, node: index, support });
        }
    }
    // A split without two witnesses anywhere: stay on the branch served, if anyone still has it.
    let split = two_wanted && best_rank.is_some_and(|rank| !rank.0);
    if split && current_held {
        return extension_of(nodes, witnesses, current?);
    }
    best
}

fn extension_of(nodes: &[NodeChain], witnesses: &[usize], current: Head) -> Option<Elected> {
    let holders =
        witnesses.iter().filter(|&&index| nodes[index].holds(current.number, current.hash));
    let &node = holders.max_by_key(|&&index| (nodes[index].head, Reverse(index)))?;
    let head = Head { number: nodes[node].head?, hash: nodes[node].head_hash()? };
    Some(Elected { head, node, support: 1 })
}

/// Whether two nodes hold the same block at the lower of their heads.
fn agree(one: &NodeChain, other: &NodeChain) -> bool {
    let (Some(a), Some(b)) = (one.head, other.head) else {
        return false;
    };
    let lower = a.min(b);
    let hash = one.branch.get(lower);
    hash.is_some() && hash == other.branch.get(lower)
}
