//! The feed of each chain: its subscription streams, filters and recent blocks, shared by all
//! threads.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::blocks::Blocks;
use super::filters::Filters;
use super::stream::Stream;
use crate::call::failure::SubscribeRefusal;
use crate::upstream::chain::ChainState;

/// Maximum number of distinct relayed subscriptions of one chain. The events of a relayed
/// subscription come from one upstream, over a separate connection.
const RELAYS_MAX: usize = 64;
/// Maximum number of relayed subscriptions that one client may start. Other clients can join these
/// subscriptions.
const RELAYS_PER_CLIENT_MAX: usize = 16;

/// The feeds of all chains. A feed survives reloads until its chain is removed.
#[derive(Debug, Default)]
pub(crate) struct Feeds(Mutex<Vec<(Weak<ChainState>, Arc<Feed>)>>);

impl Feeds {
    /// Returns the feed of a chain.
    pub(super) fn get_or_create(&self, chain: &Arc<ChainState>) -> Arc<Feed> {
        let mut feeds = self.0.lock();
        let is_of_chain =
            |known_chain: &Weak<ChainState>| std::ptr::eq(known_chain.as_ptr(), &**chain);
        if let Some((_, feed)) = feeds.iter().find(|(known_chain, _)| is_of_chain(known_chain)) {
            return Arc::clone(feed);
        }
        // Removes the feeds of chains that a reload has removed.
        feeds.retain(|(known_chain, _)| known_chain.strong_count() > 0);
        let feed = Arc::<Feed>::default();
        feeds.push((Arc::downgrade(chain), Arc::clone(&feed)));
        feed
    }
}

/// The streams, filters and recent blocks of one chain.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// Headers of new blocks.
    pub(super) heads: Arc<Stream>,
    /// Logs of new and dropped blocks.
    pub(super) logs: Arc<Stream>,
    /// Relayed subscriptions by the key of their call (`RelayRequest::key`).
    relays: Mutex<HashMap<Box<[u8]>, RelayedSubscription>>,
    pub(super) filters: Filters,
    pub(super) blocks: Blocks,
}

/// A subscription that is relayed from an upstream.
#[derive(Debug)]
struct RelayedSubscription {
    stream: Arc<Stream>,
    /// Hash that identifies the client that started the subscription.
    owner: u64,
}

impl Feed {
    /// Returns the relayed stream for the key of a subscription call. `owner` is the hash that
    /// identifies the client. A new stream counts towards this client's maximum.
    ///
    /// # Errors
    /// The chain or the client has reached its maximum of relayed subscriptions.
    pub(super) fn find_or_create_relay(
        &self,
        call_key: Vec<u8>,
        owner: u64,
    ) -> Result<Arc<Stream>, SubscribeRefusal> {
        let mut relays = self.relays.lock();
        // Removes the streams to which only this map refers, because they have no followers. A
        // thread that is about to follow a stream already holds a reference.
        relays.retain(|_, relayed| Arc::strong_count(&relayed.stream) > 1);
        if let Some(relayed) = relays.get(&*call_key) {
            return Ok(Arc::clone(&relayed.stream));
        }
        if relays.len() >= RELAYS_MAX {
            return Err(SubscribeRefusal::GatewayLimit);
        }
        if relays.values().filter(|relayed| relayed.owner == owner).count() >= RELAYS_PER_CLIENT_MAX
        {
            return Err(SubscribeRefusal::ClientLimit);
        }
        let stream = Arc::<Stream>::default();
        relays.insert(call_key.into(), RelayedSubscription { stream: Arc::clone(&stream), owner });
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: one client cannot use all relayed subscriptions.

    use super::*;

    #[test]
    fn one_client_cannot_use_all_relays() {
        let feed = Feed::default();
        let relay = |call: &str, client: u64| feed.find_or_create_relay(call.into(), client);
        let mut held: Vec<_> = (0..RELAYS_PER_CLIENT_MAX)
            .map(|number| relay(&format!("call {number}"), 1).unwrap())
            .collect();
        assert_eq!(relay("one more", 1).unwrap_err(), SubscribeRefusal::ClientLimit);
        relay("call 3", 1).expect("an existing relay can be joined");
        relay("one more", 2).expect("another client may start a relay");
        held.pop();
        relay("one more", 1).expect("a relay has ended");
    }
}
