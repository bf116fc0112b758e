//! Content codings: compresses responses for clients that accept them, and decompresses requests.
//!
//! zstd is preferred to gzip, because it reaches the same size in a fraction of the time. The
//! configuration sets the minimum size of a compressed body.

use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

use tokio::sync::Semaphore;

use crate::call::reply::Body;
use crate::downstream::answer::ClientResponse;
use crate::downstream::head::{AcceptedCodings, ContentCoding};

/// Maximum bytes of a body that is compressed on the serving thread. gzip's fastest level
/// compresses about 100 MB/s. So a larger body would block the thread's other connections for over
/// half a millisecond.
pub(crate) const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum bytes of a compressed request that is decompressed on the serving thread, if the request
/// expands to at most [`INLINE_BYTES_MAX`]. One compressed byte can take as much time as a thousand
/// bytes of JSON.
pub(crate) const DECODE_INLINE_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of members (separately compressed parts) of a gzip body. Tools that write members
/// of 64 KiB need 80 members for the largest request that the default configuration accepts.
const GZIP_MEMBERS_MAX: usize = 256;
/// The fastest level of both codings. Hexadecimal JSON shrinks by about the same at all levels.
const LEVEL: u32 = 1;
/// Binary logarithm of zstd's largest window: 8 MiB, the maximum for a content coding (RFC 9659,
/// section 3). The maximum limits the memory that a client can make the gateway allocate.
const WINDOW_LOG_MAX: u32 = 23;
/// Binary logarithm of the largest zstd window on a serving thread: 64 KiB. A window of 8 MiB would
/// stay allocated in each thread.
const INLINE_WINDOW_LOG_MAX: u32 = INLINE_BYTES_MAX.ilog2();

/// Maximum bytes that are preallocated for a body. The default body limit is lower.
const PREALLOCATED_BYTES_MAX: usize = 8 << 20;

/// Permits for decompressing bodies on other threads. Each decompression takes memory for the
/// largest body and a window. The memory budget does not count this memory. Without a limit, a
/// thousand decompression bombs of 2 KB would take 13 GB.
static DECODER_PERMITS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(decoders_max()));

/// Returns the maximum number of concurrent decompressions: the number of processors.
fn decoders_max() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Why a compressed body cannot be decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodeFault {
    Invalid,
    TooLarge,
}

impl DecodeFault {
    /// Returns the refusal that the client receives.
    pub(crate) fn refusal(self, body_bytes_max: usize) -> ClientResponse {
        match self {
            DecodeFault::Invalid => {
                ClientResponse::refuse(400, "body does not match its content-encoding")
            }
            DecodeFault::TooLarge => ClientResponse::refuse_size(body_bytes_max),
        }
    }
}

/// Decompresses a request body: on this thread if the body is short, else on another thread.
///
/// # Errors
/// [`DecodeFault`] if the body is malformed or expands to more than `bytes_max`.
pub(crate) async fn decode(
    coding: ContentCoding,
    encoded: Vec<u8>,
    bytes_max: usize,
) -> Result<Vec<u8>, DecodeFault> {
    if encoded.len() <= DECODE_INLINE_BYTES_MAX {
        let inline_max = bytes_max.min(INLINE_BYTES_MAX);
        // A fault is ignored here, because the decompression below allows a larger body and a
        // larger window.
        if let Ok(body) = decompress(coding, &encoded, inline_max, INLINE_WINDOW_LOG_MAX) {
            return Ok(body);
        }
    }
    let decompressed =
        decompress_off_thread(move || decompress(coding, &encoded, bytes_max, WINDOW_LOG_MAX));
    decompressed.await.unwrap_or(Err(DecodeFault::Invalid))
}

/// Waits for a permit, then runs `decompress` on another thread. Returns `None` if `decompress` has
/// panicked.
pub(crate) async fn decompress_off_thread<T: Send + 'static>(
    decompress: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let permit = DECODER_PERMITS.acquire().await.ok()?;
    let decompressed = tokio::task::spawn_blocking(move || {
        let decompressed = decompress();
        drop(permit);
        decompressed
    });
    decompressed.await.ok()
}

/// Decompresses a body of at most `bytes_max` bytes.
fn decompress(
    coding: ContentCoding,
    encoded: &[u8],
    bytes_max: usize,
    window_log_max: u32,
) -> Result<Vec<u8>, DecodeFault> {
    match coding {
        ContentCoding::Gzip => decompress_gzip(encoded, bytes_max),
        ContentCoding::Zstd => {
            let mut decoder =
                zstd::stream::read::Decoder::new(encoded).map_err(|_| DecodeFault::Invalid)?;
            decoder.window_log_max(window_log_max).map_err(|_| DecodeFault::Invalid)?;
            read_bounded(decoder, bytes_max)
        }
        ContentCoding::Identity | ContentCoding::Other => Ok(encoded.to_vec()),
    }
}

/// Decompresses the members of a gzip body in sequence. The start of a member costs far more time
/// than a byte, so the number of members is limited too.
fn decompress_gzip(mut encoded: &[u8], bytes_max: usize) -> Result<Vec<u8>, DecodeFault> {
    let mut body = preallocate(bytes_max);
    for _ in 0..GZIP_MEMBERS_MAX {
        let mut member = flate2::bufread::GzDecoder::new(encoded);
        // If one byte more than the allowed number can be read, the body is too large.
        let read_max = (bytes_max - body.len()) as u64 + 1;
        (&mut member).take(read_max).read_to_end(&mut body).map_err(|_| DecodeFault::Invalid)?;
        if body.len() > bytes_max {
            return Err(DecodeFault::TooLarge);
        }
        encoded = member.into_inner();
        if encoded.is_empty() {
            body.shrink_to_fit();
            return Ok(body);
        }
    }
    Err(DecodeFault::Invalid)
}

