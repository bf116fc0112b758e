//! The output queue of a client's WebSocket: frames that wait until the client reads.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use tokio::time::Instant;
use wire::websocket::{MaskingKey, Opcode, write_compressed_header, write_frame, write_header};

use crate::call::reply::Body;
use crate::call::reply::COPY_BYTES_MAX;
use crate::io::wait::poll_write_parts;

#[cfg(test)]
mod tests;

/// Maximum number of frames per write.
const FRAMES_PER_WRITE: usize = 5;

/// Length of the longest header of an unmasked frame (RFC 6455, section 5.2).
const HEADER_BYTES_MAX: usize = 10;

/// Length of the header of an unmasked control frame.
const CONTROL_HEADER_BYTES: usize = 2;

/// A server does not mask its frames (RFC 6455, section 5.1).
const NO_MASK: Option<MaskingKey> = None;

/// A frame in three parts. Parts may be empty. A large payload is a separate part, so that it is
/// not copied.
type Frame = [Bytes; 3];

/// Frames that wait to be written.
#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    frames: VecDeque<Frame>,
    /// Number of bytes of the first frame that were already written.
    written_bytes: usize,
    /// Number of queued bytes that are not written yet, over all frames.
    pub(super) queued_bytes: usize,
    /// True if the stream may hold unflushed bytes, for example encrypted records.
    needs_flush: bool,
    /// When the stream stopped accepting bytes; `None` while it accepts bytes.
    pub(super) blocked_since: Option<Instant>,
}

impl OutputQueue {
    /// Returns true if all frames were written and flushed.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && !self.needs_flush
    }

    /// Queues a control frame.
    pub(super) fn push_control(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut frame = Vec::with_capacity(CONTROL_HEADER_BYTES + payload.len());
        write_frame(&mut frame, opcode, payload, NO_MASK);
        self.push([frame.into(), Bytes::new(), Bytes::new()]);
    }

    /// Queues a text message.
    pub(super) fn push_text(&mut self, body: Body) {
        let copies_payload = body.middle.len() <= COPY_BYTES_MAX;
        let copied_bytes = if copies_payload { body.middle.len() } else { 0 };
        let mut start =
            Vec::with_capacity(HEADER_BYTES_MAX + body.start.len() + copied_bytes + body.end.len());
        write_header(&mut start, Opcode::Text, body.len(), NO_MASK);
        start.extend_from_slice(&body.start);
        if !copies_payload {
            return self.push([start.into(), body.middle, Bytes::from_static(body.end)]);
        }
        start.extend_from_slice(&body.middle);
        start.extend_from_slice(body.end);
        self.push([start.into(), Bytes::new(), Bytes::new()]);
    }

    /// Queues a message that is compressed already.
    pub(super) fn push_compressed(&mut self, message: Vec<u8>) {
        let mut start = Vec::with_capacity(HEADER_BYTES_MAX);
        write_compressed_header(&mut start, message.len());
        self.push([start.into(), message.into(), Bytes::new()]);
    }

    fn push(&mut self, frame: Frame) {
        self.queued_bytes += length_of(&frame);
        self.frames.push_back(frame);
    }

    /// Drops all frames, except the first frame if a part of it was written.
    pub(super) fn drop_unsent(&mut self) {
        let kept_frames = usize::from(self.written_bytes > 0);
        self.frames.truncate(kept_frames);
        let partial_bytes = self.frames.front().map_or(0, length_of);
        self.queued_bytes = partial_bytes - self.written_bytes;
        self.blocked_since = self.blocked_since.filter(|_| partial_bytes > 0 || self.needs_flush);
    }

    /// Writes and flushes as much as the stream accepts. Returns true if bytes were written.
    pub(super) fn poll_write<S>(
        &mut self,
        stream: &mut S,
        task: &mut Context<'_>,
    ) -> Poll<io::Result<bool>>
    where
        S: AsyncWrite + Unpin,
    {
        let mut has_written = false;
        while !self.frames.is_empty() {
            let parts = self.frames.iter().take(FRAMES_PER_WRITE).flatten().map(|part| &part[..]);
            let stream = Pin::new(&mut *stream);
            match poll_write_parts::<_, { 3 * FRAMES_PER_WRITE }>(
                stream,
                task,
                parts,
                self.written_bytes,
            ) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(bytes)) => {
                    self.advance(bytes);
                    (has_written, self.needs_flush, self.blocked_since) = (true, true, None);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.wait_for_stream(has_written),
            }
        }
        if self.needs_flush {
            match Pin::new(stream).poll_flush(task) {
                Poll::Ready(Ok(())) => (self.needs_flush, self.blocked_since) = (false, None),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.wait_for_stream(has_written),
            }
        }
        Poll::Ready(Ok(has_written))
    }

    /// Records that the stream is blocked. Returns `Ready` if `has_written` is true.
    fn wait_for_stream(&mut self, has_written: bool) -> Poll<io::Result<bool>> {
        self.blocked_since.get_or_insert_with(Instant::now);
        if has_written { Poll::Ready(Ok(true)) } else { Poll::Pending }
    }

    /// Removes written bytes from the queue.
    fn advance(&mut self, bytes: usize) {
        self.queued_bytes -= bytes;
        self.written_bytes += bytes;
        while let Some(frame) = self.frames.front() {
            let frame_bytes = length_of(frame);
            if self.written_bytes < frame_bytes {
                break;
            }
            self.written_bytes -= frame_bytes;
            self.frames.pop_front();
        }
    }
}

fn length_of(frame: &Frame) -> usize {
    frame.iter().map(Bytes::len).sum()
}
