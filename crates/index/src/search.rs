//! Which transactions may have logs that a filter selects.
//!
//! A filter is a conjunction: some address, and some topic at each of its positions. The lists of
//! the rarest of these parts are walked; where another part is not much more frequent, its lists
//! are crossed with them; the rest is told by the logs themselves. So the cost grows with what the
//! rarest part has, and neither with the range nor with how often the others occur.

use std::time::Instant;

use wire::logs::Selection;

use crate::places::{INDEX_MAX, Key, address_key, place, topic_key};
use crate::reader::ReadError;
use crate::store::{Item, Places, Store, Wanted};

/// How much may be answered.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Logs.
    pub logs: u64,
    /// Bytes of their text.
    pub bytes: u64,
    /// When it must be found: much may be looked at of which nothing is selected.
    pub until: Option<Instant>,
}

impl Bounds {
    /// As much as there is.
    pub const NONE: Bounds = Bounds { logs: u64::MAX, bytes: u64::MAX, until: None };

    /// # Errors
    /// If the time is over.
    pub(crate) fn in_time(&self) -> Result<(), ReadError> {
        match self.until {
            Some(until) if Instant::now() >= until => {
                Err(ReadError::TooMuch("what can be looked at in time".to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// Lists of one key that are read at a time; a list has the transactions of some hundred blocks.
const LISTS: usize = 128;
/// Receipts after which the clock is looked at.
const LOOKS: u32 = 256;
/// Lists are crossed if the other part has at most so many times as many places: to step over a
/// place in a list takes nanoseconds, to look at a receipt microseconds.
const DENSER: f64 = 64.0;

/// One part of the conjunction: transactions with any of these keys.
struct Part {
    keys: Vec<Key>,
}

impl Part {
    fn walk(&self, store: &Store, from: i64, to: i64) -> Result<Places, ReadError> {
        Ok(store.places(&self.keys, from, to, LISTS)?)
    }
}

/// Shows `each` transaction, with what is kept of its receipt, in blocks `from`
/// to `to` that may have selected logs, in order.
pub(crate) fn search(
    store: &Store,
    selection: &Selection,
    (from, to): (u64, u64),
    bounds: Bounds,
    mut shown: impl FnMut(Item<'_>) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut looked = 0_u32;
    let mut each = |item: Item<'_>| {
        looked = looked.wrapping_add(1);
        if looked.is_multiple_of(LOOKS) {
            bounds.in_time()?;
        }
        shown(item)
    };
    let (mut at, end) = (place(from, 0), place(to, INDEX_MAX));
    let parts = parts_of(selection);
    if parts.is_empty() {
        return store.items(at, end, Wanted::Receipt, |item| {
            each(item)?;
            Ok(true)
        });
    }
    while at <= end {
        bounds.in_time()?;
        let mut walked = Vec::with_capacity(parts.len());
        for part in &parts {
            walked.push((part, part.walk(store, at, end)?));
        }
        // Who came farthest is the rarest; of equals, who has the fewest.
        walked.sort_by_key(|(_, walked)| (std::cmp::Reverse(walked.to), walked.places.len()));
        let mut rest = walked.into_iter();
        let Some((_, rarest)) = rest.next() else { break };
        let mut places = rarest.places;
        for (part, other) in rest {
            cross(store, &mut places, (at, rarest.to), (part, other), bounds)?;
        }
        store.receipts(&places, &mut each)?;
        let Some(next) = rarest.to.checked_add(1) else { break };
        at = next;
    }
    Ok(())
}

/// Takes out of `places`, which lie from `from` to `to`, those that `part` has not, if that is
/// cheaper than to look at them.
fn cross(
    store: &Store,
    places: &mut Vec<i64>,
    (from, to): (i64, i64),
    (part, walked): (&Part, Places),
    bounds: Bounds,
) -> Result<(), ReadError> {
    let share = (walked.to - from + 1) as f64 / (to - from + 1) as f64;
    let expected = walked.places.len() as f64 / share.max(f64::MIN_POSITIVE);
    if expected > DENSER * places.len() as f64 {
        return Ok(());
    }
    let mut kept = Vec::with_capacity(places.len());
    let mut walked = walked;
    let mut candidates = places.iter().copied().peekable();
    loop {
        let mut others = walked.places.iter().copied().peekable();
        while let Some(candidate) = candidates.next_if(|candidate| *candidate <= walked.to) {
            while others.next_if(|other| *other < candidate).is_some() {}
            if others.peek() == Some(&candidate) {
                kept.push(candidate);
            }
        }
        bounds.in_time()?;
        // Lists between here and the next candidate tell nothing.
        let Some(next) = candidates.peek() else { break };
        walked = part.walk(store, *next, to)?;
    }
    *places = kept;
    Ok(())
}

fn parts_of(selection: &Selection) -> Vec<Part> {
    let addresses = selection.addresses().iter().map(address_key).collect();
    let topics = selection.topics().iter().enumerate().map(|(position, topics)| {
        topics.iter().map(|topic| topic_key(position, topic)).collect::<Vec<_>>()
    });
    std::iter::once(addresses)
        .chain(topics)
        .filter(|keys: &Vec<Key>| !keys.is_empty())
        .map(|keys| Part { keys })
        .collect()
}
