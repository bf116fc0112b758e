//! Searches for the transactions that may have logs that match a filter.
//!
//! A filter is a conjunction of terms: the accepted addresses, and the accepted topics of each
//! place in the log. The search reads the posting lists of the rarest term, and intersects them
//! with the lists of other terms that are not much more frequent. So the cost grows with the
//! postings of the rarest term, and depends neither on the range nor on the frequency of the other
//! terms.
//!
//! The result is a superset: two terms may match different logs of one transaction, and digests may
//! collide. The caller therefore compares the logs themselves with the filter.
//!
//! A position is a transaction's block number and index in one `i64` (`postings.rs`).

use std::cmp::Reverse;
use std::time::Instant;

use wire::logs::LogMatcher;

use crate::error::ReadError;
use crate::postings::{INDEX_MAX, PostingKey, address_key, position, topic_key};
use crate::store::{Postings, Store, TransactionPart, TransactionRow};

/// The limits of a query.
#[derive(Debug, Clone, Copy)]
pub struct SearchLimits {
    /// Maximum number of logs of a response.
    pub logs: u64,
    /// Maximum number of bytes of the JSON of these logs.
    pub bytes: u64,
    /// The deadline. A search may read many receipts and select nothing.
    pub deadline: Option<Instant>,
}

impl SearchLimits {
    /// No limits.
    pub const NONE: SearchLimits = SearchLimits { logs: u64::MAX, bytes: u64::MAX, deadline: None };

    /// Checks that the deadline has not passed.
    ///
    /// # Errors
    /// If the deadline has passed.
    fn check_deadline(&self) -> Result<(), ReadError> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(ReadError::LimitExceeded(
                "the deadline passed before all logs were read".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// Maximum number of posting lists of one key that one query of the store reads. A list holds the
/// transactions of a few hundred blocks.
const LISTS_PER_QUERY: usize = 128;
/// Number of receipts between two checks of the deadline.
const RECEIPTS_PER_CHECK: u32 = 256;
/// Maximum ratio of the number of postings of an intersected term to that of the rarest term. A
/// step over a posting takes nanoseconds, the decoding of a receipt microseconds.
const INTERSECTION_RATIO: f64 = 64.0;

/// A term of the conjunction: the transactions that have any of these keys.
struct Term {
    keys: Vec<PostingKey>,
}

impl Term {
    fn postings(&self, store: &dyn Store, from: i64, to: i64) -> Result<Postings, ReadError> {
        Ok(store.postings(&self.keys, from, to, LISTS_PER_QUERY)?)
    }
}

/// Visits the receipts of all transactions in a range of blocks that may have logs that match the
/// filter, in ascending order.
pub(crate) fn search(
    store: &dyn Store,
    filter: &LogMatcher,
    (from, to): (u64, u64),
    limits: SearchLimits,
    mut visit: impl FnMut(TransactionRow<'_>) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut visited = 0_u32;
    let mut visit_checked = |row: TransactionRow<'_>| {
        visited = visited.wrapping_add(1);
        if visited.is_multiple_of(RECEIPTS_PER_CHECK) {
            limits.check_deadline()?;
        }
        visit(row)
    };
    let (mut next, end) = (position(from, 0), position(to, INDEX_MAX));
    let terms = split_into_terms(filter);
    if terms.is_empty() {
        return store.try_visit_transactions(next, end, TransactionPart::Receipt, |row| {
            visit_checked(row)?;
            Ok(true)
        });
    }
    while next <= end {
        limits.check_deadline()?;
        let mut term_postings = Vec::with_capacity(terms.len());
        for term in &terms {
            term_postings.push((term, term.postings(store, next, end)?));
        }
        // Each query reads the same number of lists, so the rarest term has covered the most
        // blocks. If several terms have covered the whole range, the one with the fewest positions
        // is the rarest.
        term_postings
            .sort_by_key(|(_, postings)| (Reverse(postings.covered_to), postings.positions.len()));
        let mut term_postings = term_postings.into_iter();
        let Some((_, rarest)) = term_postings.next() else { break };
        let mut positions = rarest.positions;
        for (term, postings) in term_postings {
            let range = (next, rarest.covered_to);
            intersect(store, &mut positions, range, (term, postings), limits)?;
        }
        store.try_visit_receipts(&positions, &mut visit_checked)?;
        let Some(next_position) = rarest.covered_to.checked_add(1) else { break };
        next = next_position;
    }
    Ok(())
}

/// Removes the positions that a term lacks, if that costs less than reading their receipts. The
/// positions lie between `from` and `to`, and `postings` are the first postings of the term.
fn intersect(
    store: &dyn Store,
    positions: &mut Vec<i64>,
    (from, to): (i64, i64),
    (term, postings): (&Term, Postings),
    limits: SearchLimits,
) -> Result<(), ReadError> {
    let share = (postings.covered_to - from + 1) as f64 / (to - from + 1) as f64;
    let expected = postings.positions.len() as f64 / share.max(f64::MIN_POSITIVE);
    if expected > INTERSECTION_RATIO * positions.len() as f64 {
        return Ok(());
    }
    let mut common = Vec::with_capacity(positions.len());
    let mut postings = postings;
    let mut candidates = positions.iter().copied().peekable();
    loop {
        let mut other_positions = postings.positions.iter().copied().peekable();
        while let Some(candidate) = candidates.next_if(|next| *next <= postings.covered_to) {
            while other_positions.next_if(|other| *other < candidate).is_some() {}
            if other_positions.peek() == Some(&candidate) {
                common.push(candidate);
            }
        }
        limits.check_deadline()?;
        // The next query starts at the next candidate: no posting before it can equal a candidate.
        let Some(next) = candidates.peek() else { break };
        postings = term.postings(store, *next, to)?;
    }
    *positions = common;
    Ok(())
}

/// Splits a filter into its terms. An address or topic that may be any has no term.
fn split_into_terms(filter: &LogMatcher) -> Vec<Term> {
    let addresses = filter.addresses.iter().map(address_key).collect();
    let topics = filter.topics.iter().enumerate().map(|(index, topics)| {
        topics.iter().map(|topic| topic_key(index, topic)).collect::<Vec<_>>()
    });
    std::iter::once(addresses)
        .chain(topics)
        .filter(|keys: &Vec<PostingKey>| !keys.is_empty())
        .map(|keys| Term { keys })
        .collect()
}
