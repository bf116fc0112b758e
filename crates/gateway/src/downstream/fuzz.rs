//! Invariants of the HTTP/1.1 parser for arbitrary client bytes, as functions for fuzzers.
//!
//! `fuzz/src/http1.rs` calls these functions without a time limit. A test in this file calls them
//! for one second in every check. They are not part of the crate's interface.

use super::head::{BodyLength, HeadFault, read_head};
use crate::access::caller::HeadFields;
use crate::io::chunked::Chunked;

/// Small limits, so that inputs reach them.
const HEAD_BYTES_MAX: usize = 600;
const BODY_BYTES_MAX: usize = 400;

/// The bytes of a request's head, and its body.
type Request = (Vec<u8>, Vec<u8>);

/// The parsed requests of one connection, and how the connection ended.
#[derive(Debug, PartialEq, Eq)]
struct Conversation {
    requests: Vec<Request>,
    /// True if a request was refused, which closes the connection.
    refused: bool,
}

/// Parses bytes as one connection. Read boundaries must not change the requests or the refusal, and
/// each accepted head must have only one meaning.
///
/// # Panics
/// If an invariant is violated.
pub(crate) fn http1(bytes: &[u8]) {
    let expected = parse_connection(bytes, usize::MAX);
    for piece_bytes in [1, 2, 7, 64] {
        assert_eq!(
            parse_connection(bytes, piece_bytes),
            expected,
            "pieces of {piece_bytes} bytes change the outcome"
        );
    }
    for (head, _) in &expected.requests {
        assert_unambiguous(head);
    }
}

/// Parses the bytes as a connection does, from reads of `piece_bytes` bytes.
fn parse_connection(bytes: &[u8], piece_bytes: usize) -> Conversation {
    let mut conversation = Conversation { requests: Vec::new(), refused: false };
    let mut buf = Vec::new();
    let mut partial: Option<PartialRequest> = None;
    for piece in bytes.chunks(piece_bytes.min(bytes.len().max(1))) {
        buf.extend_from_slice(piece);
        loop {
            match next_request(&mut buf, &mut partial) {
                Ok(Some(request)) => conversation.requests.push(request),
                Ok(None) => break,
                Err(()) => {
                    conversation.refused = true;
                    return conversation;
                }
            }
        }
    }
    conversation
}

/// A request with a parsed head.
struct PartialRequest {
    head: Vec<u8>,
    length: BodyLength,
    chunked: Chunked,
}

/// Parses the next request; `None` while the request is incomplete. Returns `Err` if the request is
/// refused.
fn next_request(
    buf: &mut Vec<u8>,
    partial: &mut Option<PartialRequest>,
) -> Result<Option<Request>, ()> {
    let Some(request) = partial else {
        let Some(head) =
            read_head(buf, HEAD_BYTES_MAX, &HeadFields::default(), None).map_err(check_fault)?
        else {
            return Ok(None);
        };
        assert!(
            head.bytes <= buf.len().min(HEAD_BYTES_MAX),
            "the parser used more bytes than it got"
        );
        if matches!(head.body_length, BodyLength::Fixed(length) if length > BODY_BYTES_MAX as u64) {
            return Err(());
        }
        let chunked = Chunked::new(BODY_BYTES_MAX);
        let length = head.body_length;
        *partial =
            Some(PartialRequest { head: buf.drain(..head.bytes).collect(), length, chunked });
        return next_request(buf, partial);
    };
    let body = match request.length {
        BodyLength::None => Vec::new(),
        BodyLength::Fixed(length) if (buf.len() as u64) < length => return Ok(None),
        BodyLength::Fixed(length) => buf.drain(..length as usize).collect(),
        BodyLength::Chunked => {
            let used = request.chunked.feed(buf).map_err(|_| ())?;
            assert!(used <= buf.len(), "the parser used more bytes than it got");
            buf.drain(..used);
            if !request.chunked.is_done() {
                return Ok(None);
            }
            std::mem::replace(&mut request.chunked, Chunked::new(0)).into_body()
        }
    };
    assert!(body.len() <= BODY_BYTES_MAX, "{} bytes passed", body.len());
    let head = partial.take().map(|request| request.head).unwrap_or_default();
    Ok(Some((head, body)))
}

