//! Detects clients that do not read their HTTP/2 responses.
//!
//! Such a client makes the gateway hold many responses in memory, at no cost to the client. Over
//! HTTP/1.1 a stalled write reveals the client. Over HTTP/2 the connection stays writable while the
//! streams' flow-control windows are closed. Therefore hyper gets each response in pieces, and the
//! connection is closed if hyper does not request the next piece in time.

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::io::memory::Reservation;

/// Number of bytes of a piece. Every HTTP/2 endpoint accepts frames of this size (RFC 9113, section
/// 4.2). A stall within a piece is not detected, so a client can hold this many bytes per open
/// stream.
const PIECE_BYTES: usize = 16 * 1024;

/// The unfinished responses of one connection.
#[derive(Debug, Default)]
pub(crate) struct UnfinishedResponses {
    /// When each response last made progress, by the slot of the response; `None` in free slots.
    last_progress: RefCell<Vec<Option<Instant>>>,
}

impl UnfinishedResponses {
    /// Starts to track a response.
    pub(crate) fn track(
        self: &Rc<UnfinishedResponses>,
        bytes: Bytes,
        reservation: Option<Reservation>,
    ) -> ResponseBody {
        let mut last_progress = self.last_progress.borrow_mut();
        let slot = last_progress.iter().position(Option::is_none).unwrap_or_else(|| {
            last_progress.push(None);
            last_progress.len() - 1
        });
        last_progress[slot] = Some(Instant::now());
        ResponseBody {
            remaining: bytes,
            unfinished: Rc::clone(self),
            slot,
            _reservation: reservation,
        }
    }

    /// Returns true if no response is unfinished.
    pub(crate) fn is_empty(&self) -> bool {
        self.last_progress.borrow().iter().all(Option::is_none)
    }

    /// Returns true if a response has made no progress for longer than `timeout`.
    pub(crate) fn is_stalled(&self, timeout: Duration) -> bool {
        let oldest_progress = self.last_progress.borrow().iter().flatten().min().copied();
        oldest_progress.is_some_and(|progress| progress.elapsed() > timeout)
    }
}

/// The body of a response.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    /// The bytes that hyper has not requested yet.
    remaining: Bytes,
    unfinished: Rc<UnfinishedResponses>,
    /// Index of the response in [`UnfinishedResponses::last_progress`].
    slot: usize,
    /// The memory reservation, released when hyper drops the body after the last piece.
    _reservation: Option<Reservation>,
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.unfinished.last_progress.borrow_mut()[self.slot] = None;
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.remaining.is_empty() {
            return Poll::Ready(None);
        }
        // hyper requests a piece only when the window has capacity, so the response makes progress.
        self.unfinished.last_progress.borrow_mut()[self.slot] = Some(Instant::now());
        let length = self.remaining.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.remaining.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: pieces add up to the response, and a stalled response is detected among others.

    use std::task::Waker;

    use super::*;

    fn next(body: &mut ResponseBody) -> Option<Bytes> {
        let polled = Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap()),
            Poll::Pending => panic!("the body has all its bytes"),
        }
    }

    #[test]
    fn pieces_add_up_to_the_response() {
        for length in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES] {
            let response: Vec<u8> = (0..length).map(|index| index as u8).collect();
            let unfinished = Rc::new(UnfinishedResponses::default());
            let mut body = unfinished.track(response.clone().into(), None);
            assert_eq!(body.size_hint().exact(), Some(length as u64));
            let mut received = Vec::new();
            while let Some(piece) = next(&mut body) {
                assert!(piece.len() <= PIECE_BYTES);
                received.extend_from_slice(&piece);
            }
            assert!(body.is_end_stream());
            assert_eq!(received, response);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_response_is_detected_beside_a_progressing_one() {
        let timeout = Duration::from_secs(30);
        let unfinished = Rc::new(UnfinishedResponses::default());
        assert!(!unfinished.is_stalled(timeout) && unfinished.is_empty());
        let response = Bytes::from(vec![0; 100 * PIECE_BYTES]);
        let stalled = unfinished.track(response.clone(), None);
        let mut progressing = unfinished.track(response.clone(), None);
        for _ in 0..4 {
            tokio::time::advance(Duration::from_secs(10)).await;
            next(&mut progressing);
        }
        assert!(unfinished.is_stalled(timeout));
        drop(stalled);
        assert!(!unfinished.is_stalled(timeout));
        tokio::time::advance(Duration::from_secs(31)).await;
        assert!(unfinished.is_stalled(timeout));
        drop(progressing);
        assert!(!unfinished.is_stalled(timeout) && unfinished.is_empty());
        let _third = unfinished.track(response, None);
        assert_eq!(unfinished.last_progress.borrow().len(), 2, "slots are reused");
    }
}
