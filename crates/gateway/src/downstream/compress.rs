//! Content codings: answers packed for clients that accept it, packed requests unpacked.
//!
//! zstd is preferred to gzip: it is several times cheaper for the same size. Which bodies are worth
//! it is the configuration's.

use std::io::{Read, Write};
use std::sync::LazyLock;

use tokio::sync::Semaphore;

use crate::call::reply::Body;
use crate::config::downstream::Downstream;
use crate::downstream::answer::Message;
use crate::downstream::head::{Accept, Coding};

/// Bodies over this are packed on another thread: at about 100 MB/s for gzip's fastest level, a
/// larger one would keep every other connection of this thread waiting for over half a millisecond.
pub(crate) const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Packed requests over this are unpacked on another thread, and so are those that become longer
/// than [`INLINE_BYTES_MAX`]: a byte of them may take as long as a thousand bytes of JSON.
pub(crate) const DECODE_INLINE_BYTES_MAX: usize = 4 * 1024;
/// Most members of a gzip file. Tools that cut files into members of 64 KiB need 80 for the largest
/// request that is taken by default.
const MEMBERS_MAX: usize = 256;
/// The fastest level of both: JSON in hexadecimal shrinks by about the same at all levels.
const LEVEL: u32 = 1;
/// zstd's window of 8 MiB, the most that a content coding may ask for (RFC 9659, section 3); a
/// sender must not be able to have us allocate more.
const WINDOW_LOG_MAX: u32 = 23;
/// The largest window of a serving thread: 64 KiB. With 8 MiB each of them would keep that memory.
const INLINE_WINDOW_LOG_MAX: u32 = INLINE_BYTES_MAX.ilog2();

/// Longest body that is given room at once: more than the largest that is allowed by default.
const ROOM_BYTES_MAX: usize = 8 << 20;

/// Bodies that may be unpacked at a time on other threads. Each takes its largest size and a
/// window, which the budget of memory does not count: a thousand bombs of 2 KB would take 13 GB.
static UNPACKERS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(unpackers()));

fn unpackers() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// A packed body that cannot be unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodeFault {
    Invalid,
    TooLarge,
}

impl DecodeFault {
    /// What the client is told.
    pub(crate) fn message(self, body_bytes_max: usize) -> Message {
        match self {
            DecodeFault::Invalid => {
                Message::refuse(400, "body does not match its content-encoding")
            }
            DecodeFault::TooLarge => Message::refuse_size(body_bytes_max),
        }
    }
}

/// Unpacks a request's body, on another thread unless it is short.
///
/// # Errors
/// [`DecodeFault`]: it is not what it says, or is over `bytes_max` when unpacked.
pub(crate) async fn decode(
    coding: Coding,
    packed: Vec<u8>,
    bytes_max: usize,
) -> Result<Vec<u8>, DecodeFault> {
    if packed.len() <= DECODE_INLINE_BYTES_MAX {
        let inline_max = bytes_max.min(INLINE_BYTES_MAX);
        // A fault may only mean that the body takes more than is given here.
        if let Ok(body) = unpack(coding, &packed, inline_max, INLINE_WINDOW_LOG_MAX) {
            return Ok(body);
        }
    }
    let unpacked = unpack_apart(move || unpack(coding, &packed, bytes_max, WINDOW_LOG_MAX));
    unpacked.await.unwrap_or(Err(DecodeFault::Invalid))
}

/// Runs this on another thread, and waits while as many as there are processors do the same. `None`
/// if it panicked.
pub(crate) async fn unpack_apart<T: Send + 'static>(
    unpack: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let permit = UNPACKERS.acquire().await.ok()?;
    let unpacked = tokio::task::spawn_blocking(move || {
        let unpacked = unpack();
        drop(permit);
        unpacked
    });
    unpacked.await.ok()
}

fn unpack(
    coding: Coding,
    packed: &[u8],
    bytes_max: usize,
    window_log_max: u32,
) -> Result<Vec<u8>, DecodeFault> {
    match coding {
        Coding::Gzip => unpack_gzip(packed, bytes_max),
        Coding::Zstd => {
            let mut decoder =
                zstd::stream::read::Decoder::new(packed).map_err(|_| DecodeFault::Invalid)?;
            decoder.window_log_max(window_log_max).map_err(|_| DecodeFault::Invalid)?;
            read_bounded(decoder, bytes_max)
        }
        Coding::Identity | Coding::Other => Ok(packed.to_vec()),
    }
}

/// Unpacks the members of a gzip file, one after the other. Beginning one costs far more than a
/// byte of it, so their number is bounded too.
fn unpack_gzip(mut packed: &[u8], bytes_max: usize) -> Result<Vec<u8>, DecodeFault> {
    let mut body = room(bytes_max);
    for _ in 0..MEMBERS_MAX {
        let mut member = flate2::bufread::GzDecoder::new(packed);
        let room = (bytes_max - body.len()) as u64 + 1;
        (&mut member).take(room).read_to_end(&mut body).map_err(|_| DecodeFault::Invalid)?;
        if body.len() > bytes_max {
            return Err(DecodeFault::TooLarge);
        }
        packed = member.into_inner();
        if packed.is_empty() {
            body.shrink_to_fit();
            return Ok(body);
        }
    }
    Err(DecodeFault::Invalid)
}

