//! The session cache, in memory, for clients that resume by session id. All threads share it.
//!
//! The cache (`quick_cache`) is bounded, and sharded so that threads seldom wait for each other.
//! Sessions expire by age. `tickets.rs` implements tickets, which need no memory in the gateway.

use std::fmt;
use std::time::{Duration, Instant};

use quick_cache::sync::Cache;
use rustls::server::StoresServerSessions;

/// The session cache.
pub(crate) struct Sessions {
    /// Age after which a session expires.
    age_max: Duration,
    /// The sessions, each with the time when it was stored.
    cache: Cache<Vec<u8>, (Instant, Vec<u8>)>,
}

impl Sessions {
    /// Creates a cache for at most `sessions_max` sessions.
    pub(crate) fn new(sessions_max: usize, age_max: Duration) -> Sessions {
        Sessions { age_max, cache: Cache::new(sessions_max) }
    }

    /// Returns the value of a stored session; `None` if the session has expired.
    fn check_age(&self, (stored_at, value): (Instant, Vec<u8>)) -> Option<Vec<u8>> {
        (stored_at.elapsed() <= self.age_max).then_some(value)
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.cache.insert(key, (Instant::now(), value));
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.check_age(self.cache.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.check_age(self.cache.remove(key)?.1)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// Shows only the number of sessions, because keys and values are secrets.
impl fmt::Debug for Sessions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sessions")
            .field("sessions", &self.cache.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a session is found until it is taken, expires, or is evicted.

    use super::*;

    #[test]
    fn sessions_are_stored_and_taken_once() {
        let sessions = Sessions::new(100, Duration::from_secs(60));
        assert!(sessions.can_cache() && sessions.put(vec![1], vec![11]));
        assert_eq!(sessions.get(&[1]), Some(vec![11]));
        assert_eq!(sessions.take(&[1]), Some(vec![11]));
        assert_eq!((sessions.get(&[1]), sessions.take(&[1])), (None, None));
        assert!(!format!("{sessions:?}").contains("11"));
    }

    #[test]
    fn an_old_session_expires() {
        let sessions = Sessions::new(100, Duration::ZERO);
        sessions.put(vec![1], vec![11]);
        let later = Instant::now() + Duration::from_millis(1);
        while Instant::now() < later {
            std::thread::yield_now();
        }
        assert_eq!((sessions.get(&[1]), sessions.take(&[1])), (None, None));
    }

    #[test]
    fn there_are_never_more_than_allowed() {
        let sessions = Sessions::new(100, Duration::from_secs(60));
        for number in 0..10_000u32 {
            sessions.put(number.to_be_bytes().to_vec(), vec![0; 8]);
        }
        assert!(sessions.cache.len() <= 100, "{}", sessions.cache.len());
        assert!(sessions.cache.len() >= 50, "{}", sessions.cache.len());
    }
}
