//! Searches for the transactions that may have logs that match a filter.
//!
//! A filter is a conjunction of terms: an address, and a topic for each topic position. The search
//! reads the posting lists of the rarest term. It intersects them with the lists of another term if
//! that term is not much more frequent. The caller compares the logs themselves with the filter. So
//! the cost grows with the postings of the rarest term, and depends neither on the range nor on the
//! frequency of the other terms.

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
            Some(deadline) if Instant::now() >= deadline => {
                Err(ReadError::LimitExceeded("can be read before the deadline".to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// Maximum number of posting lists of one key per query. A list holds the transactions of a few
/// hundred blocks.
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

/// Visits the receipts of all transactions in a range of blocks that may have selected logs, in
/// ascending order.
pub(crate) fn search(
    store: &dyn Store,
    selection: &LogMatcher,
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
    let terms = terms(selection);
    if terms.is_empty() {
        return store.transactions(next, end, TransactionPart::Receipt, |row| {
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
        // The lists of the rarest term cover the most blocks. Among equal terms, the one with the
        // fewest positions comes first.
        term_postings
            .sort_by_key(|(_, postings)| (Reverse(postings.complete_to), postings.positions.len()));
        let mut term_postings = term_postings.into_iter();
        let Some((_, rarest)) = term_postings.next() else { break };
        let mut positions = rarest.positions;
        for (term, postings) in term_postings {
            let range = (next, rarest.complete_to);
            intersect(store, &mut positions, range, (term, postings), limits)?;
        }
        store.receipts(&positions, &mut visit_checked)?;
        let Some(next_position) = rarest.complete_to.checked_add(1) else { break };
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
    let share = (postings.complete_to - from + 1) as f64 / (to - from + 1) as f64;
    let expected = postings.positions.len() as f64 / share.max(f64::MIN_POSITIVE);
    if expected > INTERSECTION_RATIO * positions.len() as f64 {
        return Ok(());
    }
    let mut common = Vec::with_capacity(positions.len());
    let mut postings = postings;
    let mut candidates = positions.iter().copied().peekable();
    loop {
        let mut other_positions = postings.positions.iter().copied().peekable();
        while let Some(candidate) = candidates.next_if(|next| *next <= postings.complete_to) {
            while other_positions.next_if(|other| *other < candidate).is_some() {}
            if other_positions.peek() == Some(&candidate) {
                common.push(candidate);
            }
        }
        limits.check_deadline()?;
        // The next query starts at the next candidate, because lists before it remove no position.
        let Some(next) = candidates.peek() else { break };
        postings = term.postings(store, *next, to)?;
    }
    *positions = common;
    Ok(())
}

fn terms(selection: &LogMatcher) -> Vec<Term> {
    let addresses = selection.addresses().iter().map(address_key).collect();
    let topics = selection.topics().iter().enumerate().map(|(index, topics)| {
        topics.iter().map(|topic| topic_key(index, topic)).collect::<Vec<_>>()
    });
    std::iter::once(addresses)
        .chain(topics)
        .filter(|keys: &Vec<PostingKey>| !keys.is_empty())
        .map(|keys| Term { keys })
        .collect()
}
