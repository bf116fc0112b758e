//! A stream carries the events of one kind of subscription, such as `newHeads`, from their source
//! to the threads that deliver them.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};

use super::blocks::Log;

/// Maximum number of events that wait for a thread. A thread that is further behind misses events.
const QUEUED_EVENTS_MAX: usize = 256;

/// An event of a stream.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// An event for all subscribers: a header, or an upstream's notification.
    All(Bytes),
    /// The logs of one block, in order.
    Logs(Arc<Vec<Log>>),
    /// The source has missed events, so the subscribers' connections must be closed.
    Broken,
}

/// Why a relayed subscription was refused.
#[derive(Debug, Clone)]
pub(crate) enum RelayRefusal {
    /// The upstream's error object.
    ByUpstream(Bytes),
    /// No usable upstream supports the subscription.
    NoUpstream,
}

/// The state of a stream: opening, open or refused.
#[derive(Debug, Clone)]
pub(crate) enum OpenState {
    /// The source has not produced a result yet.
    Opening,
    /// The stream carries events.
    Open,
    /// The source cannot open the stream.
    Refused(RelayRefusal),
}

/// A stream of events.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Sends events to all followers.
    events: broadcast::Sender<Event>,
    followers: Mutex<Followers>,
    open_state: watch::Sender<OpenState>,
    /// Notified when the last follower has left.
    unfollowed: Notify,
}

/// The threads that follow a stream.
#[derive(Debug, Default)]
struct Followers {
    /// Number of threads that follow the stream.
    count: usize,
    /// True if a source is running.
    has_source: bool,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream {
            events: broadcast::Sender::new(QUEUED_EVENTS_MAX),
            followers: Mutex::default(),
            open_state: watch::Sender::new(OpenState::Opening),
            unfollowed: Notify::new(),
        }
    }
}

/// What a new follower of a stream gets.
pub(super) struct Follow {
    /// Receives the events of the stream.
    pub(super) events: broadcast::Receiver<Event>,
    /// True if the stream has no source. The caller must start a source at once.
    pub(super) needs_source: bool,
}

impl Stream {
    /// Adds a follower, and marks the source as running.
    pub(super) fn follow(&self) -> Follow {
        let mut followers = self.followers.lock();
        followers.count += 1;
        let needs_source = !std::mem::replace(&mut followers.has_source, true);
        if needs_source {
            self.open_state.send_replace(OpenState::Opening);
        }
        Follow { events: self.events.subscribe(), needs_source }
    }

    /// Removes a follower.
    pub(super) fn unfollow(&self) {
        let mut followers = self.followers.lock();
        followers.count -= 1;
        if followers.count == 0 {
            self.unfollowed.notify_one();
        }
    }

    /// Marks the source as ended if there are no followers. Returns true if the source must end.
    pub(super) fn end_if_unfollowed(&self) -> bool {
        let mut followers = self.followers.lock();
        let is_unfollowed = followers.count == 0;
        followers.has_source &= !is_unfollowed;
        is_unfollowed
    }

    /// Marks the source as ended. The next follower starts a new source.
    pub(super) fn end(&self) {
        self.followers.lock().has_source = false;
    }

    /// Waits until the last follower leaves. A new follower may come before the wait ends, so the
    /// caller must check.
    pub(super) async fn wait_until_unfollowed(&self) {
        self.unfollowed.notified().await;
    }

    /// Sends an event to all followers.
    pub(super) fn send(&self, event: Event) {
        // Sending fails only if there are no followers, and then nobody needs the event.
        let _ = self.events.send(event);
    }

    pub(super) fn set_open_state(&self, open_state: OpenState) {
        self.open_state.send_replace(open_state);
    }

    /// Waits until the stream is open or refused.
    pub(super) async fn wait_until_open(&self) -> Result<(), RelayRefusal> {
        let mut open_state = self.open_state.subscribe();
        let final_state = open_state.wait_for(|state| !matches!(state, OpenState::Opening)).await;
        match final_state.as_deref() {
            Ok(OpenState::Refused(refusal)) => Err(refusal.clone()),
            Ok(OpenState::Open | OpenState::Opening) => Ok(()),
            Err(_) => Err(RelayRefusal::NoUpstream),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a stream has one source while it has followers, and none afterwards.

    use super::*;

    #[test]
    fn a_stream_has_one_source_while_it_has_followers() {
        let stream = Stream::default();
        let mut first = stream.follow();
        assert!(first.needs_source, "the first follower starts the source");
        let second = stream.follow();
        assert!(!second.needs_source, "the stream has a source");
        stream.unfollow();
        assert!(!stream.end_if_unfollowed());
        stream.send(Event::Broken);
        assert!(matches!(first.events.try_recv(), Ok(Event::Broken)));
        stream.unfollow();
        assert!(stream.end_if_unfollowed());
        assert!(stream.follow().needs_source, "the next follower starts another source");
        // A source that has ended is replaced, even while there are followers.
        stream.end();
        assert!(stream.follow().needs_source);
    }
}
