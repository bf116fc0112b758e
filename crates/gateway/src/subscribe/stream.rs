//! What is told of one thing, from the one who finds out to the threads that pass it on.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};

use super::blocks::Logs;

/// Turns that a thread may be behind; beyond that its subscribers have missed some.
const TURNS_MAX: usize = 256;

/// What subscribers are told, or what they have to be told by closing their connections.
#[derive(Debug, Clone)]
pub(crate) enum Turn {
    /// The same to everybody: a header, or what an upstream has said.
    All(Bytes),
    /// Logs of one block, in their order.
    Logs(Arc<Logs>),
    /// Something was missed that nobody can tell any more.
    Broken,
}

/// Why an upstream's stream does not begin.
#[derive(Debug, Clone)]
pub(crate) enum Refused {
    /// The upstream's own error object.
    ByUpstream(Bytes),
    /// No upstream that could tell is there.
    NoUpstream,
}

/// How far a stream has come.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    Opening,
    Open,
    Refused(Refused),
}

/// A stream of turns.
#[derive(Debug)]
pub(crate) struct Stream {
    turns: broadcast::Sender<Turn>,
    state: Mutex<State>,
    standing: watch::Sender<Standing>,
    /// Told when nobody follows any more.
    left: Notify,
}

#[derive(Debug, Default)]
struct State {
    followers: usize,
    /// Somebody finds out what is to be told.
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
    /// Follows the stream from here on. Who is told `true` has to find out what is told, from this
    /// very moment on.
    pub(super) fn follow(&self) -> (broadcast::Receiver<Turn>, bool) {
        let mut state = self.state.lock();
        state.followers += 1;
        let starts = !std::mem::replace(&mut state.has_source, true);
        if starts {
            self.standing.send_replace(Standing::Opening);
        }
        (self.turns.subscribe(), starts)
    }

    /// One who followed does no more.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.followers -= 1;
        if state.followers == 0 {
            self.left.notify_one();
        }
    }

    /// Whether nobody follows: then its source has ended with this.
    pub(super) fn end_if_left(&self) -> bool {
        let mut state = self.state.lock();
        let left = state.followers == 0;
        state.has_source &= !left;
        left
    }

    /// The source ends although somebody may follow; who follows next starts another.
    pub(super) fn end(&self) {
        self.state.lock().has_source = false;
    }

    /// Waits until nobody follows; may end early.
    pub(super) async fn left(&self) {
        self.left.notified().await;
    }

    pub(super) fn tell(&self, turn: Turn) {
        // Without followers nobody needs to hear it.
        let _ = self.turns.send(turn);
    }

    pub(super) fn stand(&self, standing: Standing) {
        self.standing.send_replace(standing);
    }

    /// Waits until it is known whether it begins.
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
    //! Goal: a stream has one source while anybody follows it, and none afterwards.

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
        // A source that gave up is replaced too, though somebody follows.
        stream.end();
        assert!(stream.follow().1);
    }
}
