//! Message compression: permessage-deflate (RFC 7692), without context takeover.
//!
//! With context takeover, a message could refer to the bytes of earlier messages. Here each message
//! is compressed separately, so an idle connection holds no compression state. The disadvantage is
//! that short messages shrink less.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The value of `Sec-WebSocket-Extensions` in the response to an acceptable offer.
pub(crate) const ACCEPTED: &str =
    "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

/// The bytes at the end of each compressed message. The sender removes them, and the receiver adds
/// them again (RFC 7692, sections 7.2.1 and 7.2.2).
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];
/// The fastest compression level. Hexadecimal JSON shrinks by about the same at all levels.
const LEVEL: u32 = 1;
/// Number of bytes by which an output buffer grows at a time.
const STEP_BYTES: usize = 16 * 1024;
/// Maximum number of blocks of a message that are marked as final. Each of them resets the
/// decompressor. A reset costs far more time than decoding a byte. Compressors write at most one
/// such block.
const FINAL_BLOCKS_MAX: usize = 16;

/// Returns true if at least one offer in `Sec-WebSocket-Extensions` is acceptable. An offer that
/// requires an unsupported feature, such as a smaller server window, is not acceptable.
pub(crate) fn is_offered(extensions: &str) -> bool {
    extensions.split(',').any(is_acceptable)
}

/// Returns true if one offer is acceptable.
fn is_acceptable(offer: &str) -> bool {
    let mut parameters = offer.split(';').map(str::trim);
    if parameters.next() != Some("permessage-deflate") {
        return false;
    }
    // Each of the four parameters may occur once.
    let mut has_occurred = [false; 4];
    parameters.all(|parameter| {
        let (name, value) = match parameter.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim().trim_matches('"'))),
            None => (parameter, None),
        };
        let window_bits = value.and_then(|value| value.parse::<u8>().ok());
        // `index` is the parameter's place in `has_occurred`.
        let (index, is_valid) = match name {
            "server_no_context_takeover" => (0, value.is_none()),
            "client_no_context_takeover" => (1, value.is_none()),
            "server_max_window_bits" => (2, window_bits == Some(15)),
            "client_max_window_bits" => {
                (3, value.is_none() || window_bits.is_some_and(|bits| (8..=15).contains(&bits)))
            }
            _ => return false,
        };
        is_valid && !std::mem::replace(&mut has_occurred[index], true)
    })
}

/// Reason why a message cannot be decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The bytes are not valid deflate data.
    Invalid,
    /// The decompressed message is longer than allowed.
    TooLarge,
}

/// Compresses a message. Returns `None` if the compression fails or does not shorten the message.
pub(crate) fn compress(message: &[u8]) -> Option<Vec<u8>> {
    let mut compressed = Vec::with_capacity(message.len() / 2 + 64);
    let mut deflate = Compress::new(Compression::new(LEVEL), false);
    loop {
        let bytes_read = usize::try_from(deflate.total_in()).ok()?;
        deflate.compress_vec(&message[bytes_read..], &mut compressed, FlushCompress::Sync).ok()?;
        let is_all_read = deflate.total_in() == message.len() as u64;
        if is_all_read && compressed.len() < compressed.capacity() {
            break;
        }
        compressed.reserve(STEP_BYTES);
    }
    let length = compressed.strip_suffix(&TAIL)?.len();
    compressed.truncate(length);
    (length < message.len()).then_some(compressed)
}

