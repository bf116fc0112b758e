//! Response bodies: complete, truncated, or slow.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

/// Pause after the first half of a truncated body, so that this half is sent before the connection
/// ends.
const TRUNCATION_PAUSE: Duration = Duration::from_millis(5);
/// Interval between the chunks of a slow body.
const CHUNK_INTERVAL: Duration = Duration::from_millis(20);

/// A response body with a fault, or without one.
pub(super) struct ResponseBody {
    unsent: Bytes,
    pace: Pace,
}

/// The way in which a body is sent.
enum Pace {
    /// All at once.
    Whole,
    /// Sends `bytes_left` bytes, pauses, and then ends the connection. `pause` is `None` until the
    /// bytes are sent.
    Truncated { bytes_left: usize, pause: Option<Pin<Box<Sleep>>> },
    /// Sends `chunk_bytes` after each pause.
    Slow { chunk_bytes: usize, interval: Duration, pause: Pin<Box<Sleep>> },
}

impl ResponseBody {
    pub(super) fn whole(body: Bytes) -> Self {
        Self { unsent: body, pace: Pace::Whole }
    }

    /// Creates a body that sends the first half of `body` and then breaks the connection.
    pub(super) fn truncated(body: Bytes) -> Self {
        let bytes_left = body.len() / 2;
        Self { unsent: body, pace: Pace::Truncated { bytes_left, pause: None } }
    }

    pub(super) fn slow(body: Bytes, bytes_per_second: u32) -> Self {
        let per_chunk = f64::from(bytes_per_second) * CHUNK_INTERVAL.as_secs_f64();
        let chunk_bytes = (per_chunk as usize).max(1);
        // At a speed below one byte per interval, the interval is longer.
        let interval =
            Duration::from_secs_f64(chunk_bytes as f64 / f64::from(bytes_per_second.max(1)));
        Self {
            unsent: body,
            pace: Pace::Slow { chunk_bytes, interval, pause: Box::pin(sleep(interval)) },
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Self { unsent, pace } = &mut *self;
        match pace {
            Pace::Whole if unsent.is_empty() => Poll::Ready(None),
            Pace::Whole => Poll::Ready(Some(Ok(Frame::data(std::mem::take(unsent))))),
            Pace::Truncated { bytes_left, pause: None } => {
                let half = unsent.split_to(*bytes_left);
                *pace = Pace::Truncated {
                    bytes_left: 0,
                    pause: Some(Box::pin(sleep(TRUNCATION_PAUSE))),
                };
                Poll::Ready(Some(Ok(Frame::data(half))))
            }
            Pace::Truncated { pause: Some(pause), .. } => {
                ready!(pause.as_mut().poll(context));
                Poll::Ready(Some(Err(io::Error::other("truncated on purpose"))))
            }
            Pace::Slow { .. } if unsent.is_empty() => Poll::Ready(None),
            Pace::Slow { chunk_bytes, interval, pause } => {
                ready!(pause.as_mut().poll(context));
                let length = (*chunk_bytes).min(unsent.len());
                let next_chunk_time = pause.deadline() + *interval;
                pause.as_mut().reset(next_chunk_time);
                Poll::Ready(Some(Ok(Frame::data(unsent.split_to(length)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.pace, Pace::Whole | Pace::Slow { .. }) && self.unsent.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match self.pace {
            Pace::Whole => SizeHint::with_exact(self.unsent.len() as u64),
            // The header Content-Length announces the length, but fewer bytes may be sent.
            Pace::Truncated { .. } | Pace::Slow { .. } => SizeHint::default(),
        }
    }
}