fn read_bounded(reader: impl Read, bytes_max: usize) -> Result<Vec<u8>, DecodeFault> {
    let mut body = room(bytes_max);
    let mut limited = reader.take(bytes_max as u64 + 1);
    limited.read_to_end(&mut body).map_err(|_| DecodeFault::Invalid)?;
    body.shrink_to_fit();
    if body.len() > bytes_max { Err(DecodeFault::TooLarge) } else { Ok(body) }
}

/// An empty body with room for the longest that is allowed. Only what is written takes memory,
/// whereas a body that grows leaves the memory of every step to the allocator, three times its
/// length in all.
fn room(bytes_max: usize) -> Vec<u8> {
    Vec::with_capacity(bytes_max.saturating_add(1).min(ROOM_BYTES_MAX))
}

/// Whether an answer's body is to be packed: the client accepts it and it is large enough.
pub(crate) fn is_wanted(message: &Message, accept: Accept, downstream: &Downstream) -> bool {
    let accepted = downstream.compression && (accept.gzip || accept.zstd);
    accepted && message.body.len() >= downstream.compression_bytes_min
}

/// Packs an answer's body, as zstd where the client accepts it, or else as gzip.
pub(crate) async fn encode(mut message: Message, accept: Accept) -> Message {
    let body = std::mem::take(&mut message.body).join();
    let packed = if body.len() <= INLINE_BYTES_MAX {
        pack(&body, accept.zstd).map_err(|()| body)
    } else {
        // The body is shared, so that it is still there should packing fail.
        let body = std::sync::Arc::new(body);
        let theirs = std::sync::Arc::clone(&body);
        let done = tokio::task::spawn_blocking(move || pack(&theirs, accept.zstd)).await;
        done.unwrap_or(Err(())).map_err(|()| std::sync::Arc::unwrap_or_clone(body))
    };
    match packed {
        Ok(packed) => {
            message.body = Body::whole(packed);
            message.encoding = Some(if accept.zstd { "zstd" } else { "gzip" });
        }
        Err(body) => message.body = Body::whole(body),
    }
    message
}

fn pack(body: &[u8], zstd: bool) -> Result<Vec<u8>, ()> {
    if zstd {
        return zstd::bulk::compress(body, LEVEL as i32).map_err(|_| ());
    }
    let out = Vec::with_capacity(body.len() / 4);
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(LEVEL));
    encoder.write_all(body).map_err(|_| ())?;
    encoder.finish().map_err(|_| ())
}

#[cfg(test)]
mod tests {
    //! Goal: what is packed comes back, and a bomb does not go off.

    use super::*;

    #[test]
    fn packed_requests_are_unpacked_within_bounds() {
        let body = b"{\"method\":\"eth_blockNumber\"}".repeat(50);
        for zstd in [false, true] {
            let coding = if zstd { Coding::Zstd } else { Coding::Gzip };
            let packed = pack(&body, zstd).unwrap();
            assert!(packed.len() < body.len());
            assert_eq!(unpack(coding, &packed, 10_000, WINDOW_LOG_MAX), Ok(body.clone()));
            assert_eq!(unpack(coding, &packed, 100, WINDOW_LOG_MAX), Err(DecodeFault::TooLarge));
            assert_eq!(
                unpack(coding, b"not packed", 100, WINDOW_LOG_MAX),
                Err(DecodeFault::Invalid)
            );
        }
    }

    #[test]
    fn members_of_gzip_are_joined_and_bounded() {
        let member = pack(b"ab", false).unwrap();
        let some = member.repeat(MEMBERS_MAX);
        assert_eq!(
            unpack(Coding::Gzip, &some, 10_000, WINDOW_LOG_MAX),
            Ok(b"ab".repeat(MEMBERS_MAX))
        );
        assert_eq!(unpack(Coding::Gzip, &some, 100, WINDOW_LOG_MAX), Err(DecodeFault::TooLarge));
        let empty = pack(b"", false).unwrap();
        let more = empty.repeat(MEMBERS_MAX + 1);
        assert_eq!(unpack(Coding::Gzip, &more, 10_000, WINDOW_LOG_MAX), Err(DecodeFault::Invalid));
    }

    #[tokio::test]
    async fn no_more_are_unpacked_at_a_time_than_there_are_processors() {
        use std::sync::mpsc::sync_channel;
        use std::time::Duration;

        let (begun, begins) = sync_channel(2 * unpackers());
        let (open, gate) = sync_channel::<()>(0);
        let gate = std::sync::Arc::new(parking_lot::Mutex::new(gate));
        let calls = (0..2 * unpackers()).map(|_| {
            let (begun, gate) = (begun.clone(), gate.clone());
            tokio::spawn(unpack_apart(move || {
                begun.send(()).unwrap();
                // It opens by being dropped.
                let _ = gate.lock().recv();
            }))
        });
        let calls: Vec<_> = calls.collect();
        tokio::task::yield_now().await;
        let long = Duration::from_secs(30);
        (0..unpackers()).for_each(|_| begins.recv_timeout(long).unwrap());
        assert!(begins.recv_timeout(Duration::from_millis(100)).is_err(), "one too many");
        drop(open);
        for call in calls {
            assert_eq!(call.await.unwrap(), Some(()));
        }
    }
}