/// Decompresses a message of at most `bytes_max` bytes.
///
/// # Errors
/// A [`Fault`] if the data is invalid or the message is too long.
pub(crate) fn decompress(compressed: &[u8], bytes_max: usize) -> Result<Vec<u8>, Fault> {
    let mut message = Vec::new();
    let mut final_blocks = 0;
    let mut inflate = Decompress::new(false);
    for mut input in [compressed, &TAIL] {
        while !input.is_empty() {
            // The buffer may hold one byte more than allowed. This byte shows that the message is
            // too long.
            message.reserve(STEP_BYTES.min(bytes_max + 1 - message.len()).max(1));
            let total_before = inflate.total_in();
            let status = inflate
                .decompress_vec(input, &mut message, FlushDecompress::Sync)
                .map_err(|_| Fault::Invalid)?;
            let used_bytes =
                usize::try_from(inflate.total_in() - total_before).map_err(|_| Fault::Invalid)?;
            input = &input[used_bytes..];
            if message.len() > bytes_max {
                return Err(Fault::TooLarge);
            }
            match status {
                // Other blocks may follow a block that is marked as final (RFC 7692, section
                // 7.2.3.5).
                Status::StreamEnd if final_blocks < FINAL_BLOCKS_MAX => {
                    final_blocks += 1;
                    inflate.reset(false);
                }
                Status::StreamEnd => return Err(Fault::Invalid),
                Status::BufError if used_bytes == 0 && message.len() < message.capacity() => {
                    return Err(Fault::Invalid);
                }
                Status::Ok | Status::BufError => {}
            }
        }
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    //! Goal: the RFC's examples decompress, compression is lossless, bombs are rejected, and only
    //! supported offers are accepted.

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_rfc_are_read() {
        // RFC 7692: one block (7.2.3.1), an uncompressed block (7.2.3.3), a final block (7.2.3.4),
        // two blocks (7.2.3.5).
        let hello = [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ];
        for compressed in hello {
            assert_eq!(
                decompress(compressed, 100).as_deref(),
                Ok(&b"Hello"[..]),
                "{compressed:x?}"
            );
        }
        assert_eq!(decompress(&[0x00], 100).as_deref(), Ok(&b""[..]), "an empty message");
    }

    #[test]
    fn bombs_do_not_go_off() {
        let compressed = compress(&vec![b' '; 10 << 20]).unwrap();
        assert!(compressed.len() < 100_000);
        assert_eq!(decompress(&compressed, 1 << 20), Err(Fault::TooLarge));
        assert_eq!(decompress(&compressed, 10 << 20).map(|message| message.len()), Ok(10 << 20));
        assert_eq!(decompress(b"\xff\xff\xff not packed", 100), Err(Fault::Invalid));
        // Empty blocks that are marked as final: two bytes each, but much work.
        assert_eq!(decompress(&[0x03, 0x00].repeat(10), 100).as_deref(), Ok(&b""[..]));
        assert_eq!(decompress(&[0x03, 0x00].repeat(1 << 20), 100), Err(Fault::Invalid));
    }

    #[test]
    fn only_supported_offers_are_accepted() {
        for offer in [
            "permessage-deflate",
            "permessage-deflate; client_max_window_bits",
            "permessage-deflate; client_max_window_bits=10; server_no_context_takeover",
            "permessage-deflate; server_max_window_bits=\"15\"",
            "x-other, permessage-deflate; server_max_window_bits=9, permessage-deflate",
        ] {
            assert!(is_offered(offer), "{offer}");
        }
        for offer in [
            "",
            "x-webkit-deflate-frame",
            "permessage-deflate; server_max_window_bits=9",
            "permessage-deflate; server_max_window_bits",
            "permessage-deflate; client_max_window_bits=16",
            "permessage-deflate; server_no_context_takeover=1",
            "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
            "permessage-deflate; x",
        ] {
            assert!(!is_offered(offer), "{offer}");
        }
    }

    proptest! {
        #[test]
        fn compression_round_trips(
            pieces in proptest::collection::vec((any::<u8>(), 0usize..3000), 0..40)
        ) {
            let message: Vec<u8> =
                pieces.iter().flat_map(|(byte, count)| std::iter::repeat_n(*byte, *count)).collect();
            if let Some(compressed) = compress(&message) {
                prop_assert!(compressed.len() < message.len());
                prop_assert_eq!(decompress(&compressed, message.len()), Ok(message));
            }
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            if let Ok(message) = decompress(&bytes, 1000) {
                prop_assert!(message.len() <= 1000);
            }
        }
    }
}
