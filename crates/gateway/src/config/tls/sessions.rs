//! In-memory session cache for clients that resume by session id. All threads share one cache.
//!
//! It is bounded and sharded (`quick_cache`), so that threads seldom wait for each other. Sessions
//! expire by age. `tickets.rs` has tickets, which need no memory here.

use std::fmt;
use std::time::{Duration, Instant};

use quick_cache::sync::Cache;
use rustls::server::StoresServerSessions;

/// The session cache.
pub(crate) struct Sessions {
    age_max: Duration,
    cache: Cache<Vec<u8>, (Instant, Vec<u8>)>,
}

impl Sessions {
    /// Creates a cache for at most this many sessions.
    pub(crate) fn new(max: usize, age_max: Duration) -> Sessions {
        Sessions { age_max, cache: Cache::new(max) }
    }

    /// Returns the value of a session that has not expired.
    fn unless_expired(&self, (since, value): (Instant, Vec<u8>)) -> Option<Vec<u8>> {
        (since.elapsed() <= self.age_max).then_some(value)
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.cache.insert(key, (Instant::now(), value));
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.unless_expired(self.cache.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.unless_expired(self.cache.remove(key)?.1)
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
