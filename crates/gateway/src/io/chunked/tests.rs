//! Goal: a chunked body ends where its coding says, at any read boundary. Method: raw bytes, fed
//! whole and byte by byte.

use super::*;

/// Decodes `input` in pieces of `piece_bytes` bytes. Returns the body, and the number of used
/// bytes.
fn decode(input: &[u8], piece_bytes: usize) -> Result<(Vec<u8>, usize), ChunkFault> {
    let body_bytes_max = 1000;
    let mut chunked = Chunked::new(body_bytes_max);
    let mut buffer = Vec::new();
    let mut used = 0;
    for part in input.chunks(piece_bytes) {
        buffer.extend_from_slice(part);
        let decoded_bytes = chunked.feed(&buffer)?;
        buffer.drain(..decoded_bytes);
        used += decoded_bytes;
    }
    assert!(chunked.is_done(), "body is not complete");
    Ok((chunked.into_body(), used))
}

#[test]
fn chunks_join_at_every_cut() {
    let input = b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nTrailer: x\r\n\r\nNEXT";
    for piece_bytes in 1..input.len() {
        let (body, used) = decode(input, piece_bytes).unwrap();
        assert_eq!(body, b"hello world");
        assert_eq!(&input[used..], b"NEXT");
    }
}

#[test]
fn odd_chunks_are_refused() {
    let cases: [(&[u8], ChunkFault); 12] = [
        (b"5\nhello\r\n", ChunkFault::Size),
        (b"\r\nhello\r\n", ChunkFault::Size),
        (b"-5\r\nhello\r\n", ChunkFault::Size),
        (b"0x5\r\nhello\r\n", ChunkFault::Size),
        (b"fffffffff\r\n", ChunkFault::Size),
        (b"5 x\r\nhello\r\n", ChunkFault::Size),
        (b"5\r\r\nhello\r\n", ChunkFault::Size),
        (b"5;a\rb\r\nhello\r\n", ChunkFault::Size),
        (b"ffff\r\n", ChunkFault::TooLarge),
        (b"2\r\nhello\r\n", ChunkFault::End),
        (b"5\r\nhello\n0\r\n\r\n", ChunkFault::End),
        (b"0\r\nbad\n\r\n", ChunkFault::Trailer),
    ];
    for (input, fault) in cases {
        assert_eq!(decode(input, input.len()).unwrap_err(), fault, "{input:?}");
    }
}

#[test]
fn a_size_line_is_bounded_to_the_byte() {
    for (bytes, is_accepted) in [(SIZE_LINE_BYTES_MAX, true), (SIZE_LINE_BYTES_MAX + 1, false)] {
        let line = format!("0;{}\r\n", "a".repeat(bytes - 4));
        for piece_bytes in [1, bytes + 2] {
            let decoded = decode(&[line.as_bytes(), b"\r\n"].concat(), piece_bytes);
            let expected =
                if is_accepted { Ok((Vec::new(), bytes + 2)) } else { Err(ChunkFault::Size) };
            assert_eq!(decoded, expected, "{bytes} bytes in pieces of {piece_bytes}");
        }
    }
}

#[test]
fn a_trailer_is_bounded_to_the_byte() {
    for (bytes, is_accepted) in [(TRAILER_BYTES_MAX, true), (TRAILER_BYTES_MAX + 1, false)] {
        // The last 4 bytes are the line end and the empty line after it.
        let body = format!("0\r\n{}\r\n\r\n", "a".repeat(bytes - 4));
        for piece_bytes in [1, body.len()] {
            let decoded = decode(body.as_bytes(), piece_bytes);
            let expected =
                if is_accepted { Ok((Vec::new(), bytes + 3)) } else { Err(ChunkFault::Trailer) };
            assert_eq!(decoded, expected, "{bytes} bytes in pieces of {piece_bytes}");
        }
    }
}
