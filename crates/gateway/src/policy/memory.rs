//! How the budget of memory is shared, and which connections are closed when it runs out.
//!
//! The bytes are counted in `io/memory.rs`. Requests and upstreams may use a part of the budget
//! each, so that neither can keep responses from clients.

use std::time::Duration;

use crate::policy::closed_set::closed_set;

#[cfg(test)]
mod tests;

closed_set! {
    /// What bytes are held for.
    pub enum Purpose {
        /// Requests of clients, complete or not.
        Request = "request",
        /// Responses that upstreams are sending.
        Upstream = "upstream",
        /// Responses that clients have not read yet.
        Response = "response",
    }
}

impl Purpose {
    /// The most that may be held for it.
    fn share(self, max: usize) -> usize {
        match self {
            Purpose::Request => max / 2,
            Purpose::Upstream => max / 4,
            Purpose::Response => max,
        }
    }
}

/// Bytes held, by [`Purpose::index`].
pub type Held = [usize; 3];

/// The most that one client connection may hold.
pub fn connection_max(max: usize) -> usize {
    max / 8
}

/// Returns true if what is held for a purpose is within the budget.
pub fn is_within(held: &Held, purpose: Purpose, max: usize) -> bool {
    held.iter().sum::<usize>() <= max && held[purpose.index()] <= purpose.share(max)
}

/// Bytes to free so that other clients find room, 0 if there is room. Three quarters of the budget,
/// or of the requests' part of it, may stay in use; freeing begins at seven eighths.
pub fn excess(held: &Held, max: usize) -> usize {
    let over = |held: usize, share: usize| {
        if held > share - share / 8 { held - (share - share / 4) } else { 0 }
    };
    let request = Purpose::Request;
    over(held.iter().sum(), max).max(over(held[request.index()], request.share(max)))
}

/// A connection whose client is slow to send or to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// Its place in the caller's list.
    pub place: usize,
    /// How long the oldest of its bytes have been held.
    pub age: Duration,
    /// Bytes that closing it frees.
    pub bytes: usize,
}

/// The connections to close, those with the oldest bytes first, until `excess` bytes are freed.
/// Connections younger than `age_min` are left alone.
pub fn to_close(mut slow: Vec<Slow>, excess: usize, age_min: Duration) -> Vec<usize> {
    slow.retain(|one| one.age >= age_min && one.bytes > 0);
    slow.sort_by_key(|one| std::cmp::Reverse(one.age));
    let mut freed = 0;
    let needed = slow.iter().take_while(|one| {
        let more = freed < excess;
        freed += one.bytes;
        more
    });
    needed.map(|one| one.place).collect()
}
