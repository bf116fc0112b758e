//! The output queue of a client's WebSocket.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use crate::call::reply::Body;
use crate::downstream::http1::COPY_BYTES_MAX;
use crate::io::websocket::frame;
use crate::io::websocket::frame::Op;

#[cfg(test)]
mod tests;

/// Maximum frames per write.
const FRAMES_PER_WRITE: usize = 5;

/// Frames that wait to be written.
#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    /// Each frame has up to three parts, so that a large payload is not copied.
    frames: VecDeque<[Bytes; 3]>,
    /// Bytes of the first frame that were written.
    written: usize,
    /// Number of queued bytes that are not written yet, over all frames.
    pub(super) bytes: usize,
    /// True if the stream may hold unflushed bytes, for example encrypted records.
    unflushed: bool,
    /// When the stream stopped accepting bytes. `None` if the last write or flush was not blocked.
    pub(super) blocked_since: Option<Instant>,
}

impl OutputQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && !self.unflushed
    }

    /// Queues a control frame.
    pub(super) fn control(&mut self, op: Op, payload: &[u8]) {
        let mut frame = Vec::with_capacity(2 + payload.len());
        frame::write(&mut frame, op, payload, None);
        self.push([frame.into(), Bytes::new(), Bytes::new()]);
    }

    /// Queues a text message.
    pub(super) fn text(&mut self, body: Body) {
        let copied_bytes = if body.middle.len() > COPY_BYTES_MAX { 0 } else { body.middle.len() };
        let mut start = Vec::with_capacity(10 + body.start.len() + copied_bytes + body.end.len());
        frame::write_header(&mut start, Op::Text, body.len(), None);
        start.extend_from_slice(&body.start);
        if body.middle.len() > COPY_BYTES_MAX {
            return self.push([start.into(), body.middle, Bytes::from_static(body.end)]);
        }
        start.extend_from_slice(&body.middle);
        start.extend_from_slice(body.end);
        self.push([start.into(), Bytes::new(), Bytes::new()]);
    }

    /// Queues a message that is compressed already.
    pub(super) fn compressed(&mut self, message: Vec<u8>) {
        let mut start = Vec::with_capacity(10);
        frame::write_compressed_header(&mut start, message.len());
        self.push([start.into(), message.into(), Bytes::new()]);
    }

    fn push(&mut self, frame: [Bytes; 3]) {
        self.bytes += frame.iter().map(Bytes::len).sum::<usize>();
        self.frames.push_back(frame);
    }

    /// Drops all frames except a partly written one.
    pub(super) fn drop_unsent(&mut self) {
        self.frames.truncate(usize::from(self.written > 0));
        let partial = self.frames.iter().flatten().map(Bytes::len).sum::<usize>();
        self.bytes = partial - self.written;
        self.blocked_since = self.blocked_since.filter(|_| partial > 0 || self.unflushed);
    }

    /// Writes and flushes as much as the stream accepts. Returns true if bytes were written.
    pub(super) fn poll_write<S>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>>
    where
        S: AsyncWrite + Unpin,
    {
        let mut has_written = false;
        while !self.frames.is_empty() {
            match self.poll_once(stream, cx) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(bytes)) => {
                    self.advance(bytes);
                    (has_written, self.unflushed, self.blocked_since) = (true, true, None);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.pending(has_written),
            }
        }
        if self.unflushed {
            match Pin::new(stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => (self.unflushed, self.blocked_since) = (false, None),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.pending(has_written),
            }
        }
        Poll::Ready(Ok(has_written))
    }

    fn pending(&mut self, has_written: bool) -> Poll<io::Result<bool>> {
        self.blocked_since.get_or_insert_with(Instant::now);
        if has_written { Poll::Ready(Ok(true)) } else { Poll::Pending }
    }

    /// Calls write once, with the first frames of the queue. Returns the number of bytes written.
    fn poll_once<S>(&self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>>
    where
        S: AsyncWrite + Unpin,
    {
        let mut slices = [io::IoSlice::new(&[]); 3 * FRAMES_PER_WRITE];
        let (mut count, mut skip) = (0, self.written);
        for part in self.frames.iter().take(FRAMES_PER_WRITE).flatten() {
            let remaining = &part[skip.min(part.len())..];
            skip -= part.len() - remaining.len();
            if !remaining.is_empty() {
                slices[count] = io::IoSlice::new(remaining);
                count += 1;
            }
        }
        match &slices[..count] {
            // A plain write is a cheaper system call than a vectored one.
            [single] => Pin::new(stream).poll_write(cx, single),
            several => Pin::new(stream).poll_write_vectored(cx, several),
        }
    }

    /// Removes written bytes from the queue.
    fn advance(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.written += bytes;
        while let Some(frame) = self.frames.front() {
            let frame_bytes: usize = frame.iter().map(Bytes::len).sum();
            if self.written < frame_bytes {
                break;
            }
            self.written -= frame_bytes;
            self.frames.pop_front();
        }
    }
}
