//! Goal: frames arrive complete and in order for any pattern of partial writes, and dropped frames
//! are never partly sent. Method: a stream that accepts a given number of bytes per call.

use std::task::Waker;

use proptest::prelude::*;
use wire::websocket::Role;

use super::*;
use crate::io::websocket::decoder::{Decoder, Event};

/// A stream that accepts a limited number of bytes per call.
struct SlowStream {
    /// Number of bytes that each call accepts. The stream is full when the list is empty.
    write_sizes: VecDeque<usize>,
    written: Vec<u8>,
}

impl AsyncWrite for SlowStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some(write_size) = self.write_sizes.pop_front() else { return Poll::Pending };
        let write_size = write_size.min(bytes.len());
        self.written.extend_from_slice(&bytes[..write_size]);
        Poll::Ready(Ok(write_size))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(mut remaining) = self.write_sizes.pop_front() else { return Poll::Pending };
        let before = self.written.len();
        for slice in slices {
            let write_size = remaining.min(slice.len());
            self.written.extend_from_slice(&slice[..write_size]);
            remaining -= write_size;
        }
        Poll::Ready(Ok(self.written.len() - before))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns a body whose middle part has `bytes` bytes. The other parts have 8 bytes together.
fn body(bytes: usize) -> Body {
    Body { start: vec![b'<'; 7], middle: vec![b'm'; bytes].into(), end: b">" }
}

/// Decodes the written frames as the client does. Returns the lengths of the messages' middle
/// parts.
fn decode_lengths(mut bytes: &[u8]) -> Vec<usize> {
    let mut decoder = Decoder::new(Role::Client, 1 << 30, false);
    let mut lengths = Vec::new();
    while !bytes.is_empty() {
        let (used, event) = decoder.next(bytes).expect("frames are well made");
        if let Some(Event::Message(payload)) = event {
            assert!(payload.starts_with(b"<<<<<<<") && payload.ends_with(b">"));
            lengths.push(payload.len() - 8);
        }
        bytes = &bytes[used..];
    }
    lengths
}

proptest! {
    #[test]
    fn frames_arrive_whole_and_in_order(
        lengths in prop::collection::vec(prop_oneof![0usize..300, 30_000usize..70_000], 1..20),
        write_sizes in prop::collection::vec(1usize..40_000, 0..40),
        drops_unsent in any::<bool>(),
    ) {
        let mut queue = OutputQueue::default();
        lengths.iter().for_each(|length| queue.push_text(body(*length)));
        let mut stream = SlowStream { write_sizes: write_sizes.into(), written: Vec::new() };
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(written) = queue.poll_write(&mut stream, &mut cx) {
            if !written.unwrap() {
                break;
            }
        }
        prop_assert_eq!(queue.blocked_since.is_some(), !queue.is_empty());
        if drops_unsent {
            queue.drop_unsent();
        }
        let queued: usize = queue.frames.iter().flatten().map(Bytes::len).sum();
        prop_assert_eq!(queue.queued_bytes, queued - queue.written_bytes);
        stream.write_sizes = vec![usize::MAX; 200].into();
        while !queue.is_empty() {
            prop_assert!(queue.poll_write(&mut stream, &mut cx).is_ready());
        }
        prop_assert_eq!((queue.queued_bytes, queue.written_bytes), (0, 0));
        prop_assert_eq!(queue.blocked_since, None);
        let arrived = decode_lengths(&stream.written);
        prop_assert!(arrived.len() <= lengths.len());
        prop_assert_eq!(&arrived[..], &lengths[..arrived.len()]);
        prop_assert!(drops_unsent || arrived.len() == lengths.len());
    }
}
