//! Number of open connections per client, over all threads.
//!
//! A client without a connection has no entry, so the table has at most one entry per connection.
//! The table is used when a connection opens and closes, never for a request.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

/// The open connections by client.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// Maximum number of connections per client.
    max: AtomicUsize,
    /// Number of open connections by client.
    open: Mutex<HashMap<IpAddr, usize, RandomState>>,
}

/// Counts a connection until the guard is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    clients: Arc<Clients>,
    client: IpAddr,
}

impl Clients {
    /// Returns a counter that allows `max` connections per client. After a reload, the counter
    /// keeps the connections that `previous` has counted. Returns `None` if `max` is `None`.
    pub(crate) fn new(previous: Option<&Arc<Clients>>, max: Option<usize>) -> Option<Arc<Clients>> {
        let max = max?;
        let clients = previous.map_or_else(Arc::default, Arc::clone);
        clients.max.store(max, Ordering::Relaxed);
        Some(clients)
    }

    /// Counts one more connection of a client. Returns `None` if the client already has the maximum
    /// number of connections.
    pub(crate) fn open(self: &Arc<Clients>, client: IpAddr) -> Option<ConnectionGuard> {
        let mut open = self.open.lock();
        let count = open.entry(client).or_default();
        if *count >= self.max.load(Ordering::Relaxed) {
            return None;
        }
        *count += 1;
        Some(ConnectionGuard { clients: Arc::clone(self), client })
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.clients.open.lock();
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: connections are counted by client, and released.

    use super::*;

    #[test]
    fn a_client_has_a_maximum_of_connections() {
        let clients = Clients::new(None, Some(2)).unwrap();
        let [client, other_client] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let first = clients.open(client).unwrap();
        let second = clients.open(client).unwrap();
        assert!(clients.open(client).is_none());
        let third = clients.open(other_client).unwrap();
        let clients = Clients::new(Some(&clients), Some(1)).unwrap();
        assert!(Clients::new(Some(&clients), None).is_none());
        assert!(clients.open(other_client).is_none(), "a reload lost the count");
        let clients = Clients::new(Some(&clients), Some(2)).unwrap();
        drop(first);
        let fourth = clients.open(client).unwrap();
        assert!(clients.open(client).is_none());
        drop((second, third, fourth));
        assert!(clients.open.lock().is_empty(), "a client without a connection is kept");
    }
}
