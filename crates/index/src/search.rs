//! Searches for the transactions whose logs may match a filter.
//!
//! A position is a transaction's block number and index in one `i64`. A posting list holds the
//! positions of the transactions whose logs contain one address or topic. Its key is a digest of
//! that address or topic (`postings.rs`).
//!
//! A filter is a conjunction of terms. A term is a set of keys, and a transaction must have one of
//! them. The accepted addresses are one term. For each of a log's up to four topics, the accepted
//! values are another term. The search reads the posting lists of the rarest term. It intersects
//! these lists with the lists of all terms that are not much more frequent. The cost grows with the
//! postings of the rarest term. It depends neither on the length of the range nor on the frequency
//! of the other terms.
//!
//! The result may contain transactions without a matching log: two terms may match different logs
//! of one transaction, and the digests of two addresses or topics may be equal. The caller must
//! therefore compare the logs with the filter.

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
    /// The time at which the query fails; `None` for no deadline. The other limits do not stop a
    /// search that reads many receipts and selects no log.
    pub deadline: Option<Instant>,
}

impl SearchLimits {
    /// No limits.
    pub const NONE: SearchLimits = SearchLimits { logs: u64::MAX, bytes: u64::MAX, deadline: None };

    /// Checks that the deadline has not passed.
    ///
    /// # Errors
    /// Fails if the deadline has passed.
    fn check_deadline(&self) -> Result<(), ReadError> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(ReadError::LimitExceeded(
                "the deadline passed before all logs were read".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// Maximum number of posting lists of one key that one query of the store reads. A list covers a
/// few hundred blocks.
const LISTS_PER_QUERY: usize = 128;
/// Number of receipts between two checks of the deadline.
const RECEIPTS_PER_CHECK: u32 = 256;
/// The search intersects a term only if the term has at most this many times the postings of the
/// rarest term. The ratio is high, because skipping a posting takes nanoseconds and decoding a
/// receipt takes microseconds.
const INTERSECTION_RATIO: f64 = 64.0;

/// A term of the conjunction. A transaction matches if it has at least one of these keys.
struct Term {
    keys: Vec<PostingKey>,
}

impl Term {
    /// Reads the first postings of the term from one position to another.
    fn read_postings(&self, store: &dyn Store, from: i64, to: i64) -> Result<Postings, ReadError> {
        Ok(store.postings(&self.keys, from, to, LISTS_PER_QUERY)?)
    }
}

/// Visits receipts of transactions in a range of blocks, in ascending order of positions. The
/// transactions include all with a matching log, and may include others.
pub(crate) fn search(
    store: &dyn Store,
    filter: &LogMatcher,
    (from, to): (u64, u64),
    limits: SearchLimits,
    mut visit: impl FnMut(TransactionRow<'_>) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut visited_count = 0_u32;
    let mut visit_with_deadline = |row: TransactionRow<'_>| {
        visited_count = visited_count.wrapping_add(1);
        if visited_count.is_multiple_of(RECEIPTS_PER_CHECK) {
            limits.check_deadline()?;
        }
        visit(row)
    };
    let (mut next, end) = (position(from, 0), position(to, INDEX_MAX));
    let terms = split_into_terms(filter);
    if terms.is_empty() {
        return store.try_visit_transactions(next, end, TransactionPart::Receipt, |row| {
            visit_with_deadline(row)?;
            Ok(true)
        });
    }
    while next <= end {
        limits.check_deadline()?;
        let mut term_postings = Vec::with_capacity(terms.len());
        for term in &terms {
            term_postings.push((term, term.read_postings(store, next, end)?));
        }
        // Each query reads the same number of lists, so the lists of the rarest term cover the most
        // blocks. Among terms whose lists cover the whole range, the term with the fewest positions
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
        store.try_visit_receipts(&positions, &mut visit_with_deadline)?;
        let Some(next_position) = rarest.covered_to.checked_add(1) else { break };
        next = next_position;
    }
    Ok(())
}

/// Removes from `positions` the positions that a term lacks. Does nothing if the term is so
/// frequent that the intersection costs more than reading the receipts. The positions lie between
/// `from` and `to`. `postings` are the first postings of the term in that range.
fn intersect(
    store: &dyn Store,
    positions: &mut Vec<i64>,
    (from, to): (i64, i64),
    (term, postings): (&Term, Postings),
    limits: SearchLimits,
) -> Result<(), ReadError> {
    // The number of postings in the whole range is extrapolated from the covered part.
    let covered_share = (postings.covered_to - from + 1) as f64 / (to - from + 1) as f64;
    let expected_postings = postings.positions.len() as f64 / covered_share.max(f64::MIN_POSITIVE);
    if expected_postings > INTERSECTION_RATIO * positions.len() as f64 {
        return Ok(());
    }
    let mut common_positions = Vec::with_capacity(positions.len());
    let mut postings = postings;
    let mut candidates = positions.iter().copied().peekable();
    loop {
        let mut term_positions = postings.positions.iter().copied().peekable();
        while let Some(candidate) = candidates.next_if(|next| *next <= postings.covered_to) {
            while term_positions.next_if(|position| *position < candidate).is_some() {}
            if term_positions.peek() == Some(&candidate) {
                common_positions.push(candidate);
            }
        }
        limits.check_deadline()?;
        // The next query starts at the next candidate, because no earlier posting equals a
        // candidate.
        let Some(next) = candidates.peek() else { break };
        postings = term.read_postings(store, *next, to)?;
    }
    *positions = common_positions;
    Ok(())
}

/// Splits a filter into its terms. A filter that accepts any address has no term for addresses. It
/// also has no term for a topic, from the first to the fourth, that may have any value.
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
