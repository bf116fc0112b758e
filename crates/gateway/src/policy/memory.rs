//! Divides the memory budget of buffers by purpose, and selects the connections to close when the
//! budget is exhausted.
//!
//! `io/memory.rs` counts the bytes. Requests and upstream responses may each use only a part of the
//! budget, so they cannot block responses to clients. In this file, `max` is the whole budget in
//! bytes.

use std::time::Duration;

use crate::policy::closed_set::closed_set;

#[cfg(test)]
mod tests;

// `closed_set!` gives each variant a name, and an index in arrays.
closed_set! {
    /// Purpose of buffered bytes.
    pub enum Purpose {
        /// Requests of clients, complete or partial.
        Request = "request",
        /// Responses that upstreams are sending.
        Upstream = "upstream",
        /// Responses that clients have not read yet.
        Response = "response",
    }
}

impl Purpose {
    /// Returns the maximum number of bytes for this purpose.
    fn bytes_max(self, max: usize) -> usize {
        match self {
            Purpose::Request => max / 2,
            Purpose::Upstream => max / 4,
            Purpose::Response => max,
        }
    }
}

/// Number of buffered bytes for each purpose, by [`Purpose::index`].
pub type HeldBytes = [usize; 3];

/// Upper limit of the reserve for memory that is not counted, in bytes: small buffers, the copies of
/// a response while it is built, and free memory of the allocator.
const RESERVE_BYTES_MAX: usize = 32 << 20;

/// Returns the budget of counted bytes if all memory together may take `memory_max` bytes. A quarter
/// is reserved, up to a limit.
pub fn counted_max(memory_max: usize) -> usize {
    memory_max - (memory_max / 4).min(RESERVE_BYTES_MAX)
}

/// Returns the maximum number of bytes for one client connection.
pub fn connection_max(max: usize) -> usize {
    max / 8
}

/// Returns true if all bytes together are within the budget, and the bytes of this purpose are
/// within their part of it.
pub fn is_within(held: &HeldBytes, purpose: Purpose, max: usize) -> bool {
    held.iter().sum::<usize>() <= max && held[purpose.index()] <= purpose.bytes_max(max)
}

/// Returns the number of bytes to free for other clients; 0 if enough memory is free. Bytes are
/// freed if more than seven eighths of the whole budget, or of the part for requests, are in use.
/// Freeing ends when three quarters are in use.
pub fn bytes_to_free(held: &HeldBytes, max: usize) -> usize {
    // Returns the bytes above three quarters of a maximum if more than seven eighths are in use.
    let excess_of = |held: usize, bytes_max: usize| {
        if held > bytes_max - bytes_max / 8 { held - (bytes_max - bytes_max / 4) } else { 0 }
    };
    let request = Purpose::Request;
    excess_of(held.iter().sum(), max).max(excess_of(held[request.index()], request.bytes_max(max)))
}

/// A connection whose client is slow to send or to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowConnection {
    /// Index in the caller's list.
    pub index: usize,
    /// Age of the connection's oldest buffered bytes.
    pub age: Duration,
    /// Number of bytes that are freed if the connection is closed.
    pub bytes: usize,
}

/// Returns the indices of the connections to close, the one with the oldest bytes first, until
/// `bytes_to_free` bytes are freed. Connections younger than `age_min` stay open.
pub fn select_connections_to_close(
    mut slow: Vec<SlowConnection>,
    bytes_to_free: usize,
    age_min: Duration,
) -> Vec<usize> {
    slow.retain(|connection| connection.age >= age_min && connection.bytes > 0);
    slow.sort_by_key(|connection| std::cmp::Reverse(connection.age));
    let mut freed = 0;
    let needed = slow.iter().take_while(|connection| {
        let is_needed = freed < bytes_to_free;
        freed += connection.bytes;
        is_needed
    });
    needed.map(|connection| connection.index).collect()
}
