//! Compressed messages: permessage-deflate (RFC 7692), each message by itself.
//!
//! No context outlives a message: between two messages a connection holds nothing, and what is told
//! to many could be packed for all alike. That costs some of the gain where messages are short.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// What an offer that can be taken is answered with.
pub(crate) const ACCEPTED: &str =
    "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

/// What every message ends with that is flushed, and what is not sent (RFC 7692, 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];
/// JSON in hexadecimal shrinks by about the same at all levels.
const LEVEL: u32 = 1;
/// Room that is made at a time for what is unpacked.
const STEP_BYTES: usize = 16 * 1024;
/// The most blocks of a message that say that they are the last: beginning anew after one costs far
/// more than a byte. Compressors write one such block at most.
const LAST_BLOCKS_MAX: usize = 16;

/// Whether one of the offers of a `Sec-WebSocket-Extensions` can be taken: it asks for nothing that
/// we do not do, such as a smaller window of ours.
pub(crate) fn is_offered(extensions: &str) -> bool {
    extensions.split(',').any(may_take)
}

fn may_take(offer: &str) -> bool {
    let mut parts = offer.split(';').map(str::trim);
    if parts.next() != Some("permessage-deflate") {
        return false;
    }
    let mut seen = [false; 4];
    parts.all(|parameter| {
        let (name, value) = match parameter.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim().trim_matches('"'))),
            None => (parameter, None),
        };
        let bits = value.and_then(|value| value.parse::<u8>().ok());
        let (place, fits) = match name {
            "server_no_context_takeover" => (0, value.is_none()),
            "client_no_context_takeover" => (1, value.is_none()),
            "server_max_window_bits" => (2, bits == Some(15)),
            "client_max_window_bits" => {
                (3, value.is_none() || bits.is_some_and(|bits| (8..=15).contains(&bits)))
            }
            _ => return false,
        };
        fits && !std::mem::replace(&mut seen[place], true)
    })
}

/// A message that cannot be unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not what deflate makes.
    Invalid,
    /// It is longer than allowed when it is unpacked.
    TooLarge,
}

/// Packs a message; none if that fails or makes it no shorter.
pub(crate) fn pack(message: &[u8]) -> Option<Vec<u8>> {
    let mut packed = Vec::with_capacity(message.len() / 2 + 64);
    let mut deflate = Compress::new(Compression::new(LEVEL), false);
    loop {
        let done = usize::try_from(deflate.total_in()).ok()?;
        deflate.compress_vec(&message[done..], &mut packed, FlushCompress::Sync).ok()?;
        let all = deflate.total_in() == message.len() as u64;
        if all && packed.len() < packed.capacity() {
            break;
        }
        packed.reserve(STEP_BYTES);
    }
    let kept = packed.strip_suffix(&TAIL)?.len();
    packed.truncate(kept);
    (kept < message.len()).then_some(packed)
}

/// Unpacks a message of at most so many bytes.
///
/// # Errors
/// [`Fault`].
pub(crate) fn unpack(packed: &[u8], bytes_max: usize) -> Result<Vec<u8>, Fault> {
    let mut message = Vec::new();
    let mut last_blocks = 0;
    let mut inflate = Decompress::new(false);
    for mut piece in [packed, &TAIL] {
        while !piece.is_empty() {
            message.reserve(STEP_BYTES.min(bytes_max + 1 - message.len()).max(1));
            let before = inflate.total_in();
            let status = inflate
                .decompress_vec(piece, &mut message, FlushDecompress::Sync)
                .map_err(|_| Fault::Invalid)?;
            let taken = usize::try_from(inflate.total_in() - before).map_err(|_| Fault::Invalid)?;
            piece = &piece[taken..];
            if message.len() > bytes_max {
                return Err(Fault::TooLarge);
            }
            match status {
                // What says that it is the last block need not be the last (RFC 7692, 7.2.3.5).
                Status::StreamEnd if last_blocks < LAST_BLOCKS_MAX => {
                    last_blocks += 1;
                    inflate.reset(false);
                }
                Status::StreamEnd => return Err(Fault::Invalid),
                Status::BufError if taken == 0 && message.len() < message.capacity() => {
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
    //! Goal: what RFC 7692 shows is read, what is packed comes back, bombs do not go off, and only
    //! what can be kept is promised.

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_rfc_are_read() {
        // 7.2.3.1, one block; 7.2.3.3, a block without compression; 7.2.3.4, a last block; 7.2.3.5,
        // two.
        let hello = [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ];
        for packed in hello {
            assert_eq!(unpack(packed, 100).as_deref(), Ok(&b"Hello"[..]), "{packed:x?}");
        }
        assert_eq!(unpack(&[0x00], 100).as_deref(), Ok(&b""[..]), "an empty message");
    }

    #[test]
    fn bombs_do_not_go_off() {
        let packed = pack(&vec![b' '; 10 << 20]).unwrap();
        assert!(packed.len() < 100_000);
        assert_eq!(unpack(&packed, 1 << 20), Err(Fault::TooLarge));
        assert_eq!(unpack(&packed, 10 << 20).map(|message| message.len()), Ok(10 << 20));
        assert_eq!(unpack(b"\xff\xff\xff not packed", 100), Err(Fault::Invalid));
        // Empty blocks, each of which says that it is the last: two bytes, and much work.
        assert_eq!(unpack(&[0x03, 0x00].repeat(10), 100).as_deref(), Ok(&b""[..]));
        assert_eq!(unpack(&[0x03, 0x00].repeat(1 << 20), 100), Err(Fault::Invalid));
    }

    #[test]
    fn only_what_can_be_kept_is_promised() {
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
        fn what_is_packed_comes_back(
            pieces in proptest::collection::vec((any::<u8>(), 0usize..3000), 0..40)
        ) {
            let message: Vec<u8> =
                pieces.iter().flat_map(|(byte, count)| std::iter::repeat_n(*byte, *count)).collect();
            if let Some(packed) = pack(&message) {
                prop_assert!(packed.len() < message.len());
                prop_assert_eq!(unpack(&packed, message.len()), Ok(message));
            }
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            if let Ok(message) = unpack(&bytes, 1000) {
                prop_assert!(message.len() <= 1000);
            }
        }
    }
}
