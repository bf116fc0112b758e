//! Detects HTTP/2 connections that carry almost no headers and bodies, so that they can be closed.
//!
//! SETTINGS, PING, PRIORITY and empty frames cost their sender nothing, but each costs the gateway
//! work or a response. Only bytes of headers and bodies are *useful*. The rule is nginx's
//! (`ngx_http_v2_state_head`): at least an eighth of all bytes must be useful. Each connection
//! starts with a credit of useful bytes.

/// Bytes of a frame header (RFC 9113, section 4.1).
const HEADER_BYTES: usize = 9;
/// Bytes of the client preface, which is not a frame (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;
/// Useful bytes that each connection is credited with at its start. So a connection may carry eight
/// times this many bytes without headers or bodies.
const USEFUL_BYTES_CREDIT: u64 = 1 << 20;

/// Byte counts of the frames in one direction.
#[derive(Debug, Default)]
pub(super) struct FrameCounter {
    /// Header of the current frame.
    header: [u8; HEADER_BYTES],
    /// Number of bytes of `header` that were read.
    header_bytes_read: usize,
    /// Bytes of the current frame that are still to come.
    frame_bytes_left: usize,
    /// All bytes: the preface, frame headers and payloads.
    all_bytes: u64,
    /// Payload bytes of DATA, HEADERS and CONTINUATION frames. A frame's whole payload counts once
    /// the frame header was read.
    useful_bytes: u64,
}

impl FrameCounter {
    /// Creates the counter for the bytes of a client, which begin with the preface.
    pub(super) fn of_client() -> FrameCounter {
        FrameCounter { frame_bytes_left: PREFACE_BYTES, ..FrameCounter::default() }
    }

    /// Counts the next bytes of this direction. Skips payloads and collects frame headers. A frame
    /// header may be split between two reads.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        self.all_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let skipped = self.frame_bytes_left.min(bytes.len());
            self.frame_bytes_left -= skipped;
            bytes = &bytes[skipped..];
            let header_part = bytes.len().min(HEADER_BYTES - self.header_bytes_read);
            let end = self.header_bytes_read + header_part;
            self.header[self.header_bytes_read..end].copy_from_slice(&bytes[..header_part]);
            self.header_bytes_read = end;
            bytes = &bytes[header_part..];
            if self.header_bytes_read == HEADER_BYTES {
                self.header_bytes_read = 0;
                // A frame header begins with a length in three bytes and the type of the frame.
                let [high, middle, low, frame_type, ..] = self.header;
                self.frame_bytes_left = u32::from_be_bytes([0, high, middle, low]) as usize;
                // The types of DATA, HEADERS and CONTINUATION.
                if matches!(frame_type, 0 | 1 | 9) {
                    self.useful_bytes += self.frame_bytes_left as u64;
                }
            }
        }
    }
}

/// Returns true if too few bytes are useful: the useful bytes of both directions plus the credit
/// are less than an eighth of all bytes.
pub(super) fn is_flood(client: &FrameCounter, server: &FrameCounter) -> bool {
    (client.all_bytes + server.all_bytes) / 8
        > client.useful_bytes + server.useful_bytes + USEFUL_BYTES_CREDIT
}

#[cfg(test)]
mod tests {
    //! Goal: frames are recognized at any read boundary, and only floods are reported.

    use super::*;

    /// Returns a frame of the type `kind` (RFC 9113, section 6) with a payload of `length` bytes.
    fn frame(kind: u8, length: u32) -> Vec<u8> {
        let [_, high, middle, low] = length.to_be_bytes();
        let mut bytes = vec![high, middle, low, kind, 0, 0, 0, 0, 1];
        bytes.resize(bytes.len() + length as usize, 7);
        bytes
    }

    #[test]
    fn read_boundaries_make_no_difference() {
        let frames = [frame(4, 6), frame(1, 300), frame(0, 70_000), frame(6, 8), frame(0, 0)];
        let stream = [&[b'P'; PREFACE_BYTES][..], &frames.concat()].concat();
        for piece_bytes in [1, 7, 9, 4096, stream.len()] {
            let mut client = FrameCounter::of_client();
            stream.chunks(piece_bytes).for_each(|part| client.feed(part));
            assert_eq!(
                (client.all_bytes, client.useful_bytes),
                (stream.len() as u64, 70_300),
                "{piece_bytes}"
            );
        }
    }

    #[test]
    fn only_useless_frames_are_a_flood() {
        let server = FrameCounter::default();
        let mut pings = FrameCounter::of_client();
        let ping = frame(6, 8).repeat(1 << 16);
        while !is_flood(&pings, &server) {
            assert!(pings.all_bytes < 16 << 20, "the flood is not detected");
            pings.feed(&ping);
        }
        let mut updates = FrameCounter::of_client();
        let mut download = FrameCounter::default();
        for _ in 0..2000 {
            download.feed(&frame(0, 16 << 10));
            updates.feed(&frame(8, 4).repeat(2));
            assert!(!is_flood(&updates, &download));
        }
    }
}
