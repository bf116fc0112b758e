//! A stream of events, from its source to the threads that deliver them.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};

use super::blocks::Logs;

/// Maximum events that a thread may be behind; beyond it, its subscribers have missed events.
const TURNS_MAX: usize = 256;

/// An event of a stream.
#[derive(Debug, Clone)]
pub(crate) enum Turn {
    /// The same for all subscribers: a header, or an upstream's notification.
    All(Bytes),
    /// The logs of one block, in order.
    Logs(Arc<Logs>),
    /// Events were missed, so subscribers must be closed.
    Broken,
}

/// Why a relayed subscription was refused.
#[derive(Debug, Clone)]
pub(crate) enum Refused {
    /// The upstream's error object.
    ByUpstream(Bytes),
    /// No upstream supports it.
    NoUpstream,
}

/// The state of a stream.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    Opening,
    Open,
    Refused(Refused),
}

/// A stream of events.
#[derive(Debug)]
pub(crate) struct Stream {
    turns: broadcast::Sender<Turn>,
    state: Mutex<State>,
    standing: watch::Sender<Standing>,
    /// Notified when the last follower has left.
    left: Notify,
}

#[derive(Debug, Default)]
struct State {
    followers: usize,
    /// True if a source is running.
    has_source: bool,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream {
            turns: broadcast::Sender::new(TURNS_MAX),
            state: Mutex::default(),
            standing: watch::Sender::new(Standing::Opening),
            left: Notify::new(),
        }
    }
}

impl Stream {
    /// Starts to follow the stream. If the second value is true, the caller must start the source
    /// at once.
    pub(super) fn follow(&self) -> (broadcast::Receiver<Turn>, bool) {
        let mut state = self.state.lock();
        state.followers += 1;
        let starts = !std::mem::replace(&mut state.has_source, true);
        if starts {
            self.standing.send_replace(Standing::Opening);
        }
        (self.turns.subscribe(), starts)
    }

    /// Removes a follower.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.followers -= 1;
        if state.followers == 0 {
            self.left.notify_one();
        }
    }

    /// Returns true if there are no followers; the source must then end.
    pub(super) fn end_if_left(&self) -> bool {
        let mut state = self.state.lock();
        let left = state.followers == 0;
        state.has_source &= !left;
        left
    }

    /// Marks the source as ended. The next follower starts another.
    pub(super) fn end(&self) {
        self.state.lock().has_source = false;
    }

    /// Waits until there are no followers; can return early.
    pub(super) async fn left(&self) {
        self.left.notified().await;
    }

    pub(super) fn tell(&self, turn: Turn) {
        // Without followers, sending fails harmlessly.
        let _ = self.turns.send(turn);
    }

    pub(super) fn stand(&self, standing: Standing) {
        self.standing.send_replace(standing);
    }

    /// Waits until the stream is open or refused.
    pub(super) async fn opened(&self) -> Result<(), Refused> {
        let mut standing = self.standing.subscribe();
        let known = standing.wait_for(|standing| !matches!(standing, Standing::Opening)).await;
        match known.as_deref() {
            Ok(Standing::Refused(refused)) => Err(refused.clone()),
            Ok(Standing::Open | Standing::Opening) => Ok(()),
            Err(_) => Err(Refused::NoUpstream),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a stream has one source while it has followers, and none afterwards.

    use super::*;

    #[test]
    fn one_source_while_anybody_follows() {
        let stream = Stream::default();
        let (mut first, starts) = stream.follow();
        assert!(starts, "somebody has to find out");
        let (_second, starts) = stream.follow();
        assert!(!starts, "somebody does");
        stream.leave();
        assert!(!stream.end_if_left());
        stream.tell(Turn::Broken);
        assert!(matches!(first.try_recv(), Ok(Turn::Broken)));
        stream.leave();
        assert!(stream.end_if_left());
        assert!(stream.follow().1, "the next one starts another");
        // A source that has ended is replaced, even while there are followers.
        stream.end();
        assert!(stream.follow().1);
    }
}
