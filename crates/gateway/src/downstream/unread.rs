//! Answers over HTTP/2 that their clients have not taken yet.
//!
//! A client that asks for much and lets no answer through costs it nothing and us the answers: over
//! HTTP/1.1 a write that stands still tells, over HTTP/2 the connection is well and its streams'
//! windows are shut. So an answer is given out in pieces, and its connection ends when one of them
//! waits for too long.

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::io::memory::Hold;

/// Bytes of a piece: the least that HTTP/2 lets a frame hold (RFC 9113, section 4.2). What was
/// given out is not seen to be stuck, so this times the open streams is what one client can hold.
const PIECE_BYTES: usize = 16 * 1024;

/// The answers of one connection that are not given out whole.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// Since when each has been waiting. As many slots as streams were ever open at a time.
    since: RefCell<Vec<Option<Instant>>>,
}

impl Unread {
    /// An answer, which waits from now on.
    pub(crate) fn answer(self: &Rc<Unread>, bytes: Bytes, hold: Option<Hold>) -> Answer {
        let mut since = self.since.borrow_mut();
        let slot = since.iter().position(Option::is_none).unwrap_or_else(|| {
            since.push(None);
            since.len() - 1
        });
        since[slot] = Some(Instant::now());
        Answer { bytes, unread: Rc::clone(self), slot, _hold: hold }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.since.borrow().iter().all(Option::is_none)
    }

    /// Whether an answer has been waiting for longer than this.
    pub(crate) fn is_stuck(&self, patience: Duration) -> bool {
        let oldest = self.since.borrow().iter().flatten().min().copied();
        oldest.is_some_and(|oldest| oldest.elapsed() > patience)
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    bytes: Bytes,
    unread: Rc<Unread>,
    slot: usize,
    /// Counts the bytes until the last of them is given out.
    _hold: Option<Hold>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.unread.since.borrow_mut()[self.slot] = None;
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.bytes.is_empty() {
            return Poll::Ready(None);
        }
        // Asked for because there is room: it moves on.
        self.unread.since.borrow_mut()[self.slot] = Some(Instant::now());
        let length = self.bytes.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.bytes.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: an answer is given out whole, and one that waits is seen among others that do not.

    use std::task::Waker;

    use super::*;

    fn next(answer: &mut Answer) -> Option<Bytes> {
        let polled = Pin::new(answer).poll_frame(&mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap()),
            Poll::Pending => panic!("its bytes are at hand"),
        }
    }

    #[test]
    fn pieces_make_the_whole() {
        for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES] {
            let whole: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let unread = Rc::new(Unread::default());
            let mut answer = unread.answer(whole.clone().into(), None);
            assert_eq!(answer.size_hint().exact(), Some(length as u64));
            let mut given = Vec::new();
            while let Some(piece) = next(&mut answer) {
                assert!(piece.len() <= PIECE_BYTES);
                given.extend_from_slice(&piece);
            }
            assert!(answer.is_end_stream());
            assert_eq!(given, whole);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_is_seen_beside_one_that_moves_on() {
        let patience = Duration::from_secs(30);
        let unread = Rc::new(Unread::default());
        assert!(!unread.is_stuck(patience) && unread.is_empty());
        let whole = Bytes::from(vec![0; 100 * PIECE_BYTES]);
        let waiting = unread.answer(whole.clone(), None);
        let mut moving = unread.answer(whole.clone(), None);
        for _ in 0..4 {
            tokio::time::advance(Duration::from_secs(10)).await;
            next(&mut moving);
        }
        assert!(unread.is_stuck(patience));
        drop(waiting);
        assert!(!unread.is_stuck(patience));
        tokio::time::advance(Duration::from_secs(31)).await;
        assert!(unread.is_stuck(patience));
        drop(moving);
        assert!(!unread.is_stuck(patience) && unread.is_empty());
        let _third = unread.answer(whole, None);
        assert_eq!(unread.since.borrow().len(), 2, "slots are used again");
    }
}