/// Checks the text of a fault. The kind of the fault can depend on read boundaries: a head can be
/// both too long and malformed.
fn check_fault(fault: HeadFault) {
    assert!(!fault.to_string().is_empty(), "a fault has no message");
}

/// Checks an accepted head by a second, line-based reading.
fn assert_unambiguous(head: &[u8]) {
    let start = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(head.len());
    let text = head[start..].strip_suffix(b"\r\n\r\n").expect("a head ends in an empty line");
    let lines: Vec<&[u8]> = split(text);
    let names: Vec<Vec<u8>> = lines[1..]
        .iter()
        .map(|line| {
            let has_line_break = line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
            assert!(!has_line_break, "a line hides another: {}", line.escape_ascii());
            assert!(
                !matches!(line.first(), None | Some(b' ' | b'\t')),
                "a folded line was accepted"
            );
            let colon = line.iter().position(|byte| *byte == b':').expect("a header has a colon");
            line[..colon].to_ascii_lowercase()
        })
        .collect();
    let count =
        |name: &str| names.iter().filter(|header| header.as_slice() == name.as_bytes()).count();
    let (lengths, codings, hosts) =
        (count("content-length"), count("transfer-encoding"), count("host"));
    assert!(lengths + codings <= 1, "two lengths were accepted: {}", head.escape_ascii());
    assert!(hosts <= 1, "two hosts were accepted: {}", head.escape_ascii());
}

/// Splits a text at CR LF.
fn split(text: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut remaining = text;
    while let Some(line_end) = remaining.windows(2).position(|pair| pair == b"\r\n") {
        lines.push(&remaining[..line_end]);
        remaining = &remaining[line_end + 2..];
    }
    lines.push(remaining);
    lines
}

/// Seed inputs.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 10] = [
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"method\":\"x\"}",
        b"POST /eth?key=1 HTTP/1.1\r\nhost: [::1]:80\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nTrailer: x\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\nOrigin: https://a\r\nAccept-Encoding: gzip;q=0, zstd\r\n\r\n",
        b"POST http://a/b HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: a\nX: y\r\n z\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost : a\r\nX:\ty \r\nContent-Length: 0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    texts.map(<[u8]>::to_vec).into()
}

/// Mutates the seeds while `go_on` returns true. Returns the number of inputs.
pub(crate) fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    wire::fuzz::mutate_all(&seeds(), http1, seed, go_on)
}

#[cfg(test)]
mod tests {
    //! Goal: every check fuzzes for one second, and the second reading detects known ambiguities.

    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn seeds_are_the_requests_that_they_look_like() {
        let counts: Vec<(usize, bool)> = seeds()
            .iter()
            .map(|seed| {
                http1(seed);
                let conversation = parse_connection(seed, usize::MAX);
                (conversation.requests.len(), conversation.refused)
            })
            .collect();
        let (single, refused) = ((1, false), (0, true));
        assert_eq!(
            counts,
            [
                single,
                single,
                (2, false),
                single,
                single,
                refused,
                refused,
                refused,
                refused,
                refused
            ]
        );
        let body = |index: usize| parse_connection(&seeds()[index], 3).requests[0].1.clone();
        assert_eq!((body(0).len(), body(1)), (14, b"hello world".to_vec()));
    }

    #[test]
    fn a_duplicate_length_is_detected() {
        let hidden =
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\n";
        assert!(std::panic::catch_unwind(|| assert_unambiguous(hidden)).is_err());
        let folded = b"POST / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n";
        assert!(std::panic::catch_unwind(|| assert_unambiguous(folded)).is_err());
    }

    #[test]
    fn one_second_of_mutations_holds() {
        let start = Instant::now();
        let seed = 5;
        let tried = mutate(seed, &mut |_| start.elapsed() < Duration::from_secs(1));
        assert!(tried > 100, "only {tried} inputs in a second");
    }
}