/// Reads a body of at most `bytes_max` bytes.
fn read_bounded(reader: impl Read, bytes_max: usize) -> Result<Vec<u8>, DecodeFault> {
    let mut body = preallocate(bytes_max);
    let mut limited = reader.take(bytes_max as u64 + 1);
    limited.read_to_end(&mut body).map_err(|_| DecodeFault::Invalid)?;
    body.shrink_to_fit();
    if body.len() > bytes_max { Err(DecodeFault::TooLarge) } else { Ok(body) }
}

/// Returns an empty buffer with capacity for the largest allowed body. The system allocates a
/// memory page only at its first write, so the unused capacity costs nothing. A growing buffer
/// would allocate and free several smaller buffers.
fn preallocate(bytes_max: usize) -> Vec<u8> {
    Vec::with_capacity(bytes_max.saturating_add(1).min(PREALLOCATED_BYTES_MAX))
}

/// Compresses a response body with zstd if the client accepts it, otherwise with gzip.
pub(crate) async fn encode(
    mut response: ClientResponse,
    accepted: AcceptedCodings,
) -> ClientResponse {
    let body = std::mem::take(&mut response.body).join();
    let encoded = try_compress(body, move |body| compress(body, accepted.zstd)).await;
    if encoded.is_ok() {
        response.encoding = Some(if accepted.zstd { "zstd" } else { "gzip" });
    }
    response.body = Body::from_bytes(encoded.unwrap_or_else(|body| body));
    response
}

/// Compresses a body with `codec`, on another thread if the body is long.
///
/// # Errors
/// The unchanged body if `codec` returns `None`.
pub(crate) async fn try_compress(
    body: Vec<u8>,
    codec: impl FnOnce(&[u8]) -> Option<Vec<u8>> + Send + 'static,
) -> Result<Vec<u8>, Vec<u8>> {
    if body.len() <= INLINE_BYTES_MAX {
        return codec(&body).ok_or(body);
    }
    // Both threads share the body, so it still exists if the compression fails.
    let body = Arc::new(body);
    let shared_body = Arc::clone(&body);
    let compressed = tokio::task::spawn_blocking(move || codec(&shared_body)).await.ok().flatten();
    compressed.ok_or_else(|| Arc::unwrap_or_clone(body))
}

/// Compresses a body with zstd if `zstd` is true, else with gzip. Returns `None` on failure.
fn compress(body: &[u8], zstd: bool) -> Option<Vec<u8>> {
    if zstd {
        return zstd::bulk::compress(body, LEVEL as i32).ok();
    }
    let out = Vec::with_capacity(body.len() / 4);
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(LEVEL));
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    //! Goal: compressed bodies decompress to the original, and decompression bombs are rejected.

    use super::*;

    #[test]
    fn requests_are_decompressed_within_limits() {
        let body = b"{\"method\":\"eth_blockNumber\"}".repeat(50);
        for zstd in [false, true] {
            let coding = if zstd { ContentCoding::Zstd } else { ContentCoding::Gzip };
            let encoded = compress(&body, zstd).unwrap();
            assert!(encoded.len() < body.len());
            assert_eq!(decompress(coding, &encoded, 10_000, WINDOW_LOG_MAX), Ok(body.clone()));
            assert_eq!(
                decompress(coding, &encoded, 100, WINDOW_LOG_MAX),
                Err(DecodeFault::TooLarge)
            );
            assert_eq!(
                decompress(coding, b"not compressed", 100, WINDOW_LOG_MAX),
                Err(DecodeFault::Invalid)
            );
        }
    }

    #[test]
    fn members_of_gzip_are_joined_and_bounded() {
        let member = compress(b"ab", false).unwrap();
        let members = member.repeat(GZIP_MEMBERS_MAX);
        assert_eq!(
            decompress(ContentCoding::Gzip, &members, 10_000, WINDOW_LOG_MAX),
            Ok(b"ab".repeat(GZIP_MEMBERS_MAX))
        );
        assert_eq!(
            decompress(ContentCoding::Gzip, &members, 100, WINDOW_LOG_MAX),
            Err(DecodeFault::TooLarge)
        );
        let empty = compress(b"", false).unwrap();
        let too_many = empty.repeat(GZIP_MEMBERS_MAX + 1);
        assert_eq!(
            decompress(ContentCoding::Gzip, &too_many, 10_000, WINDOW_LOG_MAX),
            Err(DecodeFault::Invalid)
        );
    }

    #[tokio::test]
    async fn concurrent_decompressions_are_limited_to_the_processors() {
        use std::sync::mpsc::sync_channel;
        use std::time::Duration;

        let (started, starts) = sync_channel(2 * decoders_max());
        let (open, gate) = sync_channel::<()>(0);
        let gate = std::sync::Arc::new(parking_lot::Mutex::new(gate));
        let calls = (0..2 * decoders_max()).map(|_| {
            let (started, gate) = (started.clone(), gate.clone());
            tokio::spawn(decompress_off_thread(move || {
                started.send(()).unwrap();
                // Dropping the sender opens the gate.
                let _ = gate.lock().recv();
            }))
        });
        let calls: Vec<_> = calls.collect();
        tokio::task::yield_now().await;
        let timeout = Duration::from_secs(30);
        (0..decoders_max()).for_each(|_| starts.recv_timeout(timeout).unwrap());
        assert!(
            starts.recv_timeout(Duration::from_millis(100)).is_err(),
            "more decompressions than processors"
        );
        drop(open);
        for call in calls {
            assert_eq!(call.await.unwrap(), Some(()));
        }
    }
}
